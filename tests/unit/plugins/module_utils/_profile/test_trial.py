"""The collective test before a first boot: its container, what its script prints, and the verdict for the group."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, trial, values
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from shared_samples import needs_shared, samples
from shipped_profiles import LEAST, SHIPPED, place

HOSTS = ["spark-1", "spark-2"]
ROWS = [{"op": "all_reduce", "mib": 256, "gb_s": 22.5}, {"op": "all_gather", "mib": 256, "gb_s": 21.0}]
NCCL = (
    "spark1:140:140 [0] NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.168.100.1<0>\n"
    "spark1:140:140 [0] NCCL INFO Using network IB\n"
    "spark1:140:140 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0\n"
)
SOCKET = (
    "vm:1172:1172 [0] NCCL INFO NET/IB : No device found.\n"
    "vm:1172:1172 [0] NCCL INFO Using network Socket\n"
    "vm:1172:1172 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] [receive] via NET/Socket/0\n"
)


def printed(lines: str = NCCL, **more: Any) -> str:
    found = {"backend": "nccl", "stage": "end", "rows": ROWS, "problem": "", "text": ""}
    return f"{lines}\n{trial.MARK}{json.dumps({**found, **more})}\n"


def rank(lines: str = NCCL, **more: Any) -> dict[str, Any]:
    return {"changed": False, "result": trial.parse(printed(lines, **more))}


def judged(*ranks: dict[str, Any], **more: Any) -> tuple[str, bool, str]:
    found = trial.verdict(ranks, HOSTS, **more)
    return found["class"], found["failed"], found["msg"]


def rendered(number: int, **options: Any) -> dict[str, Any]:
    given = {"model_store": "/srv/models", "infiniband": ["/dev/infiniband/uverbs0"], "fabric": "node", "group": "pair1", **options}
    return compose.render_rank(resolve("dspark-nvfp4-1m-seed", SHIPPED), place(number), given)


# --- the container


def test_the_container_is_that_of_the_release_without_weights_secrets_and_labels() -> None:
    out = rendered(1, secrets={"HF_TOKEN": "hf_secret"}, env_file="/opt/key", extra_env={"NCCL_IB_QPS_PER_CONNECTION": "4", "FOO": "$bar"})
    service, test = out["compose"]["services"]["vllm"], out["collective"]
    for key in ("image", "network_mode", "devices", "ulimits", "cap_drop", "cap_add", "security_opt", "deploy", "shm_size"):
        assert test[key] == service[key], key
    assert test["cap_drop"] == ["ALL"]
    assert "IPC_LOCK" in test["cap_add"]
    assert not {"volumes", "env_file", "labels", "healthcheck", "privileged", "container_name"} & set(test)
    assert test["environment"]["NCCL_IB_QPS_PER_CONNECTION"] == "4"
    assert (test["environment"]["NCCL_DEBUG"], test["environment"]["NCCL_DEBUG_SUBSYS"]) == ("INFO", "INIT,NET")
    assert not {"FOO", "HF_TOKEN", "VLLM_HOST_IP"} & set(test["environment"])
    assert "hf_secret" not in json.dumps(test)
    plan = json.loads(test["command"][2])
    assert (plan["rank"], plan["size"], plan["address"], plan["gpu"]) == (1, 2, "192.168.200.1", True)


def test_the_fabric_variables_of_the_node_are_added_and_compose_reads_them_as_they_are() -> None:
    file = json.loads(trial.compose_text(rendered(0)["collective"], {"NCCL_IB_HCA": "rocep1s0f0,x$y"}))
    assert file["services"]["test"]["environment"]["NCCL_IB_HCA"] == "rocep1s0f0,x$$y"


@pytest.mark.parametrize(
    ("volume", "kept"),
    [
        ("/opt/engine:/opt/engine:ro", True),
        ("/opt/engine:/opt/engine", False),
        ("{model_store}/tool:/tool:ro", False),
        ("/srv:/data:ro", False),
        ("/elsewhere:/m:ro", False),
    ],
)
def test_a_volume_stays_only_if_it_is_read_only_and_holds_no_weights(volume: str, kept: bool) -> None:
    own = {**LEAST, "model": {"id": "a/b", "path": "/m/b"}, "container": {"volumes": [volume]}}
    assert bool(values.tool_volumes(resolve("mini", {"mini": own}), "/srv/models")) == kept


# --- the script


@pytest.mark.parametrize("stuck", [False, True])
def test_what_a_c_library_has_buffered_is_printed_at_the_end_and_at_the_time_limit(stuck: bool) -> None:
    """NCCL without its file prints to C's standard output, which is buffered by block in a container."""
    library = 'ctypes.CDLL(None).printf(b"h:1:1 [0] NCCL INFO Using network Socket\\n")'
    script = trial.COLLECTIVE_SCRIPT.replace("    import torch\n", f"    {library}; time.sleep({60 if stuck else 0}); import torch\n", 1)
    words = [sys.executable, "-IS", "-c", script, json.dumps({"rank": 0, "size": 2, "seconds": 0.2 if stuck else 20})]
    done = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60)
    assert trial.parse(done.stdout)["problem"] == ("timeout" if stuck else "no_torch")
    assert "NCCL INFO Using network Socket" in done.stdout


