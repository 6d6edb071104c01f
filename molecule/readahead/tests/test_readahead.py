"""On each node, a container: no file of the role and no transient unit."""

from __future__ import annotations

from typing import Any

import pytest

WRITTEN = ["/etc/udev/rules.d/61-gb10-readahead.rules", "/var/lib/gb10-cluster/readahead.json"]


@pytest.mark.parametrize("path", WRITTEN)
def test_nothing_was_written(host: Any, path: str) -> None:
    assert not host.file(path).exists


@pytest.mark.parametrize("unit", ["gb10-readahead-restore.timer", "gb10-page-cache-guard.service"])
def test_no_load_phase_runs(host: Any, unit: str) -> None:
    assert host.run(f"systemctl is-active {unit}").stdout.strip() == "inactive"
