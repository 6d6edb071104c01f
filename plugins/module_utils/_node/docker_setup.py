# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Bring the Docker Engine of a node to its desired state, or restore what the first run found.

Limits are bytes, -1 is unlimited.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Editor, FileChange
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, parse
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError
from ansible_collections.gb10.cluster.plugins.module_utils._node.parse import UNLIMITED
from ansible_collections.gb10.cluster.plugins.module_utils._node.settings import ENABLED, Settings

UNIT = "docker.service"
AGENT = "/usr/local/sbin/gb10"
START_SECONDS = 120  # in which a daemon answers
PROPERTIES = "LoadState,ActiveState,MainPID,InvocationID"
MARKER = "# Managed by gb10.cluster (role docker)"
HEADER = f"{MARKER}. Set docker_state: absent to remove this file."
DROP_IN = "/etc/systemd/system/docker.service.d/60-gb10-cluster.conf"
EARLIER_LIMITS = "/etc/security/limits.d/60-gb10-cluster.conf"  # of an earlier version; the undo removes it
SERVING_LABEL = "gb10.cluster.group"  # of the containers of a serving group, which prevent a restart of the daemon
COMPOSE_MINIMUM = "2.18"  # the oldest supported version of the compose plugin
CDI_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Engine(NamedTuple):
    """The engine of a node. `pid` is 0 if it does not run, `memlock` the hard limit of the running daemon, `flags` its command line.

    `version` is None if it does not answer; `error` is then the reason.
    """

    unit: bool
    active: bool
    pid: int
    invocation: str
    flags: tuple[str, ...]
    memlock: int | None
    version: str | None
    compose: str | None
    error: str = ""


def parse_limit(text: object) -> int | None:
    """Return docker_memlock in bytes (-1: unlimited, None: leave) from `unlimited`, `8388608`, `64m` or `leave`. Raises DockerError."""
    word = str(text).strip().lower()
    if word == "leave":
        return None
    if word in ("unlimited", "infinity", "-1"):
        return UNLIMITED
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", word)
    if not match or int(match.group(1)) == 0:
        raise DockerError(f"docker_memlock is {str(text)!r}, expected unlimited, a number of bytes (8388608), a size (64m), or leave.")
    return int(match.group(1)) * _SUFFIXES[match.group(2)]


def format_limit(value: int) -> str:
    """Return a limit for a message."""
    return "unlimited" if value == UNLIMITED else f"{value} bytes"


