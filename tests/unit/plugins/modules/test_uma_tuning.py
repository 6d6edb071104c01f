"""uma_tuning on a node made of a folder, a kernel of a few files and a small systemd."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import swap
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node, RecordError
from ansible_collections.gb10.cluster.plugins.module_utils._host.sysctl import DROP_IN, SysctlError
from ansible_collections.gb10.cluster.plugins.modules.uma_tuning import UmaTuning

STOCK = {
    "min_free_kbytes": "45167",
    "watermark_boost_factor": "15000",
    "watermark_scale_factor": "10",
    "vfs_cache_pressure": "100",
    "dirty_ratio": "20",
    "dirty_background_ratio": "10",
    "dirty_bytes": "0",
    "dirty_background_bytes": "0",
    "overcommit_memory": "0",
    "swappiness": "60",
}
PARAMS: dict[str, Any] = {
    "state": "present",
    "min_free_kbytes": "auto",
    "min_free_by_size": {"121": 3145728, "119": 3145728},
    "min_free_percent_other": 2.5,
    "settings": {
        "vm.watermark_boost_factor": "0",
        "vm.vfs_cache_pressure": "200",
        "vm.dirty_ratio": "5",
        "vm.dirty_background_ratio": "2",
        "vm.swappiness": "auto",
    },
    "extra": {},
    "swap_policy": "off",
    "lru_gen_min_ttl_ms": "leave",
    "oom_policy": "leave",
}
FSTAB = "UUID=1 / ext4 defaults 0 1\n/swap.img none swap sw 0 0\n"
HEADER = "Filename Type Size Used Priority\n"


class Machine:
    """A Spark: 121 GiB, stock values, a swap file in fstab, zram from a generator, and whatever a test adds."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.commands: list[str] = []
        self.stubborn = False
        self.tuned = False
        self.units: dict[str, dict[str, str]] = {}
        self.swaps: dict[str, tuple[str, int]] = {}
        for key, value in STOCK.items():
            self.put(f"/proc/sys/vm/{key}", value + "\n")
        self.memory(MemFree=114.0, MemAvailable=113.0)
        self.put("/etc/fstab", FSTAB)
        self.put("/swap.img", "")
        self.unit("swap.img.swap", "generated", "/run/systemd/generator/swap.img.swap", "/etc/fstab", "/swap.img")
        self.unit("dev-zram0.swap", "generated", "/run/systemd/generator/dev-zram0.swap", "/etc/systemd/zram-generator.conf", "/dev/zram0")
        self.swap_on("/swap.img", 3.5)
        self.swap_on("/dev/zram0", 0.0)

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def get(self, path: str) -> str | None:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else None

    def memory(self, **gib: float) -> None:
        rows = {"MemTotal": 121.69, "Cached": 3.0, "AnonPages": 2.0, "Active(file)": 1.5, "Inactive(file)": 1.5, **gib}
        self.put("/proc/meminfo", "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items()))

    def unit(self, name: str, state: str, fragment: str, source: str = "", what: str = "", active: bool = True) -> None:
        if not fragment.startswith("/etc/"):
            self.put(fragment, "")
        self.units[name] = {
            "Id": name,
            "LoadState": "loaded",
            "ActiveState": "active" if active else "inactive",
            "UnitFileState": state,
            "FragmentPath": fragment,
            "SourcePath": source,
            "What": what,
        }

    def swap_on(self, device: str, used: float) -> None:
        self.swaps[device] = ("file" if device.startswith("/swap") else "partition", int(used * GIB_KB))
        self.write_swaps()

    def write_swaps(self) -> None:
        self.put("/proc/swaps", HEADER + "".join(f"{device} {kind} {16 * GIB_KB} {used} -2\n" for device, (kind, used) in self.swaps.items()))

    def live(self) -> dict[str, str]:
        return {path.name: path.read_text().strip() for path in (self.root / "proc/sys/vm").iterdir()}

    def files(self) -> dict[str, str]:
        found = {}
        for path in sorted((self.root / "etc").rglob("*")):
            if path.is_file() or path.is_symlink():
                found[str(path.relative_to(self.root))] = path.read_text() if path.is_file() else "-> " + str(path.readlink())
        return found

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
        if argv[0] == "swapoff":
            if not self.stubborn:
                self.swaps.pop(argv[1], None)
                self.write_swaps()
            return 0, "", ""
        if argv[0] == "swapon":
            self.swap_on(argv[1], 0.0)
            return 0, "", ""
        return self.systemctl(list(argv)) if argv[0] == "systemctl" else (127, "", "command not found")

    def systemctl(self, argv: list[str]) -> tuple[int, str, str]:
        verb, name = argv[1], argv[-1]
        link = self.root / "etc/systemd/system" / name
        if verb == "show":
            blocks = []
            for unit in argv[argv.index("--") + 1 :]:
                shown = self.units.get(unit, {"Id": unit, "LoadState": "not-found"})
                blocks.append("".join(f"{key}={value}\n" for key, value in shown.items()))
            return 0, "\n".join(blocks), ""
        if verb == "is-active":
            return (0, "active\n", "") if self.tuned else (3, "inactive\n", "")
        if verb == "mask":
            link.parent.mkdir(parents=True, exist_ok=True)
            link.symlink_to("/dev/null")
        elif verb == "unmask":
            link.unlink()
        elif verb == "daemon-reload":
            for unit, shown in self.units.items():
                masked = (self.root / "etc/systemd/system" / unit).is_symlink()
                shown["LoadState"] = "masked" if masked else "loaded"
        elif name in self.units:
            if verb == "stop" and self.units[name]["LoadState"] == "masked" and self.units[name]["ActiveState"] == "active":
                return 1, "", "Job failed. See journalctl -xe for details."
            if verb in ("enable", "disable"):
                self.units[name]["UnitFileState"] = verb + "d"
            if verb in ("start", "stop") or "--now" in argv:
                on = verb in ("start", "enable")
                self.units[name]["ActiveState"] = "active" if on else "inactive"
                what = self.units[name]["What"]
                if what and on:
                    self.swap_on(what, 0.0)
                elif what:
                    self.swaps.pop(what, None)
                    self.write_swaps()
        return 0, "", ""

    def tune(self, check: bool = False, **params: Any) -> dict[str, Any]:
        module = UmaTuning(Node(str(self.root), self.run), {**PARAMS, **params}, check)
        return module.present() if params.get("state", "present") == "present" else module.absent()


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_first_run_second_run_and_undo(machine: Machine) -> None:
    files, live, swaps = machine.files(), machine.live(), set(machine.swaps)
    predicted = machine.tune(check=True)
    assert (machine.files(), machine.live(), set(machine.swaps)) == (files, live, swaps)
    assert not (machine.root / "var").exists()
    result = machine.tune()
    assert predicted["changes"] == result["changes"]
    assert predicted["diff"] == result["diff"]
    assert machine.live() == {
        **live,
        "min_free_kbytes": "3145728",
        "watermark_boost_factor": "0",
        "vfs_cache_pressure": "200",
        "dirty_ratio": "5",
        "dirty_background_ratio": "2",
    }
    assert machine.swaps == {}
    assert machine.get("/etc/fstab") == FSTAB.replace("/swap.img", swap.FSTAB_MARK + "/swap.img")
    assert machine.files()["etc/systemd/system/dev-zram0.swap"] == "-> /dev/null"
    again = machine.tune()
    assert (again["changed"], again["changes"]) == (False, [])
    foreseen = machine.tune(check=True, state="absent")
    gone = machine.tune(state="absent")
    assert foreseen["changes"] == gone["changes"]
    assert (machine.files(), machine.live(), set(machine.swaps)) == (files, live, swaps)
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.tune(state="absent")["changed"] is False


def test_what_is_done_beside_files_is_in_the_diff(machine: Machine) -> None:
    """Swap that somebody switched on again: no file differs, and the diff says what is done all the same."""
    machine.tune()
    machine.swap_on("/swap.img", 0.0)
    predicted = machine.tune(check=True)
    result = machine.tune()
    assert predicted["diff"] == result["diff"]
    assert [(entry["before"], entry["after"]) for entry in result["diff"]] == [("", "swap off: /swap.img\n")]


TTL = "/sys/kernel/mm/lru_gen/min_ttl_ms"
GUARD_FILE = "/etc/tmpfiles.d/60-gb10-cluster.conf"


def guarded(machine: Machine, live: str = "0", enabled: str = "0x0007") -> Machine:
    """Give the kernel a multi-generational LRU."""
    machine.put(TTL, live + "\n")
    machine.put("/sys/kernel/mm/lru_gen/enabled", enabled + "\n")
    return machine


def test_the_guard_against_thrashing_is_set_live_and_for_the_next_boot_and_undone(machine: Machine) -> None:
    before = guarded(machine, live="20").files()
    predicted = machine.tune(check=True, lru_gen_min_ttl_ms="1000")
    assert (machine.get(TTL), machine.get(GUARD_FILE)) == ("20\n", None)
    result = machine.tune(lru_gen_min_ttl_ms="1000")
    assert predicted["changes"] == result["changes"]
    assert predicted["diff"] == result["diff"]
    assert machine.get(TTL) == "1000\n"
    assert (machine.get(GUARD_FILE) or "").splitlines()[1:] == [f"w {TTL} - - - - 1000"]
    assert result["message"].endswith("thrashing ends in an OOM kill after 1000 ms")
    assert machine.tune(lru_gen_min_ttl_ms="1000")["changed"] is False
    assert machine.tune(lru_gen_min_ttl_ms="leave")["changes"] == [f"{GUARD_FILE} removed", "min_ttl_ms: 1000 -> 20"]
    machine.tune(lru_gen_min_ttl_ms="2000")
    assert machine.tune(state="absent")["changed"] is True
    assert machine.files() == before
    assert machine.get(TTL) == "20\n"


@pytest.mark.parametrize(("enabled", "said"), [("0x0000", "switched off"), (None, "the kernel has no multi-generational LRU")])
def test_a_kernel_without_the_guard_is_said_and_nothing_written(machine: Machine, enabled: str | None, said: str) -> None:
    if enabled is not None:
        guarded(machine, enabled=enabled)
    result = machine.tune(lru_gen_min_ttl_ms="1000")
    assert said in result["message"]
    assert machine.get(GUARD_FILE) is None


@pytest.mark.parametrize("value", ["soon", "-1", "10001", "\u0663"])
def test_a_wrong_time_is_refused_before_anything_changes(machine: Machine, value: str) -> None:
    before = guarded(machine).files()
    with pytest.raises(SysctlError, match="sysctl_lru_gen_min_ttl_ms is"):
        machine.tune(lru_gen_min_ttl_ms=value)
    assert machine.files() == before


def test_a_guard_file_of_somebody_else_is_left_alone(machine: Machine) -> None:
    guarded(machine).put(GUARD_FILE, "w /sys/other - - - - 1\n")
    with pytest.raises(SysctlError, match="is not ours"):
        machine.tune(lru_gen_min_ttl_ms="1000")
    assert machine.get(GUARD_FILE) == "w /sys/other - - - - 1\n"


def test_the_message_says_what_it_costs_and_what_still_starts(machine: Machine) -> None:
    result = machine.tune()
    assert 4.0 < result["floor_cost_gib"] < 6.0
    assert result["highest_utilization"] == {"memavailable": 0.92, "memfree": 0.93, "estimate": False}
    assert "vm.min_free_kbytes 3145728 (for a 121 GiB node (sysctl_min_free_kbytes_121)) costs" in result["message"]
    assert "starts up to gpu_memory_utilization 0.92, older images (MemFree) up to 0.93; swap is off" in result["message"]


def test_check_mode_takes_the_cost_off_what_is_available_now(machine: Machine) -> None:
    assert machine.tune(check=True)["highest_utilization"]["memavailable"] in (0.88, 0.89)


def test_under_an_engine_the_figure_is_an_estimate(machine: Machine) -> None:
    machine.memory(MemFree=14.0, MemAvailable=16.0)
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    highest = machine.tune()["highest_utilization"]
    assert highest["estimate"] is True
    assert highest["memavailable"] > 0.8


def test_under_an_engine_systemd_is_not_reloaded_and_the_second_run_is_quiet(machine: Machine) -> None:
    machine.put("/proc/4711/comm", "VLLM::Worker_TP\n")
    machine.tune()
    assert "systemctl daemon-reload" not in machine.commands
    assert machine.tune()["changes"] == []


def test_a_container_is_left_alone(machine: Machine) -> None:
    machine.put("/run/systemd/container", "docker\n")
    files, live = machine.files(), machine.live()
    for state in ("present", "absent"):
        result = machine.tune(state=state)
        assert result["changed"] is False
        assert "this node is a container (docker), where vm.* and swap belong to the host" in result["skipped_reason"]
    assert (machine.files(), machine.live(), machine.commands) == (files, live, [])


FAULTS: dict[str, tuple[dict[str, str], dict[str, float], dict[str, Any], str]] = {
    "a later file": (
        {"/etc/sysctl.d/99-mine.conf": "vm.min_free_kbytes = 65536\n"},
        {},
        {},
        r"/etc/sysctl\.d/99-mine\.conf line 1 sets vm\.min_free_kbytes to 65536, is read after .* or set sysctl_min_free_kbytes to leave",
    ),
    "a full node": ({}, {"MemFree": 1.0, "MemAvailable": 2.3}, {}, "which freezes it: stop the serving group first"),
    "swap that does not fit": ({}, {"MemFree": 3.0, "MemAvailable": 3.9}, {"min_free_kbytes": "leave"}, r"swap holds 3\.5 GiB and only 3\.9 GiB"),
    "a foreign file of our name": ({DROP_IN: "vm.swappiness = 1\n"}, {}, {}, r"60-gb10-cluster\.conf exists and is not ours"),
    "a key that does not exist": ({}, {}, {"extra": {"vm.nonsense": 1}}, r"this kernel has no vm\.nonsense"),
}


@pytest.mark.parametrize(("files", "memory", "params", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_found_before_anything_changes(
    machine: Machine, files: dict[str, str], memory: dict[str, float], params: dict[str, Any], message: str
) -> None:
    for path, text in files.items():
        machine.put(path, text)
    if memory:
        machine.memory(**memory)
    before = (machine.files(), machine.live(), set(machine.swaps))
    for check in (True, False):
        with pytest.raises(SysctlError, match=message):
            machine.tune(check=check, **params)
    assert (machine.files(), machine.live(), set(machine.swaps)) == before


def test_a_broken_record_is_said(machine: Machine) -> None:
    machine.put("/var/lib/gb10-cluster/sysctl.json", "{")
    with pytest.raises(RecordError, match=r"sysctl\.json, .* is not a JSON object"):
        machine.tune()


def test_a_value_that_the_kernel_refuses(machine: Machine) -> None:
    path = machine.root / "proc/sys/vm/vfs_cache_pressure"
    path.unlink()
    path.mkdir()
    with pytest.raises(SysctlError, match=r"this kernel has no vm\.vfs_cache_pressure"):
        machine.tune()


def test_a_live_value_that_does_not_stay_names_tuned(machine: Machine) -> None:
    machine.tune()
    machine.tuned = True
    machine.put("/etc/tuned/active_profile", "throughput-performance\n")
    tuning = UmaTuning(Node(str(machine.root), machine.run), PARAMS, False)
    machine.put("/proc/sys/vm/dirty_ratio", "40\n")
    with pytest.raises(SysctlError, match=r"vm\.dirty_ratio is 40 where 5 was set: tuned \(throughput-performance\) runs here"):
        tuning.read_back({"vm.dirty_ratio": "5"})


def test_drift_of_a_live_value_is_repaired(machine: Machine) -> None:
    machine.tune()
    machine.put("/proc/sys/vm/dirty_ratio", "40\n")
    result = machine.tune()
    assert result["changes"] == ["vm.dirty_ratio: 40 -> 5"]
    machine.tune(state="absent")
    assert machine.live()["dirty_ratio"] == "20"


def test_swap_that_comes_back_is_switched_off_again(machine: Machine) -> None:
    machine.tune()
    machine.unit("dphys-swapfile.service", "enabled", "/usr/lib/systemd/system/dphys-swapfile.service")
    machine.swap_on("/var/swap", 0.0)
    result = machine.tune()
    assert {"dphys-swapfile.service masked", "swap off: /var/swap"} <= set(result["changes"])
    assert machine.tune()["changed"] is False


def test_a_unit_of_the_users_gets_a_drop_in_and_loses_it_again(machine: Machine) -> None:
    machine.put("/etc/systemd/system/extra.swap", "[Swap]\nWhat=/extra\n")
    machine.unit("extra.swap", "enabled", "/etc/systemd/system/extra.swap", what="/extra")
    before = machine.files()
    machine.tune()
    assert machine.get(swap.drop_in_path("extra.swap")) == swap.drop_in_text()
    machine.units["extra.swap"]["ActiveState"] = "inactive"
    assert machine.tune()["changed"] is False
    machine.tune(state="absent")
    assert machine.files() == before
    assert not (machine.root / "etc/systemd/system/extra.swap.d").exists()


def test_a_unit_that_its_owner_has_removed_does_not_stop_the_undo(machine: Machine) -> None:
    machine.put("/etc/systemd/system/extra.swap", "[Swap]\nWhat=/extra\n")
    machine.unit("extra.swap", "enabled", "/etc/systemd/system/extra.swap", what="/extra")
    machine.tune()
    (machine.root / "etc/systemd/system/extra.swap").unlink()
    del machine.units["extra.swap"]
    machine.commands.clear()
    machine.tune(state="absent")
    assert "systemctl start extra.swap" not in machine.commands
    assert "systemctl start dev-zram0.swap" in machine.commands
    assert set(machine.swaps) == {"/swap.img", "/dev/zram0"}


def test_swap_that_stays_on_is_an_error(machine: Machine) -> None:
    machine.stubborn = True
    with pytest.raises(SysctlError, match=r"sysctl_swap_policy is off, but swap is on: /swap\.img"):
        machine.tune()


def test_another_policy_gives_swap_back(machine: Machine) -> None:
    machine.tune()
    assert "; swap is on again; " in machine.tune(check=True, swap_policy="swappiness0")["message"]
    result = machine.tune(swap_policy="swappiness0")
    assert set(machine.swaps) == {"/swap.img", "/dev/zram0"}
    assert machine.get("/etc/fstab") == FSTAB
    assert machine.live()["swappiness"] == "0"
    assert "swap is on (32.0 GiB)" in result["message"]
    assert machine.tune(swap_policy="swappiness0")["changed"] is False
    machine.tune(state="absent")
    assert machine.live() == STOCK


def test_a_wish_taken_back_gives_its_value_back(machine: Machine) -> None:
    machine.tune(swap_policy="leave")
    result = machine.tune(swap_policy="leave", settings={**PARAMS["settings"], "vm.vfs_cache_pressure": "leave"})
    assert machine.live()["vfs_cache_pressure"] == "100"
    assert "vm.vfs_cache_pressure: 200 -> 100" in result["changes"]
    assert "vfs_cache_pressure" not in (machine.get(DROP_IN) or "")


def test_earlyoom_is_asked_for_installed_started_and_given_back(machine: Machine) -> None:
    assert machine.tune(swap_policy="leave", oom_policy="earlyoom")["packages"] == ["earlyoom"]
    machine.unit(swap.EARLYOOM, "disabled", "/usr/lib/systemd/system/earlyoom.service", active=False)
    predicted = machine.tune(check=True, swap_policy="leave", oom_policy="earlyoom")
    result = machine.tune(swap_policy="leave", oom_policy="earlyoom")
    assert result["packages"] == []
    assert [said["message"].endswith("earlyoom runs") for said in (predicted, result)] == [True, True]
    assert (machine.units[swap.EARLYOOM]["UnitFileState"], machine.units[swap.EARLYOOM]["ActiveState"]) == ("enabled", "active")
    assert machine.tune(swap_policy="leave", oom_policy="earlyoom")["changed"] is False
    machine.tune(state="absent")
    assert (machine.units[swap.EARLYOOM]["UnitFileState"], machine.units[swap.EARLYOOM]["ActiveState"]) == ("disabled", "inactive")


def test_a_run_that_died_after_the_record_still_finds_its_way_back(machine: Machine) -> None:
    before = (machine.files(), machine.live(), set(machine.swaps))
    machine.stubborn = True
    with pytest.raises(SysctlError):
        machine.tune()
    machine.stubborn = False
    machine.tune(state="absent")
    assert (machine.files(), machine.live(), set(machine.swaps)) == before
