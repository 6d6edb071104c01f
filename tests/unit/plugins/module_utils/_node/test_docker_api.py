"""The negotiated API version, and what the client reports of an engine that it cannot use."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError, LogReader, LogRecord, log_records, log_text, stamp_to_ns
from unit.fixtures.docker.engine import VERSIONS, Handler, frame, serving


@pytest.mark.parametrize("version", list(VERSIONS))
def test_uses_the_highest_version_that_both_support(version: str) -> None:
    assert docker_api.choose_api(VERSIONS[version]["reply"]) == VERSIONS[version]["path"]


def test_an_engine_that_needs_a_newer_client_names_its_versions(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with serving(path) as engine:
        engine.version = {"Version": "99.0", "ApiVersion": "1.60", "MinAPIVersion": "1.53"}
        with pytest.raises(DockerError, match=r"HTTP 400 .*client version is too old"):
            docker_api.inspect("rank0", str(path))


@pytest.mark.parametrize("version", list(VERSIONS))
def test_reads_from_each_engine_and_asks_for_the_version_once(tmp_path: Path, version: str) -> None:
    path = tmp_path / "docker.sock"
    with serving(path, version) as engine:
        engine.containers["rank0"] = {"Id": "c1"}
        assert docker_api.inspect("rank0", str(path)) == {"Id": "c1"}
        assert docker_api.inspect("rank1", str(path)) is None
        assert docker_api.list_containers(["a=b"], str(path)) == [{"Id": "c1"}]
    assert engine.asked.count("/version") == 1


def test_negotiates_again_after_the_engine_was_replaced(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with serving(path, "29.0") as engine:
        assert docker_api.inspect("rank0", str(path)) is None
        engine.version = VERSIONS["20.10"]["reply"]
        with pytest.raises(DockerError, match="HTTP 400"):
            docker_api.inspect("rank0", str(path))
        assert docker_api.inspect("rank0", str(path)) is None


def test_an_engine_that_does_not_run_differs_from_one_without_access_and_one_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in (tmp_path / "absent.sock", tmp_path / "dead.sock"):
        if path.name == "dead.sock":
            with socket.socket(socket.AF_UNIX) as dead:
                dead.bind(str(path))
        with pytest.raises(DockerError, match=r"^The Docker Engine is not running: .* Run site.yml with --tags docker, or `systemctl start docker`\.$"):
            docker_api.get("/info", socket_path=str(path))
    assert "Run with become" in str(docker_api.silence(PermissionError(13, "denied"), "/s"))
    monkeypatch.setattr(docker_api, "TIMEOUT", 0.1)
    with socket.socket(socket.AF_UNIX) as hangs:
        hangs.bind(str(tmp_path / "hangs.sock"))
        hangs.listen()
        with pytest.raises(DockerError, match=r"does not answer on .*no reply within .*journalctl -u docker"):
            docker_api.get("/info", socket_path=str(tmp_path / "hangs.sock"))


def test_a_reply_that_is_not_json_is_one_sentence(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "docker.sock"
    with serving(path):
        monkeypatch.setattr(docker_api, "get", lambda *_arguments: b"<html>")
        for call in (lambda: docker_api.inspect("rank0", str(path)), lambda: docker_api.list_containers(["a=b"], str(path))):
            with pytest.raises(DockerError, match="does not answer as a Docker Engine does"):
                call()


def test_the_end_of_a_log(tmp_path: Path) -> None:
    path = tmp_path / "docker.sock"
    with serving(path) as engine:
        engine.logs["c1"] = [("2026-11-21T05:00:00Z", b"%d\n" % number, 1) for number in range(100)]
        assert docker_api.log_text(docker_api.logs("c1", socket_path=str(path), tail=2), 1 << 20) == (b"98\n99\n", False)
        assert docker_api.log_text(docker_api.logs("c1", socket_path=str(path)), 6) == (b"98\n99\n", True)


def test_the_engines_own_message_is_passed_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def reply(self: Handler) -> None:
        full = "images" in self.path
        self.reply(500 if full else 200, b'{"message": "no space left on device"}' if full else b'{"ApiVersion": "1.45"}')

    monkeypatch.setattr(Handler, "do_GET", reply)
    with (
        serving(tmp_path / "docker.sock"),
        pytest.raises(DockerError, match=r"answers HTTP 500 to /v1\.45/images/json: no space left on device") as error,
    ):
        docker_api.get("/images/json", socket_path=str(tmp_path / "docker.sock"))
    assert error.value.status == 500


# --- Framing, timestamps and states as the Docker Engine gives them, and a log that grows.

A, B, C = "2026-11-21T05:00:00.000000001Z", "2026-11-21T05:00:00.5Z", "2026-11-21T05:00:01Z"
PART = 16384
Entry = tuple[str, bytes]


def test_frames_of_both_streams_come_out_in_order_and_unstamped() -> None:
    raw = frame(A, b"one\n") + frame(B, b"two\n", 2)
    assert list(log_records([raw])) == [LogRecord(stamp_to_ns(A), b"one\n"), LogRecord(stamp_to_ns(B), b"two\n")]


def test_pieces_of_any_size_give_the_same_records() -> None:
    raw = frame(A, b"x" * PART) + frame(A, b"\xff\xfe\n", 2) + frame(B, b"\n")
    assert list(log_records(raw[start : start + 7] for start in range(0, len(raw), 7))) == list(log_records([raw]))


def test_an_unfinished_frame_is_not_a_record() -> None:
    assert list(log_records([frame(A, b"one\n") + frame(B, b"two\n")[:-2]])) == [LogRecord(stamp_to_ns(A), b"one\n")]
    assert list(log_records([frame(A, b"one\n")[:5]])) == []
    assert list(log_records([])) == []


def stamp(ns: int) -> str:
    return f"2026-11-21T05:{ns // 60 // 10**9:02d}:{ns // 10**9 % 60:02d}.{ns % 10**9:09d}Z"


def follow(entries: list[Entry], limit: int, each: bool, steps: int = 1) -> bytes:
    """Read a log that grows by `steps` records between two reads, with a new reader each time, from an engine that filters by time."""
    out, cursor, visible = b"", "", 0
    while True:
        visible = min(visible + steps, len(entries))
        reader = LogReader(cursor, stamp_to_ns(stamp(0)))
        new = [stamp_to_ns(time) >= reader.since for time, _text in entries[:visible]]
        sent = [entry for entry, kept in zip(entries, new) if kept] if each else entries[new.index(True) : visible] if True in new else []
        data = reader.read([b"".join(frame(*entry) for entry in sent)], limit)
        out, cursor = out + data, reader.cursor
        if visible == len(entries) and not data:
            return out


@pytest.mark.parametrize("each", [True, False], ids=["engine 20.10", "engine 26"])
@pytest.mark.parametrize("limit", [1, PART, 1 << 20])
def test_a_line_in_parts_with_one_timestamp_is_read_whole(limit: int, each: bool) -> None:
    entries = [(stamp(1), b"first\n"), *[(stamp(2), b"x" * PART)] * 4, (stamp(2), b"end\n"), (stamp(10**10), b"last\n")]
    assert follow(entries, limit, each) == b"".join(text for _time, text in entries)


@pytest.mark.parametrize("each", [True, False], ids=["engine 20.10", "engine 26"])
@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_skipped_or_repeated(seed: int, each: bool) -> None:
    source, now, entries = random.Random(seed), 10**9 * 5, list[Entry]()
    for number in range(70):  # half a minute: ten times as long as the records that are read again
        now += source.choice([0, 0, 1, 10**6, 10**8, 3 * 10**9])
        entries.append((stamp(now - source.choice([0, 0, 0, 10**6, 10**9])), b"%d\n" % number))
    assert follow(entries, source.choice([1, 10, 1 << 20]), each, source.choice([1, 3, 50])) == b"".join(text for _time, text in entries)


def test_the_position_moves_on_so_that_little_is_read_again() -> None:
    reader = LogReader("", stamp_to_ns(stamp(0)))
    reader.read([b"".join(frame(stamp(second * 10**9), b"x\n") for second in range(100))], 1 << 20)
    assert (reader.since, reader.count) == (stamp_to_ns(stamp(97 * 10**9)), 3)


@pytest.mark.parametrize("cursor", ["", 0, "0", "5:3"])
def test_an_empty_cursor_and_one_of_an_earlier_start_begin_at_the_containers_start(cursor: object) -> None:
    reader = LogReader(cursor, stamp_to_ns(A))
    assert reader.read([frame(B, b"new\n")], 100) == b"new\n"
    assert LogReader(reader.cursor).read([frame(B, b"new\n"), frame(B, b"more\n")], 100) == b"more\n"


def test_the_limit_holds_after_the_record_that_reaches_it() -> None:
    reader = LogReader("", 0)
    raw = [frame(A, b"a" * 60), frame(B, b"b" * 60), frame(C, b"c" * 60)]
    assert reader.read(raw, 100) == b"a" * 60 + b"b" * 60
    assert reader.read(raw, 0) == b""
    assert reader.read(raw, 100) == b"c" * 60


@pytest.mark.parametrize(("limit", "kept"), [(1 << 20, (b"one\ntwo\n", False)), (6, (b"e\ntwo\n", True)), (4, (b"two\n", True)), (1, (b"\n", True))])
def test_the_end_of_a_log_fits_a_limit(limit: int, kept: tuple[bytes, bool]) -> None:
    assert log_text([frame(A, b"one\n"), frame(B, b"two\n")], limit) == kept


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9), ("1970-01-01T00:00:01.5Z", 1_500_000_000),
        ("1970-01-01T00:00:00.000000007Z", 7), ("0001-01-01T00:00:00Z", -62135596800 * 10**9), ("rubbish", 0),
    ],
)  # fmt: skip
def test_stamps(text: str, ns: int) -> None:
    assert docker_api.stamp_to_ns(text) == ns


def test_stamps_of_fixed_width_sort_as_times_do() -> None:
    times = [0, 1, 10**9 - 1, 10**9, 1_790_000_000 * 10**9 + 5]
    assert [stamp_to_ns(docker_api.ns_to_stamp(ns)) for ns in times] == times
    assert sorted(map(docker_api.ns_to_stamp, times)) == [docker_api.ns_to_stamp(ns) for ns in times]


def test_lines_with_stamps_have_one_each_and_count_them_in_the_limit() -> None:
    first, second = docker_api.ns_to_stamp(1), docker_api.ns_to_stamp(2)
    pieces = [frame(first, b"a long "), frame(first, b"line\n"), frame(second, b"next\n")]
    assert LogReader().read(pieces, 1000, stamps=True).decode() == f"{first} a long line\n{second} next\n"
    assert LogReader().read(pieces, 40, stamps=True).decode() == f"{first} a long line\n"


def test_a_state_keeps_our_labels_only() -> None:
    assert docker_api.state_of(None) is None
    state = docker_api.state_of(
        {
            "Id": "abc", "Name": "/x", "RestartCount": 2, "Image": "sha256:1",
            "State": {"Status": "exited", "Running": False, "ExitCode": 137, "OOMKilled": True},
            "Config": {"Image": "img", "Labels": {"gb10.cluster.rank": "1", "other": "2"}},
        }
    )  # fmt: skip
    assert state is not None
    assert (state["name"], state["exit_code"], state["oom_killed"], state["restart_count"]) == ("x", 137, True, 2)
    assert state["labels"] == {"gb10.cluster.rank": "1"}


def test_memory() -> None:
    text = "MemTotal:  100 kB\nMemFree: 50 kB\nMemAvailable: 70 kB\nHugePages_Total: 0\n"
    assert docker_api.memory_of(text, "oom_kill 3\npgfault 9\n") == {"total_kib": 100, "free_kib": 50, "available_kib": 70, "oom_kills": 3}
