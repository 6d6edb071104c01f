"""Netplan files: foreign files, policies, refusals, and what is written."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import OWN_PATH, Device, RailConfig, parse_yaml, read_files
from shared_samples import needs_shared, samples

P0, P2 = "enp1s0f0np0", "enP2p1s0f0np0"
DEVICES = [Device(P0, "4c:bb:47:2c:00:01", "mlx5_core"), Device(P2, "4c:bb:47:2c:00:02", "mlx5_core")]
RAILS = [RailConfig(P0, "192.168.100.10/24", 9000), RailConfig(P2, "192.168.101.10/24", 9000)]

# --- files that stand there --------------------------------------------------------------------------------------------------------


def foreign(files: dict[str, str]) -> list[dict[str, Any]]:
    return [item.as_dict() for item in netplan.foreign_files(read_files(files, DEVICES))]


def ethernets(body: str) -> str:
    return "network:\n  version: 2\n  ethernets:\n" + body


CLAIMS: dict[str, tuple[str, list[str]]] = {
    "by id": (ethernets(f"    {P0}:\n      mtu: 9000\n"), [P0]),
    "by match name": (ethernets(f"    NM-1234:\n      match:\n        name: {P0}\n      dhcp4: true\n"), [P0]),
    "by glob": (ethernets("    all-en:\n      match:\n        name: 'en*'\n      dhcp4: true\n"), [P0, P2]),
    "by mac": (ethernets("    x:\n      match:\n        macaddress: '4C:BB:47:2C:00:02'\n"), [P2]),
    "by driver": (ethernets("    x:\n      match:\n        driver: mlx5_*\n"), [P0, P2]),
    "by set-name": (ethernets(f"    x:\n      match: {{macaddress: '00:00:00:00:00:01'}}\n      set-name: {P0}\n"), [P0]),
    "empty match": (ethernets("    NM-1234:\n      match: {}\n      dhcp4: true\n"), [P0, P2]),
    "match that does not fit": (ethernets(f"    {P0}:\n      match: {{macaddress: '00:00:00:00:00:01'}}\n"), []),
    "other interface": (ethernets("    enP7s7:\n      dhcp4: true\n"), []),
    "no interfaces": ("network:\n  version: 2\n  renderer: NetworkManager\n", []),
    "empty map": ("network:\n  version: 2\n  ethernets: {}\n", []),
    "bond member": (f"network:\n  bonds:\n    bond0:\n      interfaces: [{P0}, {P2}]\n", [P0, P2]),
    "broken and names it": (f"network:\n\tethernets:\n\t\t{P0}:\n", [P0]),
    "broken and does not": ("network:\n\tethernets:\n\t\tenP7s7:\n", []),
    "broken, only in a comment": (f"# {P0}\nnetwork:\n\tversion: 2\n", []),
    "longer name": (ethernets(f"    {P0}x:\n      mtu: 9000\n"), []),
    "empty file": ("", []),
}


@pytest.mark.parametrize("case", CLAIMS)
def test_which_interfaces_a_netplan_file_claims(case: str) -> None:
    text, expected = CLAIMS[case]
    found = foreign({"etc/netplan/70-x.yaml": text})
    assert [item["interfaces"] for item in found] == ([expected] if expected else [])


def test_keyfiles_and_networkd_files_count() -> None:
    found = foreign(
        {
            "etc/NetworkManager/system-connections/ring.nmconnection": f"[connection]\nid=ring\ninterface-name={P0}\n[ethernet]\nmtu=9000\n"
            "[ipv4]\naddress1=198.18.0.1/21,198.18.0.9\nmethod=manual\n",
            "etc/NetworkManager/system-connections/old.nmconnection": "[connection]\nid=o\n[802-3-ethernet]\nmac-address=4C:BB:47:2C:00:02\nmtu=1500\n",
            "etc/NetworkManager/system-connections/wifi.nmconnection": "[connection]\nid=w\ninterface-name=wlP9s9\n",
            "etc/systemd/network/10-en.network": "[Match]\nName=en*\n[Network]\nAddress=10.0.0.1/24\n",
            "etc/systemd/network/20-mgmt.network": "[Match]\nName=enP7s7\n[Network]\nDHCP=yes\n",
        }
    )
    assert [(item["kind"], item["interfaces"]) for item in found] == [("NetworkManager", [P2]), ("NetworkManager", [P0]), ("networkd", [P0, P2])]
    assert found[1]["addresses"] == {P0: ["198.18.0.1/21"]}


def test_our_own_file_is_not_foreign_and_neither_is_a_hidden_one() -> None:
    own = netplan.render(RAILS, "networkd")
    assert foreign({OWN_PATH: own}) == []
    assert foreign({"etc/netplan/61-renamed.yaml": own}) == []
    text = ethernets(f"    {P0}:\n      mtu: 9000\n")
    found = foreign({"lib/netplan/70-x.yaml": text, "etc/netplan/70-x.yaml": "network: {version: 2}\n"})
    assert found == []
    assert [item["path"] for item in foreign({"lib/netplan/70-x.yaml": text, "run/netplan/70-x.yaml": text})] == ["/run/netplan/70-x.yaml"]


@needs_shared
def test_real_files_of_other_tools() -> None:
    found = foreign(
        {
            "etc/netplan/40-cx7.yaml": (samples() / "netplan.40-cx7.nvidia-perf-guide.yaml").read_text(),
            "etc/netplan/99-nvidia-sync-cluster.yaml": (samples() / "netplan.99-nvidia-sync-cluster.yaml").read_text(),
        }
    )
    assert [item["addresses"] for item in found] == [{P0: ["192.168.200.12/24"], P2: ["192.168.201.12/24"]}, {P0: ["10.100.32.1/24"], P2: ["10.100.33.1/24"]}]
    assert found[1]["writer"] == "NVIDIA Sync Cluster Assistant"


def test_the_last_global_renderer_counts() -> None:
    files = {
        "etc/netplan/01-a.yaml": "network: {renderer: networkd}\n",
        "etc/netplan/02-b.yaml": "network: {renderer: NetworkManager}\n",
        OWN_PATH: netplan.render(RAILS, "networkd"),
    }
    assert netplan.default_renderer(read_files(files, DEVICES)) == "NetworkManager"
    assert netplan.default_renderer([]) is None


def test_yaml_stays_text_and_what_hides_a_part_of_it_is_refused_with_its_line() -> None:
    text = f"---\n# x\na:\n  {P0}:\n    mac: 11:22:33:44:55:66 # y\n    mtu: 010\n    addresses: [1.2.3.4/24,\n      '1.2.3.5/24']\n  b:\n"
    assert parse_yaml(text) == {"a": {P0: {"mac": "11:22:33:44:55:66", "mtu": "010", "addresses": ["1.2.3.4/24", "1.2.3.5/24"]}, "b": ""}}
    assert (parse_yaml(""), parse_yaml("# nothing\n"), parse_yaml("a: {}\n")) == (None, None, {"a": {}})
    duplicates = ("a: 1\na: 2\n", "a: {b: 1, b: 2}\n")
    for broken in (*duplicates, "a:\n\tb: 2\n", "a: [1, 2\n", "a: &x {b: 1}\n", "a: !!str b\n", "a: 1\n---\nb: 2\n", "? [a]\n: 1\n", "a: \x07\n"):
        with pytest.raises(ValueError, match=r"^line \d+: \w"):
            parse_yaml(broken)


def test_without_pyyaml_a_file_configures_every_rail(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(netplan, "yaml", None)
    found = foreign({"etc/netplan/01-all.yaml": ethernets("    all: {match: {name: 'en*'}}\n")})
    assert (found[0]["interfaces"], found[0]["error"]) == ([P0, P2], "PyYAML is missing on this node: `apt install python3-yaml`")


# --- the plan ----------------------------------------------------------------------------------------------------------------------


def plan(files: dict[str, str], policy: str = "refuse") -> netplan.Plan:
    return netplan.plan(RAILS, read_files(files, DEVICES), policy, "networkd")


def test_without_foreign_files_our_file_is_written() -> None:
    result = plan({})
    assert result.refusals == ()
    data = yaml.safe_load(result.text or "")
    assert list(data["network"]["ethernets"]) == [P0, P2]
    assert data["network"]["ethernets"][P0] == {
        "renderer": "networkd", "dhcp4": False, "dhcp6": False, "accept-ra": False, "link-local": [], "optional": True, "mtu": 9000,
        "addresses": ["192.168.100.10/24"],
    }  # fmt: skip
    assert "renderer" not in data["network"]
    assert (result.text or "").startswith(netplan.MARKER)


THEIRS = {"etc/netplan/40-cx7.yaml": ethernets(f"    {P0}:\n      dhcp4: no\n      addresses: [192.168.200.12/24]\n")}
GOOD = ethernets(f"    {P0}:\n      mtu: 9000\n      addresses: [192.168.100.10/24]\n    {P2}:\n      mtu: 9000\n      addresses: [192.168.101.10/24]\n")


@pytest.mark.parametrize("body", [f"  vlans:\n    fab0: {{id: 7, link: {P0}, ", f"  bonds:\n    fab0: {{interfaces: [{P0}], "])
def test_adopt_keeps_the_file_of_a_named_vlan_or_bond(body: str) -> None:
    files = {"etc/netplan/40-x.yaml": f"network:\n{body}mtu: 9000, addresses: [192.168.100.10/24]}}\n"}
    read = read_files(files, [Device("fab0")])
    rails = [RailConfig("fab0", "192.168.100.10/24", 9000)]
    assert netplan.plan(rails, read, "adopt", "networkd") == netplan.Plan()
    assert "/etc/netplan/40-x.yaml configures fab0: 192.168.100.10/24" in netplan.plan(rails, read, "refuse", "networkd").refusals[0]


def test_adopt_writes_the_rail_that_no_other_file_configures() -> None:
    one = ethernets(f"    {P0}:\n      mtu: 9000\n      addresses: [192.168.100.10/24]\n")
    result = plan({"etc/netplan/40-cx7.yaml": one}, "adopt")
    assert [rail.interface for rail in result.ours] == [P2]
    assert list(yaml.safe_load(result.text or "")["network"]["ethernets"]) == [P2]


def test_replace_moves_their_files_and_writes_ours() -> None:
    files = THEIRS | {"etc/netplan/99-nvidia-sync-cluster.yaml": GOOD}
    result = plan(files, "replace")
    assert result.moves == ("etc/netplan/40-cx7.yaml", "etc/netplan/99-nvidia-sync-cluster.yaml")
    assert result.text == netplan.render(RAILS, "networkd")


def test_replace_moves_no_file_that_also_configures_something_else() -> None:
    shared = ethernets(f"    enP7s7:\n      dhcp4: true\n    {P0}:\n      mtu: 9000\n")
    result = plan({"etc/netplan/50-cloud-init.yaml": shared}, "replace")
    assert "also configures enP7s7" in result.refusals[0]
    assert result.moves == ()
    assert plan({"run/netplan/70-x.yaml": GOOD}, "replace").refusals
    theirs = {"etc/netplan/40-cx7.yaml": GOOD.replace("  ethernets", "  renderer: NetworkManager\n  ethernets")}
    assert "sets the renderer of the other interfaces (NetworkManager)" in plan(theirs, "replace").refusals[0]
    assert plan(theirs | {"etc/netplan/01-network-manager-all.yaml": "network: {renderer: NetworkManager}\n"}, "replace").moves == tuple(theirs)


# --- sysctl ------------------------------------------------------------------------------------------------------------------------


def test_sysctl_lines_use_slashes_so_that_a_vlan_name_is_safe() -> None:
    text = netplan.render_sysctl(netplan.sysctl_values(["enp1s0f0np0.100"], ipv6=False))
    assert text.splitlines() == [
        netplan.MARKER,
        "-net/ipv4/conf/enp1s0f0np0.100/arp_ignore = 1",
        "-net/ipv4/conf/enp1s0f0np0.100/arp_announce = 2",
        "-net/ipv6/conf/enp1s0f0np0.100/disable_ipv6 = 1",
    ]
    assert "ipv6" not in str(netplan.sysctl_values([P0], ipv6=True))
