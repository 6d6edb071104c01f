# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Load on a served model: prompts at once and what came back; `vllm bench serve` of its own image. Pure."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import LARGEST, loads, misfit
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import cell
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import table as columns
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures, reply

CHECK_SCHEMA, BENCH_SCHEMA = "gb10.cluster/sanity/1", "gb10.cluster/bench/1"
AGENT_HINT = "If an agent still shows garbage, see docs/tuning.md#garbled-replies: its session, its fallback models, its parameters."


# --- Concurrent prompts against a served model: which to send, what came back, and the table of it.

# The server's own sampling, which is what an agent gets; api_probe asks with temperature 0 otherwise.
_OWN_SAMPLING: dict[str, Any] = {"temperature": None}

# Longer than 411 tokens, from which on the reply is garbled if the KV cache has the wrong layout (tonyd2wild); the answer stands in the middle.
_LONG_PROMPT = (
    "\n".join(
        f"Entry {number}: {'the code of the archive is 4711-K' if number == 30 else f'shelf {number} holds {number * 7 % 50} boxes of cables'}."
        for number in range(1, 61)
    )
    + "\nWhat is the code of the archive? Answer with the code only."
)

# Prompts of the kinds that have come back garbled from damaged weights, wrong kernels and a confused KV cache: known answers, prose, lists,
# code, JSON, a quotation with markup-like words, and a language other than English. Those with a known answer are asked without sampling.
PROMPTS: tuple[dict[str, Any], ...] = (
    {"prompt": "What is 17 times 23? Answer with the number only.", "chat": True, "max_tokens": 512, "expect": "391"},
    {"prompt": "Explain in one paragraph why two computers on one cable still need matching MTU settings.", "body": _OWN_SAMPLING},
    {"prompt": "Write a Python function that merges two sorted lists without using sort(). Code only.", "body": _OWN_SAMPLING},
    {"prompt": 'Reply with JSON only: an object with the keys "city" and "country" for the Eiffel Tower.', "expect": "France"},
    {"prompt": "List the eight planets of the solar system from the sun outwards, one a line.", "expect": "Neptune"},
    {"prompt": "Erkläre in drei deutschen Sätzen, was ein Arbeitsspeicher ist.", "body": _OWN_SAMPLING},
    {"prompt": "A file was edited by two people at once. Describe step by step how you would reconcile both versions.", "body": _OWN_SAMPLING},
    {"prompt": "You may call tools in your work, but none is needed here: explain in two sentences what a checksum proves.", "body": _OWN_SAMPLING},
    {"prompt": "Repeat this sentence exactly once: The worker starts first, then the head.", "expect": "The worker starts first, then the head."},
    {"prompt": "Tell a story of about 150 words about a lighthouse keeper who repairs a radio.", "body": _OWN_SAMPLING},
    {"prompt": "Which is heavier, a kilogram of iron or a kilogram of feathers? Give a short reason.", "body": _OWN_SAMPLING},
    {"prompt": "What is the capital of Portugal? Answer with the name only.", "expect": "Lisbon"},
    {"prompt": _LONG_PROMPT, "expect": "4711-K"},
)
MAX_TOKENS = 512


class BenchError(Exception):
    """Something a user can act on; its text is a sentence without its full stop."""


def whole_numbers(name: str, value: str, lowest: int, highest: int = LARGEST) -> list[int]:
    """Return the numbers in a text such as `1,2,4,6`. Raises BenchError."""
    words = value.replace(",", " ").split()
    out = [int(word) for word in words if word.isdigit()]
    if not out or len(out) < len(words) or min(out) < lowest or max(out) > highest:
        limits = f"from {lowest}" + (f" to {highest}" if highest < LARGEST else "")
        raise BenchError(f"{name} are {value!r}; expected are whole numbers {limits} such as {lowest},{lowest + 4}")
    return out


_OF_A_PROMPT = ("prompt", "expect", "chat", "max_tokens", "body")


def prompts_of(own: Any) -> list[dict[str, Any]]:
    """Return the prompts to ask, complete: the user's own, or else those of this collection. Raises BenchError."""
    if not isinstance(own, list):
        raise BenchError("The prompts are not a list")
    out = []
    for number, given in enumerate(own or PROMPTS, 1):
        entry: Any = {"prompt": given} if isinstance(given, str) else given
        fits = isinstance(entry, Mapping) and isinstance(entry.get("prompt"), str) and entry["prompt"].strip() and not set(entry) - set(_OF_A_PROMPT)
        if not fits or not isinstance(entry.get("max_tokens") or 0, int) or not isinstance(entry.get("body") or {}, Mapping):
            raise BenchError(f"Prompt {number} is {given!r}; expected is a text, or a mapping with prompt, and optionally expect, chat, max_tokens and body")
        more = {"expect": entry.get("expect"), "chat": bool(entry.get("chat", True)), "max_tokens": entry.get("max_tokens") or MAX_TOKENS}
        out.append({"prompt": entry["prompt"], **more, "body": {**(entry.get("body") or {})}})
    return out


