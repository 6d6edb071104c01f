"""What smoke.yml and sanity.yml print and keep, and how they end. Both hosts are this machine; the API is one of the test."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from playbook import Run
from warm_playbook import local

pytestmark = pytest.mark.slow


class Api(http_server.Handler):
    """A model that gives one answer."""

    text = "Paris."

    def get(self) -> None:
        self.answer(200, json.dumps({"data": [{"id": "m"}]}))

    def post(self) -> None:
        self.body()
        choice = {"message": {"content": self.text}, "finish_reason": "stop"}
        self.answer(200, json.dumps({"choices": [choice], "usage": {"completion_tokens": 3}}))


@pytest.fixture
def api(tmp_path: Path) -> Iterator[type[Api]]:
    with http_server.answering(Api) as (kind, url):
        current = tmp_path / "node/pair1/current"
        current.mkdir(parents=True)
        (current / "release.json").write_text(json.dumps({"release": "4f0c", "profile": "mine", "port": int(url.rpartition(":")[2])}), encoding="utf-8")
        yield kind


def play(folder: Path, name: str, *arguments: str) -> Run:
    given: dict[str, Any] = {
        "gb10_profile": "b12x-fp8-1m", "vllm_tp2_directory": f"{folder}/node", "gb10_receipts": f"{folder}/receipts",
        "vllm_tp2_sanity_prompts": [{"prompt": "The capital of France is", "expect": "Paris"}],
    }  # fmt: skip
    return local(folder, name, *arguments, **given)


def test_smoke_prints_the_streams_and_sanity_each_level(api: type[Api], tmp_path: Path) -> None:
    smoke = play(tmp_path, "smoke", "-e", "smoke_requests=2")
    assert smoke.rc == 0, smoke.stdout
    assert "pair1: 2 replies, none bad." in smoke.stdout
    assert any(line.split()[:1] == ["2"] and line.endswith("Paris.") for line in smoke.stdout.splitlines()), smoke.stdout
    sanity = play(tmp_path, "sanity", "-e", "sanity_concurrency=1,3", "-e", "output=json")
    assert sanity.rc == 0, sanity.stdout
    [document] = sanity.documents
    assert (document["schema"], document["passed"], [row["requests"] for row in document["rows"]]) == ("gb10.cluster/sanity/1", True, [1, 3])
    assert smoke.changed == sanity.changed == set()


def test_a_bad_reply_fails_the_run(api: type[Api], tmp_path: Path) -> None:
    api.text = "Rome."
    bad = play(tmp_path, "sanity")
    assert bad.rc == 2
    assert bad.last_message.startswith("pair1: 13 of 13 replies are bad: at 1 at once, to 'The capital of France is': ")
