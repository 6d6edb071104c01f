"""A node that panics or freezes reboots itself, with the two opt-in variables of the role sysctl; `absent` restores it. One machine: vm-1."""

from __future__ import annotations

import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest
from vm.node_helpers import site

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

NODE = 1
ONLY = ("--limit", "vm-1")
SECONDS = 30
SETTINGS = {"sysctl_watchdog_seconds": SECONDS, "sysctl_reboot_on_panic": 5}
BOOT_ID = "cat /proc/sys/kernel/random/boot_id"
DEVICE = "/sys/class/watchdog/watchdog0"
BY_WATCHDOG = "32"  # WDIOF_CARDRESET: the device reports that it has caused the last reset
# The kernel keeps 5 % of each second for normal programs in two ways. Both are switched off, and then nothing but the loop runs on the only processor.
FREEZE = (
    "mount -t debugfs none /sys/kernel/debug; sysctl -qw kernel.sched_rt_runtime_us=-1; "
    "for cpu in /sys/kernel/debug/sched/fair_server/cpu*; do echo 0 > $cpu/runtime; done; exec chrt -f 99 sh -c 'while :; do :; done'"
)
READ = {
    "systemd": "systemctl show --property RuntimeWatchdogUSec,RebootWatchdogUSec --value | tr '\\n' ' '",
    "device": f"cat {DEVICE}/state {DEVICE}/timeout {DEVICE}/nowayout | tr '\\n' ' '",
    "panic": "sysctl -n kernel.panic kernel.panic_on_oops kernel.softlockup_panic vm.panic_on_oom | tr '\\n' ' '",
}
ARMED = {"systemd": f"{SECONDS}s 2min", "device": f"active {SECONDS} 0", "panic": "5 1 1 0"}
STOCK = {"systemd": "0 10min", "panic": "0 0 0 0"}


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    vmlab.pristine = False
    vmlab.docker_answers()
    return vmlab


@pytest.fixture(scope="module")
def was(lab: VmLab) -> dict[str, Any]:
    return lab.state(NODE)


@pytest.fixture(scope="module")
def applied(lab: VmLab, was: dict[str, Any]) -> Run:
    run = site(lab, *ONLY, tags="sysctl", **SETTINGS)
    assert run.rc == 0, run.stdout[-4000:]
    return run


def comes_back(lab: VmLab, fault: str) -> float:
    """Let the node do `fault` to itself after this call; return the seconds until it answers in another boot."""
    boot = lab.on(NODE, f"sync; {BOOT_ID}")
    lab.on(NODE, f"systemd-run --quiet --collect --unit fault sh -c {shlex.quote('sleep 3; ' + fault)}")
    started = time.monotonic()
    lab.until(NODE, f'now=$({BOOT_ID}); test "$now" != {boot}')
    return time.monotonic() - started


def test_systemd_the_device_and_the_kernel_have_the_settings(lab: VmLab, applied: Run) -> None:
    assert lab.probe(NODE, READ) == ARMED
    assert f"the watchdog resets a frozen node after {SECONDS} s" in " ".join(applied.stdout.split())
    again = site(lab, *ONLY, tags="sysctl", **SETTINGS)
    assert (again.rc, again.changed) == (0, set()), again.stdout[-3000:]


def test_a_node_that_panics_reboots_itself(lab: VmLab, applied: Run) -> None:
    comes_back(lab, "echo c > /proc/sysrq-trigger")
    assert lab.on(NODE, f"cat {DEVICE}/bootstatus") != BY_WATCHDOG


def test_a_frozen_node_is_reset_by_the_watchdog(lab: VmLab, applied: Run) -> None:
    lab.on(NODE, "mkdir -p /var/log/journal && journalctl --flush")  # the guest keeps its journal in memory otherwise
    assert comes_back(lab, FREEZE) > SECONDS / 2
    assert lab.on(NODE, f"cat {DEVICE}/bootstatus") == BY_WATCHDOG
    doctor = lab.play("playbooks/doctor.yml", *ONLY, variables={"output": "json"})
    [report] = doctor.documents
    assert [each["hosts"] for each in report["findings"] if each["id"] == "unclean_end"] == [["vm-1"]], report
    assert lab.probe(NODE, READ) == ARMED
    lab.on(NODE, "rm -rf /var/log/journal")


def test_absent_restores_the_node(lab: VmLab, was: dict[str, Any], applied: Run) -> None:
    lab.docker_answers()
    run = site(lab, *ONLY, tags="sysctl", sysctl_state="absent")
    assert run.rc == 0, run.stdout[-4000:]
    found = lab.probe(NODE, READ)
    assert found.pop("device").startswith("inactive")
    assert found == STOCK
    assert lab.on(NODE, "ls -d /etc/systemd/system.conf.d /var/lib/gb10-cluster/sysctl.json 2>/dev/null || true") == ""
    assert lab.state(NODE) == was
