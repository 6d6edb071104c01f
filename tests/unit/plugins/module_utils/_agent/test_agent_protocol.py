"""The wire format: lines, replies, versions."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._agent import protocol
from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import RankError


@pytest.mark.parametrize("message", [{}, {"verb": "hello", "v": 1}, {"text": "two\nlines\r\u2028 and 中"}, {"nested": {"list": [1, None, 2.5]}}])
def test_decodes_what_it_encodes_as_one_line(message: dict[str, object]) -> None:
    line = protocol.encode(message)
    assert line.endswith(b"\n")
    assert line.count(b"\n") == 1
    assert protocol.decode(line) == message


@pytest.mark.parametrize("line", [b"", b"\n", b"[]\n", b"1\n", b"{\n", b"\xff\xfe\n", b"[" * 100_000])
def test_refuses_lines_that_are_not_objects(line: bytes) -> None:
    with pytest.raises(RankError, match="A message is not"):
        protocol.decode(line)


def test_refuses_to_encode_more_than_the_limit() -> None:
    with pytest.raises(RankError, match="longer than the limit"):
        protocol.encode({"text": "x" * protocol.MAX_LINE})


@pytest.mark.parametrize(("kind", "expected"), [("refused", "refused"), ("unknown", "unknown"), ("failed", "failed"), ("other", "failed"), (None, "failed")])
def test_raises_the_error_of_a_reply_with_its_kind(kind: str | None, expected: str) -> None:
    with pytest.raises(RankError, match=r"^No\.$") as raised:
        protocol.reply_of({"ok": False, "error": "No.", "kind": kind})
    assert raised.value.kind == expected


@pytest.mark.parametrize("message", [{}, {"ok": True}, {"ok": True, "result": []}, {"result": {}}, {"ok": 1, "result": {}}])
def test_refuses_replies_without_a_result(message: dict[str, object]) -> None:
    with pytest.raises(RankError, match="has no result"):
        protocol.reply_of(message)
