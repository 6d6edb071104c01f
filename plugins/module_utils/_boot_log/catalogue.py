# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the failure catalogue of vLLM boot logs as data, most specific row first.

The rows are in `_boot_log/failures_*.py`, ORDER ranks them. Of several classes in one boot the first in ORDER is the cause; a line belongs to the
first row that matches it. Engines: vLLM 0.11 and later (V1) on CUDA, and on CPU for the lab. Keys of a row:

- ``class``: the public name. Several rows can have one class: they differ in cause and remedy.
- ``case``: the name of such a row; it becomes the anchor in docs/failures.md.
- ``patterns``: regular expressions, searched in the message of a line without its prefixes and level. Bounded repeats only. Each has a literal.
- ``details``: more expressions whose named groups fill the remedy, searched in the same line.
- ``within``: an expression; a line belongs to the class only if it matches it too, or a line of source code in the traceback before it does.
  ``names``: another expression that such a line can match instead.
- ``aftermath``: expressions for lines that do not belong to the class if the log already has the cause of the end, or if the engine was
  asked to stop: the clean-up kills the processes that are left. In a weak class any cause that the log already has counts.
- ``unless``: literal strings; a line with one of them does not belong to the class.
- ``remedy``: what to check and what to change; ``{group}`` is filled from the named groups, ``remedy_plain`` is used when one is missing.
- ``any_level``: true if the line is tested at every level: the kernel's and NCCL's own lines.
- ``kind``: ``strong`` (the engine cannot live after it), ``weak`` (a served request can cause it too: counts after readiness only
  with proof that the engine died), ``tail`` (a symptom; named only if no other class is found).
