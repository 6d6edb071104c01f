"""The words that go, and sentences that are too long."""

from __future__ import annotations

import pytest

from tools import words

LONG = "word " * 25 + "end."


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        (LONG, [26]),
        (f"Short. {LONG}", [26]),
        (f"- one\n- {LONG}", [26]),
        (f"**{'word ' * 20}end.** {'word ' * 20}end.", []),
        (f"{'word ' * 24}`{LONG}`", []),
        (f"```\n{LONG}\n```\n| {LONG} |\n  | {LONG} |\n# {LONG}", []),
        (f"[{'word ' * 20}end](docs/a page.md) {'word ' * 4}end.", [26]),
    ],
    ids=["one", "second", "item", "two with a bold one", "code is a word", "no prose", "a link"],
)
def test_long_sentences_are_counted(text: str, counts: list[int]) -> None:
    assert [count for count, _start in words.long_sentences(text)] == counts


def test_a_word_that_goes_is_found_with_its_line_and_its_replacement() -> None:
    word = "rot" + "ten"  # tools/words.py reads the tests too
    assert list(words.found(f"a\nit is {word}")) == [(2, word, "corrupted")]
