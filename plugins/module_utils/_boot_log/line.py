# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the grammar of one log line, `wrapper* process* [level] message`. Text in, `Line` objects out, no state."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads

#: A line longer than this keeps its two halves of this many bytes; the middle is dropped.
KEEP = 32768

#: Levels on which a failure class may be named; None is a line without a level (traceback, argparse, kernel, NCCL).
ERROR_LEVELS = frozenset(("ERROR", "CRITICAL", "FATAL", None))

#: vLLM files whose records carry text of users (prompts, requests, dumps): they change no fact and no verdict.
_REQUEST_FILES = re.compile(
    r"(?:^|/)(?:logger|dump_input|serving(?:_\w+)?|serving_[\w.]+|protocol|request_logger|middleware|chat_utils|tool_parsers?|"
    r"\w*_(?:tool_parser|reasoning_parser))\.py$"
)

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[\]_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[()][0-9A-B])")
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}(?:\d{4}-)?(\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?\s{1,4}\[?([\w./<>-]{1,160}):(\d{1,6})\]\s?"
)
_PROC = re.compile(r"[(\[](?:([A-Za-z_][\w.:/()-]{0,160}(?: (?:rank=\d{1,5}|[A-Z]{1,4}\d{1,5}))?),? )?pid=(\d{1,10})(?:, ip=([^)\s]{1,60}))?[)\]]\s?")
#: One wrapper around a line, tried in this order.
_OUTER = (
    r"[\s\ufeff]{1,64}",
    # a time stamp of Docker or of a CI runner
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?\s?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?(?::(?=\s))?\s*\|?\s*",
    # journald, also of the kernel and of systemd
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [^\s:\[]{1,80}(?:\[\d{1,10}\])?: \s*",
    # a service of compose
    r"(?![A-Z]{4,8}\s{1,8}\|\s[\w.]{1,80}:[\w<>]{1,80}:\d)[A-Za-z0-9][\w.@-]{0,120}\s{0,40}\|\s{1,4}",
    # torchrun
    r"\[rank\d{1,5}\]:\s?",
    # a progress bar without its line end
    r"[^|]{0,120}\d{1,3}%\|[^|]{0,300}\|\s{0,4}\d{1,9}/\d{1,9} \[[^\]]{1,80}\](?=[\d(\[A-Z])",
)
_WRAPPER = re.compile("|".join(f"(?:{outer})" for outer in _OUTER))
_TIMESTAMP = re.compile(r"(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)")
_UVICORN = re.compile(r"(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL):\s{1,8}")
_FOREIGN = re.compile(
    r"-?\s?[\w.:/<>-]{0,80}\s{0,4}[-|\[]\s{0,4}(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b\s{0,8}[-|\]]"
    r"|(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}[\w.-]{1,80}:\d{1,6} -- "
    r"|(?:\[[\w.-]{1,40}\]\s?)?\[(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]\s"
    r"|[A-Z][\w-]{1,30} (DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL): "
    r"|(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s{0,8}\|"
)
_GLOG = re.compile(r"\[?([IWEF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\s{0,8}\d{1,10} )?(?:[\w./-]{1,160}:\d{1,6}\]\s?)?")
_WARNINGS = re.compile(r"\S{1,300}:\d{1,6}: \w{0,40}Warning: |\w{0,20}Warning: |warnings\.warn\(")
_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_PROGRESS = re.compile(r"\d+/\d+ \[|it/s|s/it|%\|")
_QUOTED = re.compile(r"[\"'{}]|HTTP/")


class Line(NamedTuple):
    """One parsed line.

    level: its level, None without one. foreign: printed by another program's logger, whose text is not a fact about vLLM.
    file: `name.py` of the vLLM record or "". time: `MM-DD HH:MM:SS` of the record or of a wrapper, or "".
    procs: ((name, pid, ip), ...) outermost first.
    """

    level: str | None
    foreign: bool
    file: str
    time: str
    procs: tuple[tuple[str, str, str], ...]
    message: str

    @property
    def is_request(self) -> bool:
        """Whether the record carries users' text."""
        return _is_request(self.file)


@lru_cache(maxsize=128)
def _is_request(file: str) -> bool:
    return _REQUEST_FILES.search(file) is not None


def strip_ansi(text: str) -> str:
    """Remove terminal escapes and trailing spaces."""
    return (_ANSI.sub("", text) if "\x1b" in text else text).rstrip(" ")


def _procs(text: str) -> tuple[tuple[str, str, str], ...]:
    if "pid=" not in text:
        return ()
    return tuple((m.group(1) or "", m.group(2), m.group(3) or "") for m in _PROC.finditer(text))[-4:]


def parse_line(raw: str) -> Line:
    """Parse one line without its line end."""
    return _parse_short(raw) if len(raw) <= 400 else _parse(raw)


@lru_cache(maxsize=256)  # a server that dies and starts again prints the same lines each time, in an agent that must not grow
def _parse_short(raw: str) -> Line:
    return _parse(raw)


def _parse(raw: str) -> Line:
    text = strip_ansi(raw)
    match = _LEVEL.search(text, 0, 2000)
    if match is not None:
        procs = _before_level(text[: match.start()])
        if procs is not None:
            return Line(match.group(1), False, match.group(3), match.group(2), procs, text[match.end() :])
    return _parse_other(text)


@lru_cache(maxsize=64)  # the lines of one process begin alike
def _before_level(prefix: str) -> tuple[tuple[str, str, str], ...] | None:
    """Return the processes before the level of a record, None if it is not a level."""
    quoted = _QUOTED.search(prefix) and not _PROGRESS.search(prefix)
    return None if quoted or _FOREIGN.match(prefix[-200:]) is not None else _procs(prefix[-400:])


def _unwrap(text: str) -> tuple[int, str, tuple[tuple[str, str, str], ...]]:
    """Return where the record in a line begins, the time stamp and the processes before it."""
    at = 0
    procs: list[tuple[str, str, str]] = []
    stamp = ""
    for _round in range(12):
        match = _WRAPPER.match(text, at)
        if match is not None:
            if not stamp:
                found = _TIMESTAMP.search(match.group(0))
                if found is not None:
                    stamp = found.group(1)[5:].replace("/", "-").replace("T", " ")
            at = match.end()
            continue
        match = _PROC.match(text, at)
        if match is None or len(procs) == 4:
            break
        procs.append((match.group(1) or "", match.group(2), match.group(3) or ""))
        at = match.end()
    return at, stamp, tuple(procs)


def _parse_other(text: str) -> Line:
    """Parse a line that is not a record of vLLM's logger: a traceback, uvicorn, NCCL, PyTorch, another program."""
    at, stamp, procs = _unwrap(text)
    level: str | None = None
    foreign = False
    if match := _UVICORN.match(text, at):
        level = "DEBUG" if match.group(1) == "TRACE" else match.group(1)
        at = match.end()
    elif match := _GLOG.match(text, at):
        level = _GLOG_LEVEL[match.group(1)]
        at = match.end()
    elif match := _FOREIGN.match(text, at):
        level = next(g for g in match.groups() if g)
        level = {"WARN": "WARNING", "NOTICE": "INFO"}.get(level, level)
        foreign = True
        at = match.end()
    elif text.startswith('{"', at):  # a JSON record of another program
        level, foreign = "INFO", True
    elif _WARNINGS.match(text, at) is not None or "NCCL WARN " in text[at : at + 200]:
        level = "WARNING"
    elif "NCCL INFO " in text[at : at + 200]:
        level = "INFO"
    return Line(level, foreign, "", stamp, procs, text[at:])


#: A string of a JSON export of a log, which holds one record or several.
_FIELD = re.compile(r'(?:"(?:textPayload|message|msg|log)": ?)?("(?:[^"\\]|\\.){1,65536}"),?\s*$')


def records(raw: str) -> list[Line]:
    """Parse one line into its records: several if it is a string of a JSON export."""
    stripped = raw.lstrip(" \t")
    field = _FIELD.match(stripped) if stripped[:1] == '"' else None
    if field is not None:
        try:
            text = loads(field.group(1))
        except ValueError:
            text = ""
        if text:
            return [parse_line(piece.rstrip()) for piece in re.split(r"\r\n|\n|\r", text)[:2000] if piece]
    return [parse_line(raw)]


def cap(line: bytes) -> bytes:
    """Return the first and the last KEEP bytes of a long line."""
    if len(line) <= 2 * KEEP:
        return line
    return line[:KEEP] + line[-KEEP:]
