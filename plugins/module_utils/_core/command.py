# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Run a command of the node, bounded in time and output."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded

SECONDS = 60.0
OUTPUT = 16 << 20  # bytes that are kept of each stream
LATE = 124  # as of timeout(1)


class Run(Protocol):
    """Runs a command: rc, stdout, stderr. rc is 127 if there is no such command, and 124 if it was ended after `timeout` seconds."""

    def __call__(
        self, argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None
    ) -> tuple[int, str, str]: ...  # fmt: skip


def _leave_to_the_kernel(pid: int) -> None:
    """Take from a command the protection against the kernel's lack of memory that the agent itself has."""
    with contextlib.suppress(OSError, ValueError):
        with open("/proc/self/oom_score_adj", encoding="ascii") as own:
            protected = int(own.read()) < 0
        if protected:
            with open(f"/proc/{pid}/oom_score_adj", "w", encoding="ascii") as score:
                score.write("0")


def run_command(
    argv: Sequence[str], timeout: float = SECONDS, cwd: str | None = None, env: Mapping[str, str] | None = None, *,
    stdin: str | None = None, discard: bool = False, limit: int = OUTPUT,
) -> tuple[int, str, str]:  # fmt: skip
    """Run a command without a shell, without its output if `discard`. At its time limit it is ended together with its children. See Run.

    `limit` are the bytes that are kept of each stream.
    """
    output = subprocess.DEVNULL if discard else subprocess.PIPE
    try:
        # pylint: disable-next=ansible-bad-function  # run_command of Ansible keeps all output, has no time limit, and is not there in the agent
        process = subprocess.Popen(  # noqa: S603  the caller has a list of words
            list(argv), stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE, stdout=output, stderr=output, cwd=cwd, start_new_session=True,
            env={**os.environ, "LC_ALL": "C", **(env or {})},
        )  # fmt: skip
    except OSError as error:
        return 127, "", f"{argv[0]}: {error.strerror}"
    _leave_to_the_kernel(process.pid)
    end = time.monotonic() + timeout
    out, err, ended = bounded.converse(process, (stdin or "").encode("utf-8", "replace"), timeout, (limit, limit))
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(max(0.1, end - time.monotonic()) if ended else 0)
    if not ended or process.poll() is None:
        # One that the kernel does not release is left behind.
        with contextlib.suppress(ProcessLookupError, subprocess.TimeoutExpired):
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(5)
        return LATE, "", f"{' '.join(argv[:2])} did not end within {timeout:g} s."
    return process.returncode, out.decode("utf-8", "replace"), err.decode("utf-8", "replace")
