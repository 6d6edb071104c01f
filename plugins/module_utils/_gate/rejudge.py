# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A boot that was judged, against other criteria: what its receipt shows would fail today. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, measures, speculation


def checks(receipt: Mapping[str, Any], criteria: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of a receipt's figures. What a boot alone shows, such as its replies, is not among them."""
    ranks = [dict(rank) for rank in receipt.get("ranks") or []]
    if not ranks:
        return []
    pool, measured, wanted = receipt.get("pool") or {}, receipt.get("measured") or {}, dict(criteria)
    exact = {"kv_cache_max_concurrency": pool.get("concurrency"), "kv_cache_size_tokens": pool.get("tokens")}
    api = {"models": receipt.get("models") or [], "metrics": [exact] if pool.get("source") == "metrics" else []}
    drafts = measured.get("speculation") or {}
    return [
        *gate.model_checks(ranks, ranks[0]["facts"], api, wanted), *gate.engine_checks(ranks, ranks[0]["facts"], wanted),
        *measures.decode_checks(measured.get("decode_tok_s"), wanted),
        *(speculation.checks(drafts, wanted.get("acceptance") or {}, True) if drafts else []),
    ]  # fmt: skip


def fault(group: str, receipt: Mapping[str, Any], criteria: Mapping[str, Any]) -> str:
    """Return the first criterion that a receipt does not meet, as a sentence with the remedy; empty if it meets all, or if nothing tells."""
    found = gate.first_fault(checks(receipt, criteria))
    return gate.check_sentence(group, found) if found else ""
