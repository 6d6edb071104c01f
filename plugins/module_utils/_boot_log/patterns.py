# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the regular expressions and literals that find the facts of a boot in a line."""

from __future__ import annotations

import re

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import BENIGN
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stages import STAGES

#: A boot's stage only goes up.
STAGE_NUMBER = {name: number for number, name in enumerate(STAGES)}
MAX_TEXT = 600
MAX_RANKS = 1024
MAX_ENGINES = 256
_NUM = r"(\d{1,3}(?: \d{3}){1,4}|\d[\d,._\u00a0\u202f']{0,40}\d|\d)"
_F = r"(-?\d{1,12}(?:\.\d{1,12})?)"
KV = re.compile(r"\b(?P<dev>[A-Z][A-Za-z0-9]{0,20}(?: \+ host)?) KV cache size: {1,20}" + _NUM + r" tokens")
CONC = re.compile(r"Maximum concurrency for " + _NUM + r" tokens per request: {1,20}(?P<x>\d{1,12}(?:[.,]\d{1,6})?|inf|nan)(?P<end>x|$|[\s*`.)\]])")
NUM_BLOCKS = re.compile(r"num_gpu_blocks is: (\d{1,12})(?P<end>\s|$)")
OVERRIDE = re.compile(r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})")
AVAIL = (
    re.compile(r"Available KV cache memory: {1,20}" + _F + r" GiB"),
    re.compile(r"reserved " + _F + r" ?GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
    re.compile(r"Explicitly set \((\d{1,9}(?:\.\d{1,9})?)/[\d.]{1,20}\) GiB for KV cache"),
    re.compile(r"Applying persisted startup plan .{1,160}?kv_cache_memory_bytes=\d{1,18} \(" + _F + r" GiB\)"),
)
LOAD = re.compile(r"Model loading took " + _F + r" GiB(?: memory)? and (\d{1,9}(?:\.\d{1,9})?) seconds")
WEIGHTS = re.compile(r"Loading weights took (\d{1,9}(?:\.\d{1,9})?) seconds")
GRAPH = re.compile(r"(?<!Encoder )[Gg]raph capturing finished in (\d{1,9}(?:\.\d{1,6})?) secs(?:, took " + _F + r" GiB)?")
INIT = re.compile(
    r"init engine \(profile, create kv cache, warmup model\) took (\d{1,9}(?:\.\d{1,6})?) s(?:econds)?(?: \(compilation: (\d{1,9}(?:\.\d{1,6})?) s)?"
)
CTX = re.compile(r"Using max model len (\d{1,12})(?P<end>\s|$|[.,])")
AUTO_FIT = re.compile(r"Auto-fit max_model_len: (?:reduced from (\d{1,12}) to (\d{1,12})|full model context length (\d{1,12}) fits)")
ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)\s]{1,80})\)")
#: The one sentence of a request's error that is the engine's own; all else there may be a user's text.
DEAD_ENGINE = re.compile(r"vllm\.v1\.engine\.exceptions\.EngineDeadError: EngineCore encountered an issue\. See stack trace \(?above\)? for the root cause\.")
#: What a dying engine says of itself, before it prints what it was working on.
DUMP = re.compile(r"(?:Dumping input data for )?V1 LLM engine \(v([^)\s]{1,80})\) with config:")
#: What a version is made of: what a paste puts behind its line end is none of it.
VERSION = re.compile(r"[\w.+!-]{0,79}\w")
API_VERSION = re.compile(r"vLLM API server version (\S{1,80})")
#: What `collect_env.py` prints, often above a pasted log, and the greeting of NVIDIA's container.
ENV_VERSION = re.compile(r"vLLM Version {0,40}:? {0,8}(?<=[ :])(\d\S{0,79})")
BANNER = re.compile(r"[▀-▟ ]{3,80}version (\d\S{0,79})")
#: The same in a record whose block characters and spaces a viewer has dropped or replaced.
BANNER_BARE = re.compile(r"[^A-Za-z\"'{]{0,240}version (\d\S{0,79})$")
BANNER_MODEL = re.compile(r"[▀-▟ ]{3,80}model +(\S{1,400})")
HEADLESS = re.compile(r"Launching vLLM \(v([^)]{1,80})\) headless.{0,80}?with head node address (\S{1,120}?)(?: for|\.?$)")
HEADLESS_DP = re.compile(r"Launching (\d{1,5}) data parallel engine\(s\) in headless mode, with head node address (\S{1,120}?)\.?$")
RANK = re.compile(r"world_size=(\d{1,6}) rank=(\d{1,6}) local_rank=(-?\d{1,6}) distributed_init_method=(\S{1,200}) backend=(\w{1,20})(?P<end>\s|$|,)")
RANK_ASSIGNED = re.compile(r"rank (\d{1,6}) in world size (\d{1,6}) is assigned as (.{0,300})")
RANK_PART = re.compile(r"([A-Z]{2,4}) rank (\d{1,6})(?!\d)")
LEADER = re.compile(r"DP group leader: node_rank=(\d{1,6}), .{0,80}?master_addr=([^\s,]{1,80}),.{0,120}?world_size=(\d{1,6}), local_world_size=(\d{1,6})")
LISTEN = re.compile(r"Starting vLLM (?:API )?server(?: \d{1,5})? on (https?://\S{1,200})")
PORT = re.compile(r":(\d{1,5})(?:/|$)")
#: What uvicorn prints of a port that is taken.
BIND = re.compile(r"attempting to bind on address \('[^']{0,64}', (\d{1,5})\)")
STOPPED = re.compile(
    r"Shutting down\s*$|Application shutdown complete|Finished server process|Parent process exited|Shutting down FastAPI HTTP server"
    r"|\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received)"
)
ARGS = re.compile(r"non-default args: \{")
LOADING = re.compile(r"Starting to load model|Loading model from scratch\.\.\.|Loading drafter model\.\.\.")
#: Records without a figure that tell how far a boot is; a tail may hold no other.
MILESTONE = re.compile(
    r"(?P<config>Chunked prefill is enabled|Waiting for (?:init message|\d{1,5} (?:local|core)\b))"
    r"|(?P<load>Using model weights format|Dynamo bytecode transform time|torch\.compile t(?:akes|ook) )"
    r"|(?P<init>Supported[_ ]tasks: |Engine \d{1,5}: vllm cache_config_info)"
    r"|(?P<listen>Available routes are|Route: /)"
)
PLATFORM = re.compile(r"Automatically detected platform (\w{1,20})")
READY = re.compile(r"^(?:Application startup complete\b|Uvicorn running on )")
#: The front-end in Rust accepts requests; before July 2026 it said that it starts when it had the engine and its socket.
READY_RUST = re.compile(r"^(?:OpenAI server is ready to accept requests|starting OpenAI server)\b.{0,200}?\bbind_address=\"?(\S{1,200}?)\"?(?:\s|$)")
ACCESS = re.compile(r'^\s{0,8}(?:[\w.:\[\]()/-]{1,160} - ")?(GET|POST|HEAD|PUT|DELETE|OPTIONS|PATCH) (/[^\s"]{0,2000}) HTTP/[\d.]{1,3}" (\d{3})\b')
ATTN = (
    re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{1,60}) attention backend out of potential"),
    re.compile(r"Using AttentionBackendEnum\.([A-Z0-9_]{1,60}) backend\.?$"),
    re.compile(
        r"Using (Flash ?Attention|FlashInfer|Triton|FlashMLA|Cutlass MLA|Torch SDPA|Flex ?Attention|Sparse MLA)"
        r"(?: MLA)? backend"
    ),
)
KV_DTYPE = re.compile(r"Using (\w{1,20}) data type to store kv cache")
NCCL_VERSION = re.compile(r"vLLM is using nccl==([\d.]{1,20}\d)|NCCL version (\d[\w.+]{1,40})")
NCCL_NETWORK = re.compile(r"NCCL INFO Using network (\S{1,60})")
NCCL_VIA = re.compile(r"via NET/([A-Za-z]\w{0,40})")
NCCL_LOCAL = re.compile(r"via (P2P|SHM)/")
NCCL_HCA = re.compile(r"\[\d{1,3}\]([\w.-]{1,40}):(\d{1,3})/(\w{1,20})")
NCCL_NO_IB = re.compile(r"NET/IB : No device found")
PROGRESS = re.compile(r"((?:Multi-thread l|L)oading[^%|\r]{0,80}?):\s{1,8}(\d{1,3})% Completed \| (\d{1,6})/(\d{1,6})")
CAPTURE = re.compile(r"(Capturing CUDA ?[Gg]raphs?[^%|\r]{0,80}?):\s{1,8}(\d{1,3})%\|.{0,400}?\| {0,4}(\d{1,6})/(\d{1,6})")
#: Tokens that were computed in the last seconds.
THROUGHPUT = re.compile(r"t(?:hrough)?put: (?!0{1,9}(?:\.0{1,9})?\b)\d")
STATS = re.compile(r"Avg prompt (?:throughput: .{1,200}?Running: (\d{1,9}) reqs?|tput: .{1,200}?Reqs Running: (\d{1,9}),)")
CFG = {
    "model": re.compile(r"with config: model=['\"]([^'\"]{1,400})['\"]"),
    "dtype": re.compile(r"[ ,]dtype=(?:torch\.)?(\w{1,20})[,)\s]"),
    "max_seq_len": re.compile(r"max_seq_len=(\d{1,12})[,)\s]"),
    "tensor_parallel_size": re.compile(r"tensor_parallel_size=(\d{1,6})[,)\s]"),
    "pipeline_parallel_size": re.compile(r"pipeline_parallel_size=(\d{1,6})[,)\s]"),
    "data_parallel_size": re.compile(r"data_parallel_size=(\d{1,6})[,)\s]"),
    "quantization": re.compile(r"[ ,]quantization=([\w.-]{1,60})[,)\s]"),
    "enforce_eager": re.compile(r"enforce_eager=(True|False)[,)\s]"),
    "kv_cache_dtype": re.compile(r"kv_cache_dtype=(?:torch\.)?(\w{1,40})[,)\s]"),
    "speculative_method": re.compile(r"SpeculativeConfig\((?:.{0,200}?[ (])?method=['\"]?([\w.-]{1,60})"),
    "speculative_none": re.compile(r"speculative_config=(None)[,)\s]"),
}
ARG = re.compile(
    r"['\"]?\b(max_model_len|gpu_memory_utilization|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|node_rank|nnodes|master_addr|"
    r"master_port|port|kv_cache_dtype|kv_cache_memory_bytes|max_num_seqs|max_num_batched_tokens|quantization|attention_backend|enforce_eager|headless|"
    r"distributed_executor_backend|model|block_size|dtype|method)['\"]?\s?[:=]\s?('[^']{0,400}'|\"[^\"]{0,400}\"|-?[\d.]{1,20}|True|False|None)(?=[,)}\s])"
)
GENERATION = re.compile(r"/v\d+/|/generate|/inference|/invocations|/rerank|/score|/pooling|/embed|/classify")
BENIGN_NEEDLES = tuple((b["name"], "".join(c for c in b["needle"] if c not in "0123456789")) for b in BENIGN)
DEATH = (
    "EngineDeadError",
    "EngineCore encountered a fatal error",
    "EngineCore hit an exception",
    "died unexpectedly",
    "Executor failed",
    "fatal signal from worker",
    "WorkerProc hit an exception",
    "AsyncLLM output_handler failed",
    "EngineCore failed",
    "Exception in worker VllmWorker",
    "ActorDiedError",
    "terminate called",
)
#: Classes of what a rank says when another one, or its own kernel, ended it.
CONSEQUENCES = frozenset(("unclassified", "peer_lost", "rpc_timeout", "oom_killed"))
#: Classes of what a rank reports when all are stopped.
FAREWELLS = frozenset(("peer_lost", "rpc_timeout", "nccl_error", "worker_died"))
#: The parent of a failed worker kills its whole process tree; the shell then prints `Killed`.
KILLS_ITSELF = "fatal signal from worker"
#: The first lines of a traceback, which a record of level ERROR of an engine process begins with.
TRACEBACK = "Traceback (most recent call last):"
ENGINE_PROCESS = ("EngineCore", "Worker", "VllmWorker", "RayWorkerWrapper")
#: What can begin a new boot.
BOUNDARY = (
    "version ",
    "non-default args: ",
    "Launching vLLM",
    "Automatically detected platform",
    "Resolved architecture: ",
    "Using max model len ",
    "LLM engine (v",
    "usage: vllm",
    ": error: ",
    "== CUDA ==",
    "== vLLM ==",
    "== PyTorch ==",
)
SOURCE_LINE = re.compile(
    r'^\s{0,80}(?:File "|raise |\^|~|return |await |async with |with |self\.|[\w.]{1,60} = |except |from \S+ import|import |frame #\d'
    r"|(?:-{2,6}> ?)?\d{1,6}\s{1,60}(?:raise |return |await |assert |with |except ))"
)
#: The service that printed a line, in what compose puts before it.
SERVICE = re.compile(r"\s{0,8}(?![A-Z]{4,8}\s)([A-Za-z0-9][\w.@-]{0,120})\s{0,40}\|\s")
MAX_SERVICES = 16
#: Classes that any program's exception is of.
ANYBODYS = frozenset(("config_error", "unclassified"))
