"""The measurement of a served model: levels, command, figures, published figures, and the memory of a soak."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench

BEFORE = (
    'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 100.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 60.0\n'
    'vllm:prefix_cache_queries_total{engine="0"} 1000.0\n'
    'vllm:prefix_cache_hits_total{engine="0"} 100.0\n'
    'vllm:kv_cache_usage_perc{engine="0"} 0.0\n'
)
AFTER = (
    'vllm:spec_decode_num_draft_tokens_total{model_name="m"} 300.0\n'
    'vllm:spec_decode_num_accepted_tokens_total{model_name="m"} 180.0\n'
    'vllm:prefix_cache_queries_total{engine="0"} 3000.0\n'
    'vllm:prefix_cache_hits_total{engine="0"} 1500.0\n'
    'vllm:num_preemptions_total{engine="0"} 2.0\n'
)
# The keys of vllm bench serve 0.32.0.
RESULT = {
    "date": "20261125-023946", "model_id": "lab-tiny", "num_prompts": 2, "duration": 2.0, "completed": 2, "failed": 0, "total_input_tokens": 2000,
    "total_output_tokens": 200, "request_throughput": 1.0, "output_throughput": 100.0, "median_ttft_ms": 500.0, "p99_ttft_ms": 900.0,
    "median_tpot_ms": 20.0, "median_itl_ms": 21.5,
}  # fmt: skip


def level(**over: Any) -> dict[str, Any]:
    return {**bench.levels_of([1000], [1], 100)[0], **over}


def row(**over: Any) -> dict[str, Any]:
    return {**bench.row_of(level(), json.dumps(RESULT), bench.counters(BEFORE), bench.counters(AFTER), 0.42), **over}


def option(words: list[str], name: str) -> str | None:
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words else None


def words(**over: Any) -> list[str]:
    return bench.words(level(**over), "http://127.0.0.1:8000", "m", ["--tokenizer", "/models/m"], 7, 60)


# --- levels


def test_each_depth_is_measured_at_each_concurrency() -> None:
    found = bench.levels_of("0,65536", "1 4", 256, request_rate="0.5")
    assert [(each["depth"], each["concurrency"], each["requests"]) for each in found] == [(0, 1, 2), (0, 4, 8), (65536, 1, 2), (65536, 4, 8)]
    assert {each["request_rate"] for each in found} == {0.5}
    assert bench.levels_of([0], [4], 256, requests=100)[0]["requests"] == 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["0,x", "1", 1], "bench_depths is '0,x'; expected are whole numbers from 0"),
        (["0", "0", 1], "bench_concurrency is '0'; expected are whole numbers from 1"),
        (["0", "1", 1, "hot"], "bench_prefix is 'hot'; expected is cold"),
        (["0", "1", 1, "cold", -1], "bench_request_rate is -1; expected are requests per second above 0"),
    ],
)
def test_a_wrong_value_names_its_variable(arguments: list[Any], text: str) -> None:
    with pytest.raises(bench.BenchError, match=text.replace("(", r"\(")):
        bench.levels_of(*arguments)


def test_the_longest_request_of_a_soak_counts_its_variation() -> None:
    assert bench.longest(level(depth=0)) == 116
    assert bench.longest(level(depth=100, varied=True)) == 300


# --- the command


def test_cold_prompts_are_random_and_none_is_sent_before_the_measurement() -> None:
    found = words()
    assert option(found, "dataset-name") == "random"
    assert (option(found, "random-input-len"), option(found, "random-output-len")) == ("1000", "100")
    assert (option(found, "num-prompts"), option(found, "max-concurrency"), option(found, "request-rate")) == ("2", "1", "inf")
    assert (option(found, "ready-check-timeout-sec"), option(found, "seed"), option(found, "tokenizer")) == ("0", "7", "/models/m")
    assert option(found, "random-range-ratio") is None
    assert option(words(varied=True), "random-range-ratio") == "0.5"
    assert option(words(request_rate=0.4), "request-rate") == "0.4"


def test_warm_prompts_share_a_prefix() -> None:
    found = words(prefix="warm")
    assert option(found, "dataset-name") == "prefix_repetition"
    assert (option(found, "prefix-repetition-prefix-len"), option(found, "prefix-repetition-suffix-len")) == ("984", "16")
    assert option(found, "prefix-repetition-num-prefixes") == "1"


def test_the_key_is_read_in_the_container_and_is_not_an_argument() -> None:
    found = words()
    assert found[:2] == ["sh", "-c"]
    assert '"${VLLM_API_KEY:-$OPENAI_API_KEY}"' in found[2]
    assert not any("API_KEY" in word for word in found[3:])


# --- the figures


def test_a_row_has_the_figures_of_its_level_alone() -> None:
    found = row()
    assert (found["completed"], found["tok_s"], found["stream_tok_s"], found["ttft_ms"], found["ttft_p99_ms"]) == (2, 100.0, 50.0, 500.0, 900.0)
    assert (found["prefill_tok_s"], found["itl_ms"]) == (2000.0, 21.5)
    assert (found["acceptance_percent"], found["cache_hit_percent"], found["kv_usage_percent"], found["preemptions"]) == (60.0, 70.0, 42.0, 2)


def test_what_the_engine_does_not_count_is_not_known() -> None:
    found = bench.row_of(level(concurrency=2), json.dumps(RESULT), {}, {}, None)
    assert [found[key] for key in ("acceptance_percent", "cache_hit_percent", "kv_usage_percent", "prefill_tok_s")] == [None] * 4
    assert bench.table([found])[1].split() == ["1,000", "2", "2", "2", "100.0", "50.0", "500.0", "900.0", "-", "21.5", "-", "-", "-", "0"]


@pytest.mark.parametrize("text", ["", "[]", '{"completed": "2"}', json.dumps({**RESULT, "output_throughput": float("nan")}), "[" * 9999])
def test_a_result_that_is_not_one_is_reported(text: str) -> None:
    with pytest.raises(bench.BenchError, match="the result of vllm bench serve is not valid"):
        bench.row_of(level(), text, {}, {}, None)


def test_values_that_are_not_numbers_do_not_count() -> None:
    assert bench.counters("vllm:num_preemptions_total NaN\nvllm:num_preemptions_total x\nvllm:num_preemptions_total 3\n") == {"preempted": 3.0}
    assert bench.kv_usage('vllm:kv_cache_usage_perc{engine="0"} 0.25\nvllm:kv_cache_usage_perc{engine="1"} 0.5\nvllm:kv_cache_usage_perc x\n') == 0.5
    assert bench.kv_usage("") is None


@pytest.mark.parametrize(
    ("code", "err", "text"),
    [
        (124, "", "it did not end within 60 s"),
        (127, "timeout: failed to run command 'vllm': No such file or directory", "the image has no vllm bench serve"),
        (2, "vllm: error: argument subparser: invalid choice: 'bench' (choose from serve)", "the image has no vllm bench serve"),
        (2, "vllm bench serve: error: unrecognized arguments: --ready-check-timeout-sec 0", "of another version"),
        (1, "Traceback\nModuleNotFoundError: No module named 'pandas'", "Add vllm[bench] to the image"),
        (1, "Error response from daemon: No such container: x\n", "Error response from daemon: No such container: x (exit code 1)"),
    ],
)
def test_why_the_benchmark_failed(code: int, err: str, text: str) -> None:
    assert text in bench.reason_of(code, err, 60)


# --- published figures


def test_published_figures_stand_next_to_what_was_measured() -> None:
    rows = [row(depth=0), row(depth=0, concurrency=4, tok_s=90.0), row(depth=245760), row(depth=0, concurrency=16, request_rate=2.5, tok_s=200.0)]
    published = {
        "single_stream_tok_s": 40, "aggregate_tok_s_at_4": 100, "decode_tok_s_at_240k": 25.0, "prefill_tok_s_at_240k": 1600, "inter_token_ms": 21.5,
        "staggered_tok_s_at_16": 205.0, "aggregate_tok_s_at_16": 315.1, "aggregate_tok_s_at_6": None, "kv_pool_tokens": 1990142, "draft_acceptance_percent": 60,
    }  # fmt: skip
    assert bench.comparison(rows, published) == [
        "single_stream_tok_s: 50.0, published 40 (+25 %)",
        "aggregate_tok_s_at_4: 90.0, published 100 (-10 %)",
        "decode_tok_s_at_240k: 50.0, published 25.0 (+100 %)",
        "prefill_tok_s_at_240k: 2,000.0, published 1,600 (+25 %)",
        "inter_token_ms: 21.5, published 21.5 (+0 %)",
        "staggered_tok_s_at_16: 200.0, published 205.0 (-2 %)",
        "draft_acceptance_percent: 60.0, published 60 (+0 %)",
    ]
    assert bench.comparison([row(depth=0, prefix="warm")], published) == []


def test_a_published_figure_names_its_level() -> None:
    rows = [
        row(depth=256, output_tokens=64),
        row(depth=4096, concurrency=1),
        row(depth=4096, concurrency=2),
        row(depth=0, concurrency=4, acceptance_percent=33.0),
    ]
    published = {
        "single_stream_tok_s_p256_g64": 54.46, "single_stream_tok_s_p256_g256": 65.38, "ttfc_seconds_p256_g64": 0.5, "decode_tok_s_c1_d4k": 50,
        "decode_tok_s_c2_d4k": 50, "ttft_seconds_c2_d4k": 1.0, "draft_acceptance_percent_at_4": 33.3, "per_stream_tok_s_at_4": 25, "aggregate_tok_s": 100,
        "single_stream_tok_s_p512_g256_warm": 56.73, "decode_tok_s_pr43447_at_4k": 30, "staggered_tok_s_at_4": 60, "prefill_tok_s_at_depth_0": 900,
    }  # fmt: skip
    assert [line.partition(",")[0] for line in bench.comparison(rows, published)] == [
        "single_stream_tok_s_p256_g64: 50.0", "ttfc_seconds_p256_g64: 0.50", "decode_tok_s_c1_d4k: 50.0", "ttft_seconds_c2_d4k: 0.50",
        "draft_acceptance_percent_at_4: 33.0", "per_stream_tok_s_at_4: 50.0",
    ]  # fmt: skip


# --- memory


def test_a_leak_is_counted_from_the_end_of_the_first_round() -> None:
    gib = 2**20
    rounds = {
        "spark-1": [{"lowest_available_kib": each * gib, "lowest_free_kib": (each - 2) * gib, "after_kib": each * gib} for each in (10, 9, 8)],
        "spark-2": [],
    }
    assert bench.memory_lines(rounds, [50, 64, 64]) == [
        "spark-1: lowest MemAvailable 8.0 GiB, lowest MemFree 6.0 GiB; +2,048 MiB in 128 requests, +16.00 MiB a request"
    ]


def test_the_report_of_a_soak_shows_its_last_levels() -> None:
    found = bench.report([row()] * 50, {}, "pair1", {"spark-1": [{"lowest_available_kib": 2**20, "lowest_free_kib": 0, "after_kib": 2**20}]}, [5])
    assert found[2] == "The last 40 of 50 levels:"
    assert len(found) == 4 + 40 + 3
    assert found[-1] == "spark-1: lowest MemAvailable 1.0 GiB, lowest MemFree 0.0 GiB"
