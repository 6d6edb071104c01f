# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Persistence mode and a cap on the clocks of a node's GPUs, through nvidia-smi and a unit that sets both at boot.

A GB10 has no power limit (`nvidia-smi -pl` is not supported): its clocks are what can be limited. nvidia-smi does not report a cap. So the driver's reply
and the SM clock after the command are checked, and the unit, which is active since a start that has succeeded, stands for this boot.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

UNIT = "gb10-gpu-clocks.service"
PATH = f"/etc/systemd/system/{UNIT}"
MARKER = "# Managed by gb10.cluster: gpu_clocks"
RECORD = "gpu"
QUERY = ("--query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
SUPPORTED = ("--query-supported-clocks=graphics", "--format=csv,noheader,nounits")
STEP_MHZ = 15  # the driver rounds a cap to a step of the GPU
READS, READ_PAUSE = 10, 0.5
REFUSED = re.compile(r"not supported|insufficient permissions|unable to|unknown error", re.IGNORECASE)  # nvidia-smi can exit with 0 after these


class GpuError(ValueError):
    """The GPUs cannot be set. The message is for the user."""


class Gpu(NamedTuple):
    """One GPU; None for a figure that the driver does not report."""

    number: str
    persistence: str
    sm_mhz: int | None
    max_mhz: int | None


def _whole(field: str) -> int | None:
    return int(field) if re.fullmatch(r"[0-9]{1,6}", field) else None  # [N/A], [Not Supported]


def parse_gpus(text: str) -> list[Gpu]:
    """Return the GPUs in the output of nvidia-smi with QUERY. A message of the driver is not a GPU."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [Gpu(row[0], row[1], _whole(row[2]), _whole(row[3])) for row in rows if len(row) == 4 and _whole(row[0]) is not None]


def clock_range(gpus: Sequence[Gpu], supported: str) -> tuple[int | None, int | None]:
    """Return the lowest and the highest clock in MHz that all GPUs support; None for one that the driver does not report."""
    clocks = [clock for clock in map(_whole, map(str.strip, supported.splitlines())) if clock is not None]
    highest = [gpu.max_mhz for gpu in gpus if gpu.max_mhz is not None]
    return (min(clocks) if clocks else None), (min(highest) if highest else max(clocks, default=None))


def render_unit(persistence: bool, cap: int | None) -> str | None:
    """Return the unit; None if there is nothing to set."""
    commands = [*(["nvidia-smi -pm 1"] if persistence else []), *([f"nvidia-smi -lgc 0,{cap}"] if cap else [])]
    if not commands:
        return None
    starts = "".join(f"ExecStart={command}\n" for command in commands)
    return (
        f"{MARKER}\n[Unit]\nDescription=gb10.cluster: persistence mode and clock cap of the GPU\n"
        "After=nvidia-persistenced.service\nBefore=gb10-agent.service\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStartSec=60\n{starts}\n[Install]\nWantedBy=multi-user.target\n"
    )


def cap_of(unit: str) -> int | None:
    """Return the cap in a unit."""
    match = re.search(r"^ExecStart=nvidia-smi -lgc 0,(\d+)$", unit, re.MULTILINE)
    return int(match.group(1)) if match else None


def shown(cap: int | None) -> str:
    """Return a cap as messages show it."""
    return f"at most {cap} MHz" if cap else "not capped"


class GpuClocks:
    """The GPUs of one node. All methods raise GpuError, RecordError and OSError."""

    def __init__(self, node: Node, params: Mapping[str, Any], check_mode: bool, pause: Callable[[float], None] = time.sleep) -> None:
        """Read the record; `params` are the options of the module gpu_clocks."""
        self.node = node
        self.params = params
        self.pause = pause
        self.edit = Editor(node, check_mode, GpuError)
        self.notes: list[str] = []
        self.record = node.load_record(RECORD)
        self.undo: list[tuple[str, ...]] = []  # restores what this run has changed, the last change last

    def smi(self, *words: str) -> tuple[int, str]:
        """Run nvidia-smi; return its code and its output. A driver that hangs is left after 20 s."""
        rc, out, err = self.node.run(["timeout", "20", "nvidia-smi", *words])
        return rc, out if rc == 0 else f"{out}\n{err}"

    def gpus(self) -> list[Gpu]:
        """Return the GPUs; an empty list without nvidia-smi."""
        rc, out = self.smi(*QUERY)
        if rc == 127:
            return []
        found = parse_gpus(out) if rc == 0 else []
        if not found:
            why = "did not answer within 20 s" if rc == 124 else f"exited with {rc}: {_last(out)}"
            raise GpuError(f"nvidia-smi {why}. Run `nvidia-smi` and `journalctl -k -g NVRM` on the node. Nothing was changed.")
        return found

    def set(self, title: str, before: str, after: str, words: Sequence[str], undo: Sequence[str] = ()) -> None:
        """Run a command of nvidia-smi that changes the GPUs, and list the change."""
        self.edit.changes.live(title, f"{before}\n", f"{after}\n", [f"{title}: {before} -> {after}"])
        if self.edit.check_mode:
            return
        rc, out = self.smi(*words)
        if rc != 0 or REFUSED.search(out):
            raise GpuError(f"The driver refuses `nvidia-smi {' '.join(words)}` (exit code {rc}): {_refusal(out)}. Change the option, or update the driver.")
        self.undo.extend([tuple(undo)] if undo else [])

    def check_cap(self, cap: int, gpus: Sequence[Gpu]) -> None:
        """Refuse a cap that the GPUs do not support, as far as the driver reports it."""
        rc, out = self.smi(*SUPPORTED)
        low, high = clock_range(gpus, out if rc == 0 else "")
        if (low is not None and cap < low) or (high is not None and cap > high):
            raise GpuError(f"gpu_max_clock_mhz is {cap}. This GPU supports {low or 0} to {high} MHz. Choose a value in this range. Nothing was changed.")

    def verify(self, cap: int | None, persistence: bool) -> None:
        """Read back what was set."""
        for read in range(1, READS + 1):
            gpus = self.gpus()
            off = [gpu for gpu in gpus if persistence and gpu.persistence == "Disabled"]
            fast = [gpu for gpu in gpus if cap and _above(gpu, cap)]
            if not off and not fast:
                break
            if read < READS:
                self.pause(READ_PAUSE)
        if off:
            raise GpuError(f"GPU {off[0].number} reports persistence mode Disabled after `nvidia-smi -pm 1`. Look at `journalctl -u nvidia-persistenced`.")
        if fast:
            raise GpuError(
                f"GPU {fast[0].number} runs at {fast[0].sm_mhz} MHz after `nvidia-smi -lgc 0,{cap}`: the cap has no effect. Choose another value,"
                " or update the driver."
            )
        if cap and any(gpu.sm_mhz is None for gpu in gpus):
            self.notes.append("The driver does not report the SM clock, so the cap was not read back")

    def systemd(self, question: str) -> bool:
        """Return whether the unit is `is-active` or `is-enabled`."""
        return self.node.run(["systemctl", question, "--quiet", UNIT])[0] == 0

    def present(self, gpus: list[Gpu]) -> None:
        """Set both, read them back, then write the unit. What this run has changed is restored if a step fails."""
        cap, persistence = self.params["max_clock_mhz"], self.params["persistence_mode"]
        text = render_unit(persistence, cap)
        if text is None:
            self.absent(gpus)
            return
        if cap:
            self.check_cap(cap, gpus)
        self.edit.require_own(PATH, MARKER)
        now = {gpu.number: gpu.persistence for gpu in gpus}
        before = {**now, **self.record.get("before", {})}
        if before != self.record.get("before"):
            self.edit.save_record(RECORD, {"before": before})
        try:
            self._live(cap, persistence, before, gpus)
            if self.edit.write(PATH, text, f"{PATH} written"):
                self.edit.command("systemctl", "daemon-reload")
            if not (self.systemd("is-enabled") and self.systemd("is-active")):
                self.edit.step(f"{UNIT} enabled and started", "systemctl", "enable", "--now", UNIT)
        except (GpuError, OSError):
            for words in reversed(self.undo):
                self.smi(*words)
            self.edit.save_record(RECORD, self.record)
            raise

    def _live(self, cap: int | None, persistence: bool, before: Mapping[str, str], gpus: Sequence[Gpu]) -> None:
        old = cap_of(self.node.read(PATH) or "")
        off = any(gpu.persistence == "Disabled" for gpu in gpus)
        if persistence and off:
            self.set("GPU persistence mode", "Disabled", "Enabled", ("-pm", "1"), ("-pm", "0"))
        elif not persistence and not off and "Disabled" in before.values():
            self.set("GPU persistence mode", "Enabled", "Disabled", ("-pm", "0"), ("-pm", "1"))
        back = ("-lgc", f"0,{old}") if old else ("-rgc",)
        fast = next((gpu.sm_mhz for gpu in gpus if cap and _above(gpu, cap)), None)
        if cap and (cap != old or fast is not None or not self.systemd("is-active")):
            self.set("GPU clocks", f"{fast} MHz" if fast and cap == old else shown(old), shown(cap), ("-lgc", f"0,{cap}"), back)
        elif old and not cap:
            self.set("GPU clocks", shown(old), shown(None), ("-rgc",), back)
        if not self.edit.check_mode:
            self.verify(cap, persistence)

    def absent(self, gpus: list[Gpu]) -> None:
        """Remove the cap, restore the persistence mode from before the first run, and remove the unit."""
        unit = self.node.read(PATH) or ""
        own = MARKER in unit
        if own and gpus and cap_of(unit):
            self.set("GPU clocks", shown(cap_of(unit)), shown(None), ("-rgc",))
        before = self.record.get("before", {})
        if any(gpu.persistence == "Enabled" and before.get(gpu.number) == "Disabled" for gpu in gpus):
            self.set("GPU persistence mode", "Enabled", "Disabled", ("-pm", "0"))
        if own:
            self.edit.step(f"{UNIT} disabled", "systemctl", "disable", "--now", UNIT)
            self.edit.remove_own(PATH, MARKER)
            self.edit.command("systemctl", "daemon-reload")
        self.edit.save_record(RECORD, {})

    def run(self) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        gpus = self.gpus()
        skipped = ""
        if self.params["state"] == "absent":
            self.absent(gpus)
        elif gpus:
            self.present(gpus)
        else:
            skipped = "nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed"
        if self.edit.changes.messages and gpus and not self.edit.check_mode:
            gpus = self.gpus()
        return {
            **self.edit.changes.result(),
            "notes": self.notes,
            "gpus": [dict(gpu._asdict()) for gpu in gpus],
            "skipped_reason": skipped,
        }


def _above(gpu: Gpu, cap: int) -> bool:
    return gpu.sm_mhz is not None and gpu.sm_mhz > cap + STEP_MHZ


def _last(text: str) -> str:
    return next((line.strip()[:200] for line in reversed(text.splitlines()) if line.strip()), "no output")


def _refusal(text: str) -> str:
    """Return the line that has the reason: after some of them nvidia-smi continues, and its last line is `All done.`"""
    return next((line.strip()[:200].rstrip(".") for line in text.splitlines() if REFUSED.search(line)), _last(text).rstrip("."))
