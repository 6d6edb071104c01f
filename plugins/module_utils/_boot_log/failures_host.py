# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: failure rows of the node: kernel, GPU driver, disk, limits, container. The keys are described in catalogue.py."""

from __future__ import annotations

import re
from typing import Any

#: Units of the system and of its desktop: the end of one of them is not the end of an engine.
UNITS = ("snap.", "xdg-", "gnome-", "user@", "systemd-", "NetworkManager", "dbus", "snapd", "fwupd", "cups", "pipewire", "apt-daily", "packagekit")

UNIT = "|".join(re.escape(u) for u in UNITS)

ROWS: list[dict[str, Any]] = [
    {
        "class": "driver_no_memory",
        "patterns": [r"NV_ERR_NO_MEMORY"],
        "any_level": True,
        "kind": "weak",
        "remedy": "Drop the page cache and stop what else uses memory on this node before the start. Check that the profile sets the UCX pair "
        "(docs/profiles.md): without it each request leaks about 14 MB, and a lower --gpu-memory-utilization only delays the failure. "
        "If it happens again, power-cycle this node.",
        "means": "The NVIDIA kernel driver could not allocate memory.",
        "why": "The unified memory is exhausted or fragmented.",
        "example": "NVRM: nvCheckOkFailedNoLog: Check failed: Out of memory [NV_ERR_NO_MEMORY] (0x00000051)",
    },
    {
        "class": "gpu_lost",
        "patterns": [
            r"GPU is lost|NVMLError_GpuIsLost|NVML_ERROR_GPU_IS_LOST",
            r"GPU has fallen off the bus",
            r"NVRM: Xid \([^)]{1,60}\): (?P<xid>48|61|62|63|64|74|79|92|94|95|109|119|120|140|143|154|171)\b",
            r"uncorrectable ECC error|ECC_UNCORRECTABLE",
            r"Timeout after \d{1,4}s of waiting for RPC response from GPU\d{1,3} GSP",
            r"RmInitAdapter failed",
            r"Unable to determine the device handle for (?:GPU|gpu)",
        ],
        "any_level": True,
        "kind": "strong",
        "remedy": "Shut this node down, unplug it for a minute and start it again. Xid {xid} that comes back after the power cycle needs an RMA; "
        "`sudo dmesg | grep -i xid` lists its history.",
        "remedy_plain": "Shut this node down, unplug it for a minute and start it again. If the error comes back after the power cycle, "
        "the hardware needs an RMA; `sudo dmesg | grep -i xid` lists its history.",
        "means": "The GPU, its memory or its firmware (GSP) failed; the driver can no longer use it.",
        "why": "A hardware fault, a firmware hang or a power problem. vLLM settings do not cause it.",
        "example": "NVRM: Xid (PCI:000f:01:00): 119, pid=4711, name=VLLM::Worker, Timeout after 45s of waiting for RPC response from GPU0 GSP!",
    },
    {
        "class": "oom_killed",
        "case": "ray_memory",
        "patterns": [
            r"ray\.exceptions\.OutOfMemoryError",
            r"killed due to the node running low on memory",
            r"exceeds the memory usage threshold|memory usage threshold of [\d.]{1,10}",
            r"(?<!\d)[1-9]\d{0,5} Workers? \(tasks / actors\) killed due to memory pressure",
            r"[Kk]ill(?:ed|ing) (?:the |this |a )?(?:worker|task|actor)\b.{0,160}(?:memory pressure|low on memory|out of memory)",
            r"NODE_OUT_OF_MEMORY",
        ],
        "unless": ["potential root causes"],
        "kind": "strong",
        "remedy": "Lower --gpu-memory-utilization (vllm_tp2_gpu_memory_utilization), or free memory of this node. If the memory suffices, set "
        "RAY_memory_monitor_refresh_ms=0 (vllm_tp2_extra_env), which switches Ray's monitor off, or raise RAY_memory_usage_threshold.",
        "means": "Ray's own memory monitor killed the worker; the kernel log shows no kill.",
        "why": "On GB10 the GPU uses the memory of the node. Ray counts it, and kills a worker above 95 % of the total.",
        "example": "ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory.",
    },
    {
        "class": "oom_killed",
        "patterns": [
            r"""OOMKilled(?!["']?\s*[:=]\s*["']?(?:false|null|0))""",
            r"(?:Memory cgroup out of memory|Out of memory: Killed process|oom-kill:|oom_reaper: reaped)",
            r"process of this unit has been killed by the OOM killer|Failed with result 'oom-kill'",
            r"^(?:\S{1,60}: line \d{1,6}:\s{1,8})?(?:\d{1,8} )?Killed\b(?: {2,40}\S.{0,200}|\s{0,8}\(core dumped\))?\s*$",
            r"[Ee]xit(?:ed)?(?: with)?[ _]?(?:[Cc]ode|[Ss]tatus)?\W{0,12}(?:137|(?<=[\s:(=])-9)\b",
            r"Failed core proc\(s\): \{[^}]{0,200}: -9\b",
            rf"^(?!{UNIT})\S{{1,80}}: Main process exited, code=(?:killed, status=9/KILL|exited, status=137/)",
            r"sending SIG(?:TERM|KILL) to process \d{1,10} .{0,40}\"(?:VLLM|vllm|python|ray)",
            r"^Killed /\S{0,300}(?:docker|vllm|libpod|containerd|kubepods|python)\S{0,200} due to memory pressure",
        ],
        "aftermath": [
            r"^(?:\S{1,60}: line \d{1,6}:\s{1,8})?(?:\d{1,8} )?Killed\b",
            r"(?i:exit(?:ed)?(?: with)?[ _]?(?:code|status)?)\W{0,12}(?:137|-9)\b",
            r": Main process exited, code=(?:killed, status=9/KILL|exited, status=137/)",
        ],
        "unless": ["potential root causes"],
        "kind": "strong",
        "remedy": "Give the container more memory, or load less at once: drop the page cache before the start and use fewer parallel loaders. "
        "`journalctl -k` shows whether the kernel killed the process.",
        "means": "The process was killed with SIGKILL, nearly always by the kernel's out-of-memory killer.",
        "why": "Loading weights fills the page cache and the unified memory, up to the limit of the container or of the node.",
        "example": "Memory cgroup out of memory: Killed process 4711 (VLLM::Worker) total-vm:130000000kB, anon-rss:97000000kB",
    },
    {
        "class": "oom_killed",
        "case": "host_memory",
        "patterns": [
            r"DefaultCPUAllocator: .{0,40}(?:can't|not enough|cannot) .{0,20}memory",
            r"^(?:\[rank\d{1,5}\]: )?(?:numpy\.(?:_?core\.)?_exceptions\.)?_?(?:Array)?MemoryError\b",
            r"std::bad_alloc",
            r"OSError: \[Errno 12\] Cannot allocate memory",
        ],
        # std::bad_alloc of an allocator of the GPU.
        "unless": ["out_of_memory", "cudaErrorMemoryAllocation", "rmm::", "RMM "],
        "kind": "weak",
        "remedy": "Free memory of this node (`free -h`): drop the page cache, stop other processes, raise the container's memory limit, "
        "or lower --gpu-memory-utilization (vllm_tp2_gpu_memory_utilization), which claims the same memory on GB10.",
        "means": "An allocation of host memory failed.",
        "why": "The memory of the node or of the container is used up; CPU and GPU share it on GB10.",
        "example": "RuntimeError: [enforce fail at alloc_cpu.cpp:121] err == 0. DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes.",
    },
    {
        "class": "shm_full",
        "patterns": [
            r"\[Errno 28\] No space left on device: '(?P<path>(?:/dev/shm|/psm_)[^']{0,120})",
            r"(?:No space left on device|Cannot allocate memory|[Ff]ull).{0,120}/dev/shm",
            r"Error: .{0,120}/dev/shm\S{0,80}.{0,120}(?:No space left on device|Cannot allocate memory)",
            r"unable to (?:open shared memory object|write to file|allocate shared memory|mmap \d{1,20} bytes from file) ?.{0,80}"
            r"(?:No space left on device|Cannot allocate memory)",
            r"nsufficient shared memory \(shm\)|workers are out of shared memory",
        ],
        "unless": ["NCCL WARN", "UserWarning", "will operate in serial mode"],
        "kind": "weak",
        "remedy": "Raise container.shm_size of the profile. With vllm_tp2_ipc: host, delete the files of dead engines in /dev/shm of this node while the "
        "group is stopped (`ls -l /dev/shm`: psm_*, torch_* and nccl-*).",
        "means": "The shared memory (/dev/shm) of the container or of the node is full.",
        "why": "A container has the shared memory of container.shm_size. In the host's IPC namespace, a killed engine leaves its segments behind.",
        "example": "OSError: [Errno 28] No space left on device: '/psm_1a2b3c4d'",
    },
    {
        "class": "disk_full",
        "patterns": [
            r"\[Errno 28\] No space left on device(?:: '(?P<path>[^']{1,300})')?",
            r"[Nn]o space left on device",
            r"\[Errno 122\] Disk quota exceeded(?:: '(?P<path>[^']{1,300})')?",
            r"Disk quota exceeded \(os error 122\)",
        ],
        "unless": ["NCCL WARN", "UserWarning", "will operate in serial mode"],
        "kind": "weak",
        "remedy": "Free space on the disk that holds {path} of this node (`df -h`, `docker system df`), then start again.",
        "remedy_plain": "Free space on this node (`df -h`, `docker system df`): in the model store, in the cache directories, or in Docker's data directory. "
        "If the disks have space, /dev/shm is full (`df -h /dev/shm`) or a quota is used up (`quota -s`).",
        "means": "A disk or a quota of this node is full.",
        "why": "Weights, compile caches, images and container logs share the disk.",
        "example": "OSError: [Errno 28] No space left on device: '/root/.cache/vllm/torch_compile_cache/8f2c'",
    },
    {
        "class": "process_limit",
        "patterns": [
            r"(?P<message>can't start new thread)",
            r"(?P<message>Too many open files)",
            r"(?P<message>pthread_create(?: failed)?.{0,60}(?:Resource temporarily unavailable|Operation not permitted))",
            r"libgomp: (?P<message>Thread creation failed: Resource temporarily unavailable)",
            r"what\(\): {1,4}(?P<message>Resource temporarily unavailable)",
            r"BlockingIOError: (?P<message>\[Errno 11\] Resource temporarily unavailable)",
            r"fork: (?:retry: )?(?P<message>Resource temporarily unavailable|Cannot allocate memory)",
        ],
        "unless": ["This can cause fd limit errors"],
        "kind": "weak",
        "remedy": "Raise the limit ({message}): container.nofile of the profile for open files; for threads and processes the pids limit of the container "
        "(`docker inspect`) and DefaultTasksMax of systemd. `ps -eLf | wc -l` shows a process that leaks threads.",
        "means": "The node or the container does not allow another thread, process or open file.",
        "why": "A limit on processes or files is too low for this engine, or another process leaks them.",
        "example": "RuntimeError: can't start new thread",
    },
    {
        "class": "permission",
        "patterns": [
            r"PermissionError: \[Errno 13?\] \w[\w ]{1,40}: '(?P<path>[^']{1,300})'",
            r"\[Errno 30\] Read-only file system: '(?P<path>[^']{1,300})'",
            r"PermissionError(?:: |\(13, )",
            r"\[Errno 30\] Read-only file system|Read-only file system \(os error 30\)",
            r"Permission denied \(os error 13\)",
            r"cannot create directory '?(?P<path>[^':]{1,200})'?: (?:Permission denied|Read-only file system)",
            r"Error: \[Errno 13\] Permission denied(?:: '(?P<path>[^']{1,300})')?",
        ],
        "unless": ["error while attempting to bind"],
        "kind": "weak",
        "remedy": "Make {path} writable for the user of the container: compare `id` in the container with the owner on the node (`ls -ln`), "
        "and mount it without `ro`. Or point HOME, HF_HOME and VLLM_CACHE_ROOT (vllm_tp2_extra_env) to a writable volume.",
        "remedy_plain": "Make the path in the line above writable for the user of the container: check its owner on the node (`ls -ln`) and its mount, "
        "or point HOME, HF_HOME and VLLM_CACHE_ROOT (vllm_tp2_extra_env) to a writable volume.",
        "means": "The engine may not read or write a path.",
        "why": "The container runs as another user than the owner of the volume, or the volume is mounted read-only.",
        "example": "PermissionError: [Errno 13] Permission denied: '/root/.cache/vllm'",
    },
    {
        "class": "addr_in_use",
        "patterns": [
            r"(?:OSError|ZMQError).{0,60}(?:Errno 98|[Aa]ddress already in use)",
            r"EADDRINUSE",
            r"\[Errno 98\]",
            r"already in use \(os error 98\)",
            r"Bind for \S{1,60}:(?P<port>\d{1,5}) failed: port is already allocated",
            r"failed to bind host port (?:for )?\S{0,40}?:(?P<port>\d{1,5})(?::\S{1,60})?/tcp: address already in use",
            r"listen tcp\d? \S{0,60}:(?P<port>\d{1,5}): bind: address already in use",
            r"server socket has failed to (?:bind|listen).{0,160}(?:errno: 98|already in use)",
            r"gloo/transport/.{1,80}[Aa]ddress already in use",
        ],
        "details": [r"port: (?P<port>\d{1,5})", r"\('[^']{0,64}', (?P<port>\d{1,5})\)"],
        "unless": ["Retrying with a new port"],
        "kind": "strong",
        "remedy": "Stop the process that listens on port {port} of this node (`ss -ltnp`; often the previous container), or choose another port.",
        "remedy_plain": "Stop the process that listens on --port or --master-port of this node (`ss -ltnp`; often the previous container). "
        "If the line names gloo, which chooses its port itself, remove the previous container and start again.",
        "means": "A port that vLLM needs is used by another process.",
        "why": "The previous engine still runs, or another service uses --port or --master-port.",
        "example": "OSError: [Errno 98] Address already in use",
    },
    {
        "class": "no_gpu",
        "case": "driver_too_old",
        "patterns": [
            r"NVIDIA driver on your system is too old(?: \(found version (?P<found>\d{1,6})\))?",
            r"CUDA driver version is insufficient|cudaErrorInsufficientDriver",
            r"unsupported display driver / cuda driver combination|CUDA_ERROR_SYSTEM_DRIVER_MISMATCH|cudaErrorSystemDriverMismatch",
            r"forward compatibility was attempted on non supported HW|CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE|cudaErrorCompatNotSupportedOnDevice",
            r"[Rr]equires (?:an? |at least )?(?:newer )?(?:NVIDIA |CUDA )?driver (?:version )?(?:>|\d|R\d|newer)",
            r"unsatisfied condition: (?P<message>(?:cuda|driver)\S{1,40})",
        ],
        "kind": "strong",
        "remedy": "Compare `nvidia-smi` on this node with the CUDA version of the image. Update the node's driver, or use an image with an older CUDA. "
        "With a recent driver the image's own libcuda (/usr/local/cuda/compat) hides the driver's: take it out of LD_LIBRARY_PATH and ld.so.conf.",
        "means": "The NVIDIA driver of this node does not fit the CUDA version of the image.",
        "why": "The image needs a newer driver, or its compatibility libraries replace the driver's libcuda (errors 803 and 804).",
        "example": "RuntimeError: The NVIDIA driver on your system is too old (found version 12020). Please update your GPU driver",
    },
    {
        "class": "no_gpu",
        "case": "driver_mismatch",
        "patterns": [r"Driver/library version mismatch", r"NVRM: API mismatch: "],
        "kind": "strong",
        "remedy": "Reboot this node (`ansible-playbook playbooks/reboot.yml`): its driver was updated and the old kernel module is still loaded.",
        "means": "The loaded NVIDIA kernel module and the driver libraries have different versions.",
        "why": "A package update replaced the driver while the node was running.",
        "example": "Failed to initialize NVML: Driver/library version mismatch",
    },
    {
        "class": "no_gpu",
        "case": "driver_library",
        "patterns": [
            r"(?P<library>lib(?:cuda|nvcuvid|nvidia-[\w-]{1,30})\.so[\d.]{0,12}): "
            r"(?:cannot open shared object file|file too short|invalid ELF header|wrong ELF class)",
            r"(?P<library>(?:libcuda|libnvidia-ml)\.so[\d.]{0,12})['\"]? (?:cannot|could not be|was not|is not|not) (?:be )?(?:found|loaded|opened|available)",
            r"(?:[Cc]ould not|[Cc]annot|[Cc]an't|[Uu]nable to|[Ff]ailed to) (?:load|open|find|dlopen|locate) .{0,60}\b(?P<library>libcuda|libnvidia-ml)\b",
        ],
        "unless": ["nvidia-container-cli"],
        "kind": "weak",
        "remedy": "Give the container the GPU (`--gpus all` or the CDI device nvidia.com/gpu=all): NVIDIA's runtime then mounts {library} of the node. "
        "Check `nvidia-smi` on this node, and that NVIDIA_DRIVER_CAPABILITIES is all or has compute and utility.",
        "means": "A library of the NVIDIA driver is missing in the container.",
        "why": "The image does not have the driver's libraries: they come from the node, with the GPU. The container was started without one.",
        "example": "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
    },
    {
        "class": "no_gpu",
        "patterns": [
            r"No CUDA GPUs are available",
            r"Failed to infer device type",
            r"World size \((?P<world>\d+)\) is larger than the number of available GPUs(?: \((?P<gpus>\d+)\))?",
            r"Tensor parallel size \((?P<world>\d+)\) cannot be larger than the number of available GPUs(?: \((?P<gpus>\d+)\))?",
            r"Found no NVIDIA driver",
            r"no CUDA-capable device",
            r"Error: CUDA (?:driver initialization failed|unknown error)",
            r"NVMLError_(?:LibraryNotFound|DriverNotLoaded|InvalidArgument|Unknown|Uninitialized|OperatingSystem|GpuNotFound)",
            r"NVML Shared Library Not Found|NVML_ERROR_(?:LIBRARY_NOT_FOUND|DRIVER_NOT_LOADED|UNINITIALIZED)",
            r"Failed to initialize NVML: ",
            r"CUDA_ERROR_(?:NO_DEVICE|STUB_LIBRARY|SYSTEM_NOT_READY|DEVICE_UNAVAILABLE)|cudaError(?:NoDevice|StubLibrary|SystemNotReady|DevicesUnavailable)",
            r"CUDA driver is a stub library",
            r"(?:[Ff]ail\w{0,5}|[Ee]rror|ERROR|returned)\b.{0,60}\bcuInit\b|\bcuInit\b.{0,60}(?:[Ff]ail|[Ee]rror|ERROR|return)",
            r"communicate with the NVIDIA driver",
            r"\b0 active drivers",
            r"Device string must not be empty",
            r"Cannot access accelerator device when none is available",
            r"torch\.cuda\.is_available\(\) (?:is|returned) False",
            r"Error: (?:CUDA|GPU|cuda) is not available",
            r"Error: .{0,80}\b[Nn]o (?:NVIDIA |CUDA )?(?:GPUs?|devices?) (?:are |is |was |were )?(?:found|detected|available|visible)",
            r"AssertionError: Invalid device id",
            r"could not select device driver",
            r"nvidia-container-cli: (?:\w{1,20} )?error",
            r"unresolvable CDI devices",
            r"unknown or invalid runtime name: nvidia",
            r"exec: \"nvidia-container-runtime[\w-]{0,20}\": executable file not found",
            r"failed to discover GPU vendor from CDI",
            r"number of required GPUs exceeds the total number of available GPUs",
            r"Current node has no GPU available",
            r"cudaGetDeviceCount\b.{0,60}(?:[Ff]ail|[Ee]rror|returned)|error from cudaGetDeviceCount\(\)",
            r"\bnvmlInit\w{0,6}\b.{0,60}(?:[Ff]ail|[Ee]rror|returned)",
            r"/dev/nvidia\S{0,12}.{0,60}(?:[Nn]o such file|not found)|No such file or directory.{0,6}/dev/nvidia",
            r"CUDA-capable device(?:\(s\) is/are|s are| is) busy or unavailable",
            r"CUDA error: invalid device ordinal",
            r"device < num_gpus INTERNAL ASSERT FAILED",
            r"AssertionError: .{0,40}local rank \d{1,4} is out of bounds",
            r"local_world_size \((?P<world>\d+)\) must be less than or equal to the number of visible devices \((?P<gpus>\d+)\)",
        ],
        "kind": "strong",
        "remedy": "Start one rank per node with --nnodes {world}: each GB10 has one GPU, and world size {world} needs more than the {gpus} of this node.",
        "remedy_plain": "Give the container the GPU (`--gpus all` or the CDI device nvidia.com/gpu=all) and check with `nvidia-smi` that the driver is loaded. "
        "If a running container lost its GPU, recreate it.",
        "means": "vLLM sees no GPU, or fewer GPUs than ranks.",
        "why": "The container has no GPU device, or a two-node world was started on one node.",
        "example": "RuntimeError: No CUDA GPUs are available",
    },
]
