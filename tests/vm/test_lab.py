"""The VM lab proves itself: what the roles' tests stand on is really there."""

from __future__ import annotations

import json
import subprocess
import time
from typing import TYPE_CHECKING

import pytest
import yaml

if TYPE_CHECKING:
    from vm.conftest import VmLab

NODES = (1, 2)
RAILS = (("rail0", "enp1s0f0np0", "rocep1s0f0", "192.168.200"), ("rail1", "enP2p1s0f0np0", "roceP2p1s0f0", "192.168.201"))


@pytest.fixture(scope="module")
def lab(fresh_vmlab: VmLab) -> VmLab:
    return fresh_vmlab


@pytest.mark.parametrize("node", NODES)
def test_a_fresh_machine_is_laid_out_as_a_spark_leaves_the_factory(lab: VmLab, node: int) -> None:
    output = lab.on(
        node,
        "hostname; . /etc/os-release; echo $VERSION_CODENAME; cat /sys/class/dmi/id/product_name; grep -c DGX_OTA_VERSION /etc/dgx-release; "
        "cat /proc/sys/vm/swappiness /proc/sys/vm/watermark_boost_factor /proc/sys/vm/watermark_scale_factor; "
        "cat /sys/block/nvme0n1/queue/read_ahead_kb; findmnt -no SOURCE,FSTYPE /srv/models; "
        "swapon --show=NAME,TYPE --noheadings; grep -c '^/swap.img' /etc/fstab; for c in zramctl ethtool ib_write_bw netplan docker; do command -v $c; done",
    ).splitlines()
    assert output[:8] == [f"vm-{node}", "trixie", "NVIDIA_DGX_Spark", "1", "60", "15000", "10", "128"]
    assert output[8].split() == ["/dev/nvme0n1", "ext4"]
    assert output[9].split() == ["/swap.img", "file"]
    assert output[10] == "1"
    assert {path.rsplit("/", 1)[1] for path in output[11:]} == {"zramctl", "ethtool", "ib_write_bw", "netplan", "docker"}


@pytest.mark.parametrize(("node", "daemon", "other"), [(1, "NetworkManager", "systemd-networkd"), (2, "systemd-networkd", "NetworkManager")])
def test_each_node_has_its_own_network_daemon(lab: VmLab, node: int, daemon: str, other: str) -> None:
    assert lab.on(node, f"systemctl is-active {daemon}") == "active"
    assert lab.try_on(node, f"systemctl is-active {other}").stdout.strip() == "inactive"


@pytest.mark.parametrize("node", NODES)
def test_rails_are_up_without_addresses_and_management_has_the_default_route(lab: VmLab, node: int) -> None:
    links = {link["ifname"]: link for link in json.loads(lab.on(node, "ip -j addr"))}
    for _cable, netdev, _hca, _network in RAILS:
        assert (links[netdev]["operstate"], links[netdev]["mtu"]) == ("UP", 1500)
        assert [a["local"] for a in links[netdev]["addr_info"] if a["family"] == "inet"] == []
    assert [a["local"] for a in links["enP7s7"]["addr_info"] if a["family"] == "inet"] == [f"10.0.2.{10 + node}"]
    assert [route["dev"] for route in json.loads(lab.on(node, "ip -j route show default"))] == ["enP7s7"]


@pytest.mark.parametrize("node", NODES)
def test_soft_roce_devices_have_a_sparks_names_in_any_order(lab: VmLab, node: int) -> None:
    links = json.loads(lab.on(node, "rdma -j link"))
    assert {(link["ifname"], link["netdev"], link["state"]) for link in links} == {(hca, netdev, "ACTIVE") for _c, netdev, hca, _n in RAILS}


@pytest.mark.parametrize("node", NODES)
def test_time_passes_as_on_the_host(lab: VmLab, node: int) -> None:
    lab.on(node, "true")  # opens the connection, so that it is not in the measure
    started, before = time.monotonic(), float(lab.on(node, "cut -d' ' -f1 /proc/uptime"))
    time.sleep(5)
    passed = float(lab.on(node, "cut -d' ' -f1 /proc/uptime")) - before
    assert passed == pytest.approx(time.monotonic() - started, abs=3)
    assert abs(float(lab.on(node, "date +%s")) - time.time()) < 5


@pytest.fixture(scope="module")
def addressed(lab: VmLab) -> VmLab:
    """Rails with addresses and MTU 9000, set without a role."""
    for node in NODES:
        lab.on(node, "; ".join(f"ip link set {netdev} mtu 9000; ip addr replace {net}.1{node}/24 dev {netdev}" for _c, netdev, _h, net in RAILS))
    return lab


def test_rails_are_joined_and_carry_jumbo_frames(addressed: VmLab) -> None:
    for _cable, netdev, _hca, net in RAILS:
        addressed.on(1, f"ping -I {netdev} -c 2 -i 0.2 -W 5 -M do -s 8972 {net}.12")


