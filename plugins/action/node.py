# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run a module on its node, name what keeps it from running there, and make the texts of its result printable.

It is the action of the modules that meta/runtime.yml routes here, and has no module of its own.
"""

from __future__ import annotations

from ansible_collections.gb10.cluster.plugins.plugin_utils.node_access import NodeAction

ActionModule = NodeAction
