"""_fabric/restore.py: save and restore are run for real, in a network namespace, with stand-ins for the services."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import restore
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.restore import Interface

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
echo 1 >/proc/sys/net/ipv4/conf/rail0/arp_ignore
"""


@pytest.fixture
def box(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    for tool in ("systemctl", "networkctl", "nmcli", "sleep", "timeout"):
        body = 'shift; exec "$@"' if tool == "timeout" else f'echo {tool} "$@" >> {tmp_path}/calls'
        (tmp_path / "bin" / tool).write_text(f"#!/bin/sh\n{body}\n")
        (tmp_path / "bin" / tool).chmod(0o755)
    (tmp_path / "roce/pending").mkdir(parents=True)
    (tmp_path / "restore.sh").write_text(restore.RESTORE.replace("PATH=", f"PATH={tmp_path}/bin:"))
    return tmp_path


needs_namespace = pytest.mark.skipif(
    shutil.which("ip") is None or subprocess.run([*NAMESPACE, "ip", "link", "add", "a0", "type", "veth"], capture_output=True, check=False).returncode != 0,
    reason="no network namespace",
)
REFUSED = "refused it: 10.60.0.0/16 via 192.168.101.1 src 10.77.0.1 dev rail1;"


@needs_namespace
def test_files_values_rails_and_management_come_back(box: Path) -> None:
    pending, evil, theirs = box / "roce/pending", box / "a b;touch${IFS}x.yaml", box / "40-cx7.yaml"
    theirs.write_text("theirs\n")
    theirs.chmod(0o600)
    save = restore.save_commands([Interface(name, True, 1500) for name in RAILS], others=["mgmt0"], files=[str(evil), str(theirs)])
    (pending / "record.json").write_text(json.dumps({"when": "@WHEN@", "message": "At @WHEN@ (write 'it' 100 %).@LOST@"}))
    change = f"{CHANGE}\necho ours >'{evil}'\necho ours >{theirs}\nchmod 644 {theirs}"
    shown = "ip -br -4 addr; ip link show rail0; ip route; cat /proc/sys/net/ipv4/conf/rail0/arp_ignore"
    steps = f"set -e\n{BEFORE}\ncd {pending}\n{save}\n{change}\nsh {box}/restore.sh {pending}\ncat {box}/roce/restore.log >&2\n{shown}"
    done = subprocess.run([*NAMESPACE, "sh", "-c", steps], capture_output=True, text=True, check=True)
    assert "192.168.100.10/24" in done.stdout, done.stderr
    assert "10.9.9.9" not in done.stdout
    assert "10.0.1.60/24" in done.stdout
    assert "mtu 1500" in done.stdout
    assert "default via 10.0.1.1 dev mgmt0 metric 100" in done.stdout
    assert "10.50.0.0/16 via 192.168.100.1 dev rail0" in done.stdout
    assert "10.70.0.0/16 via 192.168.101.1 dev rail1 linkdown" in done.stdout, "after a route that the kernel refuses"
    assert done.stdout.splitlines()[-1] == "0"
    assert (evil.exists(), theirs.read_text(), theirs.stat().st_mode & 0o777, pending.exists()) == (False, "theirs\n", 0o600, False)
    assert {"networkctl reload", "nmcli connection reload"} <= set((box / "calls").read_text().splitlines())
    record = json.loads((box / "roce/restored.json").read_text())
    assert record["message"] == f"At {record['when']} (write 'it' 100 %). Not restored, because the kernel {REFUSED}"


@needs_namespace
def test_an_undo_that_the_kernel_refuses_fails_and_can_be_repeated(box: Path) -> None:
    before, undo = box / "roce/pending", f"sh {box}/restore.sh {box}/roce/pending"
    save = restore.save_commands([Interface(name, True, 1500) for name in RAILS], values=["mgmt0"])
    begin = f"set -e\n{BEFORE}\ncd {before}\n{save}\ncp rail0.addr gone.addr  # an interface that is not there any more\n{CHANGE}\n{undo} && exit 9"
    again = f"ip addr add 10.77.0.1/32 dev lo\nip addr add 192.168.101.9/24 dev rail1\necho mtu 1000000 up >rail0.link\n{undo} && exit 9"
    steps = f"{begin}\n{again}\necho mtu 1500 up >rail0.link\n{undo}\nip -br -4 addr"
    done = subprocess.run([*NAMESPACE, "sh", "-c", steps], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, second = done.stderr.splitlines()[-2:]
    assert (first, second) == (f"not restored, because the kernel {REFUSED}", "not restored, because the kernel refused it: rail0 mtu 1000000 up;")
    assert "192.168.101.9" not in done.stdout
    assert not before.exists()


def test_an_undo_of_kernel_values_alone_has_no_interface_to_restore(box: Path) -> None:
    subprocess.run(["sh", str(box / "restore.sh"), str(box / "roce/pending")], check=True, capture_output=True)
    assert not (box / "roce/pending").exists()


def test_a_confirmed_change_is_not_taken_back(box: Path) -> None:
    (box / "roce/pending").rmdir()
    subprocess.run(["sh", str(box / "restore.sh"), str(box / "roce/pending")], check=True, capture_output=True)
    assert not (box / "calls").exists()
