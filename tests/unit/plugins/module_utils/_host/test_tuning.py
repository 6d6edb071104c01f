"""The memory policy of a node: what is written, which commands run, and what undo restores."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import swap
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import DROP_IN, SysctlError
from ansible_collections.gb10.cluster.plugins.module_utils._host.tuning import MemoryPolicy
from unit.fixtures.host.tree import Tree

STOCK = {
    "min_free_kbytes": "45167", "watermark_boost_factor": "15000", "watermark_scale_factor": "10", "vfs_cache_pressure": "100", "dirty_ratio": "20",
    "dirty_background_ratio": "10", "dirty_bytes": "0", "dirty_background_bytes": "0", "overcommit_memory": "0", "swappiness": "60",
}  # fmt: skip
SETTINGS = {"vm.watermark_boost_factor": "0", "vm.vfs_cache_pressure": "200", "vm.dirty_ratio": "5", "vm.swappiness": "auto"}
PARAMS: dict[str, Any] = {
    "min_free_kbytes": "auto", "min_free_by_size": {"121": 3145728}, "min_free_percent_other": 2.5, "settings": SETTINGS, "extra": {}, "swap_policy": "leave",
    "lru_gen_min_ttl_ms": "leave", "oom_policy": "leave", "watchdog_seconds": "leave", "reboot_on_panic": "leave",
    "kho_off": False,
}  # fmt: skip
FSTAB = "UUID=1 / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n"
TTL = "/sys/kernel/mm/lru_gen/min_ttl_ms"
TTL_FILE = "/etc/tmpfiles.d/60-gb10-cluster.conf"
ZRAM = "dev-zram0.swap"
PANIC = {"panic": "0", "panic_on_oops": "0", "softlockup_panic": "0"}
WATCHDOG = "/sys/class/watchdog/watchdog0"
DROP_IN_OF_SYSTEMD = "/etc/systemd/system.conf.d/60-gb10-cluster.conf"
IDLE_WATCHDOG = {f"{WATCHDOG}/state": "inactive\n"}
WATCHED = {"watchdog_seconds": "60"}


def meminfo(**gib: float) -> str:
    """Return /proc/meminfo of a 121 GiB node; values in GiB."""
    rows = {"MemTotal": 121.69, "Cached": 3.0, "AnonPages": 2.0, "Active(file)": 1.5, "Inactive(file)": 1.5, **gib}
    return "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items())


class Machine(Tree):
    """A 121 GiB node of files. Commands are recorded and succeed; `swapoff` and `swapon` change /proc/swaps, `units` is what systemctl shows.

    `daemon-reload` takes over RuntimeWatchdogSec of our drop-in, as systemd does.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[str] = []
        self.units: dict[str, dict[str, str]] = {}
        self.swapoff_works = True
        self.armed = "0"
        self.put("/proc/sys/vm/panic_on_oom", "0\n")
        for key, value in PANIC.items():
            self.put(f"/proc/sys/kernel/{key}", value + "\n")
        for key, value in STOCK.items():
            self.put(f"/proc/sys/vm/{key}", value + "\n")
        self.put("/proc/meminfo", meminfo(MemFree=114.0, MemAvailable=113.0))
        self.put("/proc/zoneinfo", f"Node 0, zone   Normal\n        managed  {int(121.69 * GIB_KB) // 4}\n        protection: (0, 0)\n")
        self.put("/etc/fstab", FSTAB)
        self.put("/swap.img", "")
        self.swaps("/swap.img")

    def swaps(self, *devices: str) -> None:
        self.put("/proc/swaps", "".join(f"{device} file {16 * GIB_KB} {int(3.5 * GIB_KB)} -2\n" for device in devices))

    def unit(self, name: str, state: str, folder: str = "/usr/lib/systemd/system", active: bool = True, load: str = "loaded") -> None:
        shown = {"LoadState": load, "ActiveState": "active" if active else "inactive", "UnitFileState": state, "FragmentPath": f"{folder}/{name}"}
        self.units[name] = shown
        if name.endswith(".swap"):
            self.put(f"{folder}/{name}", "")

    def watchdog(self, **attributes: str) -> None:
        known = {"identity": "SBSA Generic Watchdog", "state": "inactive", "timeout": "10", "min_timeout": "3", "max_timeout": "0", "nowayout": "0"}
        for name, value in {**known, **attributes}.items():
            self.put(f"{WATCHDOG}/{name}", value + "\n")

    def live(self) -> dict[str, str]:
        return {path.name: path.read_text().strip() for folder in ("vm", "kernel") for path in (self.root / "proc/sys" / folder).iterdir()}

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
        if argv[0] == "swapoff" and self.swapoff_works:
            self.swaps(*(line.split()[0] for line in self.get("/proc/swaps").splitlines() if line.split()[0] != argv[1]))
        if argv[0] == "swapon":
            self.swaps(argv[1])
        if "RuntimeWatchdogUSec" in argv:
            return 0, f"{self.armed}\n", ""
        if argv == ["systemctl", "daemon-reload"] and (self.root / WATCHDOG[1:]).exists():
            seconds = next((line.partition("=")[2] for line in self.get(DROP_IN_OF_SYSTEMD).splitlines() if line.startswith("Runtime")), "")
            self.armed = f"{int(seconds) // 60}min {int(seconds) % 60}s" if seconds else "0"
            self.put(f"{WATCHDOG}/state", "active\n" if seconds else "inactive\n")
            self.put(f"{WATCHDOG}/timeout", seconds or "10")
        if argv[:2] == ["systemctl", "show"]:
            blocks = [{"Id": name, **self.units.get(name, {"LoadState": "not-found"})} for name in argv[argv.index("--") + 1 :]]
            return 0, "\n".join("".join(f"{key}={value}\n" for key, value in block.items()) for block in blocks), ""
        return 0, "", ""

    def tune(self, state: str = "present", check: bool = False, **params: Any) -> dict[str, Any]:
        self.commands.clear()
        policy = MemoryPolicy(Node(str(self.root), self.run), {**PARAMS, **params}, check)
        return policy.present() if state == "present" else policy.absent()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_sets_repeats_nothing_and_restores_everything(machine: Machine) -> None:
    files, live, swaps = machine.etc(), machine.live(), machine.get("/proc/swaps")
    predicted = machine.tune(check=True, swap_policy="off")
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps")) == (files, live, swaps)
    result = machine.tune(swap_policy="off")
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    assert machine.live() == {**live, "min_free_kbytes": "3145728", "watermark_boost_factor": "0", "vfs_cache_pressure": "200", "dirty_ratio": "5"}
    assert machine.get("/proc/swaps") == ""
    assert machine.get("/etc/fstab") == FSTAB.replace("/swap.img", swap.FSTAB_MARK + "/swap.img")
    assert machine.tune(swap_policy="off")["changes"] == []
    assert machine.tune("absent", check=True)["changes"] == machine.tune("absent")["changes"]
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps")) == (files, live, swaps)
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.tune("absent")["changed"] is False


