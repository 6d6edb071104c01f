# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The files and commands of a node, through a root folder and a runner; and changes of them, each listed for the result of a module.

`Node(root="/")` is the live machine, `Node(root="/tmp/tree")` a captured one. Paths are absolute paths of the node
(`/etc/docker/daemon.json`). Texts are UTF-8; bytes that are not are kept (surrogateescape).
"""

from __future__ import annotations

import contextlib
import fcntl
import glob
import json
import os
import secrets
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Callable, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads

RECORDS = "/var/lib/gb10-cluster"
MARKER = "# Managed by gb10.cluster"  # the beginning of each file that a role of this collection owns

Runner = Callable[[Sequence[str]], tuple[int, str, str]]


def runner(module: Any, optional: bool = False) -> Runner:
    """Return a Runner for a module's run_command. If `optional`, a program that is not installed returns 127 and does not fail the module."""

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        if optional and not module.get_bin_path(argv[0]):
            return 127, "", f"{argv[0]}: command not found"
        rc, out, err = module.run_command(list(argv))
        return int(rc), str(out), str(err)

    return run


class FileChange(NamedTuple):
    """One file to write, or to remove if `after` is None. `mode` is the mode of a new file."""

    path: str
    before: str | None
    after: str | None
    mode: int = 0o644

    @property
    def changed(self) -> bool:
        """Whether the content differs."""
        return self.before != self.after

    def diff(self) -> dict[str, str]:
        """Return one entry of Ansible's diff list."""
        return {
            "before": self.before or "",
            "after": self.after or "",
            "before_header": self.path if self.before is not None else f"{self.path} (absent)",
            "after_header": self.path if self.after is not None else f"{self.path} (absent)",
        }


def write_in(folder: int, name: str, text: str, mode: int, owner: os.stat_result | None = None, new: bool = False) -> None:
    """Write a text to a temporary file in an open folder, sync it and rename it; on an error remove it. Raises OSError.

    Owner and mode are set on the open file: a user who owns the folder, or one above it, can put a link in the place of any name.
    `owner` is the stat of the file whose owner the new one gets. With `new`, a name that exists raises FileExistsError.
    """
    temporary = f".gb10-{secrets.token_hex(8)}"
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600, dir_fd=folder)
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8", errors="surrogateescape") as handle:
            handle.write(text)
            handle.flush()
            if owner is not None and os.geteuid() == 0:
                os.fchown(handle.fileno(), owner.st_uid, owner.st_gid)
            os.fchmod(handle.fileno(), mode)
            os.fsync(handle.fileno())
        (os.link if new else os.replace)(temporary, name, src_dir_fd=folder, dst_dir_fd=folder)
    except (OSError, UnicodeError):
        with contextlib.suppress(OSError):
            os.unlink(temporary, dir_fd=folder)
        raise
    if new:
        os.unlink(temporary, dir_fd=folder)


