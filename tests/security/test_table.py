"""Each row of README.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TEXT = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def test_each_row_names_a_test() -> None:
    rows = re.findall(r"`(tests/[\w/]+\.py)::(\w+)` \|", TEXT)
    assert len(rows) == len(re.findall(r"(?m)^\| (?:[HMLNSR]\d+|property \d+) \|", TEXT))
    missing = [f"{path}::{name}" for path, name in rows if f"def {name}(" not in (REPO / path).read_text(encoding="utf-8")]
    assert missing == []


def test_all_findings_and_properties_have_a_row() -> None:
    last = {"H": 8, "M": 11, "L": 12, "N": 2, "S": 19, "R": 7, "property ": 15}
    wanted = {f"{kind}{number}" for kind, count in last.items() for number in range(1, count + 1)}
    rest = TEXT.partition("Without a test:")[2]
    assert wanted - set(re.findall(r"(?m)^\| (\w+(?: \d+)?) \|", TEXT)) == set(re.findall(r"\b[HMLNSR]\d+\b", rest))
