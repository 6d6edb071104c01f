"""Both ends of the copy, joined over the loopback: real sockets, real files."""

from __future__ import annotations

import ctypes
import errno
import hashlib
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from base64 import b64encode
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.http_copy import CopyError

AUTH = {"user": "gb10", "password": "s3cret pass:word"}
FILES = {"a.safetensors": os.urandom(3 << 20), "sub/b ü.json": b"{}", "empty.txt": b""}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    root = tmp_path / "source"
    (root / "sub").mkdir(parents=True)
    for name, data in FILES.items():
        (root / name).write_bytes(data)
    return root


@pytest.fixture
def service(source: Path) -> Iterator[tuple[str, int]]:
    running = http_copy.Service(serve_job(source))
    [place] = running.start()
    yield place
    running.stop()


def serve_job(root: Path, **more: Any) -> dict[str, Any]:
    return {"listen": ["127.0.0.1"], "port": 0, "allow": [], "files": {name: str(root / name) for name in FILES}, **AUTH, **more}


def fetch_job(folder: Path, place: tuple[str, int], **more: Any) -> dict[str, Any]:
    files = [{"name": n, "size": len(d), "sha256": hashlib.sha256(d).hexdigest(), "provider": 0} for n, d in FILES.items()]
    providers = [[{"address": place[0], "port": place[1], "bind": "127.0.0.1"}]]
    return {"providers": providers, "files": files, "staging": str(folder / "in"), "streams": 3, "progress": str(folder / "progress"), **AUTH, **more}


def ask(place: tuple[str, int], path: str, method: str = "GET", **headers: str) -> tuple[int, bytes, dict[str, str]]:
    token = b64encode("{user}:{password}".format(**AUTH).encode()).decode()
    connection = http.client.HTTPConnection(*place, timeout=5)
    connection.request(method, path, headers={"Authorization": f"Basic {token}", **headers})
    answer = connection.getresponse()
    return answer.status, answer.read(), dict(answer.getheaders())


@pytest.mark.parametrize("splice", [True, False], ids=["splice", "python-3.9"])
def test_files_arrive_whole(tmp_path: Path, service: tuple[str, int], splice: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not splice:
        monkeypatch.delattr(os, "splice")
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert {p.read_bytes() for p in (tmp_path / "in").iterdir()} == set(FILES.values())
    assert fetch.state("done")["moved"] == sum(map(len, FILES.values()))
    assert fetch.files_done == 3


def test_a_copy_goes_on_where_it_stopped(tmp_path: Path, service: tuple[str, int]) -> None:
    job = fetch_job(tmp_path, service)
    (tmp_path / "in").mkdir()
    data = FILES["a.safetensors"]
    (tmp_path / "in" / f"{hashlib.sha256(data).hexdigest()}.part").write_bytes(data[: 2 << 20])
    (tmp_path / "in" / hashlib.sha256(b"{}").hexdigest()).write_bytes(b"{}")
    fetch = http_copy.Fetch(job)
    fetch.run()
    assert fetch.moved == 1 << 20
    assert fetch.done == fetch.total
    assert {p.read_bytes() for p in (tmp_path / "in").iterdir()} == set(FILES.values())


def test_a_file_gets_its_room_ahead_and_no_more_than_that(tmp_path: Path) -> None:
    with (tmp_path / "part").open("wb") as part:
        http_copy.take_room(part.fileno(), 0, 8 << 20)
        assert (os.fstat(part.fileno()).st_size, os.fstat(part.fileno()).st_blocks * 512) == (0, 8 << 20)
        with pytest.raises(OSError, match=r"No space left on device|File too large"):
            http_copy.take_room(part.fileno(), 0, 1 << 60)


def test_a_disk_that_becomes_full_is_said(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_descriptor: int, offset: int, _count: int) -> None:
        if offset >= 1 << 20:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(http_copy, "AHEAD", 1 << 20)
    monkeypatch.setattr(http_copy, "take_room", full)
    with pytest.raises(CopyError, match=r"^copying a.safetensors from 127.0.0.1 stopped after \d{7} of 3145728 bytes \(No space left on device\): "):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()
    monkeypatch.undo()
    kept = sum(part.stat().st_size for part in (tmp_path / "in").iterdir())
    assert kept >= 1 << 20
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert fetch.moved == fetch.total - kept


@pytest.mark.parametrize("error", [errno.EOPNOTSUPP, errno.ENOSYS, None], ids=["file system", "kernel", "libc"])
def test_where_no_room_can_be_reserved_the_copy_goes_on(tmp_path: Path, service: tuple[str, int], error: int | None, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_words: Any) -> int:
        ctypes.set_errno(error or 0)
        return -1

    libc = SimpleNamespace(fallocate=refuse) if error else SimpleNamespace()
    monkeypatch.setattr(ctypes, "CDLL", lambda *_words, **_more: libc)
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert {p.read_bytes() for p in (tmp_path / "in").iterdir()} == set(FILES.values())


@pytest.mark.parametrize("kept", ["shorter", "longer", "same-size"])
def test_what_an_earlier_run_left_is_not_trusted(tmp_path: Path, service: tuple[str, int], kept: str) -> None:
    data = FILES["a.safetensors"]
    wrong = {"shorter": b"x" * 100, "longer": data + b"x", "same-size": b"x" * len(data)}[kept]
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / f"{hashlib.sha256(data).hexdigest()}.part").write_bytes(wrong)
    http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert (tmp_path / "in" / hashlib.sha256(data).hexdigest()).read_bytes() == data


