"""What a node shows of its rank without an agent, bounded in size and time and without secrets, what was kept of it, and its memory over time."""

from __future__ import annotations

import json
import os
import shutil
import time
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import parse_series
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands, evidence, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.evidence import DAY_MOST, MEMORY_FILE, MOST, History
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
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


SECRET = "hf_ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefgh"


def later() -> float:
    return time.monotonic() + 30


@pytest.fixture(autouse=True)
def all_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(shutil, "which", lambda name, path: None if name == "ethtool" else f"/usr/bin/{name}")
    monkeypatch.setattr(evidence, "rails", lambda: ["enp1s0f0np0"])


def test_a_command_that_is_not_installed_has_one_line() -> None:
    def refuse(_argv: Sequence[str]) -> tuple[int, str, str]:
        raise AssertionError("it is not run")

    assert evidence.command_section(refuse, ["ethtool", "-S", "enp1s0f0np0"], later()) == "(ethtool is not installed)"


def test_each_command_is_bounded_in_time_and_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        asked.append(list(argv))
        return (124, "first\n", "") if "-q" in argv else (0, "x" * 999, "")

    monkeypatch.setattr(evidence, "OUTPUT", 100)
    sections = dict(evidence.figures_of("/none", run, later()))
    assert sections["GPU"] == "first\n(cut off: the time limit is over)"
    assert sections["Docker events of the last hour"].startswith("x" * 100 + "\n(cut off")
    assert sections["counters of enp1s0f0np0"] == "(ethtool is not installed)"
    assert all(argv[:3] == ["timeout", "--kill-after=1", "8"] for argv in asked)
    assert set(dict(evidence.figures_of("/none", run, time.monotonic() + 0.5)).values()) == {
        "(not collected: the time limit is over)",
        "(ethtool is not installed)",
    }


def test_events_are_those_of_one_hour_without_labels_and_health_checks() -> None:
    command = evidence.events_command()
    since, until = (int(next(word for word in command if word.startswith(f"--{name}=")).partition("=")[2]) for name in ("since", "until"))
    assert until - since == 3600
    assert not any("exec" in word or "health" in word for word in command)
    assert "Attributes.name" in command[-1]


def test_records_of_the_agent_are_settings_and_its_counts_are_figures(tmp_path: Path) -> None:
    (tmp_path / "agent").mkdir()
    for name in ("desired", "watch", "memory"):
        (tmp_path / f"agent/{name}.json").write_text(f'{{"{name}": 1}}', encoding="utf-8")

    def run(_argv: Sequence[str]) -> tuple[int, str, str]:
        return 0, "", ""

    assert str(tmp_path / "agent/desired.json") in dict(evidence.settings(str(tmp_path), run, later()))
    settings, figures = dict(evidence.settings(str(tmp_path), run, later())), dict(evidence.figures_of(str(tmp_path), run, later()))
    assert [path for path in settings if path.endswith(("watch.json", "memory.json"))] == []
    assert str(tmp_path / "agent/memory.json") not in figures, "its samples have a section of their own"
    assert figures[str(tmp_path / "agent/watch.json")] == '{"watch": 1}'


def test_a_secret_in_a_new_section_is_masked(tmp_path: Path) -> None:
    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        return 0, f"1795590391 start engine HF_TOKEN={SECRET}\n" if "events" in argv else "", ""

    text, figures = evidence.collect("pair1", str(tmp_path), run, {}, str(tmp_path / "none.sock"))
    assert "== Docker events of the last hour\n1795590391 start engine" in figures
    assert SECRET not in text + figures


def test_files_are_named_if_a_section_has_several(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_text(f"{name}1\n", encoding="ascii")
    assert evidence.files_section([f"{tmp_path}/*"]) == f"{tmp_path}/a: a1\n{tmp_path}/b: b1"
    assert evidence.files_section([f"{tmp_path}/a"]) == "a1"
    assert evidence.files_section([f"{tmp_path}/c"]) == f"({tmp_path}/c does not exist)"


START = 1_795_000_000
SAMPLE: dict[str, Any] = {"memory": {"free_kib": 2 << 20, "available_kib": 100 << 20, "swap_free_kib": 16 << 20}}


class Kept:
    """A history whose clock the test sets."""

    def __init__(self, folder: Path) -> None:
        self.now = float(START)
        self.path = folder / "agent" / MEMORY_FILE
        self.writes = 0
        self.state = Folder(str(folder), "agent")
        self.history = History(self.state, lambda: self.now)

    def sample(self, seconds: float, step: float = 2.0) -> None:
        end = self.now + seconds
        while self.now < end:
            before = self.path.stat().st_ino if self.path.exists() else 0
            self.history.add(SAMPLE)
            self.writes += self.path.exists() and self.path.stat().st_ino != before
            self.now += step


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(tmp_path)


def test_the_last_half_hour_is_kept_in_steps_of_five_seconds_and_the_day_in_minutes(kept: Kept) -> None:
    kept.sample(3600)
    recent, day = (parse_series(kept.history.shown()[key]) for key in ("recent", "day"))
    assert len(recent) == MOST
    assert 5 <= recent[1].seconds - recent[0].seconds <= 6
    assert len(day) == 60
    assert day[0][1:] == (2 << 10, 100 << 10, 16 << 10)


def test_two_days_stay_within_the_bounds_of_memory_and_disk(kept: Kept, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evidence, "SAVE_SECONDS", 14400.0)  # tracemalloc makes each write slow
    tracemalloc.start()
    kept.sample(2 * 86400, step=60)
    used, _peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert len(parse_series(kept.history.shown()["day"], 5000)) == DAY_MOST
    assert used < 2 << 20
    assert kept.path.stat().st_size < 64 << 10


def test_a_quarter_of_an_hour_costs_one_write(kept: Kept) -> None:
    kept.sample(3600 - 2)
    assert kept.writes == 3


def test_the_day_survives_a_restart_of_the_agent(kept: Kept) -> None:
    kept.sample(600)
    kept.history.save()
    later = Kept(kept.path.parents[1])
    later.now = kept.now + 60
    later.sample(120)
    day = parse_series(later.history.shown()["day"])
    assert [day[0].seconds, len(day)] == [START, 12]
