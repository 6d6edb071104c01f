"""The names of groups and hosts become parts of paths, units, and commands: they have an alphabet (M6)."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import rules
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.groups import ClusterError, group_faults, group_of

BAD = [
    "..", "a b", "a /etc", "a%n", "a/../../b", "a$(id)", "a;id", "a'b", 'a"b', "é", "-rf", "a\n", "A{{ 1 }}", ".hidden", "ab:c", "a" * 80, "x\x1b[2J",
    "a\u202eb", "", "pair1.", "-pair", "_pair", "\uff50air1", "\u0440\u0430\u0456r1", "a\tb", "pair1\u200b", "a\\b", "*", "!pair", "~x", "a,b", "[x]", "@x",
    "\uff10", "\x00", "host#1", "a=b", "`x`", "\ufeffpair", "a" * 300, "pair1 ", "\ud800", "..", "a..b",
]  # fmt: skip
GOOD = ["pair1", "spark-pair", "spark_pair", "A1", "gb10"]


def inventory(group: str, hosts: tuple[str, str] = ("spark-1", "spark-2")) -> tuple[dict[str, list[str]], dict[str, dict[str, Any]]]:
    cidrs = ["192.168.200.0/24", "192.168.201.0/24"]
    variables = {host: {"ansible_host": f"10.0.0.{number}", "gb10_fabric_cidrs": cidrs} for number, host in enumerate(hosts, 1)}
    return {"all": list(hosts), "gb10": list(hosts), group: list(hosts)}, variables


#: Groups and hosts. A name of DNS can end in a dot.
WRONG = [*((name, ("spark-1", "spark-2")) for name in BAD), *(("pair1", ("spark-1", name)) for name in BAD if name not in ("", "pair1."))]


@pytest.mark.parametrize(("group", "names"), WRONG)
def test_a_group_or_a_host_with_another_name_is_refused(group: str, names: tuple[str, str]) -> None:
    groups, hosts = inventory(group, names)
    assert [fault for fault in group_faults(groups, hosts) if "has the name" in fault.text]
    with pytest.raises(ClusterError, match="has the name"):
        group_of("spark-1", groups, hosts)


@pytest.mark.parametrize("name", GOOD)
def test_other_names_are_accepted(name: str) -> None:
    groups, hosts = inventory(name, ("spark-1.local", "10.0.0.2"))
    assert not [fault for fault in group_faults(groups, hosts) if "has the name" in fault.text]


PATHS = [
    "/", "//", "x", "srv/models", "../x", "/srv/../etc", "/srv/..", "/opt/../..", "/a\nb", "/srv/models\n", "/a\x1b[2J", "/a\x9b", "/a\u202eb", "/a\u2028",
    "", "~/x",
]  # fmt: skip
STORE = "gb10_model_store"


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("name", [STORE, "weights_path", "vllm_tp2_directory"])
def test_a_path_that_leads_elsewhere_is_refused(name: str, path: str) -> None:
    assert rules.faults(name, path, {"type": "path"})
    for other in ("/srv/my models/\u00e4", "/srv/..models/a b"):
        assert not rules.faults(name, other, {"type": "path"})


def test_a_store_has_no_colon_which_ends_the_path_of_a_mount() -> None:
    assert rules.faults(STORE, "/srv/mod:els", {"type": "path"})


@pytest.mark.parametrize("release", ["../x", "a/b", "-x", "a b", "a\n", "\x1b", "a" * 65, "*", "."])
def test_a_release_with_another_name_is_refused(release: str) -> None:
    assert rules.faults("rollback_release", release, {"type": "str"})
    assert not rules.faults("rollback_release", "4f0c1d2e3f40", {"type": "str"})
