# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the address and the port by which a host is reached. Pure, standard library only."""

from __future__ import annotations

import ipaddress
import re
from typing import Any


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
