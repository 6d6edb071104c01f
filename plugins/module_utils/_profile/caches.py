# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the collection adds to every profile: a compile cache on the node for each image and shape, vLLM's own time limits, and where NCCL prints. Pure.

A cache folder is mounted from ``<cache dir>-<key>``. Another image or another shape has another folder, so that a stale artifact is never read and a
rollback finds its warm cache. The key is a part of a path that no container can write.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

#: Variables of compile caches: the folder below the mounted cache (empty: the cache itself), and where the variable is read.
VARIABLES: dict[str, tuple[str, str]] = {
    "VLLM_CACHE_ROOT": ("", "vLLM, vllm/envs.py: torch.compile artifacts, FlashInfer autotune results, class of the model"),
    "TRITON_CACHE_DIR": ("triton", "Triton, python/triton/knobs.py; with AOT compilation vLLM does not set it"),
    "TORCHINDUCTOR_CACHE_DIR": ("inductor", "PyTorch, torch/_inductor/runtime/cache_dir_utils.py; vLLM replaces it while it compiles the model"),
    "TILELANG_CACHE_DIR": ("tilelang", "TileLang, tilelang/env.py"),
    "FLASHINFER_WORKSPACE_BASE": ("flashinfer", "FlashInfer, flashinfer/jit/env.py; FLASHINFER_JIT_DIR is derived from it and is not a variable"),
    "CUTE_DSL_CACHE_DIR": ("cute", "CUTLASS CuTe DSL"),
    "B12X_CUTE_COMPILE_CACHE_DIR": ("b12x", "B12X (FujitsuPolycom/sparkring#185)"),
    "DG_JIT_CACHE_DIR": ("deep_gemm", "DeepGEMM; without the folder it keeps no kernel (vllm-project/vllm#39913)"),
    "CUDA_CACHE_PATH": ("cuda", "CUDA driver: what it compiles from PTX"),
}
#: vLLM's own limits, vllm/envs.py, in seconds: the phases of ``launch.phase_seconds`` that are added up, vLLM's default, and what the limit ends.
#: A kernel that is compiled during a request took longer than 300 s on a pair (MiaAI-Lab/DeepSeek-v4-Flash-DSpark-2x-DGX-Spark#65).
LIMITS: dict[str, tuple[tuple[str, ...], int, str]] = {
    "VLLM_ENGINE_READY_TIMEOUT_S": (("rendezvous", "load", "init"), 600, "the start of the engine"),
    "VLLM_EXECUTE_MODEL_TIMEOUT_SECONDS": (("init",), 300, "one step of the model on all ranks, also if it compiles a kernel"),
}
#: Added to a profile that sets NCCL_DEBUG. NCCL buffers standard output by block, so that the last lines of an engine that hangs would not be in its log.
#: It opens this file with "w" in each process, buffers it by line, and keeps standard output if it cannot. The streams of a container are pipes of the
#: container's user: another user than root can open them, and no process truncates what another one has printed.
NCCL_LOG = {"NCCL_DEBUG_FILE": "/dev/stderr"}
#: Arguments that change no kernel: addresses, names, parsing and sampling of requests, the size of the pool. Any other one changes the key.
NOT_IN_KEY = (
    "served-model-name", "host", "port", "master-addr", "master-port", "node-rank", "headless", "api-key", "distributed-executor-backend",
    "tool-call-parser", "enable-auto-tool-choice", "reasoning-parser", "reasoning-config", "chat-template", "chat-template-content-format",
    "default-chat-template-kwargs", "generation-config", "override-generation-config", "tokenizer-mode", "enable-prefix-caching",
    "gpu-memory-utilization", "kv-cache-memory-bytes", "kv-cache-memory", "num-gpu-blocks-override", "load-format", "safetensors-load-strategy",
    "model-loader-extra-config", "seed", "revision", "disable-log-requests", "enable-log-requests", "disable-log-stats", "enable-force-include-usage",
)  # fmt: skip
#: Variables that can change a kernel begin so.
SHAPING = ("VLLM_", "B12X_", "TORCH", "PYTORCH_", "TRITON_", "TILELANG_", "FLASHINFER_", "CUTE_", "DG_", "CUDA_")
NOT_SHAPING = ("VLLM_HOST_IP", "VLLM_API_KEY", "VLLM_LOGGING_", "VLLM_NO_USAGE_STATS", "VLLM_CPU_KVCACHE_SPACE", *VARIABLES, *LIMITS)


def _shaping(env: Mapping[str, Any]) -> dict[str, str]:
    return {name: str(value) for name, value in env.items() if name.startswith(SHAPING) and not name.startswith(NOT_SHAPING)}


def key(profile: Mapping[str, Any], size: int, image: str, extra_env: Mapping[str, Any]) -> str:
    """Return the key of a group's compile cache: 12 hexadecimal digits of image, model, number of ranks, arguments and variables.

    It is the same on all ranks, unless the user's environment differs between them.
    """
    args = {flag: value for flag, value in profile["engine"]["args"].items() if flag not in NOT_IN_KEY and value not in (None, False)}
    env = [_shaping(table) for table in (profile["env"], profile["head_env"], profile["worker_env"], extra_env)]
    model = [profile["model"]["id"], profile["model"]["path"], profile["model"]["revision"]]
    drafter = [[profile["drafter"][name] for name in ("id", "path", "revision")]] if profile["drafter"] else []
    content = json.dumps([image, model, size, args, env, *drafter], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(content.encode()).hexdigest()[:12]


def keyed(path: str, caches: list[str], name: str) -> str:
    """Return a path on the node that is a cache or below one, with the key: ``<cache>-<key>``. Others stay as they are."""
    for cache in sorted(caches, key=len, reverse=True):
        if (path + "/").startswith(cache + "/"):
            return f"{cache}-{name}{path[len(cache) :]}"
    return path


def place(profile: Mapping[str, Any]) -> str:
    """Return where the first compile cache is in the container; empty if it is not mounted, or read-only."""
    for cache in profile["container"]["cache_dirs"]:
        for volume in profile["container"]["volumes"]:
            host, there, *modes = volume.split(":")
            if host.rstrip("/") == cache.rstrip("/") and "ro" not in ",".join(modes).split(","):
                return str(there.rstrip("/"))
    return ""


def environment(profile: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that the collection adds. A profile that sets one of them, also to null, keeps its own."""
    where, seconds = place(profile), profile["launch"]["phase_seconds"]
    added = {name: f"{where}/{folder}".rstrip("/") for name, (folder, _source) in VARIABLES.items() if where}
    added.update({name: str(sum(seconds[phase] for phase in phases)) for name, (phases, _default, _ends) in LIMITS.items()})
    own = {*profile["env"], *profile["head_env"], *profile["worker_env"]}
    if "NCCL_DEBUG" in own and profile["engine"]["executor"] != "ray":  # Ray gives its workers log files, which "w" would truncate
        added.update(NCCL_LOG)
    return {name: value for name, value in added.items() if name not in own}
