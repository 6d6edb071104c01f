"""From two addresses to a working sudo: what is asked, what is refused, and where passwords do not appear."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail, AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._setup.host_keys import HostKey
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_access, setup_ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_ssh import Look
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_terminal import Terminal

KEY = HostKey("ssh-ed25519", "AAAAC3NzaC1lZDI1NTE5AAAAIGgmRR5MiL/AJCvq7x6Ey4NRMteqTHWwWpzl4V7a7CNa")
UNKNOWN = "No ED25519 host key is known for 10.0.0.1 and you have requested strict checking.\nHost key verification failed."
REFUSED = "nvidia@10.0.0.1: Permission denied (publickey,password)."
CHANGED = "WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!\nHost key verification failed."


class World:
    """Machines by address, as SSH sees them: host key known, key installed, what sudo asks."""

    def __init__(self) -> None:
        self.known: set[str] = set()
        self.stored: list[str] = []
        self.installed: set[str] = set()
        self.password = "pw-1"
        self.sudo_password = ""
        self.public = "ssh-ed25519 AAAA me"
        self.failure: dict[str, str] = {}
        self.same_id = False
        self.logins: list[tuple[str, ...]] = []
        self.other_sudo: dict[str, str] = {}
        self.tried: list[tuple[str, str]] = []  # passwords of sudo, by address

    def look(self, address: str) -> Look:
        """One login."""
        if address in self.failure:
            return Look(failure=self.failure[address])
        if address not in self.known:
            return Look(failure=UNKNOWN)
        if address not in self.installed:
            return Look(failure=REFUSED)
        if self.same_id:
            return Look("", "spark-1", "id", not self.sudo_password)
        return Look("", f"spark-{address[-1]}", "id of the image", not self.sudo_password)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    """No machine knows this computer yet."""
    here = World()

    class FakeSsh:
        is_local = False
        known_hosts = "/home/me/.ssh/known_hosts"

        def __init__(self, address: str, user: str, port: str = "", key: str = "") -> None:
            self.address, self.user, self.port = address, user, port
            here.logins.append((user, address, port, key))

        def look(self) -> Look:
            return here.look(self.address)

        def scan(self) -> list[HostKey]:
            return [KEY]

        def store(self, key: HostKey) -> None:
            here.known.add(self.address)
            here.stored.append(key.fingerprint)

        def key_files(self) -> list[str]:
            return []

        def public_key(self) -> str:
            return here.public

        def make_key(self) -> str:
            here.public = "ssh-ed25519 NEW me"
            return "/home/me/.ssh/id_ed25519"

        def install_key(self, _public: str, password: str, _context: Any) -> str:
            if password != here.password:
                return REFUSED
            here.installed.add(self.address)
            return ""

        def sudo(self, password: str) -> str:
            here.tried.append((self.address, password))
            return "" if password == here.other_sudo.get(self.address, here.sudo_password) else "sudo does not accept the password"

    monkeypatch.setattr(setup_access, "Ssh", FakeSsh)
    monkeypatch.setattr(setup_ssh, "is_own", lambda _address: False)
    monkeypatch.setattr(setup_ssh, "configured_user", lambda _address: "me-in-config")
    return here


class Screen:
    """What was shown, what was asked, and the answers that are left."""

    def __init__(self, answers: list[str]) -> None:
        self.answers, self.lines, self.prompts, self.private = answers, list[str](), list[str](), list[str]()


@pytest.fixture
def screen(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Screen]:
    """A terminal with these answers; None for no terminal."""

    def make(*answers: str, interactive: bool = True) -> Screen:
        found = Screen(list(answers))

        def prompt(_self: Any, text: str, private: bool = False, **_more: Any) -> bytes:
            if not interactive:
                raise AnsiblePromptNoninteractive("stdin is not interactive")
            found.prompts.append(text)
            if private:
                found.private.append(text)
            answer = found.answers.pop(0)
            if answer == "^C":
                raise AnsiblePromptInterrupt("user interrupt")
            return answer.encode()

        monkeypatch.setattr(Display, "prompt_until", prompt)
        monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_more: found.lines.append(str(text)))
        return found

    return make


def run(known: list[dict[str, Any]] | None = None, user: str = "", passwords: tuple[str, str] = ("", ""), **given: Any) -> list[setup_access.Machine]:
    """Run it with these answers of -e."""
    context = SimpleNamespace(password=passwords[0], become_pass=passwords[1])
    return setup_access.Access(Terminal(), given, context).machines(known or [], user)


GIVEN: dict[str, Any] = {"head": "10.0.0.1", "worker": "10.0.0.2", "user": "nvidia"}


def test_from_nothing_by_answering(world: World, screen: Callable[..., Screen]) -> None:
    world.public, world.sudo_password = "", "pw-1"
    shown = screen("10.0.0.1", "10.0.0.2", "nvidia", "yes", "", "pw-1", KEY.fingerprint, "pw-1")
    machines = run()
    assert [(each.address, each.hostname, each.asks, each.password) for each in machines] == [
        ("10.0.0.1", "spark-1", True, "pw-1"), ("10.0.0.2", "spark-2", True, "pw-1"),
    ]  # fmt: skip
    assert world.stored == [KEY.fingerprint] * 2
    assert shown.answers == []
    assert any(KEY.fingerprint in prompt and KEY.compare in prompt for prompt in shown.prompts)
    assert len(shown.private) == 2, "the password of sudo is that of the login, and is not asked for again"
    assert "pw-1" not in "\n".join(shown.lines + shown.prompts)


def test_with_all_answers_given_nothing_is_asked(world: World, screen: Callable[..., Screen]) -> None:
    world.installed = {"10.0.0.1", "10.0.0.2"}
    shown = screen()
    assert len(run(**GIVEN, accept_host_keys=KEY.fingerprint)) == 2
    assert shown.prompts == []


def test_an_inventory_that_works_needs_no_answer(world: World, screen: Callable[..., Screen]) -> None:
    world.known = world.installed = {"10.0.0.1", "10.0.0.2"}
    shown = screen()
    run([{"name": "a", "ansible_host": "10.0.0.1"}, {"name": "b", "ansible_host": "10.0.0.2"}], "nvidia")
    assert shown.prompts == []


def test_an_invalid_answer_is_asked_again_with_the_reason(world: World, screen: Callable[..., Screen]) -> None:
    world.known = world.installed = {"10.0.0.1", "10.0.0.2"}
    shown = screen("10.0.0.256", "10.0.0.1", "10.0.0.1", "10.0.0.2", "-x", "nvidia")
    run()
    assert [("not a valid IPv4" in shown.prompts[1]), ("first machine" in shown.prompts[3]), ("login name" in shown.prompts[5])] == [True] * 3


def test_control_characters_are_not_an_answer(world: World, screen: Callable[..., Screen]) -> None:
    world.known = world.installed = {"10.0.0.1", "10.0.0.2"}
    shown = screen("10.0.0.1\x1b[D", "10.0.0.1", "10.0.0.2", "nvidia")
    run()
    assert "cannot be printed" in shown.prompts[1]
    assert "\x1b" not in shown.prompts[1]


def test_an_address_that_does_not_answer_is_asked_again_with_the_remedy(world: World, screen: Callable[..., Screen]) -> None:
    world.known = world.installed = {"10.0.0.1", "10.0.0.2"}
    world.failure["10.0.0.9"] = "ssh: connect to host 10.0.0.9 port 22: No route to host"
    shown = screen("10.0.0.9", "10.0.0.2", "nvidia", "10.0.0.1")
    assert run()[0].address == "10.0.0.1"
    assert any("ping -c 3 10.0.0.9" in line for line in shown.lines)


@pytest.mark.parametrize(
    ("given", "state", "words"),
    [
        ({}, {}, "setup_head is not set. Add -e setup_head=VALUE"),
        ({"head": "10.0.0.1"}, {}, "setup_worker is not set"),
        ({"head": "10.0.0.256", "worker": "10.0.0.2"}, {}, "setup_head is '10.0.0.256', which is not a valid IPv4 address"),
        ({"head": "10.0.0.1", "worker": "10.0.0.1"}, {}, "setup_worker is the address of the first machine"),
        (GIVEN, {}, f"add -e setup_accept_host_keys={KEY.fingerprint}"),
        ({**GIVEN, "accept_host_keys": "SHA256:" + "b" * 43}, {}, "None of them is in setup_accept_host_keys"),
        ({**GIVEN, "accept_host_keys": "yes"}, {}, "expected fingerprints"),
        ({**GIVEN, "accept_host_keys": KEY.fingerprint}, {}, "ssh-copy-id nvidia@10.0.0.1"),
        ({**GIVEN, "accept_host_keys": KEY.fingerprint}, {"installed": {"10.0.0.1", "10.0.0.2"}, "sudo_password": "x"}, "Add -K (--ask-become-pass)"),
        (GIVEN, {"failure": {"10.0.0.1": CHANGED}}, "ssh-keygen -R 10.0.0.1"),
        (GIVEN, {"failure": {"10.0.0.1": "ssh: Could not resolve hostname x: Name or service not known"}}, "hostname -I"),
        (GIVEN, {"failure": {"10.0.0.1": "nvidia@10.0.0.1: Permission denied (publickey)."}}, "authorized_keys"),
        (GIVEN, {"known": {"10.0.0.1", "10.0.0.2"}, "installed": {"10.0.0.1", "10.0.0.2"}, "same_id": True}, "are the same machine"),
        ({**GIVEN, "accept_host_keys": KEY.fingerprint}, {"failure": {"10.0.0.1": CHANGED}}, "another machine answers"),
        ({**GIVEN, "port": "2222"}, {"known": {"10.0.0.1", "10.0.0.2"}}, "ssh-copy-id -p 2222 nvidia@10.0.0.1"),
        ({**GIVEN, "port": "70000"}, {"logins": None}, "setup_port is '70000', expected a port"),
        ({**GIVEN, "key": "id_rsa"}, {"logins": None}, "setup_key is 'id_rsa', expected the path"),
        ({**GIVEN, "key": "/no/such/key"}, {"logins": None}, "/no/such/key is not a file on this computer"),
    ],
)  # fmt: skip
def test_without_a_terminal_one_sentence_names_what_is_missing(
    world: World, screen: Callable[..., Screen], given: dict[str, Any], state: dict[str, Any], words: str
) -> None:
    """Without logins, the refusal comes before a machine is reached."""
    vars(world).update(state)
    screen(interactive=False)
    with pytest.raises(AnsibleActionFail) as raised:
        run(**given)
    assert words in str(raised.value)
    assert world.stored == [] or (given.get("accept_host_keys") == KEY.fingerprint and not world.failure)


@pytest.mark.parametrize(("answer", "given", "words"), [("", GIVEN, "was not confirmed, so nothing was stored"), ("^C", {}, "stopped by the user")])
def test_an_answer_that_ends_it(world: World, screen: Callable[..., Screen], answer: str, given: dict[str, Any], words: str) -> None:
    screen(answer)
    with pytest.raises(AnsibleActionFail, match=words):
        run(**given)
    assert world.stored == []


def test_three_wrong_passwords_end_it_and_are_not_shown(world: World, screen: Callable[..., Screen]) -> None:
    world.known = {"10.0.0.1", "10.0.0.2"}
    shown = screen("wrong-1", "", "wrong-3")
    with pytest.raises(AnsibleActionFail) as raised:
        run(**GIVEN)
    assert "Correct setup_user or setup_head" in str(raised.value)
    assert "wrong" not in "\n".join([*shown.lines, *shown.prompts, str(raised.value)])


def test_a_key_with_a_passphrase_is_named(world: World, screen: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    world.known = {"10.0.0.1", "10.0.0.2"}
    monkeypatch.setattr(vars(setup_access)["Ssh"], "install_key", lambda *_args: "")
    screen("pw-1")
    with pytest.raises(AnsibleActionFail, match="ssh-add"):
        run(**GIVEN)


def test_passwords_of_the_command_line_options_are_used_without_a_terminal(world: World, screen: Callable[..., Screen]) -> None:
    world.sudo_password = "pw-2"
    screen(interactive=False)
    machines = run(**GIVEN, accept_host_keys=[KEY.fingerprint], passwords=("pw-1", "pw-2"))
    assert [each.password for each in machines] == ["pw-2", "pw-2"]


def test_this_computer_can_be_one_of_the_two(world: World, screen: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    world.known = world.installed = {"10.0.0.2"}
    monkeypatch.setattr(setup_ssh, "is_own", lambda address: address == "10.0.0.1")
    monkeypatch.setattr(setup_ssh.Local, "look", lambda _self: Look("", "spark-1", "id-1", True))
    screen("")
    assert [each.local for each in run(**GIVEN)] == [True, False]
    world.known = world.installed = {"10.0.0.1", "10.0.0.2"}
    screen("no")
    assert [each.local for each in run(**GIVEN)] == [False, False]


def reached(world: World, *addresses: str) -> None:
    """The machines know the SSH key of this computer."""
    world.known = world.installed = set(addresses or ("10.0.0.1", "10.0.0.2"))


def test_a_login_in_front_of_an_address_is_used_for_its_machine(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    shown = screen("alice@10.0.0.1", "10.0.0.1", "bob@10.0.0.2")
    assert [(each.user, each.address) for each in run()] == [("alice", "10.0.0.1"), ("bob", "10.0.0.2")]
    assert "first machine" in shown.prompts[2]
    shown = screen("")
    assert [each.user for each in run(head="alice@10.0.0.1", worker="10.0.0.2")] == ["alice", "alice"]
    assert "[alice]" in shown.prompts[0]


def test_the_login_of_the_ssh_configuration_is_the_default(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    screen("")
    assert [each.user for each in run(head="10.0.0.1", worker="10.0.0.2")] == ["me-in-config"] * 2


def test_port_and_key_of_the_inventory_and_of_answers_reach_the_machine(world: World, screen: Callable[..., Screen], tmp_path: Path) -> None:
    reached(world)
    key, other = tmp_path / "key", tmp_path / "other"
    key.touch()
    other.touch()
    own = {"ansible_port": "2201", "ansible_ssh_private_key_file": str(key)}
    known = [{"name": "a", "ansible_host": "10.0.0.1", **own}, {"name": "b", "ansible_host": "10.0.0.2"}]
    shown = screen()
    assert [(each.port, each.key) for each in run(known, "me")] == [("2201", str(key)), ("", "")]
    assert ("me", "10.0.0.1", "2201", str(key)) in world.logins
    assert [(each.port, each.key) for each in run(known, "me", port=2222, key=str(other))] == [("2222", str(other))] * 2
    assert shown.prompts == []


def test_two_passwords_of_sudo_have_their_remedy_without_a_terminal(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    world.sudo_password, world.other_sudo = "pw-1", {"10.0.0.2": "pw-2"}
    screen(interactive=False)
    with pytest.raises(AnsibleActionFail, match=r"^10\.0\.0\.2: .*accepts the password on 10\.0\.0\.1, and -K takes one: set the same .* with `passwd`"):
        run(**GIVEN, passwords=("", "pw-1"))
    screen("pw-2")
    assert [each.password for each in run(**GIVEN, passwords=("", "pw-1"))] == ["pw-1", "pw-2"]


def test_a_password_that_was_typed_for_the_first_machine_is_not_tried_on_the_second_unasked(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    world.sudo_password, world.other_sudo = "pw-1", {"10.0.0.2": "pw-2"}
    shown = screen("pw-1", "pw-2")
    assert [each.password for each in run(**GIVEN)] == ["pw-1", "pw-2"]
    assert world.tried == [("10.0.0.1", "pw-1"), ("10.0.0.2", "pw-2")]
    assert ["Enter for that of 10.0.0.1" in prompt for prompt in shown.private] == [False, True]


def test_enter_takes_the_password_of_the_first_machine(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    world.sudo_password = "pw-1"
    screen("pw-1", "")
    assert [each.password for each in run(**GIVEN)] == ["pw-1", "pw-1"]


def test_the_password_of_a_login_is_tried_for_sudo_on_its_own_machine_only(world: World, screen: Callable[..., Screen]) -> None:
    reached(world)
    world.installed = {"10.0.0.2"}
    world.sudo_password = "pw-1"
    screen("pw-1", "pw-1")
    run(**GIVEN)
    assert world.tried == [("10.0.0.1", "pw-1"), ("10.0.0.2", "pw-1")]
    screen("pw-1", "^C")
    world.installed, world.tried = {"10.0.0.2"}, []
    with pytest.raises(AnsibleActionFail):
        run(**GIVEN)
    assert world.tried == [("10.0.0.1", "pw-1")]


def test_this_computer_by_its_name_has_an_address_that_others_reach(world: World, screen: Callable[..., Screen], monkeypatch: pytest.MonkeyPatch) -> None:
    reached(world)
    monkeypatch.setattr(setup_ssh, "is_own", lambda address: address == "spark-1")
    monkeypatch.setattr(setup_ssh.Local, "look", lambda _self: Look("", "spark-1", "id-1", True))
    monkeypatch.setattr(setup_ssh, "own_address", lambda: "192.168.1.11")
    monkeypatch.setattr("socket.gethostbyname", {"spark-1": "127.0.1.1"}.__getitem__)
    screen("")
    first = run(**{**GIVEN, "head": "spark-1"}, port="2222")[0]
    assert (first.address, first.local, first.port) == ("192.168.1.11", True, "")


def test_the_model_store_of_the_inventory_is_not_asked_for(world: World, screen: Callable[..., Screen]) -> None:
    def store(known: str | None, **given: str) -> str:
        return setup_access.Access(Terminal(), given, SimpleNamespace(password="", become_pass="")).store(known)

    shown = screen("")
    assert (store("/data"), store("/data", model_store="/big"), shown.prompts) == ("/data", "/big", [])
    assert store(None) == "/srv/models"
    assert shown.answers == []
