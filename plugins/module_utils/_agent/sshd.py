# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the configuration of sshd on a worker means for the head's key, by the output of `sshd -T -C ...`."""

from __future__ import annotations

import ipaddress
import re
import socket
from collections.abc import Sequence

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import CONNECT, USER
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node

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


def glob_match(text: str, pattern: str) -> bool:
    """Whether a text matches a pattern of sshd, which has the wildcards * and ?."""
    parts = (".*" if char == "*" else "." if char == "?" else re.escape(char) for char in pattern)
    return re.fullmatch("".join(parts), text, re.DOTALL) is not None


def host_match(host: str, address: str, pattern: str) -> bool:
    """Whether a host part of AllowUsers matches the host's name or address; it may be a network."""
    try:
        return ipaddress.ip_address(address) in ipaddress.ip_network(pattern, strict=False)
    except ValueError:
        return glob_match(host.lower(), pattern.lower()) or glob_match(address.lower(), pattern.lower())


def user_match(user: str, host: str, address: str, pattern: str) -> bool:
    """Whether a pattern of AllowUsers or DenyUsers, USER or USER@HOST, matches."""
    name, at, where = pattern.rpartition("@")
    if not at:
        return glob_match(user, pattern)
    return glob_match(user, name) and host_match(host, address, where)


def problems(text: str, *, user: str, groups: Sequence[str], host: str, address: str, command: str) -> list[str]:
    """Return one sentence for each setting that keeps the head's key from working, with the remedy."""
    settings = parse(text)

    def first(key: str, default: str) -> str:
        return settings.get(key, [default])[0]

    def listed(key: str) -> list[str]:
        return [word for value in settings.get(key, []) for word in value.split()]

    def user_matches(pattern: str) -> bool:
        return user_match(user, host, address, pattern)

    def group_matches(pattern: str) -> bool:
        return any(glob_match(group, pattern) for group in groups)

    out: list[str] = []

    def add(found: str, remedy: str) -> None:
        out.append(f"sshd has {found} for user {user} from {host} ({address}). {remedy} in {FILE}, and reload sshd.")

    if first("pubkeyauthentication", "yes") != "yes":
        add(f"PubkeyAuthentication {first('pubkeyauthentication', 'yes')}", f"Set PubkeyAuthentication yes in a block Match User {user} before it")
    for kind, who, matches in (("Users", user, user_matches), ("Groups", f"the group {user}", group_matches)):
        allowed = listed(f"allow{kind.lower()}")
        for pattern in filter(matches, listed(f"deny{kind.lower()}")):
            add(f"Deny{kind} {pattern}", f"Change Deny{kind} so that it does not match {who}")
        if allowed and not any(map(matches, allowed)):
            add(f"Allow{kind} {' '.join(allowed)}", f"Add {who} to Allow{kind}")
    files = first("authorizedkeysfile", ".ssh/authorized_keys").split()
    if not any(each in (".ssh/authorized_keys", "%h/.ssh/authorized_keys") for each in files):
        add(f"AuthorizedKeysFile {' '.join(files)}", "Add .ssh/authorized_keys to AuthorizedKeysFile")
    forced = first("forcecommand", "none")
    if forced not in ("none", command):
        add(f"ForceCommand {forced}", f"Set ForceCommand none in a block Match User {user} before it")
    folder = first("chrootdirectory", "none")
    if folder != "none":
        add(f"ChrootDirectory {folder}", f"Set ChrootDirectory none in a block Match User {user} before it")
    methods = listed("authenticationmethods")
    if methods and not {"any", "publickey"} & set(methods):
        add(f"AuthenticationMethods {' '.join(methods)}", f"Set AuthenticationMethods publickey in a block Match User {user} before it")
    if first("refuseconnection", "no") == "yes":
        add("RefuseConnection yes", f"Set RefuseConnection no in a block Match User {user} before it")
    accepted = next((settings[key][0] for key in ("pubkeyacceptedalgorithms", "pubkeyacceptedkeytypes") if key in settings), "ssh-ed25519")
    if not any(glob_match("ssh-ed25519", each.strip()) for each in accepted.split(",")):
        add("PubkeyAcceptedAlgorithms without ssh-ed25519", "Add ssh-ed25519 to PubkeyAcceptedAlgorithms")
    return out


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
    return problems(text, user=USER, groups=names.split() if code == 0 else [USER], host=host, address=address, command=CONNECT)
