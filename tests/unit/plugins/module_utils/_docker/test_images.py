"""Inspecting and saving images: an engine on a socket replies as Docker 26 does."""

from __future__ import annotations

import hashlib
import io
import json
import socketserver
import tarfile
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import image_plan, images
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError

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


class Handler(BaseHTTPRequestHandler):
    driver_status: list[list[str]]
    cut = False

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: Any) -> None:
        pass

    def reply(self, body: bytes, status: int = 200) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: len(body) // 2] if self.cut else body)

    def archive(self) -> None:
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in saved().items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        self.reply(out.getvalue())

    def do_GET(self) -> None:
        path = unquote(self.path)
        if path == "/version":
            self.reply(b'{"Version": "26.1.5", "ApiVersion": "1.45", "MinAPIVersion": "1.24"}')
        elif path.endswith("/info"):
            info = {"DriverStatus": self.driver_status, "DockerRootDir": "/", "ServerVersion": "26.1.5", "Driver": "overlay2"}
            self.reply(json.dumps(info).encode())
        elif path.endswith("/images/json"):
            self.reply(json.dumps([{"Id": IMAGE["Id"]}]).encode())
        elif path.endswith(("/vllm:1/json", f"/{IMAGE['Id']}/json")):
            self.reply(json.dumps(IMAGE).encode())
        elif path.endswith("/vllm:1/get"):
            self.archive()
        else:
            self.reply(b'{"message": "No such image: x"}', 404)


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[type[Handler], str]]:
    path = str(tmp_path / "docker.sock")
    handler = type("Handler", (Handler,), {"driver_status": [["Backing Filesystem", "extfs"]]})
    server = socketserver.ThreadingUnixStreamServer(path, handler)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield handler, path
    server.shutdown()
    server.server_close()


def test_image_is_described(engine: tuple[type[Handler], str]) -> None:
    handler, socket_path = engine
    info = images.info("vllm:1", socket_path)
    assert (info["exists"], info["build"], info["store"]) == (True, "b1", "classic")
    assert info["chains"] == sorted(image_plan.chain_ids(DIFFS))
    assert info["fingerprint"] == image_plan.fingerprint_of(IMAGE)
    assert not images.info("other:1", socket_path)["exists"]
    handler.driver_status.append(["driver-type", "io.containerd.snapshotter.v1"])
    assert images.info("vllm:1", socket_path)["store"] == "containerd"


@pytest.mark.parametrize(
    ("skip", "left_out"),
    [([], set()), (DIFFS[:1], {f"blobs/sha256/{DIFFS[0][7:]}", "index.json", "oci-layout"})],
    ids=["whole", "without-the-base-layer"],
)
def test_archive_has_all_files_but_the_skipped_layers(engine: tuple[type[Handler], str], tmp_path: Path, skip: list[str], left_out: set[str]) -> None:
    path = tmp_path / "image.tar"
    steps: list[int] = []
    found = images.save("vllm:1", str(path), skip, engine[1], lambda _file, size, count: steps.extend([size - count, size]))
    assert steps[::2] == [0, *steps[1:-1:2]]
    assert steps[-1] == found["size"]
    assert found == {"size": path.stat().st_size, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}
    with tarfile.open(path) as tar:
        files = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]  # files only
    assert files == {name: data for name, data in saved().items() if name not in left_out}


def test_save_reports_the_engines_error(engine: tuple[type[Handler], str], tmp_path: Path) -> None:
    with pytest.raises(DockerError, match="cannot save gone:1: No such image"):
        images.save("gone:1", str(tmp_path / "x"), [], engine[1])


def test_save_fails_if_the_engine_stops(engine: tuple[type[Handler], str], tmp_path: Path) -> None:
    assert images.engine(engine[1])
    engine[0].cut = True
    with pytest.raises(DockerError, match="stopped while it saved vllm:1"):
        images.save("vllm:1", str(tmp_path / "x"), [], engine[1])
