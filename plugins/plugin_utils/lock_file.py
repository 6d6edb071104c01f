# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the lock file of an inventory, which pins images and models. Controller only."""

from __future__ import annotations

import os

import yaml
from ansible.errors import AnsibleActionFail

NAME = ".gb10.lock.yml"


def path_of(given: object, folder: object) -> str:
    """Return the path of the lock file: the one that is given (``gb10_lock_file``), or that of an inventory's folder."""
    return os.path.abspath(os.path.expanduser(str(given or os.path.join(str(folder), NAME))))


def read(path: str) -> dict[str, dict[str, dict[str, str]]]:
    """Return the entries of a lock file by kind and name. Raises AnsibleActionFail."""
    try:
        with open(path, encoding="utf-8") as handle:
            found = yaml.safe_load(handle) or {}
        return {str(kind): {str(name): dict(entry) for name, entry in (entries or {}).items() if entry} for kind, entries in found.items()}
    except FileNotFoundError:
        return {}
    except (OSError, yaml.YAMLError, ValueError, TypeError, AttributeError) as error:
        raise AnsibleActionFail(f"The lock file {path} cannot be read ({error}). Nothing was stopped. Correct or delete it.") from error
