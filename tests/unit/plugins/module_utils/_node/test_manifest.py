"""The files of a model, and what each rank lacks: tables of manifests, and their plans."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._node import manifest
from hypothesis import given
from hypothesis import strategies as st
from playbook import REPO

HOSTS = ["spark-1", "spark-2"]
GIB = 1024**3


def entry(content: str, size: int = 100) -> dict[str, Any]:
    return {"size": size, "sha256": hashlib.sha256(content.encode()).hexdigest()}


def model(files: dict[str, dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """Return a manifest of a plain folder with two shards."""
    files = {"a.safetensors": entry("a"), "b.safetensors": entry("b"), "config.json": entry("c")} if files is None else files
    base: dict[str, Any] = {
        "path": "/srv/models/m", "exists": bool(files), "layout": "directory", "files": files, "links": {}, "selected": sorted(files), "missing": [],
        "incomplete": [], "damaged": [], "problems": [], "copied": [], "free_bytes": 10 * GIB, "staged": {},
    }  # fmt: skip
    return {**base, **more}


def nothing(**more: Any) -> dict[str, Any]:
    return model({}, **more)


def fetches(plan: dict[str, Any]) -> list[list[str]]:
    """Return by rank the paths to fetch from the source."""
    return [list(rank["fetch"]) for rank in plan["ranks"]]


# --- paths and one manifest -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("path", "bad"), [("a b/ü.json", ""), ("a\nb", "control"), ("\x9b2J", "control"), ("a\u202e", "control"), ("\udcff", "not UTF-8")])
def test_a_name_that_cannot_be_shown_is_a_problem(path: str, bad: str) -> None:
    assert bad in manifest.name_problem(path)
    assert bool(manifest.name_problem(path)) is bool(bad)


@pytest.mark.parametrize(
    ("refs", "snapshots", "revision", "commit", "word"),
    [
        ({"main": "abc\n"}, ["abc"], "main", "abc", ""),
        ({}, ["abc"], "abc", "abc", ""),
        ({}, ["abc"], "main", "", "printf %s abc > refs/main"),
        ({}, [], "main", "", "snapshots: none"),
        ({"main": "gone"}, ["abc"], "main", "", "names the snapshot 'gone'"),
        ({}, ["a", "b"], "main", "", "model.revision"),
        ({}, ["abc"], "60d8" * 10, "", "is not available (snapshots: abc)"),
    ],
    ids=["ref", "commit", "ref-missing", "empty", "ref-dangles", "two-snapshots", "pinned"],
)
def test_revision_is_resolved_as_without_a_network(refs: dict[str, str], snapshots: list[str], revision: str, commit: str, word: str) -> None:
    found, problem = manifest.resolve_commit(refs, snapshots, revision)
    assert found == commit
    assert word in problem
    assert bool(problem) != bool(found)


def test_selected_files_of_both_layouts() -> None:
    files = ["blobs/1", "blobs/2", "refs/main", "refs/old", "snapshots/x/plain.json"]
    links = {"snapshots/x/a.safetensors": "../../blobs/1", "snapshots/y/a.safetensors": "../../blobs/2"}
    assert manifest.select("hub", files, links, "x", "main") == ["blobs/1", "refs/main", "snapshots/x/a.safetensors", "snapshots/x/plain.json"]
    assert manifest.select("directory", ["a.json", ".cache/huggingface/x", "b.lock", ".git/config"], {}, "", "main") == ["a.json"]


def test_shards_of_the_index_are_missing() -> None:
    index = json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    assert manifest.missing_shards({"s/model.safetensors.index.json": index}, ["s/a.safetensors"]) == (["s/b.safetensors"], [])
    missing, [problem] = manifest.missing_shards({"i.index.json": "{}"}, [])
    assert missing == []
    assert problem.startswith("i.index.json ")


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (nothing(), "does not exist"),
        (model(missing=["b.safetensors"]), "missing: b.safetensors"),
        (model(incomplete=["blobs/1.incomplete"]), "blobs/1.incomplete"),
        (model(damaged=["a.safetensors"]), "on the hub or before: a.safetensors"),
        (model(problems=["x is a pipe"]), "x is a pipe"),
        (model({"config.json": entry("c")}), "no weights file"),
        (model(), ""),
    ],
)
def test_incomplete_model_has_complaints(found: dict[str, Any], word: str) -> None:
    assert manifest.complete(found) is not bool(word)
    assert word in "; ".join(manifest.complaints(found))


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), min_size=1, max_size=5))
def test_proof_depends_on_each_content_and_not_on_the_order(table: dict[str, str]) -> None:
    files = {path: entry(text) for path, text in table.items()}
    one = manifest.proof(files, {}, files)
    assert one == manifest.proof(dict(reversed(files.items())), {}, reversed(list(files)))
    first = next(iter(files))
    assert manifest.proof({**files, first: entry(table[first] + "x")}, {}, files) != one
    assert manifest.proof(files, {first: "elsewhere"}, files) != one


@pytest.mark.parametrize(("count", "text"), [(5, "5 bytes"), (2048, "2.0 KiB"), (734003200, "700 MiB"), (148 * GIB, "148 GiB")])
def test_sizes_are_readable(count: int, text: str) -> None:
    assert manifest.human(count) == text


# --- the plan ---------------------------------------------------------------------------------------------------------------------

BLOB = "blobs/" + entry("good")["sha256"]
LINK = {"snapshots/x/model.safetensors": "../../" + BLOB}
HUB: dict[str, Any] = {"layout": "hub", "links": LINK, "selected": [BLOB, *LINK]}
ALL = ["a.safetensors", "b.safetensors", "config.json"]


def without(path: str) -> dict[str, Any]:
    return model({name: each for name, each in model()["files"].items() if name != path}, missing=[path])


@pytest.mark.parametrize(
    ("manifests", "source", "expected"),
    [
        ([model(), model()], 0, [[], []]),
        ([nothing(), model()], 1, [ALL, []]),
        ([model(), nothing(), nothing()], 0, [[], ALL, ALL]),
        ([model(), model({**model()["files"], "b.safetensors": entry("x")})], 0, [[], ["b.safetensors"]]),
        ([model(damaged=["a.safetensors"]), model()], 1, [[], []]),
        ([model({**model()["files"], "config.json": entry("x")}), model()], 0, [[], ["config.json"]]),
        ([model({BLOB: entry("x")}, damaged=[BLOB], **HUB), model({BLOB: entry("good")}, **HUB)], 1, [[BLOB], []]),
    ],
    ids=[
        "equal", "empty-head", "three", "worker-differs", "damaged-head", "edited-config", "hub-hash-decides",
    ],
)  # fmt: skip
def test_each_rank_fetches_what_it_lacks_of_the_source(manifests: list[dict[str, Any]], source: int, expected: list[list[str]]) -> None:
    plan = manifest.plan([*HOSTS, "spark-3"][: len(manifests)], manifests)
    assert (plan["usable"], plan["source_rank"], plan["refusals"]) == (True, source, []), plan["complaints"]
    assert fetches(plan) == expected
    assert plan["equal"] is not any(expected)


def test_the_documented_parts_of_a_plan_exist() -> None:
    text = yaml.safe_load((REPO / "plugins/filter/weights_plan.yml").read_text(encoding="utf-8"))["RETURN"]["_value"]["description"][1]
    assert set(re.findall(r"V\((\w+)\)", text)) <= manifest.plan(HOSTS, [model(), model()]).keys()


def test_differences_and_new_files_are_named() -> None:
    worker = model({"b.safetensors": entry("x"), "config.json": entry("c")})
    [head, other] = manifest.plan(HOSTS, [model(), worker])["ranks"]
    assert (head["fetch"], head["why"]) == ({}, [])
    assert (other["fetch"], other["new"], other["bytes"]) == ({"a.safetensors": 100, "b.safetensors": 100}, ["a.safetensors"], 200)
    assert [line.split(" ")[0] for line in other["why"]] == ["b.safetensors"]


@pytest.mark.parametrize(
    ("manifests", "word"),
    [
        ([nothing(), nothing()], "/srv/models/m does not exist"),
        ([model(incomplete=["blobs/1.incomplete"]), nothing()], "blobs/1.incomplete"),
        ([model({BLOB: entry("x")}, damaged=[BLOB], **HUB)] * 2, "damaged, with another content than on the hub or before: blobs/"),
        ([without("b.safetensors"), nothing()], "the index names files that are missing: b.safetensors"),
    ],
    ids=["absent", "unfinished", "damaged-everywhere", "missing-everywhere"],
)
def test_unusable_model_is_reported(manifests: list[dict[str, Any]], word: str) -> None:
    plan = manifest.plan(HOSTS, manifests)
    assert not plan["usable"]
    assert plan["source"] == "spark-1"
    assert word in plan["complaints"][0]


@pytest.mark.parametrize(
    ("manifests", "awaits"),
    [
        ([nothing(), nothing()], [False, True]),
        ([model(incomplete=["blobs/1.incomplete"]), nothing()], [False, True]),
        ([nothing(), model()], [False, False]),
        ([model(), nothing()], [False, False]),
    ],
    ids=["absent", "unfinished", "the-other-has-it", "no-download"],
)
def test_ranks_await_what_the_source_downloads(manifests: list[dict[str, Any]], awaits: list[bool]) -> None:
    assert manifest.plan(HOSTS, manifests)["awaits"] == awaits


def test_full_disk_is_refused_with_figures() -> None:
    big = model({"a.safetensors": entry("a", size=3 * GIB)})
    [refusal] = manifest.plan(HOSTS, [big, nothing(free_bytes=2 * GIB)], reserves=[GIB, GIB])["refusals"]
    assert all(word in refusal for word in ("spark-2 has 2.0 GiB free", "3.0 GiB are to be copied", "free 2.0 GiB"))
    half = nothing(free_bytes=2 * GIB, staged={"a.safetensors": 2 * GIB})
    assert manifest.plan(HOSTS, [big, half], reserves=[GIB, GIB])["refusals"] == [], "an interrupted copy has taken its space already"


@pytest.mark.parametrize(("drafter", "short"), [(model({"d.safetensors": entry("d", size=2 * GIB)}), True), (nothing(), True), (None, False)])
def test_space_that_a_model_still_needs_is_not_free_for_the_next_one(drafter: dict[str, Any] | None, short: bool) -> None:
    """The drafter comes before the model, is published with 2 GiB, and is on the head, on no rank, or on both."""
    big = model({"a.safetensors": entry("a", size=3 * GIB)})
    here = model({"d.safetensors": entry("d", size=2 * GIB)})
    ranks = [drafter, nothing()] if drafter else [here, here]
    first, second = manifest.plans(HOSTS, [ranks, [big, nothing(free_bytes=5 * GIB)]], [2.0, 3.0], reserve_bytes=GIB)
    assert first["refusals"] == []
    assert bool(second["refusals"]) is short
    assert second["reserves"][1] == (3 * GIB if short else GIB)
    assert all("3.0 GiB are to be copied there with 3.0 GiB left over" in each for each in second["refusals"])


def test_additional_weights_are_refused_unless_they_were_copied() -> None:
    files = {**model()["files"], "z.safetensors": entry("z")}
    plan = manifest.plan(HOSTS, [model(), model(files)])
    assert "spark-2 has z.safetensors in /srv/models/m" in plan["refusals"][0]
    assert not plan["equal"]
    ours = manifest.plan(HOSTS, [model(), model(files, copied=["z.safetensors"])])
    assert (ours["ranks"][1]["remove"], ours["refusals"]) == (["z.safetensors"], [])
    assert manifest.plan(HOSTS, [model(), model({**model()["files"], "README.md": entry("r")})])["equal"], "no engine loads it"


def test_links_are_compared() -> None:
    link = model(links={"l.json": "config.json"}, selected=[*model()["selected"], "l.json"])
    plan = manifest.plan(HOSTS, [link, model(links={"l.json": "a.json"})])
    assert plan["ranks"][1]["fetch"] == {"l.json": 0}
    assert not plan["equal"]
