"""What logs.yml prints, and how it ends. The module gb10 of each host is a stub."""

from __future__ import annotations

from typing import Any

import pytest
from contract import test_serving
from contract.test_serving import Pair
from playbook import Run

pytestmark = pytest.mark.slow
pair = test_serving.pair

LINES = ["2026-11-23T10:00:00.000Z one | a 'quoted' \x1b[32mINFO\x1b[0m {{ line }}", "2026-11-23T10:00:00.010Z two | NCCL: $HOME"]


def found(host: str, *lines: str, rc: int = 0, read: tuple[str, ...] = (), problems: tuple[str, ...] = ()) -> dict[str, Any]:
    """What the module returns on a host."""
    document = {"schema": "gb10.cluster/logs/1", "group": "pair1", "host": host, "read": read, "lines": lines, "problems": problems}
    return {f"{host} gb10 logs": {"rc": rc, "document": document, "problems": problems}}


def printed(done: Run) -> list[str]:
    """The lines that the task has printed. All are on the screen."""
    results = [event["event_data"] for event in done.events if event["event"] == "runner_on_ok"]
    lines = [line for data in results if data["task"] == "Print the lines" for line in data["res"]["lines"]]
    assert set(lines) <= set(done.stdout.splitlines())
    return lines


def test_the_head_prints_the_lines_of_all_ranks(pair: Pair) -> None:
    note = "12 earlier lines are not shown. The limit is 2000 lines."
    done = pair.play(tasks="logs", variables={"since": "1h", "grep": "a|$HOME ;'\""}, **found("one", *LINES, read=("one", "two"), problems=(note,)))
    assert done.rc == 0, done.stdout
    assert done.changed == set()
    assert printed(done) == [LINES[0].replace("\x1b", "\\x1b"), LINES[1], note]
    assert pair.log == ["one logs --json --number=2000 --since=1h --grep=a|$HOME ;'\""]


def test_a_rank_that_the_head_does_not_reach_prints_its_own_lines(pair: Pair) -> None:
    cause = "two does not answer: No route to host."
    lost = found("one", LINES[0], rc=3, read=("one",), problems=(cause,))
    done = pair.play("-e", "output=json", tasks="logs", **lost, **found("two", LINES[1], read=("two",)))
    assert done.rc == 0, done.stdout
    assert sorted((each["host"], len(each["lines"]), each["problems"]) for each in done.documents) == [("one", 1, [cause]), ("two", 1, [])]


def test_without_the_head_each_rank_that_answers_prints_its_own_lines(pair: Pair) -> None:
    done = pair.play(tasks="logs", one_on_gb10="dark", **found("two", LINES[1], read=("two",)))
    assert done.rc == 0, done.stdout
    own, lost = sorted(printed(done))
    assert own == LINES[1]
    assert lost.startswith("one cannot be read: ")


def test_fails_if_no_rank_can_be_read(pair: Pair) -> None:
    missing: dict[str, Any] = {"two gb10 logs": {"failed": True, "rc": 1, "document": {}, "problems": ["There is no container gb10-pair1-rank1 on two."]}}
    done = pair.play(tasks="logs", one_on_gb10="sudo: a password is required", **missing)
    assert done.rc == 2
    assert done.last_message == "pair1: no log can be read. The messages above have the cause for each rank."
    assert sorted(printed(done)) == ["There is no container gb10-pair1-rank1 on two.", "one cannot be read: sudo: a password is required"]
