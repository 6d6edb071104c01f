# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. How each rank reaches what the others serve. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import misfit, scalar
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.manifest import ManifestError


def _port(value: Any) -> str:
    """Return what is expected in place of this value: a TCP port."""
    return "" if not scalar(value, int) and 0 < value < 65536 else "a port"


_OFFER = [{"address": str, "port": _port}]


def ways(group: Mapping[str, Any], offers: Iterable[Mapping[str, Any] | None], rank: int) -> list[list[dict[str, Any]]]:
    """Return for each rank the addresses of its offer: address, port, and this rank's own address on the same rail.

    :param group: the serving group's ``members`` with ``host`` and ``fabric``.
    :param offers: by rank, the result of weights_serve (``listen``, a list of ``address`` and ``port``); anything else if nothing is offered.
    """
    rails = [list(member.get("fabric") or []) for member in group["members"]]
    out = []
    for member, theirs, offer in zip(group["members"], rails, offers):
        binds = dict(zip(theirs, rails[rank]))
        listen = offer.get("listen") or [] if isinstance(offer, Mapping) else []
        strange = [] if misfit(listen, _OFFER) else [place["address"] for place in listen if place["address"] not in theirs]
        problem = misfit(listen, _OFFER) or (f"{strange[0]} is not one of its rails" if strange else "")
        if problem:
            raise ManifestError(f"the offer of {member.get('host')} cannot be used: {problem}. Nothing was copied")
        out.append([{"address": place["address"], "port": int(place["port"]), "bind": binds.get(place["address"], "")} for place in listen])
    return out
