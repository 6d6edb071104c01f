"""Run the stages of a suite and print each with its time: `stages.py check|test|more|long|bench [--only REGEX]`.

The lanes of a suite run side by side, the stages of a lane one after the other. What a stage prints appears when it is over. A stage that fails does not keep
the others from running, so that one run names all that is wrong.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
LAB, VM = "python lab/container/lab.py", "python lab/vm/vmlab.py"
NET = "pytest -q --durations=12"
ENGINE, MACHINES = "tests/acceptance/test_h_engine.py", "tests/acceptance/test_g_machines.py"
#: Rows that run with make more on a container lab of their own: without them its second lane is over when the first one has half of its rows left.
APART = ("tests/acceptance/test_b_failed_boot.py", "tests/acceptance/test_d_operate.py")
STUB_ROWS = f"{NET} tests/acceptance --ignore {ENGINE} --ignore {MACHINES}"
COPY = '--from "docker exec -i gb10-lab-1" --to "docker exec -i gb10-lab-2" --rails 192.168.200.11-192.168.200.12,192.168.201.11-192.168.201.12 --gib 1'
UNIT = ("unit tests", "make --no-print-directory unit")
LINT = tuple((name, f"make --no-print-directory {target}") for name, target in (("ansible-lint", "lint-ansible"), ("lint", "lint-quick"), ("types", "types")))

#: Each lane: the niceness of its stages, and these as (name, shell line). A lane of the labs goes first, because time passes there in which nothing computes.
SUITES: dict[str, tuple[tuple[int, tuple[tuple[str, str], ...]], ...]] = {
    "check": ((0, (UNIT,)), (0, LINT)),
    "test": (
        (
            0,
            (
                ("container lab", f"{LAB} up"),
                ("acceptance net on the stub engine", f"{STUB_ROWS} -m quick"),
                ("acceptance net on the real engine", f"{NET} {ENGINE} -m quick"),
            ),
        ),
        (
            5,
            (
                *LINT,
                ("images of the VM lab", f"{VM} build"),  # after the base image, which both labs use
                UNIT,
                ("fuzz, the agent over 500 simulated schedules", "pytest tests/fuzz tests/sim -q -n 2"),
                ("contract", "pytest tests/contract -q -n 2 -m 'not long and not slow' --durations=5"),
                ("GPU lab, without a GPU", f"{NET} tests/gpu/test_without_gpu.py"),
                ("acceptance net on real kernels", f"{NET} {MACHINES} -m quick"),
            ),
        ),
    ),
    "more": (
        (
            0,
            (
                ("container lab", f"{LAB} up"),
                ("acceptance net on the stub engine, the other rows", f"{STUB_ROWS} --ignore {' --ignore '.join(APART)} -m 'not quick'"),
                ("acceptance net on the real engine, the other rows", f"{NET} {ENGINE} -m 'not quick and not long'"),
            ),
        ),
        (
            5,
            (
                ("ansible-test sanity, antsibull-docs, the documentation site", "tools/sanity.sh"),
                ("tests that take seconds", "pytest tests/unit/plugins/callback tests/unit/roles tests/security tests/contract -q -n 2 -m 'slow and not long'"),
                ("acceptance net on the stub engine, operation and failed boots", f"GB10_LAB_INSTANCE=1 {NET} {' '.join(APART)} -m 'not quick'"),
            ),
        ),
    ),
    "long": (
        (
            0,
            (
                ("contract", "pytest tests/contract -q -n 2 -m long"),
                ("unit", "pytest tests/unit tests/security -q -n 2 -m long"),
                ("sim", "GB10_SCHEDULES=20000 pytest tests/sim/test_schedules.py -q"),
                ("fuzz", "GB10_FUZZ=10000 pytest tests/security/test_hostile_*.py -q"),
                ("machines", f"{NET} {MACHINES} -m long"),
                ("engine", f"{NET} {ENGINE} -m long"),
                ("lab", "pytest tests/lab -q --durations=20"),
                ("vm", "pytest tests/vm -q --durations=20"),
                ("molecule", "tools/molecule.sh"),
                ("faults", "python benchmarks/fault_table.py --write"),
                ("recovery", "python benchmarks/recovery.py --compare --write"),
                ("soak-stub", "python benchmarks/soak.py --faults 200 --stub --write"),
                ("soak-real", "python benchmarks/soak.py --faults 20 --write"),
                ("soak-hour", "python benchmarks/soak_hour.py --write"),
                ("soak-planted", "python benchmarks/soak_hour.py --planted --write"),
                ("as-published", "python benchmarks/as_published.py"),
                ("as-slower", "python benchmarks/as_published.py --slower"),
            ),
        ),
    ),
    "bench": (
        (
            0,
            (
                ("a run from no containers to a token, next to Compose by hand", "python benchmarks/cold_start.py"),
                ("a run without changes", "python benchmarks/noop.py"),
                ("from a line of a log to the sentence", "python benchmarks/gate_latency.py --rounds 3"),
                ("the agents", "python benchmarks/agent_cost.py"),
                ("the copy between two nodes", f"python benchmarks/copy_rate.py {COPY}"),
                ("the parser of boot logs", "python benchmarks/parse_log.py"),
                ("refusals", "python benchmarks/refusals.py"),
                # The real pair of the stages above has the memory of four nodes.
                ("four pairs in one run", "ansible-playbook playbooks/stop.yml -i inventories/lab && python benchmarks/noop.py --pairs 4"),
            ),
        ),
    ),
}


@dataclass
class Run:
    """The stages that are over: name, seconds, whether it passed."""

    done: list[tuple[str, float, bool]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def stage(self, name: str, line: str, nice: int) -> None:
        """Run one stage, then print what it printed."""
        with self.lock:
            print(f"=== {name} ...", flush=True)
        begin = time.monotonic()
        environment = {**os.environ, "PATH": f"{REPO}/.venv/bin{os.pathsep}{os.environ['PATH']}"}
        with tempfile.TemporaryFile() as log:
            words = ["nice", "-n", str(nice), "bash", "-c", line]
            code = subprocess.run(words, cwd=REPO, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, check=False).returncode
            seconds = time.monotonic() - begin
            log.seek(0)
            with self.lock:
                print(f"\n=== {name}: $ {line}", flush=True)
                sys.stdout.buffer.write(log.read())
                print(f"=== {name}: {'ok' if code == 0 else f'FAILED (exit code {code})'} in {seconds:.0f} s", flush=True)
                self.done.append((name, seconds, code == 0))

    def lane(self, nice: int, stages: list[tuple[str, str]]) -> None:
        """Run the stages of a lane."""
        for name, line in stages:
            self.stage(name, line, nice)


def run(suite: str, only: str) -> int:
    """Run the lanes of a suite side by side. Return 1 if a stage failed."""
    outcome, begin = Run(), time.monotonic()
    lanes = [(nice, [each for each in stages if re.search(only, each[0])]) for nice, stages in SUITES[suite]]
    threads = [threading.Thread(target=outcome.lane, args=lane) for lane in lanes]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if not outcome.done:
        print(f"No stage of {suite} matches {only!r}. Its stages: {', '.join(name for _nice, stages in SUITES[suite] for name, _line in stages)}")
        return 2
    print(f"\n=== {suite}: {time.monotonic() - begin:.0f} s in all")
    for name, seconds, passed in outcome.done:
        print(f"  {seconds:6.0f} s  {'ok    ' if passed else 'FAILED'}  {name}")
    return 0 if all(passed for _name, _seconds, passed in outcome.done) else 1


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("--only", default="", metavar="REGEX", help="the stages whose names match")
    options = parser.parse_args()
    if not (REPO.parent / "shared/samples").is_dir() and not os.environ.get("GB10_SHARED"):
        print("NOTE: ../shared is not next to this checkout: the tests on third-party captures and boot logs are left out.")
    return run(options.suite, options.only)


if __name__ == "__main__":
    raise SystemExit(main())
