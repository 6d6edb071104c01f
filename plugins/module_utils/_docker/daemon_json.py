# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Docker's daemon.json as text: merge a few keys into a file that is not ours, and take exactly those back.

Nothing here reads or writes a file. Texts are the whole file (None: there is no file). Limits are bytes, -1 is unlimited.
A record (a plain mapping that survives JSON) remembers what stood before:
`{"original": text or None, "verbatim": bool, "written": text, "keys": [{"path": [..], "ours": v, "had": bool, "previous": v}]}`.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

PATH = "/etc/docker/daemon.json"
#: What Compose gives to each serving container, so that the daemon's own values do not matter to it.
PER_SERVICE = ("default-ulimits", "log-driver", "log-opts")
ROTATING_DRIVERS = ("json-file", "local")

Path = tuple[str, ...]


class DaemonJsonError(ValueError):
    """The file cannot be merged; the message is one sentence for the user."""


class Setting(NamedTuple):
    """One key to set: `path` into the file, the value, and whether a user's own value goes first."""

    path: Path
    value: Any
    unless_set: bool = False


class Merge(NamedTuple):
    """The outcome: the text to write (None: no file), the record to keep, sentences on what changes and what was left alone."""

    text: str | None
    record: dict[str, Any]
    changes: list[str]
    left: list[str]


def parse(text: str | None, path: str = PATH) -> dict[str, Any]:
    """Return the file as a mapping; an absent or empty file is an empty one. Raises DaemonJsonError."""
    if text is None or not text.strip():
        return {}
    try:
        data = json.loads(text)
    except ValueError as error:
        raise DaemonJsonError(
            f"{path} is not valid JSON ({error}), so the Docker daemon would not start with it either: correct it or move it away, then run again"
        ) from error
    if not isinstance(data, dict):
        raise DaemonJsonError(f"{path} holds a {type(data).__name__} where a JSON object belongs: correct it or move it away")
    return data


def render(data: Mapping[str, Any], like: str | None) -> str:
    """Return the text of `data`, indented as the text `like` is (four blanks when that does not say)."""
    indent: Any = 4
    for line in (like or "").splitlines()[1:]:
        blank = line[: len(line) - len(line.lstrip())]
        if blank:
            indent = "\t" if blank.startswith("\t") else len(blank)
            break
    return json.dumps(data, indent=indent, ensure_ascii=False) + "\n"


def ulimit(name: str, value: int) -> dict[str, Any]:
    """Return one entry of `default-ulimits`; `value` in bytes, -1 for unlimited."""
    return {"Name": name, "Hard": value, "Soft": value}


def wanted_settings(
    memlock: int | None,
    stack: int | None,
    log_driver: str = "leave",
    log_opts: Mapping[str, str] | None = None,
    live_restore: bool | None = None,
    flags: Sequence[str] = (),
    data: Mapping[str, Any] | None = None,
    ours: Sequence[Path] = (),
) -> list[Setting]:
    """Return what belongs into the file.

    `flags` are the daemon's command-line options, `data` the file as it stands, `ours` the paths that a record says are ours.
    A driver, or log options, that the user chose are theirs. Raises DaemonJsonError where a flag makes a key of ours impossible
    (dockerd refuses to start when a directive stands both on its command line and in the file).
    """
    settings: list[Setting] = []
    given = {flag.split("=", 1)[0] for flag in flags}
    if memlock is not None or stack is not None:
        if "--default-ulimit" in given:
            raise DaemonJsonError(
                f"the Docker daemon is started with --default-ulimit, and would refuse to start with default-ulimits in {PATH} as well: "
                "take the flag out of docker.service (systemctl cat docker), or set docker_memlock and docker_stack to leave"
            )
        if memlock is not None:
            settings.append(Setting(("default-ulimits", "memlock"), ulimit("memlock", memlock)))
        if stack is not None:
            settings.append(Setting(("default-ulimits", "stack"), ulimit("stack", stack)))
    if log_driver != "leave" and not given & {"--log-driver", "--log-opt"}:
        current = (data or {}).get("log-driver")
        own_driver = current is not None and ("log-driver",) not in ours
        effective = current if own_driver else log_driver
        settings.append(Setting(("log-driver",), log_driver, unless_set=True))
        if effective in ROTATING_DRIVERS:
            settings.extend(Setting(("log-opts", key), str(value), unless_set=True) for key, value in sorted((log_opts or {}).items()))
    if live_restore is not None:
        if "--live-restore" in given:
            raise DaemonJsonError(
                f"the Docker daemon is started with --live-restore, and would refuse to start with live-restore in {PATH} as well: "
                "take the flag out of docker.service (systemctl cat docker), or set docker_live_restore: leave"
            )
        settings.append(Setting(("live-restore",), live_restore))
    return settings


