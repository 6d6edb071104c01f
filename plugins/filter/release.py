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
from ansible_collections.gb10.cluster.plugins.module_utils._agent import standing
from ansible_collections.gb10.cluster.plugins.module_utils._common import terminal
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as profiles
from ansible_collections.gb10.cluster.plugins.module_utils._release import group as groups
from ansible_collections.gb10.cluster.plugins.module_utils._release import ownership, status
from ansible_collections.gb10.cluster.plugins.module_utils._release import release as releases


def judged_receipt(infos: Any, release: str, folder: str = "") -> dict[str, Any]:
    """Return the receipt of a release that passed its gate: a rank's, else the controller's; empty without any."""
    found = releases.judged_receipt(infos, release)
    if found or not folder:
        return found
    place = Path(os.path.expanduser(str(folder)))
    texts = []
    for path in [place / "last-good.json", *sorted(place.glob(f"*-{release}-passed.json"), reverse=True)]:
        try:
            texts.append(json.loads(path.read_text(encoding="utf-8")))
        except (OSError, ValueError):
            continue  # absent or cut off: the next one counts
    return releases.judged_receipt([], release, texts)


def lost_ways(infos: Any, hosts: Any, release: str, judged: Mapping[str, Any] | None = None, group: str = "") -> list[str]:
    """Return what has happened to the way back, and warn of it at once: the boot that needs it may come next."""
    found = releases.lost_ways(infos, [str(host) for host in hosts], release, judged)
    for sentence in found:
        Display().warning(f"{group}: {sentence}" if group else sentence)
    return found


def printable(text: Any) -> str:
    """Return the text of a node with the characters that a terminal would obey written out."""
    return terminal.printable(str(text))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "agent_decision": standing.decide,
            "agent_line": standing.line,
            "group_status": groups.group_status,
            "judged_receipt": judged_receipt,
            "last_good": releases.last_good,
            "lost_ways": lost_ways,
            "ownership_refusal": ownership.refusal,
            "printable": printable,
            "profiles_document": profiles.document,
            "release": releases.release_id,
            "release_repairs": releases.repairs,
            "secret_fingerprint": releases.fingerprint,
            "stale_releases": releases.stale_releases,
            "start_reasons": releases.start_reasons,
            "status_document": status.document,
        }
