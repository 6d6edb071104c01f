# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Mask secrets in text and in structures that are stored or printed. Pure, in time that grows with the length of the text.

A secret is found by its value if that is known, by its own form, or by the name before it. `secret_names` decides which names are meant.
"""

from __future__ import annotations

import base64
import html
import json
import re
import shlex
from array import array
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any, Callable
from urllib.parse import quote, quote_plus

from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import is_generated, is_secret, is_secret_in_text
from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_values import MASK, Spans, short_flags, spans_of
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable

SHORTEST = 4  # of a known value: shorter ones are parts of words
PIECE, AROUND = 256 << 10, 32 << 10  # characters
VALUES = 50  # that are masked without their names too

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b\n]{0,4096}(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[@-Z\\^_=>]|[\x08]"
    r"|(?:\\{1,4}(?:x1[bB]|u001[bB]|033|e)|\^\[|#033)\[[0-9;]{0,40}m"
)
#: Characters that look like nothing.
_INVISIBLE = re.compile("[\u200b-\u200d\u2060\ufeff\u00ad]{1,4096}")
#: A character as URLs, JSON, Python and HTML write it, also several times over, and those that look like another one.
_ENCODED = re.compile(
    r"%(?:25){0,4}([2-7][0-9a-fA-F])|\\{1,16}(?:u00|x|U000000|u\{)([2-7][0-9a-fA-F])\}?|&(?:amp;){0,3}#(?:x([2-7][0-9a-fA-F])|(\d{2,3}));"
    r"|&(?:amp;){0,3}(quot|apos|amp|lt|gt);|([\u201c\u201d\u2018\u2019：＝\u00a0])"
)
#: A line end that a terminal of 80 columns or a table made. Known values are searched for without it.
_WRAPPED = re.compile(r"(?<=[^\n]{60})\n[ \t]{0,40}(?:[|│>] )?")
_ENTITIES = {
    "quot": '"', "apos": "'", "amp": "&", "lt": "<", "gt": ">",
    "\u201c": '"', "\u201d": '"', "\u2018": "'", "\u2019": "'", "：": ":", "＝": "=", "\u00a0": " ",
}  # fmt: skip


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text for a terminal or a file, with known values, and values that look like a secret or have the name of one, masked."""
    return redactor(known)(text)


def redactor(known: Iterable[str] = ()) -> Callable[[str], str]:
    """Return `redact` for many texts and the same known values. Each line keeps its place: a text has as many lines as before."""
    forms = known_forms(known)
    return lambda text: _redact([text], forms)[0]


def redact_each(texts: Sequence[str], known: Iterable[str] = ()) -> list[str]:
    """Return texts that do not belong together, each masked by itself. A value that one of them names is masked in all."""
    return _redact(texts, known_forms(known))


def _redact(texts: Sequence[str], forms: Sequence[str]) -> list[str]:
    out, values = [], set[str]()
    for text in texts:
        text = _INVISIBLE.sub("", _ANSI.sub("", text))
        for form in forms:
            text = text.replace(form, _masks(form))
        out.append("".join(_pieces(text, forms, values)))
    # A value that is found by its name is masked without it as well.
    for value in sorted(values, key=len, reverse=True):  # one can begin with another
        out = [text.replace(value, _masks(value)) for text in out]
    return [printable(text) for text in out]


def _pieces(text: str, forms: Sequence[str], values: set[str]) -> Iterator[str]:
    """Yield the masked text in pieces that end with a line, so that memory is bounded. What is around a piece is read with it. Adds to `values`."""
    begin = 0
    while begin < len(text):
        end = begin + PIECE
        end = len(text) if end >= len(text) else text.rfind("\n", begin, end) + 1 or end
        first = max(0, begin - AROUND)
        part = text[first : end + AROUND]
        spans = ((max(at, begin - first), min(to, end - first)) for at, to in _spans(part, forms, values))
        yield _without(part, begin - first, end - first, sorted(span for span in spans if span[0] < span[1]))
        begin = end


def _spans(text: str, forms: Sequence[str], values: set[str]) -> Spans:
    """Return the places of secrets in a text, also where its characters are encoded, and of known values that a line end divides."""
    view, begins, ends = _decoded(text, _ENCODED)
    spans = [span for span in spans_of(view) if span[0] < span[1] and not view.startswith(MASK, span[0])]
    found = {view[at:to] for at, to in spans if 8 <= to - at <= 200} if len(spans) < 10000 else set()
    values.update([value for value in sorted(found) if is_generated(value) and " " not in value][: max(0, VALUES - len(values))])
    if begins:
        spans = [(begins[at], ends[to - 1]) for at, to in [*spans, *_places_of([*forms, *values], view)]]
    if forms:
        joined, begins, ends = _decoded(text, _WRAPPED)
        spans += [(begins[at], ends[to - 1]) for at, to in _places_of(forms, joined)] if begins else []
    return spans


def _places_of(values: Iterable[str], text: str) -> Spans:
    return [match.span() for value in values for match in re.finditer(re.escape(value), text)]


