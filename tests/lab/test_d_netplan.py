"""What netplan itself generates, and whether a configuration without a file of others is the same for all interfaces but the rails."""

from __future__ import annotations

import json
import subprocess

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.foreign import other_changes
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Device
from container_lab import Lab

RAILS = ["enp1s0f0np0", "enP2p1s0f0np0"]
DEVICES = [Device(name) for name in (*RAILS, "enP7s7", "wlan0")]
HEAD = "network:\n  version: 2\n"
MANAGEMENT = HEAD + "  ethernets:\n    enP7s7: {dhcp4: true}\n"
WIFI = HEAD + "  renderer: NetworkManager\n  wifis:\n    wlan0:\n      dhcp4: true\n      access-points:\n        home: {password: topsecret99}\n"
THEIRS = HEAD + "  ethernets:\n    enp1s0f0np0: {addresses: [10.0.0.1/24], mtu: 9000}\n    enP2p1s0f0np0: {addresses: [10.0.1.1/24]}\n"
OURS = HEAD + "  ethernets:\n    enp1s0f0np0: {addresses: [192.168.200.11/24], mtu: 9000}\n    enP2p1s0f0np0: {addresses: [192.168.201.11/24], mtu: 9000}\n"
ALIAS = HEAD + "  ethernets:\n    enP7s7: &m {dhcp4: true}\n    enp1s0f0np0: *m\n"
RENDERER = HEAD + "  renderer: NetworkManager\n  ethernets:\n    enp1s0f0np0: {addresses: [10.0.0.1/24]}\n"

GENERATE = r"""
import json, os, pathlib, subprocess, sys, tempfile
out = []
for files in json.load(sys.stdin):
    root = tempfile.mkdtemp()
    folder = pathlib.Path(root, "etc/netplan")
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o600)
    subprocess.run(["netplan", "generate", "--root-dir", root], check=True)
    found = {}
    for place in pathlib.Path(root).rglob("*"):
        path = str(place)[len(root):]
        if place.is_symlink():
            found[path] = "-> " + os.readlink(place).replace(root, "")
        elif place.is_file() and not path.startswith("/etc/netplan/"):
            found[path] = place.read_text()
    out.append(found)
print(json.dumps(out))
"""


@pytest.mark.parametrize(
    ("before", "after", "lost"),
    [
        pytest.param({"01.yaml": MANAGEMENT, "50.yaml": THEIRS}, {"01.yaml": MANAGEMENT, "90.yaml": OURS}, "", id="only rails"),
        pytest.param({"01.yaml": WIFI, "50.yaml": THEIRS}, {"01.yaml": WIFI, "90.yaml": OURS}, "", id="only rails, and a Wi-Fi"),
        pytest.param({"50.yaml": THEIRS + "    enP7s7: {dhcp4: true}\n"}, {"90.yaml": OURS}, "10-netplan-enP7s7.network", id="shared with management"),
        pytest.param({"50.yaml": ALIAS}, {"90.yaml": OURS}, "10-netplan-enP7s7.network", id="an alias"),
        pytest.param({"01.yaml": WIFI, "50.yaml": THEIRS}, {"90.yaml": OURS}, "netplan-wlan0-home.nmconnection", id="a Wi-Fi"),
        pytest.param({"01.yaml": MANAGEMENT, "50.yaml": RENDERER}, {"01.yaml": MANAGEMENT, "90.yaml": OURS}, "enP7s7", id="the renderer of all"),
    ],
)
def test_netplan_generates_the_same_for_other_interfaces_or_the_change_is_found(lab: Lab, before: dict[str, str], after: dict[str, str], lost: str) -> None:
    assert lab
    done = subprocess.run(
        ["docker", "exec", "-i", "gb10-lab-1", "python3", "-c", GENERATE], input=json.dumps([before, after]), capture_output=True, text=True, check=True
    )
    generated_before, generated_after = json.loads(done.stdout)
    changed = other_changes(generated_before, generated_after, RAILS, DEVICES)
    assert bool(changed) == bool(lost), changed
    assert any(lost in path for path in changed) or not lost
    assert "topsecret99" not in "".join(changed)
