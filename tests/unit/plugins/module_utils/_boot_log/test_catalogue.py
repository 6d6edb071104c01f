"""The failure catalogue: each row is found by its wordings, has a remedy that fits, takes linear time, and matches no line of a healthy boot."""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS, classify_kernel, kernel_due
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import without_digits
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import literals, literals_in, parse
from shared_samples import SHARED, needs_shared, samples

from tools.failures_doc import load, name_of
from tools.literals import literals_of

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "vllm_log"
CATALOGUE = load()["failures"]
BENIGN = load()["benign"]
ROWS = {name_of(row): row for row in CATALOGUE}
#: [name of the row or "-", line] of engines, drivers and libraries of several versions.
WORDINGS = [line.split("\t", 1) for line in (FIXTURES / "wordings.tsv").read_text(encoding="utf-8").splitlines()]


@pytest.mark.parametrize("row", CATALOGUE, ids=list(ROWS))
def test_finds_a_row_by_its_example(row: dict[str, Any]) -> None:
    for prefix in ("", "(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:953] "):
        facts = parse(f"{prefix}{row['example']}\n")
        assert facts["state"] == "failed"
        assert (facts["failure"]["class"], facts["failure"]["line_number"]) == (row["class"], 1)
        assert facts["failure"]["anchor"] == f"docs/reference/failures.md#{name_of(row)}"
        assert "{" not in facts["failure"]["remedy"]


@pytest.mark.parametrize("row", CATALOGUE, ids=list(ROWS))
def test_names_no_row_on_an_info_line(row: dict[str, Any]) -> None:
    """Lines of the kernel and of NCCL are tested at every level."""
    facts = parse(f"INFO 01-01 00:00:00 [utils.py:1] {row['example']}\n")
    assert (facts["failure"] is None) != bool(row.get("any_level"))


@pytest.mark.parametrize("benign", BENIGN, ids=[b["name"] for b in BENIGN])
def test_counts_a_look_alike_and_reports_no_failure(benign: dict[str, str]) -> None:
    facts = parse(f"{benign['example']}\n{benign['example']}\n")
    assert facts["failure"] is None
    assert facts["benign"][benign["name"]] == 2


def test_finds_the_row_of_a_line() -> None:
    wrong = []
    for name, line in WORDINGS:
        failure = parse(f"{line}\n")["failure"]
        found = (failure["anchor"], failure["class"]) if failure else None
        if found != (None if name == "-" else (f"docs/reference/failures.md#{name}", ROWS[name]["class"])):
            wrong.append((name, line, found))
    assert wrong == []


@pytest.mark.parametrize("row", CATALOGUE, ids=list(ROWS))
def test_a_line_that_matches_has_a_literal_of_the_expression(row: dict[str, Any]) -> None:
    """An expression whose literals are wrong is never tried."""
    lines = [row["example"], *(line for name, line in WORDINGS if name == name_of(row))]
    for pattern in row["patterns"]:
        literals = literals_of(pattern)
        for line in lines:
            assert re.search(pattern, line) is None or any(literal in without_digits(line) for literal in literals)


@pytest.mark.parametrize("around", ["", "x", " ", "\u2588", "x" * 80])
def test_finds_all_literals_of_a_line_also_within_words_and_within_each_other(around: str) -> None:
    for literal in literals():
        line = f"{around}{literal}{around} {literal[1:]}"
        assert literals_in(line.encode()) == {each for each in literals() if each in line}


