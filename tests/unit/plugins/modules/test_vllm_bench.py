"""vllm_bench through its own main(), against a server that answers as vLLM does and a docker that runs nothing."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench
from ansible_collections.gb10.cluster.plugins.modules import vllm_bench
from module_run import run_module

KEY = "sk-a-secret-key"
RESULT = {
    "completed": 2, "total_input_tokens": 32, "total_output_tokens": 32, "duration": 1.0, "output_throughput": 32.0, "median_ttft_ms": 10.0,
    "median_tpot_ms": 5.0, "median_itl_ms": 5.0,
}  # fmt: skip


class Handler(http_server.Handler):
    """Answers as a server of lab-tiny that wants a key."""

    def get(self) -> None:
        if self.path.startswith("/v1") and self.headers.get("Authorization") != f"Bearer {KEY}":
            self.send_error(401)
            return
        pages = {"/v1/models": json.dumps({"data": [{"id": "lab-tiny", "max_model_len": 4096}]}), "/metrics": "vllm:num_preemptions_total 0\n"}
        self.answer(200, pages.get(self.path, "{}"))


@pytest.fixture
def url() -> Iterator[str]:
    with http_server.answering(Handler) as (_kind, found):
        yield found


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """Return a function that runs the module; `answers` are what docker exec returns, the last one again and again."""
    meminfo, key = tmp_path / "meminfo", tmp_path / "api_key"
    key.write_text(f"VLLM_API_KEY={KEY}\n", encoding="utf-8")

    def module(*answers: tuple[int, str, str], available: float = 8, lose: float = 0, **more: Any) -> tuple[dict[str, Any], list[list[str]]]:
        calls: list[list[str]] = []

        def write(gib: float) -> None:
            meminfo.write_text(f"MemTotal: 9 kB\nMemFree: {int(gib * 2**19)} kB\nMemAvailable: {int(gib * 2**20)} kB\n", encoding="ascii")

        def command(argv: list[str], _timeout: float) -> tuple[int, str, str]:
            calls.append(argv)
            write(available - lose * len(calls))
            return answers[min(len(calls), len(answers)) - 1] if answers else (0, json.dumps(RESULT), "")

        write(available)
        monkeypatch.setattr(vllm_bench, "MEMINFO", str(meminfo))
        monkeypatch.setattr(vllm_bench, "run_command", command)
        given = {"levels": bench.levels_of([0, 64], [1], 16), "container": "gb10-pair1-rank0", "env_file": [str(key)], **more}
        return run_module(capsys, vllm_bench, **given), calls

    return module


def test_each_level_is_measured_in_the_container_of_the_head_and_the_key_is_nowhere(run: Any, url: str) -> None:
    out, calls = run(url=url)
    assert [(row["depth"], row["completed"], row["tok_s"]) for row in out["rows"]] == [(0, 2, 32.0), (64, 2, 32.0)]
    assert [argv[:3] for argv in calls] == [["docker", "exec", "gb10-pair1-rank0"]] * 2
    assert len({argv[argv.index("--seed") + 1] for argv in calls}) == 2, "each level has its own prompts"
    assert (out["changed"], out["low"]) == (False, "")
    assert out["memory"] == {"lowest_available_kib": 8 << 20, "lowest_free_kib": 4 << 20, "after_kib": 8 << 20}
    assert KEY not in json.dumps([out, calls])


def test_no_level_starts_below_the_memory_floor(run: Any, url: str) -> None:
    out, calls = run(url=url, lose=2.5, memory_floor_gib=6.0)
    assert len(calls) == len(out["rows"]) == 1
    assert out["low"] == "5.5 GiB of memory are available, and bench_memory_floor is 6 GiB"
    assert "failed" not in out


def test_a_failed_level_keeps_the_figures_before_it_and_shows_no_key(run: Any, url: str) -> None:
    out, _calls = run((0, json.dumps(RESULT), ""), (1, "", f"ValueError: Unauthorized for {KEY}\n"), url=url)
    assert out["failed"]
    assert out["msg"].startswith("vllm bench serve in gb10-pair1-rank0: ValueError: Unauthorized for ")
    assert KEY not in json.dumps(out)
    assert [row["depth"] for row in out["rows"]] == [0]


def test_a_level_above_the_context_is_not_sent(run: Any, url: str) -> None:
    out, calls = run(url=url, levels=bench.levels_of([5000], [1], 16))
    assert out["msg"].endswith("has up to 5,016 tokens, and the context is 4,096. Use a lower value in bench_depths.")
    assert not calls


def test_a_group_that_does_not_serve_is_reported(run: Any) -> None:
    out, calls = run(url="http://127.0.0.1:1")
    assert out["msg"].startswith("The model is not served: http://127.0.0.1:1/v1/models does not answer")
    assert out["msg"].endswith("See playbooks/status.yml for the reason, and start it with site.yml.")
    assert not calls


def test_a_rank_without_an_api_only_samples_its_memory(run: Any) -> None:
    out, calls = run(container="", seconds=0)
    assert (out["rows"], calls) == ([], [])
    assert out["memory"]["after_kib"] == 8 << 20


def test_check_mode_measures_nothing(run: Any, url: str) -> None:
    out, calls = run(url=url, _ansible_check_mode=True)
    assert "rows" not in out
    assert not calls


def test_a_soak_repeats_the_levels_until_the_memory_is_low(run: Any, url: str) -> None:
    out, calls = run(url=url, seconds=3600, lose=0.5, memory_floor_gib=6.0)
    assert len(calls) == len(out["rows"]) == 5
    assert out["memory"]["lowest_available_kib"] == 5.5 * 2**20
