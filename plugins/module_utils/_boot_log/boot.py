# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One boot of one vLLM: its lines in their order, its failures, its state, and all of it as public facts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import Classifier, Failure, Plan, built_in_class, clip
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.figures import Figures
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import ERROR_LEVELS, STAGES, Line


class Boot(Figures):
    """One boot: its failures and its state. Feed `take` with every line that may matter, in order, and read `facts`."""

    def take(self, line: Line, number: int, plan: Plan) -> None:
        """Take one record. plan: what its text may hold."""
        self.last_line = number
        level = line.level
        if line.is_request:
            self._take_request_record(line, plan)
            return
        if level in ERROR_LEVELS:
            if plan.classifiers or plan.death or plan.traceback:
                self._failures(line, plan)
        elif not line.foreign:
            for classifier in plan.at_any_level:
                self._failure(classifier, line)
        if plan.benign and (level in ("WARNING", "INFO", None) or "hub_lookup_of_a_path" in plan.benign):
            self._count_benign(line, plan)
        if line.foreign or level in ("ERROR", "CRITICAL", "FATAL"):
            return
        for method in plan.always:
            method(self, line)
        if self.frozen:
            return
        for method in plan.figures:
            method(self, line)
        for rule in plan.rules:
            self.apply(rule, line)

    def _take_request_record(self, line: Line, plan: Plan) -> None:
        """Take a record that carries users' text."""
        if line.level == "INFO" and "eceived request" in line.message:
            self.frozen = True
        if line.level == "ERROR" and plan.death and _p.DEAD_ENGINE.fullmatch(line.message) is not None:
            self.answered = True  # a request waited for the engine that died
            self._failures(line, plan)
        elif "LLM engine (v" in line.message:
            self.take_dump(line.message)

    def _count_benign(self, line: Line, plan: Plan) -> None:
        for name in plan.benign:
            if name != "free_memory_info" or "less than" not in line.message:
                self.benign[name] = self.benign.get(name, 0) + 1
                self.recognised = True
                if name == "exception_ignored":
                    self.ignoring = self.last_line
                match = _p.UNKNOWN_VARIABLE.search(line.message, 0, 400) if name == "unknown_variable" else None
                if match is not None and match.group(1) not in self.unknown_variables and len(self.unknown_variables) < 32:
                    self.unknown_variables.append(match.group(1))

    def _other_port(self, message: str) -> bool:
        """Return whether a line tells of a port that another program could not bind: vLLM listens on the port that it reports."""
        match = _p.BIND.search(message) if "address already in use" in message else None
        listen = _p.PORT.search(self.facts_.get("listen", ""))
        return match is not None and listen is not None and match.group(1) not in (listen.group(1), str(self.args.get("master_port")))

    def _failures(self, line: Line, plan: Plan) -> None:
        message = line.message
        if (line.foreign and line.level not in ("ERROR", "CRITICAL", "FATAL")) or ("HTTP/" in message and _p.ACCESS.match(message)):
            return
        name = line.procs[-1][0] if line.procs else ""
        uncaught = name.startswith(_p.ENGINE_PROCESS) or (name == "APIServer" and line.level is None)
        if (plan.traceback or plan.death) and self.ready is None and uncaught:
            self.recognised = True
            if self.traceback is None or self.traceback.stage < self.stage:
                self.traceback = Failure(built_in_class("unclassified"), line, self.last_line, {}, False, self.stage)
        # once requests are served, a bare line may be a prompt that some middleware prints: it proves nothing alone
        bare = self.frozen and line.level is None and not line.procs
        if plan.death:
            only_hit = plan.literals.intersection(_p.DEATH) == {"WorkerProc hit an exception"}
            if not bare and not (only_hit and not self.served()):
                self._die()
            self.killed_itself = self.killed_itself or _p.KILLS_ITSELF in message
            if bare and _p.DEAD_ENGINE.fullmatch(message.strip()) is not None:
                self.met_dead_engine = True
        source = bool(plan.classifiers) and _p.SOURCE_LINE.match(message) is not None
        for classifier in plan.classifiers:
            if source and classifier.within is not None and re.search(classifier.within, message) and not any(u in message for u in classifier.unless):
                self.contexts[classifier.order] = self.last_line
            if source and classifier.name != "mamba_blocks" and not classifier.users:
                continue
            if self._failure(classifier, line, bare and classifier.name not in ("oom_killed", "driver_no_memory")):
                return

    def _failure(self, classifier: Classifier, line: Line, weak: bool = False) -> bool:
        """Take a line of a class and return whether it is one."""
        message = line.message
        if any(u in message for u in classifier.unless):
            return False
        match = next(filter(None, (pattern.search(message) for pattern in classifier.patterns)), None)
        if match is None or self._other_port(message) or not self._in_context(classifier, line):
            return False
        explained = self.ended_by_request or self._explained() or (classifier.kind == "weak" and self._caused(classifier.name))
        if explained and any(re.search(p, message) for p in classifier.entry.get("aftermath", ())):
            return False
        if self.ignoring and (classifier.name == "unclassified" or classifier.entry.get("case") in ("python_packages", "shm_removed")):
            ignored, self.ignoring = self.ignoring, 0
            if self.last_line - ignored <= 30:
                return True
        self.recognised = True
        after = self.served()
        if self.ended_by_request and (classifier.kind != "strong" or classifier.name in _p.SHUTDOWN_SYMPTOMS):
            return True  # a stopping rank closes its peers' connections
        if classifier.kind == "tail":
            self._note_end()
        self.unsure = after
        failure = Failure(classifier, line, self.last_line, self._found(classifier, match, line), after, self.stage)
        known = self.failures.get(classifier.name)
        if known is not None and (known.after_ready or not after):
            self._count_again(known, failure)
        elif after and (weak or classifier.kind == "weak") and not self.died:
            if self.weak is None or classifier.kind != "tail":
                self.weak = failure
        else:
            self.failures[classifier.name] = failure
        return True

    def _in_context(self, classifier: Classifier, line: Line) -> bool:
        """Return whether a line, or the traceback before it, is about what the row is about."""
        within = classifier.within
        if within is None or self.last_line - self.contexts.get(classifier.order, -_p.TRACEBACK_LINES) < _p.TRACEBACK_LINES:
            return True
        # a segment of a queue: Python prints the same of a clean-up at the end, without a process before it
        bare = line.level is None and not line.procs and "'/psm_" in line.message
        return not bare and any(p and re.search(p, line.message) for p in (within, classifier.entry.get("names")))

    def _found(self, classifier: Classifier, match: re.Match[str], line: Line) -> dict[str, str]:
        """Return the figures and names that a failure shows in its line and in the name of the field above it."""
        groups = _groups(classifier, match, line.message)
        above = self.above if _p.DETAIL in line.message else None
        field = _p.FIELD.fullmatch(above.message) if above is not None and above.procs == line.procs else None
        if field is not None and "message" in groups:
            groups["message"] = f"{field['field']}: {groups['message']}"
        return groups

    def name_drafter(self, failure: Failure) -> None:
        """Add the drafter of the boot to a failure whose remedy names it. An engine that dies prints its configuration after the failure."""
        method = self.facts_.get("cfg_speculative_method") or self.args.get("method")
        if "{drafter}" in failure.classifier.entry["remedy"] and (method or "drafter" in self.facts_):
            failure.groups["drafter"] = f"speculative-config, {method}" if isinstance(method, str) else "speculative-config"

    def _count_again(self, known: Failure, failure: Failure) -> None:
        """Count another line of a class, and keep the one that shows the cause better."""
        known.count += 1
        classifier, message = failure.classifier, failure.message
        # several rows of the catalogue can have one class
        last = classifier.entry["pick"] == "last" and not self.died and classifier.order == known.classifier.order
        better = last or classifier.order < known.classifier.order
        if classifier.name == "config_error" and "validation error" in known.message and ("Value error" in message or _p.DETAIL in message):
            better = True
        if better or self._survived(known):
            failure.count = known.count
            self.failures[classifier.name] = failure
        elif not known.groups and failure.groups:
            known.groups = failure.groups

    def _survived(self, failure: Failure) -> bool:
        """Return whether the boot went on after a failure that need not end it, such as an optional import."""
        classifier = failure.classifier
        if classifier.kind != "weak" or classifier.entry.get("last_words") or failure.after_ready:
            return False
        if classifier.any_level and not self.died and self.progressed > failure.number:
            return True  # the kernel's line: the driver tries again, and healthy boots have it too
        return (self.stage if self.end_stage < 0 else self.end_stage) > failure.stage

    def _explained(self) -> bool:
        """Return whether the log already has the cause of the end, or the engine kills its own processes."""
        return self.killed_itself or (self.died and self._caused())

    def _caused(self, name: str = "") -> bool:
        """Return whether the log already has a failure that can be the cause of others, of a class with another name."""
        causes = [f for f in self.failures.values() if f.classifier.kind != "tail" and f.classifier.name not in (*_p.CONSEQUENCES, name)]
        return any(not name or not self._survived(f) for f in causes)

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

    def state(self, final: bool = False) -> tuple[str, list[Failure], Failure | None]:
        """Return the state, the failures behind it with the root cause first, and what may yet become a failure.

        A weak line before readiness can come from an optional part. Alone it counts when the process has ended (`final`).
        """
        ranked = self._ranked()
        if self.ready is not None:
            return ("served_then_failed" if ranked else "ready"), ranked, None
        suspicion = None
        if ranked and not (self.end_stage < 0 and self._survived(ranked[0])):
            if self.answered:
                return "served_then_failed", ranked, None
            if final or self.confirmed(ranked):
                return "failed", ranked, None
            suspicion = ranked[0]
        last = self.traceback
        if final and not ranked and last is not None and last.stage == self.stage:
            return "failed", [last], None  # the log ends in the traceback of an engine process, before the exception's name
        return ("starting" if self.stage > 0 or self.died else "unknown"), [], suspicion

    def confirmed(self, ranked: list[Failure]) -> bool:
        """Return whether more than a weak line shows that the boot failed."""
        root = ranked[0].classifier
        if root.kind != "weak" or root.entry.get("last_words"):
            return True
        return self.died or any(f.classifier.kind == "tail" for f in ranked)

    def rank_of(self, failure: Failure) -> int | None:
        """Return the rank whose process printed a failure, where the log tells."""
        if failure.proc:
            match = re.search(r"(?:Worker_(?:\w{0,60}_)?TP|VllmWorker TP|rank=)(\d{1,5})", failure.proc)
            if match is not None and len(self.ranks) <= 1:
                return int(match.group(1))
            name = failure.proc.split(" ")[-1]
            for rank, place in self.ranks.items():
                if place[0] == name and failure.ip in ("", place[1]):
                    return rank
            if match is not None:
                return int(match.group(1))
        if len(self.ranks) == 1 and self.facts_.get("headless"):
            return min(self.ranks)
        return None

    def begins(self, line: Line) -> bool:
        """Return whether a line is the first one of the boot after this one: a container that restarts keeps one log."""
        if line.foreign or line.is_request:
            return False
        over = self.ready is not None or self.stopped is not None or bool(self.failures)
        if self._is_banner(line, over):
            return True
        message = line.message
        if message.startswith(("Resolved architecture: ", "Using max model len ")):
            # a headless rank prints this before it launches, any other before it serves: after that it is the next boot, which has no banner
            main = line.level == "INFO" and (not line.procs or line.procs[0][0] == "MainProcess")
            return main and ("headless" in self.facts_ or self.ready is not None)
        # each child of one boot detects the platform: after an error that an optional import can leave, it is not a restart
        ended = self.ready is not None or self.stopped is not None or self.died or any(f.classifier.kind != "weak" for f in self.failures.values())
        settled = ended or self.stage >= _p.STAGE_NUMBER["kv"]
        return settled and not line.procs and line.level == "INFO" and message.startswith("Automatically detected platform")

    def _is_banner(self, line: Line, over: bool) -> bool:
        """Return whether a line is one that vLLM prints once a boot, and the boot is already further."""
        message = line.message
        # a record without a fact, for example of chunked prefill, can stand before the banner
        configured = self.stage > _p.STAGE_NUMBER["config"] or (self.stage == _p.STAGE_NUMBER["config"] and bool(self.facts_))
        later = over or configured or (self.has_args and not (line.procs and line.procs[0][0].startswith("ApiServer_")))
        if not later or (self.frozen and line.level is None and not line.procs):
            return False
        if message.startswith("vLLM API server version ") or message.lstrip("▀▄█▌▐▝▘ ").startswith("version "):
            return True
        if message.startswith("non-default args: ") and self.has_args and line.level == "INFO":
            return True  # the banner can be switched off
        if message.startswith("Launching vLLM (v") and (over or self.stage > _p.STAGE_NUMBER["config"]):
            return True
        if not message.startswith("Initializing a") or _p.ENGINE.match(message) is None:
            return False
        if self.ready is not None or self.stopped is not None:
            return True
        # a script that makes one engine after another; the engines of one boot name their processes
        dead = self.died or any(f.classifier.kind == "strong" for f in self.failures.values())
        return not line.procs and (dead or self.stage >= _p.STAGE_NUMBER["kv"])

    def kv_cache(self) -> dict[str, Any]:
        """Return the KV pool of the engine whose pool is smallest."""
        engines = []
        for entries in self.engines.values():
            rated = [e for e in entries if e["context"] is not None]
            best = min(entries, key=lambda e: (_or_most(e["tokens"]), _or_most(e["max_concurrency"])))
            if best["context"] is None and rated:
                alone = min(rated, key=lambda e: _or_most(e["max_concurrency"]))
                best = {**best, "max_concurrency": alone["max_concurrency"], "context": alone["context"]}
            rate, context = best["max_concurrency"], best["context"]
            effective = round(rate * context) if rate is not None and context else None
            engines.append({**best, "effective_tokens": effective})
        gate: dict[str, Any] = min(engines, key=lambda e: (_or_most(e["tokens"]), e["max_concurrency"] or math.inf), default={})
        return {
            "tokens": gate.get("tokens"),
            "blocks": self.facts_.get("blocks"),
            "blocks_override": self.facts_.get("blocks_override"),
            "max_concurrency": gate.get("max_concurrency"),
            "context": gate.get("context"),
            "effective_tokens": gate.get("effective_tokens"),
            "available_gib": self.available,
        }

    def facts(self, final: bool = False) -> dict[str, Any]:
        """Return the public facts of this boot. final: the log is complete, the process has ended."""
        state, ranked, suspicion = self.state(final)
        f, nccl = self.facts_, self.nccl
        failure = None
        if ranked and state in ("failed", "served_then_failed"):
            self.name_drafter(ranked[0])
            failure = ranked[0].facts(self.rank_of(ranked[0]))
            failure["also"] = [r.classifier.name for r in ranked[1:]]
            failure["confirmed"] = self.confirmed(ranked)
        lost = self.failures.get("peer_lost")
        kv = self.kv_cache()
        return {
            "state": state,
            "stage": STAGES[self.stage],
            "stages": {k: dict(v) for k, v in self.stages.items()},
            "progress": dict(self.progress) if self.progress else None,
            "failure": failure,
            "suspicion": suspicion.facts(self.rank_of(suspicion)) if suspicion is not None else None,
            **self._configuration(kv["context"]),
            "kv_cache": kv,
            **self._loading(),
            "world_size": f.get("world_size"),
            "listen": f.get("listen"),
            "nccl": {**nccl, "transport": transport_of(nccl["via"], nccl["network"]), "via": list(nccl["via"]), "hcas": list(nccl["hcas"])},
            "ready": dict(self.ready) if self.ready else None,
            "stopped": dict(self.stopped) if self.stopped else None,
            "peer_lost": {"line": clip(lost.message), "line_number": lost.number, "peer": lost.groups.get("peer")} if lost is not None else None,
            "args": dict(self.args),
            "benign": dict(self.benign),
            "unknown_variables": list(self.unknown_variables),
        }

    def _configuration(self, kv_context: int | None) -> dict[str, Any]:
        """Return what the engine was configured with."""
        f, args = self.facts_, self.args
        version = next((f[k] for k in ("banner_version", "api_version", "headless_version", "engine_version") if k in f), None)
        speculative = f.get("cfg_speculative_method")
        if speculative is None and "cfg_speculative_none" not in f and isinstance(args.get("method"), str):
            speculative = args["method"]
        return {
            "version": version,
            "model": f.get("cfg_model") or args.get("model") or f.get("banner_model"),
            "context": kv_context or f.get("auto_fit") or _int(f.get("cfg_max_seq_len")) or f.get("max_model_len"),
            "dtype": f.get("cfg_dtype"),
            "kv_cache_dtype": f.get("cfg_kv_cache_dtype") or args.get("kv_cache_dtype"),
            "quantization": None if f.get("cfg_quantization") == "None" else f.get("cfg_quantization"),
            "speculative_method": speculative,
            "attention_backend": f.get("attention_backend"),
            "moe_backend": f.get("moe_backend"),
            "custom_ops": None if "cfg_custom_ops" not in f else ",".join(dict.fromkeys(re.findall(r"[\w+.:-]+", f["cfg_custom_ops"]))),
            "autotune": _flag(f.get("cfg_autotune")),
            "drafter": "drafter" in f,
            "eager": True if f.get("eager") else _flag(f.get("cfg_enforce_eager")),
        }

    def _loading(self) -> dict[str, Any]:
        """Return how long the steps of the start took, and how much memory."""
        f = self.facts_
        return {
            "weights": {
                "gib": max((gib for gib, _seconds in self.loads), default=None),
                "seconds": max(self.weights, default=None),
            },
            "load_seconds": max((seconds for _gib, seconds in self.loads), default=None),
            "graphs": {
                "seconds": max((g[0] for g in self.graphs), default=None),
                "gib": max((g[1] for g in self.graphs if g[1] is not None), default=None),
                "eager": bool(f.get("eager")) or _flag(f.get("cfg_enforce_eager")) is True,
            },
            "init_seconds": f.get("init_seconds"),
            "compilation_seconds": f.get("compilation_seconds"),
        }


