# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The checks of a serving group, one module for each area: a function with its texts yields what is wrong. judge.py runs them."""

from __future__ import annotations
