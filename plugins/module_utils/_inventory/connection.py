# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: variables of Ansible that lead to a host: their form, and names that are nearly theirs. Pure, standard library only."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

# What Ansible reads of a host that is reached over SSH, and what owners of a pair set besides.
NAMES = (
    "ansible_become", "ansible_become_exe", "ansible_become_flags", "ansible_become_method", "ansible_become_pass", "ansible_become_password",
    "ansible_become_user", "ansible_connection", "ansible_control_path", "ansible_control_path_dir", "ansible_executable", "ansible_host",
    "ansible_host_key_checking", "ansible_password", "ansible_paramiko_proxy_command", "ansible_pipelining", "ansible_port", "ansible_private_key",
    "ansible_private_key_file", "ansible_python_interpreter", "ansible_remote_tmp", "ansible_scp_executable", "ansible_scp_extra_args",
    "ansible_sftp_batch_mode", "ansible_sftp_extra_args", "ansible_shell_executable", "ansible_shell_type", "ansible_ssh_args",
    "ansible_ssh_common_args", "ansible_ssh_executable", "ansible_ssh_extra_args", "ansible_ssh_host", "ansible_ssh_pass", "ansible_ssh_password",
    "ansible_ssh_pipelining", "ansible_ssh_port", "ansible_ssh_private_key_file", "ansible_ssh_retries", "ansible_ssh_timeout",
    "ansible_ssh_transfer_method", "ansible_ssh_user", "ansible_sudo_pass", "ansible_timeout", "ansible_user", "ansible_winrm_transport",
    "ansible_sftp_executable", "ansible_ssh_host_key_checking", "ansible_su_pass", "ansible_su_user",
)  # fmt: skip


def name_fault(name: str) -> str:
    """Return what is wrong with a variable that begins like one of Ansible's; empty if it is one or is not near one."""
    if name in NAMES or not name.startswith("ansible"):
        return ""
    hint = did_you_mean(name, NAMES, 0.88)
    return f"is not a variable of Ansible{hint}" if hint else ""


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


def _here_fault(text: str, port: Any) -> str:
    """Return what is wrong with an address that only this computer reaches; with a port of its own it is the end of a tunnel."""
    if not is_here(text) or str(port or 22) != "22":
        return ""
    return f"is {text!r}, which only this computer reaches; give its address in your network, and set ansible_connection: local if Ansible runs on it"


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


def user_fault(value: Any, hosts: tuple[str, ...]) -> str:
    """Return what is wrong with a login name; empty if nothing is. It may have an '@' before a domain, but not before the address of its host."""
    text = str(value or "")
    _name, _at, address = text.rpartition("@")
    if re.search(r"\s", text):
        return "contains a space or a line end, expected a login name such as nvidia"
    if address and _at and (address in hosts or _is_ip(address)):
        return "ends with '@' and an address, expected a login name such as nvidia; set the address in ansible_host"
    return ""


def key_fault(value: Any) -> str:
    """Return what is wrong with the path of a private key; empty if nothing is."""
    if re.fullmatch(r"[^\n]+\.pub\s*", str(value or "")):
        return f"is {value!r}, which is a public key; write the private one, {str(value).strip().removesuffix('.pub')}"
    if "\n" in str(value or "") or "PRIVATE KEY" in str(value):
        return "contains a key, expected the path of its file on this computer, such as ~/.ssh/id_ed25519; move the key there, with mode 0600"
    return ""


def faults(host: str, values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (variable, sentence) of each value that leads to no host."""
    address = values.get("ansible_host") or host
    port = values.get("ansible_port")
    found = [("ansible_host", host_fault(address) or _here_fault(str(address).strip(), port)), ("ansible_port", port_fault(port))]
    found += [(name, user_fault(values.get(name), (host, str(address)))) for name in ("ansible_user", "ansible_ssh_user")]
    found += [(name, key_fault(values.get(name))) for name in ("ansible_ssh_private_key_file", "ansible_private_key_file")]
    return [(key, text) for key, text in found if text]
