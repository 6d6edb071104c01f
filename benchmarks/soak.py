"""Random faults in a row on the served pair of the container lab, drawn by a seed. No controller is connected, and nothing is repaired.

After each fault the pair has BOUND seconds to serve a real completion again by itself. Then one container of one release runs on each rank, no rank
has started more containers than the agent has started releases, and the state files agree. Memory, descriptors, and threads of both agents are recorded.
The first half of the faults leaves both agents alive: they must not grow in it. The second half also kills agents and restarts nodes.

`--stub` serves the stub of the labs (lab/engine), so that a boot takes seconds. `--write` merges the run into docs/measured/soak.md.
GB10_LAB_INSTANCE selects the lab. Usage:

    .venv/bin/python benchmarks/soak.py --faults 200 --seed 16 --stub [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from acceptance.owner import wait_for  # noqa: E402  # as above
from container_lab import Lab, api_key, bring_up  # noqa: E402  # as above

from benchmarks import agents  # noqa: E402  # the checkout is not an installed package
from benchmarks.recoveries import noticed  # noqa: E402  # as above
from lab.container import plan  # noqa: E402  # as above

TABLE = REPO / "docs/measured/soak.md"
INSTANCE = plan.check_instance(os.environ.get("GB10_LAB_INSTANCE", ""))
NODES = plan.nodes(2, INSTANCE)
STUB_VARIABLES = {"gb10_profile": "lab-stub", "vllm_tp2_collective_test": "never"}
BOUND = {True: 120.0, False: 300.0}  # seconds from the fault, or from the end of a cut rail, until the pair serves; with the stub or the real engine
NOTICE, SETTLE = 60.0, 20.0
# Faults follow each other within seconds: crashes in a row, and the pauses between them, are not what is tested.
SETTINGS = {"restarts": 100000, "stable_seconds": 0.5}
GROUP = "gb10.cluster.group=pair1"
RAILS = ("enp1s0f0np0", "enP2p1s0f0np0")
GROWTH, SLACK = 1.10, 2  # of the memory; of descriptors and threads
PROBE = """
import json, os, subprocess
def text(path):
    try: return open(path).read()
    except OSError: return ""
def run(*words): return subprocess.run(words, capture_output=True, text=True).stdout
pid = run("systemctl", "show", "--property", "MainPID", "--value", "gb10-agent").strip()
status = dict(line.split(":", 1) for line in text(f"/proc/{pid}/status").splitlines())
ids = run("docker", "ps", "-aq", "--filter", "label=GROUP").split()
files = {name: text(f"FOLDER/agent/{name}.json") for name in ("desired", "outcome", "watch", "owner")}
print(json.dumps({"agent": [int(pid), int(status.get("VmRSS", "0").split()[0]), len(os.listdir(f"/proc/{pid}/fd")), int(status.get("Threads", "0"))],
    "containers": json.loads(run("docker", "inspect", *ids)) if ids else [], "files": files,
    "begun": run("docker", "events", "--since", "SINCE", "--until", "0s", "--format", "{{.ID}}", *("--filter=event=start", "--filter=label=GROUP")).split()}))
"""


class SoakLab(Lab):
    """The nodes of the lab's instance, and the engine that serves."""

    def __init__(self, folder: Path, stub: bool) -> None:
        super().__init__(inventory(folder), folder)
        self.stub = stub

    def completes(self) -> bool:
        """Whether a real completion comes back."""
        body = json.dumps(
            {"model": plan.STUB_MODEL if self.stub else "lab-tiny", "prompt": "The capital of France is", "max_tokens": 8, "temperature": 0}
        ).encode()
        try:
            key = self.on(1, f"cut -d= -f2 {api_key()}").strip()
            headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
            request = urllib.request.Request(f"http://{NODES[0].management}:8000/v1/completions", body, headers)
            with urllib.request.urlopen(request, timeout=5) as answer:  # nosec B310 # noqa: S310  a fixed http address
                return str(json.load(answer)["choices"][0]["text"]).startswith(" Paris")
        except (AssertionError, OSError, ValueError, KeyError, subprocess.TimeoutExpired):
            return False

    def serve(self) -> None:
        """Serve with site.yml, as a user does."""
        for node in NODES:
            subprocess.run(["docker", "start", node.container], check=True, capture_output=True)
        variables: dict[str, Any] = {"vllm_tp2_watch": SETTINGS}
        arguments: tuple[str, ...] = ()
        if self.stub:
            variables, arguments = {**STUB_VARIABLES, **variables}, ("--tags", "vllm_tp2")
        run = self.play("playbooks/site.yml", *arguments, variables=variables)
        assert run.rc == 0, run.stdout[-3000:]


