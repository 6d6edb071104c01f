"""QEMU's arguments, cables, keys and the command line."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path

import pytest

from lab.vm import cli, keys, qemu
from lab.vm.recipe import NODES, Lab, lab_from


def options(node: int, option: str) -> list[str]:
    line = qemu.machine(lab_from({}), node, "/images/x", "tcg")
    return [line[number + 1] for number, word in enumerate(line) if word == option]


def test_ssh_is_forwarded_from_loopback_so_that_the_guests_own_docker_bridge_cannot_answer() -> None:
    forward = next(text for text in options(1, "-netdev") if text.startswith("user"))
    assert "hostfwd=tcp:127.0.0.1:2201-10.0.2.11:22" in forward
    assert "TCP-LISTEN:22201" in qemu.forwarders(lab_from({}))
    assert "TCP:127.0.0.1:2201" in qemu.forwarders(lab_from({}))


def test_guests_reach_nothing_outside() -> None:
    assert all("restrict=on" in text for text in options(1, "-netdev") if text.startswith("user"))


@pytest.mark.skipif(shutil.which("ssh-keygen") is None, reason="needs ssh-keygen")
def test_keys_are_made_once_and_known_hosts_is_exact(tmp_path: Path) -> None:
    lab = Lab(tmp_path / "state", 0)
    keys.ensure(lab)
    first = lab.known_hosts.read_text()
    keys.ensure(lab)
    assert lab.known_hosts.read_text() == first
    assert stat.S_IMODE(lab.state.stat().st_mode) == 0o700
    assert stat.S_IMODE(lab.key.stat().st_mode) == 0o600
    for node, line in zip(NODES, first.splitlines(), strict=True):
        where, kind, key = line.split()
        assert where == f"[127.0.0.1]:{lab.port(node)}"
        assert f"{kind} {key}" in keys.host_key(lab, node).with_suffix(".pub").read_text()


@pytest.mark.parametrize("words", [["reset"], ["reboot", "1"], ["cut", "rail0"], ["console", "2"], ["ssh", "1"]])
def test_commands_on_a_stopped_lab_report_how_to_start_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str]
) -> None:
    fake = tmp_path / "docker"
    fake.write_text("#!/bin/sh\nexit 1\n")
    fake.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    monkeypatch.setenv("GB10_VMLAB_DIR", str(tmp_path / "state"))
    assert cli.main(words) == 1
    assert capsys.readouterr().err == "vmlab: The VM lab is not running; `make vm-lab` starts it.\n"


@pytest.mark.parametrize("words", [["cut", "rail7"], ["reboot", "3"], [], ["reset", "x"]])
def test_a_wrong_command_line_is_refused(words: list[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(words)
    assert caught.value.code == 2
