"""RDMA writes over soft-RoCE, by the GID index that the role resolved."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import pytest
from vm.node_helpers import NODES, RAILS, converged, gid_index, site, task_result

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

EXPORT = "Export the fabric variables"


@pytest.fixture(scope="module")
def resolved(vmlab: VmLab) -> Run:
    """A run of the role on machines that have their rails."""
    converged(vmlab)
    run = site(vmlab, tags="roce", roce_bandwidth_test="never")
    assert run.rc == 0, run.stdout[-3000:]
    return run


@pytest.mark.parametrize("rail", RAILS, ids=[rail[0] for rail in RAILS])
def test_rdma_writes_flow_by_the_gid_index_that_was_resolved(vmlab: VmLab, resolved: Run, rail: tuple[str, str, str, str]) -> None:
    _cable, _netdev, hca, network = rail
    env = [task_result(resolved, EXPORT, host)["ansible_facts"]["roce_env"] for host in vmlab.hosts]
    index = env[0]["NCCL_IB_GID_INDEX"]
    for node in NODES:
        assert env[node - 1]["NCCL_IB_HCA"].lstrip("=").replace(":1", "").split(",") == [name for _c, _n, name, _w in RAILS]
        assert env[node - 1]["NCCL_IB_GID_INDEX"] == index
        assert gid_index(vmlab, node, hca, f"{network}.1{node}") == [int(index)], "the kernel's own table"
    command = f"ib_write_bw -d {hca} -x {index} -m 4096 -n 200 -F"
    vmlab.on(2, f"systemctl stop bw-server 2>/dev/null; systemd-run --quiet --unit bw-server --collect -p RuntimeMaxSec=60 {command}")
    time.sleep(3)
    table = vmlab.on(1, f"{command} --report_gbits {network}.12")
    row = [line.split() for line in table.splitlines() if line.split()[:2] == ["65536", "200"]]
    assert row, table
    assert float(row[0][3]) > 0
