"""What a run does if the agent is already at work, what a node tells about its agent, and what a run ends with."""

from __future__ import annotations

import hashlib
import json
import socket
import subprocess
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, standing

REASONS = ["rank 0 is not running"]


def state(release: str = "new", final: bool = True, result: str = "serves", wanted: str = "serving", **more: Any) -> dict[str, Any]:
    return {
        "desired": {"generation": 7, "state": wanted, "release": release, "by": "admin@ctl", "at": "2026-11-23T10:02:31Z"},
        "outcome": {"generation": 7, "phase": "settled", "final": final, "result": result, "delivered": False, **more},
    }


FAILED = state(result="failed", verdict={"seconds": 70.5}, delivered=True)


@pytest.mark.parametrize(
    ("found", "reasons", "more", "wanted"),
    [
        pytest.param({}, [], {}, "nothing", id="no agent, it runs"),
        pytest.param({}, REASONS, {}, "start", id="no agent, it does not run"),
        pytest.param(state(final=False), REASONS, {}, "follow", id="same release under way"),
        pytest.param(state(final=False), REASONS, {"restart": True}, "follow", id="same release under way, restart"),
        pytest.param(state(generation=6), REASONS, {}, "follow", id="not begun yet"),
        pytest.param(state("old", final=False), REASONS, {}, "refuse", id="other release under way"),
        pytest.param(state("old", final=False), [], {}, "refuse", id="other release under way, the wanted one still runs"),
        pytest.param(state(final=False, wanted="stopped"), REASONS, {}, "refuse", id="stop under way"),
        pytest.param(state("old", final=False), REASONS, {"takeover": True}, "start", id="takeover"),
        pytest.param(state("old", final=False), [], {"takeover": True}, "start", id="takeover of what still runs"),
        pytest.param(state(), [], {}, "follow", id="serves, not read"),
        pytest.param(state(delivered=True), [], {}, "nothing", id="serves, read"),
        pytest.param(state(), REASONS, {}, "start", id="served when it was not read, died since"),
        pytest.param(state(result="failed", verdict={"seconds": 70.5}), REASONS, {}, "follow", id="failed, not read"),
        pytest.param(state(result="failed", verdict={"seconds": 0.0}), REASONS, {}, "start", id="refused before its boot, not read"),
        pytest.param(state(result="held"), REASONS, {}, "follow", id="held, not read"),
        pytest.param(state(result="failed", verdict={"seconds": 70.5}), REASONS, {"restart": True}, "start", id="failed, restart"),
        pytest.param(state(result="failed", verdict={"seconds": 70.5}, delivered=True), REASONS, {}, "refuse", id="failed, read"),
        pytest.param(FAILED, REASONS, {"again": True}, "start", id="failed, read, again"),
        pytest.param(FAILED, [], {}, "nothing", id="failed, read, and runs by now"),
        pytest.param(
            {**FAILED, "desired": {**FAILED["desired"], "options": {"timeout": 2.0}}},
            REASONS,
            {"options": {"timeout": 1.0}},
            "start",
            id="failed, read, with another option",
        ),
        pytest.param(FAILED, REASONS, {"options": {"collective": {"time": 1}}}, "refuse", id="failed, read, what is of one start does not count"),
        pytest.param({**FAILED, "desired": {**FAILED["desired"], "auto": True}}, REASONS, {}, "start", id="a restart by the agent failed"),
        pytest.param(state("old", result="failed"), REASONS, {}, "start", id="another release failed"),
        pytest.param(state(result="stopped", wanted="stopped"), REASONS, {}, "start", id="stopped"),
    ],
)
def test_decision(found: dict[str, Any], reasons: list[str], more: dict[str, Any], wanted: str) -> None:
    decided = standing.decide(found, "new", reasons, "pair1", **more)
    assert decided["do"] == wanted
    assert bool(decided["reasons"]) is (wanted == "start")
    assert decided["generation"] == (7 if wanted in ("follow", "refuse") else 0)


