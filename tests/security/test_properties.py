"""What held when the collection was reviewed (README.md lists all fifteen), and hostile values of sysctl: what has no test elsewhere."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import Device, RailConfig, read_files
from ansible_collections.gb10.cluster.plugins.module_utils._node import settings
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look

REPO = Path(__file__).resolve().parents[2]
RAIL = "enp1s0f0np0"
WIFI = f"""network:
  version: 2
  ethernets:
    {RAIL}: {{dhcp4: true}}
  wifis:
    wlP9s9:
      access-points:
        home: {{password: "s3cretWIFI"}}
        work: {{auth: {{key-management: eap, password: s3cretEAP, client-key-password: s3cretKEY}}}}
"""
KEYFILE = f"[connection]\nid=w\ninterface-name={RAIL}\n[wifi-security]\npsk=s3cretPSK\n[802-1x]\npassword=s3cretEAP\n"
FILES = {
    "mapping": ("etc/netplan/50-x.yaml", WIFI),
    "flow mapping without end": ("etc/netplan/50-x.yaml", WIFI.replace('"s3cretWIFI"}', '"s3cretWIFI"')),
    "text without end": ("etc/netplan/50-x.yaml", WIFI.replace('"s3cretWIFI"', '"s3cretWIFI')),
    "anchor": ("etc/netplan/50-x.yaml", WIFI.replace('"s3cretWIFI"', "&a s3cretWIFI")),
    "keyfile": ("etc/NetworkManager/system-connections/w.nmconnection", KEYFILE),
    "keyfile without sections": ("etc/NetworkManager/system-connections/w.nmconnection", f"psk=s3cretPSK\n{RAIL}"),
}


@pytest.mark.parametrize("policy", ["refuse", "adopt", "replace"])
@pytest.mark.parametrize("form", FILES)
def test_a_secret_of_the_network_configuration_leaves_the_file_nowhere(form: str, policy: str) -> None:
    path, text = FILES[form]
    devices = [Device(RAIL, "4c:bb:47:00:00:01", "mlx5_core"), Device("wlP9s9")]
    read = read_files({path: text}, devices)
    plan = netplan.plan([RailConfig(RAIL, "192.168.100.10/24", 9000)], read, policy, "networkd")
    facts = json.dumps([item.as_dict() for item in read])
    assert read
    assert "s3cret" not in facts + repr(plan)


@pytest.mark.parametrize(
    ("text", "keys"),
    [
        ("ssh-ed25519 AAAA root@one\n", ["ssh-ed25519 AAAA"]), ("ssh-ed25519 AAAA\nssh-ed25519 BBBB", []), ('command="x" ssh-ed25519 AAAA', []),
        ("ssh-ed25519 AA AA\x0bssh-rsa BB", ["ssh-ed25519 AA"]), ("ssh-dss AAAA", []), ("", []),
    ],
)  # fmt: skip
def test_a_host_key_is_one_line_without_options(tmp_path: Path, text: str, keys: list[str]) -> None:
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_x_key.pub").write_text(text, encoding="utf-8")
    assert look.host_keys(Node(str(tmp_path))) == keys


def test_the_unit_bounds_the_agent_and_survives_a_command_that_the_kernel_ends() -> None:
    lines = (REPO / "roles/agent/templates/gb10-agent.service.j2").read_text(encoding="utf-8").splitlines()
    assert {"MemoryMax=2G", "TasksMax=512", "OOMPolicy=continue", "OOMScoreAdjust=-900"} <= set(lines)


def test_the_labs_accept_keys_from_this_machine_only() -> None:
    paths = ("lab/container/images/setup-node.sh", "lab/vm/guest/files/etc/ssh/sshd_config.d/10-vmlab.conf")
    texts = [(REPO / path).read_text(encoding="utf-8") for path in paths]
    assert all("PasswordAuthentication no" in text for text in texts)
    published = re.findall(r'"--publish", f?"([^"]*)"', "\n".join(path.read_text(encoding="utf-8") for path in (REPO / "lab").rglob("*.py")))
    assert published
    assert all(each.startswith("127.0.0.1:") for each in published)


def test_a_sysctl_value_stays_on_one_line() -> None:
    text = settings.render_sysctls(settings.desired_sysctls({"vm.x": "0\nkernel.core_pattern = |/x"}, "leave", "keep"))
    assert (text or "").splitlines()[1:] == ["vm.x = 0 kernel.core_pattern = |/x"]
