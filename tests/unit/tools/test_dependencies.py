"""tools/dependencies.py: the lock files and the ranges of collections."""

from __future__ import annotations

import pytest

from tools import dependencies

RANGES = "# comment\n-r other.txt\nruff>=0.17,<0.18\ntypes-PyYAML\n"


@pytest.mark.parametrize(
    ("lock", "expected"),
    [
        pytest.param("ruff==0.17.6 \\\n    --hash=sha256:aa\ntypes-pyyaml==6.0.12 \\\n", [], id="fits"),
        pytest.param(
            "ruff==0.18.1 \\\ntypes-pyyaml==6.0.12 \\\n", ["x.lock has ruff 0.18.1, and x.txt requires 'ruff>=0.17,<0.18': run make lock"], id="other version"
        ),
        pytest.param("types-pyyaml==6.0.12 \\\n", ["x.lock has no version of ruff, and x.txt requires 'ruff>=0.17,<0.18': run make lock"], id="not locked"),
    ],
)
def test_a_lock_has_each_package_in_its_range(lock: str, expected: list[str]) -> None:
    assert list(dependencies.unlocked("x", RANGES, lock)) == expected


@pytest.mark.parametrize(("version", "refused"), [("*", True), (">=3.1.0", True), (">=3.1.0,<4.0.0", False), ("3.1.0", False)])
def test_a_collection_needs_an_upper_bound(version: str, refused: bool) -> None:
    assert bool(list(dependencies.unbounded({"community.docker": version}))) is refused
