"""The agent after converge: it answers, it is owned by the head, and the head reaches the worker with its key."""

from __future__ import annotations

import json
from typing import Any


def test_each_agent_answers_and_obeys_the_head(host: Any) -> None:
    hello = json.loads(host.check_output("/usr/local/sbin/gb10 call hello"))
    assert hello["owner"]["group"] == hello["group"]
    assert host.service("gb10-agent").is_enabled


def test_the_head_reaches_the_worker_over_the_rail(host: Any) -> None:
    if json.loads(host.check_output("/usr/local/sbin/gb10 call hello"))["rank"] == 0:
        [peer] = json.loads(host.check_output("/usr/local/sbin/gb10 call peers"))["peers"]
        assert peer["ok"], peer
