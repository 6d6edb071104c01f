"""The controller dies: SIGKILL to ansible-playbook where it would start the task that GB10_DIES_AT names.

Loaded for tests by playbook.run(dies_at=...). A kill from outside races with the tasks that follow.
"""

from __future__ import annotations

import os
import signal
from typing import TYPE_CHECKING

from ansible.plugins.callback import CallbackBase

if TYPE_CHECKING:
    from ansible.playbook.task import Task


class CallbackModule(CallbackBase):
    """Dies at one task."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "dies_at"
    CALLBACK_NEEDS_ENABLED = True

    def v2_playbook_on_task_start(self, task: Task, is_conditional: bool) -> None:
        """Die, if this is the task."""
        if os.environ["GB10_DIES_AT"] in task.get_name():
            os.kill(os.getpid(), signal.SIGKILL)