def version_tuple(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: `v2.26.1-4` is (2, 26, 1); without a number ()."""
    match = re.match(r"\s*(?:Docker Compose version )?v?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def compose_enough(found: str | None) -> bool:
    """Return whether a version of the compose plugin is at least the minimum."""
    return bool(version_tuple(found)) and version_tuple(found) >= version_tuple(COMPOSE_MINIMUM)


def choose_packages(engine: Engine, ubuntu: bool, vendor: bool) -> list[str]:
    """Return the packages to install where the engine or a recent compose plugin is missing. An installed engine is never replaced.

    :param vendor: the engine is docker-ce.
    """
    packages: list[str] = []
    if not engine.unit and engine.version is None:
        packages += ["docker.io"] if ubuntu else ["docker.io", "docker-cli"]
    if not compose_enough(engine.compose):
        packages.append("docker-compose-plugin" if vendor else "docker-compose-v2" if ubuntu else "docker-compose")
    return packages


def render_drop_in(memlock: int) -> str:
    """Return the systemd drop-in of docker.service."""
    return f"{HEADER}\n[Service]\nLimitMEMLOCK={'infinity' if memlock == UNLIMITED else memlock}\n"


def decide_restart(pending: bool, serving: Sequence[str], others: Sequence[str], policy: str) -> tuple[bool, str]:
    """Return whether the daemon restarts now for settings that take effect at its next start (`pending`), and else what the user has to do for it.

    `serving` and `others` are the running containers. `idle` can wait: Compose gives the same settings to each serving container.
    """
    if not pending or (policy == "idle" and (serving or others)):
        return False, ""
    if policy == "never":
        return False, "Settings of the Docker daemon take effect at its next start, and docker_restart is never. Restart it when it suits you."
    if serving:
        return False, f"The Docker daemon must be restarted, and {', '.join(serving)} is serving. Run playbooks/stop.yml, then --tags docker again."
    return True, ""


def check_live(engine: Engine, memlock: int | None, pending: bool) -> list[str]:
    """Return what differs from the desired state on the running system, one text each. Limits are not compared while a restart is `pending`."""
    problems: list[str] = []
    if engine.version is None:
        problems.append(f"No Docker Engine answers on this node ({engine.error or 'docker.service is not running'}). See `journalctl -u docker -n 50`.")
    if not compose_enough(engine.compose):
        problems.append(f"The compose plugin is {engine.compose or 'missing'}, expected {COMPOSE_MINIMUM} or later. Install a later one.")
    if engine.pid and not pending and memlock is not None and engine.memlock not in (None, memlock):
        problems.append(
            f"The running Docker daemon (pid {engine.pid}) may lock {format_limit(engine.memlock or 0)}, expected {format_limit(memlock)} from {DROP_IN}. "
            "Run `systemctl restart docker`. If that does not help, another drop-in wins, see `systemctl cat docker`."
        )
    return problems


# --- Docker's daemon.json as text: merge a few keys, and give the earlier file back while the merged one is unchanged.
# A text is the whole file, None if there is no file. The record of a merge is JSON: `{"original": text or None, "ours": text}`.
# If others change the file, their version is the new original.

DAEMON_JSON = "/etc/docker/daemon.json"
ROTATING_DRIVERS = ("json-file", "local")


class Merge(NamedTuple):
    """The text to write (None: no file), the record to keep, the keys that change, and whether the file is left as others have changed it."""

    text: str | None
    record: dict[str, Any]
    keys: list[str]
    left: bool = False


def parse_daemon_json(text: str | None) -> dict[str, Any]:
    """Return the content of the file; empty if it is absent or empty. Raises DockerError."""
    try:
        data = loads(text) if text and text.strip() else {}
    except ValueError as error:
        raise DockerError(f"{DAEMON_JSON} is not valid JSON ({error}), so the Docker daemon cannot start with it. Correct it, then run again.") from error
    for key in ("", "default-ulimits", "log-opts"):
        value = data if not key else data.get(key, {})
        if not isinstance(value, dict):
            raise DockerError(f"{DAEMON_JSON}: {key or 'the content'} is a {type(value).__name__}, expected a JSON object. Correct it, then run again.")
    return data


def merge_daemon_json(text: str | None, keys: Mapping[str, Any], defaults: Mapping[str, Any], record: Mapping[str, Any]) -> Merge:
    """Return the file with `keys`, and with those `defaults` that the user has not set; all others stay. Raises DockerError.

    Limits and log options are merged one by one. log-opts are for the driver of `defaults`, or one that rotates too. Without both this is the undo.
    """
    now = parse_daemon_json(text)
    base_text = record["original"] if record and now == parse_daemon_json(record.get("ours")) else text
    base = parse_daemon_json(base_text)
    data = {**defaults, **base, **keys}
    for key, merged in (
        ("default-ulimits", {**base.get("default-ulimits", {}), **keys.get("default-ulimits", {})}),
        ("log-opts", {**(defaults.get("log-opts", {}) if data.get("log-driver") in ROTATING_DRIVERS else {}), **base.get("log-opts", {})}),
    ):
        if merged or key in base:
            data[key] = merged
        else:
            data.pop(key, None)
    after = base_text if data == base else text if data == now else json.dumps(data, indent=4, ensure_ascii=False) + "\n"
    changed = sorted(key for key in {*now, *data} if now.get(key) != data.get(key))
    left = bool(record) and data == base and base_text == text != record["original"]
    return Merge(after, {"original": base_text, "ours": after} if data != base else {}, changed, left)


def daemon_settings(memlock: int | None, log_driver: str, log_opts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys to set, and the defaults of those that the user may have set."""
    limits = {} if memlock is None else {"memlock": {"Name": "memlock", "Hard": memlock, "Soft": memlock}}
    defaults = {"log-driver": log_driver, "log-opts": {key: str(value) for key, value in log_opts.items()}}
    return {"default-ulimits": limits} if limits else {}, defaults if log_driver != "leave" else {}


# --- The engine of a node.


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
            memlock=parse.hard_memlock(self.node.read(f"/proc/{pid}/limits")) if pid else None,
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
            (serving if SERVING_LABEL in (container.get("Labels") or {}) else others).append(name)
        return serving, others

    def missing_packages(self) -> list[str]:
        """Return the packages to install."""
        ubuntu = "ID=ubuntu" in (self.node.read("/etc/os-release") or "").split()
        vendor = self.output("dpkg-query", "--show", "--showformat=${db:Status-Abbrev}", "docker-ce").startswith("ii")
        return choose_packages(self.engine, ubuntu, vendor)

    def check_before(self) -> None:
        """Refuse what cannot work, before anything is changed."""
        engine = self.engine
        if engine.version is not None and not engine.unit:
            raise DockerError(
                f"A Docker Engine {engine.version} answers without a docker.service in systemd, such as Podman's or that of a snap. Remove it, then run again: "
                "the role installs a package that has the unit."
            )
        self.edit.require_own(DROP_IN)

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

    def merged(self, memlock: int | None) -> Merge:
        """Return the merged daemon.json."""
        keys, defaults = daemon_settings(memlock, self.params["log_driver"], self.params["log_opts"])
        return merge_daemon_json(self.node.read(DAEMON_JSON), keys, defaults, self.record.get("daemon", {}))

    def decide(self, changed: bool) -> tuple[bool, bool, str]:
        """Return whether settings wait for the next start of this daemon, whether it restarts now, and what the user has to do else.

        An engine that does not answer may run containers.
        """
        engine = self.engine
        pending = engine.active and (changed or self.record.get("pending", {}).get("invocation") == engine.invocation)
        return pending, *decide_restart(pending and engine.version is not None, self.serving, self.others, self.params["restart"])

    def write_daemon_json(self, merged: Merge) -> None:
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
        memlock = parse_limit(self.params["memlock"])
        self.check_before()
        packages, engine = self.missing_packages(), self.engine
        if packages and not self.edit.check_mode:
            if self.params["installed"]:
                raise DockerError(f"Docker Engine or its compose plugin is missing, although {', '.join(packages)} was installed just now.")
            return self.result([], packages)
        merged = self.merged(memlock)
        before = self.node.read(DAEMON_JSON)
        drop_in = None if memlock is None else render_drop_in(memlock)
        if merged.text not in (None, before) and not self.edit.check_mode:
            self.validate(str(merged.text))
        pending, restart, message = self.decide(merged.text != before or drop_in != self.node.read(DROP_IN))
        self.settings.save(
            daemon=merged.record,
            pending={"invocation": engine.invocation} if pending else {},
        )
        self.write_daemon_json(merged)
        self.edit.write(DROP_IN, drop_in, f"memlock in {DROP_IN}")
        if restart or not engine.active:
            self.start("restart" if restart else "start")
            pending = False
        if not packages:
            self.settings.set_units(dict.fromkeys((UNIT, *(CDI_UNITS if self.params["cdi_refresh"] else ())), ENABLED))
        if not self.edit.check_mode or not (self.edit.changes.messages or packages):
            self.engine = self.read_engine()
            problems = check_live(self.engine, memlock, pending)
            if problems:
                raise DockerError(" ".join(problems))
        if not pending:
            self.settings.save(pending=None)
        return self.result([message] if message else [], packages)

    def absent(self) -> dict[str, Any]:
        """Restore what the first run found."""
        before = self.node.read(DAEMON_JSON)
        merged, left = merge_daemon_json(before, {}, {}, self.record.get("daemon", {})), []
        if merged.left:
            left.append(f"{DAEMON_JSON} was changed since the first run, so it stays")
        pending, restart, message = self.decide(merged.text != before or MARKER in (self.node.read(DROP_IN) or ""))
        self.write_daemon_json(merged)
        self.edit.remove_own(EARLIER_LIMITS)
        if not self.edit.remove_own(DROP_IN) and self.node.exists(DROP_IN):
            left.append(f"{DROP_IN} is not managed by gb10.cluster, so it stays")
        self.edit.remove_empty_folder(os.path.dirname(DROP_IN))
        if pending and self.serving:
            left.append(f"{', '.join(self.serving)} serves and goes on; the daemon has its settings of before from its next start on")
        self.settings.set_units({})
        if restart:
            self.start("restart")
        self.settings.save(daemon=None, installed=None, pending={"invocation": self.engine.invocation} if pending and not restart else None)
        return self.result([*([message] if message else []), *left], [])

    def run(self) -> dict[str, Any]:
        """Apply the option `state`, and return the module's result."""
        return self.present() if self.state == "present" else self.absent()

    def result(self, shown: list[str], packages: list[str]) -> dict[str, Any]:
        """Return the module's result."""
        return {**self.edit.changes.result(), "packages": packages, "shown": shown}
