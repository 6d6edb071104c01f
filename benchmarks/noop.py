# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run costs that has nothing to do: tasks, SSH round trips of a host, seconds, and CPU seconds of the controller, of several checkouts in turns.

    python benchmarks/noop.py INVENTORY [CHECKOUT ...] [--rounds 2]

Wants a pair that serves the inventory. Each turn begins with a run that is not counted: it installs the agent of its checkout.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
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


def main() -> None:
    """Print each run, and the median of each checkout."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("inventory")
    parser.add_argument("checkouts", nargs="*", type=Path, default=[REPO])
    parser.add_argument("--rounds", type=int, default=2, help="how often each checkout is measured (default 2)")
    options = parser.parse_args()
    found: dict[Path, list[Cost]] = {checkout: [] for checkout in options.checkouts}
    for number in range(1, options.rounds + 1):
        for checkout, costs in found.items():
            costs.append(noop(checkout, os.path.abspath(options.inventory)))
            each = costs[-1]
            print(f"round {number}: {checkout}: {each.tasks} tasks, {each.trips:g} round trips, {each.seconds:.1f} s, CPU {each.cpu:.1f} s", flush=True)
    for checkout, costs in found.items():
        print(f"median: {checkout}: {statistics.median(each.seconds for each in costs):.1f} s, CPU {statistics.median(each.cpu for each in costs):.1f} s")


if __name__ == "__main__":
    main()
