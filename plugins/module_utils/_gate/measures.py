# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is measured of a server: its /metrics, accepted drafts, and for the gate the requests, the checks of speed and the figures of a receipt. Pure."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LARGEST
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import check, finite

# --- The progress of a vLLM server by its /metrics, and the verdict if a completion does not come.

_LINE = re.compile(r"^(vllm:\w+)(?:\{(.*)\})?\s+(\S+)", re.MULTILINE)
_TOKENS = ("vllm:generation_tokens_total", "vllm:prompt_tokens_total")
_RUNNING = "vllm:num_requests_running"
_WAITING = "vllm:num_requests_waiting"
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


class Sample(NamedTuple):
    """One reading of /metrics, the sum over all engines of the server."""

    tokens: float  # generated and prefilled since the start
    running: int
    waiting: int


class Limits(NamedTuple):
    """Seconds since the completion was requested."""

    answer: float  # after it, a server that computes for others is busy
    wedge: float  # how long tokens stand still before the engine counts as frozen
    total: float  # the longest wait for a completion of a server without other requests


def metric_figures(text: str, names: Collection[str]) -> Iterator[tuple[str, str, float]]:
    """Yield name, labels and figure of each line of a /metrics page with one of these names; one that is not a number is left out."""
    for name, labels, value in _LINE.findall(text):
        if name in names:
            with contextlib.suppress(ValueError):
                yield name, labels, float(value)


def sums_of(text: str, names: Collection[str]) -> dict[str, float]:
    """Return the sums of these figures over all engines of the server; a name that the page does not have is missing."""
    sums: dict[str, float] = {}
    for name, _labels, number in metric_figures(text, names):
        sums[name] = sums.get(name, 0.0) + (number if 0 <= number < LARGEST else 0.0)  # not NaN, not +Inf
    return sums


def kv_usage(page: str) -> float | None:
    """Return the used share of the KV cache on a /metrics page, the highest of all engines; None if it has none."""
    return max((share for _name, _labels, share in metric_figures(page, _USAGE) if 0 <= share <= 1), default=None)


def sample(text: str) -> Sample | None:
    """Return the figures of a /metrics page; None if it does not count tokens."""
    sums = sums_of(text, (*_TOKENS, _RUNNING, _WAITING))
    if not any(name in sums for name in _TOKENS):
        return None
    return Sample(sum(sums.get(name, 0.0) for name in _TOKENS), int(sums.get(_RUNNING, 0)), int(sums.get(_WAITING, 0)))


def requests_text(seen: Sample) -> str:
    """Return how many requests the server holds, as a phrase. The request of this check is one of them."""
    running = max(1, seen.running)
    waiting = f", {seen.waiting} waiting" if seen.waiting else ""
    return f"{running} request{'s' if running > 1 else ''} running{waiting}"


def decide(seen: Sequence[tuple[float, Sample | None]], limits: Limits, at_idle: bool | None) -> str:
    """Return what a server is whose completion has not come: busy, computing, frozen, wedged, silent; empty to go on waiting.

    `seen` holds (seconds since the request, reading), the first one from before the request; a reading is None if /metrics did not answer.
    `at_idle` tells whether the GPU draws idle power; None if this is not known.
    """
    now = seen[-1][0]
    known = [(when, reading) for when, reading in seen if reading is not None]
    if now < limits.answer:
        return ""
    if not known or now - known[-1][0] >= limits.wedge:
        return "silent" if now >= limits.wedge else ""
    changes = [when for (_before, old), (when, new) in zip(known, known[1:]) if new.tokens != old.tokens]
    still = now - (changes[-1] if changes else known[0][0])
    if changes and still < limits.wedge:
        first = known[0][1]
        others = first.running + first.waiting > 0 or any(reading.running + reading.waiting > 1 for _when, reading in known)
        return "busy" if others or now >= limits.total else ""
    if still < limits.wedge:
        return ""
    return "frozen" if at_idle is None else "wedged" if at_idle else "computing"


# --- Speculative decoding by a vLLM server's counters: what they grew by, and the checks of a profile's `gate.acceptance`.
# The counters are server-wide. They measure the requests of the gate only while no other client asks: `alone` tells whether that was so.

_POSITION = re.compile(r'(?:^|,)position="(\d{1,2})"')
_NAMES = {
    "vllm:spec_decode_num_drafts_total": "drafts", "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens", "vllm:generation_tokens_total": "generated_tokens",
}  # fmt: skip
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
MIN_DRAFT_TOKENS = 60  # fewer prove nothing, neither that a drafter works nor that it does not
# The last step of a reply is counted after the reply was sent, and a prompt may have been measured by a completion of its own.
SLACK_TOKENS = 32

