"""What an agent reports outside of its group: metrics for node_exporter, and notices of events by real scripts and a real HTTP server."""

from __future__ import annotations

import http.client
import json
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import http_server
import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import outside
from ansible_collections.gb10.cluster.plugins.module_utils._pair.outside import Outside, render
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings

SAMPLE: dict[str, Any] = {"containers": [{"running": True}], "memory": {"available_kib": 1024, "total_kib": 2048}, "gpus": [], "rails": []}


def reports(tmp_path: Path, rank: int = 1, **settings: Any) -> Outside:
    return Outside({"group": "pair1", "rank": rank, "hosts": ["one", "two"]}, merged_settings(settings), str(tmp_path), dict)


def waits_for(path: Path) -> list[dict[str, Any]]:
    end = time.monotonic() + 10
    while time.monotonic() < end and not (path.exists() and path.read_text().endswith("\n")):
        time.sleep(0.05)
    return [json.loads(line) for line in path.read_text().splitlines()]


def hook_script(tmp_path: Path, text: str) -> str:
    path = tmp_path / "hook"
    path.write_text(f"#!/bin/sh\ncd {tmp_path}\n{text}\n")
    path.chmod(0o755)
    return str(path)


def script(tmp_path: Path) -> tuple[list[str], Path]:
    """A hook that appends what it reads to a file."""
    return [hook_script(tmp_path, "cat >>kept; echo >>kept")], tmp_path / "kept"


def test_a_hook_gets_faults_and_not_progress(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    found = reports(tmp_path, 0, hook=words)
    found.tell({"kind": "progress", "text": "load"})
    found.tell({"kind": "fault", "cause": "rank_dead", "text": "pair1: rank 1 on two: exited"})
    assert [(each["kind"], each["cause"], each["group"], each["host"]) for each in waits_for(kept)] == [("fault", "rank_dead", "pair1", "one")]


def test_a_hook_that_fails_is_counted_and_each_cause_is_reported_once(tmp_path: Path) -> None:
    program = hook_script(tmp_path, "exit $(( ($(wc -c) > 150) + 1 ))")
    found, warnings = reports(tmp_path, 0, hook=[program]), list[str]()
    found.warn = warnings.append
    for count, text in enumerate(("short", "short", "long" * 50), start=1):
        found.tell({"kind": "fault", "text": text})
        end = time.monotonic() + 10
        while time.monotonic() < end and found.failed.get("count") != count:
            time.sleep(0.05)
    assert (found.failed["count"], found.failed["text"]) == (3, f"The hook {program} failed: it ended with code 2.")
    assert [each.partition("failed: ")[2] for each in warnings] == [
        f"it ended with code {code}. Correct vllm_tp2_watch, or its receiver." for code in (1, 2)
    ]  # fmt: skip


def test_a_worker_reports_a_head_that_is_gone_once(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    found = reports(tmp_path, hook=words, head_seconds=45)
    now = time.monotonic()
    found.sampled(SAMPLE, -1.0)
    found.sampled(SAMPLE, now - 1)
    assert not kept.exists()
    found.sampled(SAMPLE, now - 46)
    found.sampled(SAMPLE, now - 47)
    assert [each["kind"] for each in waits_for(kept)] == ["head_lost"]
    found.sampled(SAMPLE, time.monotonic())
    time.sleep(0.5)
    assert [each["kind"] for each in waits_for(kept)] == ["head_lost", "head_back"]


def test_a_group_that_was_stopped_expects_no_head(tmp_path: Path) -> None:
    words, kept = script(tmp_path)
    (tmp_path / "stopped").write_text("2026-11-23 by admin\n")
    reports(tmp_path, hook=words, head_seconds=45).sampled(SAMPLE, time.monotonic() - 60)
    time.sleep(0.3)
    assert not kept.exists()


def test_the_metrics_are_replaced_and_a_folder_that_is_missing_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(outside, "FILE_SECONDS", 0.0)
    found = reports(tmp_path, textfile=str(tmp_path / "metrics"))
    found.sampled(SAMPLE, -1.0)
    found.sampled(SAMPLE, -1.0)
    printed = capsys.readouterr()
    assert (printed.out + printed.err).count("cannot be written") == 1
    (tmp_path / "metrics").mkdir()
    found.sampled(SAMPLE, -1.0)
    path = tmp_path / "metrics/gb10_pair1.prom"
    assert "gb10_rank_running" in path.read_text()
    assert f'gb10_memory_floor_bytes{{group="pair1",rank="1",host="two"}} {3 << 29}\n' in path.read_text(), "1.5 GiB"
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert len(list(path.parent.iterdir())) == 1


def test_the_metrics_go_to_the_folder_of_the_role_monitoring_if_it_exists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "FOLDER", str(tmp_path / "metrics"))
    monkeypatch.setattr(outside, "FILE_SECONDS", 0.0)
    found = reports(tmp_path)
    found.sampled(SAMPLE, -1.0)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "metrics").mkdir()
    found.sampled(SAMPLE, -1.0)
    assert [each.name for each in (tmp_path / "metrics").iterdir()] == ["gb10_pair1.prom"]


