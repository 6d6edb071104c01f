# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a release of a serving group on a rank's node, its receipt, and the link to the current one."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import FileChange, Node

COMPOSE = "compose.yaml"
SECRETS = "secrets.env"
RECEIPT = "receipt.json"
DERIVED = ("caches", "inputs", "release")  # of release.json
ROLLBACK = "rollback.json"  # in the folder of the group: from which release to which it was rolled back last


def found(path: str) -> tuple[str | None, int]:
    """Return a file's text and mode; None if there is none."""
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(), stat.S_IMODE(os.fstat(handle.fileno()).st_mode)
    except FileNotFoundError:
        return None, 0


def differences(folder: str, wanted: dict[str, tuple[str, int]]) -> list[tuple[FileChange, int]]:
    """Return the files to write in their order, the Compose file last, each with its present mode."""
    out = []
    for name in sorted(wanted, key=lambda each: (each == COMPOSE, each)):
        text, mode = wanted[name]
        path = os.path.join(folder, name)
        before, before_mode = found(path)
        if before != text or before_mode != mode:
            out.append((FileChange(path, before, text, mode), before_mode))
    return out


def diff_of(change: FileChange, before_mode: int, current: str = "") -> dict[str, str]:
    """Return one entry of Ansible's list of differences; of the secrets only that they differ. A new file is compared with that of the current release."""
    if os.path.basename(change.path) == SECRETS:
        return change._replace(before=change.before and "(other secrets)\n", after="(secrets)\n").diff()
    if not change.changed:
        return change._replace(before=f"mode {before_mode:04o}\n", after=f"mode {change.mode:04o}\n").diff()
    path = os.path.join(current, os.path.basename(change.path))
    before = found(path)[0] if change.before is None and current else None
    if before is None:
        return change.diff()
    old, new = (os.path.basename(os.path.dirname(os.path.realpath(each))) for each in (path, change.path))
    shown = change._replace(before=_without_derived(path, before.replace(old, new)), after=_without_derived(path, change.after or ""))
    return {**shown.diff(), "before_header": path}


def _without_derived(path: str, text: str) -> str:
    """Return a file of a release without what follows from the rest of it: it would hide the change in a difference of two releases."""
    if os.path.basename(path) != "release.json" or not readable(text):
        return text
    return json.dumps({key: value for key, value in loads(text).items() if key not in DERIVED}, indent=4, sort_keys=True) + "\n"


def readable(text: str | None) -> bool:
    """Tell whether a receipt's text can be read."""
    try:
        return text is not None and isinstance(loads(text), dict)
    except ValueError:
        return False


def write(change: FileChange) -> None:
    """Write a file with its mode. It is never readable by more users than this mode allows. Raises OSError."""
    Node().apply(change, keep_mode=False)


def write_receipt(path: str, receipt: Mapping[str, Any]) -> None:
    """Write a receipt over an older one. Raises OSError."""
    write(FileChange(path, found(path)[0], json.dumps(receipt, indent=4, sort_keys=True) + "\n", 0o640))


def point(link: str, target: str) -> None:
    """Make a link, atomically over an older one. Raises OSError if a folder is there."""
    temporary = f"{link}.new-{os.getpid()}"
    os.symlink(target, temporary)
    try:
        os.replace(temporary, link)
    except OSError:
        os.unlink(temporary)
        raise


def record(folder: str, release: str, receipt: Mapping[str, Any]) -> None:
    """Keep a release's receipt in a group's folder, and make it the current release. Raises OSError."""
    path = os.path.join(folder, "releases", release)
    os.makedirs(path, mode=0o750, exist_ok=True)
    write_receipt(os.path.join(path, RECEIPT), receipt)
    link, target = os.path.join(folder, "current"), os.path.join("releases", release)
    if not os.path.islink(link) or os.readlink(link) != target:
        point(link, target)


def record_rollback(folder: str, names: Mapping[str, str]) -> None:
    """Keep from which release to which a group was rolled back, in its folder. Raises OSError."""
    path = os.path.join(folder, ROLLBACK)
    write(FileChange(path, found(path)[0], json.dumps(names, indent=4, sort_keys=True) + "\n", 0o640))
