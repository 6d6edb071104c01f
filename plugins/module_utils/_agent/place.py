# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The files and directories of the agent on one node, as its installation writes, corrects and removes them."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import PENDING
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Changes
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, Node

MARKER = "# Managed by gb10.cluster: gb10.cluster.agent writes this file."

Call = Callable[..., dict[str, Any]]


class InstallError(ValueError):
    """The agent cannot be installed or removed; `problems` has one sentence for each cause."""

    def __init__(self, *problems: str) -> None:
        """Keep the sentences."""
        super().__init__(" ".join(problems))
        self.problems = list(problems)


class Place:
    """A node, what is changed on it, and whether the service must be restarted."""

    def __init__(self, node: Node, params: Mapping[str, Any], call: Call, check_mode: bool) -> None:
        """Keep the node, the module's options, and the client of admin.sock."""
        self.node = node
        self.params = params
        self.call = call
        self.check_mode = check_mode
        self.changes = Changes()
        self.restart = False

    def mode(self, path: str) -> int | None:
        """Return the type and mode of what is at a path, without following a link there; None if there is nothing."""
        try:
            return os.lstat(self.node.at(path)).st_mode
        except OSError:
            return None

    def isdir(self, path: str) -> bool:
        """Whether a directory, not a link to one, is at a path."""
        mode = self.mode(path)
        return mode is not None and stat.S_ISDIR(mode)

    def require_kind(self, path: str, directory: bool) -> None:
        """Fail if something else than a regular file or a directory is at a path. Raises InstallError."""
        mode = self.mode(path)
        if mode is None or (stat.S_ISDIR(mode) if directory else stat.S_ISREG(mode)):
            return
        found = "a symbolic link" if stat.S_ISLNK(mode) else "not what is expected"
        raise InstallError(f"{path} is {found}. The agent needs a {'directory' if directory else 'regular file'} there: move it away, and run again.")

    def command(self, *argv: str) -> tuple[int, str]:
        """Run a command; return its code, and its output or its error text."""
        rc, out, err = self.node.run(argv)
        return rc, out if rc == 0 else (err.strip() or out)

    def must(self, *argv: str) -> None:
        """Run a command that has to work. Raises InstallError."""
        rc, text = self.command(*argv)
        if rc != 0:
            last = (text.strip().splitlines() or ["no output"])[-1]
            raise InstallError(f"{' '.join(argv)} failed with code {rc}: {last}.")

    def before_restart(self) -> None:
        """Note on the node that the service must be restarted, so that a run that is cut short is repaired by the next one."""
        self.restart = True
        if not self.check_mode and self.mode(PENDING) is None:
            self.node.apply(FileChange(PENDING, None, "", 0o644))

    def folder(self, path: str, mode: int) -> None:
        """Create a directory of the agent, or correct its mode and owner. Raises InstallError."""
        self.require_kind(path, directory=True)
        target = self.node.at(path)
        if self.mode(path) is None:
            self.changes.step(f"{path} created")
            if not self.check_mode:
                os.makedirs(target, mode=0o755, exist_ok=True)
                os.chmod(target, mode)
        else:
            self.permissions(path, mode)

    def permissions(self, path: str, mode: int) -> None:
        """Correct the mode of a path, and its owner if this is root."""
        target = self.node.at(path)
        known = self.mode(path)
        if known is None:
            return
        found = os.lstat(target)
        wrong_owner = os.geteuid() == 0 and (found.st_uid, found.st_gid) != (0, 0)
        if stat.S_IMODE(known) == mode and not wrong_owner:
            return
        before, after = f"mode {stat.S_IMODE(known):04o}, owner {found.st_uid}:{found.st_gid}", f"mode {mode:04o}, owner 0:0"
        self.changes.live(path, f"{before}\n", f"{after}\n", [f"{path}: {before} -> {after}"])
        if not self.check_mode:
            if wrong_owner:
                os.chown(target, 0, 0, follow_symlinks=False)
            os.chmod(target, mode)

    def file(self, path: str, text: str, mode: int, restart: bool = False, marker: bool = False) -> bool:
        """Write a file if its text, mode or owner differs; whether its text differs. Raises InstallError, OSError."""
        self.require_kind(path, directory=False)
        before = self.node.read(path)
        if marker and before is not None and MARKER not in before:
            raise InstallError(f"{path} exists and is not managed by gb10.cluster. Move it away, and run again.")
        change = FileChange(path, before, text, mode)
        if change.changed:
            if restart:
                self.before_restart()
            self.changes.file(change, f"{path} {'written' if before is None else 'updated'}")
            if not self.check_mode:
                self.node.apply(change)
        if before is not None:
            self.permissions(path, mode)
        return change.changed

    def remove(self, path: str) -> None:
        """Remove a file or a tree that belongs to the agent. Raises InstallError, OSError."""
        mode = self.mode(path)
        if mode is None:
            return
        if stat.S_ISLNK(mode):
            raise InstallError(f"{path} is a symbolic link. The agent does not remove what it leads to: remove the link, and run again.")
        self.changes.step(f"{path} removed")
        if self.check_mode:
            return
        target = self.node.at(path)
        if stat.S_ISDIR(mode):
            shutil.rmtree(target)
        else:
            os.unlink(target)

    def remove_empty(self, path: str) -> None:
        """Remove a directory that is empty; it belongs to what was removed in it. Raises OSError."""
        if not self.check_mode and self.isdir(path) and not self.node.listdir(path):
            os.rmdir(self.node.at(path))
