"""The event source of ansible-rulebook, with a fake ssh that replays replies of `gb10 follow`."""

from __future__ import annotations

import asyncio
import importlib.util
import json
import subprocess
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._agent.service import Service
from eda_fakes import calls, event, failed, reply, write_ssh
from playbook import REPO
from unit.fixtures.agent.wire import FakeActor, FakeRank, configuration

SOURCE = REPO / "extensions/eda/plugins/event_source/gb10_events.py"
HEAD = {"group": "pair1", "host": "one"}


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ModuleType:
    """The event source, as a module of its own, without pauses of seconds."""
    spec = importlib.util.spec_from_file_location("gb10_events", SOURCE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:/usr/bin:/bin")
    monkeypatch.setattr(module, "POLL_PAUSE", 0.0)
    monkeypatch.setattr(module, "RETRY_PAUSE", 0.01)
    return module


def received(source: ModuleType, count: int, **args: Any) -> list[dict[str, Any]]:
    """The first events of the source."""

    async def collect() -> list[dict[str, Any]]:
        queue: asyncio.Queue[Any] = asyncio.Queue()
        task = asyncio.create_task(source.main(queue, {"heads": [HEAD], **args}))
        getters = asyncio.gather(*(queue.get() for _number in range(count)))
        try:
            done, _pending = await asyncio.wait({task, getters}, timeout=20, return_when=asyncio.FIRST_COMPLETED)
            assert task not in done, task.exception()
            assert getters in done, "too few events"
            return list(getters.result())
        finally:
            getters.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    return asyncio.run(collect())


def kinds(events: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(each["gb10"]["kind"], each["gb10"]["n"]) for each in events]


def test_reports_each_event_once_from_the_start(source: ModuleType, tmp_path: Path) -> None:
    old, lost = event(3, "settled"), event(4, "fault", "two does not answer.", cause="node_lost", seconds=1.5)
    write_ssh(tmp_path, [reply(old), reply(lost), reply(lost, event(5, "waits"))])
    found = received(source, 2)
    assert found[0] == {
        "gb10": {
            "group": "pair1", "host": "one", "kind": "fault", "cause": "node_lost", "text": "two does not answer.", "at": "2026-11-23T10:00:00Z",
            "generation": 7, "n": 4, "seconds": 1.5,
        },
        "meta": {"hosts": "pair1"},
    }  # fmt: skip
    assert kinds(found) == [("fault", 4), ("waits", 5)]
    asked = [call[call.index("--since") :] for call in calls(tmp_path)]
    assert asked[:3] == [["--since", "0", "--wait", "0"], ["--since", "3", "--wait", "25"], ["--since", "4", "--wait", "25"]]


def test_reports_what_a_head_keeps_if_asked(source: ModuleType, tmp_path: Path) -> None:
    write_ssh(tmp_path, [reply(event(3, "settled"), event(4, "fault"))])
    assert kinds(received(source, 2, since=0)) == [("settled", 3), ("fault", 4)]


def test_reports_an_outcome_once_and_also_at_the_start(source: ModuleType, tmp_path: Path) -> None:
    held: dict[str, Any] = {"final": True, "result": "held", "at": "2026-11-23T10:00:01Z", "sentence": "pair1 is held: crash loop."}
    serves: dict[str, Any] = {"final": True, "result": "serves", "at": "2026-11-23T11:00:00Z"}
    write_ssh(tmp_path, [reply(event(3, "settled"), **held), reply(**held), reply(event(4, "desired"), generation=8), reply(generation=8, **serves)])
    first, second, third = (each["gb10"] for each in received(source, 3))
    assert (first["kind"], first["result"], first["text"], first["generation"]) == ("outcome", "held", "pair1 is held: crash loop.", 7)
    assert (second["kind"], "result" in second) == ("desired", False)
    assert (third["kind"], third["result"], third["generation"]) == ("outcome", "serves", 8)


def test_reports_a_fault_that_lasts_until_it_is_recovered(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LASTS_SECONDS", 0.0)
    lost, other, back = event(2, "fault", "two does not answer.", cause="node_lost"), event(3, "fault", cause="fabric"), event(4, "recovered")
    write_ssh(tmp_path, [reply(event(1, "settled")), reply(lost), reply(lost, other), reply(back), reply(), reply(event(5, "desired"))])
    found = received(source, 7)
    assert kinds(found) == [("fault", 2), ("lasts", 2), ("fault", 3), ("lasts", 2), ("lasts", 3), ("recovered", 4), ("desired", 5)]
    assert (found[1]["gb10"]["cause"], found[1]["gb10"]["text"], found[1]["gb10"]["generation"]) == ("node_lost", "two does not answer.", 7)


def test_reports_a_fault_from_before_the_start_only_if_it_lasts(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "LASTS_SECONDS", 0.0)
    write_ssh(tmp_path, [reply(event(1, "fault", cause="wedge"), event(2, "recovered"), event(3, "fault", cause="node_lost"))])
    (found,) = received(source, 1)
    assert (found["gb10"]["kind"], found["gb10"]["cause"]) == ("lasts", "node_lost")


@pytest.mark.parametrize(
    ("end", "cause", "sentence"),
    [
        (failed(255, "banner\nHost key verification failed.\n"), "ssh", "one does not answer: Host key verification failed."),
        (failed(1, "sudo: a password is required\n"), "agent", "one is reached, but its agent does not answer: sudo: a password is required"),
        (failed(1, ""), "agent", "one is reached, but its agent does not answer: exit code 1"),
        (failed(0, "", "Welcome!\n"), "agent", "one sent a reply that is not one of `gb10 follow` (Expecting value: line 1 column 1 (char 0))."),
        (failed(0, "", "{}\n"), "agent", "one sent a reply that is not one of `gb10 follow` (a key is missing)."),
    ],
)
def test_reports_a_head_that_does_not_answer_and_loses_no_event(source: ModuleType, tmp_path: Path, end: Any, cause: str, sentence: str) -> None:
    write_ssh(tmp_path, [reply(event(3, "settled")), end, end, reply(event(4, "fault"))])
    first, second, third, fourth = (each["gb10"] for each in received(source, 4))
    assert (first["kind"], first["cause"], first["text"], first["seconds"]) == ("unreachable", cause, sentence, 0.0)
    assert second["kind"] == "unreachable"
    assert second["seconds"] >= first["seconds"]
    assert third["kind"] == "reachable"
    assert (fourth["kind"], fourth["n"]) == ("fault", 4)


DEEP = '{"events": ' + "[" * 100_000 + "]" * 100_000 + ', "next": 1, "outcome": {}, "desired": {}}'
HELD: dict[str, Any] = {"final": True, "result": "held"}
MALFORMED: list[Any] = [
    DEEP, "[]", '"events next outcome desired"', "7", json.dumps({**reply(), "events": {}}), json.dumps({**reply(), "events": [7]}),
    json.dumps({**reply(), "events": [{}]}), json.dumps({**reply(), "next": "9"}), json.dumps({**reply(), "next": None}), json.dumps({**reply(), "next": True}),
    json.dumps({**reply(), "next": 1 << 60}), json.dumps({**reply(), "next": float("nan")}), json.dumps({**reply(), "outcome": []}),
    json.dumps({**reply(), "desired": [1]}), json.dumps({**reply(), "desired": {"generation": "{{ lookup('pipe', 'id') }}"}}),
    *(json.dumps(reply({**event(4, "fault"), key: value})) for key, value in (
        ("n", "4"), ("n", -1), ("n", 4.5), ("n", []), ("generation", "{{ x }}"), ("generation", 1e400), ("cause", "{{ x }}"), ("cause", ["a"]),
        ("kind", "fault {{ x }}"), ("kind", {}), ("kind", None), ("seconds", "5"), ("seconds", float("inf")), ("at", "{% x %}"), ("text", 7), ("text", ["a"]),
    )),
    *(json.dumps(reply(**{**HELD, key: value})) for key, value in (
        ("result", "{{ x }}"), ("release", "a b"), ("sentence", {}), ("at", 5), ("final", "yes"), ("generation", "7"),
    )),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(MALFORMED)))
def test_a_malformed_reply_is_a_head_that_does_not_answer(source: ModuleType, tmp_path: Path, number: int) -> None:
    write_ssh(tmp_path, [reply(event(3, "settled")), failed(0, "", MALFORMED[number]), reply(event(4, "fault"))])
    first, second, third = (each["gb10"] for each in received(source, 3))
    assert (first["kind"], first["cause"]) == ("unreachable", "agent")
    assert first["text"].startswith("one sent a reply that is not one of `gb10 follow` (")
    assert (second["kind"], third["kind"], third["n"]) == ("reachable", "fault", 4)


@pytest.mark.parametrize("text", ["{{ lookup('pipe', 'id') }}", "{% for x in y %}", "{# x #}", "{{{{ x", "a\x1b[31mb\nc"])
def test_a_text_of_a_machine_is_not_a_template_of_a_rule(source: ModuleType, tmp_path: Path, text: str) -> None:
    write_ssh(tmp_path, [reply(event(3, "settled")), reply(event(4, "fault", text), final=True, result="held", sentence=text), failed(255, text)])
    found = [each["gb10"]["text"] for each in received(source, 3)]
    assert [[sign in each for sign in ("{{", "{%", "{#", "\x1b", "\n")] for each in found] == [[False] * 5] * 3


def test_a_head_with_malformed_replies_does_not_end_the_others(source: ModuleType, tmp_path: Path) -> None:
    write_ssh(tmp_path, [failed(0, "", DEEP)] * 2)
    found = received(source, 2, heads=[HEAD, {"group": "pair2", "host": "three"}])
    assert {each["gb10"]["group"] for each in found} == {"pair1", "pair2"}


def test_pauses_grow_until_the_longest_and_start_again(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []
    real = asyncio.sleep

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        await real(0)

    monkeypatch.setattr(source.asyncio, "sleep", sleep)
    monkeypatch.setattr(source, "RETRY_PAUSE", 5.0)
    dark = failed(255, "No route to host")
    write_ssh(tmp_path, [*[dark] * 8, reply(event(1, "settled")), dark])
    received(source, 10)
    assert slept[:10] == [5.0, 10.0, 20.0, 40.0, 80.0, 160.0, 300.0, 300.0, 0.0, 5.0]


def test_a_head_that_hangs_is_unreachable(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "TIMEOUT", 1.0)
    write_ssh(tmp_path, [])
    (found,) = received(source, 1)
    assert found["gb10"]["text"] == "one has not replied after 1 s."


def test_a_computer_without_ssh_is_reported(source: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    (found,) = received(source, 1)
    assert "The command ssh cannot be run: " in found["gb10"]["text"]


def test_an_agent_that_was_installed_again_is_followed_from_its_first_event(source: ModuleType, tmp_path: Path) -> None:
    write_ssh(tmp_path, [reply(event(90, "settled"), generation=40), {**reply(generation=1), "next": 90}, reply(event(1, "desired"), generation=1)])
    assert kinds(received(source, 1)) == [("desired", 1)]


def test_one_head_does_not_delay_another(source: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_ssh(tmp_path, [failed(255, "No route to host")] * 2)
    monkeypatch.setattr(source, "RETRY_PAUSE", 60.0)
    found = received(source, 2, heads=[HEAD, {"group": "pair2", "host": "three"}])
    assert {each["gb10"]["group"] for each in found} == {"pair1", "pair2"}


def test_ssh_checks_host_keys_with_any_configuration(source: ModuleType, tmp_path: Path) -> None:
    """OpenSSH itself parses the words of the command."""
    key = tmp_path / "key"
    key.touch()
    head = {**HEAD, "address": "192.168.1.11", "user": "admin", "port": 2222, "identity_file": str(key)}
    (found,) = source.heads_of({"heads": [head], "known_hosts": "/etc/eda/known hosts"})
    config = tmp_path / "config"
    config.write_text("Host *\n  StrictHostKeyChecking no\n  UserKnownHostsFile /dev/null\n  ForwardAgent yes\n", encoding="utf-8")
    end = found.words.index("192.168.1.11") + 1
    done = subprocess.run([found.words[0], "-G", "-F", str(config), *found.words[1:end]], capture_output=True, text=True, check=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    expected = {
        "stricthostkeychecking": "true", "batchmode": "yes", "userknownhostsfile": "/etc/eda/known hosts", "forwardagent": "no", "identitiesonly": "yes",
        "hostname": "192.168.1.11", "user": "admin", "port": "2222", "identityfile": str(key),
    }  # fmt: skip
    assert {key: options[key] for key in expected} == expected
    assert found.words[end:] == ("sudo", "-n", "/usr/local/sbin/gb10", "follow")
    assert source.heads_of({"heads": [HEAD], "become": False})[0].words[-3:] == ("one", "/usr/local/sbin/gb10", "follow")


@pytest.mark.parametrize(
    ("args", "sentence"),
    [
        ({}, "The argument heads of gb10_events is not a list of mappings."),
        ({"heads": ["one"]}, "The argument heads of gb10_events is not a list of mappings."),
        ({"heads": [HEAD], "insecure": True}, "gb10_events has the argument insecure, which is not supported."),
        ({"heads": [{"host": "one"}]}, "Entry 1 of heads: group is None, which is not valid."),
        ({"heads": [HEAD, {**HEAD, "adress": "x"}]}, "Entry 2 of heads has the key adress, which is not supported."),
        ({"heads": [{**HEAD, "address": "-oProxyCommand=id"}]}, "Entry 1 of heads: address is '-oProxyCommand=id', which is not valid."),
        ({"heads": [{**HEAD, "user": "a;id"}]}, "Entry 1 of heads: user is 'a;id', which is not valid."),
        ({"heads": [{**HEAD, "port": "ssh"}]}, "Entry 1 of heads: port is 'ssh', which is not valid."),
        ({"heads": [HEAD], "known_hosts": '/a" /b'}, "The argument known_hosts of gb10_events"),
    ],
)
def test_wrong_arguments_are_refused(source: ModuleType, args: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=r"heads|gb10_events") as error:
        asyncio.run(source.main(asyncio.Queue(), args))
    assert sentence in str(error.value)


def test_the_replies_of_these_tests_have_the_form_of_the_agent(source: ModuleType, tmp_path: Path) -> None:
    actor = FakeActor()
    actor.event("fault")
    service = Service(configuration(tmp_path), rank=FakeRank(), actor=actor)
    real = service.admin({"verb": "events", "since": 0, "wait": 0.0, "generation": 0})["result"]
    assert set(real) == set(reply())
    follower = source.Follower(source.Head("pair1", "one", ()), 0)
    assert kinds(follower.events(json.loads(json.dumps(real)))) == [("fault", 1)]


def test_the_documentation_has_every_argument(source: ModuleType) -> None:
    options = yaml.safe_load(source.DOCUMENTATION)["options"]
    assert set(options) == {"heads", "known_hosts", "become", "wait", "since"}
    (example,) = yaml.safe_load(source.EXAMPLES)
    assert len(source.heads_of(example["gb10.cluster.gb10_events"])) == 2
