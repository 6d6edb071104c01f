"""A report with texts of containers and logs: no text becomes markup."""

from __future__ import annotations

import re
import tempfile
from pathlib import Path
from typing import Any

import pytest
import report_pages
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page
from hostile import places, replaced

pytestmark = pytest.mark.slow

MARKUP = "<script>alert(1)</script><svg onload=x>"
BOOT = report_pages.boot("9b1e61d2a9be", "2026-11-24T10:00:00Z", 12.0, 1990142, 54.9)
NODE = report_pages.node(0, events=report_pages.events()[:2], receipts=[BOOT])
GOOD = {key: NODE[key] for key in report_data.RECORDS} | {"bandwidth": report_pages.pair()["nodes"]["spark-2"]["bandwidth"]}
GOOD["soaks"] = [{"release": BOOT["release"], "hours": 12.0, "verdict": "passed"}]
GOOD["memory"] = {"recent": ";".join(f"{n} 1 2 3" for n in range(0, 100, 5)), "day": "", "source": "agent"}
INFO = {"containers": [], "processes": {"fault": ""}, "memory": {}}


def page(records: Any) -> str:
    """Return the page if rank 0 returns this, as the action makes it."""
    with tempfile.TemporaryDirectory() as folder:
        nodes = report_data.nodes_of(report_pages.HOSTS, {"spark-1": {"fabric": {}, "info": {**INFO, "records": records}}}, Path(folder))
    return report_page.render(report_data.plan(**{**report_pages.pair(), "receipts": [], "nodes": nodes}))


def value_at(path: tuple[Any, ...]) -> Any:
    found: Any = GOOD
    for key in path:
        found = found[key]
    return found


@pytest.mark.parametrize("path", [path for path in places(GOOD) if isinstance(value_at(path), str)], ids=str)
def test_a_text_at_any_place_makes_a_page_without_its_markup(path: tuple[Any, ...]) -> None:
    html = page(replaced(GOOD, path, MARKUP, removes=False))
    assert "<script" not in html
    assert set(re.findall(r"<svg[^>]{0,6}", html)) <= {"<svg xmlns"}
