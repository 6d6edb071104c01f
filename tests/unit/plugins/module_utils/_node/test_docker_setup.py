"""Docker's settings on a node: what is written, which commands run, and what undo restores."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_setup, parse
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_setup import DROP_IN, Engine, Setup, choose_packages, decide_restart, merge_daemon_json
from unit.fixtures.docker.engine import FakeEngine, serving
from unit.fixtures.host.tree import Tree

PARAMS: dict[str, Any] = {
    "memlock": "unlimited", "log_driver": "json-file", "log_opts": {"max-size": "50m"}, "cdi_refresh": True,
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
    path, service = docker_setup.CDI_UNITS
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
    machine.put(DROP_IN, "[Service]\n")
    with pytest.raises(HostError, match="is not managed by"):
        machine.docker()
    assert machine.docker("absent")["shown"] == [f"{DROP_IN} is not managed by gb10.cluster, so it stays"]
    assert machine.get(DROP_IN) == "[Service]\n"


def test_undo_waits_for_a_serving_container(machine: Machine) -> None:
    machine.docker()
    machine.engine.containers = {"x": RANK}
    assert any("rank0 serves and goes on" in line for line in machine.docker("absent")["shown"])
    assert RESTART not in machine.commands


def test_undo_restores_what_an_earlier_version_wrote(machine: Machine) -> None:
    before, original = machine.etc(), machine.get(DAEMON_JSON)
    ours = json.dumps({"runtimes": {}, "default-ulimits": {"stack": {"Name": "stack", "Hard": 67108864, "Soft": 67108864}}, "live-restore": True})
    machine.put(DAEMON_JSON, ours)
    machine.put(docker_setup.EARLIER_LIMITS, f"{docker_setup.HEADER}\nroot soft memlock unlimited\n")
    machine.put("/var/lib/gb10-cluster/docker.json", json.dumps({"daemon": {"original": original, "ours": ours}, "installed": ["docker.io"]}))
    machine.docker("absent")
    assert machine.etc() == before
    assert not (machine.root / "var/lib/gb10-cluster").exists()


# --- Limits, versions and packages, and the decision to restart.

NONE = Engine(False, False, 0, "", (), None, None, None)
UP = Engine(True, True, 9, "x", (), -1, "28.2.2", "2.26.1")

LIMITS = [("unlimited", -1), ("-1", -1), ("8388608", 8388608), ("64m", 64 << 20), ("2GiB", 2 << 30), ("leave", None)]


@pytest.mark.parametrize(("text", "expected"), LIMITS)
def test_limits(text: str, expected: int | None) -> None:
    assert docker_setup.parse_limit(text) == expected


@pytest.mark.parametrize("text", ["", "lots", "0", "-2", "8 potatoes"])
def test_a_limit_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(DockerError, match=r"docker_memlock is .*, expected unlimited"):
        docker_setup.parse_limit(text)


RECENT = ["2.26.1-4", "v2.18.0", "Docker Compose version v2.40.3", "2.18"]
OLD = ["2.17.3", "1.29.2-3", None, "dev"]


@pytest.mark.parametrize(("found", "enough"), [*((text, True) for text in RECENT), *((text, False) for text in OLD)])
def test_compose_versions(found: str | None, enough: bool) -> None:
    assert docker_setup.compose_enough(found) is enough


PACKAGES: dict[str, tuple[Engine, bool, bool, list[str]]] = {
    "nothing, debian": (NONE, False, False, ["docker.io", "docker-cli", "docker-compose"]),
    "nothing, ubuntu": (NONE, True, False, ["docker.io", "docker-compose-v2"]),
    "vendor engine, no compose": (UP._replace(compose=None), True, True, ["docker-compose-plugin"]),
    "old compose": (UP._replace(compose="2.3.3"), False, False, ["docker-compose"]),
    "nothing is missing": (UP, False, False, []),
}


@pytest.mark.parametrize(("engine", "ubuntu", "vendor", "expected"), PACKAGES.values(), ids=PACKAGES.keys())
def test_packages(engine: Engine, ubuntu: bool, vendor: bool, expected: list[str]) -> None:
    assert choose_packages(engine, ubuntu, vendor) == expected


def test_the_hard_limit_of_a_process() -> None:
    text = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              {}            bytes\n"
    assert [parse.hard_memlock(text.format(hard)) for hard in ("unlimited", "8388608")] == [-1, 8388608]
    assert parse.hard_memlock(None) is None


RESTARTS: dict[str, tuple[bool, list[str], list[str], str, tuple[bool, bool]]] = {
    "nothing pending": (False, [], [], "needed", (False, False)),
    "no container": (True, [], [], "idle", (False, True)),
    "serving, idle": (True, ["r0"], [], "idle", (False, False)),
    "others, idle": (True, [], ["web"], "idle", (False, False)),
    "serving, needed": (True, ["r0"], ["web"], "needed", (True, False)),
    "others, needed": (True, [], ["web"], "needed", (False, True)),
    "never": (True, [], [], "never", (True, False)),
}


@pytest.mark.parametrize(("pending", "serving", "others", "policy", "expected"), RESTARTS.values(), ids=RESTARTS.keys())
def test_restart(pending: bool, serving: list[str], others: list[str], policy: str, expected: tuple[bool, bool]) -> None:
    now, message = decide_restart(pending, serving, others, policy)
    assert (bool(message), now) == expected


LIVE: dict[str, tuple[Engine, bool, list[str]]] = {
    "as desired": (UP, False, []),
    "no reply": (NONE._replace(unit=True, compose="2.26", error="Cannot connect"), False, ["No Docker Engine answers on this node (Cannot connect)"]),
    "old compose": (UP._replace(compose="1.29.2"), False, ["The compose plugin is 1.29.2, expected 2.18 or later"]),
    "daemon started before its unit changed": (UP._replace(memlock=8388608), False, ["The running Docker daemon (pid 9) may lock 8388608 bytes"]),
    "the same, restart pending": (UP._replace(memlock=8388608), True, []),
}


@pytest.mark.parametrize(("engine", "due", "expected"), LIVE.values(), ids=LIVE.keys())
def test_live(engine: Engine, due: bool, expected: list[str]) -> None:
    problems = docker_setup.check_live(engine, -1, due)
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


# --- daemon.json: which keys are merged, which are left, and that undo restores every byte.

LIMIT: dict[str, Any] = {"default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}}}
KEYS: dict[str, Any] = {**LIMIT, "live-restore": True}
DEFAULTS: dict[str, Any] = {"log-driver": "json-file", "log-opts": {"max-size": "50m", "max-file": "5"}}
NVIDIA = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, indent=4) + "\n"


def test_the_settings_of_the_role() -> None:
    assert docker_setup.daemon_settings(-1, "json-file", {"max-size": "50m", "max-file": "5"}) == (LIMIT, DEFAULTS)
    assert docker_setup.daemon_settings(None, "leave", {"max-size": "50m"}) == ({}, {})


DRIVERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "not chosen": (None, DEFAULTS),
    "journald": ('{"log-driver": "journald"}', {"log-driver": "journald"}),
    "local": ('{"log-driver": "local"}', {**DEFAULTS, "log-driver": "local"}),
    "a size": ('{"log-opts": {"max-size": "1g"}}', {"log-driver": "json-file", "log-opts": {"max-size": "1g", "max-file": "5"}}),
}


@pytest.mark.parametrize(("text", "expected"), DRIVERS.values(), ids=DRIVERS.keys())
def test_the_users_log_options_have_priority(text: str | None, expected: dict[str, Any]) -> None:
    merged = merge_daemon_json(text, {}, DEFAULTS, {})
    assert docker_setup.parse_daemon_json(merged.text) == expected
    assert (merged.text == text) is (not merged.keys)


def test_other_keys_stay_and_those_that_change_are_named() -> None:
    other = {"stack": {"Name": "stack", "Hard": 5, "Soft": 5}}
    merged = merge_daemon_json(json.dumps({**json.loads(NVIDIA), "default-ulimits": other}), KEYS, {}, {})
    assert json.loads(merged.text or "") == {**json.loads(NVIDIA), **KEYS, "default-ulimits": {**other, **KEYS["default-ulimits"]}}
    assert merged.keys == ["default-ulimits", "live-restore"]


TEXTS = [None, "", "{ }\n", NVIDIA, '{"log-opts": {}}', '{"log-opts": {"labels": "x"}}', '{"default-ulimits": {"memlock": {"Hard": 5}}, "live-restore": false}']


@pytest.mark.parametrize("text", TEXTS)
def test_undo_restores_every_byte_also_after_other_settings_and_a_formatter(text: str | None) -> None:
    first = merge_daemon_json(text, KEYS, DEFAULTS, {})
    assert merge_daemon_json(first.text, KEYS, DEFAULTS, first.record) == (first.text, first.record, [], False)
    second = merge_daemon_json(first.text, {"live-restore": True}, {**DEFAULTS, "log-opts": {"max-size": "10m"}}, first.record)
    assert merge_daemon_json(json.dumps(json.loads(second.text or "")), {}, {}, second.record).text == text


@pytest.mark.parametrize("edited", [{"live-restore": True, "dns": ["10.0.0.1"]}, {"live-restore": False}, {}])
def test_undo_keeps_a_file_that_others_have_changed_since(edited: dict[str, Any]) -> None:
    text, record = json.dumps(edited), merge_daemon_json(None, {"live-restore": True}, {}, {}).record
    assert merge_daemon_json(text, {}, {}, record) == (text, {}, [], True)


def test_a_run_that_ended_before_it_wrote_the_file_is_repeated() -> None:
    ended = merge_daemon_json(NVIDIA, KEYS, DEFAULTS, {})
    assert merge_daemon_json(NVIDIA, KEYS, DEFAULTS, ended.record) == ended
    assert merge_daemon_json(NVIDIA, {}, {}, ended.record) == (NVIDIA, {}, [], False)


@pytest.mark.parametrize(("text", "message"), [('{"a": }', "not valid JSON"), ("[1]", "is a list"), ('{"default-ulimits": 5}', "default-ulimits is a int")])
def test_a_file_that_cannot_be_merged_is_refused(text: str, message: str) -> None:
    with pytest.raises(DockerError, match=f"/etc/docker/daemon.json.*{message}"):
        merge_daemon_json(text, KEYS, {}, {})
