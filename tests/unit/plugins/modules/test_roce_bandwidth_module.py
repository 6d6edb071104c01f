"""roce_bandwidth through its own main(): servers, clients, the receipt, and each sentence with which it fails."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import roce_bandwidth
from unit.fixtures.roce.node import FakeNode, maker
from unit.fixtures.roce.tree import ADDRESSES, RAIL0, v4_gids

CLIENT = {"mode": "client", "addresses": ADDRESSES, "server": ["192.168.100.11/24", "192.168.101.11"]}
ADDRESSES_OF_PEER = ["192.168.100.11", "192.168.101.11"]
HEADER = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"


def row(rate: float) -> str:
    return f"{HEADER} 65536      5000             {rate + 1:.2f}              {rate:.2f}              0.176\n"


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(roce_bandwidth, "BANDWIDTH_RECEIPT", tmp_path / "state" / "bandwidth.json")
    return maker(roce_bandwidth, tmp_path, monkeypatch, capsys)


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

    node.monkeypatch.setattr(roce_bandwidth, "run_command", run)
    return lines


# --- server ----------------------------------------------------------------------------------------------------------------------


def test_the_server_listens_once_per_rail_and_client(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    monkeypatch.setattr(roce_bandwidth, "listening", lambda ports, _text: ports)
    result = node.call(mode="server", addresses=ADDRESSES, clients=2, seconds=3)
    assert (result["changed"], result.get("failed")) == (False, None)
    started = node.ran("systemd-run")
    ports = [re.findall(r"--unit=gb10-roce-bandwidth-(\d+)", line) for line in started]
    assert ports == [["18600"], ["18601"], ["18602"], ["18603"]]
    assert "-d roceP2p1s0f0 -x 3 -p 18601 -s 65536 -D 3 -F --report_gbits" in started[1]
    assert "--property=RuntimeMaxSec=106" in started[0]
    assert node.commands[0] == "systemctl stop gb10-roce-bandwidth-*"


def test_iterations_replace_seconds(make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    node = make()
    monkeypatch.setattr(roce_bandwidth, "listening", lambda ports, _text: ports)
    node.call(mode="server", addresses=ADDRESSES, iterations=5)
    assert [("-n 5 -F" in line, " -D " in line) for line in node.ran("systemd-run")] == [(True, False)] * 2


def test_a_server_that_cannot_be_started(make: Any) -> None:
    node = make()
    node.answers.append(("systemd-run", (1, "", "Failed to start transient service unit: Unit exists.\n")))
    result = node.call(mode="server", addresses=ADDRESSES)
    assert result["msg"].startswith("The bandwidth server on port 18600 could not be started: Failed to start transient service unit: Unit exists. Look at")


@pytest.mark.parametrize(("journal", "reason"), [("Couldn't get device attributes\n", "Couldn't get device attributes"), ("", "no output")])
def test_a_server_that_does_not_listen(make: Any, monkeypatch: pytest.MonkeyPatch, journal: str, reason: str) -> None:
    node = make()
    monkeypatch.setattr(roce_bandwidth, "listening", lambda ports, _text: ports - {18601})
    node.answers.append(("journalctl", (0, journal, "")))
    result = node.call(mode="server", addresses=ADDRESSES)
    assert result["msg"] == f"ib_write_bw does not listen on port(s) 18601 after 30 s: {reason}. See what holds them (ss -ltnp), or set roce_bandwidth_port."
    assert node.ran("journalctl .* -u gb10-roce-bandwidth-18601")


def test_who_listens_is_read_from_proc_net_tcp() -> None:
    text = (
        "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000:48A8 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4242 1 0\n"
        "   1: 0100007F:48A9 0100007F:1F90 01 00000000:00000000 00:00000000 00000000     0        0 4243 1 0\n"
        "  sl  local_address                         remote_address                        st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
        "   0: 00000000000000000000000000000000:48AA 00000000000000000000000000000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4244 1 0\n"
        "short\n"
    )
    assert roce_bandwidth.listening({18600, 18601, 18602, 18603}, text) == {18600, 18602}


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
    "header only, rc 0": ([(HEADER, 0), (HEADER, 0)], "tcp_only", "rocep1s0f0 to 192.168.100.11/24: it printed the header and no result row"),
    "time over": ([("", 124), ("", 124)], "tcp_only", "it did not end in time"),
    "its own words": ([("Couldn't connect to 192.168.100.11:18600\n", 1), ("", 1)], "tcp_only", "Couldn't connect to 192.168.100.11:18600"),
}


@pytest.mark.parametrize(("outputs", "name", "words"), FAULTS.values(), ids=FAULTS.keys())
def test_a_fault_is_named_and_takes_the_receipt_away(make: Any, tmp_path: Path, outputs: list[tuple[str, int]], name: str, words: str) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "bandwidth.json").write_text("{}")
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
    result = node.call(check=True, **CLIENT)
    assert (result["changed"], result.get("failed"), node.commands) == (False, None, [])


def test_no_perftest(make: Any) -> None:
    node = make()
    node.missing.add("ib_write_bw")
    result = node.call(**CLIENT)
    assert result["msg"] == "The command `ib_write_bw` is missing: `apt install perftest`, or set roce_bandwidth_test to never."


def test_one_server_address_per_rail(make: Any) -> None:
    result = make().call(mode="client", addresses=ADDRESSES, server=["192.168.100.11"])
    assert result["msg"] == "server has 1 address(es) for 2 rail(s); give one per rail."


def test_rails_that_cannot_be_measured(make: Any) -> None:
    node = make(gids={RAIL0: v4_gids(None)})
    result = node.call(**CLIENT)
    assert result["msg"].startswith("The RDMA bandwidth cannot be measured: rocep1s0f0 has no RoCE v2 GID for 192.168.100.10")
    assert node.commands == []


@pytest.mark.parametrize("speed", [95.0, 30.0], ids=["accepted", "slow"])
def test_a_look_leaves_the_receipt_as_it_is(make: Any, tmp_path: Path, speed: float) -> None:
    (tmp_path / "state").mkdir()
    (tmp_path / "state" / "bandwidth.json").write_text('{"class": "before"}')
    node = make()
    results(node, (row(speed), 0), (row(speed), 0))
    node.call(**CLIENT, record=False)
    assert receipt(tmp_path) == {"class": "before"}
