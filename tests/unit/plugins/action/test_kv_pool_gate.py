"""The action follows the agent's events over a connection that may fail, and returns the verdict, the outcome and the receipt's place."""

from __future__ import annotations

import json
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleConnectionFailure, AnsibleError
from ansible_collections.gb10.cluster.plugins.action import kv_pool_gate as plugin
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

CHECKS = [{"name": "pool", "ok": False}, {"name": "transport", "ok": None}, {"name": "context", "ok": True}]
DESIRED = {"generation": 7, "state": "serving", "release": "4f0c", "by": "admin@ctl", "at": "2026-11-23T10:02:31Z"}
ACKNOWLEDGE = """call acknowledge '{"generation": 7}'"""


def outcome(passed: bool | None = None, **more: Any) -> dict[str, Any]:
    receipt = {"group": "pair1", "release": "4f0c", "time": "2026-11-23T10:03:00Z", "passed": passed, "pool": {"tokens": 8192}, "msg": "m", "seconds": 9.0}
    verdict = {"passed": passed, "class": "" if passed else "kv_too_small", "msg": "the verdict", "seconds": 9.0, "checks": CHECKS, "receipt": receipt}
    return {"generation": 7, "phase": "judging", "result": "", "verdict": {} if passed is None else verdict, "final": False, "sentence": "", **more}


def reply(found: dict[str, Any], *events: dict[str, Any], **wanted: Any) -> dict[str, Any]:
    return {"events": list(events), "next": max([0, *(event["n"] for event in events)]), "outcome": found, "desired": {**DESIRED, **wanted}}


def event(number: int, text: str, kind: str = "progress") -> dict[str, Any]:
    return {"n": number, "generation": 7, "kind": kind, "text": text, "seconds": 12.3}


