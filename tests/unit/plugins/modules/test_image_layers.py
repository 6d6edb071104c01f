"""Loading an archive with the docker command, and what is left after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._docker import images
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.modules import image_layers

DOCKER = '#!/bin/sh\necho "$@" >>{log}\ncat "$6" >/dev/null || exit 1\n'


@pytest.mark.parametrize(
    ("found", "archive", "message"),
    [("f1", True, ""), ("other", True, "another content"), ("f1", False, "No such file")],
    ids=["loaded", "another-image", "no-archive"],
)
def test_load_checks_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], found: str, archive: bool, message: str
) -> None:
    folder = tmp_path / "receive"
    folder.mkdir()
    if archive:
        (folder / "image.tar").write_text("x")
    (tmp_path / "docker").write_text(DOCKER.format(log=tmp_path / "log"))
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(images, "info", lambda _reference, _socket: {"fingerprint": found})
    monkeypatch.setattr(Node, "save_record", lambda _node, _name, _data: None)
    arguments = {"state": "loaded", "reference": "vllm:1", "folder": str(folder), "fingerprint": "f1", "docker_socket": "/x.sock"}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        image_layers.main()
    out = json.loads(capsys.readouterr().out)
    assert message in out.get("msg", "")
    assert bool(out.get("failed")) is bool(message)
    assert folder.exists() is bool(message), "a failed load keeps the archive"
    assert (tmp_path / "log").read_text() == f"--host unix:///x.sock load --quiet --input {folder}/image.tar\n"
