"""What a release is bound to, on the lab: lost files, a moved tag and changed weights are reported, and nothing is restarted for them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import playbook
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._release import release
from container_lab import Lab
from copy_helpers import result

FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
IMAGE = "gb10-lab/stub:1"
KEPT = "gb10-test/kept:1"
WEIGHTS = "/srv/models/lab-stub/model.safetensors"
LABELS = "docker inspect -f '{{json .Config.Labels}}' "


@pytest.fixture(scope="module")
def bound(lab: Lab) -> Lab:
    """The lab, serving a release that its image and its weights are recorded of."""
    run = lab.play("site.yml", "--tags", "image,weights,vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    return lab


def text(run: playbook.Run) -> str:
    """Return the screen in one line: warnings are wrapped."""
    assert run.rc == 0, run.stdout[-4000:]
    return " ".join(run.stdout.split())


def facts(run: playbook.Run) -> list[dict[str, Any]]:
    """Return what the role read on both ranks."""
    return [result(run, f"lab-{node}", "Read what this rank has") for node in (1, 2)]


def test_each_rank_runs_its_own_image_id_and_the_receipt_names_content_and_weights(bound: Lab) -> None:
    for node in (1, 2):
        labels = json.loads(bound.on(node, LABELS + bound.container(node)))
        receipt = json.loads(bound.on(node, f"cat {FOLDER}/current/receipt.json"))
        image = bound.on(node, f"docker inspect -f '{{{{.Config.Image}}}}' {bound.container(node)}").strip()
        assert image == bound.on(node, f"docker image inspect -f '{{{{.Id}}}}' {IMAGE}").strip()
        assert labels["gb10.cluster.image"] == receipt["image"]
        assert labels["gb10.cluster.release"] == receipt["release"]
        assert [rank["container"]["labels"]["gb10.cluster.release"] for rank in receipt["ranks"]] == [receipt["release"]] * 2
        assert "model.safetensors" in receipt["weights"]["files"]


def test_a_lost_release_and_an_edited_file_are_put_back_without_a_restart(bound: Lab) -> None:
    before = bound.identity()
    name = bound.on(2, f"basename $(readlink {FOLDER}/current)").strip()
    bound.on(2, f"rm -rf {FOLDER}/releases/{name} {FOLDER}/current")
    bound.on(1, f"echo '# mine' >>{FOLDER}/current/compose.yaml")
    run = bound.play("site.yml", "--tags", "vllm_tp2", "--diff")
    assert "# mine" in text(run)
    assert {host for host, _task in run.changed} == {"lab-1", "lab-2"}
    assert bound.identity() == before
    again = bound.play("site.yml", "--tags", "vllm_tp2")
    assert (again.rc, again.changed) == (0, set())
    infos = facts(again)
    assert [info["current"] for info in infos] == [name, name]
    assert [release.kept(info, name)["good"] for info in infos] == [True, True]
    assert release.last_good(infos, "the next one") == name
    assert bound.identity() == before


@pytest.fixture
def moved(bound: Lab) -> Iterator[Lab]:
    """The lab, with another content behind the image's tag on both nodes."""
    for node in (1, 2):
        bound.on(node, f"docker tag {IMAGE} {KEPT} && printf 'FROM {IMAGE}\\nENV MOVED=1\\n' | docker build -q --network none -t {IMAGE} -")
    yield bound
    for node in (1, 2):
        bound.on(node, f"docker tag {KEPT} {IMAGE} && docker rmi {KEPT}")


def test_a_moved_tag_is_a_new_release_and_reported_before_anything_stops(moved: Lab) -> None:
    before = moved.identity()
    run = moved.play("site.yml", "--check", "--tags", "vllm_tp2")
    assert f"image behind the tag changed: {IMAGE} was sha256:" in text(run)
    assert moved.identity() == before


def test_changed_weights_are_reported_until_they_are_back_and_nothing_is_touched(bound: Lab) -> None:
    before, size = bound.identity(), int(bound.on(1, f"stat -c %s {WEIGHTS}"))
    for node in (1, 2):
        bound.on(node, f"printf x >>{WEIGHTS}")
    try:
        run = bound.play("site.yml", "--tags", "weights,vllm_tp2")
    finally:
        for node in (1, 2):
            bound.on(node, f"truncate -s {size} {WEIGHTS}")
    assert f"model.safetensors has {size + 1} bytes instead of {size}" in text(run)
    assert "was judged with" in text(run)
    again = bound.play("site.yml", "--tags", "weights,vllm_tp2")
    assert "was judged with" not in text(again)
    assert [info["weights_differ"] for info in facts(again)] == [[], []]
    assert bound.identity() == before
