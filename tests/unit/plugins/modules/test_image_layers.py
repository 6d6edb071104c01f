"""What is left of an archive after it was loaded."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._docker import images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.modules import image_layers


@pytest.mark.parametrize(
    ("error", "message"),
    [(None, ""), (ImageError("it has another content"), "another content"), (FileNotFoundError(2, "No such file", "/a/image.tar"), "No such file")],
    ids=["loaded", "another-image", "no-archive"],
)
def test_a_failed_load_keeps_the_archive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], error: Exception | None, message: str
) -> None:
    folder = tmp_path / "receive"
    folder.mkdir()
    calls: list[tuple[str, ...]] = []

    def load(*arguments: str) -> None:
        calls.append(arguments)
        if error:
            raise error

    monkeypatch.setattr(images, "load", load)
    monkeypatch.setattr(Node, "save_record", lambda _node, _name, _data: None)
    arguments = {"state": "loaded", "reference": "vllm:1", "folder": str(folder), "fingerprint": "f1", "docker_socket": "/x.sock"}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        image_layers.main()
    out = json.loads(capsys.readouterr().out)
    assert message in out.get("msg", "")
    assert bool(out.get("failed")) is bool(message)
    assert folder.exists() is bool(message)
    assert calls == [(f"{folder}/image.tar", "vllm:1", "f1", "/x.sock")]
