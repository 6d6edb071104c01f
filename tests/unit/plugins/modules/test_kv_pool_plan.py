"""The kv_pool_plan module, run as a module."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.modules import kv_pool_plan
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shipped_profiles import SHIPPED

BIG = 127601213  # KiB: 121.69 GiB
SMALL = 125441146  # KiB: 119.63 GiB


def rank(host: str, total: int) -> dict[str, Any]:
    return {"host": host, "total_kib": total, "available_kib": total - 8 * 2**20, "free_kib": total - 9 * 2**20}


def run(**args: Any) -> tuple[int, dict[str, Any]]:
    out = io.StringIO()
    with patch_module_args(args), redirect_stdout(out), pytest.raises(SystemExit) as caught:
        kv_pool_plan.main()
    return int(caught.value.code or 0), json.loads(out.getvalue())


@pytest.mark.parametrize(
    ("name", "second", "enforce", "rc", "verdict"),
    [
        ("dspark-nvfp4-1m-seed", BIG, True, 0, "ok"),
        ("dspark-nvfp4-1m-seed", SMALL, True, 1, "refused"),
        ("dspark-nvfp4-1m-seed", SMALL, False, 0, "refused"),
        ("dsv4-0731-b12x-512k", BIG, True, 0, "unknown"),
    ],
)
def test_fails_only_if_enforced_and_refused(name: str, second: int, enforce: bool, rc: int, verdict: str) -> None:
    code, out = run(profile=resolve(name, SHIPPED), ranks=[rank("a", BIG), rank("b", second)], enforce=enforce)
    assert (code, out["verdict"], out["changed"]) == (rc, verdict, False)
    assert out["remedy"] == ("set gpu-memory-utilization to 0.81" if verdict == "refused" else None)


@pytest.mark.parametrize(("enforce", "allow", "rc"), [(True, False, 1), (False, False, 0), (True, True, 0)])
def test_what_may_freeze_a_node_fails_with_the_memory_of_the_nodes(enforce: bool, allow: bool, rc: int) -> None:
    own = resolve("mine", SHIPPED, {"mine": {"extends": "dspark-nvfp4-1m-seed", "engine": {"args": {"gpu-memory-utilization": "0.84"}}}})
    code, out = run(profile=own, ranks=[rank("a", BIG), rank("b", SMALL)], enforce=enforce, allow_unsafe_memory=allow)
    assert code == rc
    texts = [*out["warnings_found"], out["unsafe"] or ""]
    (text,) = [text for text in texts if "Of 119.6 GiB on b, 19.1 GiB stay for the host" in text and "about 2.3 GiB remain free" in text]
    assert (text == out["unsafe"]) is not allow
    assert (out["msg"] == out["unsafe"]) is (rc == 1)


def test_figures_that_are_not_numbers_are_an_error_of_the_task() -> None:
    code, out = run(profile=resolve("dspark-nvfp4-1m-seed", SHIPPED), ranks=[{"total_kib": "much"}] * 2)
    assert (code, "the memory of each rank are expected" in out["msg"]) == (1, True)
