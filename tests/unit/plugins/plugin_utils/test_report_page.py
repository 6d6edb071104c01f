"""The page of a report: without scripts and references, figures that are described, and one sentence if the library is missing."""

from __future__ import annotations

import re
import sys
from xml.etree import ElementTree

import pytest
import report_pages
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data, report_page


def test_page_has_no_reference_to_anything_else() -> None:
    html = report_pages.html(report_pages.pair())
    assert not re.search(r"\b(src|href|srcset|action|data)=|url\(|@import|<(script|link|iframe|object|embed|form)\b", html)
    assert "default-src 'none'" in html
    assert "http://www.w3.org/2000/svg" in html
    assert not re.search(r"https?://(?!www\.w3\.org/2000/svg)", html)


def test_figures_are_described_and_every_id_is_there_once() -> None:
    html = report_pages.html(report_pages.pair())
    figures = [ElementTree.fromstring(each) for each in re.findall(r"<svg.*?</svg>", html, re.DOTALL)]
    assert len(figures) == 10
    for figure in figures:
        space = "{http://www.w3.org/2000/svg}"
        assert figure.get("role") == "img"
        named = [figure.find(f"{space}{tag}") for tag in ("title", "desc")]
        assert [each is not None and each.get("id") for each in named] == str(figure.get("aria-labelledby")).split()
    ids = re.findall(r'\bid="([^"]*)"', html)
    assert len(ids) == len(set(ids))


def test_bars_have_the_label_of_their_values() -> None:
    given = report_pages.pair()
    for place, rank in enumerate(given["receipts"][-1]["ranks"]):
        rank["stages"] = [["load", 0.0], ["kv", 100.0 + 200.0 * place]]
    html = report_pages.html(given)
    titles = re.findall(r"<title>(rank \d on spark-\d: [^<]*)</title>", html)
    assert titles == ["rank 1 on spark-2: 5 min", "rank 0 on spark-1: 100 s", "rank 1 on spark-2: 8:10 min", "rank 0 on spark-1: 11:30 min"]
    chart = report_page.chart(report_data.boot_section(given["receipts"])["figures"][0])
    assert list(chart.x_labels) == ["rank 1 on spark-2", "rank 0 on spark-1"]
    assert chart.raw_series[0][0] == [300.0, 100.0]


def test_controller_without_the_library_gets_the_command_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pygal", None)
    with pytest.raises(AnsibleActionFail, match=r"cannot be drawn on this computer: .*pygal.*python -m pip install 'pygal>=3.1,<4'"):
        report_page.write({}, {})
