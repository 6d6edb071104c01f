"""Check mode reports what the other ranks will get where no rank has the image or the model yet, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from playbook import ROLE_PLAY
from warm_playbook import play

WEIGHTS = """
- name: Weights
  hosts: gb10
  gather_facts: false
  roles:
    - role: gb10.cluster.weights
"""
# The plan is made as validate.yml makes it, of two nodes that have no image: an engine to ask is not there.
IMAGE = """
- name: Image
  hosts: gb10
  gather_facts: false
  vars:
    absent: {reference: "vllm:1", exists: false, id: "", repo_digests: [], fingerprint: "", architecture: ""}
  tasks:
    - name: Plan
      ansible.builtin.set_fact:
        __image_plan: "{{ [absent, absent] | gb10.cluster.image_plan(['one', 'two']) }}"
    - name: Do what main.yml does with it
      ansible.builtin.include_role:
        name: gb10.cluster.image
        tasks_from: "{{ item }}"
      loop: "{{ (['get.yml'] if __image_plan.obtain | select else []) + (['send.yml'] if __image_plan.send | select else []) + ['verify.yml'] }}"
"""


def test_a_drafter_is_staged_next_to_a_model_that_all_ranks_have(tmp_path: Path) -> None:
    """Both ranks are this computer, so what is there is equal."""
    store = tmp_path / "store"
    (store / "org/model").mkdir(parents=True)
    (store / "org/model/model.safetensors").write_text("weights")
    draft = {"id": "org/draft", "path": "/models/org/draft", "revision": "ab" * 20}
    profile = {
        "summary": "s", "image": {"reference": "e:1"}, "model": {"id": "org/model", "path": "/models/org/model"}, "drafter": draft,
        "engine": {"args": {"speculative-config": {"method": "eagle3", "model": "/models/org/draft"}}},
        "container": {"volumes": ["{model_store}:/models:ro"]},
    }  # fmt: skip
    given: dict[str, Any] = {"gb10_model_store": str(store), "gb10_profile": "two", "gb10_profiles": {"two": profile}, "weights_reserve_gib": 0}
    result = play(tmp_path, WEIGHTS, "--check", **given, weights_verify="full", ansible_inject_invocation=True)
    assert result.rc == 0, result.stdout
    read = [each for event in result.events for each in (event["event_data"]["res"] or {}).get("results") or [] if "manifest" in each]
    assert {each["invocation"]["module_args"]["verify"] for each in read} == {"full"}
    lock = "Compare with the lock file, or record it there"
    assert {(host, task.rpartition("| ")[2].removeprefix("gb10.cluster.weights : ")) for host, task in result.changed} == {
        ("one", "Fetch the model from the hub, on one rank"), ("two", "Fetch and put in place"), ("one", lock),
    }  # fmt: skip
    assert "org/model: 1 files, 7 bytes, equal on one, two" in result.stdout
    assert sorted(path.name for path in store.rglob("*")) == ["model", "model.safetensors", "org"]

    refused = play(tmp_path, WEIGHTS, "--check", **given, weights_download="never")
    assert refused.last_message.startswith(f"No rank of pair1 has the whole model org/draft in {store}/org/draft (one: {store}/org/draft does not exist)")
    assert "weights_download is never" in refused.last_message


def test_an_image_that_one_rank_pulls_comes_to_the_others(tmp_path: Path) -> None:
    result = play(tmp_path, IMAGE, "--check", image_reference="vllm:1", image_keep=1, ansible_inject_invocation=True)
    assert result.rc == 0, result.stdout
    assert {(host, task.rpartition("| ")[2]) for host, task in result.changed} == {("one", "Pull or build"), ("two", "Load it")}
    jobs = [event["event_data"]["res"]["invocation"]["module_args"] for event in result.events if event["event_data"]["res"].get("changed")]
    assert [each["keep"] for each in jobs] == [1, 1], "on all ranks"
    assert "vllm:1: to be made the same on one, two" in result.stdout


def test_ranks_that_come_one_after_the_other_are_refused_in_a_sentence(tmp_path: Path) -> None:
    """A foreign playbook with serial."""
    result = play(
        tmp_path, WEIGHTS.replace("  roles:", "  serial: 1\n  roles:"), "--check", gb10_model_store=str(tmp_path), gb10_profile="dspark-nvfp4-1m-seed"
    )
    assert result.rc != 0
    assert result.last_message.startswith("The ranks of pair1 must have the same model, and two is not in this run (or failed earlier in it): run without")


def test_a_refused_image_ends_the_run_on_all_ranks(tmp_path: Path) -> None:
    """Else the other ranks get it, and lose the caches of the one that serves."""
    (tmp_path / ".gb10.lock.yml").write_text("images: {'vllm:1': {fingerprint: first}}\n", encoding="utf-8")
    given: dict[str, Any] = {"__image_plan": {"source": "one", "fingerprint": "other"}, "__image_seen": {"info": {"repo_digests": []}}}
    result = play(tmp_path, ROLE_PLAY.format(role="image", tasks="lock"), "--check", image_reference="vllm:1", **given)
    assert sorted(failure[0] for failure in result.failures) == ["one", "two"], result.stdout
    assert "expected first, found other" in result.stdout


def test_a_rank_whose_source_cannot_save_the_image_names_the_source(tmp_path: Path) -> None:
    plan = "{{ [absent | combine({'exists': true, 'id': 'i', 'fingerprint': 'f'}), absent] | gb10.cluster.image_plan(['one', 'two']) }}"
    books = IMAGE.replace("{{ [absent, absent] | gb10.cluster.image_plan(['one', 'two']) }}", plan)
    result = play(tmp_path, books, "--check", image_reference="vllm:1", image_timeout="not a number")
    assert "one could not save or offer vllm:1 (the message is above), so two stops as well" in result.stdout
