# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The fabric variables of a rank, resolved on its node at each start: GID index and device names can change with a reboot."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.command import Run
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import capture_of
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.facts import DesiredState, gather, sentence_of
from ansible_collections.gb10.cluster.plugins.module_utils._node.release import SERVICE
from ansible_collections.gb10.cluster.plugins.module_utils._pair.config import FABRIC
from ansible_collections.gb10.cluster.plugins.module_utils._pair.folder import Folder

SECONDS = 20.0
FATAL = ("link_down", "no_cable", "interface_missing")  # without this rail the release is not the configured one


def resolve(wanted: Mapping[str, Any], run: Run, root: str = "/") -> tuple[dict[str, str], str]:
    """Return the fabric variables of this node, and why there are none.

    `wanted` is `fabric` of a release's manifest: `addresses` of the rails, `interfaces` if the user names them, and `skip`, variables that the user sets.
    """
    capture = capture_of(root, lambda argv: run(argv, SECONDS), shutil.which)
    facts = gather(capture, DesiredState(list(wanted.get("addresses") or []), [], list(wanted.get("interfaces") or []), 9000, 200000))
    problem = " ".join(sentence_of(each, facts["rails"]) for each in facts["problems"] if each["id"] in FATAL)
    skip = set(wanted.get("skip") or [])
    return {name: str(value) for name, value in facts["env"].items() if name not in skip and str(value) != ""}, problem


def compose(env: Mapping[str, str]) -> dict[str, Any]:
    """Return the Compose file that adds these variables to a release's service."""
    return {"services": {SERVICE: {"environment": {name: value.replace("$", "$$") for name, value in sorted(env.items())}}}}


def keep(env: Mapping[str, str], usual: Folder, other: Folder) -> str:
    """Write the Compose file of these variables, unless it is there, and return its path. `other` takes it if `usual` cannot. Raises OSError."""
    wanted = compose(env)
    try:
        if usual.load(FABRIC) != wanted:
            usual.save(FABRIC, wanted)
        return usual.path(FABRIC)
    except OSError:  # a full disk must not keep a rank from being started
        other.save(FABRIC, wanted)
        return other.path(FABRIC)