@pytest.mark.parametrize("row", CATALOGUE, ids=list(ROWS))
def test_a_pattern_takes_linear_time(row: dict[str, Any]) -> None:
    for pattern in [*row["patterns"], *row.get("details", [])]:
        for piece in (row["example"], "a" * 20, "(" * 20, "Error: ", "memory (1", "TCPStore ", "0.0"):
            began = time.perf_counter()
            re.search(pattern, piece * (60000 // len(piece)))
            assert time.perf_counter() - began < 20, "it takes milliseconds; in quadratic time it takes minutes"


def healthy() -> list[Path]:
    """List the logs of pairs without a failure: our own and those of the CPU lab."""
    pairs = sorted((SHARED / "samples" / "recorded").glob("b*.log")) if SHARED is not None else []
    return [FIXTURES / "head.log", FIXTURES / "worker.log", *pairs]


@needs_shared
@pytest.mark.parametrize("log", healthy(), ids=lambda log: log.name)
def test_matches_no_line_of_a_healthy_boot(log: Path) -> None:
    """Line by line and at every level."""
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines()
    rows = [(name_of(row), line) for line in lines for row in CATALOGUE for pattern in row["patterns"] if re.search(pattern, line)]
    assert [(name, line) for name, line in rows if not any(text in line for text in ROWS[name].get("unless", ()))] == []


# --- Faults in the kernel log: recorded lines of GB10 nodes, messages in the wording of the kernel and of its drivers, and healthy ones next to them.

STAMP = "2026-11-22T20:15:00+00:00 spark-1 kernel: "
NO_MEMORY = "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051) returned from _memdescAllocInternal(pMemDesc)"
#: [kind or "-", message]: faults, then messages that are none: corrected errors, other interfaces, what recovers, power management, other programs.
KERNEL = [line.split("\t", 1) for line in (FIXTURES / "kernel.tsv").read_text(encoding="utf-8").splitlines()]
KERNEL_ROWS = [(kind, line) for kind, line in KERNEL if kind != "-"]


@pytest.mark.parametrize("prefix", ["", "[ 8123.456789] ", "[76621.876006] [    T140] ", "[Fri Aug  7 03:13:00] ", "3,1234,8123456789,-;"])
def test_a_fault_is_found_with_each_stamp(prefix: str) -> None:
    expected = [(KERNEL_KINDS[kind].watch, line) if KERNEL_KINDS[kind].watch else None for kind, line in KERNEL_ROWS]
    assert [classify_kernel(prefix + line) for _kind, line in KERNEL_ROWS] == expected


def test_each_kind_is_found_in_the_journal_with_its_time() -> None:
    for name, line in KERNEL_ROWS:
        (event,) = catalogue.summarize_kernel(f"{STAMP}Linux version 6.17\n{STAMP}{line}\n", -1)
        assert (event["id"], event["boot"], event["count"], event["last"]) == (name, -1, 1, "2026-11-22T20:15:00+00:00")
        assert event["line"] == line[: catalogue.KERNEL_CLIP]
    assert {kind for kind, _line in KERNEL_ROWS} | {"link_flap", "driver_no_memory"} == set(KERNEL_KINDS)


@pytest.mark.parametrize(
    ("name", "line", "healthy", "many"), [("link_flap", "mlx5_core 0000:01:00.0 enp1s0f0np0: Link down", 4, 9), ("driver_no_memory", NO_MEMORY, 9, 10)]
)
def test_few_lines_of_a_boot_or_a_replug_are_healthy_and_more_are_not(name: str, line: str, healthy: int, many: int) -> None:
    assert catalogue.summarize_kernel(f"{STAMP}{line}\n" * healthy) == []
    (event,) = catalogue.summarize_kernel(f"{STAMP}{line}\n" * many)
    assert (event["id"], event["count"]) == (name, many)


@pytest.mark.parametrize(
    ("tail", "clean"),
    [
        ("2026-11-22T20:15:00+0000 spark-1 systemd-journald[412]: Journal stopped", True),
        ("2026-11-22T20:15:00+0000 spark-1 systemd[1]: Reached target shutdown.target - System Shutdown.", True),
        ("2026-11-22T20:15:00+0000 spark-1 systemd[1]: Reached target reboot.target - System Reboot.", True),
        ("2026-11-22T20:15:00+0000 spark-1 dockerd[900]: time=now level=info msg=ok", False),
    ],
)
def test_a_boot_without_a_shutdown_is_noticed(tail: str, clean: bool) -> None:
    assert catalogue.ended_by_shutdown(f"first\n{tail}\n") is clean


@needs_shared
@pytest.mark.parametrize("name", ["dmesg.cx7-hotplug-plugin.txt", "dmesg.mlx5-benign.txt", "dmesg.nvrm-no-memory.txt"])
def test_the_kernel_logs_of_healthy_nodes_have_no_fault(name: str) -> None:
    sample = samples() / name
    assert catalogue.summarize_kernel(sample.read_text(encoding="utf-8")) == []


@needs_shared
def test_the_recorded_lack_of_memory_of_the_driver_is_found() -> None:
    line = (samples() / "dmesg.nvrm-no-memory.txt").read_text().strip()
    assert classify_kernel(line) == ("driver_no_memory", line)


@needs_shared
def test_the_lines_of_owners_are_the_events_that_they_should_be() -> None:
    cases = json.loads((samples() / "field" / "kernel-and-replies.json").read_text())["kernel"]
    assert len(cases) == 3
    for name, case in cases.items():
        counts: Counter[str] = Counter()
        kinds = []
        for found in filter(None, map(classify_kernel, (samples() / "field" / name).read_text().splitlines())):
            counts[found[0]] += 1
            kinds += [found[0]] if kernel_due(found[0], counts[found[0]]) else []
        assert kinds == case["expected"]["kinds"], name


@pytest.mark.parametrize("line", [line for kind, line in KERNEL if kind == "-"])
def test_other_lines_are_not_faults(line: str) -> None:
    assert classify_kernel(line) is None
    assert catalogue.summarize_kernel(STAMP + line) == []


def test_a_long_line_is_cut() -> None:
    found = classify_kernel("Out of memory: Killed process 4711 (" + "x" * 5000)
    assert found is not None
    assert len(found[1]) == 600
