"""The programs of OpenSSH as setup.yml calls them: arguments, input, files. Stand-ins record the calls."""

from __future__ import annotations

import os
import resource
import shutil
from pathlib import Path

import pytest
from ansible.playbook.play_context import PlayContext
from ansible_collections.gb10.cluster.plugins.module_utils._setup import host_keys
from ansible_collections.gb10.cluster.plugins.module_utils._setup.host_keys import HostKey
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_ssh import Local, Look, Ssh

KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIGgmRR5MiL/AJCvq7x6Ey4NRMteqTHWwWpzl4V7a7CNa")
SECRET = "s3cret-pw"
SSH = """#!/bin/sh
if [ "$1" = -G ]; then
  printf 'hostname 10.0.0.1\\nport 2222\\nuserknownhostsfile {0}/ssh/known_hosts {0}/ssh/more\\nidentityfile {0}/ssh/id_ed25519\\n' ; exit 0
fi
printf '%s\\n' "$@" >>{0}/calls
env >>{0}/calls
cat >{0}/input
{1}
"""


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a stand-in for ssh first on PATH. `answer` writes what it does."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    answer(tmp_path, "exit 0")
    return tmp_path


def answer(folder: Path, script: str) -> None:
    """Set what the stand-in does after it has recorded the call."""
    path = folder / "ssh"
    path.write_text(SSH.format(folder / "home", script), encoding="utf-8")
    path.chmod(0o755)
    (folder / "home").mkdir(exist_ok=True)


def test_a_login_shows_name_id_and_sudo(machine: Path) -> None:
    answer(machine, "echo welcome; echo 'gb10-host spark-ab12'; echo gb10-id 0123; echo gb10-sudo no")
    assert Ssh("spark-1", "me").look() == Look("", "spark-ab12", "0123", False)
    calls = (machine / "home/calls").read_text(encoding="utf-8")
    assert "StrictHostKeyChecking=yes" in calls
    assert "BatchMode=yes" in calls


def test_a_failed_login_has_the_text_of_ssh(machine: Path) -> None:
    answer(machine, "echo 'Host key verification failed.' >&2; exit 255")
    assert Ssh("spark-1", "me").look().failure == "Host key verification failed."
    answer(machine, "exit 1")
    assert "exit code 1" in Ssh("spark-1", "me").look().failure