def write_atomically(target: str, text: str, mode: int, owner: os.stat_result | None = None) -> None:
    """Write a file as `write_in` does, in the folder that is found first. Raises OSError."""
    where, name = os.path.split(target)
    try:
        folder = os.open(where or ".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            write_in(folder, name, text, mode, owner)
        finally:
            os.close(folder)
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


class HostError(ValueError):
    """A node cannot be set as it is described. The message is for the user."""


class RecordError(HostError):
    """The record of earlier values cannot be used. The message is for the user."""


def no_commands(argv: Sequence[str]) -> tuple[int, str, str]:
    """Runner of a captured tree, where no command can be run."""
    return 127, "", f"{argv[0]}: no commands in a captured tree"


class Node:
    """A machine's files below `root`, and its commands through `run` (argv -> rc, stdout, stderr; rc 127 for a missing command)."""

    def __init__(self, root: str = "/", run: Runner = no_commands) -> None:
        """Keep the root folder and the runner."""
        self.root = root
        self.run = run

    def at(self, path: str) -> str:
        """Return the path below `root`."""
        return os.path.join(self.root, path.lstrip("/"))

    def read(self, path: str) -> str | None:
        """Return a file's text, or None if it cannot be read (some files of sysfs return EINVAL)."""
        try:
            return bounded.text(self.at(path), errors="surrogateescape")
        except (OSError, ValueError):
            return None

    def exists(self, path: str) -> bool:
        """Return whether `path` exists."""
        return os.path.exists(self.at(path))

    def link(self, path: str) -> str | None:
        """Return a link's target as it is stored, or None if `path` is not a link."""
        try:
            return os.readlink(self.at(path))
        except OSError:
            return None

    def listdir(self, path: str) -> list[str]:
        """Return the sorted names in a folder; empty if it cannot be read."""
        try:
            return sorted(os.listdir(self.at(path)))
        except OSError:
            return []

    def glob(self, pattern: str) -> list[str]:
        """Return the node's paths that match `pattern`, sorted."""
        strip = len(self.root.rstrip("/"))
        return sorted(found[strip:] for found in glob.glob(self.at(pattern)))

    def page_kb(self) -> int | None:
        """Return the running kernel's page size in KiB; None for a captured tree."""
        return os.sysconf("SC_PAGE_SIZE") // 1024 if self.root == "/" else None

    def write_live(self, path: str, text: str) -> None:
        """Write a kernel file (/proc/sys, /sys) in place. Raises OSError."""
        with open(self.at(path), "w", encoding="utf-8") as handle:
            handle.write(text)

    def apply(self, change: FileChange, keep_mode: bool = True) -> None:
        """Write or remove a file atomically; an existing file keeps its owner, and its mode if `keep_mode`. Raises OSError."""
        target = self.at(change.path)
        if change.after is None:
            if os.path.lexists(target):
                os.unlink(target)
            return
        target = os.path.realpath(target) if self.root == "/" else target
        os.makedirs(os.path.dirname(target), mode=0o755, exist_ok=True)
        old = os.stat(target) if os.path.exists(target) else None
        write_atomically(target, change.after, old.st_mode & 0o7777 if old and keep_mode else change.mode, old)

    def mapping(self, path: str) -> dict[str, Any]:
        """Return the JSON object in a file; empty if the file is absent or has no JSON object."""
        try:
            data = loads(self.read(path) or "{}")
        except ValueError:
            return {}
        return data if isinstance(data, dict) else {}

    @contextlib.contextmanager
    def alone(self) -> Iterator[None]:
        """Wait until no other run is inside: two at once would each write a record without what the other added. Raises OSError."""
        place = self.at(os.path.dirname(RECORDS))  # RECORDS itself goes with the last record
        os.makedirs(place, exist_ok=True)
        folder = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)
            yield
        finally:
            os.close(folder)

    def load_record(self, name: str) -> dict[str, Any]:
        """Return the record of earlier values, `/var/lib/gb10-cluster/<name>.json`; empty if it is absent. Raises RecordError."""
        path = f"{RECORDS}/{name}.json"
        data = self.mapping(path)
        if not data and (self.read(path) or "{}").strip() != "{}":
            raise RecordError(
                f"{path}, the record of the values before the first run, is not a JSON object. Restore it from a backup, or remove it: these values "
                "can then not be restored."
            )
        return data

    def save_record(self, name: str, data: dict[str, Any]) -> None:
        """Write the record; if `data` is empty, remove it and its folder if nothing else is in it. Raises OSError."""
        path = f"{RECORDS}/{name}.json"
        before = self.read(path)
        after = json.dumps(data, indent=2, sort_keys=True) + "\n" if data else None
        if before != after:
            self.apply(FileChange(path, before, after, 0o600))
        if not data and self.exists(RECORDS) and not self.listdir(RECORDS):
            os.rmdir(self.at(RECORDS))


# --- Change a node, and list each change for the module's result. In check mode only the list is made.


class Changes:
    """The changes of a run: `messages` has one entry per change, `diff` is Ansible's list."""

    def __init__(self) -> None:
        """Create an empty list of changes."""
        self.messages: list[str] = []
        self._diff: list[dict[str, str]] = []
        self._steps: list[str] = []

    def file(self, change: FileChange, message: str) -> None:
        """Add a file."""
        self.messages.append(message)
        self._diff.append(change.diff())

    def live(self, title: str, before: str, after: str, messages: Iterable[str]) -> None:
        """Add values of the live system; `title` is the header of their diff."""
        self.messages.extend(messages)
        self._diff.append({"before": before, "after": after, "before_header": title, "after_header": title})

    def step(self, message: str) -> None:
        """Add a change that is neither a file nor a value: the message is its diff."""
        self.messages.append(message)
        self._steps.append(message)

    def result(self) -> dict[str, Any]:
        """Return the part of a module's result that reports changes."""
        return {"changed": bool(self.messages), "changes": self.messages, "diff": self.diff}

    @property
    def diff(self) -> list[dict[str, str]]:
        """Files and values first, then all steps as one entry."""
        after = "".join(f"{step}\n" for step in self._steps)
        steps = {"before": "", "after": after, "before_header": "live system", "after_header": "live system"}
        return [*self._diff, steps] if after else list(self._diff)


