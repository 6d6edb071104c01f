# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of serving groups and the releases that they keep: from what ranks and API show, as documents and as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import cell, table
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import RELEASE_LABEL

REMEDY = "Run site.yml: it keeps evidence, restarts the release and judges the boot."
PROGRESS = "Its agent restores service. Progress: `sudo gb10 events` on the head."
RESTORES = ("fault", "recovering")  # states of a watch that knows that the group does not serve
WATCHES = ("serving", "waiting", *RESTORES)  # of one that acts
FINE = ("serves", "busy", "starting")


def ended(container: Mapping[str, Any]) -> str:
    """Return how and when a container ended, as a phrase."""
    when = str(container.get("finished_at") or "")[:19]
    oom = ", killed by the kernel's OOM killer" if container.get("oom_killed") else ""
    if when > "0001-01-02":
        return f"exited at {when}Z with exit code {container['exit_code']}{oom}"
    return f"is {container.get('status') or 'not running'}{oom}"


def unread(info: Mapping[str, Any]) -> str:
    """Return why a rank's containers are not known, as a phrase; empty if they are."""
    if info.get("unreachable"):
        return "the node is unreachable"
    if info.get("failed") or "containers" not in info:
        return str(info.get("msg") or "the node was not read in this run").splitlines()[0]
    return str(info.get("engine_error") or "")


def _way_back(host: str, info: Mapping[str, Any]) -> str:
    """Return why SSH does not reach a node and what to do, with a space before it; empty if it does or if the cause is not known."""
    if not (info.get("unreachable") and info.get("found") and info.get("remedy")):
        return ""
    remedy = str(info["remedy"])
    return f" {host}: {info['found']}. {remedy[0].upper()}{remedy[1:]}."


def rank_fault(info: Mapping[str, Any]) -> str:
    """Return why a rank that was read cannot serve, as a phrase; empty if it can."""
    containers = list(info.get("containers") or [])
    if not any(each["running"] for each in containers):
        return f"the container {containers[0]['name']} {ended(containers[0])}" if containers else "no container exists"
    return str((info.get("processes") or {}).get("fault") or "")


def _restores(info: Mapping[str, Any], faults: Sequence[str]) -> str:
    """Return why a group does not serve and that its agent restores it, as sentences; empty if the agent does not. `info` is of the head."""
    agent = info.get("agent") or {}
    state = agent.get("state") or {}
    watch = state.get("watch") or {}
    starts = agent.get("converges") and (state.get("desired") or {}).get("state") == "serving"
    if not starts and watch.get("state") not in (WATCHES if faults else RESTORES):
        return ""
    why = "; ".join(faults) or (watch.get("fault") or {}).get("text") or "its boot is not judged yet"
    waits = f" It waits: {'; '.join(watch['missing'])}." if watch.get("missing") else ""
    return f"{why}. {PROGRESS}{waits}"


def under_way(info: Mapping[str, Any]) -> str:
    """Return what the agent of a head does for a start that is not settled, as a phrase; empty if there is none. `info` is of the head."""
    agent = info.get("agent") or {}
    desired, outcome = (agent.get("state") or {}).get("desired") or {}, (agent.get("state") or {}).get("outcome") or {}
    failed = (outcome.get("verdict") or {}).get("passed") is False
    if not agent.get("converges") or desired.get("state") != "serving" or desired.get("auto") or failed:
        return ""
    by, phase = desired.get("by") or "another run", outcome.get("phase") or "waiting"
    return f"release {desired.get('release')} was asked for by {by} at {desired.get('at')}, phase {phase}"


