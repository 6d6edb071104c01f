"""What setup.yml shows of two machines, and what it proposes."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_proposal as proposal
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from unit.fixtures.node_facts import cabled, facts

NAMES = ["spark-1", "spark-2"]


def node(**more: Any) -> dict[str, Any]:
    """Facts of a Spark whose folders are on one disk."""
    disks = [{"path": path, "device": "1:1", "free_gib": 3000.0, "total_gib": 3666.0} for path in ("/var/lib/docker", "/srv/models")]
    return facts(**{"disks": disks, "fabric": {"management": {"interface": "enP7s7", "address": "10.0.1.60", "wireless": False}}, **more})


def test_a_machine_is_shown_with_system_cable_disk_and_configuration_of_others() -> None:
    text = "\n".join(proposal.machine_lines("spark-1", node(), cabled(foreign=True)))
    for part in ("NVIDIA DGX Spark, DGX Spark 7.6.0, driver 580.173.02", "enP7s7 (10.0.1.60)", "QSFP port 0 (the one nearest", "3,000 of 3,666", "40-cx7.yaml"):
        assert part in text
    assert text.count("Free at") == 1, "one file system is shown once"


def test_wifi_a_reboot_and_another_machine_are_shown() -> None:
    odd = node(
        fabric={"management": {"interface": "wlP9s9", "address": None, "wireless": True}},
        kernel={"release": "6", "reboot_required": True},
        machine={"arch": "x86_64", "product": "", "gb10": False},
    )
    text = "\n".join(proposal.machine_lines("spark-1", odd, cabled(carrier=False)))
    for part in ("Wi-Fi", "waits for a reboot", "not a GB10", "no cable is plugged"):
        assert part in text


def test_a_cable_in_different_ports_or_none_is_a_fault() -> None:
    assert proposal.cable_fault(NAMES, [cabled(), cabled()]) == ""
    assert "different QSFP ports" in proposal.cable_fault(NAMES, [cabled(), cabled(cage=1)])
    assert proposal.cable_fault(NAMES, [cabled(), cabled(carrier=False)]).startswith("spark-2 without a link")


def test_addresses_of_another_tool_are_kept_if_they_fit() -> None:
    found = proposal.adoptable([cabled(12, foreign=True), cabled(13, foreign=True)])
    assert found == (["192.168.200.0/24", "192.168.201.0/24"], [["192.168.200.12", "192.168.201.12"], ["192.168.200.13", "192.168.201.13"]])


def test_addresses_that_do_not_fit_are_not_kept() -> None:
    first = cabled(12, foreign=True)
    link_local = cabled(13, foreign=True)
    link_local["rails"] = [{**rail, "ipv4": "169.254.1.2", "prefix": 16} for rail in link_local["rails"]]
    one_missing = cabled(13, foreign=True)
    one_missing["rails"] = [one_missing["rails"][0], {**one_missing["rails"][1], "ipv4": None}]
    kernel_only = cabled(13, foreign=True)
    kernel_only["foreign"][0]["addresses"] = {}
    unparsed = cabled(13, foreign=True)
    unparsed["foreign"][0]["parsed"] = False
    for second in (kernel_only, unparsed, cabled(12, foreign=True), cabled(13), cabled(13, foreign=True, nets=(202, 203)), link_local, one_missing):
        assert proposal.adoptable([first, second]) is None


def test_profiles_that_a_pair_can_serve_have_a_number_and_those_without_an_image_are_left_out() -> None:
    known = shipped_profiles()
    profiles = {name: resolve(name, known, {}) for name in ("fp8-1m", "b12x-fp8-1m")}
    lost = {**profiles["fp8-1m"], "image": {**profiles["fp8-1m"]["image"], "pull": False, "build": None, "base": {"pull": False, "build": None}}}
    choices = proposal.profile_choices({**profiles, "lost": lost, "four": {**profiles["fp8-1m"], "ranks": {"min": 4, "max": None}}})
    assert sorted(choices) == ["b12x-fp8-1m", "fp8-1m"]
    table = proposal.profile_table(profiles, choices)
    assert [line.split()[:2] for line in table[1:3]] == [["1", choices[0]], ["2", choices[1]]]
    assert "148 GiB" in table[1]
    assert (proposal.chosen("2", choices), proposal.chosen(choices[0], choices), proposal.chosen("9", choices)) == (choices[1], choices[0], "9")


@pytest.mark.parametrize("answer", ["\u00b2", "9" * 5000, "0"])
def test_a_number_outside_the_table_is_taken_as_a_name(answer: str) -> None:
    assert proposal.chosen(answer, ["a", "b"]) == answer


@pytest.mark.parametrize(
    ("found", "names"),
    [
        (["spark-ab12", "SPARK-cd34.local"], ["spark-ab12", "spark-cd34"]),
        (["spark", "spark"], ["spark-1", "spark-2"]),
        (["", "x"], ["spark-1", "spark-2"]),
        (["localhost", "x"], ["spark-1", "spark-2"]),
        (["a\nb", "x"], ["spark-1", "spark-2"]),
        (["gb10", "x"], ["spark-1", "spark-2"]),
    ],
)
def test_machines_keep_their_names_if_they_are_valid_and_differ(found: list[str], names: list[str]) -> None:
    assert proposal.host_names(found) == names


def test_the_files_have_the_values_with_their_descriptions() -> None:
    pair: dict[str, dict[str, Any]] = {
        "spark-1": {"ansible_host": "192.168.1.11"},
        "1": {"ansible_host": "yes", "gb10_fabric_addresses": ["192.168.200.13", "192.168.201.13"]},
    }
    values = {"ansible_user": "nvidia", "gb10_profile": "1e3", "gb10_model_store": "/srv/models", "gb10_fabric_cidrs": ["10.1.0.0/24", "10.2.0.0/24"]}
    files = proposal.files(pair, values)
    assert yaml.safe_load(files["hosts.yml"])["gb10"]["children"]["pair1"]["hosts"] == pair
    assert yaml.safe_load(files["group_vars/gb10.yml"]) == values
    text = files["group_vars/gb10.yml"]
    assert "\n# The user to log in as over SSH.\nansible_user: nvidia\n" in text
    assert "\n# The IPv4 networks of the QSFP link, one for each rail." in text
    assert "roce_foreign_policy" not in text
