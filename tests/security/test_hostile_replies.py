"""Replies of a hostile or broken model: each is judged in linear time."""

from __future__ import annotations

import time

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import reply

SIZE = 1 << 14
PATTERNS = [
    *("<", "<|", "<|aaaa", "< ", "<  /  ||||", "<tool_", "</function>", "<a:", "[", "[TOOL_", "\\", "◁", "(", '"', "'a é", "`", "``x", "` ", "```\n", "a:"),
    *("the <think> tag ", '"<think>" ', '{"name": ', "assistant", " " * 199 + "x", "-" * 199 + " ", "a" * 17 + " ", "1" * 39 + " "),
    *("analysis", "ab", "a b ", "дом ", "0 1 2 3 4 5 6 7 8 9 ", "i v x ", "一二", "Go on. ", "1. a\n", "| a ", "\n", "\u200b", "é"),
]
SPECIAL = {
    "one long tag": "<tool_" + "a" * SIZE,
    "spaces before the end": " " * SIZE + "x",
    "spaces after a bar": "<|" + " " * SIZE + "x",
    "a growing number": "".join(f"{number} " for number in range(SIZE // 6)),
    "rows of data": "".join(f"row {number} has {number * number % 97} of {number % 13} and {number % 7}. " for number in range(SIZE // 25)),
    "rows that nearly repeat": "".join(f"a b c d e {number} {number * 7919 % 101} " for number in range(SIZE // 17)),
    "words that repeat in pairs": "".join(f"one two {number % 5} one two {number % 3} " for number in range(SIZE // 18)),
    "different sentences": "".join(f"It is {number} and so it is {number * number}. " for number in range(SIZE // 25)),
    "Chinese": "".join(chr(0x4E00 + number * number % 3001) for number in range(SIZE)),
    "two Chinese signs": "".join(chr(0x4E00 + number * number % 7 % 2) for number in range(SIZE)),
    "two letters": "".join("ab"[number * number % 11 % 2] for number in range(SIZE)),
}


@pytest.mark.parametrize("prompt", ["Greet me", "Repeat it and explain the new words."])
@pytest.mark.parametrize("text", [*(pattern * (SIZE // len(pattern)) for pattern in PATTERNS), *SPECIAL.values()], ids=[*map(repr, PATTERNS), *SPECIAL])
def test_a_long_reply_is_judged_in_linear_time(text: str, prompt: str) -> None:
    start = time.process_time()
    assert isinstance(reply.faults(prompt, {"ok": True, "text": text}), list)
    assert time.process_time() - start < 1, "16 KiB take about 0.02 s; in quadratic time they take seconds"
