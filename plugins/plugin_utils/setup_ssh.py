# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: SSH for setup.yml: login by key, host keys, the first key on a machine, sudo. Controller only.

It runs the programs of OpenSSH, which Linux and macOS have, and obeys the user's ~/.ssh/config. A host key is checked in each connection.
"""

from __future__ import annotations

import errno
import getpass
import ipaddress
import os
import pwd
import re
import shlex
import socket
from pathlib import Path
from typing import Any, NamedTuple

from ansible.errors import AnsibleError
from ansible.plugins.loader import connection_loader
from ansible_collections.gb10.cluster.plugins.module_utils._host import access
from ansible_collections.gb10.cluster.plugins.module_utils._host.command import LATE, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh_failure
from ansible_collections.gb10.cluster.plugins.module_utils._setup.host_keys import HostKey, lookup_name, parse_settings, scanned

_SECONDS = 60  # of one connection with its command
_MECHANISM = "ssh_askpass"  # of Ansible; sshpass need not be installed
_LOOK = (
    'echo "gb10-host $(uname -n)"; echo "gb10-id $(cat /etc/machine-id 2>/dev/null)"; '
    "if sudo -k -n true >/dev/null 2>&1; then echo gb10-sudo yes; else echo gb10-sudo no; fi"
)
# As ssh-copy-id does it, which cannot be given a password: a line of its own, once, in a file that the user alone can write.
_ADD_KEY = (
    'umask 077; cd; mkdir -p .ssh && f=.ssh/authorized_keys && touch "$f" && read -r key && if ! grep -qxF "$key" "$f"; '
    'then { [ ! -s "$f" ] || [ -z "$(tail -c 1 "$f")" ] || echo >>"$f"; printf "%s\\n" "$key" >>"$f"; }; fi'
)


class Look(NamedTuple):
    """What a login showed: `failure` is the text of SSH, empty if it worked."""

    failure: str = ""
    hostname: str = ""
    machine_id: str = ""
    sudo: bool = False


def _run(argv: list[str], text: str = "") -> tuple[int, str, str]:
    """Run a program of the controller with a text on its standard input. A machine can print without end, so little of the output is kept."""
    rc, out, err = run_command(argv, _SECONDS, stdin=text, limit=1 << 16)
    if rc == LATE and not out:
        return 255, "", "Connection timed out during banner exchange"
    return rc, out, f"{argv[0]}: command not found" if rc == 127 and err == f"{argv[0]}: {os.strerror(errno.ENOENT)}" else err


def _look(rc: int, out: str, err: str) -> Look:
    """Return what the output of _LOOK shows."""
    found = dict(re.findall(r"^gb10-(host|id|sudo) (\S*)\s*$", out, re.MULTILINE))
    if rc == 255 or "sudo" not in found:
        return Look(failure=err.strip() or f"the login ended with exit code {rc} and no message")
    return Look("", found.get("host", ""), found.get("id", ""), found["sudo"] == "yes")


class Local:
    """This computer as one of the two machines."""

    is_local = True

    def look(self) -> Look:
        """Return its name, its id and whether sudo needs a password."""
        return _look(*_run(["sh", "-c", _LOOK]))

    def sudo(self, password: str) -> str:
        """Return why sudo does not accept a password; empty if it does."""
        return _sudo_fault(*_run(["sh", "-c", "sudo -k -S -p '' true"], password + "\n"))


def _sudo_fault(rc: int, _out: str, err: str) -> str:
    if rc == 0:
        return ""
    if rc == 255:
        return f"the connection ended while sudo ran: {ssh_failure.found(err) or err.strip()[:200] or 'no message'}"
    cause = access.cause_of(err)
    if cause in (access.SUDOERS,):
        return f"{cause.found}. {cause.remedy[0].upper()}{cause.remedy[1:]}"
    return "sudo does not accept the password"


class Ssh:
    """One machine that is reached over SSH."""

    is_local = False

    def __init__(self, address: str, user: str, port: str = "", key: str = "") -> None:
        """Read what OpenSSH's configuration has for it. A port and a private key that are given win over it."""
        self.address, self.user, self.port, self.key = address, user, port, key
        self._options = [*(["-p", port] if port else []), *(["-i", str(_home_path(key))] if key else [])]
        rc, out, err = _run(["ssh", "-G", "-l", user, *self._options, address])
        self.settings = parse_settings(out)
        self.failure = "" if rc == 0 else err.strip()

    def _argv(self, command: str) -> list[str]:
        # No shared connection: what counts is that a new one works. A host key that is not known or differs ends it.
        options = ["BatchMode=yes", "StrictHostKeyChecking=yes", "ConnectTimeout=10", "ControlMaster=no", "ControlPath=none"]
        return ["ssh", *(word for option in options for word in ("-o", option)), "-l", self.user, *self._options, self.address, f"sh -c {shlex.quote(command)}"]

    def look(self) -> Look:
        """Log in with a key; return what the machine shows, or the text of the failure."""
        return Look(failure=self.failure) if self.failure else _look(*_run(self._argv(_LOOK)))

    def sudo(self, password: str) -> str:
        """Return why sudo does not accept a password; empty if it does. The password goes through the connection's standard input."""
        return _sudo_fault(*_run(self._argv("sudo -k -S -p '' true"), password + "\n"))

    def scan(self) -> list[HostKey]:
        """Return the host keys that the machine shows, unverified."""
        port, name = (self.settings.get("port") or ["22"])[0], (self.settings.get("hostname") or [self.address])[0]
        return scanned(_run(["ssh-keyscan", "-T", "10", "-p", port, name])[1])

    @property
    def known_hosts(self) -> Path:
        """The file in which OpenSSH keeps the user's known host keys."""
        return _home_path(shlex.split((self.settings.get("userknownhostsfile") or ["~/.ssh/known_hosts"])[0])[0])

    def store(self, key: HostKey) -> None:
        """Append a confirmed host key to the user's known_hosts. Raises OSError."""
        path = self.known_hosts
        if path.exists() and not path.is_file():
            raise OSError(errno.EINVAL, f"{path} is not a regular file; correct UserKnownHostsFile in ~/.ssh/config")
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        line = key.line(lookup_name(self.settings, self.address))
        with open(os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600), "r+b") as out:
            size = out.seek(0, os.SEEK_END)
            if size:
                out.seek(size - 1)
                line = line if out.read(1) == b"\n" else "\n" + line
            out.write(line.encode("ascii"))

    def key_files(self) -> list[Path]:
        """Return the private keys that OpenSSH would use and that exist."""
        return [path for path in map(_home_path, [self.key] if self.key else self.settings.get("identityfile") or []) if path.is_file()]

    def public_key(self) -> str:
        """Return a public key of the user, ed25519 first: of a file, else of the agent; empty if there is none."""
        texts = []
        for path in self.key_files():
            public = path.with_name(f"{path.name}.pub")
            if public.is_file():
                texts.append(public.read_text(encoding="utf-8", errors="replace"))
        rc, out, _err = _run(["ssh-add", "-L"])
        lines = [line.strip() for text in (*texts, out if rc == 0 and not self.key else "") for line in text.splitlines()]
        keys = [line for line in lines if re.fullmatch(r"[a-z0-9@.-]+ [A-Za-z0-9+/=]{40,8000}(?: [\x20-\x7e]*)?", line)]
        return min(keys, key=lambda line: not line.startswith("ssh-ed25519"), default="")

    def make_key(self) -> str:
        """Make an ed25519 key without a passphrase where OpenSSH looks for one; return its path. Raises OSError."""
        wanted = [_home_path(each) for each in self.settings.get("identityfile") or []]
        path = next((each for each in wanted if "ed25519" in each.name and not each.name.endswith("_sk")), _home_path("~/.ssh/id_ed25519"))
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        comment = f"{getpass.getuser()}@{socket.gethostname()}"
        rc, _out, err = _run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)])
        if rc:
            raise OSError(err.strip().splitlines()[-1] if err.strip() else f"ssh-keygen ended with exit code {rc}")
        return str(path)

    def install_key(self, public: str, password: str, play_context: Any) -> str:
        """Append the public key on the machine with a login by password; return the text of the failure, empty if it worked.

        Ansible's connection gives the password to ssh through its own SSH_ASKPASS: not in an argument, a file or the environment.
        """
        connection = connection_loader.get("ssh", play_context, new_stdin=None)
        options = "-o ControlMaster=no -o ControlPath=none -o StrictHostKeyChecking=yes -o ConnectTimeout=10 -o PubkeyAuthentication=no"
        connection.set_options(
            direct={
                "host": self.address, "port": int(self.port) if self.port else None, "remote_user": self.user, "password": password, "ssh_args": options,
                "password_mechanism": _MECHANISM,
                "ssh_extra_args": "-o NumberOfPasswordPrompts=1 -o PreferredAuthentications=password,keyboard-interactive", "host_key_checking": True,
                "reconnection_retries": 0, "pipelining": True, "timeout": 15,
            }
        )  # fmt: skip
        try:
            rc, _out, err = connection.exec_command(f"sh -c {shlex.quote(_ADD_KEY)}", in_data=f"{public}\n".encode(), sudoable=False)
        except AnsibleError as error:
            return str(error)
        return "" if rc == 0 else bytes(err).decode("utf-8", "replace") or f"exit code {rc}"


