# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The API key that a serving group has on its head without one in the inventory.

The file is an env file for the head's container. The key does not leave the node. If the group's folder was lost as a whole and a container of the group
runs, the file gets the key of that container. A file with a key is changed only if it has the key without a name, or another mode than 0600.
"""

from __future__ import annotations

import os
import re
import secrets
import stat
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._node import client
from ansible_collections.gb10.cluster.plugins.module_utils._pair.config import API_KEY
from ansible_collections.gb10.cluster.plugins.module_utils._pair.folder import Folder

NAME = "VLLM_API_KEY="
FORM = re.compile(rf"(?:{NAME})?([A-Za-z0-9_-]{{20,200}})")


def _made(folder: Folder, key: str) -> str | None:
    """Write this key, or one that is made. Return the text of the file if another run has made one meanwhile, else None. Raises OSError."""
    try:
        folder.write(API_KEY, f"{NAME}{key or secrets.token_urlsafe(32)}\n", new=True)
    except FileExistsError:
        return folder.text(API_KEY)
    return None


def _line_of(text: str) -> str:
    """Return the line of the env file for a file's text, which may have the key alone. Raises ValueError if it is not a key."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        raise ValueError("not a key")
    return f"{NAME}{found[1]}"


def _environments(group: str) -> list[list[str]]:
    """Return the environment of each container of the group that runs; none if the Docker Engine does not answer."""
    try:
        entries = client.list_containers([f"gb10.cluster.group={group}"], client.DEFAULT_SOCKET, stopped=False)
        running = [client.inspect(entry["Id"], client.DEFAULT_SOCKET) for entry in entries]
    except client.DockerError:  # the role has reported it
        return []
    return [list((each.get("Config") or {}).get("Env") or []) for each in running if each]


def in_use(directory: str, group: str) -> str:
    """Return the key that the group runs with if its folder was lost as a whole, else empty: who removes the file wants a new key."""
    if os.path.lexists(os.path.join(directory, "releases")):
        return ""
    found = {match[1] for each in _environments(group) for line in each if line.startswith(NAME) and (match := FORM.fullmatch(line))}
    return found.pop() if len(found) == 1 else ""


def keep(directory: str, group: str, check: bool) -> dict[str, Any]:
    """Keep the key, or with `check` return what would be done.

    Returns `path`, `due` (whether the file is written), `new` (whether the key is a new one, or a container of the group runs with another one), and `diff`
    without the key; only `msg`, a sentence, if there is a file that is not a key or cannot be read or written.
    """
    folder, path = Folder(directory), os.path.join(directory, API_KEY)
    remedy = f"Remove {path}: the next run makes a new key and starts the group with it."
    new = due = False
    try:
        text = folder.text(API_KEY)
        if text is None:
            known = in_use(directory, group)
            text = None if check else _made(folder, known)
            due = text is None
            new = due and not known
        if text is not None:
            line = _line_of(text)
            due = text != f"{line}\n" or stat.S_IMODE(os.stat(path).st_mode) != 0o600
            if due and not check:
                folder.write(API_KEY, f"{line}\n")
            new = any(line not in each for each in _environments(group))
    except ValueError:
        return {"msg": f"{path} is not an API key: {NAME} with 20 to 200 letters, digits, - and _ is expected. {remedy}"}
    except OSError as error:
        return {"msg": f"The API key of the group cannot be read or made: {path}: {error.strerror}. A link is not followed. {remedy}"}
    before = "" if text is None else "(a key with another mode or form)\n" if due else "(a key)\n"
    return {"path": path, "due": due, "new": new, "diff": {"before_header": path, "after_header": path, "before": before, "after": "(a key)\n"}}