class Followed:
    """An action whose node answers from a list: a reply, a text on stderr, or an exception."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, screen: list[str]) -> None:
        self.lines = screen
        self.commands: list[str] = []
        self.now = 0.0
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, seconds: float) -> None:
        self.now += seconds

    def run(self, *answers: Any, check: bool = False, **arguments: Any) -> dict[str, Any]:
        rest = list(answers)
        action = plugin.ActionModule.__new__(plugin.ActionModule)
        action._task = SimpleNamespace(check_mode=check)

        def execute(command: str) -> dict[str, Any]:
            self.commands.append(command.removeprefix(f"{plugin.COMMAND} "))
            if "acknowledge" in command:
                return {"rc": 0, "stdout": "{}"}
            answer = rest.pop(0) if len(rest) > 1 else rest[0]
            if isinstance(answer, Exception):
                raise answer
            return {"rc": 1, "stdout": "", "stderr": answer} if isinstance(answer, str) else {"rc": 0, "stdout": f"noise\n{json.dumps(answer)}\n"}

        given = {"generation": 7, "group": "pair1", **arguments}
        action._low_level_execute_command = execute
        action.validate_argument_spec = lambda argument_spec: (None, {**{k: v.get("default") for k, v in argument_spec.items()}, **given})
        return dict(action.run(None, {"inventory_hostname": "spark-1"}))


@pytest.fixture
def followed(monkeypatch: pytest.MonkeyPatch, screen: list[str]) -> Followed:
    return Followed(monkeypatch, screen)


def settled(passed: bool | None = True, **more: Any) -> dict[str, Any]:
    return outcome(passed, **{"phase": "settled", "result": "serves" if passed else "failed", "final": True, **more})


def test_shows_the_verdict_when_it_comes_and_returns_it_with_the_outcome(followed: Followed, tmp_path: Path) -> None:
    found = followed.run(
        reply(outcome(), event(1, "rank 0  spark-1  load 43 %"), event(2, "rank 1  spark-2  load 40 %")),
        reply(outcome(True), event(3, "the verdict", "verdict")), reply(settled(warnings=["w"])), receipts=str(tmp_path),
    )  # fmt: skip
    assert (found["passed"], found["failed"], found["msg"], found["class"]) == (True, False, "the verdict", "")
    assert (found["pool"], found["outcome"]["warnings"], "verdict" in found["outcome"]) == ({"tokens": 8192}, ["w"], False)
    assert (found["unknown_checks"], [check["name"] for check in found["failed_checks"]]) == (["transport"], ["pool"])
    assert followed.lines[:2] == ["[pair1 +  12 s] rank 0  spark-1  load 43 %", "[pair1 +  12 s] rank 1  spark-2  load 40 %"]
    assert followed.lines[2:] == ["[pair1 +  12 s] the verdict"], "it is printed when it comes, not at the end of the recovery"
    assert followed.commands == [*(f"follow --generation 7 --since {number} --wait 20" for number in (0, 2, 3)), ACKNOWLEDGE]
    assert json.loads((tmp_path / "pair1/last-good.json").read_text(encoding="utf-8"))["path"] == found["receipt"]["path"]


def test_a_percentage_is_shown_every_thirty_seconds(followed: Followed) -> None:
    events = [event(number, f"rank 0  spark-1      load {number} %") for number in (1, 2)]
    followed.run(reply(outcome(), *events, event(3, "rank 0  spark-1      kv")), reply(settled(), event(4, "the verdict", "verdict")))
    assert len(followed.lines) == 3


@pytest.mark.parametrize(("shows", "text"), [(True, "pair1: bad."), (False, "pair1: bad. Remedy: mend it.")])
def test_the_reason_of_a_failed_boot_is_printed_at_once(followed: Followed, monkeypatch: pytest.MonkeyPatch, shows: bool, text: str) -> None:
    """The callback prints the remedy with the outcome."""
    monkeypatch.setattr(RUN, "shows", shows)
    followed.run(reply(settled(False), event(1, "pair1: bad. Remedy: mend it.", "verdict")))
    assert followed.lines == [f"[pair1 +  12 s] {text}"]


@pytest.mark.parametrize(
    ("sentence", "text"),
    [("the verdict Release a serves again.", "the verdict Release a serves again."), ("It is held.", "the verdict It is held."), ("", "the verdict")],
)
def test_a_failed_boot_returns_its_verdict_with_the_sentence_of_the_recovery(followed: Followed, sentence: str, text: str) -> None:
    found = followed.run(reply(outcome(False, phase="halting")), reply(settled(False, sentence=sentence)))
    assert (found["failed"], found["passed"], found["msg"], found["class"]) == (True, False, text, "kv_too_small")
    assert found["receipt"].keys() == {"path", "release", "time"}


@pytest.mark.parametrize(("passed", "text"), [(True, "The connection to spark-1 is lost."), (False, "the verdict The connection to spark-1 is lost.")])
def test_a_boot_that_passed_has_passed_if_the_connection_is_lost_then(followed: Followed, passed: bool, text: str) -> None:
    found = followed.run(reply(outcome(passed)), AnsibleConnectionFailure("ssh"))
    assert (found["failed"], found["passed"], found["class"]) == (not passed, passed, "connection_lost")
    assert found["msg"].startswith(text)


def test_stop_on_request_is_not_a_failure(followed: Followed) -> None:
    end = outcome(phase="settled", result="stopped", final=True, sentence="pair1 is stopped.")
    found = followed.run(reply(end, state="stopped"))
    assert (found["failed"], found["passed"], found["msg"]) == (False, True, "pair1 is stopped.")


def test_settled_without_a_verdict_fails_with_its_sentence(followed: Followed) -> None:
    found = followed.run(reply(outcome(phase="settled", result="held", final=True, sentence="pair1: too little memory.")))
    assert (found["failed"], found["msg"], found["receipt"]) == (True, "pair1: too little memory.", {})
    assert followed.commands[-1] == ACKNOWLEDGE


@pytest.mark.parametrize("error", [AnsibleConnectionFailure("ssh"), AnsibleError("Timeout (12s) waiting for privilege escalation prompt")])
def test_follows_again_after_a_lost_connection_and_shows_nothing_twice(followed: Followed, error: Exception) -> None:
    found = followed.run(reply(outcome(), event(1, "a")), *[error] * 19, reply(settled(), event(1, "a"), event(2, "b")))
    assert found["passed"]
    assert followed.commands[-2] == "follow --generation 7 --since 1 --wait 20"
    assert followed.now == 19 * plugin.RETRY_SECONDS


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (AnsibleConnectionFailure("ssh"), "The connection to spark-1 is lost. The agent there continues the start. Run site.yml again to follow it."),
        (
            "the socket refused\n",
            "The agent on spark-1 does not answer (the socket refused). See `journalctl --unit gb10-agent` there. Run site.yml again to follow the start.",
        ),
        (
            {"ok": False, "error": "It is stopping.", "kind": "failed"},
            "The agent on spark-1 does not answer (It is stopping). See `journalctl --unit gb10-agent` there. Run site.yml again to follow the start.",
        ),
    ],
    ids=["connection", "command", "agent"],
)
def test_gives_up_after_two_minutes_without_an_answer(followed: Followed, answer: Any, sentence: str) -> None:
    found = followed.run(answer)
    assert (found["failed"], found["msg"], found["class"], found["outcome"]) == (True, sentence, "connection_lost", {})
    assert len(followed.commands) >= plugin.LOST_ATTEMPTS
    assert 120 <= followed.now <= 140


@pytest.mark.parametrize(
    ("wanted", "sentence"),
    [
        ({"state": "stopped"}, "pair1 was stopped by root@ctl2 at 2026-11-23T10:05:00Z. Run site.yml to serve again."),
        ({"release": "5a1d"}, "pair1 was taken over by root@ctl2 at 2026-11-23T10:05:00Z (release 5a1d)."),
    ],
    ids=["stopped", "taken over"],
)
def test_newer_generation_ends_the_task_with_who_asked_for_it(followed: Followed, wanted: dict[str, Any], sentence: str) -> None:
    newer = reply(outcome(generation=8), generation=8, by="root@ctl2", at="2026-11-23T10:05:00Z", **wanted)
    found = followed.run(reply(outcome()), newer)
    assert (found["failed"], found["class"], found["msg"]) == (True, "superseded", sentence)


def test_same_desired_state_under_a_higher_number_is_followed(followed: Followed) -> None:
    found = followed.run(reply(outcome(True, generation=9, final=True, result="serves"), generation=9, replaces=[7]))
    assert found["passed"]
    assert followed.commands[-1] == ACKNOWLEDGE.replace("7", "9")


def test_outcome_of_an_older_generation_is_not_the_verdict(followed: Followed) -> None:
    found = followed.run(reply(outcome(False, generation=6, final=True)), reply(settled()))
    assert found["passed"]


def test_receipt_that_cannot_be_kept_is_a_warning(followed: Followed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(receipts, "keep", lambda *_a: 1 / 0)
    found = followed.run(reply(settled()), receipts=str(tmp_path))
    assert found["passed"]
    assert found["warnings"] == [found["receipt"]["warning"]]
    assert "receipt" in found["warnings"][0]


def test_check_mode_asks_nothing(followed: Followed) -> None:
    assert followed.run(reply(outcome(True)), check=True)["skipped"]
    assert followed.commands == []


def test_what_is_left_of_a_killed_run_neither_follows_nor_acknowledges(followed: Followed, monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([4711, 4711, 1])
    monkeypatch.setattr("os.getppid", lambda: next(parents))
    found = followed.run(reply(outcome(), event(1, "rank 0  spark-1  load 43 %")), reply(outcome(True, final=True, result="serves")))
    assert found["failed"]
    assert len(followed.commands) == 2, "no third request, and no acknowledgement"
