"""Power, clocks and temperatures as findings. No `nvidia-smi -q` of a GB10 is public: the rows have the form of --query-gpu."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group, Rank
from ansible_collections.gb10.cluster.plugins.module_utils._checks.node import heat
from ansible_collections.gb10.cluster.plugins.module_utils._common.finding import Finding
from ansible_collections.gb10.cluster.plugins.module_utils._preflight import health


def judged(gpus: list[dict[str, Any]], zones: list[Any]) -> tuple[list[tuple[str, str]], list[str]]:
    """Return the findings and the figures."""
    events = list(heat(Rank("one", 0, info={"health": {"gpus": gpus, "zones": zones, "gpu_error": ""}}), Group("pair1", [])))
    return [(each.id or "gpu_hot", each.found) for each in events if isinstance(each, Finding)], [each for each in events if isinstance(each, str)]


IDLE = "45, 11.20, 0, 208, 3003\n"


def test_reads_figures_and_leaves_out_what_the_driver_does_not_report() -> None:
    (gpu,) = health.gpus("45, 11.20, 0, [N/A], 3003\n", "0x0000000000000001\n")
    assert gpu == {"temperature_c": 45.0, "power_w": 11.2, "utilization": 0.0, "sm_mhz": None, "max_mhz": 3003.0, "reasons": 1}


@pytest.mark.parametrize("text", ["", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "[N/A], [N/A], [N/A], [N/A], [N/A]\n"])
def test_a_message_of_the_driver_is_not_a_gpu(text: str) -> None:
    assert health.gpus(text, "") == []


@pytest.mark.parametrize(
    ("row", "reasons", "problem"),
    [
        pytest.param(IDLE, "0x1", "", id="idle"),
        pytest.param("70, 45.00, 96, 2400, 3003", "0x0", "", id="works"),
        pytest.param("84, 45.00, 96, 1500, 3003", "0x20", "gpu_hot", id="software thermal slowdown"),
        pytest.param("91, 45.00, 96, 2400, 3003", "0x0", "gpu_hot", id="hot"),
        pytest.param("60, 14.00, 96, 611, 3003", "0x80", "gpu_power", id="power brake"),
        pytest.param("60, 14.00, 96, 611, 3003", "0x0", "gpu_power", id="low clock at work"),
        pytest.param("60, 14.00, 96, 611, 3003", "[N/A]", "gpu_power", id="low clock, reasons not reported"),
        pytest.param("60, 14.00, 3, 611, 3003", "0x0", "", id="low clock without work"),
    ],
)
def test_each_problem_is_named(row: str, reasons: str, problem: str) -> None:
    assert [name for name, _text in judged(health.gpus(row, reasons), [])[0]] == ([problem] if problem else [])


def test_a_sensor_near_its_critical_temperature_is_a_problem() -> None:
    near = health.zone("acpitz\n", "101000\n", {"critical": "105000\n", "passive": "95000\n"})
    far = health.zone("acpitz\n", "52100\n", {"critical": "105000\n"})
    unknown = health.zone("acpitz\n", "52100\n", {})
    assert health.zone("acpitz\n", "", {}) is None
    assert [name for name, _text in judged([], [each for each in (near, far, unknown) if each])[0]] == ["sensor_hot"]


def test_shows_the_figures_in_a_few_words() -> None:
    zone = health.zone("acpitz", "52100", {})
    assert judged(health.gpus(IDLE, "0x1"), [zone])[1] == ["one: GPU 45 °C, 11.2 W, hottest sensor 52.1 °C"]
    assert judged([], []) == ([], [])


def test_a_figure_that_the_driver_does_not_report_is_left_out() -> None:
    ((_name, text),) = judged(health.gpus("[N/A], [N/A], 96, 1500, 3003", "0x20"), [])[0]
    assert text == "the GPU is hot and slows down (GPU at 1500 MHz)"