DraftCounters = dict[str, Any]


def draft_counters(text: str) -> DraftCounters:
    """Return the counters of a /metrics page, the sum over all engines; empty for a server without speculative decoding."""
    out: DraftCounters = {}
    positions: dict[int, int] = {}
    for name, labels, number in metric_figures(text, (*_NAMES, _PER_POSITION)):
        if not 0 <= number < LARGEST:  # not NaN, not +Inf
            continue
        place = _POSITION.search(labels)
        if name in _NAMES:
            out[_NAMES[name]] = out.get(_NAMES[name], 0) + int(number)
        elif place is not None:
            positions[int(place.group(1))] = positions.get(int(place.group(1)), 0) + int(number)
    if "draft_tokens" not in out or "accepted_tokens" not in out:
        return {}
    return {**dict.fromkeys(_NAMES.values(), 0), **out, "accepted_per_position": [positions.get(index, 0) for index in range(max(positions, default=-1) + 1)]}


def draft_growth(before: DraftCounters, after: DraftCounters) -> DraftCounters:
    """Return what the counters grew by; empty if one is not known, or the server was restarted in between."""
    if not before or not after:
        return {}
    old = [*before["accepted_per_position"], *[0] * len(after["accepted_per_position"])]
    out = {key: after[key] - before[key] for key in _NAMES.values()}
    out["accepted_per_position"] = [count - old[index] for index, count in enumerate(after["accepted_per_position"])]
    return {} if min([*out["accepted_per_position"], *(out[key] for key in _NAMES.values())]) < 0 else out


def draft_total(answers: Sequence[Mapping[str, Any]]) -> DraftCounters:
    """Return the sum over the gate's answers, with `acceptance` (0 to 1, null without drafts) and `alone`; empty if an answer has no counters."""
    parts = [answer.get("speculation") or {} for answer in answers]
    if not parts or not all(parts):
        return {}
    out: DraftCounters = {key: sum(part[key] for part in parts) for key in _NAMES.values()}
    depth = max(len(part["accepted_per_position"]) for part in parts)
    out["accepted_per_position"] = [sum(sum(part["accepted_per_position"][index : index + 1]) for part in parts) for index in range(depth)]
    out["acceptance"] = round(out["accepted_tokens"] / out["draft_tokens"], 4) if out["draft_tokens"] else None
    received = [each.get("completion_tokens") or 0 for answer in answers for each in answer["replies"]]
    out["alone"] = out["generated_tokens"] <= sum(received) + SLACK_TOKENS * len(received)
    return out


def acceptance_checks(found: DraftCounters, bounds: Mapping[str, Any], speculates: bool) -> list[dict[str, Any]]:
    """Check that drafts are accepted. `found` is what total() returned. Without bounds a drafter that accepts nothing is a warning."""
    least, active = bounds.get("min"), bounds.get("positions_active")
    bounded = least is not None or active is not None
    enough = found.get("draft_tokens", 0) >= MIN_DRAFT_TOKENS
    if not bounded and not (speculates and enough):
        return []
    seen = found.get("draft_tokens") if found else None
    if not enough:
        few = "no counters" if not found else f"{seen} draft tokens, too few to tell"
        return [check("accepted draft tokens", None, "1 or more", few, "drafter_dead")]
    text = f"{found['accepted_tokens']} of {seen}"
    dead = found["accepted_tokens"] == 0
    out = [{**check("accepted draft tokens", not dead, "1 or more", text, "drafter_dead"), "warning": not bounded}]
    if least is not None and not dead:
        good = found["acceptance"] >= least
        # Requests of others, at another temperature, can lower it.
        out.append(check("share of accepted draft tokens", good if good or found["alone"] else None, least, found["acceptance"], "acceptance_low"))
    if active is not None and not dead:
        places = found["accepted_per_position"]
        wanted = f"accepted tokens at positions 0 to {active - 1}"
        good = len(places) >= active and all(places[:active])
        out.append(check("active draft positions", good if places else None, wanted, ", ".join(map(str, places)) or None, "acceptance_low"))
    return out


# --- What the gate measures of a pair that serves: the requests, the checks of speed, and what the receipt of a boot shows.

