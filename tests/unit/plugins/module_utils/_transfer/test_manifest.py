"""What each rank lacks of a model: tables of manifests, and the plans that follow from them."""

from __future__ import annotations

import hashlib
import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError
from hypothesis import given
from hypothesis import strategies as st

HOSTS = ["spark-1", "spark-2"]
GIB = 1024**3


def entry(content: str, size: int = 100, mtime_ns: int = 1) -> dict[str, Any]:
    return {"size": size, "sha256": hashlib.sha256(content.encode()).hexdigest(), "mtime_ns": mtime_ns}


def model(files: dict[str, dict[str, Any]] | None = None, **more: Any) -> dict[str, Any]:
    """Return a manifest of a plain folder with two shards."""
    files = {"a.safetensors": entry("a"), "b.safetensors": entry("b"), "config.json": entry("c")} if files is None else files
    base: dict[str, Any] = {
        "path": "/srv/models/m", "exists": bool(files), "layout": "directory", "files": files, "links": {}, "selected": sorted(files), "missing": [],
        "incomplete": [], "damaged": [], "problems": [], "agreed": {}, "copied": [], "free_bytes": 10 * GIB, "staged": {},
    }  # fmt: skip
    return {**base, **more}


def nothing(**more: Any) -> dict[str, Any]:
    return model({}, **more)


def agreed(of: dict[str, Any]) -> dict[str, list[Any]]:
    return {path: [e["size"], e["sha256"], e["mtime_ns"]] for path, e in of["files"].items()}


def changed(path: str, content: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {**model()["files"], path: entry(content, **more)}


# --- paths ------------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "word"),
    [
        ("a/b.json", ""), ("..a/b", ""), ("../a", "out of"), ("/etc/passwd", "out of"), ("a/../../b", "out of"), ("a//b", "out of"), ("", "out of"),
        ("a/./b", "out of"), ("a\nb", "control"), ("a\udcff", "UTF-8"),
    ],
)  # fmt: skip
def test_only_paths_inside_the_folder_are_copied(path: str, word: str) -> None:
    said = manifest.check_path(path)
    assert (word in said) if word else said == ""


@pytest.mark.parametrize(
    ("path", "target", "fine"),
    [
        ("snapshots/x/config.json", "../../blobs/abc", True), ("a", "b", True), ("a", "../b", False), ("a/b", "../../c", False), ("a", "/etc/passwd", False),
        ("../a", "b", False),
    ],
)  # fmt: skip
def test_links_stay_inside_the_folder(path: str, target: str, fine: bool) -> None:
    assert (manifest.check_link(path, target) == "") is fine


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_path_that_passes_never_leads_out(path: str, target: str) -> None:
    import posixpath

    if manifest.check_path(path) == "":
        assert not posixpath.normpath(posixpath.join("/m", path)).startswith("/..")
        assert posixpath.normpath(posixpath.join("/m", path)).startswith("/m/") or path == "."
    if manifest.check_link(path, target) == "":
        assert (posixpath.normpath(posixpath.join("/m", posixpath.dirname(path), target)) + "/").startswith("/m/")


# --- one manifest -----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("refs", "snapshots", "revision", "commit", "word"),
    [
        ({"main": "abc\n"}, ["abc"], "main", "abc", ""),
        ({}, ["abc"], "abc", "abc", ""),
        ({}, ["abc"], "main", "", "printf %s abc > refs/main"),
        ({}, [], "main", "", "snapshots: none"),
        ({"main": "gone"}, ["abc"], "main", "", "names the snapshot 'gone', which is not there"),
        ({}, ["a", "b"], "main", "", "model.revision"),
    ],
    ids=["ref", "commit", "ref-missing", "empty", "ref-dangles", "two-snapshots"],
)
def test_a_revision_is_found_as_an_offline_engine_finds_it(refs: dict[str, str], snapshots: list[str], revision: str, commit: str, word: str) -> None:
    found, said = manifest.resolve_commit(refs, snapshots, revision)
    assert found == commit
    assert word in said
    assert bool(said) != bool(found)


