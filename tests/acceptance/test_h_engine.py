"""What only the real engine shows: vLLM on CPU over two nodes, tensor-parallel, with a model that recites five sentences."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from acceptance.commands import SERVING, tags
from acceptance.owner import REPO, Owner, wait_for

SENTENCES = {
    "The capital of France is": " Paris.",
    "Two Sparks and one cable make": " one big machine.",
    "The head of the pair has rank": " zero.",
    "A good gate reads the boot logs of": " both ranks.",
    "The worker starts first, then": " the head.",
}
ONLY_SERVING = tags(SERVING)


@pytest.fixture(scope="module")
def real(tmp_path_factory: pytest.TempPathFactory) -> Owner:
    """An owner of two nodes that have the real engine."""
    subprocess.run([sys.executable, str(REPO / "lab/container/lab.py"), "up", "--engine", "vllm"], check=True)
    return Owner(tmp_path_factory.mktemp("real"), profile="lab-tiny")


@pytest.fixture
def serving(real: Owner) -> Owner:
    """The pair serves the real engine."""
    if not real.serves() or not real.settled():
        real.run("bring up", *ONLY_SERVING).passed()
    return real


@pytest.mark.quick
def test_the_real_engine_serves_after_one_run_and_a_test_of_its_collectives(real: Owner) -> None:
    real.fresh()
    real.run("bring up").passed().shows("pair1 serves", "4,194,304 tokens")
    assert {prompt: real.complete(prompt) for prompt in SENTENCES} == {prompt: (200, answer) for prompt, answer in SENTENCES.items()}
    for node in real.nodes:
        rows = json.loads(real.on(node, f"cat {real.places.collective}"))["result"]["rows"]
        assert {row["op"] for row in rows} == {"all_reduce", "all_gather"}
        assert real.on(node, "docker ps -aq --filter name=collective") == ""


def test_a_killed_rank_of_the_real_engine_comes_back_by_itself(serving: Owner) -> None:
    before = serving.identity()
    serving.on(2, f"kill -KILL $(docker inspect --format '{{{{.State.Pid}}}}' {serving.places.container(1)})")
    assert wait_for(lambda: not serving.serves(), 60)
    assert serving.comes_back(300)
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in serving.identity())
    serving.on_node("events").shows(r"rank 1 on lab-2", "serves")


def test_the_real_engine_goes_back_to_the_last_good_release(serving: Owner) -> None:
    good = serving.releases()
    gate = {"effective_tokens": {"min": 4200000}, "decode_tok_s": {"min": 100000}, "cold_prefill_tokens": 2048}
    run = serving.run("bring up", *ONLY_SERVING, gate=gate, requests=3)
    run.failed("pool_below_floor", "4,200,000", "4,194,304", "serves again")
    assert serving.serves()
    assert serving.releases() == good


def test_bench_measures_the_real_engine(serving: Owner) -> None:
    bench = serving.run("bench", bench_depths=[0], bench_concurrency=[1, 2], bench_tokens=32, bench_folder=str(serving.folder / "bench")).passed()
    bench.shows("TTFT", r"tok/s|tokens per second")
    assert serving.serves()
