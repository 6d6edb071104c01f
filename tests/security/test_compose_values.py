"""Each value of an environment variable comes out of Docker Compose as it went in (L5, Table 2a and 2b)."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from compose_values import NUMBERS, VALUES, rendered


def test_a_value_is_one_text_of_the_file() -> None:
    values = {f"V{number}": value for number, value in enumerate(VALUES)}
    service = yaml.safe_load(rendered(values))["services"]["vllm"]
    assert {name: service["environment"][name].replace("$$", "$") for name in values} == values
    assert "privileged" not in service


@pytest.mark.parametrize("value", NUMBERS)
def test_a_text_that_compose_reads_as_a_number_has_quotes(value: str) -> None:
    root = yaml.compose(compose_yaml({"a": value, "b": [value]}), Loader=yaml.SafeLoader)
    assert isinstance(root, yaml.MappingNode)
    (_a, one), (_b, many) = root.value
    assert [node.style for node in (one, *many.value)] == ["'", "'"]


def test_numbers_stay_numbers() -> None:
    assert compose_yaml({"a": 5, "b": 0.5, "c": True, "d": None, "e": 1e20}) == "a: 5\nb: 0.5\nc: true\nd: null\ne: 1.0e+20\n"
