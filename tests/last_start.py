"""A hook for conftest.py: what `make test` has no time for on a slow machine is left out, and named at its end."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Start no test after the time that tools/test.sh gives its stage."""
    if time.time() > float(os.environ.get("GB10_LAST_START", "inf")):
        with Path(os.environ["GB10_LEFT_OUT"]).open("a", encoding="utf-8") as left_out:
            left_out.write(f"{item.nodeid}\n")
        pytest.skip("this machine is too slow to run it within the time of make test")
