"""gb10 soak against an OpenAI server with planted faults, and an agent whose samples have the memory that they leave."""

from __future__ import annotations

import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import cases
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, look, protocol, service, soak, verbs_measure, verbs_read
from ansible_collections.gb10.cluster.plugins.module_utils._pair.service import Service
from http_server import Handler, answering
from unit.fixtures.agent.wire import FakeActor, FakeRank, configuration, until

KEY = "sk-a-secret-key"
CONTAINER = {"id": "c1", "started_at": "2026-11-28T05:00:00Z", "running": True, "labels": {"gb10.cluster.release": "abc"}}
PROGRAM = f"import sys; from {commands.__name__} import run; sys.exit(run(sys.argv[3:], path=sys.argv[1], admin=sys.argv[2]))"


class Engine(Handler):
    """A server whose requests cost memory and whose replies get slower, as `plant` has it."""

    plant: dict[str, float]
    served: list[str]
    bad: list[int]  # the next request fails if it is not empty
    text = "x"
    key = KEY
    page = "vllm:generation_tokens_total 1\nvllm:num_requests_running 1\nvllm:kv_cache_usage_perc 0.4\n"

    def get(self) -> None:
        if self.path == "/metrics":
            served = f'vllm:request_success_total{{finished_reason="length"}} {len(self.served)}'
            self.answer(200, f"{served}\n{self.page}") if self.page else self.answer(404)
        elif self.headers["Authorization"] != f"Bearer {KEY}":
            self.answer(401)
        else:
            self.answer(200, json.dumps({"data": [{"id": "m", "max_model_len": 4096}]}))

    def post(self) -> None:
        asked = self.body()
        if self.path == "/tokenize":
            self.answer(200, json.dumps({"tokens": [1] * len(asked["prompt"].split())}))
            return
        if self.headers["Authorization"] != f"Bearer {self.key}":
            self.answer(401, json.dumps({"error": "Unauthorized"}))
            return
        prompt = asked.get("prompt") or asked["messages"][-1]["content"]
        self.served.append(prompt)
        if self.bad:
            self.bad.clear()
            self.answer(500, json.dumps({"error": {"message": f"EngineDeadError {KEY}"}}))
            return
        if prompt.startswith("Write a Python class"):
            time.sleep(0.01 * math.exp(self.plant.get("slow", 0.0) * len(self.served)))
        self.answer(200, json.dumps({"choices": [{"text": self.text}], "usage": {"completion_tokens": asked["max_tokens"], "prompt_tokens": 9}}))


