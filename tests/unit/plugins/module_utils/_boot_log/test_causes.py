"""The state of a boot, and the row of its cause where the line of the cause is not the loudest: what else the log shows decides, and fills the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse

API = "(APIServer pid=1) "
BANNER = API + "INFO 11-20 21:00:00 [api_server.py:1977] vLLM API server version 0.25.1\n"
LOADING = "(EngineCore pid=9) INFO 11-20 21:01:00 [gpu_model_runner.py:1] Starting to load model /models/m...\n"
KV = "(EngineCore pid=9) INFO 11-20 21:02:00 [kv_cache_utils.py:1] GPU KV cache size: 5,000 tokens\n"
READY = API + "INFO:     Application startup complete.\n"
HEALTH = 'INFO:     10.0.0.9:4 - "GET /health HTTP/1.1" 200 OK\n'
FAILED_REQUEST = 'INFO:     10.0.0.9:4 - "POST /v1/completions HTTP/1.1" 500 Internal Server Error\n'
CORE = "(EngineCore pid=9) ERROR 11-20 21:10:00 [core.py:1512] "
WORKER = "(Worker_TP1 pid=291) "
FATAL = CORE + "EngineCore encountered a fatal error.\n"
GLOO = CORE + "RuntimeError: [gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.77.0.2]:29319.\n"
IN_EXECUTOR = "(Worker_TP0 pid=12) ERROR 11-20 21:10:00 [multiproc_executor.py:1004] "
NCCL = IN_EXECUTOR + "ncclRemoteError: A call failed possibly due to a network error or a remote process exiting prematurely.\n"
WATCHDOG = "[rank0]:[E1122 13:00:03.19 ProcessGroupNCCL.cpp:612] [Rank 0] async exception: NCCL error: remote process exited or there was a network error\n"
STREAM = '(APIServer pid=1) INFO:     10.0.0.9:4 - "POST /v1/completions HTTP/1.1" 200 OK\n'
IN_WORKER = "(VllmWorkerProcess pid=149) ERROR 04-28 18:00:58 [m.py:238] Exception in worker VllmWorkerProcess while processing method load_model.\n"
SERVED = READY + STREAM
DEAD = "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root cause.\n"
STOP = "INFO:     Shutting down\n"
OPTIONAL = "ModuleNotFoundError: No module named 'an_optional_part'\n"
DRAFTER = "(EngineCore pid=9) INFO 11-20 21:01:30 [eagle.py:1] Loading drafter model...\n"
FAILED = CORE + "EngineCore failed to start.\n"
ENDED = CORE + "Exception: WorkerProc initialization failed due to an exception in a background process. See stack trace for root cause.\n"
VALIDATION = API + "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
GREATER = API + "  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]\n"
NO_FILE = "FileNotFoundError: [Errno 2] No such file or directory"
SEMAPHORE = (
    f'{WORKER}  File "/usr/lib/python3.12/multiprocessing/synchronize.py", line 115, in __setstate__\n'
    f"{WORKER}    self._semlock = _multiprocessing.SemLock._rebuild(*state)\n"
    f"{WORKER}                    ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
)
SEGMENT = (
    '  File "/usr/lib/python3.12/multiprocessing/shared_memory.py", line 104, in __init__\n'
    "    self._fd = _posixshmem.shm_open(\n"
    "               ^^^^^^^^^^^^^^^^^^^^^\n"
)
BOOTSTRAP = (
    "Traceback (most recent call last):\n"
    '  File "/usr/lib/python3.12/multiprocessing/spawn.py", line 140, in _get_preparation_data\n'
    "    _check_not_importing_main()\n"
    "RuntimeError: \n"
    "        An attempt has been made to start a new process before the\n"
    "        current process has finished its bootstrapping phase.\n"
)
PROPOSE = f'{CORE}  File "/opt/vllm/vllm/v1/spec_decode/eagle.py", line 300, in propose\n{CORE}    hidden = self.model(ids)\n'


def verdict(text: str) -> tuple[str, str | None]:
    """Parse a complete log and return state and class."""
    facts = parse(text)
    return facts["state"], facts["failure"] and facts["failure"]["class"]


def failure(log: str) -> dict[str, Any]:
    """Return the failure of a complete log."""
    found = parse(log)["failure"]
    assert found is not None
    return dict(found)


def row(log: str) -> str:
    """Return the name of the row."""
    return str(failure(log)["anchor"]).rpartition("#")[2]


# --- the state


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


@pytest.mark.parametrize("line", [FAILED, "RuntimeError: Engine core initialization failed. See root cause above.\n"])
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


# --- a setting that vLLM refuses


@pytest.mark.parametrize(
    ("log", "named"),
    [
        (VALIDATION + API + "num_speculative_tokens\n" + GREATER, "num_speculative_tokens: Input should be greater than 0"),
        (
            "ValidationError: 2 validation errors for VllmConfig\nscheduler_config.max_num_seqs\n  Field required [type=missing, input_value={}, "
            "input_type=dict]\ncache_config.block_size\n  Input should be above 0 [type=greater_than, input_value=0, input_type=int]\n",
            "scheduler_config.max_num_seqs: Field required",
        ),
        (
            f"{CORE}pydantic_core._pydantic_core.ValidationError: 1 validation error for AttentionConfig\n{CORE}backend\n"
            f"{CORE}  Input should be 'FLASH_ATTN' or 'FLASHINFER' [type=enum, input_value='B12X', input_type=str]\n",
            "backend: Input should be 'FLASH_ATTN' or 'FLASHINFER'",
        ),
        (
            VALIDATION + API + "draft_sample\n" + API + "  Unexpected keyword argument [type=unexpected_keyword_argument, input_value=1, input_type=int]\n",
            "draft_sample: Unexpected keyword argument",
        ),
        (VALIDATION + API + "  Value error, k must be odd [type=value_error, input_value=2, input_type=int]\n", "names: k must be odd"),
        ("vllm serve: error: argument --kv-cache-dtype: invalid choice: 'fp3' (choose from 'auto', 'fp8')\n", "--kv-cache-dtype: invalid choice: 'fp3'"),
        ("TypeError: SpeculativeConfig.__init__() got an unexpected keyword argument 'draft_sample'\n", "'draft_sample'"),
    ],
    ids=["field", "first of two fields", "records", "unknown field", "no field", "choice", "keyword"],
)
def test_the_remedy_names_the_setting_that_vllm_refuses(log: str, named: str) -> None:
    assert failure(log)["class"] in ("config_error", "bad_argument")
    assert named in failure(log)["remedy"]


@pytest.mark.parametrize(
    "log",
    [
        VALIDATION,
        VALIDATION + "(EngineCore pid=9) num_speculative_tokens\n",
        "AssertionError\n",
        "ValueError: invalid literal for int() with base 10: 'many'\n",
    ],
)
def test_the_remedy_tells_that_no_setting_is_named(log: str) -> None:
    assert "names no setting" in failure(log)["remedy"]


def test_the_line_of_another_process_is_not_the_name_of_a_field() -> None:
    assert "Loader" not in failure(VALIDATION + "(EngineCore pid=9) Loader\n" + GREATER)["remedy"]


# --- semaphores and shared memory that others remove


@pytest.mark.parametrize(
    "log",
    [
        SEMAPHORE + f"{WORKER}{NO_FILE}\n",
        SEMAPHORE + f"{WORKER}{NO_FILE}\n" + ENDED + FAILED,
        SEGMENT + f"{NO_FILE}: '/psm_1a2b3c4d'\n" + ENDED,
        f"{WORKER}{NO_FILE}: '/psm_1a2b3c4d'\n" + ENDED,
        f"{CORE}AttributeError: 'ShmRingBuffer' object has no attribute 'shared_memory'\n" + FAILED,
    ],
)
def test_a_semaphore_that_is_gone_names_logind_and_other_containers(log: str) -> None:
    found = failure(BANNER + log)
    assert (row(BANNER + log), found["class"]) == ("shm_removed", "worker_died")
    assert "RemoveIPC" in found["remedy"]
    assert "/dev/shm" in found["remedy"]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (OPTIONAL + KV + SEMAPHORE + f"{WORKER}{NO_FILE}\n", "shm_removed"),
        (f"{CORE}ValueError: the cause\n" + SEMAPHORE + f"{WORKER}{NO_FILE}\n", "config_error"),
        (BOOTSTRAP + SEMAPHORE + f"{WORKER}{NO_FILE}\n", "main_guard"),
        (SEMAPHORE + f"{WORKER}PermissionError: [Errno 13] Permission denied\n", "permission"),
        (SEMAPHORE + f"{WORKER}OSError: [Errno 24] Too many open files\n", "process_limit"),
        (SEGMENT + "OSError: [Errno 28] No space left on device: '/psm_1a2b3c4d'\n", "shm_full"),
        (f"{WORKER}{NO_FILE}: '/models/m/config.json'\n", "weights_missing"),
        (f"{WORKER}{NO_FILE}\n", "unclassified"),
    ],
    ids=["not an optional part", "a cause before it", "the start script", "permission", "open files", "full", "a file of the model", "without a traceback"],
)
def test_what_else_the_log_shows_outranks_removed_memory(log: str, name: str) -> None:
    assert row(BANNER + log) == name


def test_a_clean_up_of_shared_memory_is_not_a_failure() -> None:
    log = f"Exception ignored in: <function SharedMemory.__del__ at 0x7f>\nTraceback (most recent call last):\n{SEGMENT}{NO_FILE}: '/psm_1a2b3c4d'\n"
    assert parse(BANNER + LOADING + log)["failure"] is None
    assert parse(f"{NO_FILE}: '/psm_1a2b3c4d'\n")["failure"] is None


# --- drafters


@pytest.mark.parametrize(
    ("line", "name"),
    [
        ("IndexError: index 4 is out of bounds for dimension 0 with size 4", "drafter_error"),
        ("RuntimeError: The size of tensor a (8) must match the size of tensor b (6) at non-singleton dimension 0", "drafter_error"),
        ("RuntimeError: shape '[4, 8]' is invalid for input of size 24", "drafter_error"),
        ("torch.AcceleratorError: CUDA error: device-side assert triggered", "drafter_fault"),
        ("ValueError: lengths differ", "drafter_config"),
        ("AssertionError", "drafter_config"),
    ],
)
def test_an_error_in_the_code_of_the_drafter_names_the_drafter(line: str, name: str) -> None:
    log = BANNER + READY + PROPOSE + CORE + line + "\n" + FATAL
    assert row(log) == name
    for word in ("speculative-config", "drafter", "--max-num-seqs", "--no-async-scheduling"):
        assert word in failure(log)["remedy"]


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (PROPOSE + CORE + "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", "cuda_oom"),
        (PROPOSE + CORE + "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device\n", "arch_unsupported"),
        (PROPOSE + CORE + "ValueError: DFlash2 requires an unquantized target LM head for candidate TopK.\n", "drafter_config"),
        (PROPOSE.replace("in propose", "in load_model") + CORE + "AssertionError\n", "config_error"),
        (CORE + "IndexError: index 4 is out of bounds for dimension 0 with size 4\n", "unclassified"),
        (PROPOSE + CORE + "IndexError: index 4 is out of bounds\n" + API + "RuntimeError: the queue ended\n", "drafter_error"),
    ],
)
def test_an_error_with_a_row_of_its_own_is_not_the_drafters(log: str, name: str) -> None:
    assert row(BANNER + log + FAILED) == name


def test_a_crashed_kernel_names_the_drafter_that_the_boot_uses() -> None:
    crash = CORE + "torch.AcceleratorError: CUDA error: device-side assert triggered\n" + FATAL
    args = API + "INFO 11-20 21:00:01 [utils.py:1] non-default args: {'model': '/m', 'speculative_config': {'method': 'dflash', 'num_speculative_tokens': 7}}\n"
    assert "drafter (speculative-config, dflash)" in failure(BANNER + args + LOADING + READY + crash)["remedy"]
    dump = "(EngineCore pid=9) ERROR 11-20 21:10:00 [dump_input.py:72] Dumping input data for V1 LLM engine (v0.30.0) with config: model='/m', "
    dump += "speculative_config=SpeculativeConfig(method='mtp', model='/d', num_spec_tokens=5), max_seq_len=8192\n"
    assert "drafter (speculative-config, mtp)" in failure(BANNER + LOADING + READY + crash.replace(FATAL, dump + FATAL))["remedy"]
    assert "drafter (speculative-config)" in failure(BANNER + LOADING + DRAFTER + READY + crash)["remedy"]
    assert "If the profile has a drafter" in failure(BANNER + LOADING + READY + crash)["remedy"]


# --- the driver, the architecture, the start script, memory


@pytest.mark.parametrize(
    ("log", "name"),
    [
        (f"{CORE}ImportError: libcuda.so.1: cannot open shared object file\n{CORE}ModuleNotFoundError: No module named 'vllm._C'\n", "driver_library"),
        (
            f"{CORE}AttributeError: '_OpNamespace' '_C' object has no attribute 'rms_norm'\n"
            f"{CORE}RuntimeError: 0 active drivers ([]). There should only be one.\n",
            "no_gpu",
        ),
        ("This kernel only supports sm120.\n" * 3 + f"{CORE}torch.AcceleratorError: CUDA error: unspecified launch failure\n", "arch_unsupported"),
        (f"{CORE}torch.AcceleratorError: CUDA error: unspecified launch failure\n" + "This kernel only supports sm120.\n", "arch_unsupported"),
        (BOOTSTRAP + ENDED + f"{CORE}RuntimeError: Worker proc VllmWorker-1 died unexpectedly\n", "main_guard"),
        (
            "spark1:301:412 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n"
            f"{CORE}RuntimeError: NCCL error: unhandled cuda error (run with NCCL_DEBUG=INFO for details)\n",
            "nccl_memory",
        ),
        (
            f"{CORE}torch.distributed.DistBackendError: NCCL error in: /x/NCCLUtils.cpp:77, unhandled cuda error\n{CORE}Last error:\n"
            f"{CORE}Cuda failure 2 'out of memory'\n",
            "cuda_oom",
        ),
        (f"{CORE}torch.OutOfMemoryError: CUDA out of memory.\n[ 1.0] Out of memory: Killed process 47 (VLLM::Worker)\n", "oom_killed"),
        (f"{CORE}MemoryError: std::bad_alloc: out_of_memory: CUDA error at: /x/rmm/mr/device/cuda_memory_resource.hpp:60\n", "cuda_oom"),
        (f"{CORE}MemoryError\n", "host_memory"),
        (f"{CORE}ImportError: libcudart.so.13: cannot open shared object file: No such file or directory\n", "toolchain"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.\nWorkerCrashedError: x\n", "ray_memory"),
    ],
)
def test_names_the_cause_and_not_its_consequence(log: str, name: str) -> None:
    assert row(BANNER + LOADING + log + FAILED) == name


def test_a_warning_of_nccl_about_memory_alone_does_not_end_a_boot_that_goes_on() -> None:
    facts = parse(BANNER + LOADING + "spark1:301:412 [0] alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'\n" + READY)
    assert (facts["state"], facts["failure"]) == ("ready", None)
