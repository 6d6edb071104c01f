# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host is reached: the form of its address and port; the cause of a failed SSH connection, and one remedy with one command for each. Pure.

The texts are those of OpenSSH 8.2 to 10 on Linux (glibc, musl) and macOS, and those of ansible-core's connection plugin.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from typing import Any, NamedTuple

# --- The address and the port by which a host is reached.


def host_fault(value: Any) -> str:
    """Return what is wrong with an address or a name by which a host is reached; empty if nothing is."""
    text = str(value).strip()
    expected = "expected an IP address or a name, such as 192.168.1.11 or spark-1.local"
    if "@" in text:
        return f"contains '@', {expected}; set the user in ansible_user"
    plain = text.partition("%")[0]
    if _is_ip(plain):
        ip = ipaddress.ip_address(plain)
        shared = ip.is_unspecified or ip.is_multicast or plain == "255.255.255.255"
        return f"is {text!r}, which is not the address of one host; {expected}" if shared else ""
    if re.fullmatch(r"[^:/]+:\d+|\[.+\]:\d+", text):
        return f"is {text!r}, {expected}; set the port in ansible_port"
    if re.fullmatch(r"[\d.]+(?:/\d+)?", text):
        return f"is {text!r}, which is not a valid IPv4 address; {expected}"
    if not re.fullmatch(r"(?=.{1,253}$)[A-Za-z0-9_](?:[A-Za-z0-9_-]{0,62})(?:\.[A-Za-z0-9_][A-Za-z0-9_-]{0,62})*\.?", text):
        return f"is {text!r}, {expected}"
    return ""


def is_here(text: str) -> bool:
    """Report whether an address or a name is one that only the computer itself reaches."""
    if not _is_ip(text):
        return text.lower().rstrip(".") in ("localhost", "localhost.localdomain")
    ip = ipaddress.ip_address(text)
    return ip.is_loopback or ip.is_unspecified


