"""The names of groups and hosts become parts of paths, units, and commands: they have an alphabet (M6)."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.check import faults
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import ClusterError, group_of

BAD = [
    "..", "a b", "a /etc", "a%n", "a/../../b", "a$(id)", "a;id", "a'b", 'a"b', "é", "-rf", "a\n", "A{{ 1 }}", ".hidden", "ab:c", "a" * 80, "x\x1b[2J",
    "a\u202eb", "",
]  # fmt: skip
GOOD = ["pair1", "spark-pair", "spark_pair", "A1", "gb10"]


def inventory(group: str, hosts: tuple[str, str] = ("spark-1", "spark-2")) -> tuple[dict[str, list[str]], dict[str, dict[str, Any]]]:
    cidrs = ["192.168.200.0/24", "192.168.201.0/24"]
    variables = {host: {"ansible_host": f"10.0.0.{number}", "gb10_fabric_cidrs": cidrs} for number, host in enumerate(hosts, 1)}
    return {"all": list(hosts), "gb10": list(hosts), group: list(hosts)}, variables


@pytest.mark.parametrize("name", BAD)
def test_a_group_with_another_name_is_refused(name: str) -> None:
    groups, hosts = inventory(name)
    assert [fault for fault in faults(groups, hosts) if "has the name" in fault.text]
    with pytest.raises(ClusterError, match="has the name"):
        group_of("spark-1", groups, hosts)


@pytest.mark.parametrize("name", [each for each in BAD if each])
def test_a_host_with_another_name_is_refused(name: str) -> None:
    groups, hosts = inventory("pair1", ("spark-1", name))
    assert [fault for fault in faults(groups, hosts) if "has the name" in fault.text]
    with pytest.raises(ClusterError, match="has the name"):
        group_of("spark-1", groups, hosts)


@pytest.mark.parametrize("name", GOOD)
def test_other_names_are_accepted(name: str) -> None:
    groups, hosts = inventory(name, ("spark-1.local", "10.0.0.2"))
    assert not [fault for fault in faults(groups, hosts) if "has the name" in fault.text]
