"""What a run ends with, and the text of status."""

from __future__ import annotations

import json
import shlex
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._release import summary

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


def row(lines: list[str], name: str) -> str:
    return next((line.split(name, 1)[1].strip() for line in lines if line.startswith(f"  {name} ")), "")


def test_nothing_changed_only_if_no_task_changed_anything() -> None:
    same = RESULT | {"changes": []}
    assert row(summary.group_text(same, "h", [], changed={}), "changed") == "nothing"
    lines = summary.group_text(same, "h", [], changed={"one": ["vllm_tp2 : apply | Write the release"], "two": ["a"] * 4})
    assert (row(lines, "changed"), row(lines, "tasks")) == ("no restart", "one: 1 task (Write the release); two: 4 tasks")
    assert row(summary.group_text(same, "h", []), "changed") == "no restart", "not counted"


def test_a_host_that_failed_or_was_unreachable_leaves_it_unknown_whether_the_group_serves() -> None:
    lines = summary.group_text(RESULT | {"changes": []}, "h", [], changed={}, lost=["two"])
    assert lines[0] == "two failed or was unreachable in this run, so it is not known whether pair1 serves. Correct that and run again"
    assert row(lines, "changed") == "no restart"
    assert row(lines, "try it") == ""


def test_repairs_and_the_state_of_the_group_are_reported() -> None:
    result = RESULT | {"changes": [], "repaired": ["image tag of one"], "sentence": "pair1 is busy: 2 requests running"}
    lines = summary.group_text(result, "h", [], changed={})
    assert lines[0] == "pair1 is busy: 2 requests running"
    assert row(lines, "changed") == "image tag of one"


def test_variables_that_the_image_does_not_know_are_a_warning() -> None:
    receipt: Any = RESULT["receipt"]
    ranks = [{"facts": {"unknown_variables": ["VLLM_USE_B12X_MOE"]}}, {"facts": {"unknown_variables": ["VLLM_USE_B12X_MOE", "VLLM_A"]}}, {}]
    lines = summary.group_text({**RESULT, "receipt": {**receipt, "ranks": ranks}}, "h", [])
    assert "VLLM_A, VLLM_USE_B12X_MOE" in row(lines, "warning")
    assert row(summary.group_text(RESULT, "h", []), "warning") == ""


def test_speed_speculation_and_settings_of_the_engine_are_shown_as_far_as_they_are_known() -> None:
    receipt: Any = RESULT["receipt"]
    drafts = {"acceptance": 0.2365, "draft_tokens": 1630, "accepted_per_position": [84, 63, 1], "alone": False}
    measured = {"decode_tok_s": 32.7, "prefill_tok_s": 1236.7, "prefill_tokens": 112000, "speculation": drafts}
    more = {"measured": measured, "moe_backend": "B12X", "custom_ops": "all", "eager": False, "autotune": True}
    lines = summary.group_text({**RESULT, "receipt": {**receipt, **more}}, "h", [])
    assert row(lines, "speed") == "32.7 tokens/s in one stream, 1236.7 tokens/s prefill at 112,000 tokens"
    assert row(lines, "speculation") == "23.6% of 1,630 draft tokens accepted (by position: 84, 63, 1), other clients' requests included"
    assert row(lines, "engine") == "MoE backend B12X, custom_ops all, CUDA graphs, FlashInfer autotune"
    lines = summary.group_text(RESULT, "h", [])
    assert (row(lines, "speed"), row(lines, "speculation"), row(lines, "engine")) == ("", "", "")


def test_title_for_a_group_that_does_not_answer() -> None:
    title = summary.group_text(RESULT | {"changes": [], "sentence": "pair1 is busy: 4 requests running, tokens advance."}, "h", [])[0]
    assert title == "pair1 is busy: 4 requests running, tokens advance."
    assert summary.group_text(RESULT | {"sentence": "pair1 does not serve"}, "h", [])[0] == "pair1 serves", "it was started since"


def test_the_curl_line_is_a_shell_line() -> None:
    words = shlex.split(summary.curl_line("http://h:1/v1", "m", "It's 2+2?", False))
    assert json.loads(words[-1])["prompt"] == "It's 2+2?"
    assert "Authorization" not in " ".join(words)


