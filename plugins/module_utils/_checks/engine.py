# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Checks of the agents, the way from the head to the workers, and whether the group serves; of the last boot, and of how nodes, release and inventory differ.

What the vllm_tp2 role of the same run repairs is a warning.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import DOCKER, GROUP, HEAD, RANK, SERVE, SYSCTL, Event, Group, Rank, check, skip
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import ERROR, INFO, WARNING, found
from ansible_collections.gb10.cluster.plugins.module_utils._node import releases

_SERVE = "run site.yml with --tags vllm_tp2"
_PATH = "the agent on the head starts, judges and stops the ranks over this path"
# text of a failed call from the head to a worker -> remedy; the first match counts
_REMEDIES: tuple[tuple[str, str], ...] = (
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


def _agent_of(rank: Rank, group: Group) -> Mapping[str, Any]:
    """Return the facts of this group's agent; empty if none is installed, or one of another group or rank, which the role replaces."""
    agent: Mapping[str, Any] = rank.facts.get("agent") or {}
    return agent if agent.get("installed") and (agent["group"], agent["rank"]) == (group.name, rank.number) else {}


@check(
    "api_open", "engine", WARNING, "every host that reaches the node can use the model and its memory",
    "remove vllm_tp2_api_open, and the first run makes a key. Or set engine.api.host to 127.0.0.1 in the profile", SERVE, HEAD)  # fmt: skip
def api_open(_head: Rank, group: Group) -> Iterator[Event]:
    """an API without a key (`vllm_tp2_api_open`) on all addresses of the head"""
    if group.needs.open_port:
        yield found(f"the API has no key and listens on port {group.needs.open_port} of all addresses (vllm_tp2_api_open)")


@check(
    "agent_down", "engine", WARNING, "without the agent the group is not watched, and nothing starts it again after a fault",
    "`systemctl start gb10-agent` on the node, or run site.yml with --tags vllm_tp2; `journalctl -u gb10-agent -n 50` shows why it ended",
    "{on} sudo systemctl start gb10-agent")  # fmt: skip
def agent_down(rank: Rank, group: Group) -> Iterator[Event]:
    """an agent that is installed and does not answer"""
    agent = _agent_of(rank, group)
    if not agent or agent["active"]:
        return
    if agent["active"] is None:
        for name in ("agent_down", "agent_path", "agent_sshd"):
            yield skip(agent["error"], name)
    else:
        yield found(f"gb10-agent.service does not answer ({agent['error']})")


@check("agent_path", "engine", WARNING, _PATH, command="{head} sudo gb10 call peers", of=HEAD)
def agent_path(head: Rank, group: Group) -> Iterator[Event]:
    """the agent on the head calls each worker over the rail: changed host keys, refused logins, a rail that carries nothing"""
    agents = {rank.host: _agent_of(rank, group) for rank in group.read}
    for peer in agents[head.host].get("peers", ()):
        host, address, error = str(peer["host"]), str(peer["address"]), str(peer["error"])
        known = agents.get(host)
        # A worker that answered and has no such agent gets it in this run; a service that is down has its own finding.
        if peer["ok"] or known == {} or (known and known["active"] is False):
            continue
        remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, error, re.IGNORECASE)), "").format(host=host, address=address)
        if known is None:  # site.yml is refused without this node
            remedy = f"let {host} answer first. If the rail stays silent then, test it with `ping {address}` on the head"
        yield found(f"the agent on {head.host} cannot reach {host} ({address}) over the rail: {error}", remedy, hosts=[head.host, host])


@check("agent_sshd", "engine", ERROR, _PATH, command="{on} sudo sshd -T")
def agent_sshd(rank: Rank, group: Group) -> Iterator[Event]:
    """`sshd -T -C` on the workers: settings that keep the head's key from working"""
    for problem in _agent_of(rank, group).get("sshd_problems", ()):
        end = problem.rfind("). ") + 1 or problem.rfind(". ")  # the last sentence is the remedy
        yield found(problem[:end], problem[end + 2 :])


_NO_SERVICE = "the group has no service until it is started again"


@check(
    "engine_down", "engine", ERROR, _NO_SERVICE, command="{site}", of=GROUP,
    looks="a rank's container or engine process is gone, stopped or dead, or the API answers with an error")  # fmt: skip
@check(
    "engine_recovering", "engine", ERROR, "the group has no service until its agent has restarted it; wait for it", command="{head} sudo gb10 events",
    of=GROUP, looks="the group does not serve, and its agent restarts it")  # fmt: skip
@check(
    "engine_wedged", "engine", ERROR, "no request ends, although container and /health look good", command="{site}", of=GROUP,
    looks="no completion comes back, tokens stand still, and the GPU is at idle power")  # fmt: skip
