# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The command `gb10`. It imports only what the subcommand needs: `gb10 connect` runs for each call of the head."""

from __future__ import annotations

import sys


def main(argv: list[str] | None = None) -> int:
    """Run a subcommand and return its exit code."""
    words = sys.argv[1:] if argv is None else argv
    if words[:1] == ["connect"]:
        from ansible_collections.gb10.cluster.plugins.module_utils._agent import connect

        return connect.run()
    from ansible_collections.gb10.cluster.plugins.module_utils._agent import commands

    return commands.run(words)
