# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: a whole log as a stream of bytes into boots and facts. Constant memory, every byte looked at once.

How it is fast: a line with its digits deleted is its shape. Shapes repeat (access lines, statistics, tracebacks), so each shape is searched once for
anything of interest and the answer kept; only lines of an interesting shape are decoded and peeled.
"""

from __future__ import annotations

import re
from collections import deque
from typing import Any, Literal

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.boot import Boot
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import check_user_class, user_entry
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Classifier, Plan, compile_catalogue, undigited
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import KEEP, Line, cap, expand, may_be_several, peel, split, strip_ansi
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.plan import literals, plan_for
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.starts import Starts

#: Boots whose facts are kept; older ones only count as restarts.
KEEP_BOOTS = 20
#: Bytes of a log in which wrapped lines are rejoined: copies from a terminal are short.
WRAP_ZONE = 1024 * 1024
#: Bytes looked at in one go.
SLICE = 256 * 1024
#: Shapes are remembered until so many, or so many bytes of them, are known; a longer one never is.
_SHAPES = 20000
_SHAPES_BYTES = 8 * 1024 * 1024
_SHAPE_BYTES = 16 * 1024

_CANDIDATE, _ACCESS, _STATS, _REQUEST, _PROGRESS = 1, 2, 3, 4, 5


class _Shape:
    """What is known of all lines of one shape: how to treat them, and what they may hold (found out when first asked)."""

    __slots__ = ("_plan", "kind", "text")

    def __init__(self, kind: int, text: bytes) -> None:
        self.kind = kind
        self.text = text
        self._plan: Plan | None = None

    def plan(self, classifiers: list[Classifier]) -> Plan:
        if self._plan is None:
            self._plan = plan_for(cap(self.text).decode("utf-8", "replace"), classifiers)
            self.text = b""
        return self._plan


_REQUEST_SHAPE = re.compile(rb"\[(?:[\w./]*/)?logger\.py:\] Received request ")
_ACCESS_SHAPE = re.compile(rb'" - ".|- "(?:GET|POST) /')
#: What begins a record; any other line may continue the one before.
_RECORD = re.compile(
    rb"(?:\x1b\[[0-9;]{0,16}m|\[\d{1,3}(?:;\d{1,3}){0,4}m|[\s>`*|#-]){0,12}"
    rb"(?:\([A-Za-z_(]?[^\n]{0,160}?pid=\d|\[[A-Z]\w{2,40} pid=\d|\(raylet[,)]|(?:DEBUG|INFO|WARNING|ERROR|CRITICAL)(?:[ :]|\x1b\[)"
    rb"|\[?\d{4}-\d\d-\d\d[T ]|\[(?:INFO|WARN|ERROR) {0,4}\] |\[rank\d|\[?[IWEF]\d{3,4} \d\d:"
    rb"|[\w.@-]{1,80}\s{0,20}\|\s|[A-Za-z]\S{0,60}:\d+:\d+ \[\d|\[?[\w./-]{1,80}\.(?:py|cc):\d|NCCL "
    rb"|Traceback |frame #|Exception raised |The above |During handling |Loading |Capturing |  File |File \"|Process "
    rb"|(?:[A-Za-z_]\w{0,60}\.){0,8}[A-Z_]\w{0,80}(?:Error|Exception)\b)"
)
#: What is in a line of a progress bar, whose successors say more.
_BARS = (b"Completed | ", b"Capturing CUDA")
_DIGITS = b"0123456789"
_BREAK = re.compile(rb"\r\n|\n|\r")


_triggers: list[re.Pattern[bytes]] = []


def _trigger() -> re.Pattern[bytes]:
    """Return the one expression that finds a shape of interest, compiled once."""
    if not _triggers:
        _triggers.append(re.compile(literals().expression.encode("utf-8")))
    return _triggers[0]


def _users(entries: list[dict[str, Any]]) -> list[re.Pattern[bytes]]:
    """Compile users' patterns for a whole block of bytes: they only choose the lines to look at."""
    out = []
    for entry in entries:
        try:
            out.append(re.compile(entry["pattern"].encode("utf-8"), re.MULTILINE))
        except re.error:
            out.append(re.compile(rb"^", re.MULTILINE))
    return out


