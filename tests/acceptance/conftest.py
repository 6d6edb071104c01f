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
def known(owner: Owner) -> Owner:
    """The pair has served the configuration of the inventory once, and no fault is left from another row: for a row that starts it again."""
    owner.fault()
    owner.boot_takes(2)
    if not owner.own:
        owner.run("bring up").passed()
        [owner.own] = set(owner.releases())
    return owner


@pytest.fixture
def served(known: Owner) -> Owner:
    """The pair serves the configuration of the inventory, and no fault is left from another row."""
    if not known.serves() or not known.settled() or set(known.releases()) != {known.own}:
        known.run("bring up", *tags(SERVING)).passed()
        [known.own] = set(known.releases())
    return known
