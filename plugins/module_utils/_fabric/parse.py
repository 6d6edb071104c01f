# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: parse the output of `ip`, `rdma`, `ibv_devinfo` and `ethtool`. Pure: text in, plain records out."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]

OVERHEAD = 96  # bytes of RoCE v2 headers that the kernel subtracts from the MTU of the network device before it rounds down (iboe_get_mtu)


# Kinds of the values that are used; str is not empty, int is a number of 32 bits. json_records() drops a value of another kind.
_HOP = {"dev": str, "gateway": str, "via": {"host": str}, "flags": [str]}
_ROUTE = {**_HOP, "dst": str, "metric": int, "prefsrc": str, "nexthops": [_HOP]}
_ADDRESS = {"local": str, "prefixlen": int, "scope": str, "secondary": bool}
_LINK = {
    **dict.fromkeys(("ifname", "address", "link", "link_type", "master", "parentdev", "phys_port_name"), str),
    "ifindex": int,
    "mtu": int,
    "flags": [str],
    "altnames": [str],
    "linkinfo": {"info_kind": str},
    "addr_info": [_ADDRESS],
}
_RDMA = {**dict.fromkeys(("ifname", "state", "physical_state", "netdev"), str), "port": int, "netdev_index": int, "netdev_ifindex": int}

_ATTEMPTS = 2000  # at positions where a JSON value can begin
_OPENERS = re.compile(r"[\[{\s]+")


def _checked(value: Any, kind: Any) -> Any:
    """Return a JSON value without its members of another kind, None if it has another kind itself."""
    if isinstance(kind, list):
        items = [_checked(item, kind[0]) for item in value] if isinstance(value, list) else []
        return [item for item in items if item is not None] or None
    if isinstance(kind, dict):
        pairs = [(key, _checked(item, kind[key]) if key in kind else item) for key, item in value.items()] if isinstance(value, dict) else []
        return {key: item for key, item in pairs if item is not None} or None
    if kind is int:
        return value if isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 32 else None
    return value if isinstance(value, kind) and value else None


def _documents(text: str) -> Iterator[tuple[Any, int, int]]:
    """Yield (value, start, end) of each JSON object or array; other text is skipped, and of a truncated array the complete objects remain."""
    decoder = json.JSONDecoder()
    position = 0
    for _attempt in range(_ATTEMPTS):
        match = re.compile(r"[\[{]").search(text, position)
        if match is None:
            return
        try:
            value, position = decoder.raw_decode(text, match.start())
        except RecursionError:
            position = _OPENERS.match(text, match.start()).end()  # type: ignore[union-attr]  # it starts with one
        except ValueError:
            position = match.end()
        else:
            yield value, match.start(), position


def json_records(text: str, key: str, kind: Any) -> list[Record]:
    """Return the JSON objects of a kind that have `key`; lines of stderr may be anywhere between them."""
    objects = [item for value, _start, _end in _documents(text) for item in (value if isinstance(value, list) else [value])]
    records = [_checked(item, kind) or {} for item in objects]
    return [record for record in records if isinstance(record.get(key), str)]


def is_truncated(text: str, key: str) -> bool:
    """Return whether the array of the objects with `key` begins and does not end."""
    places = [(start, end) for value, start, end in _documents(text) if isinstance(value, dict) and key in value]
    return bool(places) and text[: places[0][0]].rstrip().endswith("[") and not text[places[-1][1] :].lstrip().startswith("]")


def lists_nothing(text: str) -> bool:
    """Return whether a command printed an empty JSON list: `[]`, `[ ]`, `[{}]`."""
    return re.fullmatch(r"\s*\[\s*(?:\{\s*\}\s*,?\s*)*\]\s*", text) is not None


_RDMA_LINE = re.compile(
    r"^[ \t]*(?:\d+/\d+:[ \t]*)?(?:link[ \t]+)?(?P<hca>[^\s/]+)/(?P<port>\d{1,9})[: ].*?\bstate[ \t]+(?P<state>\w+)"
    r"(?:.*?\bphysical_state[ \t]+(?P<physical_state>\w+))?(?:.*?\bnetdev[ \t]+(?P<netdev>\S+))?(?:.*?\bnetdev_index[ \t]+(?P<netdev_index>\d+))?",
    re.M,
)


