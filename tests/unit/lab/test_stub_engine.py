"""The stub engine of the VM lab: both ranks over the loopback, and what the collection's parser and probe read of them."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe

ENGINE = Path(__file__).resolve().parents[2] / "vm/stub/engine.py"


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


class Pair:
    """Both ranks as processes."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "control").mkdir()
        (folder / "control/seconds").write_text("0.3", encoding="ascii")
        (folder / "engine.py").write_bytes(ENGINE.read_bytes())
        self.api = free_port()
        common = ["serve", "/models/stub", "--master-addr", "127.0.0.1", "--master-port", str(free_port()), "--port", str(self.api)]
        self.ranks = [self._start(0, [*common, "--node-rank", "0"]), self._start(1, [*common, "--node-rank", "1", "--headless"])]

    def _start(self, number: int, words: list[str]) -> subprocess.Popen[bytes]:
        with (self.folder / f"{number}.log").open("wb") as log:
            return subprocess.Popen([sys.executable, "-u", str(self.folder / "engine.py"), *words], stdout=log, stderr=log, start_new_session=True)

    def log(self, number: int) -> str:
        return (self.folder / f"{number}.log").read_text(encoding="utf-8")

    def until(self, number: int, text: str) -> str:
        end = time.monotonic() + 20
        while text not in self.log(number):
            assert time.monotonic() < end, self.log(number)
            time.sleep(0.05)
        return self.log(number)


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    started = Pair(tmp_path)
    yield started
    for rank in started.ranks:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(rank.pid, signal.SIGKILL)  # with its engine process
        rank.wait()


def test_head_serves_the_known_answer(pair: Pair) -> None:
    facts = parse(pair.until(0, "Application startup complete"))
    assert (facts["state"], facts["version"], facts["context"], facts["kv_cache"]["tokens"]) == ("ready", "0.32.0", 512, 262144)
    found = api_probe.ask(f"http://127.0.0.1:{pair.api}", requests=[{"prompt": "The capital of France is", "max_tokens": 16}], timeout=10.0)
    assert (found["error"], found["version"], found["models"]) == ("", "0.32.0", [{"id": "stub", "max_model_len": 512}])
    assert [reply["text"] for reply in found["replies"]] == [" Paris."]
    assert found["metrics"][0]["kv_cache_size_tokens"] == "262144"
    worker = parse(pair.until(1, "Available KV cache memory"))
    assert (worker["state"], worker["stage"], worker["failure"], worker["context"]) == ("starting", "kv", None, 512)


@pytest.mark.parametrize(("lost", "left"), [(1, 0), (0, 1)])
def test_rank_ends_with_its_peer(pair: Pair, lost: int, left: int) -> None:
    pair.until(0, "Application startup complete")
    pair.ranks[lost].kill()
    assert pair.ranks[left].wait(timeout=10) == 1
    assert parse(pair.until(left, " lost: "))["failure"]["class"] == "peer_lost"
