"""What is wrong with a reply."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import reply
from shared_samples import needs_shared, samples

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "replies"


def spelled(text: str | tuple[str, int]) -> str:
    """The text of a fixture. A list is a text and how often it comes: `{n}` in it counts, `{a}` is a letter and `{d}` a day."""
    if isinstance(text, str):
        return text
    phrase, times = text
    return "".join(phrase.replace("{n}", str(n)).replace("{a}", chr(64 + n % 26)).replace("{d}", f"{n:02}") for n in range(1, times + 1))


BAD_TEXTS = [
    pytest.param(spelled(text), fault, id=f"{fault}: {name}")
    for fault, texts in json.loads((FIXTURES / "bad.json").read_text(encoding="utf-8")).items()
    for name, text in texts.items()
]
GOOD_TEXTS = [pytest.param(prompt, text, id=name) for name, (prompt, text) in json.loads((FIXTURES / "good.json").read_text(encoding="utf-8")).items()]


@needs_shared
def test_finds_what_is_wrong_with_the_replies_of_owners() -> None:
    cases = json.loads((samples() / "field" / "kernel-and-replies.json").read_text(encoding="utf-8"))["replies"]
    assert len(cases) == 6
    for name, case in cases.items():
        text = (samples() / "field" / name).read_text(encoding="utf-8")
        answer = {"text": text}
        if text.startswith("(empty content; reasoning only"):  # described, not recorded
            answer = {"text": "", "reasoning": "The user wants a greeting.", "finish_reason": "stop"}
        assert any(case["expected"] in phrase for phrase in reply.faults("Greet me", {"ok": True, **answer})), name


@pytest.mark.parametrize(("text", "fault"), BAD_TEXTS)
def test_names_the_fault_of_a_bad_reply(text: str, fault: str) -> None:
    found = reply.faults("Greet me", {"ok": True, "text": text})
    assert any(fault in phrase for phrase in found), found


@pytest.mark.parametrize(("prompt", "text"), GOOD_TEXTS)
def test_accepts_a_good_reply(prompt: str, text: str) -> None:
    assert reply.faults(prompt, {"ok": True, "text": text}) == []


@pytest.mark.parametrize("stroke", "|｜∣│❘ǀ¦┃║￨")
@pytest.mark.parametrize("form", ["<{0}DSML{0}invoke", "<{0}{0}DSML{0}{0} calls>", "< {0} DSML {0} calls>", "</{0}DSML{0}invoke>", "<{0}im_end{0}>"])
def test_finds_control_tokens_with_every_kind_of_bar(stroke: str, form: str) -> None:
    found = reply.faults("Greet me", {"ok": True, "text": f"Hello.\n{form.format(stroke)}"})
    assert any("leaked markup" in phrase for phrase in found), found


@pytest.mark.parametrize("tag", ["<｜DSML｜tool_calls>", "<tool_call>", "</think>", "<|im_end|>", "[TOOL_CALLS]", "<minimax:tool_call>", "◁think▷"])
def test_finds_markup_that_is_cut_anywhere_but_in_its_first_letters(tag: str) -> None:
    for length in range(5, len(tag) + 1):
        if tag[0] == "<" or length == len(tag):
            assert reply.faults("Greet me", {"ok": True, "text": f"Hello.\n{tag[:length]}"}), tag[:length]
    assert reply.faults("Explain", {"ok": True, "text": f"The model writes `{tag}` here."}) == []
    assert reply.faults("Explain", {"ok": True, "text": f"For example:\n```\n{tag}\n```\nThat is all."}) == []


@pytest.mark.parametrize(("prompt", "good"), [("Greet me", False), ("Write the song of ten bottles", True)])
def test_a_counter_in_a_song_that_was_asked_for_is_not_a_loop(prompt: str, good: bool) -> None:
    text = "".join(f"There are {n} green bottles that hang on the wall of the house.\n" for n in range(10, 0, -1))
    assert (reply.faults(prompt, {"ok": True, "text": text}) == []) is good


@pytest.mark.parametrize(("prompt", "good"), [("Tell me about these new public places.", False), ("Which word do Russians use?", True)])
def test_only_the_name_of_a_language_or_country_asks_for_its_letters(prompt: str, good: bool) -> None:
    assert (reply.faults(prompt, {"ok": True, "text": "Hello, привет всем"}) == []) is good


@pytest.mark.parametrize("text", ["", " \n", "\u200b", "```\n```"])
def test_reasoning_alone_is_an_empty_reply_unless_it_was_cut(text: str) -> None:
    thinks = {"ok": True, "text": text, "reasoning": "The user wants a greeting.", "finish_reason": "stop", "completion_tokens": 9}
    (fault,) = reply.faults("Greet me", thinks)
    assert fault.startswith("the reply is empty: the model ended after its reasoning")
    assert "check reasoning-parser in engine.args" in reply.remedy([fault])
    assert reply.faults("Greet me", thinks | {"finish_reason": "length"}, "Hello") == []


def test_an_empty_reply_that_was_cut_names_max_tokens() -> None:
    (fault,) = reply.faults("Greet me", {"ok": True, "text": "", "reasoning": "", "finish_reason": "length", "completion_tokens": 64})
    assert fault == "the reply is empty, and ended at max_tokens (64 tokens)"
    assert reply.remedy([fault]).startswith("raise max_tokens if the model reasons")


def test_the_remedy_for_markup_names_the_parsers_unless_there_are_other_faults() -> None:
    (fault,) = reply.faults("Greet me", {"ok": True, "text": "<think>A greeting."})
    assert "reasoning-parser and tool-call-parser of engine.args" in reply.remedy([fault, fault])
    assert reply.remedy([fault, "the reply repeats 'a' over and over"]) == reply.remedy([]) == ""


def test_compares_the_known_answer() -> None:
    assert reply.faults("2+2?", {"ok": True, "text": " It is 4."}, expect="4") == []
    for other in ("14", "42", "4.5", "0.4"):
        assert reply.faults("2+2?", {"ok": True, "text": f"It is {other}."}, expect="4"), other
    assert reply.faults("Pi?", {"ok": True, "text": "3.14159"}, expect="3.14") == []


def test_reports_why_no_completion_came() -> None:
    assert reply.faults("x", {"ok": False, "error": "HTTP 500: dead"}) == [f"{reply.MISSING} (HTTP 500: dead)"]


def test_judges_a_reply_of_reasoning_alone_by_its_reasoning() -> None:
    thinks = {"ok": True, "text": "", "reasoning": "用户问的是数学题", "finish_reason": "length"}
    assert reply.faults("What is 17 + 25?", thinks, "42") == []
    assert reply.cut_while_reasoning(thinks)
    ended = thinks | {"finish_reason": "stop"}
    assert not reply.cut_while_reasoning(ended)
    assert len(reply.faults("What is 17 + 25?", ended, "42")) == 1
    assert "over and over" in reply.faults("What is 17 + 25?", thinks | {"reasoning": "no " * 60}, "42")[0]
