# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The cases that a served model is asked: prompts at once, and the users of a soak; what came back, and the tables of it. Pure."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LARGEST
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import cell
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import table as columns
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures, reply

CHECK_SCHEMA = "gb10.cluster/sanity/1"
AGENT_HINT = "If an agent still shows garbage, see docs/tuning.md#garbled-replies: its session, its fallback models, its parameters."


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


# Their replies are compared or follow a long prompt, so none may end in its reasoning.
_AT_ONCE: dict[str, Any] = {"body": {"chat_template_kwargs": {"thinking": False, "enable_thinking": False}}, "chat": True, "expect": None}
_VICTIM = {**_AT_ONCE, "prompt": "Write a Python class for a cache whose entries expire, then explain each method.", "max_tokens": 220}
_COLD = {"prompt": "What is the capital of Portugal? Answer with the name only, without a tool.", "expect": "Lisbon", "max_tokens": 256, "cold": True}
CHURNERS, STAGGERED, STAGGER_SECONDS = 6, 16, 0.4


def cases_of(names: Sequence[str], prompts: Sequence[Mapping[str, Any]], levels: Sequence[int], cold_tokens: int) -> list[tuple[int, list[Mapping[str, Any]]]]:
    """Return (requests at once, their prompts) of each named case, as the scripts of the seeds asked. Raises BenchError.

    `victim` is a reply alone, then again while six others start and end: `as_before` wants the text of the batch before. `staggered` sends one request
    after another, each `after` some seconds. `cold-tools` is a question with tools after a prompt that no cache has.
    """
    count = len(prompts)
    known: dict[str, list[tuple[int, list[Mapping[str, Any]]]]] = {
        "prompts": batches(prompts, levels),
        "victim": [(1, [_VICTIM]), (1 + CHURNERS, [{**_VICTIM, "as_before": True}, *(prompts[place % count] for place in range(3 * CHURNERS))])],
        "staggered": [(STAGGERED, [{**prompts[place % count], "after": place * STAGGER_SECONDS} for place in range(STAGGERED)])],
        "cold-tools": [(1, [{**_AT_ONCE, **_COLD, "prompt_tokens": cold_tokens, "body": {**_AT_ONCE["body"], "tools": measures.TOOLS}}])],
    }
    strange = [name for name in names if name not in known]
    if strange or not names:
        raise BenchError(f"The cases are {', '.join(names) or 'empty'}; expected are {', '.join(known)}")
    return [batch for name in names for batch in known[name]]


def requests_of(prompts: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what api_probe is asked."""
    asked = ("prompt", "chat", "max_tokens", "body", "prompt_tokens", "cold", "after")
    return [{key: prompt[key] for key in asked if key in prompt} for prompt in prompts]


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
        found, alone, text = reply.faults(prompt["prompt"], answer, prompt.get("expect")), str(prompt.get("alone") or ""), str(answer.get("text") or "")
        if alone and answer.get("ok") and text != alone:
            same = next((place for place, (one, other) in enumerate(zip(alone, text)) if one != other), min(len(alone), len(text)))
            found = [*found, f"it is not the reply that came alone, from character {same + 1} on: {text[same : same + 40]!r}, not {alone[same : same + 40]!r}"]
        if found:
            faults.append({"prompt": prompt["prompt"], "text": text, "fault": "; ".join(found)})
        ended += reply.cut_while_reasoning(answer)
        tokens, seconds = int(answer.get("completion_tokens") or 0), float(answer.get("seconds") or 0.0)
        streams.append(
            {
                "prompt": prompt["prompt"], "ok": bool(answer.get("ok")), "seconds": seconds, "tokens": tokens,
                "tok_s": _rate(tokens, seconds), "text": text,
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


# --- The load of a soak: users drawn by a seed, who write, wait for the reply, read it and go on. Pure; the same seed is the same load.

MOST_USERS = 32
USERS = 9  # and one, without max-num-seqs
ROOM = 0.7  # of the context: a tokenizer counts other tokens than were estimated
COLD_TOKENS = 20_000
SHORT, LONG = 16, 1024  # tokens of a reply
COLD, CANCELLED, GOES_ON = 0.03, 0.05, 0.75  # shares of the requests
BURST_EVERY, BURST = 600.0, 0.3  # seconds of a window, and the share of the windows with a burst
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "at", "from", "are", "this", "have", "you")


class Request(NamedTuple):
    """One request of a user: how long the user waits before it, its text by its conversation and length, and when the user gives up."""

    pause: float
    conversation: str
    prompt_tokens: int
    max_tokens: int
    cancel_after: float | None


def users_of(settings: Mapping[str, Any]) -> int:
    """Return how many users there are: each has one request at most, and one more measures the speed, so the engine runs all that it holds."""
    return max(1, min(MOST_USERS, int(settings.get("max-num-seqs") or USERS) - 1))


def _drawn(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311  not for secrets


def requests(seed: str, user: int, context: int, pause: float) -> Iterator[Request]:
    """Yield the requests of a user without end. `pause` is the mean of seconds between them."""
    draw, room, turn, tokens, conversation = _drawn(f"{seed}/{user}"), int(ROOM * context), 0, 0, 0

    def length(middle: float, width: float) -> int:
        return max(SHORT, int(draw.lognormvariate(math.log(middle), width)))

    while True:
        reply = min(LONG, length(150, 0.8), max(1, room // 4))
        cold = draw.random() < COLD
        if cold or not turn or draw.random() > GOES_ON or tokens + reply > room:
            turn, tokens, conversation = 0, 0, conversation + 1
        tokens = min(tokens + (max(COLD_TOKENS, length(COLD_TOKENS, 0.3)) if cold else length(300, 1.0)), room - reply)
        cancel = draw.uniform(0.2, 5.0) if draw.random() < CANCELLED else None
        yield Request(draw.expovariate(1 / pause) if pause else 0.0, f"{seed}/{user}/{conversation}", tokens, reply, cancel)
        turn, tokens = turn + 1, tokens + reply  # the next turn has all before it


def bursts(seed: str, seconds: float) -> bool:
    """Whether all users write at once at this time of the soak, without a pause."""
    window = int(seconds // BURST_EVERY)
    draw = _drawn(f"{seed}/burst/{window}")
    start = draw.uniform(0, 0.8 * BURST_EVERY)
    return draw.random() < BURST and start <= seconds - window * BURST_EVERY < start + draw.uniform(30, 90)


def text_of(request: Request, tokens_per_word: float = 1.0) -> str:
    """Return the prompt of a request: that of a later turn begins with those before it."""
    draw = _drawn(request.conversation)
    head = " ".join(str(draw.randrange(10**6)) for _part in range(4))  # no other conversation begins so
    return " ".join([head, *draw.choices(WORDS, k=max(1, int((request.prompt_tokens - 12) / max(tokens_per_word, 0.5))))])
