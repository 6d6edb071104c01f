# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Markup of tools, reasoning and chat templates in a reply that the server must remove. Pure.

A reply is read in a folded form: every kind of bar is `|`, and invisible characters are absent. Names of markup have a small grammar.
Markup in code, in quotation marks, or as a part of a sentence about it is not leaked.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

INVISIBLE = "\u00ad\u200b\u200c\u200d\u2060\ufeff"
_BARS = "｜∣│❘ǀ¦┃║‖∥ǁ⏐▏❙❚︱￨⎮⎪⎥⎢⎟⎜⎸⎹▕╎╏┆┇┊┋⦀⫴⫼⸾︳￤"
_FOLD = str.maketrans({**dict.fromkeys(_BARS, "|"), "＜": "<", "＞": ">", "▁": "_", **dict.fromkeys("\\" + INVISIBLE, "")})

# Names that are markup of models only, and names that documents in XML have as well.
_THINKING = r"think(?:ing)?|think_(?:start|end|begin)|cot_\w+"
_TOOLS = (
    r"tool[_-]?calls?(?:_\w+)?|tool_(?:code|sep|uses?|results?|responses?|outputs?|list|declare\w*)|function_?calls?|function_(?:results?|response)"
    r"|available_(?:skills?|tools?|functions?)|arg_(?:key|value)|execute_tool|python_tag|(?:use|server|mcp)_\w*tool\w*"
)
_TURNS = r"im_\w+|(?:start|end)_(?:of|function)_\w+|dsml|eo[stp]|bos|sop|pad|unk|endoftext|extra_id_\d+|unused_?\d+|reserved_\w+|(?:fim|jupyter)_\w+|file_sep"
_SPACES = r"(?:minimax|mm|seed|antml|xai|steptml|longcat|dsml)[:_](?:\w+)|\w{1,20}:(?:think\w*|thought|tool_\w+|function_calls?|invoke)"
_SHARED = r"tools?|tool_\w+|invoke|function|parameter|thoughts?|reasoning|reflection|scratchpad|system-reminder"
_OWN = re.compile(f"{_SPACES}|{_THINKING}|{_TOOLS}|{_TURNS}", re.I)
_ANY = f"{_OWN.pattern}|{_SHARED}"
_ARGUMENT = re.compile(f"{_TOOLS}|{_SHARED}", re.I)  # also a name of a type in a program
_CUT = (
    *("think", "thinking", "tool_calls", "toolcall", "function_calls", "function=", "arg_key", "arg_value", "available_skills", "minimax:tool_call"),
    *("seed:think", "seed:tool_call", "mm:think", "invoke", "im_start", "im_end", "end_of_turn", "start_of_turn", "parameter="),
)
# Names of control tokens that also come with spaces around their bars. `f <| x |> g` is an operator.
_SPACED = r"im_\w+|(?:begin|end).of.\w+|endof\w+|tool.\w+(?:.\w+)?|user|assistant|system|python_tag|channel|message|start|end|return|eot_id|eom_id|eos|bos"
_BAR = r"(?:[^\w\s<>\"'=./-]|[^\x00-\x7f])"  # what stands for a bar next to DSML: a sign, or a letter that looks like one
_CONTROL = re.compile(
    rf"<\s{{0,2}}/?\s{{0,2}}(?!\s){_BAR}(?:{_BAR}|\s){{0,3}}/?\s{{0,2}}dsml[^<>\n]{{0,80}}>?"
    r"|\|dsml\||(?<!\w)dsml\|{1,2}[a-z]"  # DeepSeek: one or two bars, with spaces or line breaks
    r"|<[ ]?/?\|{1,3}/?[^\W\d][^<>|\n]{0,58}\|{0,3}/?>|<\|[\"']\|>"  # <|name|>, <|name>, </|name|>
    rf"|<\s?/?\s?\|{{1,2}}\s?(?:{_SPACED})\s?\|{{1,2}}\s?>|<[a-z][a-z_]{{1,30}}\|{{1,2}}>"
    r"|<[ ]?/?\|{1,2}\w{0,30}\|?\s*\Z|<\s\|\s?d(?:s(?:ml?)?)?\Z"  # cut at the end of the reply
    r"|(?<!\w)(?:im_(?:start|end)|endoftext|eot_id|eom_id|python_tag)\|>|\[\|/?[a-z]\w{1,30}\|\]"
    r"|◁[^◁▷\n]{1,30}▷|\]<\]\w{1,30}\[>\[|\]~!?b[\[\]]|\[e~\["  # EXAONE, Kimi, MiniMax
    r"|(?<!\w)functions\.\w{1,60}:\d{1,4}\s?[<{]|(?<!\w)to=functions\.|<0x[0-9a-f]{2}>",
    re.I,
)
_PLAIN = re.compile(rf"<[ ]?(/?)[ ]?({_ANY})(?![\w-])(>|[=\s/:][^<>]{{0,80}}>?|\Z)|<(/?)([a-z][\w:=]{{2,20}})\Z", re.I)
_BRACKET = re.compile(
    r"\[/?(?:INST|THINK|g?MASK|BOS|EOS|PAD|UNK|TOOL_?[A-Z_]+|AVAILABLE_TOOLS|END_TOOL_\w+|SYSTEM_PROMPT|CALL_ID|BEGIN FINAL RESPONSE)\]|\[ARGS\](?=\s?\{)"
    r"|\[/?tool_calls?(?:\]|:)|<<SYS>>|\A\s*analysis(?=[A-Z])|(?<![a-zA-Z])assistant(?:final|analysis|commentary)"
    r"|[.!?)\d]assistant(?:final|analysis|commentary)"
    r"|(?<=[.!?])(?:assistant|user)(?=\n|\Z)|^>>>(?:all$|\w+\n\{)|[a-z][.,]?[ĠĊ](?=[A-Za-z])|^```tool_(?:code|call|outputs?)",
    re.M,
)
_CALL = re.compile(r'\[?\s?\{\s{0,8}"(?:type"\s?:\s?"function"\s?,\s{0,8}")?name"\s?:\s?"[\w.-]{1,80}"\s?,\s{0,8}"(?:arguments|parameters)"\s?:\s?\{')
# What the markup is named for in a prompt or a sentence about it.
_ABOUT = re.compile(r"\b(?:tags?|(?:special|control) tokens?|markup|chat template|chatml|dsml|harmony)\b", re.I)
_ABOUT_XML = re.compile(r"\b(?:x|ht|xht)ml\b|\bsvg\b|\bjsx\b|\brss\b|\btags?\b|maven|\bpom\b|plist|msbuild|docbook|\bant\b|\breact\b|\bvue\b", re.I)
_TALK = re.compile(
    r"\b(?:tags?|tokens?|markers?|markup|delimit\w*|wrap\w*|emit\w*|enclos\w*|surround\w*|template|syntax|parsers?|sequences?"
    r"|(?:starts?|begins?|ends?) with)\b",
    re.I,
)
_ATTRIBUTES = re.compile(r"\s?/?>|\s+\w+\s?=|[=:\n]|\Z")
_BEFORE = re.compile(
    r"\b(?:the|a|an|this|that|these|tags?|tokens?|markers?|between|and|or|with|by|called|named|as|like|in|inside|into|than|use|uses|using|from|to|through"
    r"|emits?|writes?|prints?|without|not|then|after|before|(?:a|the|each|every) turn|der|die|das|und|oder|mit|zwischen"
    r"|le|la|et|ou|entre|y|el)\s[\"'\u201c\u2018«(\[*]*$",
    re.I,
)
_AFTER = re.compile(
    r"[\"'\u201d\u2019»)\]*]*,?\s(?:(?:\w+\s)?(?:tags?|tokens?|markers?|elements?|blocks?|sections?|pairs?)|is|are|means?|marks?|ends?|opens?|closes?"
    r"|starts?|begins?"
    r"|denotes?|separates?|wraps?|tells?|stands?|indicates?|and|or)\b",
    re.I,
)
_SENTENCE_AFTER = re.compile(r"[\"'\u201d\u2019»)\]*]*(?:[.,;:!?)…](?:\s|\Z|\.\.)|\s(?=[a-zà-ÿ(–—-]))")
_GAP = r"[{\[]?(?:\.{3}|…)[}\]]?|\(?(?:\.|\[[^\]\s]{1,6}\])[*+]\??\)?"  # what stands for the text between two tags: dots, or a regular expression
_ITEM = re.compile(r"^\s*(?:[-*•|]|\d+[.)])?\s*\**$|\|\s*$")
_ITEM_AFTER = re.compile(r"\**[ ]?(?:[:=|–—-]|->)\s(?=[a-zà-ÿ])|\**\s?\|\s")
_ROOT = re.compile(r"\s*(?:<\?xml|<!doctype|<([a-z][\w:.-]{0,40})(?=[\s>]))", re.I)


