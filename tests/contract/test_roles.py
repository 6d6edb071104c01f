"""What the roles' files promise beyond what tools/docs.py checks."""

from __future__ import annotations

import os
import re
import sys
import venv
from pathlib import Path

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_profiles
from playbook import REPO, ROLE_PLAY, Run
from warm_playbook import run

pytestmark = pytest.mark.slow

SECRET = re.compile(r"api_key|token|secret|password")
HOSTS = "gb10: {{hosts: {{one: {{ansible_connection: ansible.builtin.local, ansible_become: false, ansible_python_interpreter: {python}}}}}}}\n"
ROCE = """
- name: What roce exports
  hosts: gb10
  gather_facts: false
  vars:
    __roce_verify: {env: {NCCL_IB_HCA: mlx5_0}}
  roles:
    - role: gb10.cluster.roce
  post_tasks:
    - name: Tell
      ansible.builtin.debug:
        msg: "tells NCCL of {{ roce_env | length }} things, reboot {{ roce_reboot_required }}"
"""


def play(folder: Path, text: str, *arguments: str, **variables: object) -> Run:
    """Run a play on one host that is this machine; the playbook does not lie where it is run."""
    (folder / "hosts.yml").write_text(HOSTS.format(python=sys.executable), encoding="utf-8")
    (folder / "plays").mkdir()
    (folder / "plays" / "play.yml").write_text(text, encoding="utf-8")
    return run(folder, "plays/play.yml", folder / "hosts.yml", *arguments, variables=variables, project=folder)


@pytest.mark.parametrize("specs", sorted((REPO / "roles").glob("*/meta/argument_specs.yml")), ids=lambda path: path.parts[-3])
def test_secrets_are_never_logged(specs: Path) -> None:
    """Ansible prints the arguments of a role that do not validate."""
    options = yaml.safe_load(specs.read_text(encoding="utf-8"))["argument_specs"]["main"]["options"]
    assert [name for name, option in options.items() if SECRET.search(name) and not option.get("no_log")] == []


@pytest.mark.parametrize(("state", "things"), [("present", 1), ("absent", 0)])
def test_roce_exports_for_either_state(tmp_path: Path, state: str, things: int) -> None:
    """The engine of the same play does not get removed rails."""
    done = play(tmp_path, ROCE, '--check --start-at-task "*Export the fabric variables"', roce_state=state)
    assert done.rc == 0, done.stdout
    assert f"tells NCCL of {things} things, reboot False" in done.stdout


def test_a_build_sees_what_the_folder_holds_and_nothing_older(tmp_path: Path) -> None:
    """The image's label is the hash of the folder on the controller; a relative one counts from where ansible-playbook runs, for both."""
    here, there = tmp_path / "recipe", tmp_path / "on-the-node"
    for folder, name in ((here, "Dockerfile"), (there, "old")):
        folder.mkdir()
        (folder / name).write_text(name, encoding="utf-8")
    given = {"__image_plan": {"obtain": ["build"]}, "image_group": {"name": "pair1", "rank": 0, "hosts": ["one"]}, "__image_build_folder": str(there)}
    done = play(tmp_path, ROLE_PLAY.format(role="image", tasks="get"), image_build_context="recipe", **given)
    assert done.rc != 0
    assert [path.name for path in there.iterdir()] == ["Dockerfile"]


@pytest.mark.skipif(os.geteuid() != 0, reason="the role gives its files to root")
def test_tools_of_another_lock_stay_until_pip_has_the_new_ones(tmp_path: Path) -> None:
    """A node without PyPI can still be measured."""
    role = yaml.safe_load((REPO / "roles/bench/vars/main.yml").read_text(encoding="utf-8"))
    assert (role["__bench_folder"], role["__bench_user"]) == (tools.FOLDER, tools.USER)
    venv.create(tmp_path / "bench/venv", symlinks=True)
    mark = tmp_path / "bench/venv/mark"
    mark.touch()
    installed = {"__bench_installed": {"rc": 0, "stdout": "of another lock"}, "__bench_folder": str(tmp_path / "bench"), "__bench_python": sys.executable}
    text = ROLE_PLAY.format(role="bench", tasks="present")
    done = play(tmp_path, text, '--start-at-task "*Find what makes an environment"', **installed, bench_pip_arguments=f"--no-index --find-links={tmp_path}")
    assert "one cannot install the tools that measure: ERROR: No matching distribution found for " in done.stdout
    assert mark.exists()


def test_the_inventory_check_and_the_role_mean_the_same_flags() -> None:
    """What an inventory changes of a profile is judged before a run and rendered in it."""
    role = yaml.safe_load((REPO / "roles/vllm_tp2/vars/main.yml").read_text(encoding="utf-8"))
    rendered = {value.strip("{} "): flag for flag, value in role["__vllm_tp2_overrides"]}
    assert rendered == inventory_profiles.FLAGS
