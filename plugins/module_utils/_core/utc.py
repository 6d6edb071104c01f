# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The form of time stamps. Pure."""

from __future__ import annotations

import time


def stamp(seconds: float | None = None) -> str:
    """Return a time in seconds since the epoch, or the present time, as UTC: 2026-11-23T05:06:07Z."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))
