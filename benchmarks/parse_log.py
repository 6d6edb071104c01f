# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Time the boot-log parser against `grep -cE` with the same alternatives, on the same file, in the same run.

The file is made of boots, repeated; the project's own (tests/unit/fixtures/vllm_log), but for ``samples``:

- ``serving``: boots with what a server prints between them, 2 MiB of access lines, statistics and request records after each;
- ``samples``: the real boot logs of ../shared/samples/bootlogs one after the other, as they are;
- ``boots``: nothing but boots without their bulk, four lines of five a fact: the worst case, shown with the same bar.

Prints seconds of CPU (others may use the machine), the ratio and the parser's peak resident memory, measured in a process of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FIXTURES = ROOT / "tests" / "unit" / "fixtures" / "vllm_log"
sys.path.insert(0, str(ROOT / "collections"))

BAR_RATIO = 12.0
BAR_MIB = 64


def serving(turn: int, size: int) -> bytes:
    """Return what a server prints while it serves: mostly access lines, statistics every so often, some request records."""
    rng = random.Random(turn)  # nosec B311 # noqa: S311 (repeatable text, no secret)
    lines: list[str] = []
    length = 0
    while length < size:
        kind = rng.random()
        stamp = f"07-{rng.randrange(1, 29):02d} {rng.randrange(24):02d}:{rng.randrange(60):02d}:{rng.randrange(60):02d}"
        if kind < 0.8:
            line = f'(APIServer pid=1) INFO:     192.168.100.{rng.randrange(250)}:{rng.randrange(65536)} - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
        elif kind < 0.95:
            line = (
                f"(APIServer pid=1) INFO {stamp} [loggers.py:271] Engine 000: Avg prompt throughput: {rng.random() * 999:.1f} tokens/s, Avg generation "
                f"throughput: {rng.random() * 99:.1f} tokens/s, Running: {rng.randrange(9)} reqs, Waiting: 0 reqs, "
                f"GPU KV cache usage: {rng.random() * 99:.1f}%, Prefix cache hit rate: {rng.random() * 99:.1f}%\n"
            )
        else:
            words = " ".join(rng.choices(("alpha", "beta", "gamma", "delta", "the", "of", "GPU KV cache size", "CUDA out of memory"), k=30))
            line = f"(APIServer pid=1) INFO {stamp} [logger.py:41] Received request chatcmpl-{rng.getrandbits(64):016x}: prompt: '{words}', params: None\n"
        lines.append(line)
        length += len(line)
    return "".join(lines).encode()


def build(path: Path, size: int, shape: str) -> None:
    """Write the file."""
    if shape == "samples":
        folder = Path(os.environ.get("GB10_SHARED") or ROOT.parent / "shared") / "samples" / "bootlogs"
        boots = [path.read_bytes().rstrip(b"\n") + b"\n" for path in sorted(folder.iterdir()) if path.suffix not in (".json", ".md")]
    else:
        boots = [(FIXTURES / f"{name}.log").read_bytes() for name in ("head", "worker", "oom")]
    stretches = [serving(turn, 2 * 1024 * 1024) for turn in range(8)] if shape == "serving" else []
    with path.open("wb") as out:
        turn = 0
        while out.tell() < size:
            out.write(boots[turn % len(boots)])
            if stretches:
                out.write(stretches[turn % len(stretches)])
            turn += 1


def alternatives() -> str:
    """Return what the parser looks for in every line, as one extended regular expression."""
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import literals

    return "|".join(re.sub(r"([.\[\](){}*+?^$|\\])", r"\\\1", literal) for literal in literals())


def parse(path: str) -> None:
    """Parse one file in this process and print what it took as JSON."""
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog

    began = time.process_time()
    reader, lines = BootLog(), 0
    with open(path, "rb") as handle:
        while True:
            data = handle.read(256 * 1024)
            if not data:
                break
            reader.feed(data)
            lines += data.count(b"\n")
    facts = reader.facts(final=True)
    seconds = time.process_time() - began
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps({"seconds": seconds, "mib": peak, "state": facts["state"], "restarts": facts["restarts"], "lines": lines}))


def measure(shape: str, size: int, folder: str) -> bool:
    """Build, time both, print a row; return whether the bars hold."""
    path = Path(folder) / f"gb10-bench-{os.getpid()}-{shape}.log"
    try:
        build(path, size, shape)
        ere = alternatives()
        subprocess.run(["cat", str(path)], stdout=subprocess.DEVNULL, check=True)  # both read it from the page cache
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        grep = subprocess.run(["grep", "-cE", ere, str(path)], capture_output=True, text=True, check=False)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        grep_seconds = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        if grep.returncode > 1:
            print(f"grep failed: {grep.stderr.strip()[:200]}", file=sys.stderr)
            return False
        done = subprocess.run([sys.executable, __file__, "--parse", str(path)], capture_output=True, text=True, check=True)
        ours = json.loads(done.stdout)
        ratio = ours["seconds"] / grep_seconds
        held = bool(ratio <= BAR_RATIO and ours["mib"] <= BAR_MIB)
        print(
            f"{shape:8s} {path.stat().st_size / 2**20:7.0f} MiB {ours['lines']:9d} lines {int(grep.stdout):9d} matching {ours['restarts'] + 1:6d} boots"
            f" | grep -cE {grep_seconds:7.2f} s | parser {ours['seconds']:7.2f} s | {ratio:5.1f} times (bar {BAR_RATIO:.0f})"
            f" | {ours['mib']:4.0f} MiB resident (bar {BAR_MIB})"
        )
        return held
    finally:
        path.unlink(missing_ok=True)


def main() -> int:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=1024, help="size of each file in MiB (default: 1024)")
    parser.add_argument("--shape", choices=["serving", "samples", "boots", "all"], default="serving")
    parser.add_argument("--folder", default=tempfile.gettempdir(), help="where the file is put for the run (default: $TMPDIR)")
    parser.add_argument("--parse", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.parse:
        parse(options.parse)
        return 0
    print(f"Python {sys.version.split()[0]}, LC_ALL={os.environ.get('LC_ALL', '')} LANG={os.environ.get('LANG', '')}, {os.cpu_count()} CPUs")
    shapes = ["serving", "samples", "boots"] if options.shape == "all" else [options.shape]
    rows = [measure(shape, options.size * 2**20, options.folder) for shape in shapes]
    return 0 if all(rows) else 1


if __name__ == "__main__":
    sys.exit(main())