def test_reports_the_cost_and_what_starts(machine: Machine) -> None:
    assert machine.tune(check=True)["highest_utilization"]["memavailable"] in (0.88, 0.89)
    result = machine.tune()
    assert 4.0 < result["floor_cost_gib"] < 6.0
    assert result["highest_utilization"] == {"memavailable": 0.92, "memfree": 0.93, "estimate": False}
    assert "vm.min_free_kbytes 3145728 (for a 121 GiB node" in result["message"]
    assert "gpu_memory_utilization 0.92, older images (MemFree) up to 0.93; swap is on (16.0 GiB)" in result["message"]


def test_under_an_engine_the_figure_is_an_estimate_and_systemd_is_not_reloaded(machine: Machine) -> None:
    machine.put("/proc/meminfo", meminfo(MemFree=14.0, MemAvailable=16.0))
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    highest = machine.tune(swap_policy="off")["highest_utilization"]
    assert (highest["estimate"], highest["memavailable"] > 0.8) == (True, True)
    assert "systemctl daemon-reload" not in machine.commands


def test_a_container_is_not_changed(machine: Machine) -> None:
    machine.put("/run/systemd/container", "docker\n")
    before = (machine.etc(), machine.live())
    for state in ("present", "absent"):
        result = machine.tune(state)
        assert (result["changed"], "this node is a container (docker)" in result["skipped_reason"]) == (False, True)
    assert (machine.etc(), machine.live(), machine.commands) == (*before, [])


