"""The agent on real kernels: its installation, its session over the rail, a boot without a controller, reboots in the middle of a boot.

The stub of both labs (lab/engine) takes the engine's part, which the guests cannot carry.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from vm.node_helpers import probe
from vm.serve_helpers import HEAD_RAIL, WORKER_RAIL, answer, boot_again, prepared, serve, settled

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

# The master connection of the agent is not used, so that these calls show what the key alone is worth.
AS_HEAD = (
    "ssh -F /dev/null -i /var/lib/gb10-cluster/agent/id_ed25519 -o BatchMode=yes -o IdentitiesOnly=yes -o HostKeyAlias=gb10-rank1"
    f" -o UserKnownHostsFile=/var/lib/gb10-cluster/agent/known_hosts -o StrictHostKeyChecking=yes -o ConnectTimeout=30 -b {HEAD_RAIL}"
)


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    """Both machines with rails and Docker, the stub in their model store."""
    return prepared(vmlab)


@pytest.fixture(scope="module")
def cut_off(lab: VmLab) -> str:
    """A first run whose controller is killed when the boot begins, and the head without its management link from then on. Return its answer over the rail."""
    run = serve(lab, dies_at="follow | Judge the boot")
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
    assert lines[1].startswith("SERVES  pair1 serves: ")
    notes = [line for line in lines if line.startswith("pair1: ")]
    assert notes[0].startswith("pair1: desired serving, release ")
    assert "outcome: serves" in notes[1]
    assert notes[2].startswith("pair1: watch: serving since ")
    assert notes[3] == "pair1: API key: sudo gb10 key"
    assert [line.split()[1:3] for line in lines if " running since " in line] == [["0", "vm-1"], ["1", "vm-2"]]


def test_pair_serves_again_after_the_worker_is_reset_in_a_boot(lab: VmLab, followed: Run) -> None:
    generation = boot_again(lab)
    lab.reboot(2, hard=True)
    outcome = settled(lab, generation)
    assert (outcome["result"], outcome["attempt"]) == ("serves", 2), outcome
    # Which rank shows it first depends on how long the reset takes.
    causes = ("node_lost: vm-2", "rank 0 on vm-1: peer_lost", "rank 1 on vm-2: ")
    assert any("same release starts again" in text and any(cause in text for cause in causes) for text in outcome["warnings"]), outcome["warnings"]
    assert answer(lab) == " Paris."


def test_pair_serves_again_after_the_head_is_rebooted_in_a_boot(lab: VmLab, followed: Run) -> None:
    generation = boot_again(lab)
    lab.reboot(1)
    outcome = settled(lab, generation)
    assert (outcome["result"], outcome["attempt"]) == ("serves", 2), outcome
    assert any("rank 0 on vm-1" in text and "same release starts again" in text for text in outcome["warnings"]), outcome["warnings"]
    assert answer(lab) == " Paris."
