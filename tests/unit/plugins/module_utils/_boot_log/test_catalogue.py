"""The failure catalogue: every class is found by its own wording, fills its remedy, is linear and is documented."""

# ruff: noqa: E501 (log lines are as long as vLLM prints them)

from __future__ import annotations

import re
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import BENIGN, CATALOGUE, ORDER, name_of
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import parse

ROOT = Path(__file__).resolve().parents[5]
NAMES = [name_of(e) for e in CATALOGUE]


def test_every_row_has_its_place_in_the_order() -> None:
    assert tuple(NAMES) == ORDER
    assert len(set(NAMES)) == len(NAMES)


def test_the_cases_of_a_class_stand_next_to_each_other() -> None:
    """The order ranks classes, and cases within a class; only symptoms of a class stand apart, at the end."""
    ranks = [e["class"] for e in CATALOGUE if e["kind"] != "tail"]
    assert sum(1 for a, b in zip(ranks, ranks[1:], strict=False) if a != b) + 1 == len(set(ranks))


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_a_class_is_found_by_its_example(entry: dict[str, Any]) -> None:
    """Bare, and as a record of a worker."""
    for prefix in ("", "(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:953] "):
        facts = parse(f"{prefix}{entry['example']}\n")
        assert facts["state"] == "failed"
        assert facts["failure"]["class"] == entry["class"]
        assert facts["failure"]["line_number"] == 1
        assert facts["failure"]["anchor"] == f"docs/failures.md#{name_of(entry)}"
        assert "{" not in facts["failure"]["remedy"]
        assert len(facts["failure"]["remedy"]) > 30


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_a_class_is_not_named_on_an_info_line(entry: dict[str, Any]) -> None:
    """Only errors and lines without a level are tested, except the lines of the kernel and of NCCL."""
    facts = parse(f"INFO 01-01 00:00:00 [utils.py:1] {entry['example']}\n")
    assert (facts["failure"] is None) != bool(entry.get("any_level"))


@pytest.mark.parametrize("benign", BENIGN, ids=[b["name"] for b in BENIGN])
def test_a_look_alike_is_counted_and_is_not_a_failure(benign: dict[str, str]) -> None:
    """As printed, and twice."""
    facts = parse(f"{benign['example']}\n{benign['example']}\n")
    assert facts["failure"] is None
    assert facts["state"] in ("unknown", "starting")
    assert facts["benign"][benign["name"]] == 2


