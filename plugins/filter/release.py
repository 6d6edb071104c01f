# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: documents that the module show prints, and texts of nodes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable as printed
from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as profiles


def printable(text: Any) -> str:
    """Return the text of a node with the characters that a terminal would obey written out."""
    return printed(str(text))


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {
            "printable": printable,
            "profiles_document": profiles.document,
        }
