# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A recorded boot log as the lines of this boot: its pauses scaled, its configuration and times replaced."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass

RECORDINGS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "recordings")
STAMP = re.compile(r"\b\d\d-\d\d (\d\d):(\d\d):(\d\d)\b")
#: A line that begins a phase, in the order of a boot. The ranks meet in `rendezvous`.
PHASES = {
    "config": re.compile(r"Using max model len"),
    "rendezvous": re.compile(r"distributed_init_method="),
    "load": re.compile(r"Starting to load model|Loading model from scratch"),
    "kv": re.compile(r"KV cache size|for KV cache|Available KV cache memory"),
    "listen": re.compile(r"Starting vLLM server"),
}
POOL = re.compile(r"KV cache size: [\d,]+ tokens")
CONCURRENCY = re.compile(r"(Maximum concurrency for )[\d,]+( tokens per request: )[\d.]+x")
NCCL_TCP = re.compile(r"NET/IB : No device found|Failed to initialize NET plugin IB")


@dataclass(frozen=True)
class Boot:
    """What is replaced in a recording. pool: tokens."""

    model: str
    served_name: str
    context: int
    pool: int
    master: str
    port: int
    rdma: bool = False

    def line(self, text: str) -> str:
        """Return a recorded line with the values of this boot."""
        text = STAMP.sub(time.strftime("%m-%d %H:%M:%S"), text)
        text = re.sub(r"/models/(lab-tiny|lab-1b|tiny|absent)\b", self.model, text)
        text = re.sub(r"\[?'(lab-tiny|lab-1b|tiny)'\]?", f"['{self.served_name}']", text) if "served_model_name" in text else text
        text = re.sub(r"(Using max model len |max_seq_len=|'max_model_len': )\d+", rf"\g<1>{self.context}", text)
        text = POOL.sub(f"KV cache size: {self.pool:,} tokens", text)
        text = CONCURRENCY.sub(rf"\g<1>{self.context:,}\g<2>{self.pool / self.context:.2f}x", text)
        text = re.sub(r"(?:10\.77\.0\.\d+|192\.168\.200\.11):29501", f"{self.master}:{self.port}", text)
        text = re.sub(r"10\.77\.0\.1\b|192\.168\.200\.11\b", self.master, text)
        return _as_rdma(text) if self.rdma else text


@dataclass(frozen=True)
class Line:
    """One line of a replay. pause: seconds before it; phase: the phase that it begins, empty for none."""

    text: str
    pause: float
    phase: str


def lines(name: str, rank: int, boot: Boot, seconds: float) -> Iterator[Line]:
    """Return the lines of a recording, spread over `seconds` as they were when they were recorded."""
    own, head = (os.path.join(RECORDINGS, f"{name}.rank{number}.log") for number in (rank, 0))
    with open(own if os.path.exists(own) else head, encoding="utf-8") as handle:  # a rank that ends before it meets the other one prints what the head does
        recorded = handle.read().splitlines()
    times = _times(recorded)
    whole = max(times) - min(times) or 1
    last = min(times)
    for text, at in zip(recorded, times, strict=True):
        if boot.rdma and NCCL_TCP.search(text):
            continue
        phase = next((name for name, begin in PHASES.items() if begin.search(text)), "")
        yield Line(boot.line(text), (at - last) * seconds / whole, phase)
        last = at


def _times(recorded: list[str]) -> list[int]:
    """Return the second of the day of each line, never falling; a line without a time has that of the line before."""
    found, last = [], 0
    for text in recorded:
        stamp = STAMP.search(text)
        last = max(last, sum(int(part) * unit for part, unit in zip(stamp.groups(), (3600, 60, 1), strict=True)) if stamp else last)
        found.append(last)
    first = next((value for value in found if value), 0)
    return [value or first for value in found]


def _as_rdma(text: str) -> str:
    """Return a line of NCCL as it is with RoCE. The recording ran over TCP; the wordings are those of NCCL 2.28 (ncclIbInit, net_ib.cc)."""
    text = re.sub(r"NET/IB : Using \[RO\]; OOB", "NET/IB : Using [0]rocep1s0f0:1/RoCE [RO]; OOB", text)
    text = text.replace("Initialized NET plugin Socket", "Initialized NET plugin IB").replace("Assigned NET plugin Socket", "Assigned NET plugin IB")
    return text.replace("Using network Socket", "Using network IB").replace("via NET/Socket/", "via NET/IB/").replace("NET/Socket :", "NET/IB :")
