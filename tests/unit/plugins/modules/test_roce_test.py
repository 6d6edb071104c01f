"""roce_test through its own main(): servers, clients, the receipt, each sentence with which it fails, and the container of the collectives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import trial
from ansible_collections.gb10.cluster.plugins.modules import roce_test
from module_run import run_module
from unit.fixtures.host.tree import Tree
from unit.fixtures.roce.node import FakeNode, maker
from unit.fixtures.roce.tree import ADDRESSES, RAIL0, v4_gids

CLIENT = {"mode": "client", "addresses": ADDRESSES, "server": ["192.168.100.11/24", "192.168.101.11"]}
ADDRESSES_OF_PEER = ["192.168.100.11", "192.168.101.11"]
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


def row(rate: float) -> str:
    return f"{HEADER} 65536      5000             {rate + 1:.2f}              {rate:.2f}              0.176\n"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(roce_test, "BANDWIDTH_RECEIPT", tmp_path / "state" / "bandwidth.json")
    return maker(roce_test, tmp_path, monkeypatch, capsys)


def receipt(tmp_path: Path) -> Any:
    place = tmp_path / "state" / "bandwidth.json"
    return json.loads(place.read_text()) if place.exists() else None


def results(node: FakeNode, *outputs: tuple[str, int]) -> list[str]:
    """Let the clients print these (output, rc); return their command lines as they come."""
    lines: list[str] = []

    def run(argv: list[str], _seconds: float) -> tuple[int, str, str]:
        lines.append(" ".join(argv))
        output, rc = outputs[ADDRESSES_OF_PEER.index(argv[-1])]
        return rc, output, ""

    node.monkeypatch.setattr(roce_test, "run_command", run)
    return lines


# --- server ----------------------------------------------------------------------------------------------------------------------


def test_the_server_listens_once_per_rail_and_client_for_seconds_or_iterations(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    monkeypatch.setattr(roce_test, "listening", lambda ports, _text: ports)
    result = node.call(mode="server", addresses=ADDRESSES, clients=2, seconds=3)
    assert (result["changed"], result.get("failed")) == (False, None)
    started = node.ran("systemd-run")
    ports = [re.findall(r"--unit=gb10-roce-bandwidth-(\d+)", line) for line in started]
    assert ports == [["18600"], ["18601"], ["18602"], ["18603"]]
    assert "-d roceP2p1s0f0 -x 3 -p 18601 -s 65536 -D 3 -F --report_gbits" in started[1]
    assert "--property=RuntimeMaxSec=106" in started[0]
    assert node.commands[0] == "systemctl stop gb10-roce-bandwidth-*"
    node.call(mode="server", addresses=ADDRESSES, iterations=5)
    assert [("-n 5 -F" in line, " -D " in line) for line in node.ran("systemd-run")[4:]] == [(True, False)] * 2


def test_ports_that_listen_are_read_from_ss() -> None:
    text = "LISTEN 0      10           0.0.0.0:18600      0.0.0.0:*   \nLISTEN 0      128             [::]:18602         [::]:*   \n"
    assert roce_test.listening({18600, 18601, 18602}, text) == {18600, 18602}


def test_a_server_that_cannot_be_started(make: Any) -> None:
    node = make()
    node.answers.append(("systemd-run", (1, "", "Failed to start transient service unit: Unit exists.\n")))
    result = node.call(mode="server", addresses=ADDRESSES)
    assert result["msg"].startswith("The bandwidth server on port 18600 could not be started: Failed to start transient service unit: Unit exists. Look at")


@pytest.mark.parametrize(("journal", "reason"), [("Couldn't get device attributes\n", "Couldn't get device attributes"), ("", "no output")])
def test_a_server_that_does_not_listen(make: Any, monkeypatch: pytest.MonkeyPatch, journal: str, reason: str) -> None:
    node = make()
    monkeypatch.setattr(roce_test, "listening", lambda ports, _text: ports - {18601})
    node.answers.append(("journalctl", (0, journal, "")))
    result = node.call(mode="server", addresses=ADDRESSES)
    assert result["msg"] == f"ib_write_bw does not listen on port(s) 18601 after 30 s: {reason}. See what holds them (ss -ltnp), or set roce_bandwidth_port."
    assert node.ran("journalctl .* -u gb10-roce-bandwidth-18601")


# --- client ----------------------------------------------------------------------------------------------------------------------


def test_a_healthy_fabric_leaves_a_receipt(make: Any, tmp_path: Path) -> None:
    node = make()
    lines = results(node, (row(95.1), 0), (row(96.2), 0))
    result = node.call(**CLIENT, client=1)
    assert (result["changed"], result["bandwidth_class"], result["remedy"]) == (False, "healthy", "")
    assert [(r["hca"], r["gbps"], r["reason"]) for r in result["rails"]] == [("rocep1s0f0", 95.1, None), ("roceP2p1s0f0", 96.2, None)]
    assert "/bin/ib_write_bw -d rocep1s0f0 -x 3 -p 18602 -s 65536 -D 4 -F --report_gbits 192.168.100.11" in lines
    assert any("-p 18603" in line for line in lines)
    kept = receipt(tmp_path)
    assert kept["key"] == sorted([["rocep1s0f0", "192.168.100.10"], ["roceP2p1s0f0", "192.168.101.10"]])
    assert kept["class"] == "healthy"
    assert kept["when"].endswith("Z")


FAULTS: dict[str, tuple[list[tuple[str, int]], str, str]] = {
    "13 Gb/s": ([(row(13.1), 0), (row(12.9), 0)], "hotplug_13g", "Reboot both machines"),
    "time over": ([("", 124), ("", 124)], "tcp_only", "rocep1s0f0 to 192.168.100.11/24: it did not end in time"),
}


@pytest.mark.parametrize(("outputs", "name", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_and_takes_the_receipt_away(make: Any, tmp_path: Path, outputs: list[tuple[str, int]], name: str, words: str) -> None:
    Tree(tmp_path).put("state/bandwidth.json", "{}")
    node = make()
    results(node, *outputs)
    result = node.call(**CLIENT)
    assert result["failed"] is True
    assert result["msg"].startswith(f"{name}: RDMA write over 2 rail(s) at once")
    assert words in result["msg"]
    assert result["bandwidth_class"] == name
    assert receipt(tmp_path) is None


def test_a_class_that_is_accepted_passes(make: Any, tmp_path: Path) -> None:
    node = make()
    results(node, (row(30.0), 0), (row(31.0), 0))
    result = node.call(**CLIENT, accept=["healthy", "unknown"])
    assert (result.get("failed"), result["bandwidth_class"]) == (None, "unknown")
    assert receipt(tmp_path)["class"] == "unknown"


def test_check_mode_does_nothing(make: Any) -> None:
    node = make()
    for args in (CLIENT, {"mode": "collective", "service": {}, "container": NAME, "group": "pair1"}):
        result = node.call(check=True, **args)
        assert (result["changed"], result.get("failed"), node.commands) == (False, None, [])


@pytest.mark.parametrize(
    ("missing", "gids", "args", "sentence"),
    [
        ({"ib_write_bw"}, {}, CLIENT, "The command `ib_write_bw` is missing: `apt install perftest`, or set roce_bandwidth_test to never."),
        (set(), {}, {**CLIENT, "server": ["192.168.100.11"]}, "server has 1 address(es) for 2 rail(s); give one per rail."),
        (set(), {RAIL0: v4_gids(None)}, CLIENT, "The RDMA bandwidth cannot be measured: rocep1s0f0 has no RoCE v2 GID for 192.168.100.10"),
    ],
    ids=["no perftest", "one server address", "no GID"],
)
def test_what_cannot_be_measured_is_named_before_a_command(make: Any, missing: set[str], gids: Any, args: dict[str, Any], sentence: str) -> None:
    node = make(gids=gids)
    node.missing |= missing
    assert node.call(**args)["msg"].startswith(sentence)
    assert node.commands == []


@pytest.mark.parametrize("speed", [95.0, 30.0], ids=["accepted", "slow"])
def test_a_look_leaves_the_receipt_as_it_is(make: Any, tmp_path: Path, speed: float) -> None:
    Tree(tmp_path).put("state/bandwidth.json", '{"class": "before"}')
    node = make()
    results(node, (row(speed), 0), (row(speed), 0))
    node.call(**CLIENT, record=False)
    assert receipt(tmp_path) == {"class": "before"}


# --- collectives -----------------------------------------------------------------------------------------------------------------

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
        monkeypatch.setattr(roce_test, "MEMINFO", str(meminfo))
        monkeypatch.setattr(roce_test, "run_command", command)
        service = {"image": "i", "environment": {"NCCL_DEBUG": "INFO"}}
        given = {"mode": "collective", "env": {"NCCL_IB_HCA": "rocep1s0f0"}, "container": NAME, "group": "pair1", "directory": str(tmp_path), "key": "k1"}
        return run_module(capsys, roce_test, **given, service=service, **more), calls

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
