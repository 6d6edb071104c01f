# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Mask secrets in text and in structures that are stored or printed. Pure, in time that grows with the length of the text.

A secret is found by its value if that is known, by its own form, or by the name before it. `secret_names` decides which names are meant.
"""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any, Callable
from urllib.parse import quote, quote_plus

from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import FORMS, USER_INFO, is_plain, is_secret
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable

MASK = "********"
SHORTEST = 4  # of a known value: shorter ones are parts of words

_ANSI = re.compile(r"(?:\x1b\[|\x9b)[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[@-Z\\^_=>]")
#: JSON may write a letter of a name like this.
_ESCAPED = re.compile(r"\\u00(2[dD]|3[0-9]|[46][1-9a-fA-F]|[57][0-9aA]|5[fF])")
_KEYS_BEGIN = re.compile(r"-----BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)?-----")
_KEY_BYTES = 20000
_BASE64 = re.compile(r"[A-Za-z0-9+/=]{16,}")

_WORD = (
    r"(?:(?i:api[_\s-]?keys?|(?:access|private|secret|auth|signing|account|master|encryption)[_-]?keys?|secret|passw|passphrase|passcode|token|credential|auth"
    r"|bearer|cookie|jwt|(?<=[_-])pass|(?<=[_-])pwd)|(?<=[A-Z0-9]_)KEY(?![A-Z]))"
)
_SCHEME = r"(?:(?i:bearer|basic|token|digest|apikey|negotiate)(?:\s{1,4}|%20|\+))?"
_OPENED = r"(?:[brfu]{0,2}(?:\"\"\"|'''|\\{0,7}[\"'`]))"
_SIGN = r"(?:\s{0,8}(?:=>|:=|[=:]|%3[AaDd])(?:%20|\+)?|(?:\s{1,3}(?i:provided|given|used|value|is|was)){1,2}:?(?=\s))"
#: A name up to its value: the rest of the name, what closes a quoted one, the sign, an authentication scheme, an opening quote.
_NAMED = re.compile(rf"{_WORD}([\w.-]{{0,64}})[\\\"'`\]]{{0,8}}({_SIGN})(\s{{0,8}}(?:[>|][+-]?\s{{1,20}})?)({_SCHEME})({_OPENED}?)")
_BEFORE = re.compile(r"[\w.-]{0,64}\Z")
_FLAG = re.compile(rf"(?<![\w-])--([\w-]{{0,40}}?{_WORD}[\w-]{{0,40}})([\"']?(?:,\s{{0,8}}|\s{{0,8}}\n\s{{0,40}}-\s{{1,8}}|[ \t]{{1,8}}|=))")
_ARGUMENT = re.compile(r"(?!--)(?:\"(?:\\.|[^\"\\\n]){1,2000}\"?|'(?:\\.|[^'\\\n]){1,2000}'?|[^\s\"',\]]{1,2000})")
_NEXT_ARGUMENT = re.compile(r"(?:[\"']?,\s{0,8}|[ \t]{1,8}|\s{0,8}\n\s{0,40}-\s{1,8})(?=[^\s|>&;<-])")
_LIST = re.compile(r"\[(?:\"(?:\\.|[^\"\\\n]){0,2000}\"|'(?:\\.|[^'\\\n]){0,2000}'|[^\]\n\"']|[\"']){1,4000}\]?")
_BARE = re.compile(r"(?:[^\s\"'`,;&)}\]]|[,;)}\]](?=[^\s\"'`,;)}\]])){1,4000}")
_LINE = re.compile(r"[^\n]{1,4000}")
#: What may precede a name that begins a line: there its value goes to the end of the line.
_LINE_START = re.compile(r"(?:^|\n)(?:[\dT:.-]{19,29}Z? )?(?:\([\w =]{1,60}\) )?\s{0,40}(?:- |export |set |declare -x |> |\| )?[\"']?\Z")
_PROSE = frozenset((
    "a", "an", "the", "missing", "not", "no", "invalid", "required", "empty", "set", "unset", "wrong", "incorrect", "expired", "used", "given",
    "provided", "for", "of", "to", "in", "and", "or", "is", "was", "be", "been", "needed", "optional", "valid", "present", "absent", "masked",
    "redacted", "refused", "unknown",
))  # fmt: skip
_SHAPES = (
    re.compile(r"(?i)\b(?:bearer)\s{1,4}(?!(?:tokens?|auth\w*|scheme|header|is|and|or|in)\b)([^\s\"'`,;)}\]]{3,2000})"),
    re.compile(r"(?i)[?&][\w.%-]{0,40}(?:sig|signature|key|token|secret|passw\w{0,8}|credential|auth|code)=([^&\s\"'<>`]{1,2000})"),
    re.compile(r"\blogin\s{1,8}\S{1,100}\s{1,8}password\s{1,8}(\S{1,200})"),
    re.compile(r"\b(?:mysql\w{0,10}|mariadb)\b[^\n|;]{0,200}?\s-p([^\s\"']\S{0,200})"),
    re.compile(r"\b(?:echo|printf)\s{1,4}(?:-n\s|%s\s)?([^\n|]{1,200}?)\s{0,4}\|[^|\n]{0,120}--password-stdin"),
    re.compile(r"(?i)\bkey\s{0,4}(?:=>|\bis\b)\s{0,4}[\"']?((?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])[\w-]{6,200})(?![\w.])"),
)


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text for a terminal or a file, with known values, and values that look like a secret or have the name of one, masked."""
    return redactor(known)(text)


