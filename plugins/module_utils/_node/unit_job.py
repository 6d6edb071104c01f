# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Long work on a node as a transient systemd unit, which ends by itself even if the controller is gone.

A job `name` has the folder `/run/gb10-cluster/copy-<name>/` (0700; removed by the unit at its end) and a report in a file next to that folder.
The action plugin of a followed module (`plugin_utils/followed.py`) runs it with the steps `start` and `status`. Without a step it waits.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Runner

RUN = "/run/gb10-cluster"
SLICE_SECONDS = 2.0
STEP: dict[str, Any] = {"type": "str", "choices": ["start", "status", "plain"], "default": "plain"}


class JobError(Exception):
    """A job cannot be started or has failed. The text is a sentence for the user."""


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "no output")


def remedy_of(text: str, remedies: Sequence[tuple[str, str]], default: str) -> str:
    """Return the remedy of the first pattern that is in the text."""
    return next((remedy for pattern, remedy in remedies if re.search(pattern, text, re.IGNORECASE)), default)


class Job:
    """One transient unit, `gb10-copy-<name>`."""

    def __init__(self, name: str, run: Runner, folder: str = RUN) -> None:
        """Take the name; `run` runs a command on the node."""
        self.unit = f"gb10-copy-{name}"
        self.run = run
        self.folder = os.path.join(folder, f"copy-{name}")
        self.report = os.path.join(folder, f"copy-{name}.json")
        self.log = f"{self.report}.log"

    def active(self) -> bool:
        """Whether the unit runs."""
        return self.run(["systemctl", "is-active", "--quiet", f"{self.unit}.service"])[0] == 0

    def read(self) -> dict[str, Any]:
        """Return the last report of the job, empty if there is none."""
        try:
            return dict(loads(bounded.text(self.report, errors="strict")))
        except (OSError, ValueError, TypeError):
            return {}

    def output(self) -> str:
        """Return the last MiB of what the commands of the job have printed so far."""
        try:
            return bounded.end(self.log, 1 << 20)
        except OSError:
            return ""

    def prepare(self) -> str:
        """End an earlier job of the same name and create the folder; return it. Raises OSError."""
        self.stop()
        os.makedirs(os.path.dirname(self.folder), mode=0o755, exist_ok=True)
        os.mkdir(self.folder, 0o700)
        return self.folder

    def start_commands(self, commands: Sequence[Sequence[str]], seconds: int, description: str, properties: Sequence[str] = ()) -> None:
        """Start commands one after the other, until one fails. See start_script()."""
        self.start_script(" && ".join(shlex.join(argv) for argv in commands), seconds, description, properties)

    def start_script(self, text: str, seconds: int, description: str, properties: Sequence[str] = ()) -> None:
        """Start a shell script. The report has the return code. Call prepare() first. Raises JobError, OSError."""
        program = os.path.join(self.folder, "run.sh")
        with open(program, "w", encoding="utf-8") as handle:
            handle.write(f"( {text}\n) >{shlex.quote(self.log)} 2>&1\necho '{{\"rc\": '$?'}}' >{shlex.quote(self.report)}\n")
        self.launch(["/bin/sh", program], seconds, description, properties)

    def launch(self, command: Sequence[str], seconds: int, description: str, properties: Sequence[str]) -> None:
        """Start a command as the unit. Raises JobError."""
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={self.unit}", f"--description=gb10.cluster: {description}"]
        argv += [f"--property={item}" for item in (f"RuntimeMaxSec={seconds}", f"ExecStopPost=/bin/rm -rf {self.folder}", *properties)]
        rc, out, err = self.run([*argv, *command])
        if rc != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise JobError(f"systemd-run could not start {self.unit} ({last_line(err or out)}): run with become, on a node that runs systemd")

    def stop(self) -> bool:
        """End the unit and remove its files; return whether there were any."""
        found = self.active()
        if found:
            self.run(["systemctl", "stop", f"{self.unit}.service"])
        self.run(["systemctl", "reset-failed", f"{self.unit}.service"])
        found = found or os.path.isdir(self.folder) or os.path.exists(self.report)
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.report, self.log):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.folder))
        return found


def follow(module: Any, job: Job, start: Callable[[], None], progress: Callable[[], Mapping[str, Any]]) -> None:
    """Start the unit and wait for its end, as the option `step` of the module requires; return when the unit has ended.

    The step `start` ends the module after the start. The step `status` ends it after SLICE_SECONDS with a `report` if the unit still runs.
    """
    step = module.params["step"]
    if step != "status":
        start()
    if step == "start":
        module.exit_json(changed=False)
    end = time.monotonic() + SLICE_SECONDS
    while job.active():
        if step == "status" and time.monotonic() >= end:
            module.exit_json(changed=False, report={**progress(), "state": "running"})
        time.sleep(0.1)
