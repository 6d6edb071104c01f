"""playbooks/monitoring.yml on the lab with the real engine: each query of the page and the dashboard returns data, and the undo leaves nothing."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import playbook
import yaml
from container_lab import NODE, STUB, Lab

URL = "http://127.0.0.1:9490"
PANELS = yaml.safe_load((playbook.REPO / "roles/monitoring/vars/main.yml").read_text(encoding="utf-8"))["__monitoring_panels"]
#: Without those of a GPU and a drafter, which the lab does not have, and of a pair that has been at rest.
SHOWN = {panel["title"]: panel["query"] for panel in PANELS if not panel.keys() & {"gpu", "drafts", "rare"}}
LEFT = "/etc/gb10-monitoring /var/lib/gb10-monitoring /var/lib/gb10-cluster/metrics /etc/systemd/system/gb10-prometheus.service"


def answers(lab: Lab, query: str) -> list[Any]:
    """Ask Prometheus on the head; return the values that are numbers."""
    found = json.loads(lab.on(1, f"curl -sG {URL}/api/v1/query --data-urlencode {shlex.quote(f'query={query}')}"))
    assert found["status"] == "success", found
    return [each["value"][1] for each in found["data"]["result"] if each["value"][1] != "NaN"]


def test_each_panel_shows_data_of_the_real_engine_and_the_undo_leaves_nothing(tmp_path: Path) -> None:
    subprocess.run([sys.executable, str(playbook.REPO / "lab/container/lab.py"), "up", "--engine", "vllm"], check=True)
    real = Lab(STUB.with_name("lab"), tmp_path)
    before = [real.on(node, "dpkg-query -W") for node in (1, 2)]
    try:
        assert real.play().rc == 0
        subprocess.run([str(playbook.REPO / "molecule/monitoring/packages.sh"), f"{NODE}1", f"{NODE}2"], check=True)
        run = real.play("playbooks/monitoring.yml")
        assert run.rc == 0, run.stdout[-4000:]
        assert f"{URL}/consoles/gb10.html" in run.stdout
        asked, end = SHOWN, time.monotonic() + 120
        while asked and time.monotonic() < end:
            assert real.complete() == (200, " Paris.")
            time.sleep(5)
            asked = {title: query for title, query in asked.items() if not answers(real, query)}
        assert not asked, "no data"
        page = real.on(1, f"curl -s {URL}/consoles/gb10.html")
        assert page.count("no data") == len(PANELS) - len(SHOWN)
        link = re.findall(r'href="(/[^"]+)"', page)[1].replace("&amp;", "&")  # the first leads to the alert rules
        assert "graph_container" in real.on(1, f"curl -s '{URL}{link}'")
        assert real.play("playbooks/monitoring.yml").changed == set()
        assert real.on(1, "gb10 key | grep -rlF -f - /etc/gb10-monitoring /etc/systemd/system || true") == ""
    finally:
        undone = real.play("playbooks/monitoring.yml", variables={"monitoring_state": "absent"})
        real.on(1, "gb10 stop", check=False)
    assert undone.rc == 0, undone.stdout[-4000:]
    assert [real.on(node, f"ls -d {LEFT} 2>/dev/null || true") for node in (1, 2)] == ["", ""]
    assert [real.on(node, "dpkg-query -W") for node in (1, 2)] == before
