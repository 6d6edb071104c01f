# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: where a log begins a new boot: a container that restarts keeps one log."""

from __future__ import annotations

import re

from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.classes import Plan
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.patterns import BANNER, ENGINE, STAGE_NUMBER
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.peel import Line

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
        if changed:
            name, pid, _ip = line.procs[0]
            if pid not in self._pids.get(name, ()):
                if name.startswith("EngineCore") and (boot.stage > STAGE_NUMBER["args"] or over):
                    return True
                if name == "APIServer" and (boot.stage > STAGE_NUMBER["args"] or over):
                    return True
                if name == "MainProcess" and (boot.stage > STAGE_NUMBER["config"] or over):
                    return True
        message = line.message
        if not over and _of_other_rank(boot, line):
            return False
        # a record without a fact, say of chunked prefill, can stand before the banner
        configured = boot.stage > STAGE_NUMBER["config"] or (boot.stage == STAGE_NUMBER["config"] and bool(boot.facts_))
        later = over or configured or ("args" in boot.lines and not (line.procs and line.procs[0][0].startswith("ApiServer_")))
        levelled = line.level is not None or bool(line.procs)
        if later and (levelled or not boot.frozen):
            if message.startswith("vLLM API server version ") or ("version " in message and BANNER.match(message) is not None):
                return True
            if message.startswith("non-default args: ") and "args" in boot.lines and line.level == "INFO":
                return True  # the banner can be switched off
            if message.startswith("Launching vLLM (v") and (over or boot.stage > STAGE_NUMBER["config"]):
                return True
            if message.startswith("Initializing a") and ENGINE.match(message) is not None:
                if boot.ready is not None or boot.stopped is not None:
                    return True
                # a script that makes one engine after another; the engines of one boot name their processes
                dead = boot.death or any(f.classifier.kind == "strong" for f in boot.failures.values())
                if not line.procs and (dead or boot.stage >= STAGE_NUMBER["kv"]):
                    return True
        if ("headless" in boot.facts_ or boot.ready is not None) and message.startswith(("Resolved architecture: ", "Using max model len ")):
            # a headless rank says this before it launches, any other before it serves: after that it is the next boot, which has no banner
            return line.level == "INFO" and (not line.procs or line.procs[0][0] == "MainProcess")
        settled = over or boot.stage >= STAGE_NUMBER["kv"]
        # each child of one boot detects the platform: after an error that an optional import can leave, it is no restart
        if settled and boot.stage < STAGE_NUMBER["kv"] and boot.ready is None and boot.stopped is None and not boot.death:
            settled = any(f.classifier.kind != "weak" for f in boot.failures.values()) or not message.startswith("Automatically detected")
        if settled and not line.procs:
            if line.level == "INFO" and message.startswith("Automatically detected platform"):
                return True
            if line.level is None and (not boot.frozen or boot.stopped is not None or boot.death):
                if message.startswith(("== CUDA ==", "== vLLM ==", "== PyTorch ==")):
                    return True
                if message.startswith("usage: vllm") and (boot.ready is not None or boot.stopped is not None or "bad_argument" in boot.failures):
                    return True
            if line.level is None and boot.frozen:
                # a served boot, then argparse's usage and its error: a restart; either line alone may be a prompt
                if message.startswith("usage: vllm"):
                    self._usage = number
                elif self._usage > 0 and number - self._usage <= 12 and _ARGPARSE.match(message) is not None:
                    self._usage = 0
                    return True
        return False


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
