# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The engine's processes of one container, from the kernel's process table. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple


class Process(NamedTuple):
    """One row of the process table."""

    pid: int
    parent: int
    state: str  # one letter, as in /proc/PID/stat
    comm: str  # at most 15 characters, also present for a zombie
    command: str  # empty for a zombie
    ticks: int = 0  # of CPU time, of the kernel's clock

    @property
    def title(self) -> str:
        """The name that a person knows the process by."""
        first = self.command.split(" ", 1)[0]
        return first if first.startswith("VLLM::") else self.comm

    @property
    def engine(self) -> bool:
        """Whether the process belongs to vLLM: the API server, the engine core or a worker."""
        return self.comm.startswith("VLLM::") or "vllm" in self.command.lower() or "multiprocessing.spawn" in self.command

    @property
    def alive(self) -> bool:
        """Whether the process still exists as more than an entry of the table."""
        return self.state not in ("Z", "X", "x")


def parse(pid: int, stat: str) -> Process | None:
    """Return the process of one /proc/PID/stat text, without its command line; None if the text is not valid. The name may hold blanks and parentheses."""
    _pid, _open, rest = stat.partition("(")
    comm, close, tail = rest.rpartition(")")
    fields = tail.split()
    if not close or len(fields) < 2 or not fields[1].isdigit():
        return None
    ticks = sum(int(field) for field in fields[11:13] if field.isdigit())
    return Process(pid, int(fields[1]), fields[0], comm, "", ticks)


def tree(table: Iterable[Process], main: int) -> list[Process]:
    """Return a container's main process and its descendants, the main process first; empty if it is not in the table."""
    children: dict[int, list[Process]] = {}
    out: list[Process] = []
    for process in table:
        children.setdefault(process.parent, []).append(process)
        if process.pid == main:
            out.append(process)
    for process in out:  # grows while it is read
        out.extend(each for each in children.get(process.pid, []) if each.pid != main)
    return out


def fault(processes: list[Process], judged: bool) -> str:
    """Return what is wrong with the engine's processes as a phrase; empty if nothing is.

    `judged` tells that this container has passed its gate, so that its engine processes have existed.
    """
    if not processes:
        return ""
    main = processes[0]
    for process in processes:
        if process.state in ("T", "t") and (process is main or process.engine):
            return f"the engine process is stopped (PID {process.pid}, {process.title})"
        if process.state == "Z" and process.comm.startswith("VLLM::"):
            return f"the engine process is dead (PID {process.pid}, {process.title})"
    if judged and main.engine and not any(each.alive and each.engine for each in processes[1:]):
        return f"the engine process is gone, and only its parent runs (PID {main.pid}, {main.title})"
    return ""
