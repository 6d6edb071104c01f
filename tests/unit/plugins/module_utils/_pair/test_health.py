"""What is read of a node: kernel logs with and without a journal, power, thermal zones, the newest evidence."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group, Rank
from ansible_collections.gb10.cluster.plugins.module_utils._checks.docker import heat
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LATE
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, no_commands
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look

OOM = "2026-11-22T20:15:00+0000 spark-1 kernel: Out of memory: Killed process 4711 (VLLM) total-vm:1kB, anon-rss:1kB, file-rss:0kB, shmem-rss:0kB, UID:0\n"
LOG = "(EngineCore) ERROR 11-22 20:15:00 [core.py:1] Traceback\ntorch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"


class Commands:
    """Answers of commands, by text that their arguments contain."""

    def __init__(self, answers: dict[str, tuple[int, str, str]]) -> None:
        self.answers = answers
        self.asked: list[list[str]] = []

    def __call__(self, argv: Sequence[str], timeout: float = 0.0, cwd: str | None = None, env: Mapping[str, str] | None = None) -> tuple[int, str, str]:
        self.asked.append(list(argv))
        assert 0 < timeout <= 20, "each command is bounded"
        return next((answer for word, answer in self.answers.items() if any(word in each for each in argv)), (127, "", ""))


def test_both_boots_are_read_and_an_end_without_shutdown_is_noticed() -> None:
    run = Commands(
        {"--lines=100": (0, OOM, ""), "--boot=0": (0, "2026-11-23T08:00:00+0000 spark-1 kernel: Linux version 6.17\n", ""), "--boot=-1": (0, OOM, "")}
    )
    logs = look.kernel_logs(run)
    assert [(event["id"], event["boot"]) for event in logs["events"]] == [("oom_killed", -1)]
    assert (logs["skipped"], logs["unclean"]) == ({}, "2026-11-22T20:15:00+0000")


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ((127, "", "journalctl: No such file"), "journalctl is not installed"),
        ((LATE, "", ""), "journalctl did not end in time"),
        ((1, "", "Data from the specified boot is not available\n"), "Data from the specified boot is not available"),
        ((0, "", ""), "the journal has no kernel messages of it"),
    ],
)
def test_a_journal_that_cannot_be_read_has_a_reason(answer: tuple[int, str, str], reason: str) -> None:
    logs = look.kernel_logs(Commands({"journalctl": answer}))
    assert (logs["events"], logs["unclean"]) == ([], "")
    assert set(logs["skipped"].values()) == {reason}


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        ((127, "", ""), "nvidia-smi is not installed"),
        ((LATE, "", ""), "nvidia-smi did not answer in time"),
        ((9, "NVIDIA-SMI has failed because it couldn't communicate\nmore\n", ""), "nvidia-smi: NVIDIA-SMI has failed because it couldn't communicate"),
        ((0, "No devices were found\n", ""), "nvidia-smi lists no GPU"),
        ((0, "[N/A], [N/A], [N/A], [N/A], [N/A]\n", ""), "nvidia-smi lists no GPU"),
        ((0, "45, 11.20, 0, 208, 3003\n", ""), ""),
    ],
)
def test_a_gpu_without_figures_has_a_reason(answer: tuple[int, str, str], error: str) -> None:
    found, why = look.gpu_power(Commands({"nvidia-smi": answer}))
    assert (len(found), why) == (0 if error else 1, error)


def test_thermal_zones_have_their_critical_temperature(tmp_path: Path) -> None:
    zone = tmp_path / "sys/class/thermal/thermal_zone0"
    zone.mkdir(parents=True)
    for name, text in {"type": "acpitz", "temp": "52100", "trip_point_0_type": "critical", "trip_point_0_temp": "105000"}.items():
        (zone / name).write_text(f"{text}\n", encoding="ascii")
    assert look.temperatures(Node(str(tmp_path), no_commands)) == [{"name": "acpitz", "temperature_c": 52.1, "critical_c": 105.0}]


def test_the_boot_log_of_the_newest_evidence_is_parsed(tmp_path: Path) -> None:
    for age, label in ((200, "old-1"), (100, "new-1")):
        folder = tmp_path / "evidence" / label
        folder.mkdir(parents=True)
        body = LOG if label == "new-1" else "nothing\n"
        (folder / "rank0-one.txt").write_text(f"== container gb10-pair1-rank0: log\n{body}\n== /proc/meminfo\nMemTotal: 1 kB\n", encoding="utf-8")
        os.utime(folder, (1e9 - age, 1e9 - age))
    found = look.kept_boot_log(str(tmp_path / "evidence"))
    assert (found["label"], found["state"]) == ("new-1", "failed")
    assert "OutOfMemoryError" in found["failure"]["line"]


@pytest.mark.parametrize("made", [[], ["evidence"], ["evidence/empty-1"]])
def test_without_evidence_there_is_no_boot_log(tmp_path: Path, made: list[str]) -> None:
    for folder in made:
        (tmp_path / folder).mkdir(parents=True)
    assert look.kept_boot_log(str(tmp_path / "evidence")) == look.NO_BOOT


def test_a_container_has_the_kernel_of_its_host(tmp_path: Path) -> None:
    (tmp_path / ".dockerenv").touch()
    run = Commands({})
    found = look.gather_health(Node(str(tmp_path), no_commands), run, str(tmp_path / "evidence"))
    assert set(found["kernel"]["skipped"]) == {"this boot", "the previous boot"}
    assert found["zones"] == []
    assert not [argv for argv in run.asked if argv[0] == "journalctl"]


# --- power, clocks and temperatures as findings. No `nvidia-smi -q` of a GB10 is public: the rows have the form of --query-gpu.


def judged(gpus: list[dict[str, Any]], zones: list[Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the findings and the figures."""
    events = list(heat(Rank("one", 0, info={"health": {"gpus": gpus, "zones": zones, "gpu_error": ""}}), Group("pair1", [])))
    return [(each.id or "gpu_hot", each.found) for each in events if isinstance(each, Finding)], [each for each in events if isinstance(each, str)]


