"""What the evidence has of a node besides its containers: bounded, with a line for what is not installed, without secrets."""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import evidence

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
