"""What setup.yml asks, and OpenSSH as it runs it: questions and their answers, arguments, input. Stand-ins record the calls."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_login as login
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_login import Machine

SECRET = "s3cret-pw"
CHANGED = "@@@ WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED! @@@\nHost key verification failed."
LOOK = "echo 'gb10-machine spark-ab12 0123 no'"
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


def reach(machine: Machine, *answers: str) -> list[str]:
    """Make the login work with these answers; return the questions."""
    left, questions = list(answers), []

    def typed(text: str, *_more: Any, **_options: Any) -> str:
        questions.append(text)
        if not left:
            raise login.NoTerminalError("none")
        return left.pop(0)

    with mock.patch.object(login, "typed", typed):
        machine.reach()
    return questions


def test_from_nothing_to_a_login_openssh_asks_and_no_answer_is_in_an_argument_or_the_environment(folder: Path) -> None:
    machine = ssh(folder, NEW)
    (folder / "home/.ssh/id_rsa.pub").unlink()
    questions = reach(machine, "yes", "", "wrong", SECRET)
    password, key = "me@spark-1's password:", "Make an SSH key on this computer? [yes]:"
    assert [each.splitlines()[-1] for each in questions] == ["ED25519 key fingerprint is SHA256:x. (yes/no/[fingerprint]):", key, password, password]
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
    with pytest.raises(AnsibleActionFail, match=r"ssh-add.*another key.*`ssh-copy-id -i KEY me@spark-1`"):
        reach(ssh(folder, NEW))


def test_no_key_is_made_without_a_yes(folder: Path) -> None:
    (folder / "known").touch()
    (folder / "home/.ssh/id_rsa.pub").unlink()
    with pytest.raises(AnsibleActionFail, match="ssh-keygen -t ed25519"):
        reach(ssh(folder, NEW), "no")
    assert not list((folder / "home/.ssh").iterdir())


def test_little_of_what_a_machine_prints_without_end_is_kept(folder: Path) -> None:
    machine = ssh(folder, f"{LOOK}; head -c 300000000 /dev/zero; head -c 300000000 /dev/zero >&2; exit 0")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert machine.look() == ""
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 100_000, "KiB"


def test_a_machine_that_does_not_end_has_timed_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "_SECONDS", 0.5)
    assert "timed out" in ssh(folder, "exec sleep 20").look()


def test_a_computer_without_ssh_has_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(AnsibleActionFail, match=r"^spark-1: the SSH client of this computer cannot start"):
        reach(Machine("spark-1", "me"))


def test_the_login_of_the_configuration_is_found(folder: Path) -> None:
    ssh(folder, "")
    assert login.configured_user("spark-1") == "nvidia"


@pytest.mark.parametrize(
    ("variable", "value", "word"),
    [
        ("setup_head", "127.0.0.1", "only this computer"),
        ("setup_head", "localhost", "only this computer"),
        ("setup_head", "::", "only this computer"),
        ("setup_head", "nvidia@10.0.0.1", "set the user in ansible_user"),
        ("setup_worker", "10.0.0.1:22", "ansible_port"),
        ("setup_worker", "10.0.0.256", "IPv4"),
        ("setup_worker", "-oProxyCommand=x", "expected"),
        ("setup_worker", "$(reboot)", "expected"),
        *(("setup_user", value, "expected a login name") for value in ("-l", "a b", "a;b", "", "1a", "a" * 33, "a\x1b[D")),
        *(
            ("gb10_model_store", value, "expected an absolute path")
            for value in ("models", "/", "/srv/a:b", "/srv/../etc", "/srv/$HOME", "'/srv/x'", "/etc/models")
        ),
        ("roce_foreign_policy", "adpot", "did you mean adopt?"),
        ("setup_write", "maybe", "expected true or false"),
    ],
)
def test_another_answer_is_refused_with_the_reason(variable: str, value: str, word: str) -> None:
    assert word in login.fault_of(variable, value)


def test_each_question_is_a_variable_of_the_command_line_or_of_the_inventory() -> None:
    assert all(login.plain_description(variable) for variable in login.QUESTIONS)
    assert "C(" not in login.plain_description("setup_write")
