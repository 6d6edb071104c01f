"""The role monitoring: each alert on its fault and not otherwise (promtool), and a dashboard and a page that ask for metrics that exist."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jinja2
import pytest
import yaml
from ansible.plugins.filter.core import FilterModule
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import METRICS
from playbook import REPO

ROLE = REPO / "roles/monitoring"
RULES = yaml.safe_load((ROLE / "files/rules.yml").read_text(encoding="utf-8"))["groups"][0]["rules"]
ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
VARS = yaml.safe_load((ROLE / "vars/main.yml").read_text(encoding="utf-8"))
PANELS: list[dict[str, Any]] = VARS["__monitoring_panels"]
RECORDED = (REPO / "tests/unit/fixtures/monitoring/metrics.txt").read_text(encoding="utf-8").split("\n")[1:]

# --- Alerts. A pair that serves well for 200 minutes, one sample a minute, as promtool writes series.

NODE, FILE = 'group="pair1",host="spark-2"', "/var/lib/gb10-cluster/metrics/gb10_pair1.prom"
HEALTHY = {
    'gb10_group_serving{group="pair1"}': "1x200",
    'gb10_unserved_seconds_total{group="pair1"}': "100x200",
    'gb10_restarts_total{group="pair1",cause="rank_dead"}': "0x200",
    f"gb10_memory_available_bytes{{{NODE}}}": "10000000000x200",
    f"gb10_memory_floor_bytes{{{NODE}}}": "1610612736x200",
    f"gb10_gpu_temperature_celsius{{{NODE}}}": "71x200",
    f"gb10_gpu_clock_hertz{{{NODE}}}": "2418000000x200",
    f"gb10_gpu_clock_max_hertz{{{NODE}}}": "3003000000x200",
    f"gb10_gpu_utilization_ratio{{{NODE}}}": "0.96x200",
    f'gb10_rail_up{{{NODE},interface="rail0"}}': "1x200",
    f'gb10_rail_errors_total{{{NODE},interface="rail0",counter="symbol_error"}}': "7x200",
    'vllm:kv_cache_usage_perc{group="pair1",engine="0"}': "0.5x200",
    'vllm:num_requests_waiting{group="pair1",engine="0"}': "1x200",
    'vllm:num_requests_running{group="pair1",engine="0"}': "1x200",
    'vllm:request_time_per_output_token_seconds_sum{group="pair1",engine="0"}': "0+1.2x200",
    'vllm:request_time_per_output_token_seconds_count{group="pair1",engine="0"}': "0+60x200",
    f'node_textfile_mtime_seconds{{{NODE},file="{FILE}"}}': "0+60x200",
    f'up{{{NODE},job="gb10_node"}}': "1x200",
    'up{group="pair1",host="spark-1",job="gb10_engine"}': "1x200",
}
DOWN = "1x150 0x50"
#: What happens after 150 minutes: the series that change, and the alert that fires at a minute; none where a person would not want one.
FAULTS: dict[str, tuple[dict[str, str], str, int]] = {
    "a healthy pair": ({}, "", 190),
    "an engine died": ({"gb10_group_serving": DOWN, "gb10_unserved_seconds_total": "100x150 160+60x50"}, "GroupDoesNotServe", 156),
    "stopped by a person": ({"gb10_group_serving": DOWN}, "", 190),
    "it serves again": ({"gb10_unserved_seconds_total": "100x145 160+60x4 400x50"}, "", 152),
    "half an hour without service": ({"gb10_unserved_seconds_total": "100x100 160+60x40 2560x60"}, "GroupUnservedLong", 190),
    "three restarts in an hour": ({"gb10_restarts_total": "0x150 1 2 3x50"}, "GroupRestartsRepeatedly", 190),
    "two restarts in an hour": ({"gb10_restarts_total": "0x150 1 2x50"}, "", 190),
    "little memory": ({"gb10_memory_available_bytes": "10000000000x150 3000000000x50"}, "MemoryNearFloor", 155),
    "a hot GPU": ({"gb10_gpu_temperature_celsius": "71x150 91x50"}, "GpuHot", 155),
    "the slow state": ({"gb10_gpu_clock_hertz": "2418000000x150 850000000x50"}, "GpuSlow", 160),
    "a GPU at rest": ({"gb10_gpu_clock_hertz": "2418000000x150 208000000x50", "gb10_gpu_utilization_ratio": "0.96x150 0x50"}, "", 160),
    "a cable was pulled": ({"gb10_rail_up": DOWN}, "RailDown", 155),
    "a bad cable": ({"gb10_rail_errors_total": "7x150 8+3x50"}, "LinkErrorsGrow", 190),
    "errors of one moment": ({"gb10_rail_errors_total": "7x150 40x50"}, "", 190),
    "a full KV cache": ({"vllm:kv_cache_usage_perc": "0.5x150 0.97x50"}, "KvCacheFull", 160),
    "full, and nothing waits": ({"vllm:kv_cache_usage_perc": "0.5x150 0.97x50", "vllm:num_requests_waiting": "1x150 0x50"}, "", 160),
    "half the speed": ({"vllm:request_time_per_output_token_seconds_sum": "0+1.2x150 180+2.4x50"}, "SlowerThanBefore", 190),
    "eight at once": (
        {"vllm:request_time_per_output_token_seconds_sum": "0+1.2x150 180+2.4x50", "vllm:num_requests_running": "1x150 8x50"}, "", 190,
    ),
    "the agent ended": ({"node_textfile_mtime_seconds": "0+60x150 9000x50"}, "AgentSilent", 160),
    "there is no agent": ({"node_textfile_mtime_seconds": "_x200"}, "AgentSilent", 160),
    "a node is off": ({'up{group="pair1",host="spark-2"': DOWN}, "NodeDown", 160),
    "the API moved": ({'up{group="pair1",host="spark-1"': DOWN}, "EngineMetricsMissing", 160),
    "no API of a stopped group": ({'up{group="pair1",host="spark-1"': DOWN, "gb10_group_serving": DOWN}, "", 160),
}  # fmt: skip


def case(name: str, changes: dict[str, str], alert: str, minute: int) -> dict[str, Any]:
    """A test of promtool: which alerts fire at a minute, all of them."""
    changed = {series: values for series in HEALTHY for begin, values in changes.items() if series.startswith((f"{begin}{{", f"{begin},"))}
    assert len(changed) == len(changes), name
    return {
        "name": name, "interval": "1m", "input_series": [{"series": key, "values": value} for key, value in {**HEALTHY, **changed}.items()],
        "promql_expr_test": [{
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else [],
        }],
    }  # fmt: skip


def test_each_alert_fires_on_its_fault_and_not_otherwise(tmp_path: Path) -> None:
    assert {alert for _changes, alert, _minute in FAULTS.values() if alert} == set(ALERTS)
    promtool = os.environ.get("PROMTOOL") or shutil.which("promtool")
    if not promtool:
        pytest.skip("promtool is not installed (apt install prometheus)")
    tests = [case(name, *fault) for name, fault in FAULTS.items()]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [str(ROLE / "files/rules.yml")], "evaluation_interval": "1m", "tests": tests}))
    done = subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- The dashboard and the page


def rendered(name: str) -> str:
    """A template of the role as Ansible renders it."""
    env = jinja2.Environment(trim_blocks=True, autoescape=False, loader=jinja2.FileSystemLoader(ROLE / "templates"))
    env.filters.update(FilterModule().filters())
    return env.get_template(name).render(__monitoring_panels=PANELS)


def metrics(query: str) -> set[str]:
    """The names of metrics in a query: words with an underscore that are neither functions nor labels."""
    bare = re.sub(r'"[^"]*"|\'[^\']*\'|\b(?:by|on)\s*\([^)]*\)', "", query)
    return {name for name, call in re.findall(r"([a-z0-9]+(?:[_:][A-Za-z0-9_:]+)+)(\s*\()?", bare) if not call}


@pytest.mark.parametrize("query", [panel["query"] for panel in PANELS] + [rule["expr"] for rule in RULES])
def test_a_query_names_metrics_that_are_exported_or_recorded(query: str) -> None:
    known = {*METRICS, *RECORDED, *(rule["record"] for rule in RULES if "record" in rule), "up"}
    assert metrics(query) <= known
    assert metrics(query) or "up{" in query


def test_the_dashboard_is_one_that_grafana_loads() -> None:
    """Grafana itself was not run."""
    board = json.loads(rendered("dashboard.json.j2"))
    assert (board["schemaVersion"], board["uid"], board["title"]) == (39, "gb10", "gb10.cluster")
    assert len({each["id"] for each in board["panels"]}) == len(board["panels"]), "unique ids"
    taken = set[tuple[int, int]]()
    for each in board["panels"]:
        place = each["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not taken & cells, f"{each['title']} covers another panel"
        assert max(x for x, _y in cells) < 24
        taken |= cells
    shown = [each for each in board["panels"] if each["type"] == "timeseries"]
    assert [(each["title"], each["targets"][0]["expr"]) for each in shown] == [(panel["title"], panel["query"]) for panel in PANELS]
    datasource = yaml.safe_load(rendered("datasource.yml.j2"))["datasources"][0]
    assert {each["datasource"]["uid"] for each in shown} | {each["targets"][0]["datasource"]["uid"] for each in shown} == {datasource["uid"]}
    assert shown[-1]["targets"][0]["legendFormat"] == "{{host}} {{interface}}"


def test_the_page_asks_for_each_panel_and_loads_nothing() -> None:
    page = rendered("gb10.html.j2")
    assert [page.count(f"range query {json.dumps(panel['query'])}") for panel in PANELS] == [1] * len(PANELS)
    assert page.count("{{range") == page.count("{{else}}") - page.count("{{if") == page.count("{{end}}") - page.count("{{if")
    assert not re.search(r"<script|https?://|@import", page)
