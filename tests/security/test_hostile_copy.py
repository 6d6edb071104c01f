"""A copy from a node that lies, into a folder that a container can write: nothing is written, moved, or removed outside of it (H1, H2, L2)."""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import http.server
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy, manifest, model_folder, unit_job
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import CopyError, Staging
from hostile import FEW
from hypothesis import given
from hypothesis import strategies as st

pytestmark = pytest.mark.slow

DATA = b"* * * * * root touch /x\n"
DIGEST = hashlib.sha256(DATA).hexdigest()
ITEM = {"path": "a.json", "size": len(DATA), "sha256": DIGEST, "mtime_ns": 1, "provider": 0}


class _Answer(http.server.BaseHTTPRequestHandler):
    length = str(len(DATA))

    def do_GET(self) -> None:
        self.send_response(206)
        self.send_header("Content-Length", self.length)
        self.end_headers()
        self.wfile.write(DATA)

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class calls it so
        """Write nothing."""


@pytest.fixture
def place() -> Iterator[dict[str, Any]]:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answer)
    threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
    yield {"address": "127.0.0.1", "port": server.server_address[1]}
    server.shutdown()
    server.server_close()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    (tmp_path / "store").mkdir()
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/victim").write_text("precious\n")
    (tmp_path / "etc/victim").chmod(0o600)
    return tmp_path / "store"


def untouched(store: Path) -> bool:
    """Whether nothing outside of the store has changed."""
    victim = store.parent / "etc/victim"
    return [*os.listdir(store.parent / "etc")] == ["victim"] and victim.read_text() == "precious\n" and victim.stat().st_mode & 0o777 == 0o600


def job(store: Path, place: dict[str, Any], **item: Any) -> dict[str, Any]:
    files = [{"name": "a.json", "size": len(DATA), "sha256": DIGEST, "provider": 0, **item}]
    staging = model_folder.staging_path(str(store / "m"))
    return {"providers": [[place]], "files": files, "staging": staging, "streams": 1, "progress": str(store / "progress"), "user": "u", "password": "p"}


def result(job: dict[str, Any], store: Path) -> dict[str, Any]:
    """Run a job as its unit does, and return its last report."""
    (store / "job").write_text(json.dumps(job))
    code = http_copy.main(["fetch", str(store / "job")])
    report: dict[str, Any] = json.loads(Path(job["progress"]).read_text())
    assert code == (report["state"] != "done")
    return report


def test_a_copy_arrives(store: Path, place: dict[str, Any]) -> None:
    assert result(job(store, place), store)["state"] == "done"


def test_a_link_in_place_of_the_folder_is_refused(store: Path, place: dict[str, Any]) -> None:
    (store / ".gb10-incoming-m").symlink_to(store.parent / "etc")
    report = result(job(store, place), store)
    assert report["state"] == "failed"
    assert "is a link or a file" in report["error"]
    assert untouched(store)


