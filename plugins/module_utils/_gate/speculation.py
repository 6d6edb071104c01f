# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Speculative decoding by a vLLM server's counters: what they grew by, and the checks of a profile's `gate.acceptance`. Pure.

The counters are server-wide. They measure the requests of the gate only while no other client asks: `alone` tells whether that was so.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import LARGEST
from ansible_collections.gb10.cluster.plugins.module_utils._gate import metrics
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import check

_POSITION = re.compile(r'(?:^|,)position="(\d{1,2})"')
_NAMES = {
    "vllm:spec_decode_num_drafts_total": "drafts", "vllm:spec_decode_num_draft_tokens_total": "draft_tokens",
    "vllm:spec_decode_num_accepted_tokens_total": "accepted_tokens", "vllm:generation_tokens_total": "generated_tokens",
}  # fmt: skip
_PER_POSITION = "vllm:spec_decode_num_accepted_tokens_per_pos_total"
MIN_DRAFT_TOKENS = 60  # fewer prove nothing, neither that a drafter works nor that it does not
# The last step of a reply is counted after the reply was sent, and a prompt may have been measured by a completion of its own.
SLACK_TOKENS = 32

Counters = dict[str, Any]


def counters(text: str) -> Counters:
    """Return the counters of a /metrics page, the sum over all engines; empty for a server without speculative decoding."""
    out: Counters = {}
    positions: dict[int, int] = {}
    for name, labels, number in metrics.figures(text, (*_NAMES, _PER_POSITION)):
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


def growth(before: Counters, after: Counters) -> Counters:
    """Return what the counters grew by; empty if one is not known, or the server was restarted in between."""
    if not before or not after:
        return {}
    old = [*before["accepted_per_position"], *[0] * len(after["accepted_per_position"])]
    out = {key: after[key] - before[key] for key in _NAMES.values()}
    out["accepted_per_position"] = [count - old[index] for index, count in enumerate(after["accepted_per_position"])]
    return {} if min([*out["accepted_per_position"], *(out[key] for key in _NAMES.values())]) < 0 else out


def total(answers: Sequence[Mapping[str, Any]]) -> Counters:
    """Return the sum over the gate's answers, with `acceptance` (0 to 1, null without drafts) and `alone`; empty if an answer has no counters."""
    parts = [answer.get("speculation") or {} for answer in answers]
    if not parts or not all(parts):
        return {}
    out: Counters = {key: sum(part[key] for part in parts) for key in _NAMES.values()}
    depth = max(len(part["accepted_per_position"]) for part in parts)
    out["accepted_per_position"] = [sum(sum(part["accepted_per_position"][index : index + 1]) for part in parts) for index in range(depth)]
    out["acceptance"] = round(out["accepted_tokens"] / out["draft_tokens"], 4) if out["draft_tokens"] else None
    received = [each.get("completion_tokens") or 0 for answer in answers for each in answer["replies"]]
    out["alone"] = out["generated_tokens"] <= sum(received) + SLACK_TOKENS * len(received)
    return out


def checks(found: Counters, bounds: Mapping[str, Any], speculates: bool) -> list[dict[str, Any]]:
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
