# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the cluster variables, and the faults that the check of an inventory reports. Controller only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ansible.module_utils.common.yaml import HAS_YAML, yaml_load

# The group that holds every host; its child groups are the serving groups.
ROOT_GROUP = "gb10"

# The cluster variables, and variables that only a playbook reads, both as options of argument_specs.
_FILE = Path(__file__).resolve().parents[3] / "meta/argument_specs.yml"
# ansible-test imports this file in a Python without YAML. A controller has it.
_SPECS: dict[str, Any] = yaml_load(_FILE.read_text(encoding="utf-8"))["argument_specs"] if HAS_YAML else {}
CLUSTER_SPEC: dict[str, dict[str, Any]] = _SPECS.get("cluster", {}).get("options", {})
PLAYBOOK_SPEC: dict[str, dict[str, Any]] = _SPECS.get("playbooks", {}).get("options", {})


class Place(NamedTuple):
    """Where a variable is set or should be set: ``kind`` is ``host`` or ``group``, ``name`` its name, ``key`` the variable.

    ``below`` leads to a part of the value. With ``own`` it must be set for ``name`` itself, not for a group above it.
    """

    kind: str
    name: str
    key: str
    below: tuple[str | int, ...] = ()
    own: bool = False


@dataclass(frozen=True)
class Fault:
    """One fault: the ``place`` to change, and a sentence without file and line.

    ``example`` marks what is a warning in a check of the inventory alone: an address of the example, an image that cannot be built. ``among`` are
    hosts with another value: if the value of the place is set for a group and one of theirs is set for the host, theirs is the one to change.
    """

    place: Place
    text: str
    example: bool = False
    among: tuple[str, ...] = ()


def is_list(value: Any) -> bool:
    """Report whether a value is a list."""
    return isinstance(value, Sequence) and not isinstance(value, (str, bytes))


def default_of(name: str) -> Any:
    """Return the default of a cluster variable."""
    return CLUSTER_SPEC[name]["default"]


def value_of(variables: Mapping[str, Any], name: str) -> Any:
    """Return a cluster variable of one host, or its default if it is undefined, null or empty."""
    value = variables.get(name)
    return default_of(name) if value is None or value == "" else value


def whole_number(value: Any) -> int | None:
    """Return a number that may be written as text; None if the value is not a whole number from 0."""
    valid = isinstance(value, (int, str)) and not isinstance(value, bool) and str(value).isdecimal()
    return int(value) if valid else None


def split_by_majority(values: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Return the hosts with the most frequent value and the others. Of equally frequent values, the one of the first host counts.

    :param values: host name to its value of one variable.
    """
    every = list(values.values())
    most = max(every, key=every.count, default=None)
    return [host for host in values if values[host] == most], [host for host in values if values[host] != most]
