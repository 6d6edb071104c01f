# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What is wrong with a reply: empty, repeated, in another language, with markup that leaked. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Markup of chat templates, tool calls and tokenizers that belongs to the server, never into a reply.
_MARKERS = re.compile(
    r"</?(?:im_start|im_end|endoftext|begin_of_text|eot_id|start_header_id|end_of_sentence|start_of_turn|end_of_turn|tool_calls?|tool_response"
    r"|function_calls?|think|bos|eos|pad|unk)(?=[\s>|=/])[^<>]{0,80}>|<function=[^<>]{1,80}>|<[|｜][^\s<>|｜][^<>]{0,58}>"
    r"|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS)\]|<0x[0-9A-F]{2}>"
)
# The same as plain tags, which XML that was asked for may hold too.
_TAGS = re.compile(r"</?DSML\b[^<>]{0,80}>|<(?:invoke|parameter)(?:\s+name\s*=|=)[^<>]{0,80}>|</?(?:assistant|system)>")
_XML = re.compile(r"\b(?:XML|HTML|XSD|SOAP|pom)\b|\.config\b", re.I)
# Signs inside words that a tokenizer puts for blanks and line ends: its text was not put together.
_PIECES = re.compile(r"(?<=[a-z])[ĠĊ]|▁(?=[A-Za-z])")
MISSING = "no completion came back"  # how the fault of a reply that is not there begins
_CODE = re.compile(r"`[^`\n]{1,80}`")
_BRACKETS = re.compile(r"[(\[（][^()\[\]（）]{1,60}[)\]）]")
_RUN = re.compile(r"(\S)\1{15,}")
_SYLLABLES = re.compile(r"([^\W\d_]\S{1,19}?)\1{11,}")  # a phrase without blanks, as other scripts write it
_COUNTS = ("two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")
_TIMES = re.compile(r"\b(\d{1,3}|" + "|".join(_COUNTS) + r")\s*(?:times|mal)\b(?!\s*\d)", re.I)

# Each script that replies drift into, and the words of a prompt that ask for it.
_SCRIPTS = {
    "CJK": "chines|mandarin|cantonese|kanji|hanzi|japan|中文|汉语|漢|日本|日语|日文",
    "HIRAGANA": "japan|hiragana|kana|日本|日语|日文",
    "KATAKANA": "japan|katakana|kana|日本|日语|日文",
    "HANGUL": "korean|hangul|coreano|coréen|한국|韩语|韓国",
    "CYRILLIC": "russ|ukrain|bulgar|serb|belarus|macedon|mazedon|kazakh|mongol|cyrill|kyrill",
    "ARABIC": "arab|persi|farsi|urdu|pashto",
    "HEBREW": "hebr|yiddish|jiddisch",
    "THAI": "thai",
    "DEVANAGARI": "hindi|sanskrit|marathi|nepal|devanagari",
    "BENGALI": "bengal|bangla",
    "GREEK": "",  # formulas are full of it
    **{name.upper(): name for name in ("tamil", "telugu", "kannada", "malayalam", "gujarati", "gurmukhi", "sinhala", "georgian", "armenian")},
    **{name.upper(): name for name in ("khmer", "lao", "myanmar", "tibetan", "ethiopic", "mongolian")},
}
_ANY_SCRIPT = re.compile(r"(?<!programming )languages|sprachen|scripts|alphabet|unicode", re.I)


def script_of(letter: str) -> str:
    """Return the script of a letter, LATIN for all that is none of those that replies drift into."""
    name = unicodedata.name(letter, "").split(" ")[0].split("-")[0]
    return name if name in _SCRIPTS else "LATIN"


def _asked(prompt: str) -> set[str]:
    """Return the scripts that a prompt is written in or asks for."""
    if _ANY_SCRIPT.search(prompt):
        return {"LATIN", *_SCRIPTS}
    out = {"LATIN", "GREEK"} | {script_of(letter) for letter in prompt if letter.isalpha()}
    out |= {script for script, words in _SCRIPTS.items() if words and re.search(words, prompt, re.I)}
    return out | {"CJK", "HIRAGANA", "KATAKANA"} if out & {"HIRAGANA", "KATAKANA"} else out


def _character_run(text: str) -> str:
    for run in _RUN.finditer(text):
        letter, size = run.group(1), len(run.group(0))
        alone = size == len(text.strip())
        if letter in "0123456789abcdefABCDEF" and not alone:
            limit = 65  # a power of ten, a null hash
        elif letter.isalnum() or letter in "!?@$%&" or alone:
            limit = 16
        else:
            limit = 200  # a line drawn with that character
        if size >= limit:
            return f"the character {letter!r} {size} times in a row"
    return ""


