"""The estimate of the KV pool next to what the engine reports, for some settings."""

import re
from typing import Any

import pytest
from gpu.pair import GPU, ONE_ATTEMPT, ONLY_SERVING, SHARED, Logs, Pair, Row, facts_of

BOUND = 2.0  # percent
#: No pool has so many tokens: the gate ends the boot with the engine's figure, before graphs and completions.
NEVER = {"gate": {"effective_tokens": {"min": 10**12}}}
#: The settings of a row, and arguments of the engine.
ROWS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "utilization 0.5": ({"utilization": 0.5}, {}),
    "utilization 0.8": ({"utilization": 0.8, "unsafe_memory": True}, {}),
    "an fp8 cache": ({"plan": {"kv_bytes_per_token": 8192}}, {"kv-cache-dtype": "fp8"}),
    "131,072 tokens of context, 64 sequences": ({"context": 131072, "requests": 64}, {}),
    "8 GiB pinned": ({}, {"kv-cache-memory-bytes": 8 << 30}),
    "utilization 0.65": ({"utilization": 0.65}, {}),
    "256 sequences": ({"requests": 256}, {}),
    "16,384 batched tokens": ({}, {"max-num-batched-tokens": 16384}),
    "2 GiB pinned, 8,192 tokens of context": ({"context": 8192}, {"kv-cache-memory-bytes": 2 << 30}),
    "with graphs": ({"utilization": 0.6}, {"enforce-eager": False}),
}


@pytest.mark.parametrize("name", ROWS)
def test_plan(known: Pair, row: Row, name: str) -> None:
    settings, args = ROWS[name]
    if SHARED and "pinned" not in name:
        pytest.skip("both nodes share one GPU: each counts what the other one takes")
    given = {**ONE_ATTEMPT, **NEVER, **settings, "extra_arguments": {"enforce-eager": True, **args}}
    given = {**given, **(known.changed(plan=settings["plan"]) if "plan" in settings else {}), "plan": "report"}
    # The GPU's own memory, as a start reads it.
    total, reserved = (int(re.sub(r"\D", "", each)) for each in (known.smi("memory.total,memory.reserved")[0] if GPU else "143771,601").split(","))
    memory = dict.fromkeys(("total_kib", "available_kib"), (total - reserved) * 1024)
    checked, logs = known.run("validate", **given, validate_memory=memory).passed(), Logs(known)
    estimate = re.search(r"Estimated KV pool: ([\d,]+) tokens", checked.flat)
    assert estimate, checked
    run = known.run("bring up", *ONLY_SERVING, **given).failed("pool_below_floor")
    logs.keep(row)
    figures = [facts_of(logs.text(node - 1)) for node in known.nodes]
    plan, engine = int(estimate[1].replace(",", "")), int(figures[0]["kv_tokens"])
    row.facts |= {"plan": plan, "engine": engine, "error": round(100 * (plan - engine) / engine, 2), "seconds": round(run.seconds, 1)}
    row.facts["available"] = [each.get("available_gib_min") for each in figures]
    assert abs(row.facts["error"]) <= BOUND
