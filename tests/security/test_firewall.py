"""The role roce's firewall, with a real nft in network namespaces: a node, a host of the LAN, and the peer on the rail."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playbook import REPO, Run
from warm_playbook import play

pytestmark = pytest.mark.slow

UNIT = REPO / "roles/roce/files/gb10-firewall.service"
PLAY = """
- name: Firewall
  hosts: one
  gather_facts: false
  tasks:
    - name: Validation
      ansible.builtin.import_role:
        name: gb10.cluster.roce
        tasks_from: validate
    - name: Role
      ansible.builtin.import_role:
        name: gb10.cluster.roce
        tasks_from: firewall
"""
OTHER = "table ip other {\n\tchain input {\n\t\ttype filter hook input priority filter; policy accept;\n\t\ttcp dport 4444 drop\n\t}\n}\n"
NODE, PEER, LAN, LAN6 = "192.168.200.11", "192.168.200.12", "10.9.0.1", "fd00:9::1"
#: Listens on TCP ports of all addresses, prints each UDP datagram that comes to 40001, and answers it.
SERVER = """
import socket
kept = [socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True) for port in (22, 6379, 8888, 10005, 18601, 25000, 40000)]
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind(("192.168.200.11", 40001))
print("ready", flush=True)
while True:
    text, sender = u.recvfrom(100)
    print(text.decode(), flush=True)
    u.sendto(b"answer", sender)
"""
#: Prints which of the ADDRESS PORT pairs accept a connection from a source address.
CLIENT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def can(place):
    try:
        socket.create_connection(tuple(place), timeout=1.5, source_address=(sys.argv[2], 0) if sys.argv[2] else None).close()
    except OSError:
        return False
    return True
places = json.loads(sys.argv[1])
print(json.dumps(list(ThreadPoolExecutor(32).map(can, places))))
"""


def check_run(folder: Path, **variables: Any) -> Run:
    """Run the tasks in check mode: nothing of this machine is changed."""
    return play(folder, PLAY, "--check", "--diff", **variables)


def rules_of(folder: Path, **variables: object) -> str:
    """Return the rules of the first host, as the diff of a check run shows them."""
    if os.geteuid() != 0 or not shutil.which("nft"):
        pytest.skip("needs root and nft")
    done = check_run(folder, roce_firewall=True, **variables)
    assert done.rc == 0, done.stdout[-3000:]
    assert {task for _host, task in done.changed} == {
        f"Firewall | {task}" for task in ("Write the rules", "Write the unit", "Load the rules, now and at each boot")
    }
    assert not Path("/etc/gb10-cluster.nft").exists()
    results = [event["event_data"] for event in done.events if event["event"] == "runner_on_ok"]
    [diff] = [data["res"]["diff"] for data in results if data["task"] == "Firewall | Write the rules" and data["host"] == "one"]
    return str(diff[0]["after"] if isinstance(diff, list) else diff["after"])


