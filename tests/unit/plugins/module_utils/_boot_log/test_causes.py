"""Logs in which the line of the cause is not the loudest: what else the log shows decides the row, and fills the remedy."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse

API = "(APIServer pid=1) "
WORKER = "(Worker_TP1 pid=291) "
CORE = "(EngineCore pid=9) ERROR 11-20 21:10:00 [core.py:1512] "
BANNER = API + "INFO 11-20 21:00:00 [api_server.py:1977] vLLM API server version 0.30.0\n"
LOADING = "(EngineCore pid=9) INFO 11-20 21:01:00 [gpu_model_runner.py:1] Starting to load model /models/m...\n"
OPTIONAL = "ModuleNotFoundError: No module named 'an_optional_part'\n"
KV = "(EngineCore pid=9) INFO 11-20 21:02:00 [kv_cache_utils.py:1] GPU KV cache size: 5,000 tokens\n"
DRAFTER = "(EngineCore pid=9) INFO 11-20 21:01:30 [eagle.py:1] Loading drafter model...\n"
READY = API + "INFO:     Application startup complete.\n"
FATAL = CORE + "EngineCore encountered a fatal error.\n"
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


def failure(log: str) -> dict[str, Any]:
    """Return the failure of a complete log."""
    found = parse(log)["failure"]
    assert found is not None
    return dict(found)


def row(log: str) -> str:
    """Return the name of the row."""
    return str(failure(log)["anchor"]).rpartition("#")[2]


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
