"""Metrics for node_exporter, in the text format of Prometheus."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import render

WATCH: dict[str, Any] = {
    "state": "serving", "fault": {}, "missing": [], "restarts": {"rank_dead": 2, "wedge": 1}, "unserved_seconds": 412.25,
    "serving_since": "2026-11-23T16:00:00Z", "last": {},
}  # fmt: skip
NODE: dict[str, Any] = {
    "containers": [{"running": False}, {"running": True}],
    "memory": {"available_kib": 11534337, "total_kib": 125829120, "swap_used_kib": 0},
    "gpus": [[45.5, 96.0], [None, 0.0]],
    "rails": [{"interface": "enp1s0f0np0", "up": True, "mtu": 9000}, {"interface": "enP2p1s0f0np0", "up": False, "mtu": None}],
}


RANK = 'group="pair1",rank="0",host="spark-1"'


def samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_head_writes_the_metrics_of_group_and_rank() -> None:
    text = render("pair1", 0, "spark-1", WATCH, NODE)
    assert samples(text) == [
        'gb10_group_serving{group="pair1"} 1',
        'gb10_restarts_total{group="pair1",cause="rank_dead"} 2',
        'gb10_restarts_total{group="pair1",cause="wedge"} 1',
        'gb10_unserved_seconds_total{group="pair1"} 412.25',
        f"gb10_rank_running{{{RANK}}} 1",
        f"gb10_memory_available_bytes{{{RANK}}} {11534337 * 1024}",
        f"gb10_swap_used_bytes{{{RANK}}} 0",
        f'gb10_gpu_power_watts{{{RANK},gpu="0"}} 45.5',
        f'gb10_gpu_utilization_ratio{{{RANK},gpu="0"}} 0.96',
        f'gb10_gpu_utilization_ratio{{{RANK},gpu="1"}} 0',
        f'gb10_rail_up{{{RANK},interface="enp1s0f0np0"}} 1',
        f'gb10_rail_up{{{RANK},interface="enP2p1s0f0np0"}} 0',
        f'gb10_rail_mtu_bytes{{{RANK},interface="enp1s0f0np0"}} 9000',
    ]
    assert text.count("# HELP ") == text.count("# TYPE ") == 10, "once for each metric that has a value"
    assert "\n# TYPE gb10_restarts_total counter\ngb10_restarts_total{" in text


@pytest.mark.parametrize("state", ["off", "fault", "waiting", "recovering"])
def test_a_group_that_does_not_serve_is_zero(state: str) -> None:
    text = render("pair1", 0, "spark-1", {**WATCH, "state": state, "restarts": {}}, NODE)
    assert samples(text)[0] == 'gb10_group_serving{group="pair1"} 0'
    assert "gb10_restarts_total" not in text


def test_a_worker_writes_no_metric_of_the_group() -> None:
    text = render("pair1", 1, "spark-2", {}, {**NODE, "containers": []})
    assert samples(text)[0] == 'gb10_rank_running{group="pair1",rank="1",host="spark-2"} 0'
    assert "gb10_unserved_seconds_total" not in text


def test_what_is_not_known_is_left_out() -> None:
    assert render("pair1", 1, "spark-2", {}, {}) == ""
    assert samples(render("pair1", 0, "spark-1", {}, {"memory": {"available_kib": 1}})) == [f"gb10_memory_available_bytes{{{RANK}}} 1024"]


def test_label_values_are_escaped() -> None:
    text = render('a"} 1\\n\n', 0, "spark-1", WATCH, {})
    assert samples(text)[0] == r'gb10_group_serving{group="a\"} 1\\n\n"} 1'
