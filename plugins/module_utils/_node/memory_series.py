# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A bounded series of a node's memory over time, and its compact text: `seconds MemFree MemAvailable SwapFree` in MiB, joined by ';'. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple

KEYS = ("free_kib", "available_kib", "swap_free_kib")  # of _node.log.memory_of()
_SAMPLE = re.compile(r"(\d{1,11}) (\d{1,9}) (\d{1,9}) (\d{1,9})")


class Sample(NamedTuple):
    """The memory at one time. `seconds` count from the boot's start or from the epoch; the others are MiB."""

    seconds: int
    free: int
    available: int
    swap_free: int


class Series:
    """At most `most` samples, `step` seconds apart. A full one loses its oldest sample (`ring`), or every second one while its step doubles."""

    def __init__(self, step: float, most: int, ring: bool = False) -> None:
        self.step, self.most, self.ring = step, most, ring
        self.samples: list[Sample] = []

    def add(self, seconds: float, memory: Mapping[str, int]) -> None:
        """Take a reading, unless the last sample is too near or the reading has no figures. A clock that was set back does not end the series."""
        if not memory.get("available_kib") or (self.samples and abs(seconds - self.samples[-1].seconds) < self.step):
            return
        self.samples.append(Sample(max(0, round(seconds)), *(int(memory.get(key) or 0) >> 10 for key in KEYS)))
        if len(self.samples) > self.most:
            if self.ring:
                del self.samples[0]
            else:
                self.step *= 2
                del self.samples[1::2]

    def text(self) -> str:
        """Return the compact form."""
        return text_of(list(self.samples))


def text_of(samples: Iterable[Sample]) -> str:
    """Return the compact form of samples."""
    return ";".join(" ".join(map(str, sample)) for sample in samples)


def parse(text: object, most: int = 2000) -> list[Sample]:
    """Return the samples of a compact form, the last `most`; what is not one is left out, and a value that is not a text has none."""
    parts = text.rsplit(";", most)[-most:] if isinstance(text, str) else []
    return [Sample(*map(int, match.groups())) for match in map(_SAMPLE.fullmatch, parts) if match]
