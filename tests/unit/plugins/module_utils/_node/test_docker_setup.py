"""Docker's settings on a node: what is written, which commands run, and what undo restores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_engine import DROP_IN, LIMITS
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_setup import Setup
from unit.fixtures.docker.engine import FakeEngine, serving
from unit.fixtures.host.tree import Tree

PARAMS: dict[str, Any] = {
    "memlock": "unlimited", "stack": "67108864", "log_driver": "json-file", "log_opts": {"max-size": "50m"}, "cdi_refresh": True, "packages": [],
    "installed": [], "restart": "idle",
}  # fmt: skip
DAEMON_JSON = "/etc/docker/daemon.json"
RUNNING = "LoadState=loaded\nActiveState=active\nMainPID=77\nInvocationID=i1\n"
RANK = {"Id": "1", "Names": ["/rank0"], "Labels": {"gb10.cluster.group": "pair1"}}
WEB = {"Id": "2", "Names": ["/web"], "Labels": {}}
RESTART = "systemctl restart docker.service"
UNITS, ACTIVE = "systemctl list-unit-files", "systemctl is-active"


class Machine(Tree):
    """A folder, the replies of commands by the beginning of their line, and the engine's API. It records the commands."""

    def __init__(self, root: Path, engine: FakeEngine) -> None:
        super().__init__(root)
        self.engine = engine
        self.commands: list[str] = []
        self.replies = {"systemctl show": (0, RUNNING), "docker compose version": (0, "2.26.1\n"), "systemctl": (0, ""), "docker": (0, "")}
        self.put(DAEMON_JSON, '{"runtimes": {}}\n')
        self.put("/proc/77/limits", "Max locked memory         unlimited            unlimited            bytes\n")
        self.put("/proc/77/cmdline", "dockerd\0")

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        line = " ".join(argv)
        self.commands.append(line)
        rc, text = next((reply for start, reply in sorted(self.replies.items(), reverse=True) if line.startswith(start)), (127, ""))
        return rc, text if rc == 0 or line.startswith(ACTIVE) else "", text

    def docker(self, state: str = "present", check: bool = False, **params: Any) -> dict[str, Any]:
        self.commands.clear()
        return Setup(Editor(Node(str(self.root), self.run), check), state, {**PARAMS, **params}, 0.0).run()


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "var/run").mkdir(parents=True)
    with serving(tmp_path / "var/run/docker.sock") as engine:
        yield Machine(tmp_path, engine)


def test_sets_repeats_nothing_and_restores_every_byte(machine: Machine) -> None:
    before = machine.etc()
    predicted = machine.docker(check=True)
    assert machine.etc() == before
    result = machine.docker()
    assert (predicted["changes"], predicted["diff"]) == (result["changes"], result["diff"])
    started = machine.commands.index(RESTART)
    assert ("gb10 hold docker" in machine.commands[started - 2], "gb10 release docker" in machine.commands[started + 1]) == (True, True)
    data = json.loads(machine.get(DAEMON_JSON))
    assert data["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": -1, "Soft": -1}
    assert data["log-opts"] == {"max-size": "50m"}
    assert "LimitMEMLOCK=infinity" in machine.get(DROP_IN)
    assert machine.docker()["changed"] is False
    assert machine.docker("absent", check=True)["changes"] == machine.docker("absent")["changes"]
    assert machine.etc() == before
    assert not (machine.root / "etc/systemd/system/docker.service.d").exists()
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.docker("absent")["changed"] is False


@pytest.mark.parametrize(("container", "policy"), [(RANK, "idle"), (WEB, "idle"), (RANK, "needed"), (None, "never")])
def test_a_restart_waits_for_the_containers_or_the_policy(machine: Machine, container: dict[str, Any] | None, policy: str) -> None:
    machine.engine.containers = {"x": container} if container else {}
    result = machine.docker(restart=policy)
    assert (result["changed"], bool(result["shown"])) == (True, policy != "idle")
    assert not {RESTART, "systemctl daemon-reload"} & set(machine.commands)
    machine.engine.containers = {}
    assert "docker.service restarted" in machine.docker()["changes"]
    assert machine.docker()["changed"] is False


