"""What an agent reports outside of its group."""

from __future__ import annotations

import json
import stat
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import outside
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import Outside
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings

SAMPLE: dict[str, Any] = {"containers": [{"running": True}], "memory": {"available_kib": 1024, "total_kib": 2048}, "gpus": [], "rails": []}


def reports(tmp_path: Path, rank: int = 1, **settings: Any) -> Outside:
    return Outside({"group": "pair1", "rank": rank, "hosts": ["one", "two"]}, merged_settings(settings), str(tmp_path), dict)


def waits_for(path: Path) -> list[dict[str, Any]]:
    end = time.monotonic() + 10
    while time.monotonic() < end and not (path.exists() and path.read_text().endswith("\n")):
        time.sleep(0.05)
    return [json.loads(line) for line in path.read_text().splitlines()]


def script(tmp_path: Path) -> tuple[list[str], Path]:
    """A hook that appends what it reads to a file."""
    kept = tmp_path / "kept"
    return [sys.executable, "-c", f"import sys; open({str(kept)!r}, 'a').write(sys.stdin.read() + chr(10))"], kept


def test_a_hook_gets_faults_and_not_progress(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    found = reports(tmp_path, 0, hook=words)
    found.tell({"kind": "progress", "text": "load"})
    found.tell({"kind": "fault", "cause": "rank_dead", "text": "pair1: rank 1 on two: exited"})
    assert [(each["kind"], each["cause"], each["group"], each["host"]) for each in waits_for(kept)] == [("fault", "rank_dead", "pair1", "one")]


def test_a_hook_that_fails_is_counted_and_each_cause_is_reported_once(tmp_path: Path) -> None:
    found, warnings = reports(tmp_path, 0, hook=[sys.executable, "-c", "import sys; sys.exit(int(len(sys.stdin.read()) > 150) + 1)"]), list[str]()
    found.warn = warnings.append
    for count, text in enumerate(("short", "short", "long" * 50), start=1):
        found.tell({"kind": "fault", "text": text})
        end = time.monotonic() + 10
        while time.monotonic() < end and found.failed.get("count") != count:
            time.sleep(0.05)
    assert (found.failed["count"], found.failed["text"]) == (3, f"The hook {sys.executable} failed: it ended with code 2.")
    assert [each.partition("failed: ")[2] for each in warnings] == [
        f"it ended with code {code}. Correct vllm_tp2_watch, or its receiver." for code in (1, 2)
    ]  # fmt: skip


def test_a_worker_reports_a_head_that_is_gone_once(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    found = reports(tmp_path, hook=words, head_seconds=45)
    now = time.monotonic()
    found.sampled(SAMPLE, -1.0)
    found.sampled(SAMPLE, now - 1)
    assert not kept.exists()
    found.sampled(SAMPLE, now - 46)
    found.sampled(SAMPLE, now - 47)
    assert [each["kind"] for each in waits_for(kept)] == ["head_lost"]
    found.sampled(SAMPLE, time.monotonic())
    time.sleep(0.5)
    assert [each["kind"] for each in waits_for(kept)] == ["head_lost", "head_back"]


def test_a_group_that_was_stopped_expects_no_head(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    (tmp_path / "stopped").write_text("2026-11-23 by admin\n")
    reports(tmp_path, hook=words, head_seconds=45).sampled(SAMPLE, time.monotonic() - 60)
    time.sleep(0.3)
    assert not kept.exists()


def test_the_metrics_are_replaced_and_a_folder_that_is_missing_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "FILE_SECONDS", 0.0)
    found = reports(tmp_path, textfile=str(tmp_path / "metrics"))
    found.sampled(SAMPLE, -1.0)
    found.sampled(SAMPLE, -1.0)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("cannot be written") == 1
    (tmp_path / "metrics").mkdir()
    found.sampled(SAMPLE, -1.0)
    path = tmp_path / "metrics/gb10_pair1.prom"
    assert "gb10_rank_running" in path.read_text()
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(list(path.parent.iterdir())) == 1
