"""The agent on real kernels: its installation, its session over the rail, a boot without a controller, reboots in the middle of a boot, removal.

A stub (stub/engine.py) takes the engine's part, which the guests cannot carry.
"""

from __future__ import annotations

import json
import shlex
import time
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from playbook import REPO
from vm.node_helpers import NODES, converged, docker_answers, probe, rail_facts, until, wanted_rails

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

STUB = REPO / "tests/vm/stub"
MODEL = "/srv/models/vm-stub"
HEAD_RAIL, WORKER_RAIL = "192.168.200.11", "192.168.200.12"
BOOT_SECONDS = 20
# The ranks have met: the boot is under way. `ss` is light, where each `docker` or `gb10` takes seconds of an emulated CPU.
MET = "ss -Htn state established '( sport = :29501 or dport = :29501 )' | grep -q ."
COMPLETION = '{"model": "stub", "prompt": "The capital of France is", "max_tokens": 8}'
# The master connection of the agent is not used, so that these calls show what the key alone is worth.
AS_HEAD = (
    "ssh -F /dev/null -i /var/lib/gb10-cluster/agent/id_ed25519 -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=gb10-rank1"
    f" -o UserKnownHostsFile=/var/lib/gb10-cluster/agent/known_hosts -o StrictHostKeyChecking=yes -o ConnectTimeout=30 -b {HEAD_RAIL}"
)
ACCOUNTS = "/etc/passwd /etc/group /etc/shadow /etc/gshadow /etc/subuid /etc/subgid"
# Two things are left out, because they change without this role: the receipt of the page cache guard, and units that are inactive (systemd forgets them).
TRACES = {
    "files": "find /etc /opt /usr/local /root /run/gb10* /var/lib/gb10* /var/spool/mail -xdev -not -name '*-' -not -path '/root/.ansible*'"
    " -not -name page-cache-guard.json -printf '%p %y %m %u:%g %l\\n' 2>/dev/null | sort",
    "accounts": f"sha256sum {ACCOUNTS}",
    "units": "systemctl list-unit-files --no-legend 'gb10*' | cat; systemctl list-units --plain --no-legend 'gb10*' | cat",
    "processes": "pgrep -u gb10-agent -a 2>/dev/null; pgrep -f '[g]b10 (agent|connect)' -a; pgrep -f 'gb10-agent[/@]' -a",
    "sockets": "ss -xlH | grep gb10 | awk '{print $5}'; ss -HtlnA tcp | awk '{print $4}' | grep -v ^127 | sort",
    "containers": "docker ps --all --format '{{.Names}}'",
}


def traces(lab: VmLab) -> dict[int, dict[str, list[str]]]:
    """Return what `absent` must not leave behind, of both nodes."""
    return {node: {name: text.splitlines() for name, text in probe(lab, node, TRACES).items()} for node in NODES}


def serve(lab: VmLab, **more: Any) -> Run:
    """Run site.yml for the serving role with the stub's profile."""
    variables = yaml.safe_load((STUB / "vars.yml").read_text(encoding="utf-8"))
    return lab.play("playbooks/site.yml", "--tags", "vllm_tp2", variables={**variables, **more.pop("variables", {})}, **more)


def state(lab: VmLab) -> dict[str, Any]:
    """Return what the head's agent reports."""
    return dict(json.loads(lab.on(1, "gb10 call state")))


def boot_again(lab: VmLab) -> int:
    """Ask the agent on the head for a restart, without a controller. Return its generation when both ranks of the new boot have met."""
    release = state(lab)["desired"]["release"]
    wanted = {"state": "serving", "release": release, "by": "test", "reasons": ["restart"], "options": {"wait_seconds": 600}}
    generation = int(json.loads(lab.on(1, f"gb10 call desire {shlex.quote(json.dumps(wanted))}"))["generation"])
    until(lab, 1, f"! {MET}")
    until(lab, 1, MET)
    return generation


def settled(lab: VmLab, generation: int, seconds: float = 400) -> dict[str, Any]:
    """Wait for the final outcome, and return it. The agent is asked rarely: it has to work on one emulated CPU."""
    end = time.monotonic() + seconds
    while True:
        done = lab.try_on(1, f"gb10 follow --generation {generation} --since 100000 --wait 20", timeout=60)
        if done.returncode == 0:
            outcome = dict(json.loads(done.stdout)["outcome"])
            if outcome["final"]:
                return outcome
        assert time.monotonic() < end, f"not settled after {seconds:.0f} s: {done.stdout[-2000:]} {done.stderr[-500:]}"


def answer(lab: VmLab) -> str:
    """Ask the head for a completion over the rail, from the worker."""
    url = f"http://{HEAD_RAIL}:8000/v1/completions"
    return str(json.loads(until(lab, 2, f"curl -sf -m 20 -H 'Content-Type: application/json' -d '{COMPLETION}' {url}"))["choices"][0]["text"])


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    """Both machines with rails and Docker, the stub in their model store."""
    if any(rail_facts(vmlab, node) != wanted_rails(node) for node in NODES):
        converged(vmlab)
    docker_answers(vmlab)
    engine = (STUB / "engine.py").read_text(encoding="utf-8")
    for node in NODES:
        vmlab.on(node, f"mkdir -p {MODEL}/control; echo {BOOT_SECONDS} >{MODEL}/control/seconds; cat >{MODEL}/engine.py <<'END'\n{engine}\nEND")
    return vmlab


