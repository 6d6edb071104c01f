# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's paths on a node, and its configuration."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads

PROGRAM = "/usr/local/sbin/gb10"
CONFIG = "/etc/gb10-cluster/agent.json"
KEYS = "/var/lib/gb10-cluster/agent"
KEY_NAME = "id_ed25519"
KNOWN_HOSTS_NAME = "known_hosts"
KEY = f"{KEYS}/{KEY_NAME}"
KNOWN_HOSTS = f"{KEYS}/{KNOWN_HOSTS_NAME}"
RUN = "/run/gb10-agent"
ADMIN_NAME = "admin.sock"
ADMIN_SOCKET = f"{RUN}/{ADMIN_NAME}"
SESSION_NAME = "session.sock"
#: On workers: the user that the head logs in as, and its group, which owns the session socket.
USER = "gb10-agent"
HOME = "/var/lib/gb10-agent"
SSH = f"{HOME}/.ssh"
AUTHORIZED = f"{SSH}/authorized_keys"
CONNECT = f"{PROGRAM} connect"
UNIT = "gb10-agent.service"
UNIT_FILE = f"/etc/systemd/system/{UNIT}"
#: In the folder of the group: the folders of state and of evidence, the mark of a stop; and files of the state of every rank.
STATE, EVIDENCE, STOPPED = "agent", "evidence", "stopped"
API_KEY = "api_key"  # on the head: an env file with the key that the first run made
OWNER, HOLDS, FABRIC = "owner.json", "holds.json", "fabric.json"


class ConfigError(Exception):
    """The agent's configuration cannot be used. The text is a sentence with the remedy."""


def load(path: str = CONFIG) -> dict[str, Any]:
    """Return the configuration, which root alone may read: it can hold the URL of a webhook. Raises ConfigError, PermissionError."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = loads(handle.read())
    except FileNotFoundError as error:
        raise ConfigError(f"This node has no agent: {path} does not exist. Run site.yml.") from error
    except PermissionError:
        raise
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}. Run site.yml.") from error
    return {"peers": [], "watch": {}, **found}


def group_folder(config: Mapping[str, Any]) -> str:
    """Return the folder of the serving group."""
    return os.path.join(str(config["directory"]), str(config["group"]))


def host_alias(rank: int) -> str:
    """Return the name of a worker in known_hosts."""
    return f"gb10-rank{rank}"
