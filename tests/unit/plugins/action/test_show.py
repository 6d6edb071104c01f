"""The action show: what it prints as text and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.action import show as plugin
from ansible_collections.gb10.cluster.plugins.plugin_utils import shown

HOSTILE = "a\x1b[31mb\u202ec\x7f"


def call(monkeypatch: pytest.MonkeyPatch, lines: list[str] | None, data: Any = None, **extra: Any) -> dict[str, Any]:
    monkeypatch.setattr(shown, "load_extra_vars", lambda _loader: extra)
    action = plugin.ActionModule.__new__(plugin.ActionModule)
    action._loader = None
    action.validate_argument_spec = lambda **_more: (None, {"lines": lines, "data": data, "summary": False, "report": None})
    return action.run()


def test_prints_all_lines_in_one_piece_without_control_characters(screen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    result = call(monkeypatch, ["one", f"two {HOSTILE}", "three\nfour"], {"a": 1})
    assert screen == ["one\ntwo a\\x1b[31mb\\u202ec\\x7f\nthree\nfour"]
    assert (result["changed"], result["lines"][2:], result["data"]) == (False, ["three", "four"], {"a": 1})


@pytest.mark.parametrize(
    ("data", "documents"),
    [
        ({"name": HOSTILE, "text": "two\nlines"}, [{"name": "a\\x1b[31mb\\u202ec\\x7f", "text": "two\nlines"}]),
        ([{"group": "pair1"}, {"group": "pair2"}], [{"group": "pair1"}, {"group": "pair2"}]),
        (None, [{"schema": "gb10.cluster/text/1", "lines": ["text"]}]),
    ],
)
def test_prints_a_line_for_each_document_with_output_json(
    screen: list[str], monkeypatch: pytest.MonkeyPatch, data: Any, documents: list[dict[str, Any]]
) -> None:
    call(monkeypatch, ["text"], data, output="json")
    assert [json.loads(line) for line in screen[0].split("\n")] == documents
    assert screen[0].isascii()


def test_refuses_another_output_before_anything_is_printed(screen: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(AnsibleActionFail, match=r"output \(-e\) is 'jsno', expected one of text, json; did you mean json\?$"):
        call(monkeypatch, ["text"], output="jsno")
    assert screen == []


def test_a_document_has_its_own_text(monkeypatch: pytest.MonkeyPatch) -> None:
    document = {"schema": "gb10.cluster/releases/1", "group": "pair1", "host": HOSTILE, "releases": []}
    result = call(monkeypatch, None, [document, document])
    assert result["lines"] == ["", "pair1 keeps 0 releases on a\\x1b[31mb\\u202ec\\x7f."] * 2


@pytest.mark.parametrize("data", [None, {"schema": "gb10.cluster/other/1"}, [], [5], [{"schema": "gb10.cluster/status/1"}, {"schema": "x"}]])
def test_refuses_a_document_without_text(monkeypatch: pytest.MonkeyPatch, data: Any) -> None:
    with pytest.raises(AnsibleActionFail, match="data needs lines, or documents of one schema of gb10"):
        call(monkeypatch, None, data)
