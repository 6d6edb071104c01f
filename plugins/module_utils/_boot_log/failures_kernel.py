# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: failure rows of GPU kernels. The keys are described in catalogue.py."""

from __future__ import annotations

from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.failures_model import DRAFTER_CODE

#: How exceptions and kernels name an architecture of NVIDIA GPUs.
_ARCH = (
    r"(?:\b[Ss][Mm][ _]?\d{2,3}|\bSM \d|\bcompute_\d|[Cc]ompute[ _][Cc]apabilit|[Dd]evice [Cc]apabilit|\bHopper\b|\bBlackwell\b|\bAmpere\b|\bAda\b"
    r"|\b[BH]\d00\b|\bGB\d00\b)"
)

ROWS: list[dict[str, Any]] = [
    {
        "class": "arch_unsupported",
        "case": "kernel_limits",
        "patterns": [
            r"FlashInfer Internal Error: (?P<what>Invalid configuration.{0,160})",
            r"(?P<what>Arch conditional \w{1,12} instruction used without targeting .{1,60})",
            r"(?P<what>Failed to set the allowed dynamic shared memory size to \d{1,9})",
            r"(?P<what>out of resource: .{1,120})",
            r"(?P<what>too many resources requested for launch)",
            r"(?P<what>Failed to initialize the TMA descriptor)",
            r"(?P<what>Unsupported max_mma_kv)",
            r"^(?:\w{1,40}\.){0,8}DSL(?:Cuda)?RuntimeError: (?P<what>.{1,120})",
            r"Error: (?P<what>Invalid thread config: thread_m_blocks[^\]]{1,120}\]?)",
            r"Error: (?P<what>Flash[ -]?Attention[ -]?\d?(?: \w{1,20})? only supports? .{1,80})",
        ],
        "unless": ["Ignoring this choice", "No valid triton configs"],
        "kind": "strong",
        "remedy": "Choose another attention or MoE backend (--attention-backend and --moe-backend in vllm_tp2_extra_args), "
        "or an image whose kernels are built for sm_121: {what}. "
        "If the line names a shape or a data type, another quantization of the model or --kv-cache-dtype auto can help too.",
        "means": "A kernel does not fit the limits of this GPU.",
        "why": "GB10 (sm_121) has 99 KiB of shared memory per block and none of the instructions of sm_90 and sm_100. "
        "The kernel was written for those, or has no variant for the model's shapes or data type.",
        "example": "tvm.error.InternalError: Failed to set the allowed dynamic shared memory size to 143808",
    },
    {
        "class": "arch_unsupported",
        "case": "ptx_too_new",
        "patterns": [r"PTX was compiled with an unsupported toolchain|CUDA_ERROR_UNSUPPORTED_PTX_VERSION"],
        "kind": "strong",
        "remedy": "Update the NVIDIA driver of this node, or use an image with the CUDA version that the driver supports (`nvidia-smi` shows it).",
        "means": "The image has kernels as PTX that the driver cannot translate.",
        "why": "The image's CUDA toolkit is newer than the driver.",
        "example": "torch.AcceleratorError: CUDA error: the provided PTX was compiled with an unsupported toolchain.",
    },
    {
        "class": "arch_unsupported",
        "case": "ptxas_too_old",
        "patterns": [r"ptxas fatal {0,8}: {0,8}Value '(?P<arch>sm_\w{1,12})' is not defined for option"],
        "kind": "strong",
        "remedy": "Use an image whose Triton knows {arch}. If the CUDA toolkit of this image is version 13, set TRITON_PTXAS_PATH and "
        "TRITON_PTXAS_BLACKWELL_PATH (vllm_tp2_extra_env) to /usr/local/cuda/bin/ptxas.",
        "means": "The ptxas that Triton brings along does not know this GPU.",
        "why": "Triton's own ptxas is from a CUDA version before sm_121.",
        "example": "ptxas fatal   : Value 'sm_121a' is not defined for option 'gpu-name'",
    },
    {
        "class": "arch_unsupported",
        "patterns": [
            r"no kernel image is available",
            r"(?:CUDA error|CUDA driver error|Triton Error \[\w{1,8}\]|failed with error|cudaErrorInvalidDeviceFunction).{0,60}invalid device function",
            r"Failed to find a kernel that can implement",
            r"(?P<what>Model architectures .{1,200}) are not supported for now",
            r"not supported for now",
            r"cutlass_gemm_caller",
            r"ptxas fatal",
            r"No compiled \w.{0,60}(?:_mm|[Kk]ernel)\b",
            r"[Qq]uantization (?:method \S{1,60}|scheme) is not supported for (?:', ')?the current GPU",
            r"Error: .{0,200}not supported (?:on|for|by) (?:this|your|the current|current) (?:GPU|device|architecture|platform|hardware)",
            rf"This kernel (?:only|requires?|is only|is not|does not|was (?:only )?(?:built|compiled))\b.{{0,60}}(?:{_ARCH}|\barch|GPU)",
            r"kernel `\S{1,160}` is for sm\d",
            r"PTX JIT compilation failed|CUDA_ERROR_INVALID_PTX|cudaErrorInvalidPtx",
            r"[Ee]rror.{0,120}\bsm_\d{2,3}\w? is not compatible",
            r"fatal {0,8}: {0,8}(?:Value|Unsupported).{0,40}\b(?:sm|compute)_\d{2,3}",
            r"unsupported CUDA gpu architecture",
            r" \.target '?(?P<what>sm_\w{1,12})",
            r"type \w{1,20} not supported in this architecture",
            r"[Ee]rror.{0,200}[Uu]nsupported (?:(?:GPU|CUDA|gpu|cuda) )?(?:architectur|arch\b|SM\b|sm\b|(?:compute |device )?capabilit)|Unsupported GPU\b",
            r"Error: .{0,200}Unknown (?:recipe|SF transformation)",
            r"CUDA_ERROR_NO_BINARY_FOR_GPU|CUDA_ERROR_INVALID_IMAGE|cudaErrorNoKernelImageForDevice|cudaErrorInvalidKernelImage",
            r"CU[A-Z]{2,8}_STATUS_(?:ARCH_MISMATCH|NOT_SUPPORTED)|No (?:valid )?execution plans",
            r"Missing TRTLLM-GEN kernel",
            r"Assertion error \(?\S{0,200}(?:deep_?gemm|DeepGEMM|jit_kernels)\S{0,200} (?!'?exit_code)(?P<what>.{1,100})",
            r"Transformers does not recognize this architecture",
            r"Unsupported gpu architecture '(?P<what>\w{1,40})'",
            r"device kernel image is invalid",
            r"No supported CUDA architectures found",
            r"Failed to initialize cutlass",
            r"expects arch to be one of (?P<what>.{1,100})",
            r"requires GPUs with sm\d{2}",
            r"DeepGEMM only supports",
            r"only supported on (?:Hopper|Blackwell|SM ?\d)",
            r"AssertionError: Only SM ?\d{1,3}.{0,40} (?:is|are) supported",
            r"Failed to open: \S{0,300}/sm\d{2,3}\w{0,10}_\S{1,100}\.cuh",
            r"PTXASError|Internal Triton PTX codegen error|CalledProcessError: Command '\['[^']{0,300}/ptxas",
            r"(?P<what>No \w{1,20} MoE backend) supports the deployment configuration",
            r"Error: .{0,120}MoE .{0,120}kernel does not support current device",
            r"ValueError: (?:Selected backend|No valid attention backend).{1,400}?compute capability not supported",
            r"(?P<what>GGUF model with architecture \S{1,60}) is not supported",
            r"\bexec \S.{0,240}: [Ee]xec format error",
            r"no matching manifest for (?P<what>linux/\S{1,40})",
            r"[Ee]rror[:,] (?P<what>\w{1,80} has no vLLM implementation)",
            r"Error: Error (?:Internal|Not Supported|Arch Mismatch)\b",
            r"Could not run '[\w:.]{1,80}' with arguments from the 'CUDA' backend",
            r"'_OpNamespace' '\w{1,40}' object has no attribute '(?P<what>\w{1,80})'",
        ],
        "unless": ["Ignoring this choice", "Cannot use FA version"],
        "kind": "strong",
        "remedy": "Use an image built for GB10 (arm64, sm_121) and this model, or another attention or MoE backend "
        "(--attention-backend and --moe-backend in vllm_tp2_extra_args).",
        "means": "The image has no kernel for this GPU, or does not know this model's architecture.",
        "why": "Wheels for sm_90 or sm_100 lack sm_121 code; a model newer than the image is unknown to it.",
        "example": "torch.AcceleratorError: CUDA error: no kernel image is available for execution on the device",
    },
    {
        "class": "arch_unsupported",
        "case": "arch_named",
        "patterns": [
            rf"Error: (?!Bfloat16)(?P<message>.{{0,200}}\b(?:requires?|needs?|only (?:runs?|works?|supports?|supported|available|implemented|compatible|built"
            rf"|compiled))\b.{{0,60}}{_ARCH}.{{0,80}})",
            rf"Error: (?!Bfloat16)(?P<message>.{{0,200}}(?:[Nn]ot supported|[Uu]nsupported|[Nn]ot support|[Nn]ot implemented|[Nn]ot available|[Nn]ot compatible"
            rf"|[Nn]ot compiled|[Nn]ot built|[Nn]o kernel|[Nn]o supported)\b.{{0,80}}{_ARCH}.{{0,80}})",
            rf"Error: (?P<message>.{{0,120}}{_ARCH}.{{0,40}}\b(?:not (?:supported|compatible|available)|unsupported|only\b|(?:is|are) required).{{0,80}})",
            rf"Error: (?P<message>[Oo]nly .{{0,60}}{_ARCH}.{{0,80}})",
            rf"Assertion failed: (?P<message>.{{0,160}}(?:{_ARCH}|\b[Ss][Mm] ?[=<>!]|\barch\b).{{0,80}})",
        ],
        "unless": ["Ignoring this choice", "Cannot use FA version"],
        "kind": "weak",
        "remedy": "Use another attention or MoE backend (--attention-backend and --moe-backend in vllm_tp2_extra_args), or an image with kernels "
        "built for sm_121: {message}.",
        "means": "A library refuses this GPU and names the architectures that it supports.",
        "why": "GB10 is sm_121. The kernel is for other architectures, or was written before this one.",
        "example": "RuntimeError: The example kernel requires SM100 (compute capability 10.0)",
    },
    {
        "class": "cuda_fault",
        "case": "drafter_fault",
        "within": DRAFTER_CODE,
        "patterns": [
            r"(?P<message>illegal memory access|device-side assert(?!ion))",
            r"\.cuh?:\d{1,6}: .{0,200}Assertion `(?P<message>.{1,160})` failed",
            r"CUDA (?:driver )?error: (?P<message>.{1,200})",
            r"Triton Error \[\w{1,8}\]: (?P<message>.{1,200})",
        ],
        "unless": [", in load", ", in _load", ", in __init__"],
        "kind": "strong",
        "remedy": "Start without the drafter (speculative-config), or with --max-num-seqs 1 or --no-async-scheduling (vllm_tp2_extra_args): "
        "its code failed ({message}). If that serves, use an image with a newer vLLM, another drafter, or fewer num_speculative_tokens.",
        "means": "A GPU kernel crashed in the code of the drafter, which proposes and verifies tokens.",
        "why": "Drafters (MTP, EAGLE, DFlash) have errors that only several requests at a time show, often together with async scheduling.",
        "example": "/opt/vllm/vllm/v1/sample/rejection_sampler.py: CUDA error: device-side assert triggered",
    },
    {
        "class": "cuda_fault",
        "patterns": [
            r"illegal memory access",
            r"CUDA_ERROR_ILLEGAL_ADDRESS",
            r"device-side assert(?!ion)",
            r"NVRM: Xid",
            r"unspecified launch failure",
            r"Error occurred when running GEMM",
            r"\.cuh?:\d{1,6}: .{0,200}Assertion `(?P<message>.{1,160})` failed",
            r"^Failed: Cuda error \S{1,200} '(?P<message>[^']{1,200})",
            r"Check failed: \(?[^()]{0,60}\b(?:cudaSuccess|CUDA_SUCCESS)\b(?P<message>.{1,200})",
            r"Triton Error \[\w{1,8}\]: (?P<message>.{1,200})",
            r"CU[A-Z]{2,8}_STATUS_EXECUTION_FAILED",
            r"cuDNN error: (?P<message>.{1,200})",
            r"CUDA driver error(?: \([^)]{1,200}\))?: (?P<message>.{1,200})",
            r"CUDA error(?: \(\S{1,200}:\d{1,6}\))?: (?P<message>.{1,200})",
        ],
        "unless": ["VERSION_MISMATCH"],
        "kind": "strong",
        "remedy": "Start without the drafter ({drafter}) to see whether its code crashed, or with --max-num-seqs 1 or --no-async-scheduling. "
        "If the GPU kernel crashes without it too, choose another attention or MoE backend (--attention-backend and --moe-backend in vllm_tp2_extra_args), "
        "or --enforce-eager, or a newer image.",
        "remedy_plain": "Choose another attention or MoE backend (--attention-backend and --moe-backend in vllm_tp2_extra_args), or --enforce-eager, "
        "or a newer image: a GPU kernel crashed. If the profile has a drafter (speculative-config), start without it or with --max-num-seqs 1 first.",
        "means": "A GPU kernel crashed.",
        "why": "The kernel has an error for this GPU, model shape or backend.",
        "example": "RuntimeError: CUDA error: an illegal memory access was encountered",
    },
]
