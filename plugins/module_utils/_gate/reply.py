# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What is wrong with a reply: empty, repeated, in another script, leaked markup, not the known answer. Pure."""

from __future__ import annotations

import functools
import html
import re
import unicodedata
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate.reply_loops import repeated
from ansible_collections.gb10.cluster.plugins.module_utils._gate.reply_markup import leaked, prose

MISSING = "no completion came back"  # the fault of a missing reply begins with it
EMPTY, LEAKED = "the reply is empty", "the reply has leaked markup"
# Scripts that a single letter shows, for they have no letters in common with others.
_IDEOGRAPHS = frozenset(("CJK", "HIRAGANA", "KATAKANA", "HANGUL"))
# A prompt that names a language, its country or its script asks for other letters than its own.
_LANGUAGE = (
    r"\b(?:chin(?:[ae]|oi)|mandarin|cantonese|taiwan|japan|japon|korea|cor[eé]e|russ(?:i|e\b)|ukrain|belarus|bulgar|serb|macedon|mongol|kazakh|kyrgyz|tajik"
    r"|uzbek|greek|griech"
    r"|arab|hebr|yiddish|israel|persian|farsi|iran|urdu|pashto|dari\b|kurd|hindi|marathi|nepal|sanskrit|bengal|bangla|assamese|punjab|gujarat|odia|oriya|tamil"
    r"|telugu|kannada|malayalam|sinhal|thai|lao\b|lao[ts]ian|khmer|cambod|burm|myanmar|tibet|dzongkha|georgian|armen|amhar|tigri|ethiop|cyrill|devanagari|kanji"
    r"|kana\b|hiragana|katakana|hangul|hanzi|pinyin|unicode)"
)
_NAMED = re.compile(_LANGUAGE, re.I)
_ASKS = re.compile(_LANGUAGE + r"|translat|übersetz|language|sprache|\bscripts?\b|alphabet|multilingual|bilingual", re.I)
_BRACKETS = re.compile(r"[(\[（][^()\[\]（）]{1,60}[)\]）]")
_QUOTED = re.compile(
    r"""(["'*_])(?=\S)[^\s"'*_]{1,24}\1|"(?=\S)[^"\n]{1,24}"|[\u201c\u2018«„「『][^\u201c\u201d\u2018\u2019«»„「」『』\n]{1,24}[\u201d\u2019»\u201c」』]"""
)
# Markdown and HTML without ink, and characters that have a width and no ink.
_MARKS = re.compile(
    r"^[ \t>]*(?:`{3,}|~{3,})[ \t]*\w*[ \t]*$|^[ \t]*(?:-{3,}|\*{3,}|_{3,}|#{2,6})[ \t]*$"
    r"|<br ?/?>|[\u115f\u1160\u2800\u3164\uffa0\ufe0e\ufe0f]",
    re.M,
)


@functools.lru_cache(maxsize=4096)
def _script(letter: str) -> str:
    """Return the script of a letter, as Unicode names it. Formulas are full of Greek letters, and of letters in other faces."""
    if not letter.isalpha() or "\u2100" <= letter <= "\u214f":
        return "LATIN"
    name = unicodedata.name(unicodedata.normalize("NFKC", letter)[0], "LATIN").split(" ")[0].split("-")[0]
    return "LATIN" if name in ("GREEK", "MICRO", "MATHEMATICAL", "MODIFIER", "FEMININE", "MASCULINE") else name


def _strange(text: str) -> list[str]:
    """Return the letters that are not Latin."""
    return [letter for letter in text if letter > "\u024f" and _script(letter) != "LATIN"]


def _drift(prompt: str, text: str) -> str:
    """Return letters of a script that the prompt neither uses nor asks for. One word in quotation marks, or named as foreign, is not drift."""
    if text.isascii() or _ASKS.search(prompt) or _strange(prompt):
        return ""
    text = _BRACKETS.sub(" ", text)
    if text.lstrip()[:1] not in ("{", "["):
        text = _QUOTED.sub(" ", prose(text))
    strange = _strange(text)
    words = [word for word in text.split() if _strange(word)]
    if len(words) == 1 and len(strange) <= 12 and _NAMED.search(text):
        return ""
    found = len(strange) >= 2 or any(_script(letter) in _IDEOGRAPHS for letter in strange)
    return "".join(strange[:12]) if found else ""


