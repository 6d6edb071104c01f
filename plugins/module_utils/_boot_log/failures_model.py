# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: failure rows of model and configuration: KV pool, memory budget, arguments, weights. The keys are described in catalogue.py."""

from __future__ import annotations

from typing import Any

#: Texts of exceptions that only repeat that something else failed; never `config_error` or `unclassified`.
GENERIC = (
    "Engine core initialization failed",
    "WorkerProc initialization failed",
    "Worker failed with error",
    "Executor failed",
    "EngineDeadError",
    "EngineCore encountered an issue",
    "See stack trace",
    "CancelledError",
    "ActorDiedError",
    "RayActorError",
    "RayTaskError",
    "BrokenPipeError",
    "KeyboardInterrupt",
    "ExceptionGroup",
    "The above exception was the direct cause",
    "ChildFailedError",
    "KeyError: '/psm_",
    "No such file or directory: '/psm_",
    "ContextTerminated",
    "RuntimeError: cancelled",
    " died with exit code ",
)

#: Frames of the code that proposes and verifies tokens, and names in it.
DRAFTER_CODE = (
    r"/spec_decode/|rejection_sampler\w{0,20}\.py|eagle\w{0,12}\.py|dflash\w{0,12}\.py|dspark\w{0,12}\.py|medusa\w{0,12}\.py|mtp\.py|in propose\b"
    r"|draft_token|draft_prob|num_draft|max_spec_len"
)
#: How exceptions name a drafter.
_DRAFTER = (
    r"\b[Dd]raft(?:er|ers|ing|s)?\b|\bEAGLE\d?\b|\b[Ee]agle\d?\b|\bD[Ff]lash\w{0,10}\b|\bDSpark\w{0,10}\b|\bMTP\b|\bmtp\b|\b[Mm]edusa\b"
    r"|\b[Ss]peculat(?:ive|ion|or)\b|num_speculative_tokens|\bspec[_ ]decod"
)

#: vLLM's own classes of settings.
VLLM_CONFIG = (
    r"(?:(?:Async)?EngineArgs|(?:Attention|Cache|Compilation|ECTransfer|Kernel|KVEvents|KVTransfer|LoRA|Load|Model|MultiModal|Observability|Offload|Parallel"
    r"|Pass|Pooler|Profiler|Reasoning|Scheduler|Speculative|StructuredOutputs|Vllm)Config)(?:\.__init__)?"
)

