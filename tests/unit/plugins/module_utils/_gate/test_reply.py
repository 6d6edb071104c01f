"""What is wrong with a reply."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import reply

GOOD = [
    ("plain", "Say hello", "Hello, how can I help you today?"),
    ("numbers and rules", "Draw a line", "----------------------------------------\n| a | b |\n"),
    ("a short repetition", "Sing", "la la la la, said the singer."),
    ("the script that was asked for", "用中文回答", "你好，很高兴见到你。"),
    ("one foreign letter", "What is a micron?", "A micron (µ, the Greek mu) is a millionth of a metre."),
    ("code", "Write a loop", "for i in range(10):\n    print(i)\n"),
    ("another script by its name", "Translate 'good morning' into Japanese.", "おはようございます"),
    ("another script by its name, in German", "Übersetze 'Guten Tag' ins Russische.", "Добрый день"),
    ("all scripts", "Say hello in five languages", "Hello, Hola, Привет, 你好, こんにちは"),
    ("katakana for a prompt without", "日本の首都はどこですか。", "東京です。コーヒーもおいしいです。"),
    ("a name in its own script", "Who wrote War and Peace?", "Leo Tolstoy (Лев Толстой)."),
    ("a power of ten", "10^20 in digits?", "100000000000000000000"),
    ("base64 of zeros", "Encode zeros", "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=="),
    ("a mask", "UINT64_MAX in hex?", "0xFFFFFFFFFFFFFFFF"),
    ("a drawn box", "Draw a box", "┌────────────────────────┐\n│ hello                  │"),
    ("a repetition that was asked for", "Repeat this five times: The cat sat.", "The cat sat.\n" * 5),
    ("a tag of ASP.NET", "Turn on debug in ASP.NET", "<configuration><system.web><compilation debug='true'/></system.web>"),
    ("a template argument", "A vector in C++", "std::vector<parameter_type> values;"),
    ("XML that was asked for", "Write an XML element named parameter", '<parameter name="timeout">30</parameter>'),
    ("an operator of F#", "A sum in F#", 'printfn "%d" <| List.sum xs |> ignore'),
    ("markup as code", "Explain ChatML", "A turn ends with `<|im_end|>`."),
    ("markup that the prompt itself holds", "What does <|im_end|> mean?", "<|im_end|> ends a turn."),
]
BAD = [
    ("empty", "Say hello", "  \n", "empty"),
    ("nothing that can be seen", "Say hello", "\u200b\ufeff", "empty"),
    ("digits alone", "Say hello", "0" * 48, "'0' 48 times"),
    ("a short reply of one word", "The capital of France is", " Paris" * 16, "over and over"),
    ("a long sentence again and again", "Say hello", "the quick brown fox jumps over the lazy dog and then it runs far away home " * 10, "over and over"),
    ("a paragraph again and again", "Say hello", (" ".join(f"w{n}" for n in range(40)) + " ") * 5, "over and over"),
    ("a phrase without blanks", "用中文介绍北京", "北京是" * 40, "over and over"),
    ("more often than asked", "Repeat this five times: The cat sat.", "The cat sat.\n" * 30, "over and over"),
    ("drift into Bengali", "Explain RAM", "RAM হল একটি স্মৃতি", "another language (bengali"),
    ("drift into a third language", "Translate 'good morning' into Japanese.", "Доброе утро", "another language (cyrillic"),
    ("an end of sequence", "Say hello", "Hello!</s>", "leaked markup"),
    ("a turn of Gemma", "Say hello", "Hello<end_of_turn>", "leaked markup"),
    ("an unknown token", "Say hello", "Hello <unk> there", "leaked markup"),
    ("a function call", "The weather?", "<function=get_weather></function>", "leaked markup"),
    ("byte tokens", "Say hello", "Hello<0x0A><0x0A>you", "leaked markup"),
    ("pieces of a tokenizer", "Say hello", "HelloĠthereĠfriend", "leaked markup"),
    ("control characters", "Say hello", "Hel\x00lo", "broken characters"),
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
    for other in ("14", "42", "4.5", "0.4"):
        assert reply.faults("2+2?", {"ok": True, "text": f"It is {other}."}, expect="4"), other
    assert reply.faults("Pi?", {"ok": True, "text": "3.14159"}, expect="3.14") == []
    assert "known answer is '4'" in reply.faults("2+2?", {"ok": True, "text": " It is 5."}, expect="4")[0]


def test_no_completion_says_why() -> None:
    assert reply.faults("x", {"ok": False, "error": "HTTP 500: dead"}) == ["no completion came back (HTTP 500: dead)"]


def test_reply_of_reasoning_alone_is_judged_by_its_reasoning() -> None:
    thinks = {"ok": True, "text": "", "reasoning": "用户问的是数学题", "finish_reason": "length"}
    assert reply.faults("What is 17 + 25?", thinks, "42") == []
    assert reply.cut_while_reasoning(thinks)
    ended = thinks | {"finish_reason": "stop"}
    assert not reply.cut_while_reasoning(ended)
    assert len(reply.faults("What is 17 + 25?", ended, "42")) == 1
    assert "over and over" in reply.faults("What is 17 + 25?", thinks | {"reasoning": "no " * 60}, "42")[0]
