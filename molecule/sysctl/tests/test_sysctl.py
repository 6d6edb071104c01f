"""On each node, a container: nothing of the role's, and the host's memory settings as they were."""

from __future__ import annotations

from typing import Any

import pytest


@pytest.mark.parametrize("path", ["/etc/sysctl.d/60-gb10-cluster.conf", "/var/lib/gb10-cluster/sysctl.json"])
def test_nothing_was_written(host: Any, path: str) -> None:
    assert not host.file(path).exists


def test_the_hosts_kernel_was_not_touched(host: Any) -> None:
    """The nodes share this machine's kernel: the role's values together would be no accident."""
    ours = {"watermark_boost_factor": "0", "vfs_cache_pressure": "200", "dirty_ratio": "5", "dirty_background_ratio": "2"}
    assert {key: host.file(f"/proc/sys/vm/{key}").content_string.strip() for key in ours} != ours
