"""What the role vllm_tp2 does before a start if the compile caches of the ranks differ."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from playbook import LOCAL_PAIR, REPO, Run
from warm_playbook import run

pytestmark = pytest.mark.slow

KEY = "vllm-cache-0123456789ab"
COPY = {"ansible.builtin.include_role": {"name": "gb10.cluster.vllm_tp2", "tasks_from": "collective.yml"}}


def decide(files: dict[str, int], caches: dict[str, list[str]]) -> list[dict[str, Any]]:
    """Return the tasks that set what both ranks have written, and what the run has decided."""
    wrote = {host: {"cache_files": count} for host, count in files.items()}
    mine = {host: {"caches": each} for host, each in caches.items()}
    return [
        {
            "ansible.builtin.set_fact": {
                "__vllm_tp2_wrote": f"{{{{ {wrote}[inventory_hostname] }}}}", "__vllm_tp2_mine": f"{{{{ {mine}[inventory_hostname] }}}}",
                "__vllm_tp2_decision": {"tries": False, "collective_due": False},
            }
        },
    ]  # fmt: skip


def play(folder: Path, tasks: list[dict[str, Any]], *arguments: str) -> Run:
    members = [{"host": host, "rank": number, "fabric": [f"192.168.200.{number + 1}"]} for number, host in enumerate(("one", "two"))]
    group = {"name": "pair1", "head": "one", "hosts": ["one", "two"], "fabric": [], "members": members}
    group["rank"] = "{{ 0 if inventory_hostname == 'one' else 1 }}"
    variables = {"vllm_tp2_group": group, "vllm_tp2_model_store": str(folder / "models")}
    text = [{"hosts": "gb10", "gather_facts": False, "vars_files": [str(REPO / "roles/vllm_tp2/vars/main.yml")], "vars": variables, "tasks": tasks}]
    (folder / "play.yml").write_text(yaml.safe_dump(text), encoding="utf-8")
    (folder / "hosts.yml").write_text(LOCAL_PAIR.format(python=sys.executable), encoding="utf-8")
    env = {"ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"), "ANSIBLE_CONFIG": str(REPO / "ansible.cfg")}
    return run(folder, "play.yml", folder / "hosts.yml", *arguments, env=env, project=folder)


def shown(done: Run, task: str) -> dict[str, Any]:
    return {data["host"]: data["res"] for data in (event["event_data"] for event in done.events) if data.get("task") == task and "res" in data}


@pytest.mark.parametrize("check", [True, False], ids=["check mode", "for real"])
def test_a_copy_is_predicted_and_its_failure_does_not_end_the_run(tmp_path: Path, check: bool) -> None:
    """Nothing can be offered here: the rank has no fabric addresses."""
    for host in ("one", "two"):
        (tmp_path / f"models/{host}/{KEY}").mkdir(parents=True)
    (tmp_path / f"models/one/{KEY}/kernel.so").write_text("x")
    caches = {host: [f"{tmp_path}/models/{host}/{KEY}"] for host in ("one", "two")}
    done = play(tmp_path, [*decide({"one": 1, "two": 0}, caches), COPY], *(["--check"] if check else []))
    assert done.rc == 0, done.stdout
    assert not (tmp_path / f"models/two/{KEY}/kernel.so").exists()
    fetched = shown(done, "collective | Fetch, check and put in place")
    if check:
        assert fetched["two"]["changed"], fetched
        assert fetched["two"]["copied"] == ["kernel.so"]
    else:
        text = " ".join(result["lines"][0] for result in shown(done, "collective | Report that the cache was not copied").values())
        assert re.search("so this start compiles its kernels: (files are offered to named peers only|r?rsync.* is not installed on this node)", text), text
