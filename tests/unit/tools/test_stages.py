"""Tests for the stages of the suites."""

from __future__ import annotations

import argparse
import re
import shlex

import pytest
from playbook import REPO

from tools import acceptance, stages

#: When the rows run that `pytest -m` selects.
SELECTED = {"quick": ("test",), "not quick": ("more", "long"), "not quick and not long": ("more",), "long": ("long",)}


def rows(suite: str) -> list[str]:
    """The rows of the net that the stages of a suite run."""
    found, runs = [], acceptance.tests()
    parser = argparse.ArgumentParser()
    parser.add_argument("paths", nargs="*")
    parser.add_argument("--ignore", action="append", default=[])
    parser.add_argument("-m")
    for line in (line for _nice, lane in stages.SUITES[suite] for _name, line in lane if "tests/acceptance" in line):
        given, _others = parser.parse_known_args(shlex.split(line.partition("pytest")[2]))
        for path in sorted(acceptance.NET.glob("test_*.py")):
            shown = str(path.relative_to(REPO))
            if shown.startswith(tuple(given.paths)) and shown not in given.ignore:
                found += [name for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.M) if runs[name] in SELECTED[given.m]]
    return found


@pytest.mark.parametrize("suite", ["test", "more", "long"])
def test_a_suite_runs_each_of_its_rows_once(suite: str) -> None:
    assert sorted(rows(suite)) == sorted(name for name, run in acceptance.tests().items() if run == suite)
