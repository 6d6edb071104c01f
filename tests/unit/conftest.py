"""Make the helpers beside tests/unit importable wherever pytest is started from; ansible-test does not read pyproject.toml."""

from __future__ import annotations

import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
for folder in (TESTS, TESTS / "lab", TESTS.parent):
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
