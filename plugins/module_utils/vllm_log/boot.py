# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: one boot of one vLLM: takes peeled lines in their order, holds the facts and failures, tells its state. Bounded memory."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils.boot_stages import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils.failure_catalogue import BENIGN, CATALOGUE
from ansible_collections.gb10.cluster.plugins.module_utils.vllm_log.peel import ERROR_LEVELS, Line, redact

#: A boot's stage only goes up.
_STAGE_NUMBER = {name: number for number, name in enumerate(STAGES)}

MAX_TEXT = 600
MAX_RANKS = 1024
MAX_ENGINES = 256

_NUM = r"(\d{1,3}(?: \d{3}){1,4}|\d[\d,._\u00a0\u202f']{0,40}\d|\d)"
_F = r"(-?\d{1,12}(?:\.\d{1,12})?)"

KV = re.compile(r"\b(?P<dev>[A-Z][A-Za-z0-9]{0,20}(?: \+ host)?) KV cache size: {1,20}" + _NUM + r" tokens")
CONC = re.compile(r"Maximum concurrency for " + _NUM + r" tokens per request: {1,20}(?P<x>\d{1,12}(?:[.,]\d{1,6})?|inf|nan)(?P<end>x|$|[\s*`.)\]])")
BLOCKS = re.compile(r"# (?P<dev>\w{1,20}) blocks: (\d{1,12})(?P<end>,|\s|$)(?: ?# CPU blocks: (\d{1,12}))?")
NUM_BLOCKS = re.compile(r"num_gpu_blocks is: (\d{1,12})(?P<end>\s|$)")
OVERRIDE = re.compile(r"Overriding num_gpu_blocks=(\d{1,12}) with num_gpu_blocks_override=(\d{1,12})")
AVAIL = (
    re.compile(r"Available KV cache memory: {1,20}" + _F + r" GiB"),
    re.compile(r"reserved " + _F + r" ?GiB memory for KV Cache as specified by kv_cache_memory_bytes"),
    re.compile(r"Explicitly set \((\d{1,9}(?:\.\d{1,9})?)/[\d.]{1,20}\) GiB for KV cache"),
    re.compile(r"the rest of the memory reserved for KV Cache is " + _F + r" ?GiB"),
    re.compile(r"Applying persisted startup plan .{1,160}?kv_cache_memory_bytes=\d{1,18} \(" + _F + r" GiB\)"),
)
LOAD = re.compile(r"Model loading took " + _F + r" (?:GiB|GB)(?: memory)? and (\d{1,9}(?:\.\d{1,9})?) seconds")
LOAD_V07 = re.compile(r"Loading model weights took " + _F + r" (?:GiB|GB)")
WEIGHTS = re.compile(r"Loading weights took (\d{1,9}(?:\.\d{1,9})?) seconds")
GRAPH = re.compile(r"(?<!Encoder )[Gg]raph capturing finished in (\d{1,9}(?:\.\d{1,6})?) secs(?:, took " + _F + r" GiB)?")
INIT = re.compile(
    r"init engine \(profile, create kv cache, warmup model\) took (\d{1,9}(?:\.\d{1,6})?) s(?:econds)?(?: \(compilation: (\d{1,9}(?:\.\d{1,6})?) s)?"
)
CTX = re.compile(r"Using max model len (\d{1,12})(?P<end>\s|$|[.,])")
AUTO_FIT = re.compile(r"Auto-fit max_model_len: (?:reduced from (\d{1,12}) to (\d{1,12})|full model context length (\d{1,12}) fits)")
ENGINE = re.compile(r"(?:Initializing (?:a V[01] |an )?LLM engine) \(v([^)\s]{1,80})\)")
#: The same of an engine that does not tell its version.
ENGINE_PLAIN = re.compile(r"Initializing an LLM engine with config: ")
#: The one sentence of a request's error that is the engine's own; all else there may be a user's text.
DEAD_ENGINE = re.compile(
    r"vllm\.v1\.engine\.exceptions\.EngineDeadError: EngineCore encountered an issue\. See stack trace \(?above\)? for the root cause\."
    r"|vllm\.engine\.multiprocessing\.MQEngineDeadError: Engine loop is not running\. Inspect the stacktrace to find the original error: "
    r"RuntimeError\('Engine process \(pid \d{1,10}\) died\.'\)\."
)
#: What a dying engine says of itself, before it prints what it was working on.
DUMP = re.compile(r"(?:Dumping input data for )?V[01] LLM engine \(v([^)\s]{1,80})\) with config:")
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
STOPPED = re.compile(
    r"Shutting down\s*$|Application shutdown complete|Finished server process|Parent process exited|Shutting down FastAPI HTTP server"
    r"|\[shutdown\] (?:API server: shutdown triggered|EngineCore: trigger received)"
)
ARGS = re.compile(r"(?:non-default )?args: (?:\{|Namespace\()")
LOADING = re.compile(r"Starting to load model|Loading model (?:from scratch\.\.\.|with MODEL_IMPL_TYPE=)|Loading drafter model\.\.\.")
#: Records without a figure that tell how far a boot is; a tail may hold no other.
MILESTONE = re.compile(
    r"(?P<config>Chunked prefill is enabled|Waiting for (?:init message|output from MQLLMEngine|\d{1,5} (?:local|core)\b))"
    r"|(?P<load>Using model weights format|Dynamo bytecode transform time|torch\.compile t(?:akes|ook) )"
    r"|(?P<init>Supported[_ ]tasks: |Engine \d{1,5}: vllm cache_config_info)"
    r"|(?P<listen>Available routes are|Route: /)"
)
PLATFORM = re.compile(r"(?:Automatically detected platform|Platform plugin) (\w{1,20})")
READY = re.compile(r"^(?:Application startup complete\b|Uvicorn running on )")
#: The front-end in Rust accepts requests; before July 2026 it said that it starts when it had the engine and its socket.
READY_RUST = re.compile(r"^(?:OpenAI server is ready to accept requests|starting OpenAI server)\b.{0,200}?\bbind_address=\"?(\S{1,200}?)\"?(?:\s|$)")
ACCESS = re.compile(r'^\s{0,8}(?:[\w.:\[\]()/-]{1,160} - ")?(GET|POST|HEAD|PUT|DELETE|OPTIONS|PATCH) (/[^\s"]{0,2000}) HTTP/[\d.]{1,3}" (\d{3})\b')
ATTN = (
    re.compile(r"Using (?:AttentionBackendEnum\.)?([A-Z][A-Z0-9_]{1,60}) attention backend out of potential"),
    re.compile(r"Using AttentionBackendEnum\.([A-Z0-9_]{1,60}) backend\.?$"),
    re.compile(
        r"Using (Flash ?Attention|FlashInfer|Triton|FlashMLA|Cutlass MLA|Torch SDPA|XFormers|Flex ?Attention|Sparse MLA|ROCmFlashAttention|Pallas)"
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
GRAPH_MEMORY = re.compile(r"CUDA graph pool memory: " + _F + r" GiB \(actual\)")
PROGRESS = re.compile(r"((?:Multi-thread l|L)oading[^%|\r]{0,80}?):\s{1,8}(\d{1,3})% Completed \| (\d{1,6})/(\d{1,6})")
CAPTURE = re.compile(r"(Capturing CUDA ?[Gg]raphs?[^%|\r]{0,80}?):\s{1,8}(\d{1,3})%\|.{0,400}?\| {0,4}(\d{1,6})/(\d{1,6})")
#: Tokens that were computed in the last seconds.
THROUGHPUT = re.compile(r"t(?:hrough)?put: (?!0{1,9}(?:\.0{1,9})?\b)\d")
STATS = re.compile(r"Avg prompt (?:throughput: .{1,200}?Running: (\d{1,9}) reqs?|tput: .{1,200}?Reqs Running: (\d{1,9}),)")
_CFG = {
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
    "speculative_draft": re.compile(r"SpeculativeConfig\(draft_model=['\"]?(\[?[\w./-]{1,200}\]?)['\"]?[,)]"),
    "speculative_none": re.compile(r"speculative_config=(None)[,)\s]"),
}
_ARG = re.compile(
    r"['\"]?\b(max_model_len|gpu_memory_utilization|tensor_parallel_size|pipeline_parallel_size|data_parallel_size|node_rank|nnodes|master_addr|"
    r"master_port|port|kv_cache_dtype|kv_cache_memory_bytes|max_num_seqs|max_num_batched_tokens|quantization|attention_backend|enforce_eager|headless|"
    r"distributed_executor_backend|model|block_size|dtype|method)['\"]?\s?[:=]\s?('[^']{0,400}'|\"[^\"]{0,400}\"|-?[\d.]{1,20}|True|False|None)(?=[,)}\s])"
)
_GENERATION = re.compile(r"/v\d+/|/generate|/inference|/invocations|/rerank|/score|/pooling|/embed|/classify")

_BENIGN_NEEDLES = tuple((b["name"], "".join(c for c in b["needle"] if c not in "0123456789")) for b in BENIGN)
_DEATH = (
    "EngineDeadError",
    "EngineCore encountered a fatal error",
    "EngineCore hit an exception",
    "died unexpectedly",
    "Executor failed",
    "fatal signal from worker",
    "WorkerProc hit an exception",
    "Engine loop has died",
    "Engine process (pid",
    "MQLLMEngine is already dead",
    "AsyncLLMEngine has failed",
    "AsyncLLMEngine is already dead",
    "Engine loop is not running",
    "AsyncLLM output_handler failed",
    "Background loop has errored",
    "Engine background task failed",
    "EngineCore failed",
    "ActorDiedError",
    "terminate called",
)
#: Classes of what a rank says when another one, or its own kernel, ended it.
_CONSEQUENCES = frozenset(("unclassified", "peer_lost", "rpc_timeout", "oom_killed"))
#: Classes of what a rank says of the others when all are stopped.
_FAREWELLS = frozenset(("peer_lost", "rpc_timeout", "nccl_error"))
#: What can begin a new boot.
_BOUNDARY = (
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
_SERVING_STAGE = _STAGE_NUMBER["listen"]
#: The service that printed a line, in what compose puts before it.
SERVICE = re.compile(r"\s{0,8}(?![A-Z]{4,8}\s)([A-Za-z0-9][\w.@-]{0,120})\s{0,40}\|\s")
MAX_SERVICES = 16
#: Classes that any program's exception is of.
_ANYBODYS = frozenset(("config_error", "unclassified"))


class Classifier(NamedTuple):
    """A failure class ready to run."""

    name: str
    order: int
    needles: tuple[str, ...]
    plain: tuple[str, ...]
    patterns: tuple[re.Pattern[str], ...]
    details: tuple[re.Pattern[str], ...]
    unless: tuple[str, ...]
    aftermath: tuple[re.Pattern[str], ...]
    any_level: bool
    kind: str
    last: bool
    users: bool
    entry: dict[str, Any]


def undigited(text: str) -> str:
    """Return text without its digits."""
    return "".join(c for c in text if c not in "0123456789")


_compiled: list[Classifier] = []


def compile_catalogue(extra: list[dict[str, Any]]) -> list[Classifier]:
    """Compile the catalogue, alone only once; `extra` are user entries in catalogue shape and come first."""
    if not extra and _compiled:
        return list(_compiled)
    out = []
    for order, entry in enumerate([*extra, *CATALOGUE]):
        out.append(
            Classifier(
                entry["class"],
                order,
                tuple(entry.get("needles", ())),
                tuple(undigited(n) for n in entry.get("needles", ())),
                tuple(re.compile(p) for p in entry["patterns"]),
                tuple(re.compile(p) for p in entry.get("details", ())),
                tuple(entry.get("unless", ())),
                tuple(re.compile(p) for p in entry.get("aftermath", ())),
                bool(entry.get("any_level", False)),
                entry["kind"],
                entry["pick"] == "last",
                order < len(extra),
                entry,
            )
        )
    if not extra:
        _compiled.extend(out)
    return out


class Plan(NamedTuple):
    """What a text may hold, told by the literals in it; the same for all lines of one shape."""

    classifiers: tuple[Classifier, ...]
    death: bool
    hit: bool
    boundary: bool
    benign: tuple[str, ...]
    always: tuple[Callable[..., bool], ...]
    facts: tuple[Callable[..., bool], ...]


def any_of(literals_: list[str]) -> str:
    """Return an expression for any of these literals, in this order where they begin alike: one first letter, one branch, which is what makes it fast."""
    branches: dict[str, list[str]] = {}
    for literal in literals_:
        branches.setdefault(literal[0], []).append(re.escape(literal[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in branches.items())


class _Literals:
    """All literals of facts and failures, found in a text in one pass."""

    def __init__(self) -> None:
        needles = {undigited(n) for n in (*_DEATH, *_BOUNDARY)}
        needles.update(needle for _name, needle in _BENIGN_NEEDLES)
        for entry in CATALOGUE:
            needles.update(undigited(n) for n in entry["needles"])
        for literals, _method in (*ALWAYS, *FACTS):
            needles.update(literals)
        ordered = sorted(needles, key=len, reverse=True)
        self.inside = {n: frozenset(m for m in ordered if m in n) for n in ordered}
        self.expression = any_of(ordered)
        self.pattern = re.compile(self.expression)
        self.all = ordered

    def found(self, text: str) -> set[str]:
        """Return the literals in a text, also those that overlap."""
        if len(text) > 600:
            return {n for n in self.all if n in text}
        out: set[str] = set()
        search = self.pattern.search
        match = search(text)
        while match is not None:
            literal = match.group(0)
            if literal not in out:
                out |= self.inside[literal]
            match = search(text, match.start() + 1)
        return out


_literals: list[_Literals] = []


def literals() -> _Literals:
    """Return the literals, collected once."""
    if not _literals:
        _literals.append(_Literals())
    return _literals[0]


def plan_for(text: str, classifiers: list[Classifier]) -> Plan:
    """Choose what to try on a line with this text, from which the digits are gone."""
    found = literals().found(text)
    death = [n for n in _DEATH if n in found]
    return Plan(
        tuple(c for c in classifiers if not c.needles or not found.isdisjoint(c.plain)),
        bool(death),
        death == ["WorkerProc hit an exception"],
        not found.isdisjoint(_BOUNDARY),
        tuple(name for name, needle in _BENIGN_NEEDLES if needle in found),
        tuple(m for needles, m in ALWAYS if not found.isdisjoint(needles)),
        tuple(m for needles, m in FACTS if not found.isdisjoint(needles)),
    )


def number(text: str) -> int:
    """Return the digits of a rendered number, whatever separates its thousands."""
    return int("".join(c for c in text if c.isdigit()) or "0")


def _clip(text: str) -> str:
    text = redact(text.strip())
    return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 3] + "..."


class Failure:
    """The first (or last, where the class says so) line of one class in one boot."""

    def __init__(self, classifier: Classifier, message: str, number_: int, line: Line, groups: dict[str, str], after_ready: bool, stage: int) -> None:
        self.classifier = classifier
        self.message = message
        self.number = number_
        self.groups = groups
        self.proc = _proc_name(line)
        self.ip = next((p[2] for p in line.procs if p[2]), "")
        self.after_ready = after_ready
        self.stage = stage
        self.count = 1
        self.idle = False

    def facts(self, rank: int | None) -> dict[str, Any]:
        """Return the public shape of the failure."""
        entry = self.classifier.entry
        values = {k: v for k, v in self.groups.items() if v}
        try:
            remedy = entry["remedy"].format(**values)
        except (KeyError, IndexError, ValueError):
            remedy = entry.get("remedy_plain") or re.sub(r"\{\w+\}", "?", entry["remedy"])
        anchor = entry.get("anchor") or f"docs/failures.md#{self.classifier.name}"
        return {
            "class": self.classifier.name,
            "line": _clip(self.message),
            "line_number": self.number,
            "remedy": redact(remedy),
            "anchor": anchor,
            "kind": self.classifier.kind,
            "rank": rank,
            "proc": self.proc or None,
            "ip": self.ip or None,
            "after_ready": self.after_ready,
            "needs_peer": entry.get("needs_peer", ""),
            "found": {k: redact(v) for k, v in values.items()},
            "count": self.count,
        }


def _proc_name(line: Line) -> str:
    return " ".join(p[0] for p in line.procs if p[0])


def _engine_key(line: Line) -> str:
    if not line.procs:
        return ""
    # the containers of two nodes can have the same process ids
    name, pid, ip = next((p for p in line.procs if p[0].startswith("EngineCore")), line.procs[0])
    return f"{name} {pid}@{ip}"


class Boot:
    """Facts and failures of one boot. Feed `take` with every line of it that may matter, in order."""

    def __init__(self, first_line: int) -> None:
        self.first_line = first_line
        self.last_line = first_line
        self.stage = 0
        self.stages: dict[str, dict[str, Any]] = {}
        self.recognised = False
        self.facts_: dict[str, Any] = {}
        self.lines: dict[str, int] = {}
        self.engines: dict[str, list[list[Any]]] = {}
        self.available: list[tuple[float, int, str]] = []
        self.ranks: dict[int, dict[str, Any]] = {}
        self.loads: dict[str, tuple[float, float | None, int]] = {}
        self.weights: dict[str, float] = {}
        self.graphs: list[tuple[float, float | None]] = []
        self.pids: dict[str, str] = {}
        self.failures: dict[str, Failure] = {}
        self.weak: Failure | None = None
        self.death = 0
        self.end_stage = -1
        self.ended_by_request = False
        self.answered = False
        self.ready: dict[str, Any] | None = None
        self.stopped: dict[str, Any] | None = None
        self.frozen = False
        self.benign: dict[str, int] = {}
        self.progress: dict[str, Any] | None = None
        self.args: dict[str, Any] = {}
        self.cfg_open = False
        self.nccl: dict[str, Any] = {"version": None, "network": None, "hcas": [], "via": [], "no_ib": False, "local": []}
        self.last_access_get = False
        self.busy = False
        self.unsure = False
        self.ended_facts: dict[str, Any] | None = None
        self.open: dict[str, int] = {}
        self.ended = False
        self.before = 0
        self.ignoring = 0
        self.services: set[str] = set()
        #: The methods that took something, since it was last cleared.
        self.took: set[Callable[..., bool]] = set()

    # -- small helpers -------------------------------------------------------------------------------------------------

    def reach(self, stage: str, number_: int, time: str) -> None:
        """Note that a stage was reached."""
        level = _STAGE_NUMBER[stage]
        self.recognised = True
        if stage not in self.stages:
            self.stages[stage] = {"line_number": number_, "time": time or None}
        self.stage = max(self.stage, level)

    def put(self, name: str, value: Any, number_: int) -> None:
        """Keep the first value of a fact and its line; one that ended with its line may go on in the next."""
        if name not in self.facts_ or self.open.get(name) == number_:
            self.facts_[name] = value
            self.lines[name] = number_
            if self.ended:
                self.open[name] = number_
        self.recognised = True

    # -- lines ---------------------------------------------------------------------------------------------------------

    def access(self, text: str, number_: int, time: str, min_end: int = 0) -> bool:
        """Take an access line: readiness evidence, and from the first request on facts are frozen."""
        match = ACCESS.match(text)
        if match is None or match.end() <= min_end:
            return False
        method, path, code = match.group(1), match.group(2), match.group(3)
        self.recognised = True
        good = code[0] == "2"
        if good and method in ("GET", "POST"):
            if self.ready is None:
                self._became_ready("access", text, number_, time)
            self.last_access_get = method == "GET"
            if method == "POST" and _GENERATION.match(path):
                self._alive()
        if method == "POST":
            self.frozen = True
            if code != "503":
                self.answered = True
        return True

    def _alive(self) -> None:
        """A generation was answered: what was printed before and did not end the engine was a request's own error."""
        self.weak = None
        self.unsure = False
        if not self.death:
            for name in [n for n, f in self.failures.items() if f.after_ready]:
                del self.failures[name]

    def _became_ready(self, evidence: str, text: str, number_: int, time: str) -> None:
        self.ready = {"evidence": evidence, "line": _clip(text), "line_number": number_, "time": time or None}
        if evidence == "access" and self.death and self.stage == 0:  # a tail: it served before this log begins, and what is left of it answers
            for failure in self.failures.values():
                failure.after_ready = True
        else:
            self.death = 0
        self.reach("ready", number_, time)
        self.weak = None

    def take(self, line: Line, number_: int, plan: Plan, min_end: int = 0, whole: bool = True) -> bool:
        """Take one record. plan: what its text may hold. min_end: only matches that end behind it count (a rejoined line). Returns whether any did.

        whole: False for an unterminated last line, from which no number at its very end is taken.
        """
        self.last_line = number_
        level = line.level
        if line.file and line.is_request:
            if level == "INFO" and "eceived request" in line.message:
                self.frozen = True
            if level == "ERROR" and plan.death and DEAD_ENGINE.fullmatch(line.message) is not None:
                return self._failures(line, number_, plan, min_end)
            return "LLM engine (v" in line.message and self._dump(line.message, number_, min_end)
        if line.file and level and line.offset > 4 and "|" in line.text[: line.offset] and len(self.services) < MAX_SERVICES:
            service = SERVICE.match(line.text)
            if service is not None:
                self.services.add(service.group(1))
        found = False
        if level in ERROR_LEVELS:
            if plan.classifiers or plan.death:
                found = self._failures(line, number_, plan, min_end)
        elif not line.foreign:
            for classifier in plan.classifiers:
                if classifier.any_level:
                    found = bool(self._failure(classifier, line, number_, min_end)) or found
        if plan.benign and min_end <= 0 and (level in ("WARNING", "INFO", None) or "hub_lookup_of_a_path" in plan.benign):
            for name in plan.benign:
                if name != "free_memory_info" or "less than" not in line.message:
                    self.benign[name] = self.benign.get(name, 0) + 1
                    self.recognised = True
                    if name == "exception_ignored":
                        self.ignoring = number_
        if line.foreign or level in ("ERROR", "CRITICAL", "FATAL"):
            return found
        for method in plan.always:
            if method(self, line, number_, min_end, whole):
                return True
        if self.frozen:
            return found
        for method in plan.facts:
            if method(self, line, number_, min_end, whole):
                self.took.add(method)
                found = True
        return found

    def _elsewhere(self, line: Line) -> bool:
        """Return whether another service of the compose project printed a line: a web interface beside vLLM has a web server, and exceptions, too."""
        if not self.services or line.file or line.procs:
            return False
        service = SERVICE.match(line.text)
        return service is not None and service.group(1) not in self.services

    def take_across(self, line: Line, number_: int, plan: Plan, at: int) -> bool:
        """Take the facts that begin before `at` and end behind it, in a rejoined line whose second half was taken alone."""
        for classifier in plan.classifiers:
            self._retract(classifier, line.message, number_)
        if line.level in ("ERROR", "CRITICAL", "FATAL") or line.foreign or line.is_request or self.frozen:
            return False
        self.before = at
        found = False
        for method in plan.facts:
            found = method(self, line, number_, at, True) or found
        self.before = 0
        return found

    def _ok(self, line: Line, match: re.Match[str], min_end: int, whole: bool) -> bool:
        """Whether a match in a message is a fact: at the message's beginning, not quoted, whole."""
        start = match.start()
        if match.end() <= min_end or (self.before and start >= self.before):
            return False
        self.ended = match.end() == len(line.message)
        if start > (40 if line.file else 90):
            return False
        if start:
            head = line.message[:start]
            if "'" in head or '"' in head or "{" in head or "`" in head.strip(" `*") or "prompt" in head:
                return False
        return not (not whole and match.end() == len(line.message) and match.group(0)[-1:].isdigit())

    # -- facts: one method a kind of line, chosen by FACTS below; each returns whether it took something -----------------

    def _f_access(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        return not self._elsewhere(line) and self.access(line.message, number_, line.time, min_end)

    def _f_ready(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        message = line.message.lstrip("*` ")
        match = READY.match(message)
        if match is None or match.end() <= min_end - len(line.message) + len(message) or self._elsewhere(line):
            return False
        if self.ready is None:
            self._became_ready("startup" if match.group(0)[0] == "A" else "uvicorn", line.message, number_, line.time)
        return True

    def _f_ready_rust(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = READY_RUST.match(line.message)
        if match is None or match.end() <= min_end or line.level != "INFO" or not (whole or match.end() < len(line.message)):
            return False
        if not self.frozen:
            self.put("listen", f"http://{match.group(1)}", number_)
        if self.ready is None:
            self._became_ready("frontend", line.message, number_, line.time)
        return True

    def _f_stopped(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = STOPPED.match(line.message)
        if match is None or match.end() <= min_end or self._elsewhere(line):
            return False
        if self.ready is not None and not self.death and not self.failures and not match.group(0).startswith("Parent process"):
            self.ended_by_request = True
        if self.stopped is None:
            self.stopped = {"line": _clip(line.message), "line_number": number_, "time": line.time or None}
            self.recognised = True
        return True

    def _f_stats(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = STATS.search(line.message)
        if match is None or match.end() <= min_end:
            return False
        self.busy = (match.group(1) or match.group(2)) != "0"
        if self.ready is not None or line.level != "INFO" or not line.file.endswith(("loggers.py", "metrics.py", "log_stats.rs")):
            return True
        if self.busy or THROUGHPUT.search(line.message) is not None:  # requests run, or just ran: somebody could ask
            self._became_ready("access", line.message, number_, line.time)
        return True

    def _f_request(self, line: Line, _number: int, _min_end: int, _whole: bool) -> bool:
        if not line.message.startswith(("Received request ", "Added request ")):
            return False
        self.frozen = True
        return True

    def _f_kv(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = KV.search(line.message)
        if match is None or not self._ok(line, match, min_end, whole):
            return False
        self._kv(line, number(match.group(2)), match.group("dev"), number_)
        return True

    def _f_conc(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        message = line.message
        match = CONC.search(message)
        if match is None or match.end() <= min_end or "steady-state" in message or not (whole or match.group("end") == "x"):
            return False
        if not self._ok(line, match, min_end, True):
            if self.before:
                return False
            size = KV.search(message)
            if size is None or not self._ok(line, size, 0, True):
                return False
        self._conc(line, number(match.group(1)), match.group("x"), number_)
        return True

    def _f_blocks(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = BLOCKS.search(line.message)
        if match is None or not self._ok(line, match, min_end, whole):
            return False
        if match.group("dev") == "CPU" and not line.file:
            return False  # the second half of a wrapped line
        blocks = int(match.group(2))
        known = blocks if self.open.get("blocks") == number_ else self.facts_.get("blocks", blocks)
        self.facts_["blocks"] = min(blocks, known)
        self.lines.setdefault("blocks", number_)
        if self.ended:
            self.open["blocks"] = number_
        self.facts_.setdefault("blocks_device", match.group("dev"))
        self.reach("kv", number_, line.time)
        return True

    def _f_num_blocks(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        message = line.message
        match = NUM_BLOCKS.search(message)
        if match is not None and match.end() > min_end and match.start() < 160 and (whole or match.group("end").strip()):
            blocks = int(match.group(1))
            self.facts_["v1_blocks"] = min(blocks, self.facts_.get("v1_blocks", blocks))
            self.lines.setdefault("v1_blocks", number_)
            return True
        match = OVERRIDE.search(message)
        if match is not None and match.group(1) != "0" and self._ok(line, match, min_end, whole):
            self.put("blocks_override", int(match.group(2)), number_)
            return True
        return False

    def _f_available(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        for pattern in AVAIL:
            match = pattern.search(line.message)
            if match is None:
                continue
            if match.end() <= min_end or not (self._ok(line, match, min_end, whole) or pattern is AVAIL[1] or pattern is AVAIL[3]):
                return False
            entry = (float(match.group(1)), number_, _proc_name(line))
            if len(self.available) < MAX_RANKS:
                self.available.append(entry)
            else:
                self.available[-1] = min(self.available[-1], entry)
            self.reach("kv", number_, line.time)
            return True
        return False

    def _f_took(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        return self._took(line, number_, min_end, whole)

    def _f_context(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = CTX.search(line.message)
        if match is not None and self._ok(line, match, min_end, whole):
            self.put("max_model_len", int(match.group(1)), number_)
            self.reach("config", number_, line.time)
            return True
        match = AUTO_FIT.search(line.message)
        if match is not None and self._ok(line, match, min_end, whole):
            self.facts_["auto_fit"] = int(match.group(2) or match.group(3))
            self.lines["auto_fit"] = number_
            return True
        return False

    def _f_engine(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = ENGINE.search(line.message)
        if match is not None and self._ok(line, match, 0, whole):
            if match.end() > min_end:
                self.put("engine_version", match.group(1), number_)
                self.reach("config", number_, line.time)
            return self._config(line.message, number_, min_end) or match.end() > min_end
        return False

    def _f_engine_plain(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = ENGINE_PLAIN.match(line.message)
        if match is None:
            return False
        if match.end() > min_end:
            self.reach("config", number_, line.time)
        return self._config(line.message, number_, min_end) or match.end() > min_end

    def _f_engine_config(self, line: Line, number_: int, _min_end: int, _whole: bool) -> bool:
        if not line.message.startswith("model="):
            return False
        return self._config("with config: " + line.message, number_, 0)

    def _dump(self, message: str, number_: int, min_end: int) -> bool:
        """Take version and configuration from the dump of an engine whose beginning this log may not have."""
        match = DUMP.match(message)
        if match is None or self.lines.get("engine_version", number_) != number_:
            return False
        if match.end() > min_end:
            self.put("engine_version", match.group(1), number_)
        return self._config(message, number_, min_end)

    def _f_placement(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        if min_end > 40 or not line.message.startswith("Waiting for creating a placement group"):
            return False
        self.reach("rendezvous", number_, line.time)
        return True

    def _f_version(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        found = False
        for name, pattern in (("api_version", API_VERSION), ("banner_version", BANNER)):
            match = pattern.search(line.message)
            if match is None and pattern is BANNER and line.file:
                match = BANNER_BARE.match(line.message)
            if match is not None and self._ok(line, match, min_end, whole):
                self.put(name, match.group(1).rstrip(".,;`*"), number_)
                self.reach("args", number_, line.time)
                found = True
        return found

    def _f_env_version(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = ENV_VERSION.match(line.message)
        if match is None or match.end() <= min_end:
            return False
        self.put("env_version", match.group(1), number_)
        return True

    def _f_banner_model(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = BANNER_MODEL.search(line.message)
        if match is None or not self._ok(line, match, min_end, whole):
            return False
        self.put("banner_model", match.group(1), number_)
        return True

    def _f_args(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        if ARGS.match(line.message) is None:
            return False
        self.reach("args", number_, line.time)
        return self._args(line.message, number_, min_end)

    def _f_headless(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = HEADLESS.search(line.message)
        if match is not None and self._ok(line, match, min_end, whole):
            self.put("headless_version", match.group(1), number_)
        else:
            match = HEADLESS_DP.search(line.message)
            if match is None or not self._ok(line, match, min_end, whole):
                return False
        self.put("head_address", match.group(2), number_)
        self.put("headless", True, number_)
        self.reach("config", number_, line.time)
        return True

    def _f_rank(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        return self._rank(line, number_, min_end, whole)

    def _f_attention(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        for pattern in ATTN:
            match = pattern.search(line.message)
            if match is not None and self._ok(line, match, min_end, True):
                if "vit attention" in line.message:
                    return False
                self.put("attention_backend", match.group(1), number_)
                return True
        return False

    def _f_kv_dtype(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        match = KV_DTYPE.search(line.message)
        if match is None or not self._ok(line, match, min_end, whole):
            return False
        self.put("kv_dtype_line", match.group(1), number_)
        return True

    def _f_listen(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = LISTEN.search(line.message)
        if match is None or not self._ok(line, match, min_end, True):
            return False
        self.put("listen", match.group(1), number_)
        self.reach("listen", number_, line.time)
        return True

    def _f_nccl(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        return self._nccl(line, number_, min_end)

    def _f_progress(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        return min_end <= 0 and self._progress(line.message, number_, line.time)

    def _f_eager(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        if min_end > 17 or not line.message.startswith(("Cudagraph is disabled under eager mode", "Enforce eager set")):
            return False
        self.put("eager", True, number_)
        return True

    def _f_loading(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = LOADING.match(line.message)
        if match is None or match.end() <= min_end:
            return False
        self.reach("load", number_, line.time)
        return True

    def _f_platform(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = PLATFORM.match(line.message)
        if match is None or match.end() <= min_end:
            return False
        self.reach("args", number_, line.time)
        self.put("platform", match.group(1), number_)
        return True

    def _f_milestone(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        match = MILESTONE.match(line.message) if line.file else None
        if match is None or match.end() <= min_end:
            return False
        self.reach(str(match.lastgroup), number_, line.time)
        return True

    def _f_resolved(self, line: Line, number_: int, min_end: int, _whole: bool) -> bool:
        if min_end > 0 or not line.message.startswith("Resolved architecture: "):
            return False
        self.reach("args", number_, line.time)
        return True

    def _kv(self, line: Line, tokens: int, device: str, number_: int) -> None:
        key = _engine_key(line)
        if key in self.engines or len(self.engines) < MAX_ENGINES:
            entries = self.engines.setdefault(key, [])
            if len(entries) < MAX_RANKS:
                entries.append([tokens, None, None, number_])
        self.facts_.setdefault("kv_device", device)
        self.lines.setdefault("kv_cache", number_)
        self.reach("kv", number_, line.time)

    def _conc(self, line: Line, context: int, rate: str, number_: int) -> None:
        key = _engine_key(line)
        try:
            value = float(rate.replace(",", "."))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            value = math.nan
        entries = self.engines.get(key)
        if entries is None and len(self.engines) < MAX_ENGINES:
            entries = self.engines.setdefault(key, [])
        if entries is None:
            return
        shown = None if math.isnan(value) else value
        if entries and self.open.get("rate") == number_:
            entries[-1][1], entries[-1][2] = shown, context
            return
        if self.ended:
            self.open["rate"] = number_
        if entries and entries[-1][1] is None and entries[-1][2] is None:
            entries[-1][1], entries[-1][2] = shown, context
        elif len(entries) < MAX_RANKS:
            entries.append([None, shown, context, number_])
        self.lines.setdefault("max_concurrency", number_)
        self.reach("kv", number_, line.time)

    def _took(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        message, time, ok = line.message, line.time, self._ok
        match = LOAD.search(message)
        if match is not None and ok(line, match, min_end, whole):
            proc = " ".join(f"{p[0]} {p[1]}" for p in line.procs)
            if (proc not in self.loads and len(self.loads) < MAX_RANKS) or not proc:
                self.loads[proc or f"#{len(self.loads)}"] = (float(match.group(1)), float(match.group(2)), number_)
            self.reach("load", number_, time)
            self.lines.setdefault("weights", number_)
            return True
        match = LOAD_V07.search(message)
        if match is not None and ok(line, match, min_end, whole):
            self.loads.setdefault(_proc_name(line), (float(match.group(1)), None, number_))
            self.reach("load", number_, time)
            self.lines.setdefault("weights", number_)
            return True
        match = WEIGHTS.search(message)
        if match is not None and ok(line, match, min_end, whole):
            if len(self.weights) < MAX_RANKS:
                self.weights.setdefault(" ".join(f"{p[0]} {p[1]}" for p in line.procs), float(match.group(1)))
            self.lines.setdefault("weights_seconds", number_)
            self.reach("load", number_, time)
            return True
        match = GRAPH.search(message)
        if match is not None and ok(line, match, min_end, whole):
            if len(self.graphs) < MAX_RANKS:
                self.graphs.append((float(match.group(1)), float(match.group(2)) if match.group(2) else None))
            self.lines.setdefault("graphs", number_)
            self.reach("graphs", number_, time)
            return True
        match = INIT.search(message)
        if match is not None and ok(line, match, min_end, whole):
            self.facts_["init_seconds"] = max(float(match.group(1)), self.facts_.get("init_seconds", 0.0))
            self.lines.setdefault("init_seconds", number_)
            if match.group(2):
                self.put("compilation_seconds", float(match.group(2)), number_)
            self.reach("init", number_, time)
            return True
        return False

    def _config(self, message: str, number_: int, min_end: int) -> bool:
        found = False
        for name, pattern in _CFG.items():
            if "cfg_" + name in self.facts_:
                continue
            match = pattern.search(message)
            if match is not None and match.end() > min_end:
                self.put("cfg_" + name, match.group(1), number_)
                found = True
        return found

    def _args(self, message: str, number_: int, min_end: int) -> bool:
        found = min_end <= 0
        for match in _ARG.finditer(message[:65536]):
            if match.end() <= min_end or len(self.args) > 40:
                continue
            name, text = match.group(1), match.group(2)
            value: Any
            if text in ("True", "False", "None"):
                value = {"True": True, "False": False, "None": None}[text]
            elif text[0] in "'\"":
                value = redact(text[1:-1])
            else:
                try:
                    value = float(text) if "." in text else int(text)
                except ValueError:
                    continue
            if value is not None:
                self.args.setdefault(name, value)
                found = True
        self.lines.setdefault("args", number_)
        return found

    def _rank(self, line: Line, number_: int, min_end: int, whole: bool) -> bool:
        message = line.message
        match = RANK.search(message)
        if match is not None and self._ok(line, match, min_end, whole):
            entry = self._rank_entry(int(match.group(2)), line, number_)
            if entry is not None:
                entry.update(world_size=int(match.group(1)), local_rank=int(match.group(3)), init_method=match.group(4), backend=match.group(5))
            self.put("world_size", int(match.group(1)), number_)
            self.reach("rendezvous", number_, line.time)
            return True
        match = RANK_ASSIGNED.search(message)
        if match is not None and self._ok(line, match, min_end, True):
            entry = self._rank_entry(int(match.group(1)), line, number_)
            if entry is not None:
                entry.setdefault("world_size", int(match.group(2)))
                for part in RANK_PART.finditer(match.group(3)):
                    entry[part.group(1).lower()] = int(part.group(2))
            self.put("world_size", int(match.group(2)), number_)
            self.reach("rendezvous", number_, line.time)
            return True
        match = LEADER.search(message)
        if match is not None and self._ok(line, match, min_end, whole):
            self.put("node_rank", int(match.group(1)), number_)
            self.put("master_addr", match.group(2), number_)
            self.put("local_world_size", int(match.group(4)), number_)
            return True
        return False

    def _rank_entry(self, rank: int, line: Line, number_: int) -> dict[str, Any] | None:
        entry = self.ranks.get(rank)
        if entry is None and len(self.ranks) < MAX_RANKS:
            entry = self.ranks[rank] = {"rank": rank, "line_number": number_, "proc": _proc_name(line) or None}
            self.lines.setdefault("ranks", number_)
        if entry is not None and line.procs:
            name, pid, ip = line.procs[-1]
            entry["proc"] = name or entry.get("proc")
            entry["pid"] = int(pid)
            if ip:
                entry["ip"] = ip
        return entry

    def _nccl(self, line: Line, number_: int, min_end: int) -> bool:
        message, nccl = line.message, self.nccl
        if "prompt" in message[:200] or "'" in message[:40]:
            return False
        found = False
        match = NCCL_VERSION.search(message, 0, 400)
        if match is not None and match.end() > min_end and nccl["version"] is None:
            nccl["version"] = match.group(1) or match.group(2)
            self.lines.setdefault("nccl", number_)
            found = True
        match = NCCL_NETWORK.search(message, 0, 400)
        if match is not None and match.end() > min_end:
            nccl["network"] = nccl["network"] or match.group(1)
            self.lines["nccl"] = number_
            found = True
        if "via " in message:
            match = NCCL_VIA.search(message, 0, 600)
            if match is not None and match.group(1) not in nccl["via"] and len(nccl["via"]) < 8:
                nccl["via"].append(match.group(1))
                self.lines["nccl"] = number_
            local = NCCL_LOCAL.search(message, 0, 600)
            if local is not None and local.group(1) not in nccl["local"]:
                nccl["local"].append(local.group(1))
            found = found or match is not None or local is not None
        if "NET/IB : Using" in message:
            for hca in NCCL_HCA.finditer(message[:2000]):
                name = f"{hca.group(1)}:{hca.group(2)}"
                if name not in nccl["hcas"] and len(nccl["hcas"]) < 32:
                    nccl["hcas"].append(name)
            found = True
        if NCCL_NO_IB.search(message, 0, 600) is not None:
            nccl["no_ib"] = True
            found = True
        if found:
            self.recognised = True
        return found

    def _advance(self, what: str, match: re.Match[str], number_: int) -> None:
        percent, done, total = (int(match.group(i)) for i in (2, 3, 4))
        self.progress = {"what": what, "percent": min(percent, 100), "done": done, "total": total, "line_number": number_}

    def _progress(self, message: str, number_: int, time: str) -> bool:
        match = PROGRESS.search(message[-2000:])
        if match is not None:
            self._advance("weights", match, number_)
            self.reach("load", number_, time)
            return True
        match = CAPTURE.search(message[-2000:])
        if match is not None:
            self._advance("graphs", match, number_)
            if self.stage >= _STAGE_NUMBER["kv"]:
                self.recognised = True
            return True
        return False

    # -- failures ------------------------------------------------------------------------------------------------------

    def _failures(self, line: Line, number_: int, plan: Plan, min_end: int) -> bool:
        message = line.message
        if line.foreign and line.level not in ("ERROR", "CRITICAL", "FATAL"):
            return False
        if "HTTP/" in message and ACCESS.match(message):
            return False
        found = False
        # once requests are served, a bare line may be a prompt that some middleware prints: it proves nothing alone
        bare = self.frozen and line.level is None and not line.procs
        if plan.death and not bare and not self.death and not (plan.hit and not self.served()) and not self.ended_by_request:
            self.death = number_
            self._note_end()
            found = True
            if self.weak is not None and self.ready is not None:
                weak, self.weak = self.weak, None
                self.failures.setdefault(weak.classifier.name, weak)
        source = bool(plan.classifiers) and SOURCE_LINE.match(message) is not None
        for classifier in plan.classifiers:
            if source and classifier.name != "mamba_blocks" and not classifier.users:
                continue
            taken = self._failure(classifier, line, number_, min_end, bare and classifier.name not in ("oom_killed", "driver_no_memory"))
            if taken is not None:
                return taken or found
        return found

    def _failure(self, classifier: Classifier, line: Line, number_: int, min_end: int, weak: bool = False) -> bool | None:
        """Take a line of a class. Returns None if it is none, False if it was taken before the line was rejoined with the next."""
        message = line.message
        known = self.failures.get(classifier.name)
        if any(u in message for u in classifier.unless):
            if min_end > 0:
                self._retract(classifier, message, number_)
            return None
        match = None
        for pattern in classifier.patterns:
            match = pattern.search(message)
            if match is not None:
                break
        if match is None:
            return None
        if classifier.name in _ANYBODYS and self._elsewhere(line):
            return None
        if classifier.aftermath and (self.ended_by_request or self._explained()) and any(p.search(message) for p in classifier.aftermath):
            return None
        groups = {k: v for k, v in match.groupdict().items() if v}
        for detail in classifier.details:
            extra = detail.search(message)
            if extra is not None:
                groups.update({k: v for k, v in extra.groupdict().items() if v})
        if match.end() <= min_end:
            if known is not None and known.number == number_ and len(groups) > len(known.groups):
                known.groups = groups
                known.message = message
            return False
        if self.ignoring and classifier.name == "unclassified":
            ignored, self.ignoring = self.ignoring, 0
            if number_ - ignored <= 30:
                return False
        for key in ("message", "name"):
            if key in groups:
                groups[key] = groups[key].strip()[:300]
        if "message" in groups and groups["message"].startswith("User-specified max_model_len"):
            groups.pop("message")
        self.recognised = True
        after = self.served()
        if self.ended_by_request and (classifier.kind != "strong" or classifier.name in _FAREWELLS):
            return True  # whoever is stopped hangs up on the others
        if classifier.kind == "tail":
            self._note_end()
        self.unsure = after
        failure = Failure(classifier, message, number_, line, groups, after, self.stage)
        if classifier.name == "peer_lost":
            failure.idle = after and self.last_access_get and not self.busy
        if known is not None and (known.after_ready or not after):
            known.count += 1
            better = classifier.last and not self.death
            if classifier.name == "config_error" and "validation error" in known.message and "Value error" in message:
                better = True
            if better or self._survived(known):
                failure.count = known.count
                self.failures[classifier.name] = failure
            elif not known.groups and groups:
                known.groups = groups
            return True
        if after and (weak or classifier.kind == "weak") and not self.death:
            self.weak = failure
            return True
        self.failures[classifier.name] = failure
        return True

    def _note_end(self) -> None:
        """Keep the stage that the boot had reached when it began to end: what other ranks still print does not count."""
        if self.end_stage < 0:
            self.end_stage = self.stage

    def _survived(self, failure: Failure) -> bool:
        """Return whether the boot went on after a failure that need not end it, say an optional import."""
        classifier = failure.classifier
        if classifier.kind != "weak" or classifier.entry.get("last_words") or failure.after_ready:
            return False
        return (self.stage if self.end_stage < 0 else self.end_stage) > failure.stage

    def served(self) -> bool:
        """Return whether requests came in: also a log's tail without a good answer shows that."""
        return self.ready is not None or self.answered

    def _explained(self) -> bool:
        """Return whether the log has already told what the engine dies of."""
        return bool(self.death) and any(f.classifier.kind != "tail" and f.classifier.name not in _CONSEQUENCES for f in self.failures.values())

    def _retract(self, classifier: Classifier, message: str, number_: int) -> None:
        """Take back a class that half a line was taken for, if the whole line is none."""
        known = self.failures.get(classifier.name)
        if known is not None and known.number == number_ and any(u in message for u in classifier.unless):
            del self.failures[classifier.name]

    # -- results -------------------------------------------------------------------------------------------------------

    def _ranked(self) -> list[Failure]:
        """Return the failures that count, the root cause first."""
        found = [f for f in self.failures.values() if f.after_ready or self.ready is None]

        def order(failure: Failure) -> tuple[int, int]:
            place = failure.classifier.order
            if self._survived(failure):
                place += 10_000
                tails = [f.classifier.order for f in self.failures.values() if f.classifier.kind == "tail"]
                if tails:
                    place = min(tails) - 1
            return (place, failure.number)

        return sorted(found, key=order)

    def state(self) -> tuple[str, list[Failure]]:
        """Return the state and the failures behind it, the root cause first."""
        ranked = self._ranked()
        if self.ready is not None:
            if ranked and not (ranked[0].classifier.name == "peer_lost" and ranked[0].idle):
                return "served_then_failed", ranked
            return "ready", ranked
        if ranked and not (self.end_stage < 0 and self._survived(ranked[0])):
            return "served_then_failed" if self.answered else "failed", ranked
        if self.stage > 0:
            return "starting", []
        return "unknown", []

    def rank_of(self, failure: Failure) -> int | None:
        """Return the rank whose process printed a failure, where the log tells."""
        if failure.proc:
            match = re.search(r"(?:Worker_(?:\w{0,60}_)?TP|VllmWorker TP|rank=)(\d{1,5})", failure.proc)
            if match is not None and len(self.ranks) <= 1:
                return int(match.group(1))
            name = failure.proc.split(" ")[-1]
            for rank, entry in self.ranks.items():
                if entry.get("proc") == name and (not failure.ip or entry.get("ip") == failure.ip):
                    return rank
            if match is not None:
                return int(match.group(1))
        if len(self.ranks) == 1 and self.facts_.get("headless"):
            return min(self.ranks)
        return None

    def kv_cache(self) -> dict[str, Any]:
        """Return the KV pool: of the engine whose pool is smallest, and of each engine."""
        engines = []
        parts = dict(self.engines)
        sizes = [k for k, v in parts.items() if all(e[1] is None and e[2] is None for e in v)]
        rates = [k for k, v in parts.items() if all(e[0] is None for e in v)]
        if len(sizes) == len(rates) == 1 and sizes != rates:  # a wrapped copy lost the process of one of the two lines
            parts[rates[0]] = [*parts[rates[0]], *parts.pop(sizes[0])]
        for key, entries in parts.items():
            sized = [e for e in entries if e[0] is not None]
            rated = [e for e in entries if e[1] is not None or e[2] is not None]
            if sized:
                best = min(sized, key=lambda e: (e[0], e[1] if e[1] is not None else math.inf))
                if best[2] is None and rated:
                    alone = min(rated, key=lambda e: e[1] if e[1] is not None else math.inf)
                    best = [best[0], alone[1], alone[2], best[3]]
            elif rated:
                best = min(rated, key=lambda e: e[1] if e[1] is not None else math.inf)
            else:
                continue
            engines.append(
                {
                    "engine": key.rsplit(" ", 1)[0].strip() or None,
                    "tokens": best[0],
                    "max_concurrency": best[1],
                    "context": best[2],
                    "effective_tokens": round(best[1] * best[2]) if best[1] is not None and best[2] else None,
                    "line_number": best[3],
                }
            )
        gate = min(engines, key=lambda e: (e["tokens"] if e["tokens"] is not None else math.inf, e["max_concurrency"] or math.inf)) if engines else None
        tokens = [e["tokens"] for e in engines if e["tokens"] is not None]
        low = min(self.available, key=lambda a: a[0]) if self.available else None
        hybrid = None
        if gate is not None and gate["tokens"] and gate["effective_tokens"]:
            hybrid = gate["tokens"] < 0.97 * gate["effective_tokens"] and gate["effective_tokens"] - gate["tokens"] > 0.02 * (gate["context"] or 0)
        return {
            "tokens": gate["tokens"] if gate else None,
            "blocks": self.facts_.get("blocks", self.facts_.get("v1_blocks")),
            "blocks_override": self.facts_.get("blocks_override"),
            "max_concurrency": gate["max_concurrency"] if gate else None,
            "context": gate["context"] if gate else None,
            "effective_tokens": gate["effective_tokens"] if gate else None,
            "available_gib": low[0] if low else None,
            "available": [{"gib": a[0], "proc": a[2] or None, "line_number": a[1]} for a in self.available[:64]],
            "device": self.facts_.get("kv_device", self.facts_.get("blocks_device")),
            "hybrid_old_formula": hybrid,
            "tokens_of_all_engines": sum(tokens) if tokens else None,
            "engines": engines[:64],
        }

    def final_facts(self) -> dict[str, Any]:
        """Return the facts of a boot that another one followed: they do not change any more."""
        if self.ended_facts is None:
            self.ended_facts = self.facts()
        return dict(self.ended_facts)

    def facts(self) -> dict[str, Any]:
        """Return the public facts of this boot."""
        state, ranked = self.state()
        f = self.facts_
        root = ranked[0] if ranked and state in ("failed", "served_then_failed") else None
        failure = None
        if root is not None:
            failure = root.facts(self.rank_of(root))
            failure["also"] = [r.classifier.name for r in ranked[1:]]
            proof = root.classifier.kind != "weak" or bool(root.classifier.entry.get("last_words"))
            failure["confirmed"] = proof or bool(self.death) or any(r.classifier.kind == "tail" for r in ranked)
        lost = self.failures.get("peer_lost")
        kv = self.kv_cache()
        context = kv["context"] or f.get("auto_fit") or _int(f.get("cfg_max_seq_len")) or f.get("max_model_len")
        first_load = list(self.loads.values())
        version = next((f[k] for k in _LINE_ALIAS["version"] if k in f), None)
        own = VERSION.match(version) if version else None
        version = own.group(0) if own is not None else version
        seconds = [v[1] for v in first_load if v[1] is not None]
        kv_dtype = f.get("cfg_kv_cache_dtype") or f.get("kv_dtype_line") or self.args.get("kv_cache_dtype")
        lines = {k: v for k, v in self.lines.items() if k in _PUBLIC_LINES}
        for public, inner in _LINE_ALIAS.items():
            numbers = [self.lines[i] for i in inner if i in self.lines]
            if numbers:
                lines[public] = numbers[0]
        if self.ready is not None:
            lines["ready"] = self.ready["line_number"]
        if failure is not None:
            lines["failure"] = failure["line_number"]
        if kv["available_gib"] is not None:
            lines["available_gib"] = min(self.available, key=lambda a: a[0])[1]
        spec = f.get("cfg_speculative_method") or f.get("cfg_speculative_draft")
        if spec is None and "cfg_speculative_none" not in f and isinstance(self.args.get("method"), str):
            spec = self.args["method"]
        role = "unknown"
        if f.get("headless") and "APIServer" in self.pids:
            role = "head"  # both ranks in one log
        elif f.get("headless") or self.args.get("headless") is True or self.args.get("node_rank", 0) not in (0, None):
            role = "worker"
        elif self.pids.keys() & {"APIServer", "EngineCore"} or "listen" in f or self.ready is not None or any(k.startswith("EngineCore") for k in self.pids):
            role = "head"
        return {
            "state": state,
            "stage": STAGES[self.stage],
            "stages": {k: dict(v) for k, v in self.stages.items()},
            "progress": dict(self.progress) if self.progress else None,
            "failure": failure,
            "version": version,
            "model": f.get("cfg_model") or self.args.get("model") or f.get("banner_model"),
            "context": context,
            "kv_cache": kv,
            "weights": {
                "gib": max((v[0] for v in first_load), default=None),
                "seconds": max(self.weights.values(), default=None),
                "ranks": [{"proc": k.strip() or None, "gib": v[0], "seconds": v[1], "line_number": v[2]} for k, v in list(self.loads.items())[:64]],
            },
            "load_seconds": max(seconds, default=None),
            "graphs": {
                "seconds": max((g[0] for g in self.graphs), default=None),
                "gib": max((g[1] for g in self.graphs if g[1] is not None), default=None),
                "eager": bool(f.get("eager")) or f.get("cfg_enforce_eager") == "True",
            },
            "init_seconds": f.get("init_seconds"),
            "compilation_seconds": f.get("compilation_seconds"),
            "dtype": f.get("cfg_dtype"),
            "kv_cache_dtype": kv_dtype,
            "quantization": None if f.get("cfg_quantization") == "None" else f.get("cfg_quantization"),
            "speculative_method": spec,
            "attention_backend": f.get("attention_backend"),
            "tensor_parallel_size": _int(f.get("cfg_tensor_parallel_size")) or _int(self.args.get("tensor_parallel_size")),
            "pipeline_parallel_size": _int(f.get("cfg_pipeline_parallel_size")) or _int(self.args.get("pipeline_parallel_size")),
            "data_parallel_size": _int(f.get("cfg_data_parallel_size")) or _int(self.args.get("data_parallel_size")),
            "ranks": [dict(self.ranks[r]) for r in sorted(self.ranks)][:64],
            "world_size": f.get("world_size"),
            "head_address": f.get("head_address") or f.get("master_addr"),
            "role": role,
            "platform": f.get("platform"),
            "listen": f.get("listen"),
            "nccl": self._nccl_facts(),
            "ready": dict(self.ready) if self.ready else None,
            "stopped": dict(self.stopped) if self.stopped else None,
            "peer_lost": {"line": _clip(lost.message), "line_number": lost.number, "peer": lost.groups.get("peer")} if lost is not None else None,
            "args": dict(self.args),
            "benign": dict(self.benign),
            "first_line": self.first_line,
            "last_line": self.last_line,
            "lines": lines,
        }

    def _nccl_facts(self) -> dict[str, Any]:
        nccl = self.nccl
        kinds = [_transport(v) for v in nccl["via"]]
        if "tcp" in kinds:
            transport = "tcp"
        elif kinds:
            transport = "rdma" if "rdma" in kinds else kinds[0]
        elif nccl["network"]:
            transport = _transport(nccl["network"])
        else:
            transport = "unknown"
        return {
            "version": nccl["version"],
            "transport": transport,
            "network": nccl["network"],
            "via": list(nccl["via"]),
            "hcas": list(nccl["hcas"]),
            "no_ib_device": nccl["no_ib"],
        }


def _transport(name: str) -> str:
    if name.startswith("IB"):
        return "rdma"
    return "tcp" if name.startswith("Socket") else "plugin"


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        return None


#: Tried on every line, also after requests began: needles without digits, method.
ALWAYS: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = (
    (("HTTP/",), Boot._f_access),
    (("startup complete", "Uvicorn running"), Boot._f_ready),
    (("bind_address=",), Boot._f_ready_rust),
    (("hutting down", "shutdown complete", "shutdown triggered", "trigger received", "Finished server process", "Parent process exited"), Boot._f_stopped),
    (("Running: ",), Boot._f_stats),
    (("eceived request ", "Added request "), Boot._f_request),
)
#: Tried until the first request of a boot.
FACTS: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = (
    ((" KV cache size: ",), Boot._f_kv),
    (("Maximum concurrency for ",), Boot._f_conc),
    ((" blocks: ",), Boot._f_blocks),
    (("num_gpu_blocks",), Boot._f_num_blocks),
    (
        ("Available KV cache memory: ", "memory for KV Cache as", "for KV cache on node", "GiB) for KV cache", "reserved for KV Cache", "startup plan"),
        Boot._f_available,
    ),
    (("loading took ", "weights took ", "raph capturing finished", "init engine ("), Boot._f_took),
    (("max model len ", "fit max_model_len"), Boot._f_context),
    (("LLM engine (v",), Boot._f_engine),
    (("LLM engine with config: ",), Boot._f_engine_plain),
    (("max_seq_len=",), Boot._f_engine_config),
    (("version ",), Boot._f_version),
    (("vLLM Version",), Boot._f_env_version),
    (("█  model ", "▀  model ", "█ model ", "▀ model "), Boot._f_banner_model),
    (("args: {", "args: Namespace("), Boot._f_args),
    (("headless",), Boot._f_headless),
    (("world_size=", "in world size "), Boot._f_rank),
    ((" backend",), Boot._f_attention),
    (("to store kv cache",), Boot._f_kv_dtype),
    (("Starting vLLM",), Boot._f_listen),
    (("INFO Using network", "NCCL version ", "using nccl==", "via NET/", "via PP/", "via SHM/", "NET/IB : "), Boot._f_nccl),
    (("Completed | ", "Capturing CUDA"), Boot._f_progress),
    (("eager mode", "Enforce eager set"), Boot._f_eager),
    (("Starting to load model", "Loading model ", "Loading drafter model"), Boot._f_loading),
    (("creating a placement group",), Boot._f_placement),
    (("Automatically detected platform", "Platform plugin "), Boot._f_platform),
    (("Resolved architecture: ",), Boot._f_resolved),
    (
        (
            "Chunked prefill is enabled",
            "Waiting for ",
            "Using model weights format",
            "Dynamo bytecode transform",
            "torch.compile t",
            "Supported_tasks: ",
            "Supported tasks: ",
            "vllm cache_config_info",
            "Available routes are",
            "Route: /",
        ),
        Boot._f_milestone,
    ),
)
_PUBLIC_LINES = frozenset(
    (
        "kv_cache",
        "max_concurrency",
        "blocks",
        "weights",
        "weights_seconds",
        "graphs",
        "init_seconds",
        "compilation_seconds",
        "attention_backend",
        "ranks",
        "world_size",
        "nccl",
        "args",
        "listen",
        "head_address",
        "platform",
    )
)
_LINE_ALIAS = {
    "version": ("banner_version", "api_version", "headless_version", "engine_version", "env_version"),
    "model": ("cfg_model", "banner_model"),
    "context": ("max_concurrency", "auto_fit", "cfg_max_seq_len", "max_model_len"),
    "dtype": ("cfg_dtype",),
    "kv_cache_dtype": ("cfg_kv_cache_dtype", "kv_dtype_line"),
    "quantization": ("cfg_quantization",),
    "speculative_method": ("cfg_speculative_method", "cfg_speculative_draft"),
}
