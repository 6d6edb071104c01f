# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Mask secrets in text that is stored or printed. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable

MASK = "********"
# Secrets by their own form: keys of hubs and services, bearer tokens, passwords in URLs.
TOKENS = re.compile(
    r"\b(?:hf_[A-Za-z0-9]{8,}|sk-[A-Za-z0-9_-]{8,200}|gh[pousr]_[A-Za-z0-9]{16,200}|nvapi-[A-Za-z0-9_-]{8,200})"
    r"|(?<=Bearer )\S{1,2000}|(?<=://)[^/\s:@]{1,200}:[^/\s@]{1,200}(?=@)"
)
# A quoted value ends at its closing quote or at the end of the line, one in brackets at the closing bracket.
_QUOTED = r"\"(?:\\.|[^\"\\\n]){1,2000}\"?|'(?:\\.|[^'\\\n]){1,2000}'?"
_SHAPES = (
    re.compile(
        r"(?i)(\b[\w-]*(?:api[_-]?key|token|secret|password|passwd|authorization)[\w-]*[\"']?\s*[=:]\s*(?:(?:Bearer|Basic)\s+)?)"
        rf"({_QUOTED}|\[[^\]\n]{{1,2000}}\]?|[^\"'\s,;}}{{)\[]{{3,}})"
    ),
    # On a command line, in a list of words, in a YAML list with one word per line.
    re.compile(rf"(?i)(--(?:api-key|hf-token|token|password)(?:[= ]\s*|[\"'],\s*|[\"']?\s*\n\s*-\s+))({_QUOTED}|[^\s\"']\S*)"),
)
# Counts and switches whose names look like secrets.
_HARMLESS = re.compile(r"(?i)(?:max|num|batched|speculative|tokenizer|tokens|token_ids?|pad|bos|eos)")


def redact(text: str, known: Iterable[str] = ()) -> str:
    """Return the text with known secret values, and values in the form of a secret, masked."""
    for value in sorted({v for v in known if len(v) >= 4}, key=len, reverse=True):
        text = text.replace(value, MASK)
    text = TOKENS.sub(MASK, text)
    text = _SHAPES[0].sub(lambda m: m.group(0) if m.group(2) == "None" or _HARMLESS.search(m.group(1)) else m.group(1) + _masked(m.group(2)), text)
    return _SHAPES[1].sub(lambda m: m.group(1) + _masked(m.group(2)), text)


def _masked(value: str) -> str:
    """Mask a value and keep what encloses it."""
    opened = value[0] if value[0] in "\"'[" else ""
    closed = value[-1] if opened and len(value) > 1 and value[-1] == (opened if opened != "[" else "]") else ""
    return opened + MASK + closed


def values_of(env_text: str) -> list[str]:
    """Return the values of an env file."""
    out = []
    for line in env_text.splitlines():
        name, sign, value = line.partition("=")
        if sign and not name.lstrip().startswith("#"):
            out.append(value.strip().strip("\"'"))
    return [value for value in out if value]
