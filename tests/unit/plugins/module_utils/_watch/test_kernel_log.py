"""Faults in the kernel log: recorded lines of GB10 nodes, and messages in the wording of the kernel and of its drivers."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._watch.kernel_log import classify
from shared_samples import needs_shared, samples


@needs_shared
@pytest.mark.parametrize("name", ["dmesg.mlx5-benign.txt", "dmesg.cx7-hotplug-plugin.txt"])
def test_recorded_benign_lines_are_not_faults(name: str) -> None:
    lines = (samples() / name).read_text().splitlines()
    assert lines
    assert [line for line in lines if classify(line)] == []


@needs_shared
def test_the_recorded_lack_of_memory_of_the_driver_is_found() -> None:
    line = (samples() / "dmesg.nvrm-no-memory.txt").read_text().strip()
    assert classify(line) == ("driver_no_memory", line)


FAULTS = """
gpu_lost: NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.
gpu_lost: NVRM: Xid (PCI:000f:01:00): 119, pid=4711, name=VLLM::Worker, Timeout after 45s of waiting for RPC response from GPU0 GSP!
cuda_fault: NVRM: Xid (PCI:000f:01:00): 31, pid=4711, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS
oom_killed: oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=docker-0.scope,mems_allowed=0,global_oom,task=VLLM::Worker,pid=4711,uid=0
oom_killed: Out of memory: Killed process 4711 (VLLM::Worker) total-vm:130000000kB, anon-rss:97000000kB, file-rss:0kB
oom_killed: Memory cgroup out of memory: Killed process 4711 (python3) total-vm:130000000kB
pcie_error: pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error received: 0000:01:00.0
pcie_error: pcieport 0000:00:00.0: AER: Uncorrectable (Non-Fatal) error message received from 0000:01:00.0
pcie_error: mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Non-Fatal), type=Transaction Layer, (Requester ID)
pcie_error: mlx5_core 0000:01:00.0: mlx5_pci_slot_reset Device state = 2 health sensors: 1 slot reset
pcie_error: pcieport 0000:00:00.0: AER: device recovery failed
pcie_error: {1}[Hardware Error]: event severity: fatal
lockup: watchdog: BUG: soft lockup - CPU#3 stuck for 26s! [VLLM::Worker:4711]
lockup: INFO: task kworker/u40:3:512 blocked for more than 120 seconds.
lockup: rcu: INFO: rcu_preempt detected stalls on CPUs/tasks:
mlx5_error: mlx5_core 0000:01:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count
mlx5_error: mlx5_core 0000:01:00.0: poll_health:816:(pid 0): Fatal error 1 detected
mlx5_error: mlx5_core 0000:01:00.0: cmd_work_handler:1025:(pid 512): ACCESS_REG(0x805) timeout. Will cause a leak of a command resource
mlx5_error: mlx5_core 0000:01:00.0: Port module event[error]: module 0, Cable error, High Temperature
mlx5_error: mlx5_core 0000:01:00.0 enp1s0f0np0: TX timeout detected
wifi_oops: mt7925e 0004:01:00.0: chip reset failed
"""


@pytest.mark.parametrize("prefix", ["", "[ 8123.456789] ", "[Fri Aug  7 03:13:00] ", "3,1234,8123456789,-;"])
def test_a_fault_is_found_with_each_stamp(prefix: str) -> None:
    rows = [tuple(row.split(": ", 1)) for row in FAULTS.strip().splitlines()]
    assert [classify(prefix + line) for _kind, line in rows] == rows


@pytest.mark.parametrize(
    "line",
    [
        "pcieport 0000:00:00.0: AER: Corrected error received: 0000:01:00.0",
        "pcieport 0000:00:00.0: AER: Multiple Correctable error message received from 0000:01:00.0",
        "mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)",
        "{1}[Hardware Error]: event severity: corrected",
        "mlx5_core 0000:01:00.0: Health issue observed, High temperature, severity(4) WARNING:",
        "NVRM: loading NVIDIA UNIX Open Kernel Module for aarch64  580.126.09",
        "mlx5_core 0000:01:00.0: health recovery succeeded",
        " SUBSYSTEM=pci",
        "",
        # /dev/kmsg carries lines of user processes as well: facility 3 is a daemon.
        "28,1234,8123456789,-;systemd[1]: docker.service: A process of this unit has been killed by the OOM killer.",
        "12,1234,8123456789,-;NVRM: Xid (PCI:000f:01:00): 79, GPU has fallen off the bus.",
    ],
)
def test_other_lines_are_not_faults(line: str) -> None:
    assert classify(line) is None


def test_a_long_line_is_cut() -> None:
    found = classify("Out of memory: Killed process 4711 (" + "x" * 5000)
    assert found is not None
    assert len(found[1]) == 600
