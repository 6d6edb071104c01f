"""The role as a user runs it: an unreachable rank is reported with the rest, other groups go on, check mode is a real run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import warm_playbook
from playbook import Run

PLAY = """
- name: Preflight
  hosts: gb10
  gather_facts: false
  roles:
    - role: gb10.cluster.preflight
- name: What comes after it
  hosts: gb10
  gather_facts: false
  tasks:
    - name: Change something
      ansible.builtin.debug:
        msg: reached
"""
# The first group answers on this machine; the second has a rank behind a closed port.
HOSTS = """
gb10:
  vars:
    ansible_become: false
    ansible_python_interpreter: {python}
    gb10_model_store: {store}
  children:
    pair1:
      hosts:
        one: {{ansible_connection: ansible.builtin.local}}
        two: {{ansible_connection: ansible.builtin.local}}
    pair2:
      vars: {{gb10_fabric_cidrs: [192.168.202.0/24, 192.168.203.0/24]}}
      hosts:
        three: {{ansible_connection: ansible.builtin.local}}
        four: {{ansible_host: 127.0.0.1, ansible_port: 1, ansible_ssh_common_args: -o ConnectTimeout=3}}
"""
# This machine is none of ours: what is wrong with it is not the point here.
IGNORE = (
    "arch cable copy_missing disk_space docker gb10 image_store_parity kho_leak link_speed memlock memory_stuck ports_free rdma stale_containers "
    "gpu_lost ota_torn"
)


def play(folder: Path, *arguments: str, hosts: str = HOSTS, **variables: Any) -> Run:
    """Run the two plays."""
    wanted: dict[str, Any] = {"preflight_ignore": IGNORE.split(), "gb10_receipts": str(folder / "receipts")} | variables
    return warm_playbook.play(folder, PLAY, *arguments, hosts=hosts.replace("{store}", str(folder)), **wanted)


def test_an_unreachable_rank_is_a_finding_and_stops_its_group_alone_and_check_mode_writes_the_report(tmp_path: Path) -> None:
    result = play(tmp_path, "--check", output="json")
    assert result.rc != 0
    failed = {host: message for host, _task, message in result.failures}
    assert set(failed) >= {"three", "four"}, result.stdout
    assert "one" not in failed
    assert "two" not in failed
    assert "error reachable (four): It cannot be reached: " in failed["three"]
    assert failed["four"] == failed["three"], "a callback prints the same fault once"
    assert {host for host, _end in result.tasks("Change something")} == {"one", "two"}
    assert result.changed == set()
    good, bad = (json.loads((tmp_path / f"receipts/reports/preflight-{name}.json").read_text(encoding="utf-8")) for name in ("pair1", "pair2"))
    assert (good["ready"], bad["ready"]) == (True, False)
    assert [entry["id"] for entry in bad["findings"] if entry["severity"] == "error"] == ["reachable"]


# --- playbooks/reboot.yml: two hosts of a local connection, which ansible.builtin.reboot refuses to reboot, so nothing can happen here --------

CONTAINER = any(Path(mark).exists() for mark in ("/.dockerenv", "/run/.containerenv", "/run/systemd/container"))


def test_a_node_that_does_not_come_back_ends_the_run_before_its_head(tmp_path: Path) -> None:
    result = warm_playbook.local(tmp_path, "reboot", "--check", "--tags", "reboot", reboot_all=True)
    assert result.rc != 0
    if CONTAINER:
        assert "is a container" in result.last_message
        return
    assert result.last_message.startswith("two did not come back within 900 s of its reboot (")
    assert "so no other node was rebooted and nothing was started" in result.last_message
    assert {host for host, task, _message in result.failures if "Reboot" in task or "come back" in task} == {"two"}
