# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The plans of all models that a group needs, the space on each disk shared out between them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest


def plans(
    hosts: Sequence[str], models: Sequence[Sequence[Mapping[str, Any]]], sizes_gib: Sequence[float], source: str = "auto", reserve_bytes: int = 0
) -> list[dict[str, Any]]:
    """Return :func:`manifest.plan` of each model. What a model still brings to a rank has to stay free for those after it.

    :param models: for each model the manifests by rank; ``sizes_gib``: the published size of each, 0 if it is not known.
    """
    out: list[dict[str, Any]] = []
    reserves = [reserve_bytes for _host in hosts]
    for manifests, size in zip(models, sizes_gib):
        found = manifest.plan(hosts, manifests, source, reserves)
        out.append(found)
        present = [sum(int(entry["size"]) for entry in each["files"].values()) for each in manifests]
        comes = [each["bytes"] for each in found["ranks"]] if found["usable"] else [max(0, int(size * manifest.GIB) - have) for have in present]
        reserves = [kept + more for kept, more in zip(reserves, comes)]
    return out
