# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast the weights role's copy is, against a raw TCP stream on the same link in the same run.

Default: two network namespaces of this machine, joined by a cable (veth, MTU 9000); needs root and nothing else.
    python3 benchmarks/copy_rate.py [--gib 2] [--rounds 5] [--streams 4] [--others] [--folder /tmp]
Between two nodes, started on each (the sending one first; addresses of the rail):
    python3 benchmarks/copy_rate.py --send 192.168.200.11 --folder /srv/models      # on the node that has the files
    python3 benchmarks/copy_rate.py --receive 192.168.200.11 --folder /srv/models   # on the other one

A round is: one raw TCP stream (no disk, no hash: the most that one stream of this link gives), then the copy from file to file, hashes checked
afterwards. Printed are MB/s (10^6 bytes a second) of each round and the median of the rounds' ratios; the goal is 0.8 or more. Both ends of both
run at a raised priority where that is allowed, for on a link that is only memory other programs decide the figure. `--others` also
measures rsync (a daemon; one process, and one for each file) and `rclone serve http|webdav|sftp` with `rclone copy`, where they are installed.

`--page-cache` measures instead what it costs that the copy leaves no page cache behind: the copy with and without it, in turns.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import shutil
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PROGRAM = ROOT / "plugins" / "module_utils" / "_transfer" / "http_copy.py"
KEEP = """
import sys
sys.path.insert(0, sys.argv.pop(1))
import plain
plain.forget = plain.forget_written = lambda *_: None
import http_copy
sys.exit(http_copy.main(sys.argv[1:]))
"""
RAW_PORT, COPY_PORT = 5998, 5999
SHARDS = 4
PASSWORD = "of-this-benchmark"  # nosec B105 # noqa: S105  both ends are on this cable, for seconds


def raw_receive(address: str, port: int) -> float:
    """Read one stream to its end; return MB/s. The sender has to listen."""
    for _round in range(200):
        try:
            connection = socket.create_connection((address, port), timeout=5)
            break
        except OSError:
            time.sleep(0.05)
    else:
        raise SystemExit(f"no answer from {address}:{port}: start the sending end first")
    connection.settimeout(None)
    buffer = memoryview(bytearray(1 << 20))
    total, start = 0, 0.0
    while True:
        count = connection.recv_into(buffer)
        start = start or time.monotonic()
        if not count:
            return total / (time.monotonic() - start) / 1e6
        total += count


def raw_send(address: str, port: int, size: int) -> None:
    """Listen and send `size` bytes to the first who comes."""
    with socket.create_server((address, port)) as server:
        connection, _rest = server.accept()
        data, left = bytes(1 << 20), size
        with connection:
            while left > 0:
                connection.sendall(data)
                left -= len(data)


def make(folder: Path, gib: float) -> dict[str, dict[str, object]]:
    """Make the shards, and return their sizes and hashes."""
    source = folder / "gb10-copy-source"
    source.mkdir(parents=True, exist_ok=True)
    size = int(gib * 2**30 / SHARDS) >> 20 << 20
    out: dict[str, dict[str, object]] = {}
    for index in range(SHARDS):
        path = source / f"model-{index + 1:05d}-of-{SHARDS:05d}.safetensors"
        if not path.exists() or path.stat().st_size != size:
            with path.open("wb") as sink:
                for _round in range(size >> 20):
                    sink.write(os.urandom(1 << 20))
        digest = hashlib.sha256()
        with path.open("rb") as handle:
            while data := handle.read(1 << 22):
                digest.update(data)
        out[path.name] = {"size": size, "sha256": digest.hexdigest()}
    return out


def serve_job(folder: Path, address: str, files: dict[str, dict[str, object]], idle: int) -> Path:
    """Write the sending end's job."""
    job = {
        "listen": [address], "port": COPY_PORT, "user": "gb10", "password": PASSWORD, "allow": [], "idle_seconds": idle,
        "files": {name: str(folder / "gb10-copy-source" / name) for name in files}, "ready": str(folder / "gb10-copy-ready.json"),
    }  # fmt: skip
    path = folder / "gb10-copy-serve.json"
    path.write_text(json.dumps(job))
    return path


