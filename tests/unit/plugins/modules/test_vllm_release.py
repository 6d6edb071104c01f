"""A release on a node: what is written, what is left alone, what a diff shows, and the sentence where it cannot be written."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import releases
from ansible_collections.gb10.cluster.plugins.modules import vllm_release
from module_run import run_module

FILES = {"compose.yaml": "services: {}\n", "release.json": '{"release": "4f0c"}\n'}


def run(capsys: pytest.CaptureFixture[str], folder: Path, **arguments: Any) -> dict[str, Any]:
    return run_module(capsys, vllm_release, **{"directory": str(folder), "release": "4f0c", **arguments})


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_a_release_is_written_once(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    folder = tmp_path / "pair1"
    out = run(capsys, folder, files=FILES, secrets="VLLM_API_KEY=hush\n")
    release = folder / "releases/4f0c"
    assert out["changed"]
    assert out["path"] == str(release)
    assert {path.name: path.read_text() for path in release.iterdir()} == {**FILES, "secrets.env": "VLLM_API_KEY=hush\n"}
    assert [mode(release / name) for name in (".", "compose.yaml", "release.json", "secrets.env")] == [0o750, 0o640, 0o640, 0o600]
    assert "hush" not in json.dumps(out)
    again = run(capsys, folder, files=FILES, secrets="VLLM_API_KEY=hush\n")
    assert (again["changed"], again["diff"]) == (False, [])


def test_restores_a_changed_mode_or_text(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, tmp_path, files=FILES)
    release = tmp_path / "releases/4f0c"
    (release / "compose.yaml").chmod(0o666)
    (release / "release.json").write_text("{}")
    out = run(capsys, tmp_path, files=FILES)
    assert [(entry["before"], entry["after"]) for entry in out["diff"]] == [("{}", FILES["release.json"]), ("mode 0666\n", "mode 0640\n")]
    assert (release / "release.json").read_text() == FILES["release.json"]
    assert mode(release / "compose.yaml") == 0o640


def test_check_mode_predicts_the_change_and_writes_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wanted = {"files": FILES, "secrets": "A=b\n", "receipt": {"passed": True}, "current": True}
    predicted = run(capsys, tmp_path, **wanted, _ansible_check_mode=True)
    assert list(tmp_path.iterdir()) == []
    done = run(capsys, tmp_path, **wanted)
    assert predicted["changed"]
    assert done["changed"]
    assert predicted["diff"] == done["diff"]


def test_the_next_release_is_compared_with_the_current_one_without_what_follows_from_the_change(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    def files(release: str, context: int) -> dict[str, str]:
        made = {"caches": [f"/cache-{context}"], "inputs": f"i{context}", "release": release, "settings": {"max-model-len": context}}
        return {"compose.yaml": f"labels: {release}\ncommand: {context}\n", "release.json": json.dumps(made)}

    run(capsys, tmp_path, release="1a2b", files=files("1a2b", 4096))
    (tmp_path / "current").symlink_to("releases/1a2b")
    found = {Path(each["before_header"]).name: each for each in run(capsys, tmp_path, files=files("4f0c", 2048))["diff"]}
    assert (found["compose.yaml"]["before"], found["compose.yaml"]["after"]) == ("labels: 4f0c\ncommand: 4096\n", "labels: 4f0c\ncommand: 2048\n")
    assert [json.loads(found["release.json"][side]) for side in ("before", "after")] == [{"settings": {"max-model-len": size}} for size in (4096, 2048)]


@pytest.mark.parametrize("lost", [None, '{"passed": tr'], ids=["absent", "cut off"])
def test_a_lost_receipt_that_is_restored_is_a_change(capsys: pytest.CaptureFixture[str], tmp_path: Path, lost: str | None) -> None:
    run(capsys, tmp_path, files=FILES)
    if lost:
        (tmp_path / "releases/4f0c/receipt.json").write_text(lost)
    out = run(capsys, tmp_path, receipt={"passed": True})
    assert out["changed"]
    assert [entry["after"] for entry in out["diff"]] == ["(receipt)\n"]
    assert json.loads((tmp_path / "releases/4f0c/receipt.json").read_text()) == {"passed": True}


def test_a_newer_receipt_is_no_change_and_current_is_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    run(capsys, tmp_path, files=FILES, receipt={"passed": True})
    assert run(capsys, tmp_path, receipt={"passed": False})["changed"] is False
    assert json.loads((tmp_path / "releases/4f0c/receipt.json").read_text()) == {"passed": False}
    (tmp_path / "current").symlink_to("releases/old")
    out = run(capsys, tmp_path, receipt={"passed": True}, current=True)
    assert out["diff"] == [
        {"before_header": str(tmp_path / "current"), "after_header": str(tmp_path / "current"), "before": "releases/old\n", "after": "releases/4f0c\n"}
    ]
    assert os.readlink(tmp_path / "current") == "releases/4f0c"
    assert json.loads((tmp_path / "current/receipt.json").read_text()) == {"passed": True}
    assert run(capsys, tmp_path, current=True)["changed"] is False


def test_error_names_what_blocks_the_path(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "releases").write_text("a file")
    out = run(capsys, tmp_path, files=FILES)
    assert out["failed"]
    assert out["msg"] == (
        f"The release 4f0c cannot be written on this node: {tmp_path}/releases/4f0c/release.json: Not a directory."
        " Free the space or remove what blocks the path, or set vllm_tp2_directory to another place."
    )


def test_missing_space_names_the_file(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    out = run(capsys, tmp_path, files=FILES)
    assert f"on this node: {tmp_path}/releases/4f0c/release.json: No space left on device" in out["msg"]
    assert not list((tmp_path / "releases/4f0c").iterdir())


def test_current_that_is_a_folder_is_left_alone(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "current").mkdir()
    out = run(capsys, tmp_path, files=FILES, current=True)
    assert out["failed"]
    assert "Is a directory" in out["msg"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["current", "releases"]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a model store, on a node whose records are below the test's folder."""
    monkeypatch.setattr(vllm_release, "Node", lambda _root: Node(str(tmp_path / "node")))
    (tmp_path / "models").mkdir()
    return tmp_path / "models"


