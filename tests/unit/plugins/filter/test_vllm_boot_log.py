"""The filter: text to facts, and messages for other input."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.filter.vllm_boot_log import FilterModule

FIXTURES = Path(__file__).resolve().parents[2] / "fixtures" / "vllm_log"
read = FilterModule().filters()["vllm_boot_log"]


def test_a_log_without_its_last_line_end_keeps_its_figures() -> None:
    """The file lookup strips it."""
    facts = read("GPU KV cache size: 2,044,166 tokens\nMaximum concurrency for 1,048,576 tokens per request: 1.95x")
    assert facts["kv_cache"]["max_concurrency"] == 1.95
    assert facts["kv_cache"]["tokens"] == 2044166


@pytest.mark.parametrize(("log", "extra", "message"), [(5, None, "was given a int"), ("x", [{"class": "a"}], "has no pattern")], ids=["no text", "bad class"])
def test_what_is_no_log_is_refused_in_a_sentence(log: Any, extra: Any, message: str) -> None:
    """Ansible reports an error of a filter with its text."""
    with pytest.raises(Exception, match=message):
        read(log, extra)
