# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's files in a group's folder: small ones for root, written atomically, and a list of events. A link in place of a file is not followed."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import threading
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import FILE
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_in


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


EVENTS = "events.jsonl"
OLDER_EVENTS = "events.1.jsonl"
MAX_EVENTS = 1 << 20  # bytes of one file of events
MOST_EVENTS = 1000  # that are read


class Store:
    """Small JSON files and a bounded list of events, for root only. `changed` is called after each write."""

    def __init__(self, folder: str, changed: Callable[[], None] | None = None) -> None:
        """Keep the folder's path; the first write creates the folder."""
        self.folder = folder
        self.damaged: set[str] = set()  # names of files that are there and do not have a JSON object
        self._files = Folder(*os.path.split(folder))
        self._changed = changed
        self._lock = threading.RLock()
        self._last: int | None = None  # the number of the last event

    def load(self, name: str) -> dict[str, Any]:
        """Return a file's object; empty if it is absent or unreadable."""
        with self._lock, contextlib.suppress(OSError):
            data = self._files.load(name)
            if isinstance(data, dict):
                return data
            if data is not None or self._files.exists(name):
                self.damaged.add(name)
        return {}

    def known(self, name: str) -> tuple[dict[str, Any], str]:
        """Return the values of a file that are not null, and "". Without any, return {}, and what became of the file: lost or damaged."""
        found = self.load(name)
        if found:
            return {key: value for key, value in found.items() if value is not None}, ""
        return {}, "damaged" if name in self.damaged else "lost"

    def save(self, name: str, data: Mapping[str, Any]) -> None:
        """Write a file atomically and durably, mode 0600. Raises OSError."""
        with self._lock:
            self._files.save(name, data)
        if self._changed:
            self._changed()

    def append(self, event: Mapping[str, Any]) -> None:
        """Add an event. It gets the next number unless its own `n` is higher than all before. Raises OSError."""
        with self._lock:
            last = self.last_number()
            number = event.get("n")
            number = number if isinstance(number, int) and number > last else last + 1
            self._write_line(json.dumps({**event, "n": number}, separators=(",", ":")).encode() + b"\n")
            self._last = number
        if self._changed:
            self._changed()

    def _write_line(self, line: bytes) -> None:
        """Append a line, to a new file if the present one is full."""
        flags = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        path = os.path.join(self._files.create(), EVENTS)
        with contextlib.suppress(FileNotFoundError):
            if os.lstat(path).st_size + len(line) > MAX_EVENTS:
                os.replace(path, self._files.path(OLDER_EVENTS))
        descriptor = os.open(path, flags, 0o600)
        try:
            size = os.fstat(descriptor).st_size
            if size and os.pread(descriptor, 1, size - 1) != b"\n":  # an earlier write was cut off
                line = b"\n" + line
            while line:
                line = line[os.write(descriptor, line) :]
        finally:
            os.close(descriptor)

    def _text(self, name: str) -> str:
        with contextlib.suppress(OSError):
            return self._files.text(name) or ""
        return ""

    def last_number(self) -> int:
        """Return the highest number used. The number of a line that is cut off is not used again."""
        with self._lock:
            if self._last is None:
                cut = self._text(EVENTS).rpartition("\n")[2] != ""
                self._last = max((event["n"] for event in self.events()), default=0) + cut
            return self._last

    def _newest(self, name: str) -> list[str]:
        return self._text(name).rstrip("\n").rsplit("\n", MOST_EVENTS)[-MOST_EVENTS:]

    def events(self) -> list[dict[str, Any]]:
        """Return the newest kept events, the oldest first; a line that is cut off or invalid is left out."""
        with self._lock:  # full files have more than ten times as many lines, which would take 14 MB of memory
            lines = self._newest(EVENTS)
            lines = (self._newest(OLDER_EVENTS) + lines)[-MOST_EVENTS:] if len(lines) < MOST_EVENTS else lines
        return [event for event in map(_event, lines) if event is not None]


def _event(line: str) -> dict[str, Any] | None:
    with contextlib.suppress(ValueError):
        event = json.loads(line)
        if isinstance(event, dict) and isinstance(event.get("n"), int):
            return event
    return None
