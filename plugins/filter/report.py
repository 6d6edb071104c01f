# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filters: the documents that the module show prints as tables or as JSON."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._profile import text as profiles
from ansible_collections.gb10.cluster.plugins.module_utils._release import status


class FilterModule:
    """The filter plugins."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"profiles_document": profiles.document, "releases_document": status.kept_document, "status_document": status.document}
