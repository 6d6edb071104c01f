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
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.progress import Progress
from ansible_collections.gb10.cluster.plugins.module_utils._common.redact import redact


def number(text: str) -> int:
    """Return the digits of a rendered number, whatever separates its thousands."""
    return int("".join(c for c in text if c.isdigit()) or "0")


class Figures(Progress):
    """Figures of one boot."""

    def _f_kv(self, line: Line, number_: int) -> bool:
        match = _p.KV.search(line.message)
        if match is None or not self._ok(line, match):
            return False
        self._kv(line, number(match.group(2)), match.group("dev"), number_)
        return True

    def _f_conc(self, line: Line, number_: int) -> bool:
        message = line.message
        match = _p.CONC.search(message)
        if match is None or match.end() <= self.seam or "steady-state" in message or not (self.whole or match.group("end") == "x"):
            return False
        if not self._ok(line, match):
            size = _p.KV.search(message)
            if size is None or not self._leads(line, size):
                return False
        self._conc(line, number(match.group(1)), match.group("x"), number_)
        return True

    def _f_num_blocks(self, line: Line, number_: int) -> bool:
        message = line.message
        match = _p.NUM_BLOCKS.search(message)
        if match is not None and match.end() > self.seam and match.start() < 160 and (self.whole or match.group("end").strip()):
            blocks = int(match.group(1))
            self.facts_["blocks"] = min(blocks, self.facts_.get("blocks", blocks))
            self.lines.setdefault("blocks", number_)
            return True
        match = _p.OVERRIDE.search(message)
        if match is not None and match.group(1) != "0" and self._ok(line, match):
            self.put("blocks_override", int(match.group(2)), number_)
            return True
        return False

    def _f_available(self, line: Line, number_: int) -> bool:
        for pattern in _p.AVAIL:
            match = pattern.search(line.message)
            if match is None:
                continue
            if match.end() <= self.seam or not (self._ok(line, match) or pattern is _p.AVAIL[1]):
                return False
            entry = (float(match.group(1)), number_, proc_name(line))
            if len(self.available) < _p.MAX_RANKS:
                self.available.append(entry)
            else:
                self.available[-1] = min(self.available[-1], entry)
            self.reach("kv", number_, line.time)
            return True
        return False

    def _f_context(self, line: Line, number_: int) -> bool:
        match = _p.CTX.search(line.message)
        if match is not None and self._ok(line, match):
            self.put("max_model_len", int(match.group(1)), number_)
            self.reach("config", number_, line.time)
            return True
        match = _p.AUTO_FIT.search(line.message)
        if match is not None and self._ok(line, match):
            self.facts_["auto_fit"] = int(match.group(2) or match.group(3))
            self.lines["auto_fit"] = number_
            return True
        return False

    def _f_engine(self, line: Line, number_: int) -> bool:
        match = _p.ENGINE.search(line.message)
        if match is not None and self._leads(line, match):
            if match.end() > self.seam:
                self.put("engine_version", match.group(1), number_)
                self.reach("config", number_, line.time)
            return self._config(line.message, number_) or match.end() > self.seam
        return False

    def _dump(self, message: str, number_: int) -> bool:
        """Take version and configuration from the dump of an engine whose beginning this log may not have."""
        match = _p.DUMP.match(message)
        if match is None or self.lines.get("engine_version", number_) != number_:
            return False
        if match.end() > self.seam:
            self.put("engine_version", match.group(1), number_)
        return self._config(message, number_)

    def _f_version(self, line: Line, number_: int) -> bool:
        found = False
        for name, pattern in (("api_version", _p.API_VERSION), ("banner_version", _p.BANNER)):
            match = pattern.search(line.message)
            if match is None and pattern is _p.BANNER and line.file:
                match = _p.BANNER_BARE.match(line.message)
            if match is not None and self._ok(line, match):
                self.put(name, match.group(1).rstrip(".,;`*"), number_)
                self.reach("args", number_, line.time)
                found = True
        return found

    def _f_env_version(self, line: Line, number_: int) -> bool:
        match = _p.ENV_VERSION.match(line.message)
        if match is None or match.end() <= self.seam:
            return False
        self.put("env_version", match.group(1), number_)
        return True

    def _f_banner_model(self, line: Line, number_: int) -> bool:
        match = _p.BANNER_MODEL.search(line.message)
        if match is None or not self._ok(line, match):
            return False
        self.put("banner_model", match.group(1), number_)
        return True

    def _f_args(self, line: Line, number_: int) -> bool:
        if _p.ARGS.match(line.message) is None:
            return False
        self.reach("args", number_, line.time)
        return self._args(line.message, number_)

    def _f_headless(self, line: Line, number_: int) -> bool:
        match = _p.HEADLESS.search(line.message)
        if match is not None and self._ok(line, match):
            self.put("headless_version", match.group(1), number_)
        else:
            match = _p.HEADLESS_DP.search(line.message)
            if match is None or not self._ok(line, match):
                return False
        self.put("head_address", match.group(2), number_)
        self.put("headless", True, number_)
        self.reach("config", number_, line.time)
        return True

    def _f_attention(self, line: Line, number_: int) -> bool:
        for pattern in _p.ATTN:
            match = pattern.search(line.message)
            if match is not None and self._ok(line, match):
                if "vit attention" in line.message:
                    return False
                self.put("attention_backend", match.group(1), number_)
                return True
        return False

    def _f_kv_dtype(self, line: Line, number_: int) -> bool:
        match = _p.KV_DTYPE.search(line.message)
        if match is None or not self._ok(line, match):
            return False
        self.put("kv_dtype_line", match.group(1), number_)
        return True

    def _f_eager(self, line: Line, number_: int) -> bool:
        if self.seam > 17 or not line.message.startswith(("Cudagraph is disabled under eager mode", "Enforce eager set")):
            return False
        self.put("eager", True, number_)
        return True

    def _kv(self, line: Line, tokens: int, device: str, number_: int) -> None:
        key = engine_key(line)
        if key in self.engines or len(self.engines) < _p.MAX_ENGINES:
            entries = self.engines.setdefault(key, [])
            if len(entries) < _p.MAX_RANKS:
                entries.append([tokens, None, None, number_])
        self.facts_.setdefault("kv_device", device)
        self.lines.setdefault("kv_cache", number_)
        self.reach("kv", number_, line.time)

    def _conc(self, line: Line, context: int, rate: str, number_: int) -> None:
        key = engine_key(line)
        try:
            value = float(rate.replace(",", "."))
        except ValueError:
            value = math.nan
        if not math.isfinite(value):
            value = math.nan
        entries = self.engines.get(key)
        if entries is None and len(self.engines) < _p.MAX_ENGINES:
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
        elif len(entries) < _p.MAX_RANKS:
            entries.append([None, shown, context, number_])
        self.lines.setdefault("max_concurrency", number_)
        self.reach("kv", number_, line.time)

    def _f_took(self, line: Line, number_: int) -> bool:
        message, time, ok = line.message, line.time, self._ok
        match = _p.LOAD.search(message)
        if match is not None and ok(line, match):
            proc = " ".join(f"{p[0]} {p[1]}" for p in line.procs)
            if (proc not in self.loads and len(self.loads) < _p.MAX_RANKS) or not proc:
                self.loads[proc or f"#{len(self.loads)}"] = (float(match.group(1)), float(match.group(2)), number_)
            self.reach("load", number_, time)
            self.lines.setdefault("weights", number_)
            return True
        match = _p.WEIGHTS.search(message)
        if match is not None and ok(line, match):
            if len(self.weights) < _p.MAX_RANKS:
                self.weights.setdefault(" ".join(f"{p[0]} {p[1]}" for p in line.procs), float(match.group(1)))
            self.lines.setdefault("weights_seconds", number_)
            self.reach("load", number_, time)
            return True
        match = _p.GRAPH.search(message)
        if match is not None and ok(line, match):
            if len(self.graphs) < _p.MAX_RANKS:
                self.graphs.append((float(match.group(1)), float(match.group(2)) if match.group(2) else None))
            self.lines.setdefault("graphs", number_)
            self.reach("graphs", number_, time)
            return True
        match = _p.INIT.search(message)
        if match is not None and ok(line, match):
            self.facts_["init_seconds"] = max(float(match.group(1)), self.facts_.get("init_seconds", 0.0))
            self.lines.setdefault("init_seconds", number_)
            if match.group(2):
                self.put("compilation_seconds", float(match.group(2)), number_)
            self.reach("init", number_, time)
            return True
        return False

    def _config(self, message: str, number_: int) -> bool:
        found = False
        for name, pattern in _p.CFG.items():
            if "cfg_" + name in self.facts_:
                continue
            match = pattern.search(message)
            if match is not None and match.end() > self.seam:
                self.put("cfg_" + name, match.group(1), number_)
                found = True
        return found

    def _args(self, message: str, number_: int) -> bool:
        found = self.seam <= 0
        for match in _p.ARG.finditer(message[:65536]):
            if match.end() <= self.seam or len(self.args) > 40:
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

    def _f_rank(self, line: Line, number_: int) -> bool:
        message = line.message
        match = _p.RANK.search(message)
        if match is not None and self._ok(line, match):
            entry = self._rank_entry(int(match.group(2)), line, number_)
            if entry is not None:
                entry.update(world_size=int(match.group(1)), local_rank=int(match.group(3)), init_method=match.group(4), backend=match.group(5))
            self.put("world_size", int(match.group(1)), number_)
            self.reach("rendezvous", number_, line.time)
            return True
        match = _p.RANK_ASSIGNED.search(message)
        if match is not None and self._ok(line, match):
            entry = self._rank_entry(int(match.group(1)), line, number_)
            if entry is not None:
                entry.setdefault("world_size", int(match.group(2)))
                for part in _p.RANK_PART.finditer(match.group(3)):
                    entry[part.group(1).lower()] = int(part.group(2))
            self.put("world_size", int(match.group(2)), number_)
            self.reach("rendezvous", number_, line.time)
            return True
        match = _p.LEADER.search(message)
        if match is not None and self._ok(line, match):
            self.put("node_rank", int(match.group(1)), number_)
            self.put("master_addr", match.group(2), number_)
            self.put("local_world_size", int(match.group(4)), number_)
            return True
        return False

    def _rank_entry(self, rank: int, line: Line, number_: int) -> dict[str, Any] | None:
        entry = self.ranks.get(rank)
        if entry is None and len(self.ranks) < _p.MAX_RANKS:
            entry = self.ranks[rank] = {"rank": rank, "line_number": number_, "proc": proc_name(line) or None}
            self.lines.setdefault("ranks", number_)
        if entry is not None and line.procs:
            name, pid, ip = line.procs[-1]
            entry["proc"] = name or entry.get("proc")
            entry["pid"] = int(pid)
            if ip:
                entry["ip"] = ip
        return entry

    def _f_nccl(self, line: Line, number_: int) -> bool:
        message, nccl = line.message, self.nccl
        if "prompt" in message[:200] or "'" in message[:40]:
            return False
        found = False
        match = _p.NCCL_VERSION.search(message, 0, 400)
        if match is not None and match.end() > self.seam and nccl["version"] is None:
            nccl["version"] = match.group(1) or match.group(2)
            self.lines.setdefault("nccl", number_)
            found = True
        match = _p.NCCL_NETWORK.search(message, 0, 400)
        if match is not None and match.end() > self.seam:
            nccl["network"] = nccl["network"] or match.group(1)
            self.lines["nccl"] = number_
            found = True
        if "via " in message:
            match = _p.NCCL_VIA.search(message, 0, 600)
            if match is not None and match.group(1) not in nccl["via"] and len(nccl["via"]) < 8:
                nccl["via"].append(match.group(1))
                self.lines["nccl"] = number_
            local = _p.NCCL_LOCAL.search(message, 0, 600)
            if local is not None and local.group(1) not in nccl["local"]:
                nccl["local"].append(local.group(1))
            found = found or match is not None or local is not None
        if "NET/IB : Using" in message:
            for hca in _p.NCCL_HCA.finditer(message[:2000]):
                name = f"{hca.group(1)}:{hca.group(2)}"
                if name not in nccl["hcas"] and len(nccl["hcas"]) < 32:
                    nccl["hcas"].append(name)
            found = True
        if _p.NCCL_NO_IB.search(message, 0, 600) is not None:
            nccl["no_ib"] = True
            found = True
        if found:
            self.recognised = True
        return found
