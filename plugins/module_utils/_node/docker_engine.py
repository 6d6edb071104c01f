# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the Docker Engine's host: packages, limits, decisions on a restart; and daemon.json as text, merged and given back. Pure.

Limits are bytes, -1 is unlimited.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._node.docker_api import DockerError

MARKER = "# Managed by gb10.cluster (role docker)"
HEADER = f"{MARKER}. Set docker_state: absent to remove this file."
DROP_IN = "/etc/systemd/system/docker.service.d/60-gb10-cluster.conf"
LIMITS = "/etc/security/limits.d/60-gb10-cluster.conf"
CDI_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
PACKAGES = ("docker.io", "docker-cli", "docker-ce", "docker-compose-plugin", "docker-compose-v2", "docker-compose")
UNLIMITED = -1

_SUFFIXES = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


class Engine(NamedTuple):
    """The engine of a node. `pid` is 0 if it does not run. `memlock` is the hard limit of the running daemon, `unit_memlock` that of its unit.

    `version` is None if it does not answer; `error` is then the reason.
    """

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
    error: str = ""


def parse_limit(text: object, name: str) -> int | None:
    """Return a limit in bytes (-1: unlimited, None: leave) from `unlimited`, `8388608`, `64m` or `leave`. Raises DockerError."""
    word = str(text).strip().lower()
    if word == "leave":
        return None
    if word in ("unlimited", "infinity", "-1"):
        return UNLIMITED
    match = re.fullmatch(r"(\d+)\s*([kmgt]?)(?:i?b)?", word)
    if not match or int(match.group(1)) == 0:
        raise DockerError(f"{name} is {str(text)!r}, expected unlimited, a number of bytes (8388608), a size (64m), or leave.")
    return int(match.group(1)) * _SUFFIXES[match.group(2)]


def format_limit(value: int) -> str:
    """Return a limit for a message."""
    return "unlimited" if value == UNLIMITED else f"{value} bytes"


def parse_unit_limit(text: str) -> int | None:
    """Return a limit as `systemctl show` prints it; None if it prints none."""
    if text in ("infinity", str(2**64 - 1)):
        return UNLIMITED
    return int(text) if text.isdigit() else None


def hard_memlock(text: str | None) -> int | None:
    """Return the hard limit of locked memory in a /proc/<pid>/limits."""
    match = re.search(r"(?m)^Max locked memory +\S+ +(\d+|unlimited)", text or "")
    return None if match is None else UNLIMITED if match.group(1) == "unlimited" else int(match.group(1))


