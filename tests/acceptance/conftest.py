"""The pair of the net: the container lab with the stub of an engine. Each row brings about what it needs, so that each can run alone."""

from __future__ import annotations

import subprocess
import sys

import pytest
from acceptance.commands import SERVING, tags
from acceptance.owner import REPO, Owner


@pytest.fixture(scope="session")
def owner(tmp_path_factory: pytest.TempPathFactory) -> Owner:
    """An owner with two nodes."""
    subprocess.run([sys.executable, str(REPO / "lab/container/lab.py"), "up", "--engine", "stub"], check=True)
    return Owner(tmp_path_factory.mktemp("owner"))


@pytest.fixture
def served(owner: Owner) -> Owner:
    """The pair serves the configuration of the inventory, and no fault is left from another row."""
    owner.fault()
    owner.boot_takes(2)
    if not owner.serves() or not owner.settled() or set(owner.releases()) != {owner.own}:
        owner.run("bring up", *(tags(SERVING) if owner.own else ())).passed()
        [owner.own] = set(owner.releases())
    return owner
