"""Profiles as text, and the generated page."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as t
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from ansible_collections.gb10.cluster.plugins.module_utils._profile.schema import DEFAULT_PROFILE
from shipped_profiles import SHIPPED

ROOT = Path(__file__).resolve().parents[5]
PROFILES = {name: resolve(name, SHIPPED) for name in SHIPPED}
LEAST = {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a/b", "path": "/a"}}


def doc_tool() -> Any:
    spec = importlib.util.spec_from_file_location("profiles_doc", ROOT / "tools" / "profiles_doc.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_page_is_what_the_tool_writes() -> None:
    assert doc_tool().main(["--check"]) == 0, "run tools/profiles_doc.py"


def test_check_fails_for_another_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    tool = doc_tool()
    monkeypatch.setattr(tool, "ROOT", ROOT)
    monkeypatch.setattr(tool, "PAGE", ROOT / "docs" / "no-such-page.md")
    assert tool.main(["--check"]) == 1
    assert "docs/no-such-page.md differs" in capsys.readouterr().err


def test_table() -> None:
    lines = t.table(PROFILES, "fp8-512k")
    assert len(lines) == 1 + len(SHIPPED)
    assert lines[1].split()[0] == DEFAULT_PROFILE
    starred = [line for line in lines if " * " in line]
    assert len(starred) == 1
    assert starred[0].split()[:4] == ["fp8-512k", "*", "524,288", "12"]
    assert "1,140,000 to 1,360,000" in starred[0]
    assert len({line.index("  mp") for line in lines if "  mp" in line}) == 1, "columns line up"


def test_a_profile_with_the_least_in_it() -> None:
    one = resolve("x", {"x": LEAST})
    assert t.row(one) == ("x", "-", "-", "-", "-", "-", "mp", "-", "pull", "-")
    text = "\n".join(t.sheet(one))
    assert "model on the node: /a in the container" in text
    assert "answer: any sane one" in text
    assert "None" not in text


@pytest.mark.parametrize("name", ["dspark-nvfp4-1m-2", "dspark-nvfp4-200k", "dspark-nvfp4-500k"])
def test_an_unpublished_pool_is_an_estimate_around_the_measured_one(name: str) -> None:
    pool = t.row(PROFILES[name])[7]
    low, high = (int(word.replace(",", "")) for word in pool.split(" (estimate)")[0].split(" to "))
    assert pool.endswith(" (estimate)")
    assert low < 1_901_239 < 2_044_166 < high
    assert f"  pool, tokens: {pool}" in t.sheet(PROFILES[name])
    assert (t.row(PROFILES["fp8-1m"])[7], t.row(PROFILES["fp8-256k"])[7]) == ("1,380,000 to 1,650,000", "-")


@pytest.mark.parametrize(("bounds", "text"), [((None, None), "-"), ((5000, None), "from 5,000"), ((None, 2.5), "up to 2.5"), ((1, 2), "1 to 2")])
def test_spans(bounds: tuple[Any, Any], text: str) -> None:
    one = resolve("x", {"x": {**LEAST, "gate": {"concurrency": {"min": bounds[0], "max": bounds[1]}}}})
    assert f"  concurrency: {text}" in t.sheet(one)


@pytest.mark.parametrize(
    ("image", "word"),
    [({"reference": "a"}, "pull"), ({"reference": "a", "pull": False}, "load"), ({"reference": "a", "pull": False, "build": {"note": "n"}}, "build")],
)
def test_source_of_the_image(image: dict[str, Any], word: str) -> None:
    assert t.row(resolve("x", {"x": {**LEAST, "image": image}}))[8] == word


def test_sheet_quotes_the_seed_if_the_profile_differs() -> None:
    text = "\n".join(t.sheet(PROFILES["piecewise-200k"]))
    assert "engine.args.enable-prefix-caching: the seed has '--prefix-caching'." in text
    assert "container memory limit: 100G" in text
    assert "None" not in text
