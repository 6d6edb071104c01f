# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The GPUs of a node: power, utilization and own memory; persistence mode and a cap on the clocks.

An engine that waits in a collective shows full utilization and draws little more power than an idle one:
1 to 3 W on an H200, 5 to 16 W on a GB10, against 35 W and more at work.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Callable, NamedTuple, Optional

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LARGEST
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Editor, FileChange, HostError

QUERY = ("--query-gpu=power.draw,utilization.gpu", "--format=csv,noheader,nounits")
WATCHED = ("--query-gpu=power.draw,utilization.gpu,clocks.sm,clocks.max.sm,temperature.gpu", "--format=csv,noheader,nounits")
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


def _gpus(text: str, fields: int) -> list[list[float | None]]:
    """Return the figures of each GPU. A message of the driver is not a GPU."""
    return [[_figure(field) for field in row] for row in rows(text, fields) if row[0].startswith("[") or _figure(row[0]) is not None]


def readings(text: str) -> list[Reading]:
    """Return the GPUs in the output of nvidia-smi with QUERY."""
    return [(row[0], row[1]) for row in _gpus(text, 2)]


def watched(text: str) -> list[list[float | None]]:
    """Return W, percent, MHz, highest MHz and °C of the GPUs in the output of nvidia-smi with WATCHED."""
    return _gpus(text, 5)


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


# --- Persistence mode and a cap on the clocks of a node's GPUs: a unit sets both when it starts, and gives both back when it stops.
# The unit is a template of the role gpu. nvidia-smi does not report a cap: the SM clock is compared with it, and the unit, which is active since a start that
# the driver has accepted, stands for this boot.

