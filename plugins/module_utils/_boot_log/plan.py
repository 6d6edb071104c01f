# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what to try on a line, chosen by the literals in it."""

from __future__ import annotations

import re
from collections.abc import Callable

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import CATALOGUE
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import Classifier, Plan, undigited
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.figures import Figures
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import BENIGN_NEEDLES, BOUNDARY, DEATH, TRACEBACK


def any_of(literals_: list[str]) -> str:
    """Return an expression for any of these literals, in this order where they begin alike: one first letter, one branch, which is what makes it fast."""
    branches: dict[str, list[str]] = {}
    for literal in literals_:
        branches.setdefault(literal[0], []).append(re.escape(literal[1:]))
    return "|".join(f"{re.escape(first)}(?:{'|'.join(rest)})" for first, rest in branches.items())


class _Literals:
    """All literals of facts and failures, found in a text in one pass."""

    def __init__(self) -> None:
        needles = {undigited(n) for n in (*DEATH, *BOUNDARY, TRACEBACK)}
        needles.update(needle for _name, needle in BENIGN_NEEDLES)
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
    death = [n for n in DEATH if n in found]
    return Plan(
        tuple(c for c in classifiers if not c.needles or not found.isdisjoint(c.plain)),
        bool(death),
        death == ["WorkerProc hit an exception"],
        TRACEBACK in found,
        not found.isdisjoint(BOUNDARY),
        tuple(name for name, needle in BENIGN_NEEDLES if needle in found),
        tuple(m for needles, m in ALWAYS if not found.isdisjoint(needles)),
        tuple(m for needles, m in FACTS if not found.isdisjoint(needles)),
    )


#: Tried on every line, also after requests began: needles without digits, method.
ALWAYS: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = (
    (("HTTP/",), Figures._f_access),
    (("startup complete", "Uvicorn running"), Figures._f_ready),
    (("bind_address=",), Figures._f_ready_rust),
    (("hutting down", "shutdown complete", "shutdown triggered", "trigger received", "Finished server process", "Parent process exited"), Figures._f_stopped),
    (("Running: ",), Figures._f_stats),
    (("KeyboardInterrupt",), Figures._f_interrupted),
    (("eceived request ", "Added request "), Figures._f_request),
)
#: Tried until the first request of a boot.
FACTS: tuple[tuple[tuple[str, ...], Callable[..., bool]], ...] = (
    ((" KV cache size: ",), Figures._f_kv),
    (("Maximum concurrency for ",), Figures._f_conc),
    (("num_gpu_blocks",), Figures._f_num_blocks),
    (
        ("Available KV cache memory: ", "memory for KV Cache as", "for KV cache on node", "GiB) for KV cache", "startup plan"),
        Figures._f_available,
    ),
    (("loading took ", "weights took ", "raph capturing finished", "init engine ("), Figures._f_took),
    (("max model len ", "fit max_model_len"), Figures._f_context),
    (("LLM engine (v",), Figures._f_engine),
    (("version ",), Figures._f_version),
    (("vLLM Version",), Figures._f_env_version),
    (("█  model ", "▀  model ", "█ model ", "▀ model "), Figures._f_banner_model),
    (("args: {",), Figures._f_args),
    (("headless",), Figures._f_headless),
    (("world_size=", "in world size "), Figures._f_rank),
    ((" backend",), Figures._f_attention),
    (("to store kv cache",), Figures._f_kv_dtype),
    (("Starting vLLM",), Figures._f_listen),
    (("INFO Using network", "NCCL version ", "using nccl==", "via NET/", "via PP/", "via SHM/", "NET/IB : "), Figures._f_nccl),
    (("Completed | ", "Capturing CUDA"), Figures._f_progress),
    (("eager mode", "Enforce eager set"), Figures._f_eager),
    (("Starting to load model", "Loading model ", "Loading drafter model"), Figures._f_loading),
    (("creating a placement group",), Figures._f_placement),
    (("Automatically detected platform",), Figures._f_platform),
    (("Resolved architecture: ",), Figures._f_resolved),
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
        Figures._f_milestone,
    ),
)