def test_of_a_hub_cache_one_snapshot_counts() -> None:
    files = ["blobs/1", "blobs/2", "refs/main", "refs/old", "snapshots/x/plain.json"]
    links = {"snapshots/x/a.safetensors": "../../blobs/1", "snapshots/y/a.safetensors": "../../blobs/2"}
    assert manifest.select("hub", files, links, "x", "main") == ["blobs/1", "refs/main", "snapshots/x/a.safetensors", "snapshots/x/plain.json"]


def test_caches_and_locks_are_not_part_of_a_model() -> None:
    assert manifest.select("directory", ["a.json", ".cache/huggingface/x", "b.lock", ".git/config"], {}, "", "main") == ["a.json"]


def test_shards_that_the_index_names_are_missed() -> None:
    index = json.dumps({"weight_map": {"x": "a.safetensors", "y": "b.safetensors"}})
    assert manifest.missing_shards({"model.safetensors.index.json": index}, ["a.safetensors"]) == (["b.safetensors"], [])
    assert manifest.missing_shards({"s/model.safetensors.index.json": index}, ["s/a.safetensors"])[0] == ["s/b.safetensors"]
    missing, said = manifest.missing_shards({"i.index.json": "{}"}, [])
    assert missing == []
    assert "i.index.json is no index of shards" in said[0]


def test_what_the_hub_promises_of_a_blob() -> None:
    large, small = "0" * 64, "1" * 40
    assert manifest.upstream_of_blob(f"blobs/{large}") == ("sha256", large)
    assert manifest.upstream_of_blob(f"blobs/{small}") == ("git", small)
    assert manifest.upstream_of_blob(f"other/{large}") == ("", "")
    assert manifest.upstream_of_metadata(f"commit\n{large}\n1.0\n") == large
    assert manifest.upstream_of_metadata(f"commit\n{small}\n1.0\n") == ""
    assert manifest.git_blob_header(3) == b"blob 3\x00"


@pytest.mark.parametrize(
    ("found", "word"),
    [
        (nothing(), "does not exist"),
        (model(missing=["b.safetensors"]), "missing: b.safetensors"),
        (model(incomplete=["blobs/1.incomplete"]), "has not finished"),
        (model(damaged=["a.safetensors"]), "not what the hub says"),
        (model(problems=["x is a pipe"]), "x is a pipe"),
        (model({"config.json": entry("c")}), "no file of weights"),
    ],
)
def test_what_keeps_a_model_from_being_whole_is_said(found: dict[str, Any], word: str) -> None:
    assert not manifest.complete(found)
    assert word in "; ".join(manifest.complaints(found))


def test_a_whole_model_has_no_complaints() -> None:
    assert manifest.complete(model())


@given(st.dictionaries(st.text(min_size=1, max_size=5), st.text(max_size=5), min_size=1, max_size=5))
def test_a_proof_depends_on_every_content_and_not_on_the_order(table: dict[str, str]) -> None:
    files = {path: entry(text) for path, text in table.items()}
    one = manifest.proof(files, {}, files)
    assert one == manifest.proof(dict(reversed(files.items())), {}, reversed(list(files)))
    first = next(iter(files))
    assert manifest.proof({**files, first: entry(table[first] + "x")}, {}, files) != one
    assert manifest.proof(files, {first: "elsewhere"}, files) != one


@pytest.mark.parametrize(("count", "text"), [(5, "5 bytes"), (2048, "2.0 KiB"), (734003200, "700 MiB"), (2 * GIB, "2.0 GiB"), (148 * GIB, "148 GiB")])
def test_sizes_are_readable(count: int, text: str) -> None:
    assert manifest.human(count) == text


# --- the plan ---------------------------------------------------------------------------------------------------------------------


