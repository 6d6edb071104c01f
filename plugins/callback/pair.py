# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print a run as a report: a line for each role, each change and each fault once."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pair
type: stdout
short_description: A run as a report
description:
  - Prints one line for each role when it is over, each change once, and each fault once, in at most eight lines.
  - Loads, copies, downloads and builds print a line of progress for each new stage, and every 30 seconds.
  - A task without output has a line every 30 seconds, with its hosts and its time.
  - With C(-v) or more, the output is that of P(ansible.builtin.default#callback).
  - With the extra variable C(output=json), only lines of JSON are written to stdout. A fault is an object with the key C(failed).
author:
  - The gb10.cluster authors (@gb10-cluster)
requirements:
  - Set it as stdout callback, as in the examples.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
options:
  heartbeat_seconds:
    description: The longest time without output, in seconds, while a task runs. 0 for no limit.
    type: float
    default: 30
    env:
      - name: GB10_HEARTBEAT_SECONDS
    ini:
      - section: callback_pair
        key: heartbeat_seconds
  output:
    description: V(json) for machines. The default is for people.
    type: str
    default: text
    vars:
      - name: output
"""

EXAMPLES = r"""
# In ansible.cfg, or ANSIBLE_STDOUT_CALLBACK=gb10.cluster.pair in the environment.
defaults: |
  [defaults]
  stdout_callback = gb10.cluster.pair
"""

import atexit
import contextlib
import functools
import json
import re
import sys
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any

from ansible import constants as C  # noqa: N812  its usual name
from ansible import context
from ansible.playbook.block import Block
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.loader import action_loader, filter_loader, lookup_loader, test_loader
from ansible_collections.gb10.cluster.plugins.plugin_utils import fault_text
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import load_specs
from ansible_collections.gb10.cluster.plugins.plugin_utils.run_report import Line, RunReport
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

OURS = "gb10.cluster."
SHOW = f"{OURS}show"
UNCOUNTED = ("ansible.builtin.validate_argument_spec", "ansible.builtin.meta")
DEBUG = ("ansible.builtin.debug", "debug")
TICK_SECONDS = 1.0
_COLOUR = re.compile("\x1b\\[[\\d;]*m")  # of Ansible's differences; the report has its own


def quietly(method: Callable[..., None], name: str = "") -> Callable[..., None]:
    """Return the method for a run without -v. With -v, Ansible's own method runs."""
    name = name or method.__name__

    def chosen(self: CallbackModule, *args: Any, **kwargs: Any) -> None:
        if self._display.verbosity > 0:
            getattr(Default, name)(self, *args, **kwargs)
            return
        # Two threads call this, and the ticker reads what it changes. Ansible forks under the same lock, so no fork inherits it from a thread.
        with self._display._lock:
            method(self, *args, **kwargs)
            if context.CLIARGS.get("step"):  # the next task waits for a person, who reads this first
                self._print(self._report.flush())

    return chosen


@functools.cache
def load_plugins() -> None:
    """Load plugins before Ansible forks. Otherwise, each task loads and compiles all of them: 28 % of the CPU time of a second run."""
    filter_loader.get("gb10.cluster.kv_pool_plan")
    test_loader.get("ansible.builtin.defined")
    lookup_loader.get("gb10.cluster.serving_group", class_only=True)
    lookup_loader.get("gb10.cluster.setting", class_only=True)
    load_specs()  # the lookup reads the option of another role
    action_loader.get("gb10.cluster.serving_plan", class_only=True)


def is_json(line: str) -> bool:
    """Return whether a line is an object or a list of JSON."""
    with contextlib.suppress(ValueError):
        return isinstance(json.loads(line), (dict, list))
    return False


def is_rescued(task: Any) -> bool:
    """Return whether a block rescues a failure of the task. Its rescue reports the cause."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if isinstance(parent, Block) and parent.rescue and any(each._uuid == child._uuid for each in parent.block):
            return True
        child, parent = parent, getattr(parent, "_parent", None)
    return False


class CallbackModule(Default):
    """Ansible's default output with -v, a report without."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gb10.cluster.pair"

    def __init__(self) -> None:
        """Prepare the report. The options are read when the playbook begins."""
        super().__init__()
        self._report = RunReport()
        self._over: threading.Event | None = None  # of a run that has begun

    # output

    def _print(self, lines: Iterable[Line]) -> None:
        colours = {
            "ok": C.COLOR_OK, "changed": C.COLOR_CHANGED, "failed": C.COLOR_ERROR, "unreachable": C.COLOR_UNREACHABLE, "skipped": C.COLOR_SKIP,
            "+": C.COLOR_DIFF_ADD, "-": C.COLOR_DIFF_REMOVE,
        }  # fmt: skip
        for line in lines:
            self._display.display(line.text, color=colours.get(line.kind))

    def _begin(self) -> None:
        """Observe Ansible's output and start the ticker. Both need the options, which are not read before the first play."""
        # ansible-core 2.19 gives no variables to the options of a callback.
        output = self._play.get_variable_manager().extra_vars.get("output", self.get_option("output"))
        self._as_json = str(output).lower() == "json"
        self._report = RunReport(as_json=self._as_json, is_check=bool(context.CLIARGS.get("check")))
        RUN.shows = not self._as_json
        self._displays, self._written_at, self._over = self._display.display, time.monotonic(), threading.Event()
        self._display.display = self._write
        atexit.register(self._finish)
        threading.Thread(target=self._tick, args=(self._over,), name="gb10-pair", daemon=True).start()

    def _write(self, msg: str, color: str | None = None, stderr: bool = False, *args: Any, **kwargs: Any) -> None:
        """Write what Ansible displays at once. In a run for machines, all but JSON is written to stderr."""
        stderr = stderr or (self._as_json and not all(map(is_json, msg.splitlines())))
        with contextlib.suppress(BrokenPipeError):  # the reader has enough, such as `head`
            self._displays(msg, color, stderr, *args, **kwargs)
            if not self._display._final_q:  # of a fork, whose output the main process writes
                self._written_at = time.monotonic()
                sys.stdout.flush()

    def _tick(self, over: threading.Event) -> None:
        """Print what is due, and report long tasks."""
        heartbeat = 0.0 if self._as_json else float(self.get_option("heartbeat_seconds"))
        while not over.wait(min(TICK_SECONDS, heartbeat or TICK_SECONDS)):
            now = time.monotonic()  # before the lock: a task that asks a person a question holds it until the answer
            with self._display._lock:
                if over.is_set():
                    return
                self._print(self._report.flush(always=False))
                if heartbeat and now - self._written_at >= heartbeat:
                    self._print(self._report.heartbeat())

    def _finish(self) -> None:
        """Print the rest and give the output back. This also runs at the exit of a run that was interrupted."""
        with self._display._lock:
            if self._over is not None:
                self._over.set()
                self._print(self._report.flush())
                self._display.display, self._over = self._displays, None

    # events

    @quietly
    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a play or a batch of its hosts."""
        load_plugins()
        self._play = play
        if self._over is None:
            self._begin()
        self._print(self._report.play([host.name for host in play.get_variable_manager()._inventory.get_hosts()]))

    @quietly
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool = False) -> None:  # noqa: ARG002  the signature of CallbackBase
        """Begin a task or a handler."""
        role, name = task._role, task.name or task.action  # only this event has its name without templates
        is_asked = role is not None and "tasks" in role._from_files
        self._print(self._report.task(self._part(task), task._uuid, name, is_role=role is not None, is_asked=is_asked))

    v2_playbook_on_handler_task_start = quietly(v2_playbook_on_task_start, "v2_playbook_on_handler_task_start")

    def _part(self, task: Any) -> str:
        """Return the name of the part of the run that a task belongs to. A role of the agent is a step of the role that includes it."""
        if task._role is None:
            return str(self._play.get_name().strip())
        role = task._role.get_name().rpartition(".")[2]
        within = task.get_dep_chain() if role == "agent" else None
        return str(within[0].get_name().rpartition(".")[2] if within else role)

    @quietly
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Begin a task on a host."""
        self._report.start(host.get_name(), task._uuid)

    def _warn(self, result: Any) -> None:
        """Print warnings, without what only a developer can correct."""
        result.result.pop("deprecations", None)
        self._handle_warnings(result.result)

    def _end(self, result: Any, state: str) -> str:
        """End a task on a host, and return the name of its action."""
        self._warn(result)
        action = str(result.task.resolved_action or result.task.action)
        is_counted = state == "failed" or not (action in UNCOUNTED or isinstance(result.task, TaskInclude))
        self._report.end(result.host.get_name(), result.task._uuid, state if is_counted else "")
        return action

    @quietly
    def v2_runner_on_ok(self, result: Any) -> None:
        """Note a task that is ok or has changed something, and print what `show` and our modules print, and `debug` as Ansible does."""
        action = self._end(result, "changed" if result.result.get("changed") else "ok")
        if result.result.get("changed") and not isinstance(result.task, TaskInclude):
            self._report.change(self.host_label(result), result.task._uuid)
        lines = result.result.get("lines" if action == SHOW else "shown") or []
        if action == SHOW and result.result.get("summary"):
            self._report.report(lines, is_summary=bool(lines))
        elif RUN.shows and (action == SHOW or (lines and action.startswith(OURS))):
            self._report.report(lines)
            self._report.add("text", result.host.get_name(), result.task._uuid, lines)
        elif action in DEBUG:
            Default.v2_runner_on_ok(self, result)

    @quietly
    def v2_runner_on_skipped(self, result: Any) -> None:
        """Note a task that was skipped."""
        self._end(result, "skipped")

    @quietly
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Note a fault, or a failure that a block rescues."""
        rescued, host, key = is_rescued(result.task), result.host.get_name(), result.task._uuid
        self._end(result, "ok" if rescued else "failed")
        if not ignore_errors:
            lines = fault_text.failure(self._report.tasks[key][1], result.result)
            if rescued:
                self._report.rescued(host, key, lines)
            else:
                self._report.add("failed", host, key, lines)

    @quietly
    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Note a host that is unreachable."""
        self._end(result, "unreachable")
        task, host = result.task, result.host.get_name()
        if not task.ignore_unreachable:
            values = {} if task.delegate_to else self._play.get_variable_manager().get_vars(play=self._play, host=result.host, include_hostvars=False)
            lines = fault_text.unreachable(result.result, str(task.delegate_to or host), values)
            self._report.add("unreachable", host, task._uuid, lines)

    @quietly
    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Print what `debug` prints for an item."""
        self._warn(result)
        if (result.task.resolved_action or result.task.action) in DEBUG:
            Default.v2_runner_item_on_ok(self, result)

    @quietly
    def v2_on_file_diff(self, result: Any) -> None:
        """Keep a difference until its change is printed."""
        for each in result.result["results"] if result.task.loop and "results" in result.result else [result.result]:
            if each.get("diff") and each.get("changed"):
                lines = _COLOUR.sub("", self._get_diff(each["diff"])).rstrip().splitlines()
                self._report.add("changed", self.host_label(result), result.task._uuid, lines)

    @quietly
    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the end of the report."""
        self._print(self._report.finish([host for host in stats.processed if stats.summarize(host)["failures"]]))
        self._finish()


def _nothing(_callback: CallbackModule, *_args: Any, **_kwargs: Any) -> None:
    """Print nothing for an event."""


for _event in [each for each in vars(Default) if each.startswith("v2_") and each not in vars(CallbackModule)]:
    setattr(CallbackModule, _event, quietly(CallbackModule._warn if _event.startswith("v2_runner_item_") else _nothing, _event))
