"""The lookup serving_group: reads the variables of each host once, and reports errors as one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.lookup.serving_group import LookupModule

GROUPS = {"all": ["a", "b"], "gb10": ["a", "b"], "pair1": ["a", "b"]}


class HostVars(dict[str, dict[str, Any]]):
    """Variables of all hosts, which counts each access."""

    def __init__(self, **hosts: dict[str, Any]) -> None:
        super().__init__(hosts)
        self.reads: list[str] = []

    def __getitem__(self, host: str) -> dict[str, Any]:
        self.reads.append(host)
        return super().__getitem__(host)


def lookup(terms: list[str], hostvars: HostVars, host: str = "a", groups: Mapping[str, list[str]] | None = None) -> list[dict[str, Any]]:
    """Run the lookup as a task of a host would."""
    return LookupModule().run(terms, variables={"inventory_hostname": host, "groups": GROUPS if groups is None else groups, "hostvars": hostvars})


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
    found = lookup(terms, HostVars(a={"ansible_host": "10.0.0.1"}, b={}), host)
    assert [each["rank"] for each in found] == ranks
    assert {each["head"] for each in found} == {"a"}
    assert found[0]["members"][0]["address"] == "10.0.0.1"


def test_reads_the_variables_of_each_host_once() -> None:
    hostvars = HostVars(a={}, b={}, c={})
    lookup([], hostvars)
    assert sorted(hostvars.reads) == ["a", "b"]


@pytest.mark.parametrize(
    ("host", "hostvars", "part"),
    [
        pytest.param("localhost", HostVars(a={}, b={}), "localhost is not in the inventory group gb10", id="localhost"),
        pytest.param("a", HostVars(a={"gb10_rank": 0}, b={"gb10_rank": 0}), "gb10_rank", id="two heads"),
        pytest.param("a", HostVars(a={"gb10_fabric_cidrs": "x"}, b={}), "gb10_fabric_cidrs", id="bad fabric"),
    ],
)
def test_an_error_is_one_sentence(host: str, hostvars: HostVars, part: str) -> None:
    with pytest.raises(AnsibleError) as caught:
        lookup([], hostvars, host)
    assert str(caught.value).startswith("inventory: ")
    assert part in str(caught.value)
    assert "\n" not in str(caught.value)


def test_refuses_an_unknown_option() -> None:
    with pytest.raises(AnsibleError, match="serving_group has no option group"):
        LookupModule().run([], variables={}, group="pair1")
