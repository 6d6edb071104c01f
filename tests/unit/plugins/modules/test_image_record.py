"""Removed images, in check mode and without it."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images
from ansible_collections.gb10.cluster.plugins.modules import image_record
from module_run import run_module


@pytest.mark.parametrize("check", [True, False], ids=["check mode", "for real"])
def test_image_in_use_stays(monkeypatch: pytest.MonkeyPatch, check: bool) -> None:
    used, free, broken = (f"sha256:{letter * 64}" for letter in "abc")
    asked: list[str] = []

    def call(_method: str, path: str, _socket: str) -> tuple[int, str]:
        asked.append(path)
        if path.endswith(used):
            return 409, "conflict: unable to delete aaaa (must be forced) - image is being used by running container 1"
        return (500, "") if path.endswith(broken) else (200, "")

    containers: list[dict[str, Any]] = [{"ImageID": used, "Names": ["/gb10-pair1-rank0"]}]
    monkeypatch.setattr(images, "inspect_image", lambda _reference, _socket: {"RepoTags": []})
    monkeypatch.setattr(images, "call", call)
    monkeypatch.setattr(docker_api, "list_containers", lambda _labels, _socket: containers)
    imported = [{"id": used, "reference": "vllm:1"}, {"id": free, "reference": "vllm:2"}]
    removed, left = image_record.drop(imported, [used, free], "/no/socket", check)
    assert removed == [free]
    assert [text.split(":")[1] for text in left] == ["1 (aaaaaaaaaaaa) stays"]
    assert "gb10-pair1-rank0" in left[0]
    assert bool(asked) is not check
    if not check:
        assert [item["id"] for item in imported] == [used]
        assert image_record.drop([{"id": broken, "reference": "vllm:3"}], [broken], "/no/socket", False) == (
            [], ["vllm:3 (cccccccccccc) stays: the Docker Engine answers HTTP 500"],
        )  # fmt: skip


@pytest.mark.parametrize("check", [True, False], ids=["check mode", "for real"])
def test_another_image_removes_the_old_one(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: bool) -> None:
    """Under the image's name is the old one as long as the new one has not come."""
    old, new = (f"sha256:{letter * 64}" for letter in "ab")
    record = {"imported": [{"id": old, "reference": "vllm:1", "at": 1}], "served": {"pair1": {"id": old, "fingerprint": "f1"}}}
    monkeypatch.setattr(Node, "load_record", lambda _node, _name: record)
    monkeypatch.setattr(Node, "save_record", lambda _node, _name, _data: None)
    monkeypatch.setattr(images, "info", lambda _reference, _socket: {"exists": True, "id": old if check else new, "fingerprint": "f1"})
    monkeypatch.setattr(images, "inspect_image", lambda _reference, _socket: {"RepoTags": []})
    monkeypatch.setattr(images, "call", lambda *_arguments: (200, ""))
    monkeypatch.setattr(docker_api, "list_containers", lambda *_arguments: [])
    out = run_module(capsys, image_record, group="pair1", reference="vllm:1", imported=True, keep=1, _ansible_check_mode=check)
    assert (out["changed"], out["removed"], out["left"]) == (True, [old], [])
