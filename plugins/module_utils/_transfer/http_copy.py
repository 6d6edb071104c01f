# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Files from one node to another over the fabric: HTTP/1.1 with ranges, sendfile at one end and splice at the other.

This file is also a program: the modules write it to a node and start it as a transient unit (`rail_copy.py serve job.json`,
`rail_copy.py fetch job.json`), so it imports nothing but the standard library and reads its job, password included, from a 0600 file.

Why not a kept tool: between two namespaces of one machine (2 cores) a raw TCP stream made 2.1 GB/s, `rclone serve` with `rclone copy` from
file to file 0.7 (http), 1.0 (webdav) and 0.2 GB/s (sftp), this 2.9 GB/s. `benchmarks/copy_rate.py --rclone` measures all of them again.
The protocol is plain HTTP with Basic authentication: curl or rclone can stand in for the fetching end.

Sizes are bytes, times are seconds. A job is a mapping:

- serve: `listen` (addresses), `port` (0: any), `user`, `password`, `allow` (peer addresses), `files` (name -> absolute path), `idle_seconds`,
  `ready` (file that gets `{"pid", "listen": [[address, port], ...]}`).
- fetch: `user`, `password`, `providers` (a list of lists of `{"address", "port", "bind"}`), `files` (`name`, `size`, `sha256`, `provider`),
  `staging` (folder that gets `<sha256>` for each file), `streams`, `progress` (file that is rewritten while the job runs).
"""

from __future__ import annotations

import base64
import concurrent.futures
import contextlib
import errno
import hashlib
import hmac
import http.server
import json
import os
import queue
import socket
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Mapping, Sequence
from typing import Any, Callable

CHUNK = 1 << 20
SPLICE_MOVE_MORE = 1 | 4
F_SETPIPE_SZ = 1031
FALLOC_FL_KEEP_SIZE = 1
AHEAD = 64 << 20
ATTEMPTS = 5
TIMEOUT = 30.0
PROGRESS_SECONDS = 0.5


class CopyError(Exception):
    """A copy cannot go on; the text is a sentence for the user."""


def _retry_later(error: OSError) -> bool:
    return error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO)


def write_json(path: str, value: Mapping[str, Any]) -> None:
    """Replace a 0600 file atomically. Raises OSError."""
    temporary = f"{path}.{os.getpid()}.{threading.get_ident()}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "w", encoding="utf-8") as handle:
        json.dump(value, handle)
    os.replace(temporary, path)


def sha256_file(path: str, extra: Any = None) -> str:
    """Return a file's SHA-256 as hex; `extra` is another hash object that sees the same bytes. Raises OSError."""
    digest = hashlib.sha256()
    buffer = bytearray(1 << 22)
    view = memoryview(buffer)
    with open(path, "rb", buffering=0) as handle:
        while True:
            count = handle.readinto(buffer)
            if not count:
                return digest.hexdigest()
            digest.update(view[:count])
            if extra is not None:
                extra.update(view[:count])


def take_room(descriptor: int, offset: int, count: int) -> None:
    """Reserve a file's blocks and leave its length as it is. Raises OSError when there is no room; a file system that reserves nothing is left alone.

    On ext4 this makes the copy a third faster, for blocks are not reserved one by one while it runs (benchmarks/copy_rate.py).
    """
    try:
        import ctypes

        libc = ctypes.CDLL(None, use_errno=True)
        failed = libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE, ctypes.c_int64(offset), ctypes.c_int64(count))
    except (ImportError, OSError, AttributeError):  # a Python without ctypes, a libc without the call
        return
    if failed and ctypes.get_errno() in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


# --- the serving end ------------------------------------------------------------------------------------------------------------


def parse_range(header: str | None, size: int) -> tuple[int, int] | None:
    """Return (first byte, count) of a Range header (`bytes=a-` or `bytes=a-b`), the whole file without one, None for a bad one."""
    if not header:
        return 0, size
    unit, _sep, span = header.partition("=")
    first, _sep, last = span.partition("-")
    if unit.strip() != "bytes" or not first.strip().isdigit() or (last.strip() and not last.strip().isdigit()):
        return None
    start = int(first)
    end = min(int(last) if last.strip() else size - 1, size - 1)
    return (start, end - start + 1) if start <= end else None


