"""How a served pair comes back from faults without a controller, on the container lab with the real engine, printed as a table.

Each fault of benchmarks/recoveries.py is done `--rounds` times: seconds until the agent has noticed it, seconds until a real completion comes back,
starts of the release. A plain boot (`gb10 stop`, `gb10 start`) is measured in each round. `--compare` does the same to the same Compose files with
`restart: unless-stopped` and without the agent; with `--rounds 0` nothing else. `--write` merges the rows into docs/measured/recovery.md, `--only worker,both`
does these alone. Usage:

    .venv/bin/python benchmarks/recovery.py [--rounds 5] [--compare] [--write] [--only NAMES]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from acceptance.owner import Owner  # noqa: E402  # as above
from container_lab import NODE, Lab, bring_up  # noqa: E402  # as above

from benchmarks import agents  # noqa: E402  # the checkout is not an installed package
from benchmarks.recoveries import FAULTS, SLACK, Fault, Outcome, done, long_request, plain_boot, serves_within  # noqa: E402  # as above

TABLE = REPO / "docs/measured/recovery.md"
COMPARED = 120.0  # seconds after which a pair that Docker restarts is given up
HEAD = "| fault | noticed | allowed | serves again | allowed | starts | rounds | `restart: unless-stopped` | date |\n|---|---|---|---|---|---|---|---|---|"
TEXT = """# How a served pair comes back

Each fault was done to a pair that serves the real vLLM engine on the container lab, by `benchmarks/recovery.py`. No
controller was connected, and nothing was repaired. Figures are medians of the rounds, in seconds.

- *Noticed*: from the fault to the event of kind `fault` on the head.
- *Serves again*: from the fault to a real completion. Allowed: a plain boot of the same run and {slack:.0f} s.
- Restarts of a node or of a Docker Engine count from when the Docker Engine answers again, a cut rail from when it is restored.
- *Starts*: starts of the release, the most of any round.
- `restart: unless-stopped`: the same Compose files with this policy and without the agent, the same fault once, {compared:.0f} s.

Plain boot: {plain}. Machine: {machine}.

"""
# A crash is forgotten soon: the pauses between crashes in a row are not what is measured.
SETTINGS = {"vllm_tp2_watch": {"stable_seconds": 3}}
UNIT = "gb10-agent"
FOLDER = f"{agents.FOLDER}/current"
COPY = "/root/unless-stopped"


def seconds(values: list[float | None], limit: str = "never") -> str:
    """Return the median, where a round without a result counts as the longest."""
    middle = statistics.median(float("inf") if value is None else value for value in values)
    return limit if middle == float("inf") else f"{middle:.1f} s"


def judged(fault: Fault, rounds: list[Outcome], plain: float) -> tuple[list[str], bool]:
    """Return the cells of a fault's row, and whether its bars hold."""
    allowed = plain + SLACK
    late = [one for one in rounds if one.serves is None or one.serves > allowed]
    blind = [one for one in rounds if one.noticed is None or one.noticed > fault.within]
    starts = max(one.restarts for one in rounds)
    good = len(late) * 2 < len(rounds) and len(blind) * 2 < len(rounds) and starts <= 1
    causes = ", ".join(sorted({one.cause for one in rounds if one.cause}))
    noticed = seconds([one.noticed for one in rounds]) + (f" ({causes})" if causes else "")
    cells = [fault.name, noticed, f"{fault.within:.0f} s", seconds([one.serves for one in rounds]), f"{allowed:.0f} s", str(starts), str(len(rounds))]
    return cells, good


# --- the same Compose files with a restart policy and no agent ------------------------------------------------------------------------


def compose_up(lab: Lab) -> bool:
    """Start both ranks with `restart: unless-stopped`, the worker first; return whether the pair serves."""
    for node in (2, 1):
        name = lab.container(node)
        lab.on(
            node,
            f"systemctl disable --now {UNIT} 2>/dev/null; docker rm -f {name} 2>/dev/null; mkdir -p {COPY} && cd {COPY}"
            f" && sed \"s/restart: 'no'/restart: unless-stopped/\" {FOLDER}/compose.yaml > compose.yaml && cp {agents.FOLDER}/agent/fabric.json ."
            " && grep -q unless-stopped compose.yaml && docker compose -f compose.yaml -f fabric.json up --detach --pull never",
            timeout=120,
        )
    return serves_within(lab, 240)


def compose_down(lab: Lab) -> None:
    """Remove what compose_up started, and let the agents run again."""
    for node in (1, 2):
        lab.on(node, f"docker rm -f {lab.container(node)}; rm -rf {COPY}; systemctl enable --now {UNIT}", check=False)


def shown(lab: Lab) -> str:
    """Return the state of both containers in words."""
    out = []
    for node in (1, 2):
        state = lab.inspect(node)
        word = f"{state['State']['Status']}, {state['RestartCount']} restarts" if state else "no container"
        if state and lab.on(node, "ps -eo stat,args | grep -E '^T.*(VLLM::|vllm serve)' || true").strip():
            word += ", its processes are stopped"
        out.append(f"rank {node - 1} {word}")
    return "; ".join(out)


