# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The literals of an expression. Their search is what keeps the parser of boot logs fast."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import without_digits

_TOKEN = re.compile(
    r"(?P<run>[A-Za-z_ ,:'=/-]+(?![?*+{]))|(?P<invisible>\\[bBdZ])"
    r"|(?P<class>\\[A-Zac-z]|\[\^?(?:\\.|[^\]\\])+\]|[.^$])|(?P<look>\(\?(?:<?[=!]|i:))|(?P<open>\((?:\?(?:P<\w+>|:))?)"
    r"|(?P<close>\))|(?P<bar>\|)|(?P<repeat>[?*+]\??|\{\d*,?\d*\}\??)|\\?(?P<literal>.)",
    re.DOTALL,
)
#: In most lines about failures. Another literal of a pattern is rarer, also a shorter one.
_COMMON = frozenset(("Error: ", "ValueError: ", "RuntimeError: ", "Value error, "))


def literals_of(pattern: str) -> list[str]:
    """Return literals without digits, one of which is in every text without digits that matches an expression. Empty if it has none.

    Supports what the catalogue uses: groups, alternatives, classes, repeats and lookarounds.
    """
    return _alternatives(_TOKEN.finditer(pattern))


def _alternatives(tokens: Iterator[re.Match[str]]) -> list[str]:
    """Return the literals of all alternatives up to the end of their group; empty if an alternative has none."""
    found: list[list[str]] = []
    parts: list[list[str]] = []  # of the present alternative: runs of characters, and groups
    run, previous = "", ""
    for token in tokens:
        kind, text = str(token.lastgroup), token.group()
        if kind == "run":  # of literals, none of which is repeated
            run, kind = run + text, "literal"
        elif kind == "literal":
            run += without_digits(token["literal"])
            kind = "invisible" if token["literal"].isdigit() else kind
        elif kind == "repeat":
            optional = text[0] in "?*" or text.startswith("{0")
            if previous == "literal":
                parts.append([run[:-1] if optional else run])
                run = ""
            elif previous == "open" and optional:
                parts.pop()
        elif kind != "invisible":
            parts.append([run])
            run = ""
            if kind == "open":
                parts.append(_alternatives(tokens))
            elif kind == "look":
                _alternatives(tokens)
            elif kind in ("bar", "close"):
                found.append(max(parts, key=_shortest))
                parts = []
            if kind == "close":
                return _union(found)
        previous = kind
    return _union([*found, max([*parts, [run]], key=_shortest)])


def _shortest(literals: list[str]) -> int:
    return min((2 if literal in _COMMON else len(literal) for literal in literals), default=0)


def _union(alternatives: list[list[str]]) -> list[str]:
    return sorted({literal for literals in alternatives for literal in literals}) if all(map(_shortest, alternatives)) else []
