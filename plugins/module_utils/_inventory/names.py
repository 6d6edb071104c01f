# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: names of variables: the options of the roles, misspelt names, names of secrets. Pure, standard library only."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import redact
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

# Variables of Ansible that lead to a host, and are written by hand.
_CONNECTION = (
    *("ansible_host", "ansible_port", "ansible_user", "ansible_password", "ansible_ssh_private_key_file", "ansible_private_key_file"),
    *("ansible_become_password", "ansible_become_pass"),
)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
#: Why a build argument that is a secret is refused, and what to do; ends a sentence.
BUILD_ARGUMENT = (
    "looks like a secret, and a build argument is readable in the process list and in the image's history. Remove it, or rename it if it is not one. "
    "Give a proxy without user and password. For a private source, build the image elsewhere, and pull it after docker login on the nodes"
)


def is_secret(name: str, spec: Mapping[str, Any] | None = None) -> bool:
    """Report whether the value of a variable must not be shown, by its spec or by its name."""
    return bool(spec and spec.get("no_log")) or redact.is_secret(name)


def name_fault(kind: str, name: str) -> str:
    """Return what is wrong with the name of a serving group or a host, which becomes a part of paths and units; empty if nothing is."""
    more, most = {"group": ("_-", 41), "host": ("._-", 61)}[kind]
    if re.fullmatch(rf"[A-Za-z0-9][A-Za-z0-9{more}]{{0,{most - 1}}}", name) and ".." not in name:
        return ""
    return f"has the name {name!r}, expected a letter or digit and at most {most - 1} more, or {', '.join(more)}. Rename the {kind}"


def is_computed(default: Any) -> bool:
    """Report whether a default is a template."""
    return isinstance(default, str) and "{{" in default


def role_options(specs: Mapping[str, Any], defaults: Mapping[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """Return the options of one role's ``argument_specs`` document, of all its entry points.

    Ansible requires a documented default of the option's type, so a template for a list or a mapping is only in ``defaults``
    (defaults/main.yml of the role) and is added here.
    """
    out: dict[str, dict[str, Any]] = {}
    for entry in (specs.get("argument_specs") or {}).values():
        for name, option in ((entry or {}).get("options") or {}).items():
            out.setdefault(str(name), option or {})
    for name, value in (defaults or {}).items():
        if is_computed(value) and "default" not in out.get(name, {"default": None}):
            out[name] = {**out[name], "default": value}
    return out


def unknown_variable(name: str, known: Mapping[str, Any], prefixes: Mapping[str, str], foreign: Sequence[str] = (), typed: bool = False) -> tuple[str, bool]:
    """Return a sentence if a variable looks like one of this collection and is not one, and whether it is nearly one. Another role can have the others.

    :param known: every variable of the collection.
    :param prefixes: prefix (with its underscore) to its owner, such as ``vllm_tp2_`` to ``the role vllm_tp2``.
    :param foreign: names and wildcards of the user's other variables.
    :param typed: whether it was typed for this run (``-e``), so that more is meant for this collection.
    """
    if name in known or any(fnmatch.fnmatchcase(name, pattern) for pattern in foreign):
        return "", False
    if name.startswith("ansible_"):
        hint = did_you_mean(name, _CONNECTION, 0.9) if name not in _CONNECTION else ""
        return (f"is not a variable of Ansible{hint}", True) if hint else ("", False)
    right = next((each for each in (name.lower(), _CAMEL.sub("_", name).lower(), name.replace("-", "_")) if each != name and each in known), "")
    owner = max((prefix for prefix in prefixes if name.startswith(prefix)), key=len, default="")
    ends = [prefix + name.removeprefix(owner) for prefix in prefixes if (typed or "_" in name) and prefix + name.removeprefix(owner) in known]
    if right or (ends and (not owner or (owner == "gb10_" and len(ends) == 1))):
        of_role = ends and not ends[0].startswith("gb10_")
        return f"is not a variable of this collection; did you mean {right or ' or '.join(ends if of_role else ends[:1])}?", True
    if not owner:
        alike = name.startswith(tuple(prefix.partition("_")[0] + "_" for prefix in prefixes))
        hint = did_you_mean(name, known, 0.8 if typed else 0.85 if alike else 0.9)
        return (f"is not a variable of this collection{hint}", True) if hint else ("", False)
    hint = did_you_mean(name, known, 0.85)
    other = "; correct the name, remove it, or list it in gb10_foreign_variables if another role reads it"
    return f"is not a variable of {prefixes[owner]}{hint or other}", bool(hint)
