# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A plugin of pytest: keeps the outcome of each test of a part in a file, and leaves out the tests that it names. So a part can be resumed."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest


def kept(path: Path) -> dict[str, str]:
    """Return the outcome of each test that a file of results names; with GPU_LAB_AGAIN only those that passed."""
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.is_file() else []
    outcomes = {row["test"]: row["outcome"] for row in rows}
    return {test: outcome for test, outcome in outcomes.items() if outcome == "passed" or not os.environ.get("GPU_LAB_AGAIN")}


class Results:
    """The results of one part."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.outcomes: dict[str, str] = {}
        self.seconds: dict[str, float] = {}

    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        have = kept(self.path)
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in have])
        items[:] = [item for item in items if item.nodeid not in have]

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """A test has failed if its set-up, itself or its end has."""
        self.seconds[report.nodeid] = self.seconds.get(report.nodeid, 0.0) + report.duration
        if report.outcome != "passed" or report.when == "call":
            self.outcomes[report.nodeid] = "failed" if "failed" in (report.outcome, self.outcomes.get(report.nodeid)) else report.outcome
        if report.when == "teardown":
            row = {"test": report.nodeid, "outcome": self.outcomes.get(report.nodeid, "passed"), "seconds": round(self.seconds[report.nodeid], 1)}
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(row) + "\n")

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """A part of which no test is left to run ends as its tests did."""
        if exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and (have := kept(self.path)):
            session.exitstatus = pytest.ExitCode.TESTS_FAILED if "failed" in have.values() else pytest.ExitCode.OK


def pytest_configure(config: pytest.Config) -> None:
    if path := os.environ.get("GPU_LAB_PART"):
        config.pluginmanager.register(Results(Path(path)))
