# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The thresholds of the watch, with their source. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Seconds and GiB. `vllm_tp2_watch` replaces single values.
DEFAULTS: dict[str, Any] = {
    "enabled": True,
    "stopped_seconds": 5.0,  # a debugger stops a process for less
    "wedge_seconds": 20.0,  # two real GPUs: a wedge shows idle power within 2 s, a decode step takes less than 1 s
    "metrics_seconds": 5.0,
    "completion_seconds": 45.0,  # with the time-out below 75 s until an idle wedge is noticed
    "completion_timeout": 30.0,
    "lost_seconds": 3.0,  # ssh reports a silent node after 6 s; these come on top
    "memory_drop_gib": 4.0,  # the sources keep 8 GiB free while serving; nodes froze below 2 GiB
    "memory_floor_gib": 1.5,
    "memory_fall_seconds": 2.0,  # one reading ahead: a node with 10 GiB froze 3 s later
    "restarts": 5,
    "stable_seconds": 0.0,  # as long as the boot took: a crash loop boots for longer than it serves
    "head_seconds": 60.0,  # a group that is held is asked every 30 s
    "textfile": "",
    "hook": [],
    "webhook": "",
}

HEAD_SECONDS = 45.0
# With 0, a group that serves well would have a fault in each look.
_ABOVE_ZERO = ("stopped_seconds", "wedge_seconds", "metrics_seconds", "completion_seconds", "completion_timeout")


class SettingsError(ValueError):
    """The setting `key` cannot be used. The text is one sentence with the remedy."""

    def __init__(self, key: str, sentence: str) -> None:
        super().__init__(sentence)
        self.key = key


def merged(given: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return all settings; `given` replaces single ones. Raises SettingsError."""
    given = given or {}
    unknown = [key for key in given if key not in DEFAULTS]
    if unknown:
        raise SettingsError(unknown[0], f"{unknown[0]} is not a setting of the watch. Supported: {', '.join(DEFAULTS)}.")
    out = {**DEFAULTS, **{key: value for key, value in given.items() if value is not None}}
    for key, default in DEFAULTS.items():
        value = out[key]
        if isinstance(default, (int, float)) and not isinstance(default, bool):
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value < 0:
                raise SettingsError(key, f"{key} of the watch is {value!r}. Expected: a number that is not negative.")
        elif not isinstance(value, type(default)):
            raise SettingsError(key, f"{key} of the watch is {value!r}. Expected: {'a list of words' if default == [] else type(default).__name__}.")
    zero = next((key for key in _ABOVE_ZERO if out[key] == 0), "")
    if zero:
        raise SettingsError(zero, f"{zero} of the watch is 0. Expected: a number above 0; the default is {DEFAULTS[zero]:g}.")
    if out["head_seconds"] < HEAD_SECONDS:
        expected = f"at least {HEAD_SECONDS:.0f}; the head asks every 30 s or more often"
        raise SettingsError("head_seconds", f"head_seconds of the watch is {out['head_seconds']!r}. Expected: {expected}.")
    if out["memory_drop_gib"] < out["memory_floor_gib"]:
        own = next((key for key in ("memory_floor_gib", "memory_drop_gib") if given.get(key) is not None), "memory_drop_gib")
        figures = f"memory_drop_gib ({out['memory_drop_gib']:g}) is below memory_floor_gib ({out['memory_floor_gib']:g})"
        raise SettingsError(own, f"{own} of the watch does not fit: {figures}. Expected: the page cache is dropped before the rank is stopped.")
    return out


def usable(given: Mapping[str, Any] | None) -> tuple[dict[str, Any], list[str]]:
    """Return all settings, and a sentence for each of `given` that this version does not support: another version may have written the file."""
    left, problems = dict(given or {}), list[str]()
    while True:
        try:
            return merged(left), problems
        except SettingsError as error:
            problems.append(f"{error} It is ignored. Run site.yml.")
            del left[error.key]
