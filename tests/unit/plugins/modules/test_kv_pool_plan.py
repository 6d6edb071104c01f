"""The kv_pool_plan module, run as a module."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.modules import kv_pool_plan
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from module_run import run_module
from shipped_profiles import SHIPPED

BIG = 127601213  # KiB: 121.69 GiB
SMALL = 125441146  # KiB: 119.63 GiB


def rank(host: str, total: int) -> dict[str, Any]:
    return {"host": host, "total_kib": total, "available_kib": total - 8 * 2**20, "free_kib": total - 9 * 2**20}


@pytest.mark.parametrize(
    ("name", "second", "enforce", "failed", "verdict"),
    [
        ("dspark-nvfp4-1m-seed", BIG, True, False, "ok"),
        ("dspark-nvfp4-1m-seed", SMALL, True, True, "refused"),
        ("dspark-nvfp4-1m-seed", SMALL, False, False, "refused"),
        ("dsv4-0731-b12x-512k", BIG, True, False, "unknown"),
    ],
)
def test_fails_only_if_enforced_and_refused(capsys: pytest.CaptureFixture[str], name: str, second: int, enforce: bool, failed: bool, verdict: str) -> None:
    out = run_module(capsys, kv_pool_plan, profile=resolve(name, SHIPPED), ranks=[rank("a", BIG), rank("b", second)], enforce=enforce)
    assert (out.get("failed", False), out["verdict"], out["changed"]) == (failed, verdict, False)
    assert out["remedy"] == ("set gpu-memory-utilization to 0.81" if verdict == "refused" else None)


@pytest.mark.parametrize(("enforce", "allow", "failed"), [(True, False, True), (False, False, False), (True, True, False)])
def test_what_may_freeze_a_node_fails_with_the_memory_of_the_nodes(capsys: pytest.CaptureFixture[str], enforce: bool, allow: bool, failed: bool) -> None:
    own = resolve("mine", SHIPPED, {"mine": {"extends": "dspark-nvfp4-1m-seed", "engine": {"args": {"gpu-memory-utilization": "0.84"}}}})
    out = run_module(capsys, kv_pool_plan, profile=own, ranks=[rank("a", BIG), rank("b", SMALL)], enforce=enforce, allow_unsafe_memory=allow)
    assert out.get("failed", False) is failed
    texts = [*out["warnings_found"], out["unsafe"] or ""]
    (text,) = [text for text in texts if "Of 119.6 GiB on b, 19.1 GiB stay for the host" in text and "about 2.3 GiB remain free" in text]
    assert (text == out["unsafe"]) is not allow
    assert (out["msg"] == out["unsafe"]) is failed


def test_figures_that_are_not_numbers_are_an_error_of_the_task(capsys: pytest.CaptureFixture[str]) -> None:
    out = run_module(capsys, kv_pool_plan, profile=resolve("dspark-nvfp4-1m-seed", SHIPPED), ranks=[{"total_kib": "much"}] * 2)
    assert (out["failed"], "the memory of each rank are expected" in out["msg"]) == (True, True)
