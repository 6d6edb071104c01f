"""collective_test through its own main(): the memory first, one container that is always removed, and the result that is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial
from ansible_collections.gb10.cluster.plugins.modules import collective_test
from module_run import run_module

GOOD = {"backend": "gloo", "stage": "end", "rows": [{"op": "all_reduce", "mib": 16, "gb_s": 0.5}], "problem": "", "text": ""}
NAME = "gb10-pair1-rank0-collective"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the module; `answer` is what docker compose returns or raises."""
    calls: list[tuple[list[str], str | None]] = []

    def module(answer: Any = None, available_kib: int = 8 << 20, **more: Any) -> tuple[dict[str, Any], list[tuple[list[str], str | None]]]:
        def command(argv: list[str], _timeout: float, **options: Any) -> tuple[int, str, str]:
            calls.append((argv, options.get("stdin")))
            if argv[1] == "compose" and isinstance(answer, BaseException):
                raise answer
            return answer or (0, f"\n{trial.MARK}{json.dumps(GOOD)}\n", "") if argv[1] == "compose" else (0, "", "")

        meminfo = tmp_path / "meminfo"
        meminfo.write_text(f"MemTotal: 9 kB\nMemAvailable: {available_kib} kB\n", encoding="ascii")
        monkeypatch.setattr(collective_test, "MEMINFO", str(meminfo))
        monkeypatch.setattr(collective_test, "run_command", command)
        service = {"image": "i", "environment": {"NCCL_DEBUG": "INFO"}}
        given = {"service": service, "env": {"NCCL_IB_HCA": "rocep1s0f0"}, "container": NAME, "group": "pair1", "directory": str(tmp_path), "key": "k1", **more}
        return run_module(capsys, collective_test, **given), calls

    return module


def kept(tmp_path: Path) -> Any:
    path = tmp_path / "pair1" / "collective.json"
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None


def test_a_stale_container_is_removed_first_and_the_own_one_after(run: Any, tmp_path: Path) -> None:
    out, calls = run()
    assert [argv[1] for argv, _stdin in calls] == ["rm", "compose", "rm"]
    assert calls[0][0][-1] == calls[2][0][-1] == NAME
    file = json.loads(calls[1][1])
    assert file["services"]["test"]["environment"] == {"NCCL_DEBUG": "INFO", "NCCL_IB_HCA": "rocep1s0f0"}
    assert "--rm" in calls[1][0]
    assert (out["changed"], out["result"]["rows"]) == (False, GOOD["rows"])
    found = kept(tmp_path)
    assert (found["key"], found["result"]["backend"]) == ("k1", "gloo")
    assert (tmp_path / "pair1" / "collective.json").stat().st_mode & 0o777 == 0o640


def test_without_memory_no_container_starts(run: Any, tmp_path: Path) -> None:
    out, calls = run(available_kib=1 << 20)
    assert (out["result"]["problem"], out["result"]["text"]) == ("memory_short", "1.0 GiB are available, and 4 GiB are expected")
    assert not calls
    assert kept(tmp_path) is None


def test_check_mode_tests_nothing(run: Any, tmp_path: Path) -> None:
    out, calls = run(_ansible_check_mode=True)
    assert "result" not in out
    assert (out["changed"], calls, kept(tmp_path)) == (False, [], None)


def test_a_container_that_does_not_start_reports_the_reason_of_docker(run: Any, tmp_path: Path) -> None:
    out, calls = run((1, "", "some progress\nError response from daemon: no such device\n"))
    assert (out["result"]["problem"], out["result"]["text"]) == ("no_result", "Error response from daemon: no such device")
    assert calls[-1][0][1] == "rm"
    assert kept(tmp_path) is None


def test_the_container_is_removed_after_an_error(run: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(KeyboardInterrupt())
    # The fixture's list is the calls of this test.
    calls = run()[1]
    assert [argv[1] for argv, _stdin in calls[:3]] == ["rm", "compose", "rm"]


def test_a_result_below_the_bound_is_not_kept(run: Any, tmp_path: Path) -> None:
    run(minimum=1.0)
    assert kept(tmp_path) is None
