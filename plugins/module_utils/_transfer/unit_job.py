# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Runs :mod:`http_copy` on a node as a transient systemd unit, which ends by itself even when the controller is gone.

A job `name` lives in `/run/gb10-cluster/copy-<name>/` (0700; removed by the unit when it ends) and reports into a file beside that folder.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import Runner
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import http_copy

RUN = "/run/gb10-cluster"


class JobError(Exception):
    """A job cannot be started or has ended badly; the text is a sentence for the user."""


def source_of_program() -> str:
    """Return the text of http_copy, out of AnsiballZ's archive as well as from a checkout. Raises JobError."""
    text = http_copy.__loader__.get_source(http_copy.__name__)  # type: ignore[union-attr]  # every loader of a plain module has it
    if not text:
        raise JobError("the copying program is not readable in this module's archive: report this with the output of ansible --version")
    return str(text)


class Job:
    """One transient unit, `gb10-copy-<name>`."""

    def __init__(self, name: str, run: Runner, folder: str = RUN) -> None:
        """Name it; `run` runs a command on the node."""
        self.unit = f"gb10-copy-{name}"
        self.run = run
        self.folder = os.path.join(folder, f"copy-{name}")
        self.report = os.path.join(folder, f"copy-{name}.json")

    def active(self) -> bool:
        """Whether the unit runs."""
        return self.run(["systemctl", "is-active", "--quiet", f"{self.unit}.service"])[0] == 0

    def read(self) -> dict[str, Any]:
        """Return what the job has reported last; empty before the first report."""
        try:
            with open(self.report, encoding="utf-8") as handle:
                return dict(json.load(handle))
        except (OSError, ValueError):
            return {}

    def prepare(self) -> str:
        """End an earlier job of the same name and make this one's folder (0700), which the unit removes; return it. Raises OSError."""
        self.stop()
        os.makedirs(os.path.dirname(self.folder), mode=0o755, exist_ok=True)
        os.mkdir(self.folder, 0o700)
        return self.folder

    def start(self, mode: str, job: Mapping[str, Any], seconds: int) -> None:
        """Write an http_copy job and start it. Raises JobError, OSError."""
        self.prepare()
        program, spec = os.path.join(self.folder, "rail_copy.py"), os.path.join(self.folder, "job.json")
        http_copy.write_json(spec, {**job, {"serve": "ready", "fetch": "progress"}[mode]: self.report})
        with open(program, "w", encoding="utf-8") as handle:
            handle.write(source_of_program())
        self.launch([sys.executable or "/usr/bin/python3", program, mode, spec], seconds, f"{mode} files on the fabric", ["NoNewPrivileges=yes"])

    def launch(self, command: Sequence[str], seconds: int, says: str, properties: Sequence[str] = ()) -> None:
        """Start a command as the unit; the folder goes when it ends. Raises JobError."""
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={self.unit}", f"--description=gb10.cluster: {says}"]
        argv += [f"--property={item}" for item in (f"RuntimeMaxSec={seconds}", f"ExecStopPost=/bin/rm -rf {self.folder}", *properties)]
        rc, out, err = self.run([*argv, *command])
        if rc != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            last = ((err or out).strip().splitlines() or ["no output"])[-1]
            raise JobError(f"systemd-run could not start {self.unit} ({last}): run with become, on a node that runs systemd")

    def wait_ready(self, seconds: float) -> dict[str, Any]:
        """Return the first report. Raises JobError when none comes."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            report = self.read()
            if report:
                return report
            time.sleep(0.05)
        raise JobError(f"{self.unit} has reported nothing for {seconds:.0f} s: journalctl -u {self.unit} on the node says why")

    def stop(self) -> bool:
        """End the unit and remove its files; whether there was anything."""
        was = self.active()
        if was:
            self.run(["systemctl", "stop", f"{self.unit}.service"])
        self.run(["systemctl", "reset-failed", f"{self.unit}.service"])
        there = os.path.isdir(self.folder) or os.path.exists(self.report)
        shutil.rmtree(self.folder, ignore_errors=True)
        with contextlib.suppress(OSError):
            os.unlink(self.report)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.folder))
        return was or there
