# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Stop with one sentence for each file of an inventory that Ansible cannot read."""

from __future__ import annotations

DOCUMENTATION = r"""
name: readable
short_description: Stop with one sentence for each file of an inventory that Ansible cannot read
description:
  - Reads the files of the inventory, its C(group_vars) and C(host_vars), and the extra variables before the inventory plugins do. If one of them is
    not valid, the command ends with file, line and cause.
  - Without it, each inventory plugin reports the fault, with the lines around it, which can have a secret.
  - It parses no inventory itself, and accepts the one of C(ansible.cfg) if that does not exist. Put it in front of the others in C(enable_plugins).
author:
  - The gb10.cluster authors (@gb10-cluster)
"""

EXAMPLES = r"""
# ansible.cfg
# [inventory]
# enable_plugins = gb10.cluster.readable, host_list, script, auto, yaml, ini, toml
"""

import contextlib
import os
from functools import cache

from ansible import constants as C  # noqa: N812  its usual name
from ansible import context
from ansible.plugins.inventory import BaseInventoryPlugin
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_files, inventory_run
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import Located, summary
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError, validator

PARSER_ERROR = 4  # the exit code of Ansible for a file that it cannot parse


@cache  # once for a command, and not once for each file
def stop_if_unreadable(sources: tuple[str, ...], playbooks: tuple[str, ...], options: tuple[str, ...], own: bool) -> None:
    """End the command if a file or an extra variable cannot be read. With playbooks of this collection, also if they would run without the check."""
    with contextlib.suppress(ProfileError):  # without jsonschema, the first profile reports it
        validator()  # loaded here once, and not by the process of each task
    found = [each for each in inventory_files.faults(sources, playbooks, options) if each.key in ("YAML", "-e")]
    # Ansible warns of an inventory that does not exist, and goes on.
    left_out = {"-i": inventory_run.source_fault(sources, has_hosts=True), **inventory_run.skipped(context.CLIARGS)} if own else {}
    found += [Located("the command line", 0, option, text) for option, text in left_out.items() if text]
    if found:
        Display().error(summary(found), wrap_text=False)
        # Ansible catches every exception of an inventory plugin and goes on to the next one.
        raise SystemExit(PARSER_ERROR)


class InventoryModule(BaseInventoryPlugin):
    """The inventory plugin."""

    NAME = "gb10.cluster.readable"

    def verify_file(self, path: str) -> bool:
        """Return whether this is the inventory of ansible.cfg, and does not exist: Ansible would warn. Every file is left to the other plugins."""
        given = context.CLIARGS
        playbooks = [os.path.dirname(os.path.abspath(each)) for each in given.get("args") or () if os.path.isfile(str(each))]
        own = inventory_run.own_playbooks()
        sources, options = (tuple(map(str, given.get(name) or ())) for name in ("inventory", "extra_vars"))
        stop_if_unreadable(sources, tuple(playbooks), options, bool(own))
        return bool(own) and path in C.DEFAULT_HOST_LIST and not os.path.exists(path)

    def parse(self, *_args: object, **_kwargs: object) -> None:
        """Read nothing. The check of the inventory names one that does not exist, for a playbook that needs it."""
