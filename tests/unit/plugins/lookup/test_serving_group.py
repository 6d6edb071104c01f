"""The lookup serving_group. What a group is: tests/unit/plugins/module_utils/_inventory/test_groups.py."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.lookup.serving_group import LookupModule

GROUPS = {"all": ["a", "b"], "gb10": ["a", "b"], "pair1": ["a", "b"]}


@pytest.mark.parametrize(
    ("terms", "host", "ranks"),
    [
        pytest.param([], "a", [0], id="the task's host"),
        pytest.param([], "b", [1], id="the other"),
        pytest.param(["b"], "a", [1], id="another host by name"),
        pytest.param(["b", "a"], "a", [1, 0], id="two"),
    ],
)
def test_returns_the_group_of_each_named_host(terms: list[str], host: str, ranks: list[int]) -> None:
    hostvars = {"a": {"ansible_host": "10.0.0.1"}, "b": {}}
    found: list[dict[str, Any]] = LookupModule().run(terms, variables={"inventory_hostname": host, "groups": GROUPS, "hostvars": hostvars})
    assert [each["rank"] for each in found] == ranks
    assert {each["head"] for each in found} == {"a"}
    assert found[0]["members"][0]["address"] == "10.0.0.1"


def test_ranks_and_addresses_of_the_inventory_are_those_of_every_member() -> None:
    """Variables of a host are read when it is asked for."""
    own = {"gb10_fabric_addresses": ["192.168.200.77", "192.168.201.77"]}
    hostvars = {"a": {"gb10_rank": 1}, "b": own}
    [found] = LookupModule().run([], variables={"inventory_hostname": "a", "groups": GROUPS, "hostvars": hostvars})
    assert (found["hosts"], found["rank"], found["master_addr"]) == (["b", "a"], 1, "192.168.200.77")


def test_an_error_is_one_sentence() -> None:
    with pytest.raises(AnsibleError, match=r"^inventory: .*localhost is not in the inventory group gb10"):
        LookupModule().run([], variables={"inventory_hostname": "localhost", "groups": GROUPS, "hostvars": {"a": {}, "b": {}}})
