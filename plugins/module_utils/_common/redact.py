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
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import accumulate
from typing import Any, Callable
from urllib.parse import quote, quote_plus

from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import (
    FORMS,
    USER_INFO,
    is_generated,
    is_plain,
    is_secret,
    is_secret_in_text,
)
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable

MASK = "********"
SHORTEST = 4  # of a known value: shorter ones are parts of words

_ANSI = re.compile(
    r"(?:\x1b\[|\x9b)[0-9;?]{0,40}[ -/]{0,4}[@-~]|\x1b\][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|\x1b[()][0-9A-B]|\x1b[@-Z\\^_=>]|[\x08]"
    r"|(?:\\{1,4}(?:x1[bB]|u001[bB]|033|e)|\^\[|#033)\[[0-9;]{0,40}m"
)
#: A character as URLs, JSON, Python and HTML write it, also several times over, and those that look like another one or like nothing.
_ENCODED = re.compile(
    r"%(?:25){0,4}([2-7][0-9a-fA-F])|\\{1,16}(?:u00|x|U000000|u\{)([2-7][0-9a-fA-F])\}?|&(?:amp;){0,3}#(?:x([2-7][0-9a-fA-F])|(\d{2,3}));"
    r"|&(?:amp;){0,3}(quot|apos|amp|lt|gt);|([\u200b-\u200d\u2060\ufeff\u00ad])|([“”‘’：＝\u00a0])"
)
#: A line end that a terminal of 80 columns or a table made. Known values are searched for without it.
_WRAPPED = re.compile(r"(?<=[^\n]{60})\n[ \t]{0,40}(?:[|│>] )?")
_ENTITIES = {"quot": '"', "apos": "'", "amp": "&", "lt": "<", "gt": ">", "“": '"', "”": '"', "‘": "'", "’": "'", "：": ":", "＝": "=", "\u00a0": " "}
_KEYS_BEGIN = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}|PuTTY-User-Key-File-\d")
_KEYS_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY|Private-MAC: ?[0-9a-f]{8,128}")
_KEY_BYTES = 20000
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{2,}={1,2}(?![\w=])")

