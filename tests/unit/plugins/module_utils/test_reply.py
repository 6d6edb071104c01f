"""What is wrong with a reply."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils import reply

GOOD = [
    ("plain", "Say hello", "Hello, how can I help you today?"),
    ("numbers and rules", "Draw a line", "----------------------------------------\n| a | b |\n"),
    ("a short repetition", "Sing", "la la la la, said the singer."),
    ("the script that was asked for", "用中文回答", "你好，很高兴见到你。"),
    ("one foreign letter", "What is a micron?", "A micron (µ, the Greek mu) is a millionth of a metre."),
    ("code", "Write a loop", "for i in range(10):\n    print(i)\n"),
    ("markup that the prompt itself holds", "What does <|im_end|> mean?", "<|im_end|> ends a turn."),
]
BAD = [
    ("empty", "Say hello", "  \n", "empty"),
    ("one character again and again", "Say hello", "!!!!!!!!!!!!!!!!!!!!!!!!!!!!!!", "'!' 30 times"),
    ("a word again and again", "Say hello", "yes " * 40, "over and over"),
    ("a phrase again and again", "Say hello", "I am here to help. " * 12, "over and over"),
    ("drift into Chinese", "Say hello", "Hello, 我可以帮助你", "another language (cjk"),
    ("drift into Russian", "Say hello", "Hello, привет", "another language (cyrillic"),
    ("a chat template's marker", "Say hello", "Hello<|im_end|>", "leaked markup"),
    ("a full-width marker", "Say hello", "Hello<｜tool▁calls▁begin｜>", "leaked markup"),
    ("a tool call of DeepSeek", "Say hello", "<｜DSML｜invoke name=\"x\">", "leaked markup"),
    ("a tool call as XML", "Say hello", '<invoke name="get_weather">', "leaked markup"),
    ("broken characters", "Say hello", "Hel\ufffdlo", "broken characters"),
]


@pytest.mark.parametrize(("prompt", "text"), [g[1:] for g in GOOD], ids=[g[0] for g in GOOD])
def test_good(prompt: str, text: str) -> None:
    assert reply.faults(prompt, {"ok": True, "text": text}) == []


@pytest.mark.parametrize(("prompt", "text", "fault"), [b[1:] for b in BAD], ids=[b[0] for b in BAD])
def test_bad(prompt: str, text: str, fault: str) -> None:
    found = reply.faults(prompt, {"ok": True, "text": text})
    assert any(fault in phrase for phrase in found), found


def test_the_known_answer() -> None:
    assert reply.faults("2+2?", {"ok": True, "text": " It is 4."}, expect="4") == []
    assert "known answer is '4'" in reply.faults("2+2?", {"ok": True, "text": " It is 5."}, expect="4")[0]


def test_no_completion_says_why() -> None:
    assert reply.faults("x", {"ok": False, "error": "HTTP 500: dead"}) == ["no completion came back (HTTP 500: dead)"]
