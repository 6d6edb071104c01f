"""Saving and loading layers, against an engine on a socket that answers as Docker 26 does."""

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


class Engine(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """Knows one image, remembers what is loaded."""

    daemon_threads = True

    def __init__(self, path: str) -> None:
        super().__init__(path, Handler)
        self.loaded = b""
        self.refuses = ""
        self.names = ["vllm:1"]
        self.driver_status: list[list[str]] = [["Backing Filesystem", "extfs"]]
        self.config = json.dumps({"rootfs": {"type": "layers", "diff_ids": DIFFS}, "config": {"Env": ["A=1"]}}).encode()

    def archive(self) -> bytes:
        config = f"blobs/sha256/{hashlib.sha256(self.config).hexdigest()}"
        paths = {f"blobs/sha256/{diff[7:]}": data for diff, data in LAYERS.items()}
        manifest = json.dumps([{"Config": config, "RepoTags": ["vllm:1"], "Layers": list(paths), "LayerSources": {}}]).encode()
        out = io.BytesIO()
        with tarfile.open(fileobj=out, mode="w") as tar:
            for name, data in {**paths, config: self.config, "blobs/sha256/" + "e" * 64: b"{}", "index.json": b"{}", "manifest.json": manifest}.items():
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return out.getvalue()


class Handler(BaseHTTPRequestHandler):
    server: Engine
    protocol_version = "HTTP/1.1"

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: Any) -> None:
        pass

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if self.path == "/version":
            self.answer(200, b'{"Version": "26.1.5", "ApiVersion": "1.45", "MinAPIVersion": "1.24"}')
            return
        path = unquote(self.path).split("/", 2)[2]
        image = {
            "Id": "sha256:" + hashlib.sha256(self.server.config).hexdigest(), "RepoDigests": [], "Architecture": "arm64", "Os": "linux", "Size": 5,
            "RootFS": {"Layers": DIFFS}, "Config": {"Env": ["A=1"], "Labels": {"gb10.cluster.build": "b1"}},
        }  # fmt: skip
        known = path.split("/")[1] in (*self.server.names, image["Id"]) if path.startswith("images/") else False
        if path == "info":
            body = {"DriverStatus": self.server.driver_status, "DockerRootDir": "/", "ServerVersion": "26.1.5", "Driver": "overlay2"}
            self.answer(200, json.dumps(body).encode())
        elif path == "images/json":
            self.answer(200, json.dumps([{"Id": image["Id"]}]).encode())
        elif path.endswith("/json") and known:
            self.answer(200, json.dumps(image).encode())
        elif path.endswith("/get") and known:
            self.answer(200, self.server.archive())
        else:
            self.answer(404, b'{"message": "No such image: x"}')

    def do_POST(self) -> None:
        data = b""
        while True:
            size = int(self.rfile.readline(), 16)
            data += self.rfile.read(size)
            self.rfile.readline()
            if not size:
                break
        self.server.loaded = data
        line = {"error": self.server.refuses} if self.server.refuses else {"stream": "Loaded image: vllm:1\n"}
        self.answer(200, json.dumps(line).encode() + b"\r\n")


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[tuple[Engine, str]]:
    path = str(tmp_path / "docker.sock")
    server = Engine(path)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield server, path
    server.shutdown()
    server.server_close()


def test_an_image_is_described(engine: tuple[Engine, str]) -> None:
    info = images.info("vllm:1", engine[1])
    assert info["exists"]
    assert info["build"] == "b1"
    assert info["store"] == "classic"
    assert info["chains"] == sorted(image_plan.chain_ids(DIFFS))
    assert info["fingerprint"] == image_plan.fingerprint(DIFFS, {"Env": ["A=1"]}, "arm64", "linux")
    assert not images.info("other:1", engine[1])["exists"]
    engine[0].driver_status.append(["driver-type", "io.containerd.snapshotter.v1"])
    assert images.info("vllm:1", engine[1])["store"] == "containerd"


def test_only_the_wanted_layer_is_saved_and_loaded(engine: tuple[Engine, str], tmp_path: Path) -> None:
    folder = tmp_path / "send"
    files = images.save("vllm:1", str(folder), DIFFS[1:], engine[1])
    layer = f"blobs/sha256/{DIFFS[1][7:]}"
    assert len(files) == 3
    assert files[layer]["layer"] == DIFFS[1]
    assert files[layer]["size"] == len(LAYERS[DIFFS[1]])
    assert f"sha256:{files[layer]['sha256']}" == DIFFS[1]
    assert sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file()) == sorted(files)
    assert images.load(str(folder), list(files), engine[1]) == "Loaded image: vllm:1"
    with tarfile.open(fileobj=io.BytesIO(engine[0].loaded)) as tar:
        assert tar.getnames()[0] == "manifest.json"
        found = {member.name: tar.extractfile(member).read() for member in tar if member.isfile()}  # type: ignore[union-attr]  # files only
    assert found[layer] == LAYERS[DIFFS[1]]
    manifest = json.loads(found["manifest.json"])[0]
    assert manifest["RepoTags"] == ["vllm:1"]
    assert len(manifest["Layers"]) == 2
    assert found[manifest["Config"]] == engine[0].config


def test_a_whole_image_is_one_file(engine: tuple[Engine, str], tmp_path: Path) -> None:
    files = images.save("vllm:1", str(tmp_path / "send"), None, engine[1])
    assert list(files) == ["image.tar"]
    images.load(str(tmp_path / "send"), list(files), engine[1])
    assert engine[0].loaded == engine[0].archive()


def test_an_engine_that_refuses_is_quoted(engine: tuple[Engine, str], tmp_path: Path) -> None:
    files = images.save("vllm:1", str(tmp_path / "send"), [], engine[1])
    engine[0].refuses = "no space left on device"
    with pytest.raises(DockerError, match="refused the image: no space left on device"):
        images.load(str(tmp_path / "send"), list(files), engine[1])
    with pytest.raises(DockerError, match="cannot save gone:1: No such image"):
        images.save("gone:1", str(tmp_path / "x"), [], engine[1])


def test_a_layer_that_the_archive_lacks_is_said(engine: tuple[Engine, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    engine[0].config = json.dumps({"rootfs": {"diff_ids": [DIFFS[0], "sha256:" + "9" * 64]}}).encode()
    with pytest.raises(DockerError, match="without the layer sha256:999"):
        images.save("vllm:1", str(tmp_path / "send"), ["sha256:" + "9" * 64], engine[1])
