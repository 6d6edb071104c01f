"""Both ends of the copy, joined over the loopback: real sockets, real files."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import hashlib
import http.client
import json
import os
import subprocess
import sys
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy, plain
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError
from unit.fixtures.page_cache import cached_share, needs_page_cache, write_out

AUTH = {"user": "gb10", "password": "s3cret pass:word"}
FILES = {"a.safetensors": bytes(range(256)) * 3 * 4096, "sub/b ü.json": b"{}", "empty.txt": b""}
BIG = FILES["a.safetensors"]
BIG_PART = f"{hashlib.sha256(BIG).hexdigest()}.part"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub").mkdir(parents=True)
    for name, data in FILES.items():
        (root / name).write_bytes(data)
    return root


@contextlib.contextmanager
def serving(job: dict[str, Any]) -> Iterator[tuple[str, int]]:
    """Serve a job; yield the address."""
    [server] = http_copy.start_servers(job)
    try:
        yield server.server_address[:2]  # type: ignore[misc]  # of IPv4
    finally:
        server.shutdown()
        server.server_close()


@pytest.fixture
def service(source: Path) -> Iterator[tuple[str, int]]:
    with serving(serve_job(source)) as place:
        yield place


def serve_job(root: Path, **more: Any) -> dict[str, Any]:
    return {"listen": ["127.0.0.1"], "port": 0, "allow": [], "files": {name: str(root / name) for name in FILES}, **AUTH, **more}


def fetch_job(folder: Path, place: tuple[str, int], **more: Any) -> dict[str, Any]:
    files = [{"name": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest(), "provider": 0} for n, d in FILES.items()]
    providers = [[{"address": place[0], "port": place[1], "bind": "127.0.0.1"}]]
    return {"providers": providers, "files": files, "staging": str(folder / "in"), "streams": 3, "progress": str(folder / "progress"), **AUTH, **more}


def arrived(folder: Path) -> bool:
    """Return whether all files are there, each under its hash and with its content."""
    found = {path.name: path.read_bytes() for path in (folder / "in").iterdir()}
    return found == {hashlib.sha256(data).hexdigest(): data for data in FILES.values()}


def ask(place: tuple[str, int], path: str, method: str = "GET", **headers: str) -> tuple[int, bytes]:
    token = b64encode("{user}:{password}".format(**AUTH).encode()).decode()
    connection = http.client.HTTPConnection(*place, timeout=5)
    connection.request(method, path, headers={"Authorization": f"Basic {token}", **headers})
    reply = connection.getresponse()
    return reply.status, reply.read()


@pytest.mark.parametrize("splice", [True, False], ids=["splice", "python-3.9"])
@pytest.mark.parametrize("cores", [2, 64], ids=["hashed-at-the-end", "hashed-at-once"])
def test_files_arrive_whole(tmp_path: Path, service: tuple[str, int], splice: bool, cores: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    if not splice:
        monkeypatch.delattr(os, "splice")
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert arrived(tmp_path)
    state = fetch.state("done")
    assert (state["moved"], state["done"], state["files_done"]) == (state["total"], state["hashed"], 3)


def test_a_copy_leaves_no_page_cache_on_either_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    needs_page_cache(tmp_path)
    monkeypatch.setattr(http_copy, "STRETCH", 4 << 20)
    monkeypatch.setattr(plain, "STRETCH", 4 << 20)
    monkeypatch.setattr(plain, "WINDOW", 48 << 20)
    source = tmp_path / "model.safetensors"
    write_out(source, os.urandom(1 << 20) * 160)
    digest = http_copy.sha256_file(str(source))
    assert cached_share(source) < 0.05
    job = fetch_job(tmp_path, ("127.0.0.1", 0), files=[{"name": "m", "size": 160 << 20, "sha256": digest, "provider": 0}])
    fetch = http_copy.Fetch(job)
    nearly: list[float] = []
    got = fetch.got

    def sampled(count: int) -> None:
        got(count)
        if not nearly and fetch.moved > 144 << 20:
            nearly.append(cached_share(source))

    monkeypatch.setattr(fetch, "got", sampled)
    with serving({**serve_job(tmp_path), "files": {"m": str(source)}}) as place:
        job["providers"][0][0]["port"] = place[1]
        fetch.run()
    assert nearly[0] < 0.75, "the sender forgets as it goes"
    end = time.monotonic() + 10
    while cached_share(source) >= 0.05:  # until the sender has seen the end of the connection
        assert time.monotonic() < end, cached_share(source)
    assert cached_share(tmp_path / "in" / digest) < 0.05


def test_hashing_leaves_no_page_cache(tmp_path: Path) -> None:
    needs_page_cache(tmp_path)
    path = tmp_path / "model.safetensors"
    write_out(path, os.urandom(1 << 20) * 80)
    assert cached_share(path) > 0.9
    assert http_copy.sha256_file(str(path)) == hashlib.sha256(path.read_bytes()).hexdigest()
    assert cached_share(path) > 0.9  # read again by the test
    http_copy.sha256_file(str(path))
    assert cached_share(path) < 0.05


def test_a_file_system_that_cannot_forget_does_not_end_a_copy(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(os, "posix_fadvise", refuse)
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert arrived(tmp_path)


def test_a_disk_that_fails_at_the_end_of_a_file_ends_the_copy(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_descriptor: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    monkeypatch.setattr(os, "fdatasync", fail)
    http_copy.write_json(str(tmp_path / "job"), fetch_job(tmp_path, service))
    assert http_copy.main(["fetch", str(tmp_path / "job")]) == 1
    assert json.loads((tmp_path / "progress").read_text())["error"] == f"{tmp_path}/in cannot be written (Input/output error): correct that and run again"


def test_a_request_is_not_logged(tmp_path: Path, service: tuple[str, int], capfd: pytest.CaptureFixture[str]) -> None:
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert capfd.readouterr().err == ""


def test_copy_resumes_where_it_stopped(tmp_path: Path, service: tuple[str, int]) -> None:
    (tmp_path / "in").mkdir(0o700)
    (tmp_path / "in" / BIG_PART).write_bytes(BIG[: 2 << 20])
    (tmp_path / "in" / hashlib.sha256(b"{}").hexdigest()).write_bytes(b"{}")
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert (fetch.moved, fetch.done) == (1 << 20, len(BIG) + 2)
    assert arrived(tmp_path)


@pytest.mark.parametrize("kept", [b"x" * 100, BIG + b"x", b"x" * len(BIG)], ids=["shorter", "longer", "same-size"])
def test_wrong_content_of_an_earlier_run_is_replaced(tmp_path: Path, service: tuple[str, int], kept: bytes) -> None:
    (tmp_path / "in").mkdir(0o700)
    (tmp_path / "in" / BIG_PART).write_bytes(kept)
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert arrived(tmp_path)


def test_preallocation_reserves_blocks_and_keeps_the_length(tmp_path: Path) -> None:
    with (tmp_path / "part").open("wb") as part:
        http_copy.preallocate(part.fileno(), 0, 8 << 20)
        assert (os.fstat(part.fileno()).st_size, os.fstat(part.fileno()).st_blocks * 512) == (0, 8 << 20)
        with pytest.raises(OSError, match=r"No space left on device|File too large"):
            http_copy.preallocate(part.fileno(), 0, 1 << 60)


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, None], ids=["file system", "libc"])
def test_copy_works_without_preallocation(tmp_path: Path, service: tuple[str, int], error: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: Any) -> int:
        ctypes.set_errno(error or 0)
        return -1

    libc = SimpleNamespace(fallocate=refuse) if error else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_arguments, **_more: libc)
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert arrived(tmp_path)


def test_full_disk_ends_the_copy_at_once_and_the_next_run_resumes(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, offset: int, _count: int) -> None:
        if offset >= 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(http_copy, "STRETCH", 1 << 20)
    monkeypatch.setattr(http_copy, "preallocate", full)
    start = time.monotonic()
    with pytest.raises(CopyError, match=r"a.safetensors .*127.0.0.1 .*No space left on device"):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert time.monotonic() - start < 6, "the retries take longer"
    monkeypatch.undo()
    kept = (tmp_path / "in" / BIG_PART).stat().st_size
    assert kept >= 1 << 20
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert fetch.moved <= len(BIG) + 2 - kept


def test_broken_connection_is_resumed(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    real = http_copy.receive
    broken: list[int] = []

    def receive(source: Any, target: int, count: int, got: Any) -> None:
        if not broken:
            broken.append(1)
            real(source, target, 1 << 20, got)
            raise ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
        real(source, target, count, got)

    monkeypatch.setattr(http_copy, "receive", receive)
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert broken
    assert fetch.moved == len(BIG) + 2
    assert arrived(tmp_path)


@pytest.mark.parametrize(
    ("content", "message"), [(b"y" * len(BIG), "a.safetensors arrived with another content"), (b"short", "manifest is read again")], ids=["content", "size"]
)
def test_changed_source_is_reported(tmp_path: Path, service: tuple[str, int], source: Path, content: bytes, message: str) -> None:
    (source / "a.safetensors").write_bytes(content)
    with pytest.raises(CopyError, match=message):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()


@pytest.mark.parametrize("key", ["password", "user"])
def test_password_is_required(tmp_path: Path, service: tuple[str, int], key: str) -> None:
    with pytest.raises(CopyError, match="replied 401"):
        http_copy.Fetch(fetch_job(tmp_path, service, **{key: "wrong"})).run()
    assert ask(service, "/a.safetensors", Authorization="")[0] == 401


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("GET", "/sub/b%20%C3%BC.json", 200), ("GET", "/", 404), ("GET", "/sub", 404), ("GET", "/../../etc/passwd", 404), ("GET", "//etc/passwd", 404),
        ("GET", "/%2e%2e/%2e%2e/etc/passwd", 404), ("GET", "/nothing", 404), ("PUT", "/a.safetensors", 501), ("DELETE", "/a.safetensors", 501),
    ],
)  # fmt: skip
def test_only_the_files_of_the_job_are_served(service: tuple[str, int], method: str, path: str, status: int) -> None:
    assert ask(service, path, method)[0] == status


@pytest.mark.parametrize(
    ("header", "status", "body"),
    [("bytes=3145723-", 206, BIG[-5:]), ("bytes=3145729-", 416, None), ("bytes=-3", 416, None), ("lines=1-", 416, None)],
)
def test_ranges(service: tuple[str, int], header: str, status: int, body: bytes | None) -> None:
    found = ask(service, "/a.safetensors", Range=header)
    assert found[0] == status
    assert body is None or found[1] == body


def test_file_that_became_a_link_is_not_served(service: tuple[str, int], source: Path) -> None:
    (source / "a.safetensors").unlink()
    (source / "a.safetensors").symlink_to("/etc/hostname")
    assert ask(service, "/a.safetensors")[0] == 404


def test_other_peers_are_dropped(source: Path) -> None:
    with serving(serve_job(source, allow=["127.0.0.9"])) as place, pytest.raises((http.client.HTTPException, OSError)):
        ask(place, "/a.safetensors")


def test_rail_that_does_not_answer_is_left_out(tmp_path: Path, service: tuple[str, int]) -> None:
    dead, good = {"address": "127.0.0.1", "port": 1, "bind": ""}, {"address": service[0], "port": service[1], "bind": "127.0.0.1"}
    http_copy.Fetch(fetch_job(tmp_path, service, providers=[[dead, good]])).run()
    assert arrived(tmp_path)
    with pytest.raises(CopyError, match=r"no rail .*127.0.0.1:1 \(Connection refused\)"):
        http_copy.Fetch(fetch_job(tmp_path / "x", service, providers=[[dead]])).run()


def test_programs_run_with_job_files(tmp_path: Path, source: Path) -> None:
    def start(mode: str, job: dict[str, Any]) -> subprocess.Popen[bytes]:
        http_copy.write_json(str(tmp_path / mode), job)
        assert (tmp_path / mode).stat().st_mode & 0o777 == 0o600
        return subprocess.Popen([sys.executable, http_copy.__file__, mode, str(tmp_path / mode)])

    ready, progress = tmp_path / "ready", tmp_path / "progress"
    assert start("serve", serve_job(source, listen=["192.0.2.1"], ready=str(ready))).wait(60) == 1
    assert "192.0.2.1" in json.loads(ready.read_text())["error"]
    assert start("serve", serve_job(source, idle_seconds=0.1, ready=str(ready))).wait(60) == 0, "it ends by itself"
    ready.unlink()
    server = start("serve", serve_job(source, idle_seconds=600, ready=str(ready)))
    try:
        while not ready.exists():
            time.sleep(0.02)
        [place] = json.loads(ready.read_text())["listen"]
        assert start("fetch", fetch_job(tmp_path, (place[0], place[1]))).wait(60) == 0
    finally:
        server.kill()
        server.wait()
    assert json.loads(progress.read_text())["state"] == "done"
    assert start("fetch", fetch_job(tmp_path / "again", (place[0], place[1]), progress=str(progress))).wait(60) == 1
    report = json.loads(progress.read_text())
    assert report["state"] == "failed"
    assert "no rail" in report["error"]
