# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Persistence mode and a cap on the clocks of a node's GPUs: a unit that sets both when it starts and gives both back when it stops.

A GB10 has no power limit (`nvidia-smi -pl` is not supported): its clocks are what can be limited. nvidia-smi does not report a cap. So its replies
and the SM clock afterwards are checked, and the unit, which is active since a start that has succeeded, stands for this boot.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Editor
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError

UNIT = "gb10-gpu-clocks.service"
PATH = f"/etc/systemd/system/{UNIT}"
MARKER = "# Managed by gb10.cluster: gpu_clocks"
QUERY = ("--query-gpu=index,persistence_mode,clocks.sm,clocks.max.sm", "--format=csv,noheader,nounits")
SUPPORTED = ("--query-supported-clocks=graphics", "--format=csv,noheader,nounits")
STEP_MHZ = 15  # the driver rounds a cap to a step of the GPU
READS, READ_PAUSE = 10, 0.5
REFUSED = re.compile(r"not supported|insufficient permissions|unable to|unknown error", re.IGNORECASE)  # nvidia-smi can exit with 0 after these
WAS_DISABLED = "ExecStop=nvidia-smi -pm 0\n"


class Gpu(NamedTuple):
    """One GPU; None for a figure that the driver does not report."""

    number: str
    persistence: str
    sm_mhz: int | None
    max_mhz: int | None

    def above(self, cap: int | None) -> bool:
        """Return whether its clock is above a cap."""
        return cap is not None and self.sm_mhz is not None and self.sm_mhz > cap + STEP_MHZ


def _whole(field: str) -> int | None:
    return int(field) if re.fullmatch(r"[0-9]{1,6}", field) else None  # [N/A], [Not Supported]


def parse_gpus(text: str) -> list[Gpu]:
    """Return the GPUs in the output of nvidia-smi with QUERY. A message of the driver is not a GPU."""
    rows = [[field.strip() for field in line.split(",")] for line in text.splitlines()]
    return [Gpu(row[0], row[1], _whole(row[2]), _whole(row[3])) for row in rows if len(row) == 4 and _whole(row[0]) is not None]


def commands(persistence: bool, cap: int | None) -> list[str]:
    """Return the words of nvidia-smi that set both."""
    return [*(["-pm 1"] if persistence else []), *([f"-lgc 0,{cap}"] if cap else [])]


def render_unit(persistence: bool, cap: int | None, was_disabled: bool) -> str:
    """Return the unit; empty if there is nothing to set. `was_disabled`: the persistence mode before the first run."""
    starts = "".join(f"ExecStart=nvidia-smi {words}\n" for words in commands(persistence, cap))
    stops = ("ExecStop=nvidia-smi -rgc\n" if cap else "") + (WAS_DISABLED if persistence and was_disabled else "")
    return starts and (
        f"{MARKER}\n[Unit]\nDescription=gb10.cluster: persistence mode and clock cap of the GPU\n"
        "After=nvidia-persistenced.service\nBefore=gb10-agent.service\n\n"
        f"[Service]\nType=oneshot\nRemainAfterExit=yes\nTimeoutStartSec=60\nTimeoutStopSec=20\n{starts}{stops}\n[Install]\nWantedBy=multi-user.target\n"
    )


def commands_of(unit: str, when: str) -> list[str]:
    """Return the words of nvidia-smi that a unit runs at its `Start` or `Stop`."""
    return re.findall(rf"(?m)^Exec{when}=nvidia-smi (.+)$", unit)


