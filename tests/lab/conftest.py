"""Tests on the container lab with the stub of an engine. They run with make long; what an owner gets is in tests/acceptance."""

from __future__ import annotations

import pytest
from container_lab import STUB, Lab, bring_up


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The lab with two nodes."""
    bring_up(2)
    return Lab(STUB, tmp_path_factory.mktemp("lab"))


@pytest.fixture
def served(lab: Lab) -> Lab:
    """The lab, serving."""
    if lab.complete() != (200, " Paris."):
        run = lab.play()
        assert run.rc == 0, run.stdout[-4000:]
    return lab
