# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Bring the Docker Engine of a node to its desired state, or restore what the first run found."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, FileChange
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_engine as engines
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_engine import DAEMON_JSON, DROP_IN, LIMITS, MARKER, Engine
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import ENABLED, Settings

UNIT = "docker.service"
AGENT = "/usr/local/sbin/gb10"
START_SECONDS = 120  # in which a daemon answers
PROPERTIES = "LoadState,ActiveState,MainPID,InvocationID"


class Setup:
    """The engine of one node. All methods raise DockerError, HostError and OSError."""

    def __init__(self, edit: Editor, state: str, params: Mapping[str, Any], pause: float = 1.0) -> None:
        """Read the node; `params` are the variables of the role docker, `pause` the seconds between two questions to an engine that starts."""
        self.node = edit.node
        self.state = state
        self.params = params
        self.edit = edit
        self.pause = pause
        self.socket = self.node.at(docker_api.DEFAULT_SOCKET)
        self.settings = Settings(edit, "docker")
        self.record = self.settings.record
        self.engine = self.read_engine()
        self.serving, self.others = self.running_containers()

    def output(self, *argv: str) -> str:
        """Return the output of a command; empty if it fails."""
        rc, out, _err = self.node.run(argv)
        return out.strip() if rc == 0 else ""

    def read_engine(self) -> Engine:
        """Return the engine as it is."""
        shown = dict(line.split("=", 1) for line in self.output("systemctl", "show", UNIT, "-p", PROPERTIES).splitlines() if "=" in line)
        pid = int(shown.get("MainPID") or 0)
        words = ((self.node.read(f"/proc/{pid}/cmdline") if pid else None) or "").split("\0")
        version, error = None, ""
        try:
            version = str(docker_api.version(self.socket).get("Version"))
        except DockerError as silent:
            error = str(silent)
        return Engine(
            unit=shown.get("LoadState") == "loaded",
            active=shown.get("ActiveState") in ("active", "activating", "reloading"),
            pid=pid,
            invocation=shown.get("InvocationID", ""),
            flags=tuple(filter(None, words[1:])),
            memlock=engines.hard_memlock(self.node.read(f"/proc/{pid}/limits")) if pid else None,
            version=version,
            compose=self.output("docker", "compose", "version", "--short") or None,
            error=error,
        )

    def running_containers(self) -> tuple[list[str], list[str]]:
        """Return the names of the running containers: (serving, others)."""
        serving: list[str] = []
        others: list[str] = []
        for container in docker_api.list_containers([], self.socket, stopped=False) if self.engine.version else []:
            name = str((container.get("Names") or ["/" + str(container.get("Id", ""))[:12]])[0]).lstrip("/")
            (serving if engines.SERVING_LABEL in (container.get("Labels") or {}) else others).append(name)
        return serving, others

    def missing_packages(self) -> list[str]:
        """Return the packages to install."""
        ubuntu = "ID=ubuntu" in (self.node.read("/etc/os-release") or "").split()
        vendor = self.output("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", "docker-ce").startswith("ii")
        return engines.choose_packages(self.engine, ubuntu, vendor, self.params["packages"])

    def check_before(self) -> None:
        """Refuse what cannot work, before anything is changed."""
        engine = self.engine
        if engine.version is not None and not engine.unit:
            raise DockerError(
                f"A Docker Engine {engine.version} answers without a docker.service in systemd, such as Podman's or that of a snap. Remove it, then run again: "
                "the role installs a package that has the unit."
            )
        for path in (DROP_IN, LIMITS):
            self.edit.require_own(path)

    def validate(self, text: str) -> None:
        """Have dockerd check the merged file, with the options of its command line, before it is used. Engines before 23.0 have no such check."""
        candidate = f"{DAEMON_JSON}.gb10-candidate"
        self.node.apply(FileChange(candidate, None, text, 0o600))
        try:
            rc, out, err = self.node.run(("dockerd", *self.engine.flags, "--validate", "--config-file", self.node.at(candidate)))
        finally:
            self.node.apply(FileChange(candidate, text, None))
        if rc not in (0, 127) and "unknown flag" not in err:
            last = ((err or out).strip().splitlines() or ["no output"])[-1]
            raise DockerError(
                f"dockerd refuses the merged {DAEMON_JSON} ({last}). Nothing was changed. Correct that key in the file, or that option of the unit."
            )

    def merged(self, memlock: int | None) -> engines.Merge:
        """Return the merged daemon.json."""
        params, stack = self.params, engines.parse_limit(self.params["stack"], "docker_stack")
        keys, defaults = engines.daemon_settings(memlock, stack, params["log_driver"], params["log_opts"])
        return engines.merge_daemon_json(self.node.read(DAEMON_JSON), keys, defaults, self.record.get("daemon", {}))

    def decide(self, changed: bool) -> tuple[bool, bool, str]:
        """Return whether settings wait for the next start of this daemon, whether it restarts now, and what the user has to do else.

        An engine that does not answer may run containers.
        """
        engine = self.engine
        pending = engine.active and (changed or self.record.get("pending", {}).get("invocation") == engine.invocation)
        return pending, *engines.decide_restart(pending and engine.version is not None, self.serving, self.others, self.params["restart"])

    def write_daemon_json(self, merged: engines.Merge) -> None:
        """Write the merged file."""
        self.edit.write(DAEMON_JSON, merged.text, f"{', '.join(merged.keys) or 'the text'} of {DAEMON_JSON}")

    def start(self, verb: str) -> None:
        """Start or restart the daemon, and wait until it answers. The agent, where there is one, does not start containers in between."""
        self.edit.step(f"{UNIT} {verb}ed")
        if self.edit.check_mode:
            return
        self.node.run([AGENT, "hold", "docker", "--reason", f"the role docker {verb}s the Docker Engine", "--seconds", "1800"])
        try:
            self.edit.command("systemctl", "daemon-reload")
            self.edit.command("systemctl", verb, UNIT)
            end = time.monotonic() + START_SECONDS
            while time.monotonic() < end and not self.answers():
                time.sleep(self.pause)
        finally:
            self.node.run([AGENT, "release", "docker"])

    def answers(self) -> bool:
        """Return whether the engine answers."""
        try:
            return bool(docker_api.version(self.socket))
        except DockerError:
            return False

    def present(self) -> dict[str, Any]:
        """Apply all settings."""
        memlock = engines.parse_limit(self.params["memlock"], "docker_memlock")
        self.check_before()
        packages, engine = self.missing_packages(), self.engine
        if packages and not self.edit.check_mode:
            if self.params["installed"]:
                raise DockerError(f"Docker Engine or its compose plugin is missing, although {', '.join(packages)} was installed just now.")
            return self.result([], packages)
        merged = self.merged(memlock)
        before = self.node.read(DAEMON_JSON)
        files = {DROP_IN: None, LIMITS: None} if memlock is None else {DROP_IN: engines.render_drop_in(memlock), LIMITS: engines.render_limits(memlock)}
        if merged.text not in (None, before) and not self.edit.check_mode:
            self.validate(str(merged.text))
        pending, restart, message = self.decide(merged.text != before or files[DROP_IN] != self.node.read(DROP_IN))
        self.settings.save(
            daemon=merged.record,
            pending={"invocation": engine.invocation} if pending else {},
        )
        self.write_daemon_json(merged)
        for path, text in files.items():
            self.edit.write(path, text, f"memlock in {path}")
        if restart or not engine.active:
            self.start("restart" if restart else "start")
            pending = False
        if not packages:
            self.settings.set_units(dict.fromkeys((UNIT, *(engines.CDI_UNITS if self.params["cdi_refresh"] else ())), ENABLED))
        if not self.edit.check_mode or not (self.edit.changes.messages or packages):
            self.engine = self.read_engine()
            problems = engines.check_live(self.engine, memlock, pending)
            if problems:
                raise DockerError(" ".join(problems))
        if not pending:
            self.settings.save(pending=None)
        return self.result([message] if message else [], packages)

    def absent(self) -> dict[str, Any]:
        """Restore what the first run found."""
        before = self.node.read(DAEMON_JSON)
        merged, left = engines.merge_daemon_json(before, {}, {}, self.record.get("daemon", {})), []
        if merged.left:
            left.append(f"{DAEMON_JSON} was changed since the first run, so it stays")
        pending, restart, message = self.decide(merged.text != before or MARKER in (self.node.read(DROP_IN) or ""))
        self.write_daemon_json(merged)
        for path in (DROP_IN, LIMITS):
            if not self.edit.remove_own(path) and self.node.exists(path):
                left.append(f"{path} is not managed by gb10.cluster, so it stays")
        self.edit.remove_empty_folder(os.path.dirname(DROP_IN))
        if pending and self.serving:
            left.append(f"{', '.join(self.serving)} serves and goes on; the daemon has its settings of before from its next start on")
        self.settings.set_units({})
        if restart:
            self.start("restart")
        self.settings.save(daemon=None, pending={"invocation": self.engine.invocation} if pending and not restart else None)
        return self.result([*([message] if message else []), *left], [])

    def run(self) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        return self.present() if self.state == "present" else self.absent()

    def result(self, shown: list[str], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {**self.edit.changes.result(), "packages": packages, "shown": shown}
