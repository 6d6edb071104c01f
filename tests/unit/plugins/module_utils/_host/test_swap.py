"""Swap: fstab, units that start it, out-of-memory daemons."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, swap
from ansible_collections.gb10.cluster.plugins.module_utils._host.swap import Silence, Unit
from hypothesis import given
from hypothesis import strategies as st

FSTAB = """# /etc/fstab
UUID=1 / ext4 defaults 0 1
/swap.img none swap sw 0 0
#/old.img none swap sw 0 0
  /dev/sdb2\tnone\tswap\tdefaults,pri=5 0 0
LABEL=x none swap noauto 0 0
short
"""


def test_swap_lines_of_fstab_are_commented_out() -> None:
    off = swap.fstab_off(FSTAB)
    assert (swap.fstab_swaps(FSTAB), swap.fstab_swaps(off)) == ([(3, "/swap.img"), (5, "/dev/sdb2")], [])
    assert swap.fstab_off(off) == off


@given(st.lists(st.sampled_from(["/a none swap sw 0 0", "# x", "", "UUID=1 / ext4 d 0 1", "\t/b x swap", "tmpfs /tmp tmpfs"]), max_size=6), st.booleans())
def test_any_fstab_is_restored(lines: list[str], newline: bool) -> None:
    text = "\n".join(lines) + ("\n" if newline else "")
    assert swap.fstab_on(swap.fstab_off(text)) == text


SHOWN = """Id=swap.img.swap
LoadState=loaded
ActiveState=active
UnitFileState=generated
FragmentPath=/run/systemd/generator/swap.img.swap
SourcePath=/etc/fstab
What=/swap.img

Id=dev-zram0.swap
LoadState=loaded
ActiveState=active
UnitFileState=generated
FragmentPath=/run/systemd/generator/dev-zram0.swap
SourcePath=/etc/systemd/zram-generator.conf
What=/dev/zram0

Id=zramswap.service
LoadState=not-found
ActiveState=inactive
UnitFileState=
FragmentPath=
"""


def test_units_are_read_from_systemctl_show() -> None:
    units = swap.parse_units(SHOWN)
    assert [unit.name for unit in units] == ["swap.img.swap", "dev-zram0.swap", "zramswap.service"]
    assert swap.to_silence(units) == [
        Silence("dev-zram0.swap", "mask", True),
        Silence("systemd-zram-setup@zram0.service", "mask", False),
    ]


UNITS: dict[str, tuple[Unit, list[Silence]]] = {
    "a unit of a package": (
        Unit("zramswap.service", "loaded", True, "enabled", "/usr/lib/systemd/system/zramswap.service", ""),
        [Silence("zramswap.service", "mask", True)],
    ),
    "a unit of the user": (
        Unit("mnt-swapfile.swap", "loaded", False, "enabled", "/etc/systemd/system/mnt-swapfile.swap", ""),
        [Silence("mnt-swapfile.swap", "drop-in", False)],
    ),
    "found by its partition type": (
        Unit("dev-nvme0n1p3.swap", "loaded", True, "generated", "/run/systemd/generator.late/dev-nvme0n1p3.swap", ""),
        [Silence("dev-nvme0n1p3.swap", "mask", True)],
    ),
    "masked already": (Unit("zramswap.service", "masked", False, "masked", "/dev/null", ""), []),
    "disabled": (Unit("dphys-swapfile.service", "loaded", False, "disabled", "/usr/lib/systemd/system/dphys-swapfile.service", ""), []),
    "only seen in /proc/swaps": (Unit("dev-vda2.swap", "loaded", True, "", "", ""), []),
    "from fstab": (Unit("swap.img.swap", "loaded", True, "generated", "/run/systemd/generator/swap.img.swap", "/etc/fstab"), []),
    "not about swap": (Unit("ssh.service", "loaded", True, "enabled", "/usr/lib/systemd/system/ssh.service", ""), []),
}


@pytest.mark.parametrize(("unit", "expected"), UNITS.values(), ids=UNITS.keys())
def test_units_that_are_disabled(unit: Unit, expected: list[Silence]) -> None:
    assert swap.to_silence([unit]) == expected
    assert swap.to_silence([unit], [unit.name]) == []


@pytest.mark.parametrize(("used", "available", "fits"), [(0.0, 0.1, True), (3.5, 113.0, True), (1.7, 2.3, False), (14.0, 2.0, False)])
def test_swap_must_fit_into_memory(used: float, available: float, fits: bool) -> None:
    rows = [memory.Swap("/swap.img", "file", 16 * memory.GIB_KB, int(used * memory.GIB_KB), -2)]
    assert (swap.room_problem(rows, int(available * memory.GIB_KB), 120 * memory.GIB_KB) == "") is fits


def test_swap_that_is_still_on_names_its_unit() -> None:
    rows = [memory.Swap("/dev/zram0", "partition", memory.GIB_KB, 0, 100)]
    unit = Unit("dev-zram0.swap", "loaded", True, "generated", "/run/x", "", "/dev/zram0")
    assert "/dev/zram0 (partition, 1.0 GiB, started by dev-zram0.swap)" in swap.still_on_message(rows, [unit])
    assert swap.still_on_message([], [unit]) == ""


def unit(name: str, enabled: bool, active: bool) -> Unit:
    """Return an installed unit."""
    return Unit(name, "loaded", active, "enabled" if enabled else "disabled", "/usr/lib/" + name, "")


ON = {swap.EARLYOOM: unit(swap.EARLYOOM, True, True)}
OFF = {swap.EARLYOOM: unit(swap.EARLYOOM, False, False)}
OOMD = {name: unit(name, True, True) for name in swap.OOMD}

OOM: dict[str, tuple[str, dict[str, Unit], list[tuple[str, bool]], list[str]]] = {
    "leave": ("leave", {**ON, **OOMD}, [], []),
    "earlyoom, missing": ("earlyoom", {}, [(swap.EARLYOOM, True)], ["earlyoom"]),
    "earlyoom, installed": ("earlyoom", OFF, [(swap.EARLYOOM, True)], []),
    "earlyoom, runs": ("earlyoom", ON, [], []),
    "earlyoom instead of oomd": ("earlyoom", {**ON, **OOMD}, [(swap.OOMD[0], False), (swap.OOMD[1], False)], []),
    "none, both run": ("no_earlyoom", {**ON, **OOMD}, [(swap.EARLYOOM, False), (swap.OOMD[0], False), (swap.OOMD[1], False)], []),
    "none, none installed": ("no_earlyoom", {swap.EARLYOOM: Unit(swap.EARLYOOM, "not-found", False, "", "", "")}, [], []),
}


@pytest.mark.parametrize(("policy", "units", "steps", "packages"), OOM.values(), ids=OOM.keys())
def test_out_of_memory_policies(policy: str, units: dict[str, Unit], steps: list[tuple[str, bool]], packages: list[str]) -> None:
    assert swap.oom_plan(policy, units) == (steps, packages)


def test_the_states_of_the_oom_daemons() -> None:
    assert swap.describe_oom_daemons({**ON, **OOMD}) == "earlyoom runs, systemd-oomd runs"
    assert swap.describe_oom_daemons({}) == "no out-of-memory daemon is installed"
