"""Why no module runs on a node: the texts of Ansible, sudo, the shell and Python to a cause."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core import access

TEXTS = {
    "Missing sudo password": access.SUDO,
    "Task failed: Missing sudo password": access.SUDO,
    "sudo: a password is required": access.SUDO,
    "Timeout (12s) waiting for privilege escalation prompt: ": access.PROMPT,  # also a connection that is lost meanwhile
    "Timeout (12s) waiting for privilege escalation prompt: sudo: a password is required": access.SUDO,
    "Incorrect sudo password": access.WRONG,
    "me is not in the sudoers file.": access.SUDOERS,
    "Connection closed\nsudo: Ein Passwort ist notwendig": access.SUDO,
    "sudo: il est nécessaire de saisir un mot de passe": access.SUDO,
    "sudo: interactive authentication is required": access.SUDO,  # sudo-rs
    "sudo: 3 incorrect password attempts": access.WRONG,
    "me ist nicht in der sudoers-Datei.": access.SUDOERS,
    "sudo: unable to resolve host spark-1: Name or service not known": None,
    "Ansible requires Python 3.9 or newer on the target. Current version: 3.8.10 (default)": access.OLD,
    "ansible-core requires a minimum of Python version 3.8. Current version: 3.6.9": access.OLD,
    "/bin/sh: 1: /usr/bin/python3: not found": access.PYTHON,
    "The module interpreter '/usr/bin/python3' was not found.": access.PYTHON,
    "OSError: [Errno 28] No space left on device": access.SPACE,
    "FileNotFoundError: [Errno 2] No usable temporary directory found in ['/tmp', '/var/tmp', '/usr/tmp', '/root']": access.SPACE,
    "Failed to connect to the host via ssh: timed out": None,
    "The package python3-foo was not installed": None,
    "UNREACHABLE": None,
}


@pytest.mark.parametrize("text", TEXTS)
def test_the_cause_of_a_text(text: str) -> None:
    assert access.cause_of(text) is TEXTS[text]


def test_a_failure_that_a_module_reports_itself_is_not_judged() -> None:
    assert access.text_of({"failed": True, "msg": "/srv: No space left on device"}) == ""
    assert "not found" in access.text_of({"failed": True, "msg": "x", "module_stderr": "/bin/sh: 1: /usr/bin/python3: not found"})
    assert access.text_of({"unreachable": True, "msg": "Missing sudo password"}).strip() == "Missing sudo password"


def test_missing_space_names_the_file_and_its_file_system() -> None:
    text = "Traceback (most recent call last):\nOSError: [Errno 28] No space left on device: '/tmp/ansible_x/file.zip'"
    table = "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/nvme0n1p2 100 100 0 100% /mnt/a b\n"
    mount = access.full_file_system(table)
    found = access.finding(access.SPACE, text, mount)
    assert found == (
        "no space is left on /mnt/a b, the file system of /tmp/ansible_x/file.zip (OSError: [Errno 28] No space left on device: '/tmp/ansible_x/file.zip')"
    )
    assert access.sentences("spark-2", found, access.SPACE).startswith("spark-2: no space is left on /mnt/a b")
    assert "for /tmp (" in access.finding(access.SPACE, "No space left on device", access.full_file_system("df: not found\n"))
