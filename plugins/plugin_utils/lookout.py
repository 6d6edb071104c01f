# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: ask a node again and again, at a tenth of what a module costs. Controller only.

The first look is the module container_log_slice, which finds the node's Python. From then on a module's sources go to that Python's standard input as
one program, over the connection that stands: no packing, no unpacking, no file on the node. Where that is refused, the modules go on.
"""

from __future__ import annotations

import contextvars
import json
import shlex
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins import module_utils

PACKAGE = "ansible_collections.gb10.cluster.plugins.module_utils"


class Question(NamedTuple):
    """What can be asked by a module or by a program of its sources, each after what it imports; the last one's `run` takes the module's options."""

    module: str
    sources: tuple[str, ...]
    answer: str  # a key that every answer has


SLICE = Question("gb10.cluster.container_log_slice", ("_docker.log", "_docker.client", "boot_slice"), "log")
PROBE = Question("gb10.cluster.vllm_probe", ("api_probe",), "models")

_PROGRAM = """\
import json, sys, types
def module(name, source=None):
    parent, _dot, last = name.rpartition(".")
    new = sys.modules[name] = types.ModuleType(name)
    new.__path__ = []
    if parent:
        setattr(sys.modules.get(parent) or module(parent), last, new)
    if source:
        exec(compile(source, name, "exec"), new.__dict__)
    return new
for name, source in {sources}:
    module(name, source)
print(json.dumps([sys.modules[name].run(arguments) for name, arguments in json.loads({asked!a})]))
"""

Asked = tuple[Question, dict[str, Any]]  # with the options of its module


def program(asked: Sequence[Asked]) -> str:
    """Return the text of a program, ASCII only, that asks questions in turn and prints the list of their answers as a line of JSON."""
    folder = Path(next(iter(module_utils.__path__)))
    names = dict.fromkeys(name for question, _arguments in asked for name in question.sources)
    sources = [(f"{PACKAGE}.{name}", folder.joinpath(*name.split(".")).with_suffix(".py").read_text(encoding="utf-8")) for name in names]
    runs = [(f"{PACKAGE}.{question.sources[-1]}", arguments) for question, arguments in asked]
    return _PROGRAM.format(sources=ascii(sources), asked=json.dumps(runs))


class Look(threading.Thread):
    """Questions to a node, under way. The caller may leave it alone: it changes nothing, and ends by itself unless the connection hangs."""

    def __init__(self, lookout: Lookout, asked: Sequence[Asked]) -> None:
        super().__init__(daemon=True)
        self._lookout, self._asked = lookout, asked
        self._context = contextvars.copy_context()
        self._error: Exception | None = None
        self._out: list[dict[str, Any]] = []

    def run(self) -> None:
        """Ask; result() raises an error again."""
        try:
            self._out = self._context.run(self._lookout.ask, self._asked)
        except Exception as error:  # noqa: BLE001  # result() raises it again in the caller's thread
            self._error = error

    def results(self) -> list[dict[str, Any]]:
        """Return an answer to each question, or `failed` with `msg`; raise what the look raised."""
        self.join()
        if self._error is not None:
            raise self._error
        return self._out

    def result(self) -> dict[str, Any]:
        """Return the answer to the only question."""
        return self.results()[0]


class Lookout:
    """The looks of one rank, one at a time."""

    def __init__(self, action: ActionBase, task_vars: dict[str, Any]) -> None:
        self._action, self._vars = action, task_vars
        self._python = ""
        self._by_module = False

    def start(self, **arguments: Any) -> Look:
        """Begin a look with the options of container_log_slice."""
        return self.begin([(SLICE, arguments)])

    def begin(self, asked: Sequence[Asked]) -> Look:
        """Begin to ask questions in turn, as ask() does."""
        look = Look(self, asked)
        look.start()
        return look

    def take(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """Return a slice, or `failed` with a `msg` that says why there is none."""
        return self.ask([(SLICE, arguments)])[0]

    def ask(self, asked: Sequence[Asked]) -> list[dict[str, Any]]:
        """Ask questions in turn, over the connection once, and return an answer to each: what its module returns, or `failed` with a `msg`."""
        if not self._python or self._by_module:
            return [self._ask_module(question, arguments) for question, arguments in asked]
        out = self._action._low_level_execute_command(f"{shlex.quote(self._python)} -I -S -", in_data=program(asked).encode())
        try:
            return [dict(answer) for answer in json.loads(str(out["stdout"]).strip().splitlines()[-1])]
        except (ValueError, IndexError):
            self._by_module = True  # a node that wants a terminal for sudo, for one
            return self.ask(asked)

    def _ask_module(self, question: Question, arguments: dict[str, Any]) -> dict[str, Any]:
        out = self._action._execute_module(module_name=question.module, module_args=arguments, task_vars=self._vars)
        self._python = str(out.get("python") or self._python)
        if question.answer in out or out.get("failed") or out.get("unreachable"):
            return dict(out)
        return {"failed": True, "msg": str(out.get("module_stderr") or f"the module {question.module} ended without a result")}
