# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A folder of the agent below a group's folder: small files for root, written atomically. A link in place of a file is not followed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.bounded import FILE
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_in


class Folder:
    """A folder of mode 0700 below `base`, which may be missing."""

    def __init__(self, base: str, *names: str) -> None:
        """Keep the place."""
        self.base, self.names = base, names

    def path(self, name: str = "") -> str:
        """Return a file's path; the folder's without a name."""
        return os.path.join(self.base, *self.names, *([name] if name else []))

    def create(self) -> str:
        """Make the folder if it is missing, and return its path. Raises OSError."""
        os.makedirs(self.base, mode=0o755, exist_ok=True)
        for number in range(len(self.names)):
            with contextlib.suppress(FileExistsError):
                os.mkdir(os.path.join(self.base, *self.names[: number + 1]), 0o700)
        return self.path()

    def text(self, name: str) -> str | None:
        """Return a file's text; None if it does not exist. Raises OSError."""
        try:
            descriptor = os.open(self.path(name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        with os.fdopen(descriptor, encoding="utf-8", errors="replace") as handle:
            return handle.read(FILE)

    def exists(self, name: str) -> bool:
        """Whether a file of this name exists; a link is not one."""
        path = self.path(name)
        return os.path.isfile(path) and not os.path.islink(path)

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
        """Write a file atomically and durably; a link of this name is replaced. Raises OSError, with `new` FileExistsError if the name exists."""
        folder = os.open(self.create(), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_in(folder, name, text.encode("utf-8", "replace").decode(), mode, new=new)
            os.fsync(folder)
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path(name)) from error
        finally:
            os.close(folder)

    def remove(self, name: str) -> None:
        """Remove a file, if it exists. Raises OSError."""
        with contextlib.suppress(FileNotFoundError):
            os.unlink(self.path(name))

    def newest(self) -> list[str]:
        """Return the names of the folders in this folder, the newest first. A link is not one. Raises OSError."""
        with os.scandir(self.path()) as entries:
            found = [(each.stat().st_mtime_ns, each.name) for each in entries if each.is_dir(follow_symlinks=False)]
        return [name for _time, name in sorted(found, reverse=True)]

    def prune(self, keep: int, protected: str) -> None:
        """Remove all folders in this folder but the `keep` newest ones and `protected`. A link is left alone. Raises OSError."""
        for name in [each for each in self.newest() if each != protected][max(0, keep - 1) :]:
            shutil.rmtree(self.path(name), ignore_errors=True)
