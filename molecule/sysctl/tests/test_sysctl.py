"""On each node, a container: the role writes nothing."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("path", ["/etc/sysctl.d/60-gb10-cluster.conf", "/var/lib/gb10-cluster/sysctl.json"])
def test_nothing_was_written(host: Any, path: str) -> None:
    assert not host.file(path).exists
