# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run the module of the same name, name what keeps it from running on the node, and check its result where it enters the controller."""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils.node_access import NodeAction

ActionModule = NodeAction
