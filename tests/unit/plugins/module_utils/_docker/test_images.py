"""Inspecting and saving images: an engine on a socket replies as Docker 26 does."""

from __future__ import annotations

import hashlib
import io
import json
import socket
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import client, image_plan, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from unit.fixtures.docker.engine import FakeEngine, serving

LAYERS = {f"sha256:{hashlib.sha256(data).hexdigest()}": data for data in (b"base" * 600_000, b"top" * 700_000)}
DIFFS = list(LAYERS)
CONFIG = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFFS}, "config": {"Env": ["A=1"]}}).encode()
IMAGE = {
    "Id": "sha256:" + hashlib.sha256(CONFIG).hexdigest(), "RepoDigests": [], "Architecture": "arm64", "Os": "linux", "Size": 5,
    "RootFS": {"Layers": DIFFS}, "Config": {"Env": ["A=1"], "Labels": {"gb10.cluster.build": "b1"}},
}  # fmt: skip


def saved() -> dict[str, bytes]:
    """Return the files of the engine's archive."""
    files = {f"blobs/sha256/{diff[7:]}": data for diff, data in LAYERS.items()}
    config = f"blobs/sha256/{hashlib.sha256(CONFIG).hexdigest()}"
    manifest = json.dumps([{"Config": config, "RepoTags": ["vllm:1"], "Layers": list(files)}]).encode()
    return {**files, config: CONFIG, "index.json": b"{}", "oci-layout": b"{}", "manifest.json": manifest}


def archive() -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in saved().items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[FakeEngine, str]]:
    with serving(tmp_path / "docker.sock") as fake:
        status = [["Backing Filesystem", "extfs"]]
        fake.info = {"DriverStatus": status, "DockerRootDir": "/", "ServerVersion": "26.1.5", "Driver": "overlay2"}
        fake.images = {"vllm:1": IMAGE, str(IMAGE["Id"]): IMAGE}
        fake.archives = {"vllm:1": archive()}
        yield fake, str(tmp_path / "docker.sock")


def test_image_is_described(engine: tuple[FakeEngine, str]) -> None:
    fake, socket_path = engine
    info = images.info("vllm:1", socket_path)
    assert (info["exists"], info["build"], info["store"]) == (True, "b1", "classic")
    assert info["chains"] == sorted(image_plan.chain_ids(DIFFS))
    assert info["fingerprint"] == image_plan.fingerprint_of(IMAGE)
    assert not images.info("other:1", socket_path)["exists"]
    fake.info["DriverStatus"].append(["driver-type", "io.containerd.snapshotter.v1"])
    assert images.info("vllm:1", socket_path)["store"] == "containerd"


@pytest.mark.parametrize(
    ("skip", "left_out"),
    [([], set()), (DIFFS[:1], {f"blobs/sha256/{DIFFS[0][7:]}", "index.json", "oci-layout"})],
    ids=["whole", "without-the-base-layer"],
)
def test_archive_has_all_files_but_the_skipped_layers(engine: tuple[FakeEngine, str], tmp_path: Path, skip: list[str], left_out: set[str]) -> None:
    path = tmp_path / "image.tar"
    steps: list[int] = []
    found = images.save("vllm:1", str(path), skip, engine[1], lambda _file, size, count: steps.extend([size - count, size]))
    assert steps[::2] == [0, *steps[1:-1:2]]
    assert steps[-1] == found["size"]
    assert found == {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # files only
    assert files == {name: data for name, data in saved().items() if name not in left_out}


def test_save_reports_the_engines_error(engine: tuple[FakeEngine, str], tmp_path: Path) -> None:
    with pytest.raises(DockerError, match="cannot save gone:1: No such image"):
        images.save("gone:1", str(tmp_path / "x"), [], engine[1])


def test_save_fails_if_the_engine_stops(engine: tuple[FakeEngine, str], tmp_path: Path) -> None:
    assert images.engine(engine[1])
    engine[0].stops = True
    with pytest.raises(DockerError, match="stopped while it saved vllm:1"):
        images.save("vllm:1", str(tmp_path / "x"), [], engine[1])


def test_an_engine_that_hangs_is_named_with_the_time_that_was_waited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(images, "PAUSE", 1.0)
    monkeypatch.setattr(client, "api", lambda _path: "/v1.44")
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        with pytest.raises(DockerError, match=r"no reply within 1 s"):
            images.call("DELETE", "/images/vllm:1", str(tmp_path / "hangs.sock"))
