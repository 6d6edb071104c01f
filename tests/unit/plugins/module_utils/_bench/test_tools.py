"""The tools of the field: their levels, what they are started with, what is read of their results, recorded with tests/unit/fixtures/bench/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools
from ansible_collections.gb10.cluster.plugins.module_utils._bench.cases import BenchError

RECORDED = Path(__file__).parents[4] / "fixtures/bench"
LEVEL = {"tool": "llama-benchy", "prompt": 256, "output": 32, "depth": 512, "concurrency": 2, "runs": 3}
SHORT = {"tool": "tool-eval-bench", "part": "short"}


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text(encoding="utf-8")


def measured(level: dict[str, Any], name: str) -> dict[str, Any]:
    return {row["quantity"] + row.get("of", ""): row for row in tools.rows_of(level, recorded(name))}


# --- levels


@pytest.mark.parametrize("suite", ["quick", "full", "tools"])
def test_levels_of_a_suite_are_levels(suite: str) -> None:
    levels = tools.suite(suite, ["short", "needle"])
    assert tools.levels_of(json.loads(json.dumps(levels))) == levels


@pytest.mark.parametrize(
    ("given", "text"),
    [
        ({}, "Level 1 is not valid"),
        ([LEVEL, {**LEVEL, "depth": "4k"}], "Level 2 is not valid (depth is '4k', and a whole number is expected)"),
        ([{**LEVEL, "concurrency": 0}], "Level 1 is not valid (a number is too low)"),
        ([{"tool": "tool-eval-bench", "part": "all"}], "Level 1 is not valid (its tool or part is not known)"),
        ([{"tool": "curl"}], "Level 1 is not valid (its tool or part is not known)"),
    ],
)
def test_a_level_that_is_not_one_is_named(given: Any, text: str) -> None:
    with pytest.raises(BenchError) as caught:
        tools.levels_of(given)
    assert str(caught.value).startswith(text)


def test_a_suite_without_levels_of_its_own_and_an_unknown_part_are_refused() -> None:
    with pytest.raises(BenchError, match="The suite seed has no levels"):
        tools.suite("seed")
    with pytest.raises(BenchError, match="Level 1 is not valid"):
        tools.levels_of(tools.suite("tools", ["shrot"]))


def test_a_level_is_estimated_by_the_slowest_speeds_so_far() -> None:
    rows = [{"quantity": "prefill_tok_s", "mean": 1000.0}, {"quantity": "decode_tok_s", "mean": 16.0}, {"quantity": "decode_tok_s", "mean": 32.0}]
    assert tools.seconds_of(LEVEL, []) == 0.0
    assert tools.seconds_of(LEVEL, rows) == pytest.approx(6 + 4 * (2 * 768 / 1000 + 32 / 16))
    assert tools.left_of([LEVEL], rows, 100.0) == "about 21 s left"
    assert tools.left_of([LEVEL, SHORT], rows, 100.0) == "at most 2 min left"


# --- the command


@pytest.mark.parametrize("level", [LEVEL, SHORT, {**SHORT, "part": "needle"}])
def test_a_tool_runs_without_rights_network_or_key_in_its_words(level: dict[str, Any]) -> None:
    words = tools.argv(level, "http://127.0.0.1:8000", "m", "/var/tmp/x")
    assert words[:2] == ["env", "-i"]
    assert {"HOME=/var/tmp/x", "HF_HUB_OFFLINE=1", "--reuid=65534", "--no-new-privs", "--bounding-set=-all"} <= set(words)
    assert "--api-key" not in words[-1]
    assert "setpriv" not in tools.argv(level, "http://127.0.0.1:8000", "m", "/var/tmp/x", root=False)


# --- results


def test_a_result_of_llama_benchy_has_the_figures_of_its_table() -> None:
    found = measured(LEVEL, "llama-benchy")
    run = json.loads(recorded("llama-benchy"))["benchmarks"][0]
    assert {name: row["mean"] for name, row in found.items()} == {
        name: pytest.approx(run[place]["mean"], abs=0.001)
        for name, place in (
            ("prefill_tok_s", "pp_throughput"), ("ttfr_ms", "ttfr"), ("ttft_ms", "e2e_ttft"), ("decode_tok_s", "tg_req_throughput"),
            ("aggregate_tok_s", "tg_throughput"), ("peak_tok_s", "peak_throughput"),
        )
    }  # fmt: skip
    assert [len(found[name]["runs"]) for name in ("aggregate_tok_s", "decode_tok_s")] == [3, 6], "a value for each run, and for each stream of each run"
    assert found["decode_tok_s"]["spread"] == pytest.approx(run["tg_req_throughput"]["std"], abs=0.001)
    assert {key: found["ttft_ms"][key] for key in LEVEL} == LEVEL


def test_the_table_has_the_words_of_llama_benchy() -> None:
    lines = tools.table(tools.rows_of(LEVEL, recorded("llama-benchy")))
    assert [line.split()[:4] for line in lines[1:]] == [["pp256", "@", "d512", "(c2)"]] * 3 + [["tg32", "@", "d512", "(c2)"]] * 3


def test_a_result_of_tool_eval_bench_has_score_and_categories() -> None:
    found, scores = measured(SHORT, "tool-eval-bench"), json.loads(recorded("tool-eval-bench"))["scores"]
    assert (found["score_percent"]["runs"], found["score_percent"]["spread"]) == ([scores["final_score"]], None)
    assert found["graded_percent"]["mean"] == 100.0
    assert {row["of"]: row["mean"] for row in found.values() if "of" in row} == {each["label"]: each["percent"] for each in scores["category_scores"]}


def test_an_engine_without_a_parser_of_tool_calls_has_the_arguments_to_add() -> None:
    with pytest.raises(BenchError, match="Set enable-auto-tool-choice to true and tool-call-parser to the model's in"):
        tools.rows_of(SHORT, recorded("tool-eval-bench-400"))


@pytest.mark.parametrize(
    ("level", "text", "reason"),
    [
        (LEVEL, "", "the result of llama-benchy is not valid: "),
        (LEVEL, "[" * 9999, "the result of llama-benchy is not valid: it is nested too deep"),
        (LEVEL, '{"version": "0", "latency_mode": "none", "latency_ms": 0.0, "benchmarks": []}', "llama-benchy has measured nothing"),
        (LEVEL, '{"version": "0", "latency_mode": "none", "latency_ms": NaN, "benchmarks": []}', "latency_ms is nan, and a number is expected"),
        (SHORT, '{"error": "HTTP 500"}', "tool-eval-bench has measured nothing: HTTP 500"),
    ],
)
def test_a_result_that_is_not_one_is_reported(level: dict[str, Any], text: str, reason: str) -> None:
    with pytest.raises(BenchError) as caught:
        tools.rows_of(level, text)
    assert reason in str(caught.value)


def test_shares_are_those_of_the_level_alone() -> None:
    page = "vllm:spec_decode_num_draft_tokens_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\nvllm:prefix_cache_queries_total 5\n"
    rows = tools.share_rows(LEVEL, page.format(100, 60), page.format(300, 180), 0.42)
    assert [(row["quantity"], row["mean"]) for row in rows] == [("acceptance_percent", 60.0), ("kv_usage_percent", 42.0)]
    assert tools.share_rows(LEVEL, "", "vllm:prefix_cache_queries_total NaN\n", None) == []
    assert tools.kv_usage('vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\nvllm:kv_cache_usage_perc x\n') == 0.5


@pytest.mark.parametrize(
    ("code", "err", "text"),
    [
        (124, "", "it did not end within 60 s. Use a smaller suite, or a larger bench_budget"),
        (127, "env: 'x': No such file or directory", "its environment is not complete (env: 'x': No such file or directory). Run playbooks/bench.yml"),
        (1, "Traceback\nModuleNotFoundError: No module named 'numpy'", "its environment is not complete"),
        (1, "Error loading tokenizer\nFalling back to 'gpt2' tokenizer as approximation.\nOSError: offline", "it cannot read tokenizer.json"),
        (1, "Running test\n[Error] Stopping due to error in standard run: HTTP 500: EngineDead\nx\n", "standard run: HTTP 500: EngineDead (exit code 1)"),
        (2, '{"event": "log"}\n{"event": "error", "error": "http_error", "message": "Server returned 401."}\n', "Server returned 401 (exit code 2)"),
        (1, "", "no message (exit code 1)"),
    ],
)
def test_why_a_tool_failed(code: int, err: str, text: str) -> None:
    assert text in tools.reason_of(code, err, 60)
