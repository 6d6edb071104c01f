# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Checks of the agents that are installed: the services, and the path from the head to the workers.

What the vllm_tp2 role of the same run repairs is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._preflight.findings import FindingCollector, Rank, Requirements

_SERVE = "run site.yml with --tags vllm_tp2"
# text of a failed call from the head to a worker -> remedy; the first match counts
_PATH: tuple[tuple[str, str], ...] = (
    (
        r"host key|host identification",
        f"if the node was installed again, {_SERVE}, which pins its present host key; otherwise find out which host answers at this address",
    ),
    (r"permission denied", f"change the setting of sshd on {{host}} that agent_sshd reports; if it reports none, {_SERVE}, which writes the head's key again"),
    (r"connect(?:ion)? (?:failed|lost): ", f"`systemctl start gb10-agent` on {{host}}, or {_SERVE}"),
    (r"connection refused", f"`systemctl start ssh` on {{host}}; if sshd has another port now, {_SERVE}"),
    (
        # "failure" follows a bind address that the head does not have.
        r"no route|unreachable|timed out|no reply within|timeout, server|cannot assign|port \d+: failure",
        "test the rail with `ping {address}` on the head, and run site.yml with --tags roce",
    ),
    (r"", f"{_SERVE}; `gb10 call peers` on the head repeats the test, and `journalctl -u ssh` on {{host}} has the reason of the other end"),
)


def path_remedy(error: str, host: str, address: str) -> str:
    """Return what to do if the head cannot reach a worker, by the text of the failure."""
    remedy = next(text for pattern, text in _PATH if re.search(pattern, error, re.IGNORECASE))
    return remedy.format(host=host, address=address)


def _agent_of(rank: Rank, needs: Requirements) -> Mapping[str, Any]:
    """Return the facts of this group's agent; empty if none is installed, or one of another group or rank, which the role replaces."""
    agent: Mapping[str, Any] = rank.facts.get("agent") or {}
    return agent if agent.get("installed") and (agent["group"], agent["rank"]) == (needs.group, rank.rank) else {}


def check_service(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Whether an installed agent answers."""
    agent = _agent_of(rank, needs)
    if not agent or agent["active"]:
        return
    if agent["active"] is None:
        found.skip(["agent_down", "agent_path", "agent_sshd"], rank.host, agent["error"])
    else:
        found.add("agent_down", "warning", rank.host, f"gb10-agent.service does not answer ({agent['error']})")


def check_sshd(found: FindingCollector, rank: Rank, needs: Requirements) -> None:
    """Settings of sshd on a worker that keep the head's key from working."""
    for problem in _agent_of(rank, needs).get("sshd_problems", ()):
        end = problem.rfind("). ") + 1 or problem.rfind(". ")  # the last sentence is the remedy
        found.add("agent_sshd", "error", rank.host, problem[:end], remedy=problem[end + 2 :])


def check_path(found: FindingCollector, ranks: Sequence[Rank], needs: Requirements) -> None:
    """The call from the head to each worker over the rail."""
    agents = {rank.host: _agent_of(rank, needs) for rank in ranks}
    for rank in ranks:
        for peer in agents[rank.host].get("peers", ()):
            host, address = str(peer["host"]), str(peer["address"])
            known = agents.get(host)
            # A worker that answered and has no such agent gets it in this run; a service that is down has its own finding.
            if peer["ok"] or known == {} or (known and known["active"] is False):
                continue
            text = f"the agent on {rank.host} cannot reach {host} ({address}) over the rail: {peer['error'].rstrip('.')}"
            found.add("agent_path", "warning", [rank.host, host], text, remedy=path_remedy(str(peer["error"]), host, address))
