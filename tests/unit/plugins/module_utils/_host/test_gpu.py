"""The power and utilization of the GPUs: figures of two H200 and of owners of GB10 (W)."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import gpu


@pytest.mark.parametrize(
    ("readings", "idle", "expected"),
    [
        ([120.0, 122.0], 119.4, True), ([165.0], 119.4, False), ([129.0], 127.0, True), ([120.0, 165.0], 119.4, False), ([16.0], 12.0, True),
        ([46.0], 12.0, False), ([27.0], 11.0, True), ([46.0], 11.0, False), ([120.0], None, None), ([], 119.4, None),
    ],
)  # fmt: skip
def test_idle_power_is_measured_against_the_same_gpu(readings: list[float], idle: float | None, expected: bool | None) -> None:
    assert gpu.at_idle(readings, idle) is expected


@pytest.mark.parametrize(
    ("text", "readings", "power"),
    [
        ("119.41, 5\n82.61, 100\n", [(119.41, 5.0), (82.61, 100.0)], 119.41),
        ("[N/A], 96\n", [(None, 96.0)], None),
        ("11.20, [N/A]\n", [(11.2, None)], 11.2),
        ("[Unknown Error], [Unknown Error]\n", [(None, None)], None),
        ("No devices were found\n", [], None),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n", [], None),
        ("", [], None),
    ],
)
def test_reads_the_output_of_nvidia_smi(text: str, readings: list[gpu.Reading], power: float | None) -> None:
    assert gpu.readings(text) == readings
    assert gpu.power(text) == power
