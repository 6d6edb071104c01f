# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The decision on a boot, from the facts of all ranks and the criteria. _gate/judge.py calls it. Pure.

A *rank* here is a dict that can travel as JSON:
    rank (int), host (str), facts (what _boot_log.stream.BootLog.facts() returns; {} before the first slice), seen (bool: whether it was read),
    container (_node.docker_api.state_of() or None), memory (_node.docker_api.memory_of()), release (str), http_status (int: of the API's health page),
    start_error (str), lost (str: why the node can no longer be read), stage_since (when its stage began, in seconds since the boot began),
    failed_at (the same clock, or None), max_restarts (int: how many restarts of its container are still fine), and once they are known
    oom_kills_at_start (int), changed_at (when its log last moved), lost_class (the class of `lost`, if not its node's), seconds_left (float).

A *finding* is a dict: class, rank, host, line, line_number, remedy, message, anchor, weight. The smaller the weight, the nearer to the root.
"""

from __future__ import annotations

import math
import signal
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import remedy_of, start_remedy
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils._core import text as progress_text

Rank = dict[str, Any]
Finding = dict[str, Any]

# How near to the root a kind of evidence is.
ROOT, KILLED, MISSED, SYMPTOM, TAIL, GONE, SLOW = 0, 1, 2, 3, 4, 5, 6

# What a rank reports if another one is the cause: a killed or failed peer outranks these.
PEER_SYMPTOMS = ("peer_lost", "rendezvous", "rpc_timeout", "nccl_error")

SHORT_OF_KV = ("kv_too_small", "kv_no_memory")  # printed on the head, for any rank

TRANSPORT_UNKNOWN = "Set NCCL_DEBUG to INFO and NCCL_DEBUG_SUBSYS to INIT,NET in the profile's env: NCCL names its transport at that level alone"
ENGINE_REMEDIES = {
    "moe_backend": ". The image chooses the backend by its environment variables: see `unknown_variables` and the profile's source",
    "eager": ". See enforce-eager in engine.args",
    "custom_ops": ". See compilation-config in engine.args",
    "autotune": ". See kernel-config in engine.args",
}
SETTLE_SECONDS = 4.0  # how long a symptom waits for its cause to show on another rank
BURST_SECONDS = 1.5  # a rank that has just written may still print the cause: a traceback follows its headline


def finding(kind: str, rank: Rank, weight: int, message: str, **more: Any) -> Finding:
    """Return a finding. `more` are line, line_number, and a remedy and an anchor other than those of the class."""
    return {
        "class": kind,
        "rank": rank["rank"],
        "host": rank["host"],
        "line": more.get("line", ""),
        "line_number": more.get("line_number"),
        "remedy": more.get("remedy") or remedy_of(kind),
        "anchor": more.get("anchor") or f"docs/reference/failures.md#{kind}",
        "message": message,
        "weight": weight,
    }


def _log_finding(rank: Rank) -> Finding | None:
    facts = rank["facts"]
    failure = facts.get("failure")
    if not failure and facts.get("state") == "served_then_failed":
        return finding("engine_failed", rank, TAIL, "the engine served and then failed, and its log has no known cause", remedy=remedy_of("exited"))
    if not failure or (_undecided(rank) and _runs(rank)):
        return None
    return _line_finding(rank, SYMPTOM if failure["class"] in PEER_SYMPTOMS else TAIL if failure["kind"] == "tail" else ROOT)


def _runs(rank: Rank) -> bool:
    return bool(rank["container"] and rank["container"]["running"])


def _undecided(rank: Rank) -> bool:
    """Return whether the rank's last failure may be harmless: an optional import, for one. A silent rank may be loading or compiling."""
    facts = rank["facts"]
    failure = facts.get("failure") or facts.get("suspicion") or {}
    return failure.get("kind") == "weak" and not failure.get("confirmed") and facts.get("state") != "served_then_failed"


def _line_finding(rank: Rank, weight: int, context: str = "") -> Finding:
    failure = rank["facts"].get("failure") or rank["facts"]["suspicion"]
    line = failure["line"].strip()
    more = {key: failure[key] for key in ("line_number", "remedy", "anchor")}
    return finding(failure["class"], rank, weight, line + context, line=line, **more)


def _state_finding(rank: Rank) -> Finding | None:
    """Return the finding of the container's state or of the node. An OOM kill and a SIGKILL leave no line in the log."""
    if rank["lost"]:
        return finding(rank.get("lost_class", "node_lost"), rank, ROOT, rank["lost"])
    if rank["start_error"]:
        return finding("start_failed", rank, ROOT, rank["start_error"], remedy=start_remedy(rank["start_error"]))
    if not rank["seen"]:
        return None
    state = rank["container"]
    if state is None:
        return finding("container_missing", rank, KILLED, f"rank {rank['rank']} has no container on {rank['host']}")
    runs, judged = state["labels"].get("gb10.cluster.release"), rank["release"]
    if runs and judged and runs != judged:
        return finding("other_release", rank, KILLED, f"the container {state['name']} belongs to release {runs}, and the gate judges release {judged}")
    if state["restart_count"] > rank["max_restarts"]:
        return finding("restarted", rank, KILLED, f"the container {state['name']} was restarted {state['restart_count']} times")
    when = _loading_drafter(rank)
    kills = rank["memory"].get("oom_kills", 0) - rank.get("oom_kills_at_start", 0)
    tail = (rank["facts"].get("failure") or {}).get("kind") == "tail"
    if kills > 0 and tail and state["running"]:
        return finding("oom_killed", rank, KILLED, f"the kernel's OOM killer ended a process of the container {state['name']}, or of this node{when}")
    if state["running"] or state["status"] in ("created", "restarting"):
        return None
    code = state["exit_code"]
    if state["oom_killed"] or (kills > 0 and code not in (0, 143)):
        # The engine's processes are the large ones: the kernel ends one of those, and the container's first process then ends with a code of its own.
        return finding("oom_killed", rank, KILLED, f"the kernel's OOM killer ended the container {state['name']} or a process of it (exit code {code}){when}")
    if code == 137:
        return finding("killed", rank, KILLED, f"the container {state['name']} was killed (SIGKILL, exit code 137), and its log names no cause{when}")
    if code in (0, 143):
        return finding("stopped", rank, GONE, f"the container {state['name']} was stopped (exit code {code})")
    how = f"{code}{_signal_of(code)}" + (f": {state['error']}" if state["error"] else "")
    return finding("exited", rank, GONE, f"the container {state['name']} ended with exit code {how}{when}")


def _loading_drafter(rank: Rank) -> str:
    """Return a phrase if a rank was loading its drafter, whose weights do not fit in most cases; empty otherwise."""
    loading = rank["facts"].get("drafter") and rank["facts"].get("stage") == "load"
    return ". Its drafter was being loaded: lower gpu-memory-utilization, or serve without speculative-config" if loading else ""


def _signal_of(code: int) -> str:
    try:
        return f" ({signal.Signals(code - 128).name})" if code > 128 else ""
    except ValueError:
        return ""


def findings(ranks: list[Rank]) -> list[Finding]:
    """Return all that is wrong, the nearest to the root first; of equals the earliest."""
    out: list[tuple[int, float, int, Finding]] = []
    logs = [_log_finding(rank) for rank in ranks]
    if any(item and item["weight"] == SYMPTOM for item in logs):
        # A second sign: one rank misses a peer, and a peer has stood still since a line that may be fatal.
        logs = [item or (_line_finding(rank, MISSED) if _undecided(rank) else None) for rank, item in zip(ranks, logs)]
    # Until when a rank must have ended to be what the others miss: a lost connection shows before the container's end, a tail class after it.
    slack = {SYMPTOM: SETTLE_SECONDS, TAIL: 0.0}
    missed = max((_when(rank) + slack[item["weight"]] for rank, item in zip(ranks, logs) if item and item["weight"] in slack), default=-1.0)
    for rank, logged in zip(ranks, logs):
        if logged and logged["class"] in SHORT_OF_KV:
            logged["message"] += _least_kv(ranks, ". ")
        state = _state_finding(rank)
        if state and state["weight"] == GONE and not logged and _when(rank) <= missed:
            state["weight"] = MISSED  # its log has no cause
        out += [(item["weight"], _when(rank), rank["rank"], item) for item in (logged, state) if item]
    return [item for _w, _t, _r, item in sorted(out, key=lambda entry: entry[:3])]


def _when(rank: Rank) -> float:
    return float(rank["failed_at"] or rank.get("changed_at") or 0.0)


def _least_kv(ranks: list[Rank], before: str) -> str:
    """Name the rank with the least memory for the KV cache. vLLM sizes every rank's cache by it. Empty if not known."""
    have = {r["rank"]: finite((r["facts"].get("kv_cache") or {}).get("available_gib")) for r in ranks}
    known = {number: gib for number, gib in have.items() if gib is not None}
    if len(known) < len(ranks) or len(set(known.values())) < 2:
        return ""
    least = min(known, key=lambda number: known[number])
    host = next(r["host"] for r in ranks if r["rank"] == least)
    others = ", ".join(f"rank {number} {gib:g}" for number, gib in sorted(known.items()) if number != least)
    return f"{before}rank {least} on {host} has the least KV memory: {known[least]:g} GiB ({others})"


def _stage(rank: Rank) -> int:
    stage = rank["facts"].get("stage")
    return STAGES.index(stage) if stage in STAGES else -1  # no line yet


def _timed(ranks: list[Rank]) -> list[Rank]:
    """Return the ranks whose stage has a clock: a headless worker prints no stage after its KV memory or graphs, and then the head's time counts."""
    head = max((_stage(r) for r in ranks if r["rank"] == 0), default=0)
    return [r for r in ranks if r["rank"] == 0 or head <= max(_stage(r), STAGES.index("kv"))]


def slow(ranks: list[Rank], seconds: float, timeout: float, limits: dict[str, Any]) -> Finding | None:
    """Return the rank that has used up its time: that of one phase (`limits`: seconds by stage), or the whole boot's."""
    timed = _timed(ranks)
    for rank in timed:
        stage = rank["facts"].get("stage", "")
        limit = math.inf if limits.get(stage) is None else float(limits[stage])
        spent = seconds - rank["stage_since"]
        if spent > limit and rank["facts"].get("state") != "ready":
            suspect = next((r for r in (rank, *ranks) if _undecided(r)), None)
            if suspect is not None:
                return _line_finding(suspect, SLOW, f" (rank {rank['rank']} has been at stage {stage} for {spent:.0f} s, allowed are {limit:.0f} s)")
            if stage == "rendezvous":
                missing = [r for r in ranks if r is not rank and not _runs(r)]
                who = f"rank {missing[0]['rank']} on {missing[0]['host']} is not running" if missing else "no other rank has come"
                return finding(
                    "rendezvous", rank, SLOW, f"rank {rank['rank']} has waited {spent:.0f} s for its peers, and {who}",
                    remedy="Check the other rank's container, the master address, GLOO_SOCKET_IFNAME and the cable",
                )  # fmt: skip
            return finding("stalled", rank, SLOW, f"rank {rank['rank']} has been at stage {stage} for {spent:.0f} s, allowed are {limit:.0f} s")
    if seconds > timeout:
        last = min(timed, key=_stage)  # the one that is furthest behind: the others wait for it
        if _undecided(last):
            return _line_finding(last, SLOW, f" (no verdict after {seconds:.0f} s)")
        stage = f"at stage {last['facts']['stage']}" if _stage(last) > STAGES.index("none") else "before its first line"
        return finding("stalled", last, SLOW, f"no verdict after {seconds:.0f} s: rank {last['rank']} is {stage}")
    return None


def assess(ranks: list[Rank], seconds: float, timeout: float, limits: dict[str, Any]) -> tuple[str, Finding | None]:
    """Decide on a boot that is under way: ('wait', None), ('fail', finding) or ('probe', None) once the head serves.

    A symptom waits for its cause: until every rank has failed or SETTLE_SECONDS are over, and until those that failed have written nothing for a moment.
    """
    found = findings(ranks)
    if found:
        best = found[0]
        waited = seconds - min(seconds if r["failed_at"] is None else r["failed_at"] for r in ranks)
        speakers = [r for r in ranks if r["rank"] == best["rank"] or r["failed_at"] is not None]
        talking = any(_runs(r) and seconds - r.get("changed_at", 0.0) < BURST_SECONDS for r in speakers)
        settled = waited >= SETTLE_SECONDS or all(r["failed_at"] is not None for r in ranks)
        if best["weight"] <= KILLED or (settled and not talking) or waited >= 3 * SETTLE_SECONDS:
            return "fail", best
        return "wait", None
    late = slow(ranks, seconds, timeout, limits)
    if late:
        return "fail", late
    serves = any(r["rank"] == 0 and (r["facts"].get("state") == "ready" or r["http_status"] == 200) for r in ranks)
    return ("probe" if serves else "wait"), None


# --- after the head serves: facts against criteria -------------------------------------------------------------------------------


def check(name: str, ok: bool | None, wanted: Any, found: Any, kind: str, remedy: str = "") -> dict[str, Any]:
    """Return a check of a criterion. ok: None if not known."""
    return {"name": name, "ok": ok, "wanted": wanted, "found": found, "remedy": remedy or remedy_of(kind), "class": kind}


def finite(value: Any) -> float | None:
    """Return `value` as a finite number, None if it is not one."""
    try:
        got = float(str(value))
    except ValueError:
        return None
    return got if math.isfinite(got) else None


def served_context(api: dict[str, Any]) -> int | None:
    """Return the context in the answer of /v1/models, None if it has none."""
    return next((int(m["max_model_len"]) for m in api.get("models") or [] if m.get("max_model_len")), None)


def pool_of(head: dict[str, Any], metrics: list[dict[str, str]], context: int | None = None) -> dict[str, Any]:
    """Return the KV pool: tokens as printed, concurrency, context, effective tokens (concurrency x context), and where it was read.

    The server's own metric is exact from vLLM 0.24 on; the log rounds concurrency to two decimals. `context` is the API's, used if the log has none.
    """
    kv = dict(head.get("kv_cache") or {})
    pool = {
        "tokens": kv.get("tokens"), "concurrency": kv.get("max_concurrency"), "context": kv.get("context"),
        "effective_tokens": kv.get("effective_tokens"), "source": "log" if kv.get("tokens") is not None else "none",
    }  # fmt: skip
    exact = [c for c in (finite(m.get("kv_cache_max_concurrency")) for m in metrics) if c is not None]
    if exact:
        pool["concurrency"] = round(min(exact), 4)
        sizes = [s for s in (finite(m.get("kv_cache_size_tokens")) for m in metrics) if s is not None]
        if sizes:
            pool["tokens"] = int(min(sizes))
        pool["context"] = pool["context"] or head.get("context") or context
        if pool["context"]:
            pool["effective_tokens"] = round(min(exact) * int(pool["context"]))
        pool["source"] = "metrics"
    return pool


def _bounds(name: str, found: float | None, limits: dict[str, Any], below: str) -> list[dict[str, Any]]:
    out = []
    low, high = limits.get("min"), limits.get("max")
    if low is not None:
        out.append(check(f"{name} at least", None if found is None else found >= low, low, found, "pool_below_floor", below))
    if high is not None:
        out.append(check(f"{name} at most", None if found is None else found <= high, high, found, "pool_above_ceiling"))
    return out


def _same(name: str, values: dict[int, Any], remedy: str = "") -> list[dict[str, Any]]:
    seen = {rank: value for rank, value in values.items() if value not in (None, "", False, {}, [])}
    if len(seen) < 2:
        return []
    return [check(f"{name} equal on all ranks", len({str(v) for v in seen.values()}) == 1, "equal", seen, "ranks_disagree", remedy)]


def image_content(rank: Rank) -> str:
    """Return the fingerprint of the image that a rank was started from, else the id, which other image stores compute otherwise."""
    state = rank["container"]
    return str(state["labels"].get("gb10.cluster.image") or state["image_id"]) if state else ""


def _plain(key: str, value: Any) -> str:
    """Return a setting under the one name that stands for all that mean the same: the engine writes some otherwise than the arguments do."""
    text = str(value).strip().lower()
    if key == "speculative_method" and text.endswith("_mtp"):
        return "mtp"  # deepseek_mtp, qwen3_next_mtp, ...: vLLM replaces them all
    if key == "kv_cache_dtype" and text in ("fp8_e4m3", "fp8_ds_mla"):
        return "fp8"  # the default kind of fp8, and its layout for sparse latent attention
    if key == "kv_cache_dtype" and text == "bfloat16":
        return "auto"  # what vLLM makes of it where latent attention is sparse
    text = text[6:] if text.startswith("torch.") else text
    return {"half": "float16", "float": "float32"}.get(text, text)


def checks(ranks: list[Rank], api: dict[str, Any], criteria: dict[str, Any]) -> list[dict[str, Any]]:
    """Compare the ranks' logs and the API with the criteria; each check: name, ok (None: not known), wanted, found, remedy, class.

    `api` is the result of the verb probe. `criteria` is a profile's `gate`.
    """
    head = next(r for r in ranks if r["rank"] == 0)
    allowed = int(criteria.get("max_restarts") or 0)
    restarts = {r["rank"]: r["container"]["restart_count"] if r["container"] else 0 for r in ranks}
    return [
        check("/v1/models answers", not api.get("error"), "a model", api.get("error") or "ok", "api_unreachable"),
        *model_checks(ranks, head["facts"], api, criteria),
        *engine_checks(ranks, head["facts"], criteria),
        check("restarts at most", max(restarts.values()) <= allowed, allowed, restarts, "restarted"),
        *_rank_checks(ranks, bool(criteria.get("same_image", True))),
        *_end_checks(ranks),
    ]


def model_checks(ranks: list[Rank], facts: dict[str, Any], api: dict[str, Any], criteria: dict[str, Any]) -> list[dict[str, Any]]:
    """Check served names, context and KV pool."""
    pool = pool_of(facts, api.get("metrics") or [], served_context(api))
    out = []
    served, wanted = criteria.get("served_names") or [], criteria.get("context")
    if served:
        listed = [m["id"] for m in api.get("models") or []]
        out.append(check("served names", set(served) <= set(listed), served, listed, "model_differs"))
    if wanted is not None:
        found = served_context(api) or pool["context"]
        out.append(check("context", None if found is None else found == wanted, wanted, found, "context_differs"))
    below = remedy_of("pool_below_floor") + _least_kv(ranks, "; ")
    out += _bounds("effective KV pool (tokens)", pool["effective_tokens"], criteria.get("effective_tokens") or {}, below)
    return out + _bounds("concurrency at full context", pool["concurrency"], criteria.get("concurrency") or {}, below)


def engine_checks(ranks: list[Rank], facts: dict[str, Any], criteria: dict[str, Any]) -> list[dict[str, Any]]:
    """Check the transport and the settings of the engine."""
    out = []
    wanted = criteria.get("transport") or "any"
    if wanted != "any":
        seen = {r["rank"]: (r["facts"].get("nccl") or {}).get("transport") for r in ranks}
        known = [transport for transport in seen.values() if transport not in (None, "unknown")]
        same, remedy = (all(transport == wanted for transport in known), "") if known else (None, TRANSPORT_UNKNOWN)
        out.append(check("transport", same, wanted, seen, "transport_differs", remedy))
    settings = {key: (key, criteria.get(key)) for key in ("kv_cache_dtype", "speculative_method", "dtype", "quantization")}
    settings |= {key: (f"engine: {key}", value) for key, value in (criteria.get("engine") or {}).items()}
    for key, (name, wanted) in settings.items():
        found = facts.get(key)
        if wanted is not None:
            first, second = ({_plain(key, part) for part in str(value).split(",")} for value in (found, wanted))
            same = None if found is None else first == second
            out.append(check(name, same, wanted, found, "engine_differs", remedy_of("engine_differs") + ENGINE_REMEDIES.get(key, "")))
    return out


def _rank_checks(ranks: list[Rank], same_image: bool) -> list[dict[str, Any]]:
    """Check that the ranks agree."""
    by_rank = {r["rank"]: r["facts"] for r in ranks}
    out = []
    for key, name in (("context", "context"), ("version", "vLLM version"), ("world_size", "world size")):
        out += _same(name, {k: f.get(key) for k, f in by_rank.items()})
    for key in ("dtype", "kv_cache_dtype"):
        out += _same(key, {k: f.get(key) and _plain(key, f[key]) for k, f in by_rank.items()})
    remedy = "Distribute the image again (--tags image): the ranks run different images under one name"
    return out + _same("image", {r["rank"]: same_image and image_content(r) for r in ranks}, remedy)


def _end_checks(ranks: list[Rank]) -> list[dict[str, Any]]:
    """Check that no rank has stopped, lost its peer or ended since it was ready."""
    lost = "Read the other rank's log and its container's state, then run again: a rank ended after the boot"
    out = []
    for r in ranks:
        for key, name, wanted, remedy in (("stopped", "was not stopped", "no stop", ""), ("peer_lost", "keeps its peers", "connected", lost)):
            sign = r["facts"].get(key)
            if sign:
                out.append(check(f"rank {r['rank']} {name}", False, wanted, sign.get("line"), key, remedy))
    return out + [_still_up(r) for r in ranks]


def _still_up(rank: Rank) -> dict[str, Any]:
    wrong = _state_finding(rank) or {}
    return check(f"rank {rank['rank']} is up", not wrong, "running", wrong.get("message", "running"), wrong.get("class", ""), wrong.get("remedy", ""))


def first_fault(results: list[dict[str, Any]], strict: bool = False) -> dict[str, Any] | None:
    """Return the first check that does not hold and is not only a warning. What is not known counts only if `strict`."""
    return next((c for c in results if not c.get("warning") and (c["ok"] is False or (strict and c["ok"] is None))), None)


def _figure(value: Any) -> str:
    if isinstance(value, dict):  # by rank
        return ", ".join(f"rank {rank}: {_figure(each)}" for rank, each in value.items())
    if value is None:
        return "not known"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def sentence(group: str, finding: Finding) -> str:
    """Return a failure as a message: rank, class, decisive line, remedy."""
    where = f"{group}: rank {finding['rank']} on {finding['host']}: {finding['class']}"
    at = f" (line {finding['line_number']} of its log)" if finding.get("line_number") else ""
    text = finding["message"].strip().rstrip(".")
    return f"{where}: {text}{at}. Remedy: {finding['remedy'].rstrip('.')}."


def check_sentence(group: str, check: dict[str, Any]) -> str:
    """Return a criterion that does not hold as a message."""
    return (
        f"{group}: {check['class'] or 'criterion'}: {check['name']}: wanted {_figure(check['wanted'])}, found {_figure(check['found'])}."
        f" Remedy: {str(check['remedy']).rstrip('.')}."
    )


def progress(rank: Rank) -> str:
    """Return one line of progress: rank, host, stage, per cent of the weights, free memory."""
    state = rank["container"]
    stage = rank["facts"].get("stage") or ("not started" if state is None else state["status"])
    free = rank["memory"].get("free_kib")
    memory = f"MemFree {free / 1048576:.1f} GiB" if free else ""
    name = "starting" if stage == STAGES[0] else stage
    return progress_text.boot_text(rank["rank"], rank["host"], name, loaded(rank), memory, rank.get("seconds_left"))


def loaded(rank: Rank) -> float | None:
    """Return how many per cent of the weights a rank that loads has; None in other stages."""
    done = rank["facts"].get("progress")
    return float(done["percent"]) if done and rank["facts"]["stage"] == "load" else None