def inventory(folder: Path, pairs: int = 1, **more: Any) -> Path:
    """Write the inventory of so many pairs of the lab's instance, outside the repository, and return it."""
    state = Path(os.environ.get("GB10_LAB_DIR") or REPO / ".lab").resolve()
    values = {**yaml.safe_load((REPO / "inventories/lab/group_vars/gb10.yml").read_text(encoding="utf-8")), **more}
    values["lab_dir"] = str(state / f"instance-{INSTANCE}" if INSTANCE else state)
    groups: dict[str, Any] = {}
    for node in plan.nodes(2 * pairs, INSTANCE):
        rails = {"gb10_fabric_cidrs": [plan.rail_cidr(INSTANCE, node.pair, rail) for rail in (0, 1)]}
        groups.setdefault(f"pair{node.pair}", {"vars": rails, "hosts": {}})["hosts"][node.name] = {"ansible_host": node.management}
    path = folder / "inventory/hosts.yml"
    path.parent.mkdir(parents=True)
    path.write_text(yaml.safe_dump({"gb10": {"vars": values, "children": groups}}), encoding="utf-8")
    return path


# --- faults ----------------------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Kind:
    """A kind of fault. act(lab, dice) does it and returns what it did, and the time from which the bound counts."""

    act: Callable[[SoakLab, random.Random], str]
    noticed: bool = True  # whether an event of a fault must follow
    starts: int = 1  # of the release, at most
    kills_agent: bool = False


def drawn_by(seed: int | float | str) -> random.Random:
    """Return the dice of a seed."""
    return random.Random(seed)  # nosec B311 # noqa: S311  repeatable, no secret


def node_of(dice: random.Random) -> int:
    """Draw a node."""
    return dice.choice((1, 2))


def container(command: str) -> Callable[[SoakLab, random.Random], str]:
    """Return a fault that is a `docker` command on a rank's container."""

    def act(lab: SoakLab, dice: random.Random) -> str:
        node = node_of(dice)
        lab.on(node, f"docker {command} {lab.container(node)}")
        return f"rank {node - 1}"

    return act


def shell(line: str) -> Callable[[SoakLab, random.Random], str]:
    """Return a fault that is a shell line on a node; NAME is its container."""

    def act(lab: SoakLab, dice: random.Random) -> str:
        node = node_of(dice)
        lab.on(node, line.replace("NAME", lab.container(node)), timeout=120)
        return f"rank {node - 1}"

    return act


def agent(lab: SoakLab, dice: random.Random) -> str:
    """Kill an agent."""
    node = node_of(dice)
    assert agents.kill(lab, node), f"systemd does not restart the agent of lab-{node}"
    return f"rank {node - 1}"


def agent_in_recovery(lab: SoakLab, dice: random.Random) -> str:
    """Kill a rank, then the head's agent or the worker's in a phase of the recovery."""
    node, victim, phase, delay = node_of(dice), node_of(dice), dice.choice(("halting", "starting", "judging")), dice.choice((0, 0.5, 1, 2))
    lab.on(node, f"docker kill -s KILL {lab.container(node)}")
    seen = f"""grep -q '"phase": "{phase}"' {agents.FOLDER}/agent/outcome.json"""
    lab.on(1, f"end=$(( $(date +%s) + 30 )); while [ $(date +%s) -lt $end ]; do {seen} && break; sleep 0.05; done; sleep {delay}", timeout=60)
    assert agents.kill(lab, victim), f"systemd does not restart the agent of lab-{victim}"
    return f"rank {node - 1}, agent of rank {victim - 1} {delay} s after {phase}"


def rail(lab: SoakLab, dice: random.Random) -> str:
    """Cut a rail for a while."""
    node, name, seconds = node_of(dice), dice.choice(RAILS), dice.randint(5, 40)
    lab.on(node, f"ip link set {name} down; sleep {seconds}; ip link set {name} up", timeout=90)
    return f"{name} of rank {node - 1} for {seconds} s"


def node_restarts(_lab: SoakLab, dice: random.Random) -> str:
    """Restart a node."""
    node = node_of(dice)
    subprocess.run(["docker", "restart", NODES[node - 1].container], check=True, capture_output=True, timeout=120)
    return f"rank {node - 1}"


