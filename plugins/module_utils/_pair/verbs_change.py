# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10` that change the group, and `gb10 rollback`, which returns to the current release if the boot of another fails."""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._node import group_state, node, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import disobeys
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import kept, last_good, runs, start_reasons
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, standing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, LONGEST_CALL, CommandError, Group, answer, complain, person, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import ask, looks

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


# --- The subcommand `gb10 rollback`: go to a kept release. If its boot fails, the agent returns to the one that was current.

Look = Mapping[str, Any]


class Plan(NamedTuple):
    """The way from the current release to another one."""

    current: str
    release: str
    back: bool  # whether that is the current one because it was rolled back to before
    left: str  # the release that it is compared with
    weights: Mapping[str, Any]  # those that are in use on the head


OTHER = "gb10 rollback ID, or -e rollback_release=ID"


def chosen(looks: Sequence[Look], named: str, last: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the release to go to, empty if there is none, and whether it is the current one because it was rolled back to before.

    `named` is the release that was asked for, empty for the last good one. `last` is the record of the last rollback: without it, a second run of the
    same command would return to the release that the first one left.
    """
    current = str(looks[0]["current"])
    back = not named and current != "" and last.get("to") == current
    return (current if back else named or last_good(looks, current)), back


def not_kept(group: str, looks: Sequence[Look], release: str) -> str:
    """Return the sentence that refuses a release which a rank does not keep; empty if all of them keep it."""
    if release and all(kept(look, release) for look in looks):
        return ""
    what = f"the release {release} is not kept on all ranks" if release else "there is no earlier release that passed its gate and that all ranks keep"
    way = f"Give one of the releases above: {OTHER}." if looks[0]["releases"] else "Run site.yml."
    return f"{group}: {what}, and nothing was stopped. {way}"


def unusable(hosts: Sequence[str], looks: Sequence[Look], release: str, weights: Mapping[str, Any]) -> str:
    """Return why ranks cannot start a release that they keep, as sentences; empty if they can. `looks` were asked for it, `weights` are those in use."""
    from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import lacking

    out = []
    for host, look in zip(hosts, looks):
        found = kept(look, release)
        image = found.get("image") or {}
        lacks = lacking(look, weights)
        if image.get("gone"):
            out.append(
                f"{host}: the image {image['reference'] or image['id'][:19]} of release {release} is not on this node any more, and nothing was stopped:"
                f" get it with playbooks/build.yml and gb10_profile={found['profile']}, or give another release."
            )
        elif lacks:
            way = "Run site.yml, which restores weights and the API key, or give another release."
            out.append(f"{host}: release {release} cannot be started: {'; '.join(lacks)}. Nothing was stopped. {way}")
    return " ".join(out)


def difference(folder: str, old: str, new: str) -> list[str]:
    """Return how the Compose files of two releases differ, without their names; none if one is not kept."""
    texts = [releases.found_files(os.path.join(folder, "releases", each, releases.COMPOSE))[0] if each else None for each in (old, new)]
    if texts[0] is None or texts[1] is None:
        return []
    lines = list(difflib.unified_diff(texts[0].splitlines(), texts[1].splitlines(), n=1, lineterm=""))[2:]
    return [line for line in lines if not line.startswith("@@") and "cluster.release" not in line]


def sentence(found: Mapping[str, Any], decision: Mapping[str, Any], how: str, back: bool) -> str:
    """Return what a rollback does, without a period. `how` is would go, goes or went."""
    to = f"{found['to']}, profile {found['profile']}"
    if decision["do"] == "nothing":
        again = f": it was rolled back to it before. To go to another one: {OTHER}" if back else ""
        return f"{found['group']} serves release {to}, and nothing was changed{again}"
    if decision["do"] == "follow":
        return f"{found['group']} {'goes' if how == 'would go' else how} to release {to}: {decision['text']}"
    return f"{found['group']} {how} from release {found['from'] or 'none'} to {to}"


def _read(group: Group, verb: str, **arguments: Any) -> list[dict[str, Any]]:
    """Return what all ranks answer. Raises CommandError if one does not, or its engine cannot be asked."""
    found, wrong = [], []
    for _number, host, result, problem in ask(group, verb, **arguments):
        problem = problem or str((result or {}).get("engine_error") or "")
        wrong += [f"{host}: {problem.rstrip('.')}. Nothing was stopped."] if problem else []
        found.append(result or {})
    if wrong:
        raise CommandError(" ".join(wrong))
    return found


def _listed(group: Group, options: argparse.Namespace, current: str) -> None:
    found = group_state.kept_document({"current": current, "releases": node.releases_in(group.folder)}, group.name, group.host)
    answer(options, found, group_state.kept_lines(found))


def rollback(group: Group, options: argparse.Namespace) -> int:
    """Go to a kept release, or list them."""
    group.need_head("rollback")
    current = node.current_of(group.folder)
    if options.list:
        _listed(group, options, current)
        return 0
    if group.strange:
        raise CommandError(f"{group.name} cannot be rolled back, and nothing was stopped. {group.host}: {group.strange}")
    strangers = [disobeys(hello, group.name, str(group.config["head_id"])) for hello in _read(group, "hello")]
    if any(strangers):
        raise CommandError(f"{group.name}: {' '.join(filter(None, strangers))} Nothing was stopped.")
    looks = _read(group, "look", release=current, free_share=0.0)
    weights, last = looks[0].get("weights") or {}, node.read_json(os.path.join(group.folder, releases.ROLLBACK))
    release, back = chosen(looks, options.release, last)
    refused = not_kept(group.name, looks, release)
    if refused:
        _listed(group, options, current)
        complain(refused)
        return 1
    looks = _read(group, "look", release=release, free_share=0.0)
    refused = unusable(group.hosts, looks, release, weights)
    if refused:
        raise CommandError(refused)
    left = str(last.get("from") or "") if last.get("to") == current == release else current
    return _go(group, options, looks, Plan(current, release, back, left, weights))


def _go(group: Group, options: argparse.Namespace, looks: Sequence[Look], plan: Plan) -> int:
    """Start the release if the group does not serve it, and report."""
    where = (f"rank {number} on {host}" for number, host in enumerate(group.hosts))
    reasons = dict.fromkeys(reason for look, place in zip(looks, where) for reason in start_reasons(look, plan.release, place))
    state = group.call("state")
    settings = {name: value for name, value in (state["desired"].get("options") or {}).items() if name not in standing.OF_A_START}
    decision = standing.decide(state, plan.release, list(reasons), group.name, takeover=options.takeover, again=options.again, options=settings)
    if decision["do"] == "refuse":
        raise CommandError(decision["text"])
    found = {
        "schema": "gb10.cluster/rollback/1", "group": group.name, "changed": decision["do"] == "start", "from": plan.current, "to": plan.release,
        "profile": str((looks[0].get("manifest") or {}).get("profile") or ""), "unserved_seconds": 0, "generation": 0,
        "difference": difference(group.folder, plan.left, plan.release),
    }  # fmt: skip
    how, seconds = "would go" if options.check else "goes", ""
    if decision["do"] != "nothing" and not options.check:
        generation = found["generation"] = int(decision["generation"])
        if decision["do"] == "start":
            moved = {"from": plan.current, "to": plan.release} if plan.current != plan.release else {}
            generation = found["generation"] = int(
                group.call(
                    "desire", state="serving", release=plan.release, by=options.by or person(), reasons=decision["reasons"],
                    options={**settings, "weights": plan.weights, "rolled_back": moved}, takeover=options.takeover,
                    seen=int(state["desired"].get("generation") or 0),
                )["generation"]
            )  # fmt: skip
        tell: Callable[[str], None] = (lambda _text: None) if options.json else show
        tell(f"{group.name}: generation {generation}.")
        if options.wait:
            code, outcome = settle(group, "serving", plan.release, generation, tell)
            if code:
                return code
            found["unserved_seconds"], how = round(float(outcome.get("unserved_seconds") or 0.0)), "went"
            seconds = f", {found['unserved_seconds']} s without service"
    found["sentence"] = sentence(found, decision, how, plan.back) + seconds
    answer(options, found, group_state.rollback_lines(found))
    return 0
