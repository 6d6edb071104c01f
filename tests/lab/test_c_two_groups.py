"""Two serving groups at once: four nodes, one run."""

from __future__ import annotations

import re

import playbook
from container_lab import Lab, bring_up


def test_two_serving_groups_come_up_side_by_side_in_one_run(lab: Lab) -> None:
    bring_up(4)
    inventory = playbook.REPO / "inventories/lab4"
    lab.play("playbooks/stop.yml", inventory=inventory)
    run = lab.play("site.yml", inventory=inventory)
    assert run.rc == 0, run.stdout[-4000:]
    for head, name in ((1, "pair1"), (3, "pair2")):
        assert f"{name} serves" in run.stdout
        assert lab.complete(node=head) == (200, " Paris.")
    starts = [state[1] for state in lab.identity((1, 2, 3, 4))]
    assert starts[1] < starts[0]
    assert starts[3] < starts[2]
    # An upgrade takes one group after the other and stops at the first that fails: that one serves its old release again, the next is not touched.
    other = lab.identity((3, 4))
    limited = lab.play("site.yml", "--tags", "vllm_tp2", "--limit", "pair2", inventory=inventory)
    assert limited.rc == 0, limited.stdout[-4000:]
    assert limited.changed == set()
    assert "pair2 serves" in limited.stdout
    assert "pair1" not in limited.stdout
    failed = lab.play("playbooks/upgrade.yml", inventory=inventory, variables={"vllm_tp2_context": 999999})
    assert failed.rc != 0
    assert {host for host, _task, _text in failed.failures} == {"lab-1", "lab-2"}
    assert re.search(r"pair1: .*(context_too_long|config_error)", failed.last_message), failed.last_message
    assert lab.identity((3, 4)) == other
    for head in (1, 3):
        assert lab.complete(node=head) == (200, " Paris.")
    # One group's failure is its own: the other one goes on serving, untouched.
    before = lab.identity((1, 2))
    assert lab.play("playbooks/stop.yml", "--limit", "pair2", inventory=inventory).rc == 0
    lab.on(4, "mv /srv/models/lab-tiny /srv/models/away")
    try:
        broken = lab.play("site.yml", "--tags", "vllm_tp2", inventory=inventory, variables={"vllm_tp2_rollback": False})
    finally:
        lab.on(4, "mv /srv/models/away /srv/models/lab-tiny")
    assert broken.rc != 0
    assert {host for host, _task, _text in broken.failures} == {"lab-3", "lab-4"}
    assert re.search(r"pair2: rank 1 on lab-4: .*is missing.*Nothing was changed", broken.last_message), broken.last_message
    assert lab.identity((1, 2)) == before
    assert lab.complete() == (200, " Paris.")
    stopped = lab.play("playbooks/stop.yml", inventory=inventory)
    assert stopped.rc == 0
    assert lab.gone((1, 2, 3, 4))