def _decoded(text: str, encoded: re.Pattern[str]) -> tuple[str, array[int], array[int]]:
    """Return the text without encodings of characters, and where each of its characters begins and ends in the text; both are empty if there is none."""
    out: list[str] = []
    begins, ends = array("i"), array("i")
    done = 0
    for match in encoded.finditer(text):
        kind = match.lastindex or 0
        code = match.group(kind)
        letter = "" if not kind else chr(int(code, 16)) if kind < 4 else chr(int(code)) if kind == 4 else _ENTITIES.get(code, "")
        out += [text[done : match.start()], letter]
        begins.extend(range(done, match.start()))
        ends.extend(range(done + 1, match.start() + 1))
        if letter:
            begins.append(match.start())
            ends.append(match.end())
        done = match.end()
    if not out:
        return text, begins, ends
    begins.extend(range(done, len(text)))
    ends.extend(range(done + 1, len(text) + 1))
    return "".join([*out, text[done:]]), begins, ends


def _without(text: str, begin: int, end: int, spans: Spans) -> str:
    """Return a part of the text with the spans in it, which are sorted, masked."""
    out: list[str] = []
    done = begin
    for first, last in spans:
        first = max(first, done)
        if last <= first:
            continue
        mask = _masks(text[first:last])
        out += [text[done:first], mask if first > done or not out else mask.removeprefix(MASK)]
        done = last
    return "".join([*out, text[done:end]])


def _masks(text: str) -> str:
    """Return what stands for a secret: one mask for each of its lines."""
    return "\n".join(MASK if line else "" for line in text.split("\n"))


def known_forms(known: Iterable[str]) -> list[str]:
    """Return known values as they are, and as JSON, repr, URLs, a shell and base64 write them, the longest first."""
    out: set[str] = set()
    for value in {each for each in known if len(each) >= SHORTEST}:
        data = value.encode("utf-8", "surrogateescape")
        out.update((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], shlex.quote(value)))
        out.update((quote(data), quote(data, safe=""), quote_plus(data), html.escape(value), data.hex(), json.dumps(json.dumps(value)[1:-1])[1:-1]))
        for before in range(3):  # the value within a longer text, by its place in the groups of three bytes
            begin, end = (before * 4 + 2) // 3, (before + len(data)) // 3 * 4
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                whole = encode(b"\0" * before + data).decode()[begin:end]
                out.update([whole] if len(whole) >= 6 else [])
        out.update((base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()))
    return sorted(out, key=len, reverse=True)


def without(value: Any, known: Iterable[str]) -> Any:
    """Return a structure with known values masked in its texts, and nothing else changed."""
    forms = known_forms(known)

    def clean(each: Any) -> Any:
        if isinstance(each, str):
            for form in forms:
                each = each.replace(form, MASK)
            return each
        if isinstance(each, Mapping):
            return {name: clean(item) for name, item in each.items()}
        return [clean(item) for item in each] if isinstance(each, (list, tuple)) else each

    return clean(value)


def masked(value: Any, known: Iterable[str] = ()) -> Any:
    """Return a structure of mappings, lists and strings with its secrets masked: by key, by `NAME=value`, by the argument before, and by value."""
    return _masked(value, known_forms(known))


def _masked(value: Any, forms: list[str]) -> Any:
    if isinstance(value, Mapping):
        named = str(value.get("name") or value.get("Name") or value.get("key") or value.get("Key") or "")
        return {
            key: MASK if _hidden(named if str(key).lower() == "value" and is_secret(named) else str(key), each) else _masked(each, forms)
            for key, each in value.items()
        }
    if isinstance(value, (list, tuple)):
        out, after_flag = [], False
        words = [str(each) for each in value]
        ends = list(accumulate(len(word) + 1 for word in words))
        short = {bisect_right(ends, begin) for begin, _end in short_flags(" ".join(words))}
        for index, each in enumerate(value):
            text = each if isinstance(each, str) else ""
            flag = text.startswith("-") and len(text) > 2
            name, sign, content = text.lstrip("-").partition("=")
            if (after_flag and not flag) or (index in short and " " not in text):
                out.append(MASK if text else _masked(each, forms))
            elif sign and re.fullmatch(r"[\w.-]{1,200}", name) and is_secret(name, content):
                out.append(f"{text[: len(text) - len(content)]}{MASK}" if content else each)
            else:
                out.append(_masked(each, forms))
            after_flag = (flag and not sign and is_secret(text)) or (after_flag and not flag)
        return out
    return _redact([value], forms)[0] if isinstance(value, str) else value


def holds_secret(name: str, value: Any) -> bool:
    """Whether a variable or an argument must not be shown: by its name, or by anything in its value. The predicate of profiles and inventories."""
    if value is None or isinstance(value, bool):
        return False
    text = str(value)
    return is_secret(name, value) or is_secret_in_text(name, text) or (MASK not in text and MASK in str(masked(value)))


def _hidden(key: str, value: Any) -> bool:
    """Whether the value of a key is a secret as a whole."""
    if isinstance(value, (list, tuple, Mapping)):
        return bool(value) and is_secret(key) and is_secret_in_text(key, "x")
    return isinstance(value, str) and bool(value) and is_secret(key, value)
