# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Which lines of the kernel log are events of the watch. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import clip
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS, kind_of, message_of

_LEAST = {kind.watch: kind.least for kind in KINDS.values() if kind.watch}


def due(kind: str, count: int) -> bool:
    """Return whether line number `count` of this kind in a boot is an event: each one, and of those that are healthy while they are few, the first too many."""
    least = _LEAST.get(kind, 1)
    return count == least if least > 1 else True


def news(known: Sequence[Mapping[str, Any]], lines: Sequence[Mapping[str, Any]]) -> Sequence[Mapping[str, Any]]:
    """Return what a list of the last lines has more than an earlier state of it, by the order of the lines."""
    common = next(count for count in range(min(len(known), len(lines)), -1, -1) if list(known[len(known) - count :]) == list(lines[:count]))
    return lines[common:]


def classify(line: str) -> tuple[str, str] | None:
    """Return the name of the event and the message, without stamp and secrets; None for any other line."""
    message = message_of(line)
    name = kind_of(message)
    return (KINDS[name].watch, clip(message)) if name and KINDS[name].watch else None
