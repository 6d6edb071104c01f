"""A rank's evidence: the end of each log, bounded in size and time, without secrets."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._agent import client as agent
from ansible_collections.gb10.cluster.plugins.module_utils._agent import evidence
from ansible_collections.gb10.cluster.plugins.modules import rank_evidence as module
from unit.fixtures.docker.engine import serving


def collect(capsys: pytest.CaptureFixture[str], tmp_path: Path, **more: Any) -> str:
    arguments = {"group": "pair1", "directory": str(tmp_path), "docker_socket": str(tmp_path / "docker.sock"), **more}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        module.main()
    return str(json.loads(capsys.readouterr().out)["text"])


@pytest.fixture(autouse=True)
def few_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "COMMANDS", {"waiting": ["sleep", "30"]})

    def missing(*_words: object, **_more: object) -> None:
        raise agent.AgentMissing("no socket")  # this machine may have one

    monkeypatch.setattr(agent, "call", missing)


@pytest.mark.parametrize("version", ["20.10", "29.0"])
def test_the_end_of_a_long_log_is_collected(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str) -> None:
    monkeypatch.setattr(evidence, "LOG_BYTES", 1000)
    with serving(tmp_path / "docker.sock", version) as engine:
        engine.containers["rank0"] = {"Id": "rank0", "Name": "/gb10-pair1-rank0", "State": {"Status": "exited"}}
        engine.logs["rank0"] = [("2026-11-21T05:00:00Z", b"INFO line %d of the log\n" % number, 1) for number in range(5000)]
        engine.logs["rank0"].append(("2026-11-21T06:00:00Z", b"torch.OutOfMemoryError: at the end\n", 2))
        text = collect(capsys, tmp_path, timeout=1.5)
    assert "torch.OutOfMemoryError: at the end" in text
    assert "line 4999 of" in text
    assert "line 4000 of" not in text
    assert any("tail=2000" in path for path in engine.asked)


def test_the_end_of_a_section_does_not_mask_the_title_of_the_next_one(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    current = tmp_path / "pair1/current"
    current.mkdir(parents=True)
    (current / "a.yaml").write_text("env_file:\n  - /opt/gb10-cluster/vllm_tp2/pair1/api_key\n")
    (current / "b.yaml").write_text("environment:\n  HF_TOKEN: horse-s3cret\nlast: password\n")
    with serving(tmp_path / "docker.sock", "29.0") as engine:
        engine.containers["rank0"] = {"Id": "rank0", "Name": "/gb10-pair1-rank0", "State": {"Status": "exited"}}
        engine.logs["rank0"] = [("2026-11-21T05:00:00Z", b"INFO horse-s3cret is in a log that does not name it\n", 1)]
        text = collect(capsys, tmp_path, timeout=1.5)
    assert {f"== {current}/b.yaml", "== /proc/meminfo", "== /proc/swaps", evidence.FIGURES} <= set(text.splitlines())
    assert not [line for line in text.splitlines() if line.startswith("==") and "***" in line]
    assert "horse-s3cret" not in text


def test_a_secret_that_the_limit_cuts_is_not_collected(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_BYTES", 60)
    with serving(tmp_path / "docker.sock", "29.0") as engine:
        engine.containers["rank0"] = {"Id": "rank0", "Name": "/gb10-pair1-rank0", "State": {"Status": "exited"}}
        engine.logs["rank0"] = [("2026-11-21T05:00:00Z", b"token=" + b"s3cr3t" * 9 + b"\n", 1), ("2026-11-21T05:00:01Z", b"INFO the last line\n", 1)]
        text = collect(capsys, tmp_path, timeout=1.5)
    assert "INFO the last line" in text
    assert "s3cr3t" not in text


def test_a_command_that_does_not_end_is_cut_off(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    start = time.monotonic()
    text = collect(capsys, tmp_path, timeout=1.2)
    assert time.monotonic() - start < 20
    assert "== waiting\n(cut off: the time limit is over)" in text
    assert "== containers\n(The Docker Engine is not running" in text
    assert "== /proc/meminfo\nMemTotal" in text
    assert "(not collected: the time limit is over)" in collect(capsys, tmp_path, timeout=0.0)


HALF_HOUR, DAY = (f"== memory of the last {span}: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB\n" for span in ("half hour", "day"))


def test_the_samples_of_a_running_agent_are_figures_of_the_moment(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:  # fmt: skip
    monkeypatch.setattr(agent, "call", lambda *_words, **_more: {"recent": "1795000000 1 2 0;1795000005 3 4 0", "day": "1795000000 1 2 0"})
    stable, _mark, figures = collect(capsys, tmp_path, timeout=1.0).partition(evidence.FIGURES)
    assert f"{HALF_HOUR}1795000000 1 2 0;1795000005 3 4 0\n" in figures
    assert f"{DAY}1795000000 1 2 0\n" in figures
    assert "memory of the last" not in stable, "evidence.yml would report each sample as a difference"


def test_without_an_agent_the_samples_of_its_file_are_collected_and_bounded(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "pair1/agent/memory.json"
    path.parent.mkdir(parents=True)
    samples = [f"{1795000000 + 60 * number} 1 2 0" for number in range(5000)]
    path.write_text(json.dumps({"day": ";".join(["not a sample", *samples]), "more": "x"}), encoding="utf-8")
    text = collect(capsys, tmp_path, timeout=1.0)
    assert f"{HALF_HOUR}(no samples: the agent has kept none, or does not answer)\n" in text
    assert f"{DAY}{';'.join(samples[-1440:])}\n" in text
    assert "not a sample" not in text
