"""The container lab's plan: addresses, names, needs, collisions, recipe hashes. Pure: nothing is started."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from lab.container import plan  # noqa: E402  the labs are programs, not an installed package
from lab.container.plan import GIB, LabError  # noqa: E402


@pytest.mark.parametrize("text", ["0", "1", "3", "10", "-2", "two", "", "2.0"])
def test_node_count_that_makes_no_pairs_is_refused(text: str) -> None:
    with pytest.raises(LabError, match=r"LAB_NODES or --nodes.*pairs"):
        plan.check_node_count(text)


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


def test_networks_of_all_instances_are_apart() -> None:
    nets = [net for instance in range(plan.MAX_INSTANCE + 1) for net in plan.networks(plan.MAX_NODES, instance)]
    assert len({net.name for net in nets}) == len(nets)
    for i, net in enumerate(nets):
        assert plan.collisions([net], [(other.name, other.subnet) for j, other in enumerate(nets) if j != i]) == []


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


def test_shortage_reports_figures_and_remedy() -> None:
    need = plan.Needs(disk=10 * GIB, memory=7 * GIB)
    assert plan.shortage(need, disk_free=10 * GIB, disk_where="/d", memory_available=7 * GIB) == []
    disk, memory = plan.shortage(need, disk_free=3 * GIB, disk_where="/var/lib/docker", memory_available=GIB)
    assert "10.0 GiB of disk under /var/lib/docker and 3.0 GiB are free" in disk
    assert "docker system df" in disk
    assert "7.0 GiB of memory and 1.0 GiB are available" in memory
    assert "LAB_NODES=2" in memory


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


def arguments(cgroups: str) -> list[str]:
    return plan.node_run_arguments(plan.nodes(2)[0], "image", "tree", {"k": "v"}, cgroup_version=cgroups)


def test_a_node_is_never_privileged_and_cannot_set_the_hosts_clock_or_modules() -> None:
    given = arguments("1")
    assert "--privileged" not in given
    assert not {"SYS_RESOURCE", "SYS_TIME", "SYS_MODULE", "SYS_RAWIO", "ALL"} & set(given)
    assert "tree:/opt/engine:ro" in given
    assert "gb10-lab-1-docker:/var/lib/docker" in given
