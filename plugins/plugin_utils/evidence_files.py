# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what `gb10 evidence` has printed on a rank's node, as files of the controller. Controller only.

The figures of the moment are in a second file, which is not compared.
"""

from __future__ import annotations

import difflib
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically

#: What differs between any two collections: processes of the connection, counters of bridges.
NOISE = re.compile(r"^@@|BECOME-SUCCESS|sshd-session|hello_timer|ps axo pid|/usr/bin/python3$")
LINES = 300
MOST_FOLDERS = 100  # of a group, under labels of its agent. The oldest go; those under a label of a user stay


def name_of(rank: int, host: str) -> str:
    """Return the name of a rank's files, without a suffix."""
    return f"rank{rank}-{re.sub('[^A-Za-z0-9._-]', '_', host)}"


def write(path: Path, read: Mapping[str, Any]) -> bool:
    """Write what was read of a rank, and return whether it could be read. Raises OSError."""
    document = dict(read.get("document") or {})
    text = document.get("text") or f"No evidence could be read: {read.get('msg') or 'no message'}\n"
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    for suffix, content in ((".txt", text), (".figures.txt", document.get("figures") or "")):
        if content:
            write_atomically(f"{path}{suffix}", str(content), 0o600)
    return bool(document.get("text"))


def prune(folder: Path, group: str) -> None:
    """Remove all but the newest folders that have a label of the group's agent. Raises OSError."""
    own = [path for path in folder.iterdir() if re.fullmatch(rf"{re.escape(group)}-([0-9a-f]{{12}}|crash-|restart-).*", path.name)]
    for path in sorted(own, key=lambda path: path.stat().st_mtime)[:-MOST_FOLDERS]:
        shutil.rmtree(path, ignore_errors=True)


def unusable(folder: Path, label: str, compare: str, name: str) -> str:
    """Return why two labels cannot be compared, as a sentence; empty if they can."""
    if compare == label:
        return (
            f"evidence_label is {label} and evidence_compare is {compare}; expected are two different names of letters, digits, dots, dashes and underscores,"
            " such as -e evidence_label=after -e evidence_compare=before."
        )
    old = folder / compare / f"{name}.txt"
    if compare and not old.is_file():
        remedy = f"collect it first, with -e evidence_label={compare}, or give the label of a folder in {folder}."
        return f"evidence_compare is {compare}, but there is no {old}: {remedy}"
    return ""


def differences(old: Path, new: Path) -> list[str]:
    """Return how two files differ, after two lines with their names. Raises OSError."""
    before, after = (path.read_text(encoding="utf-8", errors="replace").splitlines() for path in (old, new))
    return [line for line in difflib.unified_diff(before, after, str(old), str(new), n=0, lineterm="") if not NOISE.search(line)]


def lines_of(host: str, old: Path, new: Path, found: list[str]) -> list[str]:
    """Return the lines for people about differences()."""
    rest = [f"and {len(found) - LINES} more lines: diff {old} {new}"] if len(found) > LINES else []
    return [*found[:LINES], *rest] if len(found) > 2 else [f"{host}: nothing differs"]
