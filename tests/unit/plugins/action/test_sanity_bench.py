"""The action plugin on a head that answers from a script: its requests, and its message if nothing serves."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.action import sanity_bench as plugin
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_sources, shown

RELEASE = {"release": "4f0c61d2a9be", "profile": "mine", "port": 8888, "has_key": True}
ARGUMENTS = {"group": "pair1", "prompts": [{"prompt": "The capital of France is", "expect": "Paris"}], "concurrency": "1,2"}


class Head:
    """A node that answers slurp and vllm_probe; keeps what was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, texts: list[str], release: Any = None, probe: Any = None) -> None:
        self.texts, self.release, self.probe = list(texts), release, probe
        self.asked: list[dict[str, Any]] = []
        self.lines: list[str] = []
        monkeypatch.setattr(ActionBase, "run", lambda *_args, **_more: {})
        monkeypatch.setattr(ActionBase, "_execute_module", lambda _self, **more: self.answer(more["module_name"], more["module_args"]))
        monkeypatch.setattr(Display, "display", lambda _self, text, *_args, **_more: self.lines.extend(text.split("\n")))

    def answer(self, module: str, arguments: dict[str, Any]) -> dict[str, Any]:
        if module == "ansible.builtin.slurp":
            return self.release or {"content": base64.b64encode(json.dumps(RELEASE).encode()).decode()}
        self.asked.append(arguments)
        if self.probe:
            return dict(self.probe)
        replies = [{"ok": True, "text": self.texts.pop(0), "completion_tokens": 4, "seconds": 0.5, "error": ""} for _request in arguments["requests"]]
        for each in replies:
            if each["text"] == "THINKS":
                each.update(text="", reasoning="The user asks for a capital.", finish_reason="length")
        return {"models": [{"id": "m"}], "error": "", "replies": replies}

    def run(self, **arguments: Any) -> dict[str, Any]:
        task = SimpleNamespace(args={**ARGUMENTS, **arguments}, check_mode=False, diff=False, async_val=0, resolved_action="", action="")
        module = plugin.ActionModule(task=task, connection=None, play_context=None, loader=None, templar=None, shared_loader_obj=None)
        out: dict[str, Any] = module.run(None, {"inventory_hostname": "spark-1"})
        return out


def test_every_level_is_asked_at_once_with_the_key_of_the_release_that_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch, ["Paris.", "Paris.", "It is Paris."])
    out = head.run()
    assert not out["failed"]
    assert out["msg"].startswith("pair1: 3 replies, none bad. If an agent still shows garbage, see docs/garble.md: its session, its fallback models")
    assert [(asked["concurrency"], len(asked["requests"]), asked["url"]) for asked in head.asked] == [
        (1, 1, "http://127.0.0.1:8888"),
        (2, 2, "http://127.0.0.1:8888"),
    ]
    folder = "/opt/gb10-cluster/vllm_tp2/pair1"
    assert {tuple(asked["env_file"]) for asked in head.asked} == {(f"{folder}/current/secrets.env", f"{folder}/api_key")}
    assert [row["bad_outputs"] for row in out["rows"]] == [0, 0]
    assert sum("bad_outputs" in line for line in head.lines) == 1


def test_one_prompt_is_asked_alone_and_among_others_and_a_difference_fails_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = ["four.", "four.", "blue.", "four.", "five.", "blue."]
    head = Head(monkeypatch, texts)
    out = head.run(prompts=["2 + 2?", "A colour?"])
    assert not out["failed"]
    assert "'four.' alone and 'five.' among 1 others" in out["drift"]
    assert [len(asked["requests"]) for asked in head.asked] == [1, 2, 1, 2]
    assert any(out["drift"] in line for line in head.lines)


@pytest.mark.parametrize("streams", [True, False])
def test_a_reply_that_ended_in_its_reasoning_is_reported_and_fails_nothing(monkeypatch: pytest.MonkeyPatch, streams: bool) -> None:
    head = Head(monkeypatch, ["THINKS"])
    assert not head.run(concurrency="1", streams=streams)["failed"]
    assert any("1 of 1 replies ended in their reasoning, at max_tokens" in line for line in head.lines)


def test_smoke_compares_no_replies(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch, ["a.", "b."])
    assert head.run(prompts=["2 + 2?", "A colour?"], concurrency="2", streams=True)["drift"] == ""
    assert len(head.asked) == 1


