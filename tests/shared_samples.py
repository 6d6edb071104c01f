"""Where the third-party samples are: ../shared next to the checkout, or $GB10_SHARED. They are read from there and never committed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

_CANDIDATES = [os.environ.get("GB10_SHARED"), str(Path(__file__).resolve().parents[2] / "shared")]

SHARED: Path | None = next((Path(c) for c in _CANDIDATES if c and (Path(c) / "samples").is_dir()), None)

# Where a run must be complete (.ci/run), a missing ../shared is a failure, not a skip.
if SHARED is None and os.environ.get("GB10_COMPLETE"):
    raise RuntimeError("../shared/samples is not next to this checkout, and GB10_COMPLETE is set: the tests that read it must not be skipped")

needs_shared = pytest.mark.skipif(
    SHARED is None,
    reason="left out: ../shared/samples (third-party captures and boot logs) is not next to this checkout; set GB10_SHARED",
)


def samples() -> Path:
    """Return the samples folder; call it only under `needs_shared`."""
    assert SHARED is not None
    return SHARED / "samples"


def compared(facts: dict[str, Any]) -> dict[str, Any]:
    """Return what the expected.json files compare of a parsed boot log."""
    kv = facts["kv_cache"]
    return {
        "state": facts["state"],
        "class": facts["failure"]["class"] if facts["failure"] else None,
        "version": facts["version"],
        "kv_tokens": kv["tokens"],
        "kv_blocks": kv["blocks"],
        "max_concurrency": kv["max_concurrency"],
        "context": facts["context"],
        "available_gib_min": kv["available_gib"],
    }
