"""A failed result as a few lines: verdict, evidence, remedy."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils import fault_text

REFUSED = "Failed to connect to the host via ssh: nvidia@10.77.0.12: Permission denied (publickey,password)."


@pytest.mark.parametrize(
    ("values", "login"),
    [
        ({"ansible_host": "10.77.0.12", "ansible_user": "nvidia"}, "nvidia@10.77.0.12"),
        ({}, "spark-2"),
        ({"ansible_host": "{{ address }}", "ansible_port": "{{ port }}"}, "spark-2"),
        ({"ansible_port": None}, "spark-2"),
    ],
)
def test_an_unreachable_host_has_its_cause_and_a_command_with_its_plain_variables_or_its_name(values: dict[str, Any], login: str) -> None:
    lines = fault_text.unreachable({"msg": f"Task failed: {REFUSED}"}, "spark-2", values)
    assert lines[0].startswith("it does not accept this user with an SSH key of this computer (")
    assert lines[1].startswith(f"Remedy: install the key with `ssh-copy-id {login}`")
    assert lines[2] == f"    ssh-copy-id {login}"


def test_the_cause_that_an_action_has_found_is_kept() -> None:
    result = {"unreachable": True, "msg": "spark-2: a. B.", "found": "its disk is full", "remedy": "run `df -h /`"}
    assert fault_text.unreachable(result, "spark-2", {}) == ["its disk is full.", "Remedy: run `df -h /`.", "    df -h /"]


def test_an_unknown_reason_is_the_last_line_without_the_words_of_ansible() -> None:
    assert fault_text.unreachable({"msg": "Task failed: Failed to connect to the host via ssh: \nodd thing"}, "spark-2", {}) == ["odd thing"]
    assert fault_text.unreachable({}, "spark-2", {}) == ["no reason given"]


def test_a_sentence_is_divided_into_verdict_evidence_and_remedy() -> None:
    served = "Release 0b8e719d1f28, the last good one, serves again, after 20 s without service."
    text = f"pair1: rank 1 on spark-2: it fails (line 41). Remedy: run `gb10 why` and `x`. {served} Evidence: evidence/pair1-4f0c."
    assert fault_text.failure("Judge", {"msg": text}) == [
        "pair1: rank 1 on spark-2: it fails (line 41).", served, "Evidence: evidence/pair1-4f0c.", "Remedy: run `gb10 why` and `x`.", "    gb10 why",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("result", "lines"),
    [
        ({"msg": "A sentence."}, ["A sentence."]),
        ({"msg": "words"}, ["Try: words"]),
        ({"msg": ["First.", "second"]}, ["First.", "second"]),
        ({"msg": "Task failed: Action failed: A sentence."}, ["A sentence."]),
        (
            {
                "msg": "Task failed: Finalization of task args for 'gb10.cluster.show' failed: Error while resolving value for 'data': "
                "The lookup plugin 'gb10.cluster.profile' failed: gb10_profile: 'x' is not a known profile"
            },
            ["Try: gb10_profile: 'x' is not a known profile"],
        ),
        ({"msg": "Task failed: The lookup plugin 'env' failed: A sentence."}, ["The lookup plugin 'env' failed: A sentence."]),
        ({}, ["Try: failed without a message; -v prints the result."]),
        ({"msg": "secret", "_ansible_no_log": True}, ["Try: failed; its output is hidden (no_log)."]),
        ({"msg": "Task failed: Module failed: boom"}, ["Try: boom.", "Run again with -vvv for the traceback."]),
        ({"msg": "m", "cmd": ["a", "b\x1b"], "rc": 2, "stderr": "1\n2\n3\n4\n5"}, ["Try: exit code 2", "    a b\\x1b", "2", "3", "4", "5"]),
        ({"msg": "One or more items failed", "results": [{"msg": "A."}, {"msg": "B.", "exception": "t"}, {"msg": "B.", "failed": True}]}, ["B."]),
    ],
)
def test_a_failure_is_described(result: dict[str, Any], lines: list[str]) -> None:
    assert fault_text.failure("Try", result) == lines


def test_a_fault_has_at_most_eight_lines_and_a_list_of_several_160() -> None:
    long = [f"line {number}" for number in range(20)]
    assert fault_text.shortened(long) == [*long[:7], "... 13 more lines; -v prints them"]
    assert fault_text.shortened(long[:8]) == long[:8]
    many = [f"{number}. fault" for number in range(1, 161)]
    assert fault_text.shortened(many) == many
    assert fault_text.shortened([*many, "more"])[158:] == ["159. fault", "... 2 more lines; -v prints them"]


def test_an_unreachable_host_of_a_loop_has_the_reason_of_its_item() -> None:
    item = {"unreachable": True, "msg": "Failed to connect to the host via ssh: ssh: connect to host 10.0.0.9 port 22: Connection refused"}
    lines = fault_text.unreachable({"msg": "All items completed", "results": [{"changed": False}, item]}, "h1", {})
    assert "refused" in lines[0]
