# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run prints for people, from the events that the callback C(pair) receives. Controller only; it does not print by itself.

A part of a run is a role, or a play without a role. Each method returns the lines that are due.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._common.progress import Progress, duration
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.plugin_utils.fault_text import shortened

SETTLE_SECONDS = 5.0  # other hosts may report the same change or fault within this time
NOTE_SECONDS = 60.0  # a role that is not over by then prints its only line before its result
NAMED_HOSTS = 4
DIFF_LINES = 12
_PREFIX = re.compile(r"\A[\w ]{1,30} \| ")  # the task file, in front of the name of a task
_RANKS = ("failed", "unreachable", "changed", "ok", "skipped")


class Line(NamedTuple):
    """A line and what it is about: ok, changed, failed, unreachable, skipped, or plain."""

    kind: str
    text: str


@dataclass
class Part:
    """A role or a play in its run over the hosts of a play."""

    name: str
    is_role: bool
    began: float
    ended: float = 0.0
    states: dict[str, str] = field(default_factory=dict)
    reported: bool = False  # a task has printed its own report

    def note(self, host: str, state: str, now: float) -> None:
        """Keep the worst state of a host."""
        before = self.states.get(host, "skipped")
        self.states[host] = min(before, state, key=_RANKS.index)
        self.ended = now


@dataclass
class Change:
    """A task that changed something, with its hosts and their differences."""

    task: str
    at: float
    hosts: list[str] = field(default_factory=list)
    diffs: dict[str, str] = field(default_factory=dict)


@dataclass
class Text:
    """What a task prints, with the lines of each host."""

    part: str
    at: float
    hosts: dict[str, list[str]] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return the lines: once if they are the same, with the host's name in front if not."""
        bare = {host: [line.removeprefix(f"{host}: ") for line in lines] for host, lines in self.hosts.items()}
        first = next(iter(bare.values()))
        if all(lines == first for lines in bare.values()):
            return list(first)
        found: list[str] = []
        for host, lines in bare.items():
            found += [f"{host}: {lines[0]}"] if len(lines) == 1 else [f"{host}:", *(f"  {line}" for line in lines)]
        return found


@dataclass
class Fault:
    """A fault with its hosts. `key` is the task."""

    part: str
    key: str
    kind: str
    task: str
    lines: Sequence[str]
    at: float
    hosts: list[str] = field(default_factory=list)

    def covers(self, other: Fault) -> bool:
        """Return whether the other fault is the same, or only refers to this one."""
        if list(self.lines) == list(other.lines):
            return True
        return self.key == other.key and len(self.lines) > 1 and len(other.lines) == 1 and other.lines[0].startswith(self.lines[0].rstrip("."))


def hosts_text(hosts: Iterable[str]) -> str:
    """Return the names of a few hosts, or the number of many."""
    names = list(dict.fromkeys(hosts))
    return ", ".join(names) if len(names) <= NAMED_HOSTS else f"{len(names)} hosts"


def states_text(states: dict[str, str]) -> str:
    """Return the state of each host; hosts that are ok are counted if there are many."""
    if set(states) == {"localhost"}:
        return states["localhost"]
    if len(states) <= NAMED_HOSTS:
        return "   ".join(f"{host} {state}" for host, state in states.items())
    groups: dict[str, list[str]] = {}
    for host, state in states.items():
        groups.setdefault(state, []).append(host)
    return "   ".join(f"{hosts_text(groups[state])} {state}" for state in _RANKS if state in groups)


def short_diff(text: str) -> list[str]:
    """Return the lines that a difference removes and adds, at most 12."""
    lines = [line for line in text.splitlines() if line[:1] in "+-" and not line.startswith(("+++", "---"))]
    more = f"... {len(lines) - DIFF_LINES + 1} more lines; -v prints them"
    return lines if len(lines) <= DIFF_LINES else [*lines[: DIFF_LINES - 1], more]