def test_equal_ranks_have_nothing_to_do() -> None:
    plan = manifest.plan(HOSTS, [model(), model()])
    assert plan["usable"]
    assert plan["equal"]
    assert plan["bytes"] == 300
    assert plan["offers"] == [[], []]
    assert not plan["ranks"][0]["recorded"]
    again = manifest.plan(HOSTS, [model(agreed=agreed(model())), model(agreed=agreed(model()))])
    assert all(rank["recorded"] for rank in again["ranks"])


@pytest.mark.parametrize("size", [2, 3, 4])
def test_an_empty_worker_gets_everything_from_the_head(size: int) -> None:
    hosts = [f"spark-{n + 1}" for n in range(size)]
    plan = manifest.plan(hosts, [model(), *(nothing() for _each in hosts[1:])])
    assert plan["source"] == "spark-1"
    for rank in plan["ranks"][1:]:
        assert [item["path"] for item in rank["fetch"]] == ["a.safetensors", "b.safetensors", "config.json"]
        assert {item["provider"] for item in rank["fetch"]} == {0}
    assert plan["offers"] == [["a.safetensors", "b.safetensors", "config.json"], *([] for _each in hosts[1:])]
    assert not plan["equal"]


def test_the_rank_that_has_the_model_is_the_source() -> None:
    plan = manifest.plan(HOSTS, [nothing(), model()])
    assert plan["source"] == "spark-2"
    assert [item["provider"] for item in plan["ranks"][0]["fetch"]] == [1, 1, 1]


def test_the_user_chooses_the_source() -> None:
    other = model(changed("config.json", "mine"))
    assert manifest.plan(HOSTS, [model(), other], source="spark-2")["ranks"][0]["fetch"][0]["path"] == "config.json"
    with pytest.raises(ManifestError, match=r"weights_source is spark-9, which is no host .* spark-1, spark-2"):
        manifest.plan(HOSTS, [model(), other], source="spark-9")


def test_a_damaged_shard_of_the_worker_is_named_and_fetched() -> None:
    plan = manifest.plan(HOSTS, [model(), model(changed("b.safetensors", "rot"))])
    assert [item["path"] for item in plan["ranks"][1]["fetch"]] == ["b.safetensors"]
    assert "b.safetensors has another content" in plan["ranks"][1]["why"][0]
    assert plan["ranks"][0]["fetch"] == []


def shards(count: int, **rotten: str) -> dict[str, dict[str, Any]]:
    return {f"s{n}.safetensors": entry(rotten.get(f"s{n}", f"s{n}"), mtime_ns=2 if f"s{n}" in rotten else 1) for n in range(count)}


def test_one_changed_shard_of_the_head_is_damage() -> None:
    before = model(shards(4))
    plan = manifest.plan(HOSTS, [model(shards(4, s1="rot"), agreed=agreed(before)), model(shards(4), agreed=agreed(before))])
    assert [item["path"] for item in plan["ranks"][0]["fetch"]] == ["s1.safetensors"]
    assert plan["ranks"][0]["fetch"][0]["provider"] == 1
    assert plan["offers"] == [[], ["s1.safetensors"]]
    assert plan["ranks"][1]["fetch"] == []
    assert plan["expected"]["s1.safetensors"]["sha256"] == entry("s1")["sha256"]


def test_most_shards_changed_at_the_head_are_a_new_model() -> None:
    before = model(shards(4))
    new = model(shards(4, s0="n", s1="n", s2="n", s3="n"), agreed=agreed(before))
    plan = manifest.plan(HOSTS, [new, model(shards(4), agreed=agreed(before))])
    assert plan["ranks"][0]["fetch"] == []
    assert len(plan["ranks"][1]["fetch"]) == 4
    assert "taken as a new version" in plan["notes"][0]


