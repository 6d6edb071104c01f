# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What is wrong with a reply: empty, repeated, in another script, leaked markup, not the known answer. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

MISSING = "no completion came back"  # the fault of a missing reply begins with it
# Markup of chat templates, tool calls and tokenizers that the server removes from a reply.
_MARKUP = re.compile(
    r"<[|｜][^\s<>|｜][^<>]{0,58}>|</(?:s|think|DSML)>|<0x[0-9A-F]{2}>|\[/?(?:INST|TOOL_CALLS)\]"
    r"|</?(?:im_start|im_end|eos|unk|end_of_turn|tool_calls?|function_calls?|invoke name|function)(?=[\s>=])[^<>]{0,80}>"
)
_CODE = re.compile(r"`[^`\n]{1,80}`")
_BRACKETS = re.compile(r"[(\[（][^()\[\]（）]{1,60}[)\]）]")
_CHARACTER = re.compile(r"([^\W\da-fA-F_]|[!?@$%&\ufffd])\1{15,}|(\S)\2{199,}")
_SYLLABLES = re.compile(r"([^\W\d_]\S{1,19}?)\1{11,}")  # a phrase without spaces, as in Chinese
# A prompt that names a language or its script asks for other letters than its own.
_ASKS = re.compile(r"\b[A-Z]\w+(?:ese|ian|ean|[bd]ic|ew|[dh]i|du|ali|ai|sche)\b|translat|language|sprache|script|alphabet|unicode|Greek|Hindi", re.I)


def _scripts(text: str) -> set[str]:
    """Return the scripts of the letters of a text, as Unicode names them. Formulas are full of Greek letters."""
    return {unicodedata.name(letter, "LATIN").split(" ")[0].split("-")[0] for letter in text if letter.isalpha()} - {"GREEK", "MICRO", "MATHEMATICAL"}


def _repeated(text: str) -> str:
    """Return what a text repeats, empty if nothing."""
    run = _CHARACTER.search(text)
    if run is not None or (len(text.strip()) >= 16 and len(set(text.strip())) == 1):
        return f"the character {(run.group() if run else text.strip())[0]!r}"
    words = text.split()
    for size in range(1, min(200, len(words) // 4) + 1):
        same = 0
        for place in range(size, len(words)):
            same = same + 1 if words[place] == words[place - size] else 0
            if same >= size * (max(4, min(12, 24 // size)) - 1):
                return f"{' '.join(words[place - size + 1 : place + 1])[:60]!r} over and over"
    phrase = next((found.group(1) for found in _SYLLABLES.finditer(text) if len(set(found.group(1))) > 1), "")
    return f"{phrase!r} over and over" if phrase else ""


def _drift(prompt: str, text: str) -> str:
    """Return letters of a script that the prompt neither uses nor asks for."""
    asked = _scripts(prompt) | {"LATIN"}
    if _ASKS.search(prompt) or not asked <= {"LATIN"}:
        return ""
    strange = [letter for letter in _BRACKETS.sub(" ", text) if not _scripts(letter) <= asked]
    return "".join(strange[:12]) if len(strange) >= 2 else ""


def _holds(text: str, expect: str) -> bool:
    """Return whether a text holds the known answer. A part of a longer number is not the answer."""
    before = r"(?<!\d)(?<!\d[.,])" if expect[:1].isdigit() else ""
    after = r"(?!\d)(?![.,]\d)" if expect.isdigit() else ""  # more digits of a fraction are the same number
    return re.search(before + re.escape(expect) + after, text) is not None


def shown(reply: dict[str, Any]) -> str:
    """Return the text of a reply of vllm_probe, else its reasoning."""
    text = str(reply.get("text") or "")
    return text if text.strip() else str(reply.get("reasoning") or text)


def cut_while_reasoning(reply: dict[str, Any]) -> bool:
    """Return whether a reply was cut at its length before its answer began."""
    return _reasons(reply) and reply.get("finish_reason") == "length"


def _reasons(reply: dict[str, Any]) -> bool:
    return not str(reply.get("text") or "").strip() and bool(reply.get("reasoning"))


def faults(prompt: str, reply: dict[str, Any], expect: str | None = None) -> list[str]:
    """Return what is wrong with a reply of vllm_probe, one short phrase each; empty for a good one.

    `expect` is the known answer, which the reply must contain. A reply of reasoning alone is judged by its reasoning, which may be in any
    language; if it was cut at its length, the answer is not known.
    """
    if not reply.get("ok"):
        return [f"{MISSING} ({reply.get('error') or 'no reason given'})"]
    text = shown(reply)
    if all(unicodedata.category(letter)[0] in "CZ" for letter in text):
        return ["the reply is empty"]
    out = []
    if expect is not None and not _holds(text, expect.strip()) and not cut_while_reasoning(reply):
        out.append(f"the reply is {text.strip()[:80]!r}, and the known answer is {expect.strip()[:80]!r}")
    repeated = _repeated(text)
    if repeated:
        out.append(f"the reply repeats {repeated}")
    leaked = next((found.group() for found in _MARKUP.finditer(_CODE.sub(" ", text)) if found.group() not in prompt), "")
    if leaked:
        out.append(f"the reply has leaked markup {leaked[:40]!r}")
    strange = "" if _reasons(reply) else _drift(prompt, text)
    if strange:
        out.append(f"the reply drifts into another language ({strange!r})")
    broken = next((letter for letter in text if letter == "\ufffd" or (unicodedata.category(letter) == "Cc" and not letter.isspace())), "")
    if broken:
        out.append(f"the reply has broken characters (U+{ord(broken):04X})")
    return out
