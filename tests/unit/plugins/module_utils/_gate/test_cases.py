"""Concurrent prompts: what is sent, how replies are judged, the table and the message."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import cases


def good(text: str, tokens: int = 10, seconds: float = 2.0) -> dict[str, Any]:
    """A reply as api_probe returns it."""
    return {"ok": True, "status": 200, "text": text, "completion_tokens": tokens, "seconds": seconds, "error": ""}


LOST = {"ok": False, "status": 500, "text": "", "completion_tokens": 0, "seconds": 0.1, "error": "HTTP 500: EngineDeadError"}


@pytest.mark.parametrize(("value", "expected"), [("1,2,4,6", [1, 2, 4, 6]), ("1, 8 16", [1, 8, 16]), ("1024", [1024])])
def test_whole_numbers_of_a_text(value: str, expected: list[int]) -> None:
    assert cases.whole_numbers("x", value, 1, 1024) == expected


def test_our_own_prompts_are_enough_for_the_usual_levels_and_none_is_asked_twice() -> None:
    prompts = cases.prompts_of([])
    asked = [prompt["prompt"] for _level, batch in cases.batches(prompts, (1, 2, 4, 6)) for prompt in batch]
    assert len(asked) == len(set(asked)) == 13
    assert {prompt["prompt"] for prompt in prompts} == set(asked)


def test_a_prompt_is_completed_and_the_request_has_no_known_answer_in_it() -> None:
    (prompt,) = cases.prompts_of([{"prompt": "Hello", "expect": "World"}])
    assert prompt == {"prompt": "Hello", "expect": "World", "chat": True, "max_tokens": 512, "body": {}}
    assert cases.requests_of([prompt]) == [{"prompt": "Hello", "chat": True, "max_tokens": 512, "body": {}}]
    assert cases.prompts_of(["Hello"])[0]["prompt"] == "Hello"


def test_levels_go_on_where_the_one_before_stopped_and_begin_again_at_the_end() -> None:
    prompts = cases.prompts_of(["a", "b", "c"])
    assert [[prompt["prompt"] for prompt in batch] for _level, batch in cases.batches(prompts, [1, 2, 4])] == [["a"], ["b", "c"], ["a", "b", "c", "a"]]


def test_speeds_are_those_of_streams_that_ran_at_the_same_time() -> None:
    prompts = cases.prompts_of(["a", "b"])
    row = cases.prompt_row(2, prompts, [good("fine", 10, 2.0), good("fine too", 40, 4.0)])
    assert (row["slowest_tok_s"], row["fastest_tok_s"], row["aggregate_tok_s"]) == (5.0, 10.0, 12.5)
    assert (row["seconds"], row["tokens"], row["bad_outputs"], row["faults"]) == (4.0, 50, 0, [])
    assert cases.prompt_table([row])[1].split() == ["2", "2", "0", "4.00", "5.0-10.0", "12.5"]
    assert cases.stream_lines(row) == [
        "stream  seconds  tokens  tok/s  reply",
        "1          2.00      10    5.0  fine",
        "2          4.00      40   10.0  fine too",
        "all        4.00      50   12.5  2 at once",
    ]
    assert cases.fault_lines([row]) == []
    assert cases.complaint("pair1", [row]) == ""


def test_one_prompt_is_longer_than_a_wrong_cache_layout_survives() -> None:
    longest = max(cases.PROMPTS, key=lambda prompt: len(prompt["prompt"]))
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
    row = cases.prompt_row(1, cases.prompts_of([prompt]), [reply] if reply else [])
    assert row["bad_outputs"] == 1
    assert fault in row["faults"][0]["fault"]
    assert row["faults"][0]["prompt"] == "a"
    sentence = cases.complaint("pair1", [row])
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
        rows.append(cases.prompt_row(level, cases.prompts_of(["a"] * level), [reply] * level))
    assert f"Remedy: {remedy}" in cases.complaint("pair1", rows).replace("see playbooks", "playbooks").replace("one request alone is fine, so ", "")


def test_replies_that_ended_in_their_reasoning_are_counted_and_not_bad() -> None:
    thinks = good("") | {"reasoning": "The user asks for a capital.", "finish_reason": "length"}
    row = cases.prompt_row(2, cases.prompts_of([{"prompt": "a", "expect": "Paris"}, "b"]), [thinks, good("fine")])
    assert (row["bad_outputs"], row["cut"]) == (0, 1)
    assert cases.cut([row]).startswith("1 of 2 replies ended in their reasoning, at max_tokens, so their answers are not known. Raise max_tokens")
    assert cases.cut([cases.prompt_row(1, cases.prompts_of(["b"]), [good("fine")])]) == ""
