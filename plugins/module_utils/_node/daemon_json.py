# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Docker's daemon.json as text: merge a few keys, and give the earlier file back while the merged one is unchanged. Pure.

A text is the whole file, None if there is no file. Limits are bytes, -1 is unlimited. The record of a merge is JSON:
`{"original": text or None, "ours": text}`. If others change the file, their version is the new original.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._node.client import DockerError

PATH = "/etc/docker/daemon.json"
ROTATING_DRIVERS = ("json-file", "local")
#: The daemon does not start if one of these keys is in the file and its option on the command line.
FLAGS = {"default-ulimits": "--default-ulimit", "log-driver": "--log-driver", "log-opts": "--log-opt", "live-restore": "--live-restore"}


class Setting(NamedTuple):
    """One key to set. If `unless_set`, the user's own value has priority."""

    path: tuple[str, ...]
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


def original(text: str | None, record: Mapping[str, Any]) -> str | None:
    """Return the file as it was before the first run, or as others have changed it since."""
    return record["original"] if record and parse(text) == parse(record.get("ours")) else text


def without_flags(wanted: Sequence[Setting], flags: Sequence[str]) -> tuple[list[Setting], list[str]]:
    """Return the settings that no option on the daemon's command line excludes, and one sentence per option that does."""
    given = {flag.split("=", 1)[0] for flag in flags}
    excluded = {key for key, flag in FLAGS.items() if flag in given}
    if excluded & {"log-driver", "log-opts"}:
        excluded |= {"log-driver", "log-opts"}
    kept = [setting for setting in wanted if setting.path[0] not in excluded]
    keys = sorted({setting.path[0] for setting in wanted} & excluded)
    return kept, [f"{key} is not set, because the Docker daemon is started with {FLAGS[key]}" for key in keys]


def _leaves(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by their dotted names; of a limit or a log option, that of each one."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found.update({f"{key}.{name}": each for name, each in value.items()} if key in ("default-ulimits", "log-opts") else {key: value})
    return found


def _shown(found: Mapping[str, Any], name: str) -> str:
    return json.dumps(found[name], sort_keys=True) if name in found else "not set"


def merge(text: str | None, wanted: Sequence[Setting], record: Mapping[str, Any]) -> Merge:
    """Return the file with the settings; all other keys stay. Without settings this is the undo. Raises DockerError."""
    base_text, now = original(text, record), _leaves(parse(text))
    base, data, left = parse(base_text), parse(base_text), []
    for path, value, unless_set in wanted:
        holder = data if len(path) == 1 else data.setdefault(path[0], {})
        if not unless_set or path[-1] not in holder:
            holder[path[-1]] = value
        elif holder[path[-1]] != value:
            left.append(f"{'.'.join(path)} stays {json.dumps(holder[path[-1]], sort_keys=True)}, which the user has chosen")
    if not wanted and record and base_text == text != record["original"]:
        left.append(f"{PATH} was changed since the first run, so it stays")
    then = _leaves(data)
    changes = [f"{name}: {_shown(now, name)} -> {_shown(then, name)}" for name in sorted({*now, *then}) if _shown(now, name) != _shown(then, name)]
    after = base_text if data == base else text if not changes else render(data, base_text)
    return Merge(after, {"original": base_text, "ours": after} if data != base else {}, changes, left)
