# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run costs that has nothing to do: the five host roles over both VMs, in round trips of `ansible -m ping` on the same machines.

    python benchmarks/noop_vm.py [--runs 3] [--limit 25]

Wants the VM lab up (`make vm-lab`) with the roles applied. Pings before and after each run, so that both see the same host load.
Prints one line a run and a verdict; the exit code is 0 only when every run changed nothing and the median ratio is within the limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
INVENTORY = "inventories/vm-lab"
ROLES = "preflight,sysctl,readahead,docker,roce"
BIN = Path(sys.executable).parent


def run(*argv: str, callback: str | None = None) -> tuple[float, str]:
    """Run a command of the checkout; return seconds and output. Exits with the command's own words where it fails."""
    env = {**os.environ, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}", "ANSIBLE_NOCOLOR": "1"}
    if callback:
        env["ANSIBLE_STDOUT_CALLBACK"] = callback
    started = time.monotonic()
    done = subprocess.run([str(BIN / argv[0]), *argv[1:]], cwd=REPO, env=env, capture_output=True, text=True, check=False)
    seconds = time.monotonic() - started
    if done.returncode != 0:
        sys.exit(f"{' '.join(argv)} ended with {done.returncode}: {(done.stdout + done.stderr).strip()[-1500:]}")
    return seconds, done.stdout


def ping() -> float:
    """Return the seconds of one ping of all machines."""
    return run("ansible", "-i", INVENTORY, "gb10", "-m", "ansible.builtin.ping")[0]


def main() -> None:
    """Measure and judge."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3, help="how often to measure (default 3)")
    parser.add_argument("--limit", type=float, default=25, help="round trips that a run may cost a host (default 25)")
    options = parser.parse_args()
    ratios, clean = [], True
    ping()  # opens the connections, which neither measure is about
    for number in range(1, options.runs + 1):
        before = ping()
        with tempfile.TemporaryDirectory() as folder:
            extra = json.dumps({"gb10_receipts": folder})
            play = ("ansible-playbook", "-i", INVENTORY, "playbooks/site.yml", "--tags", ROLES, "-e", extra)
            seconds, text = run(*play, callback="ansible.builtin.default")
        after = ping()
        recap = [line for line in text.splitlines() if "changed=" in line and not line.startswith("localhost")]
        changed = sum(int(line.split("changed=")[1].split()[0]) for line in recap)
        ran = max(int(line.split("ok=")[1].split()[0]) for line in recap)
        trip = statistics.mean((before, after))
        ratios.append(seconds / trip)
        clean = clean and changed == 0
        print(f"run {number}: {ran} tasks on a host, {seconds:.1f} s, ping {trip:.2f} s, {ratios[-1]:.1f} round trips, changed={changed}", flush=True)
    middle = statistics.median(ratios)
    good = clean and middle <= options.limit
    word = "within" if middle <= options.limit else "OVER"
    print(f"{word} the limit: {middle:.1f} of {options.limit:g} round trips; {'nothing' if clean else 'SOMETHING'} changed")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
