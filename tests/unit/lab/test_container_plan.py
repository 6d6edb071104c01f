"""The container lab's plan: addresses, names, needs, collisions, recipe hashes. Pure: nothing is started."""

from __future__ import annotations

import ipaddress
import shutil
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from lab.container import plan  # noqa: E402  the labs are programs, not an installed package
from lab.container.plan import GIB, LabError  # noqa: E402

ROUTES = """Iface\tDestination\tGateway \tFlags\tRefCnt\tUse\tMetric\tMask\t\tMTU\tWindow\tIRTT
eth0\t00000000\t010200C0\t0003\t0\t0\t0\t00000000\t0\t0\t0
eth0\t000200C0\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
br-1\t00461EAC\t00000000\t0001\t0\t0\t0\t00FFFFFF\t0\t0\t0
"""


@pytest.mark.parametrize(("text", "count"), [("2", 2), ("4", 4), ("8", 8)])
def test_node_count_is_accepted(text: str, count: int) -> None:
    assert plan.check_node_count(text) == count


@pytest.mark.parametrize("text", ["0", "1", "3", "10", "-2", "two", "", "2.0"])
def test_node_count_that_makes_no_pairs_is_refused(text: str) -> None:
    with pytest.raises(LabError, match=r"LAB_NODES or --nodes.*pairs"):
        plan.check_node_count(text)


@pytest.mark.parametrize(("text", "instance"), [("", 0), ("0", 0), ("3", 3)])
def test_instance_is_accepted(text: str, instance: int) -> None:
    assert plan.check_instance(text) == instance


@pytest.mark.parametrize("text", ["4", "-1", "a"])
def test_unknown_instance_is_refused(text: str) -> None:
    with pytest.raises(LabError, match="GB10_LAB_INSTANCE"):
        plan.check_instance(text)


def test_first_pair_has_the_addresses_that_its_inventory_names() -> None:
    hosts = yaml.safe_load((ROOT / "inventories/lab4/hosts.yml").read_text())["gb10"]["children"]
    written = {name: values["ansible_host"] for pair in hosts.values() for name, values in pair["hosts"].items()}
    assert {node.name: node.management for node in plan.nodes(4)} == written
    first = yaml.safe_load((ROOT / "inventories/lab/hosts.yml").read_text())["gb10"]["children"]["pair1"]["hosts"]
    assert list(first) == [node.name for node in plan.nodes(2)]


@pytest.mark.parametrize(("file", "pair"), [("lab/group_vars/gb10.yml", 1), ("lab4/group_vars/pair2.yml", 2)])
def test_fabric_networks_are_those_of_the_inventory(file: str, pair: int) -> None:
    cidrs = yaml.safe_load((ROOT / "inventories" / file).read_text())["gb10_fabric_cidrs"]
    rails = [net.subnet for net in plan.networks(4) if net.name.startswith(f"gb10-lab-p{pair}-")]
    assert rails == cidrs


@pytest.mark.parametrize("instance", range(plan.MAX_INSTANCE + 1))
def test_every_node_lies_in_its_networks_and_no_address_is_used_twice(instance: int) -> None:
    nets = {net.name: ipaddress.ip_network(net.subnet) for net in plan.networks(plan.MAX_NODES, instance)}
    seen = set()
    for node in plan.nodes(plan.MAX_NODES, instance):
        for name, address in zip(node.networks, (node.management, *node.rails), strict=True):
            assert ipaddress.ip_address(address) in nets[name]
            assert int(address.rpartition(".")[2]) > 1, "the bridge itself has .1"
            seen.add(address)
    assert len(seen) == 3 * plan.MAX_NODES


def test_networks_of_all_instances_are_apart() -> None:
    nets = [net for instance in range(plan.MAX_INSTANCE + 1) for net in plan.networks(plan.MAX_NODES, instance)]
    assert len({net.name for net in nets}) == len(nets)
    for i, net in enumerate(nets):
        assert plan.collisions([net], [(other.name, other.subnet) for j, other in enumerate(nets) if j != i]) == []


