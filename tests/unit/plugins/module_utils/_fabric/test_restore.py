"""_fabric/restore.py: the restore script is run for real, in a folder, with stand-ins for ip, systemctl, networkctl and nmcli."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import restore
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.live import Interface

RAIL = Interface("rail0", True, 1500, ("192.168.100.10/24",))
MANAGEMENT = Interface("enP7s7", True, 1500, ("10.0.1.60/24",), ("default via 10.0.1.1 dev enP7s7 metric 100", "10.9.0.0/16 via $(id);x"))


class Sandbox:
    """The script's absolute paths moved below a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.calls = root / "calls"
        (root / "bin").mkdir()
        for tool in ("ip", "systemctl", "networkctl", "nmcli", "sleep", "timeout"):
            body = 'shift; exec "$@"' if tool == "timeout" else f'echo {tool} "$@" >> {self.calls}'
            if tool == "ip":
                shown = 'echo "5: rail0 inet 192.168.100.10/24 brd x"; echo "5: rail0 inet 10.9.9.9/24 brd x"'
                body += f'\ncase "$*" in *"-o -4 addr show dev rail0"*) {shown};; esac'
            (root / "bin" / tool).write_text(f"#!/bin/sh\n{body}\n")
            (root / "bin" / tool).chmod(0o755)

    def path(self, absolute: str) -> Path:
        return self.root / absolute.lstrip("/")

    def run(self, *state: Any) -> None:
        text = restore.restore_script(*state)
        for prefix in ("/var/lib/gb10-cluster", "/etc/", "/proc/sys/"):
            text = text.replace(prefix, f"{self.root}{prefix}")
        text = text.replace("PATH=/usr/sbin", f"PATH={self.root}/bin:/usr/sbin")
        script = self.root / "restore.sh"
        script.write_text(text)
        subprocess.run(["sh", str(script)], check=True)

    def pending(self, copies: dict[str, str]) -> None:
        folder = self.path(restore.PENDING)
        folder.mkdir(parents=True)
        for name, text in {"record.json": json.dumps({"when": "@WHEN@", "message": "At @WHEN@ (write 'it' 100 %)."}), **copies}.items():
            (folder / name).write_text(text)


@pytest.fixture
def box(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_files_values_rails_and_management_come_back(box: Sandbox) -> None:
    ours, theirs = "/etc/netplan/60-gb10-cluster.yaml", "/etc/netplan/40-cx7.yaml"
    value = "/proc/sys/net/ipv4/conf/rail0/arp_ignore"
    box.pending({"copy1": "theirs\n"})
    for path, text in ((ours, "ours\n"), (value, "1\n")):
        box.path(path).parent.mkdir(parents=True, exist_ok=True)
        box.path(path).write_text(text)
    box.run({ours: None, theirs: "copy1"}, {value: "0", "/proc/sys/none": "1"}, [RAIL], [MANAGEMENT])
    assert not box.path(ours).exists()
    assert box.path(theirs).read_text() == "theirs\n"
    assert box.path(value).read_text() == "0\n"
    assert not box.path("/proc/sys/none").exists()
    assert not box.path(restore.PENDING).exists()
    assert not box.path(restore.RESTORING).exists()
    calls = box.calls.read_text().splitlines()
    assert "networkctl reload" in calls
    assert "nmcli connection reload" in calls
    assert "ip addr del 10.9.9.9/24 dev rail0" in calls
    assert "ip addr del 192.168.100.10/24 dev rail0" not in calls
    assert "ip addr add 10.0.1.60/24 brd + dev enP7s7" in calls
    assert "ip route replace default via 10.0.1.1 dev enP7s7 metric 100" in calls
    assert "ip route replace 10.9.0.0/16 via $(id);x" in calls
    assert not [call for call in calls if "daemon-reload" in call or "netplan" in call]
    record = json.loads(box.path(restore.RESTORED).read_text())
    assert record["message"] == f"At {record['when']} (write 'it' 100 %)."
    assert record["when"].endswith("Z")


def test_a_confirmed_change_is_not_taken_back(box: Sandbox) -> None:
    box.path("/etc").mkdir()
    kept = box.path("/etc/kept")
    kept.write_text("new")
    box.run({"/etc/kept": None}, {}, [RAIL], [])
    assert kept.read_text() == "new"
    assert not box.path(restore.RESTORED).exists()
    assert not box.calls.exists()


def test_names_with_shell_characters_are_only_names(box: Sandbox) -> None:
    evil = "/etc/netplan/a b;touch${IFS}x.yaml"
    box.path("/etc/netplan").mkdir(parents=True)
    box.path(evil).write_text("x")
    box.pending({})
    box.run({evil: None}, {}, [], [])
    assert not box.path(evil).exists()
    assert not (Path(os.getcwd()) / "x").exists()
