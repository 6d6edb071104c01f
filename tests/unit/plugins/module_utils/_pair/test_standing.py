"""What a run does if the agent is already at work, and what a node tells about its agent."""

from __future__ import annotations

import hashlib
import json
import socket
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