def test_api_is_asked_at_the_address_that_it_binds(monkeypatch: pytest.MonkeyPatch) -> None:
    release = {"content": base64.b64encode(json.dumps(RELEASE | {"host": "10.0.0.11"}).encode()).decode()}
    head = Head(monkeypatch, ["Paris.", "Paris.", "Paris."], release)
    head.run()
    assert {asked["url"] for asked in head.asked} == {"http://10.0.0.11:8888"}


def test_one_bad_reply_of_three_fails_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch, ["Paris.", "Paris.", ""])
    out = head.run()
    assert out["failed"]
    assert out["msg"].startswith("pair1: 1 of 3 replies are bad: at 2 at once, to 'The capital of France is': the reply is empty.")
    start = head.lines.index("at once  prompt                    reply  reason")
    assert head.lines[start + 1] == "      2  The capital of France is  -      the reply is empty"


def test_speeds_are_kept_for_the_report_unless_a_reply_is_bad(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    Head(monkeypatch, ["Paris.", "Paris.", ""]).run(receipts=str(tmp_path))
    assert report_sources.speeds_in(tmp_path / "pair1") == {}
    Head(monkeypatch, ["Paris.", "Paris.", "Paris."]).run(receipts=str(tmp_path))
    found = report_sources.speeds_in(tmp_path / "pair1")
    assert (found["release"], found["profile"]) == ("4f0c61d2a9be", "mine")
    assert [(each["concurrency"], each["tok_s"]) for each in found["levels"]] == [(1, 8.0), (2, 16.0)]


def test_speeds_that_cannot_be_written_fail_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "pair1").write_text("a file", encoding="utf-8")
    head = Head(monkeypatch, ["Paris.", "Paris.", "Paris."])
    assert not head.run(receipts=str(tmp_path))["failed"]
    assert f"pair1: The speeds are not kept for report.yml: {tmp_path}/pair1 on the controller cannot be written" in "\n".join(head.lines)


@pytest.mark.parametrize("streams", [True, False])
def test_output_json_is_one_document_and_nothing_else(monkeypatch: pytest.MonkeyPatch, streams: bool) -> None:
    monkeypatch.setattr(shown, "load_extra_vars", lambda _loader: {"output": "json"})
    head = Head(monkeypatch, ["Paris.", "Rome", "It is Paris."])
    out = head.run(streams=streams)
    (document,) = map(json.loads, head.lines)
    assert (document["schema"], document["group"], document["release"], document["passed"]) == ("gb10.cluster/sanity/1", "pair1", "4f0c61d2a9be", False)
    assert [row["bad_outputs"] for row in document["rows"]] == [0, 1]
    assert document["sentence"] == out["msg"]


def test_the_streams_are_rows_and_a_good_verdict_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    head = Head(monkeypatch, ["Paris.", "It is\n Paris."])
    out = head.run(concurrency="2", streams=True)
    assert "2          0.50       4    8.0  It is Paris." in head.lines
    assert head.lines[-1] == out["msg"]


@pytest.mark.parametrize(
    ("release", "probe", "arguments", "sentence"),
    [
        pytest.param({"failed": True, "msg": "file not found"}, None, {}, "nothing is known to serve on spark-1 .*file not found.*site.yml", id="no release"),
        pytest.param({"unreachable": True, "msg": "no route"}, None, {}, "spark-1 is not reachable: no route", id="unreachable"),
        pytest.param(None, {"error": "it is down", "models": [], "replies": []}, {}, "spark-1 does not serve: it is down", id="down"),
        pytest.param(None, {"error": "", "models": [], "replies": []}, {}, "it lists no model", id="no model"),
        pytest.param(None, {"failed": True, "msg": "Cannot read the API key"}, {}, "Cannot read the API key", id="key"),
        pytest.param(None, None, {"concurrency": "zero"}, "expected are whole numbers", id="concurrency"),
        pytest.param(None, None, {"prompts": [{"promt": "x"}]}, "Prompt 1 is", id="prompt"),
    ],
)
def test_what_cannot_be_asked_has_its_sentence(monkeypatch: pytest.MonkeyPatch, release: Any, probe: Any, arguments: dict[str, Any], sentence: str) -> None:
    with pytest.raises(AnsibleActionFail, match=sentence):
        Head(monkeypatch, [], release, probe).run(**arguments)