def test_a_source_that_has_changed_is_said(tmp_path: Path, service: tuple[str, int], source: Path) -> None:
    (source / "a.safetensors").write_bytes(b"y" * (3 << 20))
    with pytest.raises(CopyError, match=r"a.safetensors arrived with another content than its manifest says, twice"):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()
    (source / "a.safetensors").write_bytes(b"short")
    with pytest.raises(CopyError, match="so that the manifest is read anew"):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()


@pytest.mark.parametrize("word", ["password", "user"])
def test_without_the_password_nothing_is_given(tmp_path: Path, service: tuple[str, int], word: str) -> None:
    with pytest.raises(CopyError, match=r"401 .*refused the password"):
        http_copy.Fetch(fetch_job(tmp_path, service, **{word: "wrong"})).run()
    assert ask(service, "/a.safetensors", Authorization="")[0] == 401
    assert ask(service, "/a.safetensors", Authorization="Bearer x")[0] == 401


@pytest.mark.parametrize("path", ["/", "/sub", "/../../etc/passwd", "/%2e%2e/%2e%2e/etc/passwd", "//etc/passwd", "/nothing"])
def test_only_the_files_of_the_job_are_given(service: tuple[str, int], path: str) -> None:
    assert ask(service, path)[0] == 404


def test_nothing_can_be_written(service: tuple[str, int]) -> None:
    for method in ("PUT", "POST", "DELETE", "MKCOL"):
        assert ask(service, "/a.safetensors", method)[0] == 501


def test_a_file_that_became_a_link_is_not_followed(service: tuple[str, int], source: Path) -> None:
    (source / "a.safetensors").unlink()
    (source / "a.safetensors").symlink_to("/etc/hostname")
    assert ask(service, "/a.safetensors")[0] == 404


def test_strangers_are_dropped(tmp_path: Path, source: Path) -> None:
    running = http_copy.Service(serve_job(source, allow=["127.0.0.9"]))
    [place] = running.start()
    try:
        with pytest.raises((http.client.HTTPException, OSError)):
            ask(place, "/a.safetensors")
    finally:
        running.stop()


def test_ranges_and_heads_are_plain_http(service: tuple[str, int]) -> None:
    data = FILES["a.safetensors"]
    assert ask(service, "/a.safetensors", Range="bytes=5-9")[:2] == (206, data[5:10])
    assert ask(service, "/sub/b%20%C3%BC.json")[1] == b"{}"
    status, body, headers = ask(service, "/a.safetensors", "HEAD")
    assert (status, body, headers["Content-Length"]) == (200, b"", str(len(data)))
    assert ask(service, "/a.safetensors", Range="bytes=99999999-")[0] == 416


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        (None, (0, 10)), ("bytes=3-", (3, 7)), ("bytes=3-5", (3, 3)), ("bytes=3-99", (3, 7)),
        ("bytes=10-", None), ("bytes=-3", None), ("lines=1-", None), ("x", None),
    ],
)  # fmt: skip
def test_ranges(header: str | None, expected: tuple[int, int] | None) -> None:
    assert http_copy.parse_range(header, 10) == expected