DECODE_PROMPT = (
    "Write a Python class for a bank account with deposit, withdraw, transfer and a history of its transactions. Add type hints, docstrings and unit tests."
)
DECODE_TOKENS = 256
LEAST_DECODE_TOKENS = 64  # of a shorter reply, the prefill is a large part of its time
SHORT_DECODE = {"prompt": DECODE_PROMPT, "max_tokens": LEAST_DECODE_TOKENS, "body": {"ignore_eos": True}}  # of the canary, and of a soak's samples
FAR_BELOW = 0.7  # of the published speed. Prompts differ; the known faults (a dead drafter, another MoE backend, a GPU at low power) cost 40 % or more.
#: What an agent offers and gate.completion does not need: a drafter that garbles a cold prompt leaks their schemas (docs/tuning.md#garbled-replies).
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": what,
            "parameters": {"type": "object", "properties": {key: {"type": "string", "description": f"The {key}."} for key in keys}, "required": keys},
        },
    }
    for name, what, keys in (
        ("send_mail", "Send a mail to one address.", ["address", "subject", "text"]), ("add_event", "Add an event to the calendar.", ["title", "start"]),
        ("get_weather", "Return the weather of a city.", ["city"]), ("find_contact", "Return the address of a person.", ["name"]),
        ("play_music", "Play a title.", ["title"]), ("book_table", "Book a table in a restaurant.", ["restaurant", "time"]),
    )
]  # fmt: skip
TOOLS_TOKENS = 1024  # what they take in the context, at most
LONG_REPLY_PROMPT = "Write chapter {} of a novel about two engineers who sail around the world, in at least 900 words."
LONG_REPLY_TOKENS = 800
LONG_REPLY_PATIENCE = 4.0  # times the limit of a completion: several replies share the engine, or wait for their turn
PREFILL_PATIENCE_TOKENS = 28000  # the limit of a completion once more for each of these


def decode_is_due(criteria: Mapping[str, Any]) -> bool:
    """Return whether a criterion, a published speed or a drafter makes the gate measure the speed of one stream."""
    bounds = [*(criteria.get("decode_tok_s") or {}).values(), *(criteria.get("acceptance") or {}).values()]
    return any(each is not None for each in [*bounds, criteria.get("published_tok_s"), criteria.get("speculative_method")])


def speed(reply: Mapping[str, Any]) -> float | None:
    """Return tokens/s of a reply, its prefill included; None if it is too short to tell."""
    tokens, seconds = reply.get("completion_tokens") or 0, finite(reply.get("seconds"))
    return round(tokens / seconds, 2) if reply.get("ok") and tokens >= LEAST_DECODE_TOKENS and seconds else None


def decode_checks(found: float | None, criteria: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the speed of one stream with the owner's bound and with the published speed. The latter is only a warning."""
    least, published = (criteria.get("decode_tok_s") or {}).get("min"), finite(criteria.get("published_tok_s"))
    out = []
    if least is not None:
        out.append(check("decode speed (tokens/s) at least", None if found is None else found >= least, least, found, "decode_slow"))
    if published and found is not None and (least is None or found >= least):
        wanted = f"{FAR_BELOW * published:.1f} or more (published: {published:g})"
        out.append({**check("decode speed (tokens/s)", found >= FAR_BELOW * published, wanted, found, "decode_slow"), "warning": True})
    return out


def receipt_checks(receipt: Mapping[str, Any], criteria: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Compare the figures of a receipt with other criteria. What a boot alone shows, such as its replies, is not among the checks."""
    ranks = [dict(rank) for rank in receipt.get("ranks") or []]
    if not ranks:
        return []
    pool, measured, wanted = receipt.get("pool") or {}, receipt.get("measured") or {}, dict(criteria)
    exact = {"kv_cache_max_concurrency": pool.get("concurrency"), "kv_cache_size_tokens": pool.get("tokens")}
    api = {"models": receipt.get("models") or [], "metrics": [exact] if pool.get("source") == "metrics" else []}
    drafts = measured.get("speculation") or {}
    return [
        *gate.model_checks(ranks, ranks[0]["facts"], api, wanted), *gate.engine_checks(ranks, ranks[0]["facts"], wanted),
        *decode_checks(measured.get("decode_tok_s"), wanted),
        *(acceptance_checks(drafts, wanted.get("acceptance") or {}, True) if drafts else []),
    ]  # fmt: skip


def receipt_fault(group: str, receipt: Mapping[str, Any], criteria: Mapping[str, Any]) -> str:
    """Return the first criterion that a receipt does not meet, as a sentence with the remedy; empty if it meets all, or if nothing tells."""
    found = gate.first_fault(receipt_checks(receipt, criteria))
    return gate.check_sentence(group, found) if found else ""