# name: (options, files of the node, message)
FAULTS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "a later file": ({}, {"/etc/sysctl.d/99-mine.conf": "vm.dirty_ratio = 9\n"}, r"/99-mine\.conf line 1 sets vm\.dirty_ratio to 9 .* sysctl_dirty_ratio"),
    "a full node": ({}, {"/proc/meminfo": meminfo(MemFree=1.0, MemAvailable=2.3)}, "Stop the serving group first"),
    "swap does not fit": (
        {"min_free_kbytes": "leave", "swap_policy": "off"},
        {"/proc/meminfo": meminfo(MemFree=3.0, MemAvailable=3.9)},
        r"Swap contains 3\.5 GiB",
    ),
    "a file of another owner": ({}, {DROP_IN: "vm.swappiness = 1\n"}, r"60-gb10-cluster\.conf exists and is not managed"),
    "another tmpfiles.d file": ({"lru_gen_min_ttl_ms": "100"}, {TTL_FILE: "w /sys/x - - - - 1\n"}, "tmpfiles.* is not managed"),
    "an unknown key": ({"extra": {"vm.nonsense": 1}}, {}, r"no vm\.nonsense"),
    "panics without a number": ({"reboot_on_panic": "yes"}, {}, "sysctl_reboot_on_panic is 'yes', expected seconds from 1 to 600, or leave"),
    "a panic that hangs": ({"reboot_on_panic": "0"}, {}, "sysctl_reboot_on_panic is '0'"),
    "an OOM that reboots": (
        {"reboot_on_panic": "10", "extra": {"vm.panic_on_oom": 1}},
        {},
        r"sysctl_settings sets vm\.panic_on_oom, which has its own variable\. Use sysctl_reboot_on_panic",
    ),
    "a later file for panics": (
        {"reboot_on_panic": "10"},
        {"/etc/sysctl.d/90-x.conf": "kernel.panic = -1\n"},
        r"90-x\.conf line 1 sets kernel\.panic to -1 .* set sysctl_reboot_on_panic to leave",
    ),
    "no watchdog": (WATCHED, {}, r"no watchdog device \(/sys/class/watchdog/watchdog0 does not exist\).* modprobe sbsa_gwdt"),
    "a watchdog that is too fast": ({"watchdog_seconds": "9"}, {}, "sysctl_watchdog_seconds is '9', expected seconds from 10 to 3600, or leave"),
    "a watchdog of another program": (
        WATCHED, {f"{WATCHDOG}/state": "active\n"}, "used by another program than systemd. Stop it, such as watchdog.service",
    ),
    "another drop-in of our name": (WATCHED, {DROP_IN_OF_SYSTEMD: "[Manager]\n", **IDLE_WATCHDOG}, "system.conf.* is not managed by gb10.cluster"),
    "a later drop-in": (
        WATCHED,
        {"/usr/lib/systemd/system.conf.d/70-x.conf": "[Manager]\nRuntimeWatchdogSec=20s\n", **IDLE_WATCHDOG},
        r"70-x\.conf line 2 sets RuntimeWatchdogSec to 20s, and is read after",
    ),
    "a watchdog under an engine": (
        WATCHED, {"/proc/4711/comm": "VLLM::Worker_TP\n", **IDLE_WATCHDOG}, "can lose its GPU then. Stop the serving group first",
    ),
    "a time": ({"lru_gen_min_ttl_ms": "10001"}, {}, "sysctl_lru_gen_min_ttl_ms is 10001"),
}  # fmt: skip


