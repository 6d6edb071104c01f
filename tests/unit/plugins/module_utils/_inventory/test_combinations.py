"""Values that are valid alone and not together."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import combinations

SPECS: dict[str, dict[str, Any]] = {
    "sysctl_dirty_ratio": {"default": "5"}, "sysctl_dirty_background_ratio": {"default": "2"}, "sysctl_settings": {"default": {}},
    "roce_bandwidth_hotplug_low_gbps": {"default": 11}, "roce_bandwidth_hotplug_high_gbps": {"default": 15.5}, "roce_interfaces": {"default": []},
}  # fmt: skip


@pytest.mark.parametrize(
    ("values", "key", "part"),
    [
        ({"sysctl_dirty_background_ratio": 5}, "sysctl_dirty_background_ratio", "expected less than sysctl_dirty_ratio (5)"),
        ({"sysctl_settings": {"vm.dirty_ratio": 7}}, "sysctl_settings", "has its own variable. Use sysctl_dirty_ratio"),
        ({"sysctl_settings": {"hw.x": 7}}, "sysctl_settings", "expected a sysctl"),
        ({"roce_bandwidth_hotplug_low_gbps": 16}, "roce_bandwidth_hotplug_low_gbps", "expected less than roce_bandwidth_hotplug_high_gbps (15.5)"),
        ({"roce_interfaces": ["a"]}, "roce_interfaces", "has 1 interfaces, expected 2"),
    ],
)
def test_names_the_variable_to_change(values: dict[str, Any], key: str, part: str) -> None:
    ((name, text),) = combinations.faults(values, SPECS)
    assert name == key
    assert part in text


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"sysctl_dirty_ratio": "leave", "sysctl_dirty_background_ratio": 10},
        {"sysctl_dirty_ratio": "many"},
        {"sysctl_settings": ["x"], "roce_bandwidth_hotplug_low_gbps": "x", "roce_interfaces": "a", "gb10_fabric_cidrs": "b"},
        {"roce_interfaces": ["a"], "gb10_fabric_cidrs": ["10.1.0.0/24"]},
    ],
)
def test_accepts_values_that_fit_and_leaves_wrong_types_to_the_rules(values: dict[str, Any]) -> None:
    assert combinations.faults(values, SPECS) == []
