# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the check of JMESPath expressions of a gate: their syntax, and the facts that they name. Controller only."""

from __future__ import annotations

import re
from functools import cache

try:
    import jmespath
except ImportError:  # only expressions of the gate need it
    jmespath = None

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate

_READ = re.compile(r"(?<![\w.'\"`])(?:(pool)|head|ranks\[-?\d+\])\.([A-Za-z_]\w*)")
# A number in quotes after < or >, which is a text.
_TEXT = re.compile(r"[<>]=?\s*(['\"])(-?\d+(?:\.\d+)?)\1")


@cache
def _facts() -> tuple[list[str], list[str]]:
    """Return the facts of the pool, and those of a rank."""
    return list(gate.pool_of({}, [])), list(BootLog().facts())


def expression_fault(expression: str) -> str:
    """Return why the gate cannot evaluate an expression; empty if it can. Of the facts, the first name below a rank or the pool is looked up."""
    if jmespath is None:
        return "gate.expressions need jmespath on this computer, which is not installed: pip install jmespath"
    try:
        jmespath.compile(expression)
    except jmespath.exceptions.JMESPathError as error:
        reason = " ".join(str(error).split()).partition(", for expression")[0]
        return f"the expression {expression!r} is not valid JMESPath: {reason}; write it like pool.concurrency >= `4`"
    text = _TEXT.search(expression)
    if text:  # JMESPath orders numbers only
        return f"the expression {expression!r} compares with the text {text[2]!r}; write `{text[2]}` in backticks"
    for pool, name in _READ.findall(expression):
        known = _facts()[0 if pool else 1]
        if name not in known:
            return f"the expression {expression!r} reads {name}, which is not a fact of the gate{did_you_mean(name, known) or f'; known are {known}'}"
    return ""
