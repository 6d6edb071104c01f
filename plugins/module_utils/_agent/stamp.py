# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Whether anything that an installation of the agent consists of, or depends on, was touched since it ended.

The stamp is the controller's digest of code and options. It counts as long as kind, mode, owner, size and time of every such path are the same, so
that a run with the same stamp does not need the installation, whose code is 0.5 MB to send and 1 s to run.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import (
    CODE,
    CONFIG,
    HOME,
    KEYS,
    LAUNCHER,
    PARENTS,
    STAMP,
    UNIT,
    UNIT_FILE,
    WATCH_CONFIG,
)
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads

TREES = (CODE, KEYS, HOME)
PATHS = (
    *(*PARENTS, CONFIG, WATCH_CONFIG, LAUNCHER, UNIT_FILE, f"/etc/systemd/system/multi-user.target.wants/{UNIT}"),
    *("/etc/machine-id", "/etc/passwd", "/etc/group", "/etc/ssh/*", "/etc/ssh/sshd_config.d/*"),
)


def touched(root: str = "/") -> str:
    """Return a digest of kind, mode, owner, size and time of every path. Links are not followed."""
    base = root.rstrip("/")
    found = [path for pattern in PATHS for path in glob.glob(base + pattern)]
    for tree in TREES:
        found.append(base + tree)
        for folder, folders, names in os.walk(base + tree):
            folders[:] = [name for name in folders if name != "__pycache__"]
            found += [os.path.join(folder, name) for name in [*folders, *names]]
    lines = []
    for path in sorted(set(found) - {base + STAMP}):
        try:
            seen = os.lstat(path)
        except OSError:
            continue
        # The times of directories are left out: the stamp itself and byte code are written into them.
        when = (0, 0) if os.path.isdir(path) and not os.path.islink(path) else (seen.st_size, seen.st_mtime_ns)
        lines.append(f"{path[len(base) :]} {seen.st_mode:o} {seen.st_uid}:{seen.st_gid} {when}")
    return hashlib.sha256("\n".join(lines).encode("utf-8", "surrogateescape")).hexdigest()


def text(stamp: str, ssh_port: int, root: str = "/") -> str:
    """Return the content of the stamp's file."""
    return json.dumps({"stamp": stamp, "ssh_port": ssh_port, "touched": touched(root)}) + "\n"


def read(root: str = "/") -> dict[str, Any]:
    """Return `stamp` and `ssh_port` of the installation; {} if there is none, or if something was touched since."""
    try:
        with open(root.rstrip("/") + STAMP, encoding="utf-8") as handle:
            found = loads(handle.read())
        if found["touched"] == touched(root):
            return {"stamp": str(found["stamp"]), "ssh_port": int(found["ssh_port"])}
    except (OSError, ValueError, TypeError, KeyError):
        pass
    return {}
