"""What the role vllm_tp2 makes of a rank that has lost the release that runs: no start, the files and the other rank's receipt put back."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import yaml
from playbook import LOCAL_PAIR, REPO
from warm_playbook import run

NAME = "4f0c61d2a9be"
GOOD = {"release": NAME, "passed": True}
BOX = {"running": True, "labels": {"gb10.cluster.release": NAME}}
WHOLE: dict[str, Any] = {
    "current": NAME, "containers": [BOX], "receipt": GOOD, "weights_differ": ["a has 1 bytes instead of 2"],
    "image": {"exists": True, "name": "vllm:1", "id": "sha256:tag", "fingerprint": "f"},
    "releases": [{"id": NAME, "good": True, "files": {"compose.yaml": "edited"}, "image": {"id": "sha256:judged", "fingerprint": "f", "gone": False}}],
}  # fmt: skip
BARE = {**WHOLE, "current": "", "receipt": {}, "releases": []}
WANTED = {
    "release": NAME, "inputs": ["", ""], "files": {"compose.yaml": "as rendered"}, "keep": 3, "options": {}, "criteria": {}, "restart": False,
    "takeover": False, "again": False, "new_key": "",
}  # fmt: skip
DECIDED = {
    "__vllm_tp2_decision": "{{ [ranks.one, ranks.two] | gb10.cluster.run_plan("
    "vllm_tp2_group | combine({'rank': vllm_tp2_group.hosts.index(inventory_hostname)}), wanted, vllm_tp2_receipts) }}"
}
WRITTEN = {
    "directory": "{{ node }}/{{ inventory_hostname }}", "release": NAME, "files": {"compose.yaml": "as rendered"},
    "receipt": "{{ (__vllm_tp2_decision.judged or omit) if __vllm_tp2_restores else omit }}", "current": "{{ __vllm_tp2_restores }}",
}  # fmt: skip
REPORTED = ["__vllm_tp2_start", "__vllm_tp2_repaired", "__vllm_tp2_warnings", "__vllm_tp2_image_id"]


def test_a_lost_release_is_restored_and_each_rank_keeps_its_judged_image_id(tmp_path: Path) -> None:
    tasks = [
        {"ansible.builtin.set_fact": {"__vllm_tp2_info": "{{ ranks[inventory_hostname] }}", "__vllm_tp2_id": NAME}},
        {"ansible.builtin.set_fact": DECIDED},
        {"gb10.cluster.vllm_release": WRITTEN},
        {"name": "Report", "ansible.builtin.debug": {"msg": {name.rsplit("tp2_")[1]: f"{{{{ {name} }}}}" for name in REPORTED}}},
    ]
    variables = {
        "ranks": {"one": WHOLE, "two": BARE}, "wanted": WANTED, "node": str(tmp_path), "vllm_tp2_receipts": str(tmp_path),
        "vllm_tp2_group": {"name": "pair1", "hosts": ["one", "two"]}, "vllm_tp2_restart": False,
    }  # fmt: skip
    play = [{"hosts": "gb10", "gather_facts": False, "vars_files": [str(REPO / "roles/vllm_tp2/vars/main.yml")], "vars": variables, "tasks": tasks}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    (tmp_path / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    done = run(tmp_path, "play.yml", tmp_path / "hosts.yml", env=env, project=tmp_path)
    assert done.rc == 0, done.stdout
    output = {data["host"]: data["res"]["msg"] for data in (e["event_data"] for e in done.events) if data.get("task") == "Report" and "res" in data}
    for each in output.values():
        assert each["start"] == []
        assert each["repaired"] == [
            f"one: compose.yaml of release {NAME} differed from the inventory", f"two: the files of release {NAME} were missing",
            "two: the link current was missing",
        ]  # fmt: skip
        assert each["warnings"] == ["the weights are not the judged ones: a has 1 bytes instead of 2"]
    assert [output[host]["image_id"] for host in ("one", "two")] == ["sha256:judged", "sha256:tag"]
    assert json.loads((tmp_path / "two/current/receipt.json").read_text(encoding="utf-8")) == GOOD
    assert (tmp_path / "two/current/compose.yaml").read_text(encoding="utf-8") == "as rendered"