def prose(text: str) -> str:
    """Return a text without its blocks of code and code in backticks. A block may be cut at the end of the text."""
    out, fence = [], ""
    for line in text.split("\n"):
        found = re.match(r"[ \t>]{0,12}(?:[-*\d.]{1,3} )?(`{3,}|~{3,})(.*)", line, re.S)
        mark, rest = (found.group(1), found.group(2)) if found else ("", "")
        if fence:
            if mark.startswith(fence) and not re.fullmatch(r"\s*\w+\s*", rest):
                fence = ""
                out.append(rest)
        elif mark and "`" not in rest:
            fence = mark
            out.append(f"{mark}{rest}" if rest.startswith("tool_") else "")
        else:
            out.append(line)
    return re.sub(r"``[^\n]{1,200}?``|`[^`\n]{1,200}`", " ` ", "\n".join(out))


def _mentioned(text: str, start: int, end: int) -> bool:
    """Return whether the markup between start and end is quoted, or is a word in a sentence about it."""
    before, after = text[max(0, start - 60) : start].rpartition("\n")[2], text[end : end + 60]
    after = re.sub(r"\A(?:system|user|assistant|tool|model)(?=[^\w\n])", "", after)  # the role that a marker of turns has
    if before[-1:] and after[:1] and before[-1] + after[0] in ('""', "''", "\u201c\u201d", "\u2018\u2019", "«»", "„\u201c", "「」", "‹›"):
        return True
    if re.match(rf"\s?(?:{_GAP})\s?<", after) or re.search(rf">\s?(?:{_GAP})\s?$", before):
        return True
    if re.search(r"[\u201c«„][^\u201c\u201d«»„\n]{0,40}$", before) and re.match(r"[^\u201c\u201d«»„\n]{0,40}[\u201d»\u201c]", after):
        return True
    if _AFTER.match(after) or (_ITEM.search(before) and _ITEM_AFTER.match(after)):
        return True
    if not (_SENTENCE_AFTER.match(after) or re.match(r"</?[\w|]", after)):
        return False
    return bool(_BEFORE.search(before) or (re.search(r"\w\W*\s[(\[\"']*$|>$", before) and _TALK.search(before + " " + after.partition("\n")[0])))


