"""The stamp of an installation counts until something that belongs to it is touched."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent import stamp
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import STAMP

FILES = (
    "opt/gb10-cluster/agent/4f0c/ansible_collections/gb10/cluster/rank.py", "var/lib/gb10-cluster/agent/known_hosts", "var/lib/gb10-agent/.ssh/authorized_keys",
    "etc/gb10-cluster/agent.json", "usr/local/sbin/gb10", "etc/systemd/system/gb10-agent.service", "etc/passwd", "etc/ssh/sshd_config",
)  # fmt: skip


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("text\n")
    wants = tmp_path / "etc/systemd/system/multi-user.target.wants"
    wants.mkdir()
    (wants / "gb10-agent.service").symlink_to("../gb10-agent.service")
    (tmp_path / "opt/gb10-cluster/agent/current").symlink_to("4f0c")
    (tmp_path / STAMP[1:]).write_text(stamp.text("5e1c", 2222, str(tmp_path)))
    return tmp_path


def test_an_untouched_installation_has_its_stamp(root: Path) -> None:
    assert stamp.read(str(root)) == {"stamp": "5e1c", "ssh_port": 2222}
    (root / "opt/gb10-cluster/agent/4f0c/ansible_collections/__pycache__").mkdir()
    (root / "etc/hostname").write_text("spark-1\n")
    assert stamp.read(str(root))["stamp"] == "5e1c"


def relink(root: Path) -> None:
    (root / "opt/gb10-cluster/agent/current").unlink()
    (root / "opt/gb10-cluster/agent/current").symlink_to("5a00")


def add_sshd_settings(root: Path) -> None:
    (root / "etc/ssh/sshd_config.d").mkdir()
    (root / "etc/ssh/sshd_config.d/10-mine.conf").write_text("Port 2222\n")


TOUCHES: dict[str, Callable[[Path], object]] = {
    "mode": lambda root: os.chmod(root / "var/lib/gb10-cluster/agent", 0o700),
    "time": lambda root: os.utime(root / "usr/local/sbin/gb10", ns=(0, 0)),
    "disabled": lambda root: os.unlink(root / "etc/systemd/system/multi-user.target.wants/gb10-agent.service"),
    "another version": relink,
    "added to sshd": add_sshd_settings,
    "restart required": lambda root: (root / "opt/gb10-cluster/agent/restart-required").touch(),
    "folder gone": lambda root: shutil.rmtree(root / "var/lib/gb10-agent"),
}


@pytest.mark.parametrize("touch", TOUCHES.values(), ids=list(TOUCHES))
def test_a_touched_one_has_none(root: Path, touch: Callable[[Path], object]) -> None:
    touch(root)
    assert stamp.read(str(root)) == {}


@pytest.mark.parametrize("name", FILES)
def test_a_file_that_is_written_or_removed_takes_the_stamp_away(root: Path, name: str) -> None:
    (root / name).write_text("other text\n")
    assert stamp.read(str(root)) == {}
    (root / STAMP[1:]).write_text(stamp.text("5e1c", 22, str(root)))
    assert stamp.read(str(root))["stamp"] == "5e1c"
    (root / name).unlink()
    assert stamp.read(str(root)) == {}


@pytest.mark.parametrize("text", ["", "{", "[]", '{"touched": 1}'])
def test_a_broken_stamp_is_none(root: Path, text: str) -> None:
    (root / STAMP[1:]).write_text(text)
    assert stamp.read(str(root)) == {}
