"""On each node: nothing of ours was written, and the rails carry full-size packets to the other rank."""

from __future__ import annotations

from typing import Any

import pytest

RAILS = {"enp1s0f0np0": "192.168.200", "enP2p1s0f0np0": "192.168.201"}
OTHER = {"lab-1": 12, "lab-2": 11}


def test_nothing_was_written(host: Any) -> None:
    assert host.run("ls /etc/netplan/60-gb10* /etc/sysctl.d/60-gb10-roce*").rc != 0


@pytest.mark.parametrize("rail", RAILS)
def test_a_rail_carries_full_size_packets(host: Any, rail: str) -> None:
    assert "mtu 9000" in host.check_output(f"ip link show {rail}")
    peer = f"{RAILS[rail]}.{OTHER[host.check_output('hostname')]}"
    assert host.run(f"ping -c 1 -W 2 -M do -s 8972 -I {rail} {peer}").rc == 0
