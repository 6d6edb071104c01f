"""roce_firewall on the nodes of a group that serves: its unit, its order in a run, and its removal. tests/security/test_firewall.py has its rules."""

from __future__ import annotations

from collections.abc import Iterator

import playbook
import pytest
from container_lab import Lab

NODES = (1, 2)
OTHER = "table inet other { chain input { type filter hook input priority filter; policy accept; tcp dport 4444 drop; }; }"
#: A restart, reload or start of nftables.service that takes our table and leaves Docker's.
FLUSH = "[Service]\nExecStart=\nExecReload=\nExecStop=\n" + "".join(
    f"{key}=-/usr/sbin/nft delete table inet gb10_cluster\n" for key in ("ExecStart", "ExecReload", "ExecStop")
)
TABLE = "list table inet gb10_cluster"
PLACES = "find /etc -name '*gb10-firewall*' -o -name gb10-cluster.nft"
DROP_IN = "/run/systemd/system/nftables.service.d"


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
