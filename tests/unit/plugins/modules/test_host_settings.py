"""Variables of the host roles as the command line gives them."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError
from ansible_collections.gb10.cluster.plugins.modules import host_settings


def test_text_of_the_command_line_gets_the_type_of_the_variable() -> None:
    given = {"mounts": "/srv/models,/data", "steady_kb": "256", "memlock": "64"}
    assert host_settings.typed("docker", given) == {
        "mounts": ["/srv/models", "/data"], "steady_kb": 256, "memlock": "64",
    }  # fmt: skip


def test_a_variable_of_another_type_is_named() -> None:
    with pytest.raises(HostError, match=r"readahead_load_kb is not valid: .*cannot be converted to an int"):
        host_settings.typed("readahead", {"load_kb": "much"})
