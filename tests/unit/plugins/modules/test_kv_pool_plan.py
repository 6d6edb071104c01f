"""The kv_pool_plan module, run as a module."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stdout
from typing import Any

import pytest
from ansible.module_utils.testing import patch_module_args
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from ansible_collections.gb10.cluster.plugins.modules import kv_pool_plan
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


def test_ok() -> None:
    rc, out = run(profile=resolve("dspark-nvfp4-1m", SHIPPED), ranks=[rank("a", BIG), rank("b", BIG)])
    assert (rc, out["verdict"], out["changed"]) == (0, "ok", False)
    assert out["expected_tokens"] > out["needed_tokens"] == 1890000


def test_refused_fails_with_figures() -> None:
    rc, out = run(profile=resolve("dspark-nvfp4-1m", SHIPPED), ranks=[rank("a", BIG), rank("b", SMALL)])
    assert (rc, out["failed"], out["short_rank"]) == (1, True, 1)
    assert out["msg"].endswith("set gpu-memory-utilization to 0.81.")


def test_refused_only_reports_when_not_enforced() -> None:
    rc, out = run(profile=resolve("dspark-nvfp4-1m", SHIPPED), ranks=[rank("a", BIG), rank("b", SMALL)], enforce=False)
    assert (rc, out["verdict"], out.get("failed", False)) == (0, "refused", False)


def test_unknown_never_fails() -> None:
    rc, out = run(profile=resolve("b12x-fp8-1m", SHIPPED), ranks=[rank("a", BIG), rank("b", BIG)])
    assert (rc, out["verdict"], out["expected_tokens"]) == (0, "unknown", None)


@pytest.mark.parametrize(
    ("profile", "ranks", "text"),
    [
        ({"image": {}}, [rank("a", BIG)], "profile has no name, expected a resolved profile"),
        (resolve("fp8-1m", SHIPPED), [{"host": "a"}], "total_kib of a is missing"),
        (resolve("fp8-1m", SHIPPED), [], "ranks is empty"),
    ],
)
def test_unreadable_inputs_are_one_sentence(profile: dict[str, Any], ranks: list[dict[str, Any]], text: str) -> None:
    rc, out = run(profile=profile, ranks=ranks)
    assert rc == 1
    assert out["msg"].startswith(text)
    assert "Traceback" not in json.dumps(out)
