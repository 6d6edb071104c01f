"""The logs of owners in ../shared/samples/field: their class, and what the remedy must name."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from shared_samples import SHARED, needs_shared, samples

#: The number of logs; an empty table passes without a check.
LOGS = 7


def cases() -> list[Any]:
    """List (name, expected state and class, expressions that the remedy must match) of every log."""
    if SHARED is None:
        return []
    expected = json.loads((samples() / "field" / "expected.json").read_text())
    remedies = json.loads((samples() / "field" / "remedies.json").read_text())
    return [pytest.param(name, want, remedies[name]["remedy"], id=name) for name, want in sorted(expected.items())]


@needs_shared
def test_finds_every_log() -> None:
    assert len(cases()) == LOGS == len(list((samples() / "field").glob("L*.log")))


@needs_shared
@pytest.mark.parametrize(("name", "want", "remedy"), cases())
def test_names_the_class_and_the_remedy_of_a_log_of_the_field(name: str, want: dict[str, list[str]], remedy: list[str]) -> None:
    facts = parse((samples() / "field" / name).read_bytes())
    failure = facts["failure"]
    assert facts["state"] in want["state"]
    assert failure["class"] in want["class"]
    assert [text for text in remedy if not re.search(text, failure["remedy"])] == [], failure["remedy"]
