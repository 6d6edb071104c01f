# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the boot-log parser of another checkout with this one's: real boots, a fresh process, a server's log.

    git clone -q . /tmp/before && git -C /tmp/before checkout -q COMMIT
    .venv/bin/python benchmarks/parse_pair.py /tmp/before [--instructions]

Counts the seconds of CPU, best of the rounds, in turns; with --instructions what callgrind (valgrind) counts, in one round: other work on the machine
does not change that. A row of a folder of ../shared/samples is one more reading of its logs in a process that has read them. `restarts` is the
logs of the first folder one after the other in one stream, `server` 2 MiB of a server's log. A row of one log is a whole process: Python, import, log.
So is `all`, which reads each log once.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SAMPLES = Path(os.environ.get("GB10_SHARED") or ROOT.parent / "shared") / "samples"
FOLDERS = ("bootlogs", "bootlogs2", "field", "recorded", "gpu", "gpu2")
FRESH = ("gpu/10-util-too-high.rank0.log", "recorded/k4-head-sigkill-under-load-head.log", "bootlogs2/141-stderr-only-qwen3-4b-v0102.log")


def logs(folder: str) -> list[bytes]:
    """Return the logs of a folder."""
    paths = sorted(path for path in (SAMPLES / folder).iterdir() if path.suffix in (".log", ".txt") and path.name != "OUT-OF-SCOPE.txt")
    return [path.read_bytes() for path in paths]


def work(what: str, times: int) -> None:
    """Parse so many times, in this process, with the checkout of this process."""
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse

    if what in (*FOLDERS, "all"):
        texts = [text for folder in (FOLDERS if what == "all" else (what,)) for text in logs(folder)]
        for text in texts * times:
            parse(text)
    elif what in FRESH:
        parse((SAMPLES / what).read_bytes())
    else:
        from benchmarks.parse_log import FIXTURES, serving  # which adds this checkout to the path, after the parser is loaded

        reader = BootLog()
        reader.feed((FIXTURES / "head.log").read_bytes())
        data = serving(0, 2 * 1024 * 1024) if what == "server" else b"".join(text.rstrip(b"\n") + b"\n" for text in logs("bootlogs"))
        for begin in [*range(0, len(data), 256 * 1024)] * times:
            reader.feed(data[begin : begin + 256 * 1024])


def cost(checkout: Path, what: str, times: int, instructions: bool) -> float:
    """Return what a process that does the work costs."""
    meter = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null"] if instructions else []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": f"{checkout / 'collections'}:{ROOT}", "GB10_SHARED": str(SAMPLES.parent)}
    command = [*meter, sys.executable, __file__, str(checkout), "--work", what, "--times", str(times)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    counted = re.search(r"Collected : (\d+)", done.stderr)
    return float(counted[1]) / 1e6 if counted else after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> int:
    """Print a row for each kind of log; return 1 if one costs more than before."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path, help="the other checkout")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--instructions", action="store_true", help="count instructions, in one round")
    parser.add_argument("--work", help=argparse.SUPPRESS)
    parser.add_argument("--times", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.work:
        work(options.work, options.times)
        return 0
    slower = 0
    for what in (*FOLDERS, "restarts", "server", "all", *FRESH):
        more = 0 if what in ("all", *FRESH) else 2 if options.instructions else 128 if what == "server" else 20
        sides = []
        for _round in range(1 if options.instructions else options.rounds):
            sides.append([[cost(root, what, times, options.instructions) for times in sorted({1, 1 + more})] for root in (options.before.resolve(), ROOT)])
        best = [[min(round_[side][run] for round_ in sides) for run in range(len(sides[0][side]))] for side in (0, 1)]
        before, now = ((each[-1] - each[0]) / more if more else each[0] for each in best)
        slower += now > before
        unit = "million instructions" if options.instructions else "s"
        print(f"{what[:60]:60s} before {before:10.4f}  now {now:10.4f} {unit}  ratio {now / before:.2f}", flush=True)
    return 1 if slower else 0


if __name__ == "__main__":
    sys.exit(main())
