# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: where a log begins a new boot: a container that restarts keeps one log."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import ENGINE, STAGE_NUMBER


def begins(boot: Boot, line: Line) -> bool:
    """Return whether a line is the first one of the boot after this one."""
    if line.foreign or line.is_request:
        return False
    over = boot.ready is not None or boot.stopped is not None or bool(boot.failures)
    if _is_banner(boot, line, over):
        return True
    message = line.message
    if message.startswith(("Resolved architecture: ", "Using max model len ")):
        # a headless rank prints this before it launches, any other before it serves: after that it is the next boot, which has no banner
        main = line.level == "INFO" and (not line.procs or line.procs[0][0] == "MainProcess")
        return main and ("headless" in boot.facts_ or boot.ready is not None)
    # each child of one boot detects the platform: after an error that an optional import can leave, it is not a restart
    ended = boot.ready is not None or boot.stopped is not None or boot.died or any(f.classifier.kind != "weak" for f in boot.failures.values())
    settled = ended or boot.stage >= STAGE_NUMBER["kv"]
    return settled and not line.procs and line.level == "INFO" and message.startswith("Automatically detected platform")


def _is_banner(boot: Boot, line: Line, over: bool) -> bool:
    """Return whether a line is one that vLLM prints once a boot, and the boot is already further."""
    message = line.message
    # a record without a fact, for example of chunked prefill, can stand before the banner
    configured = boot.stage > STAGE_NUMBER["config"] or (boot.stage == STAGE_NUMBER["config"] and bool(boot.facts_))
    later = over or configured or ("args" in boot.lines and not (line.procs and line.procs[0][0].startswith("ApiServer_")))
    if not later or (boot.frozen and line.level is None and not line.procs):
        return False
    if message.startswith("vLLM API server version ") or message.lstrip("▀▄█▌▐▝▘ ").startswith("version "):
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
    dead = boot.died or any(f.classifier.kind == "strong" for f in boot.failures.values())
    return not line.procs and (dead or boot.stage >= STAGE_NUMBER["kv"])
