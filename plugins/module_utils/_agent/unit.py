# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's unit on one node: started, proven to answer, owned, and stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import LAUNCHER, UNIT, UNIT_FILE
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import MARKER, InstallError, Place
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange

SECONDS = 30.0  # from the start of the unit to its first answer

UNIT_TEXT = f"""{MARKER}
[Unit]
Description=Agent of a gb10.cluster serving group
Wants=network-online.target
After=network-online.target docker.service
StartLimitIntervalSec=0

[Service]
ExecStart={LAUNCHER} agent
Environment=HOME=/root
# One heap for all threads: it does not grow with their number.
Environment=MALLOC_ARENA_MAX=1
RuntimeDirectory=gb10-agent
RuntimeDirectoryMode=0755
Restart=always
RestartSec=2
OOMScoreAdjust=-900
# Replies and logs of 8 MiB take up to 330 MB while they are read and masked; a command that the kernel ends for lack of memory does not end the agent.
MemoryMax=2G
TasksMax=512
OOMPolicy=continue

[Install]
WantedBy=multi-user.target
"""


class Unit(Place):
    """The unit of a node."""

    reload = False
    pause: Callable[[float], None]
    clock: Callable[[], float]

    def unit_is(self, state: str) -> bool:
        """Whether the unit is `active` or `enabled`."""
        rc, text = self.command("systemctl", f"is-{state}", UNIT)
        return rc == 0 and text.strip() == state

    def start(self) -> None:
        """Enable the unit, and start or restart it if necessary. Containers are not affected. Raises InstallError."""
        active, enabled = self.unit_is("active"), self.unit_is("enabled")
        if self.reload and not self.check_mode:  # only then: a reload can take the GPU away from running containers
            self.must("systemctl", "daemon-reload")
        if not enabled:
            self.changes.step(f"{UNIT} enabled")
            if not self.check_mode:
                self.must("systemctl", "enable", UNIT)
        if active and not self.restart:
            return
        self.changes.step(f"{UNIT} {'restarted' if active else 'started'}")
        if not self.check_mode:
            self.must("systemctl", "restart" if active else "start", UNIT)

    def prove(self, group: str, rank: int) -> dict[str, Any]:
        """Return the service's answer to `hello`, which must come within SECONDS. Raises InstallError."""
        end, why = self.clock() + SECONDS, "no answer"
        while True:
            try:
                if self.unit_is("active"):
                    hello = self.call("hello", timeout=2.0)
                    break
                why = "the unit is not active"
            except Exception as error:  # noqa: BLE001  every failure means that the service does not answer yet
                why = str(error) or type(error).__name__
            if self.clock() >= end:
                _rc, log = self.command("journalctl", "-u", UNIT.split(".", maxsplit=1)[0], "-n", "15", "--no-pager", "-o", "cat")
                raise InstallError(f"{UNIT} does not answer {SECONDS:.0f} s after its start ({why.rstrip('.')}). Its last log lines: {log.strip() or 'none'}")
            self.pause(0.2)
        if (hello.get("group"), hello.get("rank")) != (group, rank):
            raise InstallError(f"{UNIT} answers for rank {hello.get('rank')} of {hello.get('group')}, not for rank {rank} of {group}. Restart it.")
        return hello

    def own(self, path: str, group: str, head_id: str, owner: Mapping[str, Any]) -> None:
        """Store who may change this rank. Raises InstallError with the service's sentence."""
        if (owner.get("group"), owner.get("head")) == (group, head_id):
            return

        def text(name: Any, head: Any) -> str:
            return f"group {name}, head {head}" if name else ""

        before, after = text(owner.get("group"), owner.get("head")), text(group, head_id)
        self.changes.live(f"owner in {path}", f"{before}\n" if before else "", f"{after}\n", [f"owner: {before or 'none'} -> {after}"])
        if self.check_mode:
            return
        try:
            self.call("own", timeout=SECONDS, head=head_id, group=group, takeover=bool(self.params["takeover"]))
        except Exception as error:  # the service refuses, or does not answer; its text is for the user
            raise InstallError(str(error)) from error

    def stop(self, unit: str) -> None:
        """Stop, disable and remove the unit. Raises InstallError, OSError."""
        if self.unit_is("active"):
            self.changes.step(f"{UNIT} stopped")
        if not self.check_mode:
            self.must("systemctl", "disable", "--now", UNIT)
        change = FileChange(UNIT_FILE, unit, None)
        self.changes.file(change, f"{UNIT_FILE} removed")
        if not self.check_mode:
            self.node.apply(change)
            self.must("systemctl", "daemon-reload")
            self.command("systemctl", "reset-failed", UNIT)
