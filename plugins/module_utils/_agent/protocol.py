# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the agents and their clients send each other: JSON lines, one request and one reply. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import loads

PROTOCOL = 1
#: Bytes of one line, its end included.
MAX_LINE = 8 << 20
#: Characters of a text of another process that are used, and of all texts of one reply but a log, a manifest and a receipt.
MAX_TEXT = 4000
MAX_TEXTS = 256 << 10
#: Verbs that only rank 0 answers.
HEAD_VERBS = ("state", "desire", "events", "acknowledge", "peers")


class RankError(Exception):
    """A verb failed on a rank that answers. `kind` is refused, failed or unknown; `protocol` is the rank's version if it refused the version."""

    def __init__(self, message: str, kind: str = "failed", protocol: int | None = None) -> None:
        super().__init__(message)
        self.kind = kind
        self.protocol = protocol


class RankLost(Exception):  # noqa: N818  a state of the connection
    """A rank does not answer: the connection failed or timed out. The text is the cause in one line."""


def shortened(text: str) -> str:
    """Return a text of at most MAX_TEXT characters. Its middle is left out: the end has the remedy."""
    half = MAX_TEXT // 2 - 3
    return text if len(text) <= MAX_TEXT else f"{text[:half]} ... {text[-half:]}"


def refusal(version: object, host: str) -> dict[str, Any]:
    """Return the reply to a request of a version that is not supported."""
    error = (
        f"The request has protocol version {version}. The agent on {host} supports {PROTOCOL}."
        " Run site.yml for all nodes of the group with one version of gb10.cluster."
    )
    return {"ok": False, "error": error, "kind": "refused", "protocol": PROTOCOL}


def success(result: Mapping[str, Any]) -> dict[str, Any]:
    """Return the reply of a verb that succeeded."""
    return {"ok": True, "result": dict(result)}


def failure(error: object, kind: str = "failed") -> dict[str, Any]:
    """Return the reply of a verb that failed."""
    return {"ok": False, "error": str(error), "kind": kind}


def encode(message: Mapping[str, Any]) -> bytes:
    """Return a message as one line. Raises RankError if it is longer than MAX_LINE."""
    line = json.dumps(message, separators=(",", ":"), ensure_ascii=False).encode("utf-8", "replace") + b"\n"
    if len(line) > MAX_LINE:
        raise RankError(f"A message of {len(line)} bytes is longer than the limit of {MAX_LINE} bytes.")
    return line


def decode(line: bytes) -> dict[str, Any]:
    """Return the message of a line. Raises RankError if it is not a JSON object."""
    try:
        message = loads(line)
    except ValueError as error:
        raise RankError(f"A message is not valid JSON: {error}. Found {line[:80]!r}.") from error
    if not isinstance(message, dict):
        raise RankError(f"A message is not a JSON object. Found {line[:80]!r}.")
    return message


def reply_of(message: Mapping[str, Any]) -> dict[str, Any]:
    """Return the result in a reply. Raises RankError if the verb failed, or if the message is not a reply."""
    result = message.get("result")
    if message.get("ok") is True and isinstance(result, dict):
        return result
    if message.get("ok") is not False:
        raise RankError(f"A reply has no result. Found {str(dict(message))[:80]}.")
    protocol = message.get("protocol")
    kind = message.get("kind")
    raise RankError(
        str(message.get("error") or "The rank reports a failure without a text.")[:MAX_TEXT],
        kind if kind in ("refused", "failed", "unknown") else "failed",
        protocol if isinstance(protocol, int) else None,
    )
