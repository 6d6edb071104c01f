"""Concurrent prompts: what is sent, how replies are judged, the table and the message."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench


def good(text: str, tokens: int = 10, seconds: float = 2.0) -> dict[str, Any]:
    """A reply as api_probe returns it."""
    return {"ok": True, "status": 200, "text": text, "completion_tokens": tokens, "seconds": seconds, "error": ""}


LOST = {"ok": False, "status": 500, "text": "", "completion_tokens": 0, "seconds": 0.1, "error": "HTTP 500: EngineDeadError"}


@pytest.mark.parametrize(("value", "expected"), [("1,2,4,6", [1, 2, 4, 6]), ("1, 8 16", [1, 8, 16]), ("1024", [1024])])
def test_whole_numbers_of_a_text(value: str, expected: list[int]) -> None:
    assert bench.whole_numbers("x", value, 1, 1024) == expected


def test_our_own_prompts_are_enough_for_the_usual_levels_and_none_is_asked_twice() -> None:
    prompts = bench.prompts_of([])
    asked = [prompt["prompt"] for _level, batch in bench.batches(prompts, (1, 2, 4, 6)) for prompt in batch]
    assert len(asked) == len(set(asked)) == 13
    assert {prompt["prompt"] for prompt in prompts} == set(asked)


def test_a_prompt_is_completed_and_the_request_has_no_known_answer_in_it() -> None:
    (prompt,) = bench.prompts_of([{"prompt": "Hello", "expect": "World"}])
    assert prompt == {"prompt": "Hello", "expect": "World", "chat": True, "max_tokens": 512, "body": {}}
    assert bench.requests_of([prompt]) == [{"prompt": "Hello", "chat": True, "max_tokens": 512, "body": {}}]
    assert bench.prompts_of(["Hello"])[0]["prompt"] == "Hello"


def test_levels_go_on_where_the_one_before_stopped_and_begin_again_at_the_end() -> None:
    prompts = bench.prompts_of(["a", "b", "c"])
    assert [[prompt["prompt"] for prompt in batch] for _level, batch in bench.batches(prompts, [1, 2, 4])] == [["a"], ["b", "c"], ["a", "b", "c", "a"]]


def test_speeds_are_those_of_streams_that_ran_at_the_same_time() -> None:
    prompts = bench.prompts_of(["a", "b"])
    row = bench.prompt_row(2, prompts, [good("fine", 10, 2.0), good("fine too", 40, 4.0)])
    assert (row["slowest_tok_s"], row["fastest_tok_s"], row["aggregate_tok_s"]) == (5.0, 10.0, 12.5)
    assert (row["seconds"], row["tokens"], row["bad_outputs"], row["faults"]) == (4.0, 50, 0, [])
    assert bench.prompt_table([row])[1].split() == ["2", "2", "0", "4.00", "5.0-10.0", "12.5"]
    assert bench.stream_lines(row) == [
        "stream  seconds  tokens  tok/s  reply",
        "1          2.00      10    5.0  fine",
        "2          4.00      40   10.0  fine too",
        "all        4.00      50   12.5  2 at once",
    ]
    assert bench.fault_lines([row]) == []
    assert bench.complaint("pair1", [row]) == ""


def test_one_prompt_is_longer_than_a_wrong_cache_layout_survives() -> None:
    longest = max(bench.PROMPTS, key=lambda prompt: len(prompt["prompt"]))
    assert len(longest["prompt"].split()) > 411
    before, after = longest["prompt"].split(longest["expect"])
    assert min(len(before), len(after)) > 1000


@pytest.mark.parametrize(
    ("prompt", "reply", "fault"),
    [
        pytest.param({"prompt": "a"}, good("  "), "the reply is empty", id="empty"),
        pytest.param({"prompt": "a", "expect": "Paris."}, good(" Rome."), "the known answer is 'Paris.'", id="wrong answer"),
        pytest.param({"prompt": "a"}, LOST, "no completion came back (HTTP 500: EngineDeadError)", id="none"),
        pytest.param({"prompt": "a"}, None, "the request was not sent", id="fewer replies than prompts"),
    ],
)
def test_each_kind_of_bad_reply_is_named_with_its_prompt(prompt: dict[str, Any], reply: Any, fault: str) -> None:
    row = bench.prompt_row(1, bench.prompts_of([prompt]), [reply] if reply else [])
    assert row["bad_outputs"] == 1
    assert fault in row["faults"][0]["fault"]
    assert row["faults"][0]["prompt"] == "a"
    sentence = bench.complaint("pair1", [row])
    assert sentence.startswith("pair1: 1 of 1 replies are bad: at 1 at once, to 'a': ")
    assert fault in sentence


@pytest.mark.parametrize(
    ("levels", "remedy"),
    [
        pytest.param([(1, ""), (2, "ok")], "delete the folders of container.cache_dirs with their key on all ranks", id="bad alone"),
        pytest.param([(1, "ok"), (2, "")], "lower max-num-seqs", id="bad only at once"),
        pytest.param([(1, None), (2, None)], "playbooks/status.yml", id="no completions"),
    ],
)
def test_the_remedy_follows_from_where_it_goes_wrong(levels: list[tuple[int, str | None]], remedy: str) -> None:
    rows = []
    for level, text in levels:
        reply = LOST if text is None else good(text)
        rows.append(bench.prompt_row(level, bench.prompts_of(["a"] * level), [reply] * level))
    assert f"Remedy: {remedy}" in bench.complaint("pair1", rows).replace("see playbooks", "playbooks").replace("one request alone is fine, so ", "")


def test_replies_that_ended_in_their_reasoning_are_counted_and_not_bad() -> None:
    thinks = good("") | {"reasoning": "The user asks for a capital.", "finish_reason": "length"}
    row = bench.prompt_row(2, bench.prompts_of([{"prompt": "a", "expect": "Paris"}, "b"]), [thinks, good("fine")])
    assert (row["bad_outputs"], row["cut"]) == (0, 1)
    assert bench.cut([row]).startswith("1 of 2 replies ended in their reasoning, at max_tokens, so their answers are not known. Raise max_tokens")
    assert bench.cut([bench.prompt_row(1, bench.prompts_of(["b"]), [good("fine")])]) == ""


# --- The measurement of a served model: levels, command, figures, and the memory of a soak.

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
    return {**bench.levels_of("1000", "1", 100)[0], **over}


def row(**over: Any) -> dict[str, Any]:
    return {**bench.row_of(level(), json.dumps(RESULT), bench.counters(BEFORE), bench.counters(AFTER), 0.42), **over}


def option(words: list[str], name: str) -> str | None:
    return words[words.index(f"--{name}") + 1] if f"--{name}" in words else None


def words(**over: Any) -> list[str]:
    return bench.words(level(**over), "http://127.0.0.1:8000", "m", ["--tokenizer", "/models/m"], 7, 60)


# --- levels


def test_each_depth_is_measured_at_each_concurrency() -> None:
    found = bench.levels_of("0,65536", "1 4", 256, request_rate=0.5)
    assert [(each["depth"], each["concurrency"], each["requests"]) for each in found] == [(0, 1, 2), (0, 4, 8), (65536, 1, 2), (65536, 4, 8)]
    assert {each["request_rate"] for each in found} == {0.5}
    assert bench.levels_of("0", "4", 256, requests=100)[0]["requests"] == 100


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["0,x", "1", 1], "The depths are '0,x'; expected are whole numbers from 0"),
        (["0", "0", 1], "The numbers of requests at once are '0'; expected are whole numbers from 1"),
        (["0", "1", 1, "cold", -1.0], "The request rate is -1.0; expected are requests per second above 0"),
    ],
)
def test_a_wrong_value_is_named(arguments: list[Any], text: str) -> None:
    with pytest.raises(bench.BenchError, match=text):
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


def test_a_soak_shows_its_last_levels_and_the_memory() -> None:
    found = bench.last_levels([row()] * 50)
    assert (found[0], len(found)) == ("The last 40 of 50 levels:", 42)
    rounds = {"spark-1": [{"lowest_available_kib": 2**20, "lowest_free_kib": 0, "after_kib": 2**20}]}
    assert bench.figures_lines(rounds, [5]) == ["", "Memory:", "spark-1: lowest MemAvailable 1.0 GiB, lowest MemFree 0.0 GiB"]
