"""Speculative decoding by the engine's counters: pages of /metrics, what they grew by, and the checks."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, measures
from shared_samples import needs_shared, samples


def page(drafts: int, drafted: int, accepted: int, positions: list[int], generated: int = 0, engine: int = 0) -> str:
    """Return the counters of one engine as vLLM prints them."""
    at = f'{{engine="{engine}",model_name="m"}}'
    counts = {"drafts": drafts, "draft_tokens": drafted, "accepted_tokens": accepted}
    lines = [f"vllm:spec_decode_num_{name}_total{at} {value}.0" for name, value in counts.items()]
    lines += [f'vllm:spec_decode_num_accepted_tokens_per_pos_total{{engine="{engine}",model_name="m",position="{n}"}} {v}.0' for n, v in enumerate(positions)]
    lines += [f"vllm:spec_decode_num_drafts_created{at} 1.7863175205107226e+09", f"vllm:generation_tokens_total{at} {generated}.0"]
    return "\n".join(lines) + "\n"


def answer(before: str, after: str, *tokens: int) -> dict[str, Any]:
    grown = measures.draft_growth(measures.draft_counters(before), measures.draft_counters(after))
    return {"speculation": grown, "replies": [{"completion_tokens": each} for each in tokens]}


NONE = page(0, 0, 0, [0, 0])


@needs_shared
def test_recorded_page_of_a_half_working_drafter_is_read() -> None:
    """The capture has 149 of 630 draft tokens accepted, none at the last two positions: it fails the bounds of the seed of this model."""
    text = (samples() / "vllm-metrics.dspark.txt").read_text(encoding="utf-8")
    found = measures.draft_total([answer(NONE, text + "vllm:generation_tokens_total 254.0\n", 254)])
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"]) == (105, 630, 149)
    assert (found["accepted_per_position"], found["acceptance"], found["alone"]) == ([84, 63, 1, 1, 0, 0], 0.2365, True)
    assert gate.first_fault(measures.acceptance_checks(found, {"min": 0.2, "positions_active": 4}, True)) is None
    low = gate.first_fault(measures.acceptance_checks(found, {"min": 0.5}, True)) or {}
    assert (low["class"], low["wanted"], low["found"]) == ("acceptance_low", 0.5, 0.2365)
    inactive = gate.first_fault(measures.acceptance_checks(found, {"positions_active": 5}, True)) or {}
    assert (inactive["class"], inactive["found"]) == ("acceptance_low", "84, 63, 1, 1, 0, 0")


def test_engines_are_summed_and_only_the_growth_counts() -> None:
    before = page(5, 10, 4, [3, 1], generated=9) + page(1, 2, 1, [1], engine=1)
    after = page(45, 90, 44, [33, 11], generated=99) + page(2, 4, 3, [2], engine=1)
    found = measures.draft_total([answer(before, after, 90), answer(after, after, 3)])
    assert (found["drafts"], found["draft_tokens"], found["accepted_tokens"], found["generated_tokens"]) == (41, 82, 42, 90)
    assert found["accepted_per_position"] == [31, 10]


@pytest.mark.parametrize(
    "text",
    ["", "vllm:num_requests_running 0.0\n", "vllm:generation_tokens_total 5.0\n", "vllm:spec_decode_num_drafts_total 5.0\n"],
    ids=["empty", "other counters", "no speculation", "drafts alone"],
)
def test_server_without_speculation_has_no_counters(text: str) -> None:
    assert measures.draft_counters(text) == {}
    assert measures.draft_growth(measures.draft_counters(text), measures.draft_counters(NONE)) == {}


def test_counters_of_a_server_that_was_restarted_in_between_are_not_known() -> None:
    assert measures.draft_growth(measures.draft_counters(page(90, 180, 60, [60])), measures.draft_counters(page(5, 10, 1, [1]))) == {}
    assert measures.draft_total([answer(NONE, NONE, 3), {"replies": []}]) == {}


@pytest.mark.parametrize("value", ["NaN", "+Inf", "-1", "1e400", "9" * 39, "x", ""])
def test_count_that_is_not_a_finite_number_is_left_out(value: str) -> None:
    assert measures.draft_counters(NONE.replace(" 0.0", f" {value}")) == {}


def test_positions_are_bounded() -> None:
    text = NONE.replace('position="1"', 'position="123456789"')
    assert len(measures.draft_counters(text)["accepted_per_position"]) == 1


# --- the checks


def total(drafted: int, accepted: int, positions: list[int], alone: bool = True) -> dict[str, Any]:
    return measures.draft_total([answer(NONE, page(drafted // 2, drafted, accepted, positions, generated=50 if alone else 5000), 50)])


DEAD = total(200, 0, [0, 0])


@pytest.mark.parametrize("bounds", [{"min": 0.3}, {"positions_active": 1}], ids=["minimum", "positions"])
def test_dead_drafter_is_refused_where_the_profile_bounds_it(bounds: dict[str, Any]) -> None:
    fault = gate.first_fault(measures.acceptance_checks(DEAD, bounds, True))
    assert fault is not None
    assert (fault["class"], fault["found"]) == ("drafter_dead", "0 of 200")
    assert "delete the folders of container.cache_dirs" in fault["remedy"].lower()


def test_dead_drafter_is_a_warning_without_bounds() -> None:
    [check] = measures.acceptance_checks(DEAD, {"min": None, "positions_active": None}, True)
    assert (check["ok"], check["warning"], check["class"]) == (False, True, "drafter_dead")
    assert gate.first_fault([check], strict=True) is None
    assert measures.acceptance_checks(DEAD, {}, False) == [], "a model without a drafter"


@pytest.mark.parametrize("found", [{}, total(40, 0, [0, 0])], ids=["no counters", "too few drafts"])
def test_too_few_drafts_are_not_known(found: dict[str, Any]) -> None:
    [check] = measures.acceptance_checks(found, {"min": 0.5, "positions_active": 2}, True)
    assert check["ok"] is None
    assert measures.acceptance_checks(found, {}, True) == []


def test_low_acceptance_among_requests_of_others_is_not_known() -> None:
    """The counters are server-wide: 11_p's thread measures alone."""
    [_dead, share] = measures.acceptance_checks(total(200, 20, [15, 5], alone=False), {"min": 0.5}, True)
    assert share["ok"] is None
    assert measures.acceptance_checks(total(200, 120, [80, 40], alone=False), {"min": 0.5}, True)[1]["ok"] is True


def test_positions_of_an_engine_that_does_not_count_them_are_not_known() -> None:
    [_dead, places] = measures.acceptance_checks(total(200, 120, []), {"positions_active": 2}, True)
    assert (places["name"], places["ok"]) == ("active draft positions", None)
