# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Copy files from one node to another over the fabric: HTTP with sendfile at the serving end and splice at the fetching end.

Why not rsync or rclone: 3.1 GB/s from file to file, against 1.2 GB/s of four rsync processes and 0.7 GB/s of rclone (`benchmarks/copy_rate.py --others`).

This file is also a program. A unit runs `rail_copy.py serve job.json` or `rail_copy.py fetch job.json` on a node, so it imports only the standard
library and `plain.py`. The job is a 0600 file, because it has the password. Sizes are bytes, times are seconds. A job is a mapping:

- serve: `listen` (addresses), `port` (0: any), `user`, `password`, `allow` (peer addresses), `files` (name -> absolute path), `idle_seconds`,
  `ready` (file that gets `{"error", "listen": [[address, port], ...]}`).
- fetch: `user`, `password`, `providers` (a list of lists of `{"address", "port", "bind"}`), `files` (`name`, `size`, `sha256`, `provider`),
  `staging` (folder that gets `<sha256>` for each file), `streams`, `progress` (file that is rewritten while the job runs).
"""

from __future__ import annotations

import base64
import contextlib
import errno
import hashlib
import hmac
import http.client
import http.server
import json
import os
import re
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from typing import Any, Callable

try:
    from ansible_collections.gb10.cluster.plugins.module_utils._transfer.plain import STRETCH, CopyError, Staging, forget, forget_written, open_file, passed
except ImportError:  # as a program
    from plain import (  # type: ignore[import-not-found,no-redef]  # a file next to this one
        STRETCH,
        CopyError,
        Staging,
        forget,
        forget_written,
        open_file,
        passed,
    )

CHUNK = 1 << 20
SPLICE_MOVE_MORE = 1 | 4
F_SETPIPE_SZ = 1031
FALLOC_FL_KEEP_SIZE = 1
ATTEMPTS = 5
CONNECT_TIMEOUT = 5.0
TIMEOUT = 30
CONNECTIONS = 64  # at the same time, one thread each
PROGRESS_SECONDS = 0.5
SHA256 = re.compile(r"[0-9a-f]{64}")
LASTING = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Replace a 0600 file atomically. Raises OSError."""
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        json.dump(value, handle)
    os.replace(temporary, path)


def sha256_file(path: str | int, end: float = float("inf")) -> str:
    """Return the SHA-256 of a file, which can be a descriptor (it is closed), as hex. Raises OSError, after the time `end` TimeoutError.

    It leaves no page cache behind.
    """
    digest, position = hashlib.sha256(), 0
    buffer = memoryview(bytearray(1 << 22))
    with open(path, "rb", buffering=0) as handle:
        while count := handle.readinto(buffer):
            digest.update(buffer[:count])
            position += count
            passed(handle.fileno(), position, count)
            if time.monotonic() > end:
                raise TimeoutError
        forget(handle.fileno())
    return digest.hexdigest()


