# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: one boot of one vLLM as public facts."""

from __future__ import annotations

import math
import re
from collections.abc import Collection
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import clip
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.failing import Failing
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stages import STAGES


class Boot(Failing):
    """One boot: feed `take`, read `facts`."""

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
        later = over or configured or ("args" in self.lines and not (line.procs and line.procs[0][0].startswith("ApiServer_")))
        if not later or (self.frozen and line.level is None and not line.procs):
            return False
        if message.startswith("vLLM API server version ") or message.lstrip("▀▄█▌▐▝▘ ").startswith("version "):
            return True
        if message.startswith("non-default args: ") and "args" in self.lines and line.level == "INFO":
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
        """Return the KV pool: of the engine whose pool is smallest, and of each engine."""
        engines = []
        for key, entries in self.engines.items():
            rated = [e for e in entries if e["context"] is not None]
            best = min(entries, key=lambda e: (_or_most(e["tokens"]), _or_most(e["max_concurrency"])))
            if best["context"] is None and rated:
                alone = min(rated, key=lambda e: _or_most(e["max_concurrency"]))
                best = {**best, "max_concurrency": alone["max_concurrency"], "context": alone["context"]}
            rate, context = best["max_concurrency"], best["context"]
            effective = round(rate * context) if rate is not None and context else None
            engines.append({"engine": key.rsplit(" ", 1)[0].strip() or None, **best, "effective_tokens": effective})
        gate: dict[str, Any] = min(engines, key=lambda e: (_or_most(e["tokens"]), e["max_concurrency"] or math.inf), default={})
        tokens = [e["tokens"] for e in engines if e["tokens"] is not None]
        hybrid = None
        if gate.get("tokens") and gate["effective_tokens"]:
            hybrid = gate["tokens"] < 0.97 * gate["effective_tokens"] and gate["effective_tokens"] - gate["tokens"] > 0.02 * (gate["context"] or 0)
        return {
            "tokens": gate.get("tokens"),
            "blocks": self.facts_.get("blocks"),
            "blocks_override": self.facts_.get("blocks_override"),
            "max_concurrency": gate.get("max_concurrency"),
            "context": gate.get("context"),
            "effective_tokens": gate.get("effective_tokens"),
            "available_gib": min((gib for gib, _line, _proc in self.available), default=None),
            "available": [{"gib": a[0], "proc": a[2] or None, "line_number": a[1]} for a in self.available[:64]],
            "device": self.facts_.get("kv_device"),
            "hybrid_old_formula": hybrid,
            "tokens_of_all_engines": sum(tokens) if tokens else None,
            "engines": engines[:64],
        }

    def final_facts(self) -> dict[str, Any]:
        """Return the facts of a boot that another one followed: they do not change any more."""
        if self.ended_facts is None:
            self.ended_facts = self.facts(final=True)
        return dict(self.ended_facts)

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
            "ranks": [dict(self.ranks[r]) for r in sorted(self.ranks)][:64],
            "world_size": f.get("world_size"),
            "head_address": f.get("head_address") or f.get("master_addr"),
            "role": self._role(),
            "platform": f.get("platform"),
            "listen": f.get("listen"),
            "nccl": {**nccl, "transport": transport_of(nccl["via"], nccl["network"]), "via": list(nccl["via"]), "hcas": list(nccl["hcas"])},
            "ready": dict(self.ready) if self.ready else None,
            "stopped": dict(self.stopped) if self.stopped else None,
            "peer_lost": {"line": clip(lost.message), "line_number": lost.number, "peer": lost.groups.get("peer")} if lost is not None else None,
            "args": dict(self.args),
            "benign": dict(self.benign),
            "unknown_variables": list(self.unknown_variables),
            "first_line": self.first_line,
            "last_line": self.last_line,
            "lines": self._fact_lines(failure),
        }

    def _configuration(self, kv_context: int | None) -> dict[str, Any]:
        """Return what the engine was configured with."""
        f, args = self.facts_, self.args
        version = next((f[k] for k in _LINE_ALIAS["version"] if k in f), None)
        speculative = f.get("cfg_speculative_method")
        if speculative is None and "cfg_speculative_none" not in f and isinstance(args.get("method"), str):
            speculative = args["method"]
        sizes = {f"{k}_parallel_size": _int(f.get(f"cfg_{k}_parallel_size")) or _int(args.get(f"{k}_parallel_size")) for k in ("tensor", "pipeline", "data")}
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
            **sizes,
        }

    def _loading(self) -> dict[str, Any]:
        """Return how long the steps of the start took, and how much memory."""
        f, loads = self.facts_, list(self.loads.items())
        return {
            "weights": {
                "gib": max((v[0] for _k, v in loads), default=None),
                "seconds": max(self.weights.values(), default=None),
                "ranks": [{"proc": k.strip() or None, "gib": v[0], "seconds": v[1], "line_number": v[2]} for k, v in loads[:64]],
            },
            "load_seconds": max((v[1] for _k, v in loads if v[1] is not None), default=None),
            "graphs": {
                "seconds": max((g[0] for g in self.graphs), default=None),
                "gib": max((g[1] for g in self.graphs if g[1] is not None), default=None),
                "eager": bool(f.get("eager")) or _flag(f.get("cfg_enforce_eager")) is True,
            },
            "init_seconds": f.get("init_seconds"),
            "compilation_seconds": f.get("compilation_seconds"),
        }

    def _role(self) -> str:
        f = self.facts_
        if f.get("headless") and "APIServer" in self.processes:
            return "head"  # both ranks in one log
        if f.get("headless") or self.args.get("headless") is True or self.args.get("node_rank", 0) not in (0, None):
            return "worker"
        if "APIServer" in self.processes or "listen" in f or self.ready is not None or any(k.startswith("EngineCore") for k in self.processes):
            return "head"
        return "unknown"

    def _fact_lines(self, failure: dict[str, Any] | None) -> dict[str, int]:
        """Return the number of the line that each fact is from."""
        lines = {k: v for k, v in self.lines.items() if k not in _INNER and not k.startswith("cfg_")}
        for public, inner in _LINE_ALIAS.items():
            number = next((self.lines[i] for i in inner if i in self.lines), None)
            if number is not None:
                lines[public] = number
        if self.ready is not None:
            lines["ready"] = self.ready["line_number"]
        if failure is not None:
            lines["failure"] = failure["line_number"]
        if self.available:
            lines["available_gib"] = min(self.available, key=lambda a: a[0])[1]
        return lines


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


_LINE_ALIAS = {
    "version": ("banner_version", "api_version", "headless_version", "engine_version"),
    "model": ("cfg_model", "banner_model"),
    "context": ("max_concurrency", "auto_fit", "cfg_max_seq_len", "max_model_len"),
    "dtype": ("cfg_dtype",),
    "kv_cache_dtype": ("cfg_kv_cache_dtype",),
    "quantization": ("cfg_quantization",),
    "speculative_method": ("cfg_speculative_method",),
    "custom_ops": ("cfg_custom_ops",),
    "head_address": ("head_address", "master_addr"),
    "role": ("headless",),
    "autotune": ("cfg_autotune",),
    "eager": ("eager", "cfg_enforce_eager"),
}
#: Names that only stand for a public one.
_INNER = frozenset(inner for names in _LINE_ALIAS.values() for inner in names) - {"max_concurrency"}
