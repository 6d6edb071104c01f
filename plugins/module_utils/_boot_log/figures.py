# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the figures of a boot: KV pool, weights, graphs, ranks, NCCL."""

from __future__ import annotations

import math
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import engine_key, proc_name
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.progress import Progress, leads
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact


def number(text: str) -> int:
    """Return the digits of a rendered number, for any separator of its thousands."""
    return int("".join(c for c in text if c.isdigit()) or "0")


class Figures(Progress):
    """Figures of one boot."""

    def take_pool(self, line: Line, number_: int) -> None:
        """Take the size of the KV pool, its concurrency, or both from one line. The entries of an engine are [tokens, concurrency, context, line]."""
        size, rate = _p.KV.search(line.message), _p.CONC.search(line.message)
        if size is not None and not leads(line, size):
            return
        if rate is not None and ("steady-state" in line.message or (size is None and not leads(line, rate))):
            rate = None
        if size is None and rate is None:
            return
        key = engine_key(line)
        if key not in self.engines and len(self.engines) >= _p.MAX_ENGINES:
            return
        entries = self.engines.setdefault(key, [])
        if size is not None:
            if len(entries) < _p.MAX_RANKS:
                entries.append([number(size.group(2)), None, None, number_])
            self.facts_.setdefault("kv_device", size.group("dev"))
            self.lines.setdefault("kv_cache", number_)
        if rate is not None:
            value = float(rate.group("x").replace(",", "."))
            shown, context = value if math.isfinite(value) else None, number(rate.group(1))
            if entries and entries[-1][1] is None and entries[-1][2] is None:
                entries[-1][1:3] = shown, context
            elif len(entries) < _p.MAX_RANKS:
                entries.append([None, shown, context, number_])
            self.lines.setdefault("max_concurrency", number_)
        self.reach("kv", number_, line.time)

    def take_available(self, line: Line, number_: int) -> None:
        """Take the memory that a rank has for the KV pool."""
        for pattern in _p.AVAIL:
            match = pattern.search(line.message)
            if match is None or not leads(line, match):
                continue
            entry = (float(match.group(1)), number_, proc_name(line))
            if len(self.available) < _p.MAX_RANKS:
                self.available.append(entry)
            else:
                self.available[-1] = min(self.available[-1], entry)
            self.reach("kv", number_, line.time)
            return

    def take_engine(self, line: Line, number_: int) -> None:
        """Take version and configuration from the engine's first line."""
        match = _p.ENGINE.search(line.message)
        if match is not None and leads(line, match):
            self.put("engine_version", match.group(1), number_)
            self.reach("config", number_, line.time)
            self._take_config(line.message, number_)

    def take_dump(self, message: str, number_: int) -> None:
        """Take version and configuration from the dump of an engine whose beginning this log may not have."""
        match = _p.DUMP.match(message)
        if match is not None and "engine_version" not in self.facts_:
            self.put("engine_version", match.group(1), number_)
            self._take_config(message, number_)

    def _take_config(self, message: str, number_: int) -> None:
        for name, pattern in _p.CFG.items():
            match = pattern.search(message)
            if match is not None:
                self.put("cfg_" + name, match.group(1), number_)

    def take_args(self, line: Line, number_: int) -> None:
        """Take the arguments of interest."""
        if _p.ARGS.match(line.message) is None:
            return
        self.reach("args", number_, line.time)
        self.lines.setdefault("args", number_)
        for match in _p.ARG.finditer(line.message[:65536]):
            name, text = match.groups()
            value: Any
            if text in ("True", "False"):
                value = text == "True"
            elif text[0] in "'\"":
                value = redact(text[1:-1])
            else:
                try:
                    value = float(text) if "." in text else int(text)
                except ValueError:  # None
                    continue
            self.args.setdefault(name, value)

    def take_duration(self, line: Line, number_: int) -> None:
        """Take how long a step took, and its memory."""
        message, time = line.message, line.time
        proc = " ".join(f"{p[0]} {p[1]}" for p in line.procs)
        match = _p.LOAD.search(message)
        if match is not None and leads(line, match):
            if (proc not in self.loads and len(self.loads) < _p.MAX_RANKS) or not proc:
                self.loads[proc or f"#{len(self.loads)}"] = (float(match.group(1)), float(match.group(2)), number_)
            self.lines.setdefault("weights", number_)
            self.reach("load", number_, time)
            return
        match = _p.WEIGHTS.search(message)
        if match is not None and leads(line, match):
            if len(self.weights) < _p.MAX_RANKS:
                self.weights.setdefault(proc, float(match.group(1)))
            self.lines.setdefault("weights_seconds", number_)
            self.reach("load", number_, time)
            return
        match = _p.GRAPH.search(message)
        if match is not None and leads(line, match):
            if len(self.graphs) < _p.MAX_RANKS:
                self.graphs.append((float(match.group(1)), float(match.group(2)) if match.group(2) else None))
            self.lines.setdefault("graphs", number_)
            self.reach("graphs", number_, time)
            return
        match = _p.INIT.search(message)
        if match is not None and leads(line, match):
            self.facts_["init_seconds"] = max(float(match.group(1)), self.facts_.get("init_seconds", 0.0))
            self.lines.setdefault("init_seconds", number_)
            if match.group(2):
                self.put("compilation_seconds", float(match.group(2)), number_)
            self.reach("init", number_, time)

    def take_rank(self, line: Line, number_: int) -> None:
        """Take a rank of the world."""
        match = _p.RANK.search(line.message)
        if match is not None and leads(line, match):
            world, rank = int(match.group(1)), int(match.group(2))
            more: dict[str, Any] = {"local_rank": int(match.group(3)), "init_method": match.group(4), "backend": match.group(5)}
        else:
            match = _p.RANK_ASSIGNED.search(line.message)
            if match is None or not leads(line, match):
                return
            rank, world = int(match.group(1)), int(match.group(2))
            more = {part.group(1).lower(): int(part.group(2)) for part in _p.RANK_PART.finditer(match.group(3))}
        self.put("world_size", world, number_)
        self.reach("rendezvous", number_, line.time)
        if rank not in self.ranks and len(self.ranks) >= _p.MAX_RANKS:
            return
        self.lines.setdefault("ranks", number_)
        entry = self.ranks.setdefault(rank, {"rank": rank, "line_number": number_, "proc": proc_name(line) or None})
        entry.update(world_size=world, **more)
        if line.procs:
            name, pid, ip = line.procs[-1]
            entry.update(proc=name or entry["proc"], pid=int(pid))
            if ip:
                entry["ip"] = ip

    def take_nccl(self, line: Line, number_: int) -> None:
        """Take how NCCL reaches the other rank."""
        message, nccl = line.message, self.nccl
        if "prompt" in message[:200] or "'" in message[:40]:
            return
        self.recognised = True
        match = _p.NCCL_VERSION.search(message, 0, 400)
        if match is not None and nccl["version"] is None:
            nccl["version"] = match.group(1) or match.group(2)
            self.lines.setdefault("nccl", number_)
        match = _p.NCCL_NETWORK.search(message, 0, 400)
        if match is not None:
            nccl["network"] = nccl["network"] or match.group(1)
            self.lines["nccl"] = number_
        match = _p.NCCL_VIA.search(message, 0, 600)
        if match is not None and match.group(1) not in nccl["via"] and len(nccl["via"]) < 8:
            nccl["via"].append(match.group(1))
            self.lines["nccl"] = number_
        if "NET/IB : Using" in message:
            names = (f"{hca.group(1)}:{hca.group(2)}" for hca in _p.NCCL_HCA.finditer(message[:2000]))
            nccl["hcas"] += [name for name in names if name not in nccl["hcas"]][: 32 - len(nccl["hcas"])]
        nccl["no_ib"] = nccl["no_ib"] or _p.NCCL_NO_IB.search(message, 0, 600) is not None
