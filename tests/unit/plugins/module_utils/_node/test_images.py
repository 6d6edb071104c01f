"""Inspecting images: an engine on a socket replies as Docker 26 does."""

from __future__ import annotations

import hashlib
import json
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from unit.fixtures.docker.engine import FakeEngine, serving

LAYERS = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in (b"base" * 600_000, b"top" * 700_000)}
DIFFS = list(LAYERS)
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFFS}, "config": {"Env": ["A=1"]}}).encode()
IMAGE = {
    "Id": "sha256:" + hashlib.sha256(CONFIG).hexdigest(), "RepoDigests": [], "Architecture": "arm64", "Os": "linux", "Size": 5,
    "RootFS": {"Layers": DIFFS}, "Config": {"Env": ["A=1"], "Labels": {"gb10.cluster.build": "b1"}},
}  # fmt: skip


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[FakeEngine, str]]:
    with serving(tmp_path / "docker.sock") as fake:
        status = [["Backing Filesystem", "extfs"]]
        fake.info = {"DriverStatus": status, "DockerRootDir": "/", "ServerVersion": "26.1.5", "Driver": "overlay2"}
        fake.images = {"vllm:1": IMAGE, str(IMAGE["Id"]): IMAGE}
        yield fake, str(tmp_path / "docker.sock")


def test_image_is_described(engine: tuple[FakeEngine, str]) -> None:
    fake, socket_path = engine
    info = images.info("vllm:1", socket_path)
    assert (info["exists"], info["build"], info["store"]) == (True, "b1", "classic")
    assert info["fingerprint"] == images.fingerprint_of(IMAGE)
    assert not images.info("other:1", socket_path)["exists"]
    fake.info["DriverStatus"].append(["driver-type", "io.containerd.snapshotter.v1"])
    assert images.info("vllm:1", socket_path)["store"] == "containerd"


def test_an_engine_that_hangs_is_named_with_the_time_that_was_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PAUSE", 1.0)
    monkeypatch.setattr(docker_api, "api", lambda _path: "/v1.44")
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        with pytest.raises(DockerError, match=r"no reply within 1 s"):
            images.call("DELETE", "/images/vllm:1", str(tmp_path / "hangs.sock"))
