"""`gb10 evidence`: what a node shows of its rank without an agent, bounded in size and time and without secrets, and what was kept of it."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, evidence, protocol
from unit.fixtures.docker.engine import FakeEngine, serving


class Node:
    """A node without an agent. `folder` is the folder of the group."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.place, self.capsys = folder, capsys
        self.folder = folder / "pair1"

    def gb10(self, *words: str, code: int = 0) -> Any:
        """Run the command, and return what it prints as `out` and `err`."""
        given = {"group": "pair1", "rank": 1, "hosts": ["one", "spark 2"], "directory": str(self.place), "docker_socket": str(self.place / "docker.sock")}
        assert commands.run(["evidence", *words], path=str(self.place / "agent.json"), admin=str(self.place / "admin.sock"), given=given) == code
        return self.capsys.readouterr()

    def collect(self) -> tuple[str, str]:
        """Return the text and the figures of this moment."""
        found = json.loads(self.gb10("--json").out)
        assert (found["schema"], found["group"], found["host"], found["rank"]) == ("gb10.cluster/evidence/1", "pair1", "spark 2", 1)
        return found["text"], found["figures"]

    def keep(self, label: str, text: str) -> None:
        evidence.keep(str(self.folder), label, "rank1-spark_2.txt", text)
        os.utime(self.folder / "evidence" / label, (len(label), len(label)))


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Node:
    monkeypatch.setattr(evidence, "COMMANDS", {"waiting": ["sleep", "30"]})
    monkeypatch.setattr(evidence, "SECONDS", 1.5)
    return Node(tmp_path, capsys)


@pytest.fixture(params=["20.10", "29.0"])
def engine(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[FakeEngine]:
    with serving(tmp_path / "docker.sock", request.param) as found:
        found.containers["rank1"] = {"Id": "rank1", "Name": "/gb10-pair1-rank1", "State": {"Status": "exited"}}
        yield found


def test_the_end_of_a_long_log_is_collected(node: Node, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_BYTES", 1000)
    engine.logs["rank1"] = [("2026-11-21T05:00:00Z", b"INFO line %d of the log\n" % number, 1) for number in range(5000)]
    engine.logs["rank1"].append(("2026-11-21T06:00:00Z", b"torch.OutOfMemoryError: at the end\n", 2))
    text, _figures = node.collect()
    assert "torch.OutOfMemoryError: at the end" in text
    assert "line 4999 of" in text
    assert "line 4000 of" not in text
    assert any("tail=2000" in path for path in engine.asked)


def test_the_end_of_a_section_does_not_mask_the_title_of_the_next_one(node: Node, engine: FakeEngine) -> None:
    current = node.folder / "current"
    current.mkdir(parents=True)
    (current / "a.yaml").write_text("env_file:\n  - /opt/gb10-cluster/vllm_tp2/pair1/api_key\n")
    (current / "b.yaml").write_text("environment:\n  HF_TOKEN: horse-s3cret\nlast: password\n")
    engine.logs["rank1"] = [("2026-11-21T05:00:00Z", b"INFO horse-s3cret is in a log that does not name it\n", 1)]
    lines = node.gb10().out.splitlines()
    assert {f"== {current}/b.yaml", "== /proc/meminfo", "== /proc/swaps", evidence.FIGURES, "== GPU"} <= set(lines)
    assert not [line for line in lines if line.startswith("==") and "***" in line]
    assert not any("horse-s3cret" in line for line in lines)


def test_a_secret_that_the_limit_cuts_is_not_collected(node: Node, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "LOG_BYTES", 60)
    engine.logs["rank1"] = [("2026-11-21T05:00:00Z", b"token=" + b"s3cr3t" * 9 + b"\n", 1), ("2026-11-21T05:00:01Z", b"INFO the last line\n", 1)]
    text, _figures = node.collect()
    assert "INFO the last line" in text
    assert "s3cr3t" not in text


def test_a_command_that_does_not_end_is_cut_off(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    start = time.monotonic()
    text, _figures = node.collect()
    assert time.monotonic() - start < 20
    assert "== waiting\n(cut off: the time limit is over)" in text
    assert "== containers\n(The Docker Engine is not running" in text
    assert "== /proc/meminfo\nMemTotal" in text
    monkeypatch.setattr(evidence, "SECONDS", 0.0)
    assert "(not collected: the time limit is over)" in node.collect()[0]


HALF_HOUR, DAY = (f"== memory of the last {span}: seconds since the epoch, MemFree, MemAvailable, SwapFree in MiB\n" for span in ("half hour", "day"))


def test_the_samples_of_a_running_agent_are_figures_of_the_moment(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "call", lambda *_words, **_more: {"recent": "1795000000 1 2 0;1795000005 3 4 0", "day": "1795000000 1 2 0"})
    text, figures = node.collect()
    assert f"{HALF_HOUR}1795000000 1 2 0;1795000005 3 4 0\n" in figures
    assert f"{DAY}1795000000 1 2 0\n" in figures
    assert "memory of the last" not in text, "evidence.yml would report each sample as a difference"


def test_without_an_agent_the_samples_of_its_file_are_collected_and_bounded(node: Node) -> None:
    path = node.folder / "agent/memory.json"
    path.parent.mkdir(parents=True)
    samples = [f"{1795000000 + 60 * number} 1 2 0" for number in range(5000)]
    path.write_text(json.dumps({"day": ";".join(["not a sample", *samples]), "more": "x"}), encoding="utf-8")
    _text, figures = node.collect()
    assert f"{HALF_HOUR}(no samples: the agent has kept none, or does not answer)\n" in figures
    assert f"{DAY}{';'.join(samples[-1440:])}\n" in figures
    assert "not a sample" not in figures


def test_what_was_kept_is_listed_and_printed(node: Node) -> None:
    assert node.gb10("--list").out == "spark 2 keeps no evidence of pair1.\n"
    node.keep("4f0c", "== log\nx\x1b[2J\x7f\n")
    node.keep("crash-1", "== log\ny\n")
    (node.folder / "evidence/link").symlink_to(node.folder)
    assert node.gb10("--list").out == "crash-1\n4f0c\n"
    assert json.loads(node.gb10("--list", "--json").out)["labels"] == ["crash-1", "4f0c"]
    assert node.gb10("4f0c").out == "== log\nx\\x1b[2J\\x7f\n"
    found = json.loads(node.gb10("4f0c", "--json").out)
    assert (found["text"], found["figures"]) == ("== log\nx\x1b[2J\x7f\n", "")


@pytest.mark.parametrize("label", ["gen9", "../evidence/4f0c", "link", "empty"])
def test_a_label_that_is_not_kept_is_refused_with_those_that_are(node: Node, label: str) -> None:
    node.keep("4f0c", "== log\n")
    (node.folder / "evidence/empty").mkdir()
    (node.folder / "evidence/link").symlink_to(node.folder / "evidence/4f0c")
    assert node.gb10(label, code=1).err == f"spark 2 keeps no evidence {label} of pair1. Kept: empty, 4f0c.\n"
