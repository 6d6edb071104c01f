# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Find the places of secrets in a text: by the name before, by the argument before, and private keys. Pure, in linear time.

Each repetition in a pattern has a limit, and what is read twice is short: the time grows with the length of the text.
"""

from __future__ import annotations

import re
from functools import lru_cache

from ansible_collections.gb10.cluster.plugins.module_utils._common.secret_names import (
    FORMS,
    USER_INFO,
    is_generated,
    is_parameter,
    is_plain,
    is_secret,
    is_secret_in_text,
)

MASK = "********"
Spans = list[tuple[int, int]]

_KEYS_BEGIN = re.compile(r"-{4,5} ?BEGIN [A-Z0-9 ]{0,40}PRIVATE KEY(?: BLOCK)? ?-{4,5}|PuTTY-User-Key-File-\d")
_KEYS_END = re.compile(r"-{4,5} ?END [A-Z0-9 ]{0,40}PRIVATE KEY|Private-MAC: ?[0-9a-f]{8,128}")
_KEY_BYTES = 20000
_BASE64 = re.compile(r"[A-Za-z0-9+/]{16,}={0,2}|[A-Za-z0-9+/]{2,}={1,2}(?![\w=])")

_WORD = re.compile(
    r"(?=[abchjkmopstABCHJKMOPST]|(?<=[?&])\w)(?i:(?:api|secret|access|auth)[\s.:]keys?|secret|passw|passphrase|passcode|kennwort|token"
    r"|credential|creds|auth|bearer|cookie|jwt|keys?(?![a-z])|pass(?![a-z])"
    r"|pwd|pw(?![a-z])|pat(?![a-z])|psk|salt|sess(?:ion)?[ _]?(?:id)?(?![a-z])|\bsid|otp|sig(?![a-z])|signature|hmac|ticket|mnemonic|SAMLResponse"
    r"|code(?==)|(?<=[?&])\w{1,20}(?==))"
)
_NAME = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_.-@"
_REST = re.compile(r"(?: ID(?=\s?[:=]))?((?:[\w-]|\.(?=\w)){0,64}(?:\[\d{1,4}\])?)[\\\"'`\]*]{0,8}(?:\[[\\\"']{1,4}value[\\\"']{1,4}\])?")
#: What stands between a name and its value: `= : =>`, a hint of a type, the key `value`, or the end of an XML element. A heading (`== title`) does not.
_SIGN = re.compile(
    r"\s{0,8}:\s{0,3}[A-Za-z_]\w{0,20}(?:\[\w{1,20}\])?\s{1,3}=(?=\s)|(?:[^\S\n]|\n(?!\s{0,8}={2,80}[ \n])){0,40}(?:={1,2}>|:=|={1,2}|:{1,2}|-{1,2}>)"
    r"|[\s,\"'{/>]{1,60}(?:\w{1,12}=[\"']?\w{1,20}[\"']?\s{1,3})?[\\\"']{0,4}(?i:val(?:ue)?|default)[\\\"']{0,4}\s{0,3}[:=]"
    r"|\"\r?\n\r?\n|\n  [^\n]{1,300}?\binput_value="
)
_PARAMETER = re.compile(r"[^&\s\"'<>`]{1,4000}")
#: A value in quotes after a name in a sentence, or as the other one of a pair.
_QUOTED = re.compile(r"(?:[ \t]{1,3}(?=[^\n]{4,203})|,[ \t]{0,3}[bru]?(?=.[^\"'\n]{4,200}.[)\]]))([\"'`])([^\"'`\n]{4,200})\1")
_ASSIGNED = re.compile(r"\b(?:ENV|setx|setenv|set -gx|configure set|config set)[ \t]{1,4}([\w.-]{1,64})[ \t]{1,4}[\"']?([^\s\"']{1,2000})")
_MARKUP = re.compile(r"(?:\s[^<>\n]{0,80})?>\s{0,40}(?:<!\[CDATA\[)?(?=[^<]{1,4000}</|[^<\]]{1,4000}\]\]>)|</\w{1,20}>\s{0,40}<\w{1,20}>(?=[^<]{1,4000}</)")
_ELEMENT = re.compile(r"[^<\]]{1,4000}")
#: Between a name and a value in prose and in tables. Such a value has to look like one.
_PROSE_SIGN = re.compile(
    r"(?:[ \t]{0,2}[,|│][ \t]{0,40}|[ \t]{0,3}\.{3,60}|[ \t]{1,60}(?:(?:[-—–→|│]|-{1,2}>)[ \t]{1,8})?|[ \t]?(?=[(<]))(?:/M )?"
    r"(?:(?i:is|was|now|set|to|from|changed|given|provided|supplied|received|entered|used|value|with|you|equals|as|argument"
    r"|for (?:key )?[^\s:]{1,60}|of [^\s:]{1,60})(?::?[ \t]{1,4}|(?=:))){0,6}:?[ \t]{0,4}[(<\[]?"
)
#: What announces a value in a sentence: "Incorrect API key provided: ". It needs no look of a secret then.
_ANNOUNCED = re.compile(r"(?i)\b(?:given|provided|supplied|received|entered|used)[ \t]{0,4}[:(<\[]")
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
#: A call or an element of a mapping, and the begin of a call that takes the name of a secret.
_OPERAND = r"\*{0,2}[A-Za-z_][\w.\[\]]{0,60}(?:=[A-Za-z_][\w.]{0,60})?"
_CODE = re.compile(
    r"(?:await )?[A-Za-z_]\w{0,40}(?:\(\))?(?:\.[A-Za-z_]\w{0,40}){0,8}"
    rf"(?:\((?:{_OPERAND}(?:, {_OPERAND}){{0,7}})?\)|\[[\"'][A-Za-z_]{{1,60}}[\"']\])(?:\.[A-Za-z_]\w{{0,40}}(?:\(\))?){{0,4}}"
)
_LOOK_UP = re.compile(r"(?:get|getenv|pop)\([\"']\Z")
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
    r"(?<=[\s\"'])-(pass(?:in|out)?\b|[pPaw]|(?=\w{0,4}n)\w{0,3}b\w{0,2} \S{1,80}(?= )|\w{0,3}b\w{0,2} \S{1,80} \S{1,80}(?= ))"
    r"[ ,\"']{0,4}(?!-\w(?![^\s\"']))((?:pass:)?[^\s\"']{2,200})"
    r"|[\s\"'](?:-[a-zA-Z]{0,8}?[uU]|--(?:(?:proxy-)?user|cert))[ =,\"']{0,4}[^\s:%\"',]{1,100}[:%]([^\s\"']{1,200})"
)
_TOOLS = {
    letter: re.compile(rf"\b(?:{tools})\b[^\n|;]*\Z")
    for letter, tools in {
        "p": r"mysql\w{0,10}|mariadb\w{0,10}|sshpass|mongo\w{0,8}|7z\w?|user(?:add|mod)|cqlsh|racadm|(?:docker|podman|az|oc|helm) (?:registry )?login",
        "P": r"ipmitool|(?:un)?zip|mosquitto_\w{3}|sqlcmd|bcp",
        "a": r"redis-cli",
        "w": r"ldap\w{2,8}",
        "b": r"htpasswd",
        "word": r"openssl",
    }.items()
}
_USER_TOOLS = re.compile(r"\b(?:curl|wget|https?|smbclient|rpcclient|etcdctl|ctr)\b[^\n|;]*\Z")
#: What reads a password from its standard input.
_READERS = (
    r"(?:--password-stdin|\bsudo (?:-\S{1,20} ){0,4}(?:-\w{0,4}S|--stdin)\b|(?<![/\w])(?<!getent )\w{0,3}passwd\b|\bcryptsetup\b|\bkinit\b|\bsu -"
    r"|--passphrase-fd\b)"
)
_WORD_OR_QUOTED = r"(?:\"([^\"\n]{1,200})|'([^'\n]{1,200})|([^\s\"'-][^\s\"']{0,200}))"
_HERE = re.compile(rf"<<(?:<\s{{0,2}}{_WORD_OR_QUOTED}|-?\s?[\"']?\w{{1,20}}[\"']?\n([^\n]{{1,200}}(?:\n[\w.-]{{1,32}}:\S{{1,200}}){{0,9}}))")
_READS = re.compile(rf"{_READERS}[^\n|;<]*\Z")
_SHAPES = (
    re.compile(r"(?i)\bbearer[\s,]{1,4}[\"']?(?!(?:tokens?|auth\w*|scheme|header|is|and|or|in|of)\b)([^\s\"'`,;)}\]]{3,2000})"),
    re.compile(r"login\s{1,8}\S{1,100}\s{1,8}(?:account\s{1,8}\S{1,100}\s{1,8})?password\s{1,8}(\S{1,200})"),
    re.compile(rf"\b(?:echo|printf)\s{{1,4}}(?:-n\s|%s\s)?([^\n|]{{1,200}}?)\s{{0,4}}\|[^|\n]{{0,120}}?{_READERS}"),
    re.compile(
        r"\b(?:wpa_passphrase|rabbitmqctl (?:add_user|change_password)|user set password|openssl passwd|mc alias set \S{1,60} \S{1,100})"
        rf" \S{{1,100}} {_WORD_OR_QUOTED}"
    ),
    re.compile(rf"nmcli [^\n|;]{{0,200}}?[ .](?:psk|password|wep-key\d?) {_WORD_OR_QUOTED}"),
    re.compile(rf"(?m)^\s{{0,40}}(?:requirepass|masterauth|bindpw|rootpw)\s{{1,8}}{_WORD_OR_QUOTED}[\"']?\r?$"),
    re.compile(r"vault login (?:-\S{1,60} )?(?=\S{0,40}\d)([\w.][\w.-]{7,200})"),
    re.compile(r"(?i)\bkey\s{0,4}(?:=>|\bis\b)\s{0,4}[\"']?((?=[\w-]{0,40}\d)(?=[\w-]{0,40}[A-Za-z])[\w-]{6,200})(?![\w.])"),
    re.compile(r"wandb\W{1,4}login\W{1,4}(?:--relogin )?([0-9a-f]{32,64})\b"),
    re.compile(
        r"[\"'](?:(?<=\blogin\(.)|(?<=ConvertTo-SecureString .)|(?<=encrypt_string .)|(?i:(?<=\bidentified by .)|(?<=\bwith password .)))"
        r"([^\"'\n]{4,200})[\"']"
    ),
    re.compile(
        r"(?i)\b(?:user(?:_?name)?|login|email)[\"']?\s{0,3}[:=]\s{0,3}[\"']?[^\s\"',;]{1,80}[\"']?[\s,;&]{1,20}[\"']?(?:pass|pwd|pw)[\"']?"
        r"\s{0,3}[:=]\s{0,3}"
        r"(?:\"([^\"\n]{1,200})|'([^'\n]{1,200})|([^\s\"',;&}]{1,200}))"
    ),
    re.compile(r"BasicAuth\([^)\n]{0,100},\s?[\"']([^\"'\n]{1,200})[\"']"),
    re.compile(r"\"[kd]\"\s?:\s?\"([\w-]{10,2000})\""),
)
#: The value stands before its name: {"value": "x", "name": "api_key"}, or "x is not a valid API key".
_REVERSED = re.compile(
    r"(?:\"value\"|'value')\s?:\s?[\"']([^\"'\n]{1,2000})[\"'],\s{1,20}[\"'](?:name|key)[\"']\s?:\s?[\"']([\w.-]{1,64})"
    r"| is not a valid (?i:api[ _-]key|(?:\w{1,10} )?token|password)"
)
#: host:port:database:user:password, as in .pgpass
_PGPASS = re.compile(r"(?m)^(?:[^\s:]{1,100}):(?:\d{1,5}|\*):[^\s:]{1,64}:[^\s:]{1,64}:(\S{1,200})$")


def spans_of(text: str) -> Spans:
    """Return where the secrets are, in any order; the spans can overlap."""
    assigned = [match.span(2) for match in _ASSIGNED.finditer(text) if is_secret(match[1], "x")]
    out = [*assigned, *_key_spans(text), *_named(text), *_flags(text), *short_flags(text), *_reversed(text)]
    for pattern in (USER_INFO, FORMS) if "@" in text else (FORMS,):
        out += [match.span() for match in pattern.finditer(text)]
    for shape in (*_SHAPES, _PGPASS):
        out += [match.span(match.lastindex or 0) for match in shape.finditer(text)]
    return out


# --- values by their names


def _named(text: str) -> Spans:
    """Return the places of the values that follow a name."""
    out: Spans = []
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


def _value(text: str, begin: int, name: str, at: int, near: int) -> Spans:
    """Return the places of the value of one name, whose end is `at`."""
    if text[begin - 1 : begin] in ("?", "&") and text.startswith("=", at) and is_parameter(name):
        found = _PARAMETER.match(text, at + 1)
        return [] if found is None or found[0].startswith(MASK) else [found.span()]
    sure = _is_sure(name)
    if not sure and (near > at + 120 or not is_generated(text[at : at + 120])):
        return []  # nothing that could be a secret is near
    sign = _SIGN.match(text, at) or (_MARKUP.match(text, at) if "<" in text[max(0, begin - 40) : begin] or text.startswith("</", at) else None)
    if sign is None and sure:
        quoted = _QUOTED.match(text, at)
        if quoted is not None and not _is_name(quoted[2]) and ("," in quoted[0][:2] or "token" not in name.lower()):
            return [] if quoted[2].startswith(MASK) else [quoted.span(2)]
    if sign is None:
        return _in_prose(text, name, at) if sure or near < at + 200 else []
    if (text[sign.end() - 1] == ">" and sign.re is _MARKUP) or text[sign.end() - 1] == "[":
        found = _ELEMENT.match(text, sign.end())
        return [found.span()] if found is not None and is_secret_in_text(name, found[0]) else []
    at = sign.end()
    block = _BLOCK.match(text, at) if sure else None
    if block is not None:
        spans = _indented(text, begin, block.end())
        if spans and is_secret_in_text(name, "\n".join(text[first:last].lstrip("- ") for first, last in spans)):
            return spans
        if not spans and near > block.end() + 200 and text[block.end() : block.end() + 40].lstrip()[:1] not in tuple("\"'`\\[({bru"):
            return []  # it belongs to another line
    lead = _LEAD.match(text, at)
    if lead is None:  # not possible, every part of it may be empty
        return []
    first, last, whole = _extent(text, begin, lead)
    value = text[first:last]
    if not value or value.startswith(MASK) or _is_none(name, value, whole) or not is_secret_in_text(name, value):
        return []
    if not whole and name.lower().endswith("auth") and lead.group(3) is None and not is_generated(value):
        return []  # settings of an authentication
    if _is_code(value) if whole and sign[0] == " =" else _LOOK_UP.search(lead[0]) and (_is_name(value) or not is_generated(value, 1)):
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


def _in_prose(text: str, name: str, at: int) -> Spans:
    """Return the place of a value that follows a name in a sentence or in a table. It has to look like one."""
    sign = _PROSE_SIGN.match(text, at)
    lead = None if sign is None else _LEAD.match(text, sign.end())
    if sign is None or lead is None or "\n" in lead.group(1):
        return []
    found = None if lead.group(3) else _BARE.match(text, lead.end())
    end = _closing(text, lead.end(), lead.group(3)) if lead.group(3) else lead.end() if found is None else found.end()
    value = text[lead.end() : end].rstrip(" .;,>:|│)")
    announced = value and _is_sure(name) and _ANNOUNCED.search(sign[0]) is not None and not _is_none(name, value, True)
    if value.startswith(("--", MASK)) or not (announced or is_generated(value, 1)) or not is_secret_in_text(name, value) or _is_name(value):
        return []
    if name.lower() in ("key", "keys") and re.fullmatch(r"[0-9a-f]+", value):
        return []  # a digest that something is kept under
    return [(lead.end(), lead.end() + len(value))]


def _is_name(value: str) -> bool:
    """Whether a value is the name of a variable: HF_TOKEN, vllm_tp2_extra_env."""
    return re.fullmatch(r"[A-Z]+(?:_[A-Z]+)+|[a-z0-9]+(?:_[a-z0-9]+){2,}", value) is not None


def _is_code(value: str) -> bool:
    """Whether a value is the right side of an assignment, as a traceback prints the lines of a program."""
    return _CODE.fullmatch(value) is not None and not is_generated(value)


def _is_none(name: str, value: str, whole: bool) -> bool:
    """Whether the value of a name with the look of a secret is none: nothing, a switch, a count of tokens, prose, or code."""
    if re.search(r"[^s]s\Z", name.lower()) and re.fullmatch(r"\d{1,3}(?: [a-z]{1,20})?", value):
        return True  # a number of them
    if is_plain(value):
        count = "token" in name.lower() and (name.lower().endswith("s") or re.fullmatch(r"\d{6,}", value) is None)
        return count or value.strip().lower() in ("none", "null", "true", "false", "auto", "")
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


def _indented(text: str, begin: int, at: int) -> Spans:
    """Return the lines of a block of YAML: those that begin further right than the name, and items of a list below it."""
    start = text.rfind("\n", max(0, begin - 200), begin) + 1
    before = text[start:begin].rstrip("\"'")
    if before.strip(" -"):
        return []
    out: Spans = []
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


def _flags(text: str) -> Spans:
    """Return the places of the values of arguments that are named like a secret."""
    out: Spans = []
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
    return is_secret(name, "x") or name in ("pass", "pwd", "pw")


def _arguments(text: str, match: re.Match[str]) -> Spans:
    """Return the places of the values of one argument."""
    out: Spans = []
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
        if more is None or sign == "=" or over_the_end or (more[0].lstrip("\\")[:1] in ("'", '"') and not re.search("[,\"']", sign)):
            break  # a quote that was not opened after the flag ends the text around it
        at = more.end()
    return out


def short_flags(text: str) -> Spans:
    """Return the places of passwords after arguments of one letter, such as mysql -p and curl -u, and in what a shell gives to a command."""
    out = [each.span(each.lastindex or 0) for each in _HERE.finditer(text) if _READS.search(text, max(0, each.start() - 200), each.start())]
    for match in _SHORT.finditer(text):
        flag, group = match.group(1) or "", match.lastindex or 0
        tools = _TOOLS[flag if len(flag) == 1 else "word" if flag.startswith("pass") else "b"] if flag else _USER_TOOLS
        if tools.search(text, max(0, match.start() - 200), match.start() + 1):
            out.append(match.span(group))
    return out


def _reversed(text: str) -> Spans:
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


def _key_spans(text: str) -> Spans:
    """Return private keys in PEM form; one without its begin or its end as far as it is base64, within 20,000 characters."""
    out: Spans = []
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