class RunReport:
    """The state of a run."""

    def __init__(self, clock: Callable[[], float] = time.monotonic, *, as_json: bool = False, is_check: bool = False, whole_diff: bool = True) -> None:
        """Start the report of a run."""
        self._clock, self._json, self._check, self._whole_diff = clock, as_json, is_check, whole_diff
        self._began = clock()
        self._parts: dict[str, Part] = {}
        self._texts: dict[str, Text] = {}
        self._changes: dict[str, Change] = {}
        self._faults: list[Fault] = []
        self._shown: list[Fault] = []
        self._rescued: dict[str, list[tuple[str, Fault]]] = {}
        self._flight: dict[tuple[str, str], tuple[Part, str, float]] = {}
        self._progress: dict[str, Progress] = {}
        self._linear = True
        self._counts: dict[str, int] = {}
        self._hosts: dict[str, None] = {}
        self._order: dict[str, int] = {}  # of the hosts in the inventory
        self._reported = self._summed = False
        self._after_fault = False

    # what happens

    def play(self, linear: bool, hosts: Sequence[str] = ()) -> list[Line]:
        """Begin a play, or a batch of its hosts; `hosts` is all of them in the order of the inventory."""
        lines = self._close()
        for host in hosts:
            self._order.setdefault(host, len(self._order))
        self._linear = linear
        self._rescued.clear()
        return lines

    def task(self, name: str, is_role: bool) -> list[Line]:
        """Begin a task of a part of the run."""
        lines: list[Line] = []
        if self._linear:
            lines = self._close() if name not in self._parts else self._settle(always=True)
        if name not in self._parts:
            self._parts[name] = Part(name, is_role, self._clock())
        return lines

    def start(self, part: str, is_role: bool, host: str, key: str, task: str) -> None:
        """Begin a task on a host."""
        found = self._parts.setdefault(part, Part(part, is_role, self._clock()))
        self._flight[host, key] = (found, task, self._clock())
        self._order.setdefault(host, len(self._order))

    def end(self, part: str, is_role: bool, host: str, key: str, state: str) -> None:
        """End a task on a host. `state` is empty for a task that does not count."""
        self._flight.pop((host, key), None)
        self._progress.pop(host, None)
        if not self._flight:
            self._progress.clear()
        if state:
            self._parts.setdefault(part, Part(part, is_role, self._clock())).note(host, state, self._clock())
            if state != "skipped":
                self._hosts[host] = None

    def text(self, part: str, host: str, key: str, lines: Sequence[str], *, is_report: bool = False) -> None:
        """Add text of a host. Text that all hosts share is printed once, and a role's only line next to its result."""
        text = self._texts.setdefault(key, Text(part, self._clock()))
        text.hosts.setdefault(host, []).extend(lines)
        text.hosts = {each: text.hosts[each] for each in self._ordered(text.hosts)}
        if is_report and len(text.hosts[host]) > 1 and part in self._parts:
            self._parts[part].reported = self._reported = True

    def change(self, host: str, key: str, task: str) -> None:
        """Add a change of a host."""
        change = self._changes.setdefault(key, Change(task, self._clock()))
        change.at = self._clock()
        change.task = task
        change.hosts.append(host)
        self._counts[host] = self._counts.get(host, 0) + 1

    def diff(self, host: str, key: str, task: str, text: str) -> None:
        """Add a difference of a host. It is shown with the change."""
        if text.strip():
            change = self._changes.setdefault(key, Change(task, self._clock()))
            change.diffs[host] = change.diffs.get(host, "") + text

    def fault(self, part: str, host: str, key: str, task: str, lines: Sequence[str], kind: str = "failed", within: Iterable[str] = ()) -> None:
        """Add a fault that is final. `within` has the blocks that rescue an earlier one, to name what was before."""
        before = [fault for block, fault in self._rescued.pop(host, []) if block in set(within)]
        text = "\n".join(lines)
        lines = [*lines, *(f"Before that: {each.lines[0]}" for each in before[-1:] if each.lines[0] not in text)]
        self._add(Fault(part, key, kind, task, lines, self._clock(), [host]))

    def _add(self, new: Fault) -> None:
        """Add a fault, or its host to the same fault."""
        for fault in self._faults:
            if fault.covers(new):
                fault.hosts += new.hosts
                return
            if new.covers(fault):
                fault.lines = new.lines
                fault.hosts += new.hosts
                return
        self._faults.append(new)

    def rescued(self, part: str, host: str, key: str, task: str, lines: Sequence[str], block: str) -> None:
        """Keep a failure that a block rescues. It is printed only if the host fails in the end."""
        self._rescued.setdefault(host, []).append((block, Fault(part, key, "failed", task, lines, self._clock(), [host])))

    def progress(self, seen: Progress) -> None:
        """Keep the latest progress of a host."""
        self._progress[seen.host] = seen

    def reported(self, part: str) -> None:
        """Note that a task has printed the summary of the run."""
        self._reported = self._summed = True
        if part in self._parts:
            self._parts[part].reported = True

    # what is due

    def due(self) -> list[Line]:
        """Return the changes and faults that no other host is expected to share."""
        return self._settle(always=False)

    def rest(self) -> list[Line]:
        """Return what was not printed yet, for a run that ends before its time."""
        return self._settle(always=True)

    def heartbeat(self) -> list[Line]:
        """Return a line for each task at work, with the last progress of its hosts. The first task also has the progress of hosts without a task."""
        tasks: dict[tuple[str, str], dict[str, float]] = {}
        for (host, _key), (part, task, began) in self._flight.items():
            tasks.setdefault((part.name, _PREFIX.sub("", task)), {}).setdefault(host, began)
        others = [host for host in self._progress if host not in {each for each, _key in self._flight}]
        lines = []
        for (name, step), starts in tasks.items():
            hosts, others = [*starts, *others], []
            known = [self._progress[host] for host in hosts if host in self._progress]
            shown = [f"{each.host} {each.what}{'' if each.percent is None else f' {each.percent} %'}" for each in known]
            texts = [", ".join(filter(None, (text, each.detail))) for text, each in zip(shown, known)]
            lead = f"{name:<11} {hosts_text(hosts)}: {step}, {duration(self._clock() - min(starts.values()))}"
            lines.append(Line("plain", printable("; ".join([lead, *texts]))))
        return lines

    def finish(self, failed: Iterable[str]) -> list[Line]:
        """Return what is left at the end of a run, and its summary. `failed` are the hosts that Ansible counts as failed."""
        named = {host for fault in [*self._shown, *self._faults] for host in fault.hosts}
        for host in failed:  # a rescue that the tags have left out
            if host not in named and self._rescued.get(host):
                self._add(self._rescued[host][-1][1])
        lines = self._close()
        if self._json:
            return lines
        faults: dict[str, list[str]] = {}
        for fault in self._shown:
            faults.setdefault(fault.part, []).extend(fault.hosts)
        took = duration(self._clock() - self._began)
        if faults:
            if self._counts or not self._after_fault or len(self._shown) > 1:
                where = "; ".join(f"{part} on {hosts_text(hosts)}" for part, hosts in faults.items())
                lines.append(Line("failed", printable(f"Failed after {took}: {where}.{self._changed(' Changed before: ')}")))
        elif not self._summed and (self._counts or not self._reported) and self._hosts:
            others = [host for host in self._ordered(self._hosts) if host != "localhost"] or ["localhost"]
            nothing = "nothing would change" if self._check else "nothing changed"
            lead = f"Check mode, {took}: " if self._check else f"Done in {took}: "
            lines.append(Line("changed" if self._counts else "ok", lead + (self._changed("") or f"{nothing} on {hosts_text(others)}.")))
        return lines

    # how it is written

    def _changed(self, lead: str) -> str:
        if not self._counts:
            return ""
        if len(self._counts) > NAMED_HOSTS:
            return f"{lead}{sum(self._counts.values())} changes on {len(self._counts)} hosts."
        counts = [(host, self._counts[host]) for host in self._ordered(self._counts)]
        return lead + ", ".join(f"{count} change{'' if count == 1 else 's'} on {host}" for host, count in counts) + "."

    def _close(self) -> list[Line]:
        """End the parts that no host works on."""
        notes = self._notes()
        kept = {part: self._texts.pop(key).lines()[0] for part, key in notes.items()}
        lines = self._settle(always=True)
        for name, part in list(self._parts.items()):
            del self._parts[name]
            worst = min(part.states.values(), key=_RANKS.index, default="")
            if not worst or not part.is_role or (worst in ("ok", "skipped", "unreachable") and part.reported):
                continue
            states = {host: part.states[host] for host in self._ordered(part.states)}
            is_new = name in kept and not any(kept[name] in line for fault in self._shown for line in fault.lines)
            note = f"   {kept[name]}" if is_new else ""
            lines += self._emit(Line(worst, printable(f"{name:<11} {states_text(states)}   {duration(part.ended - part.began)}{note}")))
        return lines

    def _notes(self) -> dict[str, str]:
        """Return the text of each role that has printed only one, in one line. It is shown next to the role's result."""
        of_part: dict[str, list[str]] = {}
        for key, text in self._texts.items():
            of_part.setdefault(text.part, []).append(key)
        return {
            part: keys[0]
            for part, keys in of_part.items()
            if part in self._parts and self._parts[part].is_role and len(keys) == 1 and len(self._texts[keys[0]].lines()) == 1
        }

    def _ordered(self, hosts: Iterable[str]) -> list[str]:
        return sorted(hosts, key=lambda host: self._order.get(host, len(self._order)))

    def _settle(self, always: bool) -> list[Line]:
        now, lines, notes = self._clock(), [], self._notes().values()
        for key, text in list(self._texts.items()):
            is_late, is_over = now - text.at >= NOTE_SECONDS, not any(each == key for _host, each in self._flight)
            if is_over and (is_late or key not in notes):
                lines += self._emit(*(Line("plain", printable(line)) for line in self._texts.pop(key).lines()))
        for key, change in list(self._changes.items()):
            if always or now - change.at >= SETTLE_SECONDS:
                del self._changes[key]
                if change.hosts:
                    change.hosts = self._ordered(change.hosts)
                    lines += self._change_lines(change)
        for fault in list(self._faults):
            if always or now - fault.at >= SETTLE_SECONDS:
                self._faults.remove(fault)
                fault.hosts = self._ordered(fault.hosts)
                lines += self._fault_lines(fault)
        return lines

    def _emit(self, *lines: Line) -> list[Line]:
        if self._json:
            return []
        self._after_fault = False
        return list(lines)

    def _change_lines(self, change: Change) -> list[Line]:
        found = [Line("changed", printable(f"  changed   {hosts_text(change.hosts)}: {_PREFIX.sub('', change.task)}"))]
        by_text: dict[str, list[str]] = {}
        for host in change.hosts:
            if change.diffs.get(host):
                by_text.setdefault(change.diffs[host], []).append(host)
        for text, hosts in by_text.items():
            if len(by_text) > 1:
                found.append(Line("plain", f"    {hosts_text(hosts)}:"))
            lines = text.rstrip().splitlines() if self._whole_diff else short_diff(text)
            found += [Line("added" if line[:1] == "+" else "removed" if line[:1] == "-" else "plain", printable(f"    {line}")) for line in lines]
        return self._emit(*found)

    def _fault_lines(self, fault: Fault) -> list[Line]:
        same = next((each for each in self._shown if each.covers(fault)), None)
        self._shown.append(fault)
        if self._json:
            return [Line("json", json.dumps({"failed": "\n".join(fault.lines), "part": fault.part, "hosts": fault.hosts, "task": fault.task}))]
        word = "ERROR" if fault.kind == "failed" else fault.kind.upper()
        where = fault.part if set(fault.hosts) == {"localhost"} else f"{fault.part} on {hosts_text(fault.hosts)}"
        if same is not None:
            return self._emit(Line(fault.kind, printable(f"{word} {where}: the same fault as above")))
        lines = shortened([f"{word} {where}: {fault.lines[0]}", *fault.lines[1:]])
        found = self._emit(*(Line(fault.kind if number == 0 else "plain", printable(line)) for number, line in enumerate(lines)))
        self._after_fault = True
        return found
