# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The head's access to a worker: user, key and sshd on the worker; key and known hosts on the head."""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import ssh_keys, sshd
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import AUTHORIZED, CONNECT, HOME, KEY, KEYS, KNOWN_HOSTS, SSH, USER, host_alias
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import InstallError, Place
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node


def source_address(address: str) -> str:
    """Return this node's address towards another one, from the routing table; empty if there is no route. Sends nothing."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))
            return str(probe.getsockname()[0])
    except OSError:
        return ""


def sshd_output(node: Node, user: str, host: str, address: str) -> tuple[int, str]:
    """Return the code of `sshd -T` for one connection, and its output or its error text."""
    local = source_address(address) if node.root == "/" else ""
    rc, out, err = node.run(["sshd", "-T", "-C", sshd.connection(user, host, address, local)])
    return rc, out if rc == 0 else (err.strip() or out)


def groups_of_user(node: Node) -> list[str]:
    """Return the groups of the user that the head logs in as."""
    rc, names, _err = node.run(["id", "-nG", USER])
    return names.split() if rc == 0 else [USER]


class Access(Place):
    """The two ends of the head's access."""

    def sshd_text(self, user: str, host: str, address: str) -> tuple[int, str]:
        """Return the result of sshd_output(), with the directory that sshd needs for it."""
        rc, text = sshd_output(self.node, user, host, address)
        if rc != 0 and sshd.NO_RUN_DIRECTORY in text and not self.check_mode:
            os.makedirs(self.node.at("/run/sshd"), mode=0o755, exist_ok=True)
            rc, text = sshd_output(self.node, user, host, address)
        return rc, text

    def sshd(self, rank: int, head: str) -> int:
        """Return the port of sshd; on a worker also test that the head's key can be used. Raises InstallError."""
        if rank == 0:
            rc, text = self.sshd_text("root", "localhost", "127.0.0.1")
            return sshd.port_of(text) if rc == 0 else 22
        address = self.params["head_addresses"][0]
        rc, text = self.sshd_text(USER, head, address)
        if rc != 0:
            if self.check_mode and sshd.NO_RUN_DIRECTORY in text:
                return 22
            raise InstallError(sshd.unreadable(rc, text))
        found = sshd.problems(text, user=USER, groups=groups_of_user(self.node), host=head, address=address, command=CONNECT)
        if found:
            raise InstallError(*found)
        return sshd.port_of(text)

    def user(self) -> None:
        """Create the user that the head logs in as on a worker. Raises InstallError."""
        rc, entry = self.command("getent", "passwd", USER)
        fields = entry.strip().split(":") if rc == 0 else []
        if not fields:
            self.changes.step(f"user {USER} created")
            self.before_restart()
            if not self.check_mode:
                # "*" matches no password. sshd without PAM refuses an account with "!", also for keys.
                group = ["--gid", USER] if self.command("getent", "group", USER)[0] == 0 else ["--user-group"]
                self.must(
                    "useradd", "--system", *group, "--home-dir", HOME, "--no-create-home", "--shell", "/bin/sh", "--password", "*",
                    "--comment", "gb10.cluster agent", USER,
                )  # fmt: skip
            return
        if len(fields) < 7 or fields[5] != HOME:
            raise InstallError(f"The user {USER} exists with the home {fields[5] if len(fields) > 5 else '?'}. Remove or rename it, and run again.")
        if fields[6] != "/bin/sh":
            self.changes.step(f"user {USER}: shell {fields[6]} -> /bin/sh")
            if not self.check_mode:
                self.must("usermod", "--shell", "/bin/sh", USER)

    def authorize(self, group: str) -> bool:
        """Give the head's key its one command on a worker; whether the head has access. Raises InstallError, KeyLineError, OSError."""
        self.folder(HOME, 0o755)
        self.folder(SSH, 0o755)
        if not self.params["head_key"]:
            self.require_kind(AUTHORIZED, directory=False)
            return self.mode(AUTHORIZED) is not None
        addresses = ",".join(self.params["head_addresses"])
        line = f'restrict,command="{CONNECT}",from="{addresses}" {ssh_keys.bare_key(self.params["head_key"])} {USER} {group}\n'
        self.file(AUTHORIZED, line, 0o644)
        return True

    def head_key(self, group: str) -> str:
        """Create the head's key if there is none; return its public half, empty in check mode before the first run. Raises InstallError, OSError."""
        self.folder(KEYS, 0o700)
        for path in (KEY, f"{KEY}.pub"):
            self.require_kind(path, directory=False)
        where = self.node.at(KEY)
        if self.mode(KEY) is None:
            self.changes.step(f"{KEY} created")
            if self.check_mode:
                return ""
            if self.mode(f"{KEY}.pub") is not None:
                os.unlink(f"{where}.pub")
            self.must("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", f"{USER} {group}", "-f", where)
        self.permissions(KEY, 0o600)
        public = self.node.read(f"{KEY}.pub")
        if public is None:
            rc, public = self.command("ssh-keygen", "-y", "-f", where)
            if rc != 0:
                raise InstallError(f"{KEY} is not a valid key: {public.strip()}. Remove it, and run again.")
            self.file(f"{KEY}.pub", public.strip() + "\n", 0o644)
        return public.strip()

    def known_hosts(self, peers: Sequence[Mapping[str, Any]]) -> bool:
        """Pin the host keys of the workers on the head; whether every worker has one. Raises KeyLineError, InstallError, OSError."""
        before = (self.node.read(KNOWN_HOSTS) or "").splitlines(keepends=True)
        text, whole = "", True
        for peer in peers:
            alias = host_alias(peer["rank"])
            known = "".join(line for line in before if line.startswith(f"{alias} "))
            lines = ssh_keys.known_hosts(alias, peer["host_keys"]) if peer.get("host_keys") else known
            text, whole = text + lines, whole and bool(lines)
        if text or before:
            self.file(KNOWN_HOSTS, text, 0o644)
        return whole

    def forget_worker(self) -> None:
        """Remove the user of a worker, its group and its home. Raises InstallError, OSError."""
        there = self.command("getent", "passwd", USER)[0] == 0
        if there:
            self.changes.step(f"user {USER} removed")
            if not self.check_mode:
                self.command("pkill", "-KILL", "-u", USER)  # sessions of the head; userdel refuses a user that is logged in
                self.must("userdel", "--force", USER)
        if self.command("getent", "group", USER)[0] == 0:
            if not there:
                self.changes.step(f"group {USER} removed")
            if not self.check_mode:
                self.must("groupdel", USER)
        self.remove(HOME)
