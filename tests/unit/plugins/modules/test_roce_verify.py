"""roce_verify through its own main(): what it asks, what it repairs, and each sentence with which it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import roce_verify
from unit.fixtures.roce.node import FakeNode, maker
from unit.fixtures.roce.tree import ADDRESSES, HCA1, RAIL0, RAIL1, V1, V2, ZERO, gid, mapped, v4_gids

PEERS = [{"host": "spark-2", "fabric": ["192.168.100.11/24", "192.168.101.11"], "rank": 1, "address": "10.0.1.61"}]
DRIFTED = {RAIL0: v4_gids("192.168.100.10"), RAIL1: v4_gids("192.168.101.10", at=4)}


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    monkeypatch.setattr(roce_verify, "BANDWIDTH_RECEIPT", tmp_path / "receipt.json")
    return maker(roce_verify, tmp_path, monkeypatch, capsys)


def test_a_good_pair(make: Any) -> None:
    node = make()
    result = node.call(addresses=ADDRESSES, peers=PEERS)
    assert (result["changed"], result["failures"], result["problems"], result["repaired"], result["bandwidth"]) == (False, [], [], [], None)
    assert [(p["host"], p["rail"], p["interface"], p["address"], p["size"], p["ok"]) for p in result["pings"]] == [
        ("spark-2", 0, RAIL0, "192.168.100.11", 8972, True),
        ("spark-2", 1, RAIL1, "192.168.101.11", 8972, True),
    ]
    assert node.commands == [
        f"/bin/ping -n -q -I {RAIL0} -M do -s 8972 -c 2 -i 0.2 -W 2 192.168.100.11",
        f"/bin/ping -n -q -I {RAIL1} -M do -s 8972 -c 2 -i 0.2 -W 2 192.168.101.11",
    ]
    assert result["env"]["NCCL_IB_GID_INDEX"] == "3"


def test_the_receipt_counts_for_these_rails_only(make: Any, tmp_path: Path) -> None:
    key = sorted([["rocep1s0f0", "192.168.100.10"], ["roceP2p1s0f0", "192.168.101.10"]])
    (tmp_path / "receipt.json").write_text(json.dumps({"key": key, "class": "healthy"}))
    assert make().call(addresses=ADDRESSES)["bandwidth"]["class"] == "healthy"
    other = [key[0], ["rocep1s0f0", "192.168.100.99"]]
    for text in (json.dumps({"key": key[:1], "class": "healthy"}), json.dumps({"key": other, "class": "healthy"}), "{cut", "[]"):
        (tmp_path / "receipt.json").write_text(text)
        assert make().call(addresses=ADDRESSES)["bandwidth"] is None
    (tmp_path / "receipt.json").write_bytes(b"\xff\xfe")
    assert make().call(addresses=ADDRESSES)["bandwidth"] is None


# --- GID repair ------------------------------------------------------------------------------------------------------------------


def heal(node: FakeNode) -> None:
    """Let `ip addr replace` bring the GID back at index 3."""

    def replaced(_argv: list[str]) -> tuple[int, str, str]:
        for index, kind, value in ((2, V1, mapped("192.168.101.10")), (3, V2, mapped("192.168.101.10")), (4, V1, ZERO), (5, V2, ZERO)):
            gid(node.tree, HCA1, index, kind, value, RAIL1)
        return 0, "", ""

    node.answers.append(("addr replace", replaced))


def test_a_gid_that_drifted_is_repaired_and_read_again(make: Any) -> None:
    node = make(gids=DRIFTED)
    heal(node)
    result = node.call(addresses=ADDRESSES)
    assert result["changed"] is True
    assert result["repaired"] == [{"interface": RAIL1, "before": 5, "after": 3}]
    assert node.commands == [f"/bin/ip addr del 192.168.101.10/24 dev {RAIL1}", f"/bin/ip addr replace 192.168.101.10/24 brd + dev {RAIL1}"]
    assert result["env"]["NCCL_IB_GID_INDEX"] == "3"


def test_check_mode_repairs_nothing_and_reports_the_repairs(make: Any) -> None:
    node = make(gids=DRIFTED)
    result = node.call(check=True, addresses=ADDRESSES)
    assert (result["changed"], node.commands) == (True, [])
    assert result["repaired"] == [{"interface": RAIL1, "before": 5, "after": None}]


def test_a_gid_in_use_is_left_and_reported(make: Any) -> None:
    node = make(gids=DRIFTED)
    node.users = ["VLLM::Worker (77)"]
    result = node.call(addresses=ADDRESSES)
    assert (result["changed"], node.commands, result["repaired"]) == (False, [], [])
    assert node.warnings == [f"The GIDs of {RAIL1} were left as they are, because VLLM::Worker (77) use(s) RDMA."]
    assert result["env"]["NCCL_IB_ADDR_FAMILY"] == "AF_INET"


def test_repair_can_be_switched_off(make: Any) -> None:
    node = make(gids=DRIFTED)
    result = node.call(addresses=ADDRESSES, gid_repair=False)
    assert (result["changed"], node.commands) == (False, [])
    assert [p["id"] for p in result["problems"]] == ["gid_index_differs"]


def test_an_address_that_does_not_come_back_is_the_worst_sentence(make: Any) -> None:
    node = make(gids=DRIFTED)
    node.answers.append(("addr replace", (2, "", "RTNETLINK answers: Cannot assign requested address\n")))
    result = node.call(addresses=ADDRESSES)
    assert result["failed"] is True
    assert result["msg"] == (
        f"The address 192.168.101.10/24 could not be put back on {RAIL1}: RTNETLINK answers: Cannot assign requested address. Run the roce role again."
    )


# --- failures --------------------------------------------------------------------------------------------------------------------


def test_a_peer_that_does_not_answer(make: Any) -> None:
    node = make()
    node.answers.append(("192.168.101.11", (1, "", "")))
    result = node.call(addresses=ADDRESSES, peers=PEERS, ping_seconds=2)
    assert result["failed"] is True
    assert result["failures"] == [
        f"spark-2 does not answer on rail 1 ({RAIL1} to 192.168.101.11). "
        "Check that the cable sits in the same cage on both nodes and that the roce role ran on both."
    ]
    assert [p["ok"] for p in result["pings"]] == [True, False]
    assert len(node.ran("-M do .* 192.168.101.11")) > 1, "it asks again until its time is over"


def test_an_mtu_on_the_way_that_is_smaller(make: Any) -> None:
    node = make()
    node.answers.append(("-M do .* 192.168.100.11", (1, "", "ping: local error: message too long, mtu=1500\n")))
    result = node.call(addresses=ADDRESSES, peers=PEERS)
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
    assert node.call(addresses=ADDRESSES, peers=PEERS)["failures"] == []


def test_no_ping(make: Any) -> None:
    node = make()
    node.missing.add("ping")
    result = node.call(addresses=ADDRESSES[:1], peers=[{"host": "spark-2", "fabric": ["192.168.100.11"]}])
    assert result["msg"] == "The command `ping` is missing: install iputils-ping."


def test_a_rail_without_link_is_named_and_not_pinged(make: Any) -> None:
    node = make(up=(RAIL0,))
    result = node.call(addresses=ADDRESSES, peers=PEERS)
    assert result["failed"] is True
    assert any(f"{RAIL1} (roceP2p1s0f0) is DOWN, DISABLED: the cable is in, because its twin" in sentence for sentence in result["failures"])
    assert [p["rail"] for p in result["pings"]] == [0]


def test_rdma_may_be_optional(make: Any) -> None:
    gids = {RAIL0: v4_gids(None), RAIL1: v4_gids(None)}
    node = make(gids=gids)
    strict = node.call(addresses=ADDRESSES, gid_repair=False)
    assert strict["failed"] is True
    assert len(strict["failures"]) == 2
    assert all("no RoCE v2 GID" in sentence for sentence in strict["failures"])
    assert node.call(addresses=ADDRESSES, gid_repair=False, require_rdma=False).get("failed") is not True


def test_check_mode_returns_failures_instead_of_failing(make: Any) -> None:
    node = make(mtu=1500, speed=25000)
    result = node.call(check=True, addresses=ADDRESSES)
    assert result.get("failed") is not True
    assert any("MTU 1500" in sentence and "roce_mtu" in sentence for sentence in result["failures"])
    assert not any("25000" in sentence for sentence in result["failures"]), "a slow link works"
    assert node.call(addresses=ADDRESSES)["failed"] is True
