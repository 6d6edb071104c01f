# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: read what `ip`, `rdma`, `ibv_devinfo`, `ethtool` and /proc/net/route print. Pure: text in, plain records out, noise skipped."""

from __future__ import annotations

import ipaddress
import json
import re
from collections.abc import Iterator
from typing import Any

Record = dict[str, Any]

OVERHEAD = 96  # bytes of RoCE v2 headers the kernel takes off the netdev's MTU before it rounds down (iboe_get_mtu)


def _documents(text: str) -> Iterator[tuple[Any, int, int]]:
    """Yield every JSON value that starts like an object or array, with its place: whatever cannot be decoded is passed over."""
    decoder = json.JSONDecoder()
    at = 0
    opener = re.compile(r"[\[{]")
    for _attempt in range(_MOST_ATTEMPTS):
        match = opener.search(text, at)
        if match is None:
            return
        try:
            value, at = decoder.raw_decode(text, match.start())
        except RecursionError:
            at = _OPENERS.match(text, match.start()).end()  # type: ignore[union-attr]  # it starts with one
            continue
        except ValueError:
            at = match.start() + 1
            continue
        yield value, match.start(), at


def _has(item: Any, key: str) -> bool:
    return isinstance(item, dict) and isinstance(item.get(key), str) and bool(item[key])


def json_records(text: str, key: str) -> list[Record]:
    """Return every JSON object that has `key`, whatever noise (stderr lines, a cut end) stands around the document."""
    return [item for value, _start, _end in _documents(text) for item in (value if isinstance(value, list) else [value]) if _has(item, key)]


def cut_off(text: str, key: str) -> bool:
    """Return whether the array of the objects that have `key` begins and never ends."""
    places = [(start, end) for value, start, end in _documents(text) if _has(value, key)]
    return bool(places) and text[: places[0][0]].rstrip().endswith("[") and not text[places[-1][1] :].lstrip().startswith("]")


def lists_nothing(text: str) -> bool:
    """Return whether a command answered properly that there is nothing: `[]`, `[ ]`, `[{}]`."""
    start = text.find("[")
    try:
        value, _end = json.JSONDecoder().raw_decode(text, start) if start >= 0 else (None, 0)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, list) and all(item == {} for item in value)


_MOST_ATTEMPTS = 2000  # where a document could begin; a noisy capture has a few, a hostile one a million
_OPENERS = re.compile(r"[\[{\s]+")
_RDMA_LINE = re.compile(
    r"^[ \t]*(?:\d+(?:/\d+)?:[ \t]*)?(?:link[ \t]+)?(?P<hca>[^\s/]+)/(?P<port>\d+)[: ].*?\bstate[ \t]+(?P<state>\w+)"
    r"(?:.*?\bphysical_state[ \t]+(?P<phys>\w+))?(?:.*?\bnetdev[ \t]+(?P<netdev>\S+))?(?:.*?\bnetdev_index[ \t]+(?P<index>\d+))?",
    re.M,
)


def parse_rdma_link(text: str) -> list[Record]:
    """Return [{hca, port, state, physical_state, netdev, netdev_index}] of `rdma -j link`, or of its plain text form."""
    rows = []
    for record in json_records(text, "ifname"):
        name, _slash, port = str(record["ifname"]).partition("/")
        rows.append(
            {
                "hca": name,
                "port": as_integer(record.get("port")) or as_integer(port) or 1,
                "state": record.get("state"),
                "physical_state": record.get("physical_state"),
                "netdev": record.get("netdev"),
                "netdev_index": as_integer(record.get("netdev_index")) or as_integer(record.get("netdev_ifindex")),
            }
        )
    if rows:
        return rows
    for match in _RDMA_LINE.finditer(text):
        rows.append(
            {
                "hca": match.group("hca"),
                "port": int(match.group("port")),
                "state": match.group("state"),
                "physical_state": match.group("phys"),
                "netdev": match.group("netdev"),
                "netdev_index": as_integer(match.group("index")),
            }
        )
    return rows


_IP_HEAD = re.compile(r"^\d+:\s+(?P<name>[^:\s@]+)(?:@(?P<link>\S+?))?:\s+<(?P<flags>[^>]*)>\s+mtu\s+(?P<mtu>\d+)(?:.*?master\s+(?P<master>\S+))?")
_IP_INET = re.compile(r"^\s+(?P<family>inet6?)\s+(?P<local>[0-9a-fA-F.:]+)(?:\s+peer\s+\S+?)?/(?P<prefix>\d+)(?P<rest>.*)$")


def parse_ip_addr(text: str) -> list[Record]:
    """Return `ip -j -d addr` as its list of objects; the plain text form is understood as well."""
    records = json_records(text, "ifname")
    if records:
        return records
    current: Record | None = None
    for line in text.splitlines():
        head = _IP_HEAD.match(line)
        if head is not None:
            current = {
                "ifname": head.group("name"),
                "flags": head.group("flags").split(","),
                "mtu": int(head.group("mtu")),
                "addr_info": [],
            }
            for item in ("link", "master"):
                if head.group(item):
                    current[item] = head.group(item)
            records.append(current)
            continue
        inet = _IP_INET.match(line)
        if inet is None or current is None:
            continue
        rest = inet.group("rest").split()
        current["addr_info"].append(
            {
                "family": inet.group("family"),
                "local": inet.group("local"),
                "prefixlen": int(inet.group("prefix")),
                "scope": rest[rest.index("scope") + 1] if "scope" in rest[:-1] else "global",
                "secondary": "secondary" in rest,
            }
        )
    return records