def batches(prompts: Sequence[Mapping[str, Any]], levels: Sequence[int]) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Return (requests at once, their prompts) for each level; the levels go on where the one before has stopped, so that all prompts get asked."""
    out, start = [], 0
    for level in levels:
        out.append((level, [prompts[(start + k) % len(prompts)] for k in range(level)]))
        start += level
    return out


def cut(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence about replies that were cut at their length before the answer began; empty if there are none. They are not judged as bad."""
    number, total = sum(row["cut"] for row in rows), sum(row["requests"] for row in rows)
    if not number:
        return ""
    return (
        f"{number} of {total} replies ended in their reasoning, at max_tokens, so their answers are not known."
        " Raise max_tokens of these prompts in vllm_tp2_sanity_prompts, or turn the reasoning off in their body."
    )


def requests_of(prompts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what api_probe is asked."""
    return [{key: prompt[key] for key in ("prompt", "chat", "max_tokens", "body")} for prompt in prompts]


def _rate(tokens: int, seconds: float) -> float:
    return round(tokens / seconds, 1) if seconds > 0 else 0.0


def prompt_row(level: int, prompts: Sequence[Mapping[str, Any]], replies: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Judge one level: replies, their speeds (tokens a second; the aggregate over the slowest, as all were sent at once) and what is bad.

    The result has `concurrency`, `requests`, `bad_outputs`, `cut` (before the answer), `faults` (prompt, text, fault), `seconds`, `slowest_tok_s`,
    `fastest_tok_s`, `aggregate_tok_s`, `tokens` and `streams` (prompt, ok, seconds, tokens, tok_s, text).
    """
    faults, streams, ended = [], [], 0
    for number, prompt in enumerate(prompts):
        answer: dict[str, Any] = dict(replies[number]) if number < len(replies) else {"ok": False, "error": "the request was not sent"}
        found = reply.faults(prompt["prompt"], answer, prompt.get("expect"))
        if found:
            faults.append({"prompt": prompt["prompt"], "text": str(answer.get("text") or ""), "fault": "; ".join(found)})
        ended += reply.cut_while_reasoning(answer)
        tokens, seconds = int(answer.get("completion_tokens") or 0), float(answer.get("seconds") or 0.0)
        streams.append(
            {
                "prompt": prompt["prompt"], "ok": bool(answer.get("ok")), "seconds": seconds, "tokens": tokens,
                "tok_s": _rate(tokens, seconds), "text": str(answer.get("text") or ""),
            }
        )  # fmt: skip
    seconds = max([stream["seconds"] for stream in streams], default=0.0)
    tokens = sum(stream["tokens"] for stream in streams)
    rates = [stream["tok_s"] for stream in streams if stream["ok"]] or [0.0]
    return {
        "concurrency": level, "requests": len(prompts), "bad_outputs": len(faults), "cut": ended, "faults": faults, "seconds": round(seconds, 2),
        "tokens": tokens, "slowest_tok_s": min(rates), "fastest_tok_s": max(rates), "aggregate_tok_s": _rate(tokens, seconds), "streams": streams,
    }  # fmt: skip


def prompt_table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the levels, one line each."""
    cells = []
    for row in rows:
        span = f"{row['slowest_tok_s']:.1f}-{row['fastest_tok_s']:.1f}" if row["slowest_tok_s"] != row["fastest_tok_s"] else f"{row['fastest_tok_s']:.1f}"
        counts = (row["concurrency"], row["requests"], row["bad_outputs"])
        cells.append((*counts, f"{row['seconds']:.2f}", span, f"{row['aggregate_tok_s']:.1f}"))
    return columns(("at once", "replies", "bad_outputs", "slowest s", "tok/s a stream", "tok/s in all"), cells)


def stream_lines(row: Mapping[str, Any]) -> list[str]:
    """Return the table of the streams of a level, the last row for all of them."""
    cells: list[tuple[Any, ...]] = []
    for number, stream in enumerate(row["streams"], 1):
        rate = f"{stream['tok_s']:.1f}" if stream["ok"] else None
        cells.append((number, f"{stream['seconds']:.2f}", stream["tokens"], rate, cell(stream["text"], 60) if stream["ok"] else "no completion"))
    cells.append(("all", f"{row['seconds']:.2f}", row["tokens"], f"{row['aggregate_tok_s']:.1f}", f"{row['requests']} at once"))
    return columns(("stream", "seconds", "tokens", "tok/s", "reply"), cells)


def fault_lines(rows: Sequence[Mapping[str, Any]], shown: int = 20) -> list[str]:
    """Return the table of bad replies; empty if none is."""
    bad = [(row["concurrency"], cell(fault["prompt"], 40), cell(fault["text"], 40), fault["fault"]) for row in rows for fault in row["faults"]]
    more = [f"and {len(bad) - shown} more"] if len(bad) > shown else []
    return [*columns(("at once", "prompt", "reply", "reason"), bad[:shown]), *more] if bad else []


def complaint(group: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the sentence about what is bad, naming prompt and fault; empty where nothing is."""
    bad = [(row, fault) for row in rows for fault in row["faults"]]
    if not bad:
        return ""
    shown = "; ".join(f"at {row['concurrency']} at once, to {fault['prompt'][:80]!r}: {fault['fault']}" for row, fault in bad[:6])
    more = f"; and {len(bad) - 6} more" if len(bad) > 6 else ""
    total = sum(row["requests"] for row in rows)
    single = any(row["concurrency"] == 1 and row["faults"] for row in rows)
    if all("no completion came back" in fault["fault"] for _row, fault in bad):
        remedy = "see playbooks/status.yml, and collect playbooks/evidence.yml before you restart"
    elif single:
        remedy = reply.remedy([each for _row, fault in bad for each in fault["fault"].split("; ")]) or (
            "delete the folders of container.cache_dirs with their key on all ranks (a stale compile cache garbles), then compare weights and image of all"
            " ranks (site.yml --tags image,weights). See docs/tuning.md#garbled-replies"
        )
    else:
        remedy = "one request alone is fine, so lower max-num-seqs, or take an image with the concurrency fixes. See docs/tuning.md#garbled-replies"
    return f"{group}: {len(bad)} of {total} replies are bad: {shown}{more}. Remedy: {remedy}."


# --- Measure a served model with `vllm bench serve` of its own image: the levels, the command, and the figures.

SHORTEST = 16  # tokens of a prompt at depth 0
SUFFIX = 16  # tokens of a prompt with a shared prefix that differ
VARIED = 0.5  # lengths of a soak vary by this share
#: What is read of a result of `vllm bench serve`.
RESULT = {
    "completed": int, "total_input_tokens": int, "total_output_tokens": int, "duration": float, "output_throughput": float, "median_ttft_ms": float,
    "p99_ttft_ms?": float, "median_tpot_ms": float, "median_itl_ms": float,
}  # fmt: skip
_SUMS = {
    "drafted": "vllm:spec_decode_num_draft_tokens_total", "accepted": "vllm:spec_decode_num_accepted_tokens_total",
    "queries": "vllm:prefix_cache_queries_total", "hits": "vllm:prefix_cache_hits_total", "preempted": "vllm:num_preemptions_total",
}  # fmt: skip
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
#: The result is the only text on stdout. timeout(1) is in the container, because a process there does not end with `docker exec`. The key is in the
#: container's environment, and neither in these words nor in the result.
SHELL = (
    'export OPENAI_API_KEY="${VLLM_API_KEY:-$OPENAI_API_KEY}"; limit=$1; shift; d=$(mktemp -d) || exit 1; '
    'timeout -k 5 "$limit" vllm bench serve "$@" --save-result --result-dir "$d" --result-filename result.json >&2; code=$?; '
    'cat "$d/result.json" 2>/dev/null; rm -rf "$d"; exit "$code"'
)


def levels_of(
    depths: str, concurrency: str, output_tokens: int, prefix: str = "cold", request_rate: float | None = None, requests: int = 0, varied: bool = False
) -> list[dict[str, Any]]:
    """Return the levels to measure, each depth at each concurrency. `requests` is their number at a level; 0 is two for each stream. Raises BenchError."""
    if request_rate is not None and not 0 < request_rate < LARGEST:
        raise BenchError(f"The request rate is {request_rate!r}; expected are requests per second above 0")
    return [
        {
            "depth": depth, "concurrency": streams, "output_tokens": max(1, output_tokens), "requests": requests or 2 * streams, "prefix": prefix,
            "request_rate": request_rate, "varied": varied,
        }
        for depth in whole_numbers("The depths", depths, 0)
        for streams in whole_numbers("The numbers of requests at once", concurrency, 1)
    ]  # fmt: skip


def longest(level: Mapping[str, Any]) -> int:
    """Return the number of tokens that the longest request of a level may have."""
    tokens: int = max(level["depth"], SHORTEST) + level["output_tokens"]
    return math.ceil(tokens * (1 + (VARIED if level["varied"] else 0)))


def words(level: Mapping[str, Any], url: str, model: str, tokenizer: Sequence[str], seed: int, seconds: int) -> list[str]:
    """Return the words after `docker exec CONTAINER`. `tokenizer` are the arguments that name the tokenizer in the container."""
    length, answer = max(level["depth"], SHORTEST), level["output_tokens"]
    if level["prefix"] == "warm":
        data = {
            "dataset-name": "prefix_repetition", "prefix-repetition-prefix-len": max(1, length - SUFFIX), "prefix-repetition-suffix-len": SUFFIX,
            "prefix-repetition-num-prefixes": 1, "prefix-repetition-output-len": answer,
        }  # fmt: skip
    else:
        data = {"dataset-name": "random", "random-input-len": length, "random-output-len": answer}
        if level["varied"]:
            data["random-range-ratio"] = VARIED
    options = {
        "base-url": url, "model": model, **data, "num-prompts": level["requests"], "max-concurrency": level["concurrency"],
        "request-rate": level["request_rate"] or "inf", "seed": seed, "percentile-metrics": "ttft,tpot,itl,e2el", "metric-percentiles": "99",
        "ready-check-timeout-sec": 0,  # its request would be the first prompt, which then is in the prefix cache
    }  # fmt: skip
    listed = [word for name, value in options.items() for word in (f"--{name}", str(value))]
    return ["sh", "-c", SHELL, "bench", str(seconds), *listed, "--ignore-eos", "--disable-tqdm", *tokenizer]


def counters(page: str) -> dict[str, float]:
    """Return the counters of a /metrics page that a level changes, the sums over all engines; a missing one is left out."""
    found = measures.sums_of(page, _SUMS.values())
    return {key: found[name] for key, name in _SUMS.items() if name in found}


def kv_usage(page: str) -> float | None:
    """Return the used share of the KV cache on a /metrics page, the highest of all engines; None if it has none."""
    return max((share for _name, _labels, share in measures.metric_figures(page, _USAGE) if 0 <= share <= 1), default=None)


def _share(before: Mapping[str, float], after: Mapping[str, float], part: str, whole: str) -> float | None:
    total = after.get(whole, 0.0) - before.get(whole, 0.0)
    return round(100 * (after.get(part, 0.0) - before.get(part, 0.0)) / total, 1) if total > 0 else None


def row_of(level: Mapping[str, Any], text: str, before: Mapping[str, float], after: Mapping[str, float], usage: float | None) -> dict[str, Any]:
    """Return the figures of a level from the result's JSON text and the counters around it. Raises BenchError if the text is not a result."""
    try:
        found = loads(text)
        problem = misfit(found, RESULT)
    except ValueError as error:
        found, problem = {}, str(error)
    if problem:
        raise BenchError(f"the result of vllm bench serve is not valid: {problem}")
    done, single = found["completed"], level["concurrency"] == 1
    tpot, ttft = found["median_tpot_ms"], found["median_ttft_ms"]
    return {
        **{key: level[key] for key in ("depth", "concurrency", "requests", "output_tokens", "prefix", "request_rate", "varied")},
        "completed": done, "seconds": round(found["duration"], 2), "tok_s": round(found["output_throughput"], 2),
        "stream_tok_s": round(1000 / tpot, 2) if tpot > 0 else None, "ttft_ms": round(ttft, 1), "ttft_p99_ms": round(found.get("p99_ttft_ms") or ttft, 1),
        # The prompts of several streams wait for each other.
        "prefill_tok_s": round(found["total_input_tokens"] / done / ttft * 1000, 1) if single and done and ttft > 0 and level["prefix"] == "cold" else None,
        "itl_ms": round(found["median_itl_ms"], 2), "acceptance_percent": _share(before, after, "accepted", "drafted"),
        "cache_hit_percent": _share(before, after, "hits", "queries"), "kv_usage_percent": None if usage is None else round(100 * usage, 1),
        "preemptions": int(after.get("preempted", 0) - before.get("preempted", 0)),
    }  # fmt: skip


def reason_of(code: int, err: str, seconds: int) -> str:
    """Return why `vllm bench serve` has failed, with the remedy."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    last = lines[-1][:300].rstrip(".") if lines else "no message"
    if code in (124, 137):
        return f"it did not end within {seconds} s. Use fewer or shorter requests (bench_depths, bench_output_tokens), or a larger bench_timeout"
    if code == 127 or "invalid choice: 'bench'" in err:
        return f"the image has no vllm bench serve ({last}). Use an image with vLLM 0.11 or later, or measure from another machine"
    if "unrecognized arguments" in err:
        return f"the vllm bench serve of the image is of another version ({last}). Use an image with vLLM 0.11 or later"
    if "No module named" in err or "ImportError" in err:
        return f"the image lacks what vllm bench serve imports ({last}). Add vllm[bench] to the image, or use another one"
    return f"{last} (exit code {code})"


# --- for people

_COLUMNS = (
    ("depth", "depth"), ("at once", "concurrency"), ("done", "completed"), ("of", "requests"), ("tok/s", "tok_s"), ("per stream", "stream_tok_s"),
    ("TTFT ms", "ttft_ms"), ("p99", "ttft_p99_ms"), ("prefill tok/s", "prefill_tok_s"), ("ITL ms", "itl_ms"), ("accepted %", "acceptance_percent"),
    ("cache hit %", "cache_hit_percent"), ("KV used %", "kv_usage_percent"), ("preempted", "preemptions"),
)  # fmt: skip


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of the levels, one line each. A figure that is not known is a dash."""
    cells = [[f"{row[key]:,.1f}" if isinstance(row[key], float) else row[key] for _title, key in _COLUMNS] for row in rows]
    return columns([title for title, _key in _COLUMNS], cells)


def memory_lines(rounds: Mapping[str, Sequence[Mapping[str, Any]]], requests: Sequence[int]) -> list[str]:
    """Return one line a rank: the lowest memory, and how much a request has cost.

    `rounds` are, by host, `lowest_available_kib`, `lowest_free_kib` and `after_kib` (MemAvailable after it) of each round; `requests` those of each
    round. The first round fills caches, so the cost counts from its end.
    """
    out = []
    for host, each in rounds.items():
        if not each:
            continue
        lowest = [min(one[key] for one in each) / 2**20 for key in ("lowest_available_kib", "lowest_free_kib")]
        line = f"{host}: lowest MemAvailable {lowest[0]:.1f} GiB, lowest MemFree {lowest[1]:.1f} GiB"
        count = sum(requests[1 : len(each)])
        if len(each) > 1 and count:
            lost = (each[0]["after_kib"] - each[-1]["after_kib"]) / 1024
            line += f"; {lost:+,.0f} MiB in {count:,} requests, {lost / count:+.2f} MiB a request"
        out.append(line)
    return out


def bench_title(found: Mapping[str, Any]) -> str:
    """Return the first line of a measurement."""
    return f"{found['group']}, release {found['release']}, profile {found['profile'] or 'not known'}, {found['time']}"


def last_levels(rows: Sequence[Mapping[str, Any]], shown: int = 40) -> list[str]:
    """Return the table of the last levels."""
    return [*([f"The last {shown} of {len(rows)} levels:"] if len(rows) > shown else []), *table(rows[-shown:])]


def figures_lines(rounds: Mapping[str, Sequence[Mapping[str, Any]]], requests: Sequence[int]) -> list[str]:
    """Return what is printed after the table: the memory of all ranks."""
    memory = memory_lines(rounds, requests)
    return ["", "Memory:", *memory] if memory else []


def judged(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document. `found` has group, release, profile, port and streams (whether a line is printed for each stream)."""
    bad = complaint(found["group"], rows)
    return {
        "schema": CHECK_SCHEMA, **found, "passed": not bad, "rows": list(rows),
        "sentence": bad or f"{found['group']}: {sum(row['requests'] for row in rows)} replies, none bad. {AGENT_HINT}",
        "notes": [f"{found['group']}: {cut(rows)}"] if cut(rows) else [],
    }  # fmt: skip


def title_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what is printed first."""
    return ["", f"{found['group']}: release {found['release']} of profile {found['profile']}, port {found['port']}", ""]


def closing_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what is printed after the last level: bad replies, notes, and the verdict if it is good. A bad one is the message of the failure."""
    bad = fault_lines(document["rows"])
    return [*(["", *bad] if bad else []), "", *document["notes"], *([document["sentence"]] if document["passed"] else [])]


def check_lines(document: Mapping[str, Any]) -> list[str]:
    """Return a document as text."""
    rows = document["rows"]
    levels = [line for row in rows for line in stream_lines(row)] if document["streams"] else prompt_table(rows)
    return [*title_lines(document), *levels, *closing_lines(document)]
