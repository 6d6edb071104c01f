# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What is wrong with a reply: empty, repeated, in another language, with markup that leaked. Pure."""

from __future__ import annotations

import re
import unicodedata
from typing import Any

# Markup of chat templates and tool calls that belongs to the server, never into a reply.
_LEAKED = re.compile(
    r"<\|?/?(?:im_start|im_end|endoftext|begin_of_text|eot_id|start_header_id|end_of_sentence|tool_calls?|tool_response|function_calls?|invoke|parameter"
    r"|think|assistant|system|DSML)[^<>]{0,80}>|<[|｜][^<>]{1,60}>|\[/?(?:INST|TOOL_CALLS|AVAILABLE_TOOLS)\]"
)
_LETTER_RUN = re.compile(r"([^\s.\-_=*#|~])\1{15,}")
_SCRIPTS = ("CJK", "HIRAGANA", "KATAKANA", "HANGUL", "CYRILLIC", "ARABIC", "HEBREW", "THAI", "DEVANAGARI", "GREEK")


def script_of(letter: str) -> str:
    """Return the script of a letter, LATIN for all that is none of those that replies drift into."""
    name = unicodedata.name(letter, "")
    return next((script for script in _SCRIPTS if name.startswith(script)), "LATIN")


def _repeats(text: str) -> str:
    run = _LETTER_RUN.search(text)
    if run:
        return f"the character {run.group(1)!r} {len(run.group(0))} times in a row"
    words = text.split()
    for size in range(1, 13):
        wanted = max(4, 24 // size)  # how often a phrase of this many words must follow itself
        for start in range(max(0, len(words) - size * wanted + 1)):
            phrase = words[start : start + size]
            if all(words[start + k * size : start + (k + 1) * size] == phrase for k in range(1, wanted)):
                return f"{' '.join(phrase)[:60]!r} over and over"
    return ""


def faults(prompt: str, reply: dict[str, Any], expect: str | None = None) -> list[str]:
    """Return what is wrong with a reply of vllm_probe, one short phrase each; none for a good one.

    `expect` is the known answer: the reply, blanks at its ends aside, must hold it.
    """
    if not reply.get("ok"):
        return [f"no completion came back ({reply.get('error') or 'no reason given'})"]
    text = str(reply.get("text") or "")
    out: list[str] = []
    if not text.strip():
        return ["the reply is empty"]
    if expect is not None and expect.strip() not in text:
        out.append(f"the reply is {text.strip()[:80]!r}, and the known answer is {expect.strip()[:80]!r}")
    repeated = _repeats(text)
    if repeated:
        out.append(f"the reply repeats {repeated}")
    leaked = _LEAKED.search(text)
    if leaked and leaked.group(0) not in prompt:
        out.append(f"the reply has leaked markup {leaked.group(0)[:40]!r}")
    asked = {script_of(letter) for letter in prompt if letter.isalpha()}
    strange = [letter for letter in text if letter.isalpha() and script_of(letter) not in asked | {"LATIN", "GREEK"}]
    if len(strange) >= 2:
        out.append(f"the reply drifts into another language ({script_of(strange[0]).lower()}: {''.join(strange[:12])!r})")
    if "\ufffd" in text:
        out.append("the reply holds broken characters (U+FFFD)")
    return out