MORE = {
    "0.8.0 says GB": (
        "ValueError: To serve at least one request with the models's max seq len (8192), (2.00 GB KV cache is needed, which is larger than the available KV cache memory (1.00 GB).",
        "kv_too_small",
    ),
    "0.8.5 without the number": (
        "ValueError: To serve at least one request with the models's max seq len (8192), (2.00 GiB KV cache is needed, which is larger than the available KV cache memory (1.00 GiB). Based on the available memory, Try increasing",
        "kv_too_small",
    ),
    "auto-fit fails": ("ValueError: Cannot auto-fit max_model_len: not even one block fits", "kv_no_memory"),
    "CPU node": (
        "ValueError: Available memory on node 0 (11.08/17.34 GiB) on startup is less than desired CPU memory utilization (0.92, 15.95 GiB).",
        "startup_free_memory",
    ),
    "an older wording": ("ValueError: Free memory on device (31.44/47.38 GiB) on startup is less than the engine needs", "startup_free_memory"),
    "mamba assert": ("    assert num_cache_lines >= batch", "mamba_blocks"),
    "completion queue": ("NCCL WARN Call to ibv_create_cq failed with error Cannot allocate memory", "rdma_register"),
    "queue pair": ("(Worker pid=3) host:3:3 [0] misc/ibvwrap.cc:1 NCCL WARN Call to ibv_create_qp failed with error Cannot allocate memory", "rdma_register"),
    "OOM in dmesg": ("[12345.678] Out of memory: Killed process 4711 (VLLM::EngineCor) total-vm:1kB", "oom_killed"),
    "a unit": ("Aug 19 18:34:29 spark1 systemd[1]: vllm.service: Main process exited, code=killed, status=9/KILL", "oom_killed"),
    "a unit, by its status": ("vllm@1.service: Main process exited, code=exited, status=137/n/a", "oom_killed"),
    "another unit": ("Aug 19 18:34:29 spark1 systemd[1]: NetworkManager.service: Main process exited, code=killed, status=9/KILL", None),
    "earlyoom": ('Aug 19 18:34:29 spark1 earlyoom[8]: sending SIGTERM to process 47 uid 0 "VLLM::Worker": badness 900, VmRSS 97000 MiB', "oom_killed"),
    "earlyoom, of something else": ('Aug 19 18:34:29 spark1 earlyoom[8]: sending SIGTERM to process 47 uid 0 "firefox": badness 900, VmRSS 9000 MiB', None),
    "systemd-oomd": (
        "Aug 19 18:34:29 spark1 systemd-oomd[9]: Killed /system.slice/docker-1f.scope due to memory pressure for /system.slice being 90.00% > 50.00% for > 20s",
        "oom_killed",
    ),
    "Ray's memory monitor": ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.", "oom_killed"),
    "Ray's node manager": (
        "(raylet) node_manager.cc:1: 2 Workers (tasks / actors) killed due to memory pressure (OOM), 0 Workers crashed",
        "oom_killed",
    ),
    "what Ray says of a worker that it killed": (
        "Memory on the node (IP: 192.0.2.1, ID: 7) where the task (actor ID: 0, name=x, pid=3) was running was 12.49GB / 13.15GB (0.95), which exceeds the memory usage threshold of 0.95. Ray killed this worker (ID: 7)",
        "oom_killed",
    ),
    "shell": ("/start.sh: line 12:    87 Killed                  vllm serve /models/x", "oom_killed"),
    "CUDA's driver": ("RuntimeError: CUDA driver error: out of memory", "cuda_oom"),
    "the allocator of the sleep mode": ("RuntimeError: CUDA Error: out of memory at /workspace/csrc/cumem_allocator.cpp:163", "cuda_oom"),
    "Triton without memory": ("RuntimeError: Triton Error [CUDA]: out of memory", "cuda_oom"),
    "Triton": ("RuntimeError: Triton Error [CUDA]: operation not permitted", "cuda_fault"),
    "the store's peer": (
        "[rank1]:[E101 00:00:00.1 ProcessGroupNCCL.cpp:1] Process group watchdog thread terminated with exception: Failed to recv, got 0 bytes. Connection was likely closed.",
        "peer_lost",
    ),
    "no vLLM in the image": ('docker: Error response from daemon: failed to create shim task: exec: "vllm": executable file not found in $PATH', "toolchain"),
    "a library that the image lacks": (
        "python3: error while loading shared libraries: /opt/lib/libpython3.11.so.1.0: cannot open shared object file: No such file or directory",
        "toolchain",
    ),
    "no entrypoint in the image": (
        'docker: failed to create task: runc create failed: unable to start container process: error during container init: exec: "/opt/entry.sh": stat /opt/entry.sh: no such file or directory',
        "toolchain",
    ),
    "an entrypoint that may not run": ("exec /opt/entry.sh: permission denied", "toolchain"),
    "torch for CPUs": ("AssertionError: Torch not compiled with CUDA enabled", "toolchain"),
    "torch cannot ask NVML why": (
        'RuntimeError: NVML_SUCCESS == r INTERNAL ASSERT FAILED at "/w/c10/cuda/CUDACachingAllocator.cpp":1, please report a bug to PyTorch.',
        "cuda_oom",
    ),
    "Ray lost a node": (
        "(raylet) The node with node id: 0a1b and address: 10.0.0.9 and node name: 10.0.0.9 has been marked dead because the detector has missed too many heartbeats from it.",
        "peer_lost",
    ),
    "no vLLM in the path": ("/run.sh: line 34: vllm: command not found", "toolchain"),
    "engines that did not report": ("TimeoutError: Timed out waiting for engines to send initial message on input socket.", "rpc_timeout"),
    "sampler warm-up": ("RuntimeError: CUDA out of memory occurred when warming up sampler with 256 dummy requests.", "cuda_oom"),
    "an RPC that is too large": ("grpc.RpcError: RESOURCE_EXHAUSTED: Received message larger than max (10 vs. 4)", "unclassified"),
    "a library of CUDA without memory": ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "cuda_oom"),
    "gloo has no such interface": (
        "RuntimeError: [/build/gloo/transport/tcp/device.cc:84] ifa != nullptr. Unable to find address for: enp1s0f0np0",
        "rendezvous",
    ),
    "no cluster of Ray": ("ConnectionError: Could not find any running Ray instance. Please specify the one to connect to", "rendezvous"),
    "the head of Ray": ("ray.exceptions.RaySystemError: System error: Failed to connect to GCS at address 192.0.2.1:6379", "rendezvous"),
    "placement group": (
        "ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds. See `ray status`",
        "rendezvous",
    ),
    "placement groups of data parallel engines": (
        "ValueError: Not enough resources to allocate 4 placement groups, only created 3 placement groups.",
        "rendezvous",
    ),
    "gloo mesh": ("RuntimeError: Gloo connectFullMesh failed with [gloo/transport/tcp/pair.cc:144] no error", "rendezvous"),
    "c10d timeout": ("[E socket.cpp:957] [c10d] The client socket has timed out after 60s while trying to connect to (10.1.16.222, 29400).", "rendezvous"),
    "master port": (
        "torch.distributed.DistNetworkError: The server socket has failed to listen on any local network address. port: 29501, useIpv6: false, code: -98, name: EADDRINUSE, message: address already in use",
        "addr_in_use",
    ),
    "port of the front-end in Rust": (
        "(RustFrontend pid=3) ERROR 09-01 00:00:00 [main.rs:64] failed to bind listener: Address already in use (os error 98)",
        "addr_in_use",
    ),
    "port of a ZeroMQ socket": ("zmq.error.ZMQError: Address already in use (addr='tcp://192.0.2.1:5600')", "addr_in_use"),
    "uvicorn port": ("ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', 8000): address already in use", "addr_in_use"),
    "a published port": (
        "docker: Error response from daemon: driver failed on endpoint x (1): Bind for 0.0.0.0:8000 failed: port is already allocated.",
        "addr_in_use",
    ),
    "a published port, later": (
        "Error response from daemon: failed to bind host port for 0.0.0.0:8000:172.17.0.2:8000/tcp: address already in use",
        "addr_in_use",
    ),
    "a published port, in podman": ("Error: rootlessport listen tcp 0.0.0.0:8000: bind: address already in use", "addr_in_use"),
    "the front-end in Rust": ("error: unexpected argument '--no-such-flag' found", "bad_argument"),
    "its value": ("error: invalid value 'x' for '--port <PORT>': invalid digit found in string", "bad_argument"),
    "api_server.py": ("api_server.py: error: argument --max-model-len: invalid int value: 'x'", "bad_argument"),
    "a tool parser of another version": ("(APIServer pid=1) KeyError: 'invalid tool call parser: nosuch (chose from { a, b })'", "bad_argument"),
    "a reasoning parser of another version": ("KeyError: \"Reasoning parser 'nosuch' not found. Available parsers: a, b\"", "bad_argument"),
    "offline": ("huggingface_hub.errors.LocalEntryNotFoundError: Cannot find an appropriate cached snapshot folder", "weights_missing"),
    "no such repository": ("ValueError: Invalid repository ID or local directory specified: '/models/absent'. Please verify", "weights_missing"),
    "no config": ("OSError: /models/x does not appear to have a file named config.json. Checkout", "weights_missing"),
    "no weights": ("RuntimeError: Cannot find any model weights with `/models/x`", "weights_missing"),
    "no weights, as transformers says it": (
        "OSError: Error no file named pytorch_model.bin, model.safetensors found in directory /models/x.",
        "weights_missing",
    ),
    "no tokenizer in a folder": ("ValueError: No tokenizer file found in directory: /models/x", "weights_missing"),
    "a pointer of git-lfs": ("_pickle.UnpicklingError: invalid load key, 'v'.", "weights_corrupt"),
    "half an archive": ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "weights_corrupt"),
    "gated, first line": ("OSError: You are trying to access a gated repo.", "weights_missing"),
    "the hub wants a token": (
        "requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://huggingface.co/org/model/resolve/main/config.json",
        "weights_missing",
    ),
    "the hub's new client": ("httpx.HTTPStatusError: Client error '403 Forbidden' for url 'https://huggingface.co/org/model'", "weights_missing"),
    "another server wants a token": ("requests.exceptions.HTTPError: 401 Client Error: Unauthorized for url: https://metrics.example/push", "unclassified"),
    "the hub is not reached": (
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /o/m/resolve/main/config.json",
        "weights_missing",
    ),
    "the hub is not reached, in another exception": (
        "requests.exceptions.ConnectTimeout: (MaxRetryError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Max retries exceeded with url: /o\"), '(Request ID: 1)')",
        "weights_missing",
    ),
    "another host is not reached": (
        "urllib3.exceptions.MaxRetryError: HTTPSConnectionPool(host='metrics.example', port=443): Max retries exceeded with url: /push",
        "unclassified",
    ),
    "no such revision": ("huggingface_hub.errors.RevisionNotFoundError: 404 Client Error.", "weights_missing"),
    "no tokenizer": ("OSError: Can't load tokenizer for '/models/x'. If you were trying to load it from", "weights_missing"),
    "gated": ("OSError: You are trying to access a gated repo. Cannot access gated repo for url https://hf", "weights_missing"),
    "a shard is gone": ('FileNotFoundError: No such file or directory: "/models/x/model-00002-of-00004.safetensors"', "weights_missing"),
    "NCCL peer": (
        "torch.distributed.DistBackendError: NCCL error in: x.cpp:1, remote process exited or there was a network error, NCCL version 2.27.3",
        "peer_lost",
    ),
    "unknown model": ("ValueError: Model architectures ['NewForCausalLM'] are not supported for now. Supported architectures: []", "arch_unsupported"),
    "pydantic wraps it": ("  Value error, Model architectures ['NewForCausalLM'] are not supported for now.", "arch_unsupported"),
    "unknown to transformers": (
        "  Value error, The checkpoint you are trying to load has model type `new` but Transformers does not recognize this architecture. This",
        "arch_unsupported",
    ),
    "compiler too old for the GPU": ("nvcc fatal   : Unsupported gpu architecture 'compute_121a'", "arch_unsupported"),
    "PTX newer than the driver": ("torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.", "arch_unsupported"),
    "shared memory of the GPU": (
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 114688, Hardware limit: 101376.",
        "arch_unsupported",
    ),
    "kernel left out of the build": ("AttributeError: '_OpNamespace' '_C' object has no attribute 'some_fp4_quant'", "arch_unsupported"),
    "JIT for other GPUs only": ("RuntimeError: No supported CUDA architectures found for major versions [10].", "arch_unsupported"),
    "JIT without a source for the GPU": (
        "RuntimeError: Assertion error (p.hpp:69): Failed to open: /x/deep_gemm/include/impls/sm121_fp8_logits.cuh",
        "arch_unsupported",
    ),
    "CuTe for other GPUs": ("cutlass.cute.common.OpError: OpError: expects arch to be one of ['sm_120a'], but got Arch.sm_121a", "arch_unsupported"),
    "CUTLASS": ("RuntimeError: [FP4 gemm Runner] Failed to initialize cutlass FP4 gemm. Error: Error Internal", "arch_unsupported"),
    "a kernel left out": ("NotImplementedError: No compiled nvfp4 quantization kernel for SM 121. Recompile with CUDA >= 12.9.", "arch_unsupported"),
    "a multiplication left out": (
        "RuntimeError: No compiled int8 scaled_mm for a compute capability less than CUDA device capability: 121",
        "arch_unsupported",
    ),
    "a quantization for newer GPUs": (
        "ValueError: The quantization method modelopt_fp4 is not supported for the current GPU. Minimum capability: 100. Current capability: 90.",
        "arch_unsupported",
    ),
    "a kernel that refuses the device": ("RuntimeError: FlashMLA Sparse is not supported on this device", "arch_unsupported"),
    "a kernel that is passed over": ("ERROR 01-01 00:00:00 [f.py:1] FlashMLA is not supported on this device, using Triton", None),
    "JIT for no such GPU": ("RuntimeError: Assertion error (csrc/jit/runtime.hpp:67): Unsupported architecture", "arch_unsupported"),
    "DeepGEMM for other GPUs": (
        "RuntimeError: Assertion error (/workspace/.deps/deepgemm-src/csrc/apis/layout.hpp:60): Unknown SF transformation",
        "arch_unsupported",
    ),
    "Triton's types": ('triton.compiler.errors.CompilationError: at 1:0: ValueError("type fp8e4nv not supported in this architecture.")', "arch_unsupported"),
    "a library for newer GPUs": ("RuntimeError: FlashInfer requires GPUs with sm75 or higher", "arch_unsupported"),
    "a type that a GPU lacks is a setting": ("ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0.", "config_error"),
    "no kernel": ("ValueError: Failed to find a kernel that can implement the ScaledMM linear layer.", "arch_unsupported"),
    "Triton's assembler": ("triton.runtime.errors.PTXASError: PTXAS error: Internal Triton PTX codegen error", "arch_unsupported"),
    "Triton's assembler, cut": (
        "subprocess.CalledProcessError: Command '['/venv/triton/backends/nvidia/bin/ptxas', '--gpu-name=sm_121a']' returned non-zero exit",
        "arch_unsupported",
    ),
    "no MoE backend": ("NotImplementedError: No NvFp4 MoE backend supports the deployment configuration.", "arch_unsupported"),
    "an MoE backend that was asked for": (
        "ValueError: Mxfp4 MoE backend 'X' does not support the deployment configuration since kernel does not support current device.",
        "arch_unsupported",
    ),
    "an MoE backend and its activation": (
        "ValueError: Mxfp4 MoE backend 'X' does not support the deployment configuration since kernel does not support Y.",
        "config_error",
    ),
    "an attention backend for other GPUs": (
        "ValueError: Selected backend X is not valid for this configuration. Reason: ['compute capability not supported']",
        "arch_unsupported",
    ),
    "an attention backend and its head": (
        "ValueError: Selected backend X is not valid for this configuration. Reason: ['head_size not supported']",
        "config_error",
    ),
    "GGUF of a new model": ("ValueError: GGUF model with architecture newmoe is not supported yet.", "arch_unsupported"),
    "an image for another CPU": ("exec /opt/venv/bin/vllm: exec format error", "arch_unsupported"),
    "an image for another CPU, in podman": ("exec container process `/opt/venv/bin/vllm`: Exec format error", "arch_unsupported"),
    "an image for another CPU, in an old docker": ("standard_init_linux.go:228: exec user process caused: exec format error", "arch_unsupported"),
    "no image for this CPU": ("no matching manifest for linux/arm64/v8 in the manifest list entries", "arch_unsupported"),
    "world size": ("ValueError: World size (2) is larger than the number of available GPUs (1) in this node.", "no_gpu"),
    "ranks of tensor parallelism": (
        "  Value error, Tensor parallel size (2) cannot be larger than the number of available GPUs (1). [type=value_error, input_value=1]",
        "no_gpu",
    ),
    "Ray has fewer GPUs": ("ValueError: The number of required GPUs exceeds the total number of available GPUs in the placement group.", "no_gpu"),
    "a node of Ray without GPU": ("ValueError: Current node has no GPU available. current_node_resource={'CPU': 20.0}.", "no_gpu"),
    "more ranks than GPUs": ("torch.AcceleratorError: CUDA error: invalid device ordinal", "no_gpu"),
    "more engines than GPUs": ("AssertionError: DP adjusted local rank 1 is out of bounds. ", "no_gpu"),
    "a GPU that does not answer": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before? Error 802: system not yet initialized",
        "no_gpu",
    ),
    "a GPU of somebody else": ("torch.AcceleratorError: CUDA error: CUDA-capable device(s) is/are busy or unavailable", "no_gpu"),
    "ranks of a node": ("AssertionError: local_world_size (4) must be less than or equal to the number of visible devices (1).", "no_gpu"),
    "old driver": ("RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please", "no_gpu"),
    "driver and library": (
        "RuntimeError: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination",
        "no_gpu",
    ),
    "the container runtime": ("nvidia-container-cli: initialization error: nvml error: driver not loaded: unknown", "no_gpu"),
    "the CDI devices": ("docker: Error response from daemon: CDI device injection failed: unresolvable CDI devices nvidia.com/gpu=all", "no_gpu"),
    "docker knows no such runtime": ("docker: Error response from daemon: unknown or invalid runtime name: nvidia.", "no_gpu"),
    "the runtime is not installed": (
        'Error response from daemon: failed to create task for container: exec: "nvidia-container-runtime": executable file not found in $PATH',
        "no_gpu",
    ),
    "device type": ("RuntimeError: Failed to infer device type, please set the environment variable", "no_gpu"),
    "Xid": ("[  99.1] NVRM: Xid (PCI:000f:01:00): 13, pid=4711, Graphics Exception", "cuda_fault"),
    "CUDA's driver, a fault": ("RuntimeError: CUDA driver error: device not ready", "cuda_fault"),
    "a library's own check": ("CUDA error (/workspace/.deps/flash-attn-src/api.cpp:697): invalid configuration argument", "cuda_fault"),
    "CUDA's driver, in a JIT": ("RuntimeError: CUDA driver error (/opt/x/csrc/jit/handle.hpp:141): 700 (CUDA_ERROR_ILLEGAL_ADDRESS)", "cuda_fault"),
    "a library of CUDA": ("RuntimeError: cuDNN error: CUDNN_STATUS_EXECUTION_FAILED", "cuda_fault"),
    "a kernel's own check": ("Failed: Cuda error /build/csrc/custom_all_reduce.cuh:455 'invalid argument'", "cuda_fault"),
    "a kernel's own check, memory": ("Failed: Cuda error /build/csrc/custom_all_reduce.cuh:455 'out of memory'", "cuda_oom"),
    "hint only": ("Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.", None),
    "JIT build": ("RuntimeError: Ninja build failed. Ninja output:", "toolchain"),
    "JIT build without headers": (
        "subprocess.CalledProcessError: Command '['/usr/bin/gcc', '/tmp/t/main.c', '-shared', '-o', '/tmp/t/x.so']' returned non-zero exit status 1.",
        "toolchain",
    ),
    "a library of CUDA that the image lacks": ("OSError: libcudart.so.12: cannot open shared object file: No such file or directory", "toolchain"),
    "a kernel's library": ("RuntimeError: Sparse Attention Indexer CUDA op requires DeepGEMM to be installed.", "toolchain"),
    "JIT build, its end": ("(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:880] ninja: build stopped: subcommand failed.", "toolchain"),
    "JIT build without ninja": ("FileNotFoundError: [Errno 2] No such file or directory: 'ninja'", "toolchain"),
    "JIT build without CUDA": ("RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist", "toolchain"),
    "Python finds no vLLM": ("/opt/venv/bin/python3.12: No module named vllm", "toolchain"),
    "a plain shell finds no vLLM": ("/bin/sh: 1: vllm: not found", "toolchain"),
    "a shell may not run it": ("/bin/sh: 1: /opt/venv/bin/vllm: Permission denied", "toolchain"),
    "an exception whose name begins small": ("socket.gaierror: [Errno -2] Name or service not known", "unclassified"),
    "an exception whose name is no error": ("subprocess.TimeoutExpired: Command '['nvidia-smi']' timed out after 10 seconds", "unclassified"),
    "an exception of a binding": ("fabric._bindings.fabricBackendError: FABRIC_ERR_BACKEND", "unclassified"),
    "a class of transformers that lost an attribute": (
        "AttributeError: ExampleTokenizer has no attribute all_tokens_extended. Did you mean: 'all_tokens'?",
        "toolchain",
    ),
    "an object of transformers that lost an attribute": ("AttributeError: 'ExampleConfig' object has no attribute 'rope_theta'", "toolchain"),
    "a module that lost an attribute": ("AttributeError: module 'triton.language' has no attribute 'example'", "toolchain"),
    "an attribute of vLLM's own": ("AttributeError: 'ExampleRunner' object has no attribute 'example'", "unclassified"),
    "a function of another version": ("TypeError: varlen_func() got an unexpected keyword argument 'num_splits'", "toolchain"),
    "a tokenizer file of a newer library": ("Exception: data did not match any variant of untagged enum ModelWrapper at line 7 column 3", "toolchain"),
    "a part of cuDNN of another version": ("RuntimeError: cuDNN error: CUDNN_STATUS_SUBLIBRARY_VERSION_MISMATCH", "toolchain"),
    "another error of cuDNN": ("RuntimeError: cuDNN error: CUDNN_STATUS_NOT_INITIALIZED", "cuda_fault"),
    "a library to install": (
        "RuntimeError: DeepGEMM backend is not available or outdated. Please install or update the `deep_gemm` to a newer version",
        "toolchain",
    ),
    "JIT build without nvcc": (
        "(Worker_TP1 pid=7) ERROR 01-01 00:00:00 [multiproc_executor.py:880] /bin/sh: 1: :/usr/local/cuda/bin/nvcc: not found",
        "toolchain",
    ),
    "a model without an implementation": (
        "  Value error, ExampleForCausalLM has no vLLM implementation and the Transformers implementation is not compatible with vLLM.",
        "arch_unsupported",
    ),
    "CUTLASS at run time": ("RuntimeError: [FP4 gemm Runner] Failed to run cutlass FP4 gemm on sm120. Error: Error Internal", "arch_unsupported"),
    "a kernel that was not built for CUDA": (
        "NotImplementedError: Could not run '_C::example_prepack' with arguments from the 'CUDA' backend.",
        "arch_unsupported",
    ),
    "a head that no kernel has": ("RuntimeError: Check failed: (false) is false: Unsupported max_mma_kv: 0", "arch_unsupported"),
    "CuTe's compiler": ("cutlass.base_dsl.common.DSLRuntimeError: DSLRuntimeError: compilation failed for sm_121a", "arch_unsupported"),
    "a GPU index that does not exist": (
        'RuntimeError: device >= 0 && device < num_gpus INTERNAL ASSERT FAILED at "/w/CUDAContext.cpp":52, please report a bug. device=1, num_gpus=1',
        "no_gpu",
    ),
    "a GPU index that NVML does not know": ("pynvml.NVMLError_InvalidArgument: Invalid Argument", "no_gpu"),
    "the hub's new client without a network": ("httpx.ConnectError: [Errno -3] Temporary failure in name resolution", "weights_missing"),
    "a segment that its owner took away": ("FileNotFoundError: [Errno 2] No such file or directory: '/psm_0a1b2c3d'", None),
    "an exception whose name goes on": ("vllm.third_party.pynvml.NVMLError_NotSupported: Not Supported", "unclassified"),
    "an exception of another name": ("torch._dynamo.exc.Unsupported: Attempted to call function marked as skipped", "toolchain"),
    "inductor": ("torch._inductor.exc.InductorError: RuntimeError: Failed to run", "toolchain"),
    "NCCL through cupy": (
        "cupy_backends.cuda.libs.nccl.NcclError: NCCL_ERROR_SYSTEM_ERROR: unhandled system error (run with NCCL_DEBUG=INFO for details)",
        "nccl_error",
    ),
    "NCCL in a core worker of Ray": (
        "[2026-07-11 15:20:41,680 E 67 67] logging.cc:97: Unhandled exception: St13runtime_error. what(): NCCL Error 5: invalid usage",
        "nccl_error",
    ),
    "nccl system": ("ncclSystemError: System call (e.g. socket, malloc) or external library call failed", "nccl_error"),
    "start timeout": ("RuntimeError: Timed out waiting for engine core processes to start. This is often caused by slow weight loading", "rpc_timeout"),
    "front-end": ("RuntimeError: Did not receive response from front-end process within 5 minutes", "rpc_timeout"),
    "gloo's own time limit": (
        "RuntimeError: [/build/gloo/transport/tcp/unbound_buffer.cc:81] Timed out waiting 1800000ms for recv operation to complete",
        "rpc_timeout",
    ),
    "gloo's time limit, ignored": (
        "ERROR 01-01 00:00:00 [parallel_state.py:1] Error ignored in is_in_the_same_node: [/build/gloo/transport/tcp/unbound_buffer.cc:1] Timed out waiting 1ms for send operation",
        None,
    ),
    "pydantic": ("pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig", "config_error"),
    "asyncio noise": ("asyncio.exceptions.CancelledError", None),
    "native crash": ("Fatal Python error: Segmentation fault", "worker_died"),
    "an actor of an old Ray": ("RayActorError: The actor died unexpectedly before finishing this task.", "worker_died"),
    "Ray's node agent": (
        "(raylet, ip=10.0.0.2) A worker died or was killed while executing a task by an unexpected system error. There are some potential root causes. (1) The process is killed by SIGKILL by OOM killer",
        "worker_died",
    ),
    "signal seen by Ray": ("(RayWorkerWrapper pid=5, ip=10.0.0.2) *** SIGSEGV received at time=1746566409 on cpu 131 ***", "worker_died"),
    "the executor of Ray": ("ERROR 01-01 00:00:00 [ray_executor_v2.py:1] RayWorkerProc rank=[2] died unexpectedly, shutting down executor.", "worker_died"),
    "a shell without core dumps": ("Illegal instruction", "worker_died"),
    "a script of it": ("/start.sh: line 12:    87 Segmentation fault      vllm serve /models/x", "worker_died"),
    "signal": ("CRITICAL 03-27 22:19:40 [core_client.py:319] Got fatal signal from worker processes, shutting down.", "worker_died"),
    "a front-end process": ("RuntimeError: Process RustFrontend (PID: 740) died with exit code 1", "engine_failed"),
    "what another container waits for": ("dependency failed to start: container vllm-head-1 exited (1)", "engine_failed"),
    "what the engine says of its worker": (
        "RuntimeError: Worker failed with error 'odd number', please check the stack trace above for the root cause",
        "engine_failed",
    ),
    "what it says of a worker without memory": (
        "RuntimeError: Worker failed with error 'CUDA out of memory. Tried to allocate 1 GiB.', please check the stack trace above for the root cause",
        "cuda_oom",
    ),
    "0.28 tail": (
        "RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}, failed frontend proc(s): {}",
        "engine_failed",
    ),
}