def version_tuple(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: `v2.26.1-4` is (2, 26, 1); without a number ()."""
    match = re.match(r"\s*(?:Docker Compose version )?v?(?:\d+:)?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def compose_enough(found: str | None, minimum: str) -> bool:
    """Return whether a version of the compose plugin is at least the minimum."""
    return bool(version_tuple(found)) and version_tuple(found) >= version_tuple(minimum)


def choose_packages(engine: Engine, policy: str, os_release: str | None, minimum: str, chosen: Sequence[str] = ()) -> list[str]:
    """Return the packages to install where the engine or a recent compose plugin is missing. Raises DockerError.

    An installed engine is never replaced. `policy` is the output of `LC_ALL=C apt-cache policy`, empty if apt has no lists yet. `chosen` is the
    user's list; it has priority.
    """
    need_engine = not engine.unit and engine.version is None
    need_compose = not compose_enough(engine.compose, minimum)
    if chosen:
        return list(chosen)
    known = {name: (installed, candidate) for name, installed, candidate in re.findall(r"(?m)^(\S+):\n +Installed: (\S+)\n +Candidate: (\S+)", policy)}
    available = {name: candidate for name, (_installed, candidate) in known.items() if candidate != "(none)"}
    packages = [name for name in ("docker.io", "docker-cli") if need_engine and name in available]
    if need_engine and "docker.io" not in packages:
        if known:
            raise DockerError("No Docker Engine is installed, and apt does not offer docker.io. Run apt-get update, or set docker_packages.")
        packages.append("docker.io")
    if need_compose:
        vendor = known.get("docker-ce", ("(none)",))[0] != "(none)"
        names = [*(["docker-compose-plugin"] if vendor else []), "docker-compose-v2", "docker-compose"]
        recent = [name for name in names if compose_enough(available.get(name), minimum)]
        if known and not recent:
            raise DockerError(
                f"The compose plugin is {engine.compose or 'missing'}, expected {minimum} or later, and apt does not offer one "
                f"({', '.join(names)}). Name a package that has it in docker_packages."
            )
        ubuntu = re.search(r'(?m)^ID="?ubuntu"?$', os_release or "")
        packages.append(recent[0] if recent else "docker-compose-v2" if ubuntu else "docker-compose")
    return packages


def check_supported(version_text: str, units: Sequence[str]) -> None:
    """Refuse podman-docker and the snap. Raises DockerError."""
    if "podman" in version_text.lower():
        raise DockerError("The docker command is Podman's (package podman-docker), which is not supported. Remove podman-docker, then run again.")
    for unit in units:
        if unit.startswith("snap.docker."):
            raise DockerError(f"Docker is installed as a snap ({unit}), which does not read /etc/docker/daemon.json. Run `snap remove docker`, then run again.")


def check_attainable(memlock: int | None, hard: int | None, raisable: bool) -> None:
    """Refuse a limit above `hard`, the hard limit of the node's first process, if root may not raise it. Raises DockerError."""
    if memlock is None or raisable or hard in (None, UNLIMITED) or UNLIMITED < memlock <= (hard or 0):
        return
    raise DockerError(
        f"docker_memlock is {format_limit(memlock)}, and this node cannot lock more than {hard} bytes (EPERM: root does not have CAP_SYS_RESOURCE, as in a "
        f"container). Set docker_memlock: {hard} for it in the inventory, or use a machine whose root may raise limits."
    )


def render_drop_in(memlock: int) -> str:
    """Return the systemd drop-in of docker.service."""
    return f"{HEADER}\n[Service]\nLimitMEMLOCK={'infinity' if memlock == UNLIMITED else memlock}\n"


def render_limits(memlock: int) -> str:
    """Return the limits.d file, in KiB for pam_limits: for root and the users of Docker. Other users cannot take the unified memory."""
    value = "unlimited" if memlock == UNLIMITED else str(memlock // 1024)
    return "\n".join([HEADER, *(f"{who} {kind} memlock {value}" for who in ("root", "@docker") for kind in ("soft", "hard"))]) + "\n"


class Restart(NamedTuple):
    """`required`: the policy asks for a restart that cannot happen in this run. `now`: the daemon restarts in this run."""

    required: bool
    now: bool
    message: str


NO_RESTART = Restart(False, False, "")


def decide_restart(pending: bool, serving: Sequence[str], others: Sequence[str], policy: str) -> Restart:
    """Decide whether the daemon restarts now for settings that take effect at its next start (`pending`).

    `serving` and `others` are the running containers. `idle` can wait: Compose gives the same settings to each serving container.
    """
    if not pending or (policy == "idle" and (serving or others)):
        return NO_RESTART
    if policy == "never":
        return Restart(True, False, "Settings of the Docker daemon take effect at its next start, and docker_restart is never. Restart it when it suits you.")
    if serving:
        return Restart(
            True, False, f"The Docker daemon must be restarted, and {', '.join(serving)} is serving. Run playbooks/stop.yml, then --tags docker again."
        )
    return Restart(False, True, "")


def check_live(engine: Engine, memlock: int | None, minimum: str, pending: bool) -> list[str]:
    """Return what differs from the desired state on the running system, one text each. Limits are not compared while a restart is `pending`."""
    problems: list[str] = []
    if engine.version is None:
        problems.append(f"No Docker Engine answers on this node ({engine.error or 'docker.service is not running'}). See `journalctl -u docker -n 50`.")
    if not compose_enough(engine.compose, minimum):
        problems.append(f"The compose plugin is {engine.compose or 'missing'}, expected {minimum} or later. Name its package in docker_packages.")
    if memlock is None or engine.pid == 0 or pending:
        return problems
    if engine.unit_memlock not in (None, memlock):
        problems.append(
            f"docker.service has LimitMEMLOCK {format_limit(engine.unit_memlock or 0)}, expected {format_limit(memlock)} from {DROP_IN}. "
            "Another drop-in wins, see `systemctl cat docker`."
        )
    elif engine.memlock not in (None, memlock):
        problems.append(
            f"The running Docker daemon (pid {engine.pid}) may lock {format_limit(engine.memlock or 0)}, expected {format_limit(memlock)}. "
            "Run `systemctl restart docker`."
        )
    return problems


# --- Docker's daemon.json as text: merge a few keys, and give the earlier file back while the merged one is unchanged.
# A text is the whole file, None if there is no file. Limits are bytes, -1 is unlimited. The record of a merge is JSON: `{"original": text or None, "ours":
# text}`. If others change the file, their version is the new original.

DAEMON_JSON = "/etc/docker/daemon.json"
ROTATING_DRIVERS = ("json-file", "local")
#: The daemon does not start if one of these keys is in the file and its option on the command line.
FLAGS = {"default-ulimits": "--default-ulimit", "log-driver": "--log-driver", "log-opts": "--log-opt", "live-restore": "--live-restore"}


class Setting(NamedTuple):
    """One key to set. If `unless_set`, the user's own value has priority."""

    path: tuple[str, ...]
    value: Any
    unless_set: bool = False


class Merge(NamedTuple):
    """The text to write (None: no file), the record to keep, and one sentence per key that changes or is left alone."""

    text: str | None
    record: dict[str, Any]
    changes: list[str]
    left: list[str]


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


def render_daemon_json(data: Mapping[str, Any], like: str | None) -> str:
    """Return the text of `data` with the indentation of the text `like`; 4 blanks if it has none."""
    indent = re.search(r"\n([ \t]+)", like or "")
    return json.dumps(data, indent=indent.group(1) if indent else 4, ensure_ascii=False) + "\n"


def daemon_settings(
    memlock: int | None, stack: int | None, log_driver: str, log_opts: Mapping[str, str], live_restore: bool | None, current_driver: str | None
) -> list[Setting]:
    """Return the desired keys; None or `leave` does not set a key. `current_driver` is the log driver that the user has chosen."""
    found = [
        Setting(("default-ulimits", name), {"Name": name, "Hard": value, "Soft": value})
        for name, value in (("memlock", memlock), ("stack", stack))
        if value is not None
    ]
    if log_driver != "leave":
        found.append(Setting(("log-driver",), log_driver, unless_set=True))
        if (current_driver or log_driver) in ROTATING_DRIVERS:
            found.extend(Setting(("log-opts", key), str(value), unless_set=True) for key, value in sorted(log_opts.items()))
    if live_restore is not None:
        found.append(Setting(("live-restore",), live_restore))
    return found


def original_daemon_json(text: str | None, record: Mapping[str, Any]) -> str | None:
    """Return the file as it was before the first run, or as others have changed it since."""
    return record["original"] if record and parse_daemon_json(text) == parse_daemon_json(record.get("ours")) else text


def without_flags(wanted: Sequence[Setting], flags: Sequence[str]) -> tuple[list[Setting], list[str]]:
    """Return the settings that no option on the daemon's command line excludes, and one sentence per option that does."""
    given = {flag.split("=", 1)[0] for flag in flags}
    excluded = {key for key, flag in FLAGS.items() if flag in given}
    if excluded & {"log-driver", "log-opts"}:
        excluded |= {"log-driver", "log-opts"}
    kept = [setting for setting in wanted if setting.path[0] not in excluded]
    keys = sorted({setting.path[0] for setting in wanted} & excluded)
    return kept, [f"{key} is not set, because the Docker daemon is started with {FLAGS[key]}" for key in keys]


def _leaves(data: Mapping[str, Any]) -> dict[str, Any]:
    """Return the values by their dotted names; of a limit or a log option, that of each one."""
    found: dict[str, Any] = {}
    for key, value in data.items():
        found.update({f"{key}.{name}": each for name, each in value.items()} if key in ("default-ulimits", "log-opts") else {key: value})
    return found


def _shown(found: Mapping[str, Any], name: str) -> str:
    return json.dumps(found[name], sort_keys=True) if name in found else "not set"


def merge_daemon_json(text: str | None, wanted: Sequence[Setting], record: Mapping[str, Any]) -> Merge:
    """Return the file with the settings; all other keys stay. Without settings this is the undo. Raises DockerError."""
    base_text, now = original_daemon_json(text, record), _leaves(parse_daemon_json(text))
    base, data, left = parse_daemon_json(base_text), parse_daemon_json(base_text), []
    for path, value, unless_set in wanted:
        holder = data if len(path) == 1 else data.setdefault(path[0], {})
        if not unless_set or path[-1] not in holder:
            holder[path[-1]] = value
        elif holder[path[-1]] != value:
            left.append(f"{'.'.join(path)} stays {json.dumps(holder[path[-1]], sort_keys=True)}, which the user has chosen")
    if not wanted and record and base_text == text != record["original"]:
        left.append(f"{DAEMON_JSON} was changed since the first run, so it stays")
    then = _leaves(data)
    changes = [f"{name}: {_shown(now, name)} -> {_shown(then, name)}" for name in sorted({*now, *then}) if _shown(now, name) != _shown(then, name)]
    after = base_text if data == base else text if not changes else render_daemon_json(data, base_text)
    return Merge(after, {"original": base_text, "ours": after} if data != base else {}, changes, left)
