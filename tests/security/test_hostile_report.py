"""A report of what a compromised node returned: the page is made or the value is refused, and no text of the node becomes markup."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import report_pages
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import misfit
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page, report_sources
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import RECORDS, received
from hostile import ANY_JSON, EXAMPLES, FEW, places, replaced
from hypothesis import given, settings
from hypothesis import strategies as st

LARGE = ("<script>alert(1)</script>", 10**18, 1e18, 10**12, "9999-99-99T99:99:99Z")
BOOT = report_pages.boot("9b1e61d2a9be", "2026-11-24T10:00:00Z", 12.0, 1990142, 54.9)
NODE = report_pages.node(0, events=report_pages.events()[:2], receipts=[BOOT])
GOOD = {key: NODE[key] for key in RECORDS} | {"bandwidth": report_pages.pair()["nodes"]["spark-2"]["bandwidth"]}
GOOD["memory"] = {"recent": ";".join(f"{n} 1 2 3" for n in range(0, 100, 5)), "day": "", "source": "agent"}
INFO = {"containers": [], "processes": {"fault": ""}, "memory": {}}


def page(records: Any) -> str:
    """Return the page if rank 0 returns this, as the action makes it."""
    result = received("spark-1", "report_info", records)
    with tempfile.TemporaryDirectory() as folder:
        nodes = report_sources.nodes_of(report_pages.HOSTS, {"spark-1": {"records": result, "fabric": {}, "info": INFO}}, Path(folder))
    return report_page.render(report_data.plan(**{**report_pages.pair(), "receipts": [], "nodes": nodes}))


def test_good_records_are_shown() -> None:
    assert misfit(GOOD, RECORDS) == ""
    assert page(GOOD).count("<svg") >= 6  # timeline, memory, KV pool, speed, rails


@pytest.mark.slow
@settings(FEW, max_examples=EXAMPLES // 20)
@given(path=st.sampled_from(places(GOOD)), new=ANY_JSON | st.sampled_from(LARGE), removes=st.booleans())
def test_any_value_at_any_place_makes_a_page_without_markup_of_the_node(path: tuple[Any, ...], new: Any, removes: bool) -> None:
    html = page(replaced(GOOD, path, new, removes and bool(path)))
    assert "<script" not in html
    assert set(re.findall(r"<svg[^>]{0,6}", html)) <= {"<svg xmlns"}
    assert len(html) < 2 << 20


@pytest.mark.slow
def test_lists_without_an_end_are_cut() -> None:
    ranks = [{"rank": n, "host": "x" * 500, "stages": [[f"stage {n} {m}", m] for m in range(100)], "memory_series": "1 2 3 4;9 2 3 4"} for n in range(100)]
    html = page({**GOOD, "receipts": [{**BOOT, "ranks": ranks}], "events": [{"n": n, "text": "x" * 10_000} for n in range(100)]})
    assert len(html) < 20 << 20
