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
  - A task without output has a line every 30 seconds, with its hosts, its time and its last progress.
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
import functools
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from ansible import constants as C  # noqa: N812  its usual name
from ansible import context
from ansible.playbook.block import Block
from ansible.playbook.task_include import TaskInclude
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.loader import filter_loader, lookup_loader, test_loader
from ansible.utils import color as ansible_color
from ansible_collections.gb10.cluster.plugins.module_utils._common import progress
from ansible_collections.gb10.cluster.plugins.plugin_utils import fault_text
from ansible_collections.gb10.cluster.plugins.plugin_utils.output_stream import Stream, is_json
from ansible_collections.gb10.cluster.plugins.plugin_utils.run_report import Line, RunReport
from ansible_collections.gb10.cluster.plugins.plugin_utils.tally import RUN

OURS = "gb10.cluster."
SHOW = f"{OURS}show"
SUMMARY = "gb10.cluster.site_summary"
UNCOUNTED = ("ansible.builtin.validate_argument_spec", "ansible.builtin.meta")
DEBUG = ("ansible.builtin.debug", "debug")
IDLE_SECONDS = 1.0
STOP_SECONDS = 2.0


def quietly(method: Callable[..., None]) -> Callable[..., None]:
    """Return the method for a run without -v. With -v, Ansible's own method runs, in the same order as without this callback."""

    @functools.wraps(method)
    def chosen(self: CallbackModule, *args: Any, **kwargs: Any) -> None:
        if self._display.verbosity > 0:
            getattr(Default, method.__name__)(self, *args, **kwargs)
            return
        # Two threads call this, and the ticker reads what it changes. Ansible forks under the same lock, so no fork inherits it from a thread.
        with self._display._lock:
            method(self, *args, **kwargs)
            if context.CLIARGS.get("step"):  # the next task waits for a person, who reads this first
                self._print(self._report.rest())

    return chosen


@functools.cache
def load_plugins() -> None:
    """Load filters, tests and lookups before Ansible forks. Otherwise, each task loads and compiles all of them: 28 % of the CPU time of a second run."""
    filter_loader.get("gb10.cluster.render_rank")
    test_loader.get("ansible.builtin.defined")
    lookup_loader.get("gb10.cluster.serving_group", class_only=True)


def part_of(task: Any, play: Any) -> tuple[str, bool]:
    """Return the name of the part of the run that a task belongs to, and whether it is a role."""
    role = getattr(task, "_role", None)
    if role is None:
        return play.get_name().strip() if play else "", False
    name = role.get_name().rpartition(".")[2]
    within = task.get_dep_chain() if name == "agent" else None  # a step of the role that includes it
    return within[0].get_name().rpartition(".")[2] if within else name, True


def blocks_of(task: Any) -> Iterable[tuple[Any, Any]]:
    """Yield each block around a task, from the inside, with the task or block in it."""
    child, parent = task, getattr(task, "_parent", None)
    while parent is not None:
        if isinstance(parent, Block):
            yield parent, child
        child, parent = parent, getattr(parent, "_parent", None)


def rescuer(task: Any) -> str:
    """Return the ID of the block that rescues a failure of the task, empty if there is none."""
    for block, child in blocks_of(task):
        if block.rescue and any(each._uuid == child._uuid for each in block.block):
            return str(block._uuid)
    return ""


