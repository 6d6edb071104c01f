"""What is wrong with a reply."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import reply

GOOD = {
    "plain": ("Greet me", "Hello, how can I help you today?"),
    "a table": ("Draw a line", "----------------------------------------\n| a | b |\n"),
    "a short repetition": ("Sing", "la la la la, sings the singer."),
    "the script of the prompt": ("用中文回答", "你好，很高兴见到你。"),
    "one Greek letter": ("What is a micron?", "A micron (µ, the Greek mu) is a millionth of a metre."),
    "code": ("Write a loop", "for i in range(10):\n    print(i)\n"),
    "a language by its name": ("Translate 'good morning' into Japanese.", "おはようございます"),
    "several languages": ("Greet me in five languages", "Hello, Hola, Привет, 你好, こんにちは"),
    "a name in its own script": ("Who wrote War and Peace?", "Leo Tolstoy (Лев Толстой)."),
    "a power of ten": ("10^20 in digits?", "100000000000000000000"),
    "a repetition that was asked for": ("Repeat this five times: The cat sat.", "The cat sat.\n" * 5),
    "a template argument": ("A vector in C++", "std::vector<parameter_type> values;"),
    "an operator": ("A sum in F#", 'printfn "%d" <| List.sum xs |> ignore'),
    "markup as code": ("Explain ChatML", "A turn ends with `<|im_end|>`."),
    "markup of the prompt": ("What does <|im_end|> mean?", "<|im_end|> ends a turn."),
}
BAD = {
    "empty": ("  \n", "empty"),
    "invisible characters": ("\u200b\ufeff", "empty"),
    "digits alone": ("0" * 48, "the character '0'"),
    "one character": ("!" * 30, "the character '!'"),
    "a word": ("yes " * 40, "over and over"),
    "a short reply of one word": (" Paris" * 16, "over and over"),
    "a phrase": ("I am here to help. " * 12, "over and over"),
    "a paragraph": ((" ".join(f"w{n}" for n in range(40)) + " ") * 5, "over and over"),
    "a phrase without spaces": ("Beijing: " + "北京是" * 40, "over and over"),
    "Chinese": ("Hello, 我可以帮助你", "another language"),
    "Bengali": ("RAM হল একটি স্মৃতি", "another language"),
    "Russian": ("Hello, привет", "another language"),
    "an end of sequence": ("Hello!</s>", "leaked markup"),
    "a turn of Gemma": ("Hello<end_of_turn>", "leaked markup"),
    "a function call": ("<function=get_weather></function>", "leaked markup"),
    "byte tokens": ("Hello<0x0A><0x0A>you", "leaked markup"),
    "a chat template": ("Hello<|im_end|>", "leaked markup"),
    "a tool call of DeepSeek": ('<｜DSML｜invoke name="x">', "leaked markup"),
    "a tool call": ("Sure <tool_call>{}", "leaked markup"),
    "a tool call as XML": ('<invoke name="get_weather">', "leaked markup"),
    "control characters": ("Hel\x00lo", "broken characters"),
    "undecodable bytes": ("Hel\ufffdlo", "broken characters"),
}


@pytest.mark.parametrize(("prompt", "text"), GOOD.values(), ids=GOOD.keys())
def test_accepts_a_good_reply(prompt: str, text: str) -> None:
    assert reply.faults(prompt, {"ok": True, "text": text}) == []


@pytest.mark.parametrize(("text", "fault"), BAD.values(), ids=BAD.keys())
def test_names_the_fault_of_a_bad_reply(text: str, fault: str) -> None:
    found = reply.faults("Greet me", {"ok": True, "text": text})
    assert any(fault in phrase for phrase in found), found


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