def compared(lab: Lab, fault: Fault) -> str:
    """Do a fault to the pair under `restart: unless-stopped` and return what happened."""
    if not compose_up(lab):
        return "did not serve before the fault"
    if fault.request:
        long_request(lab)
    at = fault.act(lab)
    if fault.after:
        time.sleep(max(0.0, at + 60 - time.time()))
        lab.on(2, fault.after)
        at += 60
    serves = serves_within(lab, COMPARED)
    return f"serves after {time.time() - at:.1f} s" if serves else f"does not serve after {COMPARED:.0f} s ({shown(lab)})"


# --- the table ---------------------------------------------------------------------------------------------------------------------------


def written() -> dict[str, list[str]]:
    """Return the cells of the rows that docs/measured/recovery.md has, by fault."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    rows = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in lines if line.startswith("| ")]
    return {row[0]: row for row in rows if row[0] in {fault.name for fault in FAULTS.values()}}


def today() -> str:
    """Return the date, UTC."""
    return time.strftime("%Y-%m-%d", time.gmtime())


def plain_text(boots: list[float]) -> str:
    """Return the plain boot of this run in words, or that of docs/measured/recovery.md if this run has none."""
    if boots:
        return f"{statistics.median(boots):.1f} s (median of {len(boots)})"
    found = re.search(r"^Plain boot: (.+?)\. Machine", TABLE.read_text(encoding="utf-8") if TABLE.exists() else "", re.M)
    return found.group(1) if found else "not measured"


def write(rows: dict[str, list[str]], plain: str) -> None:
    """Write docs/measured/recovery.md."""
    machine = f"{os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}, load average {os.getloadavg()[2]:.1f} when this was written"
    lines = [f"| {' | '.join(rows[fault.name])} |" for fault in FAULTS.values() if fault.name in rows]
    text = TEXT.format(slack=SLACK, compared=COMPARED, plain=plain, machine=machine)
    TABLE.write_text(text + "\n".join([HEAD, *lines]) + "\n", encoding="utf-8")


def one(lab: Lab, fault: Fault) -> Outcome:
    """Do one fault, report it, and restore the pair if it has not come back."""
    time.sleep(6)
    out = done(lab, fault)
    noticed, serves = (("never" if value is None else f"{value:.1f} s") for value in (out.noticed, out.serves))
    print(f"{fault.name}: noticed {noticed} ({out.cause}), serves again {serves}, {out.restarts} starts", file=sys.stderr, flush=True)
    if out.serves is None:
        print(lab.on(1, "gb10 events -n 30; journalctl -u gb10-agent -n 30 --no-pager", check=False), file=sys.stderr, flush=True)
        restored(lab)
    return out


def restored(lab: Lab) -> None:
    """Serve the pair with site.yml."""
    subprocess.run(["docker", "start", f"{NODE}1", f"{NODE}2"], check=True, capture_output=True)
    run = lab.play(variables=SETTINGS)
    assert run.rc == 0, run.stdout[-3000:]


def main() -> int:
    """Print the table; exit 1 where a bar does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--compare", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default=",".join(FAULTS))
    options = parser.parse_args()
    bring_up(2)
    folder = Path(tempfile.mkdtemp(prefix="gb10-recovery-"))
    lab = Lab(Owner(folder, "lab-tiny").inventory, folder)
    restored(lab)
    chosen = {name: FAULTS[name] for name in options.only.split(",")}
    boots: list[float] = []
    outcomes: dict[str, list[Outcome]] = {name: [] for name in chosen}
    rows, held = written(), dict.fromkeys(chosen, True)
    for _round in range(options.rounds):
        boots.append(plain_boot(lab))
        for name, fault in chosen.items():
            outcomes[name].append(one(lab, fault))
            cells, held[name] = judged(fault, outcomes[name], statistics.median(boots))
            other = rows[fault.name][-2] if fault.name in rows else "not measured"
            rows[fault.name] = [*cells, other, today()]
            if options.write:  # an interrupted run keeps what it has
                write(rows, plain_text(boots))
    if options.compare:
        for fault in chosen.values():
            rows.setdefault(fault.name, [fault.name, *["not measured"] * 7, today()])
            rows[fault.name][-2] = compared(lab, fault)
            if options.write:
                write(rows, plain_text(boots))
            print(f"{fault.name}, restart: unless-stopped: {rows[fault.name][-2]}", file=sys.stderr, flush=True)
        compose_down(lab)
    run = lab.play()
    assert run.rc == 0, run.stdout[-3000:]
    print(f"plain boot: {plain_text(boots)}\n{HEAD}")
    for fault in chosen.values():
        print(f"| {' | '.join(rows[fault.name])} |")
    return 0 if all(held.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
