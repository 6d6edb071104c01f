"""roce_info through its own main(): a captured tree, the pings of a live node, and each sentence with which it fails."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import roce_info
from module_run import run_module
from shared_samples import needs_shared, samples
from unit.fixtures.roce.node import maker
from unit.fixtures.roce.tree import ADDRESSES, RAIL0, RAIL1, from_pair, spark, v4_gids

PEERS = [{"host": "spark-2", "fabric": ["192.168.100.11/24", "192.168.101.11"], "rank": 1, "address": "10.0.1.61"}]
PROOF = {"fabric_addresses": ADDRESSES, "fail_on": ["unusable", "without_rdma"], "peers": PEERS}


def call(capsys: pytest.CaptureFixture[str], **args: Any) -> dict[str, Any]:
    return run_module(capsys, roce_info, **args)


@needs_shared
def test_foreign_files_of_a_capture_are_named_with_their_writer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = from_pair(samples() / "pairA-f0f0" / "head", tmp_path)
    tree.file("etc/netplan/99-nvidia-sync-cluster.yaml", (samples() / "netplan.99-nvidia-sync-cluster.yaml").read_text())
    tree.file("etc/netplan/40-cx7.yaml", (samples() / "netplan.40-cx7.nvidia-perf-guide.yaml").read_text())
    tree.file("etc/netplan/01-network-manager-all.yaml", "network:\n  version: 2\n  renderer: NetworkManager\n")
    result = call(capsys, root=str(tree.write()))
    assert [(f["path"], f["interfaces"]) for f in result["foreign"]] == [
        ("/etc/netplan/40-cx7.yaml", ["enp1s0f0np0", "enP2p1s0f0np0"]),
        ("/etc/netplan/99-nvidia-sync-cluster.yaml", ["enp1s0f0np0", "enP2p1s0f0np0"]),
    ]
    assert result["foreign"][1]["writer"] == "NVIDIA Sync Cluster Assistant"
    assert result["foreign"][1]["addresses"]["enp1s0f0np0"] == ["10.100.32.1/24"]
    assert [p["id"] for p in result["problems"]] == ["foreign_netplan", "foreign_netplan"]
    assert result["changed"] is False
    assert result["env"]["NCCL_IB_HCA"] == "rocep1s0f0,roceP2p1s0f0"


def test_a_rail_without_a_link_fails_the_module_on_request(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    addresses = {"enp1s0f0np0": ["192.168.100.10/24"], "enP2p1s0f0np0": ["192.168.101.10/24"]}
    tree = str(spark(tmp_path, addresses, up=("enp1s0f0np0",)).write())
    asked = {"root": tree, "fabric_addresses": ["192.168.100.10", "192.168.101.10"]}
    assert "NCCL_IB_HCA" in call(capsys, **asked)["env"], "the rail that is left would be rendered"
    result = call(capsys, **asked, fail_on=["link_down", "no_cable"])
    assert result["failed"] is True
    assert result["msg"].startswith("Rail 1 (192.168.101.10) does not work: enP2p1s0f0np0 (roceP2p1s0f0) is DOWN")
    assert any(result["msg"].endswith(problem["remedy"]) for problem in result["problems"] if problem["id"] == "link_down")
    assert call(capsys, **asked, fail_on=["no_cable"]).get("failed") is None


def test_the_ssh_session_of_a_capture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = spark(tmp_path, {"enp1s0f0np0": ["192.168.100.10/24"]})
    tree.file("cmd/ssh-connection.txt", "192.168.100.11 5000 192.168.100.10 22\n")
    assert call(capsys, root=str(tree.write()))["management"]["interface"] == "enp1s0f0np0"
    given = call(capsys, root=str(tmp_path), ssh_connection="10.0.1.2 5000 10.0.1.60 22")
    assert given["management"]["reason"] == "ssh session"
    assert given["management"]["interface"] == "enP7s7"


def test_a_root_that_does_not_exist_is_refused_with_a_sentence(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = call(capsys, root=str(tmp_path / "none"))
    assert result["failed"] is True
    assert "not a folder" in result["msg"]


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


def test_a_rail_without_link_is_named_and_not_pinged(make: Any) -> None:
    node = make(up=(RAIL0,))
    result = node.call(**PROOF)
    assert result["failed"] is True
    assert f"Rail 1 (192.168.101.10) does not work: {RAIL1} (roceP2p1s0f0) is DOWN, DISABLED: the cable is in, because its twin" in result["msg"]
    assert [p["rail"] for p in result["pings"]] == [0]


def test_rdma_may_be_optional_and_a_slow_link_works(make: Any) -> None:
    node = make(speed=25000, gids={RAIL0: v4_gids(None), RAIL1: v4_gids(None)})
    strict = node.call(**PROOF)
    assert (strict["failed"], strict["msg"].count("no RoCE v2 GID"), "25000" in strict["msg"]) == (True, 2, False)
    assert node.call(**{**PROOF, "fail_on": ["unusable"]}).get("failed") is None
    node.link(RAIL0)["mtu"] = 1500
    assert "MTU 1500" in node.call(**PROOF)["msg"]