class _Handler(http.server.BaseHTTPRequestHandler):
    """One connection: answers GET and HEAD for the files of the job, and nothing else."""

    protocol_version = "HTTP/1.1"
    server_version = "gb10"
    sys_version = ""
    timeout = 60
    server: _Server

    def refuse(self, status: int, *headers: tuple[str, str]) -> None:
        self.send_response(status)
        for key, value in headers:
            self.send_header(key, value)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def do_HEAD(self) -> None:
        self.answer(False)

    def do_GET(self) -> None:
        self.answer(True)

    def answer(self, body: bool) -> None:
        given = self.headers.get("Authorization") or ""
        if not hmac.compare_digest(given.encode(), self.server.authorization.encode()):
            self.close_connection = True
            return self.refuse(401, ("WWW-Authenticate", 'Basic realm="gb10"'))
        path = self.server.files.get(urllib.parse.unquote(self.path.lstrip("/")))
        if path is None:
            return self.refuse(404)
        try:
            descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0))
        except OSError:
            return self.refuse(404)
        try:
            size = os.fstat(descriptor).st_size
            span = parse_range(self.headers.get("Range"), size)
            if span is None:
                return self.refuse(416, ("Content-Range", f"bytes */{size}"))
            offset, count = span
            self.send_response(206 if self.headers.get("Range") else 200)
            if self.headers.get("Range"):
                self.send_header("Content-Range", f"bytes {offset}-{offset + count - 1}/{size}")
            self.send_header("Content-Length", str(count))
            self.send_header("Accept-Ranges", "bytes")
            self.end_headers()
            self.wfile.flush()
            if body:
                self.send(descriptor, offset, count)
        finally:
            os.close(descriptor)
        return None

    def send(self, descriptor: int, offset: int, count: int) -> None:
        self.connection.setblocking(True)
        self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("ll", self.timeout, 0))
        end = offset + count
        while offset < end:
            try:
                sent = os.sendfile(self.connection.fileno(), descriptor, offset, min(end - offset, 8 * CHUNK))
            except OSError:
                sent = 0
            if not sent:  # the peer is gone, or the file became shorter
                self.close_connection = True
                return
            offset += sent
            self.server.touch()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002  the base class's name
        if len(args) > 1 and not str(args[1]).startswith("2"):
            sys.stderr.write(f"{self.client_address[0]} {format % args}\n")


class _Server(http.server.ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, address: str, port: int, job: Mapping[str, Any], touch: Callable[[], None]) -> None:
        self.address_family = socket.AF_INET6 if ":" in address else socket.AF_INET
        self.files: dict[str, str] = dict(job["files"])
        self.allow = set(job["allow"])
        secret = base64.b64encode("{}:{}".format(job["user"], job["password"]).encode()).decode()
        self.authorization = f"Basic {secret}"
        self.touch = touch
        super().__init__((address, port), _Handler)

    def verify_request(self, request: Any, client_address: Any) -> bool:  # noqa: ARG002  the base class calls it so
        """Drop whoever is not a rank of the group; the password is checked for the others."""
        self.touch()
        return not self.allow or client_address[0] in self.allow

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ARG002  the base class calls it so
        """Say a broken connection in one line."""
        sys.stderr.write(f"{client_address[0]}: {sys.exc_info()[1]}\n")