ROWS: list[dict[str, Any]] = [
    {
        "class": "kv_too_small",
        "patterns": [
            r"To serve at least one request with the model(?:s's|'s|s)? max seq len \((?P<context>\d+)\)"
            r"(?:, ?\(?(?P<need>\d+(?:\.\d+)?) Gi?B KV cache is needed)?"
        ],
        "details": [r"memory \((?P<have>-?\d+(?:\.\d+)?) Gi?B\)", r"estimated maximum model length is (?P<estimate>\d+)"],
        "kind": "strong",
        "remedy": "Set --max-model-len (vllm_tp2_context) to at most {estimate}, the estimate for the tightest rank, or free memory for the pool.",
        "remedy_plain": "Lower --max-model-len (vllm_tp2_context), or give the pool more memory: a higher --gpu-memory-utilization, an fp8 KV cache, "
        "fewer sequences.",
        "needs_peer": "its `Available KV cache memory`: the head raises this even if the worker is the rank that is short",
        "means": "One request of the full context does not fit into the KV pool.",
        "why": "Weights, activations and graphs leave less memory than --max-model-len needs; the pool is as large as the tightest rank allows.",
        "example": "ValueError: To serve at least one request with the model's max seq len (131072), (24.00 GiB KV cache is needed, which is larger "
        "than the available KV cache memory (9.97 GiB). Based on the available memory, the estimated maximum model length is 54432.",
    },
    {
        "class": "kv_no_memory",
        "patterns": [
            r"No available memory for the cache blocks",
            r"\((?P<have>[\d.]+)/(?P<total>[\d.]+) GiB\) on kv cache allocation is less than requested memory for kv(?: \((?P<need>[\d.]+) GiB\))?",
            r"on kv cache allocation is less than requested memory for kv",
            r"Cannot auto-fit max_model_len",
        ],
        "kind": "strong",
        "remedy": "Request less KV memory than the {have} GiB that are free (--kv-cache-memory-bytes requested {need} GiB).",
        "remedy_plain": "Raise --gpu-memory-utilization, or lower --max-num-batched-tokens: weights and activations leave no memory for the KV pool.",
        "means": "No memory, or less than requested, is left for the KV pool.",
        "why": "Weights and activations use the whole memory budget, or the KV size given by flag is larger than the free memory.",
        "example": "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when initializing the engine.",
    },
    {
        "class": "startup_free_memory",
        "patterns": [
            r"(?:Free|Available) memory on (?:device(?: \S{1,40})?|node \d+) \((?P<have>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,60}?is less than "
            r"(?:desired|the engine).{0,60}?\((?P<fraction>[\d.]+), (?P<need>[\d.]+) GiB\)",
            r"(?:Free|Available) memory on (?:device(?: \S{1,40})?|node \d+) \((?P<have>[\d.]+)/(?P<total>[\d.]+) GiB\).{0,60}?is less than "
            r"(?:desired|the engine)",
        ],
        "kind": "strong",
        "remedy": "Only {have} of {total} GiB were free. See what holds the rest: `nvidia-smi` if the GPU has its own memory, else `ps aux --sort=-rss` "
        "and the page cache. Free it, or lower --gpu-memory-utilization (vllm_tp2_gpu_memory_utilization) below {have}/{total}.",
        "means": "At start less memory is free than --gpu-memory-utilization claims.",
        "why": "GB10 has one memory for CPU and GPU: page cache, another container or a leak counts against it. On other GPUs it is another process.",
        "example": "ValueError: Free memory on device cuda:0 (31.44/47.38 GiB) on startup is less than desired GPU memory utilization (0.95, 45.01 GiB).",
    },
    {
        "class": "memory_profiling_race",
        "patterns": [r"Error in memory profiling"],
        "kind": "strong",
        "remedy": "Start the engines on this node one after the other: its free memory changed while vLLM was profiling.",
        "means": "The free memory grew while vLLM measured how much it uses.",
        "why": "Another process released memory during the profile run.",
        "example": "AssertionError: Error in memory profiling. Initial free memory 61.2 GiB, current free memory 70.1 GiB.",
    },
    {
        "class": "mamba_blocks",
        "patterns": [r"exceeds available Mamba cache blocks", r"assert num_cache_lines >= batch"],
        "kind": "strong",
        "remedy": "Lower --max-num-seqs (vllm_tp2_max_num_seqs) and the graph capture sizes: the state cache has fewer lines than sequences may run.",
        "means": "A hybrid or mamba model has fewer state lines than concurrent sequences.",
        "why": "State lines come out of the same pool; the default --max-num-seqs needs more than fit.",
        "example": "ValueError: max_num_seqs (1024) exceeds available Mamba cache blocks (312).",
    },
    {
        "class": "cuda_oom",
        "patterns": [
            r"OutOfMemoryError",
            r"CUDA(?: (?:driver |runtime )?[eE]rror:| failed with error)? out of memory",
            r"Triton Error \[\w{1,8}\]: out of memory",
            r"CUDA_ERROR_OUT_OF_MEMORY",
            r"^Failed: Cuda error \S{1,200} 'out of memory",
            r"(?:cudaSuccess|CUDA_SUCCESS)\b.{0,200}out of memory",
            r"cudaErrorMemoryAllocation",
            r"CU[A-Z]{2,8}_STATUS_ALLOC_FAILED",
            r"expandable_segments: .{0,60}\bOOM\b",
            r"Error: .{0,160}\bOOM\b(?! killer)",
            r"Error: [Oo]ut of memory",
            r"(?:CUDA|[Cc]uda|GPU|NCCL|nccl|Triton|RMM|GDN|[Ff]lash[Ii]nfer|[Dd]evice|cu[A-Z]\w{2,40}|cu(?:blas|dnn)\w{0,20}|[Aa]llocat\w{1,5})\b.{0,160}"
            r"\b(?<!run )(?:[Oo]ut of memory|OUT_OF_MEMORY|out_of_memory)\b",
            r"cuda(?:Malloc|HostAlloc)\w{0,20}\b.{0,80}(?:[Ff]ail|[Oo]ut of memory|[Ee]rror)",
            r"(?:[Ff]ail\w{0,5}|[Ee]rror)\b.{0,60}\bcuda(?:Malloc|HostAlloc)",
            r"\bcuMem(?:Create|Map|Alloc|AddressReserve|HostAlloc)\w{0,20}\b(?!.{0,120}(?:not supported|not permitted|[Ii]nvalid)).{0,80}"
            r"(?:[Ff]ail|OUT_OF_MEMORY|[Ee]rror)",
            r"[Ff]ailed to allocate .{0,80}(?:GPU|CUDA|cuda|VRAM|device memory|on device)\b",
            r"RMM (?:failure|allocation)|rmm::(?:out_of_memory|bad_alloc)|std::bad_alloc: out_of_memory|Maximum pool size exceeded",
            r"Buffer overflow when allocating memory for",  # of FlashInfer's workspace
            # torch asks NVML only after an allocation has failed; a GPU without its own memory has no answer.
            r"NVML_SUCCESS == r INTERNAL ASSERT FAILED at \S{1,200}CUDACachingAllocator",
        ],
        "unless": ["Ignoring this choice"],
        "kind": "strong",
        "remedy": "Lower --gpu-memory-utilization (vllm_tp2_gpu_memory_utilization) by about the memory of the graphs, or lower --max-num-seqs "
        "and the capture sizes.",
        "means": "An allocation on the GPU failed.",
        "why": "Activations, sampler warm-up or graph capture need memory that the KV pool already holds. After the KV line, the utilization is too high.",
        "example": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 298.00 MiB. GPU 0 has a total capacity of 119.63 GiB.",
    },
    {
        "class": "cuda_oom",
        "case": "nccl_memory",
        "patterns": [r"NCCL WARN .{0,200}[Oo]ut of memory"],
        "any_level": True,
        "kind": "weak",
        "remedy": "Lower --gpu-memory-utilization (vllm_tp2_gpu_memory_utilization): NCCL's buffers need GPU memory outside of it. "
        "A smaller NCCL_BUFFSIZE (vllm_tp2_extra_env) needs less.",
        "means": "NCCL could not allocate its buffers on the GPU.",
        "why": "Weights and KV pool claim the memory first; NCCL allocates its buffers at the first collective of each kind.",
        "example": "spark1:301:412 [0] include/alloc.h:228 NCCL WARN Cuda failure 2 'out of memory'",
    },
    {
        "class": "bad_argument",
        "patterns": [
            r"^[`'\"]{0,3}vllm(?: \w[\w-]{0,20})?: error: (?P<message>.{1,300})",
            r"^[`'\"]{0,3}[\w.-]{1,40}\.py: error: (?P<message>.{1,300})",
            r"error: unrecognized arguments: (?P<message>.{1,300})",
            r"error: argument --?\S{1,60}: (?P<message>.{1,300})",
            r"error: the following arguments are required: (?P<message>.{1,300})",
            r"^error: (?P<message>(?:unexpected argument|invalid value|the following required arguments|the argument|unrecognized subcommand) .{1,300})",
            r"argparse\.Argument(?:Type)?Error: (?P<message>.{1,300})",
            r"KeyError: ['\"](?P<message>invalid (?:tool call|reasoning) parser: .{1,300})",
            r"(?:Key|Value)Error: ['\"]?(?P<message>(?:Tool|Reasoning) parser '[^']{1,80}' not found.{0,300})",
        ],
        "kind": "weak",
        "last_words": True,
        "remedy": "Correct or remove this flag, which this vLLM version does not accept: {message}.",
        "means": "The command line was refused before anything started (exit code 2).",
        "why": "The flag is from another vLLM version, or its value has the wrong form.",
        "example": "vllm: error: unrecognized arguments: --no-such-flag 3",
    },
    {
        "class": "context_too_long",
        "patterns": [
            r"User-specified max_model_len \((?P<context>\d+)\) is greater than the derived max_model_len"
            r"(?: \([\w.]{1,60}=(?P<limit>\d+))?"
        ],
        "kind": "weak",
        "remedy": "Set --max-model-len (vllm_tp2_context) to at most {limit}, which the model's config.json allows (or VLLM_ALLOW_LONG_MAX_MODEL_LEN=1).",
        "remedy_plain": "Lower --max-model-len (vllm_tp2_context) to what the model's config.json allows (or set VLLM_ALLOW_LONG_MAX_MODEL_LEN=1).",
        "means": "The requested context is longer than the model supports.",
        "why": "--max-model-len exceeds max_position_embeddings (and its rope scaling) in config.json.",
        "example": "Value error, User-specified max_model_len (999999) is greater than the derived max_model_len (max_position_embeddings=2048.0 or x).",
    },
    {
        "class": "hub_rate_limited",
        "patterns": [
            r"HfHubHTTPError: 429\b",
            r"(?:\b429 Client Error|'429 )[^/]{0,60}https?://(?:[\w.-]{0,60}\.)?(?:huggingface\.co|hf\.co)/",
            r"429[ :]Too Many Requests.{0,160}(?:huggingface\.co|hf\.co)",
            r"We had to rate limit your IP|reached your 'api' rate limit",
        ],
        "unless": ["Error retrieving ", "Error getting repo files", "thrown while requesting", "Retrying in"],
        "kind": "weak",
        "remedy": "Stage the model on every node before the start (`ansible-playbook playbooks/models.yml`) and set HF_HUB_OFFLINE=1 (vllm_tp2_extra_env). "
        "If the engine must ask the hub, wait some minutes and set HF_TOKEN (vllm_tp2_secret_env).",
        "means": "The Hugging Face hub refused the request because too many came from this address (HTTP 429).",
        "why": "vLLM asks the hub at every start unless it is offline, and requests without a token have a low limit.",
        "example": "huggingface_hub.errors.HfHubHTTPError: 429 Client Error: Too Many Requests for url: https://huggingface.co/api/models/org/model",
    },
    {
        "class": "weights_missing",
        "case": "weights_not_in_checkpoint",
        "patterns": [r"weights were not initialized from checkpoint(?:: ?[\[{]?(?P<message>[^\]}]{1,300}))?"],
        "kind": "weak",
        "remedy": "Compare this node's files with the manifest (`ansible-playbook site.yml --tags weights`). If they are complete, the checkpoint does not fit "
        "this vLLM ({message}): pin the revision that served before (model.revision of the profile), or use the vLLM version that the model card names.",
        "remedy_plain": "Compare this node's files with the manifest (`ansible-playbook site.yml --tags weights`). If they are complete, the checkpoint does "
        "not fit this vLLM: pin the revision that served before (model.revision of the profile), or use the vLLM version that the model card names.",
        "needs_peer": "whether its copy is complete",
        "means": "The checkpoint has no tensors for some parameters of the model.",
        "why": "A shard is missing, or a newer revision of the checkpoint names its tensors differently.",
        "example": "ValueError: Following weights were not initialized from checkpoint: {'model.layers.0.mlp.gate.weight'}",
    },
    {
        "class": "weights_missing",
        "patterns": [
            r"LocalEntryNotFoundError",
            r"(?:HFValidationError: |Repo id must be in the form ).{0,120}'(?P<path>[./~][^']{0,300})'",
            r"OfflineModeIsEnabled",
            r"(?P<path>\S{1,300}) does not appear to have (?:a file|files) named",
            r"CacheNotFound",
            r"Cache directory not found: (?P<path>\S{1,300}[^\s.])",
            r"Cannot find any model weights(?: with `(?P<path>[^`]{1,300})`)?",
            r"GatedRepoError|[Aa]ccess (?:a )?gated repo|gated repo for url",
            r"Incorrect path_or_model_id: '(?P<path>[^']{1,300})'",
            r"RepositoryNotFoundError|RevisionNotFoundError|(?<!\w)(?:Remote)?EntryNotFoundError",
            r"OSError: Can't load (?:the )?(?:configuration|model|(?:\w{1,20} )?(?:tokenizer|processor|extractor))(?: of| for) '(?P<path>[^']{1,300})'",
            r"Invalid repository ID or local directory specified: '(?P<path>[^']{1,300})'",
            r"Invalid repository ID or local directory",
            r"is not a local folder and is not a valid model identifier",
            r"couldn't connect to 'https://huggingface\.co'",
            r"HTTPError: (?:40[13] Client|5\d\d Server) Error: .{1,80}? for url: https://huggingface\.co/",
            r"httpx\.(?:Connect|Read)(?:Error|Timeout): ",
            r"Error: .{0,80}\bCAS (?:service error|Client Error)",
            r"HTTPStatusError: Client error '40[13] .{1,80}?' for url 'https://huggingface\.co/",
            r"Error(?:: |\(\")HTTPSConnectionPool\(host='(?:[\w.-]{1,60}\.)?(?:huggingface|hf)\.co', port=443\): (?:Max retries exceeded|Read timed out)",
            r"No supported config format found in '?(?P<path>[^\s']{1,300})",
            r"(?:no file named .{1,200}?|No tokenizer file) found in directory:? (?P<path>\S{1,300}[^\s.])",
            r"No such file or directory: '?(?P<path>[^']{0,300}(?:\.safetensors|\.bin|\.gguf|\.json|tokenizer\.model))",
            r"No such file or directory: \"(?P<path>[^\"]{0,300}(?:\.safetensors|\.bin|\.gguf|\.json|tokenizer\.model))",
        ],
        "unless": [
            "Error retrieving ",
            "Error getting repo files",
            "Arguments: (",
            "thrown while requesting",
            "torch_compile_cache",
            "torchinductor",
            "/.triton/",
        ],
        "kind": "weak",
        "remedy": "Put the model on this node (and every other) and mount it where vLLM looks: {path}.",
        "remedy_plain": "Stage the complete model on every node (`ansible-playbook playbooks/models.yml`), check the mount and the path, "
        "and the token if the hub is used.",
        "needs_peer": "whether it has the model: each rank reads its own copy",
        "means": "The model, or one of its files, is missing.",
        "why": "A path that does not exist in the container is read as a hub name; offline mode or a gated repository then refuse it.",
        "example": "huggingface_hub.errors.HFValidationError: Repo id must be in the form 'repo_name' or 'namespace/repo_name': '/models/absent'.",
    },
    {
        "class": "weights_missing",
        "case": "vocabulary",
        "patterns": [
            r"(?:downloading or loading|to download or load) vocab file",
            r"Error.{0,200}openaipublic\.blob\.core\.windows\.net",
        ],
        "unless": ["Retrying in"],
        "kind": "weak",
        "remedy": "Put o200k_base.tiktoken and cl100k_base.tiktoken on both nodes, and mount the folder (container.volumes of the profile). "
        "Set TIKTOKEN_ENCODINGS_BASE (vllm_tp2_extra_env) to its path in the container.",
        "means": "The vocabulary of the gpt-oss models is missing; it is not part of the checkpoint.",
        "why": "The harmony library downloads it at the first start, and the container has no access to the internet.",
        "example": "openai_harmony.HarmonyError: error downloading or loading vocab file: failed to download or load vocab file",
    },
    {
        "class": "weights_corrupt",
        "patterns": [
            r"SafetensorError: (?P<message>.{1,200})",
            r"SafetensorError",
            r"Error while deserializing header",
            r"incomplete metadata, file not fully covered",
            r"MetadataIncompleteBuffer",
            r"HeaderTooLarge",
            r"Error: (?P<message>PytorchStreamReader failed .{1,200})",
            r"UnpicklingError: (?P<message>invalid load key.{0,100})",
            r"(?P<message>Consistency check failed: file should be of size \d.{1,120})",
        ],
        "unless": ["does not contain tensor"],
        "kind": "weak",
        "remedy": "Compare this node's copy of the model with the manifest (`ansible-playbook site.yml --tags weights`) and copy the damaged shard again.",
        "needs_peer": "whether its copy is whole: copy the shard from the rank that has it",
        "means": "A safetensors shard is truncated or damaged on this node.",
        "why": "A copy or download was interrupted, or the disk was full.",
        "example": "safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered",
    },
    {
        "class": "config_error",
        "case": "weights_mismatch",
        "patterns": [
            r"(?P<message>Attempted to load weight \(.{1,80}?\) into parameter(?: \(.{1,60}\))?)",
            r"(?P<message>Tried to load weights of size .{1,160})",
            r"(?P<message>size mismatch for \S{1,160}: copying a param)",
            r"(?P<message>(?:Missing|Unexpected) key\(s\) in state_dict.{0,200})",
            r"Error: (?=.{0,200}(?:[Ww]eight|[Pp]aram|[Cc]heckpoint|\blayers\.))(?P<message>.{0,120}\b(?:[Ss]hape|[Ss]ize)s? (?:mismatch|do(?:es)? not match)"
            r".{0,160})",
            r"Error: (?P<message>File does not contain tensor .{1,160})",
            r"Error: (?P<message>.{0,40}\b(?:[Ww]eight|[Pp]arameter|[Tt]ensor)s? .{1,160} (?:not found|missing|does not exist) (?:in|from) .{1,100})",
            r"(?:Error: |Value error, )(?P<message>.{0,120}\bquant(?:[_ ]|ization[_ ])?algo(?:rithm)?\b.{0,200})",
            r"KeyError: (?P<message>'(?:NV|MX)?FP\d\w{0,40}'|'W\dA\d\w{0,40}')",
            r"Error: (?P<message>ModelOpt currently only supports.{0,200})",
            r"Error: (?P<message>.{0,80}[Nn]o compressed-tensors compatible scheme.{0,100})",
            r"AttributeError: (?P<message>'\w{1,60}' object has no attribute"
            r" '(?:(?:w\d{1,2}_)?(?:weight|input|[kvq])_(?:scale|packed|zero_point|global_scale|shape)\w{0,20}|w\d{1,2}_weight|q(?:weight|zeros)|g_idx)')",
            r"(?P<message>KeyError: '[\w.]{0,240}(?:layers\.\d{1,4}\.|_proj\b|experts\b|(?:weight|scale|bias|qzeros|g_idx)"
            r"(?:_packed|_scale|_scale_inv|_scale_2|_global_scale|_zero_point|_shape)?')[^']{0,200}'?)",
            r"ValueError: (?P<message>(?:too many|not enough) values to unpack.{0,60})",
            r"Error: (?P<message>There is no (?:module or parameter|parameter|module) named .{1,200})",
            r"Error: (?P<message>.{0,160}\bhas no (?:parameter|weight|tensor)s? .{1,200})",
            r"Error: (?P<message>(?:Unexpected|Unrecognized|Unknown) (?:weight|parameter|tensor)s?\b.{1,200})",
            r"ValueError: (?P<message>'[\w.]{1,160}' was skipped because it is tied to .{1,200}[^\s.])",
            r"RuntimeError: (?P<message>start \(\d{1,12}\) \+ length \(\d{1,12}\) exceeds dimension size.{0,60})",
            r"^\s{0,12}(?P<message>assert (?:param\w{0,20}(?:\.data)?\.(?:shape|size\(\)) == loaded_weight\.(?:shape|size\(\))"
            r"|layer\.[kv]_scale > 0\S{0,4}))\s{0,8}$",
        ],
        "unless": [*GENERIC, "KeyError: 'invalid "],
        "kind": "weak",
        "remedy": "The checkpoint or its quantization does not fit this vLLM ({message}). Use the vLLM version that the model card names, "
        "or another checkpoint, and check --quantization and --kv-cache-dtype. If another revision of it served before, pin that one (model.revision of the "
        "profile). If the traceback names torch_compile_cache, empty that cache.",
        "means": "The tensors of the checkpoint do not have the names or shapes that this vLLM expects.",
        "why": "The model code of this version, the quantization format, or the draft model does not match the checkpoint.",
        "example": "AssertionError: Attempted to load weight (torch.Size([4096, 12288])) into parameter (torch.Size([4096, 8192]))",
    },
    {
        "class": "config_error",
        "case": "invalid_json",
        "patterns": [
            r"(?:JSONDecodeError: |Value error, |ValueError: )"
            r"(?P<message>(?:Expecting |Extra data|Unterminated |Invalid )[^:]{0,60}: line \d{1,9} column \d{1,9}(?: \(char \d{1,12}\))?)",
        ],
        "unless": list(GENERIC),
        "kind": "weak",
        "remedy": "Find the file or the argument that is not valid JSON ({message}): an empty or truncated *.json of the model "
        "(`ansible-playbook site.yml --tags weights` compares the manifest), or a JSON value in vllm_tp2_extra_args.",
        "means": "A JSON file of the model, or a JSON argument, cannot be parsed.",
        "why": "A copy or download was interrupted, git-lfs left a pointer, or quotes were lost on the command line.",
        "example": "json.decoder.JSONDecodeError: Expecting value: line 1 column 1 (char 0)",
    },
    {
        "class": "config_error",
        "case": "drafter_config",
        "within": DRAFTER_CODE,
        "names": _DRAFTER,
        "patterns": [
            r"(?:Value|Assertion|NotImplemented)Error: (?P<message>.{1,300})",
            r"^\s{0,8}Value error, (?P<message>.{1,300})",
            r"^(?:\[rank\d{1,4}\]: ?)?(?:AssertionError|NotImplementedError)$",
        ],
        "unless": [*GENERIC, ", in load", ", in _load", ", in __init__"],
        "kind": "weak",
        "remedy": "Change speculative-config (engine.args of the profile) or leave it out: the drafter does not fit this model or this vLLM ({message}). "
        "The drafter's model card names the checkpoint of the model, its quantization and the vLLM version that it needs. If it fails only with several "
        "requests at a time, start with --max-num-seqs 1 or --no-async-scheduling.",
        "remedy_plain": "Leave speculative-config out (engine.args of the profile), or use an image with a newer vLLM or another drafter: its code failed. "
        "If it fails only with several requests at a time, start with --max-num-seqs 1 or --no-async-scheduling.",
        "means": "The drafter (speculative decoding) does not work with this model, this vLLM or these requests.",
        "why": "The drafter needs another checkpoint of the model, for example without a quantized head, or a newer vLLM. Some fail with several requests.",
        "example": "ValueError: The drafter requires an unquantized LM head of the target model.",
    },
    {
        "class": "config_error",
        "case": "setting_unknown",
        "patterns": [
            r"(?:(?:Value|Key|NotImplemented|Assertion|Type)Error: |^\s{0,8}Value error, )['\"]?(?P<message>(?:Unknown|Unrecogni[sz]ed) \S.{0,300})",
            r"(?:(?:Value|Key|NotImplemented|Assertion)Error: |^\s{0,8}Value error, )['\"]?(?P<message>.{0,120}(?:[Ii]nvalid|not a valid|[Uu]nsupported"
            r"|[Nn]ot supported|not recognized|[Uu]nknown)\b.{0,160}\b(?:[Vv]alid|[Ss]upported|[Aa]vailable|[Aa]llowed|[Kk]nown|[Pp]ossible) "
            r"(?:\w{1,20} ){0,2}?(?:are|is|options|values|include|choices|ones|backends|methods|types)\b.{0,200})",
            r"ValueError: (?P<message>'[^']{1,80}' is not a valid \w{1,60})",
            r"KeyError: (?P<message>'\w{0,40}(?:ATTN|MLA|FLASH|TRITON|CUTLASS|MARLIN|B12X)\w{0,40}')",
            r"AttributeError: (?P<message>(?:type object )?'?\w{0,60}(?:Backend|Enum)'? has no attribute '\w{1,80}')",
            rf"TypeError: (?P<message>{VLLM_CONFIG}\(\) got an unexpected keyword argument '\w{{1,80}}')",
            r"^\s{0,8}(?:Value error, |Assertion failed, )?(?P<message>\S.{0,600}?) \[type="
            r"(?:literal_error|enum|extra_forbidden|unexpected_keyword_argument|unexpected_positional_argument|no_such_attribute), input_value=",
        ],
        "unless": list(GENERIC),
        "kind": "weak",
        "remedy": "This vLLM does not know a name or a value that it was given: {message}. Use the image that the recipe was made for, pinned by its digest "
        "(a tag can move to another version), or change the setting.",
        "means": "vLLM refused a setting that this version does not know.",
        "why": "The recipe is for another vLLM version or fork. A tag such as latest gets another image when it is pulled again.",
        "example": "Value error, Unknown attention backend: 'EXAMPLE'. Valid options are: FLASH_ATTN, FLASHINFER",
    },
    {
        "class": "config_error",
        "patterns": [
            r"ValidationError: \d{1,4} validation errors? for \S{1,120}$|ValueError: (?:invalid literal for \w{1,10}\(\)|could not convert string to )",
            r"^\s{0,8}(?:Value error, |Assertion failed, )?(?P<message>\S.{0,600}?) \[type=\w{1,60}, input_value=",
            r"(?:ValueError|ValidationError|AssertionError|NotImplementedError): (?P<message>.{1,300})",
            r"^\s{0,8}Value error, (?P<message>.{1,300})",
            r"^(?:\w[\w.]{0,100}\.)?(?:AssertionError|NotImplementedError|ValueError)$",
        ],
        "unless": list(GENERIC),
        "kind": "weak",
        "remedy": "Change the setting that vLLM names: {message}",
        "remedy_plain": "Read the lines next to this one: vLLM names no setting in it. If they name none either, compare vllm_tp2_extra_args and engine.args "
        "of the profile with the vLLM version of the image.",
        "means": "vLLM refused the configuration.",
        "why": "The line names it: a value out of range, or a combination that this model or backend does not support.",
        "example": "ValueError: Invalid launch options: `--node-rank` must be between 0 and 1; got `--node-rank 2`.",
    },
    {
        "class": "unclassified",
        "case": "drafter_error",
        "within": DRAFTER_CODE,
        "names": _DRAFTER,
        "patterns": [
            r"(?:Runtime|Index|Type|Key|Attribute)Error: (?P<message>.{1,300})",
            r"^\s{0,12}assert (?P<message>.{0,80}(?:draft_|num_draft|spec_len).{0,100})",
        ],
        "unless": [*GENERIC, ", in load", ", in _load", ", in __init__"],
        "kind": "weak",
        "remedy": "Start without the drafter (speculative-config), or with --max-num-seqs 1 or --no-async-scheduling (vllm_tp2_extra_args): "
        "its code failed ({message}). If that serves, use an image with a newer vLLM, another drafter, or fewer num_speculative_tokens.",
        "means": "The code of the drafter failed while it proposed or verified tokens.",
        "why": "Drafters (MTP, EAGLE, DFlash) have errors that only several requests at a time show, often together with async scheduling.",
        "example": "    assert draft_token_ids.shape[0] == sum(num_draft_tokens)",
    },
    {
        "class": "unclassified",
        "patterns": [
            r"^(?:\[rank\d{1,4}\]: ?)?(?:[A-Za-z_]\w{0,60}\.){0,8}(?P<name>(?:[A-Z_]\w{0,60})?(?:Error|Exception)): (?P<message>.{1,300})",
            r"^(?:[A-Za-z_]\w{0,60}\.){0,8}(?P<name>[A-Z]\w{0,60}(?:Error|Exception))$",
            r"^(?:[A-Za-z_]\w{0,60}\.){1,8}(?:exc|exceptions|errors?)\.(?P<name>[A-Z]\w{0,60})(?:: (?P<message>.{1,300})|$)",
            r"^(?:[A-Za-z_]\w{0,60}\.){1,8}(?P<name>(?:gai)?error|timeout|TimeoutExpired|\w{0,40}(?:Error(?:_\w{1,40})?|Timeout)): (?P<message>.{1,300})",
            r"Error executing method (?P<message>'\w{1,60}')",
        ],
        "unless": list(GENERIC),
        "kind": "weak",
        "pick": "last",
        "remedy": "Read this line and the lines above it: {message}",
        "remedy_plain": "Read this line and the lines above it.",
        "means": "An error that the catalogue does not know.",
        "why": "The last exception before the engine went down is shown.",
        "example": "RuntimeError: an error without a class of its own",
    },
]
