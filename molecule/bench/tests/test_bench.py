"""On the head: both tools of the lock can be used by another user and changed by root alone. On the worker: nothing."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

import pytest

FOLDER = "/opt/gb10-bench"
LOCK = Path(__file__).parents[3] / "roles/bench/files/requirements.lock"


@pytest.fixture
def head(host: Any) -> Any:
    """The node with rank 0. The test is skipped on the other one."""
    if host.check_output("hostname") != "lab-1":
        pytest.skip("the tools are on the head")
    return host


def test_the_tools_of_the_lock_are_installed(head: Any) -> None:
    assert head.file(f"{FOLDER}/venv/installed.lock").sha256sum == hashlib.sha256(LOCK.read_bytes()).hexdigest()
    assert head.run(f"gzip -t {FOLDER}/book.txt.gz").rc == 0


def test_another_user_can_use_them(head: Any) -> None:
    probe = "import llama_benchy, tool_eval_bench"
    head.check_output(f"setpriv --reuid=65534 --regid=65534 --clear-groups env HOME=/tmp {FOLDER}/venv/bin/python -I -B -c '{probe}'")


def test_only_root_can_change_them(head: Any) -> None:
    assert head.check_output(rf"find {FOLDER} ! -type l \( ! -user root -o -perm /022 \)") == ""


def test_the_worker_has_none(host: Any) -> None:
    assert host.file(FOLDER).exists == (host.check_output("hostname") == "lab-1")
