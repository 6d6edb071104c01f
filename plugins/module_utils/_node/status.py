# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The state of serving groups and the releases that they keep, as documents and as text. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import utc
from ansible_collections.gb10.cluster.plugins.module_utils._core.table import cell, table
from ansible_collections.gb10.cluster.plugins.module_utils._node.group import ended, unread
from ansible_collections.gb10.cluster.plugins.module_utils._node.release import RELEASE_LABEL

#: The state of a group, see group.py, in the words of the table.
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


def rank(info: Mapping[str, Any], log: Mapping[str, Any] | None = None, state: str = "") -> dict[str, Any]:
    """Return what is known of one rank: `containers`, `memory_kib`, `agent`, `receipt` (release, profile, verdict, time), `notes` and `problem`.

    `info` is what vllm_rank_info returned, `log` the facts of its boot log (None without a container), `state` that of the group (group.py).
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


def document(
    status: Mapping[str, Any], name: str, hosts: Sequence[str], infos: Sequence[Mapping[str, Any]], logs: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """Return the state of a group. `status` is what group_status returned; `infos` and `logs` are in the order of hosts."""
    state = str(status["state"])
    ranks = [{"rank": number, "host": host, **rank(info, log, state)} for number, (host, info, log) in enumerate(zip(hosts, infos, logs))]
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


def lines(groups: Sequence[Mapping[str, Any]]) -> list[str]:
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
                "release": each["id"], "profile": str(each.get("profile") or ""), "date": utc.stamp(min(each["time"], LATEST)),
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
