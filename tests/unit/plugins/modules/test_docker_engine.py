"""The docker_engine module on a node made of a folder and a small systemd."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._docker.engine import DROP_IN, LIMITS
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Node
from ansible_collections.gb10.cluster.plugins.modules.docker_engine import Docker

PARAMS: dict[str, Any] = {
    "state": "present",
    "memlock": "unlimited",
    "stack": "67108864",
    "log_driver": "json-file",
    "log_opts": {"max-size": "50m", "max-file": "5"},
    "live_restore": "leave",
    "cdi_refresh": True,
    "compose_minimum": "2.18",
    "packages": [],
    "installed": [],
    "remove_packages": False,
    "serving_label": "gb10.cluster.group",
    "restart": "needed",
    "start_timeout": 3,
}


class Machine:
    """A node whose systemd and docker are a few lines: limits take effect when the daemon starts, units when they are reloaded."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.unit = True
        self.active = True
        self.enabled = True
        self.compose = "2.26.1"
        self.starts = 1
        self.loaded = 8388608
        self.containers = ""
        self.cdi: dict[str, str] = {}
        self.invalid = ""
        self.broken_start = False
        self.broken_apt = False
        self.commands: list[str] = []
        self.live(8388608)
        self.put("/proc/1/limits", "Max locked memory         8388608              8388608              bytes\n")

    def put(self, path: str, text: str) -> None:
        target = self.root / path.lstrip("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def get(self, path: str) -> str | None:
        target = self.root / path.lstrip("/")
        return target.read_text() if target.exists() else None

    def live(self, value: int, flags: str = "") -> None:
        word = "unlimited" if value == -1 else str(value)
        self.put("/proc/77/limits", f"Max locked memory         {word}              {word}              bytes\n")
        self.put("/proc/77/cmdline", "dockerd\0" + flags)

    def start(self) -> tuple[int, str, str]:
        if self.broken_start:
            return 1, "", "Job for docker.service failed."
        self.active = True
        self.starts += 1
        self.live(self.loaded)
        return 0, "", ""

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        line = " ".join(argv)
        self.commands.append(line)
        if argv[0] == "systemctl":
            return self.systemctl(list(argv))
        if line.startswith("docker version"):
            return (0, "28.2.2\n", "") if self.active else (1, "", "Cannot connect to the Docker daemon")
        if line.startswith("docker compose"):
            return (0, self.compose + "\n", "") if self.compose else (1, "", "docker: 'compose' is not a docker command")
        if line.startswith("docker ps"):
            return 0, self.containers, ""
        if argv[0] == "env" and "remove" in argv:
            if self.broken_apt:
                return 100, "", "E: Could not get lock /var/lib/dpkg/lock-frontend."
            self.unit = self.active = self.enabled = False
            return 0, "", ""
        if line.startswith("dockerd --validate"):
            return (1, "", self.invalid) if self.invalid else (0, "configuration OK", "")
        return 127, "", "command not found"

    def systemctl(self, argv: list[str]) -> tuple[int, str, str]:
        verb, unit = argv[1], argv[-1]
        if verb == "show":
            if not self.unit:
                return 0, "LoadState=not-found\nActiveState=inactive\nMainPID=0\nInvocationID=\n", ""
            limit = "infinity" if self.loaded == -1 else str(self.loaded)
            return (
                0,
                f"LoadState=loaded\nActiveState={'active' if self.active else 'inactive'}\n"
                f"UnitFileState={'enabled' if self.enabled else 'disabled'}\nMainPID={77 if self.active else 0}\n"
                f"InvocationID={f'i{self.starts}' if self.active else ''}\nLimitMEMLOCK={limit}\n",
                "",
            )
        if verb == "daemon-reload":
            text = self.get(DROP_IN)
            self.loaded = 8388608 if text is None else -1 if "infinity" in text else int(text.rsplit("=", 1)[1])
        elif verb in ("start", "restart") and unit == "docker.service":
            return self.start()
        elif verb == "list-unit-files":
            return 0, "".join(f"{name} {state} enabled\n" for name, state in self.cdi.items() if name in argv), ""
        elif verb in ("enable", "disable"):
            if unit == "docker.service":
                self.enabled = verb == "enable"
            else:
                self.cdi[unit] = verb + "d"
        return 0, "", ""

    def docker(self, check: bool = False, raisable: bool = True, **params: Any) -> dict[str, Any]:
        module = Docker(Node(str(self.root), self.run), {**PARAMS, **params}, check, lambda _wanted: raisable, lambda _seconds: None)
        return module.present() if params.get("state", "present") == "present" else module.absent()

    def files(self) -> dict[str, str]:
        return {str(path.relative_to(self.root)): path.read_text() for path in sorted((self.root / "etc").rglob("*")) if path.is_file()}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    node = Machine(tmp_path)
    node.put("/etc/docker/daemon.json", '{"runtimes": {"nvidia": {"path": "nvidia-container-runtime"}}}\n')
    return node


def test_first_run_second_run_and_undo(machine: Machine) -> None:
    before = machine.files()
    predicted = machine.docker(check=True)
    assert machine.files() == before
    assert machine.starts == 1
    result = machine.docker()
    assert (predicted["changed"], predicted["changes"], predicted["restarted"]) == (True, result["changes"], True)
    assert predicted["diff"] == result["diff"]
    assert result["diff"][-1]["after"] == "docker.service restarted\n"
    assert result["engine"]["memlock"] == -1
    assert json.loads(machine.get("/etc/docker/daemon.json") or "")["log-opts"] == {"max-file": "5", "max-size": "50m"}
    assert machine.get(LIMITS) is not None
    again = machine.docker()
    assert (again["changed"], again["changes"], again["restart_required"], machine.starts) == (False, [], False, 2)
    foreseen = machine.docker(check=True, state="absent")
    gone = machine.docker(state="absent")
    assert foreseen["changes"] == gone["changes"]
    assert gone["restarted"] is True
    assert machine.files() == before
    assert not (machine.root / "etc/systemd/system/docker.service.d").exists()
    assert not (machine.root / "var/lib/gb10-cluster").exists()
    assert machine.docker(state="absent")["changed"] is False


@pytest.mark.parametrize("containers", ["vllm-pair1-rank0\tpair1\n", "web\t\n"], ids=["serving", "of others"])
@pytest.mark.parametrize("policy", ["needed", "idle", "never"])
def test_running_containers_are_not_stopped_for_what_compose_gives_them(machine: Machine, containers: str, policy: str) -> None:
    machine.containers = containers
    result = machine.docker(restart=policy)
    assert (result["changed"], result["restart_required"], result["restarted"], result["message"], machine.starts) == (True, False, False, "", 1)
    assert "systemctl daemon-reload" not in machine.commands
    again = machine.docker(restart=policy)
    assert (again["changed"], again["restart_required"]) == (False, False)


def test_what_compose_gives_takes_effect_once_no_container_runs(machine: Machine) -> None:
    machine.containers = "web\t\n"
    machine.docker()
    machine.containers = ""
    done = machine.docker()
    assert (done["changed"], done["restarted"], done["engine"]["memlock"]) == (True, True, -1)
    assert machine.docker()["changed"] is False


def test_an_engine_that_does_not_answer_is_not_restarted(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its containers are not known."""
    run = machine.run
    monkeypatch.setattr(machine, "run", lambda argv: (1, "", "context deadline exceeded") if list(argv[:2]) == ["docker", "version"] else run(argv))
    with pytest.raises(DockerError, match="no Docker Engine answers"):
        machine.docker()
    assert machine.starts == 1
    assert not any("restart docker" in line for line in machine.commands)


def test_a_serving_container_holds_the_restart_back_until_it_is_gone(machine: Machine) -> None:
    machine.containers = "vllm-pair1-rank0\tpair1\n"
    result = machine.docker(live_restore="true")
    assert (result["restart_required"], result["restarted"], machine.starts) == (True, False, 1)
    assert "vllm-pair1-rank0 is serving" in result["message"]
    assert "systemctl daemon-reload" not in machine.commands
    still = machine.docker(live_restore="true")
    assert (still["changed"], still["restart_required"]) == (False, True)
    machine.containers = ""
    done = machine.docker(live_restore="true")
    assert (done["changed"], done["restarted"], done["restart_required"]) == (True, True, False)
    assert done["engine"]["memlock"] == -1
    assert machine.docker(live_restore="true")["changed"] is False


def test_a_required_restart_stops_other_containers_only_where_it_may(machine: Machine) -> None:
    machine.containers = "web\t\n"
    waits = machine.docker(live_restore="true", restart="idle")
    assert (waits["restart_required"], waits["restarted"], machine.starts) == (True, False, 1)
    assert "web would stop with it and docker_restart is idle" in waits["message"]
    assert machine.docker(live_restore="true", restart="needed")["restarted"] is True


def test_a_restart_by_hand_settles_what_waited(machine: Machine) -> None:
    machine.containers = "r0\tpair1\n"
    machine.docker(live_restore="true")
    machine.run(["systemctl", "daemon-reload"])
    machine.run(["systemctl", "restart", "docker.service"])
    result = machine.docker(live_restore="true")
    assert (result["changed"], result["restart_required"]) == (False, False)


def test_a_container_lab_is_told_what_to_write(machine: Machine) -> None:
    with pytest.raises(DockerError, match="set docker_memlock: 8388608 for it in the inventory"):
        machine.docker(raisable=False)
    assert "default-ulimits" not in (machine.get("/etc/docker/daemon.json") or "")
    result = machine.docker(raisable=False, memlock="8388608")
    assert result["engine"]["memlock"] == 8388608


def test_no_engine_is_foreseen_in_check_mode_and_refused_otherwise(machine: Machine) -> None:
    machine.unit = machine.active = machine.enabled = False
    machine.compose = ""
    plan = machine.docker(check=True)
    assert plan["packages"] == ["docker.io", "docker-compose"]
    assert "docker.service started" in plan["changes"]
    with pytest.raises(DockerError, match=r"install docker\.io, docker-compose first"):
        machine.docker()


def test_a_stopped_engine_is_started_and_undo_leaves_it_running(machine: Machine) -> None:
    machine.active = machine.enabled = False
    result = machine.docker()
    assert {"docker.service enabled", "docker.service started"} <= set(result["changes"])
    assert (machine.active, machine.enabled, result["engine"]["memlock"]) == (True, True, -1)
    machine.docker(state="absent")
    assert (machine.active, machine.enabled) == (True, False)


def test_cdi_refresh_is_enabled_where_it_is_and_disabled_again(machine: Machine) -> None:
    machine.cdi = {"nvidia-cdi-refresh.path": "disabled", "nvidia-cdi-refresh.service": "enabled"}
    assert "nvidia-cdi-refresh.path enabled" in machine.docker()["changes"]
    assert machine.docker()["changed"] is False
    machine.docker(state="absent")
    assert machine.cdi == {"nvidia-cdi-refresh.path": "disabled", "nvidia-cdi-refresh.service": "enabled"}


FAULTS: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "dockerd refuses the file": ({"invalid": "unable to configure: unknown key x"}, {}, "dockerd refuses the merged .*unknown key x.*nothing was changed"),
    "the daemon does not come back": ({"broken_start": True}, {}, "systemctl restart docker.service failed .*journalctl -u docker"),
    "a nonsense limit": ({}, {"memlock": "much"}, "docker_memlock is 'much', which is no limit"),
    "a daemon without a unit": ({"unit": False}, {}, "systemd has no docker.service for it"),
}


@pytest.mark.parametrize(("state", "params", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_faults_are_one_sentence(machine: Machine, state: dict[str, Any], params: dict[str, Any], message: str) -> None:
    for name, value in state.items():
        setattr(machine, name, value)
    with pytest.raises(DockerError, match=message):
        machine.docker(**params)


def test_a_refused_file_is_not_left_behind(machine: Machine) -> None:
    before = machine.files()
    machine.invalid = "bad"
    with pytest.raises(DockerError):
        machine.docker()
    assert machine.files() == before


def test_a_foreign_file_under_our_name_is_not_overwritten(machine: Machine) -> None:
    machine.put(LIMITS, "* hard memlock 5\n")
    with pytest.raises(DockerError, match=r"60-gb10-cluster\.conf exists and is not ours"):
        machine.docker()
    machine.docker(state="absent")
    assert machine.get(LIMITS) == "* hard memlock 5\n"


def test_another_drop_in_that_wins_is_reported(machine: Machine) -> None:
    machine.docker()
    machine.loaded = 8388608
    with pytest.raises(DockerError, match="another drop-in wins, see systemctl cat docker"):
        machine.docker()


def test_undo_while_serving_waits_for_a_required_restart_and_finishes_it_later(machine: Machine) -> None:
    machine.docker(live_restore="true")
    machine.containers = "r0\tpair1\n"
    gone = machine.docker(state="absent")
    assert (gone["restart_required"], gone["restarted"]) == (True, False)
    machine.containers = ""
    later = machine.docker(state="absent")
    assert (later["changed"], later["restarted"]) == (True, True)
    assert machine.docker(state="absent")["changed"] is False
    assert not (machine.root / "var/lib/gb10-cluster").exists()


def test_only_what_was_installed_for_us_is_removed_and_a_failed_removal_can_be_repeated(machine: Machine) -> None:
    machine.docker(installed=["docker.io", "docker-compose"])
    machine.containers = "r0\tpair1\n"
    with pytest.raises(DockerError, match=r"docker_remove_engine is true, but r0 is serving: run playbooks/stop\.yml first; nothing was changed"):
        machine.docker(state="absent", remove_packages=True)
    machine.containers = ""
    machine.broken_apt = True
    with pytest.raises(DockerError, match=r"apt-get remove docker-compose docker\.io failed \(E: Could not get lock"):
        machine.docker(state="absent", remove_packages=True)
    machine.broken_apt = False
    assert "docker-compose, docker.io removed" in machine.docker(check=True, state="absent", remove_packages=True)["changes"]
    assert machine.unit
    machine.docker(state="absent", remove_packages=True)
    assert not machine.unit
    assert not (machine.root / "var/lib/gb10-cluster").exists()


def test_an_engine_that_stood_before_us_is_never_removed(machine: Machine) -> None:
    machine.docker()
    machine.docker(state="absent", remove_packages=True)
    assert machine.unit
    assert not any("apt-get" in command for command in machine.commands)
