"""What tests/gpu does without a GPU: results that another machine goes on from, expected facts of the logs, tables."""

import json
from pathlib import Path

from gpu.pair import Row, facts_of
from gpu.tables import page

HEAD = """INFO [core.py:1] Initializing a V1 LLM engine (v0.25.1) with config
(EngineCore pid=1) INFO [kv_cache_utils.py:1] GPU KV cache size: 2,506,112 tokens, Maximum concurrency for 32,768 tokens per request: 76.48x
(Worker_TP0 pid=2) INFO [gpu_worker.py:538] Available KV cache memory: 38.24 GiB
"""
FACTS = {"version": "0.25.1", "kv_tokens": 2506112, "context": 32768, "max_concurrency": 76.48, "available_gib_min": 38.24}
FAILED = {"state": ["failed"], "class": ["kv_too_small"]}


def test_a_row_that_failed_is_replaced_and_its_logs_have_facts_in_the_form_of_the_samples(tmp_path: Path) -> None:
    for failure in ("AssertionError", ""):
        row = Row("Worker killed, in load", "b_boot_faults", tmp_path, {"seconds": 0.4})
        assert not row.path.exists()
        row.record(0, HEAD)
        row.record(1, "Launching vLLM (v0.25.1) headless", ("kv_too_small",))
        row.write(failure)
    assert [path.name for path in tmp_path.glob("*.json")] == ["worker-killed-in-load.json"]
    logs = [f"worker-killed-in-load.rank{rank}.log" for rank in (0, 1)]
    assert json.loads(row.path.read_text()) == {"row": row.name, "part": row.part, "ok": True, "failure": "", "seconds": 0.4, "logs": logs}
    assert json.loads((tmp_path / "recordings/expected.json").read_text()) == dict(zip(logs, [FACTS, {**FAILED, "version": "0.25.1"}], strict=True))
    assert facts_of("") == {}


def test_a_table_has_the_figures_of_each_machine_and_names_what_did_not_run() -> None:
    common = {"row": "8 GiB pinned", "part": "f_plan", "at": "2026-11-28T10:00:00Z", "plan": 524288, "engine": 524288}
    found = [{**common, "ok": True, "error": 0.0, "machine": ["H200", "H200"]}, {**common, "ok": False, "error": 2.5, "machine": ["H100"]}]
    text = page(found, [("f_plan", "8 GiB pinned"), ("f_plan", "256 sequences")])
    assert "| 8 GiB pinned | 524288 | 524288 | 0.0 / 2.5 | - | yes / no |\n| 256 sequences | - | - | - | - | not run |\n" in text
    assert "- 2026-11-28: H100\n- 2026-11-28: H200\n" in text