def test_the_key_is_named_and_never_shown() -> None:
    assert '-H "Authorization: Bearer $VLLM_API_KEY"' in summary.curl_line("u", "m", "p", True)
    assert '-H "Authorization: Bearer $(sudo cut -d= -f2 /opt/k)"' in summary.curl_line("u", "m", "p", True, "/opt/k")


HEAD: dict[str, Any] = {
    "containers": [
        {
            "name": "c", "status": "running", "running": True, "started_at": "2026-11-21T05:00:00.1Z", "finished_at": "0001-01-01T00:00:00Z", "exit_code": 0,
            "oom_killed": False, "labels": {"gb10.cluster.release": "4f0c"}, "image_id": "sha256:8d0f",
        }
    ],
    "releases": [{"id": "4f0c", "good": True}, {"id": "77aa", "good": False}], "processes": {"count": 3, "fault": ""},
    "memory": {"total_kib": 127 << 20, "available_kib": 20 << 20, "free_kib": 10 << 20}, "engine_error": "", "current": "4f0c",
    "receipt": {"passed": True, "time": "2026-11-21T05:08:00Z", "release": "4f0c", "profile": "p"},
}  # fmt: skip


def changed(**container: object) -> dict[str, Any]:
    return {**HEAD, "containers": [{**HEAD["containers"][0], **container}]}


def test_status_of_a_serving_head() -> None:
    log = {"state": "ready", "stage": "ready", "failure": None, "kv_cache": {"tokens": 1990142, "max_concurrency": 1.9}}
    text = "\n".join(summary.rank_status(HEAD, 0, "pair1", log, {"outcome": "serves", "text": "x", "seconds": 0.2}, "serves"))
    for part in (
        "pair1 rank 0", "c running since 2026-11-21T05:00:00Z", "release: 4f0c (its gate passed), image sha256:8d0f", "engine: serving", "1,990,142",
        "completion in 0.2 s", "20.0 GiB available", "last verdict: passed at 2026-11-21T05:08:00Z",
    ):  # fmt: skip
        assert part in text


def test_a_healthy_worker_serves_although_its_log_ends_at_an_early_stage() -> None:
    log = {"state": "starting", "stage": "kv", "failure": None}
    assert "engine: serving" in summary.rank_status(HEAD, 1, "pair1", log, None, "serves")
    assert "boot" not in "\n".join(summary.rank_status(HEAD, 1, "pair1", log, None, "busy"))
    assert "boot: starting, at stage kv" in summary.rank_status(HEAD, 1, "pair1", log, None, "starting")
    assert "boot: reached stage kv" in summary.rank_status(HEAD, 1, "pair1", log, None, "down")


def test_a_release_whose_gate_never_passed_is_named() -> None:
    for label, words in (("77aa", "its gate never passed"), ("gone", "not kept on this node")):
        assert f"release: {label} ({words}), image sha256:8d0f" in summary.rank_status(changed(labels={"gb10.cluster.release": label}), 0, "pair1")


def test_status_of_a_dead_rank_names_the_time_of_its_end() -> None:
    dead = {"status": "exited", "running": False, "finished_at": "2026-11-21T07:30:00Z", "exit_code": 137, "oom_killed": True}
    log = {"stage": "kv", "failure": {"class": "oom_killed", "line": "state of container c: exit code 137 (SIGKILL)"}}
    text = "\n".join(summary.rank_status({**changed(**dead), "receipt": {}, "current": ""}, 1, "pair1", log, None, "down"))
    assert "log:" not in text, "what the container's state shows is not a line of its log"
    assert "container: c exited at 2026-11-21T07:30:00Z with exit code 137, killed by the kernel's OOM killer, started 2026-11-21T05:00:00Z" in text
    assert "last verdict: none" in text
    assert "serving" not in text


def test_status_of_a_rank_that_was_not_read() -> None:
    assert summary.rank_status({"unreachable": True, "msg": "x"}, 1, "pair1") == ["pair1 rank 1", "container: not known (the node is unreachable)"]


def test_start_of_another_run_that_was_followed_is_named_with_its_boot() -> None:
    lines = summary.group_text(RESULT | {"changes": [], "followed": "the start that admin@ctl began at 10:02:31"}, "h", [], changed={})
    assert row(lines, "followed") == "the start that admin@ctl began at 10:02:31"
    assert row(lines, "changed") == "nothing"
    assert row(lines, "boot").startswith("6 min 52 s to the verdict")
