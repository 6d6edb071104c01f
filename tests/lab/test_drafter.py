"""A drafter on the lab: staged on one rank, proven, copied to the other, mounted read-only, in release, receipt and lock file, and used."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import playbook
import yaml
from container_lab import STUB, Lab

DRAFTER, INSIDE = "/srv/models/drafts/lab-draft", "/models/drafts/lab-draft"
FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
REVISION = "ab" * 20
LOCK = "Compare with the lock file, or record it there"


def drafted(base: str = "lab-stub", **spec: Any) -> dict[str, Any]:
    """Variables with a profile of the lab that has a drafter. Its pool has the size that is left."""
    none = {"min": None, "max": None}
    own = {
        "extends": base, "drafter": {"id": "gb10-lab/lab-draft", "path": INSIDE, "revision": REVISION, "size_gib": 0.001},
        "engine": {"args": {"speculative-config": {"model": INSIDE, "num_speculative_tokens": 2, **spec}}},
        "gate": {"effective_tokens": none, "concurrency": none},
    }  # fmt: skip
    profiles = yaml.safe_load((playbook.REPO / "inventories/lab/group_vars/gb10.yml").read_text(encoding="utf-8"))["gb10_profiles"]
    return {"gb10_profile": "drafted", "gb10_profiles": {**profiles, "drafted": own}}


def sums(lab: Lab, node: int) -> str:
    return lab.on(node, f"cd {DRAFTER} && find . -type f | LC_ALL=C sort | xargs sha256sum")


def stage(lab: Lab) -> None:
    """Put the drafter on the head: the lab's model under another name, which drafts for itself."""
    lab.on(2, "rm -rf /srv/models/drafts")
    lab.on(1, f"rm -rf /srv/models/drafts && mkdir /srv/models/drafts && cp -r /srv/models/{lab.model} {DRAFTER} && touch {DRAFTER}/of-the-drafter.txt")


def clean(lab: Lab) -> None:
    for node in (1, 2):
        lab.on(node, "rm -rf /srv/models/drafts /var/lib/gb10-cluster/weights-lab-draft-*")


def test_a_drafter_is_copied_proven_and_mounted_on_both_ranks(lab: Lab) -> None:
    """Afterwards the inventory's own release serves again."""
    stage(lab)
    try:
        _copied_proven_and_mounted(lab, drafted())
    finally:
        lab.play("site.yml", "--tags", "vllm_tp2")
        clean(lab)


def test_the_real_engine_accepts_what_the_drafter_of_both_ranks_drafts(tmp_path: Path) -> None:
    """vLLM on CPU with a draft model: its own counters are in the receipt, and the answer is the model's."""
    subprocess.run([sys.executable, str(playbook.REPO / "lab/container/lab.py"), "up", "--engine", "vllm"], check=True)
    real = Lab(STUB.with_name("lab"), tmp_path)
    stage(real)
    own = drafted("lab-tiny", method="draft_model")
    own["gb10_profiles"]["drafted"]["gate"]["acceptance"] = {"positions_active": 2}
    try:
        run = real.play("site.yml", variables={**own, "vllm_tp2_attempts": 1, "vllm_tp2_rollback": False, "vllm_tp2_collective_test": "never"})
        assert run.rc == 0, run.stdout[-4000:]
        assert sums(real, 1) == sums(real, 2) != ""
        for node in (1, 2):
            assert "Loading drafter model" in real.on(node, f"docker logs {real.container(node)} 2>&1")
        speculation = json.loads(real.on(1, f"cat {FOLDER}/current/receipt.json"))["measured"]["speculation"]
        assert len(speculation["accepted_per_position"]) == 2
        assert min(speculation["accepted_per_position"]) > 0
        assert real.complete() == (200, " Paris.")
    finally:
        real.on(1, "gb10 stop", check=False)
        clean(real)


def _copied_proven_and_mounted(lab: Lab, own: dict[str, Any]) -> None:
    check = lab.play("site.yml", "--tags", "weights", "--check", variables=own)
    assert check.rc == 0, check.stdout[-3000:]
    assert "gb10-lab/lab-draft: 5 files" in check.stdout
    assert "to be made equal on lab-1, lab-2" in check.stdout
    run = lab.play("site.yml", "--tags", "weights,vllm_tp2", variables=own)
    assert run.rc == 0, run.stdout[-4000:]
    moved = {host for host, task in run.changed if "Fetch and put in place" in task}
    assert moved == {host for host, task in check.changed if LOCK not in task} == {"lab-2"}
    assert "gb10-lab/lab-draft: 5 files" in run.stdout
    assert sums(lab, 1) == sums(lab, 2) != ""
    for node in (1, 2):
        name = lab.container(node)
        inside = lab.on(node, f"docker exec {name} sh -c 'cat /models/drafts/lab-draft/model.safetensors' | sha256sum").split()[0]
        assert f"{inside}  ./model.safetensors" in sums(lab, node)
        refused = lab.on(node, f"docker exec {name} sh -c 'touch /models/drafts/lab-draft/x 2>&1 || true'")
        assert "Read-only file system" in refused
        made = json.loads(lab.on(node, f"cat {FOLDER}/current/release.json"))
        assert made["drafter"] == DRAFTER
        words = json.loads(lab.on(node, f"docker inspect -f '{{{{json .Config.Cmd}}}}' {name}"))
        assert json.loads(words[words.index("--speculative-config") + 1])["revision"] == REVISION
    files = json.loads(lab.on(1, f"cat {FOLDER}/current/receipt.json"))["weights"]["files"]
    assert {"model.safetensors", "lab-draft/model.safetensors"} <= set(files)
    lock = yaml.safe_load((Path(os.environ.get("GB10_LAB_DIR") or playbook.REPO / ".lab") / "lock.yml").read_text(encoding="utf-8"))["models"]
    assert set(lock[f"gb10-lab/lab-draft@{REVISION}"]) == {"code"}
    before = lab.identity()
    again = lab.play("site.yml", "--tags", "weights,vllm_tp2", variables=own)
    assert (again.rc, again.changed, lab.identity()) == (0, set(), before)
