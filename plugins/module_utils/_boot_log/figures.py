# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the figures of a boot: KV pool, weights, graphs, ranks, NCCL."""

from __future__ import annotations

import math
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import patterns as _p
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.classes import engine_key, proc_name, redacted
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.line import Line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.progress import Progress, leading


def number(text: str) -> int:
    """Return the digits of a rendered number, for any separator of its thousands."""
    return int("".join(c for c in text if c.isdigit()) or "0")


class Figures(Progress):
    """Figures of one boot."""

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
        unknown = {"tokens": None, "max_concurrency": None, "context": None, "line_number": self.last_line}
        if size is not None:
            if len(entries) < _p.MAX_RANKS:
                entries.append({**unknown, "tokens": number(size.group(2))})
            self.facts_.setdefault("kv_device", size.group("dev"))
            self.lines.setdefault("kv_cache", self.last_line)
        if rate is not None:
            value = float(rate.group("x").replace(",", "."))
            rated = {"max_concurrency": value if math.isfinite(value) else None, "context": number(rate.group(1))}
            if entries and entries[-1]["context"] is None:
                entries[-1].update(rated)
            elif len(entries) < _p.MAX_RANKS:
                entries.append({**unknown, **rated})
            self.lines.setdefault("max_concurrency", self.last_line)
        self.reach("kv", line)

    def take_available(self, line: Line) -> None:
        """Take the memory that a rank has for the KV pool."""
        match = next(filter(None, (leading(line, pattern) for pattern in _p.AVAIL)), None)
        if match is None:
            return
        entry = (float(match.group(1)), self.last_line, proc_name(line))
        if len(self.available) < _p.MAX_RANKS:
            self.available.append(entry)
        else:
            self.available[-1] = min(self.available[-1], entry)
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
        self.lines.setdefault("args", self.last_line)
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
        proc = " ".join(f"{p[0]} {p[1]}" for p in line.procs)
        if match := leading(line, _p.LOAD):
            if (proc not in self.loads and len(self.loads) < _p.MAX_RANKS) or not proc:
                self.loads[proc or f"#{len(self.loads)}"] = (float(match.group(1)), float(match.group(2)), self.last_line)
            fact, stage = "weights", "load"
        elif match := leading(line, _p.WEIGHTS):
            if len(self.weights) < _p.MAX_RANKS:
                self.weights.setdefault(proc, float(match.group(1)))
            fact, stage = "weights_seconds", "load"
        elif match := leading(line, _p.GRAPH):
            if len(self.graphs) < _p.MAX_RANKS:
                self.graphs.append((float(match.group(1)), float(match.group(2)) if match.group(2) else None))
            fact = stage = "graphs"
        elif match := leading(line, _p.INIT):
            self.facts_["init_seconds"] = max(float(match.group(1)), self.facts_.get("init_seconds", 0.0))
            if match.group(2):
                self.put("compilation_seconds", float(match.group(2)))
            fact, stage = "init_seconds", "init"
        else:
            return
        self.lines.setdefault(fact, self.last_line)
        self.reach(stage, line)

    def take_rank(self, line: Line) -> None:
        """Take a rank of the world."""
        match = leading(line, _p.RANK)
        if match is not None:
            world, rank = int(match.group(1)), int(match.group(2))
            more: dict[str, Any] = {"local_rank": int(match.group(3)), "init_method": match.group(4), "backend": match.group(5)}
        else:
            match = leading(line, _p.RANK_ASSIGNED)
            if match is None:
                return
            rank, world = int(match.group(1)), int(match.group(2))
            more = {part.group(1).lower(): int(part.group(2)) for part in _p.RANK_PART.finditer(match.group(3))}
        self.put("world_size", world)
        self.reach("rendezvous", line)
        if rank not in self.ranks and len(self.ranks) >= _p.MAX_RANKS:
            return
        self.lines.setdefault("ranks", self.last_line)
        entry = self.ranks.setdefault(rank, {"rank": rank, "line_number": self.last_line, "proc": proc_name(line) or None})
        entry.update(world_size=world, **more)
        if line.procs:
            name, pid, ip = line.procs[-1]
            entry.update(proc=name or entry["proc"], pid=int(pid))
            if ip:
                entry["ip"] = ip

    def take_nccl(self, line: Line) -> None:
        """Take how NCCL reaches the other rank."""
        message, nccl = line.message, self.nccl
        if "prompt" in message[:200] or "'" in message[:40]:
            return
        self.recognised = True
        match = _p.NCCL_VERSION.search(message, 0, 400)
        if match is not None and nccl["version"] is None:
            nccl["version"] = match.group(1) or match.group(2)
            self.lines.setdefault("nccl", self.last_line)
        match = _p.NCCL_NETWORK.search(message, 0, 400)
        if match is not None:
            nccl["network"] = nccl["network"] or match.group(1)
            self.lines["nccl"] = self.last_line
        match = _p.NCCL_VIA.search(message, 0, 600)
        if match is not None and match.group(1) not in nccl["via"] and len(nccl["via"]) < 8:
            nccl["via"].append(match.group(1))
            self.lines["nccl"] = self.last_line
        if "NET/IB : Using" in message:
            names = (f"{hca.group(1)}:{hca.group(2)}" for hca in _p.NCCL_HCA.finditer(message[:2000]))
            nccl["hcas"] += [name for name in names if name not in nccl["hcas"]][: 32 - len(nccl["hcas"])]
        nccl["no_ib_device"] = nccl["no_ib_device"] or _p.NCCL_NO_IB.search(message, 0, 600) is not None
