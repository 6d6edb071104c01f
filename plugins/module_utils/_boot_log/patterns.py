# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The grammar of one log line, `wrapper* process* [level] message`, and the expressions and literals that find the facts of a boot in it. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads

#: The stages of a boot in their order: the parser tells them, the gate and the check of an inventory go by them. A stage only goes up.
STAGES = ("none", "args", "config", "rendezvous", "load", "kv", "graphs", "init", "listen", "ready")
STAGE_NUMBER = {name: number for number, name in enumerate(STAGES)}
MAX_TEXT = 600
MAX_RANKS = 1024
MAX_ENGINES = 256
_NO_DIGITS = str.maketrans("", "", "0123456789")
_NUM = r"(\d{1,3}(?: \d{3}){1,4}|\d[\d,._\u00a0\u202f']{0,40}\d|\d)"
_F = r"(-?\d{1,12}(?:\.\d{1,12})?)"
KV = re.compile(r"\b[A-Z][A-Za-z0-9]{0,20}(?: \+ host)? KV cache size: {1,20}" + _NUM + r" tokens")
CONC = re.compile(r"Maximum concurrency for " + _NUM + r" tokens per request: {1,20}(?P<x>\d{1,12}(?:[.,]\d{1,6})?|inf|nan)x")
AVAIL = (
    re.compile(r"Available KV cache memory: {1,20}" + _F + r" GiB"),
    re.compile(r"(?:Initial free memory .{1,80}?)?reserved " + _F + r" ?GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
    re.compile(r"Explicitly set \((\d{1,9}(?:\.\d{1,9})?)/[\d.]{1,20}\) GiB for KV cache"),
    re.compile(r"Applying persisted startup plan .{1,160}?kv_cache_memory_bytes=\d{1,18} \(" + _F + r" GiB\)"),
)
LOAD = re.compile(r"Model loading took " + _F + r" GiB(?: memory)? and (\d{1,9}(?:\.\d{1,9})?) seconds")
WEIGHTS = re.compile(r"Loading weights took (\d{1,9}(?:\.\d{1,9})?) seconds")
GRAPH = re.compile(r"(?<!Encoder )[Gg]raph capturing finished in (\d{1,9}(?:\.\d{1,6})?) secs(?:, took " + _F + r" GiB)?")
INIT = re.compile(
    r"init engine \(profile, create kv cache, warmup model\) took (\d{1,9}(?:\.\d{1,6})?) s(?:econds)?(?: \(compilation: (\d{1,9}(?:\.\d{1,6})?) s)?"
)
ENGINE = re.compile(r"Initializing a V1 LLM engine \(v([^)\s]{1,80})\)")
#: The one sentence of a request's error that is the engine's own; all else there may be a user's text.
DEAD_ENGINE = re.compile(r"vllm\.v1\.engine\.exceptions\.EngineDeadError: EngineCore encountered an issue\. See stack trace \(?above\)? for the root cause\.")
#: The first line of the dump of a dying engine.
DUMP = re.compile(r"(?:Dumping input data for )?V1 LLM engine \(v([^)\s]{1,80})\) with config:")
RANK = re.compile(r"world_size=(?P<world>\d{1,6}) rank=(?P<rank>\d{1,6}) local_rank=-?\d{1,6} distributed_init_method=\S{1,200} backend=\w{1,20}(?:\s|$|,)")
RANK_ASSIGNED = re.compile(r"rank (?P<rank>\d{1,6}) in world size (?P<world>\d{1,6}) is assigned as ")
LISTEN = re.compile(r"Starting vLLM (?:API )?server(?: \d{1,5})? on (https?://\S{1,200})")
PORT = re.compile(r":(\d{1,5})(?:/|$)")
#: What uvicorn prints of a port that is taken.
BIND = re.compile(r"attempting to bind on address \('[^']{0,64}', (\d{1,5})\)")
STOPPED = re.compile(
    r"Shutting down\s*$|Application shutdown complete|Finished server process|Parent process exited|Shutting down FastAPI HTTP server"
    r"|\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received)"
)
#: What stands before a text that is only quoted.
QUOTATION = re.compile(r"['\"{`]|prompt")
ARGS = re.compile(r"non-default args: \{")
READY = re.compile(r"^(?:Application startup complete\b|Uvicorn running on )")
#: The front-end in Rust accepts requests. Before July 2026 the line was about its start, with engine and socket.
READY_RUST = re.compile(r"^(?:OpenAI server is ready to accept requests|starting OpenAI server)\b.{0,200}?\bbind_address=\"?(\S{1,200}?)\"?(?:\s|$)")
ACCESS = re.compile(r'^\s{0,8}(?:[\w.:\[\]()/-]{1,160} - ")?(GET|POST|HEAD|PUT|DELETE|OPTIONS|PATCH) (/[^\s"]{0,2000}) HTTP/[\d.]{1,3}" (\d{3})\b')
UNKNOWN_VARIABLE = re.compile(r"Unknown vLLM environment variable(?: detected)?: ([A-Za-z_]\w{0,100})")
NCCL_VERSION = re.compile(r"vLLM is using nccl==([\d.]{1,20}\d)|NCCL version (\d[\w.+]{1,40})")
NCCL_NETWORK = re.compile(r"NCCL INFO Using network (\S{1,60})")
NCCL_VIA = re.compile(r"via NET/([A-Za-z]\w{0,40})")
NCCL_HCA = re.compile(r"\[\d{1,3}\]([\w.-]{1,40}):(\d{1,3})/(\w{1,20})")
PROGRESS = re.compile(r"(?:Multi-thread l|L)oading[^%|\r]{0,80}?:\s{1,8}(\d{1,3})% Completed \| (\d{1,6})/(\d{1,6})")
CAPTURE = re.compile(r"Capturing CUDA ?[Gg]raphs?[^%|\r]{0,80}?:\s{1,8}(\d{1,3})%\|.{0,400}?\| {0,4}(\d{1,6})/(\d{1,6})")
#: Tokens that were computed in the last seconds.
THROUGHPUT = re.compile(r"t(?:hrough)?put: (?!0{1,9}(?:\.0{1,9})?\b)\d")
STATS = re.compile(r"Avg prompt (?:throughput: .{1,200}?Running: (\d{1,9}) reqs?|tput: .{1,200}?Reqs Running: (\d{1,9}),)")
CFG = {
    "model": re.compile(r"with config: model=['\"]([^'\"]{1,400})['\"]"),
    "dtype": re.compile(r"[ ,]dtype=(?:torch\.)?(\w{1,20})[,)\s]"),
    "max_seq_len": re.compile(r"max_seq_len=(\d{1,12})[,)\s]"),
    "quantization": re.compile(r"[ ,]quantization=([\w.-]{1,60})[,)\s]"),
    "enforce_eager": re.compile(r"enforce_eager=(True|False)[,)\s]"),
    "kv_cache_dtype": re.compile(r"kv_cache_dtype=(?:torch\.)?(\w{1,40})[,)\s]"),
    "speculative_method": re.compile(r"SpeculativeConfig\((?:.{0,200}?[ (])?method=['\"]?([\w.-]{1,60})"),
    "custom_ops": re.compile(r"['\"]custom_ops['\"]: ?\[([^\]]{0,400})\]"),
    "autotune": re.compile(r"enable_flashinfer_autotune=(True|False)[,)\s]"),
    "speculative_none": re.compile(r"speculative_config=(None)[,)\s]"),
}
ARG = re.compile(
    r"['\"]?\b(max_model_len|gpu_memory_utilization|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|node_rank|nnodes|master_addr|"
    r"master_port|port|kv_cache_dtype|kv_cache_memory_bytes|max_num_seqs|max_num_batched_tokens|quantization|attention_backend|enforce_eager|headless|"
    r"distributed_executor_backend|model|block_size|dtype|method)['\"]?\s?[:=]\s?('[^']{0,400}'|\"[^\"]{0,400}\"|-?[\d.]{1,20}|True|False|None)(?=[,)}\s])"
)
GENERATION = re.compile(r"/v\d+/|/generate|/inference|/invocations|/rerank|/score|/pooling|/embed|/classify")
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
#: Classes of what a rank reports if another rank, or its own kernel, ended it.
CONSEQUENCES = frozenset(("unclassified", "peer_lost", "rpc_timeout", "oom_killed"))
#: Classes of what a rank reports when all are stopped.
SHUTDOWN_SYMPTOMS = frozenset(("peer_lost", "rpc_timeout", "nccl_error", "worker_died"))
#: The parent of a failed worker kills its whole process tree; the shell then prints `Killed`.
KILLS_ITSELF = "fatal signal from worker"
#: The first lines of a traceback, which a record of level ERROR of an engine process begins with.
TRACEBACK = "Traceback (most recent call last):"
ENGINE_PROCESS = ("EngineCore", "Worker", "VllmWorker", "RayWorkerWrapper")
#: What ends the line of pydantic that explains a value; the line above it is the name of the field.
DETAIL = ", input_value="
FIELD = re.compile(r"\s{0,2}(?P<field>[A-Za-z_][\w.,()\[\]{}'|-]{0,160})")
#: A line of source code tells of the exception that follows it within so many lines.
TRACEBACK_LINES = 120
#: What can begin a new boot.
BOUNDARY = (
    "version ",
    "non-default args: ",
    "Launching vLLM",
    "Automatically detected platform",
    "Resolved architecture: ",
    "Using max model len ",
    "LLM engine (v",
)
SOURCE_LINE = re.compile(
    r'^\s{0,80}(?:File "|raise |\^|~|return |await |async with |with |self\.|[\w.]{1,60} = |except |from \S+ import|import |frame #\d'
    r"|(?:-{2,6}> ?)?\d{1,6}\s{1,60}(?:raise |return |await |assert |with |except ))"
)


def without_digits(text: str) -> str:
    """Return text without its digits."""
    return text.translate(_NO_DIGITS)


class Rule(NamedTuple):
    """Facts of one expression: the names of its groups. `needle` is in each line that matches. `stage` is reached by such a line."""

    needle: str
    pattern: re.Pattern[str]
    stage: str


def _rule(needle: str, pattern: str, stage: str = "") -> Rule:
    return Rule(needle, re.compile(pattern), stage)


RULES = (
    _rule("API server version ", r"vLLM API server version (?P<api_version>\S{0,79}[\w+])", "args"),
    _rule("version ", r"[▀-▟ ]{3,80}version (?P<banner_version>\d\S{0,78}[\w+])", "args"),
    _rule("█  model ", r"[▀-▟ ]{3,80}model +(?P<banner_model>\S{1,400})"),
    _rule("Automatically detected platform", r"^Automatically detected platform (\w{1,20})", "args"),
    _rule("Resolved architecture: ", r"^Resolved architecture: ", "args"),
    _rule("max model len ", r"Using max model len (?P<max_model_len>\d{1,12})(?:\s|$|[.,])", "config"),
    _rule("Auto-fit max_model_len: ", r"Auto-fit max_model_len: (?:reduced from \d{1,12} to|full model context length) (?P<auto_fit>\d{1,12})"),
    _rule("headless", r"Launching vLLM \(v(?P<headless_version>[^)]{1,80})\) (?P<headless>headless).{0,80}?with head node address \S", "config"),
    _rule("Chunked prefill is enabled", r"^Chunked prefill is enabled", "config"),
    _rule("Waiting for ", r"^Waiting for (?:init message|\d{1,5} (?:local|core)\b)", "config"),
    _rule("Starting to load model", r"^Starting to load model", "load"),
    _rule("Loading ", r"^Loading (?:model from scratch|drafter model)\.\.\.", "load"),
    _rule("Loading ", r"^Loading (?P<drafter>drafter) model\.\.\."),
    _rule("Using model weights format", r"^Using model weights format", "load"),
    _rule("Dynamo bytecode transform", r"^Dynamo bytecode transform time", "load"),
    _rule("torch.compile t", r"^torch\.compile t(?:akes|ook) ", "load"),
    _rule("num_gpu_blocks", r"(?:Engine \d{1,5}: )?(?:vllm )?cache_config_info.{0,80}num_gpu_blocks is: (?P<blocks>\d{1,12})(?:\s|$)"),
    _rule("num_gpu_blocks_override", r"Overriding num_gpu_blocks=[1-9]\d{0,12} with num_gpu_blocks_override=(?P<blocks_override>\d{1,12})"),
    _rule("vllm cache_config_info", r"^Engine \d{1,5}: vllm cache_config_info", "init"),
    _rule("upported", r"^Supported[_ ]tasks: ", "init"),
    _rule(" attention backend", r"Using (?:AttentionBackendEnum\.)?(?P<attention_backend>[A-Z][A-Z0-9_]{1,60}) attention backend out of potential"),
    _rule("AttentionBackendEnum", r"Using AttentionBackendEnum\.(?P<attention_backend>[A-Z0-9_]{1,60}) backend\.?$"),
    _rule(" backend", r"^Using (?P<attention_backend>Flash ?Attention|FlashInfer|Triton|FlashMLA|Cutlass MLA|Torch SDPA|Flex ?Attention|Sparse MLA)"
          r"(?: MLA)? backend(?! (?:for .{0,20}MoE|.{0,20}vit attention))"),
    _rule("MoE", r"^Using '?(?P<moe_backend>[A-Z][\w.+]{0,40}(?: [A-Z][\w.+]{0,40}){0,3}?)'? (?:(?:Unquantized|[A-Z][A-Za-z]{0,9}\d{1,2}) )?MoE backend\b"),
    _rule("MoE", r"^Using (?P<moe_backend>[A-Z][\w.+]{0,40}(?: [A-Z][\w.+]{0,40}){0,3}) backend for [A-Z][A-Za-z]{0,9}\d{1,2} MoE\b"),
    _rule("eager mode", r"^(?P<eager>Cudagraph is disabled under eager mode)"),
    _rule("Enforce eager set", r"^(?P<eager>Enforce eager set)"),
    _rule("Available routes are", r"^Available routes are", "listen"),
    _rule("Route: /", r"^Route: /", "listen"),
)  # fmt: skip


# --- The grammar of one log line, `wrapper* process* [level] message`. Text in, `Line` objects out, no state.

#: A line longer than this keeps its two halves of this many bytes; the middle is dropped.
KEEP = 32768

#: Levels on which a failure class may be named; None is a line without a level (traceback, argparse, kernel, NCCL).
ERROR_LEVELS = frozenset(("ERROR", "CRITICAL", "FATAL", None))

#: vLLM files whose records carry text of users (prompts, requests, dumps): they change no fact and no verdict.
_REQUEST_FILES = re.compile(
    r"(?:^|/)(?:logger|dump_input|serving(?:_\w+)?|serving_[\w.]+|protocol|request_logger|middleware|chat_utils|tool_parsers?|"
    r"\w*_(?:tool_parser|reasoning_parser))\.py$"
)

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[\]_][^\x07\x1b]{0,4096}(?:\x07|\x1b\\)|[()][0-9A-B])")
_LEVEL = re.compile(
    r"(DEBUG|INFO|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}(?:\d{4}-)?(\d\d-\d\d \d\d:\d\d:\d\d)(?:[.,]\d{1,6})?\s{1,4}\[?([\w./<>-]{1,160}):(\d{1,6})\]\s?"
)
_PROC = re.compile(r"[(\[](?:([A-Za-z_][\w.:/()-]{0,160}(?: (?:rank=\d{1,5}|[A-Z]{1,4}\d{1,5}))?),? )?pid=(\d{1,10})(?:, ip=([^)\s]{1,60}))?[)\]]\s?")
#: One wrapper around a line, tried in this order.
_OUTER = (
    r"[\s\ufeff]{1,64}",
    # a time stamp of Docker or of a CI runner
    r"\[?\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d(?:[.,:]\d{1,9})?\s?(?:Z|UTC|[+-]\d\d:?\d\d)?\]?(?::(?=\s))?\s*\|?\s*",
    # journald, also of the kernel and of systemd
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S{1,80} [^\s:\[]{1,80}(?:\[\d{1,10}\])?: \s*",
    # a service of compose
    r"(?![A-Z]{4,8}\s{1,8}\|\s[\w.]{1,80}:[\w<>]{1,80}:\d)[A-Za-z0-9][\w.@-]{0,120}\s{0,40}\|\s{1,4}",
    # torchrun
    r"\[rank\d{1,5}\]:\s?",
    # a progress bar without its line end
    r"[^|]{0,120}\d{1,3}%\|[^|]{0,300}\|\s{0,4}\d{1,9}/\d{1,9} \[[^\]]{1,80}\](?=[\d(\[A-Z])",
)
_WRAPPER = re.compile("|".join(f"(?:{outer})" for outer in _OUTER))
_TIMESTAMP = re.compile(r"(\d{4}[-/]\d\d[-/]\d\d[T ]\d\d:\d\d:\d\d)")
_UVICORN = re.compile(r"(TRACE|DEBUG|INFO|WARNING|ERROR|CRITICAL):\s{1,8}")
_FOREIGN = re.compile(
    r"-?\s?[\w.:/<>-]{0,80}\s{0,4}[-|\[]\s{0,4}(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b\s{0,8}[-|\]]"
    r"|(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\s{1,8}[\w.-]{1,80}:\d{1,6} -- "
    r"|(?:\[[\w.-]{1,40}\]\s?)?\[(DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\]\s"
    r"|[A-Z][\w-]{1,30} (DEBUG|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL): "
    r"|(DEBUG|INFO|WARNING|ERROR|CRITICAL)\s{0,8}\|"
)
_GLOG = re.compile(r"\[?([IWEF])\d{3,4} \d\d:\d\d:\d\d(?:\.\d{1,9})? (?:\s{0,8}\d{1,10} )?(?:[\w./-]{1,160}:\d{1,6}\]\s?)?")
_WARNINGS = re.compile(r"\S{1,300}:\d{1,6}: \w{0,40}Warning: |\w{0,20}Warning: |warnings\.warn\(")
_GLOG_LEVEL = {"I": "INFO", "W": "WARNING", "E": "ERROR", "F": "FATAL"}
_PROGRESS = re.compile(r"\d+/\d+ \[|it/s|s/it|%\|")
_QUOTED = re.compile(r"[\"'{}]|HTTP/")


class Line(NamedTuple):
    """One parsed line.

    level: its level, None without one. foreign: printed by another program's logger, whose text is not a fact about vLLM.
    file: `name.py` of the vLLM record or "". time: `MM-DD HH:MM:SS` of the record or of a wrapper, or "".
    procs: ((name, pid, ip), ...) outermost first.
    """

    level: str | None
    foreign: bool
    file: str
    time: str
    procs: tuple[tuple[str, str, str], ...]
    message: str

    @property
    def is_request(self) -> bool:
        """Whether the record carries users' text."""
        return _is_request(self.file)


@lru_cache(maxsize=128)
def _is_request(file: str) -> bool:
    return _REQUEST_FILES.search(file) is not None


def strip_ansi(text: str) -> str:
    """Remove terminal escapes and trailing spaces."""
    return (_ANSI.sub("", text) if "\x1b" in text else text).rstrip(" ")


def _procs(text: str) -> tuple[tuple[str, str, str], ...]:
    if "pid=" not in text:
        return ()
    return tuple((m.group(1) or "", m.group(2), m.group(3) or "") for m in _PROC.finditer(text))[-4:]


def parse_line(raw: str) -> Line:
    """Parse one line without its line end."""
    return _parse_short(raw) if len(raw) <= 400 else _parse(raw)


@lru_cache(maxsize=256)  # a server that dies and starts again prints the same lines each time, in an agent that must not grow
def _parse_short(raw: str) -> Line:
    return _parse(raw)


def _parse(raw: str) -> Line:
    text = strip_ansi(raw)
    match = _LEVEL.search(text, 0, 2000)
    if match is not None:
        procs = _before_level(text[: match.start()])
        if procs is not None:
            return Line(match.group(1), False, match.group(3), match.group(2), procs, text[match.end() :])
    return _parse_other(text)


@lru_cache(maxsize=64)  # the lines of one process begin alike
def _before_level(prefix: str) -> tuple[tuple[str, str, str], ...] | None:
    """Return the processes before the level of a record, None if it is not a level."""
    quoted = _QUOTED.search(prefix) and not _PROGRESS.search(prefix)
    return None if quoted or _FOREIGN.match(prefix[-200:]) is not None else _procs(prefix[-400:])


def _unwrap(text: str) -> tuple[int, str, tuple[tuple[str, str, str], ...]]:
    """Return where the record in a line begins, the time stamp and the processes before it."""
    at = 0
    procs: list[tuple[str, str, str]] = []
    stamp = ""
    for _round in range(12):
        match = _WRAPPER.match(text, at)
        if match is not None:
            if not stamp:
                found = _TIMESTAMP.search(match.group(0))
                if found is not None:
                    stamp = found.group(1)[5:].replace("/", "-").replace("T", " ")
            at = match.end()
            continue
        match = _PROC.match(text, at)
        if match is None or len(procs) == 4:
            break
        procs.append((match.group(1) or "", match.group(2), match.group(3) or ""))
        at = match.end()
    return at, stamp, tuple(procs)


def _parse_other(text: str) -> Line:
    """Parse a line that is not a record of vLLM's logger: a traceback, uvicorn, NCCL, PyTorch, another program."""
    at, stamp, procs = _unwrap(text)
    level: str | None = None
    foreign = False
    if match := _UVICORN.match(text, at):
        level = "DEBUG" if match.group(1) == "TRACE" else match.group(1)
        at = match.end()
    elif match := _GLOG.match(text, at):
        level = _GLOG_LEVEL[match.group(1)]
        at = match.end()
    elif match := _FOREIGN.match(text, at):
        level = next(g for g in match.groups() if g)
        level = {"WARN": "WARNING", "NOTICE": "INFO"}.get(level, level)
        foreign = True
        at = match.end()
    elif text.startswith('{"', at):  # a JSON record of another program
        level, foreign = "INFO", True
    elif _WARNINGS.match(text, at) is not None or "NCCL WARN " in text[at : at + 200]:
        level = "WARNING"
    elif "NCCL INFO " in text[at : at + 200]:
        level = "INFO"
    return Line(level, foreign, "", stamp, procs, text[at:])


#: A string of a JSON export of a log, which holds one record or several.
_FIELD = re.compile(r'(?:"(?:textPayload|message|msg|log)": ?)?("(?:[^"\\]|\\.){1,65536}"),?\s*$')


def records(raw: str) -> list[Line]:
    """Parse one line into its records: several if it is a string of a JSON export."""
    stripped = raw.lstrip(" \t")
    field = _FIELD.match(stripped) if stripped[:1] == '"' else None
    if field is not None:
        try:
            text = loads(field.group(1))
        except ValueError:
            text = ""
        if text:
            return [parse_line(piece.rstrip()) for piece in re.split(r"\r\n|\n|\r", text)[:2000] if piece]
    return [parse_line(raw)]


def cap(line: bytes) -> bytes:
    """Return the first and the last KEEP bytes of a long line."""
    if len(line) <= 2 * KEEP:
        return line
    return line[:KEEP] + line[-KEEP:]