class Service:
    """The serving end of a job; `start` returns the addresses, `wait` returns when nobody has asked for `idle_seconds`."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        """Keep the job."""
        self.job = job
        self.last = time.monotonic()
        self.servers: list[_Server] = []

    def touch(self) -> None:
        """Note that somebody asked."""
        self.last = time.monotonic()

    def start(self) -> list[tuple[str, int]]:
        """Bind each address and serve. Raises CopyError."""
        for address in self.job["listen"]:
            try:
                server = _Server(address, int(self.job.get("port", 0)), self.job, self.touch)
            except OSError as error:
                self.stop()
                raise CopyError(
                    f"cannot listen on the fabric address {address} ({error.strerror}): is it set on this node (ip -br address), and is the port free?"
                ) from error
            self.servers.append(server)
            threading.Thread(target=server.serve_forever, args=(0.2,), daemon=True).start()
        return [(str(s.server_address[0]), int(s.server_address[1])) for s in self.servers]

    def wait(self) -> None:
        """Return when nobody has asked for `idle_seconds`."""
        idle = float(self.job.get("idle_seconds", 120))
        while time.monotonic() - self.last < idle:
            time.sleep(0.5)

    def stop(self) -> None:
        """Close all sockets."""
        for server in self.servers:
            server.shutdown()
            server.server_close()


# --- the fetching end -----------------------------------------------------------------------------------------------------------


class _Stream:
    """A connection to a provider, kept for one file after the other."""

    def __init__(self, place: Mapping[str, Any], authorization: str) -> None:
        self.place = place
        self.authorization = authorization
        bind = (str(place["bind"]), 0) if place.get("bind") else None
        self.socket = socket.create_connection((str(place["address"]), int(place["port"])), timeout=5.0, source_address=bind)
        self.socket.setblocking(True)
        timeout = struct.pack("ll", int(TIMEOUT), 0)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, timeout)
        self.socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, timeout)
        self.pipe: tuple[int, int] | None = None
        if hasattr(os, "splice"):  # Python 3.10
            import fcntl

            self.pipe = os.pipe()
            with contextlib.suppress(OSError):
                fcntl.fcntl(self.pipe[1], F_SETPIPE_SZ, CHUNK)

    def close(self) -> None:
        self.socket.close()
        for descriptor in self.pipe or ():
            os.close(descriptor)

    def request(self, name: str, offset: int) -> tuple[int, int, bytes]:
        """Ask for a file from an offset on; return the status, the body's length and the part of the body that came with the head."""
        text = (
            f"GET /{urllib.parse.quote(name)} HTTP/1.1\r\nHost: {self.place['address']}\r\n"
            f"Authorization: {self.authorization}\r\nRange: bytes={offset}-\r\n\r\n"
        )
        self.socket.sendall(text.encode())
        data = b""
        while b"\r\n\r\n" not in data:
            piece = self.socket.recv(65536)
            if not piece or len(data) > 65536:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed before an answer")
            data += piece
        head, _sep, body = data.partition(b"\r\n\r\n")
        lines = head.decode("latin-1").split("\r\n")
        words = lines[0].split(" ")
        status = int(words[1]) if len(words) > 1 and words[1].isdigit() else 0
        headers = {key.strip().lower(): value.strip() for key, _sep, value in (line.partition(":") for line in lines[1:])}
        return status, int(headers.get("content-length", "0")), body

    def receive(self, descriptor: int, count: int, got: Callable[[int], None]) -> None:
        """Move `count` bytes from the socket to a file at its position."""
        if self.pipe is not None:
            read_end, write_end = self.pipe
            while count:
                moved = os.splice(self.socket.fileno(), write_end, min(count, CHUNK), flags=SPLICE_MOVE_MORE)
                if not moved:
                    raise ConnectionResetError(errno.ECONNRESET, "the connection was closed half-way")
                left = moved
                while left:
                    left -= os.splice(read_end, descriptor, left, flags=SPLICE_MOVE_MORE)
                count -= moved
                got(moved)
            return
        buffer = bytearray(CHUNK)
        view = memoryview(buffer)
        while count:
            moved = self.socket.recv_into(view, min(count, CHUNK))
            if not moved:
                raise ConnectionResetError(errno.ECONNRESET, "the connection was closed half-way")
            written = 0
            while written < moved:
                written += os.write(descriptor, view[written:moved])
            count -= moved
            got(moved)