def _prefix(line: bytes) -> bytes:
    """Return who printed a line, where it says so: `(EngineCore pid=24`."""
    return line[: line.find(b")") + 1]


class BootLog:
    """Reads one log, in any slices, and tells at any time what it knows.

    ``extra_classes``: users' own failure classes, dicts with ``class``, ``pattern``, ``remedy`` and optionally ``anchor``, ``any_level``.
    """

    def __init__(self, extra_classes: list[dict[str, Any]] | None = None) -> None:
        extra = list(extra_classes or [])
        for entry in extra:
            problem = check_user_class(entry)
            if problem:
                raise ValueError(problem)
        self._classifiers = compile_catalogue([user_entry(e) for e in extra])
        self._trigger = _trigger()
        self._users = _users(extra)
        self._shapes: dict[bytes, _Shape | Literal[False]] = {}
        self._shapes_bytes = 0
        self._head = b""
        self._tail = b""
        self._dropped = False
        self._offset = 0
        self._lines = 0
        self._boot = Boot(1)
        self._boots: deque[Boot] = deque(maxlen=KEEP_BOOTS - 1)
        self._restarts = 0
        self._starts = Starts()
        self._previous = ""
        self._previous_number = 0
        self._previous_taken = False
        self._previous_joins = 0
        self._spaced = ""

    # -- input ---------------------------------------------------------------------------------------------------------

    def feed(self, data: bytes) -> None:
        """Take the next bytes of the log, wherever they were cut."""
        view = bytes(data)
        for at in range(0, len(view), SLICE):
            self._feed(view[at : at + SLICE])

    def _feed(self, data: bytes) -> None:
        end = max(data.rfind(b"\n"), data.rfind(b"\r")) + 1
        if end == 0:
            self._hold(data)
            return
        first = min(i for i in (data.find(b"\n"), data.find(b"\r")) if i >= 0) + 1
        if self._head or self._tail or self._dropped:
            held = self._held()
            ending = data[:first]
            self._head = self._tail = b""
            was_dropped, self._dropped = self._dropped, False
            if was_dropped or len(held) > 2 * KEEP:
                self._block(cap(held + ending[:-1]) + ending[-1:])
            else:
                self._block(held + ending)
            if end > first:
                self._block(data[first:end])
        else:
            self._block(data[:end])
        if end < len(data):
            self._hold(data[end:])

    def _hold(self, data: bytes) -> None:
        room = KEEP - len(self._head)
        if room > 0 and not self._tail:
            self._head += data[:room]
            data = data[room:]
        if data:
            self._tail += data
            if len(self._tail) > KEEP:
                self._tail = self._tail[-KEEP:]
                self._dropped = True

    def _held(self) -> bytes:
        return self._head + self._tail

    def _block(self, block: bytes) -> None:
        """Look at whole lines; block ends with a line end."""
        start = self._offset
        self._offset += len(block)
        if start < WRAP_ZONE:
            if self._offset <= WRAP_ZONE:
                self._slow(block)
                return
            cut = block.find(b"\n", WRAP_ZONE - start)
            cut = len(block) if cut < 0 else cut + 1
            self._slow(block[:cut])
            block = block[cut:]
            if not block:
                return
        self._fast(block)

    def _slow(self, block: bytes) -> None:
        at = 0
        for match in _BREAK.finditer(block):
            raw = block[at : match.start()]
            at = match.end()
            if raw:
                self._wrapped(cap(raw), self._lines + 1)
            if match.group(0)[-1:] == b"\n":
                self._lines += 1

    def _fast(self, block: bytes) -> None:
        shapes = block.translate(None, _DIGITS).split(b"\n")
        lines: list[bytes] | None = None
        first = self._lines + 1
        access = stats = progress = shown = -1
        get = self._shapes.get
        classifiers = self._classifiers
        chosen = {block.count(b"\n", 0, m.start()) for user in self._users for m in user.finditer(block)} if self._users else ()
        for index, text in enumerate(shapes):
            shape = get(text)
            if shape is None:
                shape = self._shape(text)
            if not shape:
                if not chosen or index not in chosen:
                    continue
                shape = _Shape(_CANDIDATE, text)
            kind = shape.kind
            if kind != _CANDIDATE:
                boot = self._boot
                if kind == _ACCESS:
                    if boot.frozen and not boot.unsure and boot.ready is not None:
                        access = index
                        continue
                elif kind == _STATS:
                    if boot.ready is not None:
                        stats = index
                        continue
                elif boot.frozen:
                    continue
                elif kind == _PROGRESS:
                    if lines is None:
                        lines = block.split(b"\n")
                    if shown >= 0 and _prefix(lines[shown]) == _prefix(lines[index]):
                        shown = progress = index  # what the bar said before is outdated
                        continue
            if lines is None:
                lines = block.split(b"\n")
            if access >= 0 or stats >= 0 or progress >= 0:
                self._last_ones(lines, (access, stats, progress), first)
                access = stats = progress = -1
            self._candidate(lines[index], first + index, shape.plan(classifiers))
            shown = index if kind == _PROGRESS else -1
        if access >= 0 or stats >= 0 or progress >= 0:
            if lines is None:
                lines = block.split(b"\n")
            self._last_ones(lines, (access, stats, progress), first)
        self._lines += len(shapes) - 1

    def _last_ones(self, lines: list[bytes], indices: tuple[int, ...], first: int) -> None:
        """Take the last access, statistics and progress lines before a line that matters: whether the server was idle then, how far a load was."""
        for index in sorted(i for i in indices if i >= 0):
            shape = self._shape(lines[index].translate(None, _DIGITS))
            if isinstance(shape, _Shape):
                self._candidate(lines[index], first + index, shape.plan(self._classifiers))

    def _candidate(self, raw: bytes, number: int, plan: Plan) -> None:
        if b"\r" in raw:
            for piece in raw.split(b"\r"):
                if piece:
                    self._record(cap(piece), number, plan)
        elif raw:
            self._record(cap(raw), number, plan)

    def _shape(self, text: bytes) -> _Shape | Literal[False]:
        """Return what is known of a shape; False for one of no interest."""
        known = self._shapes.get(text)
        if known is not None:
            return known
        if _REQUEST_SHAPE.search(text, 0, 400) is not None:
            return _Shape(_REQUEST, text)  # prompts differ: not worth keeping
        match = self._trigger.search(text)
        if match is None:
            shape: _Shape | Literal[False] = False
        else:
            kind = _CANDIDATE
            found = match.group(0)
            if found == b"HTTP/" and _ACCESS_SHAPE.search(text) is not None and self._trigger.search(text, match.end()) is None:
                kind = _ACCESS
            elif found in _BARS and b"\r" not in text and self._trigger.search(text, match.end()) is None:
                kind = _PROGRESS
            elif found == b"Running: " and (b"throughput" in text or b" tput: " in text) and self._trigger.search(text, match.end()) is None:
                kind = _STATS
            shape = _Shape(kind, text)
        if len(text) <= _SHAPE_BYTES:
            if len(self._shapes) >= _SHAPES or self._shapes_bytes >= _SHAPES_BYTES:
                self._shapes.clear()
                self._shapes_bytes = 0
            self._shapes[text] = shape
            self._shapes_bytes += len(text)
        return shape

    # -- lines ---------------------------------------------------------------------------------------------------------

    def _wrapped(self, raw: bytes, number: int) -> None:
        """Take a line of the zone in which wrapped lines are rejoined."""
        text = raw.decode("utf-8", "replace")
        shape = self._shape(raw.translate(None, _DIGITS))
        found = taken = False
        if shape or any(u.search(raw) for u in self._users):
            plan = shape.plan(self._classifiers) if isinstance(shape, _Shape) else plan_for(undigited(text), self._classifiers)
            for line in expand(text):
                found = self._take_all(line, number, plan) or found
                taken = True
        if _RECORD.match(raw) is not None:
            self._previous = self._spaced = text if len(text) >= 30 else ""
            self._previous_number = number
            self._previous_joins = 0
            self._previous_taken = taken
        elif found or self._previous_joins >= 80 or len(self._previous) > 24576 or not text.strip():
            self._previous = ""
        elif self._previous and text[:2] != "  " and text[:1] != "\t":
            self._rejoin(text)

    def _rejoin(self, text: str) -> None:
        """Take the line before together with this one: cut at a width, which may be within a word, or between words, whose space is then gone."""
        self._previous_joins += 1
        for previous, joined in ((self._previous, self._previous + text), (self._spaced, f"{self._spaced} {text}")):
            shape = self._shape(joined.encode("utf-8", "replace").translate(None, _DIGITS))
            if isinstance(shape, _Shape):
                line, plan = peel(joined), shape.plan(self._classifiers)
                seen = len(strip_ansi(previous)) - line.offset if self._previous_taken else 1
                self._previous_taken = True
                if self._take(line, self._previous_number, plan, max(seen, 1)) and not plan.classifiers:
                    break  # the second reading would take the same fact again; a failure can be of a more specific class in it
        if self._previous:
            self._previous += text
            self._spaced += " " + text

    def _record(self, raw: bytes, number: int, plan: Plan) -> None:
        for line in expand(raw.decode("utf-8", "replace")):
            self._take_all(line, number, plan)

    def _take_all(self, line: Line, number: int, plan: Plan) -> bool:
        """Take a line, which before readiness may be several records."""
        if not may_be_several(line.message) or self._boot.ready is not None:
            return self._take(line, number, plan)
        found = False
        for record in split(line):
            found = self._take(record, number, plan) or found
        return found

    def _take(self, line: Line, number: int, plan: Plan, min_end: int = 0, whole: bool = True) -> bool:
        rejoined = min_end > 0
        if not (rejoined and self._previous_taken) and self._boot.recognised and self._starts.at(self._boot, line, plan, number):
            self._starts.over(self._boot)
            self._boots.append(self._boot)
            self._restarts += 1
            self._boot = Boot(number)
            if not rejoined:
                self._previous = ""
        if line.procs:
            name, pid, _ip = line.procs[0]
            pids = self._boot.pids
            if name not in pids and len(pids) < 512 and (name in ("APIServer", "MainProcess") or name.startswith("EngineCore")):
                pids[name] = pid
        return self._boot.take(line, number, plan, max(min_end, 0), whole)

    # -- output --------------------------------------------------------------------------------------------------------

    def facts(self, final: bool = False) -> dict[str, Any]:
        """Return what the log says so far. final: an unterminated last line counts as whole, but no number at its very end is taken."""
        if final and (self._head or self._tail):
            pieces = [p for p in _BREAK.split(cap(self._held())) if p]
            self._head = self._tail = b""
            self._dropped = False
            for raw in pieces:
                self._offset += len(raw)
                text = raw.decode("utf-8", "replace")
                plan = plan_for(undigited(text), self._classifiers)
                for line in expand(text):
                    self._take(line, self._lines + 1, plan, whole=False)
        last = self._boot.facts(final)
        boots = [*(b.final_facts() for b in self._boots), last]
        out = dict(last)
        out["restarts"] = self._restarts
        out["boots"] = boots
        out["bytes_read"] = self._offset + len(self._head) + len(self._tail)
        out["lines_read"] = self._lines
        return out


def parse(log: str | bytes, extra_classes: list[dict[str, Any]] | None = None) -> dict[str, Any]:
    """Parse a whole log given as text or bytes."""
    reader = BootLog(extra_classes)
    reader.feed(log.encode("utf-8", "surrogateescape") if isinstance(log, str) else log)
    return reader.facts(final=True)


__all__ = ["BootLog", "parse"]
