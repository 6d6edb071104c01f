# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: parse the output of `ip`, `rdma`, `ibv_devinfo` and `ethtool`. Pure: text in, plain records out."""

from __future__ import annotations

import ipaddress
import json
import re
from typing import Any

Record = dict[str, Any]

OVERHEAD = 96  # bytes of RoCE v2 headers that the kernel subtracts from the MTU of the network device before it rounds down (iboe_get_mtu)


def json_records(text: str, key: str) -> list[Record]:
    """Return the objects with `key` of the first JSON array that begins a line; lines of stderr may surround it."""
    decoder = json.JSONDecoder()
    for match in re.finditer(r"^\W*(?=\[)", text, re.M):
        try:
            value, _end = decoder.raw_decode(text, match.end())
        except (ValueError, RecursionError):
            continue
        found = [item for item in value if isinstance(item, dict) and isinstance(item.get(key), str)]
        if found:
            return found
    return []


def lists_nothing(text: str) -> bool:
    """Return whether a command printed an empty JSON list: `[]`, `[ ]`, `[{}]`."""
    return re.fullmatch(r"\s*\[\s*(?:\{\s*\}\s*,?\s*)*\]\s*", text) is not None


_RDMA_LINE = re.compile(
    r"^[ \t]*(?:link[ \t]+)?(?P<hca>[^\s/]+)/(?P<port>\d+)[: ].*?\bstate[ \t]+(?P<state>\w+)"
    r"(?:.*?\bphysical_state[ \t]+(?P<physical_state>\w+))?(?:.*?\bnetdev[ \t]+(?P<netdev>\S+))?",
    re.M,
)


def parse_rdma_link(text: str) -> list[Record]:
    """Return [{hca, port, state, physical_state, netdev}] of `rdma -j link`, or of its plain text form."""
    rows = []
    for record in json_records(text, "ifname"):
        rows.append({"hca": record["ifname"], "port": record.get("port", 1), **{key: record.get(key) for key in ("state", "physical_state", "netdev")}})
    return rows or [{**match.groupdict(), "port": int(match["port"])} for match in _RDMA_LINE.finditer(text)]


_IP_HEAD = re.compile(r"^\d+:\s+(?P<name>[^:\s@]+)(?:@\S+?)?:\s+<(?P<flags>[^>]*)>\s+mtu\s+(?P<mtu>\d+)")
_IP_INET = re.compile(r"^\s+(?P<family>inet6?)\s+(?P<local>[0-9a-fA-F.:]+)/(?P<prefix>\d+)(?P<rest>.*)$")


def parse_ip_addr(text: str) -> list[Record]:
    """Return the objects of `ip -j -d addr`; of the plain text form names, flags, MTU and addresses."""
    records = json_records(text, "ifname")
    if records:
        return records
    for line in text.splitlines():
        head, inet = _IP_HEAD.match(line), _IP_INET.match(line)
        if head is not None:
            records.append({"ifname": head["name"], "flags": head["flags"].split(","), "mtu": int(head["mtu"]), "addr_info": []})
        elif inet is not None and records:
            rest = inet["rest"].split()
            scope = rest[rest.index("scope") + 1] if "scope" in rest[:-1] else "global"
            address = {"family": inet["family"], "local": inet["local"], "prefixlen": int(inet["prefix"]), "scope": scope, "secondary": "secondary" in rest}
            records[-1]["addr_info"].append(address)
    return records


def parse_ip_route(text: str) -> list[Record]:
    """Return the objects of `ip -j route`."""
    return json_records(text, "dst")


_DEVINFO = re.compile(r"^\s*(hca_id|port|active_mtu):\s*(\S+)", re.M)


def parse_active_mtus(text: str) -> dict[tuple[str, int], int]:
    """Return {(hca, port): RDMA MTU in bytes} of `ibv_devinfo`."""
    found: dict[tuple[str, int], int] = {}
    hca, port = "", 0
    for match in _DEVINFO.finditer(text):
        key, value = match.groups()
        if key == "hca_id":
            hca = value
        elif value.isdigit() and key == "port":
            port = int(value)
        elif value.isdigit():
            found[hca, port] = int(value)
    return found


def parse_ethtool_speed(text: str) -> int | None:
    """Return the speed in Mb/s of `ethtool DEV`."""
    match = re.search(r"^\s*Speed:\s*(\d+)\s*Mb/s", text, re.M)
    return int(match[1]) if match else None


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