class Head:
    """The head of a group of one, its agent, and the soaks that are run there."""

    def __init__(self, folder: Path, engine: type[Engine], url: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.folder, self.engine, self.url, self.capsys, self.group = folder, engine, url, capsys, folder / "groups/pair1"
        (self.group / "current").mkdir(parents=True)
        release = {"release": "abc", "profile": "mine", "host": "127.0.0.1", "port": int(url.rpartition(":")[2]), "settings": {"max-num-seqs": 4}}
        (self.group / "current/release.json").write_text(json.dumps(release))
        (self.group / "current/compose.yaml").write_text("services: {vllm: {}}\n")
        (self.group / "api_key").write_text(f"VLLM_API_KEY={KEY}\n")
        config = {**configuration(folder), "hosts": ["lab-1"], "peers": []}
        (folder / "agent.json").write_text(json.dumps(config))
        rank = FakeRank()
        rank.answers["watch"] = lambda _request: protocol.success({"hello": {}, "sample": self.sample()})
        self.commanded, self.kernel = list[list[str]](), list[dict[str, str]]()
        self.unit: subprocess.Popen[bytes] | None = None
        self.current, self.went, self.took, self.broken = "abc", list[str](), list[bool](), set[str]()
        self.actor, self.containers = FakeActor(), [CONTAINER]
        self.service = Service(config, run_dir=str(folder / "run"), rank=rank, actor=self.actor)
        self.service.start()

    def sample(self) -> dict[str, Any]:
        served, plant = len(self.engine.served), self.engine.plant
        memory = 60_000 - plant.get("leak", 0.0) * served - (2048 if plant.get("step") and served > plant["step"] else 0) + 5 * math.sin(served)
        figures = {"total_kib": 1 << 27, "available_kib": int(memory * 1024)}
        return {"containers": self.containers, "memory": figures, "gpus": [[40.0, 90.0]], "kernel": self.kernel}

    def gb10(self, *words: str, code: int = 0) -> Any:
        assert commands.run(words, path=str(self.folder / "agent.json"), admin=str(self.folder / "run/admin.sock")) == code
        return self.capsys.readouterr()

    def start(self, *words: str) -> str:
        """Start a soak whose unit is a process of this test, and return its name."""
        return str(json.loads(self.gb10("soak", "start", "--json", "--interval=0.05", "--pause=0.04", *words).out)["name"])

    def command(self, words: Sequence[str], *_more: Any) -> tuple[int, str, str]:
        """Do what systemd does."""
        self.commanded.append(list(words))
        if words[0] == "systemd-run":
            places = [str(self.folder / "agent.json"), str(self.folder / "run/admin.sock")]
            environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
            self.unit = subprocess.Popen([sys.executable, "-c", PROGRAM, *places, *words[words.index(protocol.PROGRAM) + 1 :]], env=environment)
        return 0, "", ""

    def rollback(self, _group: commands.Group, options: Any) -> int:
        """Do what `gb10 rollback` does, and stop with a reason at a release that does not boot."""
        self.went.append(options.release)
        self.took.append(options.takeover)
        if options.release in self.broken:
            sys.stderr.write(f"pair1: {options.release} ran out of memory.\x1b\n")
            return commands.DIFFERS
        self.current, self.containers = options.release, [{**CONTAINER, "id": options.release, "labels": {"gb10.cluster.release": options.release}}]
        path = self.group / "current/release.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "release": options.release, "settings": {}}))
        return 0

    def start_both(self, monkeypatch: pytest.MonkeyPatch) -> str:
        """Start an A/B test against the release def, end its unit so that it can be run in this process, and return the name of the first soak."""
        (self.group / "releases/def").mkdir(parents=True)
        name = self.start("--hours=0.0003", "--seed=both", "--against=def", '--label={"vllm_tp2_max_num_seqs": 8}')
        self.end(signal.SIGTERM)
        monkeypatch.setattr(soak, "rollback", self.rollback)
        monkeypatch.setattr(node, "current_of", lambda _folder: self.current)
        monkeypatch.setattr(signal, "signal", lambda *_words: None)
        return name

    def end_in_boot(self, monkeypatch: pytest.MonkeyPatch, first: str) -> str:
        """Run an A/B test in a process that gets SIGTERM while the other release boots, and return the name of its second soak."""
        with monkeypatch.context() as patch:
            handlers: list[Any] = []
            patch.setattr(signal, "signal", lambda _number, handler: handlers.append(handler))
            patch.setattr(soak, "rollback", lambda *words: [self.rollback(*words), handlers[-1](0, None)][0])
            self.gb10("soak", "run", first)
        for each in Path("/proc/self/fd").iterdir():  # a process that ends has no lock
            if os.path.realpath(each).endswith("samples.jsonl"):
                os.close(int(each.name))
        [second] = {path.name for path in (self.group / "soak").iterdir()} - {first}
        return second

    def end(self, sent: int = 0) -> int:
        """Send a signal to the unit, wait for its end, and return its exit code."""
        assert self.unit
        self.unit.send_signal(sent)
        return self.unit.wait()

    def lines(self, name: str) -> list[dict[str, Any]]:
        path = self.group / "soak" / name / "samples.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines() if line.endswith("}")] if path.exists() else []

    def wait(self, name: str, count: int) -> None:
        for _attempt in range(1200):
            if len(self.lines(name)) >= count:
                return
            time.sleep(0.05)
        raise AssertionError(f"{len(self.lines(name))} samples of {count}")


@pytest.fixture
def head(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Head]:
    monkeypatch.setattr(verbs_measure, "status_document", lambda *_arguments: {"faults": []})
    with answering(Engine, plant={}, served=[], bad=[]) as (engine, url):
        found = Head(tmp_path, engine, url, capsys)
        monkeypatch.setattr(soak, "run_command", found.command)
        yield found
        if found.unit:
            found.end(signal.SIGKILL)
        found.service.close()


