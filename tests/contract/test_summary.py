"""The summary at the end of site.yml agrees with Ansible's recap."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
from playbook import LOCAL_PAIR, REPO, Run
from warm_playbook import run

pytestmark = pytest.mark.slow

# A playbook in a folder with the collection's callback, as playbooks/ has it. Another playbook imports it, as site.yml does.
PLAY = """
- name: Serve
  hosts: gb10
  gather_facts: false
  roles:
    - slow
  tasks:
    - name: Write
      ansible.builtin.command: "true"
      changed_when: write | bool and inventory_hostname == 'two'
    - name: Export
      ansible.builtin.set_fact:
        vllm_tp2_result:
          {group: pair1, head: one, release: 4f0c, profile: p, port: 8000, models: [m], key: false, changes: [], receipt: {}, prompt: Hello}
    - name: Fail
      ansible.builtin.fail:
        msg: no
      when: how == 'failed' and inventory_hostname == 'two'
    - name: Lose it
      ansible.builtin.command: "true"
      changed_when: false
      vars: {ansible_connection: ssh, ansible_port: 1, ansible_ssh_common_args: -o ConnectTimeout=3}
      when: how == 'unreachable' and inventory_hostname == 'two'
- name: Sum up
  hosts: localhost:all
  gather_facts: false
  tasks:
    - name: Sum up
      gb10.cluster.site_summary:
"""


def play(folder: Path, **variables: object) -> Run:
    (folder / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    (folder / "play.yml").write_text("- name: Import\n  ansible.builtin.import_playbook: playbooks/site.yml\n", encoding="utf-8")
    (folder / "playbooks/roles/slow/tasks").mkdir(parents=True)
    (folder / "playbooks/roles/slow/tasks/main.yml").write_text("- name: Wait\n  ansible.builtin.pause: {seconds: 1}\n", encoding="utf-8")
    (folder / "playbooks/site.yml").write_text(PLAY, encoding="utf-8")
    (folder / "playbooks/callback_plugins").symlink_to(REPO / "playbooks" / "callback_plugins")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    return run(folder, "play.yml", folder / "hosts.yml", variables=variables, env=env, project=folder)


# tests/unit/plugins/module_utils/_release/test_summary.py has the other two.
@pytest.mark.parametrize(
    ("write", "how", "title", "changed"),
    [
        pytest.param(False, "", "pair1 serves", "changed      nothing", id="no change"),
        pytest.param(True, "", "pair1 serves", "tasks        two: 1 task (Write)", id="one task", marks=pytest.mark.long),
        pytest.param(False, "failed", "two failed or was unreachable in this run, so it is not known whether pair1 serves", "no restart", id="failed"),
        pytest.param(False, "unreachable", "two failed or was unreachable in this run", "no restart", id="unreachable", marks=pytest.mark.long),
    ],
)
def test_the_summary_agrees_with_the_recap(tmp_path: Path, write: bool, how: str, title: str, changed: str) -> None:
    done = play(tmp_path, write=write, how=how)
    assert title in done.stdout
    assert changed in done.stdout
    assert ("changed      nothing" in done.stdout) == (not write and not how)
    assert re.search(r"slow \d+ s", done.stdout)
    assert done.changed == ({("two", "Write")} if write else set())
