"""Run playbooks in forks of one process that has imported Ansible and the collection: what playbook.run() does, without the start of a program.

Each run is a child with its own environment, folder, settings and output, so that nothing of one run reaches another one.
"""

from __future__ import annotations

import atexit
import gc
import importlib
import json
import os
import select
import signal
import subprocess
import sys
import traceback
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import IO, Any

import playbook
from playbook import LOCAL_PAIR, REPO, SETTINGS, Files, Run, words

#: What nearly every run loads. A run that needs more imports it itself.
CORE = ("ansible.cli.playbook", "ansible.executor.module_common", "ansible.plugins.callback.default")
KINDS = {
    "action": ("assert", "command", "copy", "debug", "fail", "include_vars", "normal", "raw", "set_fact", "template"),
    "connection": ("local", "ssh"),
    "filter": ("core", "encryption", "mathstuff", "urls", "urlsplit"),
    "inventory": ("auto", "host_list", "ini", "script", "toml", "yaml"),
    "shell": ("sh",),
    "strategy": ("linear",),
    "test": ("core", "files", "mathstuff", "uri"),
    "vars": ("host_group_vars",),
}
OWN = ("action", "callback", "filter", "inventory", "lookup", "plugin_utils", "module_utils")


class Server:
    """The process that forks, as its client sees it."""

    def __init__(self) -> None:
        environment = {**os.environ, **SETTINGS}
        words = [sys.executable, __file__]
        self.process = subprocess.Popen(words, cwd=REPO, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(self, request: Mapping[str, Any]) -> int | None:
        """Return the exit status of one run, or None after its time."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.process.stdin.write(json.dumps(request) + "\n")
        self.process.stdin.flush()
        answer = self.process.stdout.readline()
        assert answer, "the process that forks has ended"
        rc: int | None = json.loads(answer)
        return rc


@cache
def _server() -> Server:
    server = Server()
    atexit.register(server.process.communicate)
    return server


def ansible(folder: Path, arguments: list[str], *, cwd: Path = REPO, env: Mapping[str, str] | None = None, timeout: int = 240) -> Run:
    """Run ansible-playbook as playbook.ansible() does. A run with settings of Ansible of its own needs the program: they are read when it starts."""
    if any(name.startswith("ANSIBLE_") for name in env or {}):
        return playbook.ansible(folder, arguments, cwd=cwd, env=env, timeout=timeout)
    files = Files(folder, cwd, env)
    request = {"arguments": arguments, "cwd": str(cwd), "env": files.env, "output": str(files.output), "timeout": timeout}
    return files.outcome(_server().ask(request), " ".join(arguments), timeout)


def run(
    folder: Path, name: str, inventory: str | Path, *arguments: str, variables: Mapping[str, Any] | None = None, env: Mapping[str, str] | None = None,
    project: Path = REPO,
) -> Run:  # fmt: skip
    """Run a playbook as playbook.run() does."""
    folder, line = words(folder, name, inventory, arguments, variables)
    return ansible(folder, line, cwd=project, env=env)


def play(folder: Path, text: str, *arguments: str, hosts: str = LOCAL_PAIR, **variables: Any) -> Run:
    """Run the text of a playbook on hosts that are this machine."""
    (folder / "hosts.yml").write_text(hosts.format(python=sys.executable), encoding="utf-8")
    (folder / "play.yml").write_text(text, encoding="utf-8")
    return run(folder, "play.yml", folder / "hosts.yml", *arguments, variables=variables, project=folder)


def local(folder: Path, name: str, *arguments: str, hosts: str = LOCAL_PAIR, **variables: Any) -> Run:
    """Run a playbook of the checkout on hosts that are this machine."""
    (folder / "hosts.yml").write_text(hosts.format(python=sys.executable), encoding="utf-8")
    return run(folder, f"playbooks/{name}.yml", folder / "hosts.yml", *arguments, variables=variables)


# --- the process that forks --------------------------------------------------------------------------------------------------------


def _import() -> None:
    """Import what the runs share. Nothing of it keeps a state of a run."""
    from ansible.plugins.loader import init_plugin_loader
    from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

    names = [*CORE, *(f"ansible.plugins.{kind}.{name}" for kind, each in KINDS.items() for name in each)]
    init_plugin_loader()
    root = REPO / "plugins"
    for kind in OWN:
        for path in sorted((root / kind).rglob("*.py")):
            parts = path.relative_to(root).with_suffix("").parts
            if parts[-1] != "__init__":
                names.append(".".join(("ansible_collections.gb10.cluster.plugins", *parts)))
    for name in names:
        importlib.import_module(name)
    _AnsibleCollectionFinder._remove()  # each child installs its own


def _child(request: dict[str, Any]) -> None:
    """Be the program."""
    from ansible import constants
    from ansible.cli.playbook import PlaybookCLI

    code = 250
    try:
        os.setsid()
        atexit._clear()
        output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(output, number)
        os.close(output)
        sys.stdout.reconfigure(line_buffering=True)  # type: ignore[union-attr]
        os.chdir(request["cwd"])
        os.environ.clear()
        os.environ.update(request["env"])
        # Its name was made for the parent, and the first child to end would remove it.
        constants.DEFAULT_LOCAL_TMP = constants.config.get_config_value("DEFAULT_LOCAL_TMP")
        sys.argv = ["ansible-playbook", *request["arguments"]]
        try:
            PlaybookCLI.cli_executor(sys.argv)
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(end.code is not None)
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
    except BaseException:  # noqa: BLE001  # the child must not go on as its parent
        traceback.print_exc()
    finally:
        os._exit(code)


def _wait(child: int, seconds: float) -> int | None:
    """Return the exit status of a child, or end it after this time."""
    descriptor = os.pidfd_open(child)
    try:
        over = not select.select([descriptor], [], [], seconds)[0]
        for number in (signal.SIGTERM, signal.SIGKILL) if over else ():
            os.kill(child, number)
            if select.select([descriptor], [], [], 5)[0]:
                break
        _child_id, status = os.waitpid(child, 0)
        return None if over else os.waitstatus_to_exitcode(status)
    finally:
        os.close(descriptor)


def _serve(requests: IO[str], answers: IO[str]) -> None:
    """Answer requests until the client ends."""
    for line in requests:
        request = json.loads(line)
        child = os.fork()
        if not child:
            _child(request)
        answers.write(json.dumps(_wait(child, request["timeout"])) + "\n")
        answers.flush()


def _main() -> None:
    requests, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1):
        os.dup2(nothing, number)
    _import()
    gc.disable()  # a run ends before it pays
    gc.freeze()
    _serve(requests, answers)


if __name__ == "__main__":
    _main()
