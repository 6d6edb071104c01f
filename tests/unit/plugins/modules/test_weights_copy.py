"""The states of a copy on one node: what is refused before a unit starts, and what each unit gets. systemd and the programs are replaced."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._node import model_folder, transfer
from ansible_collections.gb10.cluster.plugins.modules import weights_copy
from module_run import run_module

ITEM = {"path": "a.safetensors", "size": 5, "sha256": "a" * 64, "mtime_ns": 1}
OFFER = {"listen": [{"address": "127.0.0.1", "port": 5}], "host_key": "ssh-ed25519 HOST"}


class Node:
    """A node with all programs. Its units end at once, with this code and log."""

    def __init__(self, code: int | None = 0, log: str = "") -> None:
        self.code, self.log, self.started = code, log, []  # type: ignore[var-annotated]
        self.run = Path("/nowhere")

    def __call__(self, argv: Sequence[str]) -> tuple[int, str, str]:
        if argv[0] == "ssh-keygen":
            Path(f"{argv[-1]}.pub").write_text("ssh-ed25519 AAAA gb10-copy\n")
            Path(argv[-1]).write_text("private")
        if argv[0] == "systemd-run":
            self.started.append(list(argv))
            name = next(word for word in argv if word.startswith("--unit=")).partition("gb10-")[2]
            (self.run / f"{name}.json.log").write_text(self.log)
            if self.code is not None:
                (self.run / f"{name}.json").write_text(f'{{"rc": {self.code}}}')
        return (3 if argv[:2] == ["systemctl", "is-active"] else 0), "", ""


@pytest.fixture
def node(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Node:
    made = Node()
    made.run = tmp_path / "run"
    monkeypatch.setattr(weights_copy, "runner", lambda _module: made)
    monkeypatch.setattr(weights_copy, "Job", lambda name, run: transfer.Job(name, run, str(made.run)))
    monkeypatch.setattr(AnsibleModule, "get_bin_path", lambda _self, name, *_a, **_k: f"/usr/bin/{name}")
    (tmp_path / "store").mkdir()
    return made


@pytest.fixture
def call(node: Node, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Any:
    return lambda **options: run_module(capsys, weights_copy, path=str(tmp_path / "store/m"), **options)


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


def test_an_offer_is_a_bounded_unit_that_reads_the_folder(call: Any, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "store/m").mkdir()
    monkeypatch.setattr(socket, "create_connection", lambda *_a: SimpleNamespace(close=lambda: None))
    found = call(state="offered", fabric=["127.0.0.1"], allow=["127.0.0.2"], keys=["ssh-ed25519 AAAA"])
    assert (found["host_key"], found["listen"][0]["address"]) == ("ssh-ed25519 AAAA", "127.0.0.1")
    [words] = node.started
    assert f'--property=BindReadOnlyPaths="{tmp_path}/store/m"' in words
    assert "--property=MemoryMax=1G" in words
    assert (node.run / "copy-weights-serve/authorized_keys").read_text() == 'restrict,from="127.0.0.2" ssh-ed25519 AAAA\n'


def test_a_fetch_needs_room_and_a_key_and_a_hash(call: Any, node: Node) -> None:
    assert "nothing was copied" in call(fetch=[{**ITEM, "size": 1 << 60}], provider=OFFER)["msg"]
    assert "state=prepared" in call(fetch=[ITEM], provider=OFFER)["msg"]
    call(state="prepared")
    assert "does not offer them" in call(fetch=[ITEM])["msg"]
    assert "no valid SHA-256" in call(fetch=[{**ITEM, "sha256": "x"}], provider=OFFER)["msg"]
    assert node.started == []


@pytest.mark.parametrize(
    ("code", "log", "words"),
    [
        (None, "", "the copy was ended from outside after 0 bytes of 5 bytes: run again, it goes on from there"),
        (1, "ssh: connect to host 127.0.0.1 port 5: Connection refused\n", "check the cable, and that no firewall closes the port"),
    ],
    ids=["killed", "no rail"],
)
def test_a_copy_that_ends_early_is_one_sentence(call: Any, node: Node, code: int | None, log: str, words: str) -> None:
    call(state="prepared")
    node.code, node.log = code, log
    assert words in call(fetch=[ITEM], provider=OFFER, fabric=["127.0.0.1"])["msg"]


def test_fetched_files_are_installed(call: Any, node: Node, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    installed: list[Any] = []
    monkeypatch.setattr(model_folder, "install", lambda *what: installed.append(what[2]))
    node.log = "began 1.0\nLiteral data: 5 bytes\ncopied 3.0\nended 4.0\n"
    call(state="prepared")
    found = call(fetch=[ITEM], provider=OFFER, fabric=["127.0.0.1"])
    assert (found["copied"], found["moved_bytes"], found["seconds"]) == (["a.safetensors"], 5, {"transfer": 2.0, "total": 3.0})
    assert installed == [[ITEM]]
    assert os.path.isdir(tmp_path / "store/.gb10-incoming-m")
    assert not node.run.exists(), "the key is gone"
