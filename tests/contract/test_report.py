"""report.yml's page in headless Chromium: no console message, no request, and data in every figure; and the playbook where nothing is deployed."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import report_pages
from browser import Browser
from playbook import LOCAL_PAIR
from warm_playbook import local

pytestmark = pytest.mark.slow

RECORDED = sorted(path.name for path in report_pages.RECORDED.iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Browser:
    return Browser(tmp_path_factory.mktemp("chromium"))


def never_booted() -> dict[str, Any]:
    nodes = {host: {"problem": "the node is unreachable"} for host in report_pages.HOSTS}
    return {**report_pages.pair(), "status": {}, "nodes": nodes, "receipts": [], "bench": {}}


def no_cable() -> dict[str, Any]:
    problem = {"message": "No mlx5 device is visible.", "remedy": "Plug the QSFP cable into the same cage of both machines."}
    nodes = {host: report_pages.node(rank, fabric={"rails": [], "problems": [problem]}) for rank, host in enumerate(report_pages.HOSTS)}
    status = {"state": "down", "ok": False, "sentence": "pair1 does not serve: a rail has no link."}
    return {**report_pages.pair(), "status": status, "nodes": nodes, "receipts": report_pages.pair()["receipts"][:2], "bench": {}}


def four_ranks_and_many_releases() -> dict[str, Any]:
    found = report_pages.pair()
    hosts = [f"a-node-with-a-long-name-{number}.example" for number in range(4)]
    boots = [report_pages.boot(f"{number:012x}", f"2026-10-{number + 1:02d}T10:00:00Z", 790.0, 1_900_000 + number, 50.0 + number) for number in range(20)]
    for each in boots:
        each["ranks"] = [{**copy.deepcopy(each["ranks"][min(number, 1)]), "rank": number, "host": host} for number, host in enumerate(hosts)]
    return {**found, "hosts": hosts, "nodes": {host: report_pages.node(number) for number, host in enumerate(hosts)}, "receipts": boots}


STATES: dict[str, Callable[[], dict[str, Any]]] = {
    "composed pair": report_pages.pair, "never booted, nodes off": never_booted, "no cable": no_cable, "four ranks": four_ranks_and_many_releases,
    **{state: (lambda state=state: report_pages.recorded(state)) for state in RECORDED},  # type: ignore[misc]
}  # fmt: skip


@pytest.mark.parametrize("state", STATES)
def test_page_has_no_console_message_no_request_and_data_in_every_figure(browser: Browser, state: str) -> None:
    html = report_pages.html(STATES[state]())
    assert browser.open(html) == ([], [])
    found = browser.measure(html)
    assert found["wide"] is False
    assert len(found["figures"]) == html.count("<svg")
    for figure in found["figures"]:
        assert figure["width"] > 500
        assert figure["height"] > 100
        assert figure["shapes"] >= 1, figure
        assert figure["outside"] == figure["covered"] == [], figure
        assert figure["unlike"] == [], "the legend has another colour than the figure"
        assert figure["legends"] >= 1
        assert figure["title"]
        assert figure["desc"]


def test_page_fits_a_telephone(browser: Browser) -> None:
    assert browser.measure(report_pages.html(report_pages.pair()), width=500)["wide"] is False


def test_a_request_of_a_page_is_seen_and_one_of_the_report_is_a_message(browser: Browser) -> None:
    """The checks above would not fail without this."""
    image = '<img src="http://192.0.2.1/x.png">'
    console, _urls = browser.open(report_pages.html(never_booted()).replace("</main>", f"{image}</main>"))
    assert console
    _console, urls = browser.open(f"<!DOCTYPE html><title>x</title>{image}")
    assert urls == ["http://192.0.2.1/x.png"]


@pytest.mark.long
def test_playbook_shows_receipts_of_the_controller_and_a_node_that_is_off_as_it_was_read_last(tmp_path: Path) -> None:
    hosts = LOCAL_PAIR.replace("one:", "lab-1:").replace("two:", "lab-2:").replace("127.0.0.2", "127.0.0.2, ansible_connection: ssh, ansible_port: 1")
    shutil.copytree(report_pages.RECORDED / "failed", tmp_path / "receipts/pair1")
    given = {"gb10_profile": "dspark-nvfp4-1m-seed", "vllm_tp2_directory": str(tmp_path / "node"), "gb10_receipts": str(tmp_path / "receipts")}
    done = local(tmp_path, "report", hosts=hosts, report_dest=str(tmp_path / "pages"), output="json", **given)
    assert done.rc == 0, done.stdout[-3000:]
    assert done.changed == set()
    path = tmp_path / "pages/pair1.html"
    (document,) = done.documents
    assert (document["schema"], document["path"]) == ("gb10.cluster/report/1", str(path))
    assert path.stat().st_mode & 0o777 == 0o600
    page = path.read_text(encoding="utf-8")
    assert "lab-2 was not read: the node is unreachable. What is shown of it was read at 2026-11-25T07:29:26Z." in page
    assert "pair1 has never served: no release is current." in page, "the head answers, and has none"
    assert page.count("<svg") >= 6, "timelines of two boots, the memory of both ranks in the boot, of lab-2 since, the KV pool"
