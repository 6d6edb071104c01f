"""What a run ends with, and what status says."""

from __future__ import annotations

import json
import shlex

from ansible_collections.gb10.cluster.plugins.module_utils import summary

RECEIPT = {
    "pool": {"tokens": 1990142, "concurrency": 1.9, "context": 1048576}, "seconds": 412.0, "path": "/r/x.json", "drift": ["KV pool 2 -> 1"],
    "checks": [{"name": "transport", "ok": None}], "ranks": [{"stages": [["config", 2.0], ["load", 12.0], ["graphs", 312.0]]}],
}  # fmt: skip
RESULT = {
    "group": "pair1", "release": "4f0c", "profile": "p", "port": 8888, "models": ["m"], "key": True, "changes": ["release 4f0c is the first one"],
    "receipt": RECEIPT, "prompt": "It's 2+2?",
}  # fmt: skip


def test_the_summary_has_all_that_a_user_acts_on() -> None:
    text = "\n".join(summary.group_text(RESULT, "10.0.0.1", [("docker", 3.0), ("vllm_tp2", 420.0)]))
    for part in (
        "pair1 serves", "http://10.0.0.1:8888/v1", "1,990,142 tokens", "1.90 requests of 1,048,576 tokens", "release 4f0c is the first one",
        "docker 3 s, vllm_tp2 7 min 00 s", "load 5 min 00 s", "/r/x.json", "transport (nothing in the logs tells)", "KV pool 2 -> 1",
    ):  # fmt: skip
        assert part in text


def test_nothing_changed_says_so() -> None:
    assert any(line.endswith("nothing") for line in summary.group_text(RESULT | {"changes": []}, "h", []))


def test_the_curl_line_is_a_shell_line() -> None:
    words = shlex.split(summary.curl_line("http://h:1/v1", "m", "It's 2+2?", False))
    assert json.loads(words[-1])["prompt"] == "It's 2+2?"
    assert "Authorization" not in " ".join(words)


def test_the_key_is_named_and_never_shown() -> None:
    assert '-H "Authorization: Bearer $VLLM_API_KEY"' in summary.curl_line("u", "m", "p", True)


def test_status_of_a_serving_head() -> None:
    info = {
        "containers": [{"name": "c", "status": "running", "running": True, "started_at": "2026-11-21T05:00:00.1Z", "exit_code": 0, "oom_killed": False}],
        "memory": {"total_kib": 127 << 20, "available_kib": 20 << 20, "free_kib": 10 << 20}, "engine_error": "", "current": "4f0c",
        "receipt": {"passed": True, "time": "2026-11-21T05:08:00Z", "release": "4f0c", "profile": "p"},
    }  # fmt: skip
    log = {"state": "ready", "stage": "ready", "failure": None, "kv_cache": {"tokens": 1990142, "max_concurrency": 1.9}}
    probe = {"error": "", "replies": [{"ok": True, "seconds": 0.2, "error": ""}]}
    text = "\n".join(summary.rank_status(info, 0, "pair1", log, probe))
    for part in ("pair1 rank 0", "c running since", "ready, stage ready", "1,990,142", "completion in 0.2 s", "20.0 GiB available", "passed"):
        assert part in text


def test_status_of_a_dead_rank() -> None:
    info = {
        "containers": [{"name": "c", "status": "exited", "running": False, "started_at": "", "exit_code": 137, "oom_killed": True}],
        "memory": {}, "engine_error": "", "current": "", "receipt": {},
    }  # fmt: skip
    text = "\n".join(summary.rank_status(info, 1, "pair1"))
    assert "exit code 137, killed by the kernel's OOM killer" in text
    assert "last verdict: none" in text