def test_a_content_that_changed_while_the_time_did_not_is_damage_even_of_the_only_shard() -> None:
    before = model({"model.safetensors": entry("good")})
    rotten = model({"model.safetensors": entry("rot")}, agreed=agreed(before))
    plan = manifest.plan(HOSTS, [rotten, model({"model.safetensors": entry("good")}, agreed=agreed(before))])
    assert [item["provider"] for item in plan["ranks"][0]["fetch"]] == [1]
    assert plan["ranks"][1]["fetch"] == []


def test_a_config_that_the_user_edits_on_the_head_wins() -> None:
    before = model()
    plan = manifest.plan(HOSTS, [model(changed("config.json", "edited", mtime_ns=1), agreed=agreed(before)), model(agreed=agreed(before))])
    assert [item["path"] for item in plan["ranks"][1]["fetch"]] == ["config.json"]
    assert plan["ranks"][0]["fetch"] == []


def test_what_the_hub_promised_decides_without_any_memory() -> None:
    name = "blobs/" + entry("good")["sha256"]
    link = {"snapshots/x/model.safetensors": "../../" + name}
    hub: dict[str, Any] = {"layout": "hub", "links": link, "selected": [name, *link]}
    rotten = model({name: entry("rot")}, damaged=[name], **hub)
    plan = manifest.plan(HOSTS, [rotten, model({name: entry("good")}, **hub)], source="spark-1")
    assert plan["usable"]
    assert [(i["path"], i["provider"]) for i in plan["ranks"][0]["fetch"]] == [(name, 1)]
    both = manifest.plan(HOSTS, [rotten, rotten])
    assert not both["usable"]
    assert "no rank has a good copy" in both["complaints"][0]


def test_ranks_with_different_halves_complete_each_other() -> None:
    files = model()["files"]
    one = model({k: v for k, v in files.items() if k != "b.safetensors"}, missing=["b.safetensors"])
    two = model({k: v for k, v in files.items() if k != "a.safetensors"}, missing=["a.safetensors"])
    plan = manifest.plan(HOSTS, [one, two])
    assert plan["usable"], plan["complaints"]
    assert [i["path"] for i in plan["ranks"][0]["fetch"]] == ["b.safetensors"]
    assert [i["path"] for i in plan["ranks"][1]["fetch"]] == ["a.safetensors"]


def test_a_shard_of_a_hub_cache_comes_with_its_blob() -> None:
    blob = "blobs/" + entry("good")["sha256"]
    link = "snapshots/x/b.safetensors"
    whole = model({blob: entry("good"), "refs/main": entry("x")}, layout="hub", links={link: "../../" + blob}, selected=[blob, link, "refs/main"])
    half = model({"refs/main": entry("x"), "blobs/0": entry("z")}, layout="hub", links={link: "../../" + blob}, selected=["refs/main", link], missing=[link])
    plan = manifest.plan(HOSTS, [half, whole], source="spark-1")
    assert plan["usable"], plan["complaints"]
    assert [i["path"] for i in plan["ranks"][0]["fetch"]] == [blob]


def test_nobody_has_the_model() -> None:
    plan = manifest.plan(HOSTS, [nothing(), nothing()])
    assert not plan["usable"]
    assert plan["source"] == "spark-1"
    assert plan["complaints"] == ["/srv/models/m does not exist"]


@pytest.mark.parametrize(
    ("manifests", "source", "awaits"),
    [
        ([nothing(), nothing()], "auto", [False, True]),
        ([nothing(), nothing()], "spark-2", [True, False]),
        ([model(incomplete=["blobs/1.incomplete"]), nothing()], "auto", [False, True]),
        ([nothing(), model()], "spark-1", [False, False]),
        ([model(), nothing()], "auto", [False, False]),
    ],
    ids=["nobody", "chosen", "unfinished", "the-other-has-it", "no-download"],
)
def test_who_will_fetch_what_is_downloaded_first_is_foretold(manifests: list[dict[str, Any]], source: str, awaits: list[bool]) -> None:
    assert manifest.plan(HOSTS, manifests, source=source)["awaits"] == awaits