def test_the_errors_of_a_link_are_those_of_the_interface_and_of_its_rdma_device(tmp_path: Path) -> None:
    port = tmp_path / "rail0/device/infiniband/rocep1s0f0/ports/1"
    for name, text in (("counters/symbol_error", "7"), ("hw_counters/packet_seq_err", "2"), ("counters/port_xmit_data", "9"), ("counters/link_downed", "?")):
        (port / name).parent.mkdir(parents=True, exist_ok=True)
        (port / name).write_text(f"{text}\n")
    (tmp_path / "rail0/carrier_down_count").write_text("3\n")
    assert outside.rail_errors("rail0", str(tmp_path)) == {"carrier_down_count": 3, "symbol_error": 7, "packet_seq_err": 2}
    assert outside.rail_errors("", str(tmp_path)) == outside.rail_errors("other", str(tmp_path)) == {}


# --- Notices of events: real scripts and a real HTTP server.

EVENT = {"kind": "fault", "cause": "wedge", "group": "pair1", "text": 'spark-2 waits; $(touch /tmp/x) "two"\nlines', "rank": 1, "at": "2026-11-23T17:00:00Z"}


def run_hook(words: list[str], event: dict[str, Any] | None = None) -> list[str]:
    return outside.notify({"hook": words, "webhook": ""}, event or EVENT)


def test_the_hook_gets_the_event_on_stdin_and_in_its_environment(tmp_path: Path) -> None:
    program = hook_script(tmp_path, 'cat >event.json\nprintf %s "$GB10_KIND|$GB10_CAUSE|$GB10_GROUP|$GB10_TEXT|$1" >words')
    assert run_hook([program, "$(id) a b"]) == []
    assert json.loads((tmp_path / "event.json").read_text()) == EVENT
    assert (tmp_path / "words").read_text() == f"fault|wedge|pair1|{EVENT['text']}|$(id) a b"


def test_the_failure_of_a_hook_is_a_sentence_without_its_arguments(tmp_path: Path) -> None:
    assert run_hook([str(tmp_path / "missing"), "--key=k9"]) == [f"The hook {tmp_path}/missing failed: {tmp_path}/missing: No such file or directory."]
    program = hook_script(tmp_path, "exit 1")
    assert run_hook([program, "--key=k9"]) == [f"The hook {program} failed: it ended with code 1."]
    (tmp_path / "hook").chmod(0o644)
    assert run_hook([program]) == [f"The hook {program} failed: {program}: Permission denied."]


def test_a_slow_hook_is_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outside, "HOOK_SECONDS", 0.2)
    program = hook_script(tmp_path, "sleep 60")
    assert run_hook([program, "--key=k9"]) == [f"The hook {program} failed: it did not end within 0.2 s."]


class Handler(http_server.Handler):
    status = 204
    location = ""
    delay = 0.0
    seen: list[tuple[str, str, str, bytes]]
    tokens: list[str | None]

    def post(self) -> None:  # also a GET: a followed redirect would arrive as one
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.seen.append((self.command, self.path, self.headers["Content-Type"], body))
        self.tokens.append(self.headers["Authorization"])
        time.sleep(self.delay)
        self.answer(self.status, **{"Content-Length": "0"}, **({"Location": self.location} if self.location else {}))


