"""What a run ends with."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import standing

RECEIPT = {
    "pool": {"tokens": 1990142, "concurrency": 1.9, "context": 1048576}, "seconds": 412.0, "path": "/r/x.json", "drift": ["KV pool 2 -> 1"],
    "checks": [{"name": "transport", "ok": None}], "ranks": [{"stages": [["config", 2.0], ["load", 12.0], ["graphs", 312.0]]}],
}  # fmt: skip
RESULT = {
    "group": "pair1", "release": "4f0c", "profile": "p", "port": 8888, "models": ["m"], "key": True, "changes": ["release 4f0c is the first one"],
    "receipt": RECEIPT, "prompt": "It's 2+2?",
}  # fmt: skip


def test_the_summary_has_all_that_a_user_acts_on() -> None:
    text = "\n".join(standing.group_text(RESULT, "10.0.0.1", [("docker", 3.0), ("vllm_tp2", 420.0)]))
    for part in (
        "pair1 serves", "http://10.0.0.1:8888/v1", "1,990,142 tokens", "1.90 requests of 1,048,576 tokens", "release 4f0c is the first one",
        "docker 3 s, vllm_tp2 7 min 00 s", "load 5 min 00 s", "/r/x.json", "transport (nothing in the logs tells)", "KV pool 2 -> 1",
    ):  # fmt: skip
        assert part in text


def test_the_seconds_without_service_of_a_restart_are_named() -> None:
    assert row(standing.group_text(RESULT | {"unserved_seconds": 201}, "h", []), "downtime") == "3 min 21 s without service"
    assert row(standing.group_text(RESULT | {"unserved_seconds": 0}, "h", []), "downtime") == ""


def test_a_brief_summary_leaves_out_what_the_run_has_shown() -> None:
    arguments = (RESULT | {"collective": "NCCL over RoCE"}, "10.0.0.1", [("docker", 3.0)], False, {"one": ["a"]})
    whole, brief = standing.group_text(*arguments), standing.group_text(*arguments, brief=True)
    assert [line.split()[0] for line in whole if line not in brief] == ["tasks", "time", "collective"]
    assert len(brief) <= 12


def row(lines: list[str], name: str) -> str:
    return next((line.split(name, 1)[1].strip() for line in lines if line.startswith(f"  {name} ")), "")


def test_nothing_changed_only_if_no_task_changed_anything() -> None:
    same = RESULT | {"changes": []}
    assert row(standing.group_text(same, "h", [], changed={}), "changed") == "nothing"
    lines = standing.group_text(same, "h", [], changed={"one": ["vllm_tp2 : apply | Write the release"], "two": ["a"] * 4})
    assert (row(lines, "changed"), row(lines, "tasks")) == ("no restart", "one: 1 task (Write the release); two: 4 tasks")
    assert row(standing.group_text(same, "h", []), "changed") == "no restart", "not counted"


def test_a_host_that_failed_or_was_unreachable_leaves_it_unknown_whether_the_group_serves() -> None:
    lines = standing.group_text(RESULT | {"changes": []}, "h", [], changed={}, lost=["two"])
    assert lines[0] == "two failed or was unreachable in this run, so it is not known whether pair1 serves. Correct that and run again"
    assert row(lines, "changed") == "no restart"
    assert row(lines, "try it") == ""


def test_repairs_and_the_state_of_the_group_are_reported() -> None:
    result = RESULT | {"changes": [], "repaired": ["image tag of one"], "sentence": "pair1 is busy: 2 requests running"}
    lines = standing.group_text(result, "h", [], changed={})
    assert lines[0] == "pair1 is busy: 2 requests running"
    assert row(lines, "changed") == "image tag of one"
    assert standing.group_text(RESULT | {"sentence": "pair1 does not serve"}, "h", [])[0] == "pair1 serves", "it was started since"


def test_variables_that_the_image_does_not_know_are_a_warning() -> None:
    receipt: Any = RESULT["receipt"]
    ranks = [{"facts": {"unknown_variables": ["VLLM_USE_B12X_MOE"]}}, {"facts": {"unknown_variables": ["VLLM_USE_B12X_MOE", "VLLM_A"]}}, {}]
    lines = standing.group_text({**RESULT, "receipt": {**receipt, "ranks": ranks}}, "h", [])
    assert "VLLM_A, VLLM_USE_B12X_MOE" in row(lines, "warning")
    assert row(standing.group_text(RESULT, "h", []), "warning") == ""


def test_speed_speculation_and_settings_of_the_engine_are_shown_as_far_as_they_are_known() -> None:
    receipt: Any = RESULT["receipt"]
    drafts = {"acceptance": 0.2365, "draft_tokens": 1630, "accepted_per_position": [84, 63, 1], "alone": False}
    measured = {"decode_tok_s": 32.7, "prefill_tok_s": 1236.7, "prefill_tokens": 112000, "speculation": drafts}
    more = {"measured": measured, "moe_backend": "B12X", "custom_ops": "all", "eager": False, "autotune": True}
    lines = standing.group_text({**RESULT, "receipt": {**receipt, **more}}, "h", [])
    assert row(lines, "speed") == "32.7 tokens/s in one stream, 1236.7 tokens/s prefill at 112,000 tokens"
    assert row(lines, "speculation") == "23.6% of 1,630 draft tokens accepted (by position: 84, 63, 1), other clients' requests included"
    assert row(lines, "engine") == "MoE backend B12X, custom_ops all, CUDA graphs, FlashInfer autotune"
    lines = standing.group_text(RESULT, "h", [])
    assert (row(lines, "speed"), row(lines, "speculation"), row(lines, "engine")) == ("", "", "")


# Each program writes its arguments. ssh runs its command as the login shell of the node does, sudo wants a terminal for its question as the real one.
FAKES = {
    "ssh": 'for last; do :; done\nexec env ON_NODE=yes sh -c "$last"\n',
    "sudo": 'exec "$@"\n',
    "gb10": '[ "$*" = "key --header" ] && printf "Authorization: Bearer %s\\n" "$FAKE_KEY"\n',
    "curl": 'echo "header: $(cat)" >>"$FAKE_LOG"\necho "on node: $ON_NODE" >>"$FAKE_LOG"\n',
}
KEY = "key-5f1c9e7d2b"


@pytest.mark.parametrize("login", [(), ("-p", "2222", "-i", "/home/an owner/id", "nvidia@10.0.0.11")], ids=["local", "ssh"])
def test_the_line_to_try_gives_the_key_to_curl_and_to_no_argument(tmp_path: Path, login: tuple[str, ...]) -> None:
    for name, text in FAKES.items():
        record = f'for each; do printf "%s argument: %s\\n" {name} "$each" >>"$FAKE_LOG"; done\n'
        (tmp_path / name).write_text(f"#!/bin/sh\n{record}{text}")
        (tmp_path / name).chmod(0o755)
    result = RESULT | {"url": "http://127.0.0.1:8888", "head": "one", "key_path": "/opt/k", "prompt": "It's $5 `now` for \\"}
    line = row(standing.group_text(result, "10.0.0.1", [], login=login), "try it")
    environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "FAKE_KEY": KEY, "FAKE_LOG": str(tmp_path / "log")}
    done = subprocess.run(["sh", "-c", line], env=environment, capture_output=True, text=True, check=True)
    log = (tmp_path / "log").read_text().splitlines()
    assert f"header: Authorization: Bearer {KEY}" in log
    assert f"on node: {'yes' if login else ''}" in log
    assert [each for each in log if KEY in each] == [f"header: Authorization: Bearer {KEY}"]
    assert KEY not in done.stdout + done.stderr
    words = [each.partition("argument: ")[2] for each in log if each.startswith("ssh ")]
    assert words[:-1] == (["-t", *login] if login else [])
    asked = [each.partition("argument: ")[2] for each in log if each.startswith("curl ")]
    assert "http://127.0.0.1:8888/v1/completions" in asked
    assert json.loads(asked[-1])["prompt"] == result["prompt"]


def test_an_open_api_is_asked_from_the_controller() -> None:
    line = row(standing.group_text(RESULT | {"key": False, "url": "http://127.0.0.1:8888"}, "10.0.0.1", [], login=["nvidia@10.0.0.1"]), "try it")
    assert line.startswith("curl -s http://10.0.0.1:8888/v1/completions ")


def test_start_of_another_run_that_was_followed_is_named_with_its_boot() -> None:
    lines = standing.group_text(RESULT | {"changes": [], "followed": "the start that admin@ctl began at 10:02:31"}, "h", [], changed={})
    assert row(lines, "followed") == "the start that admin@ctl began at 10:02:31"
    assert row(lines, "changed") == "nothing"
    assert row(lines, "boot").startswith("6 min 52 s to the verdict")
