"""Every shipped profile's gate on boot logs: the published pool passes, a tenth less fails; in the two-line and the one-line wording."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate, measures
from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shared_samples import needs_shared, samples

# Published pool in tokens with the profile's own arguments: GanyX19, tonyd2wild and Tobias Weiss, for 512K GanyX19's repository, and public recipes.
# None: no such pool is published.
EVIDENCE: dict[str, int | None] = {
    "dspark-nvfp4-1m-seed": 1_990_142, "dspark-nvfp4-1m": None,
    "dspark-nvfp4-1m-2": None, "dspark-nvfp4-500k": None, "dspark-nvfp4-200k": None,
    "dspark-fp8-262k-baseline": None, "b12x-fp8-1m": None, "fp8-1m": 1_430_000, "fp8-512k": 1_180_000, "fp8-256k": None,
    "pr41834-300k": None, "pr41834-ray-200k": 1_096_000, "pr41834-mp-200k": None, "piecewise-200k": 865_000,
    "dsv4-0731-b12x-512k": None, "glm53-flash-spark-500k": 1_061_538, "glm53-flash-dflash2-262k": 678_661,
    "qwen38-flash-next-262k": 2_229_941, "dsv41-flash-exl3-1m": None, "qwen38-27b-dflash2-262k": None, "nemotron3-super-262k": None,
    "minimax-m27-awq-196k": None, "gpt-oss-120b-131k": None, "mimo26-flash-300k": None,
}  # fmt: skip


def boot(context: int, tokens: int, one_line: bool) -> bytes:
    """Write a head's boot log with this pool, in the wording of vLLM before or from 0.28 on."""
    lines = [f"(APIServer pid=1) INFO 11-21 05:00:00 [model.py:100] Using max model len {context}"]
    size, many = f"GPU KV cache size: {tokens:,} tokens", f"Maximum concurrency for {context:,} tokens per request: {tokens / context:.2f}x"
    prefix = "(EngineCore pid=9) INFO 11-21 05:05:00 [kv_cache_utils.py:1] "
    lines += [prefix + f"{size}, {many}"] if one_line else [prefix + size, prefix + many]
    lines += ["INFO:     Application startup complete."]
    return ("\n".join(lines) + "\n").encode()


def verdict(profile: dict[str, Any], log: bytes, context: int, strict: bool = False) -> dict[str, Any] | None:
    """Judge one head's log by a profile's gate; the engine's settings are those of the profile."""
    facts = parse(log)
    facts |= {key: profile["gate"][key] for key in ("kv_cache_dtype", "speculative_method", "dtype")} | profile["gate"]["engine"]
    [rank] = Judge("pair1", ["h"], "", {}).states
    rank["facts"] = facts
    api = {"error": "", "models": [{"id": name, "max_model_len": context} for name in profile["model"]["served_names"]], "metrics": []}
    return gate.first_fault(gate.checks([rank], api, profile["gate"]), strict)


def test_every_shipped_profile_is_here_and_has_the_day_on_which_its_image_was_read_in_public() -> None:
    assert set(EVIDENCE) == set(shipped_profiles())
    assert [name for name in EVIDENCE if "(read 2026-" not in str(resolve(name, shipped_profiles(), {})["sources"])] == []


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
def test_the_seeds_own_lines_pass_their_profile(log: str) -> None:
    profile = resolve("dspark-nvfp4-1m-seed", shipped_profiles(), {})
    assert verdict(profile, (samples() / "bootlogs" / log).read_bytes(), 1048576) is None


# --- the transport -----------------------------------------------------------------------------------------------------------


RDMA = (
    b"spark1:301:301 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.0.2.10<0>\n"
    b"spark1:301:301 [0] NCCL INFO Using network IB\nspark1:301:412 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
)
# With the plugin of HPC-X.
PLUGIN = RDMA.replace(b"network IB", b"network IBext_v10").replace(b"NET/IB/", b"NET/IBext_v10/")
SOCKETS = RDMA.replace(b"network IB", b"network Socket").replace(b"NET/IB/", b"NET/Socket/")


def transport(name: str, lines: bytes, strict: bool = False) -> dict[str, Any] | None:
    profile = resolve(name, shipped_profiles(), {})
    context = int(profile["engine"]["args"]["max-model-len"])
    return verdict(profile, lines + boot(context, EVIDENCE[name] or context, True), context, strict)


@pytest.mark.parametrize("name", EVIDENCE)
def test_nccl_prints_the_transport_that_the_gate_decides_on(name: str) -> None:
    profile = resolve(name, shipped_profiles(), {})
    assert (profile["gate"]["transport"], profile["env"]["NCCL_DEBUG"], profile["env"]["NCCL_DEBUG_SUBSYS"]) == ("rdma", "INFO", "INIT,NET")
    assert {"env.NCCL_DEBUG", "env.NCCL_DEBUG_SUBSYS"} <= {key for each in profile["deviations"] for key in each["keys"]}
    assert (transport(name, RDMA, strict=True), transport(name, PLUGIN, strict=True)) == (None, None)
    fault = transport(name, SOCKETS)
    assert fault is not None
    assert (fault["class"], fault["found"], "/dev/infiniband" in fault["remedy"]) == ("transport_differs", {0: "tcp"}, True)


def test_a_transport_that_no_line_names_counts_only_if_strict_and_has_its_own_remedy() -> None:
    assert transport("fp8-1m", b"") is None
    fault = transport("fp8-1m", b"", strict=True)
    assert fault is not None
    assert (fault["name"], fault["ok"]) == ("transport", None)
    assert "NCCL_DEBUG_SUBSYS" in fault["remedy"]


@pytest.mark.parametrize("name", [name for name in EVIDENCE if resolve(name, shipped_profiles(), {})["gate"]["speculative_method"]])
def test_every_shipped_profile_refuses_a_drafter_that_accepts_nothing(name: str) -> None:
    criteria = resolve(name, shipped_profiles(), {})["gate"]

    def fault(accepted: list[int]) -> str:
        drafts = {"drafts": 80, "draft_tokens": 400, "accepted_tokens": sum(accepted), "accepted_per_position": accepted, "generated_tokens": 200}
        found = measures.draft_total([{"speculation": drafts, "replies": [{"completion_tokens": 200}]}])
        return str((gate.first_fault(measures.acceptance_checks(found, criteria["acceptance"], True)) or {"class": ""})["class"])

    assert fault([0] * 5) == "drafter_dead"
    assert fault([70, 50, 30, 20, 10]) == ""
    assert (fault([84, 63, 1, 1, 0]) == "acceptance_low") is name.startswith("dspark-"), "tonyd2wild requires the positions 0 to 4"