def redactor(known: Iterable[str] = ()) -> Callable[[str], str]:
    """Return `redact` for many texts and the same known values."""
    forms = known_forms(known)
    return lambda text: _redact(text, forms)


def _redact(text: str, forms: Iterable[str]) -> str:
    if "\x1b" in text or "\x9b" in text:
        text = _ANSI.sub("", text)
    text = _ESCAPED.sub(lambda m: chr(int(m.group(1), 16)), text)
    for form in forms:
        text = text.replace(form, MASK)
    text = _mask_keys(text)
    text = USER_INFO.sub(MASK, text)
    text = _replace(text, _NAMED, _named_value)
    text = _replace(text, _FLAG, _arguments)
    for shape in _SHAPES:
        text = shape.sub(lambda m: m.group(0).replace(m.group(1), MASK), text)
    return printable(FORMS.sub(MASK, text))


def known_forms(known: Iterable[str]) -> list[str]:
    """Return known values as they are, and as JSON, repr, URLs, a shell and base64 write them, the longest first."""
    out: set[str] = set()
    for value in {each for each in known if len(each) >= SHORTEST}:
        data = value.encode("utf-8", "surrogateescape")
        out.update((value, json.dumps(value)[1:-1], json.dumps(value, ensure_ascii=False)[1:-1], repr(value)[1:-1], shlex.quote(value)))
        out.update((quote(data), quote(data, safe=""), quote_plus(data), json.dumps(json.dumps(value)[1:-1])[1:-1]))
        for before in range(3):  # the value within a longer text, by its place in the groups of three bytes
            begin, end = (before * 4 + 2) // 3, (before + len(data)) // 3 * 4
            for encode in (base64.b64encode, base64.urlsafe_b64encode):
                whole = encode(b"\0" * before + data).decode()[begin:end]
                out.update([whole] if len(whole) >= 6 else [])
        out.update((base64.b64encode(data).decode(), base64.urlsafe_b64encode(data).decode()))
    return sorted(out, key=len, reverse=True)


def masked(value: Any, known: Iterable[str] = ()) -> Any:
    """Return a structure of mappings, lists and strings with its secrets masked: by key, by `NAME=value`, by the argument before, and by value."""
    return _masked(value, known_forms(known))


