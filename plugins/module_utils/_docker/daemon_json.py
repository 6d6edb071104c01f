# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Docker's daemon.json as text: merge a few keys, and restore exactly these. Pure.

A text is the whole file, None if there is no file. Limits are bytes, -1 is unlimited. The record of a merge is JSON:
`{"original": text or None, "keys": [{"path": [..], "ours": value, "existed": bool, "previous": value}]}`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError

PATH = "/etc/docker/daemon.json"
ROTATING_DRIVERS = ("json-file", "local")
#: The daemon does not start if one of these keys is in the file and its option on the command line.
FLAGS = {"default-ulimits": "--default-ulimit", "log-driver": "--log-driver", "log-opts": "--log-opt", "live-restore": "--live-restore"}

Path = tuple[str, ...]


class Setting(NamedTuple):
    """One key to set. If `unless_set`, the user's own value has priority."""

    path: Path
    value: Any
    unless_set: bool = False


class Merge(NamedTuple):
    """The text to write (None: no file), the record to keep, and one sentence per key that changes or is left alone."""

    text: str | None
    record: dict[str, Any]
    changes: list[str]
    left: list[str]


def parse(text: str | None) -> dict[str, Any]:
    """Return the content of the file; empty if it is absent or empty. Raises DockerError."""
    try:
        data = loads(text) if text and text.strip() else {}
    except ValueError as error:
        raise DockerError(f"{PATH} is not valid JSON ({error}), so the Docker daemon cannot start with it. Correct it, then run again.") from error
    for key in ("", "default-ulimits", "log-opts"):
        value = data if not key else data.get(key, {})
        if not isinstance(value, dict):
            raise DockerError(f"{PATH}: {key or 'the content'} is a {type(value).__name__}, expected a JSON object. Correct it, then run again.")
    return data


def render(data: Mapping[str, Any], like: str | None) -> str:
    """Return the text of `data` with the indentation of the text `like`; 4 blanks if it has none."""
    indent = re.search(r"\n([ \t]+)", like or "")
    return json.dumps(data, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def settings(
    memlock: int | None, stack: int | None, log_driver: str, log_opts: Mapping[str, str], live_restore: bool | None, current_driver: str | None
) -> list[Setting]:
    """Return the desired keys; None or `leave` does not set a key. `current_driver` is the log driver that the user has chosen."""
    found = [
        Setting(("default-ulimits", name), {"Name": name, "Hard": value, "Soft": value})
        for name, value in (("memlock", memlock), ("stack", stack))
        if value is not None
    ]
    if log_driver != "leave":
        found.append(Setting(("log-driver",), log_driver, unless_set=True))
        if (current_driver or log_driver) in ROTATING_DRIVERS:
            found.extend(Setting(("log-opts", key), str(value), unless_set=True) for key, value in sorted(log_opts.items()))
    if live_restore is not None:
        found.append(Setting(("live-restore",), live_restore))
    return found


def chosen_driver(data: Mapping[str, Any], record: Mapping[str, Any]) -> str | None:
    """Return the log driver in the file, unless an earlier run has set it."""
    return None if any(key["path"] == ["log-driver"] for key in record.get("keys", [])) else data.get("log-driver")


def without_flags(wanted: Sequence[Setting], flags: Sequence[str]) -> tuple[list[Setting], list[str]]:
    """Return the settings that no option on the daemon's command line excludes, and one sentence per option that does."""
    given = {flag.split("=", 1)[0] for flag in flags}
    excluded = {key for key, flag in FLAGS.items() if flag in given}
    if excluded & {"log-driver", "log-opts"}:
        excluded |= {"log-driver", "log-opts"}
    kept = [setting for setting in wanted if setting.path[0] not in excluded]
    keys = sorted({setting.path[0] for setting in wanted} & excluded)
    return kept, [f"{key} is not set, because the Docker daemon is started with {FLAGS[key]}" for key in keys]


def _get(data: Mapping[str, Any], path: Path) -> tuple[bool, Any]:
    for part in path[:-1]:
        data = data.get(part, {})
    return path[-1] in data, data.get(path[-1])


def _set(data: dict[str, Any], path: Path, value: Any) -> None:
    for part in path[:-1]:
        data = data.setdefault(part, {})
    data[path[-1]] = value


def _shown(value: Any) -> str:
    return json.dumps(value, sort_keys=True)


def _restore_key(data: dict[str, Any], key: Mapping[str, Any], original: Mapping[str, Any], changes: list[str], left: list[str]) -> None:
    path, name = tuple(key["path"]), ".".join(key["path"])
    exists, value = _get(data, path)
    if not exists or value != key["ours"]:
        left.append(f"{name} is {_shown(value) if exists else 'not set'} and was changed since, so it stays")
    elif key["existed"]:
        _set(data, path, key["previous"])
        changes.append(f"{name}: {_shown(value)} -> {_shown(key['previous'])}, as before")
    else:
        holder = data if len(path) == 1 else data[path[0]]
        del holder[path[-1]]
        if not holder and path[0] not in original:
            data.pop(path[0], None)
        changes.append(f"{name}: {_shown(value)} -> not set, as before")


def merge(text: str | None, wanted: Sequence[Setting], record: Mapping[str, Any]) -> Merge:
    """Return the file with the settings; all other keys stay. Keys that an earlier run has set and that are not desired any more are restored.

    Raises DockerError. Without settings this is the undo: it returns the original text if its content is the same.
    """
    data = parse(text)
    original_text = record["original"] if record else text
    original = parse(original_text)
    known = {tuple(key["path"]): key for key in record.get("keys", [])}
    keys: list[dict[str, Any]] = []
    changes: list[str] = []
    left: list[str] = []
    if text == original_text:  # an earlier run recorded the keys and did not write them, or the user has restored the file
        known = {}
    for path in sorted(known.keys() - {setting.path for setting in wanted}):
        _restore_key(data, known[path], original, changes, left)
    for path, value, unless_set in wanted:
        exists, found = _get(data, path)
        ours = known.get(path)
        if exists and unless_set and (ours is None or found != ours["ours"]):
            if found != value:
                left.append(f"{'.'.join(path)} stays {_shown(found)}, which the user has chosen")
            continue
        if ours is None and exists and found == value:
            continue
        before = ours or {"path": list(path), "existed": exists, "previous": found}
        keys.append({**before, "ours": value})
        if not exists or found != value:
            changes.append(f"{'.'.join(path)}: {_shown(found) if exists else 'not set'} -> {_shown(value)}")
            _set(data, path, value)
    after = text
    if changes:
        after = original_text if data == original else render(data, text) if data or original_text is not None else None
    return Merge(after, {"original": original_text, "keys": keys} if keys else {}, changes, left)
