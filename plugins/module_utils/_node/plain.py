# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Files and folders that are opened without following links. A container of an engine can replace what is below the model store."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import stat
from collections.abc import Iterator
from typing import Callable

PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC
NO_PLAIN = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)  # a link, a file, a socket, or a folder in place of what is opened


STRETCH = 64 << 20  # bytes of a file between two calls of forget()
WINDOW = 8 * STRETCH  # pages that were dirty, or on their way to the peer, are clean by then


class CopyError(Exception):
    """A copy cannot continue. The text is a sentence for the user."""


def forget(descriptor: int, position: int = 0) -> None:
    """Take the WINDOW before a position out of the page cache, or the whole file without one. Dirty pages stay, and the kernel begins to write them.

    The GPU of a GB10 uses the same memory, and its driver does not wait for page cache. A file system that cannot do this is left as it is.
    """
    start = max(0, position - WINDOW)
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, start, position - start, os.POSIX_FADV_DONTNEED)


def passed(descriptor: int, position: int, count: int) -> None:
    """Forget what is behind a reader or writer that has moved by `count` bytes to `position`, at each STRETCH."""
    if position // STRETCH > (position - count) // STRETCH:
        forget(descriptor, position)


def forget_written(descriptor: int) -> None:
    """Write a file to the disk and take it out of the page cache. Raises OSError if the disk fails."""
    os.fdatasync(descriptor)
    forget(descriptor)


def open_folder(path: str, make: Callable[[int, str], None] | None = None) -> int:
    """Open a folder by an absolute path of which no part may be a link: a container can replace what is below the model store.

    `make` creates a part that is missing, in the folder with this descriptor. The result is for `dir_fd` only. Raises CopyError, OSError.
    """
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | PLAIN)
    for part in filter(None, path.split("/")):
        above = here
        try:
            with contextlib.suppress(FileExistsError):
                if make and not _exists(part, above):
                    make(above, part)
            here = os.open(part, os.O_PATH | os.O_DIRECTORY | PLAIN, dir_fd=above)
        except OSError as error:
            if error.errno not in NO_PLAIN:
                raise OSError(error.errno, error.strerror, path) from error
            raise CopyError(f"{path} is or leads through a link or a file ({part}), and a folder is expected: look at what it is, and remove it") from error
        finally:
            os.close(above)
    return here


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def open_in(folder: int, name: str, where: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file in a folder, which messages name `where`. Raises CopyError, OSError."""
    try:
        descriptor = os.open(name, flags | os.O_NONBLOCK | PLAIN, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in NO_PLAIN:
            raise OSError(error.errno, error.strerror, f"{where}/{name}") from error
        raise CopyError(f"{where}/{name} is not a regular file: look at what it is, and remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CopyError(f"{where}/{name} is not a regular file: look at what it is, and remove it")
    return descriptor


def open_file(path: str) -> int:
    """Open a regular file for reading by an absolute path of which no part may be a link. Raises CopyError, OSError."""
    where, name = os.path.split(path)
    folder = open_folder(where)
    try:
        return open_in(folder, name, where)
    finally:
        os.close(folder)


class Staging:
    """The folder for fetched files, mode 0700. A container of an engine can write next to it and into it: no link to it or in it is followed."""

    def __init__(self, path: str, create: bool = False) -> None:
        """Open the folder by an absolute path without links, made if `create`. Raises CopyError, OSError."""
        self.path = path
        self.name = os.path.basename(path)
        self.parent = open_folder(os.path.dirname(path), (lambda above, part: os.mkdir(part, 0o755, dir_fd=above)) if create else None)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.name, 0o700, dir_fd=self.parent)
            self.descriptor = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | PLAIN, dir_fd=self.parent)
        except OSError as error:
            os.close(self.parent)
            if error.errno not in NO_PLAIN:
                raise OSError(error.errno, error.strerror, path) from error
            raise CopyError(f"{path} is a link or a file, and a folder of this copy is expected: look at what it is, and remove it") from error
        info = os.fstat(self.descriptor)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            self.close()
            raise CopyError(f"{path} belongs to user {info.st_uid} with mode {info.st_mode & 0o777:04o}, expected {os.geteuid()} with 0700: remove it")

    def close(self) -> None:
        """Close the folder."""
        os.close(self.descriptor)
        os.close(self.parent)

    def clear(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(f"/proc/self/fd/{self.parent}/{self.name}", ignore_errors=True)

    @contextlib.contextmanager
    def file(self, path: str) -> Iterator[tuple[int, int, str]]:
        """Open a regular file with one name by its path in the folder, as (descriptor, descriptor of its folder, name). Raises CopyError, OSError."""
        with contextlib.ExitStack() as opened:
            where, name = os.path.split(os.path.join(self.path, path))
            folder = open_folder(where)
            opened.callback(os.close, folder)
            descriptor = open_in(folder, name, where)
            opened.callback(os.close, descriptor)
            if os.fstat(descriptor).st_nlink > 1:
                raise CopyError(f"{where}/{name} is not a regular file with one name: look at what it is, and remove it")
            yield descriptor, folder, name