@pytest.mark.parametrize("mode", [0o777, 0o755, 0o770])
def test_a_folder_that_others_can_write_or_read_is_refused(store: Path, place: dict[str, Any], mode: int) -> None:
    (store / ".gb10-incoming-m").mkdir()
    (store / ".gb10-incoming-m").chmod(mode)
    assert f"mode {mode:04o}" in result(job(store, place), store)["error"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(store: Path, place: dict[str, Any]) -> None:
    (store / ".gb10-incoming-m").mkdir(0o700)
    os.chown(store / ".gb10-incoming-m", 1000, 1000)
    assert "belongs to user 1000" in result(job(store, place), store)["error"]


@pytest.mark.parametrize("kind", ["link", "hard link", "pipe", "folder"])
@pytest.mark.parametrize("name", [f"{DIGEST}.part", DIGEST])
def test_what_is_no_file_of_its_own_in_the_folder_is_not_written(store: Path, place: dict[str, Any], kind: str, name: str) -> None:
    staging = store / ".gb10-incoming-m"
    staging.mkdir(0o700)
    victim = store.parent / "etc/victim"
    if kind == "link":
        (staging / name).symlink_to(victim)
    elif kind == "hard link":
        os.link(victim, staging / name)
    elif kind == "pipe":
        os.mkfifo(staging / name)
    else:
        (staging / name).mkdir()
    report = result(job(store, place), store)
    assert untouched(store)
    assert report["state"] == "failed" or (staging / DIGEST).read_bytes() == DATA


def test_an_installed_copy_does_not_follow_a_planted_link(store: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    staging = store / ".gb10-incoming-m"
    staging.mkdir(0o700)
    (staging / DIGEST).write_bytes(DATA)
    (staging / f"{DIGEST}.copy").symlink_to(tmp_path / "etc/victim")
    model_folder.install(Node(str(tmp_path / "node")), str(store / "m"), [ITEM, {**ITEM, "path": "b.json"}], {}, [])
    assert untouched(store)
    assert (store / "m/a.json").read_bytes() == (store / "m/b.json").read_bytes() == DATA


def test_a_link_in_place_of_a_fetched_file_is_not_installed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    (store / ".gb10-incoming-m").mkdir(0o700)
    (store / ".gb10-incoming-m" / DIGEST).symlink_to(tmp_path / "etc/victim")
    with pytest.raises(CopyError, match="not a regular file"):
        model_folder.install(Node(str(tmp_path / "node")), str(store / "m"), [ITEM], {}, [])
    assert untouched(store)


@pytest.mark.parametrize("length", ["abc", "-5", "99999999999999999999", "", "1"])
def test_a_reply_that_is_no_reply_ends_the_copy_with_a_sentence(store: Path, place: dict[str, Any], monkeypatch: pytest.MonkeyPatch, length: str) -> None:
    monkeypatch.setattr(_Answer, "length", length)
    monkeypatch.setattr(http_copy, "ATTEMPTS", 1)
    report = result(job(store, place), store)
    assert report["state"] == "failed"
    assert report["error"]


def test_the_folder_of_a_copy_stays_the_same_if_a_link_takes_its_name(store: Path) -> None:
    path = store / ".gb10-incoming-m"
    staging = Staging(str(path), create=True)
    path.rename(store / "moved")
    path.symlink_to(store.parent / "etc")
    os.close(staging.open("x", os.O_RDWR | os.O_CREAT))
    assert (store / "moved/x").exists()
    assert untouched(store)
    staging.close()


@pytest.mark.parametrize(("allow", "password"), [([], "wrong"), (["10.0.0.9"], "p")], ids=["password", "address"])
def test_a_peer_that_is_refused_does_not_keep_the_server_running(store: Path, allow: list[str], password: str) -> None:
    (store / "f").write_bytes(DATA)
    [server] = http_copy.start_servers({"listen": ["127.0.0.1"], "allow": allow, "files": {"f": str(store / "f")}, "user": "u", "password": "p"})
    before = server.last
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    with contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/f", headers={"Authorization": http_copy.authorization({"user": "u", "password": password})})
        assert connection.getresponse().status == 401
    assert server.last == before
    server.shutdown()
    server.server_close()


def test_the_unit_of_a_copy_writes_below_its_folders_only() -> None:
    properties = unit_job.sandbox(["/run/gb10-cluster", '/srv/a "b" 5%'])
    assert 'ReadWritePaths="/run/gb10-cluster" "/srv/a \\"b\\" 5%%"' in properties
    assert {"ProtectSystem=strict", "PrivateTmp=yes", "NoNewPrivileges=yes"} <= set(properties)
    assert "PrivateTmp=yes" not in unit_job.sandbox(["/run/x"], ["/tmp/models/a"]), "the files to send would be hidden"


def test_silent_connections_have_few_threads_and_are_closed(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (store / "f").write_bytes(DATA)
    monkeypatch.setattr(http_copy._Handler, "timeout", 0.5)
    [server] = http_copy.start_servers({"listen": ["127.0.0.1"], "allow": [], "files": {"f": str(store / "f")}, "user": "u", "password": "p"})
    place = ("127.0.0.1", server.server_address[1])
    silent = [socket.create_connection(place, timeout=5) for _number in range(300)]
    time.sleep(0.3)
    assert threading.active_count() <= http_copy.CONNECTIONS + 1
    for each in silent:
        with contextlib.suppress(ConnectionResetError):
            assert each.recv(1) == b"", "closed by the server"
        each.close()
    connection = http.client.HTTPConnection(*place, timeout=5)
    connection.request("GET", "/f", headers={"Authorization": http_copy.authorization({"user": "u", "password": "p"})})
    assert connection.getresponse().read() == DATA
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize("part", ["org", "org/model"])
def test_a_link_between_the_store_and_the_model_is_refused(tmp_path: Path, part: str) -> None:
    store, other = tmp_path / "store", tmp_path / "etc"
    other.mkdir()
    (store / part).parent.mkdir(parents=True)
    (store / part).symlink_to(other)
    with pytest.raises(ManifestError, match=f"{part} is a link to {other}.*Nothing was copied"):
        model_folder.place_of(str(store / "org/model"), str(store))


def test_a_store_that_is_a_link_of_the_owner_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "disk/org").mkdir(parents=True)
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    for where in (f"{tmp_path}/store/", "/elsewhere"):
        assert model_folder.place_of(f"{tmp_path}/store/org/model", where) == f"{tmp_path}/disk/org/model"


def test_a_folder_of_the_model_stays_the_same_if_a_link_takes_its_name(store: Path) -> None:
    place = model_folder.Installer(str(store / "m"))
    with place.parent("d/a.json", create=True) as (folder, last):
        (store / "m/d").rename(store / "m/moved")
        (store / "m/d").symlink_to(store.parent / "etc")
        os.close(os.open(last, os.O_WRONLY | os.O_CREAT, 0o600, dir_fd=folder))
    assert (store / "m/moved/a.json").exists()
    with pytest.raises(CopyError, match="leads through a link"):
        place.link("d/victim", "a.json")
    with pytest.raises(CopyError, match="leads through a link"):
        place.remove("d/victim")
    assert untouched(store)


def test_a_model_below_a_link_is_not_installed_read_or_removed(store: Path, tmp_path: Path) -> None:
    (tmp_path / "node").mkdir()
    node, path = Node(str(tmp_path / "node")), str(store / "org/m")
    (store / "org").symlink_to(store.parent / "etc")
    node.save_record(manifest.record_name(path), {"path": path, "copied": ["victim"], "cache": {}})
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.install(node, path, [], {"l": "x"}, [], store=str(store))
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.read(node, path, "directory", "main", True, False, str(store))
    with pytest.raises(ManifestError, match="is a link to"):
        model_folder.absent(node, path, False, str(store))
    assert untouched(store)


@pytest.mark.parametrize("kind", ["link", "fifo", "folder"])
def test_a_file_that_is_replaced_before_it_is_hashed_is_not_followed(store: Path, kind: str) -> None:
    (store / "a.json").write_text("{}")
    files, _links, _problems = model_folder.walk(str(store))
    (store / "a.json").unlink()
    if kind == "link":
        (store / "a.json").symlink_to(store.parent / "etc/victim")
    elif kind == "fifo":
        os.mkfifo(store / "a.json")
    else:
        (store / "a.json").mkdir()
    with pytest.raises(CopyError, match="not a regular file"):
        model_folder.hash_files(str(store), files, {}, True)


@pytest.mark.parametrize("target", ["/etc/passwd", "../etc/victim", "/dev/zero", "loop.index.json", "pipe"])
def test_an_index_that_leads_out_of_the_model_is_not_read(store: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "node").mkdir()
    (store.parent / "etc/victim").write_text('{"weight_map": {"x": "secret-of-another-file"}}')
    (store / "loop.index.json").symlink_to(target)
    (store / "a.safetensors").write_bytes(b"x")
    os.mkfifo(store / "pipe")
    found = model_folder.read(Node(str(tmp_path / "node")), str(store), "directory", "main", True, False)
    assert found["problems"]
    assert "secret" not in json.dumps(found)


def test_a_folder_that_becomes_a_link_is_not_served(store: Path) -> None:
    (store / "m").mkdir()
    (store / "m/victim").write_bytes(DATA)
    job: dict[str, Any] = {"listen": ["127.0.0.1"], "allow": [], "files": {"victim": str(store / "m/victim")}, "user": "u", "password": "p"}
    [server] = http_copy.start_servers(job)
    (store / "m").rename(store / "moved")
    (store / "m").symlink_to(store.parent / "etc")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_address[1], timeout=5)
    connection.request("GET", "/victim", headers={"Authorization": http_copy.authorization(job)})
    reply = connection.getresponse()
    assert (reply.status, b"precious" in reply.read()) == (404, False)
    server.shutdown()
    server.server_close()


LINKS: list[tuple[list[str], dict[str, str]]] = [
    (["a", "a/b"], {}), (["l/x"], {"l": "d"}), ([], {"l": ".", "l/up": ".."}), ([], {"l": "sub", "sub/x": "../../etc"}), ([], {"d/l": "..", "e": "d/l/.."}),
    (["a"], {"a": "b"}), ([], {"l": "l"}), ([], {"l": "m", "m": "l"}), ([], {"l": "a\0b"}), ([], {"l": ""}), ([], {"l": "/etc"}), ([], {"l": "../x"}),
    ([], {"l": "x" * 300}), ([], {"l": "a\u202eb"}), ([], {"l": "\udcff"}),
]  # fmt: skip


@pytest.mark.parametrize(("files", "links"), LINKS)
def test_files_and_links_that_lead_out_or_meet_are_refused(store: Path, tmp_path: Path, files: list[str], links: dict[str, str]) -> None:
    entry = {"size": len(DATA), "sha256": DIGEST, "mtime_ns": 1}
    names = [*files, "w.safetensors"]
    good = {"path": "/m", "exists": True, "layout": "directory", "files": dict.fromkeys(names, entry), "links": links, "selected": [*names, *links]}
    good.update({key: [] for key in ("missing", "incomplete", "damaged", "problems", "copied")}, agreed={}, free_bytes=1 << 40, staged={})
    with pytest.raises(ManifestError):
        manifest.plan(["one", "two"], [good, {**good, "exists": False, "files": {}, "links": {}, "selected": []}])
    with pytest.raises(ManifestError):
        model_folder.install(Node(str(tmp_path)), str(store / "m"), [{**entry, "path": name} for name in files], links, [])
    assert untouched(store)


BAD_PATHS = ["", ".", "./a", "a/", "a//b", "a/./b", "a/../b", "..", "../a", "/a", "a\nb", "a\0b", "\x9b2J", "a\u202e", "a\u2028b", "\ud800", "x" * 256,
             "d/" * 1500 + "a"]  # fmt: skip


@pytest.mark.parametrize("path", BAD_PATHS)
def test_a_path_that_leads_out_or_has_another_form_is_refused(path: str) -> None:
    with pytest.raises(ManifestError, match="nothing was copied"):
        manifest.check_name(path)


HEADS = st.sampled_from(
    [b"HTTP/1.1 206 x\r\nContent-Length: 24\r\n\r\n", b"HTTP/1.1 206 x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", b"HTTP/1.1 200 x\r\n\r\n", b"", b"HTTP/9"]
)


@FEW
@given(head=HEADS, body=st.just(DATA) | st.binary(max_size=100))
def test_any_bytes_of_a_peer_end_in_a_file_that_fits_or_a_sentence(tmp_path_factory: pytest.TempPathFactory, head: bytes, body: bytes) -> None:
    place = tmp_path_factory.mktemp("copy")
    (place / "store").mkdir()
    with socket.create_server(("127.0.0.1", 0)) as listening, pytest.MonkeyPatch.context() as patch:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    connection, _address = listening.accept()
                    with connection, contextlib.suppress(OSError):
                        connection.settimeout(5)
                        if connection.recv(65536):
                            connection.sendall(head + body)

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        patch.setattr(http_copy, "ATTEMPTS", 1)
        report = result(job(place / "store", {"address": "127.0.0.1", "port": listening.getsockname()[1]}), place / "store")
        listening.shutdown(socket.SHUT_RDWR)
        thread.join(5)
    assert os.listdir(place) == ["store"]
    whole = place / "store/.gb10-incoming-m" / DIGEST
    assert whole.read_bytes() == DATA if report["state"] == "done" else report["error"] and not whole.exists()
