"""Speed of one stream, and the engine's settings against a profile's gate."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, measures
from shared_samples import needs_shared, samples


@pytest.mark.parametrize(
    ("criteria", "due"),
    [
        ({}, False),
        ({"decode_tok_s": {"min": None}, "acceptance": {"min": None, "positions_active": None}, "published_tok_s": None, "speculative_method": None}, False),
        ({"decode_tok_s": {"min": 0}}, True),
        ({"acceptance": {"positions_active": 1}}, True),
        ({"published_tok_s": 54.2}, True),
        ({"speculative_method": "mtp"}, True),
    ],
)
def test_speed_is_measured_where_something_depends_on_it(criteria: dict[str, Any], due: bool) -> None:
    assert measures.decode_is_due(criteria) is due


@pytest.mark.parametrize(
    ("reply", "found"),
    [
        ({"ok": True, "completion_tokens": 256, "seconds": 5.0}, 51.2),
        ({"ok": True, "completion_tokens": 63, "seconds": 1.0}, None),
        ({"ok": True, "completion_tokens": 256, "seconds": 0}, None),
        ({"ok": True, "completion_tokens": 256, "seconds": "x"}, None),
        ({"ok": False, "completion_tokens": 256, "seconds": 5.0}, None),
    ],
    ids=["measured", "too short", "no time", "not a time", "failed"],
)
def test_speed_of_a_reply(reply: dict[str, Any], found: float | None) -> None:
    assert measures.speed(reply) == found


def test_slow_pair_is_refused_by_the_bound_of_its_owner() -> None:
    [check] = measures.decode_checks(14.3, {"decode_tok_s": {"min": 30}, "published_tok_s": 34.0})
    fault = gate.first_fault([check])
    assert fault is not None
    assert (fault["class"], fault["wanted"], fault["found"]) == ("decode_slow", 30, 14.3)
    assert measures.decode_checks(None, {"decode_tok_s": {"min": 30}})[0]["ok"] is None


def test_speed_far_below_the_published_one_is_a_warning() -> None:
    """Published 54.22: 32.7 is what tonyd2wild measured with a drafter that lacked its fix."""
    [check] = measures.decode_checks(32.7, {"published_tok_s": 54.22})
    assert (check["ok"], check["warning"], check["wanted"]) == (False, True, "38.0 or more (published: 54.22)")
    assert gate.first_fault([check], strict=True) is None
    assert measures.decode_checks(45.0, {"published_tok_s": 54.22})[0]["ok"] is True
    assert measures.decode_checks(32.7, {"published_tok_s": None}) == []


FACTS = {"eager": False, "moe_backend": "B12X", "custom_ops": "none,+quant_fp8", "autotune": True}


@pytest.mark.parametrize(
    ("wanted", "ok"),
    [
        ({"eager": False, "moe_backend": "b12x", "custom_ops": "+quant_fp8, none", "autotune": True}, True),
        ({"eager": None, "moe_backend": None}, True),
        ({"eager": True}, False),
        ({"moe_backend": "MARLIN"}, False),
        ({"custom_ops": "all"}, False),
        ({"autotune": False}, False),
    ],
)
def test_engine_is_held_to_its_settings(wanted: dict[str, Any], ok: bool) -> None:
    results = gate.engine_checks([], FACTS, {"engine": wanted})
    fault = gate.first_fault(results, strict=True)
    assert (fault is None) is ok
    assert ok or (fault or {})["class"] == "engine_differs"
    assert gate.first_fault(gate.engine_checks([], {}, {"engine": wanted})) is None, "not known"


@needs_shared
def test_recorded_boot_of_a_gb10_shows_settings_of_the_engine() -> None:
    facts = parse((samples() / "bootlogs" / "003-gb10-qwen36-35b-dflash-v01dev1-hybrid-newformula.log").read_bytes())
    found = {key: facts[key] for key in FACTS}
    assert found == {"eager": False, "moe_backend": "MARLIN", "custom_ops": "none", "autotune": True}
    assert facts["unknown_variables"] == ["VLLM_PRECOMPILED_WHEEL_COMMIT", "VLLM_BASE_DIR"]
    assert gate.first_fault(gate.engine_checks([], facts, {"engine": found}), strict=True) is None
    fault = gate.first_fault(gate.engine_checks([], facts, {"engine": {"moe_backend": "B12X"}}))
    assert fault is not None
    assert (fault["class"], fault["found"]) == ("engine_differs", "MARLIN")
