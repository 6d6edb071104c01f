# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the configuration of sshd on a worker means for the head's key, by the output of `sshd -T -C ...`."""

from __future__ import annotations

import ipaddress
import socket
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._pair.config import CONNECT, USER

FILE = "/etc/ssh/sshd_config"
NO_RUN_DIRECTORY = "privilege separation directory"  # absent until the first connection with socket activation


def parse(text: str) -> dict[str, list[str]]:
    """Return setting -> values, one for each line; settings are in lower case."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _space, value = line.strip().partition(" ")
        if key:
            found.setdefault(key.lower(), []).append(value.strip())
    return found


def connection(user: str, host: str, address: str, local: str = "") -> str:
    """Return the argument of `sshd -T -C` for a connection; `local` is this node's address, empty if it is not known."""
    return f"user={user},host={host},addr={address}" + (f",laddr={local},lport=22" if local else "")


def unreadable(rc: int, text: str) -> str:
    """Return why `sshd -T` ended with a code other than 0, with the remedy, as one or two sentences."""
    if rc == 127:
        return "sshd is not installed on this node. The head reaches a worker by SSH: install the package openssh-server."
    return f"sshd -T failed on this node: {(text.strip().splitlines() or ['no output'])[-1]}. Correct {FILE}."


def port_of(text: str) -> int:
    """Return the first port that sshd listens on; 22 if the text has none."""
    for value in parse(text).get("port", []):
        if value.isdigit() and 0 < int(value) < 65536:
            return int(value)
    return 22


#: What the head's key needs: setting, sshd's default, whether a value lets it in, and the remedy.
NEEDS: tuple[tuple[str, str, Callable[[str], bool], str], ...] = (
    ("PubkeyAuthentication", "yes", lambda value: value == "yes", f"Set PubkeyAuthentication yes in a block Match User {USER} before it"),
    (
        "AuthorizedKeysFile", ".ssh/authorized_keys", lambda value: bool({".ssh/authorized_keys", "%h/.ssh/authorized_keys"} & set(value.split())),
        "Add .ssh/authorized_keys to AuthorizedKeysFile",
    ),
    ("ForceCommand", "none", lambda value: value in ("none", CONNECT), f"Set ForceCommand none in a block Match User {USER} before it"),
    ("ChrootDirectory", "none", lambda value: value == "none", f"Set ChrootDirectory none in a block Match User {USER} before it"),
    (
        "AuthenticationMethods", "any", lambda value: bool({"any", "publickey"} & set(value.split())),
        f"Set AuthenticationMethods publickey in a block Match User {USER} before it",
    ),
    ("RefuseConnection", "no", lambda value: value == "no", f"Set RefuseConnection no in a block Match User {USER} before it"),
    (
        "PubkeyAcceptedAlgorithms", "ssh-ed25519", lambda value: any(fnmatchcase("ssh-ed25519", each) for each in value.split(",")),
        "Add ssh-ed25519 to PubkeyAcceptedAlgorithms",
    ),
)  # fmt: skip


def host_match(host: str, address: str, pattern: str) -> bool:
    """Whether a host part of AllowUsers matches the host's name or address; it may be a network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return any(fnmatchcase(each.lower(), pattern.lower()) for each in (host, address))


def problems(text: str, groups: Sequence[str], host: str, address: str) -> list[str]:
    """Return one sentence for each setting that keeps the head's key from working, with the remedy."""
    settings = parse(text)

    def user_matches(pattern: str) -> bool:
        name, at, where = pattern.rpartition("@")
        return fnmatchcase(USER, name) and host_match(host, address, where) if at else fnmatchcase(USER, pattern)

    def group_matches(pattern: str) -> bool:
        return any(fnmatchcase(group, pattern) for group in groups)

    found: list[tuple[str, str]] = []
    for kind, who, matches in (("Users", USER, user_matches), ("Groups", f"the group {USER}", group_matches)):
        allowed, denied = (" ".join(settings.get(f"{word}{kind.lower()}", [])).split() for word in ("allow", "deny"))
        found += [(f"Deny{kind} {pattern}", f"Change Deny{kind} so that it does not match {who}") for pattern in filter(matches, denied)]
        if allowed and not any(map(matches, allowed)):
            found.append((f"Allow{kind} {' '.join(allowed)}", f"Add {who} to Allow{kind}"))
    values = {name: settings.get(name.lower(), [default])[0] for name, default, _fits, _remedy in NEEDS}
    found += [(f"{name} {values[name]}", remedy) for name, _default, fits, remedy in NEEDS if not fits(values[name])]
    return [f"sshd has {what} for user {USER} from {host} ({address}). {remedy} in {FILE}, and reload sshd." for what, remedy in found]


def source_address(address: str) -> str:
    """Return this node's address towards another one, from the routing table; empty if there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def output(node: Node, user: str = "", host: str = "", address: str = "") -> tuple[int, str]:
    """Return the code of `sshd -T`, for one connection if there is a user, and its output or its error text."""
    local = source_address(address) if address and node.root == "/" else ""
    rc, out, err = node.run(["sshd", "-T", *(["-C", connection(user, host, address, local)] if user else [])])
    return rc, out if rc == 0 else (err.strip() or out)


def problems_of(node: Node, host: str, address: str, rc: int, text: str) -> list[str]:
    """Return one sentence for each setting of a worker's sshd that keeps the head's key from working. `rc` and `text` are of output()."""
    if rc != 0:
        return [] if NO_RUN_DIRECTORY in text else [unreadable(rc, text)]
    code, names, _err = node.run(["id", "-nG", USER])
    return problems(text, names.split() if code == 0 else [USER], host, address)