def needs_restart(before: str | None, after: str | None) -> bool:
    """Whether two contents of the file differ in more than what Compose gives to each serving container."""
    old, new = ({key: value for key, value in parse(text).items() if key not in PER_SERVICE} for text in (before, after))
    return old != new


def owned_paths(record: Mapping[str, Any]) -> list[Path]:
    """Return the paths that a record says are ours."""
    return [tuple(key["path"]) for key in record.get("keys", [])]


def _get(data: Mapping[str, Any], path: Path) -> tuple[bool, Any]:
    here: Any = data
    for part in path:
        if not isinstance(here, dict) or part not in here:
            return False, None
        here = here[part]
    return True, here


def _set(data: dict[str, Any], path: Path, value: Any) -> None:
    here = data
    for part in path[:-1]:
        inner = here.setdefault(part, {})
        if not isinstance(inner, dict):
            raise DaemonJsonError(f"{PATH}: {part} is a {type(inner).__name__} where a mapping belongs, so nothing can be merged into it: correct it")
        here = inner
    here[path[-1]] = copy.deepcopy(value)


def _drop(data: dict[str, Any], path: Path) -> None:
    parents = [data]
    for part in path[:-1]:
        inner = parents[-1].get(part)
        if not isinstance(inner, dict):
            return
        parents.append(inner)
    parents[-1].pop(path[-1], None)
    for depth in range(len(path) - 1, 0, -1):
        if parents[depth]:
            break
        parents[depth - 1].pop(path[depth - 1], None)


def _said(path: Path) -> str:
    return ".".join(path)


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def merge(text: str | None, settings: Sequence[Setting], record: Mapping[str, Any] | None = None) -> Merge:
    """Return the file with `settings` in it and nothing else touched. Raises DaemonJsonError.

    Keys that an earlier run set and that are no longer wanted go back to what they were.
    """
    record = record or {}
    data = parse(text)
    before = copy.deepcopy(data)
    known = {tuple(key["path"]): dict(key) for key in record.get("keys", [])}
    kept: list[dict[str, Any]] = []
    changes: list[str] = []
    left: list[str] = []
    wanted = {setting.path for setting in settings}
    for path, key in known.items():
        if path not in wanted:
            _give_back(data, key, changes, left)
    for setting in settings:
        had, value = _get(data, setting.path)
        mine = known.get(setting.path)
        if had and setting.unless_set and (mine is None or value != mine["ours"]):
            if value != setting.value:
                left.append(f"{_said(setting.path)} stays {_shown(value)}, which was chosen before us")
            continue
        if mine is None:
            if had and value == setting.value:
                continue
            mine = {"path": list(setting.path), "had": had, "previous": value}
        if not had or value != setting.value:
            changes.append("{}: {} -> {}".format(_said(setting.path), _shown(value) if had else "not set", _shown(setting.value)))
            _set(data, setting.path, setting.value)
        kept.append({"path": list(setting.path), "ours": setting.value, "had": mine["had"], "previous": mine["previous"]})
    if data == before:
        after = text
    elif not data and (text is None or (record and record.get("original") is None)):
        after = None
    else:
        after = render(data, text)
    if not kept:
        return Merge(after, {}, changes, left)
    untouched = not record or text in (record.get("written"), record.get("original"))
    verbatim = bool(record.get("verbatim", True)) and untouched
    original = record.get("original") if record else text
    return Merge(after, {"original": original, "verbatim": verbatim, "written": after, "keys": kept}, changes, left)


def _give_back(data: dict[str, Any], key: Mapping[str, Any], changes: list[str], left: list[str]) -> None:
    path = tuple(key["path"])
    had, value = _get(data, path)
    if not had or value != key["ours"]:
        left.append("{} is {} and no longer what we set, so it stays".format(_said(path), _shown(value) if had else "gone"))
        return
    if key["had"]:
        _set(data, path, key["previous"])
        changes.append("{}: {} -> {}, as before us".format(_said(path), _shown(value), _shown(key["previous"])))
    else:
        _drop(data, path)
        changes.append(f"{_said(path)}: {_shown(value)} -> not set, as before us")


def restore(text: str | None, record: Mapping[str, Any]) -> Merge:
    """Return the file without our keys: byte for byte what stood before when nobody touched it since. Raises DaemonJsonError."""
    if not record or (record.get("verbatim") and record.get("original") == text):
        return Merge(text, {}, [], [])
    data = parse(text)
    changes: list[str] = []
    left: list[str] = []
    for key in record.get("keys", []):
        _give_back(data, key, changes, left)
    if record.get("verbatim") and record.get("written") == text:
        return Merge(record.get("original"), {}, changes, left)
    if not data and record.get("original") is None:
        return Merge(None, {}, changes, left)
    return Merge(render(data, text) if changes else text, {}, changes, left)
