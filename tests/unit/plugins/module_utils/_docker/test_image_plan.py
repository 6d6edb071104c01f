"""Whether ranks have the same image, and what to do where they have not."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import image_plan
from ansible_collections.gb10.cluster.plugins.module_utils._docker.image_plan import ImageError

HOSTS = ["spark-1", "spark-2"]
BASE, TOP, OTHER = ("sha256:" + c * 64 for c in "abc")
DIGEST = "sha256:" + "d" * 64


def image(*layers: str, **more: Any) -> dict[str, Any]:
    """Return an info of an image with these layers."""
    layers = layers or (BASE, TOP)
    mark = image_plan.fingerprint(layers, {}, "arm64", "linux")
    out: dict[str, Any] = {
        "reference": "vllm:1", "exists": True, "id": f"sha256:{hashlib.sha256(''.join(layers).encode()).hexdigest()}", "repo_digests": [],
        "layers": list(layers), "fingerprint": mark, "size": 100, "store": "classic", "architecture": "arm64", "build": "",
        "chains": image_plan.chain_ids(layers), "free_bytes": 10**9, "served": "",
    }  # fmt: skip
    return {**out, **more}


def none(*has: str, **more: Any) -> dict[str, Any]:
    """Return the info of a node without the image, that has these layers of others."""
    return {**image(), "exists": False, "id": "", "layers": [], "fingerprint": "", "chains": image_plan.chain_ids(has), **more}


def test_chain_ids_are_those_of_the_image_specification() -> None:
    second = "sha256:" + hashlib.sha256(f"{BASE} {TOP}".encode()).hexdigest()
    third = "sha256:" + hashlib.sha256(f"{second} {OTHER}".encode()).hexdigest()
    assert image_plan.chain_ids([BASE, TOP, OTHER]) == [BASE, second, third]
    assert image_plan.chain_ids([]) == []


@pytest.mark.parametrize(
    ("has", "missing"),
    [((BASE,), [TOP]), ((BASE, TOP), []), ((), [BASE, TOP]), ((TOP,), [BASE, TOP]), ((OTHER, TOP), [BASE, TOP])],
    ids=["base", "all", "nothing", "top-on-nothing", "top-on-another-base"],
)
def test_a_layer_counts_only_on_the_layers_below_it(has: tuple[str, ...], missing: list[str]) -> None:
    assert image_plan.missing_layers([BASE, TOP], image_plan.chain_ids(has)) == missing


def test_a_fingerprint_sees_content_order_and_behaviour_and_not_the_build() -> None:
    one = image_plan.fingerprint([BASE, TOP], {"Env": ["A=1"], "Image": "x", "Hostname": "h", "Cmd": None}, "arm64", "linux")
    assert one == image_plan.fingerprint([BASE, TOP], {"Env": ["A=1"], "Image": "y"}, "arm64", "linux")
    for other in (
        image_plan.fingerprint([TOP, BASE], {"Env": ["A=1"]}, "arm64", "linux"),
        image_plan.fingerprint([BASE, TOP], {"Env": ["A=2"]}, "arm64", "linux"),
        image_plan.fingerprint([BASE, TOP], {"Env": ["A=1"]}, "amd64", "linux"),
    ):
        assert other != one


@pytest.mark.parametrize(
    ("one", "two", "kind"),
    [
        (image(repo_digests=[f"a/vllm@{DIGEST}"]), image(repo_digests=[f"b/vllm@{DIGEST}"], id="sha256:x"), "repository digest"),
        (image(repo_digests=[f"a/vllm@{DIGEST}"]), image(), "image id"),
        (image(), image(id="sha256:containerd", store="containerd"), "content fingerprint"),
        (image(), image(BASE, OTHER), ""),
        (image(), none(), ""),
    ],
    ids=["digest", "id", "another-store", "another-image", "absent"],
)
def test_the_strongest_proof_that_holds_is_named(one: dict[str, Any], two: dict[str, Any], kind: str) -> None:
    assert image_plan.same(one, two) == kind
    assert image_plan.prove([one, two])[0] == kind
    assert image_plan.plan(HOSTS, [one, two])["equal"] is bool(kind)


def test_three_ranks_need_one_proof_that_holds_for_all() -> None:
    assert image_plan.prove([image(), image(), image(id="sha256:x")])[0] == "content fingerprint"
    assert image_plan.prove([image(), image(), image(BASE, OTHER)]) == ("", "")
    assert image_plan.prove([]) == ("", "")


def test_only_missing_layers_are_sent() -> None:
    plan = image_plan.plan(HOSTS, [image(), none(BASE)], pull=False)
    assert plan["send"] == [None, {"layers": [TOP], "whole": False, "why": "spark-2 has no vllm:1"}]
    assert plan["obtain"] == ["", ""]
    assert not plan["equal"]


def test_the_containerd_store_gets_the_whole_image() -> None:
    plan = image_plan.plan(HOSTS, [image(), none(BASE, store="containerd")], pull=False)
    assert plan["send"][1]["whole"] is True
    assert plan["send"][1]["layers"] == [BASE, TOP]


def test_the_rank_that_has_it_is_the_source() -> None:
    plan = image_plan.plan(HOSTS, [none(), image()], pull=False)
    assert plan["source"] == "spark-2"
    assert plan["send"][0]["layers"] == [BASE, TOP]
    assert image_plan.plan(HOSTS, [image(), image(BASE, OTHER)], source="spark-2")["source"] == "spark-2"
    with pytest.raises(ImageError, match="image_source is spark-9"):
        image_plan.plan(HOSTS, [image(), image()], source="spark-9")


@pytest.mark.parametrize(
    ("infos", "options", "obtain"),
    [
        ([none(), none()], {}, ["pull", ""]),
        ([none(), none()], {"distribution": "pull"}, ["pull", "pull"]),
        ([image(), none()], {"distribution": "pull"}, ["", "pull"]),
        ([image(), image(BASE, OTHER)], {"distribution": "pull"}, ["", "pull"]),
        ([none(), none()], {"pull": False, "build": "abc"}, ["build", ""]),
        ([image(build="old"), image(build="old")], {"pull": False, "build": "abc"}, ["build", ""]),
        ([image(build="abc"), none()], {"pull": False, "build": "abc"}, ["", ""]),
        ([image(), image()], {"digest": DIGEST}, ["pull", ""]),
        ([image(repo_digests=[f"vllm@{DIGEST}"]), image()], {"digest": DIGEST}, ["", ""]),
        ([none(), none()], {"source": "spark-2"}, ["", "pull"]),
    ],
    ids=["auto", "each", "the-other", "moved-tag", "build", "changed-context", "built", "digest", "loaded-copy-of-the-digest", "chosen-rank"],
)
def test_who_gets_it_how(infos: list[dict[str, Any]], options: dict[str, Any], obtain: list[str]) -> None:
    plan = image_plan.plan(HOSTS, infos, **options)
    assert plan["obtain"] == obtain
    assert plan["complaint"] == ""


@pytest.mark.parametrize(
    ("hosts", "infos", "options", "receive"),
    [
        (HOSTS, [none(), none()], {}, [False, True]),
        (HOSTS, [none(), none()], {"pull": False, "build": "abc"}, [False, True]),
        (HOSTS, [none(), none()], {"source": "spark-2"}, [True, False]),
        (HOSTS, [none(), none()], {"distribution": "pull"}, [False, False]),
        (HOSTS, [none(), none()], {"pull": False}, [False, False]),
        (HOSTS, [none(), none()], {"distribution": "send"}, [False, False]),
        (HOSTS, [none(), image(repo_digests=[f"vllm@{DIGEST}"])], {"source": "spark-1", "digest": DIGEST}, [False, False]),
        (HOSTS, [none(), image(build="abc")], {"source": "spark-1", "build": "abc"}, [False, True]),
        (HOSTS, [image(), image()], {"digest": DIGEST}, [False, True]),
        ([*HOSTS, "spark-3"], [none(), none(), none()], {}, [False, True, True]),
    ],
    ids=["pull", "build", "chosen-rank", "each", "nowhere", "never", "has-the-digest", "another-build", "another-digest", "three"],
)
def test_what_will_be_sent_is_foretold_before_the_image_is_there(
    hosts: list[str], infos: list[dict[str, Any]], options: dict[str, Any], receive: list[bool]
) -> None:
    plan = image_plan.plan(hosts, infos, **options)
    assert [send is not None for send in plan["send"]] == receive
    assert not plan["equal"]
    assert not any(send["layers"] or send["whole"] for send in plan["send"] if send)


@pytest.mark.parametrize(
    ("infos", "options", "words"),
    [
        ([none(), none()], {"pull": False, "note": "Build it from X."}, ["no rank has vllm:1", "docker load", "image_build_context", "Build it from X."]),
        ([none(), none()], {"distribution": "send"}, ["image_distribution is send", "spark-1"]),
        ([none(), none()], {"distribution": "pull", "pull": False}, ["image_distribution is pull", "set it to auto"]),
        ([image(), image()], {"digest": DIGEST, "pull": False}, ["is not the pinned sha256:dddd"]),
    ],
)
def test_what_cannot_be_had_is_said_with_the_remedy(infos: list[dict[str, Any]], options: dict[str, Any], words: list[str]) -> None:
    complaint = image_plan.plan(HOSTS, infos, **options)["complaint"]
    for word in words:
        assert word in complaint


def test_caches_of_another_image_are_stale_on_all_ranks() -> None:
    mark = image()["fingerprint"]
    assert not image_plan.plan(HOSTS, [image(), image()])["changed"], "the first run wipes nothing"
    assert not image_plan.plan(HOSTS, [image(served=mark), image(served=mark)])["changed"]
    assert image_plan.plan(HOSTS, [image(served=mark), image(served="other")])["changed"]


@pytest.mark.parametrize(
    ("other", "words"),
    [
        (image(BASE, OTHER), "1 of 2 layers differ"),
        (image(id="sha256:ffffffffffff0"), "the configuration differs"),
        (image(architecture="amd64"), "for amd64, spark-1 for arm64"),
        (none(), "spark-2 has no vllm:1"),
    ],
)
def test_a_difference_is_told(other: dict[str, Any], words: str) -> None:
    assert words in image_plan.why_unequal("spark-2", other, "spark-1", image())


def test_a_reduced_archive_names_all_layers() -> None:
    text = image_plan.reduced_manifest({"Config": "blobs/sha256/c", "Layers": ["l1", "l2"], "LayerSources": {}}, "vllm:1")
    assert json.loads(text) == [{"Config": "blobs/sha256/c", "RepoTags": ["vllm:1"], "Layers": ["l1", "l2"]}]


@pytest.mark.parametrize(
    ("keep", "current", "gone"),
    [(2, ["c"], ["a"]), (1, ["c"], ["b", "a"]), (3, ["c"], []), (1, ["a"], ["c", "b"]), (1, ["a", "b"], ["c"]), (5, [], [])],
)
def test_old_images_go_and_never_one_in_use(keep: int, current: list[str], gone: list[str]) -> None:
    brought = [{"id": "a", "at": 1}, {"id": "b", "at": 2}, {"id": "c", "at": 3}]
    assert image_plan.stale(brought, current, keep) == gone