def test_fabric_is_internal_and_jumbo_and_management_is_neither() -> None:
    management, *rails = plan.networks(4)
    assert (management.mtu, management.internal) == (1500, False)
    assert {(net.mtu, net.internal) for net in rails} == {(9000, True)}


def test_routes_are_read_without_the_default_one() -> None:
    assert plan.host_routes(ROUTES) == [("eth0", "192.0.2.0/24"), ("br-1", "172.30.70.0/24")]


@pytest.mark.parametrize("text", ["", "Iface\tDestination\n", "Iface\nshort line\n"])
def test_a_route_table_without_routes_gives_none(text: str) -> None:
    assert plan.host_routes(text) == []


@pytest.mark.parametrize(
    ("cidr", "hit"),
    [
        pytest.param("172.30.70.0/24", "gb10-lab-mgmt", id="the same"),
        pytest.param("172.16.0.0/12", "gb10-lab-mgmt", id="a wider one"),
        pytest.param("192.168.201.128/25", "gb10-lab-p1-rail1", id="a narrower one"),
        pytest.param("192.168.200.7/24", "gb10-lab-p1-rail0", id="with host bits"),
    ],
)
def test_collision_names_both_sides_and_the_remedy(cidr: str, hit: str) -> None:
    (sentence,) = plan.collisions(plan.networks(2), [("this host's route on eth0", cidr)])
    assert hit in sentence
    assert "this host's route on eth0" in sentence
    assert "remove" in sentence


def test_neighbours_and_ipv6_do_not_collide() -> None:
    assert plan.collisions(plan.networks(2), [("a", "172.30.71.0/24"), ("b", "fd00::/64"), ("c", "192.168.202.0/24")]) == []


def test_needs_shrink_with_what_is_there() -> None:
    cold, warm = (plan.needs(2, tree_ready=ready, images_ready=ready) for ready in (False, True))
    assert cold.disk > warm.disk > 0
    assert plan.needs(4, tree_ready=True, images_ready=True).memory == 2 * warm.memory
    assert plan.needs(0, tree_ready=True, images_ready=True) == plan.Needs(disk=0, memory=0)


def test_shortage_reports_figures_and_remedy() -> None:
    need = plan.Needs(disk=10 * GIB, memory=7 * GIB)
    assert plan.shortage(need, disk_free=10 * GIB, disk_where="/d", memory_available=7 * GIB) == []
    disk, memory = plan.shortage(need, disk_free=3 * GIB, disk_where="/var/lib/docker", memory_available=GIB)
    assert "10.0 GiB of disk under /var/lib/docker and 3.0 GiB are free" in disk
    assert "docker system df" in disk
    assert "7.0 GiB of memory and 1.0 GiB are available" in memory
    assert "LAB_NODES=2" in memory


def test_available_memory_is_read_in_bytes() -> None:
    assert plan.meminfo_available("MemTotal: 10 kB\nMemAvailable:   2048 kB\n") == 2 * 1024**2
    assert plan.meminfo_available("MemTotal: 10 kB\n") == 0


def test_content_hash_sees_names_bytes_and_boundaries_but_not_order() -> None:
    base = plan.content_hash({"a": b"1", "b": b"2"})
    assert plan.content_hash({"b": b"2", "a": b"1"}) == base
    others = [{"a": b"1", "b": b"3"}, {"a": b"1", "c": b"2"}, {"a": b"1b2"}, {"a": b"12", "b": b""}, {}]
    assert base not in {plan.content_hash(other) for other in others}


