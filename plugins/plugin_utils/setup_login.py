# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what setup.yml asks, the terminal that it asks on, and the login on a machine, by OpenSSH itself. Controller only.

A task has no terminal. Display asks in the main process, and OpenSSH asks through its SSH_ASKPASS. Its configuration is that of ~/.ssh/config.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ansible import constants
from ansible.errors import AnsibleActionFail, AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LATE, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import rules, ssh
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.ssh import host_fault, is_here
from ansible_collections.gb10.cluster.plugins.plugin_utils.settings import spec_of

_SECONDS = 60  # of one connection with its command
_PATIENCE = 600  # seconds of a program whose questions a person answers
_LIMIT = 1 << 16  # a machine can print without end
_OPTIONS = ("-o", "ConnectTimeout=10", "-o", "ControlMaster=no", "-o", "ControlPath=none")  # no shared connection: what counts is that a new one works
_ASKED = ("-o", "BatchMode=no", "-o", "StrictHostKeyChecking=ask", "-o", "FingerprintHash=sha256")
_LOOK = 'echo "gb10-machine $(uname -n) $(cat /etc/machine-id 2>/dev/null) $(sudo -k -n true >/dev/null 2>&1 && echo yes || echo no)"'
# What OpenSSH runs for a question, which is its argument. The answer is in no argument, file or environment.
_ASKPASS = '#!/bin/sh\nprintf "%s" "$1" >"$GB10_SETUP/question"\nIFS= read -r answer <"$GB10_SETUP/answer" && [ "$answer" ] && printf "%s\\n" "$answer"\n'
# The variable that answers a question, and its text. Its description in the specifications is the reason.
QUESTIONS = {
    "setup_head": "Name or address of the first Spark",
    "setup_worker": "Name or address of the second Spark",
    "setup_user": "Login on both machines",
    "gb10_profile": "Profile, its number or name",
    "gb10_model_store": "Folder of the model weights on both machines",
    "roce_foreign_policy": "What to do with this network configuration",
    "setup_write": "Write it?",
}
_NO_KEY = "\nThis computer has no SSH key, and Ansible needs one. The new key has no passphrase.\nMake an SSH key on this computer? [yes]:"


class NoTerminalError(AnsibleActionFail):
    """No terminal is there to ask on."""


def fault_of(variable: str, value: str) -> str:
    """Return what is wrong with an answer; empty if nothing is."""
    if variable == "setup_user":
        return "" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9._-]{0,31}", value) else f"is {value!r}, expected a login name, such as nvidia"
    if variable not in ("setup_head", "setup_worker"):
        return next((text for _path, text in rules.faults(variable, value, spec_of(variable))), "")
    here = f"is {value!r}, which only this computer reaches; give the address that it has in your network"
    return here if is_here(value.partition("%")[0]) else host_fault(value)


def show(*lines: str, color: str | None = None) -> None:
    """Print lines."""
    Display().display(printable("\n".join(lines)), color=color)


def typed(prompt: str, missing: str, private: bool = False) -> str:
    """Return what the user types; a private answer is not shown. `missing` is the sentence for a run without a terminal. Raises AnsibleActionFail."""
    try:
        answer: Any = Display().prompt_until(printable(prompt), private=private)
    except AnsiblePromptNoninteractive:
        raise NoTerminalError(f"setup.yml has no terminal to ask on. {missing}") from None
    except AnsiblePromptInterrupt:
        raise AnsibleActionFail("setup.yml was stopped by the user. No inventory was written. Run it again to continue.") from None
    return bytes(answer).decode("utf-8", "replace").strip("\r\n")


def ask(variable: str, default: str = "", given: Any = None, needed: bool = False, more: str = "", check: Callable[[str], str] = lambda _text: "") -> str:
    """Return a valid answer: the given one, else the user's, else the default, but not without a terminal if it is needed. `more` is shown before it."""
    answer, question, fault = str("" if given is None else given).strip(), QUESTIONS[variable], ""
    if answer and (fault := fault_of(variable, answer) or check(answer)):
        raise AnsibleActionFail(f"{variable} {fault}.")
    while not answer or fault:
        shown = [fault and f"{variable} {fault}.", more, plain_description(variable), f"{question}{f' [{default}]' if default else ''}:"]
        try:
            answer = typed("\n" + "\n".join(filter(None, shown)), f"Add -e {variable}=VALUE ({question}).").strip() or default
        except NoTerminalError:
            if needed or not default:
                raise
            return default
        fault = fault_of(variable, answer) or check(answer)
    return answer


def plain_description(variable: str, first: bool = False) -> str:
    """Return the description of a variable in the specifications, without markup: all, or the first sentences."""
    found = spec_of(variable)["description"]
    sentences = [found] if isinstance(found, str) else found[:1] if first else found
    return re.sub(r"\b[A-Z]\(([^)]*)\)", r"\1", " ".join(sentences))


def _answer(text: str) -> str:
    """Return what the user types for a question of OpenSSH."""
    kind = re.search(r"(\w+) key fingerprint", text)
    why = f"Compare it at the machine's own screen or in NVIDIA Sync: ssh-keygen -lf /etc/ssh/ssh_host_{kind[1].lower()}_key.pub\n" if kind else ""
    return typed(f"\n{why}" + re.sub(r"[?:]?\s*$", ":", text, count=1), "", private=not re.search(r"\(yes/no|type 'yes'", text))


