# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The agent's files in a group's folder: state and events, written atomically; holds; the API key; the fabric variables of a start."""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shutil
import stat
import threading
import time
from collections.abc import Mapping
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import FILE, Run, loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_in
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import capture_of
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import SERVICE
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import API_KEY, FABRIC, LONGEST_HOLD


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


# --- The holds of a node, which keep the watch from acting for some seconds.
# Within a boot they end by its own clock, which is never set. After a reboot the wall clock decides.


def booted() -> float:
    """Return the seconds since the boot of this node."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def new_hold(name: str, reason: str, seconds: float, by: str, boot: str, wall: float) -> dict[str, Any]:
    """Return a hold that begins now. `boot` is the boot id of the node, empty if it is not known."""
    ends = {"boot": boot, "ends": round(booted() + seconds, 3)} if boot else {}
    return {"name": name, "reason": reason, "until": round(wall + seconds, 3), "by": by, **ends}


def lasting_holds(found: Any, boot: str, wall: float) -> list[dict[str, Any]]:
    """Return the holds in the content of a file that have not expired. `until` is their end by the present wall clock."""
    out = []
    for each in found or []:
        same = bool(boot) and each.get("boot") == boot and each.get("ends") is not None
        left = each["ends"] - booted() if same else each["until"] - wall
        if 0 < left <= LONGEST_HOLD:
            texts = {key: str(each.get(key) or "") for key in ("name", "reason", "by")}
            out.append({**texts, "until": round(wall + left, 3) if same else each["until"], **({"boot": boot, "ends": each["ends"]} if same else {})})
    return out


# --- The API key that a serving group has on its head without one in the inventory.
# The file is an env file for the head's container. The key does not leave the node. If the group's folder was lost as a whole and a container of the group
# runs, the file gets the key of that container. A file with a key is changed only if it has the key without a name, or another mode than 0600.

API_KEY_NAME = "VLLM_API_KEY="
API_KEY_FORM = re.compile(rf"(?:{API_KEY_NAME})?([A-Za-z0-9_-]{{20,200}})")


def _made(folder: Folder, key: str) -> str | None:
    """Write this key, or one that is made. Return the text of the file if another run has made one meanwhile, else None. Raises OSError."""
    try:
        folder.write(API_KEY, f"{API_KEY_NAME}{key or secrets.token_urlsafe(32)}\n", new=True)
    except FileExistsError:
        return folder.text(API_KEY)
    return None


def _line_of(text: str) -> str:
    """Return the line of the env file for a file's text, which may have the key alone. Raises ValueError if it is not a key."""
    found = API_KEY_FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a key")
    return f"{API_KEY_NAME}{found[1]}"


def _environments(group: str) -> list[list[str]]:
    """Return the environment of each container of the group that runs; none if the Docker Engine does not answer."""
    try:
        entries = docker_api.list_containers([f"gb10.cluster.group={group}"], docker_api.DEFAULT_SOCKET, stopped=False)
        running = [docker_api.inspect(entry["Id"], docker_api.DEFAULT_SOCKET) for entry in entries]
    except docker_api.DockerError:  # the role has reported it
        return []
    return [list((each.get("Config") or {}).get("Env") or []) for each in running if each]


def key_in_use(directory: str, group: str) -> str:
    """Return the key that the group runs with if its folder was lost as a whole, else empty: who removes the file wants a new key."""
    if os.path.lexists(os.path.join(directory, "releases")):
        return ""
    found = {match[1] for each in _environments(group) for line in each if line.startswith(API_KEY_NAME) and (match := API_KEY_FORM.fullmatch(line))}
    return found.pop() if len(found) == 1 else ""


def keep_key(directory: str, group: str, check: bool) -> dict[str, Any]:
    """Keep the key, or with `check` return what would be done.

    Returns `path`, `due` (whether the file is written), `new` (whether the key is a new one, or a container of the group runs with another one), and `diff`
    without the key; only `msg`, a sentence, if there is a file that is not a key or cannot be read or written.
    """
    folder, path = Folder(directory), os.path.join(directory, API_KEY)
    remedy = f"Remove {path}: the next run makes a new key and starts the group with it."
    new = due = False
    try:
        text = folder.text(API_KEY)
        if text is None:
            known = key_in_use(directory, group)
            text = None if check else _made(folder, known)
            due = text is None
            new = due and not known
        if text is not None:
            line = _line_of(text)
            due = text != f"{line}\n" or stat.S_IMODE(os.stat(path).st_mode) != 0o600
            if due and not check:
                folder.write(API_KEY, f"{line}\n")
            new = any(line not in each for each in _environments(group))
    except ValueError:
        return {"msg": f"{path} is not an API key: {API_KEY_NAME} with 20 to 200 letters, digits, - and _ is expected. {remedy}"}
    except OSError as error:
        return {"msg": f"The API key of the group cannot be read or made: {path}: {error.strerror}. A link is not followed. {remedy}"}
    before = "" if text is None else "(a key with another mode or form)\n" if due else "(a key)\n"
    return {"path": path, "due": due, "new": new, "diff": {"before_header": path, "after_header": path, "before": before, "after": "(a key)\n"}}


# --- The fabric variables of a rank, resolved on its node at each start: GID index and device names can change with a reboot.

FABRIC_SECONDS = 20.0
FATAL = ("link_down", "no_cable", "interface_missing")  # without this rail the release is not the configured one


def resolve_fabric(wanted: Mapping[str, Any], run: Run, root: str = "/") -> tuple[dict[str, str], str]:
    """Return the fabric variables of this node, and why there are none.

    `wanted` is `fabric` of a release's manifest: `addresses` of the rails, `interfaces` if the user names them, and `skip`, variables that the user sets.
    """
    from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import gather, sentence_of
    from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import DesiredState

    capture = capture_of(root, lambda argv: run(argv, FABRIC_SECONDS), shutil.which)
    facts = gather(capture, DesiredState(list(wanted.get("addresses") or []), list(wanted.get("interfaces") or []), 9000, 200000))
    problem = " ".join(sentence_of(each, facts["rails"]) for each in facts["problems"] if each["id"] in FATAL)
    skip = set(wanted.get("skip") or [])
    return {name: str(value) for name, value in facts["env"].items() if name not in skip and str(value) != ""}, problem


def fabric_compose(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the Compose file that adds these variables to a release's service."""
    return {"services": {SERVICE: {"environment": {name: value.replace("$", "$$") for name, value in sorted(env.items())}}}}


def keep_fabric(env: Mapping[str, str], usual: Folder, other: Folder) -> str:
    """Write the Compose file of these variables, unless it is there, and return its path. `other` takes it if `usual` cannot. Raises OSError."""
    wanted = fabric_compose(env)
    try:
        if usual.load(FABRIC) != wanted:
            usual.save(FABRIC, wanted)
        return usual.path(FABRIC)
    except OSError:  # a full disk must not keep a rank from being started
        other.save(FABRIC, wanted)
        return other.path(FABRIC)
