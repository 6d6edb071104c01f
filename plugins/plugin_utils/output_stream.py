# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: a stream in the place of sys.stdout that shows each line to the callback C(pair) before it is written. Controller only.

All methods run under the lock of Ansible's Display. Ansible holds it while it forks, so that no fork inherits a stream that is in use.
"""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from typing import Any, TextIO


class Stream:
    """Stands in for sys.stdout, and knows when it was written to. `take` returns whether a line has been dealt with and is not to be written."""

    def __init__(self, lock: Any, take: Callable[[str], bool]) -> None:
        """Take the place of sys.stdout."""
        self._lock, self._take = lock, take
        self._real: TextIO = sys.stdout
        self.written_at = time.monotonic()
        self._is_at_start = True
        sys.stdout = self

    def __getattr__(self, name: str) -> Any:
        """Return everything else from the real stream."""
        return getattr(self._real, name)

    def write(self, text: str) -> int:
        """Write the lines that are not taken."""
        with self._lock:
            kept = text
            if text.strip() and self._is_at_start and text.endswith("\n"):
                kept = "".join(line for line in text.splitlines(keepends=True) if not self._take(line))
                if not kept:
                    return len(text)
            with contextlib.suppress(BrokenPipeError):  # the reader has enough, such as `head`
                self._real.write(kept)
                if kept:
                    self._is_at_start = kept.endswith("\n")
                    self.written_at = time.monotonic()
                if self._is_at_start:
                    self._real.flush()
        return len(text)

    def release(self) -> None:
        """Give the place back."""
        if sys.stdout is self:
            sys.stdout = self._real


def is_json(line: str) -> bool:
    """Return whether a line is an object or a list of JSON."""
    if line[:1] not in "{[":
        return False
    try:
        json.loads(line)
    except ValueError:
        return False
    return True
