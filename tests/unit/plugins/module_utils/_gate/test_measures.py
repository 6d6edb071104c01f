"""The progress of a server, from its metrics."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, measures
from shared_samples import needs_shared, samples

PAGE = """# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="m"} 2.0
vllm:num_requests_running{engine="1",model_name="m {x}"} 1.0
vllm:num_requests_waiting{engine="0",model_name="m"} 7.0
vllm:num_requests_waiting_by_reason{engine="0",model_name="m",reason="capacity"} 7.0
vllm:prompt_tokens_total{engine="0",model_name="m"} 3.0
vllm:prompt_tokens_created{engine="0",model_name="m"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="m"} 4.0e+02
"""


def test_sums_the_engines_of_a_metrics_page() -> None:
    assert measures.sample(PAGE) == measures.Sample(403.0, 3, 7)
    assert measures.sample("<html>") is None
    assert measures.sample("vllm:num_requests_running 1.0\n") is None


def test_the_use_of_the_kv_cache_is_the_highest_of_all_engines() -> None:
    assert measures.kv_usage('vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\nvllm:kv_cache_usage_perc x\n') == 0.5


LIMITS = measures.Limits(answer=10, wedge=20, total=120)


def readings(*rows: tuple[float, float, int] | tuple[float, None]) -> list[tuple[float, measures.Sample | None]]:
    return [(row[0], None if row[1] is None else measures.Sample(row[1], row[2], 0)) for row in rows]


@pytest.mark.parametrize(
    ("seen", "idle", "expected"),
    [
        (readings((0, 400, 4), (5, 480, 5)), None, ""),
        (readings((0, 400, 4), (10, 480, 5)), None, "busy"),
        # Only the check's own request runs on a slow server: the completion is about to come.
        (readings((0, 400, 0), (10, 404, 1)), None, ""),
        (readings((0, 400, 0), (119, 404, 1), (120, 405, 1)), None, "busy"),
        (readings((0, 400, 4), (10, 400, 4)), None, ""),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), None, "frozen"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), True, "wedged"),
        (readings((0, 400, 1), (10, 400, 1), (20, 400, 1)), False, "computing"),
        # A worker that was stopped while idle: the engine never reports the request.
        (readings((0, 400, 0), (20, 400, 0)), True, "wedged"),
        (readings((0, 400, 4), (10, 480, 5), (29, 480, 5)), True, "busy"),
        (readings((0, None), (10, None)), None, ""),
        (readings((0, None), (20, None)), True, "silent"),
    ],
)
def test_tells_busy_frozen_and_wedged(seen: list[tuple[float, measures.Sample | None]], idle: bool | None, expected: str) -> None:
    assert measures.decide(seen, LIMITS, idle) == expected


# --- Speculative decoding by the engine's counters: pages of /metrics, what they grew by, and the checks.


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


# --- Speed of one stream, and the engine's settings against a profile's gate.


@pytest.mark.parametrize(
    ("criteria", "due"),
    [
        ({}, False),
        ({"decode_tok_s": {"min": None}, "acceptance": {"min": None, "positions_active": None}, "published_tok_s": None, "speculative_method": None}, False),
        ({"decode_tok_s": {"min": 0}}, True),
        ({"acceptance": {"positions_active": 1}}, True),
        ({"published_tok_s": 54.2}, True),
        ({"speculative_method": "mtp"}, True),
    ],
)
def test_speed_is_measured_where_something_depends_on_it(criteria: dict[str, Any], due: bool) -> None:
    assert measures.decode_is_due(criteria) is due


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ({"ok": True, "completion_tokens": 256, "seconds": 5.0}, 51.2),
        ({"ok": True, "completion_tokens": 63, "seconds": 1.0}, None),
        ({"ok": True, "completion_tokens": 256, "seconds": 0}, None),
        ({"ok": True, "completion_tokens": 256, "seconds": "x"}, None),
        ({"ok": False, "completion_tokens": 256, "seconds": 5.0}, None),
    ],
    ids=["measured", "too short", "no time", "not a time", "failed"],
)
def test_speed_of_a_reply(reply: dict[str, Any], found: float | None) -> None:
    assert measures.speed(reply) == found


def test_slow_pair_is_refused_by_the_bound_of_its_owner() -> None:
    [check] = measures.decode_checks(14.3, {"decode_tok_s": {"min": 30}, "published_tok_s": 34.0})
    fault = gate.first_fault([check])
    assert fault is not None
    assert (fault["class"], fault["wanted"], fault["found"]) == ("decode_slow", 30, 14.3)
    assert measures.decode_checks(None, {"decode_tok_s": {"min": 30}})[0]["ok"] is None


def test_speed_far_below_the_published_one_is_a_warning() -> None:
    """Published 54.22: 32.7 is what tonyd2wild measured with a drafter that lacked its fix."""
    [check] = measures.decode_checks(32.7, {"published_tok_s": 54.22})
    assert (check["ok"], check["warning"], check["wanted"]) == (False, True, "38.0 or more (published: 54.22)")
    assert gate.first_fault([check], strict=True) is None
    assert measures.decode_checks(45.0, {"published_tok_s": 54.22})[0]["ok"] is True
    assert measures.decode_checks(32.7, {"published_tok_s": None}) == []


FACTS = {"eager": False, "moe_backend": "B12X", "custom_ops": "none,+quant_fp8", "autotune": True}


@pytest.mark.parametrize(
    ("wanted", "ok"),
    [
        ({"eager": False, "moe_backend": "b12x", "custom_ops": "+quant_fp8, none", "autotune": True}, True),
        ({"eager": None, "moe_backend": None}, True),
        ({"eager": True}, False),
        ({"moe_backend": "MARLIN"}, False),
        ({"custom_ops": "all"}, False),
        ({"autotune": False}, False),
    ],
)
def test_engine_is_held_to_its_settings(wanted: dict[str, Any], ok: bool) -> None:
    results = gate.engine_checks([], FACTS, {"engine": wanted})
    fault = gate.first_fault(results, strict=True)
    assert (fault is None) is ok
    assert ok or (fault or {})["class"] == "engine_differs"
    assert gate.first_fault(gate.engine_checks([], {}, {"engine": wanted})) is None, "not known"


@needs_shared
def test_recorded_boot_of_a_gb10_shows_settings_of_the_engine() -> None:
    facts = parse((samples() / "bootlogs" / "003-gb10-qwen36-35b-dflash-v01dev1-hybrid-newformula.log").read_bytes())
    found = {key: facts[key] for key in FACTS}
    assert found == {"eager": False, "moe_backend": "MARLIN", "custom_ops": "none", "autotune": True}
    assert facts["unknown_variables"] == ["VLLM_PRECOMPILED_WHEEL_COMMIT", "VLLM_BASE_DIR"]
    assert gate.first_fault(gate.engine_checks([], facts, {"engine": found}), strict=True) is None
    fault = gate.first_fault(gate.engine_checks([], facts, {"engine": {"moe_backend": "B12X"}}))
    assert fault is not None
    assert (fault["class"], fault["found"]) == ("engine_differs", "MARLIN")