def _is_ip(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return False
    return True


def port_fault(value: Any) -> str:
    """Return what is wrong with the port of SSH; empty if nothing is."""
    if value in (None, "") or (re.fullmatch(r"\d{1,5}", str(value)) and 1 <= int(str(value)) <= 65535 and not isinstance(value, bool)):
        return ""
    return f"is {value!r}, expected a port from 1 to 65535"


# --- The cause of a failed SSH connection, and one remedy with one command for each.

# Where a machine shows the fingerprint that a host key must have.
COMPARE = "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"


class _Cause(NamedTuple):
    """What was found, the texts that show it, and what to do. `{ssh}`, `{scan}`, … are filled in by `remedy`."""

    found: str
    pattern: str
    remedy: str


# The first match decides: a changed key also reports that the verification failed, a refusal can follow a warning.
_CAUSES: dict[str, _Cause] = {
    "host_key_changed": _Cause(
        "its SSH host key is not the one that is stored on this computer",
        r"remote host identification has changed|host key for .* has changed|possible dns spoofing detected|offending \S+ key in",
        "compare its fingerprint on the machine (`{compare}`) with that of `{scan}`. If they are equal, the machine was installed again: remove the old key "
        "with `{forget}` and run again. If they differ, another machine answers at this address",
    ),
    "host_key_unknown": _Cause(
        "its SSH host key is not known on this computer",
        r"host key verification failed|no \S+ host key is known for|(?:because )?host key checking is enabled|read_passphrase: can't open /dev/tty",
        "run `{ssh}`, compare the fingerprint with the one that `{compare}` prints on the machine, and answer yes",
    ),
    "name_not_found": _Cause(
        "its name is not found",
        r"could not resolve hostname|name or service not known|nodename nor servname|temporary failure in name resolution|name does not resolve"
        r"|no address associated with",
        "set ansible_host to the IP address that `hostname -I` prints on the machine",
    ),
    "key_file": _Cause(
        "the SSH key on this computer cannot be used",
        r"unprotected private key file|permissions \d+ for .* are too open|load key .*: (?:bad permissions|permission denied)",
        "make its file readable for you alone with `{chmod}`, or correct ansible_ssh_private_key_file",
    ),
    "key_missing": _Cause(
        "it does not accept this user, and the SSH key that is configured does not exist",
        r"(?:identity file .* not accessible|no such identity)[\s\S]*permission denied",
        "correct ansible_ssh_private_key_file, or make the key with `ssh-keygen -t ed25519` and install it with `{copy}`",
    ),
    "password_wrong": _Cause(
        "it does not accept this user with this password",
        r"invalid/incorrect (?:username/)?password",
        "try user and password with `{ssh}`, and correct ansible_user (for a key instead of a password: `{copy}`)",
    ),
    "too_many_keys": _Cause(
        "it ended the login after too many SSH keys",
        r"too many authentication failures",
        "set ansible_ssh_private_key_file to the key of this machine. `ssh-add -l` lists the keys that are offered",
    ),
    "key_required": _Cause(
        "it accepts only SSH keys, and none of this computer",
        r"permission denied \((?:publickey|gssapi[\w-]*|hostbased|,)+\)",
        "append this computer's public key to ~/.ssh/authorized_keys of {user} on the machine: `cat ~/.ssh/id_*.pub` shows it. Check ansible_user as well",
    ),
    "key_refused": _Cause(
        "it does not accept this user with an SSH key of this computer",
        r"permission denied|authentication fail",
        "install the key with `{copy}` (`ssh-keygen -t ed25519` makes one). If that asks for a password and refuses it, correct ansible_user",
    ),
    "port_refused": _Cause(
        "it is on, but no SSH server answers",
        r"connection refused",
        "start the SSH server on the machine with `sudo systemctl enable --now ssh`, or correct ansible_port",
    ),
    "slow": _Cause(
        "its SSH server accepts connections and answers too slowly",
        r"during banner exchange|timeout, server .* not responding|waiting for privilege escalation prompt",
        "if the address is that of Wi-Fi, use the address of the wired port (`ip -br address show` on the machine lists both). If not, the machine is "
        "overloaded or frozen: look at its screen, or restart it",
    ),
    "closed": _Cause(
        "its SSH server closes the connection before the login",
        r"kex_exchange_identification|ssh_exchange_identification|connection (?:closed|reset) by|connection to \S+ closed|broken pipe",
        "read the reason on the machine with `sudo journalctl -u ssh -n 20`",
    ),
    "off": _Cause(
        "it does not answer",
        r"timed out|no route to host|host is down|network is unreachable|can't assign requested address",
        "check that it is on and in the same network: `{ping}`. If the address is that of Wi-Fi, use the wired port: many access points keep their "
        "clients apart",
    ),
    "client": _Cause(
        "the SSH client of this computer cannot start",
        r"bad configuration option|bad owner or permissions on|terminating, \d+ bad configuration|unable to execute ssh"
        r"|ssh: (?:command not found|not found|no such file)"
        r"|too long for unix domain socket|controlpath too long",
        "try it with `{ssh}` and correct ~/.ssh/config. If the path of a socket is too long: `export ANSIBLE_SSH_CONTROL_PATH_DIR=/tmp/ssh`",
    ),
    "negotiation": _Cause(
        "this computer and the machine have no SSH algorithm in common",
        r"unable to negotiate with|no matching (?:host key type|key exchange method|cipher)",
        "update OpenSSH where it is older (`ssh -V`)",
    ),
}  # fmt: skip


def cause(text: str) -> str:
    """Return the name of the cause that the text of a failed connection shows; empty if it shows none."""
    return next((name for name, each in _CAUSES.items() if re.search(each.pattern, text, re.IGNORECASE)), "")


def names() -> list[str]:
    """Return the names of all causes."""
    return list(_CAUSES)


def found(text: str) -> str:
    """Return what is the matter, as a phrase with the line that shows it; empty without a known cause."""
    name = cause(text)
    if not name:
        return ""
    lines = [line.strip(" .@\t") for line in text.splitlines()]
    shown = next((line for line in lines if re.search(_CAUSES[name].pattern, line, re.IGNORECASE)), "")
    shown = re.sub(r"^.*?(?:failed to connect to the host via ssh|data could not be sent to remote host .{1,300}? over ssh): *", "", shown, flags=re.IGNORECASE)
    return f"{_CAUSES[name].found} ({shown[:200]})" if shown else _CAUSES[name].found


def remedy(text: str, host: str, address: str, user: str = "", port: int = 22) -> str:
    """Return what to do, as a phrase without a full stop; empty without a known cause.

    :param host: the name in the inventory, ``address`` what SSH is given, ``user`` the login; empty if it is that of this computer.
    """
    name = cause(text)
    if not name:
        return ""
    where = shlex.quote(address or host)
    login = shlex.quote(f"{user}@{address or host}") if user else where
    known = shlex.quote(f"[{address or host}]:{port}") if port != 22 else where
    option = f"-p {port} " if port != 22 else ""
    return _CAUSES[name].remedy.format(
        ssh=f"ssh {option}{login} true",
        copy=f"ssh-copy-id {option}{login}",
        forget=f"ssh-keygen -R {known}",
        scan=f"ssh-keyscan {option}{where} | ssh-keygen -lf -",
        ping=f"ping -c 3 {where}",
        chmod=f"chmod 600 {_key_file(text)}",
        compare=COMPARE,
        user=user or "the user",
    )


def _key_file(text: str) -> str:
    match = re.search(r"permissions \d+ for '([^'\n]{1,300})'|load key \"([^\"\n]{1,300})\"", text, re.IGNORECASE)
    return shlex.quote(next(filter(None, match.groups()))) if match else "~/.ssh/id_ed25519"


def sentences(text: str, host: str, address: str, user: str = "", port: int = 22) -> str:
    """Return the message for the user: the node, what was found, what to do; empty without a known cause."""
    reason, action = found(text), remedy(text, host, address, user, port)
    where = f"{host} ({address})" if address and address != host else host
    return f"{where}: {reason}. {action[0].upper()}{action[1:]}." if reason else ""
