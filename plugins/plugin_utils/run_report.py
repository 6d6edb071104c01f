# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run prints for people, from the events that the callback C(pair) receives. Controller only; it does not print by itself.

A part of a run is a role, or a play without a role. Each method that returns lines returns those that are due.
"""

from __future__ import annotations

import json
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import duration, printable
from ansible_collections.gb10.cluster.plugins.plugin_utils.fault_text import shortened

SETTLE_SECONDS = 5.0  # other hosts may report the same change or fault within this time
_PREFIX = re.compile(r"\A[\w ]{1,30} \| ")  # the task file, in front of the name of a task
_RANKS = ("failed", "unreachable", "changed", "ok", "skipped")


class Line(NamedTuple):
    """A line and what it is about: ok, changed, failed, unreachable, skipped, json, plain, or + and - of a difference."""

    kind: str
    text: str


@dataclass
class Part:
    """A role or a play in its run over the hosts of a play, with the worst state of each host."""

    name: str
    is_role: bool
    began: float
    ended: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    reported: bool = False  # a task has printed its own report, or the play prints it


@dataclass
class Item:
    """What a task prints, with the lines of each host. The kind is text, changed, failed or unreachable."""

    kind: str
    part: str
    task: str
    at: float = 0.0
    hosts: dict[str, list[str]] = field(default_factory=dict)

    def groups(self, order: dict[str, int]) -> dict[tuple[str, ...], list[str]]:
        """Return the hosts by their lines."""
        found: dict[tuple[str, ...], list[str]] = {}
        for host in sorted(self.hosts, key=lambda host: order.get(host, len(order))):
            found.setdefault(tuple(line.removeprefix(f"{host}: ") if self.kind == "text" else line for line in self.hosts[host]), []).append(host)
        return found


def joined(hosts: Iterable[str]) -> str:
    """Return the names of hosts, each once."""
    return ", ".join(dict.fromkeys(hosts))


class RunReport:
    """The state of a run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, as_json: bool = False, is_check: bool = False) -> None:
        """Start the report of a run."""
        self._clock, self._json, self._check, self._began = clock, as_json, is_check, clock()
        self._part = Part("", False, self._began)
        self._items: dict[tuple[str, str], Item] = {}
        self._faults: list[tuple[str, list[str], tuple[str, ...]]] = []  # that were printed: part, hosts, lines
        self._rescued: dict[str, tuple[str, Sequence[str]]] = {}  # of each host, the task and its lines
        self.tasks: dict[str, tuple[str, str]] = {}  # of each task, its part and its name
        self._flight: dict[tuple[str, str], float] = {}
        self._counts: Counter[str] = Counter()
        self._hosts: set[str] = set()
        self._order: dict[str, int] = {}  # of the hosts in the inventory
        self._reported = self._summed = self._ends_with_fault = False

    # what happens

    def play(self, hosts: Sequence[str] = ()) -> list[Line]:
        """Begin a play, or a batch of its hosts; `hosts` is all of them in the order of the inventory."""
        for host in hosts:
            self._order.setdefault(host, len(self._order))
        self._rescued.clear()
        return self._close()

    def task(self, part: str, key: str, name: str, *, is_role: bool = True, is_asked: bool = False) -> list[Line]:
        """Begin a task of a part of the run; `key` identifies it. A role that is only asked has a line if it changes something or fails."""
        self.tasks[key] = (part, name)
        if part == self._part.name:
            return self.flush()
        lines, self._part = self._close(), Part(part, is_role, self._clock(), reported=is_asked)
        return lines

    def start(self, host: str, key: str) -> None:
        """Begin a task on a host."""
        self._flight[host, key] = self._clock()
        self._order.setdefault(host, len(self._order))

    def end(self, host: str, key: str, state: str) -> None:
        """End a task on a host. `state` is empty for a task that does not count."""
        self._flight.pop((host, key), None)
        if state:
            self._part.states[host] = min(self._part.states.get(host, "skipped"), state, key=_RANKS.index)
            self._part.ended = self._clock()
            self._hosts |= {host} if state != "skipped" else set()

    def add(self, kind: str, host: str, key: str, lines: Sequence[str] = ()) -> None:
        """Add a text, a difference of a change or a fault of a host."""
        item = self._items.setdefault((kind, key), Item(kind, *self.tasks[key]))
        item.at = self._clock()
        item.hosts.setdefault(host, []).extend(lines)

    def change(self, host: str, key: str) -> None:
        """Add a change of a host."""
        self.add("changed", host, key)
        self._counts[host] += 1

    def report(self, lines: Sequence[str], *, is_summary: bool = False) -> None:
        """Note that a task prints a report. One line is a note, and not a report. A run with a summary needs no other one."""
        if is_summary or len(lines) > 1:
            self._part.reported = self._reported = True
            self._summed = self._summed or is_summary

    def rescued(self, host: str, key: str, lines: Sequence[str]) -> None:
        """Keep a fault that a block rescues. It is printed only if the host fails in the end without another one: the tags left out its rescue."""
        self._rescued[host] = (key, lines)

    # what is due

    def flush(self, *, always: bool = True) -> list[Line]:
        """Return what was not printed yet. Without `always`, only what no other host is expected to share."""
        lines: list[Line] = []
        for (kind, key), item in [each for each in self._items.items() if not self._is_note(each[1])]:
            is_new = self._clock() - item.at < SETTLE_SECONDS or (kind == "text" and any(each == key for _host, each in self._flight))
            if always or not is_new:
                lines += self._item_lines(self._items.pop((kind, key)))
        return lines

    def heartbeat(self) -> list[Line]:
        """Return a line for each task at work."""
        tasks: dict[tuple[str, str], dict[str, float]] = {}
        for (host, key), began in self._flight.items():
            tasks.setdefault(self.tasks[key], {})[host] = began
        return self._out(*(
            Line("plain", f"{part:<11} {joined(starts)}: {_PREFIX.sub('', task)}, {duration(self._clock() - min(starts.values()))}")
            for (part, task), starts in tasks.items()
        ))  # fmt: skip

    def finish(self, failed: Iterable[str]) -> list[Line]:
        """Return what is left at the end of a run, and its summary. `failed` are the hosts that Ansible counts as failed."""
        named = {host for _part, hosts, _lines in self._faults for host in hosts} | {host for item in self._items.values() for host in item.hosts}
        for host in set(failed).intersection(self._rescued) - named:
            self.add("failed", host, *self._rescued[host])
        lines, took, counts = self._close(), duration(self._clock() - self._began), self._counts
        changed = ", ".join(f"{counts[host]} change{'' if counts[host] == 1 else 's'} on {host}" for host in self._ordered(counts)) + "."
        if self._faults:
            if counts or not self._ends_with_fault or len(self._faults) > 1:
                parts = {part: [host for each, hosts, _lines in self._faults if each == part for host in hosts] for part, _hosts, _lines in self._faults}
                where = "; ".join(f"{part} on {joined(hosts)}" for part, hosts in parts.items())
                lines += self._out(Line("failed", f"Failed after {took}: {where}.{f' Changed before: {changed}' if counts else ''}"))
        elif not self._summed and (counts or not self._reported) and self._hosts:
            others = self._ordered(self._hosts - {"localhost"}) or ["localhost"]
            text = changed if counts else f"nothing {'would change' if self._check else 'changed'} on {joined(others)}."
            lines += self._out(Line("changed" if counts else "ok", f"{f'Check mode, {took}' if self._check else f'Done in {took}'}: {text}"))
        return lines

    # how it is written

    def _ordered(self, hosts: Iterable[str]) -> list[str]:
        return sorted(hosts, key=lambda host: self._order.get(host, len(self._order)))

    def _is_note(self, item: Item) -> bool:
        """Return whether an item is the only line of its role so far. It is shown next to the role's result, or alone if a report replaces the result."""
        is_only = item.kind == "text" and self._part.is_role and sum(each.kind == "text" for each in self._items.values()) == 1
        return is_only and [len(lines) for lines in item.groups(self._order)] == [1]

    def _close(self) -> list[Line]:
        """End the part."""
        note = next((key for key, item in self._items.items() if self._is_note(item)), None)
        text = self._item_lines(self._items.pop(note))[0].text if note and not self._json else ""
        lines, part, self._part = self.flush(), self._part, Part("", False, self._clock())
        worst = min(part.states.values(), key=_RANKS.index, default="")
        if worst and part.is_role and (worst in ("failed", "changed") or not part.reported):
            states = "   ".join(f"{host} {part.states[host]}" for host in self._ordered(part.states))
            states = part.states["localhost"] if set(part.states) == {"localhost"} else states
            text = "" if any(text in line for _part, _hosts, fault in self._faults for line in fault) else f"   {text}"
            return [*lines, *self._out(Line(worst, f"{part.name:<11} {states}   {duration(part.ended - part.began)}{text.rstrip()}"))]
        return [*lines, *self._out(*([Line("plain", text)] if text else []))]

    def _out(self, *lines: Line, is_fault: bool = False) -> list[Line]:
        if self._json or not lines:
            return []
        self._ends_with_fault = is_fault
        return [Line(line.kind, printable(line.text)) for line in lines]

    def _item_lines(self, item: Item) -> list[Line]:
        groups = item.groups(self._order)
        found: list[str] = []
        if item.kind == "text":
            for lines, hosts in groups.items():
                if len(groups) == 1:
                    found += lines
                for host in hosts if len(groups) > 1 else ():
                    found += [f"{host}: {lines[0]}"] if len(lines) == 1 else [f"{host}:", *(f"  {line}" for line in lines)]
            return self._out(*(Line("plain", line) for line in found))
        if item.kind == "changed":
            out = [Line("changed", f"  changed   {joined(self._ordered(item.hosts))}: {_PREFIX.sub('', item.task)}")]
            for lines, hosts in groups.items():
                out += [Line("plain", f"    {joined(hosts)}:")] if lines and len(groups) > 1 else []
                out += [Line(line[:1], f"    {line}") for line in lines]
            return self._out(*out)
        return [line for lines, hosts in groups.items() for line in self._fault_lines(item, self._ordered(hosts), lines)]

    def _fault_lines(self, item: Item, hosts: list[str], fault: tuple[str, ...]) -> list[Line]:
        is_known = any(fault == each for _part, _hosts, each in self._faults)
        self._faults.append((item.part, hosts, fault))
        if self._json:
            return [Line("json", json.dumps({"failed": "\n".join(fault), "part": item.part, "hosts": hosts, "task": item.task}))]
        where = item.part if set(hosts) == {"localhost"} else f"{item.part} on {joined(hosts)}"
        lead = f"{'ERROR' if item.kind == 'failed' else 'UNREACHABLE'} {where}: "
        first, *more = [f"{lead}the same fault as above"] if is_known else shortened([lead + fault[0], *fault[1:]])
        return self._out(Line(item.kind, first), *(Line("plain", line) for line in more), is_fault=not is_known)
