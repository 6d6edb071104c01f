# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: where the gate's instances of one serving group share their states. Controller only."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any


class Board:
    """Where the instances of one serving group share their states: small files in a folder of this Ansible run, replaced atomically.

    Times on it are time.monotonic(), one clock for all processes of the controller.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)

    def post(self, name: str, value: Any) -> None:
        """Write one note for all to read."""
        self._written(name, value).replace(self.folder / name)

    def post_first(self, name: str, value: Any) -> Any:
        """Write a note unless there is one; return the note that stands."""
        temporary = self._written(name, value)
        try:
            os.link(temporary, self.folder / name)
        except FileExistsError:
            return self.read(name)
        except OSError:  # a file system without hard links
            self.post(name, value)
        finally:
            temporary.unlink()
        return value

    def _written(self, name: str, value: Any) -> Path:
        temporary = self.folder / f".{name}.{os.getpid()}.{threading.get_ident()}"
        temporary.write_text(json.dumps(value, default=str), encoding="utf-8")
        return temporary

    def read(self, name: str) -> Any:
        """Return a note; None while there is none."""
        try:
            return json.loads((self.folder / name).read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
