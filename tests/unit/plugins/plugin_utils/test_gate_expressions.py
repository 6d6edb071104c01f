"""Expressions of a gate: their syntax, and names that no fact has."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils.gate_expressions import expression_fault


@pytest.mark.parametrize(
    ("expression", "part"),
    [
        ("pool.concurency >= `4`", "reads concurency, which is not a fact of the gate; did you mean concurrency?"),
        ("pools.tokens", "did you mean pool?"),
        ("!(head.unknown_variable)", "did you mean unknown_variables?"),
        ("ranks[0].versoin == 'a' && pool.tokens", "did you mean version?"),
        ("length(rank[].nccl) > `1`", "did you mean ranks?"),
        ("lenght(ranks) > `1`", "calls lenght(), which is not a function of JMESPath; did you mean length()?"),
        ("pool.concurrency >= '1.5'", "compares with the text '1.5'; write `1.5` in backticks"),
        ("ranks[?restarts < '2']", "write `2` in backticks"),
        ("pool.tokens == '5'", "write `5` in backticks"),
        ("head.version >= 'v1'", "compares with the text 'v1', and JMESPath needs a number here"),
        ('pool.concurrency >= "1.5"', "reads 1.5, which is not a fact of the gate; write the number as `1.5` in backticks"),
        ("head.version == '1' && pool.concurrency", "is a number, expected true or false; compare it, such as pool.concurrency >= `4`"),
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