def group_status(infos: Sequence[Mapping[str, Any]], name: str, hosts: Sequence[str]) -> dict[str, Any]:
    """Return the state of a group with its sentence.

    `infos` is what vllm_rank_info returned on each rank, the head first (also where it failed), `hosts` their names.

    release: the one that runs, else the current one. state: serves, busy, starting (as a person asked for), recovering (its agent restores it),
    unserved (no completion came back, and nothing shows why), down, stopped (on request), absent, unknown.
    faults: why the group cannot serve, one phrase a rank, only what needs a restart. ask: whether a completion can tell more.
    should_serve: whether a release is current and the group was not stopped on request. ok: whether the group is in its desired state.
    """
    head = infos[0] if infos else {}
    liveness, log = head.get("alive") or {}, head.get("boot_log") or {}
    where = [f"rank {rank} on {host}" for rank, host in enumerate(hosts)]
    read = [(place, info) for place, info in zip(where, infos) if not unread(info)]
    unknown = [f"{place} is not known: {unread(info)}" for place, info in zip(where, infos) if unread(info)]
    faults = [f"{place}: {rank_fault(info)}" for place, info in read if rank_fault(info)]
    present = any(info.get("containers") for _place, info in read)
    mark = next((str(info["stopped"]) for _place, info in read if info.get("stopped")), "")
    deployed = any(info.get("current") for _place, info in read)
    starting = under_way(head)
    outcome = str(liveness.get("outcome") or "")
    text = str(liveness.get("text") or liveness.get("msg") or "")
    booting = bool(liveness.get("starting")) and log.get("state") == "starting"
    if outcome in ("dead", "wedged") and not faults and not booting and where:
        faults = [f"{where[0]}: {text.rstrip('.')}"]
    restores = _restores(head, faults)
    # The link `current` can be stale. The running container is not.
    labels = [each.get("labels", {}).get(RELEASE_LABEL) for _place, info in read for each in info.get("containers") or [] if each["running"]]
    release = next((str(found) for found in [*labels, *(info.get("current") for _place, info in read)] if found), "")
    if outcome in ("serves", "busy") and not faults:
        state = outcome
        detail = f"{text}, release {release or 'not known'}" if outcome == "serves" else text.partition(": ")[2] or text
        sentence = f"{name} {'serves' if outcome == 'serves' else 'is busy'}: {detail}."
        if mark:
            sentence += f" It should not: it was stopped on request at {mark}. Run stop.yml or site.yml."
    elif restores and not starting and not mark:
        state, sentence = "recovering", f"{name} does not serve: {restores}"
    elif not faults and outcome and booting:
        state, sentence = "starting", f"{name} is starting: the head's boot is at stage {log.get('stage')}."
    elif starting and outcome not in ("serves", "busy"):
        state, sentence = "starting", f"{name} is starting: {starting}."
    elif mark and not present:
        state, sentence = "stopped", f"{name} is stopped on request since {mark}. Run site.yml to start it."
    elif read and not present and not deployed and not unknown:
        state, sentence = "absent", f"{name} has never served: no release is current. Run site.yml."
    elif faults:
        state, sentence = "down", f"{name} does not serve: {'; '.join(faults)}. {REMEDY}"
    elif outcome and liveness.get("http_status") != 401:
        problem = "refuses the request of this check" if outcome == "refused" else "does not answer"
        state, sentence = "unserved", f"{name} {problem}: {text.rstrip('.')}. Nothing shows that a restart helps, so site.yml does not restart it."
    else:
        state, sentence = "unknown", f"It is not known whether {name} serves" + (f": {text.rstrip('.')}." if text else ".")
        sentence += " Clients with the key of the container go on. Run site.yml." if outcome else ""
    sentence += "".join(f" {each[0].upper()}{each[1:].rstrip('.')}." for each in unknown)
    sentence += "".join(_way_back(host, info) for host, info in zip(hosts, infos))
    should_serve = deployed and not mark
    return {
        "state": state,
        "sentence": sentence,
        "release": release,
        "faults": faults if present else [],
        "ask": not faults and bool(infos) and not unread(infos[0]),
        "should_serve": should_serve,
        "ok": state in (*FINE, "stopped", "absent") or (not should_serve and state != "unknown"),
    }


def _other_group(host: str, info: Mapping[str, Any], group: str) -> str:
    """Return that another group owns a node or serves there, as a phrase; empty if none does."""
    serving = [str(each) for each in info.get("others") or []]
    owners = sorted(name for name in (info.get("agent") or {}).get("owners") or {} if name != group)
    names = list(dict.fromkeys([*serving, *owners]))
    if not names:
        return ""
    return f"{host} belongs to the group {' and '.join(names)}" + (", which runs there" if serving else "")


def _other_place(rank: int, host: str, info: Mapping[str, Any], group: str, heads: Mapping[str, str], head: str) -> str:
    """Return that a node has another rank or obeys another head than the inventory's, as a phrase; empty if not. `heads` has machine id -> host."""
    place = (info.get("agent") or {}).get("place") or {}
    if place.get("group") == group and place.get("rank") != rank:
        return f"{host} is rank {place.get('rank')} of {group}"
    owner = str(((info.get("agent") or {}).get("owners") or {}).get(group) or "")
    if not owner or not head or owner == head:
        return ""
    who = heads.get(owner)
    return f"{host} obeys {who} as its head" if who else f"{host} obeys a head that is none of these nodes (machine id {owner[:12]})"


def disobeys(hello: Mapping[str, Any], group: str, head: str) -> str:
    """Return why a node does not obey a head, as sentences; empty if it does. `hello` is what its agent reports, `head` the head's machine id."""
    host, owner = hello["host"], hello.get("owner") or {}
    if hello.get("group", group) != group:
        return f"{host} belongs to the group {hello['group']}, and the request is for the group {group}. Run site.yml for both groups."
    if owner.get("head") and (owner["group"], owner["head"]) != (group, head):
        return (
            f"{host} has another owner: the head {owner['head'][:12]} of the group {owner['group']}. Found: {head[:12]} of {group}."
            " Run site.yml with -e takeover=true to change the owner."
        )
    return ""


