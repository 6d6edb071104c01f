"""How long a refusal takes, next to `ansible-inventory --list` on the same inventory: the median of alternating runs, in seconds.

Each mistake is made in a copy of inventories/spark-pair. No host is contacted. The bar is that the median of all refusals takes at most twice as
long as the listing. Usage:

    .venv/bin/python benchmarks/refusals.py [--rounds 15]
"""

from __future__ import annotations

import argparse
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

REPO = Path(__file__).resolve().parents[1]
BIN = Path(sys.executable).parent
BAR = 2.0


class Mistake(NamedTuple):
    """What is added to group_vars/gb10.yml, and the command without its inventory."""

    name: str
    text: str
    command: tuple[str, ...]


MISTAKES = [
    Mistake("a bracket that is not closed", "gb10_fabric_cidrs: [192.168.200.0/24\n", ("site.yml",)),
    Mistake("a misspelt variable", "roce_mtuu: 9000\n", ("playbooks/validate.yml",)),
    Mistake("a value out of range", "vllm_tp2_gpu_memory_utilization: 80\n", ("playbooks/validate.yml",)),
    Mistake("an unknown key of a profile", "gb10_profiles: {mine: {extends: b12x-fp8-1m, engin: {}}}\n", ("playbooks/validate.yml",)),
    Mistake("a misspelt tag", "", ("site.yml", "--tags", "sysctll")),
    Mistake("a context beyond the pool", "vllm_tp2_context: 9000000\n", ("site.yml",)),
    Mistake("a misspelt extra variable", "", ("playbooks/status.yml", "-e", "vllm_tp2_statsu=x")),
]


def measure(command: list[str]) -> tuple[float, float, int]:
    """Run a command; return its wall and CPU seconds and its exit code."""
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    done = subprocess.run(command, cwd=REPO, stdin=subprocess.DEVNULL, capture_output=True, check=False, env={**os.environ, "ANSIBLE_SSH_EXECUTABLE": "false"})
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic() - start, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, done.returncode


def main() -> int:
    """Measure, print, and compare with the bar."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    rounds = parser.parse_args().rounds
    listing: list[tuple[float, float]] = []
    medians: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        for mistake in MISTAKES:
            inventory = Path(folder) / mistake.name.replace(" ", "-")
            shutil.copytree(REPO / "inventories" / "spark-pair", inventory)
            hosts, group = inventory / "hosts.yml", inventory / "group_vars" / "gb10.yml"
            hosts.write_text(hosts.read_text(encoding="utf-8").replace("192.0.2.", "10.77.0."), encoding="utf-8")
            group.write_text(group.read_text(encoding="utf-8") + mistake.text, encoding="utf-8")
            refusals = []
            for _round in range(rounds):
                plain = Path(folder) / "plain"
                if not plain.exists():
                    shutil.copytree(inventory, plain)
                    shutil.copy(REPO / "inventories" / "spark-pair" / "group_vars" / "gb10.yml", plain / "group_vars" / "gb10.yml")
                wall, cpu, _code = measure([str(BIN / "ansible-inventory"), "-i", str(plain), "--list"])
                listing.append((wall, cpu))
                wall, cpu, code = measure([str(BIN / "ansible-playbook"), *mistake.command, "-i", str(inventory)])
                if not code:
                    raise SystemExit(f"{mistake.name} was not refused")
                refusals.append((wall, cpu))
            medians.append((statistics.median(wall for wall, _cpu in refusals), statistics.median(cpu for _wall, cpu in refusals)))
            print(f"{mistake.name:<30} {medians[-1][0]:.2f} s, CPU {medians[-1][1]:.2f} s", flush=True)
    plain_wall, plain_cpu = (statistics.median(each[index] for each in listing) for index in (0, 1))
    wall, cpu = (statistics.median(each[index] for each in medians) for index in (0, 1))
    print(f"{'ansible-inventory --list':<30} {plain_wall:.2f} s, CPU {plain_cpu:.2f} s")
    print(f"median of the refusals: {wall / plain_wall:.2f} times the listing, by CPU time {cpu / plain_cpu:.2f} times; at most {BAR:g}")
    return int(wall / plain_wall > BAR)


if __name__ == "__main__":
    raise SystemExit(main())
