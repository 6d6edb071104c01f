"""The lookup of a variable with its one default."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar
from ansible_collections.gb10.cluster.plugins.lookup.setting import LookupModule


def look(name: str, variables: dict[str, Any], **options: Any) -> Any:
    templar = Templar(loader=DataLoader(), variables=variables)
    return LookupModule(loader=DataLoader(), templar=templar).run([name], variables, **options)[0]


@pytest.mark.parametrize(
    ("name", "given", "value"),
    [
        ("gb10_model_store", None, "/srv/models"),
        ("gb10_model_store", "/data", "/data"),
        ("sanity_concurrency", "1,8", [1, 8]),
        ("gb10_rank", None, None),
        ("bench_memory_floor", "2.5", 2.5),
        ("again", "yes", True),
        ("since", "", "10m"),
        ("roce_mtu", None, 9000),
        ("readahead_mounts", "/srv/models,/data", ["/srv/models", "/data"]),
        ("vllm_tp2_extra_env", '{"A": "1"}', {"A": "1"}),
    ],
    ids=["default", "set", "list-of-the-command-line", "no-default", "number", "boolean", "empty", "of-a-role", "list", "mapping"],
)
def test_returns_the_value_or_the_default_in_its_type(name: str, given: Any, value: Any) -> None:
    assert look(name, {} if given is None else {name: given}) == value


def test_a_relative_folder_of_results_starts_where_ansible_playbook_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PWD", "/home/me")
    assert look("gb10_bench", {}) == "/home/me/bench"
    assert (look("gb10_receipts", {"gb10_receipts": "/srv/r"}), look("gb10_profiles_directory", {})) == ("/srv/r", "own-profiles")


def test_refuses_an_unknown_name_and_another_type() -> None:
    with pytest.raises(AnsibleError, match="gb10_stroe is not a variable of this collection"):
        look("gb10_stroe", {})
    with pytest.raises(AnsibleError, match="bench_budget is 'long', expected int"):
        look("bench_budget", {"bench_budget": "long"})


class Locked(dict[str, Any]):
    """Variables of hosts in a file of a vault without its password."""

    def __getitem__(self, host: str) -> Any:
        raise AnsibleError("Attempting to decrypt but no vault secrets found.")


def test_a_host_whose_variables_need_a_password_has_the_defaults() -> None:
    variables = {"hostvars": {"spark-1": {"gb10_profile": "mine"}}}
    assert look("gb10_profile", variables, host="spark-1") == "mine"
    assert look("gb10_profile", {"hostvars": Locked()}, host="spark-1") == "b12x-fp8-1m"