def serve() -> Iterator[tuple[type[Handler], str]]:
    with http_server.answering(Handler, seen=[], tokens=[]) as found:
        yield found


server = pytest.fixture(serve, name="server")
other = pytest.fixture(serve, name="other")


def post(url: str) -> list[str]:
    return outside.notify({"hook": "", "webhook": url}, EVENT)


def test_the_webhook_gets_the_event_as_json(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    assert post(f"{url}/services/T0K3N?key=k9") == []
    ((method, path, form, body),) = kind.seen
    assert (method, path, form) == ("POST", "/services/T0K3N?key=k9", "application/json")
    assert json.loads(body) == EVENT


def test_a_user_in_the_url_is_sent_as_a_bearer_token(server: tuple[type[Handler], str]) -> None:
    kind, url = server
    assert post(url.replace("//", "//T0%2FK3N@") + "/endpoint") == []
    assert (kind.seen[0][1], kind.tokens) == ("/endpoint", ["Bearer T0/K3N"])


def test_a_redirect_is_not_followed(server: tuple[type[Handler], str], other: tuple[type[Handler], str]) -> None:
    for status in (302, 307):
        server[0].status, server[0].location = status, f"{other[1]}/elsewhere"
        assert post(f"{server[1]}/T0K3N") == [f"The webhook at {server[1]} failed: HTTP {status}."]
    assert other[0].seen == []


def test_a_slow_webhook_does_not_hold_the_agent(server: tuple[type[Handler], str], monkeypatch: pytest.MonkeyPatch) -> None:
    kind, url = server
    kind.delay = 2
    monkeypatch.setattr(outside, "WEBHOOK_SECONDS", 0.3)
    assert post(f"{url}/T0K3N") == [f"The webhook at {url} failed: it did not answer within 0.3 s."]


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        ("file:///etc/passwd", "The webhook is not an http or https URL."),
        ("ftp://u:T0K3N@hooks.example/x", "The webhook is not an http or https URL."),
        ("/services/T0K3N", "The webhook is not an http or https URL."),
        ("http://[::1/T0K3N", "The webhook is not a valid URL."),
        ("http://hooks.example:T0K3N/", "The webhook is not a valid URL."),
    ],
)
def test_a_url_that_is_not_one_of_a_webhook_is_refused(url: str, sentence: str) -> None:
    assert post(url) == [sentence]


