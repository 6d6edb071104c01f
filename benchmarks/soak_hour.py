"""A soak of an hour on the stub of the container lab, with faults planted or without, by the unit of the head as an owner starts it.

`--planted`: rank 1 loses a MiB a request, rank 0 has 2 GiB less from minute 25 on, and a token takes 10 % longer an hour. In both kinds the unit of the soak,
the agent of the head, and rank 1 are killed in the middle. The restart for the killed rank is permitted, and no other.
Nodes of the lab share the memory of their machine, so their /proc/meminfo is a file that a loop writes: noise of 200 MiB, and what is planted.
`--write` merges the run into docs/measured/soak.md. GB10_LAB_INSTANCE selects the lab. Usage:

    .venv/bin/python benchmarks/soak_hour.py [--planted] [--minutes 60] [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from acceptance.owner import wait_for  # noqa: E402  # the harness is next to the tests, which are not an installed package
from container_lab import bring_up  # noqa: E402  # as above

from benchmarks.soak import BOUND, SoakLab, serves, write  # noqa: E402  # the checkout is not an installed package

CONTROL = "/srv/models/stub-control/faults"
TOKEN_SECONDS = 0.02
SLOWER = 1.1  # an hour
STEP_KIB, STEP_AT = 2 << 20, 25 / 60  # hours
PLANTED = "Planted: 1 MiB a request on rank 1, 2 GiB at minute 25 on rank 0, and tokens that take 10 % longer an hour."
KILLS = (("soak", 0.3), ("agent", 0.5), ("rank", 0.7))  # share of the run
RESTARTS = 1  # by the agent, for the rank
#: A file of our own in place of the kernel's.
MEMORY = "cp /proc/meminfo /run/mi0; cp /run/mi0 /run/mi; mount --bind /run/mi /proc/meminfo"
LINE = "awk -v n={kib} '/^MemAvailable/{{$2=n}}1' /run/mi0 >/run/mi1; cat /run/mi1 >/run/mi"


def served_requests(lab: SoakLab) -> int:
    """Return how many requests the engine has served, by its own counter; 0 while it does not serve."""
    text = lab.on(1, "curl -s -m 5 http://127.0.0.1:8000/metrics | awk '/^vllm:request_success_total/{s+=$2} END{print int(s)}'", check=False)
    return int(text.strip() or 0)


def plant(lab: SoakLab, noise: random.Random, hours: float, lost: dict[str, int], planted: bool) -> None:
    """Write the memory of both nodes, and the seconds of a token."""
    now = served_requests(lab)
    lost["requests"] += max(0, now - lost["counter"]) if now else 0
    lost["counter"] = now or lost["counter"]
    for node in (1, 2):
        kib = (24 << 20) + int(noise.gauss(0, 100 << 10))
        if planted:
            kib -= 1024 * lost["requests"] if node == 2 else STEP_KIB if hours > STEP_AT else 0
        lab.on(node, LINE.format(kib=kib), check=False)
    if planted:
        lab.on(1, f"echo '* slow {TOKEN_SECONDS * SLOWER ** hours:.5f}' >{CONTROL}", check=False)


def kill(lab: SoakLab, what: str) -> None:
    """Kill the unit of the soak, the agent, or a rank, without a word before."""
    if what == "rank":
        lab.on(2, f"docker kill {lab.container(2)}")
    else:
        lab.on(1, f"systemctl kill --signal KILL gb10-{what}")


def ended(lab: SoakLab) -> bool:
    """Whether the soak is over: this reads all samples, so it is asked at the end."""
    return '"ended"' in lab.on(1, "gb10 soak status --json", check=False)


def run(lab: SoakLab, options: argparse.Namespace) -> dict[str, Any]:
    """Soak, and return the document of the head."""
    noise, lost, kills = random.Random(options.seed), {"requests": 0, "counter": 0}, list(KILLS)  # nosec B311 # noqa: S311  repeatable, no secret
    for node in (1, 2):
        lab.on(node, f"{MEMORY}; mkdir -p $(dirname {CONTROL}); echo '* slow {TOKEN_SECONDS}' >{CONTROL}")
    try:
        lab.on(1, f"gb10 soak start --hours {options.minutes / 60} --interval 20 --pause {options.pause} --seed {options.seed} --restarts {RESTARTS}")
        begun = time.monotonic()
        while (share := (time.monotonic() - begun) / 60 / options.minutes) < 0.99 or (share < 1.3 and not ended(lab)):
            plant(lab, noise, share * options.minutes / 60, lost, options.planted)
            if kills and share > kills[0][1]:
                kill(lab, kills.pop(0)[0])
            time.sleep(4)
        assert not kills, "the soak has ended early"
        return dict(json.loads(lab.on(1, "gb10 soak verdict --json", check=False)), counted=lost["requests"])
    finally:
        for node in (1, 2):
            lab.on(node, f"umount /proc/meminfo; rm -f {CONTROL}", check=False)


def wrong(found: dict[str, Any], planted: bool) -> list[str]:
    """Return what is not as it must be."""
    text = " ".join(found["findings"])
    wanted = ("of rank 1 on", "GiB in one step", "Decode speed falls") if planted else ()
    out = [f"not found: {each}" for each in wanted if each not in text]
    out += [f"{found['verdict']}: {text}"] if (found["verdict"] == "failed") is not planted else []
    out += ["requests were lost"] if abs(found["requests"] - found["counted"]) > 0.03 * found["counted"] else []
    return out


def section(found: dict[str, Any], options: argparse.Namespace, faults: list[str]) -> str:
    """Return the run's section of docs/measured/soak.md."""
    lines = [
        f"## An hour with a verdict, {'three faults planted' if options.planted else 'quiet'}", "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, `benchmarks/soak_hour.py{' --planted' if options.planted else ''} --minutes {options.minutes:g}`, seed"
        f" {options.seed}. Machine: {os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}.",
        f"{PLANTED if options.planted else 'Nothing was planted.'} The unit of the soak, the agent of the head, and rank 1 were killed in the middle.",
        f"Requests by the soak: {found['requests']:,}; by the engine's counter: {found['counted']:,}.", "",
        found["sentence"], "", *(f"- {each}" for each in [*found["findings"], *found["notes"]]), "",
        "As expected." if not faults else f"Not as expected: {'; '.join(faults)}", "",
    ]  # fmt: skip
    return "\n".join(lines)


def main() -> int:
    """Run; exit 1 where the verdict is not the one that was planted."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--planted", action="store_true")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--pause", type=float, default=3.5)
    parser.add_argument("--seed", default="hour")
    parser.add_argument("--write", action="store_true")
    options = parser.parse_args()
    bring_up(2)
    lab = SoakLab(Path(tempfile.mkdtemp(prefix="gb10-soak-")), stub=True)
    lab.serve()
    assert wait_for(lambda: serves(lab), BOUND[True]), "the pair does not serve"
    found = run(lab, options)
    faults = wrong(found, options.planted)
    text = section(found, options, faults)
    print(text)
    if options.write:
        write(text)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
