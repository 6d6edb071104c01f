"""Each row of README.md names a test that exists."""

from __future__ import annotations

import re
from pathlib import Path

REPO = Path(__file__).resolve().parents[2]
TEXT = (Path(__file__).parent / "README.md").read_text(encoding="utf-8")


def test_each_row_names_a_test() -> None:
    rows = re.findall(r"`(tests/[\w/]+\.py)::(\w+)` \|", TEXT)
    assert len(rows) == len(re.findall(r"(?m)^\| (?:[HML]\d+|property \d+) \|", TEXT))
    missing = [f"{path}::{name}" for path, name in rows if f"def {name}(" not in (REPO / path).read_text(encoding="utf-8")]
    assert missing == []


def test_all_findings_and_properties_have_a_row() -> None:
    wanted = {*(f"H{n}" for n in range(1, 9)), *(f"M{n}" for n in range(1, 12)), *(f"L{n}" for n in range(1, 13)), *(f"property {n}" for n in range(1, 16))}
    rest = TEXT.partition("Without a test:")[2]
    assert wanted - set(re.findall(r"(?m)^\| (\w+(?: \d+)?) \|", TEXT)) == set(re.findall(r"\b[HML]\d+\b", rest))
