# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the docker role knows: read what commands print, choose packages, render limits, decide on a restart.

Limits are bytes, -1 is unlimited. Commands' outputs come in as text; nothing here runs anything.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._docker.client import DockerError

MARKER = "# Managed by gb10.cluster (role docker); docker_state: absent takes this file away again."
DROP_IN = "/etc/systemd/system/docker.service.d/60-gb10-cluster.conf"
LIMITS = "/etc/security/limits.d/60-gb10-cluster.conf"
CDI_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
#: Settings that Compose gives to each serving container as well. They take effect at the next start of the daemon, and do not require one.
PER_SERVICE = ("default limits and log options", "LimitMEMLOCK")
UNLIMITED = -1
UNLIMITED_WORDS = ("unlimited", "infinity", "-1")

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Engine(NamedTuple):
    """The engine as found. `pid` is 0 when it does not run; `memlock` is the daemon's own hard limit as the kernel has it."""

    unit: bool
    active: bool
    enabled: bool
    pid: int
    invocation: str
    flags: tuple[str, ...]
    unit_memlock: int | None
    memlock: int | None
    version: str | None
    compose: str | None
    silent: str = ""


def parse_limit(text: object, name: str) -> int | None:
    """Return a limit in bytes (-1: unlimited, None: leave). Takes `unlimited`, `8388608`, `64m`. Raises DockerError."""
    word = str(text).strip().lower()
    if word == "leave":
        return None
    if word in UNLIMITED_WORDS:
        return UNLIMITED
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", word)
    if not match or int(match.group(1)) == 0:
        raise DockerError(f"{name} is {str(text)!r}, which is no limit: write unlimited, a number of bytes (8388608), one with a unit (64m), or leave")
    return int(match.group(1)) * _SUFFIXES[match.group(2)]


def said_limit(value: int | None) -> str:
    """Return a limit in words."""
    if value is None:
        return "unknown"
    return "unlimited" if value == UNLIMITED else f"{value} bytes"


def systemd_limit(value: int) -> str:
    """Return a limit as systemd writes it."""
    return "infinity" if value == UNLIMITED else str(value)


def parse_properties(text: str) -> dict[str, str]:
    """Return the properties that `systemctl show` printed."""
    return dict(line.split("=", 1) for line in text.splitlines() if "=" in line)


def parse_unit_limit(text: str | None) -> int | None:
    """Return a limit as `systemctl show -p LimitMEMLOCK --value` prints it."""
    if not text:
        return None
    if text == "infinity" or text == str(2**64 - 1):
        return UNLIMITED
    return int(text) if text.isdigit() else None


def parse_proc_limits(text: str | None, name: str = "Max locked memory") -> tuple[int, int] | None:
    """Return (soft, hard) of one line of /proc/<pid>/limits, or None."""
    for line in (text or "").splitlines():
        if line.startswith(name):
            words = line[len(name) :].split()
            soft, hard = (UNLIMITED if word == "unlimited" else int(word) for word in words[:2])
            return soft, hard
    return None


def parse_flags(cmdline: str | None) -> tuple[str, ...]:
    """Return the options in a /proc/<pid>/cmdline."""
    return tuple(word for word in (cmdline or "").split("\0")[1:] if word.startswith("--"))


