"""What a rank has on its node: a release's files by mode and hash, and what blocks a start."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import images as layers_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node import node
from ansible_collections.gb10.cluster.plugins.modules import vllm_rank_info as module
from module_run import run_module
from unit.fixtures.host.tree import Tree

MEMORY = {"total_kib": 121 << 20, "available_kib": 100 << 20, "free_kib": 90 << 20}


def test_a_release_is_known_by_mode_and_content_of_its_files(tmp_path: Path) -> None:
    Tree(tmp_path).put("releases/4f0c/compose.yaml", "services: {}\n")
    (tmp_path / "releases/4f0c/compose.yaml").chmod(0o640)
    (release,) = node.releases_in(str(tmp_path))
    assert release["files"] == {"compose.yaml": "0640 " + hashlib.sha256(b"services: {}\n").hexdigest(), "release.json": ""}
    (tmp_path / "releases/4f0c/compose.yaml").chmod(0o666)
    assert node.releases_in(str(tmp_path))[0]["files"]["compose.yaml"].startswith("0666 ")


@pytest.mark.parametrize(
    ("receipt", "tokens"),
    [('{"pool": {"tokens": 1766005}}', 1766005), ("{}", 0), ('{"pool": 5}', 0), ('{"pool": {"tokens": true}}', 0), ('{"pool": {"tokens": "x"}}', 0), ("", 0)],
)
def test_a_release_has_its_profile_and_the_pool_of_its_last_boot(tmp_path: Path, receipt: str, tokens: int) -> None:
    for name, text in (("compose.yaml", "services: {}\n"), ("release.json", '{"profile": "b12x-fp8-1m"}'), ("receipt.json", receipt)):
        Tree(tmp_path).put(f"releases/4f0c/{name}", text)
    (release,) = node.releases_in(str(tmp_path))
    assert (release["profile"], release["pool_tokens"]) == ("b12x-fp8-1m", tokens)


@pytest.mark.parametrize(
    ("containers", "memory", "free_only", "message"),
    [
        ([], MEMORY, False, ""),
        ([{"name": "gb10-pair1-rank0", "running": False}], MEMORY, False, ""),
        ([{"name": "gb10-pair1-rank0", "running": True}], MEMORY, True, "gb10-pair1-rank0 still runs"),
        ([], MEMORY | {"available_kib": 40 << 20}, False, "40.0 GiB of 121.0 GiB of memory are available and 84.7 GiB are wanted before a start"),
        ([], MEMORY | {"free_kib": 40 << 20}, True, "40.0 GiB of 121.0 GiB of memory are free and 84.7 GiB are wanted before a start"),
    ],
)
def test_reports_what_blocks_a_start(containers: list[dict[str, Any]], memory: dict[str, int], free_only: bool, message: str, tmp_path: Path) -> None:
    assert node.not_free(containers, memory, 0.7, free_only, Node(str(tmp_path))) == message


def test_the_receipt_of_the_running_release_is_read_where_the_link_is_lost(tmp_path: Path) -> None:
    Tree(tmp_path).put("releases/4f0c/receipt.json", '{"release": "4f0c", "passed": true}')
    assert node.receipt_of(str(tmp_path), ["gone", "", "4f0c"]) == {"release": "4f0c", "passed": True}
    assert node.receipt_of(str(tmp_path), ["gone", ""]) == {}


def test_an_image_is_known_by_its_content_with_any_id(monkeypatch: pytest.MonkeyPatch) -> None:
    config = {"RootFS": {"Layers": ["sha256:1"]}, "Config": {"Cmd": ["vllm"]}, "Architecture": "arm64", "Os": "linux"}
    images = {"vllm:1": {"Id": "sha256:classic", **config}, "vllm:2": {"Id": "sha256:containerd", **config}, "vllm:3": {"Id": "sha256:3", **config, "Os": "x"}}
    monkeypatch.setattr(layers_engine, "inspect_image", lambda name, _engine: images.get(name))
    one, two, three = (node.image_of(name, "") for name in images)
    assert one["fingerprint"] == two["fingerprint"] != three["fingerprint"]
    kept: list[dict[str, Any]] = [{"image": {"id": "vllm:1"}}, {"image": {"id": "sha256:pruned"}}, {"image": {}}]
    containers: list[dict[str, Any]] = [{"image_id": "vllm:2"}, {"image_id": "sha256:pruned"}]
    node.bind(kept, containers, "")
    assert [entry["image"].get("gone") for entry in kept] == [False, True, None]
    assert [entry["image_fingerprint"] for entry in containers] == [two["fingerprint"], ""]


def test_weights_are_what_all_ranks_agreed_on_with_the_sizes_of_the_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    agreed = {"a": [2, "aaaa", 1], "b": [2, "bbbb", 1], "c": [2, "cccc", 1]}
    monkeypatch.setattr(Node, "load_record", lambda _self, _name: {"agreed": agreed})
    (tmp_path / "a").write_text("aa")
    (tmp_path / "b").write_text("b")
    found = node.weights_of(str(tmp_path))
    assert found["files"] == {"a": [2, "aaaa"], "b": [1, ""], "c": [-1, ""]}
    (tmp_path / "b").write_text("bb")
    assert node.weights_of(str(tmp_path))["proof"] != found["proof"]
    assert node.weights_of("") == {}

    def record(_self: Node, name: str) -> dict[str, Any]:
        return {"agreed": agreed if "-draft-" in name else {"a": [2, "aaaa", 1]}}

    monkeypatch.setattr(Node, "load_record", record)
    Tree(tmp_path).put("draft/b", "bb")
    both = node.weights_of(str(tmp_path), str(tmp_path / "draft"))
    assert both["files"] == {"a": [2, "aaaa"], "draft/a": [-1, ""], "draft/b": [2, "bbbb"], "draft/c": [-1, ""]}
    assert both["folders"] == [str(tmp_path), str(tmp_path / "draft")]


def proc(root: Path, pid: int, parent: int, state: str, comm: str, command: str = "") -> None:
    (root / str(pid)).mkdir(parents=True)
    (root / str(pid) / "stat").write_text(f"{pid} ({comm}) {state} {parent} 1 1 0 -1 0 9 0 0 0 30 70 0 0")  # 30 and 70 ticks of CPU time
    (root / str(pid) / "cmdline").write_bytes(command.replace(" ", "\0").encode())


def rank(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "gb10-pair1-rank1", "running": True, "status": "running", "pid": 100, "started_at": "2026-11-22T10:00:00.5Z", **more}]


PASSED = {"passed": True, "time": "2026-11-22T10:01:00Z"}


def test_engine_processes_of_a_container_and_the_one_that_is_stopped(tmp_path: Path) -> None:
    proc(tmp_path, 100, 10, "S", "vllm", "python3 vllm serve")
    proc(tmp_path, 101, 100, "T", "VLLM::Worker_TP", "VLLM::Worker_TP1")
    proc(tmp_path, 300, 1, "T", "vllm", "vllm serve of another container")
    (tmp_path / "self").mkdir()
    (tmp_path / "400").mkdir()  # ended while it was read
    stopped = {"count": 2, "fault": "the engine process is stopped (PID 101, VLLM::Worker_TP1)", "cpu_seconds": 2.0}
    assert node.look_at_processes(rank(), {}, str(tmp_path)) == stopped
    assert node.look_at_processes(rank(running=False), {}, str(tmp_path)) == {"count": 0, "fault": "", "cpu_seconds": 0.0}
    assert node.look_at_processes([], PASSED, str(tmp_path)) == {"count": 0, "fault": "", "cpu_seconds": 0.0}


def test_a_paused_container_is_a_fault(tmp_path: Path) -> None:
    proc(tmp_path, 100, 10, "D", "vllm", "vllm serve")
    assert node.look_at_processes(rank(status="paused"), {}, str(tmp_path))["fault"] == "the container gb10-pair1-rank1 is paused"


@pytest.mark.parametrize(
    ("receipt", "gone"), [(PASSED, True), ({}, False), (PASSED | {"passed": False}, False), (PASSED | {"time": "2026-11-22T09:00:00Z"}, False)]
)
def test_an_engine_is_gone_only_if_the_gate_judged_this_container(tmp_path: Path, receipt: dict[str, Any], gone: bool) -> None:
    proc(tmp_path, 100, 10, "S", "vllm", "vllm serve")
    assert node.look_at_processes(rank(), receipt, str(tmp_path))["fault"].startswith("the engine process is gone") is gone


SMI = {"query-gpu": "GPU-1, NVIDIA H100 80GB HBM3, 81559, 480, 14000\n", "query-compute-apps": "GPU-1, 101, 40000\nGPU-1, 300, 25600\n"}


def smi(found: dict[str, str]) -> Any:
    """Return what runs nvidia-smi; without an output it fails."""

    def run(words: list[str], **_more: Any) -> tuple[int, str, str]:
        assert words[0] == "nvidia-smi"
        text = found.get(words[1].lstrip("-").partition("=")[0], "")
        return (0 if text else 9), text, ""

    return run


@pytest.mark.parametrize(
    ("found", "running", "memory"),
    [
        (SMI, False, (81079, 12935, None)),
        (SMI, True, (81079, 12935, 40000)),
        ({**SMI, "query-compute-apps": ""}, True, (81079, 12935, None)),
        ({"query-gpu": "GPU-1, NVIDIA GB10, [N/A], [N/A], [N/A]\n"}, True, None),
        ({}, True, None),
    ],
)
def test_memory_of_a_gpu_of_its_own_with_what_the_engine_of_the_group_holds(
    tmp_path: Path, found: dict[str, str], running: bool, memory: tuple[int, int, int | None] | None
) -> None:
    proc(tmp_path, 100, 10, "S", "vllm", "python3 vllm serve")
    proc(tmp_path, 101, 100, "S", "VLLM::Worker_TP", "VLLM::Worker_TP1")
    proc(tmp_path, 300, 1, "S", "python3", "a neighbour")
    names = ("gpu_total_kib", "gpu_free_kib", "gpu_engine_kib")
    expected = {name: mib * 1024 for name, mib in zip(names, memory or (), strict=False) if mib is not None}
    assert node.gpu_memory(rank(running=running), smi(found), str(tmp_path)) == expected


def run(capsys: pytest.CaptureFixture[str], folder: Path, **more: str) -> dict[str, Any]:
    """Return what the module returns of a node without a Docker Engine."""
    return run_module(capsys, module, group="pair1", directory=str(folder), docker_socket=str(folder / "none.sock"), **more)


def test_the_mark_of_a_stop_on_request_is_read(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    assert run(capsys, tmp_path)["stopped"] == ""
    Tree(tmp_path).put("pair1/stopped", "2026-11-22T20:15:00Z\n")
    assert run(capsys, tmp_path)["stopped"] == "2026-11-22T20:15:00Z"


def test_weights_that_the_release_was_not_judged_with_are_a_warning(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receipt = '{"release": "4f0c", "passed": true, "weights": {"proof": "p", "files": {"a.safetensors": [3, "x"]}}}'
    Tree(tmp_path).put("pair1/releases/4f0c/receipt.json", receipt)
    (tmp_path / "pair1/current").symlink_to("releases/4f0c")
    (tmp_path / "a.safetensors").write_text("aa")
    monkeypatch.setattr(Node, "load_record", lambda _self, _name: {"agreed": {"a.safetensors": [2, "y", 1]}})
    seen: list[str] = []
    monkeypatch.setattr(AnsibleModule, "warn", lambda _self, text: seen.append(text))
    assert run(capsys, tmp_path, model=str(tmp_path))["weights_differ"]
    assert f"the weights in {tmp_path} are not those that release 4f0c was judged with: a.safetensors" in seen[0]