def parse_rdma_link(text: str) -> list[Record]:
    """Return [{hca, port, state, physical_state, netdev, netdev_index}] of `rdma -j link`, or of its plain text form."""
    rows = []
    for record in json_records(text, "ifname", _RDMA):
        row = {key: record.get(key) for key in ("state", "physical_state", "netdev")}
        index = record.get("netdev_index") or record.get("netdev_ifindex")
        rows.append({"hca": record["ifname"], "port": record.get("port") or 1, "netdev_index": index, **row})
    lines = () if rows else _RDMA_LINE.finditer(text)
    return rows or [{**match.groupdict(), "port": int(match["port"]), "netdev_index": as_integer(match["netdev_index"])} for match in lines]


_IP_HEAD = re.compile(r"^\d+:\s+(?P<name>[^:\s@]+)(?:@(?P<link>\S+?))?:\s+<(?P<flags>[^>]*)>\s+mtu\s+(?P<mtu>\d{1,9})(?:.*?master\s+(?P<master>\S+))?")
_IP_INET = re.compile(r"^\s+(?P<family>inet6?)\s+(?P<local>[0-9a-fA-F.:]+)(?:\s+peer\s+\S+?)?/(?P<prefix>\d{1,9})(?P<rest>.*)$")


def parse_ip_addr(text: str) -> list[Record]:
    """Return the objects of `ip -j -d addr`; of the plain text form names, flags, MTU, device below, master and addresses."""
    records = json_records(text, "ifname", _LINK)
    if records:
        return records
    for line in text.splitlines():
        head, inet = _IP_HEAD.match(line), _IP_INET.match(line)
        if head is not None:
            records.append({"ifname": head["name"], "flags": head["flags"].split(","), "mtu": int(head["mtu"]), "addr_info": []})
            records[-1].update({key: head[key] for key in ("link", "master") if head[key]})
        elif inet is not None and records:
            rest = inet["rest"].split()
            scope = rest[rest.index("scope") + 1] if "scope" in rest[:-1] else "global"
            address = {"local": inet["local"], "prefixlen": int(inet["prefix"]), "scope": scope, "secondary": "secondary" in rest}
            records[-1]["addr_info"].append(address)
    return records


_ROUTE_LINE = re.compile(r"^(?P<dst>default|[0-9a-fA-F.:]+(?:/\d+)?)\s+(?=.*\bdev\b)(?P<rest>.*)$", re.M)


def parse_ip_route(text: str) -> list[Record]:
    """Return the objects of `ip -j route`, or of its plain text form."""
    records = json_records(text, "dst", _ROUTE)
    for match in () if records else _ROUTE_LINE.finditer(text):
        words = match["rest"].split()
        pairs = dict(zip(words, words[1:]))
        record = {key: pairs[word] for word, key in (("via", "gateway"), ("dev", "dev"), ("src", "prefsrc")) if word in pairs}
        records.append({"dst": match["dst"], "metric": as_integer(pairs.get("metric")) or 0, **record})
    return records


_DEVINFO = re.compile(r"^\s*(hca_id|port|state|active_mtu|link_layer):\s*(.+?)\s*$", re.M)


def parse_ibv_devinfo(text: str) -> dict[tuple[str, int], dict[str, str]]:
    """Return {(hca, port): {state, active_mtu, link_layer}} of `ibv_devinfo`."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    hca, port = "", 0
    for match in _DEVINFO.finditer(text):
        key, value = match.groups()
        if key == "hca_id":
            hca, port = value, 0
        elif key == "port":
            port = as_integer(value) or 0
            found[hca, port] = {}
        elif port:
            found[hca, port][key] = value
    return found


def parse_mtu(text: str | None) -> int | None:
    """Return an RDMA MTU in bytes: `4096 (5)`, `IBV_MTU_4096`, `5: 4096`, `5`."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", text or "")]
    sizes = (256, 512, 1024, 2048, 4096)
    return next((n for n in numbers if n in sizes), next((sizes[n - 1] for n in numbers if 1 <= n <= 5), None))


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
