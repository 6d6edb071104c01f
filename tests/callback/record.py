"""Write the result of every task to the file that GB10_RECORD names, as JSON lines for playbook.py and warm_playbook.py."""

from __future__ import annotations

import datetime
import json
import os
from typing import TYPE_CHECKING, Any

from ansible.plugins.callback import CallbackBase

if TYPE_CHECKING:
    from ansible.executor.task_result import CallbackTaskResult


class CallbackModule(CallbackBase):
    """Keeps the results."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "record"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self) -> None:
        super().__init__()
        self.began: dict[tuple[str, str], datetime.datetime] = {}

    def _keep(self, event: str, found: CallbackTaskResult, **more: Any) -> None:
        task, host = found.task, found.host.get_name()
        end = datetime.datetime.now(datetime.timezone.utc)
        duration = (end - self.began.get((host, str(task._uuid)), end)).total_seconds()
        data = {"host": host, "task": task.name or task.action, "res": dict(found.result), "end": end, "duration": duration, **more}
        with open(os.environ["GB10_RECORD"], "a", encoding="utf-8") as file:
            file.write(json.dumps({"event": event, "event_data": data}, default=str) + "\n")

    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Keep when the host began the task."""
        self.began[(host.get_name(), str(task._uuid))] = datetime.datetime.now(datetime.timezone.utc)

    def v2_runner_on_ok(self, result: CallbackTaskResult) -> None:
        """Keep the result."""
        self._keep("runner_on_ok", result)

    def v2_runner_on_failed(self, result: CallbackTaskResult, ignore_errors: bool = False) -> None:
        """Keep the result, and whether the play ignores it."""
        self._keep("runner_on_failed", result, ignore_errors=ignore_errors)

    def v2_runner_on_unreachable(self, result: CallbackTaskResult) -> None:
        """Keep the result."""
        self._keep("runner_on_unreachable", result)

    def v2_runner_on_skipped(self, result: CallbackTaskResult) -> None:
        """Keep the result."""
        self._keep("runner_on_skipped", result)

    def v2_runner_item_on_failed(self, result: CallbackTaskResult) -> None:
        """Keep the result of one item."""
        self._keep("runner_item_on_failed", result)