def test_the_ipv4_gid_stands_at_index_1(addressed: VmLab) -> None:
    for _cable, _netdev, hca, net in RAILS:
        port = f"/sys/class/infiniband/{hca}/ports/1"
        last = bytes(int(part) for part in f"{net}.11".split(".")).hex()
        gid, kind = addressed.on(1, f"cat {port}/gids/1 {port}/gid_attrs/types/1").splitlines()
        assert gid.replace(":", "") == f"00000000000000000000ffff{last}"
        assert kind == "RoCE v2"
        unused = addressed.try_on(1, f"cat {port}/gid_attrs/types/9")
        assert unused.returncode != 0
        assert "Invalid argument" in unused.stderr


def test_rdma_writes_flow_between_the_nodes(addressed: VmLab) -> None:
    # The kernel's count of packets is the proof: on a loaded host the tool's own figure can be rounded to 0.
    received = "cat /sys/class/infiniband/rocep1s0f0/ports/1/hw_counters/rcvd_pkts"
    before = int(addressed.on(2, received))
    # systemd ends the server should the client never come.
    addressed.on(2, "systemd-run --quiet --unit bw-server --collect -p RuntimeMaxSec=60 ib_write_bw -d rocep1s0f0 -x 1 -n 500 -F")
    time.sleep(3)
    table = addressed.on(1, "ib_write_bw -d rocep1s0f0 -x 1 -n 500 -F --report_gbits 192.168.200.12")
    assert any(line.split()[:2] == ["65536", "500"] for line in table.splitlines()), table
    assert int(addressed.on(2, received)) - before >= 500 * 65536 // 4096


def test_a_container_gets_unlimited_memlock_and_the_verbs_devices(addressed: VmLab) -> None:
    output = addressed.on(1, "docker run --rm --network none --ulimit memlock=-1 --device /dev/infiniband gb10-lab/probe sh -c 'ulimit -l; ls /dev/infiniband'")
    assert output.splitlines()[0] == "unlimited"
    assert {"uverbs0", "uverbs1"} <= set(output.splitlines()[1:])


def test_a_pulled_cable_takes_the_carrier_at_both_ends(addressed: VmLab) -> None:
    carriers = "cat /sys/class/net/enp1s0f0np0/carrier /sys/class/net/enP2p1s0f0np0/carrier"
    addressed.cut("rail1")
    try:
        assert [addressed.on(node, carriers).split() for node in NODES] == [["1", "0"], ["1", "0"]]
    finally:
        addressed.heal("rail1")
    assert [addressed.on(node, carriers).split() for node in NODES] == [["1", "1"], ["1", "1"]]


def test_a_node_without_its_management_cable_is_silent_until_it_is_back(addressed: VmLab) -> None:
    addressed.cut("mgmt", 1)
    try:
        with pytest.raises(subprocess.TimeoutExpired):
            addressed.try_on(1, "true", timeout=5)
        assert addressed.on(2, "echo here") == "here"
    finally:
        addressed.heal("mgmt", 1)
    assert addressed.on(1, "echo back") == "back"


def test_a_reboot_comes_back_with_another_boot_and_the_same_disk(addressed: VmLab) -> None:
    """One of the two: both reboot together in tests/acceptance/test_g_machines.py."""
    before = addressed.on(1, "cat /proc/sys/kernel/random/boot_id; touch /var/lib/marked")
    addressed.reboot(1)
    after = addressed.on(1, "cat /proc/sys/kernel/random/boot_id; ls /var/lib/marked").splitlines()
    assert before != after[0]
    assert after[1] == "/var/lib/marked"
    assert addressed.on(1, "swapon --show=NAME --noheadings; findmnt -no TARGET /srv/models; rdma link | wc -l").split() == ["/swap.img", "/srv/models", "2"]


def test_a_power_cut_keeps_what_was_synced(addressed: VmLab) -> None:
    addressed.on(2, "echo kept > /var/lib/synced; sync")
    addressed.reboot(2, hard=True)
    assert addressed.on(2, "cat /var/lib/synced") == "kept"


def test_ansible_reaches_both_by_their_exact_host_keys(lab: VmLab) -> None:
    task = {"name": "who am I", "ansible.builtin.command": "id -un", "become": True, "changed_when": False}
    play = [{"hosts": "gb10", "gather_facts": False, "tasks": [task]}]
    (lab.folder / "who.yml").write_text(yaml.safe_dump(play), encoding="utf-8")
    strict = {"ANSIBLE_HOST_KEY_CHECKING": "true"}
    run = lab.play("who.yml", project=lab.folder, env=strict)
    assert run.rc == 0, run.stdout[-3000:]
    assert {host for host, _end in run.tasks("who am I")} == set(lab.hosts)