def test_a_restart_by_the_user_applies_what_was_pending(machine: Machine) -> None:
    machine.engine.containers = {"x": RANK}
    machine.docker(restart="needed")
    machine.replies["systemctl show"] = (0, RUNNING.replace("i1", "i2"))
    result = machine.docker(restart="needed")
    assert (result["changed"], result["shown"]) == (False, [])


def test_an_engine_that_does_not_answer_is_not_restarted(machine: Machine) -> None:
    (machine.root / "var/run/docker.sock").unlink()
    with pytest.raises(DockerError, match="No Docker Engine answers"):
        machine.docker()
    assert RESTART not in machine.commands


def test_a_stopped_engine_is_started_enabled_and_disabled_by_undo(machine: Machine) -> None:
    stopped = "LoadState=loaded\nActiveState=inactive\nMainPID=0\nInvocationID=\n"
    machine.replies["systemctl show"] = (0, stopped)
    machine.replies.update({UNITS: (0, "docker.service disabled enabled\n"), ACTIVE: (0, "active\nunknown\nunknown\n")})
    assert machine.docker()["changes"][-2:] == ["docker.service started", "docker.service enabled and started"]
    machine.replies.update({"systemctl show": (0, RUNNING), UNITS: (0, "docker.service enabled enabled\n"), ACTIVE: (0, "active\n")})
    machine.docker("absent")
    assert [line for line in machine.commands if "disable " in line or "stop " in line] == ["systemctl disable --no-reload docker.service"]


def test_missing_packages_are_reported_and_nothing_is_changed_without_them(machine: Machine) -> None:
    machine.replies["docker compose version"] = (1, "")
    assert machine.docker(check=True)["packages"] == ["docker-compose"]
    before = machine.etc()
    assert (machine.docker()["packages"], machine.docker()["changed"], machine.etc()) == (["docker-compose"], False, before)
    with pytest.raises(DockerError, match="although docker-compose was installed just now"):
        machine.docker(installed=["docker-compose"])


def test_cdi_refresh_is_enabled_and_disabled_by_undo(machine: Machine) -> None:
    path, service = docker_engine.CDI_UNITS
    machine.replies.update({UNITS: (0, f"{path} disabled enabled\n{service} enabled enabled\n"), ACTIVE: (3, "active\ninactive\ninactive\n")})
    assert f"{path} enabled and started" in machine.docker()["changes"]
    assert {f"systemctl enable --no-reload {path}", f"systemctl start {path}"} <= set(machine.commands)
    machine.replies.update({UNITS: (0, f"{path} enabled enabled\n"), ACTIVE: (0, "active\n")})
    machine.docker("absent")
    assert [line for line in machine.commands if "disable " in line] == [f"systemctl disable --no-reload {path}"]


def test_a_file_that_dockerd_refuses_is_not_written(machine: Machine) -> None:
    before = machine.etc()
    machine.put("/proc/77/cmdline", "dockerd\0--live-restore\0")
    machine.replies["dockerd --live-restore --validate"] = (1, "unknown key x")
    with pytest.raises(DockerError, match=r"dockerd refuses the merged .*unknown key x"):
        machine.docker()
    assert machine.etc() == before


REFUSALS: dict[str, tuple[dict[str, tuple[int, str]], str]] = {
    "no unit": ({"systemctl show": (0, "LoadState=not-found\n")}, "without a docker.service"),
    "failed restart": ({"systemctl restart": (1, "Job failed.")}, "systemctl failed .*Job failed.*systemctl restart"),
}


@pytest.mark.parametrize(("replies", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals(machine: Machine, replies: dict[str, tuple[int, str]], message: str) -> None:
    machine.replies.update(replies)
    with pytest.raises((DockerError, HostError), match=message):
        machine.docker()


def test_a_file_of_another_owner_stays(machine: Machine) -> None:
    machine.put(LIMITS, "* hard memlock 5\n")
    with pytest.raises(HostError, match="is not managed by"):
        machine.docker()
    assert machine.docker("absent")["shown"] == [f"{LIMITS} is not managed by gb10.cluster, so it stays"]
    assert machine.get(LIMITS) == "* hard memlock 5\n"


def test_undo_waits_for_a_serving_container(machine: Machine) -> None:
    machine.docker()
    machine.engine.containers = {"x": RANK}
    assert any("rank0 serves and goes on" in line for line in machine.docker("absent")["shown"])
    assert RESTART not in machine.commands