class CallbackModule(Default):
    """Ansible's default output with -v, a report without."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "gb10.cluster.pair"

    def __init__(self) -> None:
        """Prepare the report. The options are read when the playbook begins."""
        super().__init__()
        self._report = RunReport()
        self._stream: Stream | None = None
        self._as_json = self._is_own = False
        self._heartbeat = 0.0
        self._names: dict[str, str] = {}
        self._over = threading.Event()
        self._ticker: threading.Thread | None = None

    # output

    def _print(self, lines: Iterable[Line]) -> None:
        colours = {
            "ok": C.COLOR_OK, "changed": C.COLOR_CHANGED, "failed": C.COLOR_ERROR, "unreachable": C.COLOR_UNREACHABLE, "skipped": C.COLOR_SKIP,
            "added": C.COLOR_DIFF_ADD, "removed": C.COLOR_DIFF_REMOVE,
        }  # fmt: skip
        self._is_own = True
        for line in lines:
            self._display.display(line.text, color=colours.get(line.kind))
        self._is_own = False

    def _take(self, text: str) -> bool:
        """Keep the progress that a line of output has. Return whether the line is not to be written: everything but JSON, for machines."""
        if self._is_own:
            return False
        line = text.rstrip("\n")
        if self._as_json and not is_json(line):
            sys.stderr.write(text)
            return True
        seen = progress.parse(line)
        if seen is not None:
            self._report.progress(seen)
        return False

    def _begin(self) -> None:
        """Take stdout and start the ticker. Both need the options, which are not read before the first play."""
        if self._stream is not None:
            return
        cli = context.CLIARGS
        self._as_json = str(self.get_option("output")).lower() == "json"
        self._heartbeat = 0.0 if self._as_json else float(self.get_option("heartbeat_seconds"))
        is_check, is_diff = bool(cli.get("check")), bool(cli.get("diff"))
        self._report = RunReport(as_json=self._as_json, is_check=is_check, whole_diff=is_diff and not is_check)
        RUN.shows = not self._as_json
        self._over = threading.Event()
        self._stream = Stream(self._display._lock, self._take)
        atexit.register(self._finish)
        self._ticker = threading.Thread(target=self._tick, args=(self._stream,), name="gb10-pair", daemon=True)
        self._ticker.start()

    def _tick(self, stream: Stream) -> None:
        """Print what is due, and report long tasks."""
        while not self._over.wait(min(IDLE_SECONDS, self._heartbeat or IDLE_SECONDS)):
            now = time.monotonic()  # before the lock: a task that asks a person a question holds it until the answer
            with self._display._lock:
                if self._over.is_set():
                    return
                self._print(self._report.due())
                if self._heartbeat and now - stream.written_at >= self._heartbeat:
                    self._print(self._report.heartbeat())

    def _finish(self) -> None:
        """Print the rest and give stdout back. This also runs at the exit of a run that was interrupted. The lock is not held: the ticker may wait for it."""
        self._over.set()
        if self._ticker is not None:
            self._ticker.join(STOP_SECONDS)
        with self._display._lock:
            if self._stream is not None:
                self._print(self._report.rest())
                self._stream.release()
            self._stream = self._ticker = None

    # events

    @quietly
    def v2_playbook_on_start(self, playbook: Any) -> None:
        """Print nothing."""

    @quietly
    def v2_playbook_on_play_start(self, play: Any) -> None:
        """Begin a play or a batch of its hosts."""
        load_plugins()
        self._begin()
        self._play = play
        hosts = [host.name for host in play.get_variable_manager()._inventory.get_hosts()]
        self._print(self._report.play(play.strategy.rpartition(".")[2] in ("linear", "debug"), hosts))

    @quietly
    def v2_playbook_on_no_hosts_matched(self) -> None:
        """Print nothing: Ansible warns about a pattern that does not match."""

    @quietly
    def v2_playbook_on_no_hosts_remaining(self) -> None:
        """Print nothing: the fault of each host is printed."""

    @quietly
    def v2_playbook_on_include(self, included_file: Any) -> None:
        """Print nothing."""

    @quietly
    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:  # noqa: ARG002  the signature of CallbackBase
        """Begin a task. Only this event has its name without templates."""
        self._names[task._uuid] = task.name or task.action
        self._print(self._report.task(*part_of(task, self._play)))

    @quietly
    def v2_playbook_on_handler_task_start(self, task: Any) -> None:
        """Begin a handler."""
        self._names[task._uuid] = task.name or task.action
        self._print(self._report.task(*part_of(task, self._play)))

    def _name(self, task: Any) -> str:
        return self._names.get(task._uuid) or task.name or task.action

    @quietly
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        """Begin a task on a host."""
        self._report.start(*part_of(task, self._play), host.get_name(), task._uuid, self._name(task))

    def _end(self, result: Any, state: str) -> None:
        action = result.task.resolved_action or result.task.action
        counted = "" if action in UNCOUNTED and state != "failed" else state
        self._report.end(*part_of(result.task, self._play), result.host.get_name(), result.task._uuid, counted)

    @quietly
    def v2_runner_on_ok(self, result: Any) -> None:
        """Note a task that is ok or has changed something, and print what `debug` prints."""
        self._handle_warnings(self._without_deprecations(result))
        if isinstance(result.task, TaskInclude):
            self._end(result, "")
            return
        is_changed = bool(result.result.get("changed"))
        self._end(result, "changed" if is_changed else "ok")
        action = result.task.resolved_action or result.task.action
        if is_changed:
            self._report.change(self.host_label(result), result.task._uuid, self._name(result.task))
        part = part_of(result.task, self._play)[0]
        if action == SUMMARY and result.result.get("lines"):
            self._report.reported(part)
        shown = result.result.get("lines" if action == SHOW else "shown") or []
        if RUN.shows and (action == SHOW or (shown and action.startswith(OURS))):
            self._report.text(part, result.host.get_name(), result.task._uuid, shown, is_report=True)
        elif action in DEBUG and not (result.task.loop and "results" in result.result):
            self._debug(result)

    @quietly
    def v2_runner_on_skipped(self, result: Any) -> None:
        """Note a task that was skipped."""
        self._handle_warnings(self._without_deprecations(result))
        self._end(result, "skipped")

    @quietly
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        """Note a fault, or a failure that a block rescues."""
        self._handle_warnings(self._without_deprecations(result))
        block = rescuer(result.task)
        self._end(result, "ok" if block else "failed")
        if ignore_errors:
            return
        task, host = result.task, result.host.get_name()
        name = self._name(task)
        arguments = (part_of(task, self._play)[0], host, task._uuid, name, fault_text.failure(name, result.result))
        if block:
            self._report.rescued(*arguments, block)
        else:
            self._report.fault(*arguments, within=[str(each._uuid) for each, _child in blocks_of(task)])

    @quietly
    def v2_runner_on_unreachable(self, result: Any) -> None:
        """Note a host that is unreachable."""
        self._handle_warnings(self._without_deprecations(result))
        self._end(result, "unreachable")
        if not result.task.ignore_unreachable:
            task, host = result.task, result.host.get_name()
            values = {} if task.delegate_to else self._play.get_variable_manager().get_vars(play=self._play, host=result.host, include_hostvars=False)
            lines = fault_text.unreachable(result.result, str(task.delegate_to or host), values)
            self._report.fault(part_of(task, self._play)[0], host, task._uuid, self._name(task), lines, kind="unreachable")

    @quietly
    def v2_runner_retry(self, result: Any) -> None:
        """Print no attempt: the task reports its last one."""

    @quietly
    def v2_runner_on_async_poll(self, result: Any) -> None:
        """Print no poll."""

    @quietly
    def v2_runner_on_async_ok(self, result: Any) -> None:
        """Print nothing: the task reports its job."""

    @quietly
    def v2_runner_on_async_failed(self, result: Any) -> None:
        """Print nothing: the task reports its job."""

    @quietly
    def v2_runner_item_on_ok(self, result: Any) -> None:
        """Print what `debug` prints for an item."""
        self._handle_warnings(self._without_deprecations(result))
        if (result.task.resolved_action or result.task.action) in DEBUG:
            self._debug(result)

    @quietly
    def v2_runner_item_on_failed(self, result: Any) -> None:
        """Print only its warnings: the task reports its items."""
        self._handle_warnings(self._without_deprecations(result))

    @quietly
    def v2_runner_item_on_skipped(self, result: Any) -> None:
        """Print only its warnings."""
        self._handle_warnings(self._without_deprecations(result))

    @quietly
    def v2_on_file_diff(self, result: Any) -> None:
        """Keep a difference until its change is printed."""
        values = result.result.get("results") if result.task.loop and "results" in result.result else [result.result]
        for each in values or []:
            if each.get("diff") and each.get("changed"):
                text = self._plain_diff(each["diff"])
                self._report.diff(self.host_label(result), result.task._uuid, self._name(result.task), text)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        """Print the end of the report."""
        if self._display.verbosity > 0:
            super().v2_playbook_on_stats(stats)
            return
        with self._display._lock:
            failed = [host for host in stats.processed if stats.summarize(host)["failures"]]
            self._print(self._report.finish(failed))
        self._finish()

    # helpers

    def _without_deprecations(self, result: Any) -> Any:
        """Return the result without what only a developer can correct; -v prints it."""
        result.result.pop("deprecations", None)
        return result.result

    def _plain_diff(self, diff: Any) -> str:
        """Return Ansible's own text of a difference, without colours: the report has its own."""
        coloured, ansible_color.ANSIBLE_COLOR = ansible_color.ANSIBLE_COLOR, False
        try:
            return str(self._get_diff(diff))
        finally:
            ansible_color.ANSIBLE_COLOR = coloured

    def _debug(self, result: Any) -> None:
        """Print a message or variable as text, a list with one element in a line."""
        if self._as_json or result.result.get("_ansible_no_log"):
            return
        self._clean_results(result.result, "debug")
        hidden = ("exception", "warnings", "failed_when_result")
        lines: list[str] = []
        for key, value in result.result.items():
            if key.startswith("_ansible_") or key in hidden:
                continue
            found = self._value_lines(value)
            lines += found if key == "msg" else [f"{key}: {found[0]}"] if len(found) == 1 else [f"{key}:", *(f"  {line}" for line in found)]
        self._report.text(part_of(result.task, self._play)[0], result.host.get_name(), result.task._uuid, lines)

    def _value_lines(self, value: Any) -> list[str]:
        """Return a text, a list with one element in a line, or anything else as YAML."""
        if isinstance(value, Mapping):
            return textwrap.dedent(self._dump_results(value, indent=2)).strip("\n").splitlines() if value else ["{}"]
        values = value if isinstance(value, (list, tuple)) else [value]
        if any(isinstance(each, (Mapping, list, tuple)) for each in values):
            return [line for each in values for line in self._item_lines(each)]
        return [line for each in values for line in str(each).splitlines() or [""]] or ["[]"]

    def _item_lines(self, value: Any) -> list[str]:
        return [f"{'  ' if number else '- '}{line}" for number, line in enumerate(self._value_lines(value))]
