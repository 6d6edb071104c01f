"""The verdict: facts of all ranks and criteria in, one decision out."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate


def container(**more: Any) -> dict[str, Any]:
    return {
        "id": "c", "name": "gb10-pair1-rank0", "status": "running", "running": True, "exit_code": 0, "oom_killed": False, "error": "",
        "started_at": "", "finished_at": "", "restart_count": 0, "image": "i", "image_id": "sha256:1", "labels": {},
    } | more  # fmt: skip


def gate_label(name: str) -> str:
    return f"gb10.cluster.{name}"


def dead(code: int, **more: Any) -> dict[str, Any]:
    return container(status="exited", running=False, exit_code=code, **more)


def rank(number: int, **more: Any) -> dict[str, Any]:
    return {
        "rank": number, "host": f"spark-{number + 1}", "facts": {"state": "starting", "stage": "load"}, "container": container(),
        "memory": {"free_kib": 31 << 20, "oom_kills": 5}, "oom_kills_at_start": 5, "start_error": "", "lost": "", "failed_at": None,
        "stage_since": 0.0, "stages": [], "seen": True, "http_status": 0, "max_restarts": 0, "release": "",
    } | more  # fmt: skip


def failed(name: str, line: str = "the decisive line", number: int = 7, **more: Any) -> dict[str, Any]:
    nature = "tail" if name in ("worker_died", "engine_failed") else "strong"
    failure = {"class": name, "line": line, "line_number": number, "remedy": "do this", "anchor": name, "kind": nature, "confirmed": True} | more
    return {"state": "failed", "stage": "load", "failure": failure}


MAYBE = failed("toolchain", kind="weak", confirmed=False)


READY = {
    "state": "ready", "stage": "ready", "version": "0.32.0", "context": 4096, "world_size": 2,
    "kv_cache": {"tokens": 8192, "max_concurrency": 2.0, "context": 4096, "effective_tokens": 8192},
}  # fmt: skip
API = {"error": "", "http_status": 200, "models": [{"id": "m", "max_model_len": 4096}], "metrics": [], "replies": [], "version": "0.32.0"}

DRAFTING = {"state": "starting", "stage": "load", "drafter": True}


@pytest.mark.parametrize(
    ("more", "name"),
    [({"container": dead(137)}, "killed"), ({"container": dead(1)}, "exited"), ({"container": dead(137, oom_killed=True)}, "oom_killed")],
    ids=["killed", "ended", "out of memory"],
)
def test_rank_that_ends_without_a_line_while_it_loads_its_drafter_is_reported_so(more: dict[str, Any], name: str) -> None:
    [finding] = gate.findings([rank(0, facts=DRAFTING, **more)])
    assert finding["class"] == name
    assert finding["message"].endswith("Its drafter was being loaded: lower gpu-memory-utilization, or serve without speculative-config")
    for facts in (DRAFTING | {"stage": "kv"}, DRAFTING | {"drafter": False}):
        [finding] = gate.findings([rank(0, facts=facts, **more)])
        assert "drafter" not in finding["message"]


DECISIONS = [
    ("both booting", [rank(0), rank(1)], 10.0, "wait", None, None),
    ("head ready by its log", [rank(0, facts=READY), rank(1)], 10.0, "probe", None, None),
    ("head ready by its API, nothing in the log", [rank(0, http_status=200), rank(1)], 10.0, "probe", None, None),
    ("root cause on the worker", [rank(0), rank(1, facts=failed("weights_missing"), failed_at=9.9)], 10.0, "fail", "weights_missing", 1),
    ("worker OOM-killed, reported by the engine", [rank(0), rank(1, container=dead(137, oom_killed=True), failed_at=9.9)], 10.0, "fail", "oom_killed", 1),
    (
        "worker OOM-killed by the host's kernel",
        [rank(0), rank(1, container=dead(137), memory={"oom_kills": 6}, failed_at=9.9)], 10.0, "fail", "oom_killed", 1,
    ),
    ("a symptom waits for its cause", [rank(0, facts=failed("peer_lost"), failed_at=9.9), rank(1)], 10.0, "wait", None, None),
    (
        "and gets it: the peer was killed",
        [rank(0, facts=failed("peer_lost"), failed_at=9.0), rank(1, container=dead(137), failed_at=9.9)], 10.0, "fail", "killed", 1,
    ),
    ("a symptom without a cause decides in the end", [rank(0, facts=failed("peer_lost"), failed_at=5.0), rank(1)], 10.0, "fail", "peer_lost", 0),
    ("a tail class waits too", [rank(0, facts=failed("engine_failed"), failed_at=9.9), rank(1)], 10.0, "wait", None, None),
    (
        "a headline waits for its traceback",
        [rank(0, facts=failed("worker_died"), failed_at=9.0, changed_at=9.9), rank(1, facts=failed("worker_died"), failed_at=9.0)], 10.0, "wait", None, None,
    ),
    (
        "and not for ever",
        [rank(0, facts=failed("worker_died"), failed_at=1.0, changed_at=14.9), rank(1)], 15.0, "fail", "worker_died", 0,
    ),
    (
        "a tail class loses to the other rank's root",
        [rank(0, facts=failed("engine_failed"), failed_at=8.0), rank(1, facts=failed("startup_free_memory"), failed_at=9.9)],
        10.0, "fail", "startup_free_memory", 1,
    ),
    ("a log's cause beats the exit code", [rank(0), rank(1, facts=failed("bad_argument"), container=dead(2), failed_at=9.9)], 10.0, "fail", "bad_argument", 1),
    ("stopped from outside", [rank(0), rank(1, container=dead(143), failed_at=1.0)], 10.0, "fail", "stopped", 1),
    ("ended with a code and no line", [rank(0), rank(1, container=dead(3), failed_at=1.0)], 10.0, "fail", "exited", 1),
    ("a line that need not be fatal, boot goes on", [rank(0, facts=MAYBE, seconds=10.0, changed_at=9.0, failed_at=9.0), rank(1)], 10.0, "wait", None, None),
    ("the same, and silence since", [rank(0, facts=MAYBE, seconds=25.0, changed_at=9.0), rank(1)], 25.0, "wait", None, None),
    (
        "the same, and the stage's limit is over",
        [rank(0, facts=MAYBE | {"stage": "rendezvous"}, stage_since=10.0, changed_at=9.0), rank(1)], 41.0, "fail", "toolchain", 0,
    ),
    (
        "the same, and the boot's limit is over",
        [rank(0, facts=MAYBE | {"stage": "load"}, changed_at=9.0), rank(1, facts={"stage": "kv"})], 101.0, "fail", "toolchain", 0,
    ),
    (
        "the same, and the other rank misses its peer",
        [rank(0, facts=failed("peer_lost"), failed_at=5.0), rank(1, facts=MAYBE, changed_at=1.0)], 10.0, "fail", "toolchain", 1,
    ),
    (
        "an engine that served and then failed does not serve",
        [rank(0, facts=MAYBE | {"state": "served_then_failed"}, http_status=200, failed_at=5.0), rank(1)], 10.0, "fail", "toolchain", 0,
    ),
    (
        "the same without a cause in its log",
        [rank(0, facts={"state": "served_then_failed"}, http_status=200, failed_at=5.0), rank(1)], 10.0, "fail", "engine_failed", 0,
    ),
    (
        "the same, and the container ended",
        [rank(0, facts=MAYBE, container=dead(1), seconds=9.5, changed_at=9.0, failed_at=9.0), rank(1)], 10.0, "fail", "toolchain", 0,
    ),
    (
        "the kernel ended a child of the container",
        [rank(0, facts=failed("worker_died"), container=dead(1), memory={"oom_kills": 6}, failed_at=9.9), rank(1)], 10.0, "fail", "oom_killed", 0,
    ),
    (
        "the same, and the container lives on",
        [rank(0, facts=failed("engine_failed"), memory={"oom_kills": 6}, failed_at=9.9), rank(1)], 10.0, "fail", "oom_killed", 0,
    ),
    (
        "an OOM kill elsewhere does not hide the cause in the log",
        [rank(0), rank(1, facts=failed("bad_argument"), container=dead(2), memory={"oom_kills": 6}, failed_at=9.9)], 10.0, "fail", "bad_argument", 1,
    ),
    (
        "a rank that ended without a line is what the other misses",
        [rank(0, facts=failed("peer_lost"), failed_at=9.0), rank(1, container=dead(139), failed_at=9.5)], 10.0, "fail", "exited", 1,
    ),
    (
        "a rank that was stopped before the other failed is the cause",
        [rank(0, facts=failed("engine_failed"), failed_at=9.0), rank(1, container=dead(143), failed_at=8.0)], 10.0, "fail", "stopped", 1,
    ),
    (
        "but the other may still print the cause",
        [rank(0, facts=failed("engine_failed"), failed_at=9.0, changed_at=9.5), rank(1, container=dead(1), failed_at=8.0)], 10.0, "wait", None, None,
    ),
    (
        "a rank that ended after the other failed is not",
        [rank(0, facts=failed("engine_failed"), failed_at=5.0), rank(1, container=dead(0), failed_at=6.0)], 10.0, "fail", "engine_failed", 0,
    ),
    (
        "a rank that ended long after the other lost it is not",
        [rank(0, facts=failed("peer_lost"), failed_at=1.0), rank(1, container=dead(1), failed_at=9.5)], 10.0, "fail", "peer_lost", 0,
    ),
    ("a restart that is allowed", [rank(0), rank(1, container=container(restart_count=1), max_restarts=1)], 10.0, "wait", None, None),
    ("one more than allowed", [rank(0), rank(1, container=container(restart_count=2), max_restarts=1)], 10.0, "fail", "restarted", 1),
    (
        "out of time: the rank that is furthest behind",
        [rank(0, stage_since=9.0), rank(1, facts={}, container=container(status="created", running=False))], 101.0, "fail", "stalled", 1,
    ),
    (
        "out of time: a worker's last words are of its graphs",
        [rank(0, facts={"stage": "init"}, stage_since=9.0), rank(1, facts={"stage": "graphs"})], 60.0, "wait", None, None,
    ),
    ("not looked at yet", [rank(0), rank(1, container=None, seen=False)], 1.0, "wait", None, None),
    (
        "the peer never came",
        [rank(0, facts={"state": "starting", "stage": "rendezvous"}, stage_since=10.0), rank(1)], 41.0, "fail", "rendezvous", 0,
    ),
    ("a stage takes too long", [rank(0, facts={"state": "starting", "stage": "init"}, stage_since=10.0), rank(1)], 71.0, "fail", "stalled", 0),
]  # fmt: skip


@pytest.mark.parametrize(("ranks", "seconds", "what", "kind", "who"), [d[1:] for d in DECISIONS], ids=[d[0] for d in DECISIONS])
def test_a_boot_under_way(ranks: list[gate.Rank], seconds: float, what: str, kind: str | None, who: int | None) -> None:
    decision, finding = gate.assess(ranks, seconds, 100.0, {"rendezvous": 30, "init": 60, "graphs": 40})
    assert decision == what
    assert (finding or {}).get("class") == kind
    assert (finding or {}).get("rank") == who
    if finding:
        assert finding["remedy"]
        text = gate.sentence("pair1", finding)
        assert f"rank {who} on spark-{(who or 0) + 1}" in text
        assert "Remedy: " in text


CRITERIA = [
    ("pool as wanted", {"effective_tokens": {"min": 8192, "max": 8192}}, API, READY, None),
    ("pool one token short", {"effective_tokens": {"min": 8193}}, API, READY, "pool_below_floor"),
    ("pool too large", {"effective_tokens": {"max": 8191}}, API, READY, "pool_above_ceiling"),
    ("concurrency too small", {"concurrency": {"min": 2.01}}, API, READY, "pool_below_floor"),
    ("a model that is not served", {"served_names": ["other"]}, API, READY, "model_differs"),
    ("transport is TCP", {"transport": "rdma"}, API, READY | {"nccl": {"transport": "tcp"}}, "transport_differs"),
    ("transport is RDMA", {"transport": "rdma"}, API, READY | {"nccl": {"transport": "rdma"}}, None),
    ("dtype as the engine writes it", {"dtype": "torch.bfloat16"}, API, READY | {"dtype": "bfloat16"}, None),
    ("fp8 in the layout of sparse latent attention", {"kv_cache_dtype": "fp8"}, API, READY | {"kv_cache_dtype": "fp8_ds_mla"}, None),
    ("another kind of fp8", {"kv_cache_dtype": "fp8"}, API, READY | {"kv_cache_dtype": "fp8_e5m2"}, "engine_differs"),
    ("the name that vLLM has for it", {"speculative_method": "deepseek_mtp"}, API, READY | {"speculative_method": "mtp"}, None),
    (
        "a silent log: metrics and /v1/models tell",
        {"effective_tokens": {"min": 8192}},
        API | {"metrics": [{"kv_cache_max_concurrency": "1.5"}]},
        {"state": "starting"},
        "pool_below_floor",
    ),
    ("asked to stop", {}, API, READY | {"stopped": {"line": "shutdown triggered"}}, "stopped"),
    ("lost its peer", {}, API, READY | {"peer_lost": {"line": "closed by peer"}}, "peer_lost"),
    ("another KV dtype", {"kv_cache_dtype": "fp8"}, API, READY | {"kv_cache_dtype": "auto"}, "engine_differs"),
    ("the API refuses", {}, API | {"error": "refuses the API key (HTTP 401)", "models": []}, READY, "api_unreachable"),
]


@pytest.mark.parametrize(("criteria", "api", "facts", "kind"), [c[1:] for c in CRITERIA], ids=[c[0] for c in CRITERIA])
def test_criteria(criteria: dict[str, Any], api: dict[str, Any], facts: dict[str, Any], kind: str | None) -> None:
    fault = gate.first_fault(gate.checks([rank(0, facts=facts), rank(1, facts={"context": 4096})], api, criteria))
    assert (fault or {}).get("class") == kind
    if fault:
        text = gate.check_sentence("pair1", fault)
        assert "wanted" in text
        assert "Remedy" in text


def test_ranks_that_disagree_about_a_dtype_fail() -> None:
    ranks = [rank(0, facts=READY | {"kv_cache_dtype": "fp8_ds_mla"}), rank(1, facts={"kv_cache_dtype": "fp8"})]
    assert gate.first_fault(gate.checks(ranks, API, {})) is None
    ranks[1]["facts"]["kv_cache_dtype"] = "auto"
    fault = gate.first_fault(gate.checks(ranks, API, {}))
    assert fault is not None
    assert (fault["class"], fault["found"]) == ("ranks_disagree", {0: "fp8", 1: "auto"})


def test_the_rank_with_the_least_kv_memory_is_named() -> None:
    """vLLM reports on the head that the pool is too small, for any rank."""
    have: list[dict[str, Any]] = [{"kv_cache": {"available_gib": gib}} for gib in (14.43, 10.02)]
    short = "rank 1 on spark-2 has the least KV memory: 10.02 GiB (rank 0 14.43)"
    _what, finding = gate.assess([rank(0, facts=failed("kv_too_small") | have[0], failed_at=1.0), rank(1, facts=have[1])], 2.0, 9.0, {})
    assert finding is not None
    assert short in finding["message"]
    pool = READY | {"kv_cache": {"effective_tokens": 8192, **have[0]["kv_cache"]}}
    fault = gate.first_fault(gate.checks([rank(0, facts=pool), rank(1, facts=have[1])], API, {"effective_tokens": {"min": 9000}}))
    assert fault is not None
    assert short in fault["remedy"]


def test_ranks_with_the_same_content_in_other_image_stores_pass() -> None:
    ranks = [rank(number, facts=READY, container=container(image_id=f"sha256:{number}", labels={gate_label("image"): "aaaa"})) for number in (0, 1)]
    assert gate.first_fault(gate.checks(ranks, API, {})) is None
    ranks[1]["container"]["labels"][gate_label("image")] = "bbbb"
    assert (gate.first_fault(gate.checks(ranks, API, {})) or {})["class"] == "ranks_disagree"


def test_the_metric_beats_the_rounded_log() -> None:
    metrics = [{"kv_cache_size_tokens": "8190", "kv_cache_max_concurrency": "1.9995", "num_gpu_blocks": "None"}]
    pool = gate.pool_of(READY, metrics)
    assert pool == {"tokens": 8190, "concurrency": 1.9995, "context": 4096, "effective_tokens": 8190, "source": "metrics"}


@pytest.mark.parametrize("value", ["None", "nan", "inf", ""])
def test_a_metric_that_is_no_number_is_not_taken(value: str) -> None:
    assert gate.pool_of(READY, [{"kv_cache_max_concurrency": value}])["source"] == "log"


def test_progress_shows_stage_per_cent_and_memory() -> None:
    line = gate.progress(rank(1, facts={"stage": "load", "progress": {"percent": 43.0}}))
    assert line == "rank 1  spark-2      load 43 %  MemFree 31.0 GiB"
    assert gate.progress(rank(1, facts={"stage": "none"})) == "rank 1  spark-2      starting  MemFree 31.0 GiB"
    assert gate.progress(rank(1, facts={"stage": "load", "progress": {"percent": 43}}, seconds_left=300.0)) == f"{line}  5 min left"


@pytest.mark.parametrize(
    ("error", "word"),
    [
        ('Error response from daemon: Conflict. The container name "/gb10-pair1-rank1" is already in use by container "ab12"', "docker rm -f"),
        ("Error response from daemon: No such image: vllm/vllm-openai:v0.24.0", "--tags image"),
        ('failed to create task for container: exec: "vllm": executable file not found in $PATH: unknown', "--tags image"),
        ('could not select device driver "nvidia" with capabilities: [[gpu]]', "nvidia-smi"),
        ("CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", "nvidia-ctk"),
        ("write /var/lib/docker/tmp/x: no space left on device", "df -h"),
        ("something else", "Correct what the message names"),
    ],
)
def test_a_container_that_does_not_start_has_a_remedy_of_its_own(error: str, word: str) -> None:
    decided = gate._state_finding(rank(1, start_error=error))
    assert decided is not None
    assert word in decided["remedy"]
    assert decided["anchor"] == "docs/reference/failures.md#start_failed"


def test_an_exit_by_a_signal_is_named() -> None:
    decided = gate._state_finding(rank(1, container=dead(139)))
    assert decided is not None
    assert "exit code 139 (SIGSEGV)" in decided["message"]
    assert gate._signal_of(255) == ""


@pytest.mark.parametrize(
    ("line", "decided"),
    [
        ("vllm: error: unrecognized arguments: --no-such-flag", "fail"),  # argparse's last words: nothing else prints them
        ("ValueError: User-specified max_model_len (9999) is greater than the derived max_model_len", "wait"),  # the check of a request prints it too
    ],
)
def test_last_words_need_no_proof_and_other_weak_lines_do(line: str, decided: str) -> None:
    log = BootLog()
    log.feed((line + "\n").encode())
    state = rank(0, facts=log.facts()) | {"seconds": 5.0, "changed_at": 5.0, "failed_at": 5.0}
    assert gate.assess([state, rank(1)], 5.0, 100.0, {})[0] == decided
