"""A rank's verbs, on a folder, with a Docker Engine on a socket and a docker CLI that changes what this engine has."""

from __future__ import annotations

import base64
import errno
import json
import os
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, releases
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import lost_ways, start_reasons
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence, files, look, protocol, rank
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rank import RankService
from unit.fixtures.docker.engine import FakeEngine, serving

CONTAINER = "gb10-pair1-rank1"
HEAD = "0123456789abcdef0123456789abcdef"
IMAGE = {"Id": "sha256:1111", "RootFS": {"Layers": ["sha256:1"]}, "Config": {}, "Architecture": "arm64", "Os": "linux"}


class Machine:
    """Rank 1 of the group pair1: its files, its Docker Engine, and the docker CLI that changes what the engine has."""

    def __init__(self, folder: Path, engine: FakeEngine) -> None:
        self.engine = engine
        self.directory = folder / "vllm_tp2"
        self.folder = self.directory / "pair1"
        self.commands: list[str] = []
        self.failures: dict[str, str] = {}
        self.kept_running = False
        self.reading = (0, '{"facts": {}, "info": {}}', "")
        self.now = 1_795_000_000.0
        self.gate: threading.Event | None = None
        (folder / "root/proc").mkdir(parents=True)
        self.root = str(folder / "root")
        self.socket = str(folder / "docker.sock")
        self.service = self.new()

    def new(self) -> RankService:
        config = {"group": "pair1", "rank": 1, "hosts": ["lab-1", "lab-2"], "directory": str(self.directory), "head_id": HEAD}
        return RankService(config, run=self.run, docker_socket=self.socket, root=self.root, wall=lambda: self.now)

    def run(self, argv: Any, timeout: float = 60.0, cwd: str | None = None, env: Any = None) -> tuple[int, str, str]:
        line = " ".join(argv)
        if argv[1:] == ["doctor", "--read"]:
            return self.reading
        if argv[0] != "docker":
            return 127, "", f"{argv[0]}: not here"
        self.commands.append(line)
        for part, message in self.failures.items():
            if part in line:
                return 1, "", message
        if " up " in line:
            if self.gate is not None:
                self.gate.wait(10)
            assert cwd is not None
            self.put_container(Path(cwd).name)
        elif argv[1] == "stop" and not self.kept_running:
            self.engine.containers[CONTAINER]["State"] = {"Status": "exited", "Running": False, "ExitCode": 137}
        elif ("down" in argv or argv[1] == "rm") and not self.kept_running:
            self.engine.containers.clear()
        return 0, "", ""

    def put_container(self, release: str, running: bool = True) -> None:
        state = {"Status": "running" if running else "exited", "Running": running, "Pid": 4, "StartedAt": "2026-11-22T10:00:00Z", "ExitCode": 0}
        labels = {"gb10.cluster.group": "pair1", "gb10.cluster.release": release}
        self.engine.containers[CONTAINER] = {
            "Id": CONTAINER, "Name": f"/{CONTAINER}", "State": state, "Image": "sha256:1111", "Config": {"Image": "vllm:1", "Labels": labels},
        }  # fmt: skip

    def put_release(self, name: str, receipt: dict[str, Any] | None = None, **manifest: Any) -> Path:
        folder = self.folder / "releases" / name
        folder.mkdir(parents=True)
        (folder / "compose.yaml").write_text("services: {}\n")
        image = {"reference": "vllm:1", "id": "sha256:1111", "fingerprint": "f"}
        (folder / "release.json").write_text(json.dumps({"release": name, "image": image, **manifest}))
        if receipt is not None:
            (folder / "receipt.json").write_text(json.dumps(receipt))
        return folder

    def ask(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return self.service.handle({"v": 1, "group": "pair1", "head": HEAD, "generation": 7, **arguments, "verb": verb})

    def do(self, verb: str, **arguments: Any) -> dict[str, Any]:
        reply = self.ask(verb, **arguments)
        assert reply["ok"], reply
        return dict(reply["result"])

    def root_asks(self, verb: str, **arguments: Any) -> dict[str, Any]:
        return protocol.reply_of(self.service.handle({**arguments, "verb": verb}, local=True))

    def refusal(self, verb: str, **arguments: Any) -> str:
        reply = self.ask(verb, **arguments)
        assert (reply["ok"], reply.get("kind")) == (False, "refused"), reply
        return str(reply["error"])


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    monkeypatch.setattr(rank, "LEFT_SECONDS", 0.2)
    monkeypatch.setattr(rank, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(evidence, "COMMANDS", {})
    with serving(tmp_path / "docker.sock") as engine:
        yield Machine(tmp_path, engine)


@pytest.fixture
def owned(machine: Machine) -> Machine:
    machine.do("claim")
    return machine


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def no_space(*_arguments: Any, **_more: Any) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def guarded(write: Any, full: str) -> Any:
    """Return a write of a folder that fails below a path, whose disk is full."""

    def guard(self: Folder, *arguments: Any, **more: Any) -> None:
        if self.base.startswith(full):
            no_space()
        write(self, *arguments, **more)

    return guard


# Owner and generation.


def test_an_unclaimed_rank_changes_nothing(machine: Machine) -> None:
    assert machine.do("hello")["owner"] == {}
    for verb in ("start", "record", "phase", "reclaim"):
        assert "lab-2 has no owner yet" in machine.refusal(verb, release="4f0c", receipt={}, phase="load")
    assert not machine.folder.exists()


def test_an_unclaimed_rank_is_stopped(machine: Machine) -> None:
    machine.put_container("4f0c")
    assert machine.do("halt", mark="2026-11-23T05:00:00Z")["left"] == []
    assert machine.engine.containers == {}
    assert (machine.do("hello")["owner"], machine.do("hello")["stop_generation"]) == ({}, 7)
    assert "lab-2 belongs to the group pair1" in machine.refusal("halt", group="pair2")
    assert "has seen generation 7" in machine.refusal("claim", generation=6)


def test_a_claim_stores_owner_and_generation_for_root_only(machine: Machine) -> None:
    found = machine.do("claim")
    assert found["owner"] == {"group": "pair1", "head": HEAD}
    assert (found["host"], found["rank"], found["group"], found["generation"], found["stopped"], found["holds"]) == ("lab-2", 1, "pair1", 7, "", [])
    path = machine.folder / "agent/owner.json"
    assert json.loads(path.read_text()) == {"group": "pair1", "head": HEAD, "generation": 7, "stop_generation": 0}
    assert (mode(path.parent), mode(path)) == (0o700, 0o600)
    assert [each.name for each in path.parent.iterdir()] == ["owner.json"]
    assert machine.new().handle({"verb": "hello"})["result"] == found


@pytest.mark.parametrize("verb", ["claim", "phase", "reclaim", "start", "halt", "record"])
def test_another_head_group_or_a_lower_generation_is_refused(owned: Machine, verb: str) -> None:
    more: dict[str, Any] = {"release": "4f0c", "phase": "load", "receipt": {}}
    assert "lab-2 has another owner: the head 0123456789ab of the group pair1. Found: ffff" in owned.refusal(verb, head="ffff", **more)
    assert "lab-2 belongs to the group pair1, and the request is for the group pair2" in owned.refusal(verb, group="pair2", **more)
    assert owned.refusal(verb, generation=6, **more) == "lab-2 has seen generation 7 of the group pair1. Generation 6 is superseded."
    assert owned.commands == []


def test_the_highest_generation_counts_also_if_it_cannot_be_written(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, "replace", no_space)
        owned.do("halt", generation=9)
        assert owned.do("claim", generation=10)["generation"] == 10
    assert "has seen generation 10" in owned.refusal("halt", generation=9)


def test_a_full_disk_does_not_keep_an_owned_rank_from_being_started(owned: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    owned.put_release("4f0c", fabric={"addresses": ["192.168.100.2"]})
    monkeypatch.setattr(files, "resolve_fabric", lambda *_arguments: ({"NCCL_IB_HCA": "rocep1"}, ""))
    monkeypatch.setattr(protocol, "RUN", str(tmp_path / "run"))
    monkeypatch.setattr(Folder, "write", guarded(Folder.write, str(owned.folder)))
    monkeypatch.setattr(os, "unlink", no_space)  # as on a read-only disk, also of what is not there
    assert owned.do("claim", generation=8)["generation"] == 8
    assert owned.do("start", release="4f0c", generation=8) == {"error": ""}
    assert f"--file {tmp_path}/run/fabric.json up" in owned.commands[-1]
    assert json.loads((tmp_path / "run/fabric.json").read_text())["services"]


def test_a_full_disk_refuses_the_first_claim_of_a_head_with_the_file(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "replace", no_space)
    assert machine.ask("claim")["error"] == f"{machine.folder}/agent/owner.json on lab-2 cannot be used: No space left on device. Correct that there."


def test_a_group_that_was_renamed_needs_a_takeover(machine: Machine) -> None:
    old = machine.directory / "old/agent"
    old.mkdir(parents=True)
    (old / "owner.json").write_text('{"group": "old", "head": "aaaa", "generation": 3}')
    assert "lab-2 has another owner: the group old" in machine.refusal("claim")
    with pytest.raises(RankError, match="the group old"):
        machine.root_asks("own", head=HEAD, group="pair1")
    assert machine.root_asks("own", head=HEAD, group="pair1", takeover=True)["owner"] == {"group": "pair1", "head": HEAD}
    assert not (old / "owner.json").exists()
    machine.do("claim")


def test_a_takeover_changes_the_owner_and_keeps_the_generation(owned: Machine) -> None:
    with pytest.raises(RankError, match="has another owner") as error:
        owned.root_asks("own", head="bbbb", group="pair1")
    assert error.value.kind == "refused"
    owned.root_asks("own", head="bbbb", group="pair1", takeover=True)
    assert "has another owner" in owned.refusal("halt")
    assert owned.do("claim", head="bbbb")["generation"] == 7


def test_a_head_takes_no_verb_of_local_root(owned: Machine) -> None:
    for verb, more in (("own", {"takeover": True}), ("hold", {"name": "x", "reason": "y", "seconds": 5}), ("stop_here", {}), ("__init__", {}), (["look"], {})):
        reply = owned.ask(verb, **more)  # type: ignore[arg-type]
        assert (reply["ok"], reply["kind"]) == (False, "unknown")
        assert "Supported: hello, claim, look" in reply["error"]


def test_local_root_needs_no_owner_in_its_request(owned: Machine) -> None:
    assert owned.root_asks("halt")["left"] == []
    with pytest.raises(RankError, match="lab-2 has seen generation 7"):
        owned.root_asks("halt", generation=3)


# Links in place of folders.


def test_a_link_in_place_of_a_file_is_replaced_and_not_followed(owned: Machine, tmp_path: Path) -> None:
    (tmp_path / "target").write_text("mine")
    (owned.folder / "evidence/crash").mkdir(parents=True)
    (owned.folder / "evidence/crash/rank1-lab-2.txt").symlink_to(tmp_path / "target")
    (owned.folder / "stopped").symlink_to(tmp_path / "gone")
    owned.do("halt", label="crash", mark="2026-11-23T05:00:00Z")
    assert (tmp_path / "target").read_text() == "mine"
    assert not (tmp_path / "gone").exists()
    assert (owned.folder / "stopped").read_text() == "2026-11-23T05:00:00Z\n"


# Start, halt, record.


def test_the_doctor_of_the_head_gets_what_a_process_of_its_own_has_read(owned: Machine) -> None:
    assert owned.do("doctor") == {"facts": {}, "info": {}}
    owned.reading = (1, "", "PyYAML is missing.\n")
    assert owned.ask("doctor") == {"ok": False, "error": "PyYAML is missing.", "kind": "failed"}


def test_a_start_of_a_later_generation_removes_the_mark_of_a_stop(owned: Machine) -> None:
    owned.put_release("4f0c")
    owned.do("halt", mark="2026-11-23T05:00:00Z")
    assert owned.do("hello")["stopped"] == "2026-11-23T05:00:00Z"
    assert owned.do("start", release="4f0c", generation=8) == {"error": ""}
    assert owned.do("hello", generation=8)["stopped"] == ""


def test_a_start_returns_the_last_lines_of_the_error_without_secrets(owned: Machine) -> None:
    folder = owned.put_release("4f0c")
    (folder / "secrets.env").write_text("VLLM_API_KEY=open sesame\n")
    lines = [f" Container line {number}" for number in range(9)]
    owned.failures[" up "] = "\n".join([*lines, "Error response from daemon: bad value open sesame, hf_abcdefghij\n"])
    error = owned.do("start", release="4f0c")["error"]
    assert error.splitlines()[-1] == "Error response from daemon: bad value ********, ********"
    assert error.splitlines()[0] == "Container line 5"


@pytest.mark.parametrize("text", [None, "", "VLLM_API_KEY=\n", "a-key-without-its-name\n"])
def test_a_start_without_the_key_is_refused(owned: Machine, text: str | None) -> None:
    folder = owned.put_release("4f0c", has_key=True)
    if text is not None:
        (owned.folder / "api_key").write_text(text)
    phrase = f"the API key of release 4f0c is missing: neither {folder}/secrets.env nor {owned.folder}/api_key has one"
    assert owned.do("look", release="4f0c")["missing"][0] == phrase
    assert owned.do("start", release="4f0c")["error"] == f"{phrase}. Run site.yml."
    assert owned.commands == []
    (owned.folder / "api_key").write_text("VLLM_API_KEY=k\n")
    assert not any("key" in missing for missing in owned.do("look", release="4f0c")["missing"])
    assert owned.do("start", release="4f0c") == {"error": ""}


def test_a_start_without_files_names_the_file(owned: Machine) -> None:
    assert owned.do("start", release="4f0c")["error"] == f"{owned.folder}/releases/4f0c/compose.yaml is missing on lab-2. Run site.yml to write it."
    assert owned.commands == []


def test_halt_keeps_evidence_removes_the_containers_and_can_be_repeated(owned: Machine) -> None:
    folder = owned.put_release("4f0c")
    (folder / "secrets.env").write_text("HF_TOKEN=open sesame\n")
    (owned.folder / "api_key").write_text("VLLM_API_KEY=made-by-the-first-run-1\n")
    owned.put_container("4f0c")
    owned.engine.logs[CONTAINER] = [("2026-11-21T05:00:00Z", b"key is open sesame or made-by-the-first-run-1\n", 1)]
    first = owned.do("halt", label="crash-1", mark="2026-11-23T05:00:00Z")
    path = owned.folder / "evidence/crash-1/rank1-lab-2.txt"
    assert first == {"left": [], "evidence": str(path), "note": ""}
    assert [line.split()[1] for line in owned.commands] == ["stop", "compose"]
    assert "down --remove-orphans" in owned.commands[1]
    assert "key is ******** or ********" in path.read_text()
    assert (mode(path), mode(path.parent), mode(path.parent.parent)) == (0o600, 0o700, 0o700)
    text = path.read_text()
    assert owned.do("halt", label="crash-1", mark="2026-11-23T06:00:00Z") == first
    assert path.read_text() == text, "the evidence of the first halt"
    assert owned.do("hello")["stopped"] == "2026-11-23T05:00:00Z"
    assert len(owned.commands) == 2


@pytest.mark.parametrize("lost", [True, False], ids=["its release is lost", "compose refuses"])
def test_halt_removes_by_name_what_compose_cannot(owned: Machine, lost: bool) -> None:
    if not lost:
        owned.put_release("4f0c")
    owned.put_container("4f0c", running=not lost)
    owned.failures["compose"] = "env file secrets.env not found"
    assert owned.do("halt")["left"] == []
    assert owned.commands[-1] == f"docker rm --force {CONTAINER}"
    assert (len(owned.commands) == 1) is lost, "nothing else is tried without the files"


def test_halt_names_what_still_runs_and_why(owned: Machine) -> None:
    owned.put_container("4f0c")
    owned.kept_running = True
    owned.failures["rm"] = "Error response from daemon: PID 4 is zombie and can not be killed"
    out = owned.do("halt")
    assert out["left"] == [CONTAINER]
    assert out["note"] == "The Docker Engine on lab-2 reports: Error response from daemon: PID 4 is zombie and can not be killed"


def test_a_full_disk_does_not_keep_a_rank_from_being_stopped(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    owned.put_release("4f0c")
    owned.put_container("4f0c")
    monkeypatch.setattr(os, "replace", no_space)
    out = owned.do("halt", label="crash", mark="2026-11-23T05:00:00Z", generation=8)
    assert (out["left"], out["evidence"]) == ([], "")
    for part in ("The stop is not marked on lab-2", "The generation of the stop is not kept", "The evidence of lab-2 is not kept", "No space left on device"):
        assert part in out["note"]
    assert [path.name for path in (owned.folder / "evidence/crash").iterdir()] == []


def test_a_stopped_docker_engine_fails_a_halt_and_not_a_look(owned: Machine, tmp_path: Path) -> None:
    owned.put_release("4f0c", {"passed": True})
    owned.socket = str(tmp_path / "none.sock")
    owned.service = owned.new()
    reply = owned.ask("halt", label="crash", mark="2026-11-23T05:00:00Z")
    assert reply["kind"] == "failed"
    assert reply["error"].startswith("The Docker Engine is not running:")
    seen = owned.do("look", release="4f0c", free_share=0.0)
    assert seen["engine_error"] == reply["error"]
    assert (seen["containers"], seen["missing"], seen["stopped"]) == ([], [], "2026-11-23T05:00:00Z")


def test_record_keeps_the_receipt_and_the_link(owned: Machine) -> None:
    folder = owned.put_release("4f0c", {"passed": False})
    receipt = {"passed": True, "release": "4f0c"}
    owned.do("halt", mark="2026-11-23T05:00:00Z")
    for _again in range(2):
        assert owned.do("record", release="4f0c", receipt=receipt) == {}
        assert json.loads((folder / "receipt.json").read_text()) == receipt
        assert os.readlink(owned.folder / "current") == "releases/4f0c"
        assert owned.do("look")["stopped"] == "", "what is recorded is expected to serve"


def test_record_keeps_a_rollback_to_this_release(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    owned.put_release("4f0c", {"passed": False})
    found = owned.folder / "rollback.json"
    done: dict[str, Any] = {"release": "4f0c", "receipt": {"passed": True}}
    owned.do("record", **done, rolled_back={"from": "4f0c", "to": "5a5a"})
    assert not found.exists(), "the release before serves again"
    owned.do("record", **done, rolled_back={"from": "5a5a", "to": "4f0c"})
    assert json.loads(found.read_text()) == {"from": "5a5a", "to": "4f0c"}
    owned.do("record", **done)
    monkeypatch.setattr(releases, "record_rollback", no_space)
    note = owned.do("record", **done, rolled_back={"from": "5a5a", "to": "4f0c"})["note"]
    assert note.startswith("could not record the rollback: ")
    assert note.endswith("No space left on device. The next one may return to the release that was left.")


def test_record_on_a_full_disk_names_the_file(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = owned.put_release("4f0c", {"passed": False})
    monkeypatch.setattr(os, "replace", no_space)
    reply = owned.ask("record", release="4f0c", receipt={"passed": True})
    assert reply["kind"] == "failed"
    assert f"The receipt of release 4f0c is not kept on lab-2: {folder}/receipt.json: No space left on device" in reply["error"]
    assert json.loads((folder / "receipt.json").read_text()) == {"passed": False}
    assert sorted(path.name for path in folder.iterdir()) == ["compose.yaml", "receipt.json", "release.json"]


def test_stop_here_outlives_the_head_and_its_generation(owned: Machine) -> None:
    owned.put_release("4f0c")
    owned.put_container("4f0c")
    out = owned.root_asks("stop_here", by="root@lab-2")
    assert (out["left"], out["generation"]) == ([], 8)
    found = owned.new().handle({"verb": "hello"})["result"]
    assert (found["generation"], found["stop_generation"]) == (8, 8)
    assert found["stopped"].endswith("Z by root@lab-2")
    assert "has seen generation 8" in owned.refusal("start", release="4f0c")
    assert "was stopped by generation 8" in owned.refusal("start", release="4f0c", generation=8)


def test_stop_here_on_a_stopped_rank_ends_a_request_that_the_rank_has_not_seen(owned: Machine) -> None:
    owned.put_release("4f0c")
    assert [owned.root_asks("stop_here")["generation"] for _again in range(2)] == [8, 9]
    assert "was stopped by generation 9" in owned.refusal("start", release="4f0c", generation=9)


def test_stop_here_ends_a_start_that_waits(owned: Machine) -> None:
    """The first start is at work, the second waits for it, and the stop comes last: the second does not begin."""
    owned.put_release("4f0c")
    owned.gate = threading.Event()
    replies: list[dict[str, Any]] = []
    threads = [threading.Thread(target=lambda: replies.append(owned.ask("start", release="4f0c"))) for _each in range(2)]
    stop = threading.Thread(target=owned.root_asks, args=("stop_here",))
    for thread in (*threads, stop):
        thread.start()
        time.sleep(0.1)
    assert owned.do("hello")["generation"] == 8, "read while the start is at work"
    assert len(owned.do("look")["containers"]) == 0
    owned.gate.set()
    for thread in (*threads, stop):
        thread.join(10)
    assert sorted(reply["ok"] for reply in replies) == [False, True]
    assert owned.engine.containers == {}


# Holds.


def test_holds_expire_and_are_replaced_and_released_by_name(owned: Machine) -> None:
    owned.root_asks("hold", name="reboot", reason="reboot.yml", seconds=60, by="admin@ctl")
    owned.root_asks("hold", name="docker", reason="old", seconds=600)
    owned.root_asks("hold", name="docker", reason="role docker", seconds=600)
    holds = owned.do("hello")["holds"]
    assert [(each["name"], each["reason"], each["by"]) for each in holds] == [("reboot", "reboot.yml", "admin@ctl"), ("docker", "role docker", "")]
    assert holds[0]["until"] == owned.now + 60
    assert mode(owned.folder / "agent/holds.json") == 0o600
    owned.now += 61
    assert [each["name"] for each in owned.new().handle({"verb": "hello"})["result"]["holds"]] == ["docker"]
    assert owned.root_asks("release_hold", name="docker") == {"holds": [], "released": True}
    assert owned.root_asks("release_hold", name="docker")["released"] is False


NTP = 1_795_000_000.0


def test_a_hold_survives_a_clock_that_is_set_after_it_and_ends_with_its_seconds(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    boot = Path(owned.root) / "proc/sys/kernel/random/boot_id"
    boot.parent.mkdir(parents=True)
    boot.write_text("b1\n")
    passed = 100.0
    monkeypatch.setattr(files, "booted", lambda: passed)
    for before, after in ((1000.0, NTP), (NTP + 1e9, NTP)):
        owned.now = before
        owned.root_asks("hold", name="reboot", reason="r", seconds=60)
        owned.now = after
        assert [each["until"] for each in owned.do("hello")["holds"]] == [after + 60]
        assert [each["name"] for each in owned.new().handle({"verb": "hello"})["result"]["holds"]] == ["reboot"]
        passed += 61
        assert owned.do("hello")["holds"] == []
    owned.root_asks("hold", name="reboot", reason="r", seconds=60)
    boot.write_text("b2\n")
    passed = 5.0
    assert [each["until"] for each in owned.do("hello")["holds"]] == [NTP + 60], "after a reboot the wall clock decides"
    owned.now += 61
    assert owned.do("hello")["holds"] == []


@pytest.mark.parametrize(("days", "names"), [(7.0, ["x"]), (7.1, []), (3650.0, [])])
def test_a_hold_that_a_clock_ahead_has_made_does_not_count(owned: Machine, days: float, names: list[str]) -> None:
    (owned.folder / "agent/holds.json").write_text(json.dumps([{"name": "x", "reason": "y", "until": owned.now + days * 86400}]))
    assert [each["name"] for each in owned.do("hello")["holds"]] == names


# Reading.


def test_look_returns_what_the_plan_of_a_start_reads(owned: Machine) -> None:
    owned.put_release("4f0c", {"passed": True, "release": "4f0c"}, port=8000)
    owned.put_container("4f0c")
    owned.do("record", release="4f0c", receipt={"passed": True, "release": "4f0c"})
    owned.engine.images["sha256:1111"] = IMAGE
    info = owned.do("look", release="4f0c", free_share=0.5)
    assert (info["current"], info["receipt"]["passed"], info["missing"], info["blocked"]) == ("4f0c", True, [], f"{CONTAINER} still runs")
    assert info["memory"]["total_kib"] > 0
    assert (info["manifest"]["port"], info["weights"]) == (8000, {})
    assert len(info["containers"][0]["image_fingerprint"]) == 64
    assert start_reasons(info, "4f0c", "rank 1 on lab-2") == ["rank 1 on lab-2 runs another image (sha256:1111) than release 4f0c names"]
    owned.engine.images.clear()
    info = owned.do("look", release="4f0c")
    assert start_reasons(info, "4f0c", "rank 1 on lab-2") == [], "an image that is gone starts nothing"
    assert "does not have its image sha256:1111 any more" in lost_ways([info], ["lab-2"], "5a5a")[0]
    info = owned.do("look", release="", free_share=None)
    assert (info["receipt"]["release"], info["manifest"], info["missing"], info["blocked"]) == ("4f0c", {}, [], "")


def test_look_names_what_a_release_lacks_and_has_its_weights(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert owned.do("look", release="5a5a")["missing"] == [f"{owned.folder}/releases/5a5a/compose.yaml is missing"]
    folder = owned.put_release("4f0c", model="/m", drafter="/draft")
    monkeypatch.setattr(Node, "load_record", lambda _self, _name: {"agreed": {"a": [3, "x", 1]}})
    found = owned.do("look", release="4f0c")
    assert found["missing"] == ["the image sha256:1111 of release 4f0c is not available"]
    assert found["weights"]["files"] == {"a": [-1, ""], "draft/a": [-1, ""]}
    (folder / "release.json").write_text("{")
    assert owned.do("look", release="4f0c")["missing"] == [f"{folder}/release.json is missing or not valid"]
    assert owned.do("look")["missing"] == []


def test_an_unknown_setting_of_the_watch_does_not_end_the_agent(tmp_path: Path) -> None:
    config = {"group": "pair1", "rank": 0, "hosts": ["spark-1"], "directory": str(tmp_path), "watch": {"later": 5, "head_seconds": 1}}
    assert RankService(config).sampler.settings["restarts"] == 5


def test_a_slice_has_no_known_secret_in_any_form(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (owned.put_release("4f0c") / "secrets.env").write_text("VLLM_API_KEY='open \"sesame'\n")
    text = b'a \xff open "sesame, {"x": "open \\"sesame"}, open+%22sesame\n'
    monkeypatch.setattr(look, "take_slice", lambda **_arguments: {"log": base64.b64encode(text).decode()})
    assert base64.b64decode(owned.do("slice", container=CONTAINER)["log"]) == b'a \xff ********, {"x": "********"}, ********\n'


def test_an_exception_becomes_a_reply_without_secrets(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    (owned.put_release("4f0c") / "secrets.env").write_text("VLLM_API_KEY='open sesame'\n")

    def fail(**_arguments: Any) -> dict[str, Any]:
        raise ValueError("bad value 'open sesame', token=abcdefgh1234")

    monkeypatch.setattr(look, "take_slice", fail)
    assert owned.ask("slice", container=CONTAINER) == {"ok": False, "error": "ValueError: bad value ********, token=********", "kind": "failed"}


def test_a_probe_takes_the_key_of_the_release(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[dict[str, Any]] = []
    monkeypatch.setattr(api_probe, "run", lambda arguments: passed.append(arguments) or {})  # type: ignore[func-returns-value]
    folder = owned.put_release("4f0c")
    owned.do("probe", release="4f0c", url="http://127.0.0.1:8000", requests=[{"prompt": "x"}], timeout=3, env_file="/etc/shadow")
    places = [str(folder / "secrets.env"), str(owned.folder / "api_key")]
    assert passed == [{"url": "http://127.0.0.1:8000", "requests": [{"prompt": "x"}], "timeout": 3, "env_file": places}]
    assert api_probe.read_key(places) == ""
    (owned.folder / "api_key").write_text("VLLM_API_KEY=made\n")
    (folder / "secrets.env").write_text("HF_TOKEN=x\n")
    assert api_probe.read_key(places) == "made"
    (folder / "secrets.env").write_text("VLLM_API_KEY='of the inventory'\n")
    assert api_probe.read_key(places) == "of the inventory"


# The memory of a start.


def node_files(machine: Machine) -> Path:
    """Write the kernel files of a node, and return their folder."""
    vm = Path(machine.root) / "proc/sys/vm"
    vm.mkdir(parents=True)
    for name in ("drop_caches", "compact_memory"):
        (vm / name).write_text("")
    (Path(machine.root) / "proc/meminfo").write_text("MemTotal: 104857600 kB\nMemFree: 10485760 kB\nMemAvailable: 94371840 kB\nCached: 83886080 kB\n")
    return vm


def memory_of(total: int, free: int, available: int) -> dict[str, int]:
    return {"total_kib": total << 20, "free_kib": free << 20, "available_kib": available << 20}


def test_free_memory_counts_for_a_start_once_the_page_cache_was_dropped(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_api, "memory_of", lambda _text: memory_of(100, 10, 90))
    vm = node_files(owned)
    assert owned.do("look", free_share=0.7, free_only=True)["blocked"] == ""  # nothing was dropped yet
    assert owned.do("reclaim") == {"note": ""}
    assert ((vm / "drop_caches").read_text(), (vm / "compact_memory").read_text()) == ("3\n", "1\n")
    blocked = owned.do("look", free_share=0.7, free_only=True)["blocked"]
    held = "MemFree 10.0 GiB, page cache 80.0 GiB, shared memory 0.0 GiB"
    assert blocked == f"10.0 GiB of 100.0 GiB of memory are free ({held}) and 70.0 GiB are wanted before a start"
    assert owned.do("look", free_share=0.7)["blocked"] == ""  # the watch waits for what a drop can free


def test_a_node_whose_page_cache_cannot_be_dropped_waits_for_available_memory(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(docker_api, "memory_of", lambda _text: memory_of(100, 10, 90))
    vm = node_files(owned)
    assert owned.do("reclaim") == {"note": ""}
    (vm / "drop_caches").unlink()
    (vm / "drop_caches").mkdir()
    note = owned.do("reclaim")["note"]
    assert note.startswith(f"The page cache cannot be dropped: {vm}/drop_caches: Is a directory. It is not dropped before the start, and MemAvailable")
    assert owned.do("look", free_share=0.7, free_only=True)["blocked"] == ""
    assert "90.0 GiB of 100.0 GiB of memory are available (" in owned.do("look", free_share=0.95, free_only=True)["blocked"]


# The phase of the disks.


def test_a_phase_without_a_plan_or_with_a_failure_is_a_note(owned: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "there is no plan to switch by" in owned.do("phase", phase="load", seconds=2700.0)["note"]
    record = Path(owned.root) / "var/lib/gb10-cluster/readahead.json"
    record.parent.mkdir(parents=True)
    plan = {"devices": [], "load_kb": 8, "steady_kb": 128, "guard": False}
    record.write_text(json.dumps({"plan": plan}))
    note = owned.do("phase", phase="load", seconds=2700)["note"]
    assert note.startswith("The load phase of the disks has not begun: HostError: systemd-run failed (rc 127")
    record.write_text("{")
    assert "is not a JSON object" in owned.do("phase", phase="steady")["note"]


# Commands.


def test_the_docker_cli_runs_in_the_folder_of_the_release_and_uses_the_same_engine(owned: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bin").mkdir()
    script = tmp_path / "bin/docker"
    script.write_text('#!/bin/sh\necho "$(pwd) $DOCKER_HOST $*" >&2; exit 1\n')
    script.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}/bin:{os.environ['PATH']}")
    owned.run = run_command  # type: ignore[method-assign]
    owned.service = owned.new()
    folder = owned.put_release("4f0c")
    error = owned.do("start", release="4f0c")["error"]
    assert error == f"{folder} unix://{owned.socket} compose --project-name gb10-pair1 up --detach --pull never"


def test_a_command_that_does_not_end_is_ended_with_its_children(tmp_path: Path) -> None:
    start = time.monotonic()
    script = f"sleep 60 & echo $! > {tmp_path}/pid; wait"
    assert run_command(["sh", "-c", script], timeout=0.5) == (124, "", "sh -c did not end within 0.5 s.")
    assert time.monotonic() - start < 5
    child = Path("/proc") / (tmp_path / "pid").read_text().strip() / "cmdline"
    while child.exists() and child.read_text():  # empty for a zombie
        assert time.monotonic() - start < 10
        time.sleep(0.05)


@pytest.mark.parametrize(("own", "expected"), [("-900", "0"), ("0", "300"), ("200", "300")])
def test_a_command_does_not_inherit_the_agents_protection_from_the_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, own: str, expected: str) -> None:
    opened = open
    (tmp_path / "own").write_text(own)
    monkeypatch.setattr("builtins.open", lambda path, *more, **words: opened(tmp_path / "own" if path == "/proc/self/oom_score_adj" else path, *more, **words))
    with subprocess.Popen(["sleep", "60"]) as child:
        score = Path(f"/proc/{child.pid}/oom_score_adj")
        score.write_text("300")
        bounded._leave_to_the_kernel(child.pid)
        found = score.read_text().strip()
        child.kill()
    assert found == expected
    assert run_command(["true"])[0] == 0


def test_halt_kills_if_the_head_asks_for_it(owned: Machine) -> None:
    owned.put_release("new")
    owned.put_container("new")
    owned.do("halt", kill=True)
    assert f"docker kill {CONTAINER}" in owned.commands
    assert not any(line.startswith("docker stop") for line in owned.commands)


def test_the_head_counts_as_present_while_its_start_or_stop_is_under_way(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    now = 100.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    assert machine.service.asked_at < 0
    machine.service.handle({"verb": "hello", "v": 1})
    now = 150.0
    assert machine.service.asked_at == 100.0
    with machine.service._work:
        assert machine.service.asked_at == 150.0


def test_watch_returns_hello_and_the_last_sample(machine: Machine) -> None:
    machine.put_release("new", port=9000)
    machine.put_container("new")
    machine.service.sampler.take()
    found = machine.do("watch", release="new", known=0, wait=0)
    assert (found["hello"]["rank"], found["sample"]["url"]) == (1, "http://127.0.0.1:9000")
    assert [each["name"] for each in found["sample"]["containers"]] == [CONTAINER]


def test_memory_of_the_last_half_hour_is_in_the_evidence_and_for_local_root_only(machine: Machine) -> None:
    machine.put_release("new")
    machine.put_container("new")
    for seconds in (0, 2, 5):
        machine.now = 1_795_000_000 + seconds
        machine.service.history.add({"memory": {"free_kib": 1024, "available_kib": 2048, "swap_free_kib": 0}})
    expected = "1795000000 1 2 0;1795000005 1 2 0"
    assert machine.service.handle({"verb": "memory", "v": 1}, local=True)["result"] == {"recent": expected, "day": "1795000000 1 2 0"}
    assert "does not support the verb" in machine.service.handle({"verb": "memory", "v": 1})["error"]
    path = machine.service._evidence("crash", True)[0]
    text = Path(path).read_text(encoding="utf-8")
    assert f"== memory of the last half hour: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB\n{expected}\n" in text
    assert "== memory of the last day: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB\n1795000000 1 2 0\n" in text


def test_engine_without_an_answer_has_no_tokens(machine: Machine) -> None:
    machine.put_release("new", port=1)
    assert machine.do("engine", release="new") == {"status": 0, "running": 0, "waiting": 0, "tokens": None}
