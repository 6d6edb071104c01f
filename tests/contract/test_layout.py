"""The shape that a plain clone and an installed tarball rely on."""

from __future__ import annotations

import configparser
import shlex
import subprocess
from pathlib import Path

import yaml
from playbook import REPO
from warm_playbook import play

SHARED_ACTION = """
- name: Modules that share an action
  hosts: one
  gather_facts: false
  module_defaults:
    gb10.cluster.roce_test: {mode: client}
  tasks:
    - name: A default
      gb10.cluster.roce_test:
      failed_when: false
    - name: No default
      gb10.cluster.image_info:
      failed_when: false
    - name: No Python
      gb10.cluster.image_info: {reference: none}
      vars: {ansible_python_interpreter: /none/python3}
      failed_when: false
"""


def test_make_pair_needs_no_password_of_the_inventory_that_it_writes(tmp_path: Path) -> None:
    """The inventory of ansible.cfg would be read, with what it has for machines of the same names."""
    for name in (".venv", "Makefile", "ansible.cfg", "collections", "playbooks"):
        (tmp_path / name).symlink_to(REPO / name)
    for name, text in (("tools/setup.sh", "#!/bin/sh\n"), ("inventories/mine/group_vars/all.yml", "$ANSIBLE_VAULT;1.1;AES256\n3030\n")):
        (tmp_path / name).parent.mkdir(parents=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(["make", "pair"], cwd=tmp_path, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    assert "Add -e setup_head=VALUE" in done.stdout + done.stderr, "its first question"
    assert "WARNING" not in done.stdout + done.stderr


def test_a_frozen_node_ends_its_ssh_connection_within_a_minute() -> None:
    """A run would wait for it without an end."""
    config = configparser.ConfigParser()
    config.read(REPO / "ansible.cfg", encoding="utf-8")
    arguments = shlex.split(config["ssh_connection"]["ssh_args"])
    done = subprocess.run(["ssh", "-G", "-F", "none", *arguments, "node"], capture_output=True, text=True, check=True)
    options = dict(line.split(" ", 1) for line in done.stdout.splitlines())
    assert 0 < int(options["serveraliveinterval"]) * int(options["serveralivecountmax"]) <= 60
    assert (options["controlmaster"], options["controlpersist"], options["compression"]) == ("auto", "60", "yes"), "Ansible's defaults"


def names_in(folder: str) -> set[str]:
    """The names of the files of a plugin folder."""
    return {path.stem for path in (REPO / "plugins" / folder).glob("*.py")}


def test_every_module_has_one_action_of_the_collection_and_the_defaults_of_the_group() -> None:
    """Ansible's own action does not check what a node returns, and `module_defaults` of the group reaches what the group lists."""
    runtime = yaml.safe_load((REPO / "meta" / "runtime.yml").read_text(encoding="utf-8"))
    routed = {name: {"action_plugin": "gb10.cluster.node"} for name in names_in("modules") - names_in("action")}
    assert runtime["plugin_routing"] == {"modules": routed}
    assert runtime["action_groups"]["gb10"] == sorted(names_in("modules"))


def test_modules_that_share_an_action_have_their_own_defaults_and_its_remedies(tmp_path: Path) -> None:
    done = play(tmp_path, SHARED_ACTION)
    mine, none, broken = [event["event_data"]["res"]["msg"] for event in done.events if event["event"] == "runner_on_ok"]
    assert mine == "mode is client but all of the following are missing: addresses"
    assert none == "missing required arguments: reference"
    assert broken.startswith("one: the Python interpreter is missing ")
    assert "Install python3 (3.9 or later) there (apt install python3), or set ansible_python_interpreter." in broken


def test_execution_environments_find_the_dependencies_of_the_collection() -> None:
    """ansible-builder resolves the paths from the root of the collection."""
    metadata = yaml.safe_load((REPO / "meta" / "execution-environment.yml").read_text(encoding="utf-8"))
    assert all((REPO / path).is_file() for path in metadata["dependencies"].values())


def test_every_playbook_begins_with_the_check_of_the_inventory() -> None:
    """No playbook touches a host before the check; what stays on the controller needs no check."""
    playbooks = {path.name: yaml.safe_load(path.read_text(encoding="utf-8")) for path in (REPO / "playbooks").glob("*.yml")}
    (check,) = playbooks.pop("inventory.yml")
    assert "gb10.cluster.inventory" in check["tasks"][0]
    assert check["tags"] == ["always"]
    checked = {"inventory.yml", *(name for name, plays in playbooks.items() if plays[0] == check)}
    for _each in playbooks:
        checked |= {name for name, plays in playbooks.items() if plays[0].get("ansible.builtin.import_playbook") in checked}
    # setup.yml makes the inventory: its machines join the run after their questions were answered.
    speaking = {name for name, plays in playbooks.items() if any(play.get("connection") != "local" and play.get("hosts") != "gb10_setup" for play in plays)}
    assert speaking
    assert speaking <= checked