IDLE = "45, 11.20, 0, 208, 3003\n"


def test_reads_figures_and_leaves_out_what_the_driver_does_not_report() -> None:
    (gpu,) = look.gpus("45, 11.20, 0, [N/A], 3003\n", "0x0000000000000001\n")
    assert gpu == {"temperature_c": 45.0, "power_w": 11.2, "utilization": 0.0, "sm_mhz": None, "max_mhz": 3003.0, "reasons": 1}


@pytest.mark.parametrize(
    ("row", "reasons", "problem"),
    [
        pytest.param(IDLE, "0x1", "", id="idle"),
        pytest.param("70, 45.00, 96, 2400, 3003", "0x0", "", id="works"),
        pytest.param("84, 45.00, 96, 1500, 3003", "0x20", "gpu_hot", id="software thermal slowdown"),
        pytest.param("91, 45.00, 96, 2400, 3003", "0x0", "gpu_hot", id="hot"),
        pytest.param("60, 14.00, 96, 611, 3003", "0x80", "gpu_power", id="power brake"),
        pytest.param("60, 14.00, 96, 611, 3003", "0x0", "gpu_power", id="low clock at work"),
        pytest.param("60, 14.00, 96, 611, 3003", "[N/A]", "gpu_power", id="low clock, reasons not reported"),
        pytest.param("60, 14.00, 3, 611, 3003", "0x0", "", id="low clock without work"),
    ],
)
def test_each_problem_is_named(row: str, reasons: str, problem: str) -> None:
    assert [name for name, _text in judged(look.gpus(row, reasons), [])[0]] == ([problem] if problem else [])


def test_a_sensor_near_its_critical_temperature_is_a_problem() -> None:
    near = look.zone("acpitz\n", "101000\n", {"critical": "105000\n", "passive": "95000\n"})
    far = look.zone("acpitz\n", "52100\n", {"critical": "105000\n"})
    unknown = look.zone("acpitz\n", "52100\n", {})
    assert look.zone("acpitz\n", "", {}) is None
    assert [name for name, _text in judged([], [each for each in (near, far, unknown) if each])[0]] == ["sensor_hot"]


def test_shows_the_figures_in_a_few_words() -> None:
    zone = look.zone("acpitz", "52100", {})
    assert judged(look.gpus(IDLE, "0x1"), [zone])[1] == ["one: GPU 45 °C, 11.2 W, hottest sensor 52.1 °C"]
    assert judged([], []) == ([], [])


def test_a_figure_that_the_driver_does_not_report_is_left_out() -> None:
    ((_name, text),) = judged(look.gpus("[N/A], [N/A], 96, 1500, 3003", "0x20"), [])[0]
    assert text == "the GPU is hot and slows down (GPU at 1500 MHz)"
