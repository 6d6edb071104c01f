"""What a rank observes of itself: a folder for the kernel's files, a Docker Engine on a socket, and a clock that the test moves."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import sampler
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings
from ansible_collections.gb10.cluster.plugins.module_utils._pair.sampler import Sampler
from unit.fixtures.docker.engine import FakeEngine, serving
from unit.fixtures.host.tree import Tree

NAME = "gb10-pair1-rank1"
RELEASE = "0123456789ab"
ADDRESSES = json.dumps([{"ifname": "enp1s0f0np0", "addr_info": [{"local": "192.168.200.12"}]}, {"ifname": "lo"}])


class Rank(Tree):
    """A rank whose container runs, with 100 GiB of available memory."""

    def __init__(self, folder: Path, engine: FakeEngine) -> None:
        super().__init__(folder / "root")
        self.engine, self.now, self.commands = engine, 100.0, list[str]()
        self.reports: list[str] = []
        self.addresses = ADDRESSES
        self.memory(100.0)
        self.put("/proc/sys/vm/drop_caches", "")
        self.put("/sys/class/net/enp1s0f0np0/carrier", "1\n")
        self.put("/sys/class/net/enp1s0f0np0/mtu", "9000\n")
        self.process(4, 1, "S", "vllm", "vllm serve")
        self.process(5, 4, "S", "VLLM::Worker", "VLLM::Worker_TP1")
        group = folder / "pair1"
        (group / "releases" / RELEASE).mkdir(parents=True)
        (group / "releases" / RELEASE / "release.json").write_text(json.dumps({"fabric": {"addresses": ["192.168.200.12/24"]}}))
        self.container()
        self.sampler = Sampler(
            "pair1", str(group), merged_settings({}), self.run, docker_socket=str(folder / "docker.sock"), root=str(self.root), clock=lambda: self.now
        )
        self.sampler.report = self.reports.append
        self.sampler.wait(RELEASE, -1, 0.0)

    def memory(self, available: float) -> None:
        self.put("/proc/meminfo", f"MemTotal: {121 << 20} kB\nMemFree: {int(available * 2**20)} kB\nMemAvailable: {int(available * 2**20)} kB\n")

    def process(self, pid: int, parent: int, state: str, comm: str, command: str) -> None:
        self.put(f"/proc/{pid}/stat", f"{pid} ({comm}) {state} {parent} 1 1 0 -1 0 9 0 0 0 30 70 0 0")
        self.put(f"/proc/{pid}/cmdline", command.replace(" ", "\0"))

    def container(self, number: str = "1", **state: Any) -> None:
        labels = {"gb10.cluster.group": "pair1", "gb10.cluster.release": RELEASE}
        running = {"Status": "running", "Running": True, "Pid": 4, "StartedAt": "2026-11-23T10:00:00Z", "ExitCode": 0, **state}
        self.engine.containers.clear()
        self.engine.containers[number] = {
            "Id": number, "Name": f"/{NAME}", "State": running, "Image": "sha256:1", "Config": {"Image": "vllm", "Labels": labels},
        }  # fmt: skip

    def run(self, argv: Any, timeout: float = 60.0, cwd: str | None = None, env: Any = None) -> tuple[int, str, str]:
        self.commands.append(" ".join(argv))
        if argv[:2] == ["docker", "kill"]:
            self.container(Status="exited", Running=False, ExitCode=137)
        return (0, self.addresses, "") if argv[0] == "ip" else (0, "", "")

    def take(self, seconds: float = 2.0) -> dict[str, Any]:
        self.now += seconds
        self.sampler.take()
        return self.sampler.wait("", -1, 0.0)


@pytest.fixture
def rank(tmp_path: Path) -> Iterator[Rank]:
    with serving(tmp_path / "docker.sock") as engine:
        yield Rank(tmp_path, engine)


def test_reads_containers_processes_memory_and_rails(rank: Rank) -> None:
    found = rank.take()
    assert [(each["name"], each["running"]) for each in found["containers"]] == [(NAME, True)]
    assert (found["engine_error"], found["fault"], found["cpu_seconds"]) == ("", "", 2.0)
    assert found["memory"]["available_kib"] == 100 << 20
    assert found["rails"] == [{"address": "192.168.200.12", "interface": "enp1s0f0np0", "up": True, "mtu": 9000}]


def test_a_change_is_news_and_another_figure_is_not(rank: Rank) -> None:
    first = rank.take()["n"]
    rank.memory(90.0)
    assert rank.take()["n"] == first
    rank.put("/sys/class/net/enp1s0f0np0/carrier", "0\n")
    assert rank.take()["n"] == first + 1
    rank.container(Status="exited", Running=False, ExitCode=137)
    assert rank.take()["n"] == first + 2


def test_a_wait_ends_with_news(rank: Rank) -> None:
    known = rank.take()["n"]

    def end() -> None:
        rank.container(Status="exited", Running=False)
        rank.take()

    threading.Timer(0.3, end).start()
    begin = time.monotonic()
    found = rank.sampler.wait(RELEASE, known, 20.0)
    assert time.monotonic() - begin < 10
    assert found["n"] == known + 1


def test_a_stopped_process_is_timed(rank: Rank) -> None:
    rank.take()
    rank.process(5, 4, "T", "VLLM::Worker", "VLLM::Worker_TP1")
    assert rank.take()["fault_seconds"] == 0.0
    found = rank.take(12.0)
    assert (found["fault"], found["fault_seconds"]) == ("the engine process is stopped (PID 5, VLLM::Worker_TP1)", 12.0)
    rank.process(5, 4, "S", "VLLM::Worker", "VLLM::Worker_TP1")
    assert rank.take()["fault"] == ""


def test_an_address_that_is_missing_is_a_rail_without_an_interface(rank: Rank) -> None:
    rank.addresses = "[]"
    assert rank.take()["rails"][0]["interface"] == ""
    rank.addresses = "not JSON"
    assert rank.take()["rails"][0]["up"] is False


def test_low_memory_drops_the_page_cache_and_less_stops_the_rank(rank: Rank) -> None:
    rank.memory(3.0)
    rank.take()
    assert rank.get("/proc/sys/vm/drop_caches") == "3\n"
    assert not any("kill" in command for command in rank.commands)
    rank.memory(1.0)
    rank.take()
    found = rank.take()
    assert f"docker kill {NAME}" in rank.commands
    assert rank.take()["memory_stop"].startswith("1.0 GiB of memory were available, less than 1.5 GiB")
    assert found["memory_stop"]
    assert len(rank.reports) >= 2
    rank.memory(100.0)
    rank.container("2")
    assert rank.take()["memory_stop"] == ""


def test_the_lack_of_memory_is_news_before_the_rank_ends(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[dict[str, Any]] = []

    def kill(words: list[str], *_more: Any) -> tuple[int, str, str]:
        if words[0] == "docker":
            seen.append(rank.sampler.wait("", -1, 0.0))
        return 0, "[]", ""

    monkeypatch.setattr(rank.sampler, "_run", kill)
    rank.take()
    rank.memory(1.0)
    rank.take()
    rank.take()
    assert [(each["containers"][0]["running"], bool(each["memory_stop"])) for each in seen] == [(True, True)]


def test_memory_that_comes_back_stops_nothing(rank: Rank) -> None:
    rank.memory(1.0)
    rank.take()
    rank.memory(20.0)
    rank.take()
    rank.memory(1.0)
    rank.take()
    assert not any("kill" in command for command in rank.commands)


@pytest.mark.parametrize("begin", [0.0, 0.5, 1.0, 1.5])
def test_memory_that_falls_as_fast_as_on_a_recorded_node_stops_the_rank_before_it_freezes(rank: Rank, begin: float) -> None:
    """7.5 GiB in 3 s, from 9.9 to 2.4 GiB. The readings begin at any time before."""
    end, pause, stopped = 100.0, 2.0, 0.0
    rank.memory(9.9)
    rank.sampler.take()
    rank.now += pause
    while rank.now < end + 10 and not stopped:
        level = max(2.4, 9.9 - 2.5 * max(0.0, rank.now - (end + 2.0 + begin)))
        rank.memory(level)
        pause = rank.sampler.take()
        stopped = level if any("kill" in command for command in rank.commands) else 0.0
        rank.now += pause
    assert stopped > 2.4
    assert "less than 1.5 GiB within 2 s" in rank.take()["memory_stop"]


@pytest.mark.parametrize(
    "levels",
    [
        [100.0, 90.0, 80.0, 70.0, 60.0, 50.0, 40.0, 30.0, 20.0, 12.0, 9.0, 8.0, 8.0],  # weights at 5 GiB/s
        [60.0, 8.5, 8.5, 8.5],  # the KV cache
        [60.0, 7.5, 7.5, 7.5],
        [60.0, 30.0, 9.0, 8.2, 8.2],  # the KV cache in several steps
        [9.0, 8.8, 8.7, 8.6, 8.5, 8.4],  # it serves
        [8.0, 7.0, 6.0, 5.0, 4.5, 4.4],  # 0.5 GiB/s, above the first limit
    ],
)
def test_memory_that_falls_as_in_a_healthy_boot_stops_nothing(rank: Rank, levels: list[float]) -> None:
    for level in levels:
        rank.memory(level)
        for _quick in range(4):
            rank.now += 0.5
            rank.sampler.take()
    assert not any("kill" in command for command in rank.commands)


def test_the_level_alone_decides_without_seconds_ahead(rank: Rank) -> None:
    rank.sampler.settings = merged_settings({"memory_fall_seconds": 0})
    for level in (9.9, 7.4, 4.9, 2.4, 2.4):
        rank.memory(level)
        rank.take(1.0)
    assert not any("kill" in command for command in rank.commands)


def test_an_engine_that_does_not_answer_is_reported_and_reading_goes_on(rank: Rank, tmp_path: Path) -> None:
    (tmp_path / "docker.sock").unlink()
    found = rank.take()
    assert "Docker Engine" in found["engine_error"]
    assert found["rails"][0]["up"] is True


def test_the_thread_survives_an_error_and_ends(rank: Rank, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "INTERVAL", 0.01)
    (rank.root / "proc/meminfo").unlink()
    (rank.root / "proc/meminfo").mkdir()
    thread = threading.Thread(target=rank.sampler.run, daemon=True)
    thread.start()
    time.sleep(0.2)
    assert thread.is_alive()
    rank.sampler.close()
    thread.join(5)
    assert not thread.is_alive()
