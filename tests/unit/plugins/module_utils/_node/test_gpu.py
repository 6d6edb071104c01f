"""The power, utilization and own memory of the GPUs: figures of two H200, of an H100 and of owners of GB10."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu


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


H100 = "GPU-1, NVIDIA H100 80GB HBM3, 81559, 480, 81079\n"


@pytest.mark.parametrize(
    ("text", "memory"),
    [
        (H100, ("GPU-1", 81079.0, 80014.0)),
        ("GPU-1, NVIDIA GB10, [N/A], [N/A], [N/A]\n", None),
        ("GPU-1, NVIDIA GB10, Not Supported, Not Supported, Not Supported\n", None),
        ("GPU-1, NVIDIA GB10, 124610, 0, 119000\n", None),  # a driver that reports the node's memory changes nothing
        ("GPU-1, NVIDIA Thor, [Not Supported], [Not Supported], [Not Supported]\n", None),
        ("GPU-1, NVIDIA H100, 81559, [N/A], [Unknown Error]\n", ("GPU-1", 81559.0, None)),
        ("GPU-1, NVIDIA H100, 81559, 480, 200\n", ("GPU-1", 81079.0, 0.0)),
        ("GPU-1, NVIDIA H100, 0, 0, 0\n", None),
        ("Unable to determine the device handle for GPU0: 0000:00:06.0: Unknown Error\n" + H100, ("GPU-1", 81079.0, 80014.0)),
        (H100 + "GPU-2, NVIDIA H100 80GB HBM3, 81559, 480, 50\n", ("GPU-1", 81079.0, 80014.0)),
        ("No devices were found\n", None),
        ("Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n", None),
        ("", None),
    ],
)
def test_a_gpu_has_memory_of_its_own_only_if_the_driver_reports_it(text: str, memory: tuple[str, float, float | None] | None) -> None:
    assert gpu.own_memory(text) == memory


@pytest.mark.parametrize(
    ("text", "used"),
    [
        ("GPU-1, 101, 39000\nGPU-1, 900, 25500\nGPU-2, 102, 7\n", 39000.0),
        ("GPU-1, 101, 39000\nGPU-1, 102, 500\n", 39500.0),
        ("GPU-1, 101, [N/A]\nGPU-1, 102, 500\n", None),
        ("GPU-1, 900, 25500\n", None),
        ("GPU-1, [Not Found], 39000\n", None),
        ("", None),
    ],
)
def test_memory_of_an_engine_is_that_of_its_processes_on_this_gpu(text: str, used: float | None) -> None:
    assert gpu.used_by(text, "GPU-1", {101, 102}) == used
