"""Cold to first token, side by side in one run: by hand, and by site.yml, on the prepared nodes of the container lab.

By hand means what a user does without us: `docker compose up` on the worker, the same wait, `docker compose up` on the head, then curl in a
loop until a completion comes back. Both sides run the same rendered Compose files on the same nodes, in turn, `--rounds` times. Usage:

    .venv/bin/python benchmarks/cold_start.py [--rounds 2]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
ANSIBLE = str(Path(sys.executable).parent / "ansible-playbook")
URL = "http://127.0.0.1:8000/v1/completions"  # asked on the head
BEARER = '-H "Authorization: Bearer $(cut -d= -f2 /opt/gb10-cluster/vllm_tp2/pair1/api_key)"'
BODY = json.dumps({"model": "lab-tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0})
FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1/current"


def play(name: str, *arguments: str) -> float:
    """Run a playbook on the lab and return its seconds; its output is shown only when it fails."""
    start = time.monotonic()
    out = subprocess.run([ANSIBLE, name, "-i", "inventories/lab", *arguments], cwd=REPO, capture_output=True, text=True, check=False)
    if out.returncode:
        sys.exit(f"{name} failed:\n{out.stdout[-3000:]}")
    return time.monotonic() - start


def token() -> bool:
    """Whether a completion comes back now."""
    line = f"curl -s -m 20 {URL} {BEARER} -H 'Content-Type: application/json' -d '{BODY}'"
    out = subprocess.run(["docker", "exec", "gb10-lab-1", "sh", "-c", line], capture_output=True, text=True, check=False)
    return '"text"' in out.stdout


def by_hand(lead: float) -> float:
    """Start worker and head as a user would, and return the seconds to the first completion."""
    start = time.monotonic()
    for node in (2, 1):
        # -p and an absolute file: `current` is a link, and Compose names the project after the folder otherwise.
        up = ["docker", "exec", f"gb10-lab-{node}", "docker", "compose", "-p", "gb10-pair1", "-f", f"{FOLDER}/compose.yaml", "up", "-d"]
        subprocess.run(up, check=True, capture_output=True)
        if node == 2:
            time.sleep(lead)
    while not token():
        time.sleep(1)
    return time.monotonic() - start


def main() -> int:
    """Print both sides of each round, their medians, difference and ratio."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--lead", type=float, default=2.0, help="seconds between worker and head; the lab profile's worker_lead_seconds")
    options = parser.parse_args()
    subprocess.run([sys.executable, "lab/container/lab.py", "up"], cwd=REPO, check=True, capture_output=True)
    play("site.yml")  # prepared nodes: the release is written, the page cache is warm for both sides
    hand, site = [], []
    for number in range(1, options.rounds + 1):
        play("playbooks/stop.yml")
        hand.append(by_hand(options.lead))
        play("playbooks/stop.yml")
        site.append(play("site.yml"))
        if not token():
            sys.exit("site.yml ended without a completion")
        print(f"round {number}: by hand {hand[-1]:5.1f} s   site.yml {site[-1]:5.1f} s", flush=True)
    a, b = statistics.median(hand), statistics.median(site)
    print(f"median : by hand {a:5.1f} s   site.yml {b:5.1f} s   overhead {b - a:+.1f} s   ratio {b / a:.2f}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