UNIT = "gb10-gpu-clocks.service"
PATH = f"/etc/systemd/system/{UNIT}"
CLOCKS_QUERY = ("--query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
STEP_MHZ = 15  # the driver rounds a cap to a step of the GPU
READS, READ_PAUSE = 10, 0.5  # a clock falls within some seconds


class Gpu(NamedTuple):
    """One GPU; None for a figure that the driver does not report."""

    number: str
    persistence: str
    sm_mhz: float | None
    max_mhz: float | None


def parse_gpus(text: str) -> list[Gpu]:
    """Return the GPUs in the output of nvidia-smi with QUERY. A message of the driver is not a GPU."""
    return [Gpu(row[0], row[1], _figure(row[2]), _figure(row[3])) for row in rows(text, 4) if row[0].isdigit()]


class GpuClocks:
    """The GPUs of one node. All methods raise HostError and OSError."""

    def __init__(self, edit: Editor, state: str, settings: Mapping[str, Any], pause: Callable[[float], None] = time.sleep) -> None:
        """Start without a change. `settings` has `unit`, empty if nothing is set, `persistence_mode` and `max_clock_mhz`."""
        self.edit = edit
        self.node = edit.node
        self.state = state
        self.unit = str(settings.get("unit") or "").rstrip("\n") + "\n"
        self.persistence = bool(settings.get("persistence_mode"))
        self.cap = int(settings.get("max_clock_mhz") or 0)
        self.pause = pause

    def gpus(self) -> list[Gpu]:
        """Return the GPUs; empty without nvidia-smi, which can hang with its driver."""
        rc, out, err = self.node.run(["timeout", "20", "nvidia-smi", *CLOCKS_QUERY])
        found = parse_gpus(out)
        if rc != 127 and (rc != 0 or not found):
            last = next((line.strip()[:200] for line in reversed((out if out.strip() else err).splitlines()) if line.strip()), "no output")
            why = "did not answer within 20 s" if rc == 124 else f"exited with {rc}: {last}"
            raise HostError(f"nvidia-smi {why}. Run `nvidia-smi` and `journalctl -k -g NVRM` on the node. Nothing was changed.")
        return found if rc != 127 else []

    def differs(self, gpus: Sequence[Gpu]) -> str:
        """Return how the driver differs from the settings; empty if it does not."""
        for each in gpus:
            if self.persistence and each.persistence == "Disabled":
                return f"GPU {each.number} reports persistence mode Disabled after `nvidia-smi -pm 1`. Look at `journalctl -u nvidia-persistenced`."
            if self.cap and each.sm_mhz is not None and each.sm_mhz > self.cap + STEP_MHZ:
                remedy = "Choose another value, or update the driver."
                return f"GPU {each.number} runs at {each.sm_mhz:g} MHz after `nvidia-smi -lgc 0,{self.cap}`: the cap has no effect. {remedy}"
        return ""

    def systemctl(self, *words: str) -> bool:
        """Run systemctl, and return whether it succeeds."""
        return self.node.run(["systemctl", *words])[0] == 0

    def install(self, text: str | None) -> str:
        """Replace the unit, and return why it does not start; empty if it does. The earlier one gives back first what it has set."""
        before = self.node.read(PATH)
        if before is not None:
            self.systemctl("stop", UNIT)
        if before != text:
            if text is None:
                self.systemctl("disable", "--no-reload", UNIT)
                self.systemctl("reset-failed", UNIT)
            self.node.apply(FileChange(PATH, before, text))
            self.edit.command("systemctl", "daemon-reload")
        if text is None or (self.systemctl("enable", "--no-reload", UNIT) and self.systemctl("start", UNIT)):
            return ""
        _rc, out, _err = self.node.run(["journalctl", "--unit", UNIT, "--lines", "10", "--output", "cat", "--identifier", "sh"])
        return f"The driver refuses it: {' '.join(out.split())[:400]} See `journalctl -u {UNIT}`. Change the option, or update the driver."

    def verify(self) -> str:
        """Read back until the driver is as the settings want it; return how it differs at the end, empty if it does not."""
        for _read in range(READS):
            if not self.differs(self.gpus()):
                return ""
            self.pause(READ_PAUSE)
        return self.differs(self.gpus())

    def present(self, gpus: Sequence[Gpu]) -> None:
        """Set both, and read them back. If the driver refuses one, all is as before."""
        self.edit.require_own(PATH)
        old, highest = self.node.read(PATH), min((each.max_mhz for each in gpus if each.max_mhz is not None), default=self.cap)
        if self.cap > highest:
            raise HostError(f"gpu_max_clock_mhz is {self.cap}. This GPU supports at most {highest:g} MHz. Choose such a value. Nothing was changed.")
        runs = all(self.systemctl(question, "--quiet", UNIT) for question in ("is-active", "is-enabled"))
        if old == self.unit and runs and not self.differs(gpus):
            return
        if old != self.unit:
            self.edit.changes.file(FileChange(PATH, old, self.unit), f"{PATH} written")
        self.edit.step(f"{UNIT} enabled and started")
        try:
            problem = "" if self.edit.check_mode else self.install(self.unit) or self.verify()
        except HostError as error:  # nvidia-smi fails after the unit has set both
            problem = str(error).replace(" Nothing was changed.", "")
        if problem:
            self.install(old)
            raise HostError(problem)

    def absent(self) -> None:
        """Stop the unit, which gives back what it has set, and remove it."""
        old = self.node.read(PATH)
        if MARKER in (old or ""):
            self.edit.step(f"{UNIT} stopped and disabled")
            self.edit.changes.file(FileChange(PATH, old, None), f"{PATH} removed")
            if not self.edit.check_mode:
                self.install(None)

    def run(self) -> dict[str, Any]:
        """Apply the state, and return the module's result."""
        gpus, notes = self.gpus() if self.state == "present" else [], []
        if gpus and self.unit.strip():
            self.present(gpus)
            if self.cap and any(each.sm_mhz is None for each in gpus):
                notes = ["The driver does not report the SM clock, so the cap was not read back"]
        elif self.state == "present" and not gpus:
            notes = ["nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed"]
        else:
            self.absent()
        return {**self.edit.changes.result(), "shown": notes}
