"""The end-to-end tests: site.yml on the container lab, the real engine over two nodes. They run in the order that they are written in."""

from __future__ import annotations

import playbook
import pytest
from container_lab import Lab, bring_up


@pytest.fixture(scope="session")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Lab:
    """The lab with two nodes."""
    bring_up(2)
    return Lab(playbook.REPO / "inventories/lab", tmp_path_factory.mktemp("lab"))


@pytest.fixture
def served(lab: Lab) -> Lab:
    """The lab, serving."""
    if lab.complete() != (200, " Paris."):
        run = lab.play()
        assert run.rc == 0, run.stdout[-4000:]
    return lab
