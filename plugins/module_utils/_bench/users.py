# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The load of a soak: users drawn by a seed, who write, wait for the reply, read it and go on. Pure; the same seed is the same load."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

MOST_USERS = 32
USERS = 9  # and one, without max-num-seqs
ROOM = 0.7  # of the context: a tokenizer counts other tokens than were estimated
COLD_TOKENS = 20_000
SHORT, LONG = 16, 1024  # tokens of a reply
COLD, CANCELLED, GOES_ON = 0.03, 0.05, 0.75  # shares of the requests
BURST_EVERY, BURST = 600.0, 0.3  # seconds of a window, and the share of the windows with a burst
WORDS = ("the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "be", "by", "on", "not", "at", "from", "are", "this", "have", "you")


class Request(NamedTuple):
    """One request of a user: how long the user waits before it, its text by its conversation and length, and when the user gives up."""

    pause: float
    conversation: str
    prompt_tokens: int
    max_tokens: int
    cancel_after: float | None


def count_of(settings: Mapping[str, Any]) -> int:
    """Return how many users there are: each has one request at most, and one more measures the speed, so the engine runs all that it holds."""
    return max(1, min(MOST_USERS, int(settings.get("max-num-seqs") or USERS) - 1))


def _drawn(seed: str) -> random.Random:
    return random.Random(seed)  # noqa: S311  not for secrets


def requests(seed: str, user: int, context: int, pause: float) -> Iterator[Request]:
    """Yield the requests of a user without end. `pause` is the mean of seconds between them."""
    draw, room, turn, tokens, conversation = _drawn(f"{seed}/{user}"), int(ROOM * context), 0, 0, 0

    def length(middle: float, width: float) -> int:
        return max(SHORT, int(draw.lognormvariate(math.log(middle), width)))

    while True:
        reply = min(LONG, length(150, 0.8), max(1, room // 4))
        cold = draw.random() < COLD
        if cold or not turn or draw.random() > GOES_ON or tokens + reply > room:
            turn, tokens, conversation = 0, 0, conversation + 1
        tokens = min(tokens + (max(COLD_TOKENS, length(COLD_TOKENS, 0.3)) if cold else length(300, 1.0)), room - reply)
        cancel = draw.uniform(0.2, 5.0) if draw.random() < CANCELLED else None
        yield Request(draw.expovariate(1 / pause) if pause else 0.0, f"{seed}/{user}/{conversation}", tokens, reply, cancel)
        turn, tokens = turn + 1, tokens + reply  # the next turn has all before it


def bursts(seed: str, seconds: float) -> bool:
    """Whether all users write at once at this time of the soak, without a pause."""
    window = int(seconds // BURST_EVERY)
    draw = _drawn(f"{seed}/burst/{window}")
    start = draw.uniform(0, 0.8 * BURST_EVERY)
    return draw.random() < BURST and start <= seconds - window * BURST_EVERY < start + draw.uniform(30, 90)


def text_of(request: Request, tokens_per_word: float = 1.0) -> str:
    """Return the prompt of a request: that of a later turn begins with those before it."""
    draw = _drawn(request.conversation)
    head = " ".join(str(draw.randrange(10**6)) for _part in range(4))  # no other conversation begins so
    return " ".join([head, *draw.choices(WORDS, k=max(1, int((request.prompt_tokens - 12) / max(tokens_per_word, 0.5))))])
