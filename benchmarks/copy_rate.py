# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How fast the copy of weights and images is between two nodes, from file to file.

    python3 benchmarks/copy_rate.py --from "docker exec -i gb10-lab-1" --to "docker exec -i gb10-lab-2" \\
        --rails 192.168.200.11-192.168.200.12,192.168.201.11-192.168.201.12 [--gib 1] [--rounds 3] [--streams 4] [--bound MEMORY] [--before COMMIT]

`--from` and `--to` are the words that run a shell command as root on a node, such as `ssh root@spark-1`. Both ends run in the units of the copy,
or with another bound of their memory, such as 128M.
`--before` measures the copier over HTTP of an older commit of this repository in turns with it.
Printed are MB/s (10^6 bytes a second), the CPU time of the fetching end, and the page cache that the files have on each node afterwards.
"""

from __future__ import annotations

import argparse
import json
import re
import shlex
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._node import transfer as copy  # noqa: E402  the checkout's links are on the path now

SHARDS = 4
RUN, PORT = "/run/gb10-cluster", 40999
HTTP = {"user": "gb10", "password": "of-this-benchmark"}  # nosec B105 # both ends are on this cable, for seconds
CACHED = """
import ctypes, mmap, os, sys
libc, pages = ctypes.CDLL(None), 0
libc.mmap.restype = ctypes.c_void_p
for where, _folders, names in os.walk(sys.argv[1]):
    for name in names:
        with open(os.path.join(where, name), "rb") as handle:
            size = ctypes.c_size_t(os.fstat(handle.fileno()).st_size)
            address = ctypes.c_void_p(libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED, handle.fileno(), ctypes.c_long(0)))
            table = (ctypes.c_ubyte * -(-size.value // mmap.PAGESIZE))()
            libc.mincore(address, size, table)
            pages += sum(page & 1 for page in table)
print(pages * mmap.PAGESIZE / 2**20)
"""


class End:
    """A node, and the folders of this benchmark on it."""

    def __init__(self, words: str, folder: str, addresses: list[str]) -> None:
        self.words, self.folder, self.addresses = shlex.split(words), folder, addresses

    def on(self, line: str, text: str = "") -> str:
        """Run a shell line as root and return what it prints."""
        done = subprocess.run(
            [*self.words, "sh", "-c", line if self.words[0] == "docker" else shlex.quote(line)], input=text, text=True, capture_output=True, check=False
        )
        if done.returncode:
            raise SystemExit(f"{line}: {done.stderr}")
        return done.stdout

    def write(self, files: dict[str, str], below: str) -> None:
        for name, text in files.items():
            self.on(f"mkdir -p {below} && cat >{below}/{name}", text)

    def start(self, unit: str, script: str, properties: list[str]) -> None:
        """Start a unit that runs a script, without waiting for its end."""
        self.write({"run.sh": f"( {script}\n) >{RUN}/{unit}.log 2>&1\ntimes >{RUN}/{unit}.times\n"}, f"{RUN}/{unit}")
        words = [
            "systemd-run",
            "--quiet",
            "--collect",
            f"--unit=gb10-{unit}",
            *(f"--property={each}" for each in properties),
            "/bin/sh",
            f"{RUN}/{unit}/run.sh",
        ]
        self.on(shlex.join(words))

    def wait(self, unit: str) -> str:
        """Wait for the end of a unit and return its log."""
        while self.on(f"systemctl is-active gb10-{unit} || true").strip() == "active":
            time.sleep(0.2)
        return self.on(f"cat {RUN}/{unit}.log")

    def listens(self) -> None:
        """Wait until the serving end listens."""
        while not self.on(f"ss -Hltn sport = :{PORT}"):
            time.sleep(0.2)

    def seconds(self, unit: str) -> float:
        """Return the CPU seconds of a unit that has ended."""
        used = self.on(f"tail -n 1 {RUN}/{unit}.times")
        return sum(60 * float(minutes) + float(rest) for minutes, rest in re.findall(r"(\d+)m([\d.]+)s", used))

    def cached(self, folder: str) -> float:
        """Return the MiB of a folder's files that are in the page cache."""
        return float(self.on(f"python3 - {folder}", CACHED))

    def clear(self) -> None:
        self.on(f"systemctl stop 'gb10-bench-*'; rm -rf {RUN}/bench-* {self.folder}")


def new_copy(source: End, target: End, files: list[dict[str, Any]], streams: int) -> float:
    """Copy with rsync over SSH; return MB/s."""
    serve, fetch = f"{RUN}/bench-serve", f"{RUN}/bench-fetch"
    keys = []
    for end, folder, name in ((source, serve, copy.HOST_KEY), (target, fetch, copy.KEY)):
        end.on(f"rm -rf {folder}; mkdir -p {folder}/etc; chmod 700 {folder}; ssh-keygen -q -t ed25519 -N '' -f {folder}/{name}")
        end.write(copy.ACCOUNTS, folder)
        keys.append(" ".join(end.on(f"cat {folder}/{name}.pub").split()[:2]))
    source.write(copy.server_files(serve, f"{source.folder}/m", PORT, source.addresses, target.addresses, keys[1:]), serve)
    source.start("bench-serve", copy.server_script(serve), copy.sandbox(serve, [f"{source.folder}/m"], capabilities=copy.SERVER_CAPABILITIES))
    source.listens()
    parts = copy.shares({item["path"]: item["size"] for item in files}, streams)
    provider = {"listen": [{"address": address, "port": PORT} for address in source.addresses], "host_key": keys[0]}
    target.write(copy.client_files(fetch, parts, provider, target.addresses), fetch)
    script = copy.client_script(fetch, f"{target.folder}/in", f"{target.folder}/m", "0:0", len(parts), len(source.addresses))
    target.start("bench-fetch", script, copy.sandbox(fetch, writes=[target.folder], capabilities=copy.CLIENT_CAPABILITIES))
    return float(copy.figures(target.wait("bench-fetch"))["mb_per_second"])


def old_copy(source: End, target: End, files: list[dict[str, Any]], streams: int, commit: str) -> float:
    """Copy with the copier over HTTP of a commit; return MB/s."""
    for name in ("http_copy.py", "plain.py"):
        text = subprocess.run(
            ["git", "-C", str(ROOT), "show", f"{commit}:plugins/module_utils/_transfer/{name}"], check=True, capture_output=True, text=True
        ).stdout
        for end in (source, target):
            end.write({name: text}, f"{RUN}/bench-http")
    ways = {item["path"]: f"{source.folder}/m/{item['path']}" for item in files}
    serving = {**HTTP, "listen": source.addresses, "port": PORT, "allow": target.addresses, "files": ways, "ready": f"{RUN}/bench-ready"}
    wanted = [{**item, "name": item["path"], "provider": 0} for item in files]
    places = [{"address": here, "port": PORT, "bind": there} for here, there in zip(source.addresses, target.addresses, strict=True)]
    fetching = {**HTTP, "providers": [places], "files": wanted, "staging": f"{target.folder}/in", "streams": streams, "progress": f"{RUN}/bench-progress"}
    target.on(f"chmod 700 {target.folder}/in")
    for end, mode, job in ((source, "serve", serving), (target, "fetch", fetching)):
        end.write({f"{mode}.json": json.dumps(job)}, f"{RUN}/bench-http")
        end.start(f"bench-{mode}", f"python3 {RUN}/bench-http/http_copy.py {mode} {RUN}/bench-http/{mode}.json", [])
        source.listens()
    target.wait("bench-fetch")
    report = json.loads(target.on(f"cat {RUN}/bench-progress"))
    if report["state"] != "done":
        raise SystemExit(report["error"])
    return float(report["moved"] / report["copy_seconds"] / 1e6)


def main() -> int:
    """Measure in turns, and print each round and the medians."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--from", dest="source", required=True)
    parser.add_argument("--to", required=True)
    parser.add_argument("--rails", required=True, help="ADDRESS-ADDRESS of each rail, with commas")
    parser.add_argument("--gib", type=float, default=1.0)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--bound", default="")
    parser.add_argument("--before", default="")
    parser.add_argument("--folder", default="/var/lib/docker/gb10-copy-bench")
    args = parser.parse_args()
    if args.bound:
        copy.BOUNDS[:] = [f"MemoryMax={args.bound}"]
    pairs = [rail.split("-") for rail in args.rails.split(",")]
    source, target = (End(words, args.folder, [pair[end] for pair in pairs]) for end, words in enumerate((args.source, args.to)))
    rates: dict[str, list[float]] = {}
    try:
        size = int(args.gib * 1024 / SHARDS)
        source.on(f"mkdir -p {args.folder}/m && cd {args.folder}/m && for n in $(seq {SHARDS}); do head -c {size}M /dev/urandom >$n.safetensors; done")
        rows = [line.split() for line in source.on(f"cd {args.folder}/m && sha256sum *").splitlines()]
        files = [{"path": name, "size": size << 20, "sha256": digest, "mtime_ns": 1} for digest, name in rows]
        for number in range(args.rounds):
            for name in ("rsync over SSH", *(["HTTP"] if args.before else [])):
                target.on(f"rm -rf {args.folder} {RUN}/bench-*; mkdir -p {args.folder}/in")
                source.on(f"rm -rf {RUN}/bench-*")
                for end in (source, target):
                    end.on("sync; echo 1 >/proc/sys/vm/drop_caches || true")
                copied = new_copy(source, target, files, args.streams) if name != "HTTP" else old_copy(source, target, files, args.streams, args.before)
                rates.setdefault(name, []).append(copied)
                source.on("systemctl stop gb10-bench-serve")
                cpu = target.seconds("bench-fetch") / args.gib
                left = source.cached(f"{args.folder}/m"), target.cached(args.folder)
                text = f"round {number + 1}: {name:14} {copied:6.0f} MB/s, {cpu:.1f} CPU seconds for a GiB"
                print(f"{text}, cached {left[0]:.0f} and {left[1]:.0f} MiB", flush=True)
    finally:
        source.clear()
        target.clear()
    print("median: " + ", ".join(f"{name} {statistics.median(each):.0f} MB/s" for name, each in rates.items()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