def _masked(value: Any, forms: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {key: MASK if _hidden(str(key), each) else _masked(each, forms) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        out, after_flag = [], False
        for each in value:
            text = each if isinstance(each, str) else ""
            flag = text.startswith("--")
            name, sign, content = text.lstrip("-").partition("=")
            if after_flag and not flag:
                out.append(MASK if text else _masked(each, forms))
            elif sign and re.fullmatch(r"[\w.-]{1,200}", name) and is_secret(name, content):
                out.append(f"{text[: len(text) - len(content)]}{MASK}" if content else each)
            else:
                out.append(_masked(each, forms))
            after_flag = (flag and not sign and is_secret(text)) or (after_flag and not flag)
        return out
    return _redact(value, forms) if isinstance(value, str) else value


def _hidden(key: str, value: Any) -> bool:
    """Whether the value of a key is a secret as a whole."""
    if isinstance(value, (list, tuple)):
        return bool(value) and is_secret(key)
    return isinstance(value, str) and bool(value) and is_secret(key, value)


# --- values by their names


def _replace(text: str, pattern: re.Pattern[str], find: Any) -> str:
    """Mask the parts that `find` returns for the matches of a pattern, from the left, never one within another."""
    out, done = [], 0
    for match in pattern.finditer(text):
        if match.start() < done:
            continue
        for begin, end in find(text, match):
            out += [text[done:begin], MASK]
            done = end
    return "".join([*out, text[done:]])


def _named_value(text: str, match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the place of the value that follows a name."""
    before = _BEFORE.search(text, max(0, match.start() - 64), match.start())
    begin = before.start() if before is not None else match.start()
    name = text[begin : match.end(1)]
    sign, gap, scheme, opened, at = match.group(2), match.group(3), match.group(4), match.group(5), match.end()
    prose = sign[-1:].isalpha()
    if opened:
        end = _closing(text, at, opened)
    elif text.startswith("[", at):
        at, end = _inside(at, _LIST.match(text, at))
    elif text.startswith("{", at):
        return []
    else:
        found = _BARE.match(text, at)
        alone = not prose and not scheme and "\n" not in gap and _LINE_START.search(text, max(0, begin - 120), begin) is not None
        if alone and found is not None and not is_plain(found[0]):
            found = _LINE.match(text, at)
        end = at if found is None else found.end() - (len(found[0]) - len(found[0].rstrip(" \t\r.;,")))
    value = text[at:end]
    if not value or value == MASK or _is_plain_of(name, value) or (prose and value.lower() in _PROSE) or not is_secret(name, value):
        return []
    return [(at, end)]


def _is_plain_of(name: str, value: str) -> bool:
    """Whether the value of a name with the look of a secret is none: nothing, a switch, or a count of tokens."""
    return is_plain(value) and (value.strip().lower() in ("none", "null", "true", "false", "auto", "") or "token" in name.lower())


def _closing(text: str, at: int, opened: str) -> int:
    """Return where a quoted value ends: at its closing quote, or with the line."""
    mark = opened.lstrip("brfu")
    line_end = text.find("\n", at, at + 4000)
    limit = line_end if line_end >= 0 else min(len(text), at + 4000)
    if len(mark) == 3:
        limit = min(len(text), at + 4000)
    end = at
    while True:
        end = text.find(mark, end, limit)
        if end < 0:
            return limit
        slashes = len(text[at:end]) - len(text[at:end].rstrip("\\"))
        if len(mark) != 1 or slashes % 2 == 0:
            return end
        end += 1


def _inside(at: int, match: re.Match[str] | None) -> tuple[int, int]:
    """Return the place of what a list contains."""
    if match is None:
        return at, at
    return at + 1, match.end() - (1 if match[0].endswith("]") and len(match[0]) > 1 else 0)


def _arguments(text: str, match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the places of the values of an argument that is named like a secret."""
    if not is_secret(match.group(1), "x"):
        return []
    out: list[tuple[int, int]] = []
    at = match.end()
    while len(out) < 8:
        if match.group(2)[:1] in "\"'" and text[at : at + 1] in "\"'" and text[at + 1 : at + 2] == "-":
            break  # the next flag of a list of quoted words
        found = _ARGUMENT.match(text, at)
        if found is None:
            break
        quoted = found[0][:1] in "\"'"
        closed = quoted and len(found[0]) > 1 and found[0][-1] == found[0][0]
        if found[0].strip("\"'") != MASK:
            out.append((found.start() + quoted, found.end() - closed))
        more = _NEXT_ARGUMENT.match(text, found.end())
        if more is None or match.group(2) == "=":
            break
        at = more.end()
    return out


def _mask_keys(text: str) -> str:
    """Mask private keys in PEM form; one without its end up to the next one, within 20,000 characters."""
    out, done = [], 0
    for match in _KEYS_BEGIN.finditer(text):
        if match.start() < done:
            continue
        limit = min(len(text), match.end() + _KEY_BYTES)
        end = text.find("-----END", match.end(), limit)
        out.append(text[done : match.end()])
        if end >= 0:
            out.append(MASK)
            done = end
        else:
            following = text.find("-----BEGIN", match.end(), limit)
            done = following if following >= 0 else limit
            out.append(_BASE64.sub(MASK, text[match.end() : done]))
    return "".join([*out, text[done:]])