@pytest.mark.parametrize(("line", "name"), MORE.values(), ids=MORE.keys())
def test_other_wordings_of_a_class(line: str, name: str | None) -> None:
    """Of other versions and backends."""
    failure = parse(line + "\n")["failure"]
    assert (failure["class"] if failure else None) == name


def test_the_message_of_a_validation_error_is_its_second_line() -> None:
    """The first only counts the errors."""
    failure = parse(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for VllmConfig\n"
        "  Value error, Total number of attention heads (4) must be divisible by tensor parallel size (8). [type=value_error]\n"
    )["failure"]
    assert failure["class"] == "config_error"
    assert "must be divisible" in failure["remedy"]
    assert failure["line_number"] == 2


REMEDIES = {
    "estimate": ("kv_too_small", "54432"),
    "free memory": ("startup_free_memory", "31.44"),
    "model limit": ("context_too_long", "2048"),
    "path": ("weights_missing", "/models/absent"),
    "flag": ("bad_argument", "--no-such-flag"),
    "peer": ("peer_lost", "10.77.0.1"),
    "module": ("toolchain", "compressed_tensors"),
}


@pytest.mark.parametrize(("name", "figure"), REMEDIES.values(), ids=REMEDIES.keys())
def test_a_remedy_carries_the_figure_of_the_line(name: str, figure: str) -> None:
    """The one thing to change, with its value."""
    entry = next(e for e in CATALOGUE if name_of(e) == name)
    assert figure in parse(entry["example"] + "\n")["failure"]["remedy"]


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_a_needle_is_in_every_line_that_a_pattern_can_match(entry: dict[str, Any]) -> None:
    """Each alternative of the examples above reaches its pattern only through a needle; an entry without one would never run."""
    assert entry["needles"]
    assert any(n in entry["example"] for n in entry["needles"])


@pytest.mark.parametrize("entry", CATALOGUE, ids=NAMES)
def test_a_pattern_takes_linear_time(entry: dict[str, Any]) -> None:
    """Doubling a hostile line may double the time, not square it."""
    for pattern in [*entry["patterns"], *entry.get("details", [])]:
        rx = re.compile(pattern)
        assert re.search(r"\([^()]*[+*][^()]*\)[+*]", pattern) is None
        for piece in (entry["example"], "a" * 20, "(" * 20, "Error: ", "memory (1", "TCPStore ", "0.0"):
            line = piece * (60000 // len(piece))
            began = time.perf_counter()
            rx.search(line)
            assert time.perf_counter() - began < 2.0
