# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Installation, update and removal of the agent on one node."""

from __future__ import annotations

import json
import os
import re
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent import ssh_keys, stamp
from ansible_collections.gb10.cluster.plugins.module_utils._agent.access import Access
from ansible_collections.gb10.cluster.plugins.module_utils._agent.code import Code
from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import (
    CODE,
    CONFIG,
    CURRENT,
    EVIDENCE,
    HOME,
    KEYS,
    LAUNCHER,
    OWNER,
    PARENTS,
    PENDING,
    RUN,
    SSH,
    STAMP,
    STATE,
    UNIT_FILE,
    USER,
    WATCH_CONFIG,
)  # fmt: skip
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import MARKER, Call, InstallError
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import PROTOCOL
from ansible_collections.gb10.cluster.plugins.module_utils._agent.unit import UNIT_TEXT, Unit
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, Node
from ansible_collections.gb10.cluster.plugins.module_utils._watch import settings

LAUNCHER_TEXT = f"""#!/usr/bin/python3 -I
{MARKER}
import os
import sys

sys.path.insert(0, os.path.realpath("{CURRENT}"))

from ansible_collections.gb10.cluster.plugins.module_utils._agent.cli import main

if __name__ == "__main__":
    sys.exit(main())
"""


class Agent(Code, Access, Unit):
    """The agent of one node."""

    def __init__(
        self, node: Node, params: Mapping[str, Any], files: Mapping[str, str], call: Call, check_mode: bool, *,
        pause: Callable[[float], None] = time.sleep, clock: Callable[[], float] = time.monotonic,
    ) -> None:  # fmt: skip
        """Keep the node, the module's options, the agent's source files and the client of admin.sock."""
        super().__init__(node, params, call, check_mode)
        self.files = files
        self.pause, self.clock = pause, clock

    def machine_id(self) -> str:
        """Return /etc/machine-id. Raises InstallError."""
        text = (self.node.read("/etc/machine-id") or "").strip()
        if not re.fullmatch(r"[0-9a-f]{32}", text):
            raise InstallError("/etc/machine-id does not have an id. Run systemd-machine-id-setup on this node.")
        return text

    def group(self) -> tuple[str, int, list[str], int]:
        """Return name, rank, hosts and size of the serving group. Raises InstallError."""
        group = self.params["group"] or {}
        try:
            name, rank, hosts = str(group["name"]), int(group["rank"]), [str(each) for each in group["hosts"]]
            size = int(group.get("size", len(hosts)))
        except (KeyError, TypeError, ValueError) as error:
            raise InstallError("group needs name, rank and hosts. Use the result of lookup('gb10.cluster.serving_group').") from error
        if not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
            raise InstallError(f"{name!r} is not a valid name for group. Use letters, digits, underscores, dots and hyphens.")
        if not 0 <= rank < size or size != len(hosts):
            raise InstallError(f"group has rank {rank}, size {size} and {len(hosts)} hosts, which do not agree.")
        return name, rank, hosts, size

    def peers(self, size: int, known: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the workers as the head's configuration names them, those of the node's configuration if the option is empty. Raises InstallError."""
        if not self.params["peers"]:
            return [dict(each) for each in known]
        found = sorted(self.params["peers"], key=lambda each: int(each["rank"]))
        if [each["rank"] for each in found] != list(range(1, size)):
            raise InstallError(f"peers has the ranks {[each['rank'] for each in found]}. Give ranks 1 to {size - 1}, each once.")
        out = []
        for each in found:
            port = each.get("port") or 22
            if not 0 < port < 65536:
                raise InstallError(f"{port} is not a valid port for rank {each['rank']} in peers.")
            bind = ssh_keys.plain_address(each["bind"]) if each.get("bind") else ""
            address = ssh_keys.plain_address(each["address"])
            out.append({"rank": each["rank"], "host": each["host"], "address": address, "port": port, "bind": bind, "user": USER})
        return out

    def present(self) -> dict[str, Any]:
        """Install or update. Raises InstallError, KeyLineError, OSError."""
        name, rank, hosts, size = self.group()
        if rank > 0 and not self.params["head_addresses"]:
            raise InstallError("head_addresses is empty. Give the head's address on the first rail.")
        for address in self.params["head_addresses"]:
            ssh_keys.plain_address(address)
        for path in (*PARENTS, CODE, KEYS, HOME, SSH):
            self.require_kind(path, directory=True)
        machine_id = self.machine_id()
        port = self.sshd(rank, hosts[0])
        known = self.node.mapping(CONFIG)
        if (known.get("group"), known.get("hosts"), known.get("rank")) != (name, hosts, rank):
            known = {}
        head_id = machine_id if rank == 0 else self.params["head_id"] or str(known.get("head_id", ""))
        peers = self.peers(size, known.get("peers", [])) if rank == 0 else []
        self.restart = self.mode(PENDING) is not None

        version = self.code()
        self.file(LAUNCHER, LAUNCHER_TEXT, 0o755, restart=True, marker=True)
        public = ""
        if rank == 0:
            self.forget_worker()
            public = self.head_key(name)
            ready = self.known_hosts(self.params["peers"] or peers) and len(peers) == size - 1
        else:
            self.remove(KEYS)
            self.user()
            ready = self.authorize(name) and bool(head_id)
        try:
            watch = settings.merged({**(self.params.get("watch") or {}), "webhook": self.params.get("webhook")})
        except settings.SettingsError as error:
            raise InstallError(str(error)) from error
        config = {
            "protocol": PROTOCOL, "group": name, "rank": rank, "hosts": hosts, "directory": self.params["directory"], "head_id": head_id,
            "docker_socket": self.params["docker_socket"], "peers": peers,
        }  # fmt: skip
        self.file(CONFIG, json.dumps(config, indent=2) + "\n", 0o644, restart=True)
        self.file(WATCH_CONFIG, json.dumps(watch, indent=2) + "\n", 0o600, restart=True)
        self.reload = self.file(UNIT_FILE, UNIT_TEXT, 0o644, restart=True, marker=True)
        if ready:
            self.serve(name, rank, head_id)
            self.mark(port)
        keys, active = ssh_keys.host_keys(self.node), self.unit_is("active")
        return self.result(version=version, public_key=public, head_id=machine_id, host_keys=keys, ssh_port=port, active=active)

    def serve(self, name: str, rank: int, head_id: str) -> None:
        """Start what is installed, prove that it answers, and store its owner. Raises InstallError, OSError."""
        self.start()
        path = f"{self.params['directory']}/{name}/{STATE}/{OWNER}"
        if self.check_mode:
            owner = self.node.mapping(path)
        else:
            owner = self.prove(name, rank).get("owner") or {}
            if self.mode(PENDING) is not None:
                os.unlink(self.node.at(PENDING))
        self.own(path, name, head_id, owner if isinstance(owner, dict) else {})

    def mark(self, port: int) -> None:
        """Store the stamp of an installation that is complete. Not a change: only the next run reads it. Raises InstallError, OSError."""
        self.require_kind(STAMP, directory=False)
        before, text = self.node.read(STAMP), stamp.text(self.params["stamp"], port, self.node.root)
        if self.params["stamp"] and before != text and not self.check_mode:
            self.node.apply(FileChange(STAMP, before, text, 0o600))

    def absent(self) -> dict[str, Any]:
        """Remove everything that `present` and the service made. Raises InstallError, OSError."""
        known = self.node.mapping(CONFIG)
        group = self.params["group"] or {}
        states = {(str(self.params["directory"]), str(group.get("name", "") or "")), (str(known.get("directory", "")), str(known.get("group", "")))}
        for path in PARENTS:
            self.require_kind(path, directory=True)
        if self.mode(RUN) is not None:
            self.require_kind(RUN, directory=True)
            self.changes.step(f"{RUN} removed")
        unit = self.node.read(UNIT_FILE)
        if unit is not None and MARKER in unit:
            self.stop(unit)
        if not self.check_mode and self.isdir(RUN):
            shutil.rmtree(self.node.at(RUN))
        launcher = self.node.read(LAUNCHER)
        if launcher is not None and MARKER in launcher:
            self.remove(LAUNCHER)
        metrics = self.node.mapping(WATCH_CONFIG)
        if metrics.get("textfile") and known.get("group"):
            self.remove(settings.metrics_file(metrics, str(known["group"])))
        for path in (CODE, CONFIG, WATCH_CONFIG, KEYS):
            self.remove(path)
        self.forget_worker()
        for directory, name in sorted(states):
            if directory and re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]*", name):
                folder = f"{directory}/{name}"
                self.require_kind(folder, directory=True)
                for each in (STATE, EVIDENCE):
                    self.remove(f"{folder}/{each}")
                self.remove_empty(folder)
                self.remove_empty(directory)
        for path in PARENTS:
            self.remove_empty(path)
        return self.result(version="", public_key="", head_id="", host_keys=[], ssh_port=22, active=False)

    def run(self) -> dict[str, Any]:
        """Reach the desired state. Raises InstallError, KeyLineError, OSError."""
        return self.absent() if self.params["state"] == "absent" else self.present()

    def result(self, **found: Any) -> dict[str, Any]:
        """Return the module's result."""
        return {"changed": bool(self.changes.messages), "changes": self.changes.messages, "diff": self.changes.diff, "problems": [], **found}
