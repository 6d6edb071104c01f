# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's code on one node: one directory for each version, and a link to the current one."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import stat
from collections.abc import Mapping

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import CODE, CURRENT
from ansible_collections.gb10.cluster.plugins.module_utils._agent.place import InstallError, Place
from ansible_collections.gb10.cluster.plugins.module_utils._agent.sources import version_of


class Code(Place):
    """The versions of the code on a node."""

    files: Mapping[str, str]

    def complete(self, version: str) -> bool:
        """Whether a version's directory has every file with its text."""
        folder = f"{CODE}/{version}"
        return self.isdir(folder) and all(self.node.read(f"{folder}/{path}") == text for path, text in self.files.items())

    def code(self) -> str:
        """Install the agent's code as a version of its own and switch to it. Return the version. Raises InstallError, OSError."""
        version = version_of(self.files)
        mode = self.mode(CURRENT)
        if mode is not None and not stat.S_ISLNK(mode):
            raise InstallError(f"{CURRENT} is not a symbolic link. Move it away, and run again.")
        self.require_kind(f"{CODE}/{version}", directory=True)
        self.folder(CODE, 0o755)
        before = self.node.link(CURRENT)
        intact = self.complete(version)
        if before == version and intact:
            return version
        self.before_restart()
        if before == version:
            self.changes.step(f"agent {version} repaired")
        else:
            self.changes.live(CURRENT, f"{before}\n" if before else "", f"{version}\n", [f"agent {before or 'none'} -> {version}"])
        if not self.check_mode:
            if not intact:
                self.unpack(version)
            self.switch(version)
            self.prune({version, before or version})
        return version

    def unpack(self, version: str) -> None:
        """Write a version into a temporary directory, byte-compile it, and rename it. Raises OSError."""
        final = f"{CODE}/{version}"
        temporary = f"{CODE}/.new-{secrets.token_hex(4)}"
        where = self.node.at(temporary)
        os.mkdir(where)
        for path, text in sorted(self.files.items()):
            target = os.path.join(where, path)
            folder = os.path.dirname(target)
            if not os.path.isdir(folder):
                os.makedirs(folder, mode=0o755)
            with open(target, "w", encoding="utf-8", errors="surrogateescape") as handle:
                handle.write(text)
                handle.flush()
                os.fsync(handle.fileno())
        # Without byte code the agent starts slower; nothing else depends on it.
        self.node.run(["/usr/bin/python3", "-I", "-m", "compileall", "-q", "-s", where, "-p", final, where])
        for folder, _folders, names in os.walk(where):
            os.chmod(folder, 0o755)  # nosec B103 # noqa: S103  the user gb10-agent reads it
            for name in names:
                os.chmod(os.path.join(folder, name), 0o644)
        if self.isdir(final):
            broken = self.node.at(f"{CODE}/.old-{secrets.token_hex(4)}")
            os.rename(self.node.at(final), broken)
        os.rename(where, self.node.at(final))

    def switch(self, version: str) -> None:
        """Point `current` at a version, atomically. Raises OSError."""
        temporary = self.node.at(f"{CODE}/.current-{secrets.token_hex(4)}")
        os.symlink(version, temporary)
        os.replace(temporary, self.node.at(CURRENT))

    def prune(self, kept: set[str]) -> None:
        """Remove versions other than these, and what interrupted runs left. Raises OSError."""
        for name in self.node.listdir(CODE):
            if name in kept or not re.fullmatch(r"[0-9a-f]{12}|\.(?:new|old|current)-[0-9a-f]{8}", name):
                continue
            target = self.node.at(f"{CODE}/{name}")
            if os.path.islink(target):
                os.unlink(target)
            else:
                shutil.rmtree(target)