def start(capsys: pytest.CaptureFixture[str], folder: Path, store: Path, release: str, key: str, **more: Any) -> dict[str, Any]:
    """Write a release with the cache of a key."""
    cache = str(store / f"vllm-cache-{key}")
    files = {"compose.yaml": "services: {}\n", "release.json": json.dumps({"release": release, "caches": [cache]})}
    return run(capsys, folder, **{"release": release, "files": files, "caches": [cache], "store": str(store), **more})


def names(store: Path) -> list[str]:
    return sorted(each.name for each in store.iterdir())


def test_each_key_has_a_cache_that_stays_as_long_as_a_release_uses_it(capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path) -> None:
    folder = tmp_path / "pair1"
    first = start(capsys, folder, store, "r1", "a" * 12)
    assert first["changed"]
    assert {"deep_gemm", "triton", "flashinfer"} <= set(names(store / f"vllm-cache-{'a' * 12}"))
    (store / f"vllm-cache-{'a' * 12}/triton/k.cubin").write_text("x")
    again = start(capsys, folder, store, "r1", "a" * 12)
    assert not again["changed"]
    start(capsys, folder, store, "r2", "b" * 12)
    assert names(store) == [f"vllm-cache-{'a' * 12}", f"vllm-cache-{'b' * 12}"], "r1 is kept, and a rollback finds its kernels"
    shutil.rmtree(folder / "releases/r1")
    predicted = start(capsys, folder, store, "r3", "b" * 12, _ansible_check_mode=True)
    assert f"vllm-cache-{'a' * 12}" in names(store)
    done = start(capsys, folder, store, "r3", "b" * 12)
    assert predicted["diff"] == done["diff"]
    assert names(store) == [f"vllm-cache-{'b' * 12}"]


def test_of_two_runs_at_once_the_second_waits_and_leaves_the_cache_of_the_first(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first has made its cache and not yet written its release: a cache without a release looks like one to remove."""
    folder, write = tmp_path / "pair1", releases.write_release
    (reached, tell), (go, let) = os.pipe(), os.pipe()

    def pausing(change: Any) -> None:
        os.write(tell, b"x")
        os.read(go, 1)
        write(change)

    children = [os.fork()]
    if not children[0]:
        monkeypatch.setattr(releases, "write_release", pausing)
        start(capsys, folder, store, "r1", "a" * 12)
        os._exit(0)
    os.read(reached, 1)
    children.append(os.fork())
    if not children[1]:
        start(capsys, folder, store, "r2", "b" * 12)
        os._exit(0)
    time.sleep(0.3)  # the second one is done by then, if it does not wait
    os.write(let, b"xx")
    assert [os.waitpid(child, 0)[1] for child in children] == [0, 0]
    assert names(store) == [f"vllm-cache-{'a' * 12}", f"vllm-cache-{'b' * 12}"]


@pytest.mark.parametrize("check", [True, False])
def test_absent_removes_the_releases_and_the_caches_of_the_group(capsys: pytest.CaptureFixture[str], tmp_path: Path, store: Path, check: bool) -> None:
    start(capsys, tmp_path / "pair1", store, "r1", "a" * 12)
    start(capsys, tmp_path / "pair2", store, "r1", "b" * 12)
    out = run(capsys, tmp_path / "pair1", state="absent", _ansible_check_mode=check)
    assert out["changed"]
    assert ((tmp_path / "pair1").exists(), (tmp_path / "pair2").exists()) == (check, True)
    assert names(store) == [f"vllm-cache-{key * 12}" for key in ("ab" if check else "b")]
    assert run(capsys, tmp_path / "pair1", state="absent")["changed"] == check
    (tmp_path / "link").symlink_to(tmp_path / "pair2")
    assert "failed" not in run(capsys, tmp_path / "link", state="absent")
    assert (os.path.lexists(tmp_path / "link"), (tmp_path / "pair2").exists()) == (False, True)


def test_a_link_in_place_of_the_cache_ends_the_run_before_a_start(tmp_path: Path, capsys: pytest.CaptureFixture[str], store: Path) -> None:
    (store / f"vllm-cache-{'a' * 12}").symlink_to("/etc")
    out = start(capsys, tmp_path / "pair1", store, "r1", "a" * 12)
    assert out["failed"]
    assert "is a link to /etc" in out["msg"]
    assert not (tmp_path / "pair1/releases").exists()
