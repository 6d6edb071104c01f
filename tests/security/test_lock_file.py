"""What runs is the image and the model of the first run, or a pinned one (H8)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest

pytestmark = pytest.mark.slow

REPO = Path(__file__).resolve().parents[2]
ONE, TWO = "a" * 64, "b" * 64
DIGEST = f"sha256:{ONE}"
IMAGE = {"kind": "images", "name": "vllm:1", "found": {"digest": [DIGEST], "fingerprint": ONE}}
MODEL = {"kind": "models", "name": "org/model", "found": {"revision": "c" * 40, "code": ONE}}


def run(folder: Path, entry: dict[str, Any], *words: str, inventory: str = "hosts.yml") -> tuple[int, str]:
    """Run one task with an inventory in `folder`; return the exit status and the output."""
    play = [{"hosts": "all", "gather_facts": False, "tasks": [{"name": "t", "gb10.cluster.lock_entry": entry}]}]
    (folder / "play.yml").write_text(json.dumps(play))
    (folder / "hosts.yml").write_text("all: {hosts: {n1: {}}}\n")
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-i", inventory, "play.yml", *words]
    setting = {**os.environ, "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"), "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default"}
    done = subprocess.run(command, cwd=folder, env=setting, capture_output=True, text=True, check=False)
    return done.returncode, " ".join((done.stdout + done.stderr).split())


def lock(folder: Path) -> Any:
    return yaml.safe_load((folder / ".gb10.lock.yml").read_text())


def test_the_first_run_records_and_the_second_changes_nothing(tmp_path: Path) -> None:
    status, out = run(tmp_path, IMAGE, "--check")
    assert (status, "changed=1" in out, (tmp_path / ".gb10.lock.yml").exists()) == (0, True, False)
    for entry in (IMAGE, MODEL):
        assert "changed=1" in run(tmp_path, entry)[1]
        assert "ok=1 changed=0" in run(tmp_path, entry)[1]
    assert lock(tmp_path) == {"images": {"vllm:1": {"digest": DIGEST, "fingerprint": ONE}}, "models": {"org/model": MODEL["found"]}}


@pytest.mark.parametrize(
    ("entry", "found", "message"),
    [
        (IMAGE, {"digest": [f"sha256:{TWO}"]}, f"digest: expected {DIGEST}, found sha256:{TWO}"),
        (IMAGE, {"digest": [DIGEST], "fingerprint": TWO}, f"fingerprint: expected {ONE}, found {TWO}"),
        (IMAGE, {"digest": [], "fingerprint": TWO}, f"fingerprint: expected {ONE}, found {TWO}"),
        (MODEL, {"revision": "", "code": TWO}, f"code: expected {ONE}, found {TWO}"),
    ],
)
def test_another_content_is_refused_with_the_file_and_the_remedy(tmp_path: Path, entry: dict[str, Any], found: dict[str, Any], message: str) -> None:
    run(tmp_path, entry)
    before = lock(tmp_path)
    status, out = run(tmp_path, {**entry, "found": found})
    assert status == 2
    assert all(part in out for part in (message, ".gb10.lock.yml", "Nothing was stopped", "delete this entry or run with -e gb10_lock_update=true"))
    assert lock(tmp_path) == before
    assert run(tmp_path, {**entry, "found": found}, "-e", "gb10_lock_update=true")[0] == 0
    assert run(tmp_path, {**entry, "found": found})[0] == 0


def test_a_copy_of_the_image_may_have_another_digest(tmp_path: Path) -> None:
    run(tmp_path, IMAGE)
    assert "ok=1 changed=0" in run(tmp_path, {**IMAGE, "found": {"digest": [f"sha256:{TWO}"], "fingerprint": ONE}})[1]


def test_heads_of_many_groups_write_at_the_same_time(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(12)]
    assert run(tmp_path, {**IMAGE, "name": "{{ inventory_hostname }}"}, inventory=",".join(hosts))[0] == 0
    assert sorted(lock(tmp_path)["images"]) == sorted(hosts)


@pytest.mark.parametrize("inventory", ["n1,", ".", "hosts.yml"])
def test_the_file_is_next_to_the_inventory_or_where_ansible_runs(tmp_path: Path, inventory: str) -> None:
    assert run(tmp_path, IMAGE, inventory=inventory)[0] == 0
    assert lock(tmp_path)["images"]["vllm:1"]["fingerprint"] == ONE


@pytest.mark.parametrize("rest", ["images:\n", "images: {'vllm:1': }\n", "images: {'vllm:1': {}}\n"])
def test_an_entry_that_was_deleted_is_written_again(tmp_path: Path, rest: str) -> None:
    (tmp_path / ".gb10.lock.yml").write_text(rest)
    assert run(tmp_path, IMAGE)[0] == 0
    assert lock(tmp_path)["images"]["vllm:1"]["fingerprint"] == ONE


def test_code_of_a_model_needs_an_entry(tmp_path: Path) -> None:
    unknown = {"kind": "models", "name": "org/model"}
    status, out = run(tmp_path, unknown)
    assert status == 2
    assert "trust-remote-code runs code of org/model" in out
    run(tmp_path, MODEL)
    assert run(tmp_path, unknown)[0] == 0


def test_a_corrupted_lock_file_ends_in_a_sentence(tmp_path: Path) -> None:
    (tmp_path / ".gb10.lock.yml").write_text("images: [1]\n")
    status, out = run(tmp_path, IMAGE)
    assert status == 2
    assert "cannot be read" in out
    assert "Traceback" not in out


def test_the_code_of_a_model_has_a_fingerprint_of_its_own() -> None:
    def entry(sha256: str) -> dict[str, Any]:
        return {"size": 1, "sha256": sha256, "mtime_ns": 1}

    plain = {"a.safetensors": entry(ONE), "m.py": entry(ONE)}
    assert manifest.code_proof(plain, {}) == manifest.code_proof({**plain, "a.safetensors": entry(TWO)}, {})
    assert manifest.code_proof(plain, {}) != manifest.code_proof({**plain, "m.py": entry(TWO)}, {})
    links = {"snapshots/c/m.py": "../../blobs/e"}
    assert manifest.code_proof({"blobs/e": entry(ONE)}, links) != manifest.code_proof({"blobs/e": entry(TWO)}, links)
