"""Emptied caches and removed images, in check mode and without it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.modules import image_record


def test_cache_is_emptied_and_stays(tmp_path: Path) -> None:
    cache = tmp_path / "store" / "vllm-cache"
    (cache / "deep").mkdir(parents=True)
    (cache / "deep" / "k.so").write_text("x")
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "keep").write_text("x")
    (cache / "link").symlink_to(outside)
    store = str(tmp_path / "store")
    assert image_record.wipe([str(cache)], store, check=True) == [str(cache)]
    assert (cache / "deep" / "k.so").exists()
    assert image_record.wipe([str(cache)], store, check=False) == [str(cache)]
    assert list(cache.iterdir()) == []
    assert (outside / "keep").exists(), "a link is removed, not followed"
    assert image_record.wipe([str(cache), str(tmp_path / "store" / "none")], store, check=False) == []


@pytest.mark.parametrize("where", ["store", "outside", "store/link", "store/../outside"])
def test_caches_outside_the_store_fail(tmp_path: Path, where: str) -> None:
    (tmp_path / "store").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "keep").write_text("x")
    (tmp_path / "store" / "link").symlink_to(tmp_path / "outside")
    with pytest.raises(ImageError, match="outside the model store"):
        image_record.wipe([str(tmp_path / where)], str(tmp_path / "store"), check=False)
    assert (tmp_path / "outside" / "keep").exists()


def test_store_must_not_be_the_root_folder() -> None:
    with pytest.raises(ImageError, match="outside the model store"):
        image_record.check_cache("/srv/x", "/")


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
    monkeypatch.setattr(client, "list_containers", lambda _labels, _socket: containers)
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
def test_another_image_empties_caches_and_removes_the_old_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], check: bool
) -> None:
    """Under the image's name is the old one as long as the new one has not come."""
    old, new = (f"sha256:{letter * 64}" for letter in "ab")
    (tmp_path / "store" / "cache").mkdir(parents=True)
    (tmp_path / "store" / "cache" / "k.so").write_text("x")
    record = {"imported": [{"id": old, "reference": "vllm:1", "at": 1}], "served": {"pair1": {"id": old, "fingerprint": "f1"}}}
    monkeypatch.setattr(Node, "load_record", lambda _node, _name: record)
    monkeypatch.setattr(Node, "save_record", lambda _node, _name, _data: None)
    monkeypatch.setattr(images, "info", lambda _reference, _socket: {"exists": True, "id": old if check else new, "fingerprint": "f1"})
    monkeypatch.setattr(images, "inspect_image", lambda _reference, _socket: {"RepoTags": []})
    monkeypatch.setattr(images, "call", lambda *_arguments: (200, ""))
    monkeypatch.setattr(client, "list_containers", lambda *_arguments: [])
    cache = str(tmp_path / "store" / "cache")
    arguments = {"group": "pair1", "reference": "vllm:1", "imported": True, "wipe": True, "caches": [cache], "store": str(tmp_path / "store"), "keep": 1}
    with patch_module_args({**arguments, "_ansible_check_mode": check}), pytest.raises(SystemExit):
        image_record.main()
    out = json.loads(capsys.readouterr().out)
    assert (out["changed"], out["wiped"], out["removed"], out["left"]) == (True, [cache], [old], [])
    assert (tmp_path / "store" / "cache" / "k.so").exists() is check
