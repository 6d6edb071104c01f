"""What the roles' files promise beyond what tools/docs.py checks."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.action import inventory_check
from playbook import REPO, run

SECRET = re.compile(r"api_key|token|secret|password")
HOSTS = "gb10: {{hosts: {{one: {{ansible_connection: local, ansible_become: false, ansible_python_interpreter: {python}}}}}}}\n"
SYSCTL = """
- name: What sysctl exports
  hosts: gb10
  gather_facts: false
  vars:
    __sysctl_set: {skipped_reason: "", floor_cost_gib: 4.5, highest_utilization: 0.8, message: first reading}
  tasks:
    - name: Say it
      ansible.builtin.include_role:
        name: gb10.cluster.sysctl
        tasks_from: verify.yml
"""


@pytest.mark.parametrize("specs", sorted((REPO / "roles").glob("*/meta/argument_specs.yml")), ids=lambda path: path.parts[-3])
def test_secrets_are_never_logged(specs: Path) -> None:
    """Ansible prints the arguments of a role that do not validate."""
    options = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    assert [name for name, option in options.items() if SECRET.search(name) and not option.get("no_log")] == []


@pytest.mark.parametrize(
    ("again", "said"),
    [
        ({"skipped": True, "changed": False}, "first reading"),
        ({"skipped_reason": "", "floor_cost_gib": 4.5, "highest_utilization": 0.7, "message": "second"}, "second"),
    ],
    ids=["nothing installed", "installed"],
)
def test_sysctl_tells_its_last_reading(tmp_path: Path, again: dict[str, object], said: str) -> None:
    """Installing what the out-of-memory policy needs is followed by a second reading."""
    (tmp_path / "hosts.yml").write_text(HOSTS.format(python=sys.executable), encoding="utf-8")
    (tmp_path / "play.yml").write_text(SYSCTL, encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    done = run(tmp_path, "play.yml", tmp_path / "hosts.yml", variables={"__sysctl_again": again}, env=env, project=tmp_path)
    assert done.rc == 0, done.stdout
    assert f"one: {said}" in done.stdout


def test_the_inventory_check_and_the_role_mean_the_same_flags() -> None:
    """What an inventory changes of a profile is judged before a run and rendered in it."""
    role = yaml.safe_load((REPO / "roles/vllm_tp2/vars/main.yml").read_text(encoding="utf-8"))
    rendered = {value.strip("{} "): flag for flag, value in role["__vllm_tp2_overrides"]}
    assert rendered == inventory_check._FLAGS