def test_planted_faults_are_found_although_the_soak_was_killed_in_the_middle(head: Head) -> None:
    head.engine.plant.update(leak=5.0, slow=0.0015)
    name = head.start("--hours=0.6", "--seed=planted")
    head.wait(name, 36)
    assert json.loads(head.gb10("soak", "status", "--json").out)["state"] == "running"
    for words in (("soak", "start"), ("bench",)):
        assert "has not ended. End it with `gb10 soak stop`." in head.gb10(*words, code=1).err
    head.end(signal.SIGKILL)
    kept = head.lines(name)
    with (head.group / "soak" / name / "samples.jsonl").open("a") as handle:
        handle.write('{"time": 17')  # it was killed while it wrote
    assert head.gb10("soak", "status").out.splitlines()[1].startswith("It does not run now. If that lasts, see `journalctl -u gb10-soak`, ")
    head.gb10("soak", "resume")
    head.wait(name, 62)
    head.engine.plant["step"] = len(head.engine.served)
    head.engine.bad.append(1)
    head.wait(name, 100)
    found = json.loads(head.gb10("soak", "stop", "--json").out)
    assert found["changed"]
    assert not json.loads(head.gb10("soak", "stop", "--json").out)["changed"]
    count = len(head.engine.served)
    head.gb10("soak", "run", name)  # by systemd, after a failure
    time.sleep(0.2)
    assert len(head.engine.served) <= count + 3, "only what was on its way"
    assert head.end() == 0
    lines = head.lines(name)
    assert lines[: len(kept)] == kept
    assert [bool(each["gap"]) for each in lines].index(True) == len(kept), "the first sample of the second process"
    assert lines[-1]["requests"] >= 0.9 * len(head.engine.served), "requests are counted on"
    assert found["verdict"] == "failed"
    parts = ["1 of ", "fell by 2.0 GiB in one step at ", " MiB a request (", "Decode speed falls "]
    assert [sum(part in each for each in found["findings"]) for part in parts] == [1, 1, 1, 1], found["findings"]
    assert len(found["findings"]) == 4
    leak = next(each for each in found["findings"] if "MiB a request" in each)
    assert 4.5 < float(leak.partition("Available memory of rank 0 on lab-1 falls ")[2].split()[0]) < 5.5
    assert leak.endswith(": the UCX pair is not set (UCX_MEM_MMAP_HOOK_MODE, UCX_RCACHE_MAX_UNRELEASED).")
    assert "The last error: HTTP 500: EngineDeadError " in found["findings"][0]
    assert KEY not in "".join(path.read_text() for path in (head.group / "soak" / name).iterdir())
    assert head.gb10("soak", "verdict", code=2).out.splitlines()[0].endswith(": failed.")