def _blank(text: str) -> bool:
    """Return whether a client that renders a text shows nothing."""
    return all(unicodedata.category(letter)[0] in "CZ" for letter in html.unescape(_MARKS.sub("", text)))


def _holds(text: str, expect: str) -> bool:
    """Return whether a text holds the known answer. A part of a longer number is not the answer."""
    before = r"(?<!\d)(?<!\d[.,])" if expect[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if expect.isdigit() else ""  # more digits of a fraction are the same number
    return re.search(before + re.escape(expect) + after, text) is not None


def shown(reply: dict[str, Any]) -> str:
    """Return the text of a reply of api_probe, else its reasoning."""
    text = str(reply.get("text") or "")
    return text if not _blank(text) else str(reply.get("reasoning") or text)


def cut_while_reasoning(reply: dict[str, Any]) -> bool:
    """Return whether a reply was cut at its length before its answer began."""
    return bool(reply.get("ok")) and _reasons(reply) and reply.get("finish_reason") == "length"


def _reasons(reply: dict[str, Any]) -> bool:
    return _blank(str(reply.get("text") or "")) and not _blank(str(reply.get("reasoning") or ""))


def _empty(reply: dict[str, Any]) -> str:
    """Return the fault of a reply in which a client sees nothing, with what makes it so."""
    if _reasons(reply):
        return f"{EMPTY}: the model ended after its reasoning, which clients do not show as the answer"
    cut = reply.get("finish_reason") == "length" and reply.get("completion_tokens")
    return f"{EMPTY}, and ended at max_tokens ({reply['completion_tokens']} tokens)" if cut else EMPTY


def remedy(found: list[str]) -> str:
    """Return what to do about faults of parsers, not of the engine; empty if there are others."""
    if found and all(fault.startswith(LEAKED) for fault in found):
        return (
            "set reasoning-parser and tool-call-parser of engine.args to those of the model, and compare its chat template."
            " If both are right, its image has a parser that does not know this form. See docs/tuning.md#garbled-replies"
        )
    if found and all(fault.startswith(f"{EMPTY}: ") for fault in found):
        return (
            "check reasoning-parser in engine.args: the parser of another model takes the answer as reasoning."
            " Else turn the reasoning off with chat_template_kwargs. See docs/tuning.md#garbled-replies"
        )
    if found and all(fault.startswith(f"{EMPTY}, ") for fault in found):
        return "raise max_tokens if the model reasons, or turn its reasoning off with chat_template_kwargs in the body. See docs/tuning.md#garbled-replies"
    return ""


def faults(prompt: str, reply: dict[str, Any], expect: str | None = None) -> list[str]:
    """Return what is wrong with a reply of api_probe, one short phrase each; empty for a good one.

    `expect` is the known answer, which the reply must contain. A reply that was cut at its length before its answer is judged by its reasoning,
    which may be in any language, and the answer is not known.
    """
    if not reply.get("ok"):
        return [f"{MISSING} ({reply.get('error') or 'no reason given'})"]
    cut, text = cut_while_reasoning(reply), shown(reply)
    if not cut and _blank(str(reply.get("text") or "")):
        return [_empty(reply)]
    out = []
    if expect is not None and not _holds(text, expect.strip()) and not cut:
        out.append(f"the reply is {text.strip()[:80]!r}, and the known answer is {expect.strip()[:80]!r}")
    again = repeated(prompt, text)
    if again:
        out.append(f"the reply repeats {again}")
    markup = leaked(prompt, text)
    if markup:
        out.append(f"{LEAKED} {markup[:40]!r}")
    strange = "" if cut else _drift(prompt, text)
    if strange:
        out.append(f"the reply drifts into another language ({strange!r})")
    broken = next((letter for letter in text if letter == "\ufffd" or (unicodedata.category(letter) == "Cc" and not letter.isspace())), "")
    if broken:
        out.append(f"the reply has broken characters (U+{ord(broken):04X})")
    return out
