"""The published figures of the shipped profiles and what is measured next to them: matched by level and quantity, exactly, or not at all."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels
from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import Level
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve

SHIPPED = shipped_profiles()
PROFILES = {name: resolve(name, SHIPPED) for name in SHIPPED}
#: The profiles of the systems that the first five sources describe.
SEEDS = (
    "b12x-fp8-1m", "dspark-fp8-262k-baseline", "dspark-nvfp4-1m-2", "dspark-nvfp4-1m-seed", "dspark-nvfp4-200k", "dspark-nvfp4-500k", "fp8-1m", "fp8-256k",
    "fp8-512k", "piecewise-200k", "pr41834-300k", "pr41834-ray-200k",
)  # fmt: skip
DSPARK = ("dspark-fp8-262k-baseline", "dspark-nvfp4-1m-seed", "dspark-nvfp4-200k")
PP2048 = Level("llama-benchy", "", 2048, 128)


def published(name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = PROFILES[name]["published"]
    return found


def row(level: Level, quantity: str, *runs: float) -> dict[str, Any]:
    mean = sum(runs) / len(runs)
    spread = (sum((each - mean) ** 2 for each in runs) / len(runs)) ** 0.5
    return {**level._asdict(), "quantity": quantity, "runs": list(runs), "mean": mean, "spread": spread}


def pair(name: str, factor: float) -> list[dict[str, Any]]:
    """Return what a pair measures that is by a factor as fast as published: three runs within 1 % of each other."""
    out = []
    for each in levels.figures(published(name)):
        if each.can_be_run:
            value = each.value * (factor if levels.QUANTITIES[each.quantity].higher else 1 / factor)
            out.append(row(each.level, each.quantity, value * 0.995, value, value * 1.005))
    return out


@pytest.mark.parametrize("name", ["b12x-fp8-1m", *DSPARK])
def test_a_pair_that_performs_as_published_is_within_three_percent_and_a_slower_one_is_marked(name: str) -> None:
    as_published = levels.compare(pair(name, 1.0), published(name))
    slower = levels.compare(pair(name, 0.8), published(name))
    assert len(as_published) == len(slower) == sum(each.can_be_run for each in levels.figures(published(name))) > 0
    assert all(abs(each["published_percent"]) <= 3 and each["mark"] == "" for each in as_published)
    assert {each["mark"] for each in slower} == {"worse"}


def test_most_figures_of_the_seeds_can_be_run_and_each_other_has_its_reason() -> None:
    found = [each for name in SEEDS for each in levels.figures(published(name))]
    assert sum(each.can_be_run for each in found) >= 150
    assert all(each.measured_by or len(each.not_compared) > 10 for each in found if not each.can_be_run)


@pytest.mark.parametrize("name", PROFILES)
def test_a_published_figure_matches_its_own_row_alone(name: str) -> None:
    """Each figure that can be run is measured with its place as its value: a comparison with another level or quantity has another place."""
    known = list(dict.fromkeys((each.level, each.quantity) for each in levels.figures(published(name)) if each.can_be_run))
    rows = [row(level, quantity, float(place + 1)) for place, (level, quantity) in enumerate(known)]
    wanted = [(each.level, each.quantity, each.value) for each in levels.figures(published(name)) if each.can_be_run]
    found = levels.compare(rows, published(name))
    assert sorted((known[int(each["measured"]) - 1], each["published"]) for each in found) == sorted(((level, key), value) for level, key, value in wanted)


@pytest.mark.parametrize(
    "other",
    [{"tool": "gb10"}, {"case": "code"}, {"prompt": 1024}, {"output": 32}, {"depth": 4096}, {"concurrency": 2}, {"arrivals": "every 0.4 s"}],
    ids=str,
)
def test_another_level_or_quantity_is_not_compared(other: dict[str, Any]) -> None:
    figures = [{"tool": "llama-benchy", "prompt": 2048, "output": 128, "figures": {"decode_tok_s": 36.5}}]
    assert levels.compare([row(PP2048, "decode_tok_s", 36.5)], figures)[0]["published"] == 36.5
    assert levels.compare([row(PP2048._replace(**other), "decode_tok_s", 36.5)], figures)[0]["published"] is None
    assert levels.compare([row(PP2048, "peak_tok_s", 36.5)], figures)[0]["published"] is None


@pytest.mark.parametrize(
    ("quantity", "runs", "mark"),
    [
        ("decode_tok_s", [80.0, 80.5, 79.5], "worse"),
        ("decode_tok_s", [120.0, 120.5, 119.5], "better"),
        ("ttft_ms", [120.0, 120.5, 119.5], "worse"),
        ("ttft_ms", [80.0, 80.5, 79.5], "better"),
        ("decode_tok_s", [80.0, 80.0], ""),  # two runs
        ("decode_tok_s", [60.0, 80.0, 110.0], ""),  # within the spread
        ("decode_tok_s", [97.5, 97.5, 97.5], ""),  # within 3 %
    ],
)
def test_a_difference_is_marked_beyond_the_spread_of_three_runs_and_three_percent(quantity: str, runs: list[float], mark: str) -> None:
    figures = [{"tool": "llama-benchy", "prompt": 2048, "output": 128, "figures": {quantity: 100.0}}]
    [found] = levels.compare([row(PP2048, quantity, *runs)], figures)
    assert found["mark"] == mark
    figures[0]["remark"] = "another image"
    assert levels.compare([row(PP2048, quantity, *runs)], figures)[0]["mark"] == "", "of another system"


def test_rows_are_compared_with_the_last_ones_by_level_and_quantity() -> None:
    first = [row(PP2048, "decode_tok_s", 40.0, 40.1, 39.9), row(PP2048, "ttft_ms", 900.0), {"broken": True}]
    broken = ["no row", {"quantity": "x"}, {**row(PP2048, "ttft_ms", 1.0), "tool": []}]
    second = [row(PP2048, "decode_tok_s", 30.0, 30.1, 29.9), row(PP2048._replace(depth=4096), "ttft_ms", 900.0), *broken]
    found, other = levels.compare(second, (), first)
    assert (other["measured"], other["last"]) == (900.0, None)
    assert (found["last"], found["measured"], found["last_percent"], found["last_mark"]) == (40.0, 30.0, -25.0, "worse")
    assert levels.lines([found]) == [
        "test             quantity  unit   measured     ±  last  difference",
        "pp2048 tg128 c1  decode    tok/s      30.0  0.08  40.0  -25.0 % worse",
    ]
    assert levels.lines(levels.compare(None)) == []


def test_levels_have_the_words_of_the_field() -> None:
    names = [each.name for each in levels.suite("seed", published("b12x-fp8-1m"), 1_000_000, 6)]
    assert names[:2] == ["pp1024 tg128 c1", "pp1024 tg128 @ d240000 c1"]
    assert names[-3:] == ["pp2048 tg128 @ d4096 c2", "tool-eval-bench whole", "tool-eval-bench ifeval"]
    assert levels.suite("seed", published("dspark-nvfp4-200k"), 200_000, 16)[-1].name == "code tg256 c16 every 0.4 s"


@pytest.mark.parametrize("name", PROFILES)
def test_suites_fit_the_context_and_the_quick_one_two_minutes(name: str) -> None:
    context, figures = 65536, published(name)
    quick, seed, full = (levels.suite(each, figures, context, 4) for each in ("quick", "seed", "full"))
    assert quick[0] == PP2048
    assert sum(map(levels.seconds, quick)) <= 120
    assert set(seed) <= set(full)
    assert {PP2048, PP2048._replace(concurrency=4), PP2048._replace(depth=32768)} <= set(full)
    assert all(each.depth + each.prompt + each.output <= context for each in full)
    assert all(each.concurrency <= 4 for each in set(full) - set(seed))


def test_published_lines_have_the_level_or_the_reason() -> None:
    found = levels.published_lines(published("fp8-1m"))
    assert found == [
        *(f"topics tg128 c{streams}, gb10: aggregate {rate} tok/s" for streams, rate in ((1, 37), (6, 98), (12, 98), (24, 101))),
        "not compared (The same figures, rounded): c6: aggregate 100 tok/s",
        "measured by the gate: KV pool 1,430,000 tokens",
        "measured by the report: memory left free 8 GB",
    ]
    assert levels.headline(published("dspark-nvfp4-200k")) == "315.1 tok/s at 16"
    assert (levels.headline(published("b12x-fp8-1m")), levels.headline([])) == ("45.7 tok/s single", "-")
    assert levels.single_stream(published("b12x-fp8-1m")) == 45.7
    both = {"tool": "llama-benchy", "concurrency": 16, "figures": {"decode_tok_s": 9.0, "aggregate_tok_s": 120.0}}
    assert levels.headline([both]) == "120.0 tok/s at 16", "not that of each request"
    other, own = ({"tool": "llama-benchy", "figures": {"decode_tok_s": speed}} for speed in (50.0, 40.0))
    assert levels.single_stream([{**other, "remark": "another image"}, own]) == 40.0, "a figure of another system does not judge this one"
    assert levels.single_stream([{**other, "remark": "another image"}]) == 50.0
