"""The one kind of finding: its texts, and equal ones of several hosts."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import finding
from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding

FOUND = Finding("cable", "fabric", "error", ("one",), "no port has a link", "the ranks have no rail", "connect the cable", "ssh one ip link")


@pytest.mark.parametrize(
    ("found", "shown"),
    [
        ("the kernel differs", "The kernel differs"),
        ("enp1s0f0np0 has no link", "enp1s0f0np0 has no link"),
        ("/run/x is there", "/run/x is there"),
        ("gb10-pair1 runs", "gb10-pair1 runs"),
    ],
)
def test_a_line_begins_as_a_sentence_and_keeps_names(found: str, shown: str) -> None:
    text = FOUND._replace(found=found, hosts=("a", "b")).line()
    assert text == f"error cable (a, b): {shown}. Why it matters: the ranks have no rail. Remedy: connect the cable."


def test_a_block_has_a_line_for_each_text_and_bounds_it() -> None:
    assert FOUND._replace(why="").block() == ["error cable (one): no port has a link", "    do:  connect the cable", "    run: ssh one ip link"]
    assert len(FOUND._replace(found="x " * 900).title()) < 450


# --- Why no module runs on a node: the texts of Ansible, sudo, the shell and Python to a cause.

TEXTS = {
    "Missing sudo password": finding.SUDO,
    "Task failed: Missing sudo password": finding.SUDO,
    "sudo: a password is required": finding.SUDO,
    "Timeout (12s) waiting for privilege escalation prompt: ": finding.PROMPT,  # also a connection that is lost meanwhile
    "Timeout (12s) waiting for privilege escalation prompt: sudo: a password is required": finding.SUDO,
    "Incorrect sudo password": finding.WRONG,
    "me is not in the sudoers file.": finding.SUDOERS,
    "Connection closed\nsudo: Ein Passwort ist notwendig": finding.SUDO,
    "sudo: il est nécessaire de saisir un mot de passe": finding.SUDO,
    "sudo: interactive authentication is required": finding.SUDO,  # sudo-rs
    "sudo: 3 incorrect password attempts": finding.WRONG,
    "me ist nicht in der sudoers-Datei.": finding.SUDOERS,
    "sudo: unable to resolve host spark-1: Name or service not known": None,
    "Ansible requires Python 3.9 or newer on the target. Current version: 3.8.10 (default)": finding.OLD,
    "ansible-core requires a minimum of Python version 3.8. Current version: 3.6.9": finding.OLD,
    "/bin/sh: 1: /usr/bin/python3: not found": finding.PYTHON,
    "The module interpreter '/usr/bin/python3' was not found.": finding.PYTHON,
    "OSError: [Errno 28] No space left on device": finding.SPACE,
    "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/root']": finding.SPACE,
    "Failed to connect to the host via ssh: timed out": None,
    "The package python3-foo was not installed": None,
    "UNREACHABLE": None,
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_cause_of_a_text(text: str) -> None:
    assert finding.cause_of(text) is TEXTS[text]


def test_a_failure_that_a_module_reports_itself_is_not_judged() -> None:
    assert finding.output_of({"failed": True, "msg": "/srv: No space left on device"}) == ""
    assert "not found" in finding.output_of({"failed": True, "msg": "x", "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"})
    assert finding.output_of({"unreachable": True, "msg": "Missing sudo password"}).strip() == "Missing sudo password"


def test_missing_space_has_the_line_that_names_the_file() -> None:
    found = finding.access_finding(finding.SPACE, "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device: '/tmp/x/file.zip'")
    assert found == "no space is left (OSError: [Errno 28] No space left on device: '/tmp/x/file.zip')"
    assert finding.access_sentences("spark-2", found, finding.SPACE) == f"spark-2: {found}. Remove files there (df -h, docker system df) and run again."
