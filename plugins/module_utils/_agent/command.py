# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Run a command of the node, bounded in time."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Mapping, Sequence
from typing import Protocol

SECONDS = 60.0
LATE = 124  # as of timeout(1)


class Run(Protocol):
    """Runs a command: rc, stdout, stderr. rc is 127 if there is no such command, and 124 if it was ended after `timeout` seconds."""

    def __call__(
        self, argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]: ...  # fmt: skip


def run_command(
    argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None, *,
    stdin: str | None = None, discard: bool = False,
) -> tuple[int, str, str]:  # fmt: skip
    """Run a command without a shell, without its output if `discard`. At its time limit it is ended together with its children. See Run."""
    output = subprocess.DEVNULL if discard else subprocess.PIPE
    try:
        # pylint: disable-next=ansible-bad-function  # the agent runs without Ansible and its run_command
        process = subprocess.Popen(  # noqa: S603  the caller has a list of words
            list(argv), stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=output, stderr=output, cwd=cwd, start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(env or {})}, encoding="utf-8", errors="replace",
        )  # fmt: skip
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    try:
        out, err = process.communicate(stdin, timeout=timeout)
        return process.returncode, out or "", err or ""
    except subprocess.TimeoutExpired:
        _end(process)
        return LATE, "", f"{' '.join(argv[:2])} did not end within {timeout:g} s."


def _end(process: subprocess.Popen[str]) -> None:
    """End a process and its children. One that the kernel does not release is left behind."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=5)
