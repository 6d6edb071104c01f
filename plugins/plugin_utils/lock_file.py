# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the lock file next to the inventory: the content of each image and model of the first run. Controller only."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Mapping
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically

NAME = ".gb10.lock.yml"
HEAD = "# Written by gb10.cluster. Keep it under version control. To accept another image or model, delete its entry, or run with -e gb10_lock_update=true.\n"


def path_of(given: object, folder: object) -> str:
    """Return the path of the lock file: the one that is given (``gb10_lock_file``), or that of an inventory's folder."""
    folder = folder if os.path.isdir(str(folder or "")) else "."  # -i host, has none, which Ansible writes as "None"
    return os.path.abspath(os.path.expanduser(str(given or os.path.join(str(folder), NAME))))


def entries_of(path: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the entries of a lock file by kind and name. Raises AnsibleActionFail."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = yaml.safe_load(handle) or {}
        return {str(kind): {str(name): dict(entry) for name, entry in (entries or {}).items() if entry} for kind, entries in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise AnsibleActionFail(f"The lock file {path} cannot be read ({error}). Nothing was stopped. Correct or delete it.") from error


def difference(entry: Mapping[str, Any], found: Mapping[str, Any]) -> str:
    """Return how a content differs from its entry; empty if all that both have is equal. A value of `found` can be a list of equal values.

    A fingerprint covers the whole image: the digest of a copy depends on the store of its engine.
    """
    common = sorted(set(entry) & {key for key, value in found.items() if value})
    common = ["fingerprint"] if "fingerprint" in common else common
    if not common:
        return f"the entry has {', '.join(sorted(entry)) or 'nothing'}, found is {', '.join(sorted(found))}"
    known = {key: found[key] if isinstance(found[key], list) else [str(found[key])] for key in common}
    return "; ".join(f"{key}: expected {entry[key]}, found {known[key][0]}" for key in common if str(entry[key]) not in known[key])


def compare(path: str, pin: Mapping[str, Any], update: bool, check_mode: bool) -> dict[str, Any]:
    """Compare a content with its entry, and write the entry if there is none. Return the result of the task. Raises AnsibleActionFail.

    :param pin: ``kind`` (images or models), ``name``, and ``found``, kinds of proof with their values. Without one an entry is required.
    """
    try:
        folder = os.open(os.path.dirname(path), os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX)  # the heads of other serving groups write their entries at the same time
            return _compare(path, pin, update, check_mode)
        finally:
            os.close(folder)
    except OSError as error:
        raise AnsibleActionFail(
            f"The lock file {path} cannot be written ({error.strerror}). Nothing was stopped. Create the folder or make it writable, or set gb10_lock_file."
        ) from error


def _compare(path: str, pin: Mapping[str, Any], update: bool, check_mode: bool) -> dict[str, Any]:
    kind, name, found, entries = str(pin["kind"]), str(pin["name"]), pin["found"], entries_of(path)
    entry = entries.get(kind, {}).get(name)
    if not found and not entry:
        raise AnsibleActionFail(
            f"trust-remote-code runs code of {name}, and neither its revision (40 hexadecimal digits) nor {path} pins it. "
            "Nothing was stopped. Run site.yml with --tags weights,vllm_tp2, which records the model, or set its revision in the profile."
        )
    wrong = difference(entry, found) if entry and found else ""
    if entry and not wrong:
        return {"changed": False, "path": path}
    if wrong and not update:
        raise AnsibleActionFail(
            f"{name} differs from {kind} in {path} ({wrong}). Nothing was stopped. "
            "To accept the new content, delete this entry or run with -e gb10_lock_update=true."
        )
    entries.setdefault(kind, {})[name] = {str(key): str(value[0] if isinstance(value, list) else value) for key, value in found.items() if value}
    if not check_mode:
        write_atomically(path, HEAD + yaml.safe_dump(entries, sort_keys=True, width=200), 0o644)
    return {"changed": True, "path": path, "msg": f"{name} {'would be' if check_mode else 'is'} recorded in {path}."}
