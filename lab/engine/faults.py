# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The control files of the stub, read again at each use: what goes wrong on which rank, and what a chat is answered.

Each line is `RANK FAULT [VALUE]`; RANK is a number or `*` for all ranks.

    die [PHASE]      the rank kills itself, in a phase of the boot or at once
    stop             the engine process of the rank is stopped (SIGSTOP)
    hang [PHASE]     the boot prints nothing more from this phase on; without a phase the API accepts connections and sends nothing
    wedge            requests run, their tokens stand still, and the API answers everything else
    slow SECONDS     seconds that one token takes
    garble           replies repeat one word
    leak             replies end in a control token of the chat template
    tcp              NCCL runs over TCP (recording `cuda`)
    print TEXT       the rank prints a line at the begin of its boot
    lack             the model has no file config.json in the log of this rank
    corrupt          a shard of the model is truncated in the log of this rank

The file `turns` is JSON, turns of the assistant by the first message of the user: {"Berlin?": [{"calls": [{"name": ..., "arguments": ...}]}, {"answer": ...}]}
"""

from __future__ import annotations

import json
import os
from typing import Any

#: Where the labs put the fault file, and next to it `turns`, and `seconds`: how long a boot takes.
FOLDER = os.environ.get("STUB_CONTROL") or "/models/stub-control"
DEFAULT_SECONDS = 2.0


def of_rank(rank: int) -> dict[str, str]:
    """Return the faults of a rank, each with its value; empty without a fault file."""
    found = {}
    for line in _read("faults").splitlines():
        words = line.split()
        if len(words) >= 2 and words[0] in ("*", str(rank)):
            found[words[1]] = " ".join(words[2:])
    return found


def boot_seconds() -> float:
    """Return how long a boot takes."""
    try:
        return float(_read("seconds"))
    except ValueError:
        return DEFAULT_SECONDS


def turn(messages: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the next turn of the assistant in a chat, of which the last one repeats; empty without one in the file."""
    first = next((str(each.get("content")) for each in messages if each.get("role") == "user"), "")
    turns = json.loads(_read("turns") or "{}").get(first) or [{}]
    return dict(turns[min(len(turns) - 1, sum(each.get("role") == "assistant" for each in messages))])


def _read(name: str) -> str:
    try:
        with open(os.path.join(FOLDER, name), encoding="utf-8") as handle:
            return handle.read()
    except OSError:
        return ""
