"""Swap: units that start it, out-of-memory daemons, and room for what is swapped."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import memory, swap
from ansible_collections.gb10.cluster.plugins.module_utils._host.swap import Unit


@pytest.mark.parametrize(("used", "available", "fits"), [(0.0, 0.1, True), (3.5, 113.0, True), (1.7, 2.3, False), (14.0, 2.0, False)])
def test_swap_must_fit_into_memory(used: float, available: float, fits: bool) -> None:
    rows = [memory.Swap("/swap.img", "file", 16 * memory.GIB_KB, int(used * memory.GIB_KB), -2)]
    assert (swap.room_problem(rows, int(available * memory.GIB_KB), 120 * memory.GIB_KB) == "") is fits


FILES = """swap.target masked enabled
zramswap.service enabled enabled
dphys-swapfile.service generated -
earlyoom.service disabled enabled
"""


def test_units_are_read_from_their_files_and_the_running_systemd() -> None:
    active = "\n".join("active" if name == "zramswap.service" else "inactive" for name in swap.UNITS)
    assert swap.parse_units(FILES, active) == {
        "swap.target": Unit(False, False, True),
        "zramswap.service": Unit(True, True),
        "dphys-swapfile.service": Unit(True, False),
        "earlyoom.service": Unit(False, False),
    }