def preallocate(descriptor: int, offset: int, count: int) -> None:
    """Reserve a file's blocks and keep its length. Raises OSError if the disk is full. A file system that cannot reserve is ignored.

    On ext4 this makes the copy a third faster (benchmarks/copy_rate.py).
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(count))
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a libc without the call
        return
    if failed and ctypes.get_errno() in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def authorization(job: Mapping[str, Any]) -> str:
    """Return the value of the header Authorization."""
    return "Basic " + base64.b64encode("{}:{}".format(job["user"], job["password"]).encode()).decode()


def set_timeouts(connection: socket.socket, seconds: int) -> None:
    """Make a socket blocking, as sendfile and splice need it, with time limits of the kernel."""
    connection.settimeout(None)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("ll", seconds, 0))


# --- the serving end ------------------------------------------------------------------------------------------------------------


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: replies to GET for the files of the job, and to nothing else."""

    protocol_version = "HTTP/1.1"
    timeout = 10
    server: _Server
    sent = -1  # the file of the last request: its end is on the way to the peer until the next request, or until the connection ends

    def do_GET(self) -> None:
        given = self.headers.get("Authorization") or ""
        if not hmac.compare_digest(given.encode(), self.server.authorization.encode()):
            return self.send_error(401)
        self.server.last = time.monotonic()
        path = self.server.files.get(urllib.parse.unquote(self.path[1:]))
        try:
            descriptor = open_file(path or "")
        except (CopyError, OSError):
            return self.send_error(404)
        try:
            size = os.fstat(descriptor).st_size
            span = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or "bytes=0-")
            if not span or int(span[1]) > size:
                return self.send_error(416)
            self.send_response(206 if self.headers.get("Range") else 200)
            self.send_header("Content-Length", str(size - int(span[1])))
            self.end_headers()
            self.send(descriptor, int(span[1]), size)
        finally:
            self.forget_sent()
            self.sent = descriptor
        return None

    def forget_sent(self) -> None:
        if self.sent >= 0:
            forget(self.sent)
            os.close(self.sent)

    def finish(self) -> None:
        """End the connection."""
        try:
            super().finish()
        finally:
            self.forget_sent()

    def log_request(self, code: Any = "-", size: Any = "-") -> None:
        """Write no line for a request; send_error writes its own."""

    def send(self, descriptor: int, offset: int, end: int) -> None:
        set_timeouts(self.connection, 2 * TIMEOUT)
        while offset < end:
            try:
                sent = os.sendfile(self.connection.fileno(), descriptor, offset, min(end - offset, 8 * CHUNK))
            except OSError:
                sent = 0
            if not sent:  # the peer is gone, or the file became shorter
                self.close_connection = True
                return
            offset += sent
            self.server.last = time.monotonic()
            passed(descriptor, offset, sent)


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, job: Mapping[str, Any]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.files: dict[str, str] = dict(job["files"])
        self.allow = set(job["allow"])
        self.authorization = authorization(job)
        self.last = time.monotonic()  # of the last request or block
        super().__init__((address, int(job.get("port", 0))), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  the base class calls it so
        """Drop a peer that is not a rank of the group, and a connection above the limit."""
        return (not self.allow or client_address[0] in self.allow) and threading.active_count() <= CONNECTIONS


def start_servers(job: Mapping[str, Any]) -> list[_Server]:
    """Bind each address and serve in threads. Raises CopyError."""
    servers = []
    for address in job["listen"]:
        try:
            server = _Server(address, job)
        except OSError as error:
            raise CopyError(
                f"cannot listen on the fabric address {address} ({error.strerror}): is it set on this node (ip -br address), and is the port free?"
            ) from error
        servers.append(server)
        threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
    return servers


# --- the fetching end -----------------------------------------------------------------------------------------------------------


def connect(place: Mapping[str, Any]) -> http.client.HTTPConnection:
    """Return a connection to an address of a provider. Raises OSError."""
    bind = (str(place["bind"]), 0) if place.get("bind") else None
    connection = http.client.HTTPConnection(str(place["address"]), int(place["port"]), timeout=CONNECT_TIMEOUT, source_address=bind)
    connection.connect()
    set_timeouts(connection.sock, TIMEOUT)
    return connection


def _splice(source: socket.socket, target: int, count: int, got: Callable[[int], None]) -> None:
    import fcntl

    read_end, write_end = os.pipe()
    try:
        with contextlib.suppress(OSError):
            fcntl.fcntl(write_end, F_SETPIPE_SZ, CHUNK)
        while count:
            moved = left = os.splice(source.fileno(), write_end, min(count, CHUNK), flags=SPLICE_MOVE_MORE)
            if not moved:
                raise ConnectionResetError(errno.ECONNRESET, "connection closed by the peer")
            while left:
                left -= os.splice(read_end, target, left, flags=SPLICE_MOVE_MORE)
            count -= moved
            got(moved)
    finally:
        os.close(read_end)
        os.close(write_end)


def _read_and_write(source: socket.socket, target: int, count: int, got: Callable[[int], None]) -> None:
    buffer = memoryview(bytearray(CHUNK))
    while count:
        moved = source.recv_into(buffer, min(count, CHUNK))
        if not moved:
            raise ConnectionResetError(errno.ECONNRESET, "connection closed by the peer")
        os.write(target, buffer[:moved])
        count -= moved
        got(moved)


def receive(source: socket.socket, target: int, count: int, got: Callable[[int], None]) -> None:
    """Move `count` bytes from a socket to a file at its position. Raises OSError."""
    (_splice if hasattr(os, "splice") else _read_and_write)(source, target, count, got)  # splice: Python 3.10


class Fetch:
    """The fetching end of a job: several files at once. Each one is resumed where an earlier run stopped, and hashed."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        """Take the job. Raises CopyError."""
        self.job = job
        for item in job["files"]:
            if not SHA256.fullmatch(str(item["sha256"])) or int(item["size"]) < 0:
                raise CopyError(f"{item['name']!r} has no valid SHA-256 or size in the manifest of the node that has it: nothing was copied")
        self.files = list({item["sha256"]: item for item in job["files"]}.values())
        self.headers = {"Authorization": authorization(job)}
        self.places: dict[int, list[Mapping[str, Any]]] = {}  # provider -> its addresses that can be reached
        self.lock = threading.Lock()
        self.done = 0  # bytes on the disk, including earlier runs
        self.moved = 0  # bytes over the wire in this run
        self.hashed = 0
        self.files_done = 0
        self.started = time.time()
        self.first = self.last = 0.0

    def state(self, name: str, error: str = "") -> dict[str, Any]:
        """Return the content of the progress file."""
        return {
            "state": name, "error": error, "total": sum(int(item["size"]) for item in self.files), "done": self.done, "moved": self.moved,
            "files": len(self.files), "files_done": self.files_done, "hashed": self.hashed, "started": self.started, "updated": time.time(),
            "copy_seconds": max(0.0, self.last - self.first),
        }  # fmt: skip

    def got(self, count: int) -> None:
        with self.lock:
            self.last = time.monotonic()
            self.first = self.first or self.last
            self.done += count
            self.moved += count

    @staticmethod
    def part(item: Mapping[str, Any]) -> str:
        return f"{item['sha256']}.part"

    def reachable(self, provider: int) -> list[Mapping[str, Any]]:
        """Return the provider's addresses that answer. Raises CopyError."""
        good, tried = [], []
        for place in self.job["providers"][provider]:
            try:
                connect(place).close()
                good.append(place)
            except OSError as error:
                tried.append("{}:{} ({})".format(place["address"], place["port"], error.strerror or error))
        if not good:
            raise CopyError(
                "no rail leads to the node that has the files: {} did not answer; check the cable and that no firewall closes the port".format(
                    ", ".join(tried) or "no address"
                )
            )
        return good

    def fetch(self, item: Mapping[str, Any], index: int) -> Mapping[str, Any]:
        """Fetch one file into its .part, over the rail that its index selects first. Raises CopyError."""
        size, places = int(item["size"]), self.places[int(item["provider"])]
        descriptor = self.staging.open(self.part(item), os.O_RDWR | os.O_CREAT)
        try:
            if os.fstat(descriptor).st_size > size:
                os.ftruncate(descriptor, 0)
            have = os.fstat(descriptor).st_size
            with self.lock:
                self.done += have
            attempt = 0
            while have < size:
                place = places[(index + attempt) % len(places)]
                try:
                    self.transfer(item, place, descriptor, have)
                except (OSError, ValueError, http.client.HTTPException) as error:  # ValueError: a header that is not a number
                    attempt += 1
                    if attempt == ATTEMPTS or getattr(error, "errno", 0) in LASTING:
                        raise CopyError(
                            "copying {} from {} stopped after {} of {} bytes ({}): correct that and run again, it goes on from there".format(
                                item["name"], place["address"], os.fstat(descriptor).st_size, size, getattr(error, "strerror", "") or error
                            )
                        ) from error
                    time.sleep(min(2.0**attempt / 4, 4.0))
                have = os.fstat(descriptor).st_size
            forget_written(descriptor)
        finally:
            os.close(descriptor)
        return item

    def transfer(self, item: Mapping[str, Any], place: Mapping[str, Any], descriptor: int, offset: int) -> None:
        """Fetch the bytes of one file from an offset on. Raises CopyError, OSError, HTTPException."""
        left = int(item["size"]) - offset
        with contextlib.closing(connect(place)) as connection:
            connection.request("GET", "/" + urllib.parse.quote(str(item["name"])), headers={**self.headers, "Range": f"bytes={offset}-"})
            response = connection.getresponse()
            if response.status != 206 or response.length != left:
                reply = f"{response.status} {response.reason}, {response.length} of {left} bytes"
                raise CopyError(f"{place['address']} replied {reply} for {item['name']}: run again, so that the manifest is read again")
            os.lseek(descriptor, offset, os.SEEK_SET)
            early = response.read1(CHUNK)  # empties the buffer of the response; the rest is read from the socket
            os.write(descriptor, early)
            self.got(len(early))
            left -= len(early)
            while left:  # in stretches, so that the folder occupies nearly what has arrived
                count = min(left, STRETCH)
                preallocate(descriptor, os.lseek(descriptor, 0, os.SEEK_CUR), count)
                receive(connection.sock, descriptor, count, self.got)
                left -= count
                forget(descriptor, int(item["size"]) - left)

    def check(self, item: Mapping[str, Any]) -> bool:
        """Hash a fetched file. Keep it under its hash, or remove it."""
        if sha256_file(self.staging.open(self.part(item))) != item["sha256"]:
            self.staging.remove(self.part(item))
            with self.lock:
                self.done -= int(item["size"])
            return False
        self.staging.rename(self.part(item), item["sha256"])
        with self.lock:
            self.files_done += 1
            self.hashed += int(item["size"])
        return True

    def round(self, items: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Fetch and hash files; return those with another content. Raises CopyError, OSError."""
        largest_first = sorted(items, key=lambda item: -int(item["size"]))
        streams, cores = max(1, int(self.job.get("streams", 4))), os.cpu_count() or 1
        at_once = cores > 2 * streams  # on a small machine, hashing would take the cores that the copy needs
        with ThreadPoolExecutor(min(cores, 8)) as hashers, ThreadPoolExecutor(streams) as copiers:
            copies = [copiers.submit(self.fetch, item, index) for index, item in enumerate(largest_first)]
            checks = {}
            try:
                for copy in as_completed(copies):
                    item = copy.result()
                    if at_once:
                        checks[hashers.submit(self.check, item)] = item
            except BaseException:
                copiers.shutdown(wait=False, cancel_futures=True)
                raise
            if not at_once:
                checks = {hashers.submit(self.check, item): item for item in largest_first}
            return [item for check, item in checks.items() if not check.result()]

    def run(self) -> None:
        """Fetch all files. Raises CopyError, OSError."""
        self.staging = Staging(self.job["staging"], create=True)
        with contextlib.closing(self.staging):
            self.fetch_all()

    def fetch_all(self) -> None:
        """Fetch all files into the open folder. Raises CopyError, OSError."""
        for item in self.files:
            if self.staging.exists(item["sha256"]):
                self.staging.rename(item["sha256"], self.part(item))  # hashed again: the machine may have lost power since
        self.places = {number: self.reachable(number) for number in {int(item["provider"]) for item in self.files}}
        left = self.round(self.round(self.files))
        if left:
            raise CopyError(
                "{} arrived with another content than in its manifest, twice: the source has changed since it was read, "
                "or its memory or disk is faulty; run again with weights_verify=full".format(", ".join(str(item["name"]) for item in left))
            )


def _fetch(job: Mapping[str, Any]) -> int:
    try:
        fetch = Fetch(job)
    except (CopyError, KeyError, TypeError, ValueError) as failure:
        write_json(job["progress"], {"state": "failed", "error": str(failure)})
        return 1
    ended, error = threading.Event(), ""

    def report() -> None:
        while True:
            write_json(job["progress"], fetch.state("running"))
            if ended.wait(PROGRESS_SECONDS):
                return

    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        fetch.run()
    except CopyError as failure:
        error = str(failure)
    except OSError as failure:
        error = f"{failure.filename or job['staging']} cannot be written ({failure.strerror}): correct that and run again"
    except Exception as failure:  # noqa: BLE001  what the other node sends must not leave a copy that is neither done nor failed
        error = f"the copy failed: {type(failure).__name__}: {failure}"
    ended.set()
    thread.join()
    write_json(job["progress"], fetch.state("failed" if error else "done", error))
    return 1 if error else 0


def _serve(job: Mapping[str, Any]) -> int:
    try:
        servers = start_servers(job)
    except CopyError as error:
        write_json(job["ready"], {"error": str(error), "listen": []})
        return 1
    write_json(job["ready"], {"error": "", "listen": [list(server.server_address[:2]) for server in servers]})
    while time.monotonic() - max(server.last for server in servers) < float(job.get("idle_seconds", 120)):
        time.sleep(0.5)
    return 0


def main(argv: Sequence[str]) -> int:
    """Run `serve` or `fetch` with a job file."""
    with open(argv[1], encoding="utf-8") as handle:
        job = json.load(handle)
    return {"serve": _serve, "fetch": _fetch}[argv[0]](job)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
