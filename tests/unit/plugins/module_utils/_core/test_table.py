"""Aligned columns of text."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import text as t


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, "-"), ("", "-"), (True, "yes"), (False, "no"), (1990142, "1,990,142"), (0, "0"), (0.5, "0.5"), ("a\n b\x1b[2J", "a b\\x1b[2J"), ([], "[]")],
)
def test_a_value_is_one_printable_line(value: object, text: str) -> None:
    assert t.cell(value) == text


def test_a_long_cell_is_cut() -> None:
    assert t.cell("abcdef", 5) == "abcd…"
    assert t.cell("abcde", 5) == "abcde"


def test_numbers_are_to_the_right_and_text_to_the_left() -> None:
    assert t.table(("name", "tokens", "rate"), [("a", 5, "1.0-2.0"), ("longer", 1990142, None)]) == [
        "name       tokens     rate",
        "a               5  1.0-2.0",
        "longer  1,990,142        -",
    ]


def test_columns_line_up_with_wide_and_hostile_text() -> None:
    lines = t.table(("host", "state"), [("日本", "up"), ("a\x1b[31m", "down"), ("e\u0301", "up")])
    assert {t.width_of(line[: line.rindex("  ") + 2]) for line in lines} == {len("a\\x1b[31m") + 2}
    assert all(line.isprintable() for line in lines)


def test_a_table_without_header_or_rows() -> None:
    assert t.table(("", ""), [("SERVES", "pair1")]) == ["SERVES  pair1"]
    assert t.table(("a", "b"), []) == ["a  b"]
