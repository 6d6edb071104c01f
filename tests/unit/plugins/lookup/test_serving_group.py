"""The lookup serving_group: reads hostvars once a host, templated, and turns errors into one sentence."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible_collections.gb10.cluster.plugins.lookup.serving_group import LookupModule

GROUPS = {"all": ["a", "b"], "gb10": ["a", "b"], "pair1": ["a", "b"]}


class HostVars(Mapping[str, dict[str, Any]]):
    """Like Ansible's: computes the variables of a host on each access; here it counts."""

    def __init__(self, **hosts: dict[str, Any]) -> None:
        self.hosts = hosts
        self.asked: list[str] = []

    def __getitem__(self, host: str) -> dict[str, Any]:
        self.asked.append(host)
        return self.hosts[host]

    def __iter__(self) -> Iterator[str]:
        return iter(self.hosts)

    def __len__(self) -> int:
        return len(self.hosts)


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
def test_whose_group(terms: list[str], host: str, ranks: list[int]) -> None:
    """A term is the name of another host."""
    found = lookup(terms, HostVars(a={"ansible_host": "10.0.0.1"}, b={}), host)
    assert [each["rank"] for each in found] == ranks
    assert {each["head"] for each in found} == {"a"}
    assert found[0]["members"][0]["address"] == "10.0.0.1"


def test_each_host_is_asked_once() -> None:
    """Its variables are computed on each access, which costs a millisecond."""
    hostvars = HostVars(a={}, b={}, c={})
    lookup([], hostvars)
    assert sorted(hostvars.asked) == ["a", "b"]


@pytest.mark.parametrize(
    ("host", "hostvars", "sentence"),
    [
        pytest.param("localhost", HostVars(a={}, b={}), "inventory: localhost is not in the inventory group gb10: add it to a serving group", id="localhost"),
        pytest.param("a", HostVars(a={"gb10_rank": 0}, b={"gb10_rank": 0}), "inventory: a and b both claim to be the head (gb10_rank: 0)", id="two heads"),
        pytest.param("a", HostVars(a={"gb10_fabric_cidrs": "x"}, b={}), "inventory: gb10_fabric_cidrs is 'x', expected a list of networks", id="bad fabric"),
    ],
)
def test_errors_are_one_sentence(host: str, hostvars: HostVars, sentence: str) -> None:
    """Never a traceback of ours."""
    with pytest.raises(AnsibleError) as caught:
        lookup([], hostvars, host)
    assert str(caught.value).startswith(sentence)
    assert "\n" not in str(caught.value)


def test_an_option_that_does_not_exist_is_refused() -> None:
    """It would be passed over in silence."""
    with pytest.raises(AnsibleError, match="serving_group has no option group; it takes names of hosts only"):
        LookupModule().run([], variables={}, group="pair1")