class GpuClocks:
    """The GPUs of one node. All methods raise HostError and OSError."""

    def __init__(self, edit: Editor, params: Mapping[str, Any], pause: Callable[[float], None] = time.sleep) -> None:
        """Start without a change; `params` are the options of the module gpu_clocks."""
        self.edit = edit
        self.node = edit.node
        self.params = params
        self.pause = pause
        self.notes: list[str] = []

    def smi(self, *words: str) -> tuple[int, str]:
        """Run nvidia-smi, which can hang with its driver, for 20 s at most."""
        rc, out, err = self.node.run(["timeout", "20", "nvidia-smi", *words])
        return rc, out if out.strip() else err

    def gpus(self) -> list[Gpu]:
        """Return the GPUs; empty without nvidia-smi."""
        rc, out = self.smi(*QUERY)
        found = parse_gpus(out)
        if rc != 127 and (rc != 0 or not found):
            why = "did not answer within 20 s" if rc == 124 else f"exited with {rc}: {_last(out)}"
            raise HostError(f"nvidia-smi {why}. Run `nvidia-smi` and `journalctl -k -g NVRM` on the node. Nothing was changed.")
        return found if rc != 127 else []

    def check_cap(self, cap: int, gpus: Sequence[Gpu]) -> None:
        """Refuse a cap that the GPUs do not support, as far as the driver reports it."""
        rc, out = self.smi(*SUPPORTED)
        clocks = [clock for clock in map(_whole, map(str.strip, out.splitlines())) if clock is not None] if rc == 0 else []
        low, high = min(clocks, default=0), min((gpu.max_mhz for gpu in gpus if gpu.max_mhz is not None), default=max(clocks, default=None))
        if cap < low or (high is not None and cap > high):
            raise HostError(f"gpu_max_clock_mhz is {cap}. This GPU supports {low} to {high} MHz. Choose a value in this range. Nothing was changed.")

    def verify(self, cap: int | None, persistence: bool) -> None:
        """Read back what was set. A clock falls within some seconds."""
        for read in range(1, READS + 1):
            gpus = self.gpus()
            off = [gpu for gpu in gpus if persistence and gpu.persistence == "Disabled"]
            fast = [gpu for gpu in gpus if gpu.above(cap)]
            if not off and not fast:
                break
            if read < READS:
                self.pause(READ_PAUSE)
        if off:
            raise HostError(f"GPU {off[0].number} reports persistence mode Disabled after `nvidia-smi -pm 1`. Look at `journalctl -u nvidia-persistenced`.")
        if fast:
            raise HostError(
                f"GPU {fast[0].number} runs at {fast[0].sm_mhz} MHz after `nvidia-smi -lgc 0,{cap}`: the cap has no effect. Choose another value,"
                " or update the driver."
            )

    def active(self) -> bool:
        """Return whether the unit is active and starts at boot."""
        return all(self.node.run(["systemctl", question, "--quiet", UNIT])[0] == 0 for question in ("is-active", "is-enabled"))

    def present(self, gpus: Sequence[Gpu]) -> None:
        """Set both, read them back, then write the unit. If the driver refuses one, all is as before."""
        cap, persistence, old = self.params["max_clock_mhz"], self.params["persistence_mode"], self.node.read(PATH) or ""
        disabled = any(gpu.persistence == "Disabled" for gpu in gpus)
        text = render_unit(persistence, cap, WAS_DISABLED in old or (disabled and not old))
        if not text:
            self.absent()
            return
        self.edit.require_own(PATH, MARKER)
        if cap:
            self.check_cap(cap, gpus)
            self.notes += ["The driver does not report the SM clock, so the cap was not read back"] if any(gpu.sm_mhz is None for gpu in gpus) else []
        if old == text and self.active() and not (persistence and disabled) and not any(gpu.above(cap) for gpu in gpus):
            return
        try:
            for words in commands_of(old, "Stop") if old != text else ():
                self.ask(words)
            for words in commands(persistence, cap):
                self.edit.changes.step(f"nvidia-smi {words}")
                self.ask(words)
            if not self.edit.check_mode:
                self.verify(cap, persistence)
        except HostError:
            for words in [*commands_of(text, "Stop"), *commands_of(old, "Start")]:
                self.smi(*words.split())
            raise
        if self.edit.write(PATH, text, f"{PATH} written"):
            self.edit.command("systemctl", "daemon-reload")
        self.edit.command("systemctl", "enable", "--no-reload", UNIT)
        self.edit.step(f"{UNIT} enabled and started", "systemctl", "restart", UNIT)

    def ask(self, words: str) -> None:
        """Run a command of the unit, which has no reply: nvidia-smi can refuse it and exit with 0."""
        rc, out = (0, "") if self.edit.check_mode else self.smi(*words.split())
        if rc != 0 or REFUSED.search(out):
            raise HostError(f"The driver refuses `nvidia-smi {words}` (exit code {rc}): {_refusal(out)}. Change the option, or update the driver.")

    def absent(self) -> None:
        """Stop the unit, which gives back what it has set, and remove it."""
        if MARKER in (self.node.read(PATH) or ""):
            self.edit.step(f"{UNIT} stopped and disabled", "systemctl", "disable", "--now", UNIT)
            self.edit.remove_own(PATH, MARKER)
            self.edit.command("systemctl", "daemon-reload")

    def run(self) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        if self.params["state"] == "absent":
            self.absent()
        else:
            gpus = self.gpus()
            if gpus:
                self.present(gpus)
            else:
                self.notes.append("nvidia-smi is not installed on this node: neither persistence mode nor clocks were changed")
        return {**self.edit.changes.result(), "shown": self.notes}


def _last(text: str) -> str:
    return next((line.strip()[:200] for line in reversed(text.splitlines()) if line.strip()), "no output")


def _refusal(text: str) -> str:
    """Return the line that has the reason: after some of them nvidia-smi continues, and its last line is `All done.`"""
    return next((line.strip()[:200].rstrip(".") for line in text.splitlines() if REFUSED.search(line)), _last(text).rstrip("."))
