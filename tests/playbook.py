"""Run a playbook as a user does, by the program ansible-playbook, and keep what happened: the harness of the lab and VM tests.

warm_playbook.py does the same for the contract tests, without the start of a program.
"""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
#: What every run has in its environment, unless the test sets another value.
SETTINGS = {
    "ANSIBLE_CALLBACK_PLUGINS": str(REPO / "tests/callback"),
    "ANSIBLE_CALLBACKS_ENABLED": "record",
    "ANSIBLE_CONFIG": str(REPO / "ansible.cfg"),
    "ANSIBLE_COLLECTIONS_PATH": str(REPO / "collections"),
    "ANSIBLE_STDOUT_CALLBACK": "ansible.builtin.default",
    "ANSIBLE_INJECT_FACT_VARS": "false",
    "ANSIBLE_ALLOW_EMBEDDED_TEMPLATES": "false",
    "ANSIBLE_FORCE_COLOR": "false",
    "ANSIBLE_NOCOLOR": "true",
}
#: A valid inventory whose hosts are never reached.
PAIR = """
gb10:
  children:
    pair1:
      hosts:
        spark-1: {ansible_host: 10.255.255.1}
        spark-2: {ansible_host: 10.255.255.2}
"""
# Two hosts that are this machine, for .format(python=sys.executable). The check of the inventory accepts a loopback address with a port of its own.
LOCAL_PAIR = """
gb10:
  vars:
    ansible_become: false
    ansible_connection: ansible.builtin.local
    ansible_port: 2201
    ansible_python_interpreter: {python}
  children:
    pair1:
      hosts:
        one: {{ansible_host: 127.0.0.1}}
        two: {{ansible_host: 127.0.0.2}}
"""
#: A play that runs one task file of a role on all hosts.
ROLE_PLAY = """
- name: A group
  hosts: gb10
  gather_facts: false
  tasks:
    - name: Try
      ansible.builtin.import_role:
        name: gb10.cluster.{role}
        tasks_from: {tasks}
"""


def plays_of(tasks: str, **variables: str) -> str:
    """Return a play that runs one task file of the role vllm_tp2, or the playbook of this name without its check of the inventory."""
    plays = yaml.safe_load(ROLE_PLAY.format(role="vllm_tp2", tasks=tasks))
    if not (REPO / f"roles/vllm_tp2/tasks/{tasks}.yml").exists():
        plays = yaml.safe_load((REPO / f"playbooks/{tasks}.yml").read_text(encoding="utf-8"))[1:]
    return yaml.safe_dump([{**each, "vars": {**each.get("vars", {}), **variables}} for each in plays], sort_keys=False)


@dataclass
class Run:
    """One run's outcome."""

    rc: int
    seconds: float
    stdout: str
    events: list[dict[str, Any]] = field(default_factory=list)
    folder: Path = REPO

    def _results(self, *kinds: str) -> list[dict[str, Any]]:
        return [e["event_data"] for e in self.events if e["event"] in kinds]

    @property
    def changed(self) -> set[tuple[str, str]]:
        """(host, task) of every task that changed something; a loop counts once."""
        return {(d["host"], d["task"]) for d in self._results("runner_on_ok") if (d.get("res") or {}).get("changed")}

    @property
    def failures(self) -> list[tuple[str, str, str]]:
        """(host, task, message) of every failure, those rescued later included; each failed item of a loop is one."""
        items = self._results("runner_item_on_failed")
        return [
            (d["host"], d["task"], str((each.get("res") or {}).get("msg", "")))
            for d in self._results("runner_on_failed", "runner_on_unreachable")
            if not d.get("ignore_errors")
            for each in [item for item in items if (item["host"], item["task"]) == (d["host"], d["task"])] or [d]
        ]

    @property
    def last_message(self) -> str:
        """The sentence that the run ended with."""
        assert self.failures, f"nothing failed:\n{self.stdout[-3000:]}"
        return self.failures[-1][2]

    def tasks(self, name: str) -> list[tuple[str, str]]:
        """(host, end time) of every task result whose name holds `name`, in order of their end."""
        found = [(d["host"], str(d["end"])) for d in self._results("runner_on_ok", "runner_on_failed") if name in d["task"]]
        return sorted(found, key=lambda item: item[1])

    @property
    def documents(self) -> list[dict[str, Any]]:
        """What the run has printed as JSON."""
        return [json.loads(line) for line in self.stdout.splitlines() if line.startswith("{")]

    def text(self) -> str:
        """All that the run has left behind: every event and the screen."""
        return self.stdout + json.dumps(self.events)


class Files:
    """Where a run leaves its output and its events, and the environment that tells it so."""

    def __init__(self, folder: Path, cwd: Path, env: Mapping[str, str] | None) -> None:
        number, self.folder, self.start = time.monotonic_ns(), folder, time.monotonic()
        self.output, self.record = folder / f"output-{number}", folder / f"events-{number}"
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        self.env = {**os.environ, **SETTINGS, "PWD": str(cwd), "PATH": path, **(env or {}), "GB10_RECORD": str(self.record)}

    def outcome(self, rc: int | None, what: str, timeout: float) -> Run:
        """Return what happened. A run that was ended after its time (`rc` is None) fails the test, so that CI ends with a name and not by its own limit."""
        screen = self.output.read_text(encoding="utf-8", errors="replace")
        assert rc is not None, f"{what} was not over after {timeout} s:\n{screen[-3000:]}"
        events = [json.loads(line) for line in self.record.read_text(encoding="utf-8").splitlines()] if self.record.exists() else []
        return Run(rc, time.monotonic() - self.start, screen, events, self.folder)


def words(folder: Path, playbook: str, inventory: str | Path, arguments: tuple[str, ...], variables: Mapping[str, Any] | None) -> tuple[Path, list[str]]:
    """Return a folder of its own for a run, and the arguments of ansible-playbook. `variables` are given with -e as JSON in a file of that folder."""
    folder = folder / f"run-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    out = [playbook, "-i", str(inventory), *(word for each in arguments for word in shlex.split(each))]
    if variables:
        (folder / "extra.json").write_text(json.dumps(dict(variables)), encoding="utf-8")
        out += ["-e", f"@{folder}/extra.json"]
    return folder, out


def ansible(folder: Path, arguments: list[str], *, cwd: Path = REPO, env: Mapping[str, str] | None = None, timeout: int = 900) -> Run:
    """Run ansible-playbook with these arguments and return what happened; `folder` takes its output."""
    files = Files(folder, cwd, env)
    line = ["ansible-playbook", *arguments]
    with files.output.open("w", encoding="utf-8") as out:
        process = subprocess.Popen(line, cwd=cwd, env=files.env, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, start_new_session=True)
    rc = None
    with contextlib.suppress(subprocess.TimeoutExpired):
        rc = process.wait(timeout)
    if rc is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    return files.outcome(rc, " ".join(arguments), timeout)


def run(
    folder: Path, playbook: str, inventory: str | Path, *arguments: str, variables: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None,
    project: Path = REPO, timeout: int = 900,
) -> Run:  # fmt: skip
    """Run `playbook` of the checkout (or of `project`) and return what happened. A relative folder of a setting is below `folder`, and not in the checkout."""
    folder, line = words(folder, playbook, inventory, arguments, variables)
    return ansible(folder, line, cwd=project, env={"PWD": str(folder), **(env or {})}, timeout=timeout)
