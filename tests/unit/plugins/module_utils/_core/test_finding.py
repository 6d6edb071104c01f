"""The one kind of finding: its texts, and equal ones of several hosts."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding, counts, merged

FOUND = Finding("cable", "fabric", "error", ("one",), "no port has a link", "the ranks have no rail", "connect the cable", "ssh one ip link")


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("the kernel differs", "The kernel differs"),
        ("enp1s0f0np0 has no link", "enp1s0f0np0 has no link"),
        ("/run/x is there", "/run/x is there"),
        ("gb10-pair1 runs", "gb10-pair1 runs"),
    ],
)
def test_a_line_begins_as_a_sentence_and_keeps_names(found: str, shown: str) -> None:
    text = FOUND._replace(found=found, hosts=("a", "b")).line()
    assert text == f"error cable (a, b): {shown}. Why it matters: the ranks have no rail. Remedy: connect the cable."


def test_a_block_has_a_line_for_each_text_and_bounds_it() -> None:
    assert FOUND._replace(why="").block() == ["error cable (one): no port has a link", "    do:  connect the cable", "    run: ssh one ip link"]
    assert len(FOUND._replace(found="x " * 900).title()) < 450


def test_equal_findings_of_several_hosts_are_one() -> None:
    other = FOUND._replace(hosts=("two", "one"))
    worse = FOUND._replace(severity="warning")
    assert merged([FOUND, worse, other]) == [FOUND._replace(hosts=("one", "two")), worse]
    assert counts([FOUND, worse, other]) == {"error": 2, "warning": 1, "info": 0}
