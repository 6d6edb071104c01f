"""roce_info through its own main(): this machine, the pings of a live node, and each sentence with which it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import roce_info
from module_run import run_module
from unit.fixtures.roce.node import maker
from unit.fixtures.roce.tree import ADDRESSES, RAIL0, RAIL1, v4_gids

PEERS = [{"host": "spark-2", "fabric": ["192.168.100.11/24", "192.168.101.11"], "rank": 1, "address": "10.0.1.61"}]
PROOF = {"fabric_addresses": ADDRESSES, "fail_on": ["unusable", "without_rdma"], "peers": PEERS}


def call(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    return run_module(capsys, roce_info, **args)


def test_this_machine_can_be_read(capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys)
    assert result.get("failed") is not True
    assert all(value for value in result["env"].values())


# --- a live node and its peers -----------------------------------------------------------------------------------------------------


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(roce_info, "BANDWIDTH_RECEIPT", tmp_path / "receipt.json")
    return maker(roce_info, tmp_path, monkeypatch, capsys)


def test_a_good_pair_is_proven_with_full_size_packets(make: Any) -> None:
    node = make()
    result = node.call(**PROOF)
    assert (result["changed"], result["problems"], result["bandwidth"], result["env"]["NCCL_IB_GID_INDEX"]) == (False, [], None, "3")
    assert [(p["host"], p["rail"], p["interface"], p["address"], p["size"], p["ok"]) for p in result["pings"]] == [
        ("spark-2", 0, RAIL0, "192.168.100.11", 8972, True),
        ("spark-2", 1, RAIL1, "192.168.101.11", 8972, True),
    ]
    assert node.commands == [
        f"/bin/ping -n -q -I {RAIL0} -M do -s 8972 -c 2 -i 0.2 -W 2 192.168.100.11",
        f"/bin/ping -n -q -I {RAIL1} -M do -s 8972 -c 2 -i 0.2 -W 2 192.168.101.11",
    ]


def test_the_receipt_counts_for_these_rails_only(make: Any, tmp_path: Path) -> None:
    key = sorted([["rocep1s0f0", "192.168.100.10"], ["roceP2p1s0f0", "192.168.101.10"]])
    (tmp_path / "receipt.json").write_text(json.dumps({"key": key, "class": "healthy"}))
    assert make().call(fabric_addresses=ADDRESSES)["bandwidth"]["class"] == "healthy"
    other = [key[0], ["rocep1s0f0", "192.168.100.99"]]
    for text in (json.dumps({"key": key[:1], "class": "healthy"}), json.dumps({"key": other, "class": "healthy"}), "{cut", "[]"):
        (tmp_path / "receipt.json").write_text(text)
        assert make().call(fabric_addresses=ADDRESSES)["bandwidth"] is None
    (tmp_path / "receipt.json").write_bytes(b"\xff\xfe")
    assert make().call(fabric_addresses=ADDRESSES)["bandwidth"] is None


def test_a_peer_that_does_not_answer(make: Any) -> None:
    node = make()
    node.answers.append(("192.168.101.11", (1, "", "")))
    result = node.call(**PROOF, ping_seconds=2)
    assert result["failed"] is True
    assert result["msg"] == (
        f"spark-2 does not answer on rail 1 ({RAIL1} to 192.168.101.11). "
        "Check that the cable sits in the same cage on both nodes and that the roce role ran on both."
    )
    assert [p["ok"] for p in result["pings"]] == [True, False]
    assert len(node.ran("-M do .* 192.168.101.11")) > 1, "it asks again until its time is over"


def test_an_mtu_on_the_way_that_is_smaller(make: Any) -> None:
    node = make()
    node.answers.append(("-M do .* 192.168.100.11", (1, "", "ping: local error: message too long, mtu=1500\n")))
    result = node.call(**PROOF)
    assert result["msg"] == (
        f"spark-2 answers on rail 0 ({RAIL0} to 192.168.100.11) but not to 8972 bytes unfragmented: an MTU on the way is smaller than 9000. "
        "Compare `ip link` of both nodes and the switch, or set roce_mtu to 1500."
    )
    assert len(node.ran("-M do .* 192.168.100.11")) == 1, "asking again would not help"


def test_a_peer_that_answers_at_the_second_try(make: Any) -> None:
    node = make()
    tries = []

    def slow(_argv: list[str]) -> tuple[int, str, str]:
        tries.append(1)
        return (0 if len(tries) > 2 else 1), "", ""

    node.answers.append(("192.168.100.11", slow))
    assert node.call(**PROOF).get("failed") is None


def test_no_ping(make: Any) -> None:
    node = make()
    node.missing.add("ping")
    result = node.call(fabric_addresses=ADDRESSES[:1], peers=[{"host": "spark-2", "fabric": ["192.168.100.11"]}])
    assert result["msg"] == "The command `ping` is missing: install iputils-ping."


def test_a_rail_without_link_is_named_with_its_remedy_on_request_and_not_pinged(make: Any) -> None:
    node = make(up=(RAIL0,))
    result = node.call(**PROOF)
    assert result["failed"] is True
    assert f"Rail 1 (192.168.101.10) does not work: {RAIL1} (roceP2p1s0f0) is DOWN, DISABLED: the cable is in, because its twin" in result["msg"]
    assert any(result["msg"].endswith(problem["remedy"]) for problem in result["problems"] if problem["id"] == "link_down")
    assert [p["rail"] for p in result["pings"]] == [0]
    assert node.call(fabric_addresses=ADDRESSES, fail_on=["no_cable"]).get("failed") is None


def test_rdma_may_be_optional_and_a_slow_link_works(make: Any) -> None:
    node = make(speed=25000, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    strict = node.call(**PROOF)
    assert (strict["failed"], strict["msg"].count("no RoCE v2 GID"), "25000" in strict["msg"]) == (True, 2, False)
    assert node.call(**{**PROOF, "fail_on": ["unusable"]}).get("failed") is None
    node.link(RAIL0)["mtu"] = 1500
    assert "MTU 1500" in node.call(**PROOF)["msg"]
