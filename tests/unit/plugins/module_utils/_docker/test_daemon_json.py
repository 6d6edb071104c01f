"""daemon.json: what we merge, what we leave, and that undo gives back every byte."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._docker import daemon_json
from ansible_collections.gb10.cluster.plugins.module_utils._docker.daemon_json import DaemonJsonError, Setting, merge, restore, wanted_settings
from hypothesis import given
from hypothesis import strategies as st

MEMLOCK = Setting(("default-ulimits", "memlock"), daemon_json.ulimit("memlock", -1))
LOGS = {"max-size": "50m", "max-file": "5"}
NVIDIA = json.dumps({"runtimes": {"nvidia": {"args": [], "path": "nvidia-container-runtime"}}}, indent=4) + "\n"

DRIVERS: dict[str, tuple[str | None, tuple[str, ...], set[str]]] = {
    "nothing chosen: driver and rotation": (None, (), {"log-driver", "log-opts.max-size", "log-opts.max-file"}),
    "journald chosen: neither": ('{"log-driver": "journald"}', (), set()),
    "local chosen: rotation only": ('{"log-driver": "local"}', (), {"log-opts.max-size", "log-opts.max-file"}),
    "a size chosen: the rest": ('{"log-opts": {"max-size": "1g"}}', (), {"log-driver", "log-opts.max-file"}),
    "driver by flag: neither": (None, ("--log-driver=journald",), set()),
    "option by flag: neither": (None, ("--log-opt", "max-size=1m"), set()),
}


@pytest.mark.parametrize(("text", "flags", "expected"), DRIVERS.values(), ids=DRIVERS.keys())
def test_logging_respects_what_the_user_chose(text: str | None, flags: tuple[str, ...], expected: set[str]) -> None:
    settings = wanted_settings(None, None, "json-file", LOGS, None, flags, daemon_json.parse(text))
    merged = merge(text, settings)
    assert {".".join(key["path"]) for key in merged.record.get("keys", [])} == expected
    assert (merged.text == text) is (not expected)


def test_foreign_keys_and_indentation_stay() -> None:
    merged = merge(NVIDIA, [MEMLOCK])
    assert merged.text is not None
    data = json.loads(merged.text)
    assert data["runtimes"] == json.loads(NVIDIA)["runtimes"]
    assert data["default-ulimits"]["memlock"] == {"Name": "memlock", "Hard": -1, "Soft": -1}
    assert merged.text.startswith('{\n    "runtimes"')


@pytest.mark.parametrize("text", [None, "", "{}", "{ }\n", NVIDIA, '{"default-ulimits": {"memlock": {"Name": "memlock", "Soft": 5, "Hard": 5}}}'])
def test_undo_gives_back_every_byte(text: str | None) -> None:
    merged = merge(text, [MEMLOCK, Setting(("live-restore",), True)])
    assert merged.text != text
    again = merge(merged.text, [MEMLOCK, Setting(("live-restore",), True)], merged.record)
    assert (again.text, again.record, again.changes) == (merged.text, merged.record, [])
    assert restore(again.text, again.record).text == text


def test_undo_keeps_what_the_user_added_since() -> None:
    merged = merge(NVIDIA, [MEMLOCK])
    assert merged.text is not None
    edited = json.loads(merged.text)
    edited["dns"] = ["10.0.0.1"]
    back = restore(json.dumps(edited), merged.record)
    assert back.text is not None
    assert json.loads(back.text) == {**json.loads(NVIDIA), "dns": ["10.0.0.1"]}


def test_undo_leaves_a_key_that_the_user_changed_since() -> None:
    merged = merge(None, [Setting(("live-restore",), True)])
    back = restore('{"live-restore": false}', merged.record)
    assert back.text == '{"live-restore": false}'
    assert back.left == ["live-restore is false and no longer what we set, so it stays"]


def test_a_wish_taken_back_gives_its_key_back() -> None:
    first = merge('{"live-restore": false}', [MEMLOCK, Setting(("live-restore",), True)])
    second = merge(first.text, [MEMLOCK], first.record)
    assert second.text is not None
    assert json.loads(second.text)["live-restore"] is False
    assert second.changes == ["live-restore: true -> false, as before us"]


def test_a_new_value_of_ours_replaces_the_old_one_and_the_first_previous_stays() -> None:
    text = '{"log-opts": {"labels": "x"}}'
    first = merge(text, [Setting(("log-opts", "max-size"), "50m", unless_set=True)])
    second = merge(first.text, [Setting(("log-opts", "max-size"), "10m", unless_set=True)], first.record)
    assert second.text is not None
    assert json.loads(second.text)["log-opts"] == {"labels": "x", "max-size": "10m"}
    assert restore(second.text, second.record).text == text


def test_a_run_that_died_before_writing_loses_nothing() -> None:
    died = merge(NVIDIA, [MEMLOCK])
    again = merge(NVIDIA, [MEMLOCK], died.record)
    assert again.text == died.text
    assert restore(again.text, again.record).text == NVIDIA
    assert restore(NVIDIA, died.record) == (NVIDIA, {}, [], [])


REFUSALS: dict[str, tuple[str, str]] = {
    "broken": ('{"a": }', "/etc/docker/daemon.json is not valid JSON"),
    "a list": ("[1]", "holds a list where a JSON object belongs"),
    "a scalar in the way": ('{"default-ulimits": 5}', "default-ulimits is a int where a mapping belongs"),
}


@pytest.mark.parametrize(("text", "message"), REFUSALS.values(), ids=REFUSALS.keys())
def test_refusals_name_the_file_and_the_key(text: str, message: str) -> None:
    with pytest.raises(DaemonJsonError, match=message.replace("/", "\\/")):
        merge(text, [MEMLOCK])


FLAGS: dict[str, tuple[tuple[str, ...], dict[str, Any], str]] = {
    "ulimits": (("--default-ulimit", "memlock=-1"), {"memlock": -1, "stack": None}, "started with --default-ulimit"),
    "live-restore": (("--live-restore=true",), {"memlock": None, "stack": None, "live_restore": False}, "started with --live-restore"),
}


@pytest.mark.parametrize(("flags", "wishes", "message"), FLAGS.values(), ids=FLAGS.keys())
def test_a_flag_that_would_stop_the_daemon_is_refused(flags: tuple[str, ...], wishes: dict[str, Any], message: str) -> None:
    with pytest.raises(DaemonJsonError, match=message):
        wanted_settings(flags=flags, **wishes)


KEYS = st.sampled_from(["a", "b", "live-restore", "log-opts", "default-ulimits"])
VALUES = st.recursive(st.integers() | st.text(max_size=3) | st.booleans(), lambda inner: st.dictionaries(KEYS, inner, max_size=3), max_leaves=5)


@given(st.dictionaries(KEYS, VALUES, max_size=4))
def test_any_file_comes_back(data: dict[str, Any]) -> None:
    text = json.dumps(data)
    try:
        merged = merge(text, [MEMLOCK, Setting(("log-opts", "max-size"), "1m", True)])
    except DaemonJsonError:
        return
    assert restore(merged.text, merged.record).text == text
    merged_data = daemon_json.parse(merged.text)
    assert {key: value for key, value in merged_data.items() if key not in ("default-ulimits", "log-opts")} == {
        key: value for key, value in data.items() if key not in ("default-ulimits", "log-opts")
    }
