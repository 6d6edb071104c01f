"""Tests for the stages of the suites."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest
from playbook import REPO

from tools import acceptance, stages


def rows(suite: str) -> list[str]:
    """The rows of the net that the stages of a suite run, parametrized ones once for each stage."""
    found = []
    for _nice, lane in stages.SUITES[suite]:
        for line in (line for _name, line in lane if "tests/acceptance" in line):
            words = [sys.executable, "-m", *shlex.split(line[line.index("pytest") :]), "--collect-only", "--durations=0"]
            done = subprocess.run(words, cwd=REPO, capture_output=True, text=True, check=True)
            found += sorted(set(re.findall(r"^\S+::(test_\w+)", done.stdout, re.M)))
    return found


@pytest.mark.parametrize("suite", ["test", "more", "long"])
def test_a_suite_runs_each_of_its_rows_once(suite: str) -> None:
    assert sorted(rows(suite)) == sorted(name for name, run in acceptance.tests().items() if run == suite)
