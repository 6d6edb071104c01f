"""Expressions of a gate: their syntax, and names that no fact has."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils.gate_expressions import expression_fault


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("pool.concurency >= `4`", "reads concurency, which is not a fact of the gate; did you mean concurrency?"),
        ("!(head.unknown_variable)", "did you mean unknown_variables?"),
        ("ranks[0].versoin == 'a' && pool.tokens", "did you mean version?"),
        ("pool.concurrency >= '1.5'", "compares with the text '1.5'; write `1.5` in backticks"),
        ("ranks[?restarts < '2']", "write `2` in backticks"),
        ('pool.concurrency >= "1.5"', "compares with the text '1.5'; write `1.5` in backticks"),
        ("pool.tokens >> `2`", "is not valid JMESPath"),
    ],
)
def test_a_name_that_no_fact_has(expression: str, part: str) -> None:
    assert part in expression_fault(expression)


@pytest.mark.parametrize(
    "expression",
    [
        "pool.concurrency >= `4` && head.nccl.transport == 'ib'",
        "!(head.unknown_variables)",
        "length(ranks[?version == '1']) == `2`",
        "ranks[].version | [0] == 'a'",
        "api.anything.at_all || measured.decode_tok_s > `20`",
        "sort_by(ranks, &version)[0].version",
        "head.{a: version}.a",
        "containers[0].running",
        "head.version == '1.5'",
        "pool.source != 'none'",
        "pool.tokens && pool.tokens > `4`",
        "`true`",
    ],
)
def test_accepts_facts_and_what_is_made_of_them(expression: str) -> None:
    assert expression_fault(expression) == ""
