"""_fabric/commit_confirm.py: the restore script is run for real, in a folder, with stand-ins for ip, systemctl, networkctl and nmcli."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import commit_confirm
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.commit_confirm import Interface, Snapshot


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

    def run(self, snapshot: Snapshot, why: str) -> None:
        text = commit_confirm.restore_script(snapshot)
        for prefix in ("/var/lib/gb10-cluster", "/etc/", "/proc/sys/"):
            text = text.replace(prefix, f"{self.root}{prefix}")
        text = text.replace("PATH=/usr/sbin", f"PATH={self.root}/bin:/usr/sbin")
        script = self.root / "restore.sh"
        script.write_text(text)
        subprocess.run(["sh", str(script), why], check=True)

    def pending(self, files: dict[str, str]) -> None:
        folder = self.path(commit_confirm.PENDING) / "files"
        folder.mkdir(parents=True)
        for name, text in files.items():
            (folder / name).write_text(text)


RAIL = Interface("rail0", True, 1500, ("192.168.100.10/24",))
MANAGEMENT = Interface("enP7s7", True, 1500, ("10.0.1.60/24",), ("default via 10.0.1.1 dev enP7s7 metric 100",))


@pytest.fixture
def box(tmp_path: Path) -> Sandbox:
    return Sandbox(tmp_path)


def test_files_values_rails_and_management_come_back(box: Sandbox) -> None:
    ours, theirs = "/etc/netplan/60-gb10-cluster.yaml", "/etc/netplan/40-cx7.yaml"
    value = "/proc/sys/net/ipv4/conf/rail0/arp_ignore"
    box.pending({"aa": "theirs\n"})
    for path, text in ((ours, "ours\n"), (value, "1\n"), (commit_confirm.BOOT_UNIT, "x"), (commit_confirm.BOOT_WANTS, "x")):
        box.path(path).parent.mkdir(parents=True, exist_ok=True)
        box.path(path).write_text(text)
    box.run(Snapshot({ours: None, theirs: "aa"}, {value: "0", "/proc/sys/none": "1"}, [RAIL], [MANAGEMENT], 120, "write it"), "timer")
    assert not box.path(ours).exists()
    assert box.path(theirs).read_text() == "theirs\n"
    assert box.path(value).read_text() == "0\n"
    assert not box.path("/proc/sys/none").exists()
    assert not box.path(commit_confirm.BOOT_UNIT).exists()
    assert not box.path(commit_confirm.BOOT_WANTS).exists()
    assert not box.path(commit_confirm.PENDING).exists()
    assert not box.path(commit_confirm.RESTORING).exists()
    calls = box.calls.read_text().splitlines()
    assert "networkctl reload" in calls
    assert "nmcli connection reload" in calls
    assert "ip addr del 10.9.9.9/24 dev rail0" in calls
    assert "ip addr del 192.168.100.10/24 dev rail0" not in calls
    assert "ip addr add 10.0.1.60/24 brd + dev enP7s7" in calls
    assert "ip route replace default via 10.0.1.1 dev enP7s7 metric 100" in calls
    assert not [call for call in calls if "daemon-reload" in call or "netplan" in call]


def test_two_unconfirmed_changes_merge_into_what_stood_before_the_first() -> None:
    first = Snapshot({"/a": None, "/b": "bb"}, {"/proc/sys/x": "0"}, [RAIL], [MANAGEMENT], 120, "write /a")
    later = [Interface("rail0", True, 9000, ("192.168.100.11/24",)), Interface("rail1", False, 1500)]
    second = Snapshot({"/a": "aa", "/c": "cc"}, {"/proc/sys/x": "1", "/proc/sys/y": "2"}, later, [MANAGEMENT], 60, "write /c")
    record = commit_confirm.snapshot_of(json.loads(commit_confirm.snapshot_text(first)))
    assert record == first
    assert commit_confirm.merge_snapshots(record, second) == Snapshot(
        {"/a": None, "/b": "bb", "/c": "cc"},
        {"/proc/sys/x": "0", "/proc/sys/y": "2"},
        [RAIL, later[1]],
        [MANAGEMENT],
        60,
        "write /a; write /c",
    )


@pytest.mark.parametrize(("why", "words"), [("timer", "within 120 s"), ("boot", "restarted before"), ("by hand", "by hand")])
def test_the_record_has_time_and_reason(box: Sandbox, why: str, words: str) -> None:
    box.pending({})
    box.run(Snapshot({}, {}, [], [], 120, "write 'it' 100 %"), why)
    record = json.loads(box.path(commit_confirm.RESTORED).read_text())
    sentence = commit_confirm.restored_sentence(record)
    assert words in sentence
    assert "write 'it' 100 %" in sentence
    assert record["when"].endswith("Z")


def test_a_confirmed_change_is_not_taken_back(box: Sandbox) -> None:
    box.path("/etc").mkdir()
    kept = box.path("/etc/kept")
    kept.write_text("new")
    box.run(Snapshot({"/etc/kept": None}), "timer")
    assert kept.read_text() == "new"
    assert not box.path(commit_confirm.RESTORED).exists()


def test_names_with_shell_characters_are_only_names(box: Sandbox) -> None:
    evil = "/etc/netplan/a b;touch${IFS}x.yaml"
    box.path("/etc/netplan").mkdir(parents=True)
    box.path(evil).write_text("x")
    box.pending({})
    box.run(Snapshot({evil: None}), "timer")
    assert not box.path(evil).exists()
    assert not (Path(os.getcwd()) / "x").exists()


def test_the_boot_unit_runs_only_while_a_change_is_pending() -> None:
    text = commit_confirm.boot_unit()
    assert f"ConditionPathExists=|{commit_confirm.PENDING}/restore.sh" in text
    assert f"ConditionPathExists=|{commit_confirm.RESTORING}/restore.sh" in text
    assert "restore.sh boot" in text


def test_the_baseline_keeps_what_was_recorded_first() -> None:
    first = commit_confirm.merge_baseline(None, {"/proc/sys/a": "0"}, [RAIL], {"/etc/netplan/40-cx7.yaml": "/root/x"})
    later = commit_confirm.merge_baseline(first, {"/proc/sys/a": "1", "/proc/sys/b": "2"}, [Interface("rail0", True, 9000, ("1.2.3.4/24",))], {})
    assert later["sysctls"] == {"/proc/sys/a": "0", "/proc/sys/b": "2"}
    assert later["rails"]["rail0"] == {"up": True, "mtu": 1500, "addresses": ["192.168.100.10/24"]}
    assert later["moves"] == {"/etc/netplan/40-cx7.yaml": "/root/x"}
