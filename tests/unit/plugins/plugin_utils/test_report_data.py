"""What a report reads of results and of files that may be damaged, and what it shows. Where it is drawn: tests/contract/test_report.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import report_pages
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Sample
from ansible_collections.gb10.cluster.plugins.plugin_utils import report_data

HOSTS = report_pages.HOSTS
RECORDS = {
    "read_at": "2026-11-25T08:00:00Z", "receipts": [], "events": [{"n": 1, "text": "VLLM_API_KEY=sk-0123456789abcdef0123"}],
    "memory": {"recent": "5 1 2 3", "day": "", "source": "agent"}, "bandwidth": {}, "soaks": [], "changed": False,
}  # fmt: skip
FABRIC = {
    "rails": [{"netdev": "enp1s0f0np0", "hca": None, "carrier": True, "gids": []}], "problems": [{"id": "no_rdma", "message": "m", "remedy": None}], "env": {},
}  # fmt: skip
INFO = {"containers": [{"name": "gb10-pair1-rank0", "running": True}], "processes": {"fault": ""}, "memory": {"available_kib": 10 << 20}}
GOOD = {"fabric": FABRIC, "info": {**INFO, "records": RECORDS}}
LOST = {"fabric": {"unreachable": True}, "info": {"unreachable": True, "msg": "ssh: no route\nmore"}}
RECEIPT = {
    "release": "4f0c", "profile": "p", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "checks": [{"name": "x"}],
    "ranks": [{"rank": 0, "facts": {"a": 1}}],
}  # fmt: skip
ROW: dict[str, Any] = dict.fromkeys(("depth", "concurrency", "requests", "output_tokens", "completed", "preemptions"), 1) | {"prefix": "cold", "varied": False}


def put(folder: Path, name: str, content: object) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def part(name: str, **changes: Any) -> dict[str, Any]:
    """Return a section of the composed pair's page."""
    return dict(report_data.plan(**{**report_pages.pair(), **changes})["sections"][name])


def test_stages_of_a_rank_fill_its_boot() -> None:
    rank = {"stages": [["args", 2.0], ["load", 10.0], ["kv", 40.5], [None, 41.0]]}
    times = report_data.stage_times(rank, 50.0)
    assert times == {"starting": 11.0, "arguments": 8.0, "weights": 30.5, "KV cache": 0.5}
    assert sum(times.values()) == 50.0


def test_failed_boot_is_shown_next_to_the_last_good_one() -> None:
    receipts = report_pages.pair()["receipts"]
    found = part("boot", receipts=receipts[:2])
    assert [figure["title"] for figure in found["figures"]] == [
        "Release 77aa02c3b1d4, 2026-11-22 10:00: failed: kv_too_small after 10 min 10 s", "Release 4f0c61d2a9be, 2026-11-20 10:00: passed after 13 min 32 s",
    ]  # fmt: skip
    assert len(part("boot", receipts=receipts)["figures"]) == 1


def test_boot_that_ended_before_its_log_has_a_sentence_in_place_of_a_figure() -> None:
    boot = {"release": "aaaa", "time": "2026-11-25T07:00:00Z", "passed": False, "class": "start_failed", "seconds": 0.4, "ranks": []}
    found = part("boot", receipts=[boot])
    assert found["figures"] == []
    assert found["text"] == ["Release aaaa, 2026-11-25 07:00: failed: start_failed after 0 s. It has no stages: it ended before a log line was read."]


def test_memory_is_that_of_the_last_boot_with_samples() -> None:
    receipts = report_pages.pair()["receipts"]
    for each in receipts[2]["ranks"]:
        del each["memory_series"]
    found = part("boot-memory", receipts=receipts)
    assert len(found["figures"]) == 2
    assert found["text"] == ["The boot of 2026-11-22 10:00, which failed: kv_too_small."]


def test_lowest_memory_survives_the_thinning() -> None:
    samples = [Sample(60 * number, 100, 5120 if number == 777 else 9216, 16) for number in range(1440)]
    points = dict(report_data.memory_figure("rank 0 on one", samples, True)["series"])["MemAvailable"]
    assert len(points) <= report_data.MOST_POINTS
    assert min(value for _seconds, value in points) == 5.0


def test_line_is_interrupted_where_samples_are_missing() -> None:
    samples = [Sample(second, 1024, 2048, 0) for second in (0, 60, 120, 4000, 4060)]
    figure = report_data.memory_figure("rank 0 on one", samples, True)
    assert [name for name, _points in figure["series"]] == ["MemAvailable", "MemFree"], "a node without swap has no line for it"
    assert dict(figure["series"])["MemAvailable"] == [(0, 2.0), (60, 2.0), (120, 2.0), (4000, None), (4000, 2.0), (4060, 2.0)]


