"""Every shipped profile's gate on boot logs: the published pool passes, a tenth less fails; in the two-line and the one-line wording."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from shared_samples import needs_shared, samples

# Published pool in tokens with the profile's own arguments: seeds 000, 003 and 004, and for 512K the repository of seed 000. None: no such pool is published.
EVIDENCE: dict[str, int | None] = {
    "dspark-nvfp4-1m": 1_990_142, "dspark-nvfp4-1m-2": None, "dspark-nvfp4-500k": None, "dspark-nvfp4-200k": None,
    "dspark-fp8-262k-baseline": None, "b12x-fp8-1m": None, "fp8-1m": 1_430_000, "fp8-512k": 1_180_000, "fp8-256k": None,
    "pr41834-300k": None, "pr41834-ray-200k": None, "piecewise-200k": 865_000,
}  # fmt: skip


def boot(context: int, tokens: int, one_line: bool) -> bytes:
    """Write a head's boot log with this pool, in the wording of vLLM before or from 0.28 on."""
    lines = [f"(APIServer pid=1) INFO 11-21 05:00:00 [model.py:100] Using max model len {context}"]
    size, many = f"GPU KV cache size: {tokens:,} tokens", f"Maximum concurrency for {context:,} tokens per request: {tokens / context:.2f}x"
    prefix = "(EngineCore pid=9) INFO 11-21 05:05:00 [kv_cache_utils.py:1] "
    lines += [prefix + f"{size}, {many}"] if one_line else [prefix + size, prefix + many]
    lines += ["INFO:     Application startup complete."]
    return ("\n".join(lines) + "\n").encode()


def verdict(profile: dict[str, Any], log: bytes, context: int) -> dict[str, Any] | None:
    """Judge one head's log by a profile's gate; the engine's dtype and method are those of the profile."""
    facts = parse(log)
    facts |= {key: profile["gate"][key] for key in ("kv_cache_dtype", "speculative_method", "dtype")}
    rank = {"rank": 0, "host": "h", "facts": facts, "container": None, "seen": False}
    api = {"error": "", "models": [{"id": name, "max_model_len": context} for name in profile["model"]["served_names"]], "metrics": []}
    return gate.first_fault(gate.checks([rank], api, profile["gate"]))


def test_every_shipped_profile_is_here() -> None:
    assert set(EVIDENCE) == set(shipped_profiles())


@pytest.mark.parametrize("one_line", [False, True], ids=["two lines", "one line"])
@pytest.mark.parametrize("name", EVIDENCE)
def test_the_published_pool_passes_and_a_tenth_less_fails(name: str, one_line: bool) -> None:
    profile = resolve(name, shipped_profiles(), {})
    context = int(profile["engine"]["args"]["max-model-len"])
    tokens = EVIDENCE[name]
    if tokens is None:
        # No pool to hold it to: each size passes, and the context must be exact.
        for pool in (context, context * 2, context * 20):
            assert verdict(profile, boot(context, pool, one_line), context) is None
        fault = verdict(profile, boot(context // 2, context, one_line), context // 2)
        assert fault is not None
        assert fault["class"] == "context_differs"
        return
    assert verdict(profile, boot(context, tokens, one_line), context) is None
    fault = verdict(profile, boot(context, int(tokens * 0.9), one_line), context)
    assert fault is not None
    assert fault["class"] == "pool_below_floor"


@needs_shared
@pytest.mark.parametrize("log", ["057-gb10x2-deepseek-v4-flash-dspark-nvfp4-1m-seed.log", "058-gb10x2-deepseek-v4-flash-dspark-nvfp4-1m-seed-b.log"])
def test_the_seeds_own_lines_pass_the_default_profile(log: str) -> None:
    profile = resolve("dspark-nvfp4-1m", shipped_profiles(), {})
    assert verdict(profile, (samples() / "bootlogs" / log).read_bytes(), 1048576) is None
