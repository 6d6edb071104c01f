"""daemon.json: which keys are merged, which are left, and that undo restores every byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_engine import Setting, merge_daemon_json
from hypothesis import given
from hypothesis import strategies as st

MEMLOCK = Setting(("default-ulimits", "memlock"), {"Name": "memlock", "Hard": -1, "Soft": -1})
LIVE = Setting(("live-restore",), True)
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
    kept, left = docker_engine.without_flags([MEMLOCK, LIVE], ["--host", flag])
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
    wanted = [MEMLOCK, LIVE, Setting(("log-opts", "max-size"), "1m", True)]
    merged = merge_daemon_json(text, wanted, {})
    assert merged.text != text
    assert merge_daemon_json(merged.text, wanted, merged.record) == (merged.text, merged.record, [], [])
    assert merge_daemon_json(merged.text, [], merged.record).text == text


@pytest.mark.parametrize("edited", [{"live-restore": True, "dns": ["10.0.0.1"]}, {"live-restore": False}, {}])
def test_undo_keeps_a_file_that_others_have_changed_since(edited: dict[str, Any]) -> None:
    text = json.dumps(edited)
    record = merge_daemon_json(None, [LIVE], {}).record
    assert merge_daemon_json(text, [], record) == (text, {}, [], [f"{docker_engine.DAEMON_JSON} was changed since the first run, so it stays"])


def test_undo_gives_back_a_file_that_was_only_formatted_since() -> None:
    merged = merge_daemon_json(NVIDIA, [LIVE], {})
    assert merge_daemon_json(json.dumps(json.loads(merged.text or "")), [], merged.record).text == NVIDIA


def test_a_setting_that_is_not_desired_any_more_is_restored() -> None:
    first = merge_daemon_json('{"live-restore": false}', [MEMLOCK, LIVE], {})
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


KEYS = st.sampled_from(["a", "b", "live-restore", "log-opts", "default-ulimits"])
VALUES = st.recursive(st.integers() | st.text(max_size=3) | st.booleans(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=5)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_file_is_restored_and_keeps_its_other_keys(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    try:
        merged = merge_daemon_json(text, [MEMLOCK, Setting(("log-opts", "max-size"), "1m", True)], {})
    except DockerError:
        return
    assert merge_daemon_json(merged.text, [], merged.record).text == text
    others = data.keys() - {"default-ulimits", "log-opts"}
    assert {key: value for key, value in docker_engine.parse_daemon_json(merged.text).items() if key in others} == {key: data[key] for key in others}
