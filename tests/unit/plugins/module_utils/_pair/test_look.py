"""What one rank shows: what its node has recorded of its group, with damaged files too."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._pair import files, look, protocol
from unit.fixtures.docker.engine import serving

RECEIPT = {"release": "4f0c", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "checks": [{"name": "x"}], "ranks": [{"rank": 0, "facts": {}}]}
BOOT = ("vLLM API server version 0.25.1", "Starting to load model /models/m...")
BRIEF = {"release": "4f0c", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "ranks": [{"rank": 0}], "models": []}


@pytest.fixture(autouse=True)
def nowhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """This machine may have an agent or a bandwidth receipt of its own."""

    def missing(*_words: object, **_more: object) -> None:
        raise protocol.AgentMissing("no socket")

    monkeypatch.setattr(look, "BANDWIDTH_RECEIPT", tmp_path / "bandwidth.json")
    monkeypatch.setattr(protocol, "call", missing)


def put(folder: Path, name: str, content: object) -> None:
    path = folder / "pair1" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def read(folder: Path) -> dict[str, Any]:
    return look.records(str(folder / "pair1"))


def test_full_file_systems_are_those_of_the_group_and_of_the_data_of_the_docker_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = tmp_path / "data"
    data.mkdir()
    free = {str(tmp_path): 2**20, str(data): 0}
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=free[path]))
    with serving(tmp_path / "docker.sock") as engine:
        engine.info["DockerRootDir"] = str(data)
        assert look.full(str(tmp_path), str(tmp_path / "docker.sock")) == [*free]
        free.update(dict.fromkeys(free, 2**30))
        assert look.full(str(tmp_path), str(tmp_path / "docker.sock")) == []
    assert look.full(str(tmp_path), str(tmp_path / "none.sock")) == [], "without an engine too"


def test_an_api_that_refuses_the_key_names_the_file_that_is_missing_or_differs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(api_probe.LivenessWatch, "check", lambda _watch: {"http_status": 401, "text": "HTTP 401"})
    assert look.alive(str(tmp_path), {"url": "http://127.0.0.1:9"})["text"] == "HTTP 401: the file of the API key is missing on the head"
    (tmp_path / "api_key").write_text("VLLM_API_KEY=other\n", encoding="utf-8")
    assert look.alive(str(tmp_path), {"url": "http://127.0.0.1:9"})["text"].endswith("the container has another API key than the files on the head")


def test_a_head_that_lost_its_folder_is_asked_with_the_key_of_its_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    keys: list[str] = []
    monkeypatch.setattr(api_probe.LivenessWatch, "__init__", lambda _watch, ask: keys.append(ask.key))
    monkeypatch.setattr(api_probe.LivenessWatch, "check", lambda _watch: {"http_status": 200})
    monkeypatch.setattr(files, "_environments", lambda _group: [["A=b", "VLLM_API_KEY=the-key-of-the-container"]])
    look.alive(str(tmp_path / "pair1"), {"url": "http://127.0.0.1:9"})
    put(tmp_path, "releases/4f0c/compose.yaml", "services: {}\n")
    look.alive(str(tmp_path / "pair1"), {"url": "http://127.0.0.1:9"})
    assert keys == ["the-key-of-the-container", ""], "who removes the file alone wants a new key"


@pytest.mark.parametrize(("given", "watts"), [({}, 119.4), ({"idle_power_w": None}, 119.4), ({"idle_power_w": 100.0}, 100.0)])
def test_the_idle_power_is_that_of_the_inventory_or_what_the_watch_has_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: dict[str, Any], watts: float
) -> None:
    put(tmp_path, "agent/watch.json", {"idle_power_w": 119.4})
    monkeypatch.setattr(api_probe.LivenessWatch, "check", lambda watch: {"http_status": 200, "idle_power_w": watch.idle})
    assert look.alive(str(tmp_path / "pair1"), {"url": "http://127.0.0.1:9", **given})["idle_power_w"] == watts


@pytest.mark.parametrize(("running", "state"), [(True, "starting"), (False, "failed")])
def test_the_boot_log_is_that_of_the_containers_present_run_with_both_streams(running: bool, state: str, tmp_path: Path) -> None:
    """A weak line alone decides nothing while the process runs."""
    with serving(tmp_path / "docker.sock") as engine:
        engine.logs["c1"] = [("2026-11-20T20:00:00Z", b"torch.OutOfMemoryError: CUDA out of memory of the first run\n", 2)]
        engine.logs["c1"] += [("2026-11-20T21:12:20Z", f"(EngineCore pid=9) INFO 11-20 21:00:00 [core.py:1] {text}\n".encode(), 1) for text in BOOT]
        engine.logs["c1"] += [("2026-11-20T21:12:30Z", b"ModuleNotFoundError: No module named 'an_optional_part'\n", 2)]
        container = {"id": "c1", "name": "x", "running": running, "exit_code": 0 if running else 1, "oom_killed": False, "started_at": "2026-11-20T21:12:19.5Z"}
        found = look.boot_log([container], str(tmp_path / "docker.sock"))
    assert (found["state"], bool(found["suspicion"])) == (state, running)


def test_an_engine_that_refuses_a_later_question_is_a_fault_of_the_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Docker refuses the name of an image that is not valid, for example."""

    def refuse(*_words: object) -> None:
        raise DockerError("invalid reference format")

    monkeypatch.setattr(node, "image_of", refuse)
    with serving(tmp_path / "docker.sock"):
        found = look.read("pair1", str(tmp_path), Node(str(tmp_path)), image="A:B:C", engine=str(tmp_path / "docker.sock"))
    assert (found["engine_error"], found["image"], found["others"]) == ("invalid reference format", node.NO_IMAGE, [])


