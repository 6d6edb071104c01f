"""The check accepts each value that the documentation, the roles and the inventories show. The blocks of pages: test_inventory_survey.py."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import rules, variables
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import DEFAULTS
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import load_specs
from playbook import REPO

SPECS: dict[str, Any] = {**CLUSTER_SPEC, **PLAYBOOK_SPEC, **{name: spec for options in load_specs().values() for name, spec in options.items()}}
WATCH: dict[str, Any] = SPECS["vllm_tp2_watch"]["options"]
PAGES = [REPO / "README.md", *sorted(REPO.glob("docs/**/*.md")), *sorted(REPO.glob("roles/*/README.md"))]
FILES = [*sorted(REPO.glob("inventories/*/**/*.yml")), *sorted(REPO.glob("playbooks/*.yml"))]


class Loader(yaml.SafeLoader):
    """A loader that has no value for the tags of Ansible."""


Loader.add_multi_constructor("!", lambda _loader, _suffix, _node: None)


def load(text: str) -> Any:
    """Return the content of a block; None if it is not YAML, such as one with an ellipsis."""
    try:
        return yaml.load(text, Loader=Loader)
    except yaml.YAMLError:
        return None


def mappings(node: Any) -> Iterator[tuple[str, Any]]:
    """Each variable of a block, below groups and hosts too."""
    if isinstance(node, dict):
        for key, value in node.items():
            if key in SPECS:
                yield str(key), value
            else:
                yield from mappings(value)
    elif isinstance(node, list):
        for each in node:
            yield from mappings(each)


def shown() -> Iterator[tuple[str, str, Any]]:
    """Where a value is shown, the variable, the value."""
    for path in PAGES:
        text = path.read_text(encoding="utf-8")
        where = str(path.relative_to(REPO))
        for name, value in re.findall(r"`([a-z]\w+): ([^`\n]+)`", text):
            if name in SPECS:
                yield where, name, load(value)
        yield from ((where, name, value) for name, value in options(text))
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        where = str(path.relative_to(REPO))
        yield from ((where, name, value) for name, value in mappings(load(text)))
        yield from ((where, name, value) for name, value in options(text))
        for name, value in re.findall(r"^\s*# ([a-z]\w+): ([^#\n]+)", text, re.MULTILINE):
            if name in SPECS and not value.startswith("!vault"):
                yield where, name, load(value)
    for name, spec in SPECS.items():
        for choice in spec.get("choices") or ():
            value = load(str(choice))  # as a user writes it: without quotes
            yield "choices", name, [value] if spec.get("type") == "list" else value
        if spec.get("default") is not None and not variables.is_computed(spec["default"]):
            yield "default", name, spec["default"]


def options(text: str) -> Iterator[tuple[str, Any]]:
    """The variables after -e; a list is written with commas there."""
    for name, value in re.findall(r"-e '?(\w+)=([^\s'`;,]+(?:,[^\s'`;,]+)*)", text):
        if name in SPECS and not re.search(r"\b[A-Z]{2,}\b|…|<", value):
            value = value.rstrip(".")  # the end of a sentence
            yield name, value.split(",") if SPECS[name].get("type") == "list" else value


SHOWN = [(where, name, value) for where, name, value in shown() if not isinstance(value, str) or "{{" not in value]


def test_finds_what_is_shown() -> None:
    places = {where for where, _name, _value in SHOWN}
    assert {"README.md", "docs/inventory.md", "inventories/spark-pair/group_vars/gb10.yml", "playbooks/bench.yml", "choices"} <= places


def test_a_value_that_is_shown_is_accepted() -> None:
    assert [(where, name, faults) for where, name, value in SHOWN if (faults := rules.faults(name, value, SPECS[name]))] == []


def test_the_thresholds_of_the_watch_are_described_with_their_defaults() -> None:
    described = {name: " ".join([spec["description"]] if isinstance(spec["description"], str) else spec["description"]) for name, spec in WATCH.items()}
    assert [name for name, value in DEFAULTS.items() if name in described and value and f"{value:g} by default" not in described[name]] == []
    text = (REPO / "docs/keeps-serving.md").read_text(encoding="utf-8")
    shown_there = [(name, float(value)) for name, value in re.findall(r"`(\w+)`(?: of them)? \(?(\d+(?:\.\d+)?)\b", text) if name in DEFAULTS]
    assert len(shown_there) > 6
    assert [(name, value) for name, value in shown_there if value != DEFAULTS[name]] == []
