# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the gate measures of a pair that serves: the requests, the checks of speed, and what the receipt of a boot shows. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, speculation
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import check, finite

DECODE_PROMPT = (
    "Write a Python class for a bank account with deposit, withdraw, transfer and a history of its transactions. Add type hints, docstrings and unit tests."
)
DECODE_TOKENS = 256
LEAST_DECODE_TOKENS = 64  # of a shorter reply, the prefill is a large part of its time
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
        *(speculation.checks(drafts, wanted.get("acceptance") or {}, True) if drafts else []),
    ]  # fmt: skip


def receipt_fault(group: str, receipt: Mapping[str, Any], criteria: Mapping[str, Any]) -> str:
    """Return the first criterion that a receipt does not meet, as a sentence with the remedy; empty if it meets all, or if nothing tells."""
    found = gate.first_fault(receipt_checks(receipt, criteria))
    return gate.check_sentence(group, found) if found else ""
