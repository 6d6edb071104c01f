# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PUBLIC: the cluster variables, and the faults that the check of an inventory reports. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

# The group that holds every host; its child groups are the serving groups.
ROOT_GROUP = "gb10"

# The cluster variables. The keys are those of an option in argument_specs, so one tool documents and checks both.
CLUSTER_SPEC: dict[str, dict[str, Any]] = {
    "gb10_profile": {
        "type": "str",
        "default": "b12x-fp8-1m",
        "description": ["The profile that the pair serves: a shipped one, or one of C(gb10_profiles)."],
    },
    "gb10_profiles": {
        "type": "dict",
        "default": {},
        "description": ["Your profiles, a mapping of names to profiles. A profile can extend a shipped one and set only what differs."],
    },
    "gb10_profiles_directory": {
        "type": "path",
        "default": "own-profiles",
        "description": [
            "Directory on the controller with profiles of your own, one C(NAME.yml) each, which C(import.yml) writes. C(gb10_profiles) wins over a file of",
            "the same name. A relative path starts where ansible-playbook runs.",
        ],
    },
    "gb10_model_store": {
        "type": "path",
        "default": "/srv/models",
        "description": [
            "Directory of the model weights on every node: a Hugging Face cache (C(hub/models--*)), or one folder for each model. The profile decides.",
            "To serve weights that C(hf download) stored in C(~/.cache/huggingface), set the full path of that directory. The profile must read a cache.",
        ],
    },
    "gb10_fabric_cidrs": {
        "type": "list",
        "elements": "str",
        "default": ["192.168.200.0/24", "192.168.201.0/24"],
        "description": ["The IPv4 networks of the QSFP link, one for each rail. The networks of two serving groups must not overlap."],
    },
    "gb10_fabric_first": {
        "type": "int",
        "default": 11,
        "description": ["Rank r gets the address network + C(gb10_fabric_first) + r on each rail: rank 0 is 192.168.200.11 by default."],
    },
    "gb10_fabric_addresses": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": ["The fabric addresses of this host, one for each rail, if they do not follow from its rank. Set it in C(host_vars)."],
    },
    "gb10_serving_groups": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": ["The inventory groups that each serve one model. Empty selects every group whose hosts are all in C(gb10)."],
    },
    "gb10_rank": {
        "type": "int",
        "default": None,
        "description": ["The rank of this host in its serving group, if it does not follow from the order of the hosts. Rank 0 is the head."],
    },
    "gb10_receipts": {
        "type": "path",
        "default": "receipts",
        "description": ["Directory on the controller for the receipts of passed boots. A relative path starts where ansible-playbook runs."],
    },
    "gb10_evidence": {
        "type": "path",
        "default": "evidence",
        "description": ["Directory on the controller for the evidence of failed boots. A relative path starts where ansible-playbook runs."],
    },
    "gb10_lock_file": {
        "type": "path",
        "default": None,
        "description": [
            "Lock file on the controller with the content of each unpinned image and each model. Default is C(.gb10.lock.yml) next to the inventory.",
            "Without an inventory file (C(-i host,)), it is in the folder where ansible-playbook runs.",
            "The first run writes an entry. A later run refuses another content before it stops anything.",
        ],
    },
    "gb10_lock_update": {
        "type": "bool",
        "default": False,
        "description": ["Accept images and models that differ from the lock file, and record them."],
    },
    "gb10_foreign_variables": {
        "type": "list",
        "elements": "str",
        "default": [],
        "description": ["Names (with C(*) and C(?)) of variables of other collections that look like variables of this one, such as C(docker_users)."],
    },
}

# Extra variables of setup.yml, which checks them itself.
_SETUP = ("setup_head", "setup_worker", "setup_user", "setup_write", "setup_inventory")

# Variables that only a playbook reads, for the command line (-e). Those of the roles are in their argument_specs.
#
# A new variable needs one line here, in the form of an option in argument_specs: `type`, `default`, and `choices` or `elements` if it has them. The
# check then knows its name (a misspelt -e is refused with it) and refuses a value of a wrong type. A range or a pattern is one more line, in RULES
# of rules.py. A variable that is the default of a role's option ("{{ since | default('10m') }}") needs no line: it is found there, with its type.
PLAYBOOK_SPEC: dict[str, dict[str, Any]] = {
    "inventory_check_examples": {"type": "str", "choices": ["fail", "warn"], "default": "fail"},
    "inventory_check_group_stages": {"type": "list", "elements": "str", "default": []},
    "reboot_all": {"type": "bool", "default": False},
    "reboot_timeout": {"type": "int", "default": 900},
    "recipe": {"type": "path", "default": ""},
    "profile_name": {"type": "str", "default": ""},
    "dest": {"type": "path", "default": ""},
    "env_file": {"type": "path", "default": ""},
    "service": {"type": "str", "default": ""},
    "output": {"type": "str", "choices": ["text", "json"], "default": "text"},
    "force": {"type": "bool", "default": False},
    **{name: {"type": "raw", "default": None} for name in _SETUP},
}


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
