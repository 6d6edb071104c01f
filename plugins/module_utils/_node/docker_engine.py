# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Settings of the Docker Engine's host: limits, packages, when the daemon restarts; and daemon.json, merged and given back. Pure.

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
SERVING_LABEL = "gb10.cluster.group"  # of the containers of a serving group, which prevent a restart of the daemon
COMPOSE_MINIMUM = "2.18"  # the oldest supported version of the compose plugin
CDI_UNITS = ("nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service")
UNLIMITED = -1

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


def hard_memlock(text: str | None) -> int | None:
    """Return the hard limit of locked memory in a /proc/<pid>/limits."""
    match = re.search(r"(?m)^Max locked memory +\S+ +(\d+|unlimited)", text or "")
    return None if match is None else UNLIMITED if match.group(1) == "unlimited" else int(match.group(1))


def version_tuple(text: str | None) -> tuple[int, ...]:
    """Return the leading numbers of a version: `v2.26.1-4` is (2, 26, 1); without a number ()."""
    match = re.match(r"\s*(?:Docker Compose version )?v?(\d+(?:\.\d+)*)", text or "")
    return tuple(int(part) for part in match.group(1).split(".")) if match else ()


def compose_enough(found: str | None) -> bool:
    """Return whether a version of the compose plugin is at least the minimum."""
    return bool(version_tuple(found)) and version_tuple(found) >= version_tuple(COMPOSE_MINIMUM)


def choose_packages(engine: Engine, ubuntu: bool, vendor: bool, chosen: Sequence[str] = ()) -> list[str]:
    """Return the packages to install where the engine or a recent compose plugin is missing. An installed engine is never replaced.

    :param vendor: the engine is docker-ce.
    :param chosen: the user's list, which has priority.
    """
    packages: list[str] = []
    if not engine.unit and engine.version is None:
        packages += ["docker.io"] if ubuntu else ["docker.io", "docker-cli"]
    if not compose_enough(engine.compose):
        packages.append("docker-compose-plugin" if vendor else "docker-compose-v2" if ubuntu else "docker-compose")
    return list(chosen) if packages and chosen else packages


def render_drop_in(memlock: int) -> str:
    """Return the systemd drop-in of docker.service."""
    return f"{HEADER}\n[Service]\nLimitMEMLOCK={'infinity' if memlock == UNLIMITED else memlock}\n"


def render_limits(memlock: int) -> str:
    """Return the limits.d file, in KiB for pam_limits: for root and the users of Docker. Other users cannot take the unified memory."""
    value = "unlimited" if memlock == UNLIMITED else str(memlock // 1024)
    return "\n".join([HEADER, *(f"{who} {kind} memlock {value}" for who in ("root", "@docker") for kind in ("soft", "hard"))]) + "\n"


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
        problems.append(f"The compose plugin is {engine.compose or 'missing'}, expected {COMPOSE_MINIMUM} or later. Name its package in docker_packages.")
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


def daemon_settings(memlock: int | None, stack: int | None, log_driver: str, log_opts: Mapping[str, str]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the keys to set, and the defaults of those that the user may have set."""
    limits = {name: {"Name": name, "Hard": value, "Soft": value} for name, value in (("memlock", memlock), ("stack", stack)) if value is not None}
    defaults = {"log-driver": log_driver, "log-opts": {key: str(value) for key, value in log_opts.items()}}
    return {"default-ulimits": limits} if limits else {}, defaults if log_driver != "leave" else {}
