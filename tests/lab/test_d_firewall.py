"""roce_firewall on the nodes of a group that serves: what the kernel lets through, and what is left after its removal."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import playbook
import pytest
from container_lab import Lab

NODES = (1, 2)
Place = tuple[str, int]
#: Prints which of the [ADDRESS, PORT] pairs accept a connection.
CLIENT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def can(place):
    try:
        socket.create_connection(tuple(place), timeout=1).close()
    except OSError:
        return False
    return True
print(json.dumps(list(ThreadPoolExecutor(128).map(can, json.loads(sys.argv[1])))))
"""
OTHER = "table inet other { chain input { type filter hook input priority filter; policy accept; tcp dport 4444 drop; }; }"
#: A restart, reload or start of nftables.service that takes our table and leaves Docker's.
FLUSH = "[Service]\nExecStart=\nExecReload=\nExecStop=\n" + "".join(
    f"{key}=-/usr/sbin/nft delete table inet gb10_cluster\n" for key in ("ExecStart", "ExecReload", "ExecStop")
)
TABLE = "list table inet gb10_cluster"
PLACES = "find /etc -name '*gb10-firewall*' -o -name gb10-cluster.nft"
DROP_IN = "/run/systemd/system/nftables.service.d"


def rail(node: int) -> str:
    """Return the address of a node's first rail."""
    return f"192.168.200.1{node}"


def lan(node: int) -> str:
    """Return the management address of a node."""
    return f"172.30.70.1{node}"


def listening(lab: Lab, node: int) -> set[Place]:
    """Return what another host could reach: each TCP listener of a node, on its rail and its management address."""
    found: set[Place] = set()
    for line in lab.on(node, "ss -Hltn").splitlines():
        address, _colon, port = line.split()[3].rpartition(":")
        if not address.startswith("127."):
            found |= {(place, int(port)) for place in (rail(node), lan(node)) if address in ("*", "0.0.0.0", "[::]", place)}
    return found


def reached(places: set[Place], where: int = 0) -> set[Place]:
    """Return the places that accept a connection from a node, or from this machine: a host of the LAN, and one on the rails that is not a rank."""
    order = sorted(places)
    before = ["docker", "exec", f"gb10-lab-{where}", "python3"] if where else [sys.executable]
    done = subprocess.run([*before, "-c", CLIENT, json.dumps(order)], capture_output=True, text=True, check=True, timeout=60)
    return {place for place, answer in zip(order, json.loads(done.stdout), strict=True) if answer}


def rules(lab: Lab, node: int) -> str:
    """Return all tables of a node, without counters."""
    return lab.on(node, "nft --stateless list ruleset")


def play(lab: Lab, *arguments: str, **variables: object) -> playbook.Run:
    """Run the role roce."""
    return lab.play("site.yml", "--tags", "roce", *arguments, variables=variables)


@pytest.fixture
def guarded(served: Lab) -> Iterator[Lab]:
    """The lab with a table of another tool; nothing of the firewall is left afterwards."""
    for node in NODES:
        served.on(node, f"nft '{OTHER}'")
    yield served
    for node in NODES:
        undo = "systemctl disable --now gb10-firewall; rm -f /etc/systemd/system/gb10-firewall.service /etc/gb10-cluster.nft"
        served.on(node, f"{undo}; rm -rf {DROP_IN}; systemctl daemon-reload; nft delete table inet other", check=False)


def without_nft(lab: Lab, node: int, *arguments: str, **variables: object) -> playbook.Run:
    """Run the role while a node has no nftables."""
    lab.on(node, "mv /usr/sbin/nft /usr/sbin/nft.away")
    try:
        return play(lab, *arguments, **variables)
    finally:
        lab.on(node, "mv /usr/sbin/nft.away /usr/sbin/nft")


def test_a_group_that_serves_gets_and_loses_the_firewall(guarded: Lab) -> None:
    """One test with few runs, because each takes seconds: a node without nftables and a check run, then one run for each step."""
    before = {node: rules(guarded, node) for node in NODES}
    places = listening(guarded, 1) | listening(guarded, 2)
    free = {(address(node), port) for address in (rail, lan) for node in NODES for port in (22, 8000)} & places
    assert reached(places) == places, "without it, this machine reaches all of them"
    assert len(places) > len(free) + 10
    engines = guarded.identity()

    check = without_nft(guarded, 2, "--check", "--diff", roce_firewall=True)
    assert check.rc != 0
    assert [host for host, _task, _text in check.failures] == ["lab-2"]
    assert "lab-2 has no /usr/sbin/nft" in check.last_message
    assert "apt install nftables" in check.last_message
    assert {node: rules(guarded, node) for node in NODES} == before
    assert guarded.on(1, PLACES) == ""

    first = play(guarded, roce_firewall=True)
    assert first.rc == 0, first.stdout[-4000:]
    assert {task for host, task in first.changed if host == "lab-1"} == {task for _host, task in check.changed}
    for line in guarded.on(1, "cat /etc/gb10-cluster.nft /etc/systemd/system/gb10-firewall.service").splitlines():
        assert line.strip() in check.stdout, "the check run showed it"
    names = [event["event_data"].get("task", "") for event in first.events]
    loaded = max(number for number, name in enumerate(names) if name.startswith("Firewall | Load"))
    assert loaded < min(number for number, name in enumerate(names) if name.startswith("Verify | Prove")), "the rails are proven with the rules"
    for node in NODES:
        assert rules(guarded, node) == before[node] + guarded.on(node, f"nft --stateless {TABLE}")
        assert reached(listening(guarded, 3 - node), node) >= {place for place in places if place[0] == rail(3 - node)}
    assert reached(places) == free
    assert guarded.complete() == (200, " Paris.")
    assert guarded.identity() == engines, "nothing was restarted"

    guarded.on(1, f"mkdir -p {DROP_IN}; printf '{FLUSH}' >{DROP_IN}/test.conf; systemctl daemon-reload")
    for how in ("restart nftables", "reload nftables", "stop nftables; systemctl start nftables", "stop gb10-firewall; systemctl start multi-user.target"):
        guarded.on(1, f"systemctl {how}; for i in 1 2 3 4 5 6 7 8 9; do nft {TABLE} && exit 0; sleep 0.2; done; exit 1")
    guarded.on(1, f"nft delete {TABLE[5:]}")
    second = play(guarded, roce_firewall=True)
    assert second.rc == 0, second.stdout[-4000:]
    assert second.changed == {("lab-1", "Firewall | Load the rules, now and at each boot")}, "lab-2 has nothing to do"
    guarded.on(1, f"nft {TABLE}")

    # lab-1 loses it by roce_firewall, lab-2 by roce_state
    off = {"roce_firewall": "{{ inventory_hostname != 'lab-1' }}", "roce_state": "{{ 'absent' if inventory_hostname == 'lab-2' else 'present' }}"}
    gone = play(guarded, **off)
    assert gone.rc == 0, gone.stdout[-4000:]
    assert {host for host, _task in gone.changed} == {"lab-1", "lab-2"}
    for node in NODES:
        assert rules(guarded, node) == before[node]
        assert guarded.on(node, PLACES) == ""
        assert "not-found" in guarded.on(node, "systemctl show gb10-firewall -p LoadState")
    assert reached(places) == places
