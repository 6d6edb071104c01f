"""From the decisive line reaching a rank's log to the sentence on the controller's screen, on the container lab, next to a loop that polls every 10 s.

Each round boots the pair under site.yml, once with an unknown flag on one rank's command line (failure) and once as it should be (success).
The line's time is the Docker Engine's own stamp, the sentence's that of Ansible's log; both clocks are this machine's. The verdict on a success
includes asking for the models and a real completion. The end of the task is printed too: until then a failed boot is stopped on both nodes.
The poll loop is what the agent replaces: `docker logs | grep` every 10 s on both nodes, run at the same time on the same boots. Usage:

    .venv/bin/python benchmarks/gate_latency.py [--rounds 5]
"""

from __future__ import annotations

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from datetime import datetime, timezone
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from container_lab import Lab, bring_up  # noqa: E402  # the harness is next to the tests, which are not an installed package

from benchmarks.faults import verdict  # noqa: E402  # as above

# One attempt: a release that has passed is otherwise started again after a transient failure.
SETTINGS = {"vllm_tp2_restart": True, "vllm_tp2_rollback": False, "vllm_tp2_attempts": 1}
DECISIVE = {"failure": r"error: unrecognized arguments|error: argument", "success": r"Application startup complete"}
SENTENCE = re.compile(r"\[pair1 \+ *\d+ s\] (pair1 serves: |.*--no-such-flag)")
POLL_SECONDS = 10.0
BARS = {"failure": (0.5, 2.0), "success": (1.5, 1.5)}  # seconds: median, worst


def stamp(text: str) -> float:
    """Turn the Docker Engine's stamp into seconds since the epoch."""
    whole, _dot, fraction = text.rstrip("Z").partition(".")
    return datetime.fromisoformat(whole).replace(tzinfo=timezone.utc).timestamp() + float("0." + (fraction or "0"))


class Watch(threading.Thread):
    """Follow one rank's log in parallel with the gate: when the decisive line came, and when a poll loop would have seen it."""

    def __init__(self, lab: Lab, node: int, pattern: str) -> None:
        super().__init__(daemon=True)
        self.lab, self.node, self.pattern = lab, node, re.compile(pattern)
        self.name = lab.container(node)
        # What an engine printed that still runs from before does not count.
        self.logs = ["docker", "logs", "--since", f"{time.time():.3f}"]
        self.line_at: float | None = None
        self.polled_at: float | None = None
        self.over = threading.Event()

    def run(self) -> None:
        """Follow until the line came or the round is over."""
        threading.Thread(target=self._poll, daemon=True).start()
        while not self.over.is_set() and self.line_at is None:
            follow = subprocess.Popen(
                ["docker", "exec", f"gb10-lab-{self.node}", *self.logs, "-t", "-f", self.name], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            assert follow.stdout is not None
            for line in follow.stdout:
                if self.pattern.search(line) and re.match(r"\d{4}-", line):
                    self.line_at = stamp(line.split(" ", 1)[0])
                    break
            follow.kill()
            follow.wait()
            time.sleep(0.2)

    def _poll(self) -> None:
        while not self.over.is_set() and self.polled_at is None:
            if self.pattern.search(self.lab.on(self.node, f"{' '.join(self.logs)} {self.name} 2>&1 || true", check=False)):
                self.polled_at = time.time()
                return
            self.over.wait(POLL_SECONDS)


def shown_at(log: Path) -> float:
    """Return when the run showed the verdict, by Ansible's own log."""
    lines = [line for line in log.read_text(encoding="utf-8").splitlines() if SENTENCE.search(line)]
    return datetime.strptime(lines[0][:23], "%Y-%m-%d %H:%M:%S,%f").timestamp()  # noqa: DTZ007  the log has local time


def one(lab: Lab, kind: str) -> tuple[float, float, float | None]:
    """Boot once and return the seconds from the line to the sentence, to the end of the task, and to the poll loop's look."""
    watches = [Watch(lab, node, DECISIVE[kind]) for node in (1, 2)]
    for watch in watches:
        watch.start()
    flag = {"vllm_tp2_extra_args": {"no-such-flag": True}} if kind == "failure" else {}
    log = Path(tempfile.mkdtemp(prefix="gb10-latency-log-")) / "ansible.log"
    run = lab.play("site.yml", "--tags", "vllm_tp2", variables={**SETTINGS, **flag}, env={"ANSIBLE_LOG_PATH": str(log)})
    for watch in watches:
        watch.over.set()
    assert (run.rc == 0) is (kind == "success"), run.stdout[-3000:]
    first = min(w.line_at for w in watches if w.line_at is not None)
    polled = [w.polled_at for w in watches if w.polled_at is not None]
    return shown_at(log) - first, verdict(run)[0] - first, (min(polled) - first if polled else None)


def main() -> int:
    """Print every round, then median and worst of both sides; exit 1 above a bar."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    bring_up(2)
    lab = Lab(REPO / "inventories/lab", Path(tempfile.mkdtemp(prefix="gb10-latency-")))
    held = True
    for kind, (median, worst) in BARS.items():
        gate, poll = [], []
        for number in range(1, options.rounds + 1):
            mine, task, other = one(lab, kind)
            gate.append(mine)
            poll.append(other if other is not None else POLL_SECONDS)
            seen = f"{other:5.2f} s" if other is not None else "not before the container was gone"
            print(f"{kind} {number}: gate {mine:5.2f} s, end of its task {task:5.2f} s   10 s poll loop {seen}", flush=True)
        a, b = statistics.median(gate), statistics.median(poll)
        print(f"{kind}: gate median {a:.2f} s, worst {max(gate):.2f} s; poll loop median {b:.2f} s, worst {max(poll):.2f} s; ratio {a / b:.2f}")
        good = a <= median and max(gate) <= worst
        print(f"{kind}: {'within' if good else 'ABOVE'} the bars of {median} s median, {worst} s worst", flush=True)
        held = held and good
    return 0 if held else 1


if __name__ == "__main__":
    raise SystemExit(main())
