# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommands of `gb10` that change the group."""

from __future__ import annotations

import argparse
import contextlib
import time
from collections.abc import Callable, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._node.release import runs
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.group import DIFFERS, LONGEST_CALL, CommandError, Group, complain, person, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import looks

POLL_SECONDS = 25.0  # of one long poll
RETRIES = 30  # how often an agent that restarts is asked again


def stop(group: Group, options: argparse.Namespace) -> int:
    """Stop the group, or only this rank."""
    if group.rank and options.here:
        return _stop_here(group)
    if group.rank:
        raise CommandError(
            f"{group.host} is rank {group.rank} of {group.name}. Run `gb10 stop` on the head {group.hosts[0]}, or `gb10 stop --here` if the head is down."
        )
    return _desire(group, options, "stopped", "", {}, [f"gb10 stop on {group.host}"])  # reads nothing first: a stop does not depend on it


def _stop_here(group: Group) -> int:
    result = group.call("stop_here", LONGEST_CALL, by=person())
    left = ", ".join(result.get("left") or [])
    if result.get("note"):
        complain(result["note"])
    if left:
        complain(f"{group.host}: {left} still runs.")
        return DIFFERS
    show(f"{group.host}: rank {group.rank} of {group.name} is stopped. The head does not start it again until a start is requested.")
    return 0


def start(group: Group, options: argparse.Namespace) -> int:
    """Start the release that was desired last, or the current one if that has failed. A pair that runs it is left alone."""
    group.need_head("start")
    state = group.call("state")
    desired, failed = state["desired"], state["outcome"].get("result") == "failed"
    seen = list(looks(group))
    current = str((seen[0][2] or {}).get("current") or "")
    release = str((current if failed and current else desired.get("release")) or current)
    if not release:
        raise CommandError(f"{group.name} has no release on {group.host}. Run site.yml.")
    all_run = all(runs(look, release) for _number, _host, look, _problem in seen)
    reasons = [] if all_run else [f"gb10 start on {group.host}"]
    return _desire(group, options, "serving", release, dict(desired.get("options") or {}), reasons)


def _desire(group: Group, options: argparse.Namespace, state: str, release: str, settings: dict[str, Any], reasons: Sequence[str]) -> int:
    reply = group.call("desire", state=state, release=release, by=person(), reasons=list(reasons), options=settings, takeover=options.takeover)
    generation = int(reply["generation"])
    now = group.call("state") if reply.get("joined") else {}
    if now and not standing.converges(now) and now["outcome"].get("result") in ("serves", "stopped"):
        at = (now.get("watch") or {}).get("serving_since")
        show(f"{group.name} {f'serves release {release}' if state == 'serving' else 'is stopped'} already{f', since {at}' if at else ''}.")
        return 0
    show(f"{group.name}: generation {generation}{' is under way already' if now else ''}.")
    return settle(group, state, release, generation)[0] if options.wait else 0


def settle(group: Group, state: str, release: str, generation: int, tell: Callable[[str], None] = show) -> tuple[int, dict[str, Any]]:
    """Follow a generation until it is settled, telling what happens. Return the exit code, after a complaint if it is not 0, and the outcome."""
    last = _followed(group, generation, tell)
    outcome, desired = last["outcome"], last["desired"]
    if not _covers(desired, generation):
        complain(f"Another state is desired now: generation {desired.get('generation')}, by {desired.get('by') or 'another process'}.")
        return DIFFERS, outcome
    expected = "serves" if state == "serving" else "stopped"
    good = outcome.get("result") == expected and (state == "stopped" or outcome.get("release") == release)
    (tell if good else complain)(outcome.get("sentence") or f"{group.name}: {outcome.get('result')}.")
    with contextlib.suppress(AgentMissing):  # the outcome is known here; without this site.yml prints it once more
        group.call("acknowledge", generation=int(desired["generation"]))
    return 0 if good else DIFFERS, outcome


def _covers(desired: dict[str, Any], generation: int) -> bool:
    """Whether a generation is still the desired one; the actor may have renumbered it."""
    return generation in (desired.get("generation"), *(desired.get("replaces") or ()))


def _followed(group: Group, generation: int, tell: Callable[[str], None]) -> dict[str, Any]:
    """Tell events of a generation until it is final or another one is desired. Return the last reply."""
    missing = since = 0
    while True:
        try:
            reply = group.call("events", POLL_SECONDS + protocol.TIMEOUT, since=since, wait=POLL_SECONDS, generation=generation)
        except AgentMissing:
            missing += 1
            if missing > RETRIES:
                raise
            time.sleep(1)
            continue
        missing, since = 0, int(reply["next"])
        for event in reply["events"]:
            tell(standing.event_line(event))
        outcome, desired = reply["outcome"], reply["desired"]
        if not _covers(desired, generation) or (outcome.get("final") and outcome.get("generation") == desired.get("generation")):
            return reply