@check("engine_unserved", "engine", ERROR, "clients get no reply", command="{play}logs{end}", of=GROUP, looks="no completion comes back, and nothing shows why")
@check(
    "engine_unknown", "engine", ERROR, "a group serves with all ranks or not at all", command="{play}status{end}", of=GROUP,
    looks="a node or its Docker Engine cannot be read")  # fmt: skip
@check(
    "engine_starting", "engine", INFO, "the group has no service until the boot is judged", command="{head} sudo gb10 events", of=GROUP,
    looks="the group boots, was stopped on request, or was never started")  # fmt: skip
@check(
    "engine_stopped", "engine", INFO, "the group has no service; it was stopped on request", command="{site}", of=GROUP,
    looks="the group boots, was stopped on request, or was never started")  # fmt: skip
@check(
    "engine_absent", "engine", INFO, "nothing is installed, or the service was removed", command="{site}", of=GROUP,
    looks="the group boots, was stopped on request, or was never started")  # fmt: skip
def serves(_head: Rank, group: Group) -> Iterator[Event]:
    """Whether the group serves, as status.yml judges it."""
    state, sentence = group.status["state"], str(group.status["sentence"])
    if group.serves:
        yield sentence
        return
    wedged = state == "down" and group.liveness.get("outcome") == "wedged"
    away = ", ".join(rank.host for rank in group.ranks if not rank.read)  # site.yml refuses a group that is not whole
    remedy, command = (f"let {away} answer first: a group is started on all ranks or on none", "{play}status{end}") if away else ("", "")
    yield found(sentence, remedy, severity=INFO if group.status["ok"] else "", name=f"engine_{'wedged' if wedged else state}", command=command)


def _state_of(rank: Rank) -> Mapping[str, Any]:
    """Return the state that the agent of a rank reports."""
    return (rank.info.get("agent") or {}).get("state") or {}


@check(
    "agent_missing", "engine", ERROR, "the group is not watched: after a fault of this rank nothing starts it again",
    "run site.yml, which installs the agent and leaves a group that serves alone", SERVE, RANK)  # fmt: skip
def agent_missing(rank: Rank, group: Group) -> Iterator[Event]:
    """a node of a deployed group without its agent, or with that of another group or rank"""
    agent: Mapping[str, Any] = rank.facts.get("agent") or {}
    if not agent or _agent_of(rank, group) or not (rank.info.get("current") or rank.info.get("containers")):
        return
    yield found(f"its agent is that of rank {agent['rank']} of {agent['group']}" if agent["installed"] else "its agent is not installed")


@check("agent_hold", "engine", WARNING, "the agent starts nothing while a rank has a hold", command="{head} sudo gb10 status", of=RANK)
def agent_hold(rank: Rank, _group: Group) -> Iterator[Event]:
    """a hold keeps the agent from acting"""
    for hold in _state_of(rank).get("holds") or ():
        yield found(f"hold {hold['name']}: {hold['reason']}")


@check(
    "restarts", "engine", WARNING, "each restart is minutes without service, and a release that crashes again and again is held",
    command="{head} sudo gb10 events", of=RANK)  # fmt: skip
def restarts(rank: Rank, group: Group) -> Iterator[Event]:
    """the agent has restarted the group; for information while it serves"""
    watch = _state_of(rank).get("watch") or {}
    number = sum((watch.get("restarts") or {}).values())
    if number:
        last = (watch.get("last") or watch.get("fault") or {}).get("text")
        text = f"the agent has restarted the group {number} time(s){f', last because {last}' if last else ''}"
        yield found(text, severity=INFO if group.serves else "")


# --- Checks of the last boot, and of how the nodes differ from the release that is current and the inventory from both.

_AGAIN = "the next start fails in the same way until the cause is corrected"
_SETTINGS = "the node runs with other settings than the inventory has"


def _verdict(group: Group) -> Mapping[str, Any]:
    """Return the verdict on the last boot, if it failed."""
    outcome: Mapping[str, Any] = ((group.ranks[0].info.get("agent") or {}).get("state") or {}).get("outcome") or {}
    verdict: Mapping[str, Any] = outcome.get("verdict") or {}
    return {} if verdict.get("passed", True) else {"msg": outcome.get("sentence") or "no sentence", **verdict}


@check("boot_failed", "boot", ERROR, _AGAIN, command="{head} sudo gb10 why", of=GROUP)
def boot_failed(head: Rank, group: Group) -> Iterator[Event]:
    """the verdict of the last boot; a warning while the group serves"""
    verdict = _verdict(group)
    if verdict:
        place = (verdict.get("finding") or {}).get("host")
        yield found(str(verdict["msg"]), severity=WARNING if group.serves else "", hosts=[place] if place in group.hosts else ())
    receipt = head.info.get("receipt") or {}
    if receipt.get("passed"):
        yield f"release {receipt.get('release')} passed its gate at {receipt.get('time')}"


