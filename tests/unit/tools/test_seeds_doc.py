"""The page of the seeds: every row has a place and a test that exist, or a reason."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from shipped_profiles import SHIPPED

from tools import seeds_doc

DATA = seeds_doc.load(seeds_doc.DATA)


def test_the_page_is_up_to_date_and_every_place_and_test_exists() -> None:
    assert seeds_doc.faults(DATA) == []
    assert seeds_doc.PAGE.read_text() == seeds_doc.page(DATA)


def test_every_row_of_the_five_seeds_and_every_pain_is_there() -> None:
    assert {seed: list(part["rows"]) for seed, part in DATA["seeds"].items()} == {
        seed: [f"{number:02}" for number in range(1, count + 1)] for seed, count in {"000": 30, "001": 39, "002": 53, "003": 76, "004": 46}.items()
    }
    assert list(DATA["pains"]) == list(range(1, 31))


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ({"where": ["docs/none.md"], "test": ["t"]}, "docs/none.md does not exist"),
        ({"where": ["a.yml#x.z"], "test": ["t"]}, "a.yml has no x.z"),
        ({"where": ["a.yml#x.y=2"], "test": ["t"]}, "a.yml has x.y 1, not 2"),
        ({"where": ["a.yml~other words"], "test": ["t"]}, "a.yml does not contain 'other words'"),
        ({"where": ["a.yml"], "test": ["a.yml::test_none"]}, "the test a.yml::test_none does not exist"),
        ({"where": ["a.yml"], "test": []}, "a row that is done has a place and a test"),
        ({"where": ["a.yml"]}, "expected are what, where and test, or what and open"),
        ({"where": ["a.yml", "b.yml#x.y=1", "a.yml~two words", "b.yml#own=text"], "test": ["t"]}, ""),
        ({"open": "no hardware"}, ""),
    ],
)
def test_a_row_whose_place_or_test_does_not_exist_is_named(tmp_path: Path, row: dict[str, Any], fault: str) -> None:
    (tmp_path / "a.yml").write_text("x: {y: 1}\n# two  words\n")
    (tmp_path / "b.yml").write_text("extends: a\nown: text\n")
    (tmp_path / "t.py").write_text("def test_it() -> None:\n")
    data = {"tests": {"t": "t.py::test_it"}, "seeds": {"000": {"rows": {"01": {"what": "1: x", **row}}}}, "pains": {}}
    assert seeds_doc.faults(data, tmp_path) == ([f"000-01: {fault}"] if fault else [])


def test_the_profile_in_the_tuning_guide_is_valid_and_is_the_seeds_start() -> None:
    (block,) = re.findall(r"```yaml\n(.*?)```", (seeds_doc.ROOT / "docs" / "tuning.md").read_text(), re.DOTALL)
    content = yaml.safe_load(block)
    args = resolve(content["gb10_profile"], SHIPPED, content["gb10_profiles"])["engine"]["args"]
    # The seed's 0.70 leaves no KV pool with the default image: tests/contract/test_pages.py validates the block.
    assert (args["max-num-seqs"], args["max-num-batched-tokens"], args["gpu-memory-utilization"], args["enforce-eager"]) == (1, 4096, "0.75", True)
    assert not {"compilation-config", "speculative-config"} & set(args)
