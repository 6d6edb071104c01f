"""Which release a rollback goes to, and why it is refused."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, verbs_change
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import CommandError, desire
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError
from ansible_collections.gb10.cluster.plugins.modules import gb10
from module_run import run_module

HOSTS = ["lab-1", "lab-2"]
MODEL: dict[str, Any] = {"proof": "1", "files": {"a": [1, "x"]}, "folders": ["/m"]}
LOST = {**MODEL, "proof": "2", "files": {"a": [-1, ""]}}
OTHER = {**MODEL, "folders": ["/other"]}


def look(current: str = "new", missing: Sequence[str] = (), weights: Mapping[str, Any] | None = None, **releases: str) -> dict[str, Any]:
    """What a rank shows. The value of a release, the newest first: good, new, gone (its image)."""
    found = [
        {"id": name, "good": kind != "new", "profile": "p", "files": {}, "image": {"reference": "vllm:1", "id": f"sha256:{name}", "gone": kind == "gone"}}
        for name, kind in releases.items()
    ]
    return {"current": current, "releases": found, "missing": list(missing), "weights": MODEL if weights is None else weights, "receipt": {"weights": MODEL}}


@pytest.mark.parametrize(
    ("named", "last", "second", "expected"),
    [
        ("", {}, {"new": "good", "old": "good", "older": "good"}, ("old", False)),
        ("", {"from": "new", "to": "old"}, {"new": "good", "old": "good"}, ("old", False)),
        ("", {"from": "newest", "to": "new"}, {"new": "good", "old": "good"}, ("new", True)),
        ("older", {"from": "newest", "to": "new"}, {"new": "good"}, ("older", False)),
        ("", {}, {"new": "good", "older": "good"}, ("older", False)),
        ("", {}, {"new": "good", "old": "gone", "older": "good"}, ("older", False)),
        ("", {}, {"new": "good"}, ("", False)),
    ],
    ids=["last-good", "left-again", "rolled-back-before", "named", "not-on-a-rank", "image-gone", "none"],
)
def test_the_last_good_release_that_is_not_current_is_chosen(named: str, last: dict[str, str], second: dict[str, str], expected: tuple[str, bool]) -> None:
    looks = [look(new="good", tried="new", old="good", older="good"), look("new", (), MODEL, **second)]
    assert verbs_change.chosen(looks, named, last) == expected


@pytest.mark.parametrize(
    ("release", "looks", "sentence"),
    [
        ("never", [look(never="new")] * 2, ""),
        (
            "old", [look(old="good"), look(new="good")],
            "pair1: the release old is not kept on all ranks, and nothing was stopped."
            " Give one of the releases above: gb10 rollback ID, or -e rollback_release=ID.",
        ),
        (
            "", [look(new="good")] * 2,
            "pair1: there is no earlier release that passed its gate and that all ranks keep, and nothing was stopped."
            " Give one of the releases above: gb10 rollback ID, or -e rollback_release=ID.",
        ),
        (
            "", [look("")] * 2,
            "pair1: there is no earlier release that passed its gate and that all ranks keep, and nothing was stopped. Run site.yml.",
        ),
    ],
    ids=["kept", "missing-on-a-rank", "none", "first"],
)  # fmt: skip
def test_a_release_that_a_rank_does_not_keep_is_refused(release: str, looks: list[dict[str, Any]], sentence: str) -> None:
    assert verbs_change.not_kept("pair1", looks, release) == sentence


@pytest.mark.parametrize(
    ("second", "given", "sentence"),
    [
        (look(old="good"), MODEL, ""),
        (
            look(old="gone", missing=["the image sha256:old of release old is not available"]), MODEL,
            "lab-2: the image vllm:1 of release old is not on this node any more, and nothing was stopped: get it with playbooks/build.yml and gb10_profile=p,"
            " or give another release.",
        ),
        (
            look(old="good", missing=["/x/release.json is missing or not valid"]), MODEL,
            "lab-2: release old cannot be started: /x/release.json is missing or not valid. Nothing was stopped.",
        ),
        (look(old="good", weights=LOST), MODEL, "lab-2: release old cannot be started: the weights differ: a is missing. Nothing was stopped."),
        (look(old="good", weights=LOST), OTHER, "lab-2: release old cannot be started: the weights differ: a is missing. Nothing was stopped."),
        (look(old="good", weights=LOST), LOST, ""),
    ],
    ids=["usable", "image-gone", "damaged", "weights", "weights-of-another-model", "weights-in-use"],
)  # fmt: skip
def test_a_release_that_a_rank_cannot_start_is_refused(second: dict[str, Any], given: dict[str, Any], sentence: str) -> None:
    found = verbs_change.unusable(HOSTS, [look(old="good"), second] if given is not LOST else [second] * 2, "old", given)
    assert found.startswith(sentence)
    assert bool(found) is bool(sentence)


#: The other headlines are in the rollbacks of test_agent_cli.py.
DONE = {"group": "pair1", "from": "new", "to": "old", "profile": "p"}
SAME = "pair1 serves release old, profile p, and nothing was changed"


@pytest.mark.parametrize(
    ("found", "do", "how", "back", "sentence"),
    [
        ({**DONE, "from": ""}, "start", "goes", False, "pair1 goes from release none to old, profile p"),
        (DONE, "nothing", "goes", True, f"{SAME}: it was rolled back to it before. To go to another one: gb10 rollback ID, or -e rollback_release=ID"),
        (DONE, "follow", "went", False, "pair1 went to release old, profile p: the start of another run"),
    ],
)
def test_the_headline_names_both_releases_or_that_nothing_changes(found: dict[str, Any], do: str, how: str, back: bool, sentence: str) -> None:
    assert verbs_change.sentence(found, {"do": do, "text": "the start of another run"}, how, back) == sentence


def test_the_difference_is_that_of_the_compose_files_without_the_names_of_the_releases(tmp_path: Path) -> None:
    for name, text in {"old": "a: 1\nb: 2\nc: 3\nlabel: gb10.cluster.release=old\n", "new": "a: 1\nb: 4\nc: 3\nlabel: gb10.cluster.release=new\n"}.items():
        (tmp_path / "releases" / name).mkdir(parents=True)
        (tmp_path / "releases" / name / "compose.yaml").write_text(text)
    assert verbs_change.difference(str(tmp_path), "new", "old") == [" a: 1", "-b: 4", "+b: 2", " c: 3"]
    assert verbs_change.difference(str(tmp_path), "old", "old") == []
    assert verbs_change.difference(str(tmp_path), "", "old") == verbs_change.difference(str(tmp_path), "gone", "old") == []


@pytest.mark.parametrize(("code", "check"), [(0, False), (0, True), (1, False)])
def test_the_module_returns_the_document_also_of_a_refused_rollback(
    code: int, check: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(argv: Sequence[str], **_places: Any) -> int:
        print(json.dumps({"changed": not code, "argv": list(argv)}))
        if code:
            print("pair1: it is not kept.", file=sys.stderr)
        return code

    monkeypatch.setattr(commands, "run", run)
    group = {"name": "pair1", "rank": 0, "hosts": HOSTS}
    found = run_module(capsys, gb10, argv=["rollback", "--json"], group=group, _ansible_check_mode=check)
    assert found["document"]["argv"] == ["rollback", "--json", *(["--check"] if check else [])]
    assert (found.get("failed", False), found.get("msg", ""), found["rc"]) == (bool(code), "pair1: it is not kept." if code else "", code)


# --- `gb10 want` against an agent that keeps one desired state.

PARAMS: dict[str, Any] = {"state": "serving", "release": "abc", "by": "admin@ctl", "reasons": [], "options": {"timeout": 60}, "takeover": False, "seen": 0}


class FakeAgent:
    """One desired state and its outcome."""

    def __init__(self) -> None:
        self.desired: dict[str, Any] = {"generation": 0, "state": "", "release": ""}
        self.result, self.busy, self.calls = "", False, list[str]()

    def call(self, verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        self.calls.append(verb)
        if verb == "state":
            return {"desired": dict(self.desired), "outcome": {"result": self.result}, "busy": self.busy}
        same = (self.desired["state"], self.desired["release"]) == (arguments["state"], arguments["release"])
        if same and (self.busy or (self.result == "serves" and not arguments["reasons"])):
            return {"generation": self.desired["generation"], "joined": True}
        if self.busy and not arguments.pop("takeover"):
            raise RankError("pair1 is being changed to release abc by admin@ctl.", "refused")
        self.desired = {"generation": self.desired["generation"] + 1, **arguments}
        self.busy = True
        return {"generation": self.desired["generation"], "joined": False}


@pytest.fixture
def agent() -> FakeAgent:
    return FakeAgent()


def run(agent: FakeAgent, check: bool = False, **params: Any) -> dict[str, Any]:
    return desire({**PARAMS, **params}, check, agent.call)


def test_a_new_state_is_a_change_and_the_same_one_joins(agent: FakeAgent) -> None:
    first = run(agent)
    assert (first["changed"], first["generation"], first["joined"]) == (True, 1, False)
    assert (agent.desired["by"], agent.desired["options"]) == ("admin@ctl", {"timeout": 60})
    assert (first["diff"]["before"], first["diff"]["after"]) == ("", "serving abc\n")
    second = run(agent)
    assert (second["changed"], second["generation"], second["joined"]) == (False, 1, True)
    assert second["diff"]["before"] == second["diff"]["after"]


@pytest.mark.parametrize(
    ("params", "busy", "result"),
    [({}, True, ""), ({}, False, "serves"), ({"reasons": ["a new image"]}, False, "serves"), ({"release": "def"}, False, "serves"), ({}, False, "failed")],
)
def test_check_mode_predicts_and_does_not_ask_for_a_change(agent: FakeAgent, params: dict[str, Any], busy: bool, result: str) -> None:
    run(agent)
    agent.busy, agent.result, agent.calls = busy, result, []
    predicted = run(agent, True, **params)
    assert (agent.calls, predicted["generation"]) == (["state"], 1)
    done = run(agent, **params)
    assert (predicted["changed"], predicted["diff"]["after"]) == (done["changed"], done["diff"]["after"])


@pytest.mark.parametrize("error", [AgentMissing("no socket"), CommandError("The agent is that of another group.")])
def test_check_mode_needs_no_agent(error: Exception) -> None:
    def missing(verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        raise error

    assert desire(PARAMS, True, missing)["changed"] is True
    with pytest.raises(type(error)):
        desire(PARAMS, False, missing)


def test_a_stop_does_not_depend_on_reading_the_state(agent: FakeAgent) -> None:
    def unreadable(verb: str, timeout: float, **arguments: Any) -> dict[str, Any]:
        if verb == "state":
            raise RankError("A message of 9000000 bytes is longer than the limit of 8388608 bytes.")
        return agent.call(verb, timeout, **arguments)

    found = desire({**PARAMS, "state": "stopped", "release": ""}, False, unreadable)
    assert (found["changed"], found["generation"]) == (True, 1)
    with pytest.raises(RankError):
        desire(PARAMS, False, unreadable)
