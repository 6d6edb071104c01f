"""Framing, timestamps and states as the Docker Engine gives them."""

from __future__ import annotations

import struct

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils import container_log


def frame(stamp: str, text: bytes, stream: int = 1) -> bytes:
    body = stamp.encode() + b" " + text
    return bytes([stream, 0, 0, 0]) + struct.pack(">I", len(body)) + body


A, B, C = "2026-11-21T05:00:00.000000001Z", "2026-11-21T05:00:00.5Z", "2026-11-21T05:00:01Z"


def test_frames_of_both_streams_come_out_in_order_and_unstamped() -> None:
    raw = frame(A, b"one\n") + frame(B, b"two\n", 2)
    assert container_log.demux(raw) == (b"one\ntwo\n", container_log.stamp_to_ns(B))


def test_a_long_record_in_pieces_gets_no_stamp_in_its_middle() -> None:
    data, last = container_log.demux(frame(A, b"x" * 16384) + frame(B, b"y\n"))
    assert data == b"x" * 16384 + b"y\n"
    assert last == container_log.stamp_to_ns(B)


def test_an_unfinished_frame_is_left_for_the_next_slice() -> None:
    raw = frame(A, b"one\n") + frame(B, b"two\n")[:-2]
    assert container_log.demux(raw) == (b"one\n", container_log.stamp_to_ns(A))


def test_the_limit_holds_and_the_cursor_stays_behind() -> None:
    data, last = container_log.demux(frame(A, b"a" * 60) + frame(B, b"b" * 60) + frame(C, b"c" * 60), limit=100)
    assert data == b"a" * 60 + b"b" * 60
    assert last == container_log.stamp_to_ns(B)


def test_a_container_with_a_terminal_has_no_frames() -> None:
    raw = f"{A} one\r\n{B} two\r\n".encode()
    assert container_log.demux(raw) == (b"one\r\ntwo\r\n", container_log.stamp_to_ns(B))


def test_invalid_bytes_pass() -> None:
    assert container_log.demux(frame(A, b"\xff\xfe\n"))[0] == b"\xff\xfe\n"


def test_nothing() -> None:
    assert container_log.demux(b"") == (b"", 0)


@pytest.mark.parametrize(
    ("text", "ns"),
    [
        ("1970-01-01T00:00:01Z", 10**9), ("1970-01-01T00:00:01.5Z", 1_500_000_000), ("1970-01-01T01:00:01+01:00", 10**9),
        ("1970-01-01T00:00:00.000000007Z", 7), ("0001-01-01T00:00:00Z", -62135596800 * 10**9), ("rubbish", 0),
    ],
)  # fmt: skip
def test_stamps(text: str, ns: int) -> None:
    assert container_log.stamp_to_ns(text) == ns


def test_no_container_has_no_state() -> None:
    assert container_log.state_of(None) is None


def test_a_state_keeps_our_labels_only() -> None:
    state = container_log.state_of(
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
    assert container_log.memory_of(text, "oom_kill 3\npgfault 9\n") == {"total_kib": 100, "free_kib": 50, "available_kib": 70, "oom_kills": 3}
