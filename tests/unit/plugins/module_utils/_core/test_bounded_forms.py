"""The environment file of the secrets."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded


def test_reads_what_it_writes() -> None:
    values = {"VLLM_API_KEY": '"quoted" $HOME #no', "HF_TOKEN": "a=b", "X": "in the \\middle", "Y": ""}
    assert bounded.env_values(bounded.env_text(values)) == values


def test_reads_files_of_others() -> None:
    text = "# A=comment\nexport VLLM_API_KEY='abc'\nEMPTY=\nHF=\"d=e\"\nbroken\nOPEN='x\n"
    assert bounded.env_values(text) == {"VLLM_API_KEY": "abc", "EMPTY": "", "HF": "d=e", "OPEN": "'x"}


@pytest.mark.parametrize(
    ("value", "problem"), [("a'b", "quote"), ("a\nb", "line end"), ("a\0b", "line end"), ("a\\", "backslash"), ("a\\\\", ""), ("$x #y", "")]
)
def test_names_what_compose_would_not_read(value: str, problem: str) -> None:
    assert problem in bounded.env_problem(value)
    assert bool(bounded.env_problem(value)) is bool(problem)