def test_an_unfinished_download_is_no_measure() -> None:
    plan = manifest.plan(HOSTS, [model(incomplete=["blobs/1.incomplete"]), nothing()])
    assert not plan["usable"]
    assert "blobs/1.incomplete" in plan["complaints"][0]


def test_a_full_disk_is_refused_with_figures() -> None:
    big = model({"a.safetensors": entry("a", size=3 * GIB)})
    plan = manifest.plan(HOSTS, [big, nothing(free_bytes=2 * GIB)], reserve_bytes=GIB)
    assert "spark-2 has 2.0 GiB free" in plan["refusals"][0]
    assert "3.0 GiB are to be copied there with 1.0 GiB left over: make 2.0 GiB of room" in plan["refusals"][0]
    half = nothing(free_bytes=2 * GIB, staged={entry("a")["sha256"]: 2 * GIB})
    assert manifest.plan(HOSTS, [big, half], reserve_bytes=GIB)["refusals"] == [], "what an earlier run brought needs no room"


def test_foreign_weights_beside_the_model_are_refused_and_our_own_removed() -> None:
    more = model(changed("z.safetensors", "z"))
    plan = manifest.plan(HOSTS, [model(), more])
    assert "spark-2 has z.safetensors in /srv/models/m, which spark-1 has not" in plan["refusals"][0]
    assert not plan["equal"]
    ours = manifest.plan(HOSTS, [model(), model(changed("z.safetensors", "z"), copied=["z.safetensors"])])
    assert ours["ranks"][1]["remove"] == ["z.safetensors"]
    assert ours["refusals"] == []
    notes = manifest.plan(HOSTS, [model(), model({**model()["files"], "README.md": entry("r")})])
    assert notes["equal"], "what no engine loads may differ"


def test_links_are_compared() -> None:
    link = model(links={"l.json": "config.json"}, selected=[*model()["selected"], "l.json"])
    plan = manifest.plan(HOSTS, [link, model(links={"l.json": "a.json"})])
    assert plan["ranks"][1]["links"] == {"l.json": "config.json"}
    assert not plan["equal"]


def test_compare_names_every_difference() -> None:
    mine = {"files": {"a": entry("x"), "b": entry("b", size=1)}, "links": {"l": "elsewhere"}}
    said = manifest.compare(mine, {"a": entry("a"), "b": entry("b"), "c": entry("c")}, {"l": "b", "m": "b"})
    assert [line.split(" ")[0] for line in said] == ["a", "b", "c", "l", "m"]
    assert manifest.compare({"files": {"a": entry("a")}, "links": {}}, {"a": entry("a")}, {}) == []


def test_ways_lead_over_each_rail_that_both_have() -> None:
    group = {"members": [{"host": "spark-1", "fabric": ["10.0.0.1", "10.1.0.1"]}, {"host": "spark-2", "fabric": ["10.0.0.2", "10.1.0.2"]}]}
    offers: list[dict[str, Any]] = [{"listen": [{"address": "10.0.0.1", "port": 5}, {"address": "10.1.0.1", "port": 6}]}, {"skipped": True}]
    assert manifest.ways(group, offers, 1) == [
        [{"address": "10.0.0.1", "port": 5, "bind": "10.0.0.2"}, {"address": "10.1.0.1", "port": 6, "bind": "10.1.0.2"}],
        [],
    ]


def test_progress_is_one_line() -> None:
    running = {"state": "running", "done": GIB, "total": 2 * GIB, "files": 4, "files_done": 1}
    assert manifest.progress_line("spark-2", running, 1e9) == "spark-2:  50 %  1.0 GiB of 2.0 GiB  1000 MB/s  1 of 4 files"
    assert "min left" in manifest.progress_line("spark-2", {**running, "total": 200 * GIB}, 1e9)
    assert "checking" in manifest.progress_line("spark-2", {**running, "done": 2 * GIB, "hashed": GIB}, 0)
