# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the output of `ip -j` and `rdma -j`, numbers and addresses. Pure: text in, plain records out."""

from __future__ import annotations

import ipaddress
import json
from typing import Any

Record = dict[str, Any]

OVERHEAD = 96  # bytes of RoCE v2 headers that the kernel subtracts from the MTU of the network device before it rounds down (iboe_get_mtu)


def json_records(text: str | None, key: str) -> list[Record]:
    """Return the JSON objects that have `key`; none if the text is not a JSON list. `ip` prints empty objects for what it filters."""
    try:
        found = json.loads(text or "")
    except (ValueError, RecursionError):
        return []
    return [item for item in found if isinstance(item, dict) and isinstance(item.get(key), str)] if isinstance(found, list) else []


def as_integer(value: Any) -> int | None:
    """Return the integer of a text, None if it is not one."""
    try:
        return int(str(value).strip())
    except ValueError:
        return None


def as_address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    """Return the address of a text, None if it is not one."""
    try:
        return ipaddress.ip_address(str(text).strip())
    except ValueError:
        return None


def rdma_mtu(netdev_mtu: int) -> int:
    """Return the RDMA MTU (bytes) that the kernel derives from the MTU of a network device: 9000 -> 4096, 1500 -> 1024."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if netdev_mtu - OVERHEAD >= size), 0)
