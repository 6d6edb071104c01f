"""Public recipes for two nodes as their repositories have them, and where the shipped profile of each differs. The files are named in the profiles' sources.

Left out here: the model, the ranks' wiring (nnodes, node-rank, master-addr, headless) and the fabric variables, which are those of the node.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Recipe:
    """One recipe, and the differences of the profile: each must be among its deviations."""

    model: str
    image: str
    arguments: str
    environment: str
    # Of the profile: a flag with dashes or a variable, and its value. Flags of the wiring that the recipe does not write are not in here.
    changed: dict[str, str] = field(default_factory=dict)
    added: dict[str, str] = field(default_factory=dict)
    left_out: tuple[str, ...] = ()


# What every shipped profile adds, and a profile with a store at this path.
COMMON = {
    "UCX_MEM_MMAP_HOOK_MODE": "none", "UCX_RCACHE_MAX_UNRELEASED": "1024", "NCCL_DEBUG": "INFO", "NCCL_DEBUG_SUBSYS": "INIT,NET", "HF_HUB_OFFLINE": "1",
}  # fmt: skip
RDMA = {"NCCL_NET": "IB", "NCCL_IB_DISABLE": "0"}
MODULES = {"HF_MODULES_CACHE": "/root/.cache/vllm/modules"}
# eugr's vllm-node, pinned.
PLAIN = "eugr/spark-vllm:nightly-20260929@sha256:155ce16b49007c8b00690dd4c7637c0c1eafbe909709c3175c4498325c01c1d8"


def without(values: dict[str, str], *names: str) -> dict[str, str]:
    """Return values without these names."""
    return {name: value for name, value in values.items() if name not in names}


RECIPES = {
    "dsv4-0731-b12x-512k": Recipe(
        model="deepseek-ai/DeepSeek-V4-Flash-0731",
        image="eugr/spark-vllm-b12x:latest@sha256:16ce6e7efce8bebda9a800fd1432c7dde42d28f901354af00b2f3a57e68e3654",
        arguments="""
          --host 0.0.0.0 --port 8000 --trust-remote-code --tensor-parallel-size 2 --kv-cache-dtype fp8 --block-size 256 --max-model-len auto
          --max-num-seqs 8 --max-num-batched-tokens 8192 --gpu-memory-utilization 0.85 --enable-prefix-caching --tokenizer-mode deepseek_v4
          --tool-call-parser deepseek_v4 --enable-auto-tool-choice --reasoning-parser deepseek_v4
          --reasoning-config '{"reasoning_parser":"deepseek_v4","reasoning_start_str":"","reasoning_end_str":""}'
          --default-chat-template-kwargs.thinking=true --default-chat-template-kwargs.reasoning_effort=high --load-format instanttensor
          --moe-backend b12x --linear-backend b12x --attention-backend B12X --max-cudagraph-capture-size 48
          --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","custom_ops":["all"]}'
          --speculative-config '{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"probabilistic","attention_backend":"B12X"}'""",
        environment="""
          CUTE_DSL_ARCH=sm_121a VLLM_USE_AOT_COMPILE=1 VLLM_USE_BREAKABLE_CUDAGRAPH=0 VLLM_USE_MEGA_AOT_ARTIFACT=1 VLLM_MEMORY_PROFILE_INCLUDE_ATTN=1
          VLLM_USE_FLASHINFER_SAMPLER=1 VLLM_USE_B12X_WO_PROJECTION=1 VLLM_USE_B12X_MHC=1 VLLM_USE_B12X_FP8_GEMM=1 VLLM_USE_B12X_MOE=1
          VLLM_USE_B12X_SPARSE_INDEXER=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_MOE_SKIP_PADDING=0 B12X_MLA_SM120_UNIFIED=1 B12X_MOE_FORCE_A8=1""",
        changed={"--max-model-len": "524288"},
        added={**COMMON, **RDMA, "HF_MODULES_CACHE": "/root/.cache/vllm/modules", "--revision": "7872f01b1d1fe23eabc4c98b48bffcef5a386062"},
    ),
    "glm53-flash-spark-500k": Recipe(
        model="local-inference-lab/GLM-5.3-Flash-NVFP4-Spark",
        image="eugr/spark-vllm-b12x:nightly-20260923@sha256:5249a162cd39aa090e803243aef376e1f87f0fd4826f9249ea1ecd0c814b2c7e",
        arguments="""
          --host 0.0.0.0 --port 8000 --tensor-parallel-size 2 --pipeline-parallel-size 1 --decode-context-parallel-size 1 --mamba-cache-mode align
          --enable-prefix-caching --enable-chunked-prefill --dtype bfloat16 --kv-cache-dtype fp8 --quantization modelopt_mixed --attention-backend B12X
          --block-size 256 --moe-backend b12x --linear-backend b12x --no-enable-flashinfer-autotune --load-format instanttensor
          --model-loader-extra-config '{"instanttensor_copy":false}' --max-model-len 1048576 --max-num-seqs 4 --max-num-batched-tokens 4096
          --speculative-config '{"method":"mtp","num_speculative_tokens":5,"moe_backend":"humming","attention_backend":"B12X"}'
          --reasoning-parser glm45 --tool-call-parser glm47 --enable-auto-tool-choice --kv-cache-memory-bytes 10G --gpu-memory-utilization 0.87""",
        environment="""
          CUTE_DSL_ARCH=sm_121a SAFETENSORS_FAST_GPU=1 VLLM_ENABLE_ROCE_ALLREDUCE=1 VLLM_ROCE_ALLREDUCE_MAX_SIZE=2MB VLLM_WORKER_MULTIPROC_METHOD=spawn
          VLLM_SSM_CONV_STATE_LAYOUT=DS VLLM_USE_AOT_COMPILE=1 VLLM_USE_MEGA_AOT_ARTIFACT=1 VLLM_USE_V2_MODEL_RUNNER=1 VLLM_ENABLE_PCIE_ALLREDUCE=0
          B12X_POLICY_MODE=auto INSTANTTENSOR_BACKEND=BUFFERED INSTANTTENSOR_BUFFER_SIZE=67108864 INSTANTTENSOR_CHUNK_SIZE=8388608
          INSTANTTENSOR_CONCURRENCY=1 INSTANTTENSOR_IO_DEPTH=3""",
        changed={"--max-model-len": "500000", "--kv-cache-memory-bytes": "8G"},
        added={
            **COMMON, **RDMA, "HF_MODULES_CACHE": "/root/.cache/vllm/modules", "B12X_ROCE_SPIN_LIMIT": "600000000",
            "--revision": "a608241037e4c2565356bff7ca293f2133888f88",
        },
    ),
    "glm53-flash-dflash2-262k": Recipe(
        model="/models/RedHatAI/GLM-5.3-Flash-NVFP4",
        image="vllm-glm53-flash:sm121-v11-dflash2-topkfix-8223e5b",
        arguments="""
          --served-model-name glm-5.3-flash --host 0.0.0.0 --port 8000 --trust-remote-code --tensor-parallel-size 2 --gpu-memory-utilization 0.85
          --max-model-len 262144 --max-num-seqs 6 --block-size 2304 --moe-backend marlin
          --speculative-config '{"method":"dflash","model":"/models/dflash2-draft","num_speculative_tokens":7}'
          --kv-cache-dtype fp8_e4m3 --kv-cache-memory 8589934592 --enforce-eager --max-num-batched-tokens 8192 --tool-call-parser glm47
          --enable-auto-tool-choice --reasoning-parser glm45 --default-chat-template-kwargs '{"enable_thinking":false}'
          --chat-template /models/glm-5.3-flash-nvfp4/chat_template_mm.jinja --limit-mm-per-prompt '{"image":2,"video":0}'
          --distributed-executor-backend mp --master-port 29521""",
        environment="""
          HF_HOME=/cache/huggingface HF_HUB_OFFLINE=1 TRANSFORMERS_OFFLINE=1 VLLM_ENGINE_READY_TIMEOUT_S=3600 MAX_JOBS=2 FLASHINFER_NVCC_THREADS=1
          TILELANG_CACHE_DIR=/cache/tilelang TRITON_CACHE_DIR=/cache/triton PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True TORCH_CUDA_ARCH_LIST=12.1a
          FLASHINFER_CUDA_ARCH_LIST=12.1a FLASHINFER_DISABLE_VERSION_CHECK=1 NCCL_NET=IB NCCL_IB_DISABLE=0 NCCL_IB_ADDR_RANGE=192.168.192.0/24
          MN_IF_NAME=enp1s0f0np0 NCCL_NVLS_ENABLE=0 NCCL_CROSS_NIC=0 NCCL_IB_MERGE_NICS=0 NCCL_CUMEM_ENABLE=0 NCCL_IGNORE_CPU_AFFINITY=1
          NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=1""",
        changed={
            "--speculative-config": '{"method":"dflash","model":"/models/incoai/GLM-5.3-Flash-DFlash2","num_speculative_tokens":7,'
            '"revision":"bf582e4eacc1810f76656d1811693ff6c6737d2a"}',
            "--kv-cache-memory": "6442450944",
            "--chat-template": "/opt/glm53-flash/chat_template_mm.jinja",
            "NCCL_DEBUG": "INFO",
        },
        added={
            **without(COMMON, "NCCL_DEBUG", "HF_HUB_OFFLINE"), "VLLM_CACHE_ROOT": "/cache/vllm", "FLASHINFER_WORKSPACE_BASE": "/cache/flashinfer",
            "HF_MODULES_CACHE": "/cache/huggingface/modules", "--revision": "36c184c6cda000a481711306df5adde42f63321a",
        },
        left_out=("NCCL_IB_ADDR_RANGE", "MN_IF_NAME"),
    ),
    "qwen38-flash-next-262k": Recipe(
        model="local-inference-lab/Qwen3.8-Flash-Next-NVFP4",
        image="eugr/spark-vllm-b12x:nightly-20260923@sha256:5249a162cd39aa090e803243aef376e1f87f0fd4826f9249ea1ecd0c814b2c7e",
        arguments="""
          --served-model-name qwen3.8-flash-next-4p89bpw --host 0.0.0.0 --port 8000 --trust-remote-code --tensor-parallel-size 2
          --pipeline-parallel-size 1 --mamba-cache-mode align --enable-prefix-caching --enable-chunked-prefill --dtype bfloat16 --kv-cache-dtype fp8
          --quantization modelopt_mixed --block-size 16 --load-format b12x --kv-cache-memory-bytes 21474836480 --max-model-len 262144
          --max-num-seqs 16 --max-num-batched-tokens 8192 --speculative-config
          '{"method":"mtp","num_speculative_tokens":3,"draft_sample_method":"probabilistic","rejection_sample_method":"block"}'
          --mamba-ssm-cache-dtype bfloat16 --gdn-prefill-backend flashinfer --gdn-decode-kernel cuda --linear-backend b12x --moe-backend b12x
          --no-enable-flashinfer-autotune --mm-encoder-tp-mode data --mm-processor-cache-gb 0 --limit-mm-per-prompt '{}' --reasoning-parser qwen3
          --tool-call-parser qwen3_xml --enable-auto-tool-choice --compilation-config '{"pass_config":{"fuse_act_quant":true}}'
          --distributed-executor-backend mp --data-parallel-backend mp --gpu-memory-utilization 0.80 --master-port 29638
          --max-cudagraph-capture-size 64""",
        environment="""
          HOME=/home/user CUDA_HOME=/usr/local/cuda TRITON_CACHE_DIR=/home/user/.cache/triton CUDA_CACHE_PATH=/home/user/.cache/nv
          XDG_CONFIG_HOME=/home/user/.cache/config TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas CUDA_VISIBLE_DEVICES=0 CUTE_DSL_ARCH=sm_121a
          PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True SAFETENSORS_FAST_GPU=1 OMP_NUM_THREADS=16 VLLM_WORKER_MULTIPROC_METHOD=spawn HF_HUB_OFFLINE=1
          TRANSFORMERS_OFFLINE=1 VLLM_PLUGINS=b12x_loader VLLM_SSM_CONV_STATE_LAYOUT=DS VLLM_USE_AOT_COMPILE=1 VLLM_USE_MEGA_AOT_ARTIFACT=1
          VLLM_USE_V2_MODEL_RUNNER=1 VLLM_MXFP8_LM_HEAD=0 VLLM_LM_HEAD_A16=1 VLLM_MTP_NVFP4_LM_HEAD=1 VLLM_QWEN3_8_FLASH_NEXT_OVERLAP=1
          VLLM_QWEN3_8_FLASH_NEXT_MTP_COMPACT=1 VLLM_GDN_SPEC_DECODE_METADATA_FASTPATH=1 B12X_POLICY_MODE=auto VLLM_PLE_CPU_OFFLOAD=0
          B12X_ROCE_HCA=rocep1s0f1,roceP2p1s0f1 NCCL_IB_TC=106 B12X_ROCE_TRAFFIC_CLASS=106 NCCL_IB_MERGE_NICS=1 NCCL_NET_PLUGIN=none NCCL_DEBUG=INFO
          VLLM_ENABLE_PCIE_ALLREDUCE=0 VLLM_ENABLE_ROCE_ALLREDUCE=1 VLLM_ROCE_ALLREDUCE_MAX_SIZE=2MB VLLM_ROCE_ALLGATHER_MAX_SIZE=16MB
          B12X_ROCE_CACHE_DIR=/home/user/.cache/b12x-roce""",
        changed={"--load-format": "safetensors", "B12X_ROCE_CACHE_DIR": "/root/.cache/vllm/b12x-roce"},
        added={
            **without(COMMON, "NCCL_DEBUG", "HF_HUB_OFFLINE"), **RDMA, "HF_MODULES_CACHE": "/root/.cache/vllm/modules",
            "--revision": "7c4f1bc1a2d6847e0cbc01ac6b823f00251de8dd",
        },
        left_out=("HOME", "TRITON_CACHE_DIR", "CUDA_CACHE_PATH", "XDG_CONFIG_HOME", "B12X_ROCE_HCA"),
    ),
    "dsv41-flash-exl3-1m": Recipe(
        model="/cache/huggingface/hub/models--sfxnz--DeepSeek-V4.1-Flash-EXL3/snapshots/4f93d8d2d5fd86de4be4f28495df587639fa6377",
        image="dsv41-flash-exl3-sm121:685323391",
        arguments="""
          --tensor-parallel-size 2 --distributed-executor-backend mp --master-port 29524 --host 0.0.0.0 --port 8000 --max-model-len 1048576
          --kv-cache-dtype fp8 --kv-cache-memory 4294967296 --gpu-memory-utilization 0.75 --max-num-seqs 2 --max-num-batched-tokens 2048
          --compilation-config '{"cudagraph_mode":"FULL_AND_PIECEWISE","cudagraph_capture_sizes":[1,5,6,10,12],"custom_ops":["all"]}'
          --kernel-config '{"enable_flashinfer_autotune":false,"enable_jit_warmup":false}' --block-size 64 --quantization exl3
          --speculative-config '{"method":"dspark","num_speculative_tokens":5,"draft_sample_method":"greedy"}' --mm-encoder-tp-mode data
          --tokenizer-mode deepseek_v41 --tool-call-parser deepseek_v41 --enable-auto-tool-choice --reasoning-parser deepseek_v41
          --default-chat-template-kwargs '{"thinking":false,"reasoning_effort":"low"}' --served-model-name deepseek-ai/DeepSeek-V4.1-Flash
          --trust-remote-code""",
        environment="""
          HF_HOME=/cache/huggingface TORCH_CUDA_ARCH_LIST=12.1a FLASHINFER_CUDA_ARCH_LIST=12.1a FLASHINFER_DISABLE_VERSION_CHECK=1
          VLLM_ENGINE_READY_TIMEOUT_S=3600 PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True VLLM_PLUGINS=vllm_exl3 VLLM_EXL3_MOE_KERNEL=native
          DSV41_ENGRAM_DISK=1 LANGUAGE_MODEL_ONLY=0 MM_ENCODER_TP_MODE=data DSV41_DSPARK_MARKOV_SCALE=1 DSV41_STEP_CENSUS=0 DSV41_INDEX_TOPK=0
          DSV41_MHC_DECODE_SPLITS=0 DSV41_ENGRAM_CACHE=0 DSV41_MHC_NO_DEEPGEMM=0 DSV41_DSPARK_DRAFT_TOPK=0 DSV41_DSPARK_TAIL_NGRAM=0
          DSV41_DSPARK_TAIL_NGRAM_POS=3 DSV41_DSPARK_SOFTMAX_VERIFY=0 DSV41_DSPARK_REFINE_PASS=0 DSV41_DSPARK_CONF_GATE=0 DSV41_MLA_IO_WARPS=0
          DSV41_MLA_CHUNKS_PER_BLOCK=0 DSV41_ALLOW_CUDA_GRAPHS=1 VLLM_USE_BREAKABLE_CUDAGRAPH=1 VLLM_ADAPTIVE_VERIFICATION_PROFILE_CONTEXT_LEN=256
          NCCL_NET=IB NCCL_IB_DISABLE=0 NCCL_CROSS_NIC=1 NCCL_NVLS_ENABLE=0 NCCL_CUMEM_ENABLE=0 NCCL_DEBUG=WARN""",
        changed={"NCCL_DEBUG": "INFO"},
        added={
            **without(COMMON, "NCCL_DEBUG"), "VLLM_CACHE_ROOT": "/cache/huggingface/vllm-cache",
            "HF_MODULES_CACHE": "/cache/huggingface/vllm-cache/modules", "--revision": "4f93d8d2d5fd86de4be4f28495df587639fa6377",
        },
        left_out=("DSV41_DSPARK_REFINE_PASS",),
    ),
    "qwen38-27b-dflash2-262k": Recipe(
        model="nvidia/Qwen3.8-27B-NVFP4",
        image=PLAIN,
        arguments="""
          --host 0.0.0.0 --port 8000 --trust-remote-code --kv-cache-dtype fp8 --gpu-memory-utilization 0.8 --max-model-len 262144 --max-num-seqs 8
          --max-num-batched-tokens 16384 --enable-chunked-prefill --async-scheduling --enable-prefix-caching --speculative-config
          '{"method":"dflash","model":"z-lab/Qwen3.8-27B-DFlash2","num_speculative_tokens":8,"draft_tensor_parallel_size":2}'
          --load-format instanttensor --reasoning-parser qwen3 --tool-call-parser qwen3_xml --enable-auto-tool-choice --tensor-parallel-size 2""",
        environment="",
        changed={
            "--gpu-memory-utilization": "0.7",
            "--speculative-config": '{"method":"dflash","model":"z-lab/Qwen3.8-27B-DFlash2","num_speculative_tokens":8,"draft_tensor_parallel_size":2,'
            '"revision":"50307d4c4cde6860d4eee73e2547cd786fe8e8a4"}',
        },
        added={**COMMON, **RDMA, **MODULES, "--revision": "482ca0f3832238542f8f5295dde86b5f22711d80"},
    ),
    "nemotron3-super-262k": Recipe(
        model="nvidia/NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4",
        image=PLAIN,
        arguments="""
          --kv-cache-dtype fp8 --moe-backend cutlass --trust-remote-code --gpu-memory-utilization 0.7 --max-model-len 262144 --max-num-seqs 10
          --enable-prefix-caching --host 0.0.0.0 --port 8000 --enable-auto-tool-choice --load-format fastsafetensors --tool-call-parser qwen3_coder
          --reasoning-parser nemotron_v3 --mamba-ssm-cache-dtype float32 --tensor-parallel-size 2 --attention-backend TRITON_ATTN
          --distributed-executor-backend ray""",
        environment="VLLM_FLASHINFER_ALLREDUCE_BACKEND=trtllm VLLM_ALLOW_LONG_MAX_MODEL_LEN=1 VLLM_FLOAT32_MATMUL_PRECISION=high",
        changed={"--distributed-executor-backend": "mp"},
        added={**COMMON, **RDMA, **MODULES, "--revision": "ff433f5493e25d631c9f12b5d55c674229923d02"},
    ),
    "minimax-m27-awq-196k": Recipe(
        model="cyankiwi/MiniMax-M2.7-AWQ-4bit",
        image=PLAIN,
        arguments="""
          --trust-remote-code --port 8000 --host 0.0.0.0 --gpu-memory-utilization 0.8 --tensor-parallel-size 2 --distributed-executor-backend ray
          --max-model-len 196608 --load-format instanttensor --enable-auto-tool-choice --tool-call-parser minimax_m2 --reasoning-parser minimax_m2""",
        environment="",
        changed={"--gpu-memory-utilization": "0.82", "--distributed-executor-backend": "mp"},
        added={**COMMON, **RDMA, **MODULES},
    ),
    "gpt-oss-120b-131k": Recipe(
        model="openai/gpt-oss-120b",
        image="nvcr.io/nvidia/vllm:26.05.post1-py3@sha256:9204569b17ee4c0eff75194b8e6e458479c8aee18953b5ab9cf359fcdac659e2",
        arguments="""
          --host 0.0.0.0 --port 8000 --served-model-name gpt-oss-120b-tp2 --max-model-len 131072 --gpu-memory-utilization 0.8 --enable-auto-tool-choice
          --tool-call-parser openai --tensor-parallel-size 2 --distributed-executor-backend ray""",
        environment="""
          VLLM_CACHE_ROOT=/root/.cache/compile/vllm TRITON_CACHE_DIR=/root/.cache/compile/triton TORCHINDUCTOR_CACHE_DIR=/root/.cache/compile/inductor
          HF_HUB_OFFLINE=1 OMPI_MCA_btl_tcp_if_include=enp1s0f0np0 RAY_memory_monitor_refresh_ms=0""",
        changed={"--served-model-name": "gpt-oss-120b", "--distributed-executor-backend": "mp"},
        added={
            **without(COMMON, "HF_HUB_OFFLINE"), **RDMA, **MODULES, "TIKTOKEN_RS_CACHE_DIR": "/root/.cache/vllm/tiktoken",
            "--revision": "b5c939de8f754692c1647ca79fbf85e8c1e70f8a",
        },
        left_out=("VLLM_CACHE_ROOT", "TRITON_CACHE_DIR", "TORCHINDUCTOR_CACHE_DIR", "OMPI_MCA_btl_tcp_if_include", "RAY_memory_monitor_refresh_ms"),
    ),
    "mimo26-flash-300k": Recipe(
        model="/models/hub/models--XiaomiMiMo--MiMo-V2.6-Flash-RL/snapshots/3b38d063180c3e4aed9691fdc735f3d10b266ee4",
        image="vllm-mimo26-flash:sm121-v11-44e56d5",
        arguments="""
          --served-model-name mimo-v2.6-flash --trust-remote-code --tensor-parallel-size 2 --distributed-executor-backend mp --master-port 29650
          --gpu-memory-utilization 0.90 --max-model-len 300000 --max-num-seqs 8 --kv-cache-dtype fp8 --moe-backend marlin --host 0.0.0.0 --port 8888
          --reasoning-parser mimo --tool-call-parser mimo --enable-auto-tool-choice --default-chat-template-kwargs '{"enable_thinking":false}'
          --generation-config auto --override-generation-config '{"repetition_penalty":1.05}'
          --speculative-config '{"method":"dflash","model":"/models/mimo/dflash","num_speculative_tokens":7}'""",
        environment="""
          HF_HOME=/cache/huggingface HF_HUB_OFFLINE=1 VLLM_CACHE_ROOT=/cache/vllm-mimo TRITON_CACHE_DIR=/cache/triton VLLM_ENGINE_READY_TIMEOUT_S=3600
          TORCH_CUDA_ARCH_LIST=12.1a PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True VLLM_USE_DEEP_GEMM=0 PYTHONPATH=/cache/pyextra NCCL_NET=IB
          NCCL_IB_DISABLE=0 NCCL_IB_ADDR_RANGE=192.168.100.0/24 NCCL_CROSS_NIC=0 NCCL_NVLS_ENABLE=0 NCCL_IB_MERGE_NICS=0 NCCL_CUMEM_ENABLE=0
          NCCL_IGNORE_CPU_AFFINITY=1 NCCL_DEBUG=WARN TORCH_NCCL_ASYNC_ERROR_HANDLING=1""",
        changed={
            "--gpu-memory-utilization": "0.82",
            "--speculative-config": '{"method":"dflash","model":"/opt/mimo-dflash","num_speculative_tokens":7,'
            '"revision":"3b38d063180c3e4aed9691fdc735f3d10b266ee4"}',
            "VLLM_CACHE_ROOT": "/cache/vllm", "NCCL_DEBUG": "INFO",
        },
        added={
            **without(COMMON, "NCCL_DEBUG", "HF_HUB_OFFLINE"), "HF_MODULES_CACHE": "/cache/huggingface/modules",
            "--revision": "3b38d063180c3e4aed9691fdc735f3d10b266ee4",
        },
        left_out=("PYTHONPATH", "NCCL_IB_ADDR_RANGE"),
    ),
}  # fmt: skip
