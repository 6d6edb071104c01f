# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the login on a machine for setup.yml: host key, SSH key and passwords, asked for by OpenSSH itself. Controller only.

A task has no terminal, so OpenSSH asks through its SSH_ASKPASS, and the question is passed on. Its configuration is that of ~/.ssh/config.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import shlex
import socket
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from ansible import constants
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._core import finding
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import LATE, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words
from ansible_collections.gb10.cluster.plugins.plugin_utils.setup_questions import NoTerminalError

_SECONDS = 60  # of one connection with its command
_PATIENCE = 600  # seconds of a program whose questions a person answers
_LIMIT = 1 << 16  # a machine can print without end
_OPTIONS = ("-o", "ConnectTimeout=10", "-o", "ControlMaster=no", "-o", "ControlPath=none")  # no shared connection: what counts is that a new one works
_ASKED = ("-o", "BatchMode=no", "-o", "StrictHostKeyChecking=ask", "-o", "FingerprintHash=sha256")
_LOOK = (
    'echo "gb10-host $(uname -n)"; echo "gb10-id $(cat /etc/machine-id 2>/dev/null)"; '
    "if sudo -k -n true >/dev/null 2>&1; then echo gb10-sudo yes; else echo gb10-sudo no; fi"
)
# What OpenSSH runs for a question, which is its argument. The answer is in no argument, file or environment.
_ASKPASS = '#!/bin/sh\nprintf "%s" "$1" >"$GB10_SETUP/question"\nIFS= read -r answer <"$GB10_SETUP/answer" && [ "$answer" ] && printf "%s\\n" "$answer"\n'

Answer = Callable[[str], str]  # the answer to a question of OpenSSH; empty for none. Raises AnsibleActionFail to end it


def asked(argv: list[str], answer: Answer) -> str:
    """Run a program of OpenSSH whose questions are answered; return what it prints if it fails. Raises what `answer` raises, after it has ended."""
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
                    text, typed = question.read(_LIMIT).decode("utf-8", "replace"), ""
                    try:
                        typed = "" if faults else answer(text)
                    except AnsibleActionFail as error:  # OpenSSH ends by itself when it gets no answer
                        faults.append(error)
                    reply.write(f"{typed}\n".encode())
        if faults:
            raise faults[0]
        rc, out, err = run.result()
        return (err.strip() or out.strip() or f"exit code {rc}") if rc else ""


