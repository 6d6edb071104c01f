# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The commands of the GPU lab: `python -m lab.gpu COMMAND`. See lab/gpu/README.md."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Sequence
from pathlib import Path

from lab.container.host import docker, report
from lab.container.plan import LabError
from lab.gpu import bundle, setup
from lab.gpu.machine import CHECKOUT, Machine, copy_checkout, this

PLAY = ("ansible-playbook", "site.yml", "-i", "inventories/gpu-lab")
API = "http://172.30.70.11:8000/v1/completions"
PROMPT = "The capital of France is"
USAGE = "usage: python -m lab.gpu bundle [NAME…] | take FOLDER | up | demo | enter COMMAND… | part NAME | wait NAME SECONDS | test [NAME…] | out FOLDER | down"
PART_BYTES = 15_000_000  # of a file that comes back from the machine


def enter(machine: Machine, *words: str | Path) -> int:
    """Run a command in the namespace, in the checkout there."""
    return subprocess.run(setup.space(machine, "enter", *words), check=False).returncode


def demo(machine: Machine) -> int:
    """`site.yml`, and one completion."""
    copy_checkout(machine)
    return enter(machine, *PLAY) or enter(machine, "python3", "-m", "lab.gpu", "ask")


def ask(_machine: Machine) -> int:
    """Ask the pair for one completion, from the namespace."""
    key = docker("exec", "gb10-lab-1", "gb10", "key")
    body = json.dumps({"model": "lab-1b", "prompt": PROMPT, "max_tokens": 16, "temperature": 0}).encode()
    request = urllib.request.Request(API, body, {"Content-Type": "application/json", "Authorization": f"Bearer {key}"})
    with urllib.request.urlopen(request, timeout=60) as reply:  # nosec B310 # noqa: S310  an address of the lab
        print(f"{PROMPT}{json.load(reply)['choices'][0]['text']}")
    return 0


def parts() -> list[str]:
    """The parts of tests/gpu, without the one that needs no GPU."""
    names = [path.stem.removeprefix("test_") for path in (CHECKOUT / "tests/gpu").glob("test_*.py")]
    return sorted(set(names) - {"without_gpu"})


def part(machine: Machine, name: str) -> int:
    """Start a part of tests/gpu in the background. Parts wait for each other, since all use the one pair.

    flock -o: a program that a part leaves behind, such as a connection that SSH keeps, does not hold the lock.
    """
    file = f"tests/gpu/test_{name}.py"
    if name not in parts():
        raise LabError(f"There is no {file}. Parts: {', '.join(parts())}.")
    copy_checkout(machine)
    test = ("env", f"GPU_LAB_PART={machine.results / name}.jsonl", "python3", "-m", "pytest", "-p", "lab.gpu.results", "-v", "--durations=0", file)
    started = machine.start(name, ["flock", "-o", machine.home / "part.lock", *setup.space(machine, "enter", *test)])
    report(f"{name}: {'started' if started else 'runs already'}; its log is {machine.log(name)}")
    return 0


def test(machine: Machine, *names: str) -> int:
    """Run parts of tests/gpu, or all, one after the other."""
    codes = []
    for name in names or parts():
        part(machine, name)
        codes.append(machine.wait(name, 24 * 3600, lines=200))
    return max(codes, default=0)


def out(machine: Machine, folder: str) -> int:
    """Pack the results, and what the playbooks wrote, into files that the machine may give back. `cat results.tgz.* | tar -xz` unpacks them."""
    more = "for each in evidence receipts bench; do [ ! -d checkout/$each ] || cp -r checkout/$each results/; done"
    script = f'cd "$1"; {more}; tar -cz results | split -b "$2" -d -a 1 - "$3/results.tgz."; ls -l "$3"'
    return subprocess.run(["sh", "-c", script, "sh", machine.home, str(PART_BYTES), folder], check=False).returncode


# Each command: its function, and how many words it takes at least and at most.
COMMANDS: dict[str, tuple[Callable[..., int], int, int]] = {
    "bundle": (lambda _machine, *names: bundle.make(names), 0, 3),
    "take": (lambda machine, folder: setup.take(machine, Path(folder)), 1, 1),
    "up": (setup.up, 0, 0),
    "down": (setup.down, 0, 0),
    "nodes": (setup.inside, 0, 0),
    "demo": (lambda machine: setup.up(machine) or demo(machine), 0, 0),
    "ask": (ask, 0, 0),
    "enter": (enter, 1, 99),
    "part": (part, 1, 1),
    "wait": (lambda machine, name, seconds: machine.wait(name, float(seconds)), 2, 2),
    "test": (lambda machine, *names: setup.up(machine) or test(machine, *names), 0, 99),
    "out": (out, 1, 1),
}


def main(argv: Sequence[str]) -> int:
    name, *words = argv or [""]
    call, least, most = COMMANDS.get(name, (ask, 1, 0))
    if not least <= len(words) <= most:
        print(USAGE)
        return 2
    try:
        return call(this(), *words)
    except (LabError, OSError) as error:
        print(f"lab.gpu: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
