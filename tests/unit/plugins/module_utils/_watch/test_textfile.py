"""Metrics for node_exporter, read back by a strict parser of the text format."""

from __future__ import annotations

import re
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._watch.textfile import render

LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\["\\n])*)"')
SAMPLE = re.compile(rf"([a-zA-Z_:][a-zA-Z0-9_:]*)\{{((?:{LABEL.pattern}(?:,(?!\}}))?)*)\}} (\S+)")
UNESCAPED = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}

Parsed = dict[str, dict[frozenset[tuple[str, str]], float]]


def parse(text: str) -> Parsed:
    """Parse metrics and refuse what Prometheus or node_exporter refuse: families that are split or undeclared, and samples that occur twice."""
    assert text == "" or text.endswith("\n")
    found: Parsed = {}
    family, helped = "", ""
    for line in text.splitlines():
        comment = re.fullmatch(r"# (HELP|TYPE) (\w+) (.+)", line)
        if comment and comment[1] == "HELP":
            assert comment[2] not in found
            helped = comment[2]
        elif comment:
            family = comment[2]
            assert family == helped
            assert comment[3] == ("counter" if family.endswith("_total") else "gauge")
            found[family] = {}
        else:
            sample = SAMPLE.fullmatch(line)
            assert sample is not None, line
            assert sample[1] == family
            labels = frozenset((key, re.sub(r"\\.", lambda m: UNESCAPED[m[0]], value)) for key, value in LABEL.findall(sample[2]))
            assert labels not in found[family]
            found[family][labels] = float(sample[5])
    assert all(found.values())
    return found


def of(found: Parsed, name: str, **labels: str) -> float:
    return found[name][frozenset(labels.items())]


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


def test_the_head_writes_the_metrics_of_group_and_rank() -> None:
    found = parse(render("pair1", 0, "spark-1", WATCH, NODE))
    rank = {"group": "pair1", "rank": "0", "host": "spark-1"}
    assert of(found, "gb10_group_serving", group="pair1") == 1
    assert of(found, "gb10_restarts_total", group="pair1", cause="rank_dead") == 2
    assert of(found, "gb10_restarts_total", group="pair1", cause="wedge") == 1
    assert of(found, "gb10_unserved_seconds_total", group="pair1") == 412.25
    assert of(found, "gb10_rank_running", **rank) == 1
    assert of(found, "gb10_memory_available_bytes", **rank) == 11534337 * 1024
    assert of(found, "gb10_swap_used_bytes", **rank) == 0
    assert found["gb10_gpu_power_watts"] == {frozenset({**rank, "gpu": "0"}.items()): 45.5}
    assert of(found, "gb10_gpu_utilization_ratio", **rank, gpu="0") == 0.96
    assert of(found, "gb10_gpu_utilization_ratio", **rank, gpu="1") == 0
    assert of(found, "gb10_rail_up", **rank, interface="enp1s0f0np0") == 1
    assert of(found, "gb10_rail_up", **rank, interface="enP2p1s0f0np0") == 0
    assert found["gb10_rail_mtu_bytes"] == {frozenset({**rank, "interface": "enp1s0f0np0"}.items()): 9000}
    assert len(found) == 10


@pytest.mark.parametrize("state", ["off", "fault", "waiting", "recovering"])
def test_a_group_that_does_not_serve_is_zero(state: str) -> None:
    found = parse(render("pair1", 0, "spark-1", {**WATCH, "state": state, "restarts": {}}, NODE))
    assert of(found, "gb10_group_serving", group="pair1") == 0
    assert "gb10_restarts_total" not in found


def test_a_worker_writes_no_metric_of_the_group() -> None:
    found = parse(render("pair1", 1, "spark-2", {}, {**NODE, "containers": []}))
    assert of(found, "gb10_rank_running", group="pair1", rank="1", host="spark-2") == 0
    assert not {"gb10_group_serving", "gb10_restarts_total", "gb10_unserved_seconds_total"} & set(found)


def test_what_is_not_known_is_left_out() -> None:
    assert render("pair1", 1, "spark-2", {}, {}) == ""
    assert set(parse(render("pair1", 1, "spark-2", {}, {"memory": {"available_kib": 1}}))) == {"gb10_memory_available_bytes"}


def test_label_values_are_escaped() -> None:
    names = ('a"} 1', "back\\slash", "two\nlines", "\\n", "comma,=")
    for name in names:
        found = parse(render(name, 0, "spark-1", WATCH, {}))
        assert of(found, "gb10_group_serving", group=name) == 1
