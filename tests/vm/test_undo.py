"""`absent` of everything: kernel values, files, units, swap, read-ahead and rails are as they were before the first run."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vm.node_helpers import NODES, before, converged, docker_answers, site, state

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

ABSENT = {"sysctl_state": "absent", "readahead_state": "absent", "docker_state": "absent", "roce_state": "absent"}
ROLES = "sysctl,readahead,docker,roce"


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    if not (vmlab.folder / "converged").exists() and not vmlab.pristine:
        vmlab.reset()
    vmlab.pristine = False
    converged(vmlab)
    docker_answers(vmlab)
    return vmlab


@pytest.fixture(scope="module")
def undone(lab: VmLab) -> Run:
    run = site(lab, tags=ROLES, **ABSENT)
    (lab.folder / "converged").unlink()
    assert run.rc == 0, run.stdout[-4000:]
    return run


@pytest.fixture(scope="module")
def states(lab: VmLab, undone: Run) -> dict[int, tuple[dict[str, Any], dict[str, Any]]]:
    docker_answers(lab)
    return {node: (before(lab)[node], state(lab, node)) for node in NODES}


@pytest.mark.parametrize("node", NODES)
@pytest.mark.parametrize("part", ["files", "links", "folders", "rails", "swap", "thrash", "readahead", "memlock", "units"])
def test_the_node_is_as_it_was_before_the_first_run(states: dict[int, tuple[dict[str, Any], dict[str, Any]]], node: int, part: str) -> None:
    was, now = states[node]
    assert now[part] == was[part]


@pytest.mark.parametrize("node", NODES)
def test_every_kernel_value_is_as_it_was_before_the_first_run(states: dict[int, tuple[dict[str, Any], dict[str, Any]]], node: int) -> None:
    was, now = states[node][0]["sysctl"], states[node][1]["sysctl"]
    differs = {key: (was.get(key), now.get(key)) for key in was.keys() | now.keys() if was.get(key) != now.get(key)}
    assert differs == {}


@pytest.mark.long
def test_a_second_undo_changes_nothing(lab: VmLab, undone: Run) -> None:
    run = site(lab, tags=ROLES, **ABSENT)
    assert run.rc == 0, run.stdout[-3000:]
    assert run.changed == set()


@pytest.mark.parametrize("node", NODES)
def test_nothing_of_ours_stays_on_the_node_but_receipts(lab: VmLab, undone: Run, node: int) -> None:
    left = lab.on(node, "find / -xdev \\( -path /proc -o -path /sys \\) -prune -o -iname '*gb10-cluster*' -print -o -iname '*gb10-roce*' -print").split()
    assert set(left) <= {"/var/lib/gb10-cluster"}