@pytest.fixture
def recipes(tmp_path: Path) -> Path:
    shutil.copytree(plan.RECIPES, tmp_path / "images")
    shutil.copy(plan.HERE / "make_model.py", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("file", "changed"),
    [
        ("images/Dockerfile.engine", {"engine", "node"}),
        ("images/Dockerfile.node", {"node"}),
        ("images/gb10-lab-init", {"node"}),
        ("images/setup-node.sh", {"node"}),
        ("images/install_engine.sh", {"tree", "model"}),
        ("make_model.py", {"model"}),
    ],
)
def test_a_changed_recipe_renames_what_is_made_from_it_and_nothing_else(recipes: Path, file: str, changed: set[str]) -> None:
    before = plan.names(recipes)
    with (recipes / file).open("a") as out:
        out.write("# changed\n")
    after = plan.names(recipes)
    assert {name for name in ("base", "engine", "node", "tree", "model") if getattr(before, name) != getattr(after, name)} == changed


def test_names_are_stable_and_differ_by_machine() -> None:
    assert plan.names() == plan.names()
    assert plan.names(machine="aarch64").tree != plan.names(machine="x86_64").tree


def arguments(cgroups: str) -> list[str]:
    return plan.node_run_arguments(plan.nodes(2)[0], "image", "tree", {"k": "v"}, cgroup_version=cgroups)


def test_a_node_is_never_privileged_and_cannot_set_the_hosts_clock_or_modules() -> None:
    given = arguments("1")
    assert "--privileged" not in given
    assert not {"SYS_RESOURCE", "SYS_TIME", "SYS_MODULE", "SYS_RAWIO", "ALL"} & set(given)
    assert "tree:/opt/engine:ro" in given
    assert "gb10-lab-1-docker:/var/lib/docker" in given


def test_systemd_gets_the_cgroup_v1_option_only_on_cgroup_v1() -> None:
    assert arguments("1")[-2:] == ["image", "SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1"]
    assert arguments("2")[-1] == "image"


def test_known_hosts_keeps_type_and_key_only() -> None:
    text = plan.known_hosts([("10.0.0.1", "ssh-ed25519 AAAA root@lab-1\n"), ("10.0.0.2", "ssh-ed25519 BBBB")])
    assert text == "10.0.0.1 ssh-ed25519 AAAA\n10.0.0.2 ssh-ed25519 BBBB\n"


@pytest.mark.parametrize("key", ["", "ssh-ed25519", "cat: no such file"])
def test_node_without_a_host_key_is_reported(key: str) -> None:
    with pytest.raises(LabError, match=r"10\.0\.0\.1 gave no SSH host key"):
        plan.known_hosts([("10.0.0.1", key)])


@pytest.mark.parametrize(
    ("environ", "config", "expected"),
    [
        pytest.param({}, {}, {}, id="nothing"),
        pytest.param({"PIP_INDEX_URL": "http://m/"}, {}, {"PIP_INDEX_URL": "http://m/", "UV_DEFAULT_INDEX": "http://m/"}, id="environment"),
        pytest.param({}, {"global.index-url": "http://g/"}, {"PIP_INDEX_URL": "http://g/", "UV_DEFAULT_INDEX": "http://g/"}, id="pip's file"),
        pytest.param(
            {"PIP_INDEX_URL": "http://m/"},
            {"global.index-url": "http://g/"},
            {"PIP_INDEX_URL": "http://m/", "UV_DEFAULT_INDEX": "http://m/"},
            id="environment wins",
        ),
        pytest.param(
            {"PIP_EXTRA_INDEX_URL": "http://a/\n  http://b/"},
            {},
            {"PIP_EXTRA_INDEX_URL": "http://a/ http://b/", "UV_INDEX": "http://a/ http://b/"},
            id="two more indexes",
        ),
        pytest.param({"https_proxy": "http://p:3128", "HOME": "/root"}, {}, {"https_proxy": "http://p:3128"}, id="proxy and nothing else"),
    ],
)
def test_pip_settings_of_the_host_reach_the_container(environ: dict[str, str], config: dict[str, str], expected: dict[str, str]) -> None:
    assert plan.pip_environment(environ, config) == expected


def test_pip_config_list_is_read() -> None:
    assert plan.parse_pip_config("global.cert='/etc/ssl/ca.crt'\n:env:.timeout='5'\nnonsense\n") == {"global.cert": "/etc/ssl/ca.crt", ":env:.timeout": "5"}