def test_a_soak_ends_by_itself_and_status_and_records_have_its_receipt(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    name = head.start("--hours=0.0003")
    assert head.end() == 0
    assert head.lines(name)[-1]["seconds"] >= 1.08
    shown = json.loads(head.gb10("soak", "verdict", name, "--json").out)
    assert (shown["state"], shown["release"], shown["gaps"]) == ("ended", "abc", 0)
    assert look.records(str(head.group))["soaks"] == [{key: value for key, value in shown.items() if key not in ("state", "changed", "lines", "compared")}]
    table = head.gb10("soak", "verdict", name, name).out.splitlines()
    assert table[1].split() == [name, name]
    assert any(line.split() == ["release", "abc", "abc"] for line in table)
    seen = {"containers": [], "current": "abc", "memory": {}, "releases": [], "engine_error": "", "processes": {}, "receipt": {}, "stopped": ""}
    monkeypatch.setattr(look, "in_short", lambda *_arguments, **_more: seen)
    monkeypatch.setattr(commands.Group, "call", lambda *_arguments, **_more: {**seen, "desired": {}, "outcome": {}, "watch": {}})
    assert f"pair1: {shown['sentence'].partition(': ')[2]}" in head.gb10("status", "--no-completion", code=2).out
    (head.group / "soak" / name / "verdict.json").unlink()
    assert f"pair1: The soak {name} loads it for 0.0003 h. See `gb10 soak status`.\n" in head.gb10("status", "--no-completion", code=2).out


def test_an_outage_is_a_gap_and_another_release_ends_the_soak(head: Head) -> None:
    name = head.start("--hours=0.6")
    head.wait(name, 3)
    head.containers = []
    until(lambda: head.lines(name)[-1]["gap"] == "rank 0 on lab-1 did not run")
    head.containers = [{**CONTAINER, "id": "c2"}]
    until(lambda: not head.lines(name)[-1]["gap"])
    assert {each["gap"] for each in head.lines(name)} == {"", "rank 0 on lab-1 did not run", "the engine was started again"}
    head.containers = [{**CONTAINER, "labels": {"gb10.cluster.release": "def"}}]
    assert head.end() == 0
    assert json.loads(head.gb10("soak", "status", "--json").out)["gaps"] == 2


def test_sigterm_ends_the_process_and_not_the_soak_which_the_agent_starts_again(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    name = head.start("--hours=0.6")
    head.wait(name, 2)
    assert head.end(signal.SIGTERM) == 0
    monkeypatch.setattr(service, "run_command", head.command)
    again = Service(head.service.config, run_dir=str(head.folder / "again"), rank=FakeRank(), actor=FakeActor())
    again.start()
    until(lambda: head.commanded[-1] == [protocol.PROGRAM, "soak", "resume"])
    again.close()
    head.gb10("soak", "resume")
    assert head.commanded[-1][-2:] == ["soak", "run"], "without a name: the second of an A/B test comes back in the unit of the first"
    assert head.commanded[-1][:2] == ["systemd-run", "--quiet"]
    assert {"--property=Restart=on-failure", "--property=StartLimitIntervalSec=600", "--property=StartLimitBurst=5"} <= set(head.commanded[-1])
    head.gb10("soak", "stop")
    assert head.end() == 0
    count = len(head.commanded)
    head.gb10("soak", "resume")
    assert len(head.commanded) == count, "a soak that has ended is not started"


def test_a_unit_that_does_not_start_is_one_sentence_and_leaves_no_soak(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(soak, "run_command", lambda *_words: (1, "", "Failed to connect to bus"))
    assert head.gb10("soak", "start", code=1).err == "pair1: systemd-run could not start gb10-soak (Failed to connect to bus).\n"
    monkeypatch.setattr(soak, "run_command", lambda *_words: (0, "", ""))
    monkeypatch.setattr(soak, "BEGIN_SECONDS", 0.1)
    assert "gb10-soak does not run: see `journalctl -u gb10-soak`." in head.gb10("soak", "start", code=1).err
    assert "there was no soak yet. Start one with `gb10 soak start`." in head.gb10("soak", "status", code=1).err
    assert "lab-1 keeps no soak x. Kept: none." in head.gb10("soak", "verdict", "x", code=1).err
    for word in ("--hours=0", "--hours=nan", "--interval=0.1", "--interval=inf", "--pause=nan", "--pause=inf"):
        assert " is not possible. Use up to 744 hours, at most 50000 samples, " in head.gb10("soak", "start", word, code=1).err
    head.engine.page = ""
    assert "lab-1 does not serve: /metrics does not answer." in head.gb10("soak", "start", code=1).err


def test_a_crash_of_the_engine_is_a_finding_and_one_that_is_permitted_is_not(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: dict[str, Any] = {"restarts": {"rank_dead": 4}}
    monkeypatch.setattr(head.service, "_shown", lambda: shown)
    for permitted, text in ((0, "The agent has started the engine again 1 time (wedge 1; permitted: 0). See `gb10 events`."), (1, "")):
        shown["restarts"].pop("wedge", None)
        name = head.start("--hours=0.6", f"--restarts={permitted}")
        head.wait(name, 2)
        shown["restarts"]["wedge"] = 1
        head.wait(name, len(head.lines(name)) + 2)
        findings = json.loads(head.gb10("soak", "stop", "--json").out)["findings"]
        assert [each for each in findings if "again" in each] == [text] * bool(text)
        assert head.end() == 0
        shutil.move(head.group / "soak" / name, head.folder / "kept")  # its name is a second


def test_a_key_that_is_changed_meanwhile_is_read_again(head: Head) -> None:
    name = head.start("--hours=0.6")
    head.wait(name, 3)
    head.engine.key = "sk-a-new-key"
    until(lambda: all(each["tok_s"] is None for each in head.lines(name)[-2:]))
    refused = sum(each["failed"] for each in head.lines(name))
    assert refused, "nothing else is known yet"
    (head.group / "api_key").write_text("VLLM_API_KEY=sk-a-new-key\n")
    count = len(head.lines(name))
    until(lambda: bool(head.lines(name)[-1]["tok_s"]))
    served = len(head.engine.served)
    until(lambda: len(head.engine.served) > served + 5)
    head.gb10("soak", "stop")
    assert head.end() == 0
    assert sum(each["failed"] for each in head.lines(name)[count + 1 :]) == 0


def test_an_outage_of_a_day_ends_the_soak(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    name = head.start("--hours=0.6")
    head.wait(name, 2)
    assert head.end(signal.SIGTERM) == 0
    head.containers = []
    monkeypatch.setattr(soak, "LONGEST_GAP", 0.3)
    monkeypatch.setattr(signal, "signal", lambda *_words: None)
    head.gb10("soak", "run", name)
    assert json.loads(head.gb10("soak", "status", "--json").out)["state"] == "ended"


def test_kernel_messages_since_its_start_are_found_although_the_clock_was_set_back(head: Head) -> None:
    head.kernel = [{"at": "2026-01-01T00:00:00Z", "kind": "xid", "text": "an old one"}]
    name = head.start("--hours=0.6")
    head.wait(name, 2)
    head.kernel = [*head.kernel, {"at": "2026-01-01T00:00:09Z", "kind": "xid", "text": "NVRM: Xid 31"}]
    until(lambda: any(each["kernel"] for each in head.lines(name)))
    head.wait(name, len(head.lines(name)) + 3)
    assert [line for each in head.lines(name) for line in each["kernel"]] == ["lab-1: NVRM: Xid 31"]
    head.gb10("soak", "stop")
    assert head.end() == 0


def test_the_soak_that_runs_is_meant_also_if_the_clock_was_set_back_before_it(head: Head) -> None:
    (head.group / "soak/29991231T235959Z").mkdir(parents=True)
    (head.group / "soak/29991231T235959Z/plan.json").write_text('{"group": "pair1", "name": "29991231T235959Z", "release": "abc", "hours": 1}')
    name = head.start("--hours=0.6")
    assert json.loads(head.gb10("soak", "stop", "--json").out)["name"] == name
    assert head.end() == 0


def test_two_soaks_have_one_load_and_the_first_release_serves_again_also_after_an_interruption(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    first = head.start_both(monkeypatch)
    assert json.loads(head.gb10("soak", "status", "--json").out)["label"] == '{"vllm_tp2_max_num_seqs": 8}'
    second = head.end_in_boot(monkeypatch, first)
    half = json.loads(head.gb10("soak", "status", "--json").out)
    assert (half["name"], half["state"], half["first"], head.went) == (second, "interrupted", first, ["def"])
    kept = head.lines(first)
    (head.group / "soak" / second / "samples.jsonl").write_text(f"{json.dumps(kept[0])}\n")
    head.gb10("soak", "run")  # as systemd and the agent do
    assert head.lines(first) == kept
    assert head.went == ["def", "abc"], "a release that was soaked already is not started again"
    page = json.loads(head.gb10("soak", "verdict", "--wait", "--json").out)
    assert [(each["name"], each["release"], each["state"]) for each in page["compared"]] == [(first, "abc", "ended"), (second, "def", "ended")]
    assert page["compared"][1]["notes"][-1] == page["lines"][-1] == "Release abc serves again."
    assert any(line.split(maxsplit=2) == ["with", "-", '{"vllm_tp2_max_num_seqs": 8}'] for line in page["lines"]), page["lines"]
    plans = [json.loads((head.group / "soak" / name / "plan.json").read_text()) for name in (first, second)]
    for key in ("seed", "users", "context", "tokens_per_word", "pause", "hours", "interval"):
        assert plans[0][key] == plans[1][key]


@pytest.mark.parametrize(
    ("broken", "meanwhile", "code", "went", "note"),
    [
        pytest.param({"def"}, "abc", 0, ["def", "abc"], "Release abc serves again.", id="the other one does not boot"),
        pytest.param({"def", "abc"}, "abc", 2, ["def", "abc"], "Release abc does not serve again: pair1: abc ran out of memory.\\x1b", id="nor the first"),
        pytest.param(set(), "xyz", 2, [], "Release abc does not serve again: The release xyz was started meanwhile.", id="a person chose a third"),
    ],
)
def test_a_release_that_does_not_boot_is_on_the_page(
    head: Head, monkeypatch: pytest.MonkeyPatch, broken: set[str], meanwhile: str, code: int, went: list[str], note: str
) -> None:
    first = head.start_both(monkeypatch)
    head.broken, head.current = broken, meanwhile
    head.gb10("soak", "run", first)
    page = head.gb10("soak", "verdict", code=code).out
    assert "pair1: release def was not soaked: it does not serve." in page
    assert ("pair1: def ran out of memory." in page) == ("def" in broken)
    assert page.splitlines()[-1] == note
    assert head.went == went
    assert "u001b" not in "".join(path.read_text() for path in (head.group / "soak").glob("*/verdict.json"))


def test_a_garbled_reply_to_a_case_of_the_list_is_a_failed_request(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "VICTIM", 0.9)
    plan = {"seed": "s", "users": 1, "context": 9000, "pause": 0.0, "tokens_per_word": 1.0, "model": "m", "cases": ["victim"]}
    for head.engine.text, bad in (("It is so.", False), ("<|im_end|><|im_start|>", True)):
        load, ended = soak.Load(plan, head.url, KEY, 0), list[str]()
        while len(ended) < 5 and not any(ended):
            ended += load.taken()
            time.sleep(0.01)
        load.ended.set()
        assert any(each.endswith("(case victim)") for each in ended) is bad, ended


def test_a_soak_that_a_person_ends_with_another_release_is_not_followed(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    first = head.start_both(monkeypatch)
    head.containers = [{**CONTAINER, "labels": {"gb10.cluster.release": "xyz"}}]
    head.gb10("soak", "run", first)
    assert (head.went, [path.name for path in (head.group / "soak").iterdir()]) == ([], [first])
    assert "lab-1 keeps no release xyz besides the one that serves." in head.gb10("soak", "start", "--against=xyz", code=1).err


def test_two_people_who_start_a_soak_at_once_get_one(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    described, others = soak._described, [lambda: head.start("--hours=0.6")]
    with monkeypatch.context() as patch:
        patch.setattr(soak, "_described", lambda *words: [others.pop()() if others else "", described(*words)][1])
        assert "has not ended. End it with `gb10 soak stop`." in head.gb10("soak", "start", code=1).err
        patch.setattr(soak, "need_no_soak", lambda _group: None)  # it was a moment later
        patch.setattr(soak, "NAME", "later")
        patch.setattr(soak, "run_command", lambda words, *_more: (1 if words[0] == "systemd-run" else head.end(signal.SIGTERM), "", "It is there"))
        assert head.gb10("soak", "start", code=1).err == "pair1: systemd-run could not start gb10-soak (It is there).\n"
    assert head.unit
    assert head.unit.poll() is None, "the unit of the other person"
    assert json.loads(head.gb10("soak", "stop", "--wait", "--json").out)["state"] == "ended"  # --wait is of verdict
    assert head.end() == 0


def test_a_stop_in_the_last_sample_of_the_first_soak_ends_both(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    first, take = head.start_both(monkeypatch), soak.Sampler.take
    place = head.group / "soak" / first / "plan.json"

    def stopped(*words: Any) -> dict[str, Any]:
        place.write_text(json.dumps({**json.loads(place.read_text()), "wanted": False}))
        return {**take(*words), "seconds": 2.0}

    monkeypatch.setattr(soak.Sampler, "take", stopped)
    head.gb10("soak", "run", first)
    assert (head.went, [path.name for path in (head.group / "soak").iterdir()]) == ([], [first])


def test_a_stop_while_the_other_release_boots_takes_its_boot_over(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cases, "LEAST_CHAT", 1)
    path = head.group / "current/release.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "settings": {"max-num-seqs": 4, "enable-auto-tool-choice": True}}))
    first = head.start_both(monkeypatch)
    plans = [head.group / "soak" / name / "plan.json" for name in (first, head.end_in_boot(monkeypatch, first))]
    assert [json.loads(each.read_text())["cases"] for each in plans] == [["victim", "cold-tools"], ["victim"]], "the other one refuses tools"
    head.actor.desired.update(by="gb10 soak", release="def")
    head.gb10("soak", "stop")
    assert (head.went, head.took) == (["def", "abc"], [False, True])


def test_a_change_of_release_waits_for_agents_that_come_back(head: Head, monkeypatch: pytest.MonkeyPatch) -> None:
    first, away, ask = head.start_both(monkeypatch), [None, None], verbs_read.ask
    monkeypatch.setattr(soak, "LOOK_SECONDS", 0.05)
    silent = [(1, "lab-2", None, "no reply")]
    monkeypatch.setattr(soak, "ask", lambda group, verb, **more: [silent, away.pop()][0] if verb == "hello" and away else ask(group, verb, **more))
    monkeypatch.setattr(soak, "rollback", lambda *words: int(bool(away)) or head.rollback(*words))
    head.gb10("soak", "run", first)
    assert head.went == ["def", "abc"]
