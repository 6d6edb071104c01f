"""Text from nodes and logs cannot control the terminal that shows it (M3)."""

from __future__ import annotations

import io
import sys

import pytest
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.action import node
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._pair import commands
from hostile import harmless

SEQUENCES = {
    "full reset": "\x1bc", "DCS": "\x1bP1;1|x\x1b\\", "PM": "\x1b^x\x1b\\", "character set": "\x1b%@", "alignment": "\x1b#8", "C1 CSI": "\x9b2J",
    "C1 OSC": "\x9d0;x\x07",
    "CSI": "\x1b[2J", "OSC": "\x1b]0;title\x07", "clipboard": "\x1b]52;c;eA==\x07", "BEL": "\x07", "BS": "\x08", "VT": "\x0b", "FF": "\x0c", "DEL": "\x7f",
    "NUL": "\x00",
    "CR": "\r", "override": "\u202e", "isolate": "\u2066", "mark": "\u200f", "single shift": "\x8e",
    "line separator": "\u2028", "paragraph separator": "\u2029", "half of a pair": "\ud800", "half a sequence": "\x1b",
}  # fmt: skip


@pytest.mark.parametrize("name", SEQUENCES)
def test_no_sequence_is_left(name: str) -> None:
    text = f"before {SEQUENCES[name]} after\tä\nnext"
    for shown in (printable(text), redact(text)):
        assert harmless(shown)
        assert shown.startswith("before ")
        assert shown.endswith("after\tä\nnext")


@pytest.mark.parametrize("name", SEQUENCES)
def test_the_line_of_a_verdict_has_none(name: str) -> None:
    log = BootLog()
    log.feed(
        f"(EngineCore pid=1) ERROR 08-15 12:00:00 [core.py:1] torch.OutOfMemoryError: CUDA out of memory. {SEQUENCES[name]} x\n".encode("utf-8", "replace")
    )
    failure = log.facts(final=True)["failure"]
    assert failure["class"] == "cuda_oom"
    assert harmless(failure["line"])


def test_the_command_prints_none(monkeypatch: pytest.MonkeyPatch) -> None:
    out = io.StringIO()
    monkeypatch.setattr(sys, "stdout", out)
    monkeypatch.setattr(sys, "stderr", out)
    commands.show("a\x1b[2Jb")
    commands.complain("c\x07d")
    assert out.getvalue() == "a\\x1b[2Jb\nc\\x07d\n"


def test_the_result_of_a_module_has_none_at_any_depth(monkeypatch: pytest.MonkeyPatch) -> None:
    found = {"msg": "a\x1b[2Jb", "report": {"lines": ["c\x07d", 5, None], "e\x9b": ("f\u202e",)}}
    monkeypatch.setattr(ActionBase, "_execute_module", lambda *_arguments, **_options: found)
    shown = node.ActionModule.__new__(node.ActionModule)._execute_module()
    assert shown == {"msg": "a\\x1b[2Jb", "report": {"lines": ["c\\x07d", 5, None], "e\\x9b": ("f\\u202e",)}}
