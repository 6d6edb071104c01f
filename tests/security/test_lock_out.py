"""The roce role does not lock the owner out: H6 (policy `replace`)."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.foreign import other_changes
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Device, RailConfig

RAIL = "enp1s0f0np0"
RAILS = [RailConfig(RAIL, "192.168.100.10/24", 9000)]
DEVICES = [Device(RAIL, "4c:bb:47:00:00:01", "mlx5_core"), Device("enP7s7"), Device("wlP9s9")]
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
    "vrf": f"{HEAD}  ethernets:\n    {RAIL}: {{}}\n  vrfs:\n    blue: {{table: 100, interfaces: [enP7s7]}}\n",
}


@pytest.mark.parametrize("form", FORMS)
def test_replace_refuses_a_file_that_is_not_understood_or_configures_others(form: str) -> None:
    plan = netplan.plan(RAILS, netplan.read_files({"etc/netplan/50-x.yaml": FORMS[form]}, DEVICES[:1]), "replace", "networkd")
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
    plan = netplan.plan(RAILS, netplan.read_files({path: text, "etc/netplan/40-cx7.yaml": rail}, DEVICES[:1]), "replace", "networkd")
    assert (plan.text, plan.moves) == (None, ())
    assert [f"/{path} configures {RAIL} and is not a netplan file in /etc" in line for line in plan.refusals] == [True]
    refused = netplan.plan(RAILS, netplan.read_files({path: text}, DEVICES[:1]), "refuse", "networkd")
    assert "replace" not in refused.refusals[0]


@pytest.mark.parametrize("policy", ["refuse", "adopt"])
def test_replace_is_not_proposed_for_a_file_that_is_not_understood(policy: str) -> None:
    plan = netplan.plan(RAILS, netplan.read_files({"etc/netplan/50-x.yaml": FORMS["anchor"]}, DEVICES[:1]), policy, "networkd")
    assert "line 4: anchors, aliases and tags are not supported" in plan.refusals[0]
    assert "replace" not in plan.refusals[0]


NETWORK, NM = "/run/systemd/network", "/run/NetworkManager"
OTHER = {f"{NETWORK}/10-netplan-enP7s7.network": "[Match]\nName=enP7s7\n\n[Network]\nDHCP=yes\n"}
THEIRS = {f"{NETWORK}/10-netplan-cx7.network": f"[Match]\nName={RAIL}\n\n[Network]\nAddress=10.0.0.1/24\n", f"{NETWORK}/10-netplan-cx7.link": "[Match]\n"}
OURS = {f"{NM}/system-connections/netplan-{RAIL}.nmconnection": f"[connection]\ninterface-name={RAIL}\n"}
SHARED = f"{NM}/conf.d/netplan.conf"
WPA = "/run/netplan/wpa-wlP9s9.conf"
WAIT = "/run/systemd/system/systemd-networkd-wait-online.service.d/10-netplan.conf"


@pytest.mark.parametrize(
    ("before", "after", "changed"),
    [
        (OTHER | THEIRS, OTHER | OURS, []),
        (OTHER | THEIRS, OURS, [f"{NETWORK}/10-netplan-enP7s7.network"]),
        (OTHER | THEIRS, {next(iter(OTHER)): "[Match]\nName=enP7s7\n"} | OURS, [f"{NETWORK}/10-netplan-enP7s7.network"]),
        (THEIRS, OTHER | OURS, [f"{NETWORK}/10-netplan-enP7s7.network"]),
        (
            THEIRS | {SHARED: f"[keyfile]\nunmanaged-devices+=interface-name:enP7s7,interface-name:{RAIL},\n"},
            OURS | {SHARED: "[keyfile]\nunmanaged-devices+=interface-name:enP7s7,\n"},
            [],
        ),
        (
            THEIRS | {SHARED: f"[keyfile]\nunmanaged-devices+=interface-name:enP7s7,interface-name:{RAIL},\n"},
            OURS | {SHARED: "[keyfile]\nunmanaged-devices+=interface-name:wlP9s9,\n"},
            [SHARED],
        ),
        (THEIRS | {SHARED: f"[keyfile]\nunmanaged-devices+=interface-name:{RAIL},\n"}, OURS, []),
        (
            THEIRS | {WAIT: f"[Service]\nExecStart=/x -i enP7s7:degraded -i {RAIL}:degraded\n"},
            OURS | {WAIT: "[Service]\nExecStart=/x -i enP7s7:degraded\n"},
            [],
        ),
        (THEIRS | {f"{NM}/conf.d/10-globally-managed-devices.conf": ""}, OURS, [f"{NM}/conf.d/10-globally-managed-devices.conf"]),
        (THEIRS | {WPA: "psk=s3cretWIFI\n"}, OURS, [WPA]),
        (THEIRS | {f"{NETWORK}/10-netplan-all.network": "[Match]\nName=en*\n"}, OURS, [f"{NETWORK}/10-netplan-all.network"]),
        (THEIRS | {"/run/udev/rules.d/99-netplan-enP7s7.rules": "x"}, OURS, ["/run/udev/rules.d/99-netplan-enP7s7.rules"]),
    ],
)
def test_a_change_of_generated_files_of_other_interfaces_is_found(before: dict[str, str], after: dict[str, str], changed: list[str]) -> None:
    assert other_changes(before, after, [RAIL], DEVICES) == changed
