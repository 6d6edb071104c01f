"""The power of the GPUs: figures of two H200 and of owners of GB10 (W)."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu


@pytest.mark.parametrize(
    ("readings", "idle", "expected"),
    [
        ([120.0, 122.0], 119.4, True), ([165.0], 119.4, False), ([129.0], 127.0, True), ([120.0, 165.0], 119.4, False), ([16.0], 12.0, True),
        ([46.0], 12.0, False), ([120.0], None, None), ([], 119.4, None),
    ],
)  # fmt: skip
def test_idle_power_is_measured_against_the_same_gpu(readings: list[float], idle: float | None, expected: bool | None) -> None:
    assert gpu.at_idle(readings, idle) is expected


def test_reads_the_output_of_nvidia_smi() -> None:
    assert gpu.power("119.41\n82.61\n") == 119.41
    assert gpu.power("[N/A]\n") is None
    assert gpu.power("No devices were found\n") is None
