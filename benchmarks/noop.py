# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run costs that has nothing to do: tasks, SSH round trips of a host, seconds, and CPU seconds of the controller, of several checkouts in turns.

    python benchmarks/noop.py INVENTORY [CHECKOUT ...] [--rounds 2]
    python benchmarks/noop.py --pairs 4 [--rounds 2]

Wants a pair that serves the inventory. Each turn begins with a run that is not counted: it installs the agent of its checkout.
`--pairs` brings up the nodes of so many pairs with the stub engine, and compares a run over all of them with one over the first pair.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from container_lab import bring_up  # noqa: E402  # the harness is next to the tests, which are not an installed package

from benchmarks.soak import STUB_VARIABLES, inventory  # noqa: E402  # the checkout is not an installed package

BIN = Path(sys.executable).parent
ENV = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}


class Cost(NamedTuple):
    """Of one run. `cpu` is that of Ansible and ssh on the controller."""

    tasks: int
    trips: float
    seconds: float
    cpu: float


def site(checkout: Path, inventory: str) -> tuple[str, float, float]:
    """Run site.yml; return its output, seconds and CPU seconds. -vvv prints each command that SSH runs."""
    argv = [str(BIN / "ansible-playbook"), "site.yml", "-i", inventory, "-vvv"]
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(argv, cwd=checkout, env=ENV, capture_output=True, text=True, check=False)
    seconds, after = time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        sys.exit(f"site.yml of {checkout} ended with {done.returncode}: {(done.stdout + done.stderr)[-1500:]}")
    return done.stdout, seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def noop(checkout: Path, inventory: str) -> Cost:
    """Return the cost of a run of a checkout that changes nothing."""
    site(checkout, inventory)
    text, seconds, cpu = site(checkout, inventory)
    changed = sum(map(int, re.findall(r"\bchanged=(\d+)", text)))
    if changed:
        sys.exit(f"site.yml of {checkout} changed {changed} things; look at its output on this inventory.")
    hosts = [name for name in re.findall(r"^(\S+) +: ok=", text, re.M) if name != "localhost"]
    return Cost(len(re.findall(r"^TASK \[", text, re.M)), len(re.findall(r" SSH: EXEC ", text)) / len(hosts), seconds, cpu)


def in_turns(sides: dict[str, tuple[Path, str]], rounds: int) -> dict[str, float]:
    """Measure checkouts and inventories in turns, print each run and the median of each, and return the medians of the seconds."""
    found: dict[str, list[Cost]] = {name: [] for name in sides}
    for number in range(1, rounds + 1):
        for name, side in sides.items():
            found[name].append(noop(*side))
            each = found[name][-1]
            print(f"round {number}: {name}: {each.tasks} tasks, {each.trips:g} round trips, {each.seconds:.1f} s, CPU {each.cpu:.1f} s", flush=True)
    medians = {name: statistics.median(each.seconds for each in costs) for name, costs in found.items()}
    for name, costs in found.items():
        print(f"median: {name}: {medians[name]:.1f} s, CPU {statistics.median(each.cpu for each in costs):.1f} s")
    return medians


def pairs(count: int, rounds: int) -> None:
    """Print the cost of a run over so many pairs next to that over one of them."""
    bring_up(2 * count)
    folder = Path(tempfile.mkdtemp(prefix="gb10-noop-"))  # the first side brings all up
    sides = {f"{number} pairs": (REPO, str(inventory(folder / str(number), number, **STUB_VARIABLES))) for number in (count, 1)}
    several, one = in_turns(sides, rounds).values()
    print(f"ratio {several / one:.2f}")


def main() -> None:
    """Print each run, and the median of each checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory", nargs="?", default="inventories/lab")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[REPO])
    parser.add_argument("--rounds", type=int, default=2, help="how often each checkout is measured (default 2)")
    parser.add_argument("--pairs", type=int, help="so many pairs of the container lab with the stub engine, next to one")
    options = parser.parse_args()
    if options.pairs:
        pairs(options.pairs, options.rounds)
        return
    in_turns({str(checkout): (checkout, os.path.abspath(options.inventory)) for checkout in options.checkouts}, options.rounds)


if __name__ == "__main__":
    main()
