# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run was started with: the tags of its playbook, and the inventories that were given. Controller only."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible import constants as C  # noqa: N812  its usual name
from ansible import context
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean

MINE = "inventories/mine"  # what setup.yml writes
DEFAULT_SOURCES = ("/etc/ansible/hosts", "localhost,")  # without -i
PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"
_SPECIAL_TAGS = ("all", "always", "never", "tagged", "untagged", "reboot")  # words of Ansible itself, and the tag of reboot.yml


def own_playbooks(playbooks: Sequence[str] | None = None) -> list[Path]:
    """Return the paths of playbooks, without an argument those of the command line. Empty if one is not of this collection."""
    given = [str(each) for each in context.CLIARGS.get("args") or ()] if playbooks is None else playbooks
    paths = [PLAYBOOKS / f"{each.rpartition('.')[2]}.yml" if each.startswith("gb10.cluster.") else Path(each) for each in given]
    own = [path.resolve() for path in paths]
    return own if all(path.parent == PLAYBOOKS or path == PLAYBOOKS.parent / "site.yml" for path in own) else []


def is_check_alone() -> bool:
    """Report whether inventory.yml was started by itself, and no other playbook imports it."""
    return [path.name for path in own_playbooks()] == ["inventory.yml"]


def tag_faults(given: Mapping[str, Sequence[str]], known: Sequence[str], own: bool) -> list[tuple[str, str]]:
    """Return (option, sentence) of each tag that no role has: a run with it would do nothing. A playbook that is not our `own` can have other tags.

    There, only a tag that is nearly the name of a role is a fault.
    """
    hints = [(option, tag, did_you_mean(tag, known)) for option, tags in given.items() for tag in tags if tag not in (*known, *_SPECIAL_TAGS)]
    return [(option, f"{tag} is not a tag of these playbooks{hint or '.'} Known are {', '.join(known)}") for option, tag, hint in hints if hint or own]


def skipped(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with the options of a command line that leave out the check of the inventory; an empty text if nothing is."""
    tag = next((each for tags in arguments.get("skip_tags") or () for each in str(tags).split(",") if each in ("all", "always", "tagged")), "")
    start = "it leaves out the check of the inventory, and tasks on which later ones depend; select a role with --tags, such as --tags sysctl"
    skip = f"{tag} leaves out the check of the inventory; name the roles that are not to run, such as --skip-tags weights"
    return {"--start-at-task": start if arguments.get("start_at_task") else "", "--skip-tags": skip if tag else ""}


def source_fault(sources: Sequence[str], has_hosts: bool = False) -> str:
    """Return what is wrong with the inventories of the command line; empty if they exist.

    :param has_hosts: whether a run without an inventory has hosts. Then the one of ansible.cfg need not exist, if it is MINE.
    """
    writer = inventory_writer()
    optional = (*DEFAULT_SOURCES, *(each for each in C.DEFAULT_HOST_LIST if has_hosts and each.endswith(f"/{MINE}")))
    missing = [each for each in sources if "," not in each and each not in optional and not os.path.exists(each)]
    if not missing:
        add = f"Run `{writer}`, which writes {MINE}, and add" if writer else "Add"
        return "" if sources or has_hosts else f"no inventory was given. {add} -i {MINE}"
    absent = Path(os.path.relpath(missing[0]) if os.path.isabs(missing[0]) else missing[0])
    siblings = [str(each) for folder in (absent.parent, absent.parent / "inventories") if folder.is_dir() for each in sorted(folder.iterdir())]
    same = next((each for each in siblings if Path(each).name == absent.name), "")
    hint = f"; did you mean {same}?" if same else did_you_mean(absent, siblings, 0.75)
    if writer and absent == Path(MINE):
        hint = f". Run `{writer}`, which writes it"
    return f"{absent} does not exist{hint}"


def inventory_writer() -> str:
    """Return the command that writes inventories/mine in the working directory; empty if it exists."""
    if os.path.exists(MINE):
        return ""
    return "make pair" if os.path.exists("Makefile") and os.path.exists("playbooks/setup.yml") else "ansible-playbook gb10.cluster.setup"
