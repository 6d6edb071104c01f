"""Parsing of what commands print, packages, and the decision to restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_engine import Engine, choose_packages, decide_restart, merge_daemon_json

NONE = Engine(False, False, 0, "", (), None, None, None)
UP = Engine(True, True, 9, "x", (), -1, "28.2.2", "2.26.1")

LIMITS = [("unlimited", -1), ("-1", -1), ("8388608", 8388608), ("64m", 64 << 20), ("2GiB", 2 << 30), ("leave", None)]


@pytest.mark.parametrize(("text", "expected"), LIMITS)
def test_limits(text: str, expected: int | None) -> None:
    assert docker_engine.parse_limit(text, "docker_memlock") == expected


@pytest.mark.parametrize("text", ["", "lots", "0", "-2", "8 potatoes"])
def test_a_limit_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(DockerError, match=r"docker_memlock is .*, expected unlimited"):
        docker_engine.parse_limit(text, "docker_memlock")


RECENT = ["2.26.1-4", "v2.18.0", "Docker Compose version v2.40.3", "2.18"]
OLD = ["2.17.3", "1.29.2-3", None, "dev"]


@pytest.mark.parametrize(("found", "enough"), [*((text, True) for text in RECENT), *((text, False) for text in OLD)])
def test_compose_versions(found: str | None, enough: bool) -> None:
    assert docker_engine.compose_enough(found) is enough


PACKAGES: dict[str, tuple[Engine, bool, bool, list[str], list[str]]] = {
    "nothing, debian": (NONE, False, False, [], ["docker.io", "docker-cli", "docker-compose"]),
    "nothing, ubuntu": (NONE, True, False, [], ["docker.io", "docker-compose-v2"]),
    "vendor engine, no compose": (UP._replace(compose=None), True, True, [], ["docker-compose-plugin"]),
    "old compose": (UP._replace(compose="2.3.3"), False, False, [], ["docker-compose"]),
    "chosen": (NONE, False, False, ["docker-ce"], ["docker-ce"]),
    "chosen, nothing is missing": (UP, False, False, ["docker-ce"], []),
}


@pytest.mark.parametrize(("engine", "ubuntu", "vendor", "chosen", "expected"), PACKAGES.values(), ids=PACKAGES.keys())
def test_packages(engine: Engine, ubuntu: bool, vendor: bool, chosen: list[str], expected: list[str]) -> None:
    assert choose_packages(engine, ubuntu, vendor, chosen) == expected


def test_the_hard_limit_of_a_process() -> None:
    text = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              {}            bytes\n"
    assert [docker_engine.hard_memlock(text.format(hard)) for hard in ("unlimited", "8388608")] == [-1, 8388608]
    assert docker_engine.hard_memlock(None) is None


def test_limits_file_is_in_kib() -> None:
    assert "root hard memlock 8192" in docker_engine.render_limits(8388608)
    assert "@docker soft memlock unlimited" in docker_engine.render_limits(-1)
    assert "*" not in docker_engine.render_limits(-1), "any local user could lock all of the unified memory"


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
    problems = docker_engine.check_live(engine, -1, due)
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


# --- daemon.json: which keys are merged, which are left, and that undo restores every byte.

LIMIT: dict[str, Any] = {"default-ulimits": {"memlock": {"Name": "memlock", "Hard": -1, "Soft": -1}}}
KEYS: dict[str, Any] = {**LIMIT, "live-restore": True}
DEFAULTS: dict[str, Any] = {"log-driver": "json-file", "log-opts": {"max-size": "50m", "max-file": "5"}}
NVIDIA = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, indent=4) + "\n"


def test_the_settings_of_the_role() -> None:
    assert docker_engine.daemon_settings(-1, None, "json-file", {"max-size": "50m", "max-file": "5"}) == (LIMIT, DEFAULTS)
    assert docker_engine.daemon_settings(None, None, "leave", {"max-size": "50m"}) == ({}, {})


DRIVERS: dict[str, tuple[str | None, dict[str, Any]]] = {
    "not chosen": (None, DEFAULTS),
    "journald": ('{"log-driver": "journald"}', {"log-driver": "journald"}),
    "local": ('{"log-driver": "local"}', {**DEFAULTS, "log-driver": "local"}),
    "a size": ('{"log-opts": {"max-size": "1g"}}', {"log-driver": "json-file", "log-opts": {"max-size": "1g", "max-file": "5"}}),
}


@pytest.mark.parametrize(("text", "expected"), DRIVERS.values(), ids=DRIVERS.keys())
def test_the_users_log_options_have_priority(text: str | None, expected: dict[str, Any]) -> None:
    merged = merge_daemon_json(text, {}, DEFAULTS, {})
    assert docker_engine.parse_daemon_json(merged.text) == expected
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
