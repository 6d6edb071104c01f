"""What runs is the image and the model of the first run, or a pinned one (H8)."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warm_playbook
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest
from ansible_collections.gb10.cluster.plugins.plugin_utils import serving_plan

pytestmark = pytest.mark.slow

ONE, TWO = "a" * 64, "b" * 64
DIGEST = f"sha256:{ONE}"
IMAGE = {"kind": "images", "name": "vllm:1", "found": {"digest": [DIGEST], "fingerprint": ONE}}
MODEL = {"kind": "models", "name": "org/model", "found": {"revision": "c" * 40, "code": ONE}}


def run(folder: Path, *entries: dict[str, Any], words: tuple[str, ...] = (), inventory: str = "hosts.yml", goes_on: bool = False) -> tuple[int, str]:
    """Run one task for each entry with an inventory in `folder`; return the exit status and the output."""
    tasks = [{"name": "t", "gb10.cluster.serving_plan": {"step": "lock", "pin": entry}, "ignore_errors": goes_on} for entry in entries]
    (folder / "play.yml").write_text(json.dumps([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
    (folder / "hosts.yml").write_text("all: {hosts: {n1: {}}}\n")
    done = warm_playbook.ansible(folder, ["-i", inventory, "play.yml", *words], cwd=folder)
    return done.rc, " ".join(done.stdout.split())


def lock(folder: Path) -> Any:
    return yaml.safe_load((folder / ".gb10.lock.yml").read_text())


def test_the_first_run_records_and_the_second_changes_nothing(tmp_path: Path) -> None:
    status, out = run(tmp_path, IMAGE, words=("--check",))
    assert (status, "changed=1" in out, (tmp_path / ".gb10.lock.yml").exists()) == (0, True, False)
    assert "ok=2 changed=2" in run(tmp_path, IMAGE, MODEL)[1]
    copy_of_the_image = {**IMAGE, "found": {"digest": [f"sha256:{TWO}"], "fingerprint": ONE}}
    assert "ok=3 changed=0" in run(tmp_path, IMAGE, MODEL, copy_of_the_image)[1]
    assert lock(tmp_path) == {"images": {"vllm:1": {"digest": DIGEST, "fingerprint": ONE}}, "models": {"org/model": MODEL["found"]}}


def test_another_content_is_refused_with_the_file_and_the_remedy(tmp_path: Path) -> None:
    known = [{**IMAGE, "name": "vllm:1"}, {**IMAGE, "name": "vllm:2"}, {**IMAGE, "name": "vllm:3"}, MODEL]
    other: list[dict[str, Any]] = [
        {"digest": [f"sha256:{TWO}"]},
        {"digest": [DIGEST], "fingerprint": TWO},
        {"digest": [], "fingerprint": TWO},
        {"revision": "", "code": TWO},
    ]
    changed = [{**entry, "found": found} for entry, found in zip(known, other, strict=True)]
    run(tmp_path, *known)
    before = lock(tmp_path)
    out = run(tmp_path, *changed, goes_on=True)[1]
    assert "ignored=4" in out
    assert out.count(f"fingerprint: expected {ONE}, found {TWO}") == 2 * out.count(f"digest: expected {DIGEST}, found sha256:{TWO}") > 0
    assert f"code: expected {ONE}, found {TWO}" in out
    assert all(out.count(part) >= 4 for part in (".gb10.lock.yml", "Nothing was stopped", "delete this entry or run with -e gb10_lock_update=true"))
    assert lock(tmp_path) == before
    assert run(tmp_path, *changed, words=("-e", "gb10_lock_update=true"))[0] == 0
    assert run(tmp_path, *changed)[0] == 0


def test_heads_of_many_groups_write_at_the_same_time(tmp_path: Path) -> None:
    hosts = [f"n{number}" for number in range(12)]
    assert run(tmp_path, {**IMAGE, "name": "{{ inventory_hostname }}"}, inventory=",".join(hosts))[0] == 0
    assert sorted(lock(tmp_path)["images"]) == sorted(hosts)


@pytest.mark.parametrize("inventory", ["n1,", "."])
def test_the_file_is_next_to_the_inventory_or_where_ansible_runs(tmp_path: Path, inventory: str) -> None:
    assert run(tmp_path, IMAGE, inventory=inventory)[0] == 0
    assert lock(tmp_path)["images"]["vllm:1"]["fingerprint"] == ONE


@pytest.mark.parametrize("rest", ["images:\n", "images: {'vllm:1': , 'vllm:2': {}}\n"])
def test_an_entry_that_was_deleted_is_written_again(tmp_path: Path, rest: str) -> None:
    (tmp_path / ".gb10.lock.yml").write_text(rest)
    assert run(tmp_path, IMAGE, {**IMAGE, "name": "vllm:2"})[0] == 0
    assert [each["fingerprint"] for each in lock(tmp_path)["images"].values()] == [ONE, ONE]


def test_code_of_a_model_needs_an_entry(tmp_path: Path) -> None:
    unknown = {"kind": "models", "name": "org/model", "found": {}}
    status, out = run(tmp_path, unknown)
    assert status == 2
    assert "trust-remote-code runs code of org/model" in out
    assert run(tmp_path, MODEL, unknown)[0] == 0


def test_a_model_and_a_drafter_that_bring_code_are_pinned_by_a_revision_or_an_entry() -> None:
    def pinned(**drafter: str) -> list[str]:
        profile = {"image": {"digest": DIGEST}, "engine": {"args": {"trust-remote-code": True}}, "model": {"id": "org/model"}, "drafter": drafter}
        return [pin["name"] for pin in serving_plan.pins(SimpleNamespace(profile=profile, check_mode=False), ONE)]  # type: ignore[arg-type]

    assert pinned(id="org/draft", revision="main") == ["org/model", "org/draft@main"]
    assert pinned(id="org/draft", revision="ab" * 20) == ["org/model"]


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
