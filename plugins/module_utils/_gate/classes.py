# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The remedies of failures that the gate finds without a log line; the section `gate` of failures.yml has them."""

from __future__ import annotations

import re

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import GATE, MESSAGES


def remedy_of(name: str) -> str:
    """Return the remedy of a class, empty if the gate does not know it."""
    return GATE.get(name, "")


def start_remedy(error: str) -> str:
    """Return the remedy for a start that failed, by the Docker Engine's message."""
    return next((remedy for pattern, remedy in MESSAGES if re.search(pattern, error, re.I)), remedy_of("start_failed"))