def test_a_rail_that_leads_nowhere_is_left_out(tmp_path: Path, service: tuple[str, int]) -> None:
    good = {"address": service[0], "port": service[1], "bind": "127.0.0.1"}
    http_copy.Fetch(fetch_job(tmp_path, service, providers=[[{"address": "127.0.0.1", "port": 1, "bind": ""}, good]])).run()
    with pytest.raises(CopyError, match=r"no rail leads to the node that has the files: 127.0.0.1:1 \(Connection refused\) did not answer"):
        http_copy.Fetch(fetch_job(tmp_path / "x", service, providers=[[{"address": "127.0.0.1", "port": 1, "bind": ""}]])).run()


def test_an_address_that_is_not_here_is_said(source: Path) -> None:
    with pytest.raises(CopyError, match=r"cannot listen on the fabric address 192.0.2.1 .*: is it set on this node"):
        http_copy.Service(serve_job(source, listen=["192.0.2.1"])).start()


def test_a_full_disk_ends_the_copy_with_a_sentence(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_rest: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(http_copy._Stream, "receive", full)
    start = time.monotonic()
    with pytest.raises(CopyError, match=r"copying .* stopped after \d+ of \d+ bytes \(No space left on device\): correct that and run again"):
        http_copy.Fetch(fetch_job(tmp_path, service)).run()
    assert time.monotonic() - start < 2, "a full disk is not tried again"


def test_a_connection_that_breaks_is_taken_up_again(tmp_path: Path, service: tuple[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    real = http_copy._Stream.receive
    broken: list[int] = []

    def receive(self: Any, descriptor: int, count: int, got: Any) -> None:
        if count > 1 << 20 and not broken:
            broken.append(1)
            real(self, descriptor, 1 << 20, got)
            raise ConnectionResetError(104, "Connection reset by peer")
        real(self, descriptor, count, got)

    monkeypatch.setattr(http_copy._Stream, "receive", receive)
    fetch = http_copy.Fetch(fetch_job(tmp_path, service))
    fetch.run()
    assert broken
    assert fetch.moved == fetch.total, "nothing was fetched twice"


def test_as_programs_with_job_files(tmp_path: Path, source: Path) -> None:
    ready = tmp_path / "ready"
    http_copy.write_json(str(tmp_path / "serve"), serve_job(source, idle_seconds=1, ready=str(ready)))
    assert (tmp_path / "serve").stat().st_mode & 0o777 == 0o600
    server = subprocess.Popen([sys.executable, http_copy.__file__, "serve", str(tmp_path / "serve")])
    for _round in range(200):
        if ready.exists():
            break
        time.sleep(0.02)
    [place] = json.loads(ready.read_text())["listen"]
    http_copy.write_json(str(tmp_path / "fetch"), fetch_job(tmp_path, (place[0], place[1])))
    assert subprocess.run([sys.executable, http_copy.__file__, "fetch", str(tmp_path / "fetch")], check=False).returncode == 0
    report = json.loads((tmp_path / "progress").read_text())
    assert report["state"] == "done"
    assert report["files_done"] == 3
    assert server.wait(10) == 0, "nobody asks any more, so it ends by itself"
    http_copy.write_json(str(tmp_path / "fetch"), fetch_job(tmp_path / "again", (place[0], place[1]), progress=str(tmp_path / "progress")))
    assert subprocess.run([sys.executable, http_copy.__file__, "fetch", str(tmp_path / "fetch")], check=False).returncode == 1
    report = json.loads((tmp_path / "progress").read_text())
    assert report["state"] == "failed"
    assert "no rail leads" in report["error"]


def test_many_at_once(tmp_path: Path, service: tuple[str, int]) -> None:
    failures: list[Exception] = []

    def one(number: int) -> None:
        try:
            http_copy.Fetch(fetch_job(tmp_path / str(number), service)).run()
        except (CopyError, OSError) as error:
            failures.append(error)

    threads = [threading.Thread(target=one, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
