# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: how far a boot is (stages, readiness, the end), and its figures: KV pool, weights, graphs, ranks, NCCL."""

from __future__ import annotations

import math
import re
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import Failure, clip, engine_key, proc_name, redacted
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import Line


def number(text: str) -> int:
    """Return the digits of a rendered number, for any separator of its thousands."""
    return int("".join(c for c in text if c.isdigit()) or "0")


def leading(line: Line, pattern: re.Pattern[str]) -> re.Match[str] | None:
    """Return the match of a pattern that is at the beginning of the message and not in a quotation."""
    match = pattern.search(line.message)
    if match is None or match.start() == 0:
        return match
    quoted = match.start() > (40 if line.file else 90) or _p.QUOTATION.search(line.message, 0, match.start()) is not None
    return None if quoted else match


class Figures:
    """Stages, readiness and figures of one boot, and the attributes of all parts."""

    def __init__(self) -> None:
        self.last_line = 0
        self.stage = 0
        self.progressed = 0
        self.stages: dict[str, dict[str, Any]] = {}
        self.recognised = False
        self.facts_: dict[str, Any] = {}
        self.engines: dict[str, list[dict[str, Any]]] = {}
        self.available: float | None = None
        self.ranks: dict[int, tuple[str, str]] = {}  # process and address, if they are printed
        self.loads: list[tuple[float, float]] = []
        self.weights: list[float] = []
        self.graphs: list[tuple[float, float | None]] = []
        self.failures: dict[str, Failure] = {}
        self.weak: Failure | None = None
        self.died = False
        self.end_stage = -1
        self.ended_by_request = False
        self.answered = False
        self.ready: dict[str, Any] | None = None
        self.stopped: dict[str, Any] | None = None
        self.frozen = False
        self.benign: dict[str, int] = {}
        self.unknown_variables: list[str] = []
        self.progress: dict[str, Any] | None = None
        self.args: dict[str, Any] = {}
        self.has_args = False
        self.nccl: dict[str, Any] = {"version": None, "network": None, "hcas": [], "via": []}
        self.met_dead_engine = False
        self.killed_itself = False
        self.traceback: Failure | None = None
        self.unsure = False
        self.ignoring = 0
        self.above: Line | None = None
        self.contexts: dict[int, int] = {}

    def reach(self, stage: str, line: Line) -> None:
        """Note that a stage was reached."""
        self.recognised = True
        if stage not in self.stages:
            self.stages[stage] = {"line_number": self.last_line, "time": line.time or None}
        self.stage = max(self.stage, _p.STAGE_NUMBER[stage])
        self.progressed = self.last_line

    def put(self, name: str, value: Any) -> None:
        """Keep the first value of a fact."""
        self.facts_.setdefault(name, value)
        self.recognised = True

    def apply(self, rule: _p.Rule, line: Line) -> None:
        """Take the facts of a rule from a line."""
        match = leading(line, rule.pattern)
        if match is None or not (line.file or rule.pattern.groups):
            return
        for name, value in match.groupdict().items():
            self.put(name, int(value) if value.isdigit() else value)
        if rule.stage:
            self.reach(rule.stage, line)

    def take_access(self, line: Line) -> None:
        """Take an access line: evidence of readiness. From the first request on the facts are frozen."""
        match = _p.ACCESS.match(line.message)
        if match is None:
            return
        method, path, code = match.groups()
        self.recognised = True
        if code[0] == "2" and method in ("GET", "POST"):
            if self.ready is None:
                self._became_ready("access", line)
            if method == "POST" and _p.GENERATION.match(path):
                self._generated()
        if method == "POST":
            self.frozen = True
            if code != "503":
                self.answered = True
            lost = self.weak is not None and self.weak.classifier.name == "peer_lost"
            if code == "500" and self.ready is not None and (self.met_dead_engine or lost):  # the request met the dead engine of the lines before
                self._die()

    def _generated(self) -> None:
        """Note that a generation was answered: what was printed before and did not end the engine was a request's own error."""
        self.weak = None
        self.unsure = False
        self.met_dead_engine = False
        if not self.died:
            # the status of a stream is sent before its first token: a lost peer is not back
            for name in [n for n, f in self.failures.items() if f.after_ready and n != "peer_lost"]:
                del self.failures[name]

    def _became_ready(self, evidence: str, line: Line) -> None:
        self.ready = {"evidence": evidence, "line": clip(line.message), "line_number": self.last_line, "time": line.time or None}
        if evidence == "access" and self.died and self.stage == 0:  # a tail: it served before this log begins, and what is left of it answers
            for failure in self.failures.values():
                failure.after_ready = True
        else:
            self.died = False
        self.reach("ready", line)
        self.weak = None

    def take_ready(self, line: Line) -> None:
        """Take uvicorn's lines that the server is up."""
        match = _p.READY.match(line.message)
        if match is not None and self.ready is None:
            self._became_ready("startup" if match.group(0)[0] == "A" else "uvicorn", line)

    def take_ready_rust(self, line: Line) -> None:
        """Take the line of the front-end in Rust that the server is up."""
        match = _p.READY_RUST.match(line.message)
        if match is None or line.level != "INFO":
            return
        if not self.frozen:
            self.put("listen", f"http://{match.group(1)}")
        if self.ready is None:
            self._became_ready("frontend", line)

    def take_stopped(self, line: Line) -> None:
        """Take a line that the server shuts down."""
        match = _p.STOPPED.match(line.message)
        if match is None:
            return
        if self.ready is not None and not self.died and not self.failures and not match.group(0).startswith("Parent process"):
            self.ended_by_request = True
        if self.stopped is None:
            self.stopped = {"line": clip(line.message), "line_number": self.last_line, "time": line.time or None}
            self.recognised = True

    def take_stats(self, line: Line) -> None:
        """Take a line of statistics: requests that run are evidence of readiness."""
        match = _p.STATS.search(line.message)
        own = line.level in ("INFO", "DEBUG") and line.file.endswith(("loggers.py", "metrics.py", "log_stats.rs"))
        if match is None or not own or self.ready is not None:
            return
        if (match.group(1) or match.group(2)) != "0" or _p.THROUGHPUT.search(line.message) is not None:
            self._became_ready("access", line)

    def take_interrupted(self, line: Line) -> None:
        """Take the end of a traceback of Ctrl-C or SIGTERM, which is not a failure."""
        if line.message.startswith("KeyboardInterrupt"):
            self.traceback = None

    def take_request(self, line: Line) -> None:
        """Take the record of a request: from it on the log can quote users."""
        if line.message.startswith(("Received request ", "Added request ")):
            self.frozen = True

    def take_listen(self, line: Line) -> None:
        """Take the address of the API."""
        match = leading(line, _p.LISTEN)
        if match is None:
            return
        if self.ready is not None and "listen" not in self.facts_ and self.ready["evidence"] in ("startup", "uvicorn"):
            # vLLM prints its port before its web server starts: the line before was of another program
            self.ready = None
            self.stages.pop("ready", None)
            self.stage = max((_p.STAGE_NUMBER[name] for name in self.stages), default=0)
        self.put("listen", match.group(1))
        self.reach("listen", line)

    def take_progress(self, line: Line) -> None:
        """Take a progress bar of the weights or of the graph capture."""
        what, match = "weights", _p.PROGRESS.search(line.message[-2000:])
        if match is not None:
            self.reach("load", line)
        else:
            what, match = "graphs", _p.CAPTURE.search(line.message[-2000:])
        if match is not None:
            percent, done, total = (int(group) for group in match.groups())
            self.progress = {"what": what, "percent": min(percent, 100), "done": done, "total": total, "line_number": self.last_line}

    def _die(self) -> None:
        """Note that the engine died: what was only a request's own error until now counts."""
        self.recognised = True
        if self.died or self.ended_by_request:
            return
        self.died = True
        self._note_end()
        if self.weak is not None and self.ready is not None:
            weak, self.weak = self.weak, None
            self.failures.setdefault(weak.classifier.name, weak)

    def _note_end(self) -> None:
        """Keep the stage at which the boot began to end: what other ranks still print does not count."""
        if self.end_stage < 0:
            self.end_stage = self.stage

    def served(self) -> bool:
        """Return whether requests came in: also a log's tail without a good answer shows that."""
        return self.ready is not None or self.answered

    def take_pool(self, line: Line) -> None:
        """Take the size of the KV pool, its concurrency, or both from one line."""
        size = leading(line, _p.KV)
        if size is None and _p.KV.search(line.message) is not None:
            return
        rate = leading(line, _p.CONC) if size is None else _p.CONC.search(line.message)
        if "steady-state" in line.message:
            rate = None
        if size is None and rate is None:
            return
        key = engine_key(line)
        if key not in self.engines and len(self.engines) >= _p.MAX_ENGINES:
            return
        entries = self.engines.setdefault(key, [])
        unknown = {"tokens": None, "max_concurrency": None, "context": None}
        if size is not None and len(entries) < _p.MAX_RANKS:
            entries.append({**unknown, "tokens": number(size.group(1))})
        if rate is not None:
            value = float(rate.group("x").replace(",", "."))
            rated = {"max_concurrency": value if math.isfinite(value) else None, "context": number(rate.group(1))}
            if entries and entries[-1]["context"] is None:
                entries[-1].update(rated)
            elif len(entries) < _p.MAX_RANKS:
                entries.append({**unknown, **rated})
        self.reach("kv", line)

    def take_available(self, line: Line) -> None:
        """Take the memory that a rank has for the KV pool."""
        match = next(filter(None, (leading(line, pattern) for pattern in _p.AVAIL)), None)
        if match is None:
            return
        gib = float(match.group(1))
        self.available = gib if self.available is None else min(self.available, gib)
        self.reach("kv", line)

    def take_engine(self, line: Line) -> None:
        """Take version and configuration from the engine's first line."""
        match = leading(line, _p.ENGINE)
        if match is not None:
            self.put("engine_version", match.group(1))
            self.reach("config", line)
            self._take_config(line.message)

    def take_dump(self, message: str) -> None:
        """Take version and configuration from the dump of an engine whose beginning this log may not have."""
        match = _p.DUMP.match(message)
        if match is not None and "engine_version" not in self.facts_:
            self.put("engine_version", match.group(1))
            self._take_config(message)

    def _take_config(self, message: str) -> None:
        for name, pattern in _p.CFG.items():
            match = pattern.search(message)
            if match is not None:
                self.put("cfg_" + name, match.group(1))

    def take_args(self, line: Line) -> None:
        """Take the arguments of interest."""
        if _p.ARGS.match(line.message) is None:
            return
        self.reach("args", line)
        self.has_args = True
        for match in _p.ARG.finditer(line.message[:65536]):
            name, text = match.groups()
            value: Any
            if text in ("True", "False"):
                value = text == "True"
            elif text[0] in "'\"":
                value = redacted(text[1:-1])
            else:
                try:
                    value = float(text) if "." in text else int(text)
                except ValueError:  # None
                    continue
            self.args.setdefault(name, value)

    def take_duration(self, line: Line) -> None:
        """Take how long a step took, and its memory."""
        stage = "load"
        if match := leading(line, _p.LOAD):
            self._keep(self.loads, (float(match.group(1)), float(match.group(2))))
        elif match := leading(line, _p.WEIGHTS):
            self._keep(self.weights, float(match.group(1)))
        elif match := leading(line, _p.GRAPH):
            self._keep(self.graphs, (float(match.group(1)), float(match.group(2)) if match.group(2) else None))
            stage = "graphs"
        elif match := leading(line, _p.INIT):
            self.facts_["init_seconds"] = max(float(match.group(1)), self.facts_.get("init_seconds", 0.0))
            if match.group(2):
                self.put("compilation_seconds", float(match.group(2)))
            stage = "init"
        else:
            return
        self.reach(stage, line)

    @staticmethod
    def _keep(found: list[Any], entry: Any) -> None:
        if len(found) < _p.MAX_RANKS:
            found.append(entry)

    def take_rank(self, line: Line) -> None:
        """Take a rank of the world."""
        match = leading(line, _p.RANK) or leading(line, _p.RANK_ASSIGNED)
        if match is None:
            return
        self.put("world_size", int(match["world"]))
        self.reach("rendezvous", line)
        rank = int(match["rank"])
        if rank in self.ranks or len(self.ranks) < _p.MAX_RANKS:
            known = self.ranks.get(rank, (proc_name(line), ""))
            name, _pid, address = line.procs[-1] if line.procs else ("", "", "")
            self.ranks[rank] = (name or known[0], address or known[1])

    def take_nccl(self, line: Line) -> None:
        """Take how NCCL reaches the other rank."""
        message, nccl = line.message, self.nccl
        if "prompt" in message[:200] or "'" in message[:40]:
            return
        self.recognised = True
        match = _p.NCCL_VERSION.search(message, 0, 400)
        if match is not None and nccl["version"] is None:
            nccl["version"] = match.group(1) or match.group(2)
        match = _p.NCCL_NETWORK.search(message, 0, 400)
        if match is not None:
            nccl["network"] = nccl["network"] or match.group(1)
        match = _p.NCCL_VIA.search(message, 0, 600)
        if match is not None and match.group(1) not in nccl["via"] and len(nccl["via"]) < 8:
            nccl["via"].append(match.group(1))
        if "NET/IB : Using" in message:
            names = (f"{hca.group(1)}:{hca.group(2)}" for hca in _p.NCCL_HCA.finditer(message[:2000]))
            nccl["hcas"] += [name for name in names if name not in nccl["hcas"]][: 32 - len(nccl["hcas"])]
