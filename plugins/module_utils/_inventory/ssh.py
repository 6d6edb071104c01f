# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a host is reached: the form of its address and port; the cause of a failed SSH connection, and one remedy with one command for each.

Controller only. The causes are in ssh_causes.yml.
"""

from __future__ import annotations

import ipaddress
import re
import shlex
from functools import cache
from pathlib import Path
from typing import Any

from ansible.module_utils.common.yaml import yaml_load

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


@cache
def _causes() -> dict[str, dict[str, Any]]:
    """Return the causes of ssh_causes.yml. The first match decides."""
    found: dict[str, dict[str, Any]] = yaml_load(Path(__file__).with_name("ssh_causes.yml").read_text(encoding="utf-8"))
    return found


def _shows(name: str, text: str) -> bool:
    return any(re.search(each, text, re.IGNORECASE) for each in _causes()[name]["texts"])


def cause(text: str) -> str:
    """Return the name of the cause that the text of a failed connection shows; empty if it shows none."""
    return next((name for name in _causes() if _shows(name, text)), "")


def found(text: str) -> str:
    """Return what is the matter, as a phrase with the line that shows it; empty without a known cause."""
    name = cause(text)
    if not name:
        return ""
    lines = [line.strip(" .@\t") for line in text.splitlines()]
    shown = next((line for line in lines if _shows(name, line)), "")
    shown = re.sub(r"^.*?(?:failed to connect to the host via ssh|data could not be sent to remote host .{1,300}? over ssh): *", "", shown, flags=re.IGNORECASE)
    return f"{_causes()[name]['found']} ({shown[:200]})" if shown else str(_causes()[name]["found"])


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
    return str(_causes()[name]["remedy"]).format(
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