def test_little_of_what_a_machine_prints_without_end_is_kept(machine: Path) -> None:
    answer(machine, "echo 'gb10-host spark-1'; echo gb10-id 0123; echo gb10-sudo yes; head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert Ssh("spark-1", "me").look() == Look("", "spark-1", "0123", True)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


def test_a_machine_that_does_not_end_has_timed_out(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_ssh, "_SECONDS", 0.5)
    answer(machine, "exec sleep 20")
    assert "timed out" in Ssh("spark-1", "me").look().failure


def test_a_computer_without_ssh_has_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    look = Ssh("spark-1", "me").look()
    assert look.failure == "ssh: command not found"
    assert setup_ssh.sentence(look, "spark-1", "me").startswith("spark-1: the SSH client of this computer cannot start")


def test_a_host_key_is_appended_as_a_line_of_its_own(machine: Path) -> None:
    way = Ssh("spark-1", "me")
    way.store(KEY)
    path = machine / "home/ssh/known_hosts"
    assert path.read_text(encoding="ascii") == f"[10.0.0.1]:2222 ssh-ed25519 {KEY.text}\n"
    assert (path.stat().st_mode & 0o777, path.parent.stat().st_mode & 0o777) == (0o600, 0o700)
    path.write_text("other ssh-rsa AAAA", encoding="ascii")
    way.store(KEY)
    assert path.read_text(encoding="ascii") == f"other ssh-rsa AAAA\n[10.0.0.1]:2222 ssh-ed25519 {KEY.text}\n"


def test_a_key_is_made_where_openssh_looks_for_one(machine: Path) -> None:
    way = Ssh("spark-1", "me")
    assert (way.key_files(), way.public_key()) == ([], "")
    assert way.make_key() == str(machine / "home/ssh/id_ed25519")
    assert way.public_key().startswith("ssh-ed25519 ")
    assert (machine / "home/ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    with pytest.raises(OSError, match=r"exit code|exists"):
        way.make_key()


def test_the_password_of_sudo_goes_through_the_input_alone(machine: Path) -> None:
    assert Ssh("spark-1", "me").sudo(SECRET) == ""
    assert SECRET not in (machine / "home/calls").read_text(encoding="utf-8")
    assert (machine / "home/input").read_text(encoding="utf-8") == f"{SECRET}\n"
    answer(machine, "echo 'Sorry, try again.' >&2; echo 'sudo: 1 incorrect password attempt' >&2; exit 1")
    assert Ssh("spark-1", "me").sudo(SECRET) == "sudo does not accept the password"
    answer(machine, "echo 'ssh: connect to host spark-1 port 22: No route to host' >&2; exit 255")
    assert Ssh("spark-1", "me").sudo(SECRET).startswith("the connection ended while sudo ran: ")
    answer(machine, "echo 'me is not in the sudoers file.' >&2; exit 1")
    assert "not allowed to use sudo" in Ssh("spark-1", "me").sudo(SECRET)


def test_the_password_of_the_login_is_in_no_argument_and_in_no_environment(machine: Path) -> None:
    answer(machine, '"$SSH_ASKPASS" "me@spark-1\'s password: " >{0}/asked'.replace("{0}", str(machine / "home")))
    assert Ssh("spark-1", "me").install_key("ssh-ed25519 AAAA me", SECRET, PlayContext()) == ""
    assert SECRET not in (machine / "home/calls").read_text(encoding="utf-8")
    assert (machine / "home/input").read_text(encoding="utf-8") == "ssh-ed25519 AAAA me\n"
    answer(machine, "echo 'me@spark-1: Permission denied (publickey,password).' >&2; exit 255")
    failure = Ssh("spark-1", "me").install_key("ssh-ed25519 AAAA me", SECRET, PlayContext())
    assert "Permission denied" in failure
    assert SECRET not in failure


def test_the_key_is_added_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / ".ssh").mkdir()
    path = tmp_path / ".ssh/authorized_keys"
    path.write_text("ssh-rsa OLD", encoding="ascii")
    for _again in range(2):
        assert setup_ssh._run(["sh", "-c", setup_ssh._ADD_KEY], "ssh-ed25519 AAAA me\n")[0] == 0
    assert path.read_text(encoding="ascii") == "ssh-rsa OLD\nssh-ed25519 AAAA me\n"


def test_addresses_of_this_computer_are_known() -> None:
    assert setup_ssh.is_own("127.0.0.1")
    assert not setup_ssh.is_own("192.0.2.1")
    assert not setup_ssh.is_own("no-such-name.invalid")


def test_this_computer_is_read_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_ssh, "_run", lambda argv, text="": (0, f"gb10-host {argv[0]}\ngb10-id 1\ngb10-sudo yes\n", ""))
    assert Local().look() == Look("", "sh", "1", True)


def test_a_given_port_and_key_are_those_of_each_connection(machine: Path) -> None:
    answer(machine, "echo gb10-sudo yes")
    key = machine / "mine"
    key.touch()
    (machine / "mine.pub").write_text(f"ssh-rsa {'A' * 40} me\n", encoding="ascii")
    way = Ssh("spark-1", "me", "2201", str(key))
    assert way.look().failure == ""
    assert way.public_key() == f"ssh-rsa {'A' * 40} me", "the key that is named, not one of the agent"
    assert way.install_key("ssh-ed25519 AAAA me", SECRET, PlayContext()) == ""
    login, install = (machine / "home/calls").read_text(encoding="utf-8").split("BatchMode=yes")[1:][0], (machine / "home/calls").read_text(encoding="utf-8")
    assert f"-p\n2201\n-i\n{key}\nspark-1\n" in login
    assert "Port=2201" in install


@pytest.mark.skipif(not shutil.which("ssh"), reason="no SSH client")
def test_a_host_block_of_the_users_configuration_is_obeyed(machine: Path) -> None:
    block = f"Host spark-a\n  HostName 10.0.0.9\n  Port 2299\n  User nvidia\n  IdentityFile {machine}/spark\n"
    (machine / "config").write_text(block, encoding="utf-8")
    client = shutil.which("ssh", path=os.environ["PATH"].partition(os.pathsep)[2])
    (machine / "ssh").write_text(f'#!/bin/sh\nexec {client} -F {machine}/config "$@"\n', encoding="utf-8")
    (machine / "spark").touch()
    way = Ssh("spark-a", setup_ssh.configured_user("spark-a"))
    assert (way.user, way.key_files()) == ("nvidia", [machine / "spark"])
    assert host_keys.lookup_name(way.settings, "spark-a") == "[10.0.0.9]:2299"
    assert host_keys.lookup_name(Ssh("spark-a", "me", "2201").settings, "spark-a") == "[10.0.0.9]:2201"
