"""The roce role does not lock the owner out: H6 (policy `replace`)."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Device, RailConfig, read_files

RAIL = "enp1s0f0np0"
RAILS = [RailConfig(RAIL, "192.168.100.10/24", 9000)]
DEVICES = [Device(RAIL, "4c:bb:47:00:00:01", "mlx5_core")]
LIVE = [Device("enP7s7", "4c:bb:47:00:00:07", "r8127"), Device("wlP9s9")]
HEAD = "network:\n  version: 2\n"
#: Valid netplan files that configure the rail and another interface.
FORMS = {
    "anchor": f"{HEAD}  ethernets:\n    enP7s7: &a\n      dhcp4: true\n    {RAIL}: *a\n",
    "merge key": f"{HEAD}  ethernets:\n    enP7s7: &a\n      dhcp4: true\n    {RAIL}:\n      <<: *a\n",
    "merge key without anchor": f"{HEAD}  ethernets:\n    <<: {{enP7s7: {{dhcp4: true}}}}\n    {RAIL}: {{}}\n",
    "block scalar": f"{HEAD}  ethernets:\n    {RAIL}: {{}}\n  wifis:\n    wlP9s9:\n      access-points:\n"
    "        home:\n          password: >-\n            s3cretWIFI\n",
    "key of a mapping": f"{HEAD}  ethernets:\n    ? enP7s7\n    : dhcp4: true\n    ? {RAIL}\n    : dhcp4: true\n",
    "tag": f"{HEAD}  ethernets: !!map\n    enP7s7:\n      dhcp4: true\n    {RAIL}: {{}}\n",
    "tagged text": f"{HEAD}  ethernets:\n    !!str enP7s7: {{dhcp4: true}}\n    {RAIL}: {{}}\n",
    "two documents": f"{HEAD}  ethernets:\n    {RAIL}: {{}}\n---\n{HEAD}  ethernets:\n    enP7s7: {{dhcp4: true}}\n",
    "duplicate section": f"{HEAD}  ethernets:\n    enP7s7: {{}}\n  ethernets:\n    {RAIL}: {{}}\n",
    "tab": f"network:\n\tethernets:\n    {RAIL}: {{}}\n",
    "tunnel": f"{HEAD}  ethernets:\n    {RAIL}: {{}}\n  tunnels:\n    wg0: {{mode: wireguard, key: s3cretWG}}\n",
    "glob": f"{HEAD}  ethernets:\n    all: {{match: {{name: 'en*'}}, dhcp4: true}}\n",
    "drivers": f"{HEAD}  ethernets:\n    all: {{match: {{driver: [mlx5_core, r8127]}}, dhcp4: true}}\n",
    "empty match": f"{HEAD}  ethernets:\n    all: {{match: {{}}, dhcp4: true}}\n",
    "renderer of all": f"{HEAD}  renderer: NetworkManager\n  ethernets:\n    {RAIL}: {{}}\n",
    "vrf": f"{HEAD}  ethernets:\n    {RAIL}: {{}}\n  vrfs:\n    blue: {{table: 100, interfaces: [enP7s7]}}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_replace_refuses_a_file_that_is_not_understood_or_configures_others(form: str) -> None:
    plan = netplan.plan(RAILS, read_files({"etc/netplan/50-x.yaml": FORMS[form]}, DEVICES, LIVE), "replace", "networkd")
    assert plan.refusals
    assert (plan.text, plan.moves) == (None, ())
    assert "s3cret" not in " ".join(plan.refusals)


#: Files outside of netplan that configure the rail, and the interface of SSH with it or not.
OUTSIDE = {
    "glob of networkd": ("etc/systemd/network/10-all.network", "[Match]\nName=en*\n[Network]\nDHCP=yes\n"),
    "list of networkd": ("etc/systemd/network/10-two.network", f"[Match]\nName=enP7s7 {RAIL}\n[Network]\nDHCP=yes\n"),
    "MAC list of networkd": ("etc/systemd/network/10-mac.network", "[Match]\nMACAddress=4c:bb:47:00:00:01 4c:bb:47:00:00:09\n"),
    "only the rail, of networkd": ("etc/systemd/network/10-rail.network", f"[Match]\nName={RAIL}\n[Network]\nAddress=10.0.0.1/24\n"),
    "glob of NetworkManager": ("etc/NetworkManager/system-connections/all.nmconnection", "[connection]\nid=a\n[match]\ninterface-name=en*\n"),
}


@pytest.mark.parametrize("form", OUTSIDE)
def test_replace_moves_netplan_files_only(form: str) -> None:
    path, text = OUTSIDE[form]
    rail = f"network:\n  version: 2\n  ethernets:\n    {RAIL}: {{mtu: 9000}}\n"
    plan = netplan.plan(RAILS, read_files({path: text, "etc/netplan/40-cx7.yaml": rail}, DEVICES, LIVE), "replace", "networkd")
    assert (plan.text, plan.moves) == (None, ())
    assert [f"/{path} configures {RAIL} and is not a netplan file in /etc" in line for line in plan.refusals] == [True]
    refused = netplan.plan(RAILS, read_files({path: text}, DEVICES, LIVE), "refuse", "networkd")
    assert "replace" not in refused.refusals[0]


@pytest.mark.parametrize("policy", ["refuse", "adopt"])
def test_replace_is_not_proposed_for_a_file_that_is_not_understood(policy: str) -> None:
    plan = netplan.plan(RAILS, read_files({"etc/netplan/50-x.yaml": FORMS["anchor"]}, DEVICES, LIVE), policy, "networkd")
    assert "line 4: anchors, aliases and tags are not supported" in plan.refusals[0]
    assert "replace" not in plan.refusals[0]