- ``last_words``: true if the program prints such a line only to exit: before readiness a weak class with it needs no other proof.
- ``pick``: ``first`` (default) or ``last`` line of the class is the root.
- ``needs_peer``: what the log of the other rank shows; empty by default.
- ``means``, ``why``, ``example``: the text of docs/failures.md (``example`` is written by us and is tested to match).
"""

from __future__ import annotations

import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import (
    failures_engine,
    failures_fabric,
    failures_host,
    failures_kernel,
    failures_model,
)

#: The rows by case, or by class where a row has no case: the most specific first.
ORDER = (
    "kv_too_small",
    "kv_no_memory",
    "startup_free_memory",
    "memory_profiling_race",
    "mamba_blocks",
    "rdma_register",
    "driver_no_memory",
    "gpu_lost",
    "ray_memory",
    "oom_killed",
    "host_memory",
    "nccl_memory",
    "cuda_oom",
    "shm_full",
    "disk_full",
    "process_limit",
    "permission",
    "address_not_local",
    "rendezvous",
    "addr_in_use",
    "bad_argument",
    "context_too_long",
    "hub_rate_limited",
    "vocabulary",
    "weights_not_in_checkpoint",
    "weights_missing",
    "weights_corrupt",
    "peer_lost",
    "driver_too_old",
    "driver_mismatch",
    "driver_library",
    "no_gpu",
    "kernel_limits",
    "ptx_too_new",
    "ptxas_too_old",
    "arch_unsupported",
    "arch_named",
    "drafter_fault",
    "cuda_fault",
    "cutlass_dsl",
    "python_packages",
    "unknown_user",
    "main_guard",
    "toolchain",
    "model_inspection",
    "compile_failed",
    "nccl_interface",
    "nccl_network",
    "nccl_versions",
    "nccl_shm",
    "nccl_path",
    "nccl_error",
    "rpc_timeout",
    "shm_removed",
    "native_crash",
    "weights_mismatch",
    "invalid_json",
    "drafter_config",
    "setting_unknown",
    "config_error",
    "drafter_error",
    "unclassified",
    "worker_died",
    "engine_process_died",
    "engine_failed",
)


def name_of(row: dict[str, Any]) -> str:
    """Return the unique name of a row: its case, or its class."""
    return str(row.get("case") or row["class"])


def _rows() -> list[dict[str, Any]]:
    rows = [*failures_model.ROWS, *failures_host.ROWS, *failures_fabric.ROWS, *failures_kernel.ROWS, *failures_engine.ROWS]
    default = {"pick": "first", "needs_peer": ""}
    return [{**default, "anchor": f"docs/failures.md#{name_of(row)}", **row} for row in sorted(rows, key=lambda row: ORDER.index(name_of(row)))]


CATALOGUE: list[dict[str, Any]] = _rows()

#: Look-alikes that are not failures: counted in `benign`, never a class. needle: the literal. means: what it is.
BENIGN: list[dict[str, str]] = [
    {
        "name": "free_memory_info",
        "needle": "Desired GPU memory utilization is",
        "means": "the memory breakdown of a successful start (INFO)",
        "example": "Free memory on device (94.05/95.01 GiB) on startup. Desired GPU memory utilization is (0.9, 85.51 GiB).",
    },
    {
        "name": "nccl_warn",
        "needle": "NCCL WARN",
        "means": "NCCL's own warnings; those that matter have a class",
        "example": "node1:301:301 [0] misc/nvmlwrap.cc:187 NCCL WARN nvmlDeviceGetHandleByPciBusId() failed: Not Found",
    },
    {
        "name": "port_retry",
        "needle": "Retrying with a new port",
        "means": "the port was in use and vLLM took the next one",
        "example": "WARNING 08-18 02:57:50 [utils.py:1] Address already in use. Retrying with a new port.",
    },
    {
        "name": "tp_exceeds_gpus",
        "needle": "exceeds available GPUs",
        "means": "normal on a node of a two-node world",
        "example": "WARNING 08-18 02:57:50 [parallel.py:1] Tensor parallel size (2) exceeds available GPUs (1).",
    },
    {
        "name": "shm_wait",
        "needle": "No available shared memory broadcast block found",
        "means": "a rank is slow, for instance compiling; not yet dead",
        "example": "INFO 08-18 02:57:50 [shm_broadcast.py:1] No available shared memory broadcast block found in 60 seconds.",
    },
    {
        "name": "warmup_nonfatal",
        "needle": "(non-fatal)",
        "means": "an optional warm-up was left out",
        "example": "WARNING 08-18 02:57:50 [kernel.py:1] FlashInfer warmup failed (non-fatal): ValueError: x",
    },
    {
        "name": "hub_lookup_of_a_path",
        "needle": "Error retrieving ",
        "means": "vLLM asked the hub about a local path, printed the refusal at level ERROR and went on",
        "example": "ERROR 01-01 00:00:00 [repo_utils.py:47] Error retrieving safetensors: Repo id must be in the form 'repo_name' or "
        "'namespace/repo_name': '/models/here'. Use `repo_type` argument if needed., retrying 1 of 2",
    },
    {
        "name": "exception_ignored",
        "needle": "Exception ignored in",
        "means": "Python could not clean up an object at the end; the exception below it has no effect",
        "example": "Exception ignored in: <function LLMEngine.__del__ at 0x7f00>",
    },
    {
        "name": "fd_limit",
        "needle": "[Errno 24] Too many open files",
        "means": "advice about `ulimit -n`, printed at every start",
        "example": "WARNING 08-18 02:57:50 [system_utils.py:255] This can cause fd limit errors like `OSError: [Errno 24] Too many open files`.",
    },
    {
        "name": "hostname_unresolved",
        "needle": "hostname of the client socket cannot be retrieved",
        "means": "no reverse name for the peer's address",
        "example": "[W327 22:16:57.70 socket.cpp:204] [c10d] The hostname of the client socket cannot be retrieved. err=-3",
    },
    {
        "name": "connect_retry",
        "needle": "- retrying (try=",
        "means": "the other rank has not opened its port yet",
        "example": "[W1120 21:40:30.388 TCPStore.cpp:340] [c10d] TCP client failed to connect/validate to host 10.0.0.1:29501 - retrying (try=0, x)",
    },
    {
        "name": "process_group_not_destroyed",
        "needle": "destroy_process_group",
        "means": "printed by PyTorch when a process ends",
        "example": "[rank0]:[W807 21:51:35.7 ProcessGroupNCCL.cpp:1575] Warning: destroy_process_group() was not called before program exit",
    },
    {
        "name": "leaked_at_exit",
        "needle": "leaked shared_memory objects",
        "means": "printed by Python when a process ends",
        "example": "resource_tracker.py:279: UserWarning: resource_tracker: There appear to be 3 leaked shared_memory objects to clean up",
    },
    {
        "name": "gdr_disabled",
        "needle": "GPU Direct RDMA Disabled for HCA",
        "means": "normal on GB10",
        "example": "NET/IB : GPU Direct RDMA Disabled for HCA 0 'rocep1s0f1'",
    },
    {
        "name": "sm_not_compatible",
        "needle": "is not compatible with the current PyTorch installation",
        "means": "PyTorch's warning about sm_121; the kernels that are used decide",
        "example": "UserWarning: NVIDIA GB10 with CUDA capability sm_121 is not compatible with the current PyTorch installation.",
    },
    {
        "name": "dlvsym",
        "needle": "dlvsym failed on",
        "means": "an optional symbol of libmlx5 is absent",
        "example": "NCCL INFO dlvsym failed on mlx5dv_reg_dmabuf_mr - libmlx5.so: undefined symbol: mlx5dv_reg_dmabuf_mr",
    },
    {
        "name": "unknown_variable",
        "needle": "Unknown vLLM environment variable",
        "means": "this vLLM does not know the variable: the kernel or fast path that the profile selects with it is off",
        "example": "WARNING 08-18 02:57:50 [envs.py:1712] Unknown vLLM environment variable detected: VLLM_USE_B12X_MOE",
    },
]


def check_user_class(entry: Any) -> str:
    """Return what is wrong with a user's class (a dict from the inventory) as one sentence, or an empty string."""
    if not isinstance(entry, dict):
        return f"A failure class in extra_classes is a {type(entry).__name__}, expected a mapping with class, pattern and remedy."
    for key in ("class", "pattern", "remedy"):
        if not isinstance(entry.get(key), str) or not entry[key].strip():
            return f"The failure class {entry.get('class', '?')!r} in extra_classes has no {key}, expected a non-empty string."
    try:
        re.compile(entry["pattern"])
    except re.error as exc:
        return f"The pattern of failure class {entry['class']!r} in extra_classes is not a valid regular expression ({exc}): {entry['pattern']!r}."
    if re.search(r"\([^()]*[+*][^()]*\)\s*[+*{]", entry["pattern"]):
        return (
            f"The pattern of failure class {entry['class']!r} in extra_classes repeats a group that repeats ({entry['pattern']!r}), "
            "which can hang on a long line: give it one repeat."
        )
    return ""


def user_entry(entry: dict[str, Any]) -> dict[str, Any]:
    """Return a user's class in the shape of a catalogue entry; it outranks the built-in classes."""
    return {
        "class": entry["class"],
        "patterns": [entry["pattern"]],
        "kind": "strong",
        "any_level": bool(entry.get("any_level", False)),
        "remedy": entry["remedy"],
        "remedy_plain": entry["remedy"],
        "pick": "first",
        "needs_peer": "",
        "anchor": str(entry.get("anchor") or f"docs/failures.md#{entry['class']}"),
    }
