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
    out = FILTERS["render_rank"](MINI, {"rank": 0, "size": 1})
    assert out["argv"][:3] == ["vllm", "serve", "/m"]
    assert FILTERS["env_file_text"]({"A": "b"}) == "A='b'\n"
    assert FILTERS["profile_paths"](MINI, "/srv")["model"] is None


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("render_rank", ("fp8-1m", {"rank": 0, "size": 1}), "render_rank needs a mapping, got 'fp8-1m'"),
        ("render_rank", (MINI, {"rank": 5, "size": 1}), "rank 5 of a group of 1 does not exist"),
        ("env_file_text", ({"A": "'"},), "the secret A contains a single quote"),
    ],
)
def test_faults(name: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(AnsibleFilterError, match=text):
        FILTERS[name](*args)
