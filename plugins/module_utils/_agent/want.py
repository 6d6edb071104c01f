# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. `gb10 want`: a run states what its group must do. The agent starts, judges and stops by itself."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import client, standing
from ansible_collections.gb10.cluster.plugins.module_utils._agent.group import CommandError, Group, show
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads

SECONDS = 30.0
#: The request on standard input: `state` serving or stopped; `reasons` for a start of what serves already; `seen`, the generation in which they were found.
NOTHING: dict[str, Any] = {"state": "serving", "release": "", "by": "", "reasons": [], "options": {}, "takeover": False, "seen": 0}


def want(group: Group, options: argparse.Namespace) -> int:
    """State what standard input has as JSON, and print what has changed; with --check, what would."""
    wanted = {**NOTHING, **loads(sys.stdin.read())}
    if wanted["state"] == "serving" and not wanted["release"]:
        raise CommandError("A state serving needs a release.")
    show(json.dumps(desire(wanted, options.check, group.call)))
    return 0


def desire(wanted: Mapping[str, Any], check: bool, call: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    """Set the desired state. Raises what `call` does. A stop does not depend on what can be read, and a check needs no agent."""

    def read() -> dict[str, Any]:
        try:
            return call("state", timeout=SECONDS)
        except (client.AgentMissing, CommandError):
            if not check:
                raise
        except RankError:
            if check or wanted["state"] != "stopped":
                raise
        return {}

    before = read()
    now = dict(before.get("desired") or {})
    if check:
        joined = standing.joins(before, wanted["state"], wanted["release"], wanted["reasons"])
        generation = int(now.get("generation", 0))
        adjusted = standing.differences(now.get("options") or {}, wanted["options"]) if joined and wanted["options"] else []
    else:
        reply = call("desire", timeout=SECONDS, **{key: wanted[key] for key in NOTHING})
        joined, generation, adjusted = bool(reply["joined"]), int(reply["generation"]), list(reply.get("adjusted") or [])
    was = _line(now)
    options = "".join(f"{phrase}\n" for phrase in adjusted)
    after = was + options if joined else _line(wanted) + "".join(f"because {reason}\n" for reason in wanted["reasons"])
    header = f"desired state, generation {generation}"
    return {
        "changed": not joined or bool(adjusted), "generation": generation, "joined": joined,
        "diff": {"before": was, "after": after, "before_header": header, "after_header": header},
    }  # fmt: skip


def _line(desired: Mapping[str, Any]) -> str:
    """Return a desired state as one line of a diff."""
    state = desired.get("state") or ""
    return "" if not state else "stopped\n" if state == "stopped" else f"serving {desired.get('release')}\n"