def version_tuple(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: `v2.26.1-4` is (2, 26, 1); nothing is ()."""
    match = re.match(r"\s*(?:Docker Compose version )?v?(?:\d+:)?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def compose_enough(found: str | None, minimum: str) -> bool:
    """Whether a compose plugin's version reaches the minimum."""
    return bool(version_tuple(found)) and version_tuple(found) >= version_tuple(minimum)


def parse_policy(text: str) -> dict[str, tuple[str | None, str | None]]:
    """Return {package: (installed, candidate)} from `LC_ALL=C apt-cache policy a b c`; packages unknown to apt are missing."""
    found: dict[str, tuple[str | None, str | None]] = {}
    name = ""
    installed: str | None = None
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith(":"):
            name, installed = line[:-1], None
        elif name and line.strip().startswith("Installed:"):
            word = line.split(":", 1)[1].strip()
            installed = None if word == "(none)" else word
        elif name and line.strip().startswith("Candidate:"):
            word = line.split(":", 1)[1].strip()
            found[name] = (installed, None if word == "(none)" else word)
    return found


def choose_packages(
    engine: Engine,
    policy: Mapping[str, tuple[str | None, str | None]],
    distribution: str,
    minimum: str,
    chosen: Sequence[str] = (),
) -> list[str]:
    """Return what to install, nothing when an engine and a recent compose plugin are there. Raises DockerError.

    An installed engine is never replaced: only what is missing is named. `chosen` (the user's list) goes first.
    """
    need_engine = not engine.unit and engine.version is None
    need_compose = not compose_enough(engine.compose, minimum)
    if not need_engine and not need_compose:
        return []
    if chosen:
        return list(chosen)
    packages: list[str] = []
    if need_engine:
        if policy and (policy.get("docker.io", (None, None))[1] is None):
            raise DockerError("no Docker Engine is installed and apt offers no docker.io: run apt-get update, or name the packages in docker_packages")
        packages.append("docker.io")
        if policy.get("docker-cli", (None, None))[1]:
            packages.append("docker-cli")
    if need_compose:
        vendor = bool(policy.get("docker-ce", (None, None))[0])
        names = ["docker-compose-plugin"] if vendor else []
        names += ["docker-compose-v2", "docker-compose"]
        for name in names:
            if compose_enough(policy.get(name, (None, None))[1], minimum):
                packages.append(name)
                break
        else:
            if policy:
                raise DockerError(
                    "the compose plugin is {}, {} or later is needed, and apt offers none of {} in such a version: "
                    "name a package that brings it in docker_packages".format(engine.compose or "missing", minimum, ", ".join(names))
                )
            packages.append("docker-compose-v2" if distribution == "ubuntu" else "docker-compose")
    return packages


def parse_os_id(text: str | None) -> str:
    """Return the ID of /etc/os-release."""
    match = re.search(r'(?m)^ID="?([^"\n]+)"?$', text or "")
    return match.group(1) if match else ""


def check_foreign(version_text: str, units: Sequence[str]) -> None:
    """Refuse engines whose settings lie elsewhere. Raises DockerError."""
    if "podman" in version_text.lower():
        raise DockerError(
            "the docker command on this node is Podman's imitation (package podman-docker), which the serving stack does not run on: "
            "remove podman-docker, and this role installs Docker Engine"
        )
    for unit in units:
        if unit.startswith("snap.docker."):
            raise DockerError(
                f"Docker runs here as a snap ({unit}), which reads neither /etc/docker/daemon.json nor our limits: "
                "run snap remove docker, and this role installs the distribution's engine"
            )


def render_drop_in(memlock: int) -> str:
    """Return the systemd drop-in of docker.service."""
    return f"{MARKER}\n[Service]\nLimitMEMLOCK={systemd_limit(memlock)}\n"


def render_limits(memlock: int) -> str:
    """Return the limits.d file: KiB for pam_limits, root named because a wildcard does not reach it."""
    value = "unlimited" if memlock == UNLIMITED else str(memlock // 1024)
    lines = [f"{who} {kind} memlock {value}" for who in ("*", "root") for kind in ("soft", "hard")]
    return "{}\n{}\n".format(MARKER, "\n".join(lines))


def check_attainable(wanted: int | None, hard: int, raisable: bool) -> None:
    """Refuse a limit that the kernel will not give. `hard` is the node's present hard limit. Raises DockerError."""
    if wanted is None or raisable or hard == UNLIMITED or (wanted != UNLIMITED and wanted <= hard):
        return
    raise DockerError(
        f"docker_memlock is {said_limit(wanted)}, but this node cannot lock more than {hard} bytes "
        "(EPERM: root lacks CAP_SYS_RESOURCE, as in a container): "
        f"set docker_memlock: {hard} for it in the inventory, or use a machine whose root may raise limits"
    )


def parse_containers(text: str) -> tuple[list[str], list[str]]:
    """Return (serving, others) from `docker ps --format "{{.Names}}<tab>{{.Label ...}}"`."""
    serving: list[str] = []
    others: list[str] = []
    for line in text.splitlines():
        name, _tab, group = line.partition("\t")
        if name.strip():
            (serving if group.strip() else others).append(name.strip())
    return serving, others


class Restart(NamedTuple):
    """`needed`: a setting requires a restart. `now`: it happens in this run. `why`: one sentence, empty when there is none and none is needed."""

    needed: bool
    now: bool
    why: str


def decide_restart(pending: Sequence[str], running: bool, serving: Sequence[str], policy: str, others: Sequence[str] = ()) -> Restart:
    """Decide whether the daemon restarts now. `pending` names what takes effect at its next start.

    On a node without containers it restarts for anything. Running containers are stopped only for what requires a restart, and only by `policy`.
    """
    idle = not serving and not others
    required = [name for name in pending if name not in PER_SERVICE]
    if not running or not (required or (pending and idle and policy != "never")):
        return Restart(False, False, "")
    what = ", ".join(required or pending)
    if policy == "never":
        return Restart(True, False, f"the Docker daemon must be restarted for {what}, and docker_restart is never: restart it yourself")
    if serving:
        return Restart(
            True,
            False,
            "the Docker daemon must be restarted for {}, but {} is serving: run playbooks/stop.yml, then --tags docker again".format(what, ", ".join(serving)),
        )
    if policy == "idle" and others:
        return Restart(
            True,
            False,
            "the Docker daemon must be restarted for {}, but {} would stop with it and docker_restart is idle: stop them first, or set "
            "docker_restart: needed".format(what, ", ".join(others)),
        )
    return Restart(True, True, f"restarted for {', '.join(pending)}")


def check_live(engine: Engine, memlock: int | None, minimum: str, restart_due: bool) -> list[str]:
    """Return what is not as wanted on the running system, one sentence each."""
    problems: list[str] = []
    if engine.version is None:
        problems.append("no Docker Engine answers on this node (%s): read journalctl -u docker -n 50" % (engine.silent or "docker.service is not running"))
    if not compose_enough(engine.compose, minimum):
        problems.append("the compose plugin is {}, {} or later is needed: name its package in docker_packages".format(engine.compose or "missing", minimum))
    if memlock is None or engine.pid == 0 or restart_due:
        return problems
    if engine.unit_memlock is not None and engine.unit_memlock != memlock:
        problems.append(
            f"docker.service has LimitMEMLOCK {said_limit(engine.unit_memlock)} where {said_limit(memlock)} was set "
            f"in {DROP_IN}: another drop-in wins, see systemctl cat docker"
        )
    elif engine.memlock is not None and engine.memlock != memlock:
        problems.append(
            f"the running Docker daemon (pid {engine.pid}) may lock {said_limit(engine.memlock)} where {said_limit(memlock)} was set: "
            "restart it with systemctl restart docker"
        )
    return problems


def summary(engine: Engine) -> dict[str, Any]:
    """Return the engine as a module result."""
    return {
        "version": engine.version,
        "compose": engine.compose,
        "active": engine.active,
        "enabled": engine.enabled,
        "pid": engine.pid,
        "memlock": engine.memlock,
    }