@pytest.fixture(scope="module")
def before(lab: VmLab) -> dict[int, dict[str, list[str]]]:
    """What is on the nodes before the first run."""
    return traces(lab)


@pytest.fixture(scope="module")
def cut_off(lab: VmLab, before: dict[int, dict[str, list[str]]]) -> str:
    """A first run whose controller is killed when the boot begins, and the head without its management link from then on. Return its answer over the rail."""
    run = serve(lab, dies_at="serve | Judge the boot")
    assert run.tasks("State the desired release"), run.stdout[-4000:]
    lab.cut("mgmt", 1)
    try:
        return answer(lab)
    finally:
        lab.heal("mgmt", 1)


@pytest.fixture(scope="module")
def followed(lab: VmLab, cut_off: str) -> Run:
    """The next run."""
    run = serve(lab)
    assert run.rc == 0, run.stdout[-4000:]
    return run


def test_boot_ends_without_controller_and_management_link(cut_off: str) -> None:
    assert cut_off == " Paris."


def test_next_run_prints_the_outcome_and_changes_nothing(followed: Run) -> None:
    assert followed.changed == set()
    assert "pair1 serves" in followed.stdout
    assert "boot " in followed.stdout, "the summary has the boot that ended meanwhile"
    assert followed.tasks("Judge the boot"), "it has read the outcome of that boot"


def test_session_runs_over_the_rail(lab: VmLab, followed: Run) -> None:
    logins = [line for line in lab.on(2, "journalctl -o cat -t sshd-session -b").splitlines() if line.startswith("Accepted ") and " for gb10-agent " in line]
    assert logins
    assert all(f"Accepted publickey for gb10-agent from {HEAD_RAIL} " in line for line in logins), logins


def test_key_is_worth_the_session_alone(lab: VmLab, followed: Run) -> None:
    output = probe(
        lab,
        1,
        {
            "command": f'echo \'{{"v": 1, "verb": "stop_here"}}\' | {AS_HEAD} gb10-agent@{WORKER_RAIL} id',
            "terminal": f"{AS_HEAD} -tt gb10-agent@{WORKER_RAIL} </dev/null",
            "forwarding": f"{AS_HEAD} -W 127.0.0.1:22 gb10-agent@{WORKER_RAIL} </dev/null",
        },
    )
    assert "uid=" not in output["command"]
    assert json.loads(output["command"].splitlines()[-1])["kind"] == "unknown"
    assert "PTY allocation request failed" in output["terminal"]
    assert "administratively prohibited" in output["forwarding"]


def test_status_on_the_head(lab: VmLab, followed: Run) -> None:
    done = lab.try_on(1, "gb10 status")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = done.stdout.splitlines()
    assert lines[0].startswith("pair1: desired serving, release ")
    assert "outcome: serves" in lines[1]
    assert [line.split(":")[0] for line in lines[2:]] == ["rank 0 vm-1", "rank 1 vm-2"]
    assert all(" running since " in line for line in lines[2:])


@pytest.mark.long
def test_pair_serves_again_after_the_worker_is_reset_in_a_boot(lab: VmLab, followed: Run) -> None:
    generation = boot_again(lab)
    lab.reboot(2, hard=True)
    outcome = settled(lab, generation)
    assert (outcome["result"], outcome["attempt"]) == ("serves", 2), outcome
    # Which rank shows it first depends on how long the reset takes.
    causes = ("node_lost: vm-2", "rank 0 on vm-1: peer_lost", "rank 1 on vm-2: ")
    assert any("same release starts again" in text and any(cause in text for cause in causes) for text in outcome["warnings"]), outcome["warnings"]
    assert answer(lab) == " Paris."


@pytest.mark.long
def test_pair_serves_again_after_the_head_is_rebooted_in_a_boot(lab: VmLab, followed: Run) -> None:
    generation = boot_again(lab)
    lab.reboot(1)
    outcome = settled(lab, generation)
    assert (outcome["result"], outcome["attempt"]) == ("serves", 2), outcome
    assert any("rank 0 on vm-1" in text and "same release starts again" in text for text in outcome["warnings"]), outcome["warnings"]
    assert answer(lab) == " Paris."


def test_absent_leaves_nothing(lab: VmLab, followed: Run, before: dict[int, dict[str, list[str]]]) -> None:
    assert {node: bool(found["processes"]) for node, found in traces(lab).items()} == {1: True, 2: True}
    run = serve(lab, variables={"vllm_tp2_state": "absent"})
    assert run.rc == 0, run.stdout[-4000:]
    after = traces(lab)
    assert {(node, line) for node in NODES for name in TRACES for line in set(after[node][name]) ^ set(before[node][name])} == set()