def test_young_agent_is_shown_by_its_last_half_hour() -> None:
    memory = {"day": "1000 1 2 3;1060 1 2 3", "recent": ";".join(f"{1000 + 5 * n} 1 2 3" for n in range(20)), "source": "agent"}
    found = part("memory", nodes={"spark-1": report_pages.node(0, memory=memory), "spark-2": {"problem": "off"}})
    assert len(dict(found["figures"][0]["series"])["MemFree"]) == 20


def test_pool_is_next_to_published_gate_and_estimate_of_the_boots_own_profile() -> None:
    figure = part("pool")["figures"][0]
    assert figure["labels"] == ["4f0c61d2 dspark-nvfp4-1m-seed", "9b1e61d2 dspark-nvfp4-1m-seed"], "the failed boot has no pool"
    assert dict(figure["series"]) == {
        "measured": [1900142, 1990142], "published by the source": [1990142] * 2, "the gate's minimum": [1890000] * 2,
    }  # fmt: skip
    receipts = report_pages.pair()["receipts"]
    receipts[0]["profile"] = "one-that-is-gone"
    assert dict(part("pool", receipts=receipts)["figures"][0]["series"])["published by the source"] == [None, 1990142]


def test_only_the_last_boot_of_a_release_counts_and_the_newest_releases() -> None:
    boots = [report_pages.boot(f"{n // 2:012x}", f"2026-10-{n // 24 + 1:02d}T{n % 24:02d}:00:00Z", 790.0, 10**6 + n, 50.0) for n in range(40)]
    figure = part("pool", receipts=boots)["figures"][0]
    assert dict(figure["series"])["measured"] == [10**6 + n for n in range(17, 40, 2)]


def test_bench_is_compared_with_the_figures_of_its_releases_profile() -> None:
    found = part("speed")
    rows = found["rows"]
    assert [row[0] for row in rows] == ["code pp512 tg256 c1: decode", *(f"chat tg256 c{streams}: aggregate" for streams in (2, 4, 6))]
    assert [rows[0][1:], rows[2][1:]] == [["53.9 tok/s", "54.2 tok/s", "-0.6 %"], ["80.0 tok/s", "83.2 tok/s", "-3.9 % worse"]]
    assert list(dict(found["figures"][0]["series"])) == ["measured"], "no published figure has the level of the gate"
    unknown = part("speed", bench={**report_pages.pair()["bench"], "release": "gone"})
    assert unknown["rows"] == []
    assert dict(unknown["figures"][1]["series"]) == {"measured": [53.9]}


def test_last_soak_of_the_last_good_release_is_a_first_figure() -> None:
    boots = [{"release": "4f0c", "passed": True}]
    soaks = [{"release": release, "hours": hours, "verdict": "passed"} for release, hours in (("other", 1.0), ("4f0c", 12.04), ("4f0c", 2.0))]
    assert ("soaked", "12.0 h, passed") in report_data.cards(boots, soaks)
    assert "soaked" not in dict(report_data.cards(boots, soaks[:1]))


def test_rank_without_a_cable_has_the_problem_with_its_remedy() -> None:
    fabric = {"rails": [], "problems": [{"message": "No mlx5 device is visible.", "remedy": "Plug the QSFP cable."}]}
    nodes = {host: report_pages.node(rank, fabric=fabric) for rank, host in enumerate(report_pages.HOSTS)}
    found = part("rails", nodes=nodes)
    assert found["figures"] == []
    assert found["text"][0] == "rank 0 on spark-1: No mlx5 device is visible. Plug the QSFP cable."


def test_verdicts_of_controller_and_nodes_are_listed_once_the_newest_first() -> None:
    nodes = report_pages.pair()["nodes"]
    nodes["spark-1"]["receipts"] = report_pages.pair()["receipts"][1:]
    rows = part("verdicts", nodes=nodes)["rows"]
    assert [row[0] for row in rows] == ["2026-11-24 10:00", "2026-11-22 10:00", "2026-11-20 10:00"]
    assert rows[1][3:5] == ["failed: kv_too_small", "10 min 10 s"]


