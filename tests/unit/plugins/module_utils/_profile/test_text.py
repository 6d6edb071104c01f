"""Profiles as text, and the generated page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as t
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import LEAST, SHIPPED

ROOT = Path(__file__).resolve().parents[5]
PROFILES = {name: resolve(name, SHIPPED) for name in SHIPPED}


def doc_tool() -> Any:
    spec = importlib.util.spec_from_file_location("profiles_doc", ROOT / "tools" / "profiles_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tool_writes() -> None:
    assert doc_tool().main(["--check"]) == 0, "run tools/profiles_doc.py"


def test_the_table_has_one_line_a_profile_in_aligned_columns() -> None:
    document = t.document(PROFILES, "fp8-512k")
    lines = t.table(document["profiles"], "fp8-512k")
    rows = lines[1 : lines.index("")]
    assert [line.split()[0] for line in rows] == t.by_availability(PROFILES)
    (starred,) = [line for line in rows if " * " in line]
    assert starred.split()[:7] == ["fp8-512k", "*", "pull", "148", "GiB", "524,288", "12"]
    assert max(map(len, lines)) <= 120
    assert len({line.rindex("  ") for line in lines[: lines.index("")]}) == 1, "columns line up"


def test_the_sheet_of_the_selected_profile_wraps_and_loses_no_word() -> None:
    document = t.document(PROFILES, "b12x-fp8-1m")
    lines = t.lines(document, 79)
    sheet = lines[len(t.table(document["profiles"])) + 2 :]
    assert " ".join(" ".join(sheet).split()) == " ".join(" ".join(document["sheet"]).split())
    assert all(len(line) <= 79 or " " not in line.strip() for line in sheet)
    assert document["sheet"] == t.sheet(PROFILES["b12x-fp8-1m"])


def test_the_verdict_of_a_validated_group_is_repeated_only_below_compose_files() -> None:
    ranks = [{"rank": n, "host": f"spark-{n}", "image": "i:1", "secrets": ["VLLM_API_KEY"], "compose_check": "passed"} for n in (0, 1)]
    pool = {"expected_tokens": 1990269, "needed_tokens": 1890000, "text": "p: Estimated KV pool: 1,990,269 tokens."}
    document = {"group": "pair1", "profile": "p", "pool": pool, "path": "/tmp/r/pair1", "ranks": ranks}
    lines = t.validated_lines(document)
    verdict = "pair1: valid. Estimated KV pool: 1,990,269 tokens (1,890,000 needed). Rendered: /tmp/r/pair1"
    assert (lines[1], lines.count(verdict)) == (verdict, 1)
    assert [line.split()[:2] for line in lines[4:6]] == [["0", "spark-0"], ["1", "spark-1"]]
    shown = t.validated_lines({**document, "path": "", "ranks": [{**each, "compose": "services:\n  vllm: {}\n"} for each in ranks]})
    assert shown[1] == shown[-1] == verdict.partition(" Rendered")[0]
    assert shown.count("  vllm: {}") == 2
    unknown = {"expected_tokens": None, "needed_tokens": None, "text": "x"}
    assert t.validated_lines({**document, "pool": unknown, "path": ""})[1] == "pair1: valid. Estimated KV pool: none."


def test_a_profile_with_the_least_in_it() -> None:
    one = resolve("x", {"x": {**LEAST, "model": {"id": "a/b", "path": "/a"}}})
    found = t.facts(one)
    assert [found[key] for key in ("kv_cache", "speculation", "kv_pool", "image", "speed", "context")] == ["-", "-", "-", "pull", "-", None]
    text = "\n".join(t.sheet(one))
    assert "model on the node: /a in the container" in text
    assert "None" not in text


@pytest.mark.parametrize("name", ["dspark-nvfp4-1m-2", "dspark-nvfp4-200k", "dspark-nvfp4-500k"])
def test_an_unpublished_pool_is_an_estimate_around_the_measured_one(name: str) -> None:
    pool = t.facts(PROFILES[name])["kv_pool"]
    low, high = (int(word.replace(",", "")) for word in pool.split(" (estimate)")[0].split(" to "))
    assert pool.endswith(" (estimate)")
    assert low < 1_385_765 < high
    assert f"  pool, tokens: {pool}" in t.sheet(PROFILES[name])
    assert (t.facts(PROFILES["fp8-1m"])["kv_pool"], t.facts(PROFILES["fp8-256k"])["kv_pool"]) == ("1,380,000 to 1,650,000", "-")


@pytest.mark.parametrize(("bounds", "text"), [((5000, None), "from 5,000"), ((None, 2.5), "up to 2.5"), ((1, 2), "1 to 2")])
def test_spans(bounds: tuple[Any, Any], text: str) -> None:
    one = resolve("x", {"x": {**LEAST, "gate": {"concurrency": {"min": bounds[0], "max": bounds[1]}}}})
    assert f"  concurrency: {text}" in t.sheet(one)


IMAGES: tuple[tuple[dict[str, Any], str], ...] = (
    ({"reference": "a"}, "pull"),
    ({"reference": "a", "pull": False, "build": "x"}, "build"),
    ({"reference": "a", "pull": False}, "missing"),
)


def test_what_is_available_today_comes_first_with_its_sizes() -> None:
    shipped = {f"p{3 - number}": {**LEAST, "image": image} for number, (image, _word) in enumerate(IMAGES)}
    shipped["p3"]["image"] = {**IMAGES[0][0], "size_gib": 31.5, "download_gib": 12, "build_minutes": 40}
    resolved = {name: resolve(name, shipped) for name in shipped}
    assert t.by_availability(resolved) == ["p3", "p2", "p1"]
    lines = t.table([t.facts(resolved[name]) for name in t.by_availability(resolved)])
    assert lines[1].split()[:4] == ["p3", "pull", "12", "GiB"]
    assert {"  size of the image: 31.5 GiB", "  size of the pull: 12 GiB", "  minutes of the build: 40"} <= set(t.sheet(resolved["p3"]))
    assert [t.facts(resolved[name])["image"] for name in ("p3", "p2", "p1")] == [word for _image, word in IMAGES]
    assert lines[-3:] == [f"{name}: {why}" for name, why in t.AVAILABLE]
    assert "build: x/Dockerfile" in "\n".join(t.sheet(resolved["p2"]))


def test_a_sheet_of_a_profile_with_mods_has_them_and_the_image_below() -> None:
    one = resolve("x", {"x": {**LEAST, "image": {"reference": "o/a:1", "mods": [{"path": "/srv/x.patch"}]}}})
    assert "  image: o/a:1 (pull), with /srv/x.patch over o/a:1" in t.sheet(one)
    served = {**one, "image": {**one["image"], "base": one["image"], "reference": "o/a:1-mods-1", "pull": False}}
    assert t.facts(served)["image"] == "pull"
    assert "  image: o/a:1-mods-1 (pull), with /srv/x.patch over o/a:1" in t.sheet(served)


def test_sheet_quotes_the_seed_if_the_profile_differs() -> None:
    text = "\n".join(t.sheet(PROFILES["piecewise-200k"]))
    assert "engine.args.enable-prefix-caching: the source has '--prefix-caching'." in text
    assert "container memory limit: 100G" in text
    assert "None" not in text


def test_sheet_names_the_defaults_of_the_collection() -> None:
    own = {**LEAST, "engine": {"args": {"tokenizer-mode": "deepseek_v4"}}, "env": {"NCCL_DEBUG": "WARN"}}
    lines = t.sheet(resolve("mine", SHIPPED, {"mine": own}))
    part = lines[lines.index("Default of the collection") + 1 :]
    assert "  - env.UCX_MEM_MMAP_HOOK_MODE: none" in part
    assert '  - engine.args.default-chat-template-kwargs: {"thinking": false, "enable_thinking": false}' in part
    assert not [line for line in part if "NCCL_DEBUG:" in line]
    assert "Default of the collection" not in t.sheet(resolve("fp8-1m", SHIPPED))


def test_an_import_prints_the_file_what_is_not_mapped_and_the_next_command() -> None:
    document: dict[str, Any] = {
        "path": "own-profiles/mine.yml", "state": "written", "profile": "mine", "kind": "Docker Compose file",
        "left": ["ipc", "restart"],
        "unmapped": [{"field": "env.A", "reason": "set it"}], "next": "ansible-playbook playbooks/validate.yml",
    }  # fmt: skip
    lines = t.imported_lines(document)
    assert lines[1] == "own-profiles/mine.yml is written: profile mine, made of a Docker Compose file."
    assert {"env.A       set it", "Set by the collection, or not in a profile: ipc, restart", "Next: ansible-playbook playbooks/validate.yml"} <= set(lines)
    checked = t.imported_lines({**document, "state": "would be written", "left": [], "unmapped": [], "next": ""})
    assert "own-profiles/mine.yml would be written: " in checked[1]
    assert checked[3] == "Nothing is to be done by hand."
    assert checked[-1] == "To write the file, run the command without --check."
