"""The module roce_info: a captured tree through the module's own entry point."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import roce_info
from module_run import run_module
from shared_samples import needs_shared, samples
from unit.fixtures.roce.tree import from_pair, spark


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
