# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The power, the utilization and the own memory of the GPUs of a node. Pure.

An engine that waits in a collective shows full utilization and draws little more power than an idle one:
1 to 3 W on an H200, 5 to 16 W on a GB10, against 35 W and more at work.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple, Optional

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import LARGEST

QUERY = ("--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits")
MEMORY = ("--query-gpu=uuid,name,memory.total,memory.reserved,memory.free", "--format=csv,noheader,nounits")
PROCESSES = ("--query-compute-apps=gpu_uuid,pid,used_memory", "--format=csv,noheader,nounits")
UNIFIED = "GB10"  # the name of a GPU without its own memory; its driver reports [N/A] today
CONTEXT_MIB = 1065.0  # what an engine holds itself when it reads its free memory: 1.04 GiB on an H100 (vLLM 0.25.1)
MARGIN_W = 18.0  # owners of GB10 saw 16 to 27 W in a wedge, about 11 W at idle, and 45 W and more at work
MARGIN_SHARE = 0.1

#: Power in W and utilization in percent of one GPU; None if the driver does not report the figure.
Reading = tuple[Optional[float], Optional[float]]


def _figure(field: str) -> float | None:
    try:
        found = float(field)
    except ValueError:  # [N/A], [Unknown Error]
        return None
    return found if 0 <= found < LARGEST else None


def rows(text: str, fields: int) -> list[list[str]]:
    """Return the rows of nvidia-smi's CSV with so many fields. A message of the driver has another number of them."""
    found = ([field.strip() for field in line.split(",")] for line in text.splitlines())
    return [row for row in found if len(row) == fields]


def readings(text: str) -> list[Reading]:
    """Return the GPUs in the output of nvidia-smi with QUERY. A message of the driver is not a GPU."""
    return [(_figure(row[0]), _figure(row[1])) for row in rows(text, 2) if row[0].startswith("[") or _figure(row[0]) is not None]


def power(text: str) -> float | None:
    """Return the highest power in W of the GPUs in the output of nvidia-smi; None if it names none."""
    return max((power_w for power_w, _utilization in readings(text) if power_w is not None), default=None)


def at_idle(powers: Sequence[float], idle: float | None, margin_w: float = MARGIN_W) -> bool | None:
    """Return whether all powers are at idle power; None if the powers or the idle power are not known."""
    if idle is None or not powers:
        return None
    return max(powers) <= idle + max(margin_w, MARGIN_SHARE * idle)


class Memory(NamedTuple):
    """The own memory of one GPU, in MiB, as CUDA counts it: without what the driver reserves (480 of 81,559 MiB on an H100, driver 580.159)."""

    uuid: str
    total: float
    free: float | None  # for an engine that starts; None if the driver does not report it


def own_memory(text: str) -> Memory | None:
    """Return the memory of the first GPU, which an engine uses, in the output of nvidia-smi with MEMORY; None if it shares that of the node."""
    for uuid, name, *figures in rows(text, 5)[:1]:
        total, reserved, free = map(_figure, figures)
        if total and UNIFIED not in name:
            return Memory(uuid, total - (reserved or 0.0), None if free is None else max(0.0, free - CONTEXT_MIB))
    return None


def used_by(text: str, uuid: str, pids: Collection[int]) -> float | None:
    """Return the MiB of one GPU that some processes hold, in the output of nvidia-smi with PROCESSES; None if it does not report them."""
    held = [_figure(used) for gpu, pid, used in rows(text, 3) if gpu == uuid and pid.isdigit() and int(pid) in pids]
    known = [figure for figure in held if figure is not None]
    return sum(known) if known and len(known) == len(held) else None
