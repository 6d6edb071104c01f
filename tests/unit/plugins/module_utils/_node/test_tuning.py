"""The memory policy of a node: what is written, which commands run, and what undo restores."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import SYSCTL_DROP_IN
from ansible_collections.gb10.cluster.plugins.module_utils._node.tuning import EARLYOOM, OOMD, SWAP_TARGET, MemoryPolicy
from unit.fixtures.host.tree import Tree, meminfo

STOCK = {
    "min_free_kbytes": "45167", "watermark_boost_factor": "15000", "watermark_scale_factor": "10", "vfs_cache_pressure": "100", "dirty_ratio": "20",
    "dirty_background_ratio": "10", "dirty_bytes": "0", "dirty_background_bytes": "0", "overcommit_memory": "0", "swappiness": "60",
}  # fmt: skip
PARAMS: dict[str, Any] = {
    "min_free_kbytes": "auto",
    "watermark_boost_factor": 0, "vfs_cache_pressure": 200, "dirty_ratio": 5, "dirty_background_ratio": "leave",
    "overcommit_memory": "leave", "swappiness": "auto", "swap_policy": "leave", "lru_gen_min_ttl_ms": "leave", "oom_policy": "leave",
    "watchdog_seconds": "leave", "reboot_on_panic": "leave", "kho_off": False,
}  # fmt: skip
TTL = "/sys/kernel/mm/lru_gen/min_ttl_ms"
TTL_FILE = "/etc/tmpfiles.d/60-gb10-cluster.conf"
PANIC = {"panic": "0", "panic_on_oops": "0", "softlockup_panic": "0"}
WATCHDOG = "/sys/class/watchdog/watchdog0"
DROP_IN_OF_SYSTEMD = "/etc/systemd/system.conf.d/60-gb10-cluster.conf"
IDLE_WATCHDOG = {f"{WATCHDOG}/state": "inactive\n"}
WATCHED = {"watchdog_seconds": "60"}


class Machine(Tree):
    """A 121 GiB node of files. Commands are recorded and succeed; `swapoff` and `swapon` change /proc/swaps.

    `units` are the installed units: the state of the file, and whether it runs.

    `daemon-reload` takes over RuntimeWatchdogSec of our drop-in, as systemd does.
    """

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.commands: list[str] = []
        self.units: dict[str, tuple[str, bool]] = {SWAP_TARGET: ("static", False)}
        self.swapoff_works = self.takes_over = True
        self.armed = "0"
        self.put("/proc/sys/vm/panic_on_oom", "0\n")
        for key, value in PANIC.items():
            self.put(f"/proc/sys/kernel/{key}", value + "\n")
        for key, value in STOCK.items():
            self.put(f"/proc/sys/vm/{key}", value + "\n")
        self.put("/proc/meminfo", meminfo())
        self.put("/swap.img", "")
        self.swaps("/swap.img")

    def swaps(self, *devices: str) -> None:
        self.put("/proc/swaps", "".join(f"{device} file {16 * GIB_KB} {int(3.5 * GIB_KB)} -2\n" for device in devices))

    def watchdog(self, **attributes: str) -> None:
        known = {"state": "inactive", "timeout": "10", "nowayout": "0"}
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
        if argv == ["systemctl", "daemon-reload"] and self.takes_over and (self.root / WATCHDOG[1:]).exists():
            seconds = next((line.partition("=")[2] for line in self.get(DROP_IN_OF_SYSTEMD).splitlines() if line.startswith("Runtime")), "")
            self.armed = f"{int(seconds) // 60}min {int(seconds) % 60}s" if seconds else "0"
            self.put(f"{WATCHDOG}/state", "active\n" if seconds else "inactive\n")
            self.put(f"{WATCHDOG}/timeout", seconds or "10")
        if argv[0] == "systemd-analyze":
            paths = sorted(self.root.glob("**/sysctl.d/*.conf"), key=lambda path: path.name)
            return 0, "\n".join(f"# /{path.relative_to(self.root)}\n{path.read_text()}" for path in paths), ""
        if argv[0] == "systemctl":
            return self.systemctl([word for word in argv[1:] if not word.startswith("--")])
        return 0, "", ""

    def systemctl(self, words: Sequence[str]) -> tuple[int, str, str]:
        verb, names = words[0], words[1:]
        if verb == "list-unit-files":
            return 0, "".join(f"{name} {self.units[name][0]} enabled\n" for name in names if name in self.units), ""
        if verb == "is-active":
            running = [self.units.get(name, ("", False))[1] for name in names]
            return 0 if all(running) else 3, "".join("active\n" if runs else "inactive\n" for runs in running), ""
        for name in names:
            state, active = self.units.get(name, ("static", False))
            state = {"enable": "enabled", "disable": "disabled", "mask": "masked", "unmask": "static"}.get(verb, state)
            self.units[name] = (state, {"start": True, "stop": False}.get(verb, active))
        return 0, "", ""

    def tune(self, state: str = "present", check: bool = False, **params: Any) -> dict[str, Any]:
        self.commands.clear()
        return MemoryPolicy(Editor(Node(str(self.root), self.run), check), state, {**PARAMS, **params}).run()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_sets_repeats_nothing_and_restores_everything(machine: Machine) -> None:
    files, live, swaps = machine.etc(), machine.live(), machine.get("/proc/swaps")
    predicted = machine.tune(check=True, swap_policy=False)  # `off` without quotes
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps")) == (files, live, swaps)
    result = machine.tune(swap_policy="off")
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    assert machine.live() == {**live, "min_free_kbytes": "3145728", "watermark_boost_factor": "0", "vfs_cache_pressure": "200", "dirty_ratio": "5"}
    assert machine.get("/proc/swaps") == ""
    assert machine.units[SWAP_TARGET] == ("masked", False)
    assert machine.tune(swap_policy="off")["changes"] == []
    assert machine.tune("absent", check=True)["changes"] == machine.tune("absent")["changes"]
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps"), machine.units[SWAP_TARGET]) == (files, live, swaps, ("static", False))
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.tune("absent")["changed"] is False


def test_reports_the_cost_and_what_starts(machine: Machine) -> None:
    assert re.search(r"gpu_memory_utilization 0\.8[89]; swap is", machine.tune(check=True)["shown"][0])
    (message,) = machine.tune()["shown"]
    assert re.match(r"vm\.min_free_kbytes 3145728 \(for a node of 128 GB\) costs [45]\.\d+ GiB of MemAvailable; ", message)
    assert "gpu_memory_utilization 0.92; swap is on (16.0 GiB)" in message


def test_under_an_engine_the_figure_is_an_estimate_and_systemd_is_not_reloaded(machine: Machine) -> None:
    machine.put("/proc/meminfo", meminfo(MemFree=14.0, MemAvailable=16.0))
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    (message,) = machine.tune(swap_policy="off")["shown"]
    assert re.search(r"gpu_memory_utilization 0\.[89]\d, estimated while the GPU is in use; swap is off", message)
    assert "systemctl daemon-reload" not in machine.commands


def test_a_container_is_not_changed(machine: Machine) -> None:
    machine.put("/run/systemd/container", "docker\n")
    before = (machine.etc(), machine.live())
    for state in ("present", "absent"):
        result = machine.tune(state)
        assert (result["changed"], "this node is a container (docker)" in result["shown"][0]) == (False, True)
    assert (machine.etc(), machine.live(), machine.commands) == (*before, [])


# name: (options, files of the node, message)
FAULTS: dict[str, tuple[dict[str, Any], dict[str, str], str]] = {
    "a later file": ({}, {"/etc/sysctl.d/99-mine.conf": "vm.dirty_ratio = 9\n"}, r"/99-mine\.conf line 1 sets vm\.dirty_ratio to 9 .* sysctl_dirty_ratio"),
    "a full node": ({}, {"/proc/meminfo": meminfo(MemFree=1.0, MemAvailable=2.3)}, "Stop the serving group first"),
    "swap does not fit": (
        {"min_free_kbytes": "leave", "swap_policy": "off"}, {"/proc/meminfo": meminfo(MemFree=3.0, MemAvailable=3.9)}, r"swap contains 3\.5 GiB",
    ),
    "a file of another owner": ({}, {SYSCTL_DROP_IN: "vm.swappiness = 1\n"}, r"60-gb10-cluster\.conf exists and is not managed"),
    "another tmpfiles.d file": (
        {"lru_gen_min_ttl_ms": "100"}, {TTL_FILE: "w /sys/x - - - - 1\n", TTL: "0\n", "/sys/kernel/mm/lru_gen/enabled": "0x0007\n"},
        "tmpfiles.* is not managed",
    ),
    "a word for a number": ({"vfs_cache_pressure": "much"}, {}, "sysctl_vfs_cache_pressure is 'much', expected a whole number"),
    "a later file for panics": (
        {"reboot_on_panic": "10"}, {"/etc/sysctl.d/90-x.conf": "kernel.panic = -1\n"},
        r"90-x\.conf line 1 sets kernel\.panic to -1 .* set sysctl_reboot_on_panic to leave",
    ),
    "no watchdog": (WATCHED, {}, r"no watchdog device \(/sys/class/watchdog/watchdog0 does not exist\).* modprobe sbsa_gwdt"),
    "a watchdog that cannot be stopped": (WATCHED, {f"{WATCHDOG}/nowayout": "1\n"}, r"cannot be stopped \(nowayout is 1\): .* would reset the node"),
    "another drop-in of our name": (WATCHED, {DROP_IN_OF_SYSTEMD: "[Manager]\n", **IDLE_WATCHDOG}, "system.conf.* is not managed by gb10.cluster"),
    "a watchdog under an engine": (
        WATCHED, {"/proc/4711/comm": "VLLM::Worker_TP\n", **IDLE_WATCHDOG}, "can lose its GPU then. Stop the serving group first",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("params", "files", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_refusals_change_nothing(machine: Machine, params: dict[str, Any], files: dict[str, str], message: str) -> None:
    for path, text in files.items():
        machine.put(path, text)
    before = (machine.etc(), machine.live(), machine.get("/proc/swaps"))
    with pytest.raises(HostError, match=message):
        machine.tune(**params)
    assert (machine.etc(), machine.live(), machine.get("/proc/swaps")) == before


def test_a_broken_record_is_refused(machine: Machine) -> None:
    machine.put("/var/lib/gb10-cluster/sysctl.json", "{")
    with pytest.raises(RecordError, match=r"sysctl\.json, .* is not a JSON object"):
        machine.tune()


def test_a_live_value_that_does_not_stay_names_tuned(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.put("/etc/tuned/active_profile", "throughput-performance\n")
    machine.units["tuned.service"] = ("enabled", True)
    write = Node.write_live
    monkeypatch.setattr(Node, "write_live", lambda node, path, text: None if path.endswith("dirty_ratio") else write(node, path, text))
    with pytest.raises(HostError, match=r"vm\.dirty_ratio is 20, expected 5\. tuned \(throughput-performance\)"):
        machine.tune()


def test_a_setting_that_is_not_desired_any_more_is_restored(machine: Machine) -> None:
    machine.tune()
    result = machine.tune(vfs_cache_pressure="leave")
    assert "vm.vfs_cache_pressure: 200 -> 100" in result["changes"]
    assert "vfs_cache_pressure" not in machine.get(SYSCTL_DROP_IN)


def test_services_of_swap_are_stopped_and_restored(machine: Machine) -> None:
    machine.units["zramswap.service"] = ("enabled", True)
    before = dict(machine.units)
    result = machine.tune(swap_policy="off")
    assert {"zramswap.service stopped and disabled", "swap.target masked"} <= set(result["changes"])
    assert machine.units["zramswap.service"] == ("disabled", False)
    assert "systemctl daemon-reload" not in machine.commands
    assert machine.tune(swap_policy="off")["changed"] is False
    machine.tune("absent")
    assert machine.units == {**before, SWAP_TARGET: ("static", False)}


def test_a_target_that_the_user_has_masked_stays_masked(machine: Machine) -> None:
    machine.units[SWAP_TARGET] = ("masked", False)
    machine.tune(swap_policy="off")
    machine.tune("absent")
    assert machine.units[SWAP_TARGET] == ("masked", False)
    assert "/swap.img" in machine.get("/proc/swaps")


def test_swap_that_stays_on_is_an_error_and_undo_still_works(machine: Machine) -> None:
    before = (machine.etc(), machine.live())
    machine.swapoff_works = False
    with pytest.raises(HostError, match=r"swap is on: /swap\.img"):
        machine.tune(swap_policy="off")
    machine.tune("absent")
    assert (machine.etc(), machine.live()) == before


def test_another_policy_restores_swap(machine: Machine) -> None:
    machine.tune(swap_policy="off")
    assert "; swap is on again; " in machine.tune(check=True, swap_policy="swappiness0")["shown"][0]
    machine.tune(swap_policy="swappiness0")
    assert ("/swap.img" in machine.get("/proc/swaps"), machine.units[SWAP_TARGET], machine.live()["swappiness"]) == (True, ("static", False), "0")
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
    assert machine.tune(lru_gen_min_ttl_ms="leave")["changes"] == [f"{TTL_FILE} removed", f"{TTL}: 1000 -> 20"]
    machine.tune(lru_gen_min_ttl_ms="2000")
    machine.tune("absent")
    assert (machine.etc(), machine.get(TTL)) == (before, "20\n")


@pytest.mark.parametrize("enabled", ["0x0000", None])
def test_a_kernel_without_thrashing_protection_is_reported(machine: Machine, enabled: str | None) -> None:
    if enabled is not None:
        machine.put(TTL, "0\n")
        machine.put("/sys/kernel/mm/lru_gen/enabled", enabled + "\n")
    assert "multi-generational LRU is missing or switched off" in machine.tune(lru_gen_min_ttl_ms="1000")["shown"][0]
    assert machine.get(TTL_FILE) == ""


def test_earlyoom_is_requested_started_and_restored(machine: Machine) -> None:
    machine.units[OOMD[0]] = ("enabled", True)
    assert machine.tune(oom_policy="earlyoom")["packages"] == ["earlyoom"]
    machine.units[EARLYOOM] = ("enabled", True)  # as apt installs it
    result = machine.tune(oom_policy="earlyoom")
    assert (result["packages"], result["shown"][0].endswith("earlyoom runs, systemd-oomd is stopped")) == ([], True)
    assert machine.tune(oom_policy="earlyoom")["changed"] is False
    machine.tune("absent")
    assert (machine.units[EARLYOOM], machine.units[OOMD[0]]) == (("disabled", False), ("enabled", True))


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
    assert {key: machine.live()[key] for key in (*PANIC, "panic_on_oom")} == {"panic": "10", "panic_on_oops": "1", "softlockup_panic": "1", "panic_on_oom": "0"}
    assert result["shown"][0].endswith("; the watchdog resets a frozen node after 90 s")
    assert machine.tune(**frozen)["changes"] == []
    assert "systemctl daemon-reload" not in machine.commands
    machine.tune("absent")
    assert (machine.etc(), machine.live(), machine.armed) == (files, live, "0")
    assert not (machine.root / "etc/systemd/system.conf.d").exists()
    assert not (machine.root / "var/lib/gb10-cluster").exists()


def test_undo_of_the_watchdog_waits_for_the_engine(machine: Machine) -> None:
    machine.watchdog()
    machine.tune(watchdog_seconds="30")
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    assert machine.tune(watchdog_seconds="30")["changed"] is False
    before = (machine.etc(), machine.live())
    with pytest.raises(HostError, match="Stop the serving group first"):
        machine.tune("absent")
    assert (machine.etc(), machine.live()) == before


def test_a_watchdog_that_systemd_has_not_taken_over_is_an_error_and_is_set_by_the_next_run(machine: Machine) -> None:
    machine.watchdog()
    machine.takes_over = False  # as with a later drop-in
    with pytest.raises(HostError, match=r"is inactive with 10 s, expected 30 s\. .* or a later drop-in wins"):
        machine.tune(watchdog_seconds="30")
    machine.takes_over = True
    planned = machine.tune(check=True, watchdog_seconds="30")["changes"]
    assert planned == machine.tune(watchdog_seconds="30")["changes"] == ["systemd's watchdog: 30 s"]
    assert machine.tune(watchdog_seconds="30")["changed"] is False


def test_a_number_is_written_as_the_kernel_prints_it(machine: Machine) -> None:
    machine.watchdog()
    numbers: dict[str, Any] = {"watchdog_seconds": 60.0, "dirty_ratio": 5.0, "min_free_kbytes": "3145728.0", "reboot_on_panic": "010"}
    machine.tune(**numbers)
    assert {key: machine.live()[key] for key in ("dirty_ratio", "min_free_kbytes", "panic")} == {
        "dirty_ratio": "5", "min_free_kbytes": "3145728", "panic": "10",
    }  # fmt: skip
    assert "RuntimeWatchdogSec=60\n" in machine.get(DROP_IN_OF_SYSTEMD)
    assert machine.tune(**numbers)["changed"] is False


def test_an_earlyoom_that_is_masked_is_an_error(machine: Machine) -> None:
    machine.units[EARLYOOM] = ("masked", False)
    with pytest.raises(HostError, match=f"{EARLYOOM} is masked.* `systemctl unmask"):
        machine.tune(oom_policy="earlyoom")


def test_a_ratio_that_marks_the_use_of_bytes_is_not_restored(machine: Machine) -> None:
    machine.put("/proc/sys/vm/dirty_ratio", "0\n")
    machine.tune()
    machine.tune("absent")
    assert machine.live()["dirty_ratio"] == "5"
