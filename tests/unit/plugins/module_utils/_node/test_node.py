"""The engine's processes of a container."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._node import node


def table(*rows: tuple[int, int, str, str, str]) -> list[node.Process]:
    out = []
    for pid, parent, state, comm, command in rows:
        found = node.process_of(pid, f"{pid} ({comm}) {state} {parent} 1 1 0 -1 4194560")
        assert found is not None
        out.append(found._replace(command=command))
    return out


SHIM = (10, 1, "S", "containerd-shim", "containerd-shim")
HEAD = [
    SHIM, (100, 10, "S", "vllm", "/usr/bin/python3 /usr/local/bin/vllm serve m"), (101, 100, "S", "VLLM::EngineCor", "VLLM::EngineCore"),
    (102, 101, "S", "VLLM::Worker_TP", "VLLM::Worker_TP0"), (103, 100, "S", "python3", "python3 -c from multiprocessing.resource_tracker import main"),
]  # fmt: skip


def changed(pid: int, state: str) -> list[node.Process]:
    return table(*[(row[0], row[1], state, row[3], "" if state == "Z" else row[4]) if row[0] == pid else row for row in HEAD])


def test_reads_a_name_with_parentheses_and_blanks() -> None:
    found = node.process_of(7, "7 (a) b (c) T 3 7 7 0")
    assert found is not None
    assert (found.parent, found.state, found.comm) == (3, "T", "a) b (c")
    assert node.process_of(7, "") is None


def test_finds_the_descendants_of_a_container_only() -> None:
    assert [each.pid for each in node.process_tree(table(*HEAD, (200, 10, "T", "sh", "sh")), 100)] == [100, 101, 103, 102]
    assert node.process_tree(table(*HEAD), 999) == []


@pytest.mark.parametrize(
    ("pid", "state", "judged", "expected"),
    [
        (0, "", True, ""),
        (102, "T", False, "the engine process is stopped (PID 102, VLLM::Worker_TP0)"),
        (102, "t", False, "the engine process is stopped (PID 102, VLLM::Worker_TP0)"),
        (100, "T", False, "the engine process is stopped (PID 100, vllm)"),
        (101, "Z", False, "the engine process is dead (PID 101, VLLM::EngineCor)"),
        (103, "T", True, ""),
        (103, "Z", True, ""),
    ],
)
def test_names_the_process_that_is_stopped_or_dead(pid: int, state: str, judged: bool, expected: str) -> None:
    assert node.engine_fault(node.process_tree(changed(pid, state), 100), judged) == expected


def test_names_a_parent_whose_engine_is_gone_only_after_its_gate() -> None:
    alone = node.process_tree(table(SHIM, HEAD[1], HEAD[4]), 100)
    assert node.engine_fault(alone, judged=False) == ""
    assert node.engine_fault(alone, judged=True) == "the engine process is gone, and only its parent runs (PID 100, vllm)"
    ray = node.process_tree(table(SHIM, (100, 10, "S", "ray", "ray start --block"), (101, 100, "S", "raylet", "raylet")), 100)
    assert node.engine_fault(ray, judged=True) == "", "a worker of Ray has no process of vLLM"
