"""Parsing of what commands print, packages, and the decision to restart."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_engine import Engine, Setting, choose_packages, decide_restart, merge_daemon_json

NONE = Engine(False, False, False, 0, "", (), None, None, None, None)
UP = Engine(True, True, True, 9, "x", (), -1, -1, "28.2.2", "2.26.1")

LIMITS = [("unlimited", -1), ("-1", -1), ("8388608", 8388608), ("64m", 64 << 20), ("2GiB", 2 << 30), ("leave", None)]


@pytest.mark.parametrize(("text", "expected"), LIMITS)
def test_limits(text: str, expected: int | None) -> None:
    assert docker_engine.parse_limit(text, "docker_memlock") == expected


@pytest.mark.parametrize("text", ["", "lots", "0", "-2", "8 potatoes"])
def test_a_limit_that_is_not_valid_is_refused(text: str) -> None:
    with pytest.raises(DockerError, match=r"docker_memlock is .*, expected unlimited"):
        docker_engine.parse_limit(text, "docker_memlock")


RECENT = ["2.26.1-4", "v2.18.0", "Docker Compose version v2.40.3", "2.37.1+ds1-0ubuntu2~24.04.1", "1:2.20.0", "2.18"]
OLD = ["2.17.3", "1.29.2-3", None, "dev"]


@pytest.mark.parametrize(("found", "enough"), [*((text, True) for text in RECENT), *((text, False) for text in OLD)])
def test_compose_versions(found: str | None, enough: bool) -> None:
    assert docker_engine.compose_enough(found, "2.18") is enough


POLICY = """docker.io:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+b4
  Version table:
     26.1.5+dfsg1-9+b4 500
docker-cli:
  Installed: (none)
  Candidate: 26.1.5+dfsg1-9+b4
docker-compose:
  Installed: (none)
  Candidate: 2.26.1-4
"""
VENDOR = """docker-ce:
  Installed: 5:28.5.1-1~ubuntu.24.04~noble
  Candidate: 5:28.5.1-1~ubuntu.24.04~noble
docker-compose-plugin:
  Installed: (none)
  Candidate: 2.40.0-1~ubuntu.24.04~noble
docker-compose-v2:
  Installed: (none)
  Candidate: 2.37.1+ds1-0ubuntu2~24.04.1