@check("boot_log", "boot", ERROR, _AGAIN, command="{play}evidence{end}", of=RANK)
def boot_log(rank: Rank, group: Group) -> Iterator[Event]:
    """a failure in the log of a container, or in the newest evidence if no container exists; a warning while the group serves"""
    verdict, kept = _verdict(group), rank.health.get("boot") or {}
    kept = {} if rank.info.get("containers") or rank.info.get("stopped") or not kept.get("label") else kept
    log = rank.log or kept
    failure = log.get("failure")
    if failure and failure["class"] != verdict.get("class"):
        where = f" (evidence {kept['label']})" if kept else ""
        yield found(f"{failure['class']}: {failure['line']}{where}", str(failure.get("remedy") or ""), severity=WARNING if group.serves else "")
    elif log.get("state") and not failure:
        # The log of a worker does not show when it is ready.
        yield f"{rank.host}: {'no failure' if rank.number else log['state']}"
    elif not log and "containers" not in rank.info:
        yield skip(rank.not_read)
    elif not log and not verdict:
        yield skip("no container and no evidence has a boot log")


def _current(group: Group) -> set[str]:
    """Return the releases that are current."""
    return {str(rank.info.get("current") or "") for rank in group.ranks} - {""}


@check(
    "release_differs", "drift", WARNING, "the next run of site.yml starts another release: minutes without service", command="{site} --check --diff",
    of=GROUP)  # fmt: skip
def release_differs(_head: Rank, group: Group) -> Iterator[Event]:
    """the inventory describes another release than the current one"""
    current, read = _current(group), [rank.host for rank in group.ranks if "current" in rank.info]
    if not current:
        yield skip("no release is current" if read else group.ranks[0].not_read, hosts=read)
    elif not group.named:
        yield skip(f"the release was not rendered{', because a rank was not read' if len(read) < len(group.ranks) else ''}")
    elif current != {group.named}:
        yield found(f"release {', '.join(sorted(current))} is current, and the inventory describes {group.named}")
    else:
        yield f"release {group.named} is the one of the inventory"


@check("release_files", "drift", WARNING, "a restart after a fault or a reboot needs these files", command=SERVE, of=RANK)
def release_files(rank: Rank, group: Group) -> Iterator[Event]:
    """files of the release are missing or differ"""
    current = _current(group)
    if current and rank.info.get("current") == "":
        yield found("no release is current, although another rank has one")
    yield from map(found, rank.repairs if group.named and current == {group.named} else ())


@check(
    "image_moved", "drift", WARNING, "the next start uses another image than the one that was judged", command="{site} --tags image,vllm_tp2", of=RANK,
    looks="image or weights are not those that were judged")  # fmt: skip
@check(
    "weights_differ", "drift", WARNING, "the next boot loads other weights than the ones that were judged", command="{site} --tags weights", of=RANK,
    looks="image or weights are not those that were judged")  # fmt: skip
def inputs(rank: Rank, group: Group) -> Iterator[Event]:
    """Image and weights of the current release."""
    if not _current(group):
        return
    moved = releases.moved_tag(rank.info)
    if moved:
        yield found(moved)
    differ = list(rank.info.get("weights_differ") or ())
    if differ:
        yield found("; ".join(differ[:3]) + (f" and {len(differ) - 3} more" if len(differ) > 3 else ""), name="weights_differ")


@check("settings_sysctl", "drift", WARNING, _SETTINGS, command=SYSCTL, of=RANK)
@check("settings_readahead", "drift", WARNING, _SETTINGS, command="{site} --tags readahead", of=RANK)
@check("settings_gpu", "drift", WARNING, _SETTINGS, command="{site} --tags gpu", of=RANK)
@check("settings_docker", "drift", WARNING, _SETTINGS, command=DOCKER, of=RANK)
def settings(rank: Rank, group: Group) -> Iterator[Event]:
    """what the role would change"""
    for role, result in rank.settings.items() if _current(group) else ():
        changes = [str(each) for each in result.get("changes") or ()]
        if result.get("failed"):
            yield skip(f"settings of the role {role}: {str(result.get('msg') or 'no message').rstrip('.')[:160]}", f"settings_{role}")
        elif changes:
            yield found("; ".join(changes[:4]) + (f" and {len(changes) - 4} more" if len(changes) > 4 else ""), name=f"settings_{role}")


@check("no_way_back", "drift", INFO, "if the next boot fails, there is less to go back to", command="{play}rollback{end} -e rollback_release=list", of=GROUP)
def no_way_back(_head: Rank, group: Group) -> Iterator[Event]:
    """an earlier release cannot be started again"""
    current, ranks = _current(group), [rank for rank in group.ranks if rank.info.get("releases")]
    if len(current) == 1:
        infos, hosts, (now,) = [rank.info for rank in ranks], [rank.host for rank in ranks], current
        for sentence in releases.lost_ways(infos, hosts, now, releases.judged_receipt(infos, now)):
            yield found(sentence, hosts=hosts)