def refusal(infos: Sequence[Mapping[str, Any]], group: str, hosts: Sequence[str]) -> str:
    """Return why a run may not take these nodes, with the ways, as one or two sentences; empty if it may: a renamed group, swapped ranks, another head.

    `infos` is what vllm_rank_info returned on each rank, the head first, `hosts` are their names.
    """
    ids = [str((info.get("agent") or {}).get("head_id") or "") for info in infos]
    heads = {each: host for each, host in zip(ids, hosts) if each}
    groups = [phrase for host, info in zip(hosts, infos) for phrase in [_other_group(host, info, group)] if phrase]
    if groups:
        return (
            f"{group}: {'; '.join(groups)}. Nothing was changed. To serve {group} there: stop the other group by its own name (vllm_tp2_state=absent),"
            " or replace it with -e takeover=true, which stops it."
        )
    found = [phrase for rank, (host, info) in enumerate(zip(hosts, infos)) for phrase in [_other_place(rank, host, info, group, heads, ids[0])] if phrase]
    if found:
        return (
            f"{group}: {'; '.join(found)}, and the inventory has {hosts[0]} as head. Nothing was changed. If the order of the hosts is a mistake, correct it."
            " If the head was replaced or is to be another node: -e takeover=true."
        )
    return ""


# --- The state of serving groups and the releases that they keep, as documents and as text.

#: The state of a group (group_status) in the words of the table.
VERDICTS = {**dict.fromkeys(("unserved", "down", "recovering"), "does not serve"), "absent": "never served"}
_FULL = "no space is left on the file system of {}. Free space there (df -h, docker system df)"
LATEST = 253402300799  # the end of the year 9999: a node reports the time
BOOTS = ("starting", "recovering")  # what an earlier boot of the release showed counts no longer
_COLUMNS = ("group", "rank", "host", "container", "release", "gate", "memory available", "agent")
_KEPT = ("release", "profile", "date", "gate", "KV pool", "current")


def _engine_notes(log: Mapping[str, Any], state: str) -> list[str]:
    """Return what a boot log shows that is not in the table."""
    failure, pool = log.get("failure"), log.get("kv_cache") or {}
    out = []
    if failure and not str(failure["line"]).startswith("state of container"):  # the container's state shows it
        out.append(f"log: {failure['class']}: {failure['line']}")
    elif not failure and state not in ("serves", "busy") and log.get("stage"):
        out.append(f"boot: {'starting, at' if state == 'starting' else 'reached'} stage {log['stage']}")
    if pool.get("tokens") is not None:
        out.append(f"KV pool: {pool['tokens']:,} tokens, {pool.get('max_concurrency')} requests at full context at once")
    elif pool.get("available_gib") is not None:
        out.append(f"KV memory of this rank: {pool['available_gib']} GiB")
    return out


def _container(each: Mapping[str, Any], info: Mapping[str, Any], state: str) -> dict[str, Any]:
    label = str((each.get("labels") or {}).get(RELEASE_LABEL) or "")
    since = str(each["started_at" if each["running"] else "finished_at"])[:19]
    good = [bool(kept["good"]) for kept in info.get("releases") or [] if kept["id"] == label]
    return {
        "name": each["name"], "state": each["status"] if each["running"] else ended(each), "running": bool(each["running"]),
        "since": f"{since}Z" if since > "0001-01-02" else "", "release": label, "image": str(each.get("image_id") or ""),
        "gate": "not kept here" if not good else "never passed" if not good[0] else "not judged yet" if state in BOOTS and each["running"] else "passed",
    }  # fmt: skip


def rank_document(info: Mapping[str, Any], log: Mapping[str, Any] | None = None, state: str = "") -> dict[str, Any]:
    """Return what is known of one rank: `containers`, `memory_kib`, `agent`, `receipt` (release, profile, verdict, time), `notes` and `problem`.

    `info` is what vllm_rank_info returned, `log` the facts of its boot log (None without a container), `state` that of the group (group_status).
    """
    problem = unread(info)
    if problem:
        return {"problem": problem, "containers": [], "memory_kib": {}, "agent": "", "receipt": {}, "notes": []}
    fault, agent, receipt = str((info.get("processes") or {}).get("fault") or ""), info.get("agent") or {}, info.get("receipt") or {}
    watch = ((agent.get("state") or {}).get("watch") or {}).get("state")
    reply = "answers" if agent.get("state") else "does not answer"
    verdict = "passed" if receipt.get("passed") else f"failed ({receipt.get('class')})"
    return {
        "problem": "",
        "containers": [_container(each, info, state) for each in info.get("containers") or []],
        "memory_kib": {key: info["memory"][f"{key}_kib"] for key in ("total", "available", "free")} if (info.get("memory") or {}).get("total_kib") else {},
        "agent": str(watch or reply) if agent.get("version") else "not installed",
        "receipt": {"verdict": verdict, **{key: str(receipt.get(key) or "") for key in ("release", "profile", "time")}} if receipt else {},
        "notes": [*map(_FULL.format, info.get("full") or ()), *([f"engine: {fault}"] if fault else []), *(_engine_notes(log, state) if log else [])],
    }