def by_hand(lab: SoakLab, _dice: random.Random) -> str:
    """Stop the pair and start it, as a user does."""
    lab.on(1, "gb10 stop", timeout=120)
    assert not lab.completes(), "a stopped pair serves"
    lab.on(1, "gb10 start --no-wait")
    return ""


SIMPLE = {
    "container SIGKILLed": Kind(container("kill -s KILL")),
    "engine child SIGKILLed": Kind(shell("pkill -KILL VLLM::")),
    "rank SIGSTOPped": Kind(shell("kill -STOP $(docker top NAME -eo pid | tail -n +2)")),
    "container paused": Kind(container("pause")),
    "container removed": Kind(container("rm -f")),
    "Docker Engine restarted": Kind(shell("systemctl reset-failed docker; systemctl restart docker")),
    "rail down 5 to 40 s": Kind(rail),
    "agent SIGKILLed": Kind(agent, noticed=False, starts=0, kills_agent=True),
}


def two(names: tuple[str, ...]) -> Callable[[SoakLab, random.Random], str]:
    """Return a fault that is two others at once."""

    def act(lab: SoakLab, dice: random.Random) -> str:
        chosen, done = dice.sample(names, 2), []

        def one(name: str, own: random.Random) -> None:
            try:
                done.append(f"{name} {SIMPLE[name].act(lab, own)}")
            except AssertionError as error:  # the other fault can leave nothing to do
                done.append(f"{name} ({str(error)[-80:].strip()})")

        threads = [threading.Thread(target=one, args=(name, drawn_by(dice.random()))) for name in chosen]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return "; ".join(sorted(done))

    return act


CALM = tuple(name for name, kind in SIMPLE.items() if not kind.kills_agent)
KINDS = {
    **SIMPLE,
    "`gb10 stop`, `gb10 start`": Kind(by_hand, noticed=False),
    "two faults at once": Kind(two(CALM), starts=2),
    "two faults at once, agents included": Kind(two(tuple(SIMPLE)), noticed=False, starts=2, kills_agent=True),
    "agent SIGKILLed in a recovery": Kind(agent_in_recovery, starts=2, kills_agent=True),
    "node restarted": Kind(node_restarts, kills_agent=True),
}


# --- one fault ---------------------------------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """What followed a fault. Seconds; None where it did not happen in time."""

    kind: str
    what: str = ""
    noticed: float | None = None
    serves: float | None = None
    starts: int = 0
    agents: list[list[int]] = field(default_factory=list)  # of each node: process id, KiB, descriptors, threads
    wrong: list[str] = field(default_factory=list)


def probe(lab: SoakLab, since: float) -> list[dict[str, Any]]:
    """Read containers, state files, and the agent of both nodes."""
    script = PROBE.replace("GROUP", GROUP).replace("FOLDER", agents.FOLDER).replace("SINCE", f"{since:.3f}")
    return [json.loads(lab.on(node, f"python3 - <<'END'{script}END")) for node in (1, 2)]


def serves(lab: SoakLab) -> bool:
    """Whether the agent has settled, watches a group that serves, and a completion comes back."""
    if not lab.completes():
        return False
    found = agents.state(lab)
    return bool(found) and bool(found["outcome"]["final"]) and found["watch"]["state"] == "serving"


def check(found: list[dict[str, Any]], starts: int) -> list[str]:
    """Return what is not as it must be after a recovery with so many starts of the release."""
    wrong, releases = [], set()
    for number, node in enumerate(found):
        running = [each for each in node["containers"] if each["State"]["Running"]]
        if len(node["containers"]) != 1 or len(running) != 1:
            wrong.append(f"rank {number} has {len(node['containers'])} containers, {len(running)} of them run")
        releases |= {each["Config"]["Labels"]["gb10.cluster.release"] for each in running}
        if len(node["begun"]) > starts:
            wrong.append(f"rank {number} has started {len(node['begun'])} containers in {starts} starts of the release")
    if len(releases) != 1:
        wrong.append(f"the ranks run {sorted(releases)}")
    try:
        files = {name: json.loads(text) for name, text in found[0]["files"].items()}
        owners = [json.loads(node["files"]["owner"]) for node in found]
    except ValueError as error:
        wrong.append(f"a state file is not valid: {error}")
        return wrong
    desired, outcome = files["desired"], files["outcome"]
    if (desired["generation"], desired["state"], True, "serves") != (outcome["generation"], "serving", outcome["final"], outcome["result"]):
        wrong.append(f"the state files disagree: desired {desired['generation']} {desired['state']}, outcome {outcome}")
    if files["watch"]["episode"] or files["watch"]["release"] not in releases:
        wrong.append(f"watch.json has episode {files['watch']['episode']} and release {files['watch']['release']}")
    if len({json.dumps(owner.get("head")) for owner in owners}) != 1:
        wrong.append(f"the owners differ: {owners}")
    return wrong


