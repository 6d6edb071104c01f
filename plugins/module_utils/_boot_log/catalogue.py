# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the failure catalogue. failures.yml is its source and describes the keys of a row."""

from __future__ import annotations

import json
import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.failures_data import TEXT

_DATA: dict[str, list[Any]] = json.loads(TEXT)
#: The rows of failures that the log shows, the most specific first.
CATALOGUE: list[dict[str, Any]] = _DATA["failures"]
#: The literals of look-alikes that are not failures, by name.
BENIGN: dict[str, str] = dict(_DATA["benign"])
#: The kinds of faults in the kernel log.
KERNEL: list[dict[str, Any]] = _DATA["kernel"]
#: The remedies of failures that the gate finds without a log line, by class.
GATE: dict[str, str] = dict(_DATA["gate"])
#: What the Docker Engine reports when it cannot start a container: expression, remedy.
MESSAGES: list[list[str]] = list(_DATA["messages"])
#: Classes that can pass by themselves: the same release may serve at the next attempt. All others are lasting.
TRANSIENT = frozenset(_DATA["transient"])


def remedy_of(name: str) -> str:
    """Return the remedy of a failure that the gate finds without a log line, empty if it does not know the class."""
    return GATE.get(name, "")


def start_remedy(error: str) -> str:
    """Return the remedy for a start that failed, by the Docker Engine's message."""
    return next((remedy for pattern, remedy in MESSAGES if re.search(pattern, error, re.I)), remedy_of("start_failed"))


def check_user_class(entry: Any) -> str:
    """Return what is wrong with a user's class (a dict from the inventory) as one sentence, or an empty string."""
    if not isinstance(entry, dict):
        return f"A failure class in extra_classes is a {type(entry).__name__}, expected a mapping with class, pattern and remedy."
    for key in ("class", "pattern", "remedy"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            return f"The failure class {entry.get('class', '?')!r} in extra_classes has no {key}, expected a non-empty string."
    try:
        re.compile(entry["pattern"])
    except re.error as exc:
        return f"The pattern of failure class {entry['class']!r} in extra_classes is not a valid regular expression ({exc}): {entry['pattern']!r}."
    if re.search(r"\([^()]*[+*][^()]*\)\s*[+*{]", entry["pattern"]):
        return (
            f"The pattern of failure class {entry['class']!r} in extra_classes repeats a group that repeats ({entry['pattern']!r}), "
            "which can hang on a long line: give it one repeat."
        )
    return ""


def user_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a user's class in the shape of a catalogue entry; it outranks the built-in classes."""
    return {
        "class": entry["class"],
        "patterns": [entry["pattern"]],
        "literals": [[]],
        "kind": "strong",
        "any_level": bool(entry.get("any_level", False)),
        "remedy": entry["remedy"],
        "remedy_plain": entry["remedy"],
        "pick": "first",
        "needs_peer": "",
        "anchor": str(entry.get("anchor") or f"docs/reference/failures.md#{entry['class']}"),
    }
