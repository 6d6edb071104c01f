# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The decision on a boot, from the facts of all ranks and the criteria. _gate/judge.py calls it. Pure.

A *rank* here is a dict that can travel as JSON:
    rank (int), host (str), facts (what _boot_log.stream.BootLog.facts() returns), container (_docker.log.state_of() or None),
    memory (_docker.log.memory_of()), oom_kills_at_start (int), start_error (str), lost (str: why the node can no longer be read),
    seconds (float since the boot began), changed_at (the same clock, when its log or state last moved), stage_since (when its stage began),
    max_restarts (int: how many restarts of its container are still fine), lost_class (the class of `lost`, if not its node's).

A *finding* is a dict: class, rank, host, line, line_number, remedy, message, anchor, weight. The smaller the weight, the nearer to the root.
"""

from __future__ import annotations

import math
import re
import signal
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stages import STAGES

Rank = dict[str, Any]
Finding = dict[str, Any]

# How near to the root a kind of evidence is.
ROOT, KILLED, MISSED, SYMPTOM, TAIL, GONE, SLOW = 0, 1, 2, 3, 4, 5, 6

# What a rank says when the cause lies with another one: a killed or failed peer outranks these.
PEER_SYMPTOMS = ("peer_lost", "rendezvous", "rpc_timeout", "nccl_error")

SHORT_OF_KV = ("kv_too_small", "kv_no_memory")  # said on the head, whichever rank is the short one

SETTLE_SECONDS = 4.0  # how long a symptom waits for its cause to show on another rank
BURST_SECONDS = 1.5  # a rank that runs and has written something so lately may be about to say why: a traceback follows its headline

KILL_REMEDY = (
    "see who sent it: 'journalctl -k --since -1h | grep -i -E \"oom|killed\"' on that node; where it was the kernel,"
    " lower gpu-memory-utilization or stop what else uses memory there; where it was not, a docker stop whose grace period ran out, or another tool"
)
CLASSES: dict[str, str] = {
    "oom_killed": "lower gpu-memory-utilization, stop what else uses memory there, or raise the container's memory limit where it has one; then run again",
    "killed": KILL_REMEDY,
    "stopped": "something stopped the container during the boot (docker stop, a restart of the Docker Engine, another tool): run again without it",
    "container_missing": "something removed the rank's container: run site.yml again, and let nothing else manage these containers",
    "other_release": "another tool has started this container: let the agent alone manage the containers of the group, then run site.yml again",
    "start_failed": "correct what the message names, then run again",
    "node_lost": "the node does not answer its head over the rail: see whether it is frozen (unified memory exhausted), off or unplugged, and whether sshd and"
    " gb10-agent.service run there, then run again",
    "rank_unreadable": "correct what the message names on that node (the Docker Engine, in most cases), then run again",
    "exited": "read the last lines of that rank's log in the evidence bundle",
    "restarted": "something restarts the container (a restart policy, a second tool), and the gate judges one boot: stop that tool, then run again",
    "stalled": "see what the rank is waiting for in its log; where it merely needs longer (first boot: compiling for 8 to 36 minutes), raise"
    " vllm_tp2_timeout, or that stage's vllm_tp2_phase_seconds",
    "gate_error": "the boot was not judged: see `journalctl -u gb10-agent` on the head for the traceback, then run again",
}

# What each class means that does not come from a log. Those of CRITERIA are about a boot that came up.
MEANS: dict[str, str] = {
    "killed": "The engine's process was killed by a signal, and the kernel counts no OOM kill.",
    "stopped": "The container was stopped from outside, with SIGTERM.",
    "container_missing": "A rank has no container, although the agent started it.",
    "other_release": "The container belongs to another release than the one that is being judged.",
    "start_failed": "A rank was not started. It lacks something, a rail has no link, or the Docker Engine refused the container. The sentence names the cause.",
    "node_lost": "The head's agent has not reached a node for 20 s, over SSH on the rail.",
    "rank_unreadable": "The agent of a node answers, and the state and the log of its container cannot be read.",
    "exited": "The container ended and its log holds no known cause.",
    "restarted": "The container was restarted during the boot.",
    "stalled": "A rank stayed in one stage for longer than it may.",
    "gate_error": "The agent on the head failed while it judged the boot, so the boot has no verdict.",
}
CRITERIA: dict[str, tuple[str, str]] = {
    "api_unreachable": ("The log says ready, and /v1/models does not answer.", "Read the head's log; see whether a firewall or another server is in the way."),
    "model_differs": ("The API serves other names than the profile's.", "Another server answers on this port, or served_names differ."),
    "context_differs": ("The context is not the profile's.", "Set max-model-len to the context that the gate wants, or change gate.context."),
    "pool_below_floor": (
        "The KV pool, or the concurrency that follows from it, is smaller than the profile wants.",
        "Free memory on the rank with the least KV memory, raise gpu-memory-utilization, or lower max-num-batched-tokens.",
    ),
    "pool_above_ceiling": ("The KV pool is larger than this profile can have.", "Check the KV cache dtype, the model and the profile's figures."),
    "transport_differs": ("NCCL took another way than the profile wants.", "Check /dev/infiniband in the container, memlock, NCCL_IB_HCA and the GID index."),
    "engine_differs": ("The engine did not take a setting of the profile's.", "Check the image and the arguments."),
    "ranks_disagree": ("The ranks differ in context, version, world size or image.", "Run site.yml on the whole group, with --tags image for the image."),
    "completion_wrong": (
        "A completion is not what the profile expects, or is no text.",
        "Compare weights (--tags weights) and image on all ranks: garbled text after a good boot is damaged data or a wrong kernel.",
    ),
    "completion_missing": (
        "/v1/models answers, and no completion comes back.",
        "Read the logs of all ranks: the engine hangs or has died. If it is only slow, raise vllm_tp2_completion_timeout.",
    ),
}
# What the Docker Engine says when it cannot start a container, and what helps.
START_REMEDIES: tuple[tuple[str, str], ...] = (
    (r"container name .* is already in use", "another container holds that name: see it in `docker ps -a`, remove it with `docker rm -f`, then run again"),
    (r"No such image|pull access denied|manifest unknown|not found: manifest", "that node lacks the image and cannot get it by itself: run --tags image"),
    (r"executable file not found|exec format error|no such file or directory: unknown", "the image of that name on that node is another one: run --tags image"),
    (r"could not select device driver|unresolvable CDI|nvidia-container|unknown or invalid runtime name", "the NVIDIA container toolkit is missing or does"
     " not see the GPU: see `nvidia-smi` and `nvidia-ctk cdi list` on that node, then run --tags docker"),
    (r"no space left on device", "the disk of the Docker Engine on that node is full: see `docker system df` and `df -h`"),
    (r"Cannot connect to the Docker daemon", "the Docker Engine on that node does not run: run --tags docker"),
)  # fmt: skip


def start_remedy(error: str) -> str:
    """Return what helps against a start that failed, by the Docker Engine's words; empty where it is none of the known ones."""
    return next((remedy for pattern, remedy in START_REMEDIES if re.search(pattern, error, re.I)), "")


def _finding(kind: str, rank: Rank, weight: int, message: str, **more: Any) -> Finding:
    return {
        "class": kind,
        "rank": rank["rank"],
        "host": rank["host"],
        "line": more.get("line", ""),
        "line_number": more.get("line_number"),
        "remedy": more.get("remedy") or CLASSES.get(kind, ""),
        "anchor": more.get("anchor") or f"docs/failures.md#{kind}",
        "message": message,
        "weight": weight,
    }


def broken(rank: int, host: str, error: str) -> Finding:
    """Return the finding of a judgement that failed itself."""
    return _finding("gate_error", {"rank": rank, "host": host}, ROOT, error)


def _log_finding(rank: Rank) -> Finding | None:
    facts = rank.get("facts") or {}
    failure = facts.get("failure")
    after = facts.get("state") == "served_then_failed"
    if not failure and after:
        return _finding("engine_failed", rank, TAIL, "the engine served and then failed, and its log holds no known cause", remedy=CLASSES["exited"])
    running = bool((rank.get("container") or {}).get("running"))
    if not failure or (_undecided(rank) and running):
        return None
    kind = str(failure.get("class"))
    return _line_finding(rank, SYMPTOM if kind in PEER_SYMPTOMS else TAIL if failure.get("kind") == "tail" else ROOT)


def _undecided(rank: Rank) -> bool:
    """Tell whether the rank's last failure may be harmless: an optional import, for one. A silent rank may be loading or compiling."""
    facts = rank.get("facts") or {}
    failure = facts.get("failure") or facts.get("suspicion") or {}
    return failure.get("kind") == "weak" and not failure.get("confirmed") and facts.get("state") != "served_then_failed"


def _line_finding(rank: Rank, weight: int, context: str = "") -> Finding:
    failure = rank["facts"].get("failure") or rank["facts"]["suspicion"]
    line = str(failure.get("line") or "").strip()
    return _finding(
        str(failure.get("class")), rank, weight, line + context, line=line, line_number=failure.get("line_number"), remedy=failure.get("remedy"),
        anchor=failure.get("anchor"),
    )  # fmt: skip


def _state_finding(rank: Rank) -> Finding | None:
    """Read what the container's state and the node say; an OOM kill and a SIGKILL leave no line in the log."""
    if rank.get("lost"):
        return _finding(str(rank.get("lost_class") or "node_lost"), rank, ROOT, str(rank["lost"]))
    if rank.get("start_error"):
        error = str(rank["start_error"])
        return _finding("start_failed", rank, ROOT, error, remedy=start_remedy(error))
    if not rank.get("seen"):
        return None
    state = rank.get("container")
    if state is None:
        return _finding("container_missing", rank, KILLED, f"rank {rank['rank']} has no container on {rank['host']}")
    runs, judged = state["labels"].get("gb10.cluster.release"), rank.get("release")
    if runs and judged and runs != judged:
        return _finding("other_release", rank, KILLED, f"the container {state['name']} belongs to release {runs}, and the gate judges release {judged}")
    if state["restart_count"] > int(rank.get("max_restarts") or 0):
        return _finding("restarted", rank, KILLED, f"the container {state['name']} was restarted {state['restart_count']} times")
    kills = (rank.get("memory") or {}).get("oom_kills", 0) - rank.get("oom_kills_at_start", 0)
    tail = ((rank.get("facts") or {}).get("failure") or {}).get("kind") == "tail"
    if kills > 0 and tail and state["running"]:
        return _finding("oom_killed", rank, KILLED, f"the kernel's OOM killer ended a process of the container {state['name']}, or of this node")
    if state["running"] or state["status"] in ("created", "restarting"):
        return None
    code = state["exit_code"]
    if state["oom_killed"] or (kills > 0 and code not in (0, 143)):
        # The engine's processes are the large ones: the kernel ends one of those, and the container's first process then ends with a code of its own.
        return _finding("oom_killed", rank, KILLED, f"the kernel's OOM killer ended the container {state['name']} or a process of it (exit code {code})")
    if code == 137:
        return _finding("killed", rank, KILLED, f"the container {state['name']} was killed (SIGKILL, exit code 137) and left no line in its log")
    if code in (0, 143):
        return _finding("stopped", rank, GONE, f"the container {state['name']} was stopped (exit code {code})")
    how = f"{code}{_signal_of(code)}" + (f": {state['error']}" if state["error"] else "")
    return _finding("exited", rank, GONE, f"the container {state['name']} ended with exit code {how}")


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
    for rank, said in zip(ranks, logs):
        if said and said["class"] in SHORT_OF_KV:
            said["message"] += _least_kv(ranks, ". ")
        state = _state_finding(rank)
        if state and state["weight"] == GONE and not said and _when(rank) <= missed:
            state["weight"] = MISSED  # it went without a word
        out += [(item["weight"], _when(rank), rank["rank"], item) for item in (said, state) if item]
    return [item for _w, _t, _r, item in sorted(out, key=lambda entry: entry[:3])]


def _when(rank: Rank) -> float:
    return float(rank.get("failed_at") or rank.get("changed_at") or 0.0)


def _least_kv(ranks: list[Rank], before: str) -> str:
    """Name the rank with the least memory for the KV cache: vLLM sizes every rank's cache by it, and says so on the head alone. Empty where not known."""
    have = {r["rank"]: finite(((r.get("facts") or {}).get("kv_cache") or {}).get("available_gib")) for r in ranks}
    known = {number: gib for number, gib in have.items() if gib is not None}
    if len(known) < len(ranks) or len(set(known.values())) < 2:
        return ""
    least = min(known, key=lambda number: known[number])
    host = next(r["host"] for r in ranks if r["rank"] == least)
    others = ", ".join(f"rank {number} {gib:g}" for number, gib in sorted(known.items()) if number != least)
    return f"{before}rank {least} on {host} has the least KV memory: {known[least]:g} GiB ({others})"


def _stage(rank: Rank) -> int:
    stage = str((rank.get("facts") or {}).get("stage") or "")
    return STAGES.index(stage) if stage in STAGES else -1  # no word at all


def _timed(ranks: list[Rank]) -> list[Rank]:
    """Return the ranks whose stage has a clock: a headless worker's last words are of its KV memory or graphs, and from then on the time is the head's."""
    head = max((_stage(r) for r in ranks if r["rank"] == 0), default=0)
    return [r for r in ranks if r["rank"] == 0 or head <= max(_stage(r), STAGES.index("kv"))]


def _limit(limits: dict[str, Any], stage: str) -> float | None:
    value = limits.get(stage)
    return float(value) if value is not None else None


def slow(ranks: list[Rank], seconds: float, timeout: float, limits: dict[str, Any]) -> Finding | None:
    """Return the rank that has used up its time: that of one phase (`limits`: seconds by stage), or the whole boot's."""
    timed = _timed(ranks)
    for rank in timed:
        facts = rank.get("facts") or {}
        stage = str(facts.get("stage") or "")
        limit = _limit(limits, stage)
        spent = seconds - float(rank.get("stage_since") or 0.0)
        if limit is not None and spent > limit and facts.get("state") != "ready":
            suspect = next((r for r in (rank, *ranks) if _undecided(r)), None)
            if suspect is not None:
                return _line_finding(suspect, SLOW, f" (rank {rank['rank']} has been at stage {stage} for {spent:.0f} s, allowed are {limit:.0f} s)")
            if stage == "rendezvous":
                missing = [r for r in ranks if r is not rank and not (r.get("container") or {}).get("running")]
                who = f"rank {missing[0]['rank']} on {missing[0]['host']} is not running" if missing else "no other rank has come"
                return _finding(
                    "rendezvous", rank, SLOW, f"rank {rank['rank']} has waited {spent:.0f} s for its peers, and {who}",
                    remedy="check the other rank's container, the master address, GLOO_SOCKET_IFNAME and the cable",
                )  # fmt: skip
            return _finding("stalled", rank, SLOW, f"rank {rank['rank']} has been at stage {stage} for {spent:.0f} s, allowed are {limit:.0f} s")
    if seconds > timeout:
        last = min(timed, key=_stage)  # the one that is furthest behind: the others wait for it
        if _undecided(last):
            return _line_finding(last, SLOW, f" (no verdict after {seconds:.0f} s)")
        stage = f"at stage {last['facts']['stage']}" if _stage(last) > STAGES.index("none") else "before its first line"
        return _finding("stalled", last, SLOW, f"no verdict after {seconds:.0f} s: rank {last['rank']} is {stage}")
    return None


def assess(ranks: list[Rank], seconds: float, timeout: float, limits: dict[str, Any]) -> tuple[str, Finding | None]:
    """Decide on a boot that is under way: ('wait', None), ('fail', finding) or ('probe', None) once the head serves.

    A symptom waits for its cause: until every rank has failed or SETTLE_SECONDS are over, and until those that failed have finished what they were saying.
    """
    found = findings(ranks)
    if found:
        best = found[0]
        first = min(seconds if r.get("failed_at") is None else float(r["failed_at"]) for r in ranks)
        waited = seconds - first
        speakers = [r for r in ranks if r["rank"] == best["rank"] or r.get("failed_at") is not None]
        talking = any((r.get("container") or {}).get("running") and seconds - float(r.get("changed_at") or 0.0) < BURST_SECONDS for r in speakers)
        settled = waited >= SETTLE_SECONDS or all(r.get("failed_at") is not None for r in ranks)
        if best["weight"] <= KILLED or (settled and not talking) or waited >= 3 * SETTLE_SECONDS:
            return "fail", best
        return "wait", None
    late = slow(ranks, seconds, timeout, limits)
    if late:
        return "fail", late
    head = next((r for r in ranks if r["rank"] == 0), None)
    if head and ((head.get("facts") or {}).get("state") == "ready" or head.get("http_status") == 200):
        return "probe", None
    return "wait", None


# --- after the head serves: facts against criteria -------------------------------------------------------------------------------


def _check(name: str, ok: bool | None, wanted: Any, found: Any, remedy: str, kind: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "wanted": wanted, "found": found, "remedy": remedy, "class": kind}


def criterion_remedy(kind: str) -> str:
    """Return a criterion's remedy as it goes into a sentence."""
    text = CRITERIA[kind][1].rstrip(".")
    return text[0].lower() + text[1:]


def finite(value: Any) -> float | None:
    """Return the finite number that `value` is or says; None otherwise."""
    try:
        got = float(str(value))
    except ValueError:
        return None
    return got if math.isfinite(got) else None


def served_context(api: dict[str, Any]) -> int | None:
    """Return the context that /v1/models tells; None where it tells none."""
    return next((int(m["max_model_len"]) for m in api.get("models") or [] if m.get("max_model_len")), None)


def pool_of(head: dict[str, Any], metrics: list[dict[str, str]], context: int | None = None) -> dict[str, Any]:
    """Return the KV pool: tokens as printed, concurrency, context, effective tokens (concurrency x context), and where it was read.

    The server's own metric is exact from vLLM 0.24 on; the log rounds concurrency to two decimals. `context` is the API's, where the log tells none.
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


def _bounds(name: str, found: Any, limits: dict[str, Any], kinds: tuple[str, str], remedies: tuple[str, str]) -> list[dict[str, Any]]:
    out = []
    low, high = limits.get("min"), limits.get("max")
    if low is not None:
        out.append(_check(f"{name} at least", None if found is None else found >= low, low, found, remedies[0], kinds[0]))
    if high is not None:
        out.append(_check(f"{name} at most", None if found is None else found <= high, high, found, remedies[1], kinds[1]))
    return out


def _same(name: str, values: dict[int, Any], remedy: str) -> list[dict[str, Any]]:
    seen = {rank: value for rank, value in values.items() if value not in (None, "", False, {}, [])}
    if len(seen) < 2:
        return []
    return [_check(f"{name} equal on all ranks", len({str(v) for v in seen.values()}) == 1, "equal", seen, remedy, "ranks_disagree")]


def image_content(rank: Rank) -> str:
    """Return the fingerprint of the image that a rank was started from, else the id, which other image stores compute otherwise."""
    state = rank.get("container") or {}
    return str(state.get("labels", {}).get("gb10.cluster.image") or state.get("image_id") or "")


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
    """Hold what the ranks' logs and the API say against the criteria; each check: name, ok (None: not known), wanted, found, remedy, class.

    `api` is what the verb probe returned. `criteria` is a profile's `gate`.
    """
    head = next(r for r in ranks if r["rank"] == 0)
    facts = head.get("facts") or {}
    pool = pool_of(facts, api.get("metrics") or [], served_context(api))
    out: list[dict[str, Any]] = []
    out.append(_check("/v1/models answers", not api.get("error"), "a model", api.get("error") or "ok", criterion_remedy("api_unreachable"), "api_unreachable"))
    served = criteria.get("served_names") or []
    listed = [m["id"] for m in api.get("models") or []]
    if served:
        out.append(_check("served names", set(served) <= set(listed), served, listed, criterion_remedy("model_differs"), "model_differs"))
    if criteria.get("context") is not None:
        found = served_context(api) or pool["context"]
        out.append(
            _check("context", None if found is None else found == criteria["context"], criteria["context"], found, criterion_remedy("context_differs"),
                   "context_differs")
        )  # fmt: skip
    out += _bounds(
        "effective KV pool (tokens)", pool["effective_tokens"], criteria.get("effective_tokens") or {}, ("pool_below_floor", "pool_above_ceiling"),
        (criterion_remedy("pool_below_floor") + _least_kv(ranks, "; "), criterion_remedy("pool_above_ceiling")),
    )  # fmt: skip
    out += _bounds(
        "concurrency at full context", pool["concurrency"], criteria.get("concurrency") or {}, ("pool_below_floor", "pool_above_ceiling"),
        ("as for the pool: more KV memory, or a smaller context", "as for the pool"),
    )  # fmt: skip
    wanted = criteria.get("transport") or "any"
    if wanted != "any":
        seen = {r["rank"]: ((r.get("facts") or {}).get("nccl") or {}).get("transport") for r in ranks}
        known = {rank: t for rank, t in seen.items() if t not in (None, "unknown")}
        ok = None if not known else all(t == wanted for t in known.values())
        out.append(_check("transport", ok, wanted, seen, criterion_remedy("transport_differs"), "transport_differs"))
    for key in ("kv_cache_dtype", "speculative_method", "dtype", "quantization"):
        if criteria.get(key) is not None:
            found = facts.get(key)
            out.append(_check(key, None if found is None else _plain(key, found) == _plain(key, criteria[key]), criteria[key], found,
                              f"the engine did not take the profile's {key}: check the image and the arguments", "engine_differs"))  # fmt: skip
    allowed = int(criteria.get("max_restarts") or 0)
    restarts = {r["rank"]: int((r.get("container") or {}).get("restart_count") or 0) for r in ranks}
    out.append(_check("restarts at most", max(restarts.values()) <= allowed, allowed, restarts, CLASSES["restarted"], "restarted"))
    by_rank = {r["rank"]: r.get("facts") or {} for r in ranks}
    out += _same("context", {k: f.get("context") for k, f in by_rank.items()}, "give all ranks the same max-model-len: run site.yml on the whole group")
    out += _same("vLLM version", {k: f.get("version") for k, f in by_rank.items()}, "use the same image on all ranks")
    out += _same("world size", {k: f.get("world_size") for k, f in by_rank.items()}, "give all ranks the same tensor-parallel-size and nnodes")
    for key in ("dtype", "kv_cache_dtype"):
        names = {k: f.get(key) and _plain(key, f[key]) for k, f in by_rank.items()}
        out += _same(key, names, f"give all ranks the same {key}: run site.yml on the whole group")
    out += _same("image", {r["rank"]: criteria.get("same_image", True) and image_content(r) for r in ranks},
                 "the ranks run different images under one name: distribute the image again (--tags image)")  # fmt: skip
    for r in ranks:
        for key, name, wanted, kind, remedy in (
            ("stopped", "was not stopped", "no stop", "stopped", CLASSES["stopped"]),
            ("peer_lost", "holds its peers", "connected", "peer_lost",
             "a rank went away after the boot: read the other rank's log and its container's state, and run again"),
        ):  # fmt: skip
            sign = (r.get("facts") or {}).get(key)
            if sign:
                out.append(_check(f"rank {r['rank']} {name}", False, wanted, sign.get("line") if isinstance(sign, dict) else sign, remedy, kind))
    out += [_still_up(r) for r in ranks]
    return out


def _still_up(rank: Rank) -> dict[str, Any]:
    wrong = _state_finding(rank)
    return _check(
        f"rank {rank['rank']} is up", wrong is None, "running", wrong["message"] if wrong else "running", wrong["remedy"] if wrong else "",
        wrong["class"] if wrong else "",
    )  # fmt: skip


def first_fault(results: list[dict[str, Any]], strict: bool = False) -> dict[str, Any] | None:
    """Return the first check that does not hold; what is not known counts only when `strict`."""
    return next((c for c in results if c["ok"] is False or (strict and c["ok"] is None)), None)


def _figure(value: Any) -> str:
    if isinstance(value, dict):  # by rank
        return ", ".join(f"rank {rank}: {_figure(each)}" for rank, each in value.items())
    if value is None:
        return "not known"
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.2f}"


def sentence(group: str, finding: Finding) -> str:
    """Say a failure in one or two sentences: who, what, the decisive line, what to do."""
    where = f"{group}: rank {finding['rank']} on {finding['host']}: {finding['class']}"
    at = f" (line {finding['line_number']} of its log)" if finding.get("line_number") else ""
    text = finding["message"].strip().rstrip(".")
    return f"{where}: {text}{at}. Remedy: {finding['remedy'].rstrip('.')}."


def check_sentence(group: str, check: dict[str, Any]) -> str:
    """Say in one or two sentences which criterion does not hold."""
    return (
        f"{group}: {check['class'] or 'criterion'}: {check['name']}: wanted {_figure(check['wanted'])}, found {_figure(check['found'])}."
        f" Remedy: {str(check['remedy']).rstrip('.')}."
    )


def progress(rank: Rank) -> str:
    """One line of progress: rank, host, stage, per cent of the weights, free memory."""
    facts = rank.get("facts") or {}
    state = rank.get("container")
    stage = facts.get("stage") or ("not started" if state is None else state["status"])
    done = facts.get("progress")
    if isinstance(done, dict):
        done = done.get("percent")
    per_cent = f" {done:.0f} %" if isinstance(done, (int, float)) and stage == "load" else ""
    free = (rank.get("memory") or {}).get("free_kib")
    memory = f"  MemFree {free / 1048576:.1f} GiB" if free else ""
    return f"rank {rank['rank']}  {rank['host']:<12} {stage}{per_cent}{memory}"