@pytest.mark.parametrize("error", [http.client.InvalidURL("nonnumeric port: 'T0K3N'"), ValueError("T0K3N"), http.client.BadStatusLine("T0K3N")])
def test_the_message_of_a_library_does_not_show_the_url(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def raising(url: str, body: bytes) -> int:
        raise error

    monkeypatch.setattr(outside, "post_json", raising)
    (sentence,) = post("https://user:T0K3N@hooks.example/T0K3N")
    assert sentence == f"The webhook at https://hooks.example failed: {type(error).__name__}."


WATCH: dict[str, Any] = {
    "state": "serving", "fault": {}, "missing": [], "restarts": {"rank_dead": 2, "wedge": 1}, "unserved_seconds": 412.25, "canary_tok_s": 24.5,
    "serving_since": "2026-11-23T16:00:00Z", "last": {},
}  # fmt: skip
NODE: dict[str, Any] = {
    "containers": [{"running": False}, {"running": True}],
    "memory": {"available_kib": 11534337, "total_kib": 125829120, "swap_total_kib": 16777216, "swap_free_kib": 15728640},
    "gpus": [[45.5, 96.0, 2418.0, 3003.0, 71.0], [None, 0.0]],
    "rails": [
        {"interface": "enp1s0f0np0", "up": True, "mtu": 9000, "errors": {"symbol_error": 7}}, {"interface": "enP2p1s0f0np0", "up": False, "mtu": None},
    ],
}  # fmt: skip


RANK = 'group="pair1",rank="0",host="spark-1"'


def samples(text: str) -> list[str]:
    return [line for line in text.splitlines() if not line.startswith("#")]


def test_the_head_writes_the_metrics_of_group_and_rank() -> None:
    text = render("pair1", 0, "spark-1", WATCH, NODE)
    assert [line for line in samples(text) if not line.endswith('"} 0') or "restarts" not in line] == [
        'gb10_group_serving{group="pair1"} 1',
        'gb10_restarts_total{group="pair1",cause="rank_dead"} 2',
        'gb10_restarts_total{group="pair1",cause="wedge"} 1',
        'gb10_unserved_seconds_total{group="pair1"} 412.25',
        'gb10_canary_tokens_per_second{group="pair1"} 24.5',
        f"gb10_rank_running{{{RANK}}} 1",
        f"gb10_memory_available_bytes{{{RANK}}} {11534337 * 1024}",
        f"gb10_swap_used_bytes{{{RANK}}} 1073741824",
        f'gb10_gpu_power_watts{{{RANK},gpu="0"}} 45.5',
        f'gb10_gpu_utilization_ratio{{{RANK},gpu="0"}} 0.96',
        f'gb10_gpu_utilization_ratio{{{RANK},gpu="1"}} 0',
        f'gb10_gpu_clock_hertz{{{RANK},gpu="0"}} 2418000000',
        f'gb10_gpu_clock_max_hertz{{{RANK},gpu="0"}} 3003000000',
        f'gb10_gpu_temperature_celsius{{{RANK},gpu="0"}} 71',
        f'gb10_rail_up{{{RANK},interface="enp1s0f0np0"}} 1',
        f'gb10_rail_up{{{RANK},interface="enP2p1s0f0np0"}} 0',
        f'gb10_rail_mtu_bytes{{{RANK},interface="enp1s0f0np0"}} 9000',
        f'gb10_rail_errors_total{{{RANK},interface="enp1s0f0np0",counter="symbol_error"}} 7',
    ]
    assert text.count("# HELP ") == text.count("# TYPE ") == 15, "once for each metric that has a value"
    assert "\n# TYPE gb10_restarts_total counter\ngb10_restarts_total{" in text


@pytest.mark.parametrize("state", ["off", "fault", "waiting", "recovering"])
def test_a_group_that_does_not_serve_is_zero(state: str) -> None:
    text = render("pair1", 0, "spark-1", {**WATCH, "state": state, "restarts": {}}, NODE)
    assert samples(text)[0] == 'gb10_group_serving{group="pair1"} 0'
    assert 'gb10_restarts_total{group="pair1",cause="rank_dead"} 0' in text, "Prometheus sees the first restart as growth"


def test_rails_whose_interfaces_are_not_known_are_two_series() -> None:
    """node_exporter drops a whole file in which two lines are one series."""
    rails = [{"interface": "", "address": f"192.168.20{rail}.11", "up": False, "mtu": 0} for rail in (0, 1)]
    lines = samples(render("pair1", 0, "spark-1", WATCH, {"rails": rails}))
    assert len([line for line in lines if line.startswith("gb10_rail_up")]) == 2
    assert len(lines) == len({line.rpartition(" ")[0] for line in lines})


def test_a_worker_writes_no_metric_of_the_group() -> None:
    text = render("pair1", 1, "spark-2", {}, {**NODE, "containers": []})
    assert samples(text)[0] == 'gb10_rank_running{group="pair1",rank="1",host="spark-2"} 0'
    assert "gb10_unserved_seconds_total" not in text


def test_what_is_not_known_is_left_out() -> None:
    assert render("pair1", 1, "spark-2", {}, {}) == ""
    assert samples(render("pair1", 0, "spark-1", {}, {"memory": {"available_kib": 1}})) == [f"gb10_memory_available_bytes{{{RANK}}} 1024"]


def test_label_values_are_escaped() -> None:
    text = render('a"} 1\\n\n', 0, "spark-1", WATCH, {})
    assert samples(text)[0] == r'gb10_group_serving{group="a\"} 1\\n\n"} 1'
