# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The verbs of a rank, and what their arguments may be. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._agent.arguments import (
    OMIT,
    Argument,
    mapping,
    mappings,
    matching,
    number,
    switch,
    text,
    whole,
)

MOST = 2**53

RELEASE = matching(r"[0-9a-z]{3,64}", "the id of a release, 3 to 64 lower-case letters and digits")
RELEASE_OR_NONE = matching(r"(?:[0-9a-z]{3,64})?", "the id of a release, 3 to 64 lower-case letters and digits, or an empty text", "")
LABEL = matching(r"(?:[A-Za-z0-9][A-Za-z0-9._-]{0,99})?", "letters, digits, dots, dashes and underscores, at most 100, or an empty text", "")
NAME = matching(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", "letters, digits, dots, dashes and underscores, at most 100")
URL = matching(r"http://[A-Za-z0-9.\-\[\]:]{1,255}(?:/[!-~]{0,1000})?", "a URL that begins with http://", OMIT)
CURSOR = matching(r"(?:\d{1,20}(?::\d{1,9})?)?", "the cursor of an earlier slice", OMIT)
CALLER: dict[str, Argument] = {"group": NAME, "head": NAME, "generation": whole(0, MOST)}


class Verb(NamedTuple):
    """A verb: its arguments, and how it is guarded.

    read: not at all, and it never waits. claim: by the method itself, one at a time. work: only the owner, one at a time. local: only local root.
    """

    guard: str
    arguments: Mapping[str, Argument]


VERBS: dict[str, Verb] = {
    "hello": Verb("read", {}),
    "claim": Verb("claim", {}),
    "look": Verb("read", {"release": RELEASE_OR_NONE, "free_share": number(0, 2, None)}),
    "slice": Verb(
        "read",
        {
            "container": NAME,
            "cursor": CURSOR._replace(fits=lambda value: value == 0 or CURSOR.fits(value)),
            "known_state": text(100, OMIT),
            "wait": number(0, 60, OMIT),
            "gather": number(0, 60, OMIT),
            "limit": whole(1, 4 << 20, OMIT),  # the reply has to fit into one line
            "url": URL._replace(fits=lambda value: value == "" or URL.fits(value)),
            "stamps": switch(OMIT),
        },
    ),
    "probe": Verb(
        "read",
        {
            "release": RELEASE_OR_NONE,
            "url": URL,
            "requests": mappings(OMIT),
            "model": text(1000, OMIT),
            "concurrency": whole(1, 64, OMIT),
            "timeout": number(0.01, 3600, OMIT),
        },
    ),
    "phase": Verb("work", {"phase": matching(r"load|steady", "load or steady"), "seconds": number(0, 7 * 86400, 0)}),
    "start": Verb("work", {"release": RELEASE}),
    "halt": Verb("work", {"label": LABEL, "mark": text(200, "")}),
    "record": Verb("work", {"release": RELEASE, "receipt": mapping()}),
    "stop_here": Verb("local", {"by": text(200, "")}),
    "hold": Verb("local", {"name": NAME, "reason": text(500), "seconds": number(1, 7 * 86400), "by": text(200, "")}),
    "release_hold": Verb("local", {"name": NAME}),
    "own": Verb("local", {"head": NAME, "group": NAME, "takeover": switch(False)}),
}


class Caller(NamedTuple):
    """Who asks: a group's head, and the generation of its desired state."""

    group: str
    head: str
    generation: int