def sentence(look: Look, address: str, user: str, port: str = "") -> str:
    """Return the message about a login that failed: the machine, what was found, what to do."""
    shown = ssh_failure.sentences(look.failure, address, address, user, int(port or 22))
    lines = look.failure.splitlines() or ["no message"]
    return shown or f"{address}: the login failed ({lines[-1][:200]}). Run `ssh {shlex.quote(f'{user}@{address}')} true` and correct what it reports."


def _home_path(text: str) -> Path:
    """Return a path of OpenSSH, whose ~ is the home of the account, not HOME."""
    home = pwd.getpwuid(os.getuid()).pw_dir
    return Path(home + text[1:] if text.startswith("~/") else text)


def configured_user(address: str) -> str:
    """Return the login that ~/.ssh/config has for an address, else that of this computer; empty without an SSH client."""
    return (parse_settings(_run(["ssh", "-G", address])[1]).get("user") or [""])[0]


def is_own(address: str) -> bool:
    """Report whether an address or name is one of this computer."""
    try:
        found = socket.getaddrinfo(address, None, type=socket.SOCK_DGRAM)
    except OSError:
        return False
    for family, kind, _protocol, _name, place in found:
        with socket.socket(family, kind) as probe:
            try:
                probe.bind((place[0], 0, *place[2:]))
            except OSError:
                continue
            return True
    return False


def in_network(name: str) -> str:
    """Return an address of this computer that others reach: Debian and Ubuntu give its own name a loopback address in /etc/hosts."""
    try:
        loopback = ipaddress.ip_address(socket.gethostbyname(name)).is_loopback
    except (OSError, ValueError):
        return name
    return (own_address() if loopback else "") or name


def own_address() -> str:
    """Return the address of this computer in the network of its default route; empty if there is none. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return ""
        return str(probe.getsockname()[0])
