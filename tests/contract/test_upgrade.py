"""playbooks/upgrade.yml: one serving group after the other, and its last message."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import warm_playbook
import yaml
from playbook import REPO, Run

pytestmark = pytest.mark.slow

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


def play(folder: Path, tasks: dict[str, list[dict[str, Any]]], *arguments: str, **variables: object) -> Run:
    """Run plays of the playbook, some with other tasks."""
    plays = [{**PLAYS[name], **({"tasks": tasks[name]} if name in tasks else {})} for name in ("One batch for each serving group", "Upgrade")]
    return warm_playbook.play(folder, yaml.safe_dump(plays, sort_keys=False), *arguments, hosts=HOSTS, **variables)


@pytest.mark.parametrize(("limit", "batches"), [((), ["s1,s3", "s2,s4"]), (("--limit", "pair2"), ["s2,s4"])], ids=["all", "limit"])
def test_batch_is_a_serving_group_in_any_host_order(tmp_path: Path, limit: tuple[str, ...], batches: list[str]) -> None:
    report = [{"name": "Report", "ansible.builtin.debug": {"msg": "batch {{ ansible_play_batch | join(',') }}"}, "run_once": True}]
    done = play(tmp_path, {"Upgrade": report}, *limit)
    assert done.rc == 0, done.stdout
    assert re.findall(r"batch ([s\d,]+)", done.stdout) == batches
