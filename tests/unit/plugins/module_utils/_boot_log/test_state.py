"""The state of a boot: a served engine that dies, weak suspicion, logs that are cut, other programs in the same log."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse

BANNER = "(APIServer pid=1) INFO 11-20 21:00:00 [api_server.py:1977] vLLM API server version 0.25.1\n"
LOADING = "(EngineCore pid=9) INFO 11-20 21:01:00 [gpu_model_runner.py:1] Starting to load model /models/m...\n"
KV = "(EngineCore pid=9) INFO 11-20 21:02:00 [kv_cache_utils.py:1] GPU KV cache size: 5,000 tokens\n"
READY = "(APIServer pid=1) INFO:     Application startup complete.\n"
HEALTH = 'INFO:     10.0.0.9:4 - "GET /health HTTP/1.1" 200 OK\n'
FAILED_REQUEST = 'INFO:     10.0.0.9:4 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
CORE = "(EngineCore pid=9) ERROR 11-20 21:10:00 [core.py:1512] "
WORKER = "(Worker_TP0 pid=12) ERROR 11-20 21:10:00 [multiproc_executor.py:1004] "
FATAL = CORE + "EngineCore encountered a fatal error.\n"
GLOO = CORE + "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:29319.\n"
NCCL = WORKER + "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
WATCHDOG = "[rank0]:[E1122 13:00:03.19 ProcessGroupNCCL.cpp:612] [Rank 0] async exception: NCCL error: remote process exited or there was a network error\n"
STREAM = '(APIServer pid=1) INFO:     10.0.0.9:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
IN_WORKER = "(VllmWorkerProcess pid=149) ERROR 04-28 18:00:58 [m.py:238] Exception in worker VllmWorkerProcess while processing method load_model.\n"
SERVED = READY + STREAM
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
STOP = "INFO:     Shutting down\n"
OPTIONAL = "ModuleNotFoundError: No module named 'an_optional_part'\n"


def verdict(text: str) -> tuple[str, str | None]:
    """Parse a complete log and return state and class."""
    facts = parse(text)
    return facts["state"], facts["failure"] and facts["failure"]["class"]


@pytest.mark.parametrize(
    ("lines", "name"),
    [
        pytest.param(GLOO + FATAL, "peer_lost", id="gloo, then the fatal error"),
        pytest.param(HEALTH + GLOO + FATAL + STOP, "peer_lost", id="idle head, then the shutdown that follows"),
        pytest.param(NCCL, "peer_lost", id="ncclRemoteError alone"),
        pytest.param(WATCHDOG + HEALTH, "peer_lost", id="the NCCL watchdog, and health still answers"),
        pytest.param(NCCL + STREAM, "peer_lost", id="the status of a stream that hangs"),
        pytest.param(FATAL, "engine_failed", id="a fatal error alone"),
        pytest.param("(APIServer pid=1) ERROR 11-20 21:10:00 [async_llm.py:906] " + DEAD, "engine_failed", id="EngineDeadError alone"),
        pytest.param(DEAD + FAILED_REQUEST, "engine_failed", id="EngineDeadError without a level, then HTTP 500"),
        pytest.param(GLOO.replace(CORE, "") + DEAD + FAILED_REQUEST, "peer_lost", id="a lost peer without a level, then HTTP 500"),
    ],
)
def test_a_served_engine_that_dies_is_served_then_failed(lines: str, name: str) -> None:
    """The class names the peer where the peer is the cause."""
    assert verdict(BANNER + KV + SERVED + lines) == ("served_then_failed", name)


@pytest.mark.parametrize(
    "lines",
    [
        pytest.param(STOP + GLOO + FATAL, id="a stopped head whose peer is gone"),
        pytest.param(FAILED_REQUEST + HEALTH, id="HTTP 500 for one request"),
        pytest.param("ValueError: a request's own\n" + FAILED_REQUEST, id="HTTP 500 for a bad request"),
    ],
)
def test_a_served_engine_stays_ready(lines: str) -> None:
    """A stop that was asked for and a request's own error are not the engine's death."""
    assert verdict(BANNER + KV + SERVED + lines) == ("ready", None)


def test_a_weak_line_alone_is_a_suspicion_while_the_process_runs() -> None:
    """Loads and compiles are silent for minutes after an optional import has failed."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]) == ("starting", None)
    assert (facts["suspicion"]["class"], facts["suspicion"]["line"]) == ("toolchain", OPTIONAL.strip())
    log.feed(KV.encode())
    assert log.facts()["suspicion"] is None


@pytest.mark.parametrize("line", [CORE + "EngineCore failed to start.\n", "RuntimeError: Engine core initialization failed. See root cause above.\n"])
def test_a_second_sign_confirms_a_suspicion(line: str) -> None:
    """What the engine prints of its own end follows at once."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL + line).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]["class"], facts["failure"]["confirmed"]) == ("failed", "toolchain", True)


@pytest.mark.parametrize("first", [CORE + "Traceback (most recent call last):\n", IN_WORKER])
def test_a_log_cut_in_the_traceback_of_an_engine_process_has_failed(first: str) -> None:
    """The name of the exception is in the last line, which is missing."""
    assert verdict(BANNER + LOADING + first + CORE + '  File "/x.py", line 1, in f\n') == ("failed", "unclassified")
    assert verdict(BANNER + LOADING + first + KV) == ("starting", None)


def test_another_programs_port_is_not_vllms() -> None:
    """vLLM reports the port on which it listens; another program in the log fails on its own."""
    listen = "INFO 09-04 12:12:15 [api_server.py:1349] Starting vLLM API server 0 on http://0.0.0.0:8000\n"
    taken = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', {}): address already in use\n"
    other = "INFO:     Application startup complete.\nINFO:     Uvicorn running on http://0.0.0.0:8080 (Press CTRL+C to quit)\n"
    assert parse(BANNER + other + KV + listen)["state"] == "starting"
    assert verdict(BANNER + other + KV + listen + READY + taken.format(8080)) == ("ready", None)
    assert verdict(BANNER + KV + listen + taken.format(8000)) == ("failed", "addr_in_use")


def test_a_record_before_the_banner_is_not_a_boot_of_its_own() -> None:
    """vLLM 0.11 prints the scheduler's default before its version."""
    facts = parse("INFO 11-20 20:59:59 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=2048.\n" + BANNER + KV)
    assert (facts["restarts"], facts["version"]) == (0, "0.25.1")


@pytest.mark.parametrize("key", ["textPayload", "message", "log"])
def test_a_json_record_over_several_lines(key: str) -> None:
    """A collector's export is printed with indentation."""
    record = '  {\n    "severity": "INFO",\n    "%s": "(EngineCore pid=9) INFO 11-20 21:02:00 [k.py:1] GPU KV cache size: 5,000 tokens",\n    "x": 1\n  },\n'
    assert parse(record % key)["kv_cache"]["tokens"] == 5000


def test_the_more_specific_row_of_a_class_gives_the_remedy() -> None:
    """The general line of a class comes first in many logs."""
    rows = [{"class": "x", "pattern": "narrow (?P<what>cause)", "remedy": "Mend the {what}."}, {"class": "x", "pattern": "trouble", "remedy": "Read the log."}]
    failure = parse(BANNER + LOADING + CORE + "trouble\n" + CORE + "narrow cause\n" + CORE + "trouble\n", rows)["failure"]
    assert (failure["remedy"], failure["line"], failure["count"]) == ("Mend the cause.", "narrow cause", 3)
