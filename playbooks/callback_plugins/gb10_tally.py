# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count changed tasks, unreachable hosts and the time of each role, for the summary at the end of a run. Prints nothing."""

from __future__ import annotations

import time
from typing import Any

from ansible.plugins.callback import CallbackBase
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

DOCUMENTATION = r"""
name: gb10_tally
type: aggregate
short_description: Count what the tasks of a run changed on each host, and their time
description:
  - Ansible loads it for the playbooks next to it. M(gb10.cluster.show) prints the figures.
author:
  - The gb10.cluster authors (@gb10-cluster)
"""


class CallbackModule(CallbackBase):
    """Count as Ansible's recap does."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "gb10_tally"

    def __init__(self) -> None:
        """Start the count of this run."""
        super().__init__()
        RUN.kept = True

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002  the signature of CallbackBase
        """Add the start of a role."""
        role = task._role.get_name().rpartition(".")[2] if task._role else ""
        if role and role != next((name for name, _start in RUN.roles[-1:]), ""):
            RUN.roles.append((role, time.time()))

    def v2_runner_on_ok(self, result: Any) -> None:
        """Add a task that changed something."""
        if result.result.get("changed"):
            RUN.changed.setdefault(result.host.get_name(), []).append(result.task.name)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Add a host that was unreachable."""
        if not result.task.ignore_unreachable:
            RUN.unreachable.add(result.host.get_name())