_WORD = re.compile(
    r"(?=[abchjkmopstABCHJKMOPST]|(?<=[?&])\w)(?i:(?:api|secret|access|auth)[\s.:]keys?|secret|passw|passphrase|passcode|kennwort|token|credential|creds|auth|bearer|cookie|jwt|keys?(?![a-z])|pass(?![a-z])"
    r"|pwd|pw(?![a-z])|pat(?![a-z])|psk|salt|sess(?:ion)?[ _]?(?:id)?(?![a-z])|\bsid|otp|sig(?![a-z])|signature|hmac|ticket|mnemonic|SAMLResponse"
    r"|code(?==)|(?<=[?&])\w{1,20}(?==))"
)
_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-@"
_REST = re.compile(r"(?: ID(?=\s?[:=]))?((?:[\w-]|\.(?=\w)){0,64}(?:\[\d{1,4}\])?)[\\\"'`\]*]{0,8}(?:\[[\\\"']{1,4}value[\\\"']{1,4}\])?")
#: What stands between a name and its value: `= : =>`, a hint of a type, the key `value`, or the end of an XML element.
_SIGN = re.compile(
    r"\s{0,8}:\s{0,3}[A-Za-z_]\w{0,20}(?:\[\w{1,20}\])?\s{1,3}=(?=\s)|\s{0,40}(?:={1,2}>|:=|={1,2}|:{1,2}|-{1,2}>)"
    r"|[\s,\"'{/>]{1,60}(?:\w{1,12}=[\"']?\w{1,20}[\"']?\s{1,3})?[\\\"']{0,4}(?i:value|default)[\\\"']{0,4}\s{0,3}[:=]"
    r"|\"\r?\n\r?\n|\n  [^\n]{1,300}?\binput_value="
)
_MARKUP = re.compile(r"(?:\s[^<>\n]{0,80})?>\s{0,40}(?:<!\[CDATA\[)?(?=[^<]{1,4000}</|[^<\]]{1,4000}\]\]>)|</\w{1,20}>\s{0,40}<\w{1,20}>(?=[^<]{1,4000}</)")
_ELEMENT = re.compile(r"[^<\]]{1,4000}")
#: Between a name and a value in prose and in tables. Such a value has to look like one.
_PROSE_SIGN = re.compile(
    r"(?:[ \t]{0,2}[,|│][ \t]{0,40}|[ \t]{0,3}\.{3,60}|[ \t]{1,60}(?:(?:[-—–→|│]|-{1,2}>)[ \t]{1,8})?|[ \t]?(?=[(<]))(?:/M )?"
    r"(?:(?i:is|was|now|set|to|from|changed|given|provided|used|value|with|you|equals|as"
    r"|for (?:key )?[^\s:]{1,60}|of [^\s:]{1,60})(?::?[ \t]{1,4}|(?=:))){0,6}:?[ \t]{0,4}[(<\[]?"
)
_SCHEME = r"((?i:bearer|basic|token|digest|api-?key|negotiate|ntlm|hmac|oauth|shared\w{3,20}|aws4[\w-]{0,20})(?:\s{1,4}|\+))?"
_CALL = r"(?:string\(\d{1,5}\) (?=\"))?(?:[A-Za-z_][\w.:]{0,40}\((?:\w{1,20}=)?(?=[\[{\\\"'`]))?"
#: What stands before a value itself: YAML's marks, an authentication scheme, a call such as SecretStr(, an opening quote.
_LEAD = re.compile(
    rf"(\s{{0,8}}(?:(?:[|>][+-]?\d?[+-]?|&\w{{1,40}}|!\S{{1,40}})\s{{1,20}}){{0,3}}){_SCHEME}{_CALL}\$?([brfu]{{0,2}}(?:\"{{3}}|'{{3}}|\\{{0,7}}[\"'`]))?"
)
_BLOCK = re.compile(r"[ \t]{0,8}(?:(?:[|>][+-]?\d?[+-]?|&\w{1,40}|!\S{1,40})[ \t]{0,8}){0,3}(?:#[^\n]{0,200})?\n")
_NEXT_QUOTED = re.compile(r"[\"']\s{1,3}(?:-> )?[\"']")
_BRACKETS = re.compile(r"\\{0,7}\"(?:\\\\|\\[^\"]|[^\"\\\n]){0,1000}\\{0,7}\"|'(?:\\.|[^'\\\n]){0,1000}'|[\[({]|[\])}]")
_BARE = re.compile(r"(?:[^\s\"'`,;&)}\]]|(?:[,;&)}\]]{1,8}|[\"'`])(?=[^\s\"'`,;&)}\]])){1,4000}")
_LINE = re.compile(r"[^\n]{1,4000}")
#: What may precede a name that begins a line: there its value goes to the end of the line.
_LINE_START = re.compile(r"(?:[\dT:.-]{19,29}Z? )?(?:\([\w =]{1,60}\) )?\s{0,40}(?:- |export |set |declare -x |> |\| )?[\"']?")
_MIXED = re.compile(r"[A-Za-z]\d|\d[A-Za-z]")
_PROSE = frozenset((
    "a", "an", "the", "missing", "not", "no", "invalid", "required", "empty", "set", "unset", "wrong", "incorrect", "expired", "used", "given",
    "provided", "for", "of", "to", "in", "and", "or", "is", "was", "be", "been", "needed", "optional", "valid", "present", "absent", "masked",
    "redacted", "refused", "unknown", "expected", "permission", "must", "cannot", "has", "are", "sent",
))  # fmt: skip
_FLAG = re.compile(r"(?<![\w-])--?([A-Za-z][\w.-]{0,80})(\\{0,7}[\"']?(?:,\s{0,80}|\s{0,8}\\?\n\s{0,40}(?:- {1,8})?|[ \t]{1,8}|\x00|=))")
_ARGUMENT = re.compile(r"(?!--)(?:\\{1,7}\"[^\"\\\n]{1,2000}\\{1,7}\"|\"(?:\\.|[^\"\\\n]){1,2000}\"?|'(?:\\.|[^'\\\n]){1,2000}'?|[^\s\"',\]\x00]{1,2000})")
_NEXT_ARGUMENT = re.compile(r"(?:\\{0,7}[\"']?,\s{0,80}|[ \t]{1,8}|\x00|\s{0,8}\n\s{0,40}-\s{1,8})(?=[^\s|>&;<-])")
#: A letter for a password or a user, and the tools it is one of. They are searched for in the 200 characters before.
_SHORT = re.compile(
    r"(?<=[\s\"'])-(?:[pPaw]|b [^\s]{1,80} [^\s]{1,80}(?= )|passin|passout|pass)[ ,\"']{0,4}((?:pass:)?[^\s\"']{2,200})"
    r"|\s(?:-[uU]|--(?:proxy-)?user)[ =]?[\"']?[^\s:%\"']{1,100}[:%]([^\s\"']{1,200})"
)
_TOOLS = re.compile(
    r"(?:\b(?:mysql\w{0,10}|mariadb\w{0,10}|sshpass|mongo\w{0,8}|ldap\w{2,8}|mosquitto_\w{3}|ipmitool|(?:un)?zip|7z\w?|redis-cli|htpasswd|openssl)\b"
    r"|\b(?:docker|podman|az|oc|helm) (?:registry )?login\b)[^\n|;]*\Z"
)
_USER_TOOLS = re.compile(r"\b(?:curl|wget|https?|smbclient|rpcclient)\b[^\n|;]*\Z")
_SHAPES = (
    re.compile(r"(?i)\bbearer[\s,]{1,4}[\"']?(?!(?:tokens?|auth\w*|scheme|header|is|and|or|in|of)\b)([^\s\"'`,;)}\]]{3,2000})"),
    re.compile(r"\blogin\s{1,8}\S{1,100}\s{1,8}(?:account\s{1,8}\S{1,100}\s{1,8})?password\s{1,8}(\S{1,200})"),
    re.compile(r"\b(?:echo|printf)\s{1,4}(?:-n\s|%s\s)?([^\n|]{1,200}?)\s{0,4}\|[^|\n]{0,120}(?:--password-stdin|sudo -S|chpasswd)"),
    re.compile(r"(?i)\bkey\s{0,4}(?:=>|\bis\b)\s{0,4}[\"']?((?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])[\w-]{6,200})(?![\w.])"),
    re.compile(r"\bwandb\W{1,4}login\W{1,4}(?:--relogin )?([0-9a-f]{32,64})\b"),
    re.compile(r"[\"'](?:(?<=\blogin\(.)|(?<=ConvertTo-SecureString .)|(?i:(?<=\bidentified by .)|(?<=\bwith password .)))([^\"'\n]{4,200})[\"']"),
    re.compile(r"\"[kd]\"\s?:\s?\"([\w-]{10,2000})\""),
)
#: The value stands before its name: {"value": "x", "name": "api_key"}, or "x is not a valid API key".
_REVERSED = re.compile(
    r"(?:\"value\"|'value')\s?:\s?[\"']([^\"'\n]{1,2000})[\"'],\s{1,20}[\"'](?:name|key)[\"']\s?:\s?[\"']([\w.-]{1,64})"
    r"| is not a valid (?i:api[ _-]key|(?:\w{1,10} )?token|password)"
)
#: host:port:database:user:password, as in .pgpass
_PGPASS = re.compile(r"(?m)^(?:[^\s:]{1,100}):(?:\d{1,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(\S{1,200})$")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text for a terminal or a file, with known values, and values that look like a secret or have the name of one, masked."""
    return redactor(known)(text)


def redactor(known: Iterable[str] = ()) -> Callable[[str], str]:
    """Return `redact` for many texts and the same known values."""
    forms = known_forms(known)
    return lambda text: _redact(text, forms)


def _redact(text: str, forms: Iterable[str]) -> str:
    text = _ANSI.sub("", text)
    for form in forms:
        text = text.replace(form, MASK)
    view, places = _decoded(text)
    spans = [*_key_spans(view), *_named(view), *_flags(view), *_short_flags(view), *_reversed(view)]
    for pattern in (USER_INFO, FORMS):
        spans += [match.span() for match in pattern.finditer(view)]
    for shape in (*_SHAPES, _PGPASS):
        spans += [match.span(1) for match in shape.finditer(view)]
    if places:
        spans += _places_of(forms, view)
    # A value that is found by its name is masked without it as well.
    values = {view[begin:end] for begin, end in spans if 8 <= end - begin <= 200}
    spans += _places_of([value for value in sorted(values)[:50] if is_generated(value) and " " not in value], view)
    text = _without(text, view, places, spans)
    joined, places = _decoded(text, _WRAPPED) if forms else (text, [])
    return printable(_without(text, joined, places, _places_of(forms, joined)) if places else text)


def _places_of(values: Iterable[str], text: str) -> list[tuple[int, int]]:
    return [match.span() for value in values for match in re.finditer(re.escape(value), text)]


def _decoded(text: str, encoded: re.Pattern[str] = _ENCODED) -> tuple[str, list[tuple[int, int]]]:
    """Return the text without encodings of characters, and pairs of a place in it and the place in the text where a stretch begins."""
    out: list[str] = []
    places: list[tuple[int, int]] = []
    done = size = 0
    for match in encoded.finditer(text):
        kind = match.lastindex or 0
        code = match.group(kind)
        letter = "" if not kind else chr(int(code, 16)) if kind < 4 else chr(int(code)) if kind == 4 else _ENTITIES.get(code, "")
        plain = text[done : match.start()]
        out += [plain, letter]
        places += [(size, done), (size + len(plain), match.start())]
        size += len(plain) + len(letter)
        done = match.end()
    return ("".join([*out, text[done:]]), [*places, (size, done)]) if places else (text, [])


def _without(text: str, view: str, places: list[tuple[int, int]], spans: list[tuple[int, int]]) -> str:
    """Return the text with the spans of the view masked. What is masked already stays."""
    starts = [place for place, _at in places]

    def at(place: int, end: bool) -> int:
        if not places:
            return place
        index = (bisect_left(starts, place) if end else bisect_right(starts, place)) - 1
        begin, source = places[max(index, 0)]
        following = places[index + 1] if index + 1 < len(places) else (0, len(text))
        return min(source + place - begin, following[1]) if not end or place != following[0] else following[1]

    out, done = [], 0
    for begin, end in sorted(span for span in spans if span[0] < span[1] and not view.startswith(MASK, span[0])):
        first, last = max(at(begin, False), done), at(end, True)
        if last <= first:
            continue
        out += [text[done:first]] if first == done and out else [text[done:first], MASK]
        done = last
    return "".join([*out, text[done:]])


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
        short = {bisect_right(ends, begin) for begin, _end in _short_flags(" ".join(words))}
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
    return _redact(value, forms) if isinstance(value, str) else value


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


# --- values by their names


def _named(text: str) -> list[tuple[int, int]]:
    """Return the places of the values that follow a name."""
    out: list[tuple[int, int]] = []
    done = near = 0
    for match in _WORD.finditer(text):
        if match.start() < done:
            continue
        before = text[max(0, match.start() - 64) : match.start()]
        begin = match.start() - (len(before) - len(before.rstrip(_NAME)))
        rest = _REST.match(text, match.end())
        if rest is None:
            continue
        done = rest.end(1)
        if near < done:  # where letters and digits meet next, as they do in a generated value
            mixed = _MIXED.search(text, done)
            near = len(text) if mixed is None else mixed.start()
        spans = _value(text, begin, text[begin : rest.end(1)], rest.end(), near)
        out += spans
        done = max([done, *(end for _begin, end in spans)])
    return out


@lru_cache(maxsize=1024)
def _is_sure(name: str) -> bool:
    """Whether the name alone makes a secret of its value."""
    return is_secret_in_text(name, "x")


def _value(text: str, begin: int, name: str, at: int, near: int) -> list[tuple[int, int]]:
    """Return the places of the value of one name, whose end is `at`."""
    sure = _is_sure(name)
    if not sure and (near > at + 120 or not is_generated(text[at : at + 120])):
        return []  # nothing that could be a secret is near
    sign = _SIGN.match(text, at) or (_MARKUP.match(text, at) if "<" in text[max(0, begin - 40) : begin] or text.startswith("</", at) else None)
    if sign is None:
        return _in_prose(text, name, at) if near < at + 200 else []
    if (text[sign.end() - 1] == ">" and sign.re is _MARKUP) or text[sign.end() - 1] == "[":
        found = _ELEMENT.match(text, sign.end())
        return [found.span()] if found is not None and is_secret_in_text(name, found[0]) else []
    at = sign.end()
    block = _BLOCK.match(text, at) if sure else None
    if block is not None:
        spans = _indented(text, begin, block.end())
        if spans and is_secret_in_text(name, "\n".join(text[first:last].lstrip("- ") for first, last in spans)):
            return spans
    lead = _LEAD.match(text, at)
    assert lead is not None  # every part of it may be empty
    first, last, whole = _extent(text, begin, lead)
    value = text[first:last]
    if not value or value.startswith(MASK) or _is_none(name, value, whole) or not is_secret_in_text(name, value):
        return []
    over_the_end = "\n" in lead.group(1) and whole and not lead.group(3)
    if over_the_end and not is_generated(value, 1):
        return []
    if whole and begin >= 2 and text.startswith("--", begin - 2) and sign[0] == ":" and not is_generated(value, 1):
        return []  # a message of argparse
    more = _NEXT_QUOTED.match(text, last) if lead.group(3) else None
    return [(first, last), (more.end(), _closing(text, more.end(), more[0][-1]))] if more is not None else [(first, last)]


def _extent(text: str, begin: int, lead: re.Match[str]) -> tuple[int, int, bool]:
    """Return where a value begins and ends, and whether it is without quotes and brackets."""
    at, opened = lead.end(), lead.group(3)
    if opened:
        return at, _closing(text, at, opened), False
    if text.startswith(("[", "{", "("), at):
        return at + 1, _balanced(text, at), False
    found = _BARE.match(text, at)
    if found is None:
        return at, at, True
    alone = "\n" not in lead.group(1) and not is_plain(found[0]) and (not lead.group(2) or not lead.group(2).lower().startswith(("bearer", "token", "basic")))
    line = text.rfind("\n", max(0, begin - 120), begin) + 1
    if alone and (line or begin <= 120) and _LINE_START.fullmatch(text, line, begin) is not None:
        found = _LINE.match(text, at) or found
    return at, found.end() - (len(found[0]) - len(found[0].rstrip(" \t\r.;,"))), True


def _in_prose(text: str, name: str, at: int) -> list[tuple[int, int]]:
    """Return the place of a value that follows a name in a sentence or in a table. It has to look like one."""
    sign = _PROSE_SIGN.match(text, at)
    lead = None if sign is None else _LEAD.match(text, sign.end())
    if sign is None or lead is None or "\n" in lead.group(1):
        return []
    found = None if lead.group(3) else _BARE.match(text, lead.end())
    end = _closing(text, lead.end(), lead.group(3)) if lead.group(3) else lead.end() if found is None else found.end()
    value = text[lead.end() : end].rstrip(" .;,>:|│)")
    if value.startswith(("--", MASK)) or not is_generated(value, 1) or not is_secret_in_text(name, value) or _is_name(value):
        return []
    if name.lower() in ("key", "keys") and re.fullmatch(r"[0-9a-f]+", value):
        return []  # a digest that something is kept under
    return [(lead.end(), lead.end() + len(value))]


def _is_name(value: str) -> bool:
    """Whether a value is the name of a variable: HF_TOKEN, vllm_tp2_extra_env."""
    return re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+|[a-z0-9]+(?:_[a-z0-9]+){2,}", value) is not None


def _is_none(name: str, value: str, whole: bool) -> bool:
    """Whether the value of a name with the look of a secret is none: nothing, a switch, a count of tokens, a word of a message, or code."""
    if is_plain(value):
        return value.strip().lower() in ("none", "null", "true", "false", "auto", "") or "token" in name.lower()
    first = value.split(None, 1)[0].lower().rstrip(".,:")
    same = re.split(r"[.\s]", value.rstrip(")]} "))[-1].lower() == re.split(r"[.]", name)[-1].lower()
    return whole and (first in _PROSE or _is_name(value) or (same and re.fullmatch(r"[\w.\]})]+", value) is not None))


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


def _balanced(text: str, at: int) -> int:
    """Return where the contents of brackets end: at their closing one, or after 2,000 characters."""
    depth, limit = 0, min(len(text), at + 2000)
    for match in _BRACKETS.finditer(text, at, limit):
        if match[0] in "[({":
            depth += 1
        elif match[0] in "])}":
            depth -= 1
            if depth == 0:
                return match.start()
    return limit


def _indented(text: str, begin: int, at: int) -> list[tuple[int, int]]:
    """Return the lines of a block of YAML: those that begin further right than the name, and items of a list below it."""
    start = text.rfind("\n", max(0, begin - 200), begin) + 1
    before = text[start:begin].rstrip("\"'")
    if before.strip(" -"):
        return []
    out: list[tuple[int, int]] = []
    limit = min(len(text), at + 4000)
    while at < limit:
        end = text.find("\n", at, limit)
        end = limit if end < 0 else end
        line = text[at:end]
        content = line.lstrip(" ")
        indent = len(line) - len(content)
        if content and not (indent > len(before) or (content.startswith("- ") and indent >= len(before))):
            break
        if content and not content.startswith(MASK):
            out.append((at + indent + 2 * content.startswith("- "), end))
        at = end + 1
    return out


# --- values by the argument before


def _flags(text: str) -> list[tuple[int, int]]:
    """Return the places of the values of arguments that are named like a secret."""
    out: list[tuple[int, int]] = []
    done = 0
    for match in _FLAG.finditer(text):
        if match.start() < done or not _is_secret_flag(match.group(1)):
            continue
        spans = _arguments(text, match)
        out += spans
        done = spans[-1][1] if spans else done
    return out


@lru_cache(maxsize=1024)
def _is_secret_flag(name: str) -> bool:
    return is_secret(name, "x")


def _arguments(text: str, match: re.Match[str]) -> list[tuple[int, int]]:
    """Return the places of the values of one argument."""
    out: list[tuple[int, int]] = []
    at, sign = match.end(), match.group(2)
    while len(out) < 8:
        if sign[:1] in "\"'\\" and text[at : at + 1] in "\"'" and text[at + 1 : at + 2] == "-":
            break  # the next flag of a list of quoted words
        found = _ARGUMENT.match(text, at)
        if found is None:
            break
        bare = found[0].strip("\\\"'")
        over_the_end = "\n" in sign and "- " not in sign and "\\" not in sign and "," not in sign
        if not out and (bare.lower() in _PROSE or (bare.isupper() and is_secret(bare)) or (over_the_end and not is_generated(bare, 1))):
            break
        if bare != MASK:
            begin = found[0].index(bare) if bare else 0
            out.append((found.start() + begin, found.start() + begin + len(bare)))
        more = _NEXT_ARGUMENT.match(text, found.end())
        if more is None or sign == "=" or over_the_end:
            break
        at = more.end()
    return out


def _short_flags(text: str) -> list[tuple[int, int]]:
    """Return the places of passwords after arguments of one letter, such as mysql -p and curl -u."""
    out = []
    for match in _SHORT.finditer(text):
        tools, group = (_TOOLS, 1) if match.group(1) else (_USER_TOOLS, 2)
        if tools.search(text, max(0, match.start() - 200), match.start() + 1):
            out.append(match.span(group))
    return out


def _reversed(text: str) -> list[tuple[int, int]]:
    """Return the places of values that stand before their names."""
    out = []
    for match in _REVERSED.finditer(text):
        if match.group(1):
            out += [match.span(1)] if is_secret(match.group(2), match.group(1)) else []
            continue
        words = text[max(0, match.start() - 200) : match.start()].split()
        if words and is_generated(words[-1], 1):
            out.append((match.start() - len(words[-1]), match.start()))
    return out


def _key_spans(text: str) -> list[tuple[int, int]]:
    """Return private keys in PEM form; one without its begin or its end as far as it is base64, within 20,000 characters."""
    out: list[tuple[int, int]] = []
    marks = sorted([*_KEYS_BEGIN.finditer(text), *_KEYS_END.finditer(text)], key=lambda match: match.start())
    done, begun = 0, False
    for index, mark in enumerate(marks):
        begins = mark.re is _KEYS_BEGIN
        following = marks[index + 1].start() if index + 1 < len(marks) else len(text)
        if not begins and begun and mark.start() - done < _KEY_BYTES:
            out.append((done, mark.end() if mark[0].startswith("Private-MAC") else mark.start()))
        elif not begins:
            out += [each.span() for each in _BASE64.finditer(text, max(done, mark.start() - _KEY_BYTES), mark.start())]
        if begins and not (index + 1 < len(marks) and marks[index + 1].re is _KEYS_END and following - mark.end() < _KEY_BYTES):
            out += [each.span() for each in _BASE64.finditer(text, mark.end(), min(following, mark.end() + _KEY_BYTES))]
        done, begun = mark.end(), begins
    return out