def done(lab: SoakLab, name: str, dice: random.Random) -> Row:
    """Do a fault to the served pair, wait until it serves again by itself, and check what it has left."""
    kind, row, number = KINDS[name], Row(name), agents.last_event(lab)
    began = time.time()
    seen: list[dict[str, Any]] = []
    follower = threading.Thread(target=lambda: seen.append(noticed(lab, number, NOTICE)), daemon=True)
    follower.start()
    try:
        row.what = kind.act(lab, dice)
    except (AssertionError, subprocess.SubprocessError) as error:
        row.wrong.append(f"the fault was not done: {error}")
    at = time.time()
    if kind.noticed:
        follower.join()
        row.noticed = max(0.0, seen[0]["seen"] - began) if seen and seen[0] else None
        if row.noticed is None:
            row.wrong.append(f"no fault was noticed within {NOTICE:.0f} s")
    if wait_for(lambda: serves(lab), BOUND[lab.stub] - (time.time() - at), 0.5):
        row.serves = time.time() - began
    else:
        row.wrong.append(f"does not serve {BOUND[lab.stub]:.0f} s after the fault")
    last = time.monotonic() + SETTLE
    while True:  # a fault that has been healed already can still be open
        found = probe(lab, began)
        wrong = check(found, len(agents.starts(lab, number))) if row.serves is not None else []
        if not wrong or time.monotonic() > last:
            break
        time.sleep(1)
    row.agents = [node["agent"] for node in found]
    row.starts = len(agents.starts(lab, number))
    if row.starts > kind.starts:
        wrong.append(f"{row.starts} starts of the release, expected at most {kind.starts}")
    row.wrong += wrong
    if row.wrong:
        print(lab.on(1, f"gb10 events -n 40; journalctl -u gb10-agent -n 20 --no-pager --since @{began:.0f}", check=False), file=sys.stderr, flush=True)
    return row


# --- the run -----------------------------------------------------------------------------------------------------------------------------


