"""Whose the nodes of a serving group are."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import refusal

IDS = ("a" * 32, "b" * 32)


def node(number: int, owners: dict[str, str] | None = None, others: tuple[str, ...] = ()) -> dict[str, Any]:
    return {"agent": {"head_id": IDS[number], "owners": owners or {}}, "others": list(others)}


def placed(number: int, rank: int) -> dict[str, Any]:
    """A node whose agent has a rank of the group. All have one machine id, as after a copy of a disk."""
    return {"agent": {"head_id": IDS[0], "owners": {"duo": IDS[0]}, "place": {"group": "duo", "rank": rank}}, "others": []}


@pytest.mark.parametrize(
    ("infos", "words"),
    [
        pytest.param([node(0), node(1)], [], id="new nodes"),
        pytest.param([node(0, {"duo": IDS[0]}), node(1, {"duo": IDS[0]})], [], id="their own"),
        pytest.param(
            [node(0, {"pair1": IDS[0]}, ("pair1",)), node(1, {}, ("pair1",))], ["one belongs to the group pair1, which runs there", "two belongs"],
            id="renamed",
        ),
        pytest.param([node(0), node(1, {"pair1": IDS[0]})], ["two belongs to the group pair1. Nothing was changed"], id="one node of another group"),
        pytest.param(
            [node(0, {"duo": IDS[1]}), node(1, {"duo": IDS[1]})], ["one obeys two as its head; two obeys two as its head", "-e takeover=true"],
            id="swapped",
        ),
        pytest.param(
            [placed(0, 1), placed(1, 0)], ["one is rank 1 of duo; two is rank 0 of duo, and the inventory has one as head"], id="swapped, of one machine id",
        ),
        pytest.param([placed(0, 0), placed(1, 1)], [], id="in place"),
        pytest.param([node(0), node(1, {"duo": "c" * 32})], ["two obeys a head that is none of these nodes (machine id cccccccccccc)"], id="head replaced"),
        pytest.param([{}, {}], [], id="nothing was read"),
    ],
)  # fmt: skip
def test_nodes_of_another_group_or_head_are_named_with_the_ways(infos: list[dict[str, Any]], words: list[str]) -> None:
    text = refusal(infos, "duo", ["one", "two"])
    assert bool(text) == bool(words)
    assert all(word in text for word in words), text