#: Prints as NCCL does (src/debug.cc: fopen "w", setlinebuf), and is killed before it could flush anything.
LIKE_NCCL = """
import ctypes, os, signal
libc = ctypes.CDLL(None)
libc.fopen.restype = ctypes.c_void_p
file, text = libc.fopen(os.environ.get("NCCL_DEBUG_FILE", "").encode(), b"w"), f"h:{os.getpid()} [0] NCCL INFO Using network Socket\\n".encode()
if file:
    libc.setlinebuf(ctypes.c_void_p(file))
    libc.fprintf(ctypes.c_void_p(file), text)
else:
    libc.printf(text)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.parametrize("of", ["test", "engine"])
def test_lines_of_nccl_are_there_after_a_kill_and_of_all_processes(of: str) -> None:
    out = rendered(0)
    environment = out["collective"]["environment"] if of == "test" else out["env"]
    env = {key: value for key, value in environment.items() if key.startswith("NCCL_DEBUG")}
    both = f"printf 'before\\n'; printf 'before\\n' >&2; for i in 1 2; do '{sys.executable}' -IS -c '{LIKE_NCCL}'; done; exit 0"
    done = subprocess.run(["sh", "-c", both], capture_output=True, text=True, check=True, timeout=60, env=env)
    printed_to, other = (done.stdout, done.stderr) if of == "test" else (done.stderr, done.stdout)
    assert printed_to.startswith("before\n"), "nothing is truncated"
    assert other.splitlines()[0] == "before"
    assert len([line for line in printed_to.splitlines() if line.endswith("NCCL INFO Using network Socket")]) == 2


# --- the result


@needs_shared
def test_recorded_test_of_two_gpus_reports_its_transport_if_nccl_prints_by_line() -> None:
    """Before, 722 of 4,779 bytes came out of the container, and the test passed without a transport."""
    for number in (0, 1):
        lost, seen = ((samples() / f"gpu2/coll-{name}-{number}.txt").read_text(encoding="utf-8") for name in ("asis", "file"))
        assert trial.parse(lost)["transport"] == "unknown"
        found = trial.parse(seen)
        assert (found["problem"], found["transport"], found["hcas"], len(found["rows"])) == ("", "tcp", [], 8)
        assert trial.problem_of(found, "lab-1")[0] == "socket_fallback"
        assert "NCCL over TCP" in trial.problem_of(found, "lab-1")[1]
        assert trial.problem_of(found, "lab-1", 1.0, rdma=False)[0] == ""


@pytest.mark.parametrize("output", ["", "Traceback\nKeyError: x", *(trial.MARK + text for text in ("{", '{"backend": "nccl", "rows": 1}', "[" * 9999))])
def test_output_without_a_valid_result_is_a_result_of_its_own(output: str) -> None:
    found = trial.parse(output)
    assert (found["problem"], found["rows"]) == ("no_result", [])
    assert judged({"result": found}, rank())[:2] == ("error", True)


def test_what_is_kept_of_a_hostile_result_is_bounded() -> None:
    found = trial.parse(printed(text="x" * 10_000_000, rows=ROWS * 1000, more=["y"] * 1000))
    assert len(json.dumps(found)) < 5000


# --- the verdict


def test_a_good_pair_passes_with_the_figure_of_its_slowest_rank() -> None:
    found = trial.verdict([rank(), rank(rows=[{**ROWS[0], "gb_s": 20.0}])], HOSTS)
    assert (found["failed"], found["gb_s"]) == (False, 20.0)
    assert found["msg"] == "NCCL over RoCE, 2 HCAs (rocep1s0f0, roceP2p1s0f0), bus bandwidth 20.00 GB/s (all_reduce of 256 MiB)."


WAITS = rank("", problem="timeout", stage="rendezvous", rows=[])
SLOW = rank(rows=[{**ROWS[0], "gb_s": 3.04}])
GLOO = rank("", backend="gloo", rows=[{"op": "all_reduce", "mib": 16, "gb_s": 0.5}])


@pytest.mark.parametrize(
    ("found", "name", "part"),
    [
        (rank(SOCKET), "socket_fallback", ""),
        (rank(problem="wrong_result", text="all_reduce of 1 MiB: expected 3, found 1.0 to 3.0"), "wrong_result", ""),
        (SLOW, "low_bandwidth", ""),
        (rank(problem="error", text="CUDA error: out of memory"), "error", ""),
        ({"failed": True, "msg": "sudo: a password is required"}, "error", ""),
        ({"unreachable": True, "msg": "timed out"}, "error", ""),
        ({}, "error", "the test failed on {host} (it failed before its test)"),
        (WAITS, "peer_absent", "the other ranks did not come to {host} within 60 s"),
        (rank(problem="timeout", stage="collective", rows=[]), "hang", "NCCL_NVLS_ENABLE: '0' and NCCL_NET_PLUGIN: none"),
    ],
)
def test_the_result_of_one_rank_decides_for_the_group(found: dict[str, Any], name: str, part: str) -> None:
    for host, ranks in zip(HOSTS, ((found, rank()), (rank(), found)), strict=True):
        seen, failed, text = judged(*ranks)
        assert (seen, failed) == (name, True)
        assert part.replace("{host}", host) in text
        assert text.endswith("Nothing was started. To start without this test: -e vllm_tp2_collective_test=never.")


@pytest.mark.parametrize(
    ("ranks", "more", "name", "text"),
    [
        ((WAITS, {"result": trial.ended("memory_short", "why")}), {}, "memory_short", r"not tested: spark-2 .*The start goes on\."),
        (({"result": trial.ended("no_torch", "why")}, rank()), {}, "no_torch", r"not tested: spark-1 .*The start goes on\."),
        ((WAITS, rank(problem="error", text="no such device")), {}, "error", ".*no such device.*"),
        ((rank(SOCKET), rank(SOCKET)), {"rdma": False}, "", ".*"),
        ((SLOW, SLOW), {"minimum": 3.0}, "", ".*"),
        ((rank(), rank()), {"minimum": 23.0}, "low_bandwidth", ".*"),
        ((GLOO, GLOO), {}, "", r"gloo over TCP, bus bandwidth 0\.50 GB/s \(all_reduce of 16 MiB\)\."),
        ((GLOO, GLOO), {"minimum": 1.0}, "low_bandwidth", ".*"),
    ],
)
def test_the_cause_comes_before_its_consequence_and_the_owner_sets_the_bound(ranks: Any, more: dict[str, Any], name: str, text: str) -> None:
    """What cannot be tested does not fail."""
    seen, failed, found = judged(*ranks, **more)
    assert (seen, failed) == (name, name in ("error", "low_bandwidth"))
    assert re.fullmatch(text, found)
