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
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.http_copy import CopyError, Staging
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from hypothesis import given, settings
from hypothesis import strategies as st

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


DIGESTS = ["{etc}/victim", "../../etc/victim", "/etc/passwd", "", "A" * 64, DIGEST + "\n", DIGEST[:63], None, 7, ["x"]]


@pytest.mark.parametrize("digest", DIGESTS)
def test_a_digest_that_is_a_path_is_refused_where_it_enters(store: Path, place: dict[str, Any], tmp_path: Path, digest: Any) -> None:
    bad = digest.format(etc=store.parent / "etc") if isinstance(digest, str) else digest
    assert "SHA-256" in result(job(store, place, sha256=bad), store)["error"]
    with pytest.raises(ManifestError, match="SHA-256"):
        model_folder.install(Node(str(tmp_path)), str(store / "m"), [{**ITEM, "sha256": bad}], {}, [])
    model = {"path": "/m", "exists": True, "layout": "directory", "files": {"a.safetensors": {"size": 1, "sha256": bad, "mtime_ns": 1}}, "links": {}}
    model.update({key: [] for key in ("selected", "missing", "incomplete", "damaged", "problems", "copied")}, agreed={}, free_bytes=1, staged={})
    with pytest.raises(ManifestError, match="manifest of two"):
        manifest.plan(["one", "two"], [{**model, "exists": False, "files": {}}, model])
    assert untouched(store)


@pytest.mark.parametrize("number", [-1, True, "1", 1.5, None, 1 << 64])
@pytest.mark.parametrize("key", ["size", "mtime_ns", "provider"])
def test_a_number_that_is_none_is_refused(key: str, number: Any) -> None:
    with pytest.raises(ManifestError, match="not a number"):
        manifest.check_item({**ITEM, key: number})


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


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=12),
    lambda each: st.lists(each, max_size=3) | st.dictionaries(st.text(max_size=8), each, max_size=3),
    max_leaves=8,
)
_KEYS = ("path", "layout", "commit", "files", "links", "selected", "missing", "incomplete", "damaged", "problems", "agreed", "copied", "free_bytes", "staged")


@settings(max_examples=500, derandomize=True, deadline=None)
@given(st.fixed_dictionaries({"exists": st.just(True)}, optional=dict.fromkeys(_KEYS, _JSON)), st.booleans())
def test_any_answer_of_a_node_ends_in_a_plan_or_a_sentence(answer: dict[str, Any], first: bool) -> None:
    good = {
        **{key: [] for key in _KEYS},
        "path": "/m",
        "exists": True,
        "layout": "directory",
        "files": {},
        "links": {},
        "agreed": {},
        "free_bytes": 1,
        "staged": {},
    }
    with contextlib.suppress(ManifestError):
        manifest.plan(["one", "two"], [{**good, **answer}, good] if first else [good, {**good, **answer}])


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
        model_folder.check_parents(str(store), str(store / "org/model"))


def test_a_store_that_is_a_link_of_the_owner_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "disk/org").mkdir(parents=True)
    (tmp_path / "store").symlink_to(tmp_path / "disk")
    model_folder.check_parents(f"{tmp_path}/store/", f"{tmp_path}/store/org/model")
    model_folder.check_parents("/elsewhere", f"{tmp_path}/store/org/model")
