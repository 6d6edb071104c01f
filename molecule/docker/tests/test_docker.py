"""On each node: the engine answers, its settings are merged, and the limits apply."""

from __future__ import annotations

import json
import re
from typing import Any

LAB_MEMLOCK = 8388608


def test_the_engine_runs_and_starts_at_boot(host: Any) -> None:
    service = host.service("docker")
    assert service.is_running
    assert service.is_enabled
    assert host.run("docker version --format '{{.Server.Version}}'").rc == 0


def test_the_compose_plugin_is_recent(host: Any) -> None:
    version = host.check_output("docker compose version --short").lstrip("v")
    assert tuple(int(part) for part in re.findall(r"\d+", version)[:2]) >= (2, 18)


def test_daemon_json_has_the_settings_and_is_valid(host: Any) -> None:
    data = json.loads(host.file("/etc/docker/daemon.json").content_string)
    assert data["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": LAB_MEMLOCK, "Soft": LAB_MEMLOCK}
    assert data["log-opts"]["max-file"] == "5"
    assert host.run("dockerd --validate --config-file /etc/docker/daemon.json").rc == 0


def test_the_running_daemon_has_the_limit(host: Any) -> None:
    pid = host.check_output("systemctl show docker.service -p MainPID --value")
    line = next(line for line in host.file(f"/proc/{pid}/limits").content_string.splitlines() if line.startswith("Max locked memory"))
    assert line.split()[3:5] == [str(LAB_MEMLOCK)] * 2
    assert host.check_output("systemctl show docker.service -p LimitMEMLOCK --value") == str(LAB_MEMLOCK)


def test_the_record_is_readable_only_by_root(host: Any) -> None:
    record = host.file("/var/lib/gb10-cluster/docker.json")
    assert (record.user, record.mode) == ("root", 0o600)
    assert "memlock" in json.loads(record.content_string)["daemon"]["ours"]
