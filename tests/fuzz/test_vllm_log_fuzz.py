"""Fuzzed boot logs: no exception, no false readiness, the same facts from any slices, bounded memory and time."""

from __future__ import annotations

import json
import random
import time
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

FIXTURES = Path(__file__).resolve().parents[1] / "unit" / "fixtures" / "vllm_log"
LOGS = {name: (FIXTURES / f"{name}.log").read_bytes() for name in ("head", "worker", "oom")}
STATES = {"unknown", "starting", "ready", "served_then_failed", "failed"}
FAST = settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])

#: Lines that look like a failure and are none.
SIMILAR = [line[2:].encode() for line in (FIXTURES / "wordings.tsv").read_text(encoding="utf-8").splitlines() if line.startswith("-\t")]
EVIDENCE = (b"Application startup complete", b"Uvicorn running on", b" HTTP/")
#: Pieces that the grammar knows, so that random logs reach deep.
PIECES = [
    b"\n", b"\r", b"\r\n", b" ", b"\x1b[32m", b"\x00", b"\xff\xfe", b"INFO 01-01 00:00:00 [core.py:1] ", b"ERROR 01-01 00:00:00 [core.py:1] ",
    b"(EngineCore pid=5) ", b"(RayWorkerWrapper pid=2, ip=10.0.0.2) ", b'{"log":"', b"2026-01-01T00:00:00Z ", b"vllm-1  | ",
    b"GPU KV cache size: 9,072 tokens", b", Maximum concurrency for 8,192 tokens per request: 1.11x", b"Available KV cache memory: -1.5 GiB",
    b"Initializing a V1 LLM engine (v0.25.1) with config: model='m', max_seq_len=", b"vLLM API server version 0.9.1", b"Launching vLLM (v0.1) headless",
    b"world_size=2 rank=1 local_rank=0 distributed_init_method=tcp://a:1 backend=nccl",
    b"ValueError: To serve at least one request with the model's max seq len (", b"torch.OutOfMemoryError: CUDA out of memory",
    b"EngineCore encountered a fatal error.", b"Killed", b"ValidationError: 1 validation error for VllmConfig\nmax_num_seqs\n",
    b"  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]\n",
    b"    self._semlock = _multiprocessing.SemLock._rebuild(*state)\nFileNotFoundError: [Errno 2] No such file or directory",
    b'  File "/vllm/v1/spec_decode/eagle.py", line 1, in propose\nIndexError: x', b"Received request x: prompt: '", b"NCCL INFO Using network IB",
    b"Using 'B12X' Mxfp4 MoE backend", b"'custom_ops': ['all', ", b"enable_flashinfer_autotune=True,",
    b"Loading safetensors checkpoint shards:  50% Completed | 2/4", b"9999999999999999999999",
]  # fmt: skip


def check(facts: dict[str, Any], raw: bytes) -> None:
    """What holds of every log."""
    assert facts["state"] in STATES
    assert (facts["failure"] is None) == (facts["state"] not in ("failed", "served_then_failed"))
    if facts["state"] in ("ready", "served_then_failed"):
        assert any(e in raw for e in EVIDENCE), "readiness without its evidence"
    for figure in (facts["kv_cache"]["tokens"], facts["kv_cache"]["max_concurrency"], facts["context"]):
        assert figure is None or figure >= 0
    json.dumps(facts, allow_nan=False)


@FAST
@given(st.lists(st.one_of(st.sampled_from(PIECES), st.binary(max_size=6)), max_size=60))
def test_random_pieces_of_logs(pieces: list[bytes]) -> None:
    """Logs that no program wrote."""
    raw = b"".join(pieces)
    check(parse(raw), raw)


@FAST
@given(st.sampled_from(sorted(LOGS)), st.floats(0, 1))
def test_a_log_that_ends_anywhere(name: str, part: float) -> None:
    """Taken as finished there: still no figure that is not whole."""
    raw = LOGS[name][: int(len(LOGS[name]) * part)]
    facts, whole = parse(raw), parse(LOGS[name])
    check(facts, raw)
    for key in ("tokens", "max_concurrency", "available_gib", "blocks"):
        low, full = facts["kv_cache"][key], whole["kv_cache"][key]
        assert low in (None, full) or (key == "available_gib" and low > full)  # the smallest so far
    assert facts["context"] in (None, whole["context"])


@FAST
@given(st.lists(st.tuples(st.sampled_from(SIMILAR), st.integers(0, 60)), max_size=20))
def test_similar_lines_anywhere_change_no_verdict(inserted: list[tuple[bytes, int]]) -> None:
    """Warnings and notes about what can fail, in a boot that succeeds and in the worker's that goes on."""
    for name, state in (("head", "ready"), ("worker", "starting")):
        lines = LOGS[name].splitlines()
        for line, at in inserted:
            lines.insert(min(at, len(lines)), line)
        facts = parse(b"\n".join(lines) + b"\n")
        assert (facts["state"], facts["failure"]) == (state, None)


