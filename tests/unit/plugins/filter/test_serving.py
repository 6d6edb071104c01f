"""The rendering filters: what they return, and the texts of their errors, which Ansible reports."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter.serving import FilterModule
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import SHIPPED

FILTERS = FilterModule().filters()
MINI = resolve("m", {"m": {"summary": "s", "image": {"reference": "e:1"}, "model": {"id": "a", "path": "/m"}}})


def test_the_filters_are_there() -> None:
    assert FILTERS["env_file_text"]({"A": "b"}) == "A='b'\n"
    assert FILTERS["profile_paths"](MINI, "/srv")["model"] is None


@pytest.mark.parametrize(
    ("name", "args", "text"),
    [
        ("env_file_text", ({"A": "'"},), "the secret A contains a single quote"),
        ("kv_pool_plan", ("fp8-1m", []), "kv_pool_plan was not given a resolved profile"),
        ("kv_pool_plan", (MINI, [{"host": "spark-1", "total_kib": "much"}]), "spark-1"),
    ],
)
def test_faults(name: str, args: tuple[Any, ...], text: str) -> None:
    with pytest.raises(Exception, match=text):
        FILTERS[name](*args)


def test_the_kv_pool_of_other_settings_names_what_would_fit() -> None:
    ranks = [{"host": host, "total_kib": kib, "available_kib": kib - 8 * 2**20} for host, kib in (("a", 127601213), ("b", 125441146))]
    seed = FILTERS["kv_pool_plan"](resolve("dspark-nvfp4-1m-seed", SHIPPED), ranks)
    assert (seed["verdict"], seed["short_rank"], seed["remedy"]) == ("refused", 1, "set gpu-memory-utilization to 0.81")
    own = {"mine": {"extends": "dspark-nvfp4-1m-seed", "engine": {"args": {"gpu-memory-utilization": "0.84"}}}}
    risky = [FILTERS["kv_pool_plan"](resolve("mine", SHIPPED, own), ranks, allow_unsafe_memory=allow) for allow in (False, True)]
    assert ["Of 119.6 GiB on b, 19.1 GiB stay for the host" in (each["unsafe"] or "") for each in risky] == [True, False]
    assert any("Of 119.6 GiB on b" in text for text in risky[1]["warnings"])
