# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Private documentation fragment: a plugin that is not for the playbooks of a user."""

from __future__ import annotations


class ModuleDocFragment:
    """One note."""

    DOCUMENTATION = r"""
options: {}
notes:
  - Internal. The roles and playbooks of this collection use it. Its options and its result can change with each release.
"""