def _shared_is_leaked(name: str, closing: bool, rest: str, opened: bool, document: bool) -> bool:
    """Return whether a tag whose name XML documents have too is a part of a call."""
    if rest.startswith("="):
        return True
    if document:
        return False
    if name == "function" and not closing:
        return re.match(r"\s+name\s?=", rest) is not None
    if name in ("function", "parameter"):
        return closing and not opened
    return name != "invoke" or closing or re.match(r"\s+name\s?=", rest) is not None


def _plain(text: str, document: bool) -> Iterator[re.Match[str]]:
    """Yield the tags without bars."""
    opened = set(re.findall(r"<(function|parameter)(?=[\s>])", text))
    for found in _PLAIN.finditer(text):
        start, tail = found.start(), text[found.end() : found.end() + 40]
        closing, name, rest = bool(found.group(1) or found.group(4)), found.group(2) or "", found.group(3) or ""
        inside = start > 0 and (text[start - 1].isalnum() or text[start - 1] in "_:") and not closing
        if not name:  # cut at the end of the reply
            cut = found.group(5).lower()
            if not inside and len(cut) >= (3 if closing else 4) and any(each.startswith(cut) for each in _CUT):
                yield found
        elif inside and _ARGUMENT.fullmatch(name) and not re.match(r'\s{0,2}(?:\{\s*"|<|\w+\n?<arg_)', tail):
            continue  # an argument of a template or of a generic type
        elif _OWN.fullmatch(name):
            if _ATTRIBUTES.match(rest):
                yield found
        elif name.islower() and text[start + 1] != " " and _shared_is_leaked(name, closing, rest, name in opened, document):
            yield found


def _sequence(text: str) -> Iterator[re.Match[str]]:
    """Yield `<s>` and `</s>` unless they strike text out, as in HTML."""
    opened, closed = text.count("<s>"), text.count("</s>")
    if opened != closed or re.match(r"\s*<s>", text):
        yield from re.finditer(r"</?s>", text)


def _document(text: str, prompt: str) -> bool:
    """Return whether a reply is a document in XML or HTML, or was asked for one."""
    if _ABOUT_XML.search(prompt):
        return True
    root = _ROOT.match(text)
    if root is None or root.group(1) is None:
        return root is not None
    return re.fullmatch(_ANY, root.group(1), re.I) is None and text.rstrip().endswith(f"</{root.group(1)}>")


def leaked(prompt: str, text: str) -> str:
    """Return the first markup of a reply that a client must not see; empty if there is none."""
    if _ABOUT.search(prompt):
        return ""
    asked, folded, whole = prompt.translate(_FOLD).lower(), prose(text).translate(_FOLD), text.translate(_FOLD)
    quoted = whole if "`" in text else ""
    found: list[re.Match[str]] = [*_CONTROL.finditer(folded), *_plain(folded, _document(folded, prompt)), *_BRACKET.finditer(folded), *_sequence(folded)]
    for each in sorted(found, key=lambda match: match.start()):
        if each.group().strip().lower() not in asked and f"`{each.group()}" not in quoted and not _mentioned(folded, each.start(), each.end()):
            return each.group().strip()
    call = None if re.search(r"json|function|schema|tool call", prompt, re.I) else _CALL.match(text.lstrip())
    cut = re.search(r"<\|[^\s<>|][^<>|\n]{0,40}\|?>?\s*\Z", whole[-80:]) if whole.count("<|") == 1 else None  # also in a block of code without an end
    return next((each.group().strip() for each in (call, cut) if each and each.group().strip().lower() not in asked), "")
