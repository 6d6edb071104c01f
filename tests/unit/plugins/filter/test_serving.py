"""The rendering filters turn errors into those of Ansible."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleFilterError
from ansible_collections.gb10.cluster.plugins.filter.serving import FilterModule
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve

FILTERS = FilterModule().filters()
MINI = resolve("m", {"m": {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a", "path": "/m"}}})


def test_the_filters_are_there() -> None:
    assert FILTERS["env_file_text"]({"A": "b"}) == "A='b'\n"
    assert FILTERS["profile_paths"](MINI, "/srv")["model"] is None


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("adjusted_profile", (MINI, {"gate": {"x": 1}}), "gate.x is not a key of a profile"),
        ("env_file_text", ({"A": "'"},), "the secret A contains a single quote"),
    ],
)
def test_faults(name: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(AnsibleFilterError, match=text):
        FILTERS[name](*args)