def test_events_leave_out_progress_and_end_at_the_bound() -> None:
    found = [{"n": n, "at": "2026-11-24T10:00:00Z", "kind": "progress" if n % 2 else "step", "text": str(n)} for n in range(400)]
    rows = part("events", nodes={"spark-1": report_pages.node(0, events=found)})["rows"]
    assert [row[2] for row in rows[:3]] == ["398", "396", "394"]
    assert len(rows) == report_data.MOST_ROWS


@pytest.mark.parametrize(
    ("status", "tone"),
    [({"state": "serves", "ok": True}, "good"), ({"state": "down", "ok": False}, "bad"), ({"state": "stopped", "ok": True}, "neutral"), ({}, "neutral")],
)
def test_state_decides_the_tone(status: dict[str, Any], tone: str) -> None:
    assert report_data.plan(**{**report_pages.pair(), "status": status})["tone"] == tone


def test_node_that_is_off_is_shown_as_the_last_report_read_it(tmp_path: Path) -> None:
    first = report_data.nodes_of(HOSTS, {"spark-1": GOOD, "spark-2": GOOD}, tmp_path)
    assert [first[host]["problem"] for host in HOSTS] == ["", ""]
    assert first["spark-1"]["state"] == "its container runs, 10.0 GiB of memory available"
    later = report_data.nodes_of(HOSTS, {"spark-1": GOOD, "spark-2": LOST}, tmp_path)
    assert later["spark-2"] == {**first["spark-2"], "problem": "the node is unreachable"}
    again = report_data.nodes_of(HOSTS, {}, tmp_path)
    assert [again[host]["problem"] for host in HOSTS] == ["it is not in this run"] * 2
    assert again["spark-1"]["memory"] == RECORDS["memory"]


def test_what_is_kept_of_nodes_is_for_its_owner_and_without_secrets(tmp_path: Path) -> None:
    report_data.nodes_of(HOSTS, {"spark-1": GOOD}, tmp_path)
    path = tmp_path / report_data.CACHE
    assert path.stat().st_mode & 0o777 == 0o600
    assert "sk-0123456789abcdef0123" not in path.read_text(encoding="utf-8")


def test_run_that_reads_no_node_writes_nothing(tmp_path: Path) -> None:
    refused = {"info": {"failed": True, "msg": "sudo: a password is required.\nx"}}
    found = report_data.nodes_of(HOSTS, {"spark-1": LOST, "spark-2": refused}, tmp_path / "new")
    assert [found[host] for host in HOSTS] == [{"problem": "the node is unreachable"}, {"problem": "sudo: a password is required"}]
    assert not (tmp_path / "new").exists()


def test_rails_that_could_not_be_read_are_left_out(tmp_path: Path) -> None:
    failed = {**GOOD, "fabric": {"failed": False, "msg": "No PyYAML"}}
    assert report_data.nodes_of(["spark-1"], {"spark-1": failed}, tmp_path)["spark-1"]["fabric"] == {}


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_damaged_record_of_an_earlier_report_counts_as_missing(tmp_path: Path, text: str) -> None:
    put(tmp_path, report_data.CACHE, text)
    assert report_data.nodes_of(HOSTS, {}, tmp_path)["spark-1"] == {"problem": "it is not in this run"}


def test_receipts_are_read_by_their_name_without_damaged_ones(tmp_path: Path) -> None:
    put(tmp_path, "20261125T070000Z-4f0c-passed.json", RECEIPT)
    put(tmp_path, "last-good.json", RECEIPT)
    put(tmp_path, report_data.CACHE, {})
    for number, content in enumerate(("", "{", [])):
        put(tmp_path, f"2026112{number}-4f0c-failed.json", content)
    found = report_data.receipts_in(tmp_path)
    assert found == [{"release": "4f0c", "profile": "p", "time": "2026-11-25T07:00:00Z", "passed": True, "seconds": 50.0, "ranks": [{"rank": 0}], "models": []}]
    assert report_data.receipts_in(tmp_path / "none") == []


def test_last_readable_bench_of_the_group_counts(tmp_path: Path) -> None:
    put(tmp_path, "pair1-4f0c61d2a9be-20261124T110000Z.json", {"group": "pair1", "release": "4f0c", "rows": [ROW]})
    put(tmp_path, "pair1-9b1e61d2a9be-20261125T110000Z.json", "{")
    put(tmp_path, "pair12-4f0c61d2a9be-20261126T110000Z.json", {"rows": [ROW]})
    found = report_data.bench_in(tmp_path, "pair1")
    assert (found["at"], found["release"]) == ("2026-11-24 11:00", "4f0c")
    assert report_data.bench_in(tmp_path, "pair2") == {}