def fetch(
    folder: Path, address: str, files: dict[str, dict[str, object]], streams: int, prefix: list[str], program: tuple[str, ...] = (str(PROGRAM),)
) -> tuple[float, float]:
    """Fetch all files; return MB/s of the transfer, and of transfer and hashing. They stay until the next call.

    A virtual machine may give memory that is free for seconds back to its host and then wait for it page by page: that would be measured too.
    """
    staging = folder / "gb10-copy-target"
    shutil.rmtree(staging, ignore_errors=True)
    os.sync()
    job = {
        "user": "gb10", "password": PASSWORD, "streams": streams, "staging": str(staging), "progress": str(folder / "gb10-copy-progress.json"),
        "providers": [[{"address": address, "port": COPY_PORT, "bind": ""}]], "files": [{"name": n, "provider": 0, **f} for n, f in files.items()],
    }  # fmt: skip
    path = folder / "gb10-copy-fetch.json"
    path.write_text(json.dumps(job))
    start = time.monotonic()
    subprocess.run([*prefix, sys.executable, *program, "fetch", str(path)], check=True)
    whole = time.monotonic() - start
    report = json.loads((folder / "gb10-copy-progress.json").read_text())
    return report["moved"] / report["copy_seconds"] / 1e6, report["moved"] / whole / 1e6


def clean(folder: Path) -> None:
    """Remove what this program created."""
    for path in folder.glob("gb10-copy-*"):
        shutil.rmtree(path) if path.is_dir() else path.unlink()


class Cable:
    """Two namespaces and a veth pair."""

    names = ("gb10-copy-a", "gb10-copy-b")
    addresses = ("10.254.254.1", "10.254.254.2")

    def __enter__(self) -> Cable:
        self.__exit__()
        for name in self.names:
            subprocess.run(["ip", "netns", "add", name], check=True)
        subprocess.run(["ip", "link", "add", "gb10ca", "netns", self.names[0], "type", "veth", "peer", "name", "gb10cb", "netns", self.names[1]], check=True)
        for name, link, address in zip(self.names, ("gb10ca", "gb10cb"), self.addresses, strict=True):
            subprocess.run(["ip", "-n", name, "addr", "add", f"{address}/30", "dev", link], check=True)
            subprocess.run(["ip", "-n", name, "link", "set", link, "mtu", "9000", "up"], check=True)
        return self

    def __exit__(self, *_rest: object) -> None:
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], check=False, stderr=subprocess.DEVNULL)

    def on(self, end: int) -> list[str]:
        """Return the words that run a command at an end of the cable."""
        return ["ip", "netns", "exec", self.names[end]]


def rsync(folder: Path, cable: Cable, size: float) -> None:
    """Measure an rsync daemon, with one process for all files and with one for each file."""
    if not shutil.which("rsync"):
        print("rsync is not installed (apt install rsync)")
        return
    source, target, config = folder / "gb10-copy-source", folder / "gb10-copy-target", folder / "gb10-copy-rsyncd.conf"
    config.write_text(f"use chroot = no\nuid = 0\ngid = 0\n[models]\npath = {source}\nread only = yes\n")
    server = subprocess.Popen([*cable.on(0), "rsync", "--daemon", "--no-detach", f"--config={config}", "--port=8097", f"--address={cable.addresses[0]}"])
    time.sleep(1.0)
    base = f"rsync://{cable.addresses[0]}:8097/models/"
    names = sorted(path.name for path in source.iterdir())
    for title, sources in (("rsync, one process", [base]), (f"rsync, {len(names)} processes", [base + name for name in names])):
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        start = time.monotonic()
        copies = [subprocess.Popen([*cable.on(1), "rsync", "-a", "--whole-file", "--inplace", each, f"{target}/"]) for each in sources]
        failed = max(copy.wait() for copy in copies)
        print(f"{title:20}" + ("  failed" if failed else f"{size / (time.monotonic() - start) / 1e6:8.0f} MB/s"), flush=True)
    server.terminate()
    server.wait()
    shutil.rmtree(target, ignore_errors=True)