@dataclass
class Machine:
    """One machine; `port` and `key` are those of an inventory that is there, empty if OpenSSH's own configuration decides."""

    address: str
    user: str
    port: str = ""
    key: str = ""
    local: bool = False  # it is this computer
    name: str = ""
    machine_id: str = ""
    asks: bool = False  # whether sudo asks for a password

    def _words(self) -> list[str]:
        return ssh_words({"ansible_user": self.user, "ansible_host": self.address, "ansible_port": self.port, "ansible_ssh_private_key_file": self.key}, "")

    def _ssh(self, command: str, *options: str) -> list[str]:
        return ["sh", "-c", command] if self.local else ["ssh", *_OPTIONS, *options, *self._words(), f"sh -c {shlex.quote(command)}"]

    def _run(self, command: str, text: str = "") -> tuple[int, str, str]:
        rc, out, err = run_command(self._ssh(command, "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes"), _SECONDS, stdin=text, limit=_LIMIT)
        return (255, "", "Connection timed out during banner exchange") if rc == LATE and not out else (rc, out, err)

    def look(self) -> str:
        """Log in with a key and keep what the machine shows; return the text of a failure."""
        rc, out, err = self._run(_LOOK)
        found = dict(re.findall(r"^gb10-(host|id|sudo) (\S*)\s*$", out, re.MULTILINE))
        if rc == 255 or "sudo" not in found:
            return err.strip() or f"the login ended with exit code {rc} and no message"
        self.name, self.machine_id, self.asks = found.get("host", ""), found.get("id", ""), found["sudo"] != "yes"
        return ""

    def sudo(self, password: str) -> bool:
        """Return whether sudo accepts a password, which goes through the connection's standard input. Raises AnsibleActionFail if it is not about that."""
        rc, _out, err = self._run("sudo -k -S -p '' true", password + "\n")
        cause = finding.cause_of(err)
        if rc == 255 or cause is finding.SUDOERS:
            why = f"{cause.found}: {cause.remedy}" if cause else f"the connection ended while sudo ran: {ssh.found(err) or err.strip()[:200]}"
            raise AnsibleActionFail(f"{self.address}: {why}.")
        return rc == 0

    def reach(self, answer: Answer, make_key: Callable[[], bool]) -> None:
        """Make the login with a key work: OpenSSH asks for the host key, ssh-copy-id for the password. Raises AnsibleActionFail with what to do."""
        failure, copy = self.look(), ["ssh-copy-id", *_OPTIONS, *_ASKED, *self._words()]
        with contextlib.suppress(NoTerminalError):  # what it would ask for has its remedy
            if ssh.cause(failure) == "host_key_unknown":
                asked(self._ssh("true", *_ASKED, "-o", "PreferredAuthentications=none"), answer)
                failure = self.look()
            if ssh.cause(failure) in ("key_refused", "key_missing"):
                failure = asked(copy, answer)
                if "No identities found" in failure:
                    if not make_key():
                        raise AnsibleActionFail("Ansible needs an SSH key. Make one with `ssh-keygen -t ed25519` and run setup.yml again.")
                    _make_key()
                    failure = asked(copy, answer)
                if not failure and ssh.cause(failure := self.look()) == "key_refused":
                    other = f"`ssh-copy-id -i KEY {shlex.join(self._words())}`"
                    why = "the login by key fails after the key was installed. If the key has a passphrase, load it with `ssh-add` and run again"
                    raise AnsibleActionFail(f"{self.address}: {why}. If ~/.ssh/config names another key (IdentityFile), install that one with {other}.")
        if failure:
            shown = ssh.sentences(failure, self.address, self.address, self.user, int(self.port) if self.port.isdecimal() else 22)
            last = failure.splitlines()[-1][:200].rstrip(".")
            raise AnsibleActionFail(shown or f"{self.address}: {last}. Run `ssh {shlex.join(self._words())} true` and correct what it reports.")


def _make_key() -> None:
    """Make the SSH key of this computer, without a passphrase. Raises AnsibleActionFail."""
    key = Path("~/.ssh/id_ed25519").expanduser()
    if key.exists():
        raise AnsibleActionFail(f"{key} has no public key. Write it with `ssh-keygen -yf {key} >{key}.pub` and run setup.yml again.")
    key.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    rc, out, err = run_command(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], _SECONDS)
    if rc:
        reason = (err or out).strip()[:200].rstrip(".")
        raise AnsibleActionFail(f"No SSH key could be made: {reason}. Make one with `ssh-keygen -t ed25519` and run setup.yml again.")


def configured_user(address: str) -> str:
    """Return the login that ~/.ssh/config has for an address, else that of this computer; empty without an SSH client."""
    match = re.search(r"^user (\S+)$", run_command(["ssh", "-G", address], _SECONDS, limit=_LIMIT)[1], re.MULTILINE)
    return match[1] if match else ""


def own(address: str) -> str:
    """Return the address of this computer that others reach, if an address or name is one of this computer; else empty."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)
    except OSError:
        return ""
    for family, kind, _protocol, _name, place in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind((place[0], 0, *place[2:]))
            except OSError:
                continue
            # Debian and Ubuntu give its own name a loopback address in /etc/hosts.
            return default_address() or address if str(place[0]).startswith(("127.", "::1")) else address
    return ""


def default_address() -> str:
    """Return the address of this computer in the network of its default route; empty if there is none. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
