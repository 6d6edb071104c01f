"""Faults in the kernel log of one boot: real lines of the samples and of the kernel's sources, and healthy ones next to them."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import kernel
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS
from shared_samples import needs_shared, samples

STAMP = "2026-11-22T20:15:00+00:00 spark-1 kernel: "
NO_MEMORY = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc)"
FAULTS = {
    "oom_killed": "Out of memory: Killed process 4711 (VLLM::Worker_TP1) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:1kB",
    "gpu_lost": "NVRM: Xid (PCI:000f:01:00): 79, pid=4711, name=VLLM::Worker, GPU has fallen off the bus.",
    "gpu_xid": "NVRM: Xid (PCI:000f:01:00): 31, pid=4711, name=VLLM::Worker, Ch 0000000a, intr 00000000. MMU Fault",
    "kernel_panic": "Kernel panic - not syncing: Fatal exception in interrupt",
    "lockup": "INFO: task jbd2/nvme0n1p2-8:512 blocked for more than 122 seconds.",
    "pcie_error": "pcieport 0000:00:00.0: AER: Uncorrected (Fatal) error message received from 0000:01:00.0",
    "mlx5_error": "mlx5_core 0000:01:00.0: poll_health:825:(pid 0): device's health compromised - reached miss count",
    "thermal": "thermal thermal_zone0: acpitz: critical temperature reached, shutting down",
    "disk_error": "I/O error, dev nvme0n1, sector 1234567 op 0x0:(READ) flags 0x80700 phys_seg 1 prio class 2",
    "suspend": "PM: suspend entry (s2idle)",
    "wifi_oops": "mt7925e 0009:01:00.0: chip reset failed",
}
HEALTHY = (
    "mlx5_core 0002:01:00.0: mlx5_pcie_event:326:(pid 3202): Detected insufficient power on the PCIe slot (27W).",
    "mlx5_core 0002:01:00.0: 126.028 Gb/s available PCIe bandwidth (32.0 GT/s PCIe x4 link)",
    "mlx5_core 0000:01:00.0: Port module event: module 0, Cable plugged",
    "thermal_sys: Registered thermal governor 'step_wise'",
    "nvme nvme0: 20/0/0 default/read/poll queues",
    "EXT4-fs (nvme0n1p2): mounted filesystem r/w with ordered data mode.",
    "Kernel command line: quiet panic=10",
    NO_MEMORY,
)


@pytest.mark.parametrize("name", FAULTS)
def test_each_kind_is_found_with_its_stamp(name: str) -> None:
    (event,) = kernel.summarize(f"{STAMP}Linux version 6.17\n{STAMP}{FAULTS[name]}\n", -1)
    assert (event["id"], event["boot"], event["count"], event["last"]) == (name, -1, 1, "2026-11-22T20:15:00+00:00")
    assert event["line"] == FAULTS[name][: kernel.CLIP]


@pytest.mark.parametrize("line", HEALTHY)
def test_a_healthy_line_is_not_a_fault(line: str) -> None:
    assert kernel.summarize(STAMP + line) == []


def test_a_boot_and_one_replug_are_healthy_and_more_losses_are_not() -> None:
    down = STAMP + "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down\n"
    assert kernel.summarize(down * 4) == []
    (event,) = kernel.summarize(down * 9)
    assert (event["id"], event["count"]) == ("link_flap", 9)


def test_many_failed_allocations_of_the_driver_are_a_fault() -> None:
    (event,) = kernel.summarize(f"{STAMP}{NO_MEMORY}\n" * 12)
    assert (event["id"], event["count"]) == ("driver_no_memory", 12)


def test_every_kind_has_a_line_here() -> None:
    assert set(FAULTS) | {"link_flap", "driver_no_memory"} == set(KINDS)


@pytest.mark.parametrize(
    ("tail", "clean"),
    [
        ("2026-11-22T20:15:00+0000 spark-1 systemd-journald[412]: Journal stopped", True),
        ("2026-11-22T20:15:00+0000 spark-1 systemd[1]: Reached target shutdown.target - System Shutdown.", True),
        ("2026-11-22T20:15:00+0000 spark-1 systemd[1]: Reached target reboot.target - System Reboot.", True),
        ("2026-11-22T20:15:00+0000 spark-1 dockerd[900]: time=now level=info msg=ok", False),
    ],
)
def test_a_boot_without_a_shutdown_is_noticed(tail: str, clean: bool) -> None:
    assert kernel.ended_by_shutdown(f"first\n{tail}\n") is clean


@needs_shared
@pytest.mark.parametrize("name", ["dmesg.cx7-hotplug-plugin.txt", "dmesg.mlx5-benign.txt", "dmesg.nvrm-no-memory.txt"])
def test_the_kernel_logs_of_healthy_nodes_have_no_fault(name: str) -> None:
    sample = samples() / name
    assert kernel.summarize(sample.read_text(encoding="utf-8")) == []
