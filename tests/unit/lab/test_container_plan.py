"""The container lab's nodes on this host: what they may never get. Nothing is started."""

from __future__ import annotations

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from lab.container import plan  # noqa: E402  the labs are programs, not an installed package


def test_a_node_is_never_privileged_and_cannot_set_the_hosts_clock_or_modules() -> None:
    given = plan.node_run_arguments(plan.nodes(2)[0], "image", "tree", {"k": "v"}, cgroup_version="1")
    assert "--privileged" not in given
    assert not {"SYS_RESOURCE", "SYS_TIME", "SYS_MODULE", "SYS_RAWIO", "ALL"} & set(given)
    assert "tree:/opt/engine:ro" in given
    assert "gb10-lab-1-docker:/var/lib/docker" in given