def rclone(folder: Path, cable: Cable, size: float) -> None:
    """Measure rclone's ways."""
    if not shutil.which("rclone"):
        print("rclone is not installed (apt install rclone)")
        return
    hidden = subprocess.run(["rclone", "obscure", PASSWORD], capture_output=True, text=True, check=True).stdout.strip()
    place, target = f"{cable.addresses[0]}:8098", folder / "gb10-copy-target"
    remotes = {
        "http": f":http,url='http://gb10:{PASSWORD}@{place}':",
        "webdav": f":webdav,url='http://{place}',user=gb10,pass={hidden}:",
        "sftp": f":sftp,host={cable.addresses[0]},port=8098,user=gb10,pass={hidden}:",
    }
    env = {**os.environ, "RCLONE_USER": "gb10", "RCLONE_PASS": PASSWORD, "RCLONE_CONFIG": "/dev/null"}
    for protocol, remote in remotes.items():
        shutil.rmtree(target, ignore_errors=True)
        server = subprocess.Popen(
            [*cable.on(0), "rclone", "serve", protocol, str(folder / "gb10-copy-source"), "--addr", place, "--read-only"], env=env, stderr=subprocess.DEVNULL
        )
        time.sleep(1.5)
        start = time.monotonic()
        words = ["rclone", "copy", remote, str(target), "--transfers", "4", "--multi-thread-streams", "4", "--multi-thread-cutoff", "64M", "--retries", "1"]
        done = subprocess.run([*cable.on(1), *words], env=env, capture_output=True, text=True, check=False)
        seconds = time.monotonic() - start
        server.kill()
        server.wait()
        last = (done.stderr.strip().splitlines() or ["?"])[-1]
        print(f"{'rclone ' + protocol:20}" + (f"{size / seconds / 1e6:8.0f} MB/s" if done.returncode == 0 else f"  failed: {last}"))
    shutil.rmtree(target, ignore_errors=True)


def show(number: int, raw: float, copy: float, whole: float) -> None:
    """Print one round."""
    print(f"round {number + 1}: raw TCP {raw:6.0f} MB/s   copy {copy:6.0f} MB/s   with hashing {whole:6.0f} MB/s   {copy / raw:.2f}", flush=True)


def first_in_line() -> None:
    """Raise the priority of this process, its children and their scheduling group, where that is allowed."""
    with contextlib.suppress(OSError):
        os.nice(-10)
        os.setsid()  # a scheduling group of its own, so that the caller's is left as it is
    with contextlib.suppress(OSError):
        Path("/proc/self/autogroup").write_text("-15")


def verdict(raws: list[float], copies: list[float]) -> int:
    """Print the medians and their ratio; return the exit code."""
    raw, copy = statistics.median(raws), statistics.median(copies)
    ratio = statistics.median(c / r for c, r in zip(copies, raws, strict=True))
    busy = f"load average {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores"
    print(f"median: raw TCP {raw:.0f} MB/s, copy {copy:.0f} MB/s, ratio {ratio:.2f} (goal 0.80); {busy}")
    return 0 if ratio >= 0.8 else 1


def both_ends(args: argparse.Namespace) -> int:
    """Measure on a cable of this machine."""
    folder = Path(args.folder)
    files = make(folder, args.gib)
    size = sum(int(str(item["size"])) for item in files.values())
    raws, copies = [], []
    me = [sys.executable, str(Path(__file__).resolve())]
    with Cable() as cable:
        server = subprocess.Popen([*cable.on(0), sys.executable, str(PROGRAM), "serve", str(serve_job(folder, cable.addresses[0], files, 3600))])
        try:
            time.sleep(0.7)
            for number in range(args.rounds):
                sender = subprocess.Popen([*cable.on(0), *me, "--raw-send", cable.addresses[0], "--gib", str(args.gib)])
                heard = subprocess.run([*cable.on(1), *me, "--raw-receive", cable.addresses[0]], check=True, capture_output=True, text=True)
                sender.wait()
                raws.append(float(heard.stdout))
                transfer, whole = fetch(folder, cable.addresses[0], files, args.streams, cable.on(1))
                copies.append(transfer)
                show(number, raws[-1], transfer, whole)
        finally:
            server.kill()
            server.wait()
        if args.others:
            rsync(folder, cable, size)
            rclone(folder, cable, size)
    clean(folder)
    return verdict(raws, copies)


def cached(folder: Path) -> float:
    """Return the GiB of the files in a folder that are in the page cache."""
    found = subprocess.run(["fincore", "-nb", "-o", "RES", *map(str, folder.iterdir())], check=True, capture_output=True, text=True)
    return sum(map(int, found.stdout.split())) / 2**30


