# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: releases, the state of the ranks, of their group and of its agent, and the documents that the module show prints."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._agent import plan
from ansible_collections.gb10.cluster.plugins.module_utils._common import terminal
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as profiles
from ansible_collections.gb10.cluster.plugins.module_utils._release import group as groups
from ansible_collections.gb10.cluster.plugins.module_utils._release import ownership
from ansible_collections.gb10.cluster.plugins.module_utils._release import release as releases


def _kept_on_controller(folder: str, release: str) -> list[Any]:
    """Return the receipts of a release's passed gates in the controller's folder of a group, the newest first."""
    place, texts = Path(os.path.expanduser(folder)), []
    for path in [place / "last-good.json", *sorted(place.glob(f"*-{release}-passed.json"), reverse=True)]:
        try:
            texts.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # absent or cut off: the next one counts
    return texts


def run_plan(infos: Any, group: Mapping[str, Any], wanted: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Return what a run does with a group; what has happened to the way back is warned of at once, since the boot that needs it may come next."""
    release = plan.named(infos, str(wanted["release"]), wanted["inputs"], bool(wanted["restart"]))
    judged = releases.judged_receipt(infos, release, _kept_on_controller(folder, release))
    found = plan.of_run(infos, [str(host) for host in group["hosts"]], str(group["name"]), int(group["rank"]), release, wanted, judged)
    for sentence in found["lost"]:
        Display().warning(f"{group['name']}: {sentence}")
    return found


def printable(text: Any) -> str:
    """Return the text of a node with the characters that a terminal would obey written out."""
    return terminal.printable(str(text))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "group_status": groups.group_status,
            "ownership_refusal": ownership.refusal,
            "printable": printable,
            "profiles_document": profiles.document,
            "release": releases.release_id,
            "run_plan": run_plan,
            "secret_fingerprint": releases.fingerprint,
        }
