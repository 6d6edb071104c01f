"""The rulebook: which playbook starts for which events of the agents' webhook, and for which group. ansible-rulebook, which needs Java 17, is not run."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import KINDS
from playbook import REPO

[RULES] = yaml.safe_load((REPO / "extensions/eda/rulebooks/keep_serving.yml").read_text(encoding="utf-8"))


class Payload(dict[str, object]):
    """An event, whose missing values are None."""

    def __getattr__(self, name: str) -> object:
        return self.get(name)


class Event:
    def __init__(self, **payload: object) -> None:
        self.payload = Payload(payload)


@pytest.mark.parametrize(
    ("event", "playbooks"),
    [
        ({"kind": "fault", "cause": "wedge"}, []),
        ({"kind": "settled", "result": "serves"}, []),
        ({"kind": "recovered", "cause": "node_lost", "seconds": 3.0}, []),
        ({"kind": "fault", "cause": "node_lost"}, ["status"]),
        ({"kind": "head_lost", "cause": "node_lost"}, ["status"]),
        ({"kind": "settled", "result": "held"}, ["evidence"]),
        ({"kind": "settled", "result": "failed"}, ["evidence"]),
    ],
)
def test_each_event_starts_its_playbook(event: dict[str, Any], playbooks: list[str]) -> None:
    assert event["kind"] in KINDS
    met = [rule for rule in RULES["rules"] if eval(rule["condition"], {"event": Event(**event)})]
    assert [rule["action"]["run_playbook"]["name"] for rule in met] == [f"gb10.cluster.{name}" for name in playbooks]


def test_a_playbook_runs_for_the_group_of_its_event_and_its_file_needs_no_other() -> None:
    (source,) = RULES["sources"]
    assert source["ansible.eda.webhook"]["token"] == "{{ gb10_eda_token }}"
    assert source["filters"] == [{"ansible.eda.insert_hosts_to_meta": {"host_path": "payload.group"}}]
    for rule in RULES["rules"]:
        assert rule["throttle"]["group_by_attributes"] == ["event.payload.group"]
        name = rule["action"]["run_playbook"]["name"].removeprefix("gb10.cluster.")
        plays = yaml.safe_load((REPO / f"playbooks/{name}.yml").read_text(encoding="utf-8"))
        assert not any("ansible.builtin.import_playbook" in play for play in plays), "ansible-rulebook runs a copy of the file alone"
