# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: where a log begins a new boot: a container that restarts keeps one log."""

from __future__ import annotations

import re

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Plan
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import BANNER, ENGINE, STAGE_NUMBER

_ARGPARSE = re.compile(r"vllm(?: [\w-]{1,20})?: error: ")


class Starts:
    """Finds the first line of each boot."""

    def __init__(self) -> None:
        self._pids: dict[str, set[str]] = {}
        self._usage = 0

    def over(self, boot: Boot) -> None:
        """Remember the process ids of a boot that has ended."""
        for name, pid in boot.pids.items():
            if len(self._pids) < 64:
                seen = self._pids.setdefault(name, set())
                if len(seen) > 64:
                    seen.clear()
                seen.add(pid)

    def at(self, boot: Boot, line: Line, plan: Plan, number: int) -> bool:
        """Return whether a line begins a new boot."""
        changed = False
        if line.procs:
            known = boot.pids.get(line.procs[0][0])
            changed = known is not None and known != line.procs[0][1]
        if not changed and not plan.boundary:
            return False
        if line.foreign or (line.file and line.is_request):
            return False
        over = boot.ready is not None or boot.stopped is not None or bool(boot.failures)
        if changed and self._new_process(boot, line, over):
            return True
        if not over and _of_other_rank(boot, line):
            return False
        message = line.message
        if _is_banner(boot, line, over):
            return True
        if ("headless" in boot.facts_ or boot.ready is not None) and message.startswith(("Resolved architecture: ", "Using max model len ")):
            # a headless rank says this before it launches, any other before it serves: after that it is the next boot, which has no banner
            return line.level == "INFO" and (not line.procs or line.procs[0][0] == "MainProcess")
        settled = over or boot.stage >= STAGE_NUMBER["kv"]
        # each child of one boot detects the platform: after an error that an optional import can leave, it is no restart
        if settled and boot.stage < STAGE_NUMBER["kv"] and boot.ready is None and boot.stopped is None and not boot.death:
            settled = any(f.classifier.kind != "weak" for f in boot.failures.values()) or not message.startswith("Automatically detected")
        if not settled or line.procs:
            return False
        if line.level == "INFO":
            return message.startswith("Automatically detected platform")
        return line.level is None and self._bare(boot, message, number)

    def _new_process(self, boot: Boot, line: Line, over: bool) -> bool:
        """Return whether the process id of a main process changed because of a restart."""
        name, pid, _ip = line.procs[0]
        if pid in self._pids.get(name, ()):
            return False
        if name == "MainProcess":
            return over or boot.stage > STAGE_NUMBER["config"]
        return (name == "APIServer" or name.startswith("EngineCore")) and (over or boot.stage > STAGE_NUMBER["args"])

    def _bare(self, boot: Boot, message: str, number: int) -> bool:
        """Return whether a line without level and process begins a boot: a container's greeting, or argparse's usage."""
        if not boot.frozen or boot.stopped is not None or boot.death:
            if message.startswith(("== CUDA ==", "== vLLM ==", "== PyTorch ==")):
                return True
            if message.startswith("usage: vllm") and (boot.ready is not None or boot.stopped is not None or "bad_argument" in boot.failures):
                return True
        if boot.frozen:
            # a served boot, then argparse's usage and its error: a restart; either line alone may be a prompt
            if message.startswith("usage: vllm"):
                self._usage = number
            elif self._usage > 0 and number - self._usage <= 12 and _ARGPARSE.match(message) is not None:
                self._usage = 0
                return True
        return False


def _is_banner(boot: Boot, line: Line, over: bool) -> bool:
    """Return whether a line is one that vLLM prints once a boot, and the boot is already further."""
    message = line.message
    # a record without a fact, say of chunked prefill, can stand before the banner
    configured = boot.stage > STAGE_NUMBER["config"] or (boot.stage == STAGE_NUMBER["config"] and bool(boot.facts_))
    later = over or configured or ("args" in boot.lines and not (line.procs and line.procs[0][0].startswith("ApiServer_")))
    if not later or (boot.frozen and line.level is None and not line.procs):
        return False
    if message.startswith("vLLM API server version ") or ("version " in message and BANNER.match(message) is not None):
        return True
    if message.startswith("non-default args: ") and "args" in boot.lines and line.level == "INFO":
        return True  # the banner can be switched off
    if message.startswith("Launching vLLM (v") and (over or boot.stage > STAGE_NUMBER["config"]):
        return True
    if not message.startswith("Initializing a") or ENGINE.match(message) is None:
        return False
    if boot.ready is not None or boot.stopped is not None:
        return True
    # a script that makes one engine after another; the engines of one boot name their processes
    dead = boot.death or any(f.classifier.kind == "strong" for f in boot.failures.values())
    return not line.procs and bool(dead or boot.stage >= STAGE_NUMBER["kv"])


def _of_other_rank(boot: Boot, line: Line) -> bool:
    """Return whether the main process of the other rank printed a line, where both ranks are in one log: a headless rank has no API server."""
    name = line.procs[0][0] if line.procs else ""
    if name == "APIServer":
        if name in boot.pids:
            return False
        # what serves calls its main process APIServer
        alone = "MainProcess" in boot.pids and not any(p.startswith("EngineCore") for p in boot.pids)
        return alone or "headless" in boot.facts_ or boot.args.get("headless") is True
    message = line.message
    if name not in ("", "MainProcess") or "APIServer" not in boot.pids:
        return False
    first = ("non-default args: ", "Launching vLLM (v", "Resolved architecture: ", "Using max model len ")
    return message.startswith(first) or BANNER.match(message) is not None