@pytest.mark.parametrize(("params", "files", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_refusals_change_nothing(machine: Machine, params: dict[str, Any], files: dict[str, str], message: str) -> None:
    for path, text in files.items():
        machine.put(path, text)
    before = (machine.etc(), machine.live(), machine.get("/proc/swaps"))
    with pytest.raises(SysctlError, match=message):
        machine.tune(**params)
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps")) == before


def test_a_broken_record_is_refused(machine: Machine) -> None:
    machine.put("/var/lib/gb10-cluster/sysctl.json", "{")
    with pytest.raises(RecordError, match=r"sysctl\.json, .* is not a JSON object"):
        machine.tune()


def test_a_live_value_that_does_not_stay_names_tuned(machine: Machine) -> None:
    machine.put("/etc/tuned/active_profile", "throughput-performance\n")
    with pytest.raises(SysctlError, match=r"vm\.dirty_ratio is 20, expected 5\. tuned \(throughput-performance\)"):
        MemoryPolicy(Node(str(machine.root), machine.run), PARAMS, False).read_back({"vm.dirty_ratio": "5"})


def test_drift_of_a_live_value_is_corrected(machine: Machine) -> None:
    machine.tune()
    machine.put("/proc/sys/vm/dirty_ratio", "40\n")
    assert machine.tune()["changes"] == ["vm.dirty_ratio: 40 -> 5"]
    machine.tune("absent")
    assert machine.live()["dirty_ratio"] == "20"


def test_a_setting_that_is_not_desired_any_more_is_restored(machine: Machine) -> None:
    machine.tune()
    result = machine.tune(settings={**SETTINGS, "vm.vfs_cache_pressure": "leave"})
    assert "vm.vfs_cache_pressure: 200 -> 100" in result["changes"]
    assert "vfs_cache_pressure" not in machine.get(DROP_IN)


def test_units_that_start_swap_are_stopped_before_they_are_masked_and_started_by_undo(machine: Machine) -> None:
    machine.unit(ZRAM, "generated", "/run/systemd/generator")
    result = machine.tune(swap_policy="off")
    assert f"{ZRAM} masked" in result["changes"]
    order = [machine.commands.index(f"systemctl {line}") for line in (f"stop {ZRAM}", f"mask --no-reload {ZRAM}", "daemon-reload")]
    assert order == sorted(order)
    machine.unit(ZRAM, "masked", "/dev", load="masked")
    assert machine.tune(swap_policy="off")["changed"] is False
    machine.tune("absent")
    order = [machine.commands.index(f"systemctl {line}") for line in (f"unmask --no-reload {ZRAM}", "daemon-reload", f"start {ZRAM}")]
    assert order == sorted(order)


def test_a_unit_of_the_user_gets_a_drop_in(machine: Machine) -> None:
    machine.unit("extra.swap", "enabled", "/etc/systemd/system")
    before = machine.etc()
    machine.tune(swap_policy="off")
    assert machine.get(swap.drop_in_path("extra.swap")) == swap.drop_in_text()
    assert machine.tune(swap_policy="off")["changed"] is False
    machine.unit("extra.swap", "", load="not-found")  # the user has removed it since
    machine.tune("absent")
    assert machine.etc() == before
    assert not (machine.root / "etc/systemd/system/extra.swap.d").exists()
    assert "systemctl start extra.swap" not in machine.commands


def test_swap_that_stays_on_is_an_error_and_undo_still_works(machine: Machine) -> None:
    before = (machine.etc(), machine.live())
    machine.swapoff_works = False
    with pytest.raises(SysctlError, match=r"swap is on: /swap\.img"):
        machine.tune(swap_policy="off")
    machine.tune("absent")
    assert (machine.etc(), machine.live()) == before


def test_another_policy_restores_swap(machine: Machine) -> None:
    machine.tune(swap_policy="off")
    assert "; swap is on again; " in machine.tune(check=True, swap_policy="swappiness0")["message"]
    machine.tune(swap_policy="swappiness0")
    assert ("/swap.img" in machine.get("/proc/swaps"), machine.get("/etc/fstab"), machine.live()["swappiness"]) == (True, FSTAB, "0")
    assert machine.tune(swap_policy="swappiness0")["changed"] is False


def test_thrashing_protection_is_set_live_and_at_boot_and_restored(machine: Machine) -> None:
    machine.put(TTL, "20\n")
    machine.put("/sys/kernel/mm/lru_gen/enabled", "0x0007\n")
    before = machine.etc()
    predicted = machine.tune(check=True, lru_gen_min_ttl_ms="1000")
    result = machine.tune(lru_gen_min_ttl_ms="1000")
    assert (predicted["changes"], machine.get(TTL)) == (result["changes"], "1000\n")
    assert machine.get(TTL_FILE).splitlines()[1:] == [f"w {TTL} - - - - 1000"]
    assert machine.tune(lru_gen_min_ttl_ms="1000")["changed"] is False
    assert machine.tune(lru_gen_min_ttl_ms="leave")["changes"] == [f"{TTL_FILE} removed", "min_ttl_ms: 1000 -> 20"]
    machine.tune(lru_gen_min_ttl_ms="2000")
    machine.tune("absent")
    assert (machine.etc(), machine.get(TTL)) == (before, "20\n")


@pytest.mark.parametrize(("enabled", "found"), [("0x0000", "is switched off"), (None, "the kernel has no multi-generational LRU")])
def test_a_kernel_without_thrashing_protection_is_reported(machine: Machine, enabled: str | None, found: str) -> None:
    if enabled is not None:
        machine.put(TTL, "0\n")
        machine.put("/sys/kernel/mm/lru_gen/enabled", enabled + "\n")
    assert found in machine.tune(lru_gen_min_ttl_ms="1000")["message"]
    assert machine.get(TTL_FILE) == ""


def test_earlyoom_is_requested_started_and_restored(machine: Machine) -> None:
    assert machine.tune(oom_policy="earlyoom")["packages"] == ["earlyoom"]
    machine.unit(swap.EARLYOOM, "disabled", active=False)
    result = machine.tune(oom_policy="earlyoom")
    assert (result["packages"], result["message"].endswith("earlyoom runs")) == ([], True)
    assert f"systemctl enable --now {swap.EARLYOOM}" in machine.commands
    machine.unit(swap.EARLYOOM, "enabled")
    assert machine.tune(oom_policy="earlyoom")["changed"] is False
    machine.tune("absent")
    assert {f"systemctl disable {swap.EARLYOOM}", f"systemctl stop {swap.EARLYOOM}"} <= set(machine.commands)


def test_a_frozen_node_is_set_to_reboot_and_restored(machine: Machine) -> None:
    machine.watchdog()
    files, live = machine.etc(), machine.live()
    frozen: dict[str, Any] = {"watchdog_seconds": "90", "reboot_on_panic": "10"}
    predicted = machine.tune(check=True, **frozen)
    assert (machine.etc(), machine.armed) == (files, "0")
    result = machine.tune(**frozen)
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    assert machine.get(DROP_IN_OF_SYSTEMD).splitlines()[1:] == ["[Manager]", "RuntimeWatchdogSec=90", "RebootWatchdogSec=120"]
    assert (machine.armed, machine.get(f"{WATCHDOG}/state")) == ("1min 30s", "active\n")
    assert {key: machine.live()[key] for key in (*PANIC, "panic_on_oom")} == {
        "panic": "10",
        "panic_on_oops": "1",
        "softlockup_panic": "1",
        "panic_on_oom": "0",
    }
    assert result["message"].endswith("; the watchdog resets a frozen node after 90 s")
    assert machine.tune(**frozen)["changes"] == []
    assert "systemctl daemon-reload" not in machine.commands
    machine.tune("absent")
    assert (machine.etc(), machine.live(), machine.armed) == (files, live, "0")
    assert not (machine.root / "etc/systemd/system.conf.d").exists()
    assert not (machine.root / "var/lib/gb10-cluster").exists()


def test_leave_restores_the_watchdog_and_an_empty_folder_of_the_user_stays(machine: Machine) -> None:
    machine.watchdog()
    folder = machine.root / "etc/systemd/system.conf.d"
    folder.mkdir(parents=True)
    machine.tune(watchdog_seconds="30")
    result = machine.tune()
    assert result["changes"] == [f"{DROP_IN_OF_SYSTEMD} removed", "systemd's watchdog: as before"]
    assert (machine.armed, folder.exists()) == ("0", True)
    assert machine.tune()["changed"] is False


def test_undo_continues_after_an_interruption(machine: Machine) -> None:
    machine.watchdog()
    machine.tune(watchdog_seconds="30")
    (machine.root / DROP_IN_OF_SYSTEMD[1:]).unlink()
    assert machine.tune("absent")["changes"][-1] == "systemd's watchdog: as before"
    assert machine.armed == "0"


def test_undo_of_the_watchdog_waits_for_the_engine(machine: Machine) -> None:
    machine.watchdog()
    machine.tune(watchdog_seconds="30")
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    assert machine.tune(watchdog_seconds="30")["changed"] is False
    before = (machine.etc(), machine.live())
    with pytest.raises(SysctlError, match="Stop the serving group first"):
        machine.tune("absent")
    assert (machine.etc(), machine.live()) == before


def test_a_watchdog_that_systemd_does_not_take_over_is_an_error(machine: Machine) -> None:
    machine.watchdog()
    policy = MemoryPolicy(Node(str(machine.root), lambda _argv: (0, "0", "")), PARAMS, False)
    with pytest.raises(SysctlError, match=r"systemd uses 0 s, .* is inactive with 10 s, expected 30 s"):
        policy.set_watchdog("30")