def _asked(argv: list[str]) -> str:
    """Run a program of OpenSSH whose questions the user answers; return what it prints if it fails. Raises AnsibleActionFail after it has ended."""
    with tempfile.TemporaryDirectory(dir=constants.DEFAULT_LOCAL_TMP) as folder, ThreadPoolExecutor(1) as pool:
        script, faults = Path(folder, "askpass"), list[AnsibleActionFail]()
        script.write_text(_ASKPASS, encoding="utf-8")
        script.chmod(0o700)
        for name in ("question", "answer"):
            os.mkfifo(Path(folder, name), 0o600)
        environment = {"SSH_ASKPASS": str(script), "SSH_ASKPASS_REQUIRE": "force", "GB10_SETUP": folder}
        with open(Path(folder, "question"), "r+b", buffering=0) as question, open(Path(folder, "answer"), "r+b", buffering=0) as reply:
            run = pool.submit(run_command, argv, _PATIENCE, env=environment, limit=_LIMIT)
            while not run.done():
                if select.select([question], [], [], 0.1)[0]:
                    text, given = question.read(_LIMIT).decode("utf-8", "replace"), ""
                    try:
                        given = "" if faults else _answer(text)
                    except AnsibleActionFail as error:  # OpenSSH ends by itself when it gets no answer
                        faults.append(error)
                    reply.write(f"{given}\n".encode())
        if faults:
            raise faults[0]
        rc, out, err = run.result()
        return (err.strip() or out.strip() or f"exit code {rc}") if rc else ""


@dataclass
class Machine:
    """One machine, and what its login showed."""

    address: str
    user: str
    name: str = ""
    machine_id: str = ""
    asks: bool = False  # whether sudo asks for a password

    def _ssh(self, command: str, *options: str) -> list[str]:
        return ["ssh", *_OPTIONS, *options, f"{self.user}@{self.address}", f"sh -c {shlex.quote(command)}"]

    def look(self) -> str:
        """Log in with a key and keep what the machine shows; return the text of a failure."""
        rc, out, err = run_command(self._ssh(_LOOK, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"), _SECONDS, limit=_LIMIT)
        if rc == LATE and not out:
            return "Connection timed out during banner exchange"
        found = re.search(r"^gb10-machine (\S*) (\S*) (yes|no)\s*$", out, re.MULTILINE)
        if rc == 255 or not found:
            return err.strip() or f"the login ended with exit code {rc} and no message"
        self.name, self.machine_id, self.asks = found[1], found[2], found[3] != "yes"
        return ""

    def reach(self) -> None:
        """Make the login with a key work: OpenSSH asks for the host key, ssh-copy-id for the password. Raises AnsibleActionFail with what to do."""
        failure, copy = self.look(), ["ssh-copy-id", *_OPTIONS, *_ASKED, way := f"{self.user}@{self.address}"]
        with contextlib.suppress(NoTerminalError):  # what it would ask for has its remedy
            if ssh.cause(failure) == "host_key_unknown":
                _asked(self._ssh("true", *_ASKED, "-o", "PreferredAuthentications=none"))
                failure = self.look()
            if ssh.cause(failure) in ("key_refused", "key_missing"):
                if "No identities found" in (failure := _asked(copy)):
                    _make_key()
                    failure = _asked(copy)
                if not failure and ssh.cause(failure := self.look()) == "key_refused":
                    why = "the login by key fails after the key was installed. If it has a passphrase, load it with `ssh-add` and run again"
                    raise AnsibleActionFail(f"{self.address}: {why}. If ~/.ssh/config names another key, install that one: `ssh-copy-id -i KEY {way}`.")
        if failure:
            other = f"{self.address}: {failure.splitlines()[-1][:200].rstrip('.')}. Run `ssh {way} true` and correct what it reports."
            raise AnsibleActionFail(ssh.sentences(failure, self.address, self.address, self.user, 22) or other)


def _make_key() -> None:
    """Make the SSH key of this computer, without a passphrase, if the user wants it. Raises AnsibleActionFail."""
    key, reason = os.path.expanduser("~/.ssh/id_ed25519"), "Ansible needs an SSH key"
    if typed(_NO_KEY, "").strip().lower() in ("", "y", "yes"):
        rc, out, err = run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], _SECONDS)  # it replaces none: it has no input
        if not rc:
            return
        reason = f"No SSH key could be made: {(err or out).strip()[:200].rstrip('.')}"
    raise AnsibleActionFail(f"{reason}. Make one with `ssh-keygen -t ed25519`, or the public key of {key} with `ssh-keygen -yf`, and run setup.yml again.")


def configured_user(address: str) -> str:
    """Return the login that ~/.ssh/config has for an address, else that of this computer; empty without an SSH client."""
    match = re.search(r"^user (\S+)$", run_command(["ssh", "-G", address], _SECONDS, limit=_LIMIT)[1], re.MULTILINE)
    return match[1] if match else ""
