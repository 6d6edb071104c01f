"""The command gb10, end to end against a real service with a fake rank and actor; the worker is reached through a fake ssh."""

from __future__ import annotations

import ast
import base64
import copy
import importlib
import json
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._checks import doctor
from ansible_collections.gb10.cluster.plugins.module_utils._core import redact
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import ns_to_stamp, stamp_to_ns
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, look, protocol, verbs_change, verbs_read
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands as place
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import Line
from ansible_collections.gb10.cluster.plugins.modules import gb10
from unit.fixtures import node_facts
from unit.fixtures.agent.wire import HELLO, FakeActor, FakeRank, configuration, fake_ssh
from unit.fixtures.docker.engine import serving

ROOT = Path(__file__).parents[5]
RUNNING = {
    "id": "c1", "name": "gb10-pair1-rank0", "status": "running", "running": True, "pid": 7, "exit_code": 0, "oom_killed": False, "error": "",
    "started_at": "2026-11-23T05:00:00.123456789Z", "finished_at": "", "restart_count": 0, "image": "vllm", "image_id": "sha256:1",
    "labels": {"gb10.cluster.release": "abc"},
}  # fmt: skip
LOOK = {
    "containers": [RUNNING], "engine_error": "", "memory": {"available_kib": 20 << 20}, "current": "abc", "stopped": "", "releases": [],
    "processes": {"count": 2, "fault": ""}, "missing": [], "blocked": "",
}  # fmt: skip
IDLE = {**LOOK, "containers": []}
SERVES = {"generation": 7, "phase": "settled", "result": "serves", "release": "abc", "final": True, "sentence": "pair1 serves: every criterion holds."}


class Group:
    """A head and a worker with their services, and the command on either."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.directory, self.capsys = folder, folder / "groups/pair1", capsys
        self.actor = FakeActor()
        self.ranks = [FakeRank(), FakeRank()]
        self.services = []
        for number, rank in enumerate(self.ranks):
            rank.answers["look"] = lambda _request: protocol.success(LOOK)
            rank.answers["hello"] = lambda _request: protocol.success(HELLO)
            config = configuration(folder, number)
            (folder / f"agent{number}.json").write_text(json.dumps(config))
            self.services.append(Service(config, run_dir=str(folder / f"run{number}"), rank=rank, actor=self.actor))
            self.services[-1].start()

    def gb10(self, *words: str, rank: int = 0, code: int = 0) -> Any:
        """Run the command, which returns this code, and return what it prints as `out` and `err`."""
        places = {"path": f"agent{rank}.json", "admin": f"run{rank}/admin.sock", "keys_dir": "keys", "run_dir": "run0"}
        assert commands.run(words, **{name: str(self.folder / place) for name, place in places.items()}) == code
        return self.capsys.readouterr()

    def answers(self, verb: str, *results: Mapping[str, Any]) -> None:
        for rank, result in zip(self.ranks, results):
            rank.answers[verb] = lambda _request, result=result: protocol.success(result)  # type: ignore[misc]


@pytest.fixture
def group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Group]:
    fake_ssh(monkeypatch, tmp_path, tmp_path / "run1/session.sock")
    monkeypatch.setenv("SUDO_USER", "admin")
    monkeypatch.setattr(socket, "gethostname", lambda: "lab-1")
    monkeypatch.setattr(verbs_change, "POLL_SECONDS", 5.0)
    found = Group(tmp_path, capsys)
    monkeypatch.setattr(look, "run_slice", lambda arguments, _secrets: protocol.reply_of(found.ranks[0].handle({**arguments, "verb": "slice"})))
    yield found
    for service in found.services:
        service.close()


def alone(folder: Path, rank: int = 0) -> dict[str, Any]:
    """Return the places of a node without an agent, for commands.run."""
    given = {"group": "pair1", "rank": rank, "hosts": ["lab-1", "lab-2"], "directory": str(folder), "docker_socket": str(folder / "docker.sock")}
    return {"path": str(folder / "agent.json"), "given": given}


# --- status and doctor


@pytest.fixture
def alive(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What the API answers."""
    found = {"outcome": "serves", "text": "a completion came back in 0.2 s"}
    monkeypatch.setattr(look, "alive", lambda *_arguments, **_more: found)
    return found


def test_status_of_a_group_that_does_not_serve_is_code_2_with_its_cause(group: Group, alive: dict[str, Any]) -> None:
    group.actor.outcome = dict(SERVES)
    alive.update(outcome="dead", text="the completion: HTTP 500: EngineDeadError")
    assert "DOES NOT SERVE  pair1 does not serve: rank 0 on lab-1: the completion: HTTP 500" in group.gb10("status", code=2).out
    group.answers("look", LOOK, {**IDLE, "current": "abc"})
    document = json.loads(group.gb10("status", "--json", code=2).out)
    assert document["faults"] == ["rank 1 on lab-2: no container exists"], "no completion is requested, which would hang"


