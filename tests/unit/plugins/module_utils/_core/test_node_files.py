"""Reading JSON files of a node, and changes that are applied or refused."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, HostError, Node


@pytest.mark.parametrize(("text", "expected"), [(None, {}), ("", {}), ("{", {}), ("[1]", {}), ('{"a": 1}', {"a": 1})])
def test_mapping_is_the_json_object_of_a_file_or_empty(tmp_path: Path, text: str | None, expected: dict[str, int]) -> None:
    if text is not None:
        (tmp_path / "file").write_text(text)
    assert Node(str(tmp_path)).mapping("/file") == expected


def test_a_value_that_the_kernel_refuses_is_named_with_its_file(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"refuses 5 for sda .* on /sys/sda/ra"):
        Editor(Node(str(tmp_path)), False).write_live("live", {"sda": "5"}, {"sda": "4"}, lambda name: f"/sys/{name}/ra")


def test_a_failed_command_is_an_error_and_check_mode_runs_none() -> None:
    Editor(Node(), True).command("false")
    with pytest.raises(HostError, match=r"false failed \(rc 127: "):
        Editor(Node(), False).command("false")
