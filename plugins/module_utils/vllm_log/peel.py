# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the grammar of one log line, `outer* proc* [level] message`; text in, `Line` objects out, no state."""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import NamedTuple

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
_LOST = re.compile(r"\[\d{1,3}(?:;\d{1,3}){0,4}m")
#: What stands for an ESC that a pager or a JSON export wrote out, or a decoder could not read.
_LOST_MARK = re.compile(r"(?:[←␛\ufffd]|\^\[|\\(?:x1[bB]|u001[bB]))?\[\d{1,3}(?:;\d{1,3}){0,4}m")
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}(?:\d{4}-)?(\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?\s{1,4}\[?([\w./<>-]{1,160}):(\d{1,6})\]\s?"
)
_SHORT = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}\[?([\w./<>-]{1,160}\.py):\d{1,6}\]?\s{1,8}")
_GLUED = re.compile(
    r"(?<![^\s\w.)%])(?:\([A-Za-z][\w.-]{0,80}(?: [\w=]{1,20})? pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) ?){0,4}"
    r"(?<![\w'\"`])(?:(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) \d\d-\d\d \d\d:\d\d:\d\d \[?[\w./<>-]{1,160}\.py:\d{1,6}\] "
    r"|INFO:\s{1,8}(?:Started server process|Waiting for application startup|Application startup complete|Uvicorn running on ))"
    r"|(?<=\s)(?:\((?:APIServer|EngineCore|MainProcess|(?:Vllm|Ray)?Worker)[\w= -]{0,40} pid=\d{1,10}(?:, ip=[\d.]{1,40})?\) ){1,4}(?=\S)"
)
_PROC = re.compile(r"[(\[](?:([A-Za-z_][\w.:/()-]{0,160}(?: (?:rank=\d{1,5}|[A-Z]{1,4}\d{1,5}))?),? )?pid=(\d{1,10})(?:, ip=([^)\s]{1,60}))?[)\]]\s?")
_COMMON = re.compile(
    r"(?:\(([A-Za-z][\w.-]{0,80}(?: [\w=]{1,20})?) pid=(\d{1,10})\) ?)?(?:\(([A-Za-z][\w.-]{0,80}(?: [\w=]{1,20})?) pid=(\d{1,10})(?:, ip=([\d.]{1,40}))?\) ?)?"
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL) (\d\d-\d\d \d\d:\d\d:\d\d) \[?([\w./<>-]{1,160}):\d{1,6}\]\s?"
)
#: One wrapper around a line, tried in this order.
_OUTER = (
    r"[\s\ufeff]{1,64}",
    r">\s?",
    r"(?:`{1,3}|\*{1,3}|~{3})(?=\S)",
    r"(?:[-*•+](?!\s[A-Z]{4,8}\s)|\d{1,3}[.)]|#{1,6}(?!\s\w{1,20} blocks: ))\s{1,4}(?=\S)",
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?\s?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?(?::(?=\s))?\s*\|?\s*",
    r"\[?\d\d:\d\d:\d\d(?:[.,]\d{1,9})?\]?\s+",
    r"(?:stdout|stderr) [FP]\s",
    r"(?:[^\W\d_]{2,6}\.?|\d{1,2}[月월]) [ \d]?\d \d\d:\d\d:\d\d(?:\.\d{1,9})? (?!\[)\S{1,80}(?<!:) [^\s:\[]{1,80}(?:\[\d{1,10}\])?: \s*",
    r"(?:[^\W\d_]{2,6}\.? \d{4}-\d\d-\d\d \d\d:\d\d:\d\d [A-Z0-9+-]{2,6} )?[\w.-]{1,64} [\w.@:-]{1,80}\[\d{1,10}\]: \s*",
    r"(?![A-Z]{4,8}\s{1,8}\|\s[\w.]{1,80}:[\w<>]{1,80}:\d)(?:[A-Za-z0-9][\w.@-]{0,120}\s{0,40}|\[[a-z][\w.-]{0,80}\]\s{1,40})\|\s{1,4}",
    r"[|│┃▌▍▎▏]\s{0,4}",
    r"\[rank\d{1,5}\]:\s?",
    r"\d{10}\.\d{3,9} [\w.-]{1,64} [\w.@:-]{1,80}\[\d{1,10}\]: ",
    r"\[\s{0,8}\d{1,7}\.\d{3,6}\] |##\[(?:error|warning|debug)\]|\d\d[OE][ +](?=\s{0,40}\S)",
    r"\[pod/[\w./-]{1,200}\] |[^\t]{1,100}\t[^\t]{1,100}\t(?=\d{4}-\d\d-\d\dT)",
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
#: The logger's name in another format of the records of vLLM and of its web server: those lines are their own.
_OWN = re.compile(r"(?<![\w./-])(vllm|uvicorn)((?:\.\w{1,60}){0,8})(?![\w-])")
_OWN_AFTER = re.compile(r"\s{0,4}\[?(?:vllm|uvicorn)(?:\.\w{1,60}){0,8}(?::[\w<>]{1,60}){0,2}(?:\]\s{0,4}|\s{0,4}[-:|]\s{1,4})")
_BASIC = re.compile(r"(DEBUG|INFO|WARNING|ERROR|CRITICAL):(?:vllm|uvicorn)(?:\.\w{1,60}){0,8}:\s?")
#: Rust's tracing, also with Python's records in it (`INFO kv_cache_utils.function: ...`).
_TRACING = re.compile(r"(TRACE|DEBUG|INFO|WARN|WARNING|ERROR)\s{1,2}[A-Za-z_]\w{0,60}(?:(?:::|\.)\w{1,60}){0,8}: ")
_GLOG = re.compile(
    r"\[?([IWEF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\s{0,8}\d{1,10} )?(?:[\w./-]{1,160}:\d{1,6}\]\s?)?"
    r"|\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{1,6} ([IWEF]) \d{1,10} \d{1,10}\]\s[\w.]{1,60}:\d{1,6}:\s"
)
#: Where a collector got a record from, between its stamp and the record.
_TAG = re.compile(r"[A-Za-z][\w.@/-]{0,120}:")
_BARE_FILE = re.compile(r"\[?([\w./-]{1,120}\.py):\d{1,6}\]\s")
_WARNINGS = re.compile(r"\S{1,300}:\d{1,6}: \w{0,40}Warning: |\w{0,20}Warning: |warnings\.warn\(")
_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_PROGRESS = re.compile(r"\d+/\d+ \[|it/s|s/it|%\|")
_QUOTED = re.compile(r"[\"'{}]|HTTP/")


@lru_cache(maxsize=512)
def _is_request_file(file: str) -> bool:
    return _REQUEST_FILES.search(file) is not None


class Line(NamedTuple):
    """One peeled line.

    level: its level, None without one. foreign: printed by another program's logger, whose text is no vLLM fact.
    file: `name.py` of the vLLM record or "". time: `MM-DD HH:MM:SS` of the record or an outer stamp, or "".
    procs: ((name, pid, ip), ...) outermost first. offset: where message begins in the text that was peeled, after its escapes went.
    """

    level: str | None
    foreign: bool
    file: str
    time: str
    procs: tuple[tuple[str, str, str], ...]
    message: str
    offset: int
    text: str
    partial: bool

    @property
    def is_request(self) -> bool:
        """Whether the record carries users' text."""
        return bool(self.file) and _is_request_file(self.file)


def strip_ansi(text: str) -> str:
    """Remove terminal escapes, also those whose ESC was lost in a paste."""
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    if _LOST.search(text) is not None:
        text = _LOST_MARK.sub("", text)
    if text[:1] == "\x00":  # a file that was cut to nothing while it was written to
        text = text.lstrip("\x00")
    if text[-4:] == "#015":  # a carriage return, as rsyslog writes it
        text = text[:-4]
    if text[-1:] == " ":
        text = text.rstrip(" ")
    return text


def is_known(prefix: str) -> bool:
    """Return whether a text before a record is a wrapper that is peeled off any line."""
    return _peel_unlevelled(strip_ansi(prefix + "x")).message == "x"


def _procs(text: str) -> tuple[tuple[str, str, str], ...]:
    if "pid=" not in text:
        return ()
    return tuple((m.group(1) or "", m.group(2), m.group(3) or "") for m in _PROC.finditer(text))[-4:]


def peel(raw: str) -> Line:
    """Peel one physical line (no line end in it) that is not JSON."""
    return _peel_known(raw) if len(raw) <= 400 else _peel(raw)


@lru_cache(maxsize=2048)  # a server that dies and starts again prints the same traceback each time
def _peel_known(raw: str) -> Line:
    return _peel(raw)


def _peel(raw: str) -> Line:
    text = strip_ansi(raw)
    match = _COMMON.match(text)
    if match is not None:
        name, pid, second, second_pid, ip, level, time, file = match.groups()
        procs: tuple[tuple[str, str, str], ...] = ()
        if name is not None:
            procs = ((name, pid, ""),) if second is None else ((name, pid, ""), (second, second_pid, ip or ""))
        elif second is not None:
            procs = ((second, second_pid, ip or ""),)
        end = match.end()
        return Line(level, False, file, time, procs, text[end:], end, text, False)
    match = _LEVEL.search(text, 0, 2000)
    if match is not None:
        prefix = text[: match.start()]
        if not prefix or ((not _QUOTED.search(prefix) or _PROGRESS.search(prefix)) and _FOREIGN.match(prefix[-200:]) is None):
            file = match.group(3)
            return Line(match.group(1), False, file, match.group(2), _procs(prefix[-400:]), text[match.end() :], match.end(), text, _is_cri_partial(prefix))
    return _peel_unlevelled(text)


def _is_cri_partial(prefix: str) -> bool:
    return " stdout P " in prefix or " stderr P " in prefix


def _peel_unlevelled(text: str) -> Line:
    at = 0
    procs: list[tuple[str, str, str]] = []
    stamp = ""
    partial = False
    for _round in range(12):
        match = _WRAPPER.match(text, at)
        if match is not None:
            piece = match.group(0)
            if not stamp:
                found = _TIMESTAMP.search(piece)
                if found is not None:
                    stamp = found.group(1)[5:].replace("/", "-").replace("T", " ")
            if piece[-2:] == "P " and piece.startswith("std"):
                partial = True
            at = match.end()
            continue
        match = _PROC.match(text, at)
        if match is not None and len(procs) < 4:
            procs.append((match.group(1) or "", match.group(2), match.group(3) or ""))
            at = match.end()
            continue
        break
    match = _LEVEL.match(text, at) if at else None
    if match is not None:  # behind a wrapper with quotes in it
        return Line(match.group(1), False, match.group(3), match.group(2), tuple(procs), text[match.end() :], match.end(), text, partial)
    level: str | None = None
    foreign = False
    file = ""
    match = _UVICORN.match(text, at) or _BASIC.match(text, at)
    if match is not None:
        level = "DEBUG" if match.group(1) == "TRACE" else match.group(1)
        at = match.end()
    else:
        match = _GLOG.match(text, at)
        short = _SHORT.match(text, at) if match is None else None
        if match is not None:
            level = _GLOG_LEVEL[match.group(1) or match.group(2)]
            at = match.end()
        elif short is not None:
            level, file = short.groups()
            at = short.end()
        else:
            match = _BARE_FILE.match(text, at)
            if match is not None:
                file = match.group(1)
                at = match.end()
            else:
                match = _FOREIGN.match(text, at)
                if match is not None:
                    level = next(g for g in match.groups() if g).upper()
                    level = {"WARN": "WARNING", "NOTICE": "INFO"}.get(level, level)
                    start, at = at, match.end()
                    after = _OWN_AFTER.match(text, at)
                    if after is not None:
                        at = after.end()
                    own = _OWN.search(text, start, at)
                    foreign = own is None
                    if own is not None and own.group(1) == "vllm":
                        file = f"{own.group(0).rsplit('.', 1)[-1]}.py"
                elif stamp and (match := _TRACING.match(text, at)) is not None:
                    level = {"TRACE": "DEBUG", "WARN": "WARNING"}.get(match.group(1), match.group(1))
                    at = match.end()
                elif _WARNINGS.match(text, at) is not None or " NCCL WARN " in text[at : at + 200] or text.startswith("NCCL WARN ", at):
                    level = "WARNING"
                elif " NCCL INFO " in text[at : at + 200] or text.startswith("NCCL INFO ", at):
                    level = "INFO"
    return Line(level, foreign, file, stamp, tuple(procs), text[at:], at, text, partial)


def may_be_several(message: str) -> bool:
    """Return whether the text of a record may hold another one; cheap."""
    return ".py:" in message or " INFO:" in message or " pid=" in message


def split(line: Line) -> list[Line]:
    """Return the records that one physical line glues together, by two processes that write at once or by a paste that lost its line ends.

    Only for lines before the server is ready: later a record in a record is a quote of a user.
    """
    message = line.message
    if not may_be_several(message) or not (line.file or line.procs) or line.is_request or message.startswith(("Received request", "Added request")):
        return [line]
    starts = [m.start() for m in _GLUED.finditer(message, 0, KEEP)][:200]
    if not starts:
        return [line]
    out = [line._replace(message=message[: starts[0]].rstrip())]
    for start, end in zip(starts, [*starts[1:], len(message)]):
        record = peel(message[start:end].rstrip())
        out.append(record)
        if record.is_request:
            break
    return out


def expand(raw: str, depth: int = 0) -> list[Line]:
    """Peel one physical line into the records in it: one, or those of a JSON record (docker json-file, vLLM's JSON formatter)."""
    stripped = raw.lstrip(" \t\ufeff>`")
    at = stripped.find("{") if depth == 0 else 0
    if depth < 3 and stripped[at : at + 2] in ('{"', '{ "') and (at == 0 or (at <= 160 and _json_prefix(stripped[:at]))):
        try:
            record = json.loads(stripped[at:].rstrip("`\r\n "))
        except (ValueError, RecursionError):
            record = None
        if isinstance(record, dict):
            lines = _json_lines(record, depth)
            if lines:
                return lines
    field = _FIELD.match(stripped) if depth == 0 and stripped[:1] == '"' else None
    if field is not None:  # a JSON record printed over several lines, or a list of lines that Ansible printed
        try:
            inner = json.loads(field.group(1))
        except ValueError:
            inner = None
        if isinstance(inner, str) and inner:
            return [peel(piece.rstrip()) for piece in re.split(r"\r\n|\n|\r", inner)[:2000] if piece]
    return [peel(raw)]


#: The text of a log line in a JSON record over several lines, or a string in a list.
_FIELD = re.compile(r'(?:"(?:textPayload|message|msg|log)": ?)?("(?:[^"\\]|\\.){1,65536}"),?\s*$')


def _json_prefix(prefix: str) -> bool:
    line = _peel_unlevelled(prefix)
    tag = line.message.strip()
    return not tag or (bool(line.time) and _TAG.fullmatch(tag) is not None)


def _text(record: dict[str, object], *keys: str) -> str:
    for key in keys:
        value = record.get(key)
        if isinstance(value, str):
            return value
    return ""


def _stack(record: dict[str, object]) -> str:
    """Return the traceback in a record; also one whose lines are a list."""
    value = next((record[key] for key in ("exc_info", "exception", "stack", "traceback") if record.get(key)), "")
    if isinstance(value, list):
        value = "\n".join(piece for piece in value if isinstance(piece, str))
    return value if isinstance(value, str) else ""


def _json_lines(record: dict[str, object], depth: int) -> list[Line]:
    message = _text(record, "message", "msg", "text")
    level = _text(record, "levelname", "level", "severity", "loglevel").upper() or None
    log = _text(record, "log", "textPayload")
    if not message and log:
        lines: list[Line] = []
        for piece in re.split(r"\r\n|\n|\r", log)[:2000]:
            if piece:
                lines.extend(expand(piece, depth + 1))
        if lines and not log.endswith("\n") and "stream" in record:
            lines[-1] = lines[-1]._replace(partial=True)
        return lines
    if not message and not _stack(record):
        return []
    if level is not None:
        level = {"WARN": "WARNING", "NOTICE": "INFO", "ERR": "ERROR", "TRACE": "DEBUG"}.get(level, level)
    file = _text(record, "filename", "file", "pathname").rsplit("/", 1)[-1]
    name = _text(record, "name", "logger", "logger_name")
    if not file and name.startswith("vllm."):
        file = name.rsplit(".", 1)[-1] + ".py"
    pid = record.get("process", record.get("pid"))
    proc = _text(record, "vllm_process_name", "processName", "process_name")
    procs = ((proc, str(pid), ""),) if isinstance(pid, (int, str)) and not isinstance(pid, bool) and proc else ()
    stamp = _text(record, "asctime", "time", "timestamp", "ts")
    found = _TIMESTAMP.search(stamp)
    stamp = found.group(1)[5:].replace("T", " ").replace("/", "-") if found else stamp[:14]
    foreign = bool(name) and not re.match(r"vllm|uvicorn|root|torch|ray|__main__", name)
    out: list[Line] = []
    for text, at_level in ((message, level), (_stack(record), "ERROR")):
        for piece in re.split(r"\r\n|\n|\r", text)[:2000]:
            piece = strip_ansi(piece)
            if not piece:
                continue
            if not foreign:
                inner = peel(piece)
                if inner.file and inner.level and not _PROC.sub("", inner.text[: inner.text.find(inner.level)]).strip():
                    out.append(inner)
                    continue
                if not file and inner.level and inner.offset and not inner.procs and not inner.foreign:
                    out.append(inner)  # a collector's record of the whole line
                    continue
                if not (file or name or proc or inner.foreign) and inner.file and inner.level:
                    out.append(inner)
                    continue
                if inner.procs and not inner.file:
                    out.append(inner._replace(level=at_level or inner.level, file=file, time=stamp))
                    continue
            out.append(Line(at_level, foreign, file, stamp, procs, piece, 0, piece, False))
    return out


def cap(line: bytes) -> bytes:
    """Bound one line: its first and its last KEEP bytes."""
    if len(line) <= 2 * KEEP:
        return line
    return line[:KEEP] + line[-KEEP:]