def test_status_while_the_agent_restarts_the_group_is_code_2_with_full_disks_and_no_gate_of_an_earlier_boot(group: Group, alive: dict[str, Any]) -> None:
    good = {**LOOK, "releases": [{"id": "abc", "good": True, "time": 0}]}
    group.answers("look", good, {**good, "full": ["/var/lib/docker"]})
    assert group.gb10("status").out.count("  passed  ") == 2
    group.actor.desired["auto"] = True
    alive.update(outcome="dead", text="refused", starting=True)
    out = group.gb10("status", code=2).out
    assert out.splitlines()[1].startswith("DOES NOT SERVE  pair1 does not serve: rank 0 on lab-1: refused. Its agent restores service.")
    assert (out.count("  passed  "), out.count("  not judged yet  ")) == (0, 2)
    assert "pair1 rank 1 on lab-2: no space is left on the file system of /var/lib/docker. Free space there (df -h, docker system df)" in out.splitlines()


@pytest.mark.usefixtures("alive")
def test_status_is_code_3_if_a_rank_does_not_answer(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", "Permission denied (publickey).")
    assert "Rank 1 on lab-2 is not known: no reply (Permission denied (publickey))." in group.gb10("status", code=3).out


READING = {
    "facts": node_facts.facts(rails=1, agent={"installed": True, "group": "pair1", "rank": 0, "active": True, "error": "", "peers": [], "sshd_problems": []}),
    "info": {
        **LOOK, "memory": {"available_kib": 20 << 20, "free_kib": 8 << 20}, "agent": {"version": "1", "state": {}, "converges": False},
        "receipt": {}, "image": {}, "weights_differ": [], "boot_log": {"state": "ready"},
        "health": {"kernel": {"events": [], "skipped": {}, "unclean": ""}, "gpus": [], "gpu_error": "", "zones": [], "boot": {}},
    },
}  # fmt: skip


@pytest.fixture
def readings(group: Group, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What each rank reads of itself: the head in this process, the worker through its agent."""
    found = [copy.deepcopy(READING), copy.deepcopy(READING)]
    found[1]["facts"]["agent"]["rank"] = 1
    monkeypatch.setattr(doctor, "reading", lambda own: found[own.rank])
    group.answers("doctor", *found)
    return found


@pytest.mark.usefixtures("alive")
def test_doctor_names_the_finding_of_the_other_node_with_a_command_and_no_secret(group: Group, readings: list[dict[str, Any]]) -> None:
    secret = "tEa7Jq93kd02"
    group.directory.mkdir(parents=True)
    (group.directory / "api_key").write_text(f"VLLM_API_KEY={secret}\n")
    event = {"id": "gpu_lost", "boot": 0, "count": 1, "first": "", "last": "2026-11-22T20:15:00+0000", "line": f"NVRM: Xid 79, {secret}"}
    readings[1]["info"]["health"]["kernel"]["events"] = [event]
    lines = group.gb10("doctor", code=2).out.splitlines()
    assert lines[0] == "pair1: 1 error. It serves."
    assert lines[2].startswith("error gpu_lost (lab-2): the GPU was lost: 1 line(s), the last at 2026-11-22T20:15:00+0000: NVRM: Xid 79, ")
    assert "    run: ssh -t 192.168.200.12 sudo shutdown -h now  # then unplug the power for a minute" in lines
    document = group.gb10("doctor", "--json", code=2).out
    assert json.loads(document)["counts"] == {"error": 1, "warning": 0, "info": 0}
    assert secret not in document + "".join(lines)


@pytest.mark.usefixtures("alive", "readings")
def test_doctor_judges_the_head_if_a_rank_does_not_answer(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_SSH_MODE", "Permission denied (publickey).")
    document = json.loads(group.gb10("doctor", "--json", code=2).out)
    found = {each["id"]: each for each in document["findings"]}
    assert found["reachable"]["hosts"] == ["lab-2"]
    assert found["reachable"]["found"].startswith("it cannot be reached: no reply (")
    assert "Rank 1 on lab-2 is not known: no reply" in document["sentence"]


@pytest.mark.usefixtures("readings")
def test_doctor_of_a_worker_judges_what_it_has(group: Group) -> None:
    document = json.loads(group.gb10("doctor", "--json", rank=1, code=2).out)
    assert {each["id"] for each in document["findings"]} == {"engine_unknown"}
    assert {each["reason"] for each in document["not_checked"] if each["hosts"] == ["lab-1"]} == {"a worker does not ask the other ranks"}


def test_what_a_rank_reads_of_itself_is_json_for_its_head(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(look, "read", lambda *_words, **_more: {**READING["info"], "weights": {"files": {}}})
    found = json.loads(group.gb10("doctor", "--read").out)
    assert set(READING["facts"]) - {"changed", "invocation", "clock"} <= set(found["facts"])
    assert {"kernel", "gpus", "zones", "boot"} <= set(found["info"]["health"])
    assert "weights" not in found["info"]


@pytest.mark.usefixtures("alive")
def test_status_prints_holds(group: Group) -> None:
    group.answers("hello", {"holds": [{"name": "reboot", "by": "admin@ctl", "reason": "lab-2 restarts"}]})
    assert "hold reboot by admin@ctl: lab-2 restarts" in group.gb10("status").out


def test_status_without_an_agent_is_what_the_node_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    shown = {**IDLE, "current": "", "agent": {}}
    monkeypatch.setattr(look, "in_short", lambda *_arguments, **_more: shown)

    def status() -> tuple[int, dict[str, Any]]:
        code = commands.run(["status", "--json"], **alone(tmp_path))
        return code, json.loads(capsys.readouterr().out)

    code, document = status()
    assert (code, document["sentence"]) == (0, "pair1 has never served: no release is current. Run site.yml.")
    shown.update(current="abc")
    code, document = status()
    assert (code, document["faults"]) == (2, [])
    assert "pair1 does not serve: rank 0 on lab-1: no container exists." in document["sentence"]
    assert "Rank 1 on lab-2 is not known: it is read through the agent of lab-1, which does not answer." in document["sentence"]
    assert document["notes"] == [f"This node has no agent: {tmp_path}/agent.json does not exist. Run site.yml."]


MADE, OWN = {"api_key": "VLLM_API_KEY=made-by-the-first-run-1\n"}, {"current/secrets.env": "VLLM_API_KEY='a=b $c'\n"}
NEEDED, OPEN = ({"current/release.json": json.dumps({"has_key": has_key})} for has_key in (True, False))


@pytest.mark.usefixtures("alive")
@pytest.mark.parametrize(
    ("files", "key", "shown"),
    [
        ({**MADE, **NEEDED}, "made-by-the-first-run-1", True),
        ({**MADE, **NEEDED, "current/secrets.env": "HF_TOKEN='x'\n"}, "made-by-the-first-run-1", True),
        ({**MADE, **NEEDED, **OWN}, "a=b $c", False),
        (MADE, "made-by-the-first-run-1", False),
        ({**MADE, **OPEN}, "", False),
        ({}, "", False),
    ],
    ids=["made", "made, with other secrets", "of the inventory", "no release", "open", "none"],
)
def test_key_prints_the_key_of_the_current_release_and_status_its_command(group: Group, files: dict[str, str], key: str, shown: bool) -> None:
    for name, text in files.items():
        (group.directory / name).parent.mkdir(parents=True, exist_ok=True)
        (group.directory / name).write_text(text)
    printed = group.gb10("key", code=0 if key else 1)
    assert (printed.out, printed.err) == ((f"{key}\n", "") if key else ("", "The API of pair1 has no key.\n"))
    assert not key or group.gb10("key", "--header").out == f"Authorization: Bearer {key}\n"
    out = group.gb10("status").out
    assert "made-by-the-first-run-1" not in out
    commands_shown = [line.partition("API key: ")[2] for line in out.splitlines() if "API key: " in line]
    assert commands_shown == (["sudo gb10 key"] if shown else [])


def test_status_on_a_worker_is_what_it_knows(group: Group) -> None:
    out = group.gb10("status", "--lost", "the node is unreachable", rank=1, code=2).out
    assert "It is not known whether pair1 serves. Rank 0 on lab-1 is not known: the node is unreachable." in out
    assert "pair1: lab-2 is rank 1, owned by the head a1b2c3 of pair1. Generation: 7. Head: lab-1." in out


@pytest.mark.parametrize(
    ("down", "sentence"),
    [
        ({"containers": []}, "pair1 does not serve: rank 1 on lab-2: no container exists. Run site.yml: it keeps evidence, restarts the release"),
        ({"processes": {"fault": "no engine process runs"}}, "pair1 does not serve: rank 1 on lab-2: no engine process runs. Run site.yml"),
        ({}, "lab-1 does not serve: http://127.0.0.1:1/v1/models does not answer"),
    ],
)
def test_check_sends_no_request_while_a_rank_is_down(group: Group, down: dict[str, Any], sentence: str) -> None:
    group.actor.outcome = dict(SERVES)
    group.answers("look", LOOK, {**LOOK, **down})
    (group.directory / "current").mkdir(parents=True)
    (group.directory / "current/release.json").write_text(json.dumps({"port": 1}))
    assert group.gb10("check", code=1).err.startswith(sentence)


# --- events, why, logs


def test_events_prints_the_last_ones(group: Group) -> None:
    for number in range(5):
        group.actor.event("progress", f"step {number}")
    assert group.gb10("events", "-n", "2").out == "2026-11-23T05:00:01Z progress: step 3\n2026-11-23T05:00:01Z progress: step 4\n"
    assert group.gb10("events", "-n", "0").out == ""
    assert [each["text"] for each in json.loads(group.gb10("events", "-n", "1", "--json").out)["events"]] == ["step 4"]


@pytest.mark.parametrize("command", ["check", "events", "key", "why", "start", "rollback"])
def test_a_worker_names_the_head(group: Group, command: str) -> None:
    assert group.gb10(command, rank=1, code=1).err == f"lab-2 is rank 1 of pair1. Run `gb10 {command}` on the head lab-1.\n"


def test_why_prints_the_verdict_its_evidence_and_what_was_done(group: Group) -> None:
    finding = {"rank": 1, "host": "lab-2", "line": "CUDA out of memory", "line_number": 812}
    group.actor.outcome = {
        "generation": 7,
        "final": True,
        "result": "failed",
        "evidence": ["gen7"],
        "verdict": {"msg": "pair1: no memory.", "finding": finding},
    }
    group.actor.event("step", "before")
    group.actor.event("verdict", "pair1: no memory.")
    group.actor.event("step", "stopped both ranks")
    group.actor.event("settled", "pair1 serves the release before.")
    assert json.loads(group.gb10("why", "--json").out)["outcome"]["verdict"]["finding"] == finding
    assert group.gb10("why").out.splitlines() == [
        "pair1: no memory.",
        "decisive line 812 (rank 1 lab-2): CUDA out of memory",
        f"evidence: {group.directory}/evidence/gen7/ on each node",
        "then: stopped both ranks",
        "then: pair1 serves the release before.",
    ]


def piece(lines: Mapping[int, str]) -> dict[str, Any]:
    now = int(time.time()) * 10**9
    data = "".join(f"{ns_to_stamp(now + offset)} {text}\n" for offset, text in lines.items())
    return {"log": base64.b64encode(data.encode()).decode(), "cursor": "1:1", "container": RUNNING, "memory": {}, "http_status": 0}


def test_logs_prints_the_ranks_that_answer(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.answers("slice", piece({1: "one"}))
    monkeypatch.setenv("FAKE_SSH_MODE", "Host key verification failed.")
    out, err = group.gb10("logs", code=3)
    assert out.endswith("lab-1 | one\n")
    assert err == "lab-2 does not answer: Host key verification failed.\n"
    found = json.loads(group.gb10("logs", "--json", code=3).out)
    assert (found["read"], found["problems"]) == (["lab-1"], ["lab-2 does not answer: Host key verification failed."])
    group.answers("slice", {"log": "", "cursor": "", "container": None, "memory": {}, "http_status": 0})
    assert "There is no container gb10-pair1-rank0 on lab-1." in group.gb10("logs", code=1).err


@pytest.mark.parametrize(("rank", "code"), [(0, 3), (1, 0)])
def test_logs_of_a_node_without_an_agent_are_those_of_its_own_container(tmp_path: Path, capsys: pytest.CaptureFixture[str], rank: int, code: int) -> None:
    with serving(tmp_path / "docker.sock") as engine:
        engine.containers[f"gb10-pair1-rank{rank}"] = {"Id": "c1", "State": {"Status": "exited", "StartedAt": "2026-11-23T05:00:00Z"}}
        engine.logs["c1"] = [(ns_to_stamp(int(time.time()) * 10**9), b"HF_TOKEN=hf_abcdefghijkl\n", 1)]
        assert commands.run(["logs", "--json"], **alone(tmp_path, rank)) == code
    found = json.loads(capsys.readouterr().out)
    assert [line.split(" ", 1)[1] for line in found["lines"]] == [f"lab-{rank + 1} | HF_TOKEN=********"]
    assert found["problems"] == [f"This node has no agent: {tmp_path}/agent.json does not exist. Run site.yml."][:code]


def test_boot_names_the_failure_in_a_file_or_in_the_log_of_the_container(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "boot.log").write_text("torch.OutOfMemoryError: CUDA out of memory. api_key=sk-abcdefghijklmnop1234\n", encoding="utf-8")

    def run(*words: str, code: int = 0) -> tuple[str, str]:
        assert commands.run(["boot", *words], **alone(tmp_path)) == code
        return capsys.readouterr()

    out, _error = run(str(tmp_path / "boot.log"))
    assert [line.partition(":")[0] for line in out.splitlines()] == ["failed, at stage none", "cuda_oom", "remedy"]
    assert "No such file" in run(str(tmp_path / "none.log"), code=1)[1]
    with serving(tmp_path / "docker.sock") as engine:
        assert run(code=1)[1] == "lab-1 has no container of pair1 whose log can be read.\n"
        state = {"Status": "exited", "ExitCode": 1, "StartedAt": "2026-11-23T05:00:00Z"}
        engine.containers["gb10-pair1-rank0"] = {"Id": "c1", "Name": "/gb10-pair1-rank0", "State": state, "Config": {"Labels": {"gb10.cluster.group": "pair1"}}}
        engine.logs["c1"] = [("2026-11-23T05:00:01Z", b"torch.OutOfMemoryError: CUDA out of memory\n", 2)]
        found = json.loads(run("--json")[0])
    assert (found["state"], found["failure"]["class"], found["host"]) == ("failed", "cuda_oom", "lab-1")


def test_logs_prints_the_last_lines_and_reports_how_many_are_left_out(group: Group) -> None:
    group.answers("slice", piece({1: "one", 3: "three"}), piece({2: "two", 4: "four"}))
    out, err = group.gb10("logs", "-n", "3")
    assert [line.split("| ")[1] for line in out.splitlines()] == ["two", "three", "four"]
    assert err == "1 earlier lines are not shown. The limit is 3 lines.\n"
    assert group.gb10("logs", "-n", "4").err == ""


@pytest.mark.parametrize("words", [(), ("-n", "5")])
def test_logs_prints_no_secret(group: Group, words: tuple[str, ...]) -> None:
    secrets = group.directory / "releases/4f0c/secrets.env"
    secrets.parent.mkdir(parents=True)
    secrets.write_text("VLLM_API_KEY='correct horse'\n", encoding="utf-8")
    (group.directory / "api_key").write_text("VLLM_API_KEY=made-by-the-first-run-1\n", encoding="utf-8")
    group.answers("slice", piece({1: "the key is correct horse", 2: "or made-by-the-first-run-1"}), piece({3: "HF_TOKEN=hf_abcdefghijkl"}))
    assert [line.split("| ")[1] for line in group.gb10("logs", *words).out.splitlines()] == ["the key is ********", "or ********", "HF_TOKEN=********"]


KEY = "s3cretKEY7aZ"
BLOCKS = [
    ["-----BEGIN PRIVATE KEY-----", "MIIEvQIBADANBgkqhkiG9w0BAQEFAASC", f"BKcwggSjAgEAAoIBAQC7{KEY}", "-----END PRIVATE KEY-----"],
    ['  "--api-key",', f'  "{KEY}",', '  "--port"'],
    ["password: |", f"  {KEY}", "port: 1"],
    ["api_key: >-", "  horse-battery", "port: 1"],
]


@pytest.mark.parametrize("block", BLOCKS)
@pytest.mark.parametrize("words", [(), ("-n", "500"), ("--grep", "BKcw|  ")])
def test_logs_masks_a_secret_that_begins_on_an_earlier_line_of_its_rank(group: Group, block: list[str], words: tuple[str, ...]) -> None:
    own = {4 * number + 1: text for number, text in enumerate(block)}
    group.answers("slice", piece(own), piece({each + 1: "INFO of the other rank" for each in own}))
    out = group.gb10("logs", *words).out
    assert not any(word in out for word in (KEY, "horse-battery", "MIIE", "BKcw"))
    assert words[:1] == ("--grep",) or out.count("lab-1 |") == len(block), "each line is there"


@pytest.mark.parametrize("before", range(790, 1010, 7))
def test_a_secret_between_two_blocks_of_a_log_is_masked(before: int) -> None:
    texts = [*(f"line {number}" for number in range(before)), *BLOCKS[0], *(f"line {number}" for number in range(1500))]
    found = list(verbs_read.masked((Line(at, "lab-1", text) for at, text in enumerate(texts)), redact.redact, bool))
    assert [line.time for line in found] == list(range(len(texts)))
    assert [line.text for line in found if "MII" in line.text or KEY in line.text] == []
    assert [(at, line.text) for at, line in enumerate(found) if line.text != texts[at]] == [(before + 1, "********"), (before + 2, "********")]


def test_logs_shows_the_lines_before_a_rank_is_lost() -> None:
    def source() -> Iterator[Line]:
        yield Line(1, "lab-1", "one")
        raise protocol.RankError("gone")

    found = verbs_read.masked(source(), redact.redact, bool)
    assert next(found).text == "one"
    with pytest.raises(protocol.RankError, match="gone"):
        next(found)


def test_logs_give_the_parts_of_a_line_with_carriage_returns_one_time() -> None:
    data = base64.b64encode(b"2026-11-23T05:00:00.000000001Z 10%\r20%\n").decode()
    found = list(verbs_read.lines_of(lambda **_arguments: {"log": data, "cursor": "", "container": {}}, "c", "lab-2", 60))
    moment = stamp_to_ns("2026-11-23T05:00:00.000000001Z")
    assert found == [Line(moment, "lab-2", "10%"), Line(moment, "lab-2", "20%")]
    assert verbs_read.shown(found[1]) == "2026-11-23T05:00:00.000Z lab-2 | 20%"


def test_logs_reads_until_a_slice_is_not_full() -> None:
    full = base64.b64encode(b"x \n" * (verbs_read.SLICE_BYTES // 3 + 1)).decode()
    pieces = [{"log": full, "cursor": "5:1", "container": {}}, {"log": "", "cursor": "5:1", "container": {}}]
    cursors = []

    def ask(**arguments: Any) -> dict[str, Any]:
        cursors.append(arguments["cursor"])
        return pieces.pop(0)

    assert sum(1 for _line in verbs_read.lines_of(ask, "c", "lab-2", 60)) == verbs_read.SLICE_BYTES // 3 + 1
    assert cursors[1:] == ["5:1"]


# --- stop, start


@pytest.mark.parametrize(("command", "state", "result"), [("stop", "stopped", "stopped"), ("start", "serving", "serves")])
def test_changes_what_is_desired_and_follows(group: Group, command: str, state: str, result: str) -> None:
    group.actor.desired["options"] = {"timeout": 5}
    group.actor.event("progress", "long ago")

    def desire(arguments: dict[str, Any]) -> dict[str, Any]:
        group.actor.desired.update(generation=8, state=arguments["state"])
        group.actor.event("step", "the ranks change")
        group.actor.outcome = {"generation": 8, "final": True, "result": result, "release": "abc", "sentence": f"pair1: {result}."}
        return {"generation": 8, "joined": False}

    group.actor.on_desire = desire
    assert group.gb10(command).out == f"pair1: generation 8.\n2026-11-23T05:00:01Z step: the ranks change\npair1: {result}.\n"
    asked: dict[str, Any] = {"state": state, "by": "admin@lab-1", "takeover": False, "seen": 0}
    if command == "stop":  # reads nothing: the actor keeps release and options
        asked.update(release="", reasons=["gb10 stop on lab-1"], options={})
    else:  # a pair that runs the release is left alone
        asked.update(release="abc", reasons=[], options={"timeout": 5})
    assert group.actor.asked == [asked]


def test_a_start_of_a_pair_that_serves_and_a_stop_of_one_that_is_stopped_tell_it(group: Group) -> None:
    group.actor.on_desire = lambda _arguments: {"generation": 7, "joined": True}
    group.actor.outcome = dict(SERVES)
    vars(group.services[0])["_watch"] = SimpleNamespace(shown={"serving_since": "2026-11-23T05:02:00Z"})
    assert group.gb10("start").out == "pair1 serves release abc already, since 2026-11-23T05:02:00Z.\n"
    vars(group.services[0])["_watch"] = None
    assert group.gb10("stop").out == "pair1 is stopped already.\n"
    group.actor.outcome["result"] = "failed"  # between the request and this reading
    assert group.gb10("start", "--no-wait").out == "pair1: generation 7 is under way already.\n"


def test_a_stop_does_not_read_the_state_or_the_events_first(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    call = place.Group.call
    verbs: list[str] = []

    def unreadable(self: place.Group, verb: str, *arguments: Any, **request: Any) -> Any:
        verbs.append(verb)
        if verb in ("state", "events"):
            raise RankError("A message of 9000000 bytes is longer than the limit of 8388608 bytes.")
        return call(self, verb, *arguments, **request)

    monkeypatch.setattr(place.Group, "call", unreadable)
    group.gb10("stop", "--no-wait")
    assert (verbs, group.actor.asked[0]["state"]) == (["desire"], "stopped")


@pytest.mark.parametrize(
    ("desired", "outcome", "shown", "reasons"),
    [
        ({"generation": 0, "state": "", "release": ""}, {}, LOOK, []),
        ({"release": "bad"}, {"final": True, "result": "failed", "release": "abc"}, IDLE, ["gb10 start on lab-1"]),
    ],
    ids=["none was desired", "the desired one failed, and nothing runs"],
)
def test_start_uses_the_current_release(group: Group, desired: dict[str, Any], outcome: dict[str, Any], shown: dict[str, Any], reasons: list[str]) -> None:
    group.actor.desired.update(desired)
    group.actor.outcome.update(outcome)
    group.answers("look", shown)
    group.gb10("start", "--no-wait")
    assert (group.actor.asked[0]["release"], group.actor.asked[0]["reasons"]) == ("abc", reasons)


def test_start_without_any_release_is_an_error(group: Group) -> None:
    group.actor.desired = {"generation": 0, "state": "", "release": ""}
    group.answers("look", {**IDLE, "current": ""})
    assert group.gb10("start", code=1).err == "pair1 has no release on lab-1. Run site.yml.\n"


def test_a_start_that_fails_returns_2_with_the_sentence(group: Group) -> None:
    group.actor.desired["generation"] = 8
    group.actor.outcome = {"generation": 8, "final": True, "result": "failed", "release": "", "sentence": "pair1: rank 1 on lab-2: out_of_memory."}
    assert group.gb10("start", code=2).err == "pair1: rank 1 on lab-2: out_of_memory.\n"
    assert group.actor.acknowledged == [8], "the next run of site.yml does not repeat it"


def test_an_agent_that_goes_away_after_the_outcome_does_not_change_it(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.actor.desired["generation"] = 8
    group.actor.outcome = {**SERVES, "generation": 8}
    call = place.Group.call

    def gone(self: place.Group, verb: str, *arguments: Any, **request: Any) -> Any:
        if verb == "acknowledge":
            raise AgentMissing("the agent restarts")
        return call(self, verb, *arguments, **request)

    monkeypatch.setattr(place.Group, "call", gone)
    assert group.gb10("start").err == ""


def test_a_start_that_is_replaced_names_who_replaced_it(group: Group) -> None:
    group.actor.desired.update(generation=9, by="other@ctl")
    assert group.gb10("start", code=2).err == "Another state is desired now: generation 9, by other@ctl.\n"


def test_follows_a_renumbered_generation(group: Group) -> None:
    group.actor.desired.update(generation=12, replaces=[8])
    group.actor.outcome = {**SERVES, "generation": 12}
    group.gb10("start")


def test_a_worker_stops_only_if_asked_for_itself(group: Group) -> None:
    expected = "lab-2 is rank 1 of pair1. Run `gb10 stop` on the head lab-1, or `gb10 stop --here` if the head is down.\n"
    assert group.gb10("stop", rank=1, code=1).err == expected
    group.ranks[1].answers["stop_here"] = lambda _request: protocol.success({"left": [], "evidence": "", "note": ""})
    group.gb10("stop", "--here", rank=1)
    assert group.ranks[1].requests[-1]["by"] == "admin@lab-1"
    group.ranks[1].answers["stop_here"] = lambda _request: protocol.success({"left": ["gb10-pair1-rank1"], "evidence": "", "note": ""})
    group.gb10("stop", "--here", rank=1, code=2)


@pytest.fixture
def kept(group: Group) -> Group:
    """A pair that serves release abc and keeps the good release old. What a rollback chooses is in test_verbs_change.py."""
    for name, flag in (("abc", 3), ("old", 2)):
        release = group.directory / "releases" / name
        release.mkdir(parents=True)
        (release / "compose.yaml").write_text(f"requests: {flag}\n")
        (release / "receipt.json").write_text('{"passed": true}')
    (group.directory / "current").symlink_to("releases/abc")
    releases: list[dict[str, Any]] = [{"id": name, "good": True, "profile": "p", "image": {}} for name in ("abc", "old")]
    group.answers("look", *[{**LOOK, "releases": releases, "weights": {"proof": "1"}, "manifest": {"profile": "p"}}] * 2)
    group.actor.desired["options"] = {"timeout": 5, "weights": {"proof": "0"}, "collective": {"key": "k"}}
    group.actor.outcome = dict(SERVES)
    return group


WENT = [
    "The inventory is not changed by this: the next site.yml goes where its gb10_profile and vllm_tp2_* variables point."
    " To stay, set gb10_profile: p and undo what makes the difference below; then site.yml changes nothing.",
    "-requests: 3",
    "+requests: 2",
]


def test_rollback_states_the_release_follows_it_and_prints_how_to_stay(kept: Group) -> None:
    def desire(arguments: dict[str, Any]) -> dict[str, Any]:
        kept.actor.desired.update(generation=8, release=arguments["release"])
        kept.actor.outcome = {**SERVES, "generation": 8, "release": "old", "sentence": "pair1 serves.", "unserved_seconds": 48.2}
        return {"generation": 8, "joined": False}

    kept.actor.on_desire = desire
    headline = "pair1 went from release abc to old, profile p, 48 s without service"
    assert kept.gb10("rollback").out.splitlines() == ["pair1: generation 8.", "pair1 serves.", headline, *WENT]
    [asked] = kept.actor.asked
    rolled = {"from": "abc", "to": "old"}
    assert asked == {
        "state": "serving", "release": "old", "by": "admin@lab-1", "takeover": False, "seen": 7, "reasons": ["release abc -> old"],
        "options": {"timeout": 5, "weights": {"proof": "1"}, "rolled_back": rolled},
    }  # fmt: skip


def test_rollback_without_waiting_returns_the_generation_to_follow(kept: Group) -> None:
    document = json.loads(kept.gb10("rollback", "old", "--json", "--no-wait", "--takeover", "--by", "me@ctl").out)
    assert (document["schema"], document["generation"], document["changed"]) == ("gb10.cluster/rollback/1", 8, True)
    assert (document["from"], document["to"], document["difference"]) == ("abc", "old", WENT[1:])
    assert document["sentence"] == "pair1 goes from release abc to old, profile p"
    assert (kept.actor.asked[0]["by"], kept.actor.asked[0]["takeover"]) == ("me@ctl", True)


def test_rollback_only_lists_or_checks(kept: Group) -> None:
    lines = kept.gb10("rollback", "--list").out.splitlines()
    assert lines[1] == "pair1 keeps 2 releases on lab-1."
    assert kept.gb10("rollback", "--check").out.splitlines() == ["pair1 would go from release abc to old, profile p", *WENT]
    kept.actor.outcome["delivered"] = True
    assert kept.gb10("rollback", "abc").out.splitlines() == ["pair1 serves release abc, profile p, and nothing was changed"]
    (kept.directory / "rollback.json").write_text('{"from": "old", "to": "abc"}')
    again = kept.gb10("rollback").out.splitlines()
    assert "it was rolled back to it before" in again[0]
    assert again[2:] == ["-requests: 2", "+requests: 3"], "the difference to the release that was left"
    assert kept.actor.asked == []


@pytest.mark.parametrize(
    ("verb", "second", "words", "sentence"),
    [
        ("look", {**LOOK, "releases": []}, ["old"], "pair1: the release old is not kept on all ranks, and nothing was stopped."),
        ("look", {**LOOK, "engine_error": "The Docker Engine is not running."}, [], "lab-2: The Docker Engine is not running. Nothing was stopped.\n"),
        (
            "hello", {**HELLO, "owner": {"group": "pair9", "head": "ffff"}}, [],
            "pair1: lab-2 has another owner: the head ffff of the group pair9. Found: a1b2c3 of pair1. Run site.yml with -e takeover=true to change the owner.",
        ),
        ("hello", {**HELLO, "group": "pair9"}, [], "pair1: lab-2 belongs to the group pair9, and the request is for the group pair1."),
    ],
    ids=["not-kept", "engine", "owner", "group"],
)  # fmt: skip
def test_rollback_is_refused_before_anything_is_stated(kept: Group, verb: str, second: dict[str, Any], words: list[str], sentence: str) -> None:
    kept.ranks[1].answers[verb] = lambda _request: protocol.success(second)
    out, err = kept.gb10("rollback", *words, code=1)
    assert err.startswith(sentence)
    assert ("pair1 keeps 2 releases" in out) is ("kept" in sentence)
    assert kept.actor.asked == []


def test_rollback_is_refused_while_another_run_changes_the_group_or_a_rank_does_not_answer(kept: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    kept.actor.outcome = {**SERVES, "final": False}
    assert kept.gb10("rollback", code=1).err == (
        "pair1 is being changed by a run of admin@ctl since 05:00:00 (release abc). Wait for it, or take it over with -e takeover=true.\n"
    )
    kept.gb10("rollback", "--takeover", "--no-wait")
    monkeypatch.setenv("FAKE_SSH_MODE", "Permission denied (publickey).")
    assert kept.gb10("rollback", code=1).err == "lab-2: no reply (Permission denied (publickey)). Nothing was stopped.\n"


def test_rollback_without_an_agent_names_the_node_and_lists_what_it_keeps(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["rollback"], **alone(tmp_path)) == 1
    assert capsys.readouterr().err == (
        f"pair1 cannot be rolled back, and nothing was stopped. lab-1: This node has no agent: {tmp_path}/agent.json does not exist. Run site.yml.\n"
    )
    assert commands.run(["rollback", "--list"], **alone(tmp_path)) == 0
    assert capsys.readouterr().out.splitlines() == ["", "pair1 keeps 0 releases on lab-1."]


@pytest.mark.parametrize(("seconds", "code"), [("60", 0), ("0", 1), ("604801", 1)])
def test_a_hold_has_its_reason_and_its_end(group: Group, seconds: str, code: int) -> None:
    group.ranks[1].answers["hold"] = lambda _request: protocol.success({"holds": []})
    text = group.gb10("hold", "docker", "--reason", "an upgrade", "--seconds", seconds, rank=1, code=code)
    if code:
        assert text.err == f"{seconds} is not a valid number of seconds. Use 1 to 604800.\n"
        return
    asked = group.ranks[1].requests[-1]
    assert (asked["name"], asked["reason"], asked["seconds"], asked["by"]) == ("docker", "an upgrade", 60, "admin@lab-1")
    group.ranks[1].answers["release_hold"] = lambda _request: protocol.success({"holds": [], "released": False})
    assert group.gb10("release", "docker", rank=1).out == "lab-2 does not have the hold docker.\n"


def test_an_agent_that_has_just_been_started_gets_ten_seconds(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    group.services[1].close()
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    assert "The agent is not running" in group.gb10("hold", "docker", "--reason", "x", rank=1, code=1).err
    assert sum(slept) == 10


# --- machines


def test_call_sends_any_verb(group: Group) -> None:
    request = json.loads(group.gb10("call", "probe", '{"timeout": 3, "socket": "x"}').out)["request"]
    assert (request["verb"], request["timeout"], request["socket"]) == ("probe", 3, "x")


# --- errors


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["call", "probe", "[]"], "The arguments are not a JSON object."),
        (["call", "probe", "{"], "The arguments are not valid JSON: "),
        (["logs", "--since", "soon"], "'soon' is not a duration. Use a number with a unit, such as 90s, 10m, 2h or 1d."),
        (["logs", "--grep", "("], "'(' is not a valid regular expression: "),
        (["dance"], "Argument COMMAND: invalid choice: 'dance'"),
        ([], "The following arguments are required: COMMAND. Run `gb10 --help`."),
    ],
)
def test_a_wrong_call_is_one_sentence(group: Group, words: list[str], sentence: str) -> None:
    err = group.gb10(*words, code=1).err
    assert err.startswith(sentence)
    assert err.count("\n") == 1


def test_each_subcommand_exists_and_is_sent_by_the_module() -> None:
    sent = {each.name for node in ast.walk(ast.parse(Path(gb10.__file__).read_text())) if isinstance(node, ast.ImportFrom) for each in node.names}
    for package, module, function in (where.split(".") for where, _text, _arguments in commands.COMMANDS.values()):
        assert module in sent
        assert callable(getattr(importlib.import_module(f"{commands.__name__.rpartition('._')[0]}.{package}.{module}"), function))


def test_what_a_run_calls_often_imports_little() -> None:
    program = f"import sys, {commands.__name__} as it; it.run(['hold', 'a', '--reason', 'b'], path='none'); print(sum('utils._' in n for n in sys.modules))"
    done = subprocess.run([sys.executable, "-c", program], env={"PYTHONPATH": os.pathsep.join(sys.path)}, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 20


def test_a_missing_agent_is_one_sentence(group: Group) -> None:
    group.services[0].close()
    assert group.gb10("why", code=1).err.endswith("Run site.yml, or `systemctl start gb10-agent`.\n")


def test_a_worker_is_not_asked_past_the_agent_of_the_head(group: Group) -> None:
    group.services[0].close()
    head = commands.Group(str(group.folder / "agent0.json"), str(group.folder / "run0/admin.sock"), str(group.folder / "keys"), str(group.folder / "run0"))
    with pytest.raises(AgentMissing):
        list(verbs_read.looks(head))
    time.sleep(0.3)
    assert group.ranks[1].requests == [], "it would report that its head is back"


def test_a_node_without_configuration_is_one_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert commands.run(["status"], path=str(tmp_path / "agent.json")) == 1
    assert capsys.readouterr().err == f"This node has no agent: {tmp_path}/agent.json does not exist. Run site.yml.\n"


def test_a_user_without_access_needs_sudo(group: Group, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(*_arguments: Any, **_settings: Any) -> dict[str, Any]:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(protocol, "call", denied)
    assert group.gb10("status", code=1).err == "This user has no access to the agent. Run with sudo.\n"


# --- connect


def test_connect_imports_nothing_but_what_it_needs() -> None:
    code = (
        "import sys; before = set(sys.modules); from ansible_collections.gb10.cluster.plugins.module_utils._pair import cli;"
        "print(*sorted(name for name in set(sys.modules) - before if not name.startswith('ansible_collections')))"
    )
    out = subprocess.run([sys.executable, "-ISc", f"import sys; sys.path[:0] = [{str(ROOT / 'collections')!r}]; {code}"], check=True, capture_output=True)
    assert {"json", "typing", "re", "subprocess", "threading", "argparse", "signal"}.isdisjoint(out.stdout.decode().split())
