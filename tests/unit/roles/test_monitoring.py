"""The role monitoring: each alert on its fault and not otherwise (promtool), and a dashboard and a page that ask for metrics that exist."""

from __future__ import annotations

import functools
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import METRICS
from monitoring_role import PANELS, ROLE, RULES, program, rendered
from playbook import REPO

ALERTS = {rule["alert"]: rule for rule in RULES if "alert" in rule}
RECORDED = (REPO / "tests/unit/fixtures/monitoring/metrics.txt").read_text(encoding="utf-8").split("\n")[1:]
CASES = yaml.safe_load((REPO / "tests/unit/fixtures/monitoring/alerts.yml").read_text(encoding="utf-8"))


def case(name: str, alert: str, minute: int, changes: dict[str, str]) -> dict[str, Any]:
    """A test of promtool: which alerts fire at a minute, all of them."""
    healthy = dict(CASES["healthy"])
    changed = {series: values for series in healthy for begin, values in changes.items() if series.startswith((f"{begin}{{", f"{begin},"))}
    assert len(changed) == len(changes), name
    return {
        "name": name, "interval": "1m", "input_series": [{"series": key, "values": value} for key, value in {**healthy, **changed}.items()],
        "promql_expr_test": [{
            "expr": 'count by (alertname) (ALERTS{alertstate="firing"})', "eval_time": f"{minute}m",
            "exp_samples": [{"labels": f'{{alertname="{alert}"}}', "value": 1}] if alert else [],
        }],
    }  # fmt: skip


@pytest.mark.slow
def test_each_alert_fires_on_its_fault_and_not_otherwise(tmp_path: Path) -> None:
    assert {alert for _name, alert, _minute, _changes in CASES["cases"] if alert} == set(ALERTS)
    tests = [case(*each) for each in CASES["cases"]]
    (tmp_path / "tests.yml").write_text(yaml.safe_dump({"rule_files": [str(ROLE / "files/rules.yml")], "evaluation_interval": "1m", "tests": tests}))
    try:
        promtool = program("promtool", tmp_path)
    except OSError as error:
        pytest.skip(str(error))
    done = subprocess.run([promtool, "test", "rules", str(tmp_path / "tests.yml")], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


# --- The dashboard and the page


@functools.cache
def scrape_configs() -> list[dict[str, Any]]:
    targets = [{"node": f"n{at}:9491", "engine": f"e{at}:8000" if at % 2 else "", "labels": {"group": f"pair{at // 2}", "host": 'a"b'}} for at in range(4)]
    found = yaml.safe_load(rendered("prometheus.yml.j2", __monitoring_etc="/etc/x", __monitoring_targets=targets, monitoring_alertmanagers=["m:9093"]))
    return list(found["scrape_configs"])


def test_the_engines_of_two_groups_are_read() -> None:
    node, engine = scrape_configs()
    assert [each["targets"] for each in node["static_configs"]] == [["n0:9491"], ["n1:9491"], ["n2:9491"], ["n3:9491"]]
    assert [(each["targets"], each["labels"]) for each in engine["static_configs"]] == [
        ([f"e{at}:8000"], {"group": f"pair{at // 2}", "host": 'a"b'}) for at in (1, 3)
    ]  # fmt: skip


def kept(name: str, **labels: str) -> dict[str, str] | None:
    """The labels of a line of the engine that Prometheus keeps, None for a line that it drops."""
    found = {"__name__": name, "group": "pair0", **labels}
    for rule in scrape_configs()[1]["metric_relabel_configs"]:
        if rule["action"] == "labelkeep":
            found = {key: value for key, value in found.items() if re.fullmatch(rule["regex"], key)}
        elif not re.fullmatch(rule["regex"], ";".join(found.get(label, "") for label in rule["source_labels"])):
            return None
    return found


BUCKET = "vllm:time_to_first_token_seconds_bucket"
#: Of vLLM 0.25 and 0.32 (shared/samples).
BOUNDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0, 160.0, 640.0, 2560.0, "+Inf")


def test_the_lines_of_an_engine_that_are_shown_are_kept() -> None:
    shown = {name for query in [panel["query"] for panel in PANELS] + [rule["expr"] for rule in RULES] for name in metrics(query) if name.startswith("vllm:")}
    assert all(kept(name, engine="0", model_name="m") == {"__name__": name, "group": "pair0", "engine": "0"} for name in shown - {BUCKET})
    assert all(kept(BUCKET, engine="0", le=str(bound)) for bound in BOUNDS)


def test_an_engine_has_few_series_with_any_page() -> None:
    engine = scrape_configs()[1]
    assert (engine["sample_limit"], engine["body_size_limit"]) == (500, "1MB")
    name = "vllm:num_requests_running"
    assert kept("vllm:e2e_request_latency_seconds_sum") is kept(f"{name}_x") is kept(name, engine="x") is kept(name, le="1.0") is kept(name, le="x;") is None
    assert kept(name, new="value") == kept(name)
    bounds = {f"{at / 1000:g}" for at in range(2000)} | {f"{at}.0" for at in range(12_000)} | {f"{at / 10}" for at in range(200)}
    assert len([bound for bound in bounds if kept(BUCKET, le=bound)]) < 1200


def metrics(query: str) -> set[str]:
    """The names of metrics in a query: words with an underscore that are neither functions nor labels."""
    bare = re.sub(r'"[^"]*"|\'[^\']*\'|\b(?:by|on)\s*\([^)]*\)', "", query)
    return {name for name, call in re.findall(r"([a-z0-9]+(?:[_:][A-Za-z0-9_:]+)+)(\s*\()?", bare) if not call}


@pytest.mark.parametrize("query", [panel["query"] for panel in PANELS] + [rule["expr"] for rule in RULES])
def test_a_query_names_metrics_that_are_exported_or_recorded(query: str) -> None:
    known = {*METRICS, *RECORDED, *(rule["record"] for rule in RULES if "record" in rule), "up"}
    assert metrics(query) <= known
    assert metrics(query) or re.search(r"\bup\b", query)


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