@FAST
@given(
    st.lists(st.sampled_from([*LOGS.values(), b"\xe2\x96\x88", b"\r\n", b"GPU KV cache size: 9,072 tok\nens\n", *PIECES]), min_size=1, max_size=6),
    st.lists(st.integers(1, 400), min_size=1, max_size=30),
    st.booleans(),
)
def test_any_slices_give_the_same_facts(parts: list[bytes], sizes: list[int], ask: bool) -> None:
    """Cut in characters, lines and line ends, and asked in between or not."""
    raw = b"".join(parts)
    reader, at, turn = BootLog(), 0, 0
    while at < len(raw):
        size = sizes[turn % len(sizes)]
        reader.feed(raw[at : at + size])
        at += size
        turn += 1
        if ask and turn % 7 == 0:
            reader.facts()
    assert reader.facts(final=True) == parse(raw)


#: The beginnings of what a boot log's patterns look for.
BEGINNINGS = [
    b"x", b"(", b"ValueError: ", b"GPU KV cache size: 9", b"\x1b[0;36m", b'{"log":"', b"version 0.", b"[1m", b"a | ", b"> ", b"a-", b"token=", b"[", b"'", b" ",
    b"\r", b"(EngineCore pid=5) ", b"INFO 01-01 ", b"9", b"1.5 GiB ", b"Traceback (most recent", b"http://", b"Error: ", b"\\", b"NCCL ", b"=", b"\x00",
]  # fmt: skip


@pytest.mark.parametrize("prefix", [b"", b"ERROR 11-24 10:00:00 [core.py:1] "], ids=["", "error"])
@pytest.mark.parametrize("piece", BEGINNINGS)
def test_a_line_of_ten_megabytes_takes_little_memory_and_time(piece: bytes, prefix: bytes) -> None:
    """What stands around it is still read. A pattern that takes quadratic time takes minutes."""
    raw = LOGS["worker"] + prefix + piece * (10_000_000 // len(piece)) + b"\n" + LOGS["head"]
    reader = BootLog()
    tracemalloc.start()
    began = time.process_time()
    for at in range(0, len(raw), 65536):
        reader.feed(raw[at : at + 65536])
        reader.facts()
    facts = reader.facts(final=True)
    spent = time.process_time() - began
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (facts["state"], facts["kv_cache"]["tokens"]) == ("ready", 2493464)
    assert facts["stages"]["args"]["line_number"] == len(LOGS["worker"].splitlines()) + 1 + 3
    assert spent < 5
    assert peak < 4 * 1024 * 1024


def endless(turn: int) -> bytes:
    """Make lines that differ in letters too, as prompts do."""
    words = random.Random(turn)
    prompt = "".join(words.choices("abcdefghij klmnop", k=120))
    return (
        f'INFO:     10.0.0.1:{turn % 60000} - "POST /v1/completions HTTP/1.1" 200 OK\n'
        f"(APIServer pid=1) INFO 07-02 09:05:00 [logger.py:41] Received request cmpl-{turn}: prompt: {prompt!r}\n"
        f"{prompt} NCCL error {turn}\n"
    ).encode()


def test_a_log_that_never_ends_stays_bounded() -> None:
    """Memory does not grow with the log, and asking costs the same at its end."""
    reader = BootLog()
    reader.feed(LOGS["head"])
    tracemalloc.start()
    peaks = []
    for block in range(4):
        for turn in range(6):
            reader.feed(b"".join(endless(block * 100_000 + turn * 1000 + i) for i in range(300)))
            reader.facts()
        peaks.append(tracemalloc.get_traced_memory()[0])
    tracemalloc.stop()
    assert peaks[-1] < 16 * 1024 * 1024
    assert peaks[-1] < peaks[1] * 1.5 + 1_000_000
    assert reader.facts()["state"] == "ready"


def test_many_of_everything_stays_bounded() -> None:
    """A thousand ranks, engines, boots and failures."""
    lines = []
    for i in range(6000):
        lines.append(
            f"(EngineCore_DP{i} pid={i}) (Worker_TP{i} pid={i + 1}) INFO 01-01 00:00:00 [p.py:1] world_size=9999 rank={i} local_rank=0 "
            f"distributed_init_method=tcp://a:1 backend=nccl\n"
            f"(EngineCore_DP{i} pid={i}) INFO 01-01 00:00:00 [k.py:1] GPU KV cache size: {i + 5:,} tokens\n"
            f"(EngineCore_DP{i} pid={i}) INFO 01-01 00:00:00 [k.py:1] Available KV cache memory: {i + 1} GiB\n"
            f"(Worker_TP{i} pid={i}) INFO 01-01 00:00:00 [k.py:1] Model loading took 1.0 GiB and 2.0 seconds\n"
        )
    facts = parse("".join(lines))
    assert facts["kv_cache"]["tokens"] == 5
    assert facts["kv_cache"]["available_gib"] == 1
    assert len(json.dumps(facts)) < 3_000_000
