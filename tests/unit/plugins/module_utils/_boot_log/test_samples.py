"""Every fact that was read by hand in the shared boot logs: public logs, recordings of the CPU lab, recordings of two GPUs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from shared_samples import SHARED, compared, needs_shared, samples

#: The number of logs in scope per folder.
FOLDERS = {"bootlogs": 27, "bootlogs2": 39, "recorded": 48, "gpu": 10}
#: Expectations that issue 13 replaces.
CORRECTED: dict[str, dict[str, Any]] = {
    "recorded/k1-head-after-worker-sigkill-idle.log": {
        # The peer is lost, the engine core ends with a fatal error, and a request gets HTTP 500: issue 13, section 3, wants served_then_failed.
        "state": ["served_then_failed"],
        "class": ["peer_lost"],
    }
}


def cases() -> list[Any]:
    """List (path, expectation) of every shared log in scope."""
    out: list[Any] = []
    if SHARED is None:
        return out
    samples = SHARED / "samples"
    outside = set((samples / "bootlogs" / "OUT-OF-SCOPE.txt").read_text().split())
    for folder in FOLDERS:
        expected = json.loads((samples / folder / "expected.json").read_text())
        for name, want in sorted(expected.items()):
            path = f"{folder}/{name}"
            if name not in outside:
                out.append(pytest.param(path, {**want, **CORRECTED.get(path, {})}, id=path))
    return out


@needs_shared
def test_finds_every_log_in_scope() -> None:
    """An empty table passes without a check."""
    assert len(cases()) == sum(FOLDERS.values())


@needs_shared
@pytest.mark.parametrize(("path", "want"), cases())
def test_reads_every_expected_fact(path: str, want: dict[str, Any]) -> None:
    """A list names the permitted values."""
    assert SHARED is not None
    got = compared(parse((SHARED / "samples" / path).read_bytes()))
    wrong = {key: (got[key], value) for key, value in want.items() if got[key] not in (value if isinstance(value, list) else [value])}
    assert wrong == {}


#: Logs that tests/gpu has recorded, with the facts of its rows.
GPU = Path(__file__).resolve().parents[4] / "unit/fixtures/vllm_log/gpu"
RECORDED = json.loads((GPU / "expected.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("name", RECORDED)
def test_reads_every_fact_of_our_own_recordings_of_a_gpu(name: str) -> None:
    got = compared(parse((GPU / name).read_bytes()))
    assert {key: got[key] for key, values in RECORDED[name].items() if got[key] not in (values if isinstance(values, list) else [values])} == {}


@needs_shared
def test_lines_of_nccl_that_are_not_cut_are_read_and_are_no_failure() -> None:
    """With NCCL_DEBUG_FILE the engine's log has all of them. Without it, only the first 4,074 bytes came out."""
    assert SHARED is not None
    folder = SHARED / "samples/gpu2"
    whole = (folder / "coll-file-0.txt").read_text(encoding="utf-8").replace("lab-1:1:", "lab-1:326:")
    nccl = "".join(line for line in whole.splitlines(keepends=True) if " NCCL INFO " in line)
    log = (folder / "01-cold-served.rank0.log").read_text(encoding="utf-8").splitlines(keepends=True)
    at = next(number for number, line in enumerate(log) if " NCCL INFO " in line)
    rest = [line for line in log if " NCCL INFO " not in line]
    got, before = parse("".join(rest[:at]) + nccl + "".join(rest[at:])), parse("".join(log))
    assert got["nccl"]["transport"] == "tcp"
    assert got["failure"] is None
    assert compared(got) == compared(before)


# --- The logs of owners in ../shared/samples/field: their class, and what the remedy must name.

#: The number of logs; an empty table passes without a check.
LOGS = 7


def field_cases() -> list[Any]:
    """List (name, expected state and class, expressions that the remedy must match) of every log."""
    if SHARED is None:
        return []
    expected = json.loads((samples() / "field" / "expected.json").read_text())
    remedies = json.loads((samples() / "field" / "remedies.json").read_text())
    return [pytest.param(name, want, remedies[name]["remedy"], id=name) for name, want in sorted(expected.items())]


@needs_shared
def test_finds_every_log() -> None:
    assert len(field_cases()) == LOGS == len(list((samples() / "field").glob("L*.log")))


@needs_shared
@pytest.mark.parametrize(("name", "want", "remedy"), field_cases())
def test_names_the_class_and_the_remedy_of_a_log_of_the_field(name: str, want: dict[str, list[str]], remedy: list[str]) -> None:
    facts = parse((samples() / "field" / name).read_bytes())
    failure = facts["failure"]
    assert facts["state"] in want["state"]
    assert failure["class"] in want["class"]
    assert [text for text in remedy if not re.search(text, failure["remedy"])] == [], failure["remedy"]
