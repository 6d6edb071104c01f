"""A drafter on the lab: staged on one rank, proven, copied to the other, read by both engines, and watched for like the model."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import playbook
import pytest
import yaml
from container_lab import STUB, Lab

DRAFTER = "/srv/models/drafts/lab-draft"
FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
REVISION = "ab" * 20
LOCK = "Compare with the lock file, or record it there"


def drafted(base: str, **spec: Any) -> dict[str, Any]:
    """Variables with a profile of the lab that has a drafter. Its pool has the size that is left."""
    path = "/models/drafts/lab-draft"
    none = {"min": None, "max": None}
    own = {
        "extends": base, "drafter": {"id": "gb10-lab/lab-draft", "path": path, "revision": REVISION, "size_gib": 0.001},
        "engine": {"args": {"speculative-config": {"model": path, "num_speculative_tokens": 2, **spec}}},
        "gate": {"effective_tokens": none, "concurrency": none},
    }  # fmt: skip
    profiles = yaml.safe_load((playbook.REPO / "inventories/lab/group_vars/gb10.yml").read_text(encoding="utf-8"))["gb10_profiles"]
    return {"gb10_profile": "drafted", "gb10_profiles": {**profiles, "drafted": own}}


def stage(lab: Lab) -> None:
    """Put the drafter on the head: the lab's model under another name, which drafts for itself."""
    lab.on(2, "rm -rf /srv/models/drafts")
    lab.on(1, f"rm -rf /srv/models/drafts && mkdir /srv/models/drafts && cp -r /srv/models/{lab.model} {DRAFTER} && touch {DRAFTER}/of-the-drafter.txt")


def clean(lab: Lab) -> None:
    """Serve what the inventory has again, and remove the drafter."""
    lab.play("site.yml", "--tags", "vllm_tp2")
    for node in (1, 2):
        lab.on(node, "rm -rf /srv/models/drafts /var/lib/gb10-cluster/weights-lab-draft-*")


@pytest.fixture(scope="module")
def staged(lab: Lab) -> Iterator[Lab]:
    stage(lab)
    yield lab
    clean(lab)


def sums(lab: Lab, node: int, place: str = DRAFTER) -> str:
    return lab.on(node, f"cd {place} && find . -type f | LC_ALL=C sort | xargs sha256sum")


def test_a_drafter_is_copied_proven_and_mounted_on_both_ranks(staged: Lab) -> None:
    own = drafted("lab-stub")
    check = staged.play("site.yml", "--tags", "weights", "--check", variables=own)
    assert check.rc == 0, check.stdout[-3000:]
    assert "gb10-lab/lab-draft: 5 files" in check.stdout
    assert "to be made equal on lab-1, lab-2" in check.stdout
    run = staged.play("site.yml", "--tags", "weights,vllm_tp2", variables=own)
    assert run.rc == 0, run.stdout[-4000:]
    moved = {host for host, task in run.changed if "Fetch, check and put in place" in task}
    assert moved == {host for host, task in check.changed if LOCK not in task} == {"lab-2"}
    assert "gb10-lab/lab-draft: 5 files" in run.stdout
    assert sums(staged, 1) == sums(staged, 2) != ""
    for node in (1, 2):
        name = staged.container(node)
        inside = staged.on(node, f"docker exec {name} sh -c 'cat /models/drafts/lab-draft/model.safetensors' | sha256sum").split()[0]
        assert f"{inside}  ./model.safetensors" in sums(staged, node)
        refused = staged.on(node, f"docker exec {name} sh -c 'touch /models/drafts/lab-draft/x 2>&1 || true'")
        assert "Read-only file system" in refused
        made = json.loads(staged.on(node, f"cat {FOLDER}/current/release.json"))
        assert made["drafter"] == DRAFTER
        words = json.loads(staged.on(node, f"docker inspect -f '{{{{json .Config.Cmd}}}}' {name}"))
        assert json.loads(words[words.index("--speculative-config") + 1])["revision"] == REVISION
    files = json.loads(staged.on(1, f"cat {FOLDER}/current/receipt.json"))["weights"]["files"]
    assert {"model.safetensors", "lab-draft/model.safetensors"} <= set(files)
    lock = yaml.safe_load((Path(os.environ.get("GB10_LAB_DIR") or playbook.REPO / ".lab") / "lock.yml").read_text(encoding="utf-8"))["models"]
    assert set(lock[f"gb10-lab/lab-draft@{REVISION}"]) == {"code"}


def test_the_second_run_changes_nothing(staged: Lab) -> None:
    before = staged.identity()
    run = staged.play("site.yml", "--tags", "weights,vllm_tp2", variables=drafted("lab-stub"))
    assert run.rc == 0, run.stdout[-4000:]
    assert run.changed == set()
    assert staged.identity() == before


def test_a_lost_file_of_the_drafter_refuses_a_start_and_is_copied_again(staged: Lab) -> None:
    own = drafted("lab-stub")
    staged.on(2, f"rm {DRAFTER}/model.safetensors")
    refused = staged.play("site.yml", "--tags", "vllm_tp2", variables={**own, "vllm_tp2_restart": True})
    assert refused.rc != 0
    assert "rank 1 on lab-2: the weights differ: lab-draft/model.safetensors is missing" in refused.last_message
    run = staged.play("site.yml", "--tags", "weights", variables=own)
    assert run.rc == 0, run.stdout[-4000:]
    assert {host for host, task in run.changed if "Fetch" in task} == {"lab-2"}
    assert sums(staged, 1) == sums(staged, 2)


def test_a_return_to_a_release_without_a_drafter_needs_no_drafter(staged: Lab) -> None:
    plain = staged.play("site.yml", "--tags", "vllm_tp2")
    assert plain.rc == 0, plain.stdout[-4000:]
    again = staged.play("site.yml", "--tags", "vllm_tp2", variables=drafted("lab-stub"))
    assert again.rc == 0, again.stdout[-4000:]
    back = staged.play("playbooks/rollback.yml", variables=drafted("lab-stub"))
    assert back.rc == 0, back.stdout[-4000:]
    assert "drafter" not in json.loads(staged.on(1, f"cat {FOLDER}/current/release.json"))


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    subprocess.run([sys.executable, str(playbook.REPO / "lab/container/lab.py"), "up", "--engine", "vllm"], check=True)
    lab = Lab(STUB.with_name("lab"), tmp_path_factory.mktemp("real"))
    stage(lab)
    yield lab
    lab.on(1, "gb10 stop", check=False)
    for node in (1, 2):
        lab.on(node, "rm -rf /srv/models/drafts /var/lib/gb10-cluster/weights-lab-draft-*")


@pytest.mark.long  # one boot of the real engine
def test_the_real_engine_uses_the_drafter_or_reports_why_it_does_not(real: Lab) -> None:
    """The gate's acceptance is that of the engine's own counters. If this engine on CPU refuses every drafter, the verdict has its sentence."""
    own = drafted("lab-tiny", method="draft_model")
    own["gb10_profiles"]["drafted"]["gate"]["acceptance"] = {"positions_active": 1}
    run = real.play("site.yml", variables={**own, "vllm_tp2_attempts": 1, "vllm_tp2_rollback": False})
    assert sums(real, 1) == sums(real, 2) != ""
    if run.rc == 0:
        assert real.complete() == (200, " Paris.")
        return
    print(f"\nrefused: {run.last_message}")
    assert "specul" in run.last_message.lower() or "draft" in run.last_message.lower()
