# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: what the state of a container adds to the facts of its log, since an out-of-memory kill and a SIGKILL leave no line."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Failure, built_in_class
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line


def with_container(facts: dict[str, Any], container: dict[str, Any]) -> dict[str, Any]:
    """Return the facts of a boot log with the container's state in them.

    facts: what `BootLog.facts` returned. container: `running` (bool), `exit_code` (int or None), `oom_killed` (bool), `name`.
    A kill that the log does not explain becomes class `oom_killed`; one that followed a shutdown in the log does not.
    """
    out = dict(facts)
    out["container"] = container
    killed = container.get("exit_code") == 137 and not container.get("running") and facts.get("stopped") is None
    failure = facts.get("failure")
    if not (container.get("oom_killed") or killed) or (failure is not None and failure.get("kind") != "tail"):
        return out
    how = "OOMKilled" if container.get("oom_killed") else "exit code 137 (SIGKILL)"
    served = facts.get("ready") is not None
    out["failure"] = {
        **Failure(built_in_class("oom_killed"), Line(None, False, "", "", (), ""), 0, {}, served, 0).facts(None),
        "line": f"state of container {container.get('name')}: {how}",
        "line_number": None,
        "confirmed": bool(container.get("oom_killed")),
        "also": [failure["class"], *failure.get("also", [])] if failure is not None else [],
    }
    out["suspicion"] = None
    out["state"] = "served_then_failed" if served else "failed"
    out["boots"] = [*facts.get("boots", [])[:-1], {k: v for k, v in out.items() if k not in ("boots", "container", "restarts", "bytes_read", "lines_read")}]
    return out