def _groups(classifier: Classifier, match: re.Match[str], message: str) -> dict[str, str]:
    """Return the figures and names in a line of a class, by the names of the groups."""
    groups = {k: v for k, v in match.groupdict().items() if v}
    for detail in classifier.entry.get("details", ()):
        extra = re.search(detail, message)
        if extra is not None:
            groups.update({k: v for k, v in extra.groupdict().items() if v})
    for key in ("message", "name"):
        if key in groups:
            groups[key] = groups[key].split(" [type=")[0].strip()[:300].rstrip(".")
    if groups.get("message", "").startswith("User-specified max_model_len"):
        groups.pop("message")
    return groups


def transport_of(via: Collection[str], network: str | None) -> str:
    """Return rdma, tcp, plugin or unknown, from what NCCL's channels go by, else from the network that it uses. One channel over TCP is TCP."""
    kinds = {"rdma" if name.startswith("IB") else "tcp" if name.startswith("Socket") else "plugin" for name in via or (network or "",) if name}
    return next((kind for kind in ("tcp", "rdma", "plugin") if kind in kinds), "unknown")


def _or_most(figure: float | None) -> float:
    return math.inf if figure is None else figure


def _flag(text: str | None) -> bool | None:
    return None if text is None else text == "True"


def _int(value: Any) -> int | None:
    if isinstance(value, bool) or value is None:
        return None
    try:
        return int(str(value))
    except ValueError:
        return None