def schedule(dice: random.Random, count: int) -> list[str]:
    """Draw the kinds: each once in every round of all, the second half with those that kill agents."""
    drawn: list[str] = []
    for names, end in ((tuple(name for name, kind in KINDS.items() if not kind.kills_agent), count // 2), (tuple(KINDS), count)):
        while len(drawn) < end:
            drawn += dice.sample(names, len(names))[: end - len(drawn)]
    return drawn


def growth(rows: list[Row]) -> tuple[list[list[str]], list[str]]:
    """Return how both agents grew in the faults that left them alive, a row for each, and what is beyond its bound.

    The medians of the second tenth of the faults are compared with those of the last tenth: what is loaded once does not count.
    """
    table, wrong = [], []
    for node in range(2):
        mine = [row.agents[node] for row in rows if row.agents]
        if not mine:
            continue
        last_pid = mine[-1][0]
        mine = [each for each in mine if each[0] == last_pid]
        tenth = max(3, len(mine) // 10)  # the number of threads changes from moment to moment
        early, late = mine[tenth : 2 * tenth] or mine[:1], mine[-tenth:]
        cells = [f"rank {node}", str(len(mine))]
        for index, (name, factor, slack) in enumerate((("memory in KiB", GROWTH, 0), ("descriptors", 1.0, SLACK), ("threads", 1.0, SLACK)), start=1):
            before, after = (statistics.median(each[index] for each in part) for part in (early, late))
            cells.append(f"{before:.0f} → {after:.0f}")
            if after > before * factor + slack:
                wrong.append(f"the agent of rank {node} grows: {name} {before:.0f} → {after:.0f}")
        cells.append(f"{max(each[1] for each in mine)}")
        table.append(cells)
    return table, wrong


def seconds(value: float | None) -> str:
    """Return seconds as text."""
    return "never" if value is None else f"{value:.1f}"


def by_kind(rows: list[Row]) -> list[list[str]]:
    """Return a table row for each kind of fault: count, noticed and served (median, worst), most starts, wrong."""
    table = []
    for name in KINDS:
        mine = [row for row in rows if row.kind == name]
        if not mine:
            continue
        cells = [name, str(len(mine))]
        for values in ([row.noticed for row in mine if KINDS[name].noticed], [row.serves for row in mine]):
            known = [float("inf") if value is None else value for value in values]
            cells.append(f"{statistics.median(known):.1f} ({max(known):.1f})" if known else "–")
        table.append([*cells, str(max(row.starts for row in mine)), str(sum(bool(row.wrong) for row in mine))])
    return table


def section(options: argparse.Namespace, rows: list[Row], took: float, grown: list[list[str]], wrong: list[str]) -> str:
    """Return the run's section of docs/measured/soak.md."""
    engine = "Stub" if options.stub else "Real engine"
    failed = [f"{row.kind} {row.what}: {'; '.join(row.wrong)}" for row in rows if row.wrong] + wrong
    lines = [
        f"## {engine}",
        "",
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, seed {options.seed}, {len(rows)} of {options.faults} faults in {took / 60:.0f} min."
        f" Machine: {os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}.",
        f"Bound until the pair serves: {BOUND[options.stub]:.0f} s after the fault has been done.",
        "",
        "| fault | count | noticed: median (worst) | serves again: median (worst) | most starts | wrong |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells in by_kind(rows)),
        "",
        "Agents over the faults of the first half, which leave them alive (second tenth → last tenth, medians):",
        "",
        "| agent | faults | memory in KiB | descriptors | threads | highest memory in KiB |",
        "|---|---|---|---|---|---|",
        *(f"| {' | '.join(cells)} |" for cells in grown),
        "",
        *(["Every expectation held."] if not failed else ["What did not hold:", "", *(f"- {each[:400]}" for each in failed)]),
        "",
    ]
    return "\n".join(lines)


TEXT = f"""# Random faults in a row

Faults drawn by a seed were done one after the other to a pair that serves on the container lab, by `benchmarks/soak.py`. No controller was connected,
and nothing was repaired. Seconds count from when the fault begins. After each fault three things were checked. One container of one release runs on each rank.
No rank started more containers than the agent started releases. The state files are valid and agree.

`vllm_tp2_watch`: `restarts: {SETTINGS["restarts"]}` and `stable_seconds: {SETTINGS["stable_seconds"]}`, so that faults in quick succession do not count
as a crash loop.

"""


def write(text: str) -> None:
    """Write the section into docs/measured/soak.md, and keep the other one."""
    old = TABLE.read_text(encoding="utf-8") if TABLE.exists() else ""
    parts = {part.partition("\n")[0]: f"## {part.rstrip()}\n" for part in [*old.split("\n## ")[1:], text.removeprefix("## ")]}
    TABLE.write_text(TEXT + "\n".join(parts[name] for name in sorted(parts, reverse=True)), encoding="utf-8")


def main() -> int:
    """Do the faults; exit 1 where an expectation does not hold."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=20)
    parser.add_argument("--seed", type=int, default=16)
    parser.add_argument("--stub", action="store_true")
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="end after so many minutes, with the faults done until then")
    options = parser.parse_args()
    bring_up(2)
    lab = SoakLab(Path(tempfile.mkdtemp(prefix="gb10-soak-")), options.stub)
    lab.serve()
    assert wait_for(lambda: serves(lab), BOUND[options.stub]), "the pair does not serve"
    start, rows, calm = time.monotonic(), list[Row](), 0
    for number, name in enumerate(schedule(drawn_by(options.seed), options.faults), start=1):
        if time.monotonic() - start > options.minutes * 60:
            break
        time.sleep(1.0)  # longer than stable_seconds
        row = done(lab, name, drawn_by(f"{options.seed}/{number}"))
        rows.append(row)
        calm += calm == number - 1 and not KINDS[name].kills_agent
        figures = " ".join(f"{rss} KiB/{files}/{threads}" for _pid, rss, files, threads in row.agents)
        notice = seconds(row.noticed) if KINDS[name].noticed else "–"
        print(f"{number:3d} {name}: {row.what} | noticed {notice} serves {seconds(row.serves)} starts {row.starts} | {figures}", flush=True)
        for each in row.wrong:
            print(f"    WRONG: {each}", flush=True)
        if row.serves is None:
            lab.serve()
    grown, wrong = growth(rows[:calm])
    text = section(options, rows, time.monotonic() - start, grown, wrong)
    print(text)
    if options.write:
        write(text)
    return 1 if wrong or any(row.wrong for row in rows) or len(rows) < options.faults else 0


if __name__ == "__main__":
    raise SystemExit(main())
