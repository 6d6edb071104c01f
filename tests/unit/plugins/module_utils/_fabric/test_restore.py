"""_fabric/restore.py: save and restore are run for real, in a network namespace, with stand-ins for the services."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import restore
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.restore import Interface, Live

RAILS = ["rail0", "rail1"]  # rail1 has no carrier
NAMESPACE = ["unshare", "--user", "--map-root-user", "--net"]
BEFORE = """
ip link add rail0 type veth peer name mgmt0
ip link set rail0 up
ip link set mgmt0 up
ip addr add 192.168.100.10/24 brd + dev rail0
ip addr add 10.0.1.60/24 brd + dev mgmt0
ip route add 10.50.0.0/16 via 192.168.100.1 dev rail0
ip route add default via 10.0.1.1 dev mgmt0 metric 100
ip link add rail1 type veth peer name off1
ip link set rail1 up
ip addr add 192.168.101.10/24 brd + dev rail1
ip addr add 10.77.0.1/32 dev lo
ip route add 10.60.0.0/16 via 192.168.101.1 dev rail1 src 10.77.0.1
ip route add 10.70.0.0/16 via 192.168.101.1 dev rail1
"""
CHANGE = """
ip link set rail0 mtu 9000
ip addr flush dev mgmt0
ip addr flush dev rail0
ip addr add 10.9.9.9/24 dev rail0
ip link set mgmt0 down
ip addr del 10.77.0.1/32 dev lo
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for tool in ("systemctl", "networkctl", "nmcli", "sleep", "sysctl", "timeout"):
        body = 'shift; exec "$@"' if tool == "timeout" else f'echo {tool} "$@" >> {tmp_path}/calls'
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    return tmp_path


def script_of(box: Path, *state: Any) -> Path:
    text = restore.restore_script(*state).replace("/var/lib/gb10-cluster", f"{box}/var").replace("PATH=", f"PATH={box}/bin:")
    (box / "restore.sh").write_text(text)
    return box / "restore.sh"


@pytest.mark.skipif(
    shutil.which("ip") is None or subprocess.run([*NAMESPACE, "ip", "link", "add", "a0", "type", "veth"], capture_output=True, check=False).returncode != 0,
    reason="no network namespace",
)
def test_files_values_rails_and_management_come_back(box: Path) -> None:
    pending, evil, theirs = box / "var/roce/pending", box / "a b;touch${IFS}x.yaml", box / "40-cx7.yaml"
    pending.mkdir(parents=True)
    evil.write_text("ours")
    (pending / "copy1").write_text("theirs\n")
    (pending / "record.json").write_text(json.dumps({"when": "@WHEN@", "message": "At @WHEN@ (write 'it' 100 %).@LOST@"}))
    script = script_of(box, {str(evil): None, str(theirs): "copy1"}, [Interface(name, True, 1500, ()) for name in RAILS], ["mgmt0"])
    save = "\n".join(restore.save_commands(RAILS, ["mgmt0"]))
    steps = f"set -e\n{BEFORE}\ncd {pending}\n{save}\n{CHANGE}\nsh {script}\ncat {box}/var/roce/restore.log >&2\nip -br -4 addr\nip link show rail0\nip route"
    done = subprocess.run([*NAMESPACE, "sh", "-c", steps], capture_output=True, text=True, check=True)
    assert "192.168.100.10/24" in done.stdout, done.stderr
    assert "10.9.9.9" not in done.stdout
    assert "10.0.1.60/24" in done.stdout
    assert "mtu 1500" in done.stdout
    assert "default via 10.0.1.1 dev mgmt0 metric 100" in done.stdout
    assert "10.50.0.0/16 via 192.168.100.1 dev rail0" in done.stdout
    assert "10.70.0.0/16 via 192.168.101.1 dev rail1 linkdown" in done.stdout, "after a route that the kernel refuses"
    assert (evil.exists(), theirs.read_text(), pending.exists()) == (False, "theirs\n", False)
    calls = (box / "calls").read_text().splitlines()
    assert {"networkctl reload", "nmcli connection reload", "sysctl -e -q -p sysctl.conf"} <= set(calls)
    record = json.loads((box / "var/roce/restored.json").read_text())
    refused = "10.60.0.0/16 via 192.168.101.1 src 10.77.0.1 dev rail1;"
    assert record["message"] == f"At {record['when']} (write 'it' 100 %). Not restored, because the kernel refused them, are these routes: {refused}"


def test_a_confirmed_change_is_not_taken_back(box: Path) -> None:
    (box / "kept").write_text("new")
    subprocess.run(["sh", str(script_of(box, {str(box / "kept"): None}, [], []))], check=True, capture_output=True)
    assert ((box / "kept").read_text(), (box / "calls").exists()) == ("new", False)


def test_only_kernel_values_that_can_be_written_are_saved() -> None:
    names = {Path(path).name for path in Live.sysctls(object.__new__(Live), ["lo"])}
    assert "arp_ignore" in names
    assert "mc_forwarding" not in names