class Fetch:
    """The fetching end of a job: several files at once, each continued where an earlier run stopped, each hashed."""

    def __init__(self, job: Mapping[str, Any]) -> None:
        """Keep the job."""
        self.job = job
        self.lock = threading.Lock()
        self.done = 0  # bytes here, earlier runs' included
        self.moved = 0  # bytes over the wire in this run
        self.files_done = 0
        self.hashed = 0
        self.files = list({item["sha256"]: item for item in job["files"]}.values())
        self.total = sum(int(item["size"]) for item in self.files)
        self.started = time.time()
        self.copy_seconds = 0.0
        self.first = 0.0
        self.last = 0.0
        self.error = ""
        secret = base64.b64encode("{}:{}".format(job["user"], job["password"]).encode()).decode()
        self.authorization = f"Basic {secret}"
        self.places: dict[int, list[Mapping[str, Any]]] = {}

    def state(self, name: str) -> dict[str, Any]:
        """Return what the progress file says."""
        return {
            "state": name, "error": self.error, "total": self.total, "done": self.done, "moved": self.moved, "files": len(self.files),
            "files_done": self.files_done, "hashed": self.hashed, "started": self.started, "updated": time.time(),
            "copy_seconds": max(0.0, self.last - self.first), "pid": os.getpid(),
        }  # fmt: skip

    def reachable(self, provider: int) -> list[Mapping[str, Any]]:
        """Return the provider's addresses that answer from here: a rail may lead elsewhere. Raises CopyError."""
        with self.lock:
            if provider not in self.places:
                good, tried = [], []
                for place in self.job["providers"][provider]:
                    try:
                        _Stream(place, self.authorization).close()
                        good.append(place)
                    except OSError as error:
                        tried.append("{}:{} ({})".format(place["address"], place["port"], error.strerror or error))
                if not good:
                    raise CopyError(
                        "no rail leads to the node that has the files: {} did not answer; check the cable and that no firewall closes the port".format(
                            ", ".join(tried) or "no address"
                        )
                    )
                self.places[provider] = good
        return self.places[provider]

    def got(self, count: int) -> None:
        with self.lock:
            now = time.monotonic()
            self.first = self.first or now
            self.last = now
            self.done += count
            self.moved += count

    def part(self, item: Mapping[str, Any]) -> str:
        return os.path.join(self.job["staging"], f"{item['sha256']}.part")

    def whole(self, item: Mapping[str, Any]) -> str:
        return os.path.join(self.job["staging"], str(item["sha256"]))

    def one(self, item: Mapping[str, Any], streams: dict[tuple[int, int], _Stream], worker: int) -> None:
        """Fetch one file into its .part. Raises CopyError."""
        size, attempt = int(item["size"]), 0
        descriptor = os.open(self.part(item), os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        try:
            have = os.fstat(descriptor).st_size
            if have > size:
                os.ftruncate(descriptor, 0)
                have = 0
            with self.lock:
                self.done += have
            while have < size:
                places = self.reachable(int(item["provider"]))
                index = (worker + attempt) % len(places)
                place = places[index]
                key = (int(item["provider"]), index)
                try:
                    stream = streams.get(key)
                    if stream is None:
                        stream = streams[key] = _Stream(place, self.authorization)
                    self.transfer(item, stream, descriptor, have)
                    have = os.fstat(descriptor).st_size
                except OSError as error:
                    streams.pop(key).close() if key in streams else None
                    have = os.fstat(descriptor).st_size
                    attempt += 1
                    if attempt >= ATTEMPTS or not _retry_later(error):
                        raise CopyError(
                            "copying {} from {} stopped after {} of {} bytes ({}): correct that and run again, it goes on from there".format(
                                item["name"], place["address"], have, size, error.strerror or error
                            )
                        ) from error
                    time.sleep(min(2.0**attempt / 4, 4.0))
        finally:
            os.close(descriptor)

    def transfer(self, item: Mapping[str, Any], stream: _Stream, descriptor: int, offset: int) -> None:
        status, length, early = stream.request(str(item["name"]), offset)
        if status not in (200, 206) or length != int(item["size"]) - offset:
            reasons = {401: "it refused the password of this run", 404: "it does not offer the file", 416: "the file there is shorter than its manifest says"}
            raise CopyError(
                "{} answered {} for {} ({}): run again, so that the manifest is read anew".format(
                    stream.place["address"], status, item["name"], reasons.get(status, f"{length} bytes instead of {int(item['size']) - offset}")
                )
            )
        os.lseek(descriptor, offset, os.SEEK_SET)
        if early:
            os.write(descriptor, early)
            self.got(len(early))
        done = len(early)
        while done < length:  # a stretch at a time, so that what the folder takes on the disk is what has arrived, nearly
            count = min(length - done, AHEAD)
            take_room(descriptor, offset + done, count)
            stream.receive(descriptor, count, self.got)
            done += count

    def check(self, item: Mapping[str, Any]) -> bool:
        """Hash a fetched file; keep it under its hash, or throw it away."""
        found = sha256_file(self.part(item))
        if found != item["sha256"]:
            os.unlink(self.part(item))
            with self.lock:
                self.done -= int(item["size"])
            return False
        os.replace(self.part(item), self.whole(item))
        with self.lock:
            self.files_done += 1
            self.hashed += int(item["size"])
        return True

    def round(self, items: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
        """Fetch and hash these; return those whose content was wrong. Raises CopyError."""
        work: queue.SimpleQueue[Mapping[str, Any]] = queue.SimpleQueue()
        for item in sorted(items, key=lambda entry: -int(entry["size"])):
            work.put(item)
        streams = max(1, min(int(self.job.get("streams", 4)), len(items)))
        cores = os.cpu_count() or 1
        early = cores > 2 * streams  # on a small machine hashing would take the cores that the copy needs
        fetched: list[Mapping[str, Any]] = []
        checks: list[tuple[Mapping[str, Any], concurrent.futures.Future[bool]]] = []
        with concurrent.futures.ThreadPoolExecutor(max(1, min(cores, 8))) as hashers:

            def loop(worker: int) -> None:
                kept: dict[tuple[int, int], _Stream] = {}
                try:
                    while not self.error:
                        try:
                            item = work.get_nowait()
                        except queue.Empty:
                            return
                        self.one(item, kept, worker)
                        with self.lock:
                            fetched.append(item)
                            if early:
                                checks.append((item, hashers.submit(self.check, item)))
                except (CopyError, OSError) as error:
                    self.error = self.error or str(error)
                finally:
                    for stream in kept.values():
                        stream.close()

            threads = [threading.Thread(target=loop, args=(index,), daemon=True) for index in range(streams)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            if not early:
                checks = [(item, hashers.submit(self.check, item)) for item in fetched]
            bad = [item for item, future in checks if not future.result()]
        if self.error:
            raise CopyError(self.error)
        return bad

    def run(self) -> None:
        """Fetch everything. Raises CopyError, OSError."""
        os.makedirs(self.job["staging"], mode=0o700, exist_ok=True)
        left: list[Mapping[str, Any]] = []
        for item in self.files:
            if os.path.isfile(self.whole(item)) and os.path.getsize(self.whole(item)) == int(item["size"]):
                os.replace(self.whole(item), self.part(item))  # an earlier run's: hashed again, for the machine may have lost power
            left.append(item)
        for _round in range(2):
            left = self.round(left)
            if not left:
                return
        raise CopyError(
            "{} arrived with another content than its manifest says, twice: the source has changed since it was read, "
            "or its memory or disk is faulty; run again with weights_verify=full".format(", ".join(str(item["name"]) for item in left))
        )


def _fetch(job: Mapping[str, Any]) -> int:
    fetch = Fetch(job)
    ended = threading.Event()

    def report() -> None:
        while not ended.wait(PROGRESS_SECONDS):
            write_json(job["progress"], fetch.state("running"))

    write_json(job["progress"], fetch.state("running"))
    thread = threading.Thread(target=report, daemon=True)
    thread.start()
    try:
        fetch.run()
        outcome = "done"
    except CopyError as error:
        fetch.error, outcome = str(error), "failed"
    except OSError as error:
        fetch.error, outcome = f"{error.filename or job['staging']} cannot be written ({error.strerror}): correct that and run again", "failed"
    ended.set()
    thread.join()
    write_json(job["progress"], fetch.state(outcome))
    return 0 if outcome == "done" else 1


def _serve(job: Mapping[str, Any]) -> int:
    service = Service(job)
    try:
        places = service.start()
    except CopyError as error:
        write_json(job["ready"], {"pid": os.getpid(), "error": str(error), "listen": []})
        return 1
    write_json(job["ready"], {"pid": os.getpid(), "error": "", "listen": [list(place) for place in places]})
    service.wait()
    service.stop()
    return 0


def main(argv: Sequence[str]) -> int:
    """Run `serve` or `fetch` with a job file."""
    with open(argv[1], encoding="utf-8") as handle:
        job = json.load(handle)
    return {"serve": _serve, "fetch": _fetch}[argv[0]](job)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