@pytest.fixture(scope="module")
def rules(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The rules of a shipped profile."""
    return rules_of(tmp_path_factory.mktemp("rules"), gb10_profile="dspark-nvfp4-1m-seed")


class Net:
    """Three network namespaces: `node` with a LAN and a rail, `lan` that routes the rail's network to the node, and `peer`."""

    def __init__(self) -> None:
        self.names = {name: f"gb10t{os.getpid()}{name}" for name in ("node", "lan", "peer")}
        self.server: subprocess.Popen[str] | None = None

    def sh(self, where: str, command: str, text: str | None = None) -> str:
        argv = ["ip", "netns", "exec", self.names[where], "sh", "-ec", command]
        done = subprocess.run(argv, input=text, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def up(self) -> None:
        for name in self.names.values():
            subprocess.run(["ip", "netns", "add", name], check=True, capture_output=True)
        for link, other, address, theirs in (("lan0", "lan", LAN, "10.9.0.2"), ("rail0", "peer", NODE, PEER)):
            peer = self.names[other]
            self.sh("node", f"ip link add {link} type veth peer name eth0 netns {peer}; ip addr add {address}/24 dev {link}; ip link set {link} up")
            self.sh(other, f"ip addr add {theirs}/24 dev eth0; ip link set eth0 up; ip link set lo up")
        self.sh("node", f"ip link set lo up; ip addr add {LAN6}/64 dev lan0 nodad; for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 >$f; done")
        self.sh("lan", f"ip addr add fd00:9::2/64 dev eth0 nodad; ip route add 192.168.200.0/24 via {LAN}")
        self.server = subprocess.Popen(["ip", "netns", "exec", self.names["node"], sys.executable, "-c", SERVER], stdout=subprocess.PIPE, text=True)
        assert self.server.stdout
        assert self.server.stdout.readline() == "ready\n"
        os.set_blocking(self.server.stdout.fileno(), False)

    def down(self) -> None:
        if self.server:
            self.server.kill()
            self.server.wait()
        for name in self.names.values():
            subprocess.run(["ip", "netns", "del", name], check=False, capture_output=True)

    def open(self, where: str, *places: tuple[str, int], source: str = "") -> set[tuple[str, int]]:
        """Return the places that a namespace can connect to."""
        argv = ["ip", "netns", "exec", self.names[where], sys.executable, "-c", CLIENT, json.dumps(places), source]
        answers = json.loads(subprocess.run(argv, capture_output=True, text=True, check=True, timeout=60).stdout)
        return {place for place, answer in zip(places, answers, strict=True) if answer}

    def datagrams(self, where: str, text: str) -> str:
        """Send a datagram from a port of the peer's address, and return what came."""
        code = f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(('{PEER}', 50001)); s.sendto(b'{text}', ('{NODE}', 40001))"
        self.sh(where, f'{sys.executable} -c "{code}"; sleep 0.3')
        assert self.server
        assert self.server.stdout
        try:
            return os.read(self.server.stdout.fileno(), 1000).decode()
        except BlockingIOError:
            return ""


@pytest.fixture
def net() -> Iterator[Net]:
    """The namespaces, with a table of another tool on the node."""
    found = Net()
    try:
        found.up()
        found.sh("node", "nft -f -", OTHER)
    except (subprocess.SubprocessError, AssertionError) as error:
        found.down()
        pytest.skip(f"network namespaces are not available: {error}")
    yield found
    found.down()


PORTS = (22, 6379, 8888, 10005, 18601, 25000, 40000)
ON_RAIL = {(NODE, port) for port in PORTS}


def test_without_it_a_host_of_the_lan_reaches_the_ports_of_the_rail(net: Net, rules: str) -> None:
    """Linux accepts packets for an address on every interface: what listens on the rail address alone is not behind the cable alone."""
    assert rules
    assert net.open("lan", *ON_RAIL) == ON_RAIL
    net.sh("lan", f"ip addr add {PEER}/32 dev eth0")
    assert net.datagrams("lan", "spoofed") == "spoofed\n"


def test_only_the_peer_and_the_node_itself_reach_the_ports(net: Net, rules: str) -> None:
    net.sh("node", "nft -c -f - ", rules)
    net.sh("node", "nft -f -", rules)
    assert net.open("peer", *ON_RAIL) == ON_RAIL
    assert net.open("node", *ON_RAIL) == ON_RAIL
    for address in (NODE, LAN, LAN6):
        places = {(address, port) for port in PORTS}
        free = {(address, port) for port in ((22, 8888) if address == NODE else (22, 6379, 8888, 10005, 40000))}
        assert net.open("lan", *places) == free, "SSH and the API stay open, and so do ports that are not the group's"
    assert net.datagrams("peer", "peer") == "peer\n"
    net.sh("lan", f"ip addr add {PEER}/32 dev eth0")
    assert net.datagrams("lan", "spoofed") == "", "the same ports as the peer's datagram, which was answered"


def test_the_address_of_a_peer_opens_nothing_while_the_rail_is_down(net: Net, rules: str) -> None:
    """Without the rail, the route to the peer is the default route."""
    net.sh("node", "nft -f -", rules)
    net.sh("node", "ip link set rail0 down; ip route add default via 10.9.0.2")
    net.sh("lan", f"ip addr add {PEER}/32 dev eth0")
    assert net.open("lan", (LAN, 25000), (LAN, 40000), source=PEER) == {(LAN, 40000)}


def test_the_rules_follow_profile_and_inventory_and_close_ray_on_all_addresses(net: Net, tmp_path: Path) -> None:
    """Ray's processes listen on 0.0.0.0, most of them on free ports, and answer without authentication. The API is in a range that is closed."""
    profile = {"extends": "pr41834-ray-200k", "engine": {"api": {"port": 18601}, "master_port": 26000}}
    rules = rules_of(tmp_path, gb10_profile="mine", gb10_profiles={"mine": profile}, ansible_port=2222)
    assert "tcp dport { 22, 2222 } accept" in rules
    assert "tcp dport 26000 drop" in rules
    assert "25000" not in rules
    net.sh("node", "nft -f -", rules)
    assert net.open("peer", *ON_RAIL) == ON_RAIL
    assert net.open("lan", *((LAN, port) for port in PORTS)) == {(LAN, port) for port in (22, 8888, 18601, 25000)}


def test_it_replaces_and_removes_its_own_table_only(net: Net, rules: str) -> None:
    before = net.sh("node", "nft list ruleset")
    net.sh("node", "nft -f -", rules)
    once = net.sh("node", "nft list ruleset")
    net.sh("node", "nft -f -", rules)
    assert net.sh("node", "nft list ruleset") == once != before
    lines = dict(line.split("=", 1) for line in UNIT.read_text(encoding="utf-8").splitlines() if "=" in line)
    assert lines["ExecStart"] == lines["ExecReload"] == "/usr/sbin/nft -f /etc/gb10-cluster.nft"
    net.sh("node", lines["ExecStop"].lstrip("-"))
    assert net.sh("node", "nft list ruleset") == before


def test_it_is_off_unless_the_owner_asks(tmp_path: Path, rules: str) -> None:
    assert "policy accept" in rules
    done = check_run(tmp_path, roce_firewall="false")  # as -e gives it
    assert done.rc == 0, done.stdout[-2000:]
    assert done.changed == set()


def test_a_node_that_cannot_load_the_rules_is_refused_with_its_reason(tmp_path: Path, rules: str) -> None:
    assert rules
    done = check_run(tmp_path, roce_firewall=True, roce_bandwidth_port=70000)
    assert done.rc != 0
    assert "refuses the rules of roce_firewall: " in done.last_message
    assert "70000" in done.last_message
    assert done.changed == set()