"""
BOOKWORM = "docker.io:\n  Installed: (none)\n  Candidate: 20.10.24\ndocker-compose:\n  Installed: (none)\n  Candidate: 1.29.2-3\n"

PACKAGES: dict[str, tuple[Engine, str, str, list[str], list[str]]] = {
    "trixie, nothing": (NONE, POLICY, "debian", [], ["docker.io", "docker-cli", "docker-compose"]),
    "vendor engine, no compose": (UP._replace(compose=None), VENDOR, "ubuntu", [], ["docker-compose-plugin"]),
    "old compose": (UP._replace(compose="2.3.3"), POLICY, "debian", [], ["docker-compose"]),
    "chosen": (NONE, POLICY, "debian", ["docker-ce"], ["docker-ce"]),
    "apt lists empty, ubuntu": (NONE, "", "ubuntu", [], ["docker.io", "docker-compose-v2"]),
    "apt lists empty, debian": (NONE, "", "debian", [], ["docker.io", "docker-compose"]),
}


@pytest.mark.parametrize(("engine", "policy", "distribution", "chosen", "expected"), PACKAGES.values(), ids=PACKAGES.keys())
def test_packages(engine: Engine, policy: str, distribution: str, chosen: list[str], expected: list[str]) -> None:
    assert choose_packages(engine, policy, f"NAME=x\nID={distribution}\n", "2.18", chosen) == expected


@pytest.mark.parametrize(("policy", "message"), [(BOOKWORM, "compose plugin is missing, expected 2.18 or later"), (VENDOR, "does not offer docker.io")])
def test_packages_that_apt_does_not_offer(policy: str, message: str) -> None:
    with pytest.raises(DockerError, match=message):
        choose_packages(NONE, policy, None, "2.18")


ATTAINABLE: dict[str, tuple[int | None, int, bool, bool]] = {
    "root may raise": (-1, 8388608, True, True),
    "unlimited in a container": (-1, 8388608, False, False),
    "above the container's": (8388609, 8388608, False, False),
    "the container's own": (8388608, 8388608, False, True),
    "host without a limit": (-1, -1, False, True),
    "leave": (None, 8388608, False, True),
}


@pytest.mark.parametrize(("wanted", "hard", "raisable", "fine"), ATTAINABLE.values(), ids=ATTAINABLE.keys())
def test_attainable(wanted: int | None, hard: int, raisable: bool, fine: bool) -> None:
    if fine:
        docker_engine.check_attainable(wanted, hard, raisable)
        return
    with pytest.raises(DockerError, match=r"cannot lock more than 8388608 bytes .* Set docker_memlock: 8388608 for it"):
        docker_engine.check_attainable(wanted, hard, raisable)


def test_limits_of_a_process_and_of_a_unit() -> None:
    text = "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         8388608              {}            bytes\n"
    assert [docker_engine.hard_memlock(text.format(hard)) for hard in ("unlimited", "8388608")] == [-1, 8388608]
    assert docker_engine.hard_memlock(None) is None
    assert [docker_engine.parse_unit_limit(text) for text in ("infinity", "18446744073709551615", "8388608", "")] == [-1, -1, 8388608, None]


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
    decision = decide_restart(pending, serving, others, policy)
    assert (decision.required, decision.now) == expected
    assert bool(decision.message) is expected[0]


LIVE: dict[str, tuple[Engine, bool, list[str]]] = {
    "as desired": (UP, False, []),
    "no reply": (NONE._replace(unit=True, compose="2.26", error="Cannot connect"), False, ["No Docker Engine answers on this node (Cannot connect)"]),
    "old compose": (UP._replace(compose="1.29.2"), False, ["The compose plugin is 1.29.2, expected 2.18 or later"]),
    "another drop-in wins": (UP._replace(unit_memlock=8388608), False, ["LimitMEMLOCK 8388608 bytes, expected unlimited"]),
    "daemon started before its unit changed": (UP._replace(memlock=8388608), False, ["The running Docker daemon (pid 9) may lock 8388608 bytes"]),
    "the same, restart pending": (UP._replace(memlock=8388608), True, []),
}


@pytest.mark.parametrize(("engine", "due", "expected"), LIVE.values(), ids=LIVE.keys())
def test_live(engine: Engine, due: bool, expected: list[str]) -> None:
    problems = docker_engine.check_live(engine, -1, "2.18", due)
    assert len(problems) == len(expected)
    assert all(part in problem for part, problem in zip(expected, problems, strict=True))


@pytest.mark.parametrize(
    ("version", "units", "message"),
    [("podman version 4.9.3", [], "podman-docker"), ("", ["snap.docker.dockerd.service"], "as a snap")],
)
def test_engines_that_are_not_supported_are_refused(version: str, units: list[str], message: str) -> None:
    with pytest.raises(DockerError, match=message):
        docker_engine.check_supported(version, units)
    docker_engine.check_supported("Docker version 28.2.2, build e6534b4", ["docker.service"])


# --- daemon.json: which keys are merged, which are left, and that undo restores every byte.

MEMLOCK = Setting(("default-ulimits", "memlock"), {"Name": "memlock", "Hard": -1, "Soft": -1})
LIVE_RESTORE = Setting(("live-restore",), True)
NVIDIA = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, indent=4) + "\n"

DRIVERS: dict[str, tuple[str | None, tuple[str, ...], set[str]]] = {
    "not chosen": (None, (), {"log-driver", "log-opts.max-size", "log-opts.max-file"}),
    "journald": ('{"log-driver": "journald"}', (), set()),
    "local": ('{"log-driver": "local"}', (), {"log-opts.max-size", "log-opts.max-file"}),
    "a size": ('{"log-opts": {"max-size": "1g"}}', (), {"log-driver", "log-opts.max-file"}),
    "driver by flag": (None, ("--log-driver=journald",), set()),
    "option by flag": (None, ("--log-opt", "max-size=1m"), set()),
}


@pytest.mark.parametrize(("text", "flags", "expected"), DRIVERS.values(), ids=DRIVERS.keys())
def test_the_users_log_options_have_priority(text: str | None, flags: tuple[str, ...], expected: set[str]) -> None:
    driver = docker_engine.parse_daemon_json(text).get("log-driver")
    wanted = docker_engine.daemon_settings(None, None, "json-file", {"max-size": "50m", "max-file": "5"}, None, driver)
    merged = merge_daemon_json(text, docker_engine.without_flags(wanted, flags)[0], {})
    assert {change.partition(":")[0] for change in merged.changes} == expected
    assert (merged.text == text) is (not expected)


@pytest.mark.parametrize(("flag", "key"), [("--default-ulimit", "default-ulimits"), ("--live-restore=true", "live-restore")])
def test_a_key_that_the_command_line_sets_is_left_out(flag: str, key: str) -> None:
    kept, left = docker_engine.without_flags([MEMLOCK, LIVE_RESTORE], ["--host", flag])
    assert [setting.path[0] for setting in kept] == [other for other in ("default-ulimits", "live-restore") if other != key]
    assert left[0].startswith(f"{key} is not set")


def test_other_keys_and_the_indentation_stay() -> None:
    merged = merge_daemon_json(NVIDIA, [MEMLOCK], {})
    assert merged.text is not None
    assert json.loads(merged.text) == {**json.loads(NVIDIA), "default-ulimits": {"memlock": MEMLOCK.value}}
    assert merged.text.startswith('{\n    "runtimes"')


@pytest.mark.parametrize(
    "text", [None, "", "{}", "{ }\n", NVIDIA, '{"log-opts": {}}', '{"default-ulimits": {"memlock": {"Name": "memlock", "Soft": 5, "Hard": 5}}}']
)
def test_undo_restores_every_byte(text: str | None) -> None:
    wanted = [MEMLOCK, LIVE_RESTORE, Setting(("log-opts", "max-size"), "1m", True)]
    merged = merge_daemon_json(text, wanted, {})
    assert merged.text != text
    assert merge_daemon_json(merged.text, wanted, merged.record) == (merged.text, merged.record, [], [])
    assert merge_daemon_json(merged.text, [], merged.record).text == text


@pytest.mark.parametrize("edited", [{"live-restore": True, "dns": ["10.0.0.1"]}, {"live-restore": False}, {}])
def test_undo_keeps_a_file_that_others_have_changed_since(edited: dict[str, Any]) -> None:
    text = json.dumps(edited)
    record = merge_daemon_json(None, [LIVE_RESTORE], {}).record
    assert merge_daemon_json(text, [], record) == (text, {}, [], [f"{docker_engine.DAEMON_JSON} was changed since the first run, so it stays"])


def test_undo_gives_back_a_file_that_was_only_formatted_since() -> None:
    merged = merge_daemon_json(NVIDIA, [LIVE_RESTORE], {})
    assert merge_daemon_json(json.dumps(json.loads(merged.text or "")), [], merged.record).text == NVIDIA


def test_a_setting_that_is_not_desired_any_more_is_restored() -> None:
    first = merge_daemon_json('{"live-restore": false}', [MEMLOCK, LIVE_RESTORE], {})
    second = merge_daemon_json(first.text, [MEMLOCK], first.record)
    assert docker_engine.parse_daemon_json(second.text)["live-restore"] is False
    assert merge_daemon_json(second.text, [], second.record).text == '{"live-restore": false}'


def test_a_new_value_keeps_the_record_of_the_first_one() -> None:
    text = '{"log-opts": {"labels": "x"}}'
    first = merge_daemon_json(text, [Setting(("log-opts", "max-size"), "50m", unless_set=True)], {})
    second = merge_daemon_json(first.text, [Setting(("log-opts", "max-size"), "10m", unless_set=True)], first.record)
    assert docker_engine.parse_daemon_json(second.text)["log-opts"] == {"labels": "x", "max-size": "10m"}
    assert merge_daemon_json(second.text, [], second.record).text == text


def test_a_run_that_ended_before_it_wrote_the_file_is_repeated() -> None:
    ended = merge_daemon_json(NVIDIA, [MEMLOCK], {})
    again = merge_daemon_json(NVIDIA, [MEMLOCK], ended.record)
    assert (again.text, again.record) == (ended.text, ended.record)
    assert merge_daemon_json(NVIDIA, [], ended.record) == (NVIDIA, {}, [], [])


@pytest.mark.parametrize(("text", "message"), [('{"a": }', "not valid JSON"), ("[1]", "is a list"), ('{"default-ulimits": 5}', "default-ulimits is a int")])
def test_a_file_that_cannot_be_merged_is_refused(text: str, message: str) -> None:
    with pytest.raises(DockerError, match=f"/etc/docker/daemon.json.*{message}"):
        merge_daemon_json(text, [MEMLOCK], {})
