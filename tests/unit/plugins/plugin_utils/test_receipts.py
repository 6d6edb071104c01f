"""The gate's receipts on the controller: what changed since the last good boot, and files that cannot be read or written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts

RECEIPT: dict[str, Any] = {"group": "pair1", "release": "4f0c", "passed": True, "time": "2026-11-22T05:00:00Z", "pool": {"effective_tokens": 900}}


def test_drift_counts_from_three_per_cent_on() -> None:
    old = {"pool": {"effective_tokens": 1000, "concurrency": 2.0}, "version": "0.31", "seconds": 100.0}
    assert receipts.drift({"pool": {"effective_tokens": 980, "concurrency": 1.96}, "version": "0.31", "seconds": 120.0}, old) == []
    moved = receipts.drift({"pool": {"effective_tokens": 900, "concurrency": 1.8}, "version": "0.32", "seconds": 200.0}, old)
    assert moved == ["KV pool 1,000 -> 900", "concurrency 2.00 -> 1.80", "version 0.31 -> 0.32", "boot 100 s -> 200 s"]
    assert receipts.drift({"pool": {}}, {}) == []
    same, other = ({"image": "aaaa", "image_id": "sha256:1"}, {"image": "aaaa", "image_id": "sha256:2"})
    assert receipts.drift(other, same) == [], "another image store, the same content"
    assert receipts.drift({"image": "bbbb"}, same) == ["image aaaa -> bbbb"]


def test_second_good_receipt_is_compared_with_first(tmp_path: Path) -> None:
    assert receipts.keep(str(tmp_path), RECEIPT | {"pool": {"effective_tokens": 1000}})["drift"] == []
    kept = receipts.keep(str(tmp_path), RECEIPT)
    assert kept == {"drift": ["KV pool 1,000 -> 900"], "path": str(tmp_path / "pair1/20261122T050000Z-4f0c-passed.json")}
    assert json.loads((tmp_path / "pair1/last-good.json").read_text(encoding="utf-8"))["drift"] == kept["drift"]


@pytest.mark.parametrize("text", ["", "{", "\x00"])
def test_last_good_receipt_that_is_not_one_is_replaced(tmp_path: Path, text: str) -> None:
    good = tmp_path / "pair1/last-good.json"
    good.parent.mkdir()
    good.write_text(text, encoding="utf-8")
    assert "is not a readable receipt" in receipts.keep(str(tmp_path), RECEIPT)["warning"]
    assert json.loads(good.read_text(encoding="utf-8"))["passed"]


@pytest.mark.parametrize("place", ["pair1", "pair1/last-good.json", "pair1/20261122T050000Z-4f0c-passed.json"])
def test_receipt_that_cannot_be_written_is_a_warning(tmp_path: Path, place: str) -> None:
    """A file where the folder has to be, or a folder where a file has to be."""
    if place == "pair1":
        (tmp_path / place).write_text("")
    else:
        (tmp_path / place).mkdir(parents=True)
    assert "cannot be written below" in receipts.keep(str(tmp_path), RECEIPT)["warning"]


def test_receipts_are_for_their_owner_only(tmp_path: Path) -> None:
    receipts.keep(str(tmp_path), RECEIPT)
    assert [path.stat().st_mode & 0o777 for path in (tmp_path / "pair1").iterdir()] == [0o600, 0o600]


def test_failed_boot_leaves_last_good_receipt_alone(tmp_path: Path) -> None:
    receipts.keep(str(tmp_path), RECEIPT)
    before = (tmp_path / "pair1/last-good.json").read_text(encoding="utf-8")
    kept = receipts.keep(str(tmp_path), RECEIPT | {"passed": False})
    assert kept["path"].endswith("-failed.json")
    assert (tmp_path / "pair1/last-good.json").read_text(encoding="utf-8") == before


def test_oldest_receipts_go_and_other_files_stay(tmp_path: Path) -> None:
    folder = tmp_path / "pair1"
    folder.mkdir()
    for number in range(receipts.MOST_FILES + 3):
        (folder / f"20250101T{number:06d}Z-4f0c-failed.json").write_text("{}", encoding="utf-8")
    (folder / "report-nodes.json").write_text("{}", encoding="utf-8")
    kept = receipts.keep(str(tmp_path), RECEIPT)
    left = receipts.in_order(folder)
    assert (len(left), str(left[-1]), left[0].name) == (receipts.MOST_FILES, kept["path"], "20250101T000004Z-4f0c-failed.json")
    assert {path.name for path in folder.iterdir()} - {path.name for path in left} == {"report-nodes.json", "last-good.json"}


def test_without_a_folder_nothing_is_kept() -> None:
    assert receipts.keep(None, RECEIPT) == {}


def test_slower_decode_fewer_accepted_drafts_and_another_moe_backend_are_drift() -> None:
    def receipt(speed: float, share: float | None, backend: str) -> dict[str, Any]:
        return {"measured": {"decode_tok_s": speed, "speculation": {"acceptance": share}}, "moe_backend": backend}

    old = receipt(54.2, 0.602, "B12X")
    assert receipts.drift(receipt(50.1, 0.55, "B12X"), old) == []
    moved = receipts.drift(receipt(29.0, 0.257, "MARLIN"), old)
    assert moved == ["decode speed 54.2 -> 29.0 tokens/s", "accepted draft tokens 60% -> 26%", "moe_backend B12X -> MARLIN"]
    assert receipts.drift(receipt(29.0, 0.0, "B12X"), receipt(29.0, 0.6, "B12X")) == ["accepted draft tokens 60% -> 0%"]
    assert receipts.drift({}, old) == []
