# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. How each rank reaches what the others serve. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def ways(group: Mapping[str, Any], offers: Iterable[Mapping[str, Any] | None], rank: int) -> list[list[dict[str, Any]]]:
    """Return for each rank the addresses of its offer: address, port, and this rank's own address on the same rail.

    :param group: the serving group's ``members`` with ``host`` and ``fabric``.
    :param offers: by rank, the result of weights_serve (``listen``, a list of ``address`` and ``port``); anything else if nothing is offered.
    """
    rails = [list(member.get("fabric") or []) for member in group["members"]]
    out = []
    for theirs, offer in zip(rails, offers):
        binds = dict(zip(theirs, rails[rank]))
        listen = offer.get("listen") or [] if isinstance(offer, Mapping) else []
        out.append([{**place, "bind": binds.get(place["address"], "")} for place in listen])
    return out
