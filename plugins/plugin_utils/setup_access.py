# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: make both machines reachable: host key, SSH key, sudo, each with its question. Controller only."""

from __future__ import annotations

import getpass
import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh_failure
from ansible_collections.gb10.cluster.plugins.module_utils._setup import host_keys, questions
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_ssh import Local, Look, Ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_terminal import Terminal

# Causes after which another address, or a second try, can help.
_ASK_AGAIN = ("name_not_found", "off", "slow", "port_refused", "closed")
# Causes for which the key is installed with the password.
_NO_KEY = ("key_refused", "key_missing")
_TRIES = 3
_STILL_REFUSED = "its login by key still fails after the key was installed. If the key has a passphrase, load it with `ssh-add` and run again"


@dataclass
class Machine:
    """One machine that answers; `password` is that of sudo, empty if it needs none."""

    address: str
    user: str
    hostname: str
    machine_id: str
    local: bool
    port: str = ""  # of SSH, and the private key: empty if OpenSSH's own configuration decides
    key: str = ""
    password: str = ""
    asks: bool = False  # whether sudo asks for a password


class Access:
    """Both machines of the pair, from their addresses to a working sudo."""

    def __init__(self, terminal: Terminal, given: Mapping[str, Any], play_context: Any) -> None:
        """Keep the answers that were given with -e, and the passwords of -k and -K."""
        self.terminal, self.given, self.play_context = terminal, given, play_context
        self.login_password = str(play_context.password or "")
        self.sudo_password = str(play_context.become_pass or "")
        self.typed: dict[str, str] = {}  # the password of the login by address: no other machine gets it unasked
        self.accepted = host_keys.fingerprints(given.get("accept_host_keys"))
        fault = host_keys.fingerprint_fault(self.accepted)
        if fault:
            raise AnsibleActionFail(f"setup_accept_host_keys {fault}.")

    def machines(self, known: Sequence[Mapping[str, Any]], user: str) -> list[Machine]:
        """Return both machines; `known` are their variables in an inventory that is there, `user` its login."""
        there: Sequence[Mapping[str, Any]] = known or ({}, {})
        head = self._address(questions.HEAD, self.given.get("head"), there[0], self._default_head())
        head_user, head = questions.login_of(head)
        question = questions.WORKER._replace(check=questions.other_than(head))
        worker_user, worker = questions.login_of(self._address(question, self.given.get("worker"), there[1], "spark-2.local"))
        login = head_user if head_user and worker_user else self._user(user, head_user or worker_user, head)
        logins = [own or (login if self.given.get("user") else str(each.get("ansible_user") or login)) for own, each in zip((head_user, worker_user), there)]
        first = self._reach(questions.HEAD, head, logins[0], there[0])
        second = self._reach(question, worker, logins[1], there[1])
        # Machines that were installed from one image can share the machine id alone.
        if first.machine_id and (first.machine_id, first.hostname) == (second.machine_id, second.hostname):
            raise AnsibleActionFail(
                f"{first.address} and {second.address} are the same machine ({second.hostname}). Run again with the address of the other one in setup_worker."
            )
        for machine, other in ((first, None), (second, first)):
            self._sudo(machine, other)
        return [first, second]

    def _address(self, question: questions.Question, given: Any, known: Mapping[str, Any], default: str) -> str:
        there = str(known.get("ansible_host") or known.get("name") or "")
        if there and not given and not question.check(there):
            return there
        return self.terminal.ask(question, there or default, given, needed=not there)

    @staticmethod
    def _default_head() -> str:
        """Return the address of this computer if it is a Spark, else the name that a Spark can have."""
        try:
            product = Path("/sys/class/dmi/id/product_name").read_text(encoding="utf-8", errors="replace")
        except OSError:
            product = ""
        return (setup_ssh.own_address() if "spark" in product.lower() else "") or "spark-1.local"

    def _user(self, user: str, named: str, head: str) -> str:
        """Return the login of the inventory, else that of the answer; `named` is in front of an address."""
        if user and not self.given.get("user"):
            return user
        mine = named or setup_ssh.configured_user(head) or getpass.getuser()
        return self.terminal.ask(questions.USER, user or (mine if mine != "root" else "nvidia"), self.given.get("user"))

    def _given(self, question: questions.Question, name: str, known: Any) -> str:
        """Return a value that most users do not need: of -e, else of the inventory. It is asked for only if it is not valid."""
        value = self.given.get(name) or known
        return self.terminal.ask(question, given=value) if value else ""

    def store(self, known: Any) -> str:
        """Return the folder of the model weights: of -e, of the inventory, or of the answer."""
        given = self.given.get("model_store")
        return str(known) if known and not given else self.terminal.ask(questions.STORE, questions.DEFAULT_STORE, given)

    def _reach(self, question: questions.Question, address: str, user: str, known: Mapping[str, Any]) -> Machine:
        """Return the machine, after its host key is known and the login by key works."""
        port = self._given(questions.PORT, "port", known.get("ansible_port"))
        key = self._given(questions.KEY, "key", known.get("ansible_ssh_private_key_file"))
        if key and not Path(os.path.expanduser(key)).is_file():
            raise AnsibleActionFail(f"The SSH key {key} is not a file on this computer. Correct {questions.KEY.variable} or ansible_ssh_private_key_file.")
        while True:
            way: Ssh | Local = Local() if self._is_local(address, known) else Ssh(address, user, port, key)
            look = self._opened(way, question)
            if not look.failure:
                if way.is_local:
                    port, key, address = "", "", setup_ssh.in_network(address)
                self.terminal.show(f"{address} answers: {look.hostname or 'no name'}.")
                return Machine(address, user, look.hostname, look.machine_id, way.is_local, port, key, asks=not look.sudo)
            message = setup_ssh.sentence(look, address, user, port)
            if ssh_failure.cause(look.failure) not in _ASK_AGAIN:
                raise AnsibleActionFail(message)
            self.terminal.show(f"\n{message}", color="yellow")
            try:
                named, address = questions.login_of(self.terminal.ask(question, address, reason="Correct it, or press Enter to try again.", needed=True))
                user = named or user
            except AnsibleActionFail as error:
                raise AnsibleActionFail(message if "no terminal" in str(error) else str(error)) from None

    def _is_local(self, address: str, known: Mapping[str, Any]) -> bool:
        if not setup_ssh.is_own(address):
            return False
        if known and self.given.get("local") in (None, ""):
            return str(known.get("ansible_connection") or "") == "local"
        return self.terminal.confirm(questions.LOCAL, given=self.given.get("local"), about=f"({address})")

    def _opened(self, way: Ssh | Local, question: questions.Question) -> Look:
        """Return what a login shows, after each obstacle that has a question was removed once."""
        look = way.look()
        if isinstance(way, Ssh) and ssh_failure.cause(look.failure) == "host_key_unknown":
            self._host_key(way, look)
            look = way.look()
        if isinstance(way, Ssh) and ssh_failure.cause(look.failure) in _NO_KEY:
            self._install_key(way, question)
            look = way.look()
            if ssh_failure.cause(look.failure) in (*_NO_KEY, "key_required"):
                raise AnsibleActionFail(f"{way.address}: {_STILL_REFUSED}.")
        return look

    def _host_key(self, way: Ssh, look: Look) -> None:
        """Show the fingerprint, and store the key after it is confirmed."""
        keys = way.scan()
        if not keys:
            raise AnsibleActionFail(setup_ssh.sentence(look, way.address, way.user, way.port))
        key = host_keys.matching(keys, self.accepted)
        if key is None and self.accepted:
            shown = " and ".join(each.fingerprint for each in keys)
            raise AnsibleActionFail(
                f"The SSH host keys of {way.address} are {shown}. None of them is in setup_accept_host_keys, so none is stored. "
                f"Compare them with what `{keys[0].compare}` prints on the machine."
            )
        if key is None:
            key = keys[0]
            reason = (
                f"This computer does not know {way.address} yet. Its SSH host key has the fingerprint\n  {key.fingerprint}\n"
                f"Compare it on the machine itself, at its screen or in NVIDIA Sync:\n  {key.compare}\n"
                f"If both are equal, no other machine answers in its place. The key is then stored in {way.known_hosts}."
            )
            question = questions.HOST_KEY._replace(check=lambda text: "" if text == key.fingerprint else questions.yes_no_fault(text))
            try:
                answer = self.terminal.ask(question, "no", reason=reason, needed=True)
            except AnsibleActionFail as error:
                if "no terminal" not in str(error):
                    raise
                raise AnsibleActionFail(
                    f"The SSH host key of {way.address} is not known on this computer, and setup.yml has no terminal to ask on. If `{key.compare}` prints "
                    f"{key.fingerprint} on the machine, add -e setup_accept_host_keys={key.fingerprint} (separate those of two machines by a comma)."
                ) from None
            if answer != key.fingerprint and not questions.is_yes(answer):
                raise AnsibleActionFail(f"The SSH host key of {way.address} was not confirmed, so nothing was stored. Compare it and run setup.yml again.")
        try:
            way.store(key)
        except OSError as error:
            raise AnsibleActionFail(f"{way.known_hosts} cannot be written ({error.strerror or error}): make it writable and run again.") from error
        self.terminal.show(f"The host key of {way.address} is stored in {way.known_hosts}.")

    def _install_key(self, way: Ssh, question: questions.Question) -> None:
        """Make an SSH key if there is none, and install it with the password."""
        public = way.public_key()
        if not public and way.key_files():
            path = shlex.quote(str(way.key_files()[0]))
            raise AnsibleActionFail(f"The SSH key {path} has no public key file. Make it with `ssh-keygen -y -f {path} > {path}.pub` and run again.")
        if not public:
            if not self.terminal.confirm(questions.MAKE_KEY, given=self.given.get("make_key")):
                raise AnsibleActionFail("Without an SSH key, Ansible cannot reach the machines. Make one with `ssh-keygen -t ed25519` and run setup.yml again.")
            try:
                self.terminal.show(f"Made the SSH key {way.make_key()}.")
            except OSError as error:
                raise AnsibleActionFail(f"No SSH key could be made: {error}. Make one with `ssh-keygen -t ed25519` and run setup.yml again.") from error
            public = way.public_key()
        login = f"{way.user}@{way.address}"
        copy = f"ssh-copy-id {f'-p {way.port} ' if way.port else ''}{shlex.quote(login)}"
        for left in reversed(range(_TRIES)):
            password = self.login_password or self.terminal.password(
                f"{login} does not know the SSH key of this computer yet. Its password is needed once, to install the key.\nPassword of {login}",
                f"{login} does not accept an SSH key of this computer, and setup.yml has no terminal to ask for the password on. "
                f"Install the key with `{copy}`, or add -k (--ask-pass) or --connection-password-file FILE.",
            )
            failure = way.install_key(public, password, self.play_context) if password else "Permission denied"
            if not failure:
                self.typed[way.address] = password
                self.terminal.show(f"The SSH key is installed for {login}.")
                return
            if ssh_failure.cause(failure) not in ("key_refused", "key_required", "password_wrong"):
                shown = ssh_failure.sentences(failure, way.address, way.address, way.user, int(way.port or 22))
                raise AnsibleActionFail(shown or f"{login}: the key was not installed: {failure[:300]}")
            if self.login_password or not left:
                raise AnsibleActionFail(
                    f"{login} does not accept the password. Correct {questions.USER.variable} or {question.variable}, or reset the password on the machine."
                )
            self.terminal.show(f"{login} does not accept this password. Try again.", color="yellow")

    def _sudo(self, machine: Machine, other: Machine | None) -> None:
        """Find the password of sudo, if it asks for one. `other` is the machine before, whose password the user can take with Enter."""
        if not machine.asks:
            self.terminal.show(f"sudo on {machine.address} needs no password.")
            return
        way = Local() if machine.local else Ssh(machine.address, machine.user, machine.port, machine.key)
        fault, remedy = "", "Run again with -K and the right password"
        if other and other.password:
            remedy = f"It accepts the password on {other.address}, and -K takes one: set the same one on both with `passwd`"
        for left in reversed(range(_TRIES)):
            password = (self.sudo_password or self.typed.get(machine.address, "")) if left == _TRIES - 1 else ""
            theirs = other.password if other and not fault else ""
            if not password:
                shown = f"{fault}.\n" if fault else ""
                password = self.terminal.password(
                    f"{shown}sudo on {machine.address} asks for a password. It is used in this run only, to read the machine.\n"
                    f"Password of {machine.user} for sudo{f', or Enter for that of {other.address}' if other and theirs else ''}",
                    f"{machine.address}: {fault}. {remedy}."
                    if fault
                    else f"sudo on {machine.address} asks for a password, and setup.yml has no terminal to ask on. Add -K (--ask-become-pass) or "
                    "--become-password-file FILE.",
                )
            password = password or theirs
            fault = way.sudo(password)
            if not fault:
                machine.password = password
                self.terminal.show(f"sudo on {machine.address} asks for a password: add -K to the commands.")
                return
            if "not allowed" in fault or "connection ended" in fault or not left:
                raise AnsibleActionFail(f"{machine.address}: {fault}.")