@pytest.mark.parametrize("found", [state(result="stopped", wanted="stopped"), state("old", result="failed")], ids=["started by hand", "gone back"])
def test_what_runs_is_asked_for_again_without_a_reason_to_restart_it(found: dict[str, Any]) -> None:
    decided = standing.decide(found, "new", [], "pair1")
    assert (decided["do"], decided["reasons"]) == ("start", [])


def serve(path: Path, answer: bytes) -> list[bytes]:
    """Answer one request on a socket; return the list that it is put into."""
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    server.bind(str(path))
    server.listen(1)
    seen: list[bytes] = []

    def run() -> None:
        connection, _address = server.accept()
        with connection:
            seen.append(connection.recv(65536))
            connection.sendall(answer)

    threading.Thread(target=run, daemon=True).start()
    return seen


VERSION = hashlib.sha256(b"a program").hexdigest()[:12]


@pytest.fixture
def node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A node with an agent's files on rank 0."""
    monkeypatch.setattr(look, "TIMEOUT_SECONDS", 0.3)
    for path in ("usr/local/sbin", "etc/gb10-cluster"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "usr/local/sbin/gb10").write_bytes(b"a program")
    (tmp_path / "etc/gb10-cluster/agent.json").write_text(json.dumps({"group": "pair1", "rank": 0, "head_id": "m"}), encoding="utf-8")
    (tmp_path / "etc/machine-id").write_text("m\n", encoding="utf-8")
    return tmp_path


def test_state_of_an_agent_is_read_from_its_socket(node: Path) -> None:
    seen = serve(node / "s", json.dumps({"ok": True, "result": state(final=False)}).encode() + b"\n")
    found = look.read_agent(Node(str(node)), None, str(node / "s"))
    assert (found["version"], found["state"], found["converges"], found["head_id"]) == (VERSION, state(final=False), True, "m")
    assert json.loads(seen[0]) == {"v": 1, "verb": "state"}


@pytest.mark.parametrize("answer", [b"", b"not JSON\n", b"[]\n", b'{"ok": false, "error": "no"}\n', b'{"cut'])
def test_agent_without_a_usable_answer_has_no_state(node: Path, answer: bytes) -> None:
    serve(node / "s", answer)
    found = look.read_agent(Node(str(node)), None, str(node / "s"))
    assert (found["version"], found["state"], found["converges"]) == (VERSION, {}, False)


def sshd(argv: Sequence[str]) -> tuple[int, str, str]:
    """A node whose SSH server listens on 2222, and for a user of a connection allows another one."""
    return (0, "port 2222\nallowusers me\n" if "-C" in argv else "port 2222\n", "") if argv[0] == "sshd" else (127, "", "")


def test_node_without_an_agent_has_its_keys_and_no_version(tmp_path: Path) -> None:
    (tmp_path / "etc/ssh").mkdir(parents=True)
    (tmp_path / "etc/ssh/ssh_host_ed25519_key.pub").write_text("ssh-ed25519 AAAA root@lab-1\n", encoding="utf-8")
    found = look.read_agent(Node(str(tmp_path), sshd), None, str(tmp_path / "absent"))
    assert (found["host_keys"], found["ssh_port"], found["sshd_problems"]) == (["ssh-ed25519 AAAA"], 2222, [])
    assert (found["version"], found["state"], found["public_key"], found["head_id"], found["enabled"]) == ("", {}, "", "", False)
    assert set(found["files"].values()) == {""}


def test_a_worker_names_what_refuses_the_head(tmp_path: Path) -> None:
    [problem] = look.read_agent(Node(str(tmp_path), sshd), {"name": "lab-1", "address": "192.168.200.11"}, str(tmp_path / "absent"))["sshd_problems"]
    assert problem.startswith("sshd has AllowUsers me for user gb10-agent from lab-1 (192.168.200.11).")


WATCH: dict[str, Any] = {
    "state": "serving", "fault": {}, "missing": [], "restarts": {"rank_dead": 2, "reboot": 1}, "unserved_seconds": 190.4,
    "serving_since": "2026-11-23T10:00:00Z",
    "last": {"cause": "rank_dead", "text": "rank 1 on two: exited", "at": "2026-11-23T09:59:00Z", "unserved_seconds": 61.0},
}  # fmt: skip


