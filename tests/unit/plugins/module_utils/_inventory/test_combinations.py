"""Values that are valid alone and not together."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import groups


@pytest.mark.parametrize(
    ("values", "found"),
    [
        ({}, []),
        ({"roce_interfaces": ["a"]}, [("roce_interfaces", "has 1 interfaces, expected 2")]),
        ({"roce_interfaces": ["a"], "gb10_fabric_cidrs": ["10.1.0.0/24"]}, []),
        ({"roce_interfaces": "a", "gb10_fabric_cidrs": "b"}, []),  # a wrong type is another fault
    ],
)
def test_names_the_variable_to_change(values: dict[str, Any], found: list[tuple[str, str]]) -> None:
    assert [(name, text.partition(":")[0]) for name, text in groups.combination_faults(values)] == found
