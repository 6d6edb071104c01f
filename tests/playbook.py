"""Run a playbook as a user does, through ansible-runner, and keep what happened: the harness of the contract, lab and VM tests."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import ansible_runner
import yaml

REPO = Path(__file__).resolve().parents[1]
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

    @property
    def roles(self) -> set[str]:
        """The roles whose tasks ran. Ansible checks the arguments of every role of a play, for any tag; that does not count."""
        done = self._results("runner_on_ok", "runner_on_skipped", "runner_on_failed")
        return {d["resolved_role"] for d in done if d.get("resolved_role") and not d["task"].startswith("Validating arguments")}

    @property
    def hosts(self) -> set[str]:
        """The hosts that any task ran for."""
        return {d["host"] for d in self._results("runner_on_ok", "runner_on_failed", "runner_on_unreachable")}

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


def run(
    folder: Path,
    playbook: str,
    inventory: str | Path,
    *arguments: str,
    variables: Mapping[str, Any] | None = None,
    env: Mapping[str, str] | None = None,
    project: Path = REPO,
    timeout: int = 900,
) -> Run:
    """Run `playbook` of the checkout (or of `project`) and return what happened; `folder` takes ansible-runner's files.

    `variables` are given with -e as JSON in a file.
    A run that is not over after `timeout` seconds is killed and fails the test: CI ends with a name instead of its own limit.
    """
    folder = folder / f"run-{time.monotonic_ns()}"
    folder.mkdir(parents=True)
    extra = []
    if variables:
        path = folder / "extra.json"
        path.write_text(json.dumps(dict(variables)), encoding="utf-8")
        extra = ["-e", f"@{path}"]
    lines: list[str] = []

    def keep(event: dict[str, Any]) -> bool:
        lines.append(event.get("stdout", ""))
        return True

    start = time.monotonic()
    result = ansible_runner.run(
        private_data_dir=str(folder),
        project_dir=str(project),
        playbook=playbook,
        inventory=str(inventory),
        cmdline=" ".join([*arguments, *extra]),
        envvars={
            "ANSIBLE_INJECT_FACT_VARS": "false",
            "ANSIBLE_ALLOW_EMBEDDED_TEMPLATES": "false",
            "ANSIBLE_FORCE_COLOR": "false",
            "ANSIBLE_NOCOLOR": "true",
            "PWD": str(folder),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
            **(env or {}),
        },
        quiet=True,
        timeout=timeout,
        suppress_env_files=True,
        event_handler=keep,
    )
    assert result.status != "timeout", f"{playbook} {' '.join(arguments)} was not over after {timeout} s:\n" + "\n".join(lines)[-3000:]
    events = [json.loads(path.read_text(encoding="utf-8")) for path in sorted((folder / "artifacts").glob("*/job_events/*.json"), key=_number)]
    return Run(result.rc, time.monotonic() - start, "\n".join(lines), events, folder)


def _number(path: Path) -> int:
    return int(path.name.split("-", 1)[0])


def complete() -> bool:
    """Return whether nothing may be left out."""
    return bool(os.environ.get("GB10_COMPLETE"))
