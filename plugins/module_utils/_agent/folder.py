# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A folder of the agent below a group's folder: small files, written atomically, and never through a link."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import stat
from collections.abc import Iterator, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.bounded import FILE
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_in

_OPEN = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class Folder:
    """A folder of mode 0700 below `base`, which may be missing. Each of `names` that is a link or not a folder raises OSError."""

    def __init__(self, base: str, *names: str) -> None:
        """Keep the place."""
        self.base = base
        self.names = names

    @contextlib.contextmanager
    def opened(self, create: bool = False) -> Iterator[int]:
        """Open the folder, made if `create`, and yield its descriptor. Raises OSError."""
        if create:
            os.makedirs(self.base, mode=0o755, exist_ok=True)
        path = self.base
        descriptor = os.open(path, _OPEN)
        try:
            for name in self.names:
                path = os.path.join(path, name)
                descriptor = self._below(descriptor, name, path, create)
            yield descriptor
        finally:
            os.close(descriptor)

    @staticmethod
    def _below(parent: int, name: str, path: str, create: bool) -> int:
        """Open a folder in `parent`, and close that one unless this fails."""
        if create:
            with contextlib.suppress(FileExistsError):
                os.mkdir(name, 0o700, dir_fd=parent)
        try:
            found = os.open(name, _OPEN | os.O_NOFOLLOW, dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ELOOP, errno.ENOTDIR):
                raise OSError(error.errno, "it is a link or a file, and a folder is expected (symbolic links are not supported): remove it", path) from error
            raise OSError(error.errno, error.strerror, path) from error
        os.close(parent)
        return found

    def path(self, name: str) -> str:
        """Return a file's path."""
        return os.path.join(self.base, *self.names, name)

    def text(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist. Raises OSError."""
        try:
            with self.opened() as folder:
                descriptor = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK, dir_fd=folder)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as handle:
            return handle.read(FILE)

    def exists(self, name: str) -> bool:
        """Whether a file of this name exists; a link is not one. Raises OSError."""
        try:
            with self.opened() as folder:
                return stat.S_ISREG(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode)
        except FileNotFoundError:
            return False

    def load(self, name: str) -> Any:
        """Return the content of a JSON file; None if it does not exist or is not valid JSON. Raises OSError."""
        text = self.text(name)
        with contextlib.suppress(ValueError):
            return None if text is None else loads(text)
        return None

    def save(self, name: str, data: Mapping[str, Any] | list[Any]) -> None:
        """Write a JSON file. Raises OSError."""
        self.write(name, json.dumps(data, indent=1, sort_keys=True) + "\n")

    def write(self, name: str, text: str, mode: int = 0o600, new: bool = False) -> None:
        """Write a file atomically; a link of this name is replaced. Raises OSError, with `new` FileExistsError if the name exists."""
        with self.opened(create=True) as folder:
            try:
                write_in(folder, name, text.encode("utf-8", "replace").decode(), mode, new=new)
                os.fsync(folder)
            except OSError as error:
                raise OSError(error.errno, error.strerror, self.path(name)) from error

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError), self.opened() as folder:
            os.unlink(name, dir_fd=folder)

    def prune(self, keep: int, protected: str) -> None:
        """Remove all folders in this folder but the `keep` newest ones and `protected`, with the files in them. A link is left alone."""
        with self.opened() as folder:
            found = []
            for name in os.listdir(folder):
                seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                if stat.S_ISDIR(seen.st_mode) and name != protected:
                    found.append((seen.st_mtime_ns, name))
        for _time, name in sorted(found, reverse=True)[max(0, keep - 1) :]:
            with contextlib.suppress(OSError):
                self._remove_folder(name)

    def _remove_folder(self, name: str) -> None:
        with Folder(self.base, *self.names, name).opened() as folder:
            for each in os.listdir(folder):
                os.unlink(each, dir_fd=folder)
        with self.opened() as parent:
            os.rmdir(name, dir_fd=parent)