def test_watch_line_counts_restarts_by_cause() -> None:
    text = standing.watch_line(WATCH)
    for part in ("serving since 2026-11-23T10:00:00Z", "rank_dead 2, reboot 1", "190 s without service in all", "61 s without service (rank 1 on two: exited)"):
        assert part in text


def test_watch_line_names_what_is_waited_for() -> None:
    fault = {"cause": "node_lost", "text": "rank 1 on two does not answer (timeout)", "at": "2026-11-23T11:00:00Z"}
    text = standing.watch_line({**WATCH, "state": "waiting", "fault": fault, "missing": ["rank 1 on two does not answer (timeout)"]})
    assert text.startswith("watch: waits: rank 1 on two does not answer (timeout); node_lost at 2026-11-23T11:00:00Z")
    failed = {"count": 3, "at": "2026-11-23T11:00:00Z", "text": "The hook /n failed: it ended with code 1."}
    assert standing.watch_line({"state": "serving", "notices": failed}) == (
        "watch: 3 notices failed since the agent's start, the last at 2026-11-23T11:00:00Z: The hook /n failed: it ended with code 1."
    )
    assert standing.watch_line({"state": "off"}) == "watch: off (vllm_tp2_keep_serving: false)."
    assert standing.watch_line({}) == ""


def receipt(tokens: int) -> dict[str, Any]:
    """The receipt of a boot with a KV pool of `tokens` and a context of 4096."""
    kv = {"tokens": tokens, "max_concurrency": tokens / 4096, "context": 4096, "effective_tokens": tokens}
    ranks = [{"rank": number, "host": f"lab-{number + 1}", "facts": {"kv_cache": kv, "dtype": "bfloat16"}} for number in (0, 1)]
    return {"passed": True, "time": "2026-11-23T10:02:31Z", "pool": {**kv, "concurrency": tokens / 4096, "source": "log"}, "models": [], "ranks": ranks}


def test_a_criterion_that_the_serving_pair_does_not_meet_is_refused_with_both_figures() -> None:
    more: dict[str, Any] = {"receipt": receipt(4_000_000), "options": {}}
    floor = {"effective_tokens": {"min": 5_000_000}}
    decided = standing.decide(state(delivered=True), "new", [], "pair1", criteria=floor, **more)
    assert decided["do"] == "refuse"
    assert "wanted 5,000,000, found 4,000,000" in decided["text"]
    assert standing.decide(state(delivered=True), "new", [], "pair1", criteria={"effective_tokens": {"min": 3_000_000}}, **more)["do"] == "nothing"
    assert standing.decide(state(delivered=True), "new", REASONS, "pair1", criteria=floor, **more)["do"] == "start", "a start is judged itself"


def test_a_boot_that_failed_a_criterion_starts_again_once_the_criterion_is_corrected() -> None:
    verdict = {"seconds": 70.5, "msg": "too small", "checks": [{"ok": False}], "receipt": receipt(4_000_000)}
    found = state(result="failed", verdict=verdict, delivered=True)
    refused = standing.decide(found, "new", REASONS, "pair1", criteria={"effective_tokens": {"min": 5_000_000}})
    assert (refused["do"], refused["text"]) == (
        "refuse", "pair1: release new failed at 2026-11-23T10:02:31Z, and nothing of it has changed: too small. To boot it again: -e again=true.",
    )  # fmt: skip
    assert standing.decide(found, "new", REASONS, "pair1", criteria={"effective_tokens": {"min": 4_000_000}})["do"] == "start"


def test_changed_options_are_put_into_force_without_a_start() -> None:
    found = state(delivered=True)
    found["desired"]["options"] = {"attempts": 3, "timeout": 2700.0}
    decided = standing.decide(found, "new", [], "pair1", options={"attempts": 2, "timeout": 2700, "weights": {"proof": "x"}})
    assert (decided["do"], decided["adjust"]) == ("nothing", ["attempts 3 -> 2"])


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