class Editor:
    """Applies changes to a node unless this is check mode. Its methods raise HostError and OSError."""

    def __init__(self, node: Node, check_mode: bool) -> None:
        """Start without a change."""
        self.node = node
        self.check_mode = check_mode
        self.changes = Changes()

    def command(self, *argv: str) -> None:
        """Run a command that must succeed."""
        if self.check_mode:
            return
        rc, out, err = self.node.run(list(argv))
        if rc != 0:
            last = ((err or out).strip().splitlines() or ["no output"])[-1]
            raise HostError(f"{argv[0]} failed (rc {rc}: {last}). The command was `{' '.join(argv)}`.")

    def step(self, message: str, *argv: str) -> None:
        """Add a change and run the command that makes it, if there is one."""
        self.changes.step(message)
        if argv:
            self.command(*argv)

    def write(self, path: str, text: str | None, message: str) -> bool:
        """Write a file, or remove it if `text` is None; return whether it changes."""
        change = FileChange(path, self.node.read(path), text)
        if not change.changed:
            return False
        self.changes.file(change, message)
        if not self.check_mode:
            self.node.apply(change)
        return True

    def write_live(self, title: str, values: Mapping[str, str], live: Mapping[str, str], path_of: Callable[[str], str]) -> None:
        """Write the values (name to value) that differ from `live` to the kernel files that `path_of` names."""
        writes = {name: value for name, value in values.items() if live.get(name) != value}
        if not writes:
            return
        before = {name: live.get(name, "not set") for name in writes}
        old, new = ("".join(f"{name} = {value}\n" for name, value in side.items()) for side in (before, writes))
        self.changes.live(title, old, new, (f"{name}: {before[name]} -> {value}" for name, value in writes.items()))
        if self.check_mode:
            return
        for name, value in writes.items():
            try:
                self.node.write_live(path_of(name), f"{value}\n")
            except OSError as error:
                raise HostError(
                    f"The kernel refuses {value} for {name} ({error.strerror} on {path_of(name)}). Correct the value, or check whether the file "
                    "system is read-only."
                ) from error

    def require_own(self, path: str) -> None:
        """Refuse to replace a file without our marker."""
        text = self.node.read(path)
        if text is not None and MARKER not in text:
            raise HostError(f"{path} exists and is not managed by gb10.cluster (it does not contain {MARKER!r}). Move it away, then run again.")

    def remove_own(self, path: str) -> bool:
        """Remove a file with our marker; return whether it was removed."""
        return MARKER in (self.node.read(path) or "") and self.write(path, None, f"{path} removed")

    def remove_empty_folder(self, path: str) -> None:
        """Remove a folder that has nothing in it."""
        if not self.check_mode and self.node.exists(path) and not self.node.listdir(path):
            os.rmdir(self.node.at(path))

    def save_record(self, name: str, record: Mapping[str, Any]) -> None:
        """Keep the record of earlier values, see Node.save_record."""
        if not self.check_mode:
            self.node.save_record(name, dict(record))


def run_module(module: Any, work: Callable[[Editor], dict[str, Any]], *errors: type[Exception]) -> None:
    """Run the module of a role and exit. With its option `look` it changes nothing, reports no change, and shows no text: doctor.yml compares."""
    look = bool(module.params["look"])
    known: tuple[type[Exception], ...] = (HostError, *errors)
    edit = Editor(Node("/", runner(module, optional=True)), module.check_mode or look)
    try:
        result = work(edit)
    except known as error:
        module.fail_json(msg=str(error), changes=edit.changes.messages)  # also those before the failure
    except OSError as error:
        module.fail_json(msg=f"{error.filename} cannot be changed ({error.strerror}). Run with become, and check whether the file system is read-only.")
    module.exit_json(**{**result, **({"changed": False, "shown": []} if look else {})})
