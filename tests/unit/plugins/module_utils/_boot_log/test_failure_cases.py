"""Lines of engines, drivers and libraries, each with the class, the case and the remedy that an owner of two GB10 machines needs."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import BENIGN, CATALOGUE, name_of
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse
from shared_samples import SHARED, needs_shared

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "vllm_log"
ROWS = {name_of(row): row for row in CATALOGUE}
CORE = "(EngineCore_DP0 pid=116) ERROR 11-20 10:00:00 [core.py:946] "
WORKER = "(Worker_TP1 pid=77) ERROR 11-20 10:00:00 [multiproc_executor.py:962] "
NCCL = "spark1:301:412 [0] "
PEERS = "localGid ::ffff:192.0.2.10 remoteGids::ffff:192.0.2.11"

#: case -> lines; the class is that of the row
LINES: dict[str, list[str]] = {
    "gpu_lost": [
        "[ 9411.3] NVRM: Xid (PCI:000f:01:00): 119, pid=4711, name=VLLM::Worker, Timeout after 45s of waiting for RPC response from GPU0 GSP!",
        "Nov 20 10:00:00 spark1 kernel: NVRM: Xid (PCI:000f:01:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.",
        "Nov 20 10:00:00 spark1 kernel: NVRM: Xid (PCI:000f:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x2 (Node Reboot Required)",
        "NVRM: Xid (PCI:000f:01:00): 48, An uncorrectable double bit error (DBE) has been detected",
        "Unable to determine the device handle for GPU0: 000F:01:00.0: GPU is lost.  Reboot the system to recover this GPU",
        f"{WORKER}torch.AcceleratorError: CUDA error: uncorrectable ECC error encountered",
        f"{CORE}vllm.third_party.pynvml.NVMLError_GpuIsLost: GPU is lost",
        "NVRM: GPU 000f:01:00.0: RmInitAdapter failed! (0x62:0x65:1860)",
    ],
    "shm_full": [
        f"{CORE}OSError: [Errno 28] No space left on device: '/psm_1a2b3c4d'",
        f"{WORKER}RuntimeError: unable to write to file </torch_201_3471_0>: No space left on device (28)",
        "RuntimeError: unable to open shared memory object </torch_77_9_1> in read-write mode: No space left on device (28)",
        "RuntimeError: unable to mmap 2097152 bytes from file </torch_77_9_1>: Cannot allocate memory (12)",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory (shm).",
        "RuntimeError: DataLoader worker (pid 71) is killed by signal: Bus error. It is possible that dataloader's workers are out of shared memory.",
    ],
    "disk_full": [
        f"{CORE}OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache/8f2c/rank_0_0'",
        f"{CORE}RuntimeError: Data processing error: File reconstruction error: IO Error: No space left on device (os error 28)",
        "OSError: [Errno 28] No space left on device",
        "/tmp/nvcc_x.ii: fatal error: error writing to /tmp/ccA1.s: No space left on device",
        "Error response from daemon: failed to register layer: write /opt/x/libtorch_cuda.so: no space left on device",
        "OSError: [Errno 122] Disk quota exceeded: '/models/x/model-00001-of-00004.safetensors'",
    ],
    "process_limit": [
        f"{CORE}RuntimeError: can't start new thread",
        f"{WORKER}OSError: [Errno 24] Too many open files: '/models/x/model-00041-of-00062.safetensors'",
        "OpenBLAS blas_thread_init: pthread_create failed for thread 18 of 20: Resource temporarily unavailable",
        "libgomp: Thread creation failed: Resource temporarily unavailable",
        "  what():  Resource temporarily unavailable",
        "Too many open files (bundled/zeromq/src/epoll.cpp:65)",
        "/entrypoint.sh: fork: retry: Resource temporarily unavailable",
    ],
    "permission": [
        f"{CORE}PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm'",
        f"{CORE}PermissionError: [Errno 13] Permission denied: '/app/.cache/flashinfer'",
        f"{WORKER}OSError: [Errno 30] Read-only file system: '/root/.triton/cache/PEX4'",
        "PermissionError: [Errno 1] Operation not permitted: '/models/x'",
        "mkdir: cannot create directory '/.cache': Permission denied",
        "RuntimeError: Data processing error: Permission denied (os error 13)",
    ],
    "address_not_local": [
        "(APIServer pid=1) zmq.error.ZMQError: Cannot assign requested address (addr='tcp://192.0.2.11:13345')",
        f"{WORKER}RuntimeError: [enforce fail at /pytorch/third_party/gloo/gloo/transport/tcp/device.cc:202] bind(fd). Cannot assign requested address",
        "OSError: [Errno 99] Cannot assign requested address",
        "ERROR:    [Errno 99] error while attempting to bind on address ('192.0.2.99', 8000): cannot assign requested address",
    ],
    "hub_rate_limited": [
        "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/org/model/tree/main",
        "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/org/model/resolve/main/config.json",
        f"{CORE}httpx.HTTPStatusError: Client error '429 Too Many Requests' for url 'https://huggingface.co/api/models/org/model'",
        "huggingface_hub.errors.HfHubHTTPError: Client error: We had to rate limit your IP (192.0.2.1). Make sure you pass a HF_TOKEN.",
        "OSError: 429 Client Error: Too Many Requests for url: https://huggingface.co/org/model/resolve/main/config.json",
    ],
    "kernel_limits": [
        f"{WORKER}RuntimeError: Error in function 'BatchPrefillWithPagedKVCacheDispatched' at /w/flashinfer/attention/prefill.cuh:2978: "
        "FlashInfer Internal Error: Invalid configuration : NUM_MMA_Q=1 NUM_MMA_D_QK=32",
        "ERROR : Arch conditional MMA instruction used without targeting appropriate compute capability. Aborting.",
        f"{WORKER}tvm.error.InternalError: Failed to set the allowed dynamic shared memory size to 143808",
        f"{CORE}triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376.",
        f"{CORE}torch._inductor.exc.InductorError: OutOfResources: out of resource: shared memory, Required: 131072, Hardware limit: 101376.",
        "Error: Failed to initialize the TMA descriptor 801",
        "RuntimeError: CUDA error: too many resources requested for launch",
    ],
    "ptx_too_new": [
        "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
        "RuntimeError: Triton Error [CUDA]: the provided PTX was compiled with an unsupported toolchain.",
        f"{CORE}RuntimeError: CUDA driver error: 222 (CUDA_ERROR_UNSUPPORTED_PTX_VERSION)",
    ],
    "arch_unsupported": [
        f"{WORKER}torch.AcceleratorError: CUDA error: invalid device function",
        "RuntimeError: Triton Error [CUDA]: invalid device function",
        f"{CORE}torch._inductor.exc.InductorError: RuntimeError: Internal Triton PTX codegen error",
        "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
        "AssertionError: Only SM 10.x and 11.x are supported",
        "tvm.error.InternalError: Error in function 'TllmGenFmhaRunner' at /f/fmhaRunner.cuh:37: Unsupported architecture",
    ],
    "driver_too_old": [
        "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
        f"{CORE}RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? "
        "Error 803: system has unsupported display driver / cuda driver combination",
        f"{CORE}RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? "
        "Error 804: forward compatibility was attempted on non supported HW",
        "RuntimeError: CUDA error: CUDA driver version is insufficient for CUDA runtime version",
        "nvidia-container-cli: requirement error: unsatisfied condition: cuda>=13.0, please update your driver to a newer version",
    ],
    "driver_mismatch": [
        "Failed to initialize NVML: Driver/library version mismatch",
        "vllm.third_party.pynvml.NVMLError_LibRmVersionMismatch: Driver/library version mismatch",
        "NVRM: API mismatch: the client has the version 580.126.09, but this kernel module has the version 580.95.05.",
    ],
    "no_gpu": [
        "RuntimeError: No CUDA GPUs are available",
        "Failed to initialize NVML: Unknown Error",
        'docker: Error response from daemon: could not select device driver "" with capabilities: [[gpu]]',
    ],
    "cuda_fault": [
        f"{WORKER}RuntimeError: Check failed: (status == cudaSuccess) is false: BatchPrefillWithPagedKVCache failed with error invalid argument",
        "tvm.error.InternalError: Check failed: (e == cudaSuccess) is false: CUDA: unspecified launch failure",
        f"{WORKER}torch.AcceleratorError: CUDA error: an illegal memory access was encountered",
        "NVRM: Xid (PCI:000f:01:00): 31, pid=4711, name=VLLM::Worker, Ch 00000008, intr 00000000. MMU Fault",
    ],
    "cuda_oom": [
        "RuntimeError: Check failed: (status == cudaSuccess) is false: BatchDecode failed with error out of memory",
        f"{WORKER}torch._inductor.exc.InductorError: OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.",
        "RuntimeError: CUDA driver error: out of memory",
    ],
    "cutlass_dsl": [
        f"{WORKER}AttributeError: module 'cutlass.cute.nvgpu' has no attribute 'OperandMajorMode'",
        "ImportError: cannot import name 'fmin' from 'cutlass.cute.arch' (/x/nvidia_cutlass_dsl/python_packages/cutlass/cute/arch/__init__.py)",
        f"{WORKER}AttributeError: module 'cutlass.cute.arch' has no attribute 'fmin'",
        "AttributeError: module cutlass.cute.arch has no attribute fmin",
    ],
    "python_packages": [
        "TypeError: Descriptors cannot be created directly.",
        "TypeError: Descriptors cannot not be created directly.",
        "google.protobuf.runtime_version.VersionError: Detected incompatible Protobuf Gencode/Runtime versions when loading x.proto: gencode 6.31.1",
        "ValueError: numpy.dtype size changed, may indicate binary incompatibility. Expected 96 from C header, got 88 from PyObject",
        "ImportError: numpy.core.multiarray failed to import",
        "ImportError: /opt/venv/lib/python3.12/site-packages/vllm/_C.abi3.so: undefined symbol: _ZN3c104cuda29c10_cuda_check_implementation",
        "RuntimeError: operator torchvision::nms does not exist",
    ],
    "unknown_user": [
        "KeyError: 'getpwuid(): uid not found: 1001'",
        f"{CORE}KeyError: 'getpwuid(): uid not found: 2000'",
        f"{CORE}torch._inductor.exc.InductorError: KeyError: 'getpwuid(): uid not found: 1000'",
    ],
    "toolchain": [
        f"{CORE}torch._inductor.exc.InductorError: RuntimeError: Failed to find C compiler. Please specify via CC environment variable",
        "/tmp/tmpq1/main.c:5:10: fatal error: Python.h: No such file or directory",
        f"{CORE}torch._inductor.exc.InductorError: CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-O3']' returned non-zero exit status 1.",
    ],
    "compile_failed": [
        f"{CORE}torch._inductor.exc.InductorError: RuntimeError: Tried to erase Node getitem_4 but it still had 1 users in the graph",
        f"{CORE}torch._dynamo.exc.BackendCompilerFailed: backend='<vllm.compilation.backends.VllmBackend object at 0x7f>' raised:",
        f"{CORE}RuntimeError: PassManager::run failed",
        f"{WORKER}AssertionError: failed to get the hash of the compiled graph",
        f"{CORE}RuntimeError: vLLM failed to compile the model. The most likely reason for this is that a previous compilation failed, "
        "leading to a corrupted compilation artifact.",
        f"{CORE}torch._dynamo.exc.TorchRuntimeError: Dynamo failed to run FX node with fake tensors",
        f"{CORE}triton.compiler.errors.CompilationError: at 12:4: AssertionError()",
        f"{CORE}FileNotFoundError: [Errno 2] No such file or directory: '/root/.triton/cache/AX2/__grp__triton_poi.json'",
        "AssertionError: Expected tensors only, but got: <class 'int'>",
    ],
    "nccl_interface": [
        f"{NCCL}bootstrap.cc:103 NCCL WARN Bootstrap : no socket interface found",
        "[rank0]: Bootstrap : no socket interface found",
        "(Worker_TP0 pid=5) spark1:301:412 [0] transport/net_socket.cc:62 NCCL WARN NET/Socket : no interface found",
        "[rank1]: ncclSocketInit: connecting to address  with family 59936 is neither AF_INET(2) nor AF_INET6(10)",
    ],
    "nccl_versions": [
        f"{NCCL}init.cc:812 NCCL WARN Mismatched NCCL version detected : rank 0 version 22809 rank 1 version 22707",
        "[rank0]: Mismatched NCCL version detected : rank 1 version 22703 rank 0 version 22901",
        f"{NCCL}misc/socket.cc:50 NCCL WARN Message truncated : received 1024 bytes instead of 256",
    ],
    "nccl_shm": [
        f"{NCCL}misc/shmutils.cc:87 NCCL WARN Error: failed to extend /dev/shm/nccl-9p7f4x to 9637892 bytes, error: No space left on device (28)",
        f"{NCCL}misc/shmutils.cc:72 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-9p7 (size 96378), error: No space left on device (28)",
        f"{NCCL}misc/shmutils.cc:80 NCCL WARN Error while attaching to shared memory segment /dev/shm/nccl- (size 19281), error: No such file or directory (2)",
    ],
    "nccl_path": [
        f"{NCCL}ibvwrap.cc:262 NCCL WARN Call to ibv_modify_qp failed with 110 Connection timed out, on dev rocep1s0f0:1, curr state INIT, "
        "next state RTR, local GID index 3, local GID ::ffff:192.0.2.10, remote GID ::ffff:192.0.2.11",
        f"{NCCL}misc/ibvwrap.cc:187 NCCL WARN Call to ibv_modify_qp failed with error Invalid argument",
        f"{NCCL}transport/net_ib.cc:2013 NCCL WARN NET/IB: Got completion from peer 192.0.2.11<54862> with status=IBV_WC_RETRY_EXC_ERR(12) "
        f"opcode=IBV_WC_SEND(0) reqSize=0 vendor_err=129 req_type=Send {PEERS} hca rocep1s0f0",
        f"{NCCL}ib_plugin.c:1615 NCCL WARN NET/IB : Got completion from peer 192.0.2.11<54862> with status=12 opcode=0 len=0 vendor err 129 (Recv) {PEERS}",
        f"{NCCL}misc/socket.cc:484 NCCL WARN socketStartConnect: Connect to 192.0.2.11<36529> failed : No route to host",
        f"{NCCL}misc/socket.cc:538 NCCL WARN socketPollConnect: connect to 192.0.2.11<41801> returned Connection refused, exceeded error retry count (35)",
    ],
    "rpc_timeout": [
        f"{CORE}ray.exceptions.RayChannelTimeoutError: System error: Timed out waiting for object available to read. ObjectID: 00fc911a",
        f"{CORE}TimeoutError: RPC call to sample_tokens timed out.",
        f"{CORE}ray.exceptions.RayChannelTimeoutError: System error: If the execution is expected to take a long time, increase RAY_CGRAPH_get_timeout",
    ],
    "native_crash": [
        "Fatal Python error: Segmentation fault",
        "!!!!!!! Segfault encountered !!!!!!!",
        "[spark1:4711 :0:4711] Caught signal 11 (Segmentation fault: address not mapped to object at address 0x10)",
        "(RayWorkerWrapper pid=5, ip=192.0.2.11) *** SIGSEGV received at time=1746566409 on cpu 13 ***",
        "/start.sh: line 12:    87 Bus error               (core dumped) vllm serve /models/x",
        "vllm-head-1 exited with code 139",
        f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -11), shutting down executor.",
    ],
    "host_memory": [
        f"{WORKER}RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
        f"{CORE}MemoryError",
        f"{CORE}numpy._core._exceptions._ArrayMemoryError: Unable to allocate 8.00 GiB for an array",
        "terminate called after throwing an instance of 'std::bad_alloc'",
        f"{WORKER}OSError: [Errno 12] Cannot allocate memory",
    ],
    "vocabulary": [
        "(APIServer pid=1) openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab file",
        f"{CORE}RuntimeError: failed to download or load vocab file",
        "requests.exceptions.ConnectionError: HTTPSConnectionPool(host='openaipublic.blob.core.windows.net', port=443): Max retries exceeded",
    ],
    "invalid_json": [
        "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
        "(APIServer pid=1)   Value error, Expecting value: line 1 column 1 (char 0) [type=value_error, input_value=ArgsKwargs((), {})]",
        f"{CORE}json.decoder.JSONDecodeError: Unterminated string starting at: line 9 column 5 (char 210)",
    ],
    "weights_mismatch": [
        f"{CORE}AssertionError: Attempted to load weight (torch.Size([3600])) into parameter (torch.Size([3584]))",
        f"{CORE}AssertionError: Tried to load weights of size torch.Size([3096576, 1])to a parameter of size torch.Size([5376, 1152])",
        f"{WORKER}KeyError: 'layers.0.mlp.down_proj.weight_scale'",
        f"{WORKER}KeyError: 'model.layers.3.self_attn.attn.k_scale'",
        f"{WORKER}ValueError: too many values to unpack (expected 2)",
        f"{CORE}ValueError: There is no module or parameter named 'mtp.0.eh_proj' in DeepseekV4ForCausalLM",
        f"{CORE}    assert param_data.shape == loaded_weight.shape",
        f"{WORKER}RuntimeError: start (2048) + length (2048) exceeds dimension size (2048).",
    ],
    "engine_process_died": [
        "(APIServer pid=1) ERROR 11-20 10:00:00 [core_client.py:610] Engine core proc EngineCore_DP0 died unexpectedly, shutting down client.",
        "Engine core proc EngineCore died unexpectedly, shutting down client.",
        "RuntimeError: Process RustFrontend (PID: 740) died with exit code 1",
    ],
}


@pytest.mark.parametrize(("case", "line"), [pytest.param(c, line, id=f"{c}-{n}") for c, lines in LINES.items() for n, line in enumerate(lines)])
def test_a_line_has_the_class_and_the_case_of_its_cause(case: str, line: str) -> None:
    failure = parse(f"{line}\n")["failure"]
    assert failure is not None
    assert (failure["class"], failure["anchor"]) == (ROWS[case]["class"], f"docs/failures.md#{case}")
    assert "{" not in failure["remedy"]


def test_every_case_has_three_wordings() -> None:
    new = {name_of(row) for row in CATALOGUE if row.get("case")} | {"gpu_lost", "shm_full", "disk_full", "process_limit", "permission", "hub_rate_limited"}
    assert new <= set(LINES)
    assert all(len(lines) >= 3 for lines in LINES.values())


OTHERS: dict[str, str | None] = {
    "requests.exceptions.HTTPError: 429 Client Error: Too Many Requests for url: https://metrics.example/push": "unclassified",
    "[W socket.cpp:755] [c10d] The client socket cannot be initialized to connect to [::1]:29500 (errno: 99 - Cannot assign requested address)": None,
    "WARNING 11-20 10:00:00 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.": None,
    "/opt/x/_multiprocessing_helpers.py:46: UserWarning: [Errno 28] No space left on device.  joblib will operate in serial mode": None,
    "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.2.6 as it may crash.": None,
    f"{CORE}KeyError: 'messages'": "unclassified",
    "ValueError: you have exceeded the rate limit of this plugin": "config_error",
    f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: -9), shutting down executor.": "oom_killed",
    f"{CORE}Worker proc VllmWorker-1 died unexpectedly (exit code: 1), shutting down executor.": "worker_died",
    "exec /opt/entry.sh: permission denied": "toolchain",
    "FileNotFoundError: [Errno 2] No such file or directory: '/models/x/config.json'": "weights_missing",
    f"{NCCL}NCCL INFO NET/IB : Using [0]rocep1s0f0:1/RoCE [1]roceP2p1s0f0:1/RoCE [RO]; OOB enp1s0f0np0:192.0.2.10<0>": None,
    "NCCL INFO GPU Direct RDMA Disabled for HCA 0 'rocep1s0f0'": None,
    "WARNING 11-20 10:00:00 [envs.py:1712] Unknown vLLM environment variable detected: VLLM_USE_B12X_MOE": None,
    "INFO 11-20 10:00:00 [nvfp4.py:12] Using 'MARLIN' NvFp4 MoE backend out of potential backends: ['FLASHINFER_TRTLLM', 'MARLIN'].": None,
}


@pytest.mark.parametrize(("line", "name"), OTHERS.items())
def test_a_similar_line_is_not_of_a_new_class(line: str, name: str | None) -> None:
    failure = parse(f"{line}\n")["failure"]
    assert (failure["class"] if failure else None) == name


#: case -> (what its remedy has to name, what would be false in it)
TRUTHS = {
    "compile_failed": (("compile caches", "both nodes", "enforce-eager"), ("compiler", "gcc", "nvcc", "image")),
    "toolchain": (("image",), ("cache", "eager")),
    "weights_mismatch": (("checkpoint", "quantization"), ("Change the setting",)),
    "engine_process_died": (("exit code", "kernel log"), ("whole log",)),
    "arch_unsupported": (("sm_121", "image"), ("eager",)),
    "driver_too_old": (("driver", "nvidia-smi"), ("--gpus all",)),
    "driver_mismatch": (("Reboot",), ("--gpus all",)),
    "ptx_too_new": (("driver",), ("backend",)),
    "no_gpu": (("--gpus all",), ()),
    "gpu_lost": (("RMA", "unplug"), ("backend", "image")),
    "cuda_fault": (("backend",), ("RMA",)),
    "kernel_limits": (("backend", "sm_121"), ("gpu-memory-utilization",)),
    "shm_full": (("/dev/shm", "shm_size"), ("docker system df",)),
    "permission": (("writable",), ("space",)),
    "process_limit": (("pids", "nofile"), ("space",)),
    "hub_rate_limited": (("HF_HUB_OFFLINE", "models.yml"), ("mount",)),
    "address_not_local": (("ip -br addr", "VLLM_HOST_IP"), ("firewall",)),
    "nccl_interface": (("NCCL_SOCKET_IFNAME",), ("NCCL_DEBUG",)),
    "nccl_versions": (("same image",), ("NCCL_SOCKET_IFNAME",)),
    "nccl_path": (("MTU", "GID index"), ("NCCL_SOCKET_IFNAME",)),
    "native_crash": (("crashed",), ("more memory",)),
    "cutlass_dsl": (("nvidia-cutlass-dsl[cu13]==4.5.0",), ("cache",)),
    "unknown_user": (("/etc/passwd",), ("module",)),
}


@pytest.mark.parametrize("case", TRUTHS)
def test_a_remedy_fits_its_cause(case: str) -> None:
    """In each of its two forms."""
    needed, false = TRUTHS[case]
    forms = [ROWS[case]["remedy"], ROWS[case].get("remedy_plain") or ROWS[case]["remedy"]]
    assert all(any(word in form for form in forms) for word in needed)
    assert [word for word in false for form in forms if word in form] == []


def test_the_device_and_the_gids_of_nccl_stay_in_the_sentence() -> None:
    failure = parse(LINES["nccl_path"][2] + "\n[rank0]: torch.distributed.DistBackendError: NCCL error in: ProcessGroupNCCL.cpp:1, remote error\n")["failure"]
    assert failure["found"] == {"device": "rocep1s0f0", "local": "::ffff:192.0.2.10", "remote": "::ffff:192.0.2.11"}
    assert "rocep1s0f0" in failure["line"]
    assert "from ::ffff:192.0.2.10 to ::ffff:192.0.2.11" in failure["remedy"]


def test_the_cause_of_a_compilation_outranks_the_compiler_that_reports_it() -> None:
    for line, case in (("ptxas fatal   : Value 'sm_121a' is not defined", "arch_unsupported"), ("KeyError: 'getpwuid(): uid not found: 1001'", "unknown_user")):
        failure = parse(f"{CORE}{line}\n{CORE}torch._inductor.exc.InductorError: RuntimeError: failed\n")["failure"]
        assert failure["anchor"] == f"docs/failures.md#{case}"


def test_a_crash_in_native_code_outranks_the_tail_and_is_not_overruled_by_a_later_kill() -> None:
    log = (
        "Fatal Python error: Segmentation fault\n"
        "CRITICAL 11-20 10:00:00 [core_client.py:361] Got fatal signal from worker processes, shutting down. See stack trace above for root cause issue.\n"
        "Killed\n"
    )
    failure = parse(log)["failure"]
    assert (failure["class"], failure["anchor"]) == ("worker_died", "docs/failures.md#native_crash")


PLATFORMS = re.compile(r"HIP|ROCm|HSA_|\bTPU|XLA|Gaudi|Neuron|\bXPU|\bNPU|MQLLMEngine|AsyncLLMEngine|RPCServer|slurm|srun")


def test_the_catalogue_is_about_v1_engines_on_cuda_and_cpu() -> None:
    for row in [*CATALOGUE, *BENIGN]:
        assert PLATFORMS.search(json.dumps(row)) is None, row


FOLDERS = ("bootlogs", "bootlogs2", "recorded", "gpu")


def shared() -> list[Any]:
    """List (folder, log, expectation) of every shared log of an engine in scope."""
    out: list[Any] = []
    for folder in FOLDERS if SHARED is not None else ():
        assert SHARED is not None
        samples = SHARED / "samples" / folder
        outside = samples / "OUT-OF-SCOPE.txt"
        skip = set(outside.read_text(encoding="utf-8").split()) if outside.exists() else set()
        expected = json.loads((samples / "expected.json").read_text(encoding="utf-8"))
        out += [pytest.param(samples / name, want, id=f"{folder}/{name}") for name, want in sorted(expected.items()) if name not in skip]
    return out


#: Logs that are ready or still starting, and hold lines of an earlier boot, of a peer or of another service that failed, or of a stop.
FAILED_BEFORE = ("120-", "121-", "138-", "147-", "k1-head-after", "k4-head-sigkill-under-load-head", "k6-head-child-sigkill-worker")
HEALTHY = [case for case in shared() if case.values[1]["class"] is None and not case.values[0].name.startswith(FAILED_BEFORE)]


@needs_shared
@pytest.mark.parametrize(("log", "want"), HEALTHY)
def test_a_healthy_boot_has_no_failure(log: Path, want: dict[str, Any]) -> None:
    facts = parse(log.read_bytes())
    assert facts["state"] in want["state"]
    assert facts["failure"] is None


OWN = [FIXTURES / "head.log", FIXTURES / "worker.log"]


@pytest.mark.parametrize("log", [*OWN, *(case.values[0] for case in HEALTHY)], ids=lambda log: log.name)
def test_no_line_of_a_healthy_boot_matches_a_row(log: Path) -> None:
    """Line by line and at every level: the widest net that the patterns can be."""
    hits = []
    for line in log.read_text(encoding="utf-8", errors="replace").splitlines():
        for row in CATALOGUE:
            if any(n in line for n in row["needles"]) and not any(u in line for u in row.get("unless", ())):
                hits += [(name_of(row), line[:200]) for pattern in row["patterns"] if re.search(pattern, line)]
    assert hits == []