def test_node_without_anything_returns_empty_records(tmp_path: Path) -> None:
    found = read(tmp_path / "none")
    assert (found["receipts"], found["events"], found["bandwidth"]) == ([], [], {})
    assert found["memory"] == {"recent": "", "day": "", "source": ""}


def test_receipts_of_releases_and_of_a_failed_start_are_returned_without_their_facts(tmp_path: Path) -> None:
    put(tmp_path, "releases/4f0c/compose.yaml", "services: {}\n")
    put(tmp_path, "releases/4f0c/receipt.json", RECEIPT)
    put(tmp_path, "releases/9b1e/compose.yaml", "services: {}\n")
    put(tmp_path, "agent/outcome.json", {"verdict": {"receipt": {**RECEIPT, "release": "9b1e", "passed": False}}})
    assert read(tmp_path)["receipts"] == [BRIEF, {**BRIEF, "release": "9b1e", "passed": False}]
    put(tmp_path, "agent/outcome.json", {"verdict": {"receipt": RECEIPT}})
    assert read(tmp_path)["receipts"] == [BRIEF], "the receipt of the current release is not listed twice"


def test_newest_events_are_returned(tmp_path: Path) -> None:
    put(tmp_path, "agent/events.jsonl", "".join(json.dumps({"n": n, "kind": "step", "text": str(n)}) + "\n" for n in range(300)))
    assert [each["n"] for each in read(tmp_path)["events"]] == list(range(100, 300))


def test_memory_of_an_agent_that_does_not_answer_is_read_from_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(tmp_path, "agent/memory.json", {"day": "5 1 2 3"})
    assert read(tmp_path)["memory"] == {"recent": "", "day": "5 1 2 3", "source": "file"}
    monkeypatch.setattr(protocol, "call", lambda *_words, **_more: {"recent": "9 1 2 3", "day": "5 1 2 3"})
    assert read(tmp_path)["memory"] == {"recent": "9 1 2 3", "day": "5 1 2 3", "source": "agent"}
