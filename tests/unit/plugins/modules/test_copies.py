"""The ends of a copy on one node: what is refused before a unit starts, and what the serving unit gets. systemd and the programs are replaced."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._node import images, model_folder, transfer
from ansible_collections.gb10.cluster.plugins.modules import copies
from module_run import run_module


class Node:
    """A node with all programs."""

    def __init__(self) -> None:
        self.started: list[list[str]] = []
        self.run, self.dies = Path("/nowhere"), False

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[0] == "ssh-keygen":
            Path(f"{argv[-1]}.pub").write_text("ssh-ed25519 AAAA gb10-copy\n")
            Path(argv[-1]).write_text("private")
        if argv[0] == "systemd-run":
            self.started.append(list(argv))
        return (3 if argv[:2] == ["systemctl", "is-active"] and (self.dies or not self.started) else 0), "", ""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    made = Node()
    made.run = tmp_path / "run"
    monkeypatch.setattr(copies, "READY_SECONDS", 0)
    monkeypatch.setattr(copies, "runner", lambda _module: made)
    monkeypatch.setattr(copies, "Job", lambda name, run: transfer.Job(name, run, str(made.run)))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, *_a, **_k: f"/usr/bin/{name}")
    (tmp_path / "store").mkdir()
    return made


@pytest.fixture
def call(node: Node, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    return lambda **options: run_module(capsys, copies, **{"path": str(tmp_path / "store/m"), **options})


def test_a_copy_without_rsync_names_the_package(call: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, *_a, **_k: None if name == "rsync" else name)
    assert call(state="prepared")["msg"].startswith("rsync is not installed on this node: install the packages rsync")


def test_a_key_is_for_one_copy_and_its_private_half_stays(call: Any, node: Node) -> None:
    found = call(state="prepared")
    assert found["public_key"] == "ssh-ed25519 AAAA"
    assert "private" not in str(found)
    assert (node.run / "copy-weights-fetch").stat().st_mode & 0o777 == 0o700
    assert call(state="closed")["changed"]
    assert not node.run.exists()
    assert not call(state="closed")["changed"]


@pytest.mark.parametrize(
    "options", [{"allow": ["10.0.0.2"], "keys": ["k"]}, {"fabric": ["127.0.0.1"], "keys": ["k"]}, {"fabric": ["127.0.0.1"], "allow": ["10.0.0.2"]}]
)
def test_files_are_offered_to_named_peers_only(call: Any, node: Node, options: dict[str, Any]) -> None:
    assert "files are offered to named peers only" in call(state="offered", **options)["msg"]
    assert node.started == []


def test_an_address_that_is_not_on_the_node_and_a_port_in_use_are_named(call: Any, tmp_path: Path) -> None:
    (tmp_path / "store/m").mkdir()
    peers = {"allow": ["10.0.0.2"], "keys": ["k"]}
    assert "cannot listen on the fabric address 192.0.2.1" in call(state="offered", fabric=["192.0.2.1"], **peers)["msg"]
    with socket.create_server(("127.0.0.1", 0)) as taken:
        assert "is the port free?" in call(state="offered", fabric=["127.0.0.1"], port=taken.getsockname()[1], **peers)["msg"]


def test_an_offer_is_a_bounded_unit_that_reads_the_folder(call: Any, node: Node, tmp_path: Path) -> None:
    (tmp_path / "store/m").mkdir()
    found = call(state="offered", fabric=["127.0.0.1"], allow=["127.0.0.2"], keys=["ssh-ed25519 AAAA"])
    assert (found["host_key"], found["listen"][0]["address"]) == ("ssh-ed25519 AAAA", "127.0.0.1")
    [words] = node.started
    assert f'--property=BindReadOnlyPaths="{tmp_path}/store/m"' in words
    assert "--property=MemoryMax=1G" in words
    assert (node.run / "copy-weights-serve/authorized_keys").read_text() == 'restrict,from="127.0.0.2" ssh-ed25519 AAAA\n'
    node.dies = True
    assert "does not start on 127.0.0.1, port " in call(state="offered", fabric=["127.0.0.1"], allow=["127.0.0.2"], keys=["ssh-ed25519 AAAA"])["msg"]


def test_copied_files_and_imported_images_are_removed(call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_folder, "absent", lambda _node, path, check, store: ([path], [store, str(check)]))
    monkeypatch.setattr(images, "remove_imported", lambda _node, check: (["sha256:a"], [str(check)]))
    found = call(state="absent", store="/srv")
    assert (found["changed"], found["removed"], found["left"]) == (True, [f"{tmp_path}/store/m"], ["/srv", "False"])
    found = call(state="absent", path=None, _ansible_check_mode=True)
    assert (found["changed"], found["removed"], found["left"]) == (True, ["sha256:a"], ["True"])
