"""The tools of the field: their levels, what they are started with, what is read of their results, recorded with tests/unit/fixtures/bench/README.md."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools
from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import Level, level_of
from ansible_collections.gb10.cluster.plugins.module_utils._gate.cases import BenchError

RECORDED = Path(__file__).parents[3] / "fixtures/bench"
LEVEL = Level("llama-benchy", "", 256, 32, 512, 2)
SHORT = Level("tool-eval-bench", "short")
PUBLISHED = [
    {"tool": "llama-benchy", "prompt": 1024, "output": 64, "figures": {"decode_tok_s": 30}},
    {"tool": "gb10", "case": "code", "figures": {"ttft_ms": 1}},
]


def recorded(name: str) -> str:
    return (RECORDED / f"{name}.json").read_text(encoding="utf-8")


def measured(level: Level, name: str) -> dict[str, dict[str, Any]]:
    return {row["quantity"]: row for row in tools.rows_of(level, recorded(name))}


def plan(name: str, *cases: str, given: Any = (), published: Any = PUBLISHED) -> list[str]:
    return [level.name for level in tools.plan(name, cases, list(given), published, 65536, 4)]


# --- levels


def test_a_suite_has_the_levels_of_the_source_or_those_that_a_user_gives() -> None:
    assert plan("seed") == ["pp1024 tg64 c1", "code c1"]
    assert plan("quick", "short")[0] == "pp2048 tg128 c1"
    assert plan("full", "short")[-1] == "tool-eval-bench short"
    assert plan("tools", "short", "needle") == ["tool-eval-bench short", "tool-eval-bench needle"]
    assert plan("quick", given=[LEVEL._asdict(), {"tool": "tool-eval-bench", "case": "ifeval"}]) == ["pp256 tg32 @ d512 c2", "tool-eval-bench ifeval"]


def test_the_prompts_of_spec_bench_are_one_run() -> None:
    assert plan("seed", given=[{"tool": "tool-eval-bench", "case": case, "depth": depth} for case in ("code", "filler") for depth in (0, 4096)]) == [
        "tool-eval-bench spec"
    ]


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"name": "seed", "given": [{"tool": "llama-benchy", "prompt": 64}]}, "The level pp64 c1 is not known. Use llama-benchy with prompt, output, depth"),
        ({"name": "seed", "given": [{"tool": "gb10", "case": "code", "output": 8, "arrivals": "every 1.2.3 s"}]}, "The level code tg8 c1 every 1.2.3 s is"),
        ({"name": "seed", "given": [{"tool": "curl"}]}, "The level c1 is not known"),
        ({"name": "tools", "cases": ["shrot"]}, "The level shrot c1 is not known"),
        ({"name": "seed", "published": []}, "The suite seed has no levels: no published figure of the profile that serves is known here"),
        ({"name": "tools", "cases": []}, "The suite tools has no levels: bench_cases is empty. Use the suite quick"),
    ],
)
def test_what_cannot_be_measured_is_named(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(BenchError) as caught:
        plan(arguments.pop("name"), *arguments.pop("cases", ()), **arguments)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize(
    ("level", "left", "reason"),
    [
        (LEVEL, 60.0, ""),
        (LEVEL._replace(depth=8192), 60.0, "it needs 8,480 tokens, and the context is 8,192"),
        (LEVEL._replace(output=960), 180.0, "it does not fit into the time of the suite (bench_budget)"),  # 47 s, four times
        (LEVEL, 1.0, "it does not fit into the time of the suite (bench_budget)"),
        (Level("tool-eval-bench", "spec"), 90.0, "it needs 10,752 tokens, and the context is 8,192"),
        (Level("gb10", "verse", 0, 16), 60.0, "no tool sends it"),
        (LEVEL._replace(arrivals="every 0.4 s"), 60.0, "no tool sends it"),
        (Level("gb10", "code", 0, 8, 0, 16, "every 20 s"), 1200.0, "it does not fit into the time of the suite (bench_budget)"),  # 15 waits of 20 s, 4 times
    ],
)
def test_a_level_that_does_not_fit_is_left_out(level: Level, left: float, reason: str) -> None:
    assert tools.unfit(level, 8192, left) == reason


def test_progress_has_the_time_that_is_left() -> None:
    levels = [LEVEL, SHORT]
    assert tools.progress(2, levels, 1000.0) == "2 of 2: tool-eval-bench short, about 3 min left"
    assert tools.progress(1, levels, 30.0) == "1 of 2: pp256 tg32 @ d512 c2, about 30 s left"


# --- levels that no tool sends


def test_requests_of_a_level_are_new_in_each_run_and_come_one_after_another() -> None:
    level = Level("gb10", "code", 512, 256, 0, 3, "every 0.4 s")
    requests, others = tools.requests_of(level, "a"), tools.requests_of(level, "b")
    assert [each["after"] for each in requests] == pytest.approx([0, 0.4, 0.8])
    assert len({each["prompt"][:8] for each in requests + others}) == 6
    assert {(each["max_tokens"], each["body"]["min_tokens"]) for each in requests} == {(256, 256)}
    assert 1500 < len(requests[0]["prompt"]) < 2200
    assert all(each["chat"] for case in ("chat", "topics") for each in tools.requests_of(level._replace(case=case), "a"))


def test_all_output_counts_from_the_first_request_to_the_last_reply() -> None:
    reply = {"ok": True, "completion_tokens": 100, "seconds": 2.0}
    one, two = [{"after": 0.0}], [{"after": 0.0}, {"after": 0.5}]
    single = tools.own_rows(Level("gb10", "code", 512, 100), [(one, [{**reply, "seconds": seconds}], 0.5) for seconds in (2.0, 2.48)])
    assert [(row["quantity"], row["runs"]) for row in single] == [("aggregate_tok_s", [50.0, 40.323]), ("decode_tok_s", [66.0, 50.0])]
    assert single[1]["spread"] == 8.0
    both = tools.own_rows(Level("gb10", "chat", 0, 100, 0, 2), [(two, [reply, reply], 0.0)])
    assert [(row["quantity"], row["mean"]) for row in both] == [("aggregate_tok_s", 80.0), ("share_tok_s", 40.0)]
    level = Level("gb10", "code", 0, 2)
    slow_first = tools.own_rows(level, [(one, [{**reply, "seconds": 2.0}], 2.5)])
    assert [row["quantity"] for row in slow_first] == ["aggregate_tok_s"], "the reply of one token took longer than the whole one"
    with pytest.raises(BenchError, match="code tg2 c1: a reply counts no tokens"):
        tools.own_rows(level, [(one, [{**reply, "completion_tokens": 0, "error": ""}], 0.0)])
    with pytest.raises(BenchError, match="code tg1 c1: HTTP 500"):
        tools.own_rows(Level("gb10", "code", 0, 1), [(one, [{**reply, "ok": False, "error": "HTTP 500"}], 0.0)])


# --- the command


@pytest.mark.parametrize("level", [LEVEL, SHORT, SHORT._replace(case="needle")])
def test_a_tool_runs_without_rights_network_or_key_in_its_words_and_with_limits(level: Level) -> None:
    words = tools.argv(level, "http://127.0.0.1:8000", "m", "/var/tmp/x")
    assert words[:2] == ["env", "-i"]
    assert {"HOME=/var/tmp/x", "HF_HUB_OFFLINE=1", "--reuid=gb10-bench", "--no-new-privs", "--bounding-set=-all", "--pdeathsig=KILL"} <= set(words)
    assert words.index("--scope") < words.index("--property=MemoryMax=4G") < words.index("--property=TasksMax=1024") < words.index("setpriv")
    assert "--api-key" not in words
    assert "setpriv" not in tools.argv(level, "http://127.0.0.1:8000", "m", "/var/tmp/x", root=False)


@pytest.mark.parametrize(("context", "shown"), [(4096, True), (131072, False), (None, False)])
def test_replies_of_the_scenarios_fit_into_a_small_context(context: int | None, shown: bool) -> None:
    words = tools.argv(Level("tool-eval-bench", "short"), "http://127.0.0.1:8000", "m", "/var/tmp/x", context=context)
    assert ('{"max_tokens": 1024}' in words) is shown


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
    first = run["tg_req_throughput"]["values"]
    assert found["decode_tok_s"]["runs"] == pytest.approx([sum(first[place : place + 2]) / 2 for place in (0, 2, 4)], abs=0.001), "a value for each run"
    assert found["aggregate_tok_s"]["spread"] == pytest.approx(run["tg_throughput"]["std"], abs=0.001)
    assert level_of(found["ttft_ms"]) == LEVEL


def test_a_result_of_tool_eval_bench_has_score_and_categories() -> None:
    found, scores = measured(SHORT, "tool-eval-bench"), json.loads(recorded("tool-eval-bench"))["scores"]
    assert (found["score_percent"]["runs"], found["score_percent"]["spread"]) == ([scores["final_score"]], None)
    assert (found["graded_percent"]["mean"], found["passed_scenarios"]["mean"]) == (100.0, 0)
    assert found["tool_selection_percent"]["mean"] == next(each["percent"] for each in scores["category_scores"] if each["category"] == "A")


def test_a_result_of_spec_bench_has_a_level_for_each_prompt() -> None:
    rows = tools.rows_of(Level("tool-eval-bench", "spec"), recorded("spec-bench"))
    assert [level_of(row).name for row in rows if row["quantity"] == "effective_tok_s"] == [
        f"{case} tg128{depth} c1" for depth in ("", " @ d4096", " @ d8192") for case in ("filler", "code", "structured")
    ]
    assert {(row["quantity"], row["mean"]) for row in rows if row["quantity"] != "effective_tok_s"} == {("acceptance_percent", 50.0), ("waste_percent", 50.0)}


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
        (SHORT, '{"scores": {"completion_rate": 0.0, "scenario_results": [{"status": "fail", "summary": "Timeout"}]}}', "tool-eval-bench: Timeout"),
    ],
)
def test_a_result_that_is_not_one_is_reported(level: Level, text: str, reason: str) -> None:
    with pytest.raises(BenchError) as caught:
        tools.rows_of(level, text)
    assert reason in str(caught.value)


def test_shares_are_those_of_the_level_alone() -> None:
    page = "vllm:spec_decode_num_draft_tokens_total {}\nvllm:spec_decode_num_accepted_tokens_total {}\nvllm:prefix_cache_queries_total 5\n"
    rows = tools.share_rows(LEVEL, page.format(100, 60), page.format(300, 180), 0.42)
    assert [(row["quantity"], row["mean"]) for row in rows] == [("acceptance_percent", 60.0), ("kv_usage_percent", 42.0)]
    assert tools.share_rows(LEVEL, "", page.format(300, 180), None) == [], "what was before the level is not known"
    assert tools.share_rows(LEVEL, page.format(100, 60), page.format(300, 20), None) == [], "the engine was restarted"
    assert tools.share_rows(LEVEL, "", "vllm:prefix_cache_queries_total NaN\n", None) == []


@pytest.mark.parametrize(
    ("code", "err", "text"),
    [
        (124, "", "it did not end within 60 s. Use a smaller suite, or a larger bench_budget"),
        (127, "env: 'x': No such file or directory", "its environment is not complete (env: 'x': No such file or directory). Run playbooks/bench.yml"),
        (1, "Traceback\nModuleNotFoundError: No module named 'numpy'", "its environment is not complete"),
        (1, "Error loading tokenizer\nFalling back to 'gpt2' tokenizer as approximation.\nOSError: offline", "it cannot read tokenizer.json"),
        (1, "Running test\n[Error] Stopping due to error in standard run: HTTP 500: EngineDead\nx\n", "standard run: HTTP 500: EngineDead (exit code 1)"),
        (2, '{"event": "log"}\n{"event": "error", "error": "x", "message": "Server \\"m\\" returned 401."}\n', 'Server \\"m\\" returned 401 (exit code 2)'),
        (1, "", "no message (exit code 1)"),
        (-9, "", "signal 9 has ended it; the kernel does so if memory is short (`journalctl -k`). Use fewer or shorter prompts"),
    ],
)
def test_why_a_tool_failed(code: int, err: str, text: str) -> None:
    assert text in tools.reason_of(code, err, 60)