_ROUTE_LINE = re.compile(r"^(?P<dst>default|[0-9a-fA-F.:]+(?:/\d+)?)\s+(?=.*\bdev\b)(?P<rest>.*)$", re.M)


def parse_ip_route(text: str) -> list[Record]:
    """Return `ip -j route` as its list of objects; the plain text form is understood as well."""
    records = json_records(text, "dst")
    if records:
        return records
    for match in _ROUTE_LINE.finditer(text):
        words = match.group("rest").split()
        record: Record = {"dst": match.group("dst")}
        for name, key in (("via", "gateway"), ("dev", "dev"), ("src", "prefsrc"), ("metric", "metric")):
            if name in words[:-1]:
                record[key] = words[words.index(name) + 1]
        records.append(record)
    return records


def parse_proc_route(text: str) -> list[Record]:
    """Return /proc/net/route in the shape of `ip -j route`."""
    records = []
    for line in text.splitlines()[1:]:
        cells = line.split()
        if len(cells) < 8:
            continue
        try:
            dst, gateway, mask = (bytes.fromhex(cells[i])[::-1] for i in (1, 2, 7))
            record: Record = {"dev": cells[0], "metric": int(cells[6])}
            network = ipaddress.IPv4Network((int.from_bytes(dst, "big"), bin(int.from_bytes(mask, "big")).count("1")), strict=False)
            via = str(ipaddress.IPv4Address(gateway))
        except ValueError:
            continue
        record["dst"] = "default" if network.prefixlen == 0 else str(network)
        if any(gateway):
            record["gateway"] = via
        records.append(record)
    return records


def parse_proc_vlan(text: str) -> dict[str, str]:
    """Return {VLAN device: the device below it} of /proc/net/vlan/config: `vlan100 | 100 | enp1s0f0np0`."""
    return {match.group(1): match.group(2) for match in re.finditer(r"^(\S+)[ \t]*\|[ \t]*\d+[ \t]*\|[ \t]*(\S+)[ \t]*$", text, re.M)}


_DEVINFO = re.compile(r"^\s*(hca_id|port|state|active_mtu|max_mtu|link_layer|fw_ver|board_id):\s*(.+?)\s*$", re.M)


def parse_ibv_devinfo(text: str) -> dict[tuple[str, int], dict[str, str]]:
    """Return {(hca, port): {state, active_mtu, fw_ver, ...}} of `ibv_devinfo`."""
    found: dict[tuple[str, int], dict[str, str]] = {}
    hca, port = "", 0
    device: dict[str, str] = {}
    for match in _DEVINFO.finditer(text):
        key, value = match.groups()
        if key == "hca_id":
            hca, device, port = value, {}, 0
        elif key == "port" and value.isdigit():
            port = int(value)
            found[(hca, port)] = dict(device)
        elif port:
            found[(hca, port)][key] = value.split(" (")[0]
        else:
            device[key] = value
    return found


_ETHTOOL_SPEED = re.compile(r"^\s*Speed:\s*(\d+)\s*Mb/s", re.M)
_ETHTOOL_LINK = re.compile(r"^\s*Link detected:\s*(yes|no)\s*(?:\((.*)\))?", re.M)


def parse_ethtool(text: str) -> Record:
    """Return {speed_mbps, carrier, reason} of `ethtool DEV`; keys that are not there are None."""
    speed = _ETHTOOL_SPEED.search(text)
    link = _ETHTOOL_LINK.search(text)
    return {
        "speed_mbps": int(speed.group(1)) if speed else None,
        "carrier": None if link is None else link.group(1) == "yes",
        "reason": link.group(2) if link else None,
    }


def as_integer(value: Any) -> int | None:
    try:
        return int(str(value).strip())
    except ValueError:
        return None


def is_number(text: str) -> bool:
    """Return whether a file's name is a number (isdigit alone also takes digits that int() refuses)."""
    return text.isascii() and text.isdigit()


def as_records(value: Any) -> list[Record]:
    """Return the objects of a JSON array, whatever else stands there."""
    return [item for item in value if isinstance(item, dict)] if isinstance(value, list) else []


def as_strings(value: Any) -> list[str]:
    """Return the strings of a JSON array, whatever else stands there."""
    return [item for item in value if isinstance(item, str) and item] if isinstance(value, list) else []


def as_word(value: Any) -> str | None:
    """Return a JSON string that is not empty."""
    return value if isinstance(value, str) and value else None


def as_address(text: Any) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(str(text).strip())
    except ValueError:
        return None


def parse_local_addresses(text: str) -> list[str]:
    """Return the IPv4 addresses of this machine that /proc/net/fib_trie holds, without the loopback's."""
    found: dict[str, None] = {}
    leaf = ""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == ["|--"]:
            leaf = words[-1]
        elif words == ["/32", "host", "LOCAL"] and not leaf.startswith("127.") and as_address(leaf) is not None:
            found[leaf] = None
    return list(found)


def parse_mtu(text: str | None) -> int | None:
    """Return an RDMA MTU in bytes of any of its spellings: `4096 (5)`, `IBV_MTU_4096`, `5: 4096`, `5`."""
    numbers = [int(number) for number in re.findall(r"\d{1,9}", text or "")]
    sizes = (256, 512, 1024, 2048, 4096)
    return next((n for n in numbers if n in sizes), next((sizes[n - 1] for n in numbers if 1 <= n <= 5), None))


def rdma_mtu(netdev_mtu: int) -> int:
    """Return the RDMA MTU (bytes) the kernel derives from a netdev's MTU: 9000 -> 4096, 1500 -> 1024."""
    return next((size for size in (4096, 2048, 1024, 512, 256) if netdev_mtu - OVERHEAD >= size), 0)