def status_document(
    status: Mapping[str, Any], name: str, hosts: Sequence[str], infos: Sequence[Mapping[str, Any]], logs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the state of a group. `status` is what group_status returned; `infos` and `logs` are in the order of hosts."""
    state = str(status["state"])
    ranks = [{"rank": number, "host": host, **rank_document(info, log, state)} for number, (host, info, log) in enumerate(zip(hosts, infos, logs))]
    return {
        "schema": "gb10.cluster/status/1", "group": name, "state": state, "verdict": VERDICTS.get(state, state), "ok": bool(status["ok"]),
        "sentence": str(status["sentence"]), "release": str(status["release"]),
        "ranks": ranks,
    }  # fmt: skip


def _rows(group: Mapping[str, Any]) -> list[tuple[Any, ...]]:
    """Return the rows of a group's ranks, one for each container."""
    out: list[tuple[Any, ...]] = []
    for each in group["ranks"]:
        memory = {key: value / 2**20 for key, value in each["memory_kib"].items()}
        used = f"{memory['available']:.1f} of {memory['total']:.1f} GiB" if memory else ""
        nothing = {"state": "not known" if each["problem"] else "none"}
        for box in each["containers"] or [nothing]:
            state = f"{box['state']} since {box['since']}" if box.get("running") and box["since"] else box["state"]
            out.append((group["group"], each["rank"], each["host"], state, box.get("release"), box.get("gate"), used, each["agent"]))
    return out


def status_lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the verdicts of groups, one table of all ranks, and what is not in it."""
    out = ["", *table(("", ""), [(group["verdict"].upper(), group["sentence"]) for group in groups])]
    out += ["", *table(_COLUMNS, [row for group in groups for row in _rows(group)]), ""]
    for group in groups:
        out += [f"{group['group']}: {note}" for note in group.get("notes") or ()]
        where = {f"{group['group']} rank {each['rank']} on {each['host']}": each for each in group["ranks"]}
        out += [f"{place}: {cell(text)}" for place, each in where.items() for text in ([each["problem"]] if each["problem"] else each["notes"])]
        verdicts = {place: _verdict(each["receipt"]) for place, each in where.items() if not each["problem"]}
        if len(set(verdicts.values())) == 1:
            verdicts = {group["group"]: next(iter(verdicts.values()))}
        out += [f"{place}: last verdict: {text}" for place, text in verdicts.items()]
    return out


def _verdict(last: Mapping[str, Any]) -> str:
    return f"{last['verdict']} at {last['time']}, release {last['release']}, profile {last['profile']}" if last else "none"


def kept_document(info: Mapping[str, Any], group: str, host: str) -> dict[str, Any]:
    """Return the releases that a rank keeps, the newest first. `info` is what vllm_rank_info returned."""
    return {
        "schema": "gb10.cluster/releases/1", "group": group, "host": host,
        "releases": [
            {
                "release": each["id"], "profile": str(each.get("profile") or ""), "date": text.stamp(min(each["time"], LATEST)),
                "passed": bool(each["good"]), "pool_tokens": each.get("pool_tokens") or None, "current": each["id"] == info["current"],
            }
            for each in info["releases"]
        ],
    }  # fmt: skip


def rollback_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what a rollback did, how to stay there, and how the Compose files of the two releases differ."""
    changes = document["difference"]
    if document["from"] == document["to"] and not changes:
        return [document["sentence"]]
    undo = " and undo what makes the difference below" if changes else ""
    return [
        document["sentence"],
        "The inventory is not changed by this: the next site.yml goes where its gb10_profile and vllm_tp2_* variables point."
        f" To stay, set gb10_profile: {document['profile']}{undo}; then site.yml changes nothing.",
        *changes,
    ]


def kept_lines(document: Mapping[str, Any]) -> list[str]:
    """Return the table of the releases that a group keeps."""
    kept = [
        (each["release"], each["profile"], each["date"], "passed" if each["passed"] else "never passed", each["pool_tokens"], each["current"] or None)
        for each in document["releases"]
    ]
    head = f"{document['group']} keeps {len(kept)} release{'' if len(kept) == 1 else 's'} on {document['host']}."
    return ["", head, *(["", *table(_KEPT, kept), ""] if kept else [])]