def page_cache(args: argparse.Namespace) -> int:
    """Compare the copy with one that keeps the page cache. The time until all data are on the disk counts for both."""
    folder = Path(args.folder)
    files = make(folder, args.gib)
    size = sum(int(str(item["size"])) for item in files.values())
    programs = {"none left": (str(PROGRAM),), "kept": ("-c", KEEP, str(PROGRAM.parent))}
    rates: dict[str, list[float]] = {name: [] for name in programs}
    for number in range(args.rounds):
        for name, program in programs.items():
            job = str(serve_job(folder, "127.0.0.1", files, 3600))
            server = subprocess.Popen([sys.executable, *program, "serve", job])
            try:
                time.sleep(0.7)
                shutil.rmtree(folder / "gb10-copy-target", ignore_errors=True)
                os.sync()
                Path("/proc/sys/vm/drop_caches").write_text("1")
                start = time.monotonic()
                transfer, whole = fetch(folder, "127.0.0.1", files, args.streams, [], program)
                os.sync()
                rates[name].append(size / (time.monotonic() - start) / 1e6)
                left = cached(folder / "gb10-copy-source"), cached(folder / "gb10-copy-target")
            finally:
                server.kill()
                server.wait()
            text = f"round {number + 1}: page cache {name:9} {transfer:6.0f} MB/s   with hashing {whole:6.0f} MB/s   on the disk {rates[name][-1]:6.0f} MB/s"
            print(f"{text}   cached: source {left[0]:.2f} GiB, target {left[1]:.2f} GiB", flush=True)
    clean(folder)
    ratio = statistics.median(a / b for a, b in zip(*rates.values(), strict=True))
    print(f"median on the disk: {', '.join(f'{name} {statistics.median(each):.0f} MB/s' for name, each in rates.items())}, ratio {ratio:.2f}")
    return 0


def send_end(args: argparse.Namespace) -> int:
    """Offer both on one node, until the other has measured."""
    folder = Path(args.folder)
    files = make(folder, args.gib)
    Path(folder / "gb10-copy-source" / "table.json").write_text(json.dumps({"files": files, "gib": args.gib, "rounds": args.rounds}))
    names: dict[str, dict[str, object]] = {**files, "table.json": {}}
    server = subprocess.Popen([sys.executable, str(PROGRAM), "serve", str(serve_job(folder, args.send, names, 600))])
    print(f"waiting on {args.send} for {args.rounds} rounds", flush=True)
    try:
        for _round in range(args.rounds):
            raw_send(args.send, RAW_PORT, int(args.gib * 2**30))
        server.wait(600)
    finally:
        server.kill()
        clean(folder)
    return 0


def receive_end(args: argparse.Namespace) -> int:
    """Measure on the other node."""
    import base64
    import urllib.request

    folder = Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    token = base64.b64encode(f"gb10:{PASSWORD}".encode()).decode()
    request = urllib.request.Request(f"http://{args.receive}:{COPY_PORT}/table.json", headers={"Authorization": f"Basic {token}"})
    with urllib.request.urlopen(request, timeout=10) as answer:  # nosec B310 # noqa: S310  a fixed http address
        table = json.load(answer)
    raws, copies = [], []
    for number in range(table["rounds"]):
        raws.append(raw_receive(args.receive, RAW_PORT))
        transfer, whole = fetch(folder, args.receive, table["files"], args.streams, [])
        copies.append(transfer)
        show(number, raws[-1], transfer, whole)
    clean(folder)
    return verdict(raws, copies)


def main() -> int:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--gib", type=float, default=2.0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--folder", default="/var/tmp")  # noqa: S108  only the benchmark's own files
    parser.add_argument("--others", action="store_true")
    parser.add_argument("--page-cache", action="store_true")
    parser.add_argument("--send", metavar="ADDRESS")
    parser.add_argument("--receive", metavar="ADDRESS")
    parser.add_argument("--raw-send", metavar="ADDRESS", help=argparse.SUPPRESS)
    parser.add_argument("--raw-receive", metavar="ADDRESS", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not (args.raw_send or args.raw_receive):
        first_in_line()
    if args.raw_send:
        raw_send(args.raw_send, RAW_PORT, int(args.gib * 2**30))
        return 0
    if args.raw_receive:
        print(raw_receive(args.raw_receive, RAW_PORT))
        return 0
    if args.send:
        return send_end(args)
    if args.page_cache:
        return page_cache(args)
    return receive_end(args) if args.receive else both_ends(args)


if __name__ == "__main__":
    sys.exit(main())
