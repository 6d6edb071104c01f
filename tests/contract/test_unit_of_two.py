"""A serving group is one unit: messages of a run on a part of it, or of one that cannot tell whether a rank runs, and the batches of upgrade.yml."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import pytest
import warm_playbook
import yaml
from playbook import REPO, ROLE_PLAY, Run, plays_of


def play(folder: Path, tasks: str, *arguments: str, more: dict[str, int] | None = None, **variables: Any) -> Run:
    plays = [{**each, **(more or {})} for each in yaml.safe_load(plays_of(tasks))]
    given: dict[str, Any] = {"gb10_profile": "dspark-nvfp4-1m-seed", "vllm_tp2_directory": str(folder / "node"), **variables}
    return warm_playbook.play(folder, yaml.safe_dump(plays, sort_keys=False), *arguments, **given)


def test_one_rank_alone_is_refused_before_anything(tmp_path: Path) -> None:
    done = play(tmp_path, "main", more={"serial": 1})
    assert done.rc != 0
    assert done.last_message == "pair1 is one unit and two is not in this run: run without --limit and without serial, or limit to the whole group (pair1)."
    assert not (tmp_path / "node").exists()


def test_run_without_head_asks_no_rank_and_reports_it(tmp_path: Path) -> None:
    done = play(tmp_path, "sanity", "--limit", "two")
    assert done.rc != 0
    assert "pair1 is asked through its head one, which is not in this run or does not answer: limit to pair1 instead" in done.last_message


@pytest.mark.skipif(not os.access("/var/run/docker.sock", os.R_OK), reason="reads the images of this machine's Docker Engine")
def test_an_image_that_one_rank_cannot_read_stops_the_other_with_a_sentence(tmp_path: Path) -> None:
    reference = "{{ 'gb10-lab/none:1' if inventory_hostname == 'one' else the_engine_of_two_is_stopped }}"
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "image_reference": reference}
    done = warm_playbook.play(tmp_path, ROLE_PLAY.format(role="image", tasks="validate"), **given)
    assert done.rc != 0
    assert "two of pair1 failed (the message is above), so one stops as well: correct that and run again." in done.stdout.replace("\n", " ")
    assert "has no attribute" not in done.stdout


# --- playbooks/upgrade.yml: one serving group after the other

# Two groups whose hosts stand in turn, as in a list of all machines.
HOSTS = """
gb10:
  hosts: {{s1: {{ansible_host: 127.0.0.1}}, s2: {{ansible_host: 127.0.0.2}}, s3: {{ansible_host: 127.0.0.3}}, s4: {{ansible_host: 127.0.0.4}}}}
  vars: {{ansible_connection: ansible.builtin.local, ansible_become: false, ansible_python_interpreter: {python}}}
  children:
    pair2: {{hosts: {{s2: , s4: }}, vars: {{gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]}}}}
    pair1: {{hosts: {{s1: , s3: }}}}
"""
PLAYS = {each["name"]: each for each in yaml.safe_load((REPO / "playbooks/upgrade.yml").read_text(encoding="utf-8"))}


@pytest.mark.slow
@pytest.mark.parametrize(("limit", "batches"), [((), ["s1,s3", "s2,s4"]), (("--limit", "pair2"), ["s2,s4"])], ids=["all", "limit"])
def test_batch_is_a_serving_group_in_any_host_order(tmp_path: Path, limit: tuple[str, ...], batches: list[str]) -> None:
    report = [{"name": "Report", "ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch | join(',') }}"}, "run_once": True}]
    plays = [PLAYS["One batch for each serving group"], {**PLAYS["Upgrade"], "tasks": report}]
    done = warm_playbook.play(tmp_path, yaml.safe_dump(plays, sort_keys=False), *limit, hosts=HOSTS)
    assert done.rc == 0, done.stdout
    assert re.findall(r"batch ([s\d,]+)", done.stdout) == batches
