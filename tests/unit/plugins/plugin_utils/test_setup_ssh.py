"""OpenSSH as setup.yml runs it: its questions and their answers, arguments, input. Stand-ins record the calls."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_questions import NoTerminalError
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_ssh import Machine

SECRET = "s3cret-pw"
CHANGED = "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed."
LOOK = "echo 'gb10-host spark-ab12'; echo gb10-id 0123; echo gb10-sudo no"
# A machine that knows nothing yet: {0}/known is the host key, {0}/installed the SSH key. Both stand-ins ask as OpenSSH does.
NEW = """
if [ ! -e {0}/known ]; then
  case "$*" in *StrictHostKeyChecking=ask*)
    [ "$("$SSH_ASKPASS" 'ED25519 key fingerprint is SHA256:x. (yes/no/[fingerprint])? ')" = yes ] && touch {0}/known;;
  esac
  echo 'Host key verification failed.' >&2; exit 255
fi
[ -e {0}/installed ] || {{ echo 'me@spark-1: Permission denied (publickey,password).' >&2; exit 255; }}
"""
COPY = """#!/bin/sh
printf '%s\\n' "$@" >>{0}/calls; env >>{0}/calls
ls $HOME/.ssh/id*.pub >/dev/null 2>&1 || {{ echo 'ssh-copy-id: ERROR: No identities found' >&2; exit 1; }}
for _try in 1 2 3; do
  [ "$("$SSH_ASKPASS" "me@spark-1's password: ")" = {1} ] && exec touch {0}/installed
done
echo 'me@spark-1: Permission denied (publickey,password).' >&2; exit 1
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with stand-ins first on PATH, and with the home of the user."""
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    (tmp_path / "home/.ssh").mkdir(parents=True)
    (tmp_path / "home/.ssh/id_rsa.pub").touch()
    program(tmp_path, "ssh-copy-id", COPY.format(tmp_path, SECRET))
    return tmp_path


def program(folder: Path, name: str, text: str) -> None:
    """Write a stand-in."""
    (folder / name).write_text(text, encoding="utf-8")
    (folder / name).chmod(0o755)


def ssh(folder: Path, script: str) -> Machine:
    """Return a machine whose ssh records its call and then runs a script."""
    config = f"if [ \"$1\" = -G ]; then printf 'user nvidia\\nidentityfile {folder}/home/.ssh/id_ed25519\\n'; exit 0; fi"
    record = f"printf '%s\\n' \"$@\" >>{folder}/calls; env >>{folder}/calls; cat >{folder}/input"
    program(folder, "ssh", "\n".join(["#!/bin/sh", config, record, script.format(folder), LOOK]))
    return Machine("spark-1", "me")


def reach(machine: Machine, *answers: str, make_key: bool = True) -> list[str]:
    """Make the login work with these answers; return the questions."""
    left, questions = list(answers), []

    def answer(text: str) -> str:
        questions.append(text)
        if not left:
            raise NoTerminalError("none")
        return left.pop(0)

    machine.reach(answer, lambda: make_key)
    return questions


def test_from_nothing_to_a_login_openssh_asks_and_no_answer_is_in_an_argument_or_the_environment(folder: Path) -> None:
    machine = ssh(folder, NEW)
    (folder / "home/.ssh/id_rsa.pub").unlink()
    questions = reach(machine, "yes", "wrong", SECRET)
    assert questions == ["ED25519 key fingerprint is SHA256:x. (yes/no/[fingerprint])? ", "me@spark-1's password: ", "me@spark-1's password: "]
    assert (machine.name, machine.machine_id, machine.asks) == ("spark-ab12", "0123", True)
    assert (folder / "home/.ssh/id_ed25519").stat().st_mode & 0o777 == 0o600
    calls = (folder / "calls").read_text(encoding="utf-8")
    assert "StrictHostKeyChecking=no" not in calls
    assert SECRET not in calls


@pytest.mark.parametrize("answers", [["no"], []])
def test_a_host_key_that_is_not_confirmed_is_not_accepted(folder: Path, answers: list[str]) -> None:
    with pytest.raises(AnsibleActionFail, match=r"host key is not known on this computer.* compare the fingerprint"):
        reach(ssh(folder, NEW), *answers)
    assert not (folder / "known").exists()


def test_without_a_terminal_a_needed_password_has_the_command(folder: Path) -> None:
    (folder / "known").touch()
    with pytest.raises(AnsibleActionFail, match="ssh-copy-id me@spark-1"):
        reach(ssh(folder, NEW))


@pytest.mark.parametrize(
    ("script", "words"),
    [
        (f"echo '{CHANGED}' >&2; exit 255", "ssh-keygen -R spark-1"),
        ("echo 'ssh: Could not resolve hostname x: Name or service not known' >&2; exit 255", "hostname -I"),
        ("echo 'me@spark-1: Permission denied (publickey).' >&2; exit 255", "authorized_keys"),
        ("echo 'ssh: connect to host spark-1 port 22: No route to host' >&2; exit 255", "ping -c 3 spark-1"),
        ("echo odd >&2; exit 255", "spark-1: odd. Run `ssh me@spark-1 true` and correct"),
        ("exit 1", "exit code 1"),
    ],
)
def test_a_failed_login_has_its_remedy_and_asks_nothing(folder: Path, script: str, words: str) -> None:
    with pytest.raises(AnsibleActionFail) as raised:
        reach(ssh(folder, script))
    assert words in str(raised.value)


def test_a_password_that_is_refused_ends_it_with_the_command(folder: Path) -> None:
    (folder / "known").touch()
    with pytest.raises(AnsibleActionFail) as raised:
        reach(ssh(folder, NEW), "wrong-1", "wrong-2", "wrong-3")
    assert "ssh-copy-id me@spark-1" in str(raised.value)
    assert "wrong" not in str(raised.value)


def test_a_key_with_a_passphrase_and_another_key_of_the_configuration_are_named(folder: Path) -> None:
    program(folder, "ssh-copy-id", "#!/bin/sh\nexit 0\n")
    (folder / "known").touch()
    with pytest.raises(AnsibleActionFail, match=r"ssh-add.*IdentityFile.*`ssh-copy-id -i KEY me@spark-1`"):
        reach(ssh(folder, NEW))


def test_no_key_is_made_without_a_yes(folder: Path) -> None:
    (folder / "known").touch()
    (folder / "home/.ssh/id_rsa.pub").unlink()
    with pytest.raises(AnsibleActionFail, match="ssh-keygen -t ed25519"):
        reach(ssh(folder, NEW), make_key=False)
    assert not list((folder / "home/.ssh").iterdir())


def test_a_private_key_without_its_public_key_is_kept_and_has_the_command(folder: Path) -> None:
    (folder / "known").touch()
    (folder / "home/.ssh/id_rsa.pub").unlink()
    (folder / "home/.ssh/id_ed25519").write_text("mine", encoding="utf-8")
    with pytest.raises(AnsibleActionFail, match="ssh-keygen -yf"):
        reach(ssh(folder, NEW))
    assert (folder / "home/.ssh/id_ed25519").read_text(encoding="utf-8") == "mine"


def test_port_and_key_of_the_inventory_are_those_of_each_connection(folder: Path) -> None:
    machine = ssh(folder, "")
    machine.port, machine.key = "2201", "/keys/spark"
    reach(machine)
    assert "-p\n2201\n-i\n/keys/spark\nme@spark-1\n" in (folder / "calls").read_text(encoding="utf-8")
    wrong = ssh(folder, "echo \"Bad port 'abc'\" >&2; exit 255")
    wrong.port = "abc"
    with pytest.raises(AnsibleActionFail, match=r"^spark-1: Bad port 'abc'\. Run `ssh -p abc me@spark-1 true` and correct"):
        reach(wrong)


def test_little_of_what_a_machine_prints_without_end_is_kept(folder: Path) -> None:
    machine = ssh(folder, f"{LOOK}; head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2; exit 0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert machine.look() == ""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


def test_a_machine_that_does_not_end_has_timed_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_ssh, "_SECONDS", 0.5)
    assert "timed out" in ssh(folder, "exec sleep 20").look()


def test_a_computer_without_ssh_has_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AnsibleActionFail, match=r"^spark-1: the SSH client of this computer cannot start"):
        reach(Machine("spark-1", "me"))


def test_the_password_of_sudo_goes_through_the_input_alone(folder: Path) -> None:
    assert ssh(folder, "exit 0").sudo(SECRET)
    assert SECRET not in (folder / "calls").read_text(encoding="utf-8")
    assert (folder / "input").read_text(encoding="utf-8") == f"{SECRET}\n"
    assert not ssh(folder, "echo 'sudo: 1 incorrect password attempt' >&2; exit 1").sudo(SECRET)


@pytest.mark.parametrize(
    ("script", "fault"),
    [
        ("echo 'ssh: connect to host spark-1 port 22: No route to host' >&2; exit 255", "the connection ended while sudo ran: "),
        ("echo 'me is not in the sudoers file.' >&2; exit 1", "the user is not allowed to use sudo: add the user to the group sudo"),
    ],
)
def test_what_another_password_does_not_mend_ends_it(folder: Path, script: str, fault: str) -> None:
    with pytest.raises(AnsibleActionFail, match=f"^spark-1: {fault}"):
        ssh(folder, script).sudo(SECRET)


def test_addresses_of_this_computer_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup_ssh, "default_address", lambda: "192.168.1.11")
    assert setup_ssh.own("127.0.1.1") == "192.168.1.11", "what the name of a computer with Ubuntu leads to"
    assert (setup_ssh.own("192.0.2.1"), setup_ssh.own("no-such-name.invalid")) == ("", "")


def test_this_computer_is_read_without_ssh(monkeypatch: pytest.MonkeyPatch) -> None:
    def run(argv: list[str], *_more: Any, **_options: Any) -> tuple[int, str, str]:
        return 0, f"gb10-host {argv[0]}\ngb10-id 1\ngb10-sudo yes\n", ""

    monkeypatch.setattr(setup_ssh, "run_command", run)
    machine = Machine("10.0.0.1", "me", local=True)
    assert (machine.look(), machine.name, machine.asks) == ("", "sh", False)


def test_the_login_of_the_configuration_is_found(folder: Path) -> None:
    ssh(folder, "")
    assert setup_ssh.configured_user("spark-1") == "nvidia"