def _repeats(text: str, prompt: str) -> str:
    run = _character_run(text)
    if run:
        return run
    asked = _TIMES.search(prompt)
    number = asked.group(1).lower() if asked else "0"
    least = 1 + (_COUNTS.index(number) + 2 if number in _COUNTS else int(number))
    words = text.split()
    for size in range(1, min(200, len(words) // 4) + 1):
        many = max(4, 24 // size, least)  # how often a phrase of this many words must follow itself
        whole = max(4, 10 - 2 * size, least)  # the same where there is hardly anything else in the reply
        same = longest = end = 0
        for place, word in enumerate(words[size:], size):
            same = same + 1 if word == words[place - size] else 0
            longest, end = (same, place + 1) if same > longest else (longest, end)
        phrase = " ".join(words[end - size : end])
        alone = longest + size >= 0.8 * len(words) and re.search(r"[^\W\d_]", phrase)
        if longest >= size * ((whole if alone else many) - 1):
            return f"{phrase[:60]!r} over and over"
    for found in _SYLLABLES.finditer(text):
        unit = found.group(1)
        if len(set(unit)) > 1 and len(found.group(0)) // len(unit) >= least:
            return f"{unit!r} over and over"
    return ""


def _leaked(text: str, prompt: str) -> str:
    """Return markup that has leaked: neither quoted as code nor named by the prompt."""
    prose = _CODE.sub(" ", text)
    for pattern in (_MARKERS,) if _XML.search(prompt) else (_MARKERS, _TAGS):
        for found in pattern.finditer(prose):
            if found.group(0) not in prompt:
                return found.group(0)
    if prose.count("</s>") > prose.count("<s>") and "</s>" not in prompt:
        return "</s>"
    pieces = _PIECES.findall(prose)
    return "".join(pieces) if len(pieces) >= 2 else ""


def _holds(text: str, expect: str) -> bool:
    """Tell whether a text holds the known answer; a number is not held by another number."""
    before = r"(?<!\d)(?<!\d[.,])" if expect[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if expect.isdigit() else ""  # more digits of a fraction are no other number
    return re.search(before + re.escape(expect) + after, text) is not None


def shown(reply: dict[str, Any]) -> str:
    """Return what a reply of vllm_probe holds: its text, else its reasoning."""
    text = str(reply.get("text") or "")
    return text if text.strip() else str(reply.get("reasoning") or text)


def cut_while_reasoning(reply: dict[str, Any]) -> bool:
    """Tell whether a reply was cut at its length before its answer began."""
    return _reasons(reply) and reply.get("finish_reason") == "length"


def _reasons(reply: dict[str, Any]) -> bool:
    return not str(reply.get("text") or "").strip() and bool(reply.get("reasoning"))


def faults(prompt: str, reply: dict[str, Any], expect: str | None = None) -> list[str]:
    """Return what is wrong with a reply of vllm_probe, one short phrase each; none for a good one.

    `expect` is the known answer: the reply, blanks at its ends aside, must hold it. A reply of reasoning alone is judged by its reasoning,
    which may be in any language; if its length cut it, the answer is not known.
    """
    if not reply.get("ok"):
        return [f"{MISSING} ({reply.get('error') or 'no reason given'})"]
    text = shown(reply)
    out: list[str] = []
    if all(unicodedata.category(letter)[0] in "CZ" for letter in text):
        return ["the reply is empty"]
    if expect is not None and not _holds(text, expect.strip()) and not cut_while_reasoning(reply):
        out.append(f"the reply is {text.strip()[:80]!r}, and the known answer is {expect.strip()[:80]!r}")
    repeated = _repeats(text, prompt)
    if repeated:
        out.append(f"the reply repeats {repeated}")
    leaked = _leaked(text, prompt)
    if leaked:
        out.append(f"the reply has leaked markup {leaked[:40]!r}")
    asked = _asked(prompt)
    strange = [letter for letter in _BRACKETS.sub(" ", text) if letter.isalpha() and script_of(letter) not in asked]
    if len(strange) >= 2 and not _reasons(reply):
        out.append(f"the reply drifts into another language ({script_of(strange[0]).lower()}: {''.join(strange[:12])!r})")
    broken = [letter for letter in text if letter not in "\n\r\t" and (letter == "\ufffd" or unicodedata.category(letter) in ("Cc", "Co"))]
    if set(broken) - set(prompt):
        out.append(f"the reply holds broken characters (U+{ord(broken[0]):04X})")
    return out
