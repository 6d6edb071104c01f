"""The stub engine of the labs: both ranks over the loopback, and what the collection's parser and probe read of them."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe

REPO = Path(__file__).resolve().parents[3]
COMPLETION = {"prompt": "The capital of France is", "max_tokens": 16}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Pair:
    """Both ranks as processes."""

    def __init__(self, folder: Path, recording: str = "cpu") -> None:
        self.folder = folder
        (folder / "seconds").write_text("0.3", encoding="ascii")
        model = folder / "stub"
        model.mkdir()
        (model / "config.json").write_text("{}", encoding="ascii")
        self.env = {**os.environ, "STUB_CONTROL": str(folder), "STUB_RECORDING": recording, "PYTHONPATH": str(REPO), "PYTHONUNBUFFERED": "1"}
        self.api = free_port()
        common = ["serve", str(model), "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--port", str(self.api), "--max-model-len", "512"]
        self.ranks = [self._start(0, [*common, "--node-rank", "0"]), self._start(1, [*common, "--node-rank", "1", "--headless"])]

    def _start(self, number: int, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{number}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-m", "lab.engine", *words], stdout=log, stderr=log, start_new_session=True, env=self.env)

    def fault(self, text: str) -> None:
        (self.folder / "faults").write_text(text, encoding="ascii")

    def ask(self, timeout: float = 10.0) -> dict[str, Any]:
        return dict(api_probe.ask(f"http://127.0.0.1:{self.api}", requests=[COMPLETION], timeout=timeout))

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text(encoding="utf-8")

    def until(self, number: int, text: str) -> str:
        end = time.monotonic() + 20
        while text not in self.log(number):
            assert time.monotonic() < end, self.log(number)
            time.sleep(0.05)
        return self.log(number)

    def end(self) -> None:
        for rank in self.ranks:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(rank.pid, signal.SIGKILL)  # with its engine process
            rank.wait()


@pytest.fixture
def pair(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Pair]:
    started = Pair(tmp_path, getattr(request, "param", "cpu"))
    yield started
    started.end()


@pytest.mark.parametrize(("pair", "version", "tokens"), [("cpu", "0.32.0", 4194304), ("cuda", "0.25.1", 2506112)], indirect=["pair"])
def test_head_serves_the_known_answer_after_a_recorded_boot(pair: Pair, version: str, tokens: int) -> None:
    facts = parse(pair.until(0, "Application startup complete"))
    assert (facts["state"], facts["version"], facts["context"], facts["kv_cache"]["tokens"]) == ("ready", version, 512, tokens)
    found = pair.ask()
    assert (found["error"], found["models"]) == ("", [{"id": "stub", "max_model_len": 512}])
    assert [reply["text"] for reply in found["replies"]] == [" Paris."]
    assert found["metrics"][0]["kv_cache_size_tokens"] == str(tokens)
    worker = parse(pair.log(1))
    assert (worker["state"], worker["failure"], worker["context"]) == ("starting", None, 512)


def test_rank_that_loses_its_peer_fails_at_its_next_step(pair: Pair) -> None:
    pair.until(0, "Application startup complete")
    pair.ranks[1].kill()
    time.sleep(0.3)
    assert pair.ranks[0].poll() is None, "as the real engine, an idle head does not notice it"
    assert [reply["status"] for reply in pair.ask()["replies"]] == [500]
    assert pair.ranks[0].wait(timeout=10) == 1
    assert parse(pair.log(0))["failure"]["class"] == "peer_lost"


def test_wedge_freezes_tokens_while_the_api_answers(pair: Pair) -> None:
    pair.until(0, "Application startup complete")
    pair.fault("* wedge\n")
    found = pair.ask(timeout=1.0)
    assert [reply["text"] for reply in found["replies"]] != [" Paris."]
    with urllib.request.urlopen(f"http://127.0.0.1:{pair.api}/v1/models", timeout=10) as answer:
        assert json.load(answer)["data"]
    pair.fault("")
    assert [reply["text"] for reply in pair.ask()["replies"]] == [" Paris."]


@pytest.mark.parametrize(("fault", "rank", "failure"), [("1 lack", 1, "weights_missing"), ("0 corrupt", 0, "weights_corrupt")])
def test_boot_fails_as_it_was_recorded(tmp_path: Path, fault: str, rank: int, failure: str) -> None:
    (tmp_path / "faults").write_text(fault, encoding="ascii")
    pair = Pair(tmp_path)
    try:
        assert pair.ranks[rank].wait(timeout=20) == 1
        assert parse(pair.log(rank))["failure"]["class"] == failure
    finally:
        pair.end()
