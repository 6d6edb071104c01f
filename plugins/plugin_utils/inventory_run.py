# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run was started with: the tags of its playbook, and the inventories that were given. Controller only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import command_line
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

DEFAULT_SOURCES = ("/etc/ansible/hosts", "localhost,")  # without -i
PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"


def _plays(path: Path) -> Iterator[dict[str, Any]]:
    content = yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader) if path.is_file() else []  # noqa: S506  a safe loader
    for play in content:
        yield play
        if isinstance(play.get("ansible.builtin.import_playbook"), str):
            yield from _plays(path.parent / play["ansible.builtin.import_playbook"])


def own_playbooks(playbooks: Sequence[str]) -> list[Path]:
    """Return the paths of the playbooks. Empty if one is not of this collection."""
    paths = [PLAYBOOKS / f"{each.rpartition('.')[2]}.yml" if each.startswith("gb10.cluster.") else Path(each) for each in playbooks]
    own = [path.resolve() for path in paths]
    return own if all(path.parent == PLAYBOOKS or path == PLAYBOOKS.parent / "site.yml" for path in own) else []


def is_check_alone() -> bool:
    """Report whether inventory.yml was started by itself, and no other playbook imports it."""
    return [path.name for path in own_playbooks([str(each) for each in context.CLIARGS.get("args") or ()])] == ["inventory.yml"]


def tags_of(playbooks: Sequence[str]) -> list[str]:
    """Return the tags of the plays, in order. Empty if a playbook is not one of this collection, whose roles may have tags of their own."""
    tags = [play["tags"] for path in own_playbooks(playbooks) for play in _plays(path) if play.get("tags")]
    flat = [str(tag) for each in tags for tag in (each if isinstance(each, list) else [each])]
    return [tag for tag in dict.fromkeys(flat) if tag != "always"]


def skipped(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return what is wrong with the options of a command line that leave out the check of the inventory; an empty text if nothing is."""
    tag = next((each for tags in arguments.get("skip_tags") or () for each in str(tags).split(",") if each in ("all", "always", "tagged")), "")
    start = "it leaves out the check of the inventory, and tasks on which later ones depend; select a role with --tags, such as --tags sysctl"
    skip = f"{tag} leaves out the check of the inventory; name the roles that are not to run, such as --skip-tags weights"
    return {"--start-at-task": start if arguments.get("start_at_task") else "", "--skip-tags": skip if tag else ""}


def source_fault(sources: Sequence[str], has_hosts: bool = False) -> str:
    """Return what is wrong with the inventories of the command line; empty if they exist.

    :param has_hosts: whether a run without an inventory has hosts.
    """
    missing = [
        os.path.relpath(each) if os.path.isabs(each) else each
        for each in sources
        if "," not in each and each not in DEFAULT_SOURCES and not os.path.exists(each)
    ]
    if has_hosts and not missing:
        return ""
    folders = [folder for each in missing for folder in (Path(each).parent, Path(each).parent / "inventories") if folder.is_dir()]
    siblings = [str(folder / entry.name) for folder in folders for entry in sorted(folder.iterdir())]
    return command_line.source_fault(sources, missing, siblings, inventory_writer())


def inventory_writer() -> str:
    """Return the command that writes inventories/mine in the working directory; empty if it exists."""
    if os.path.exists(command_line.MINE):
        return ""
    return "make pair" if os.path.exists("Makefile") and os.path.exists("playbooks/setup.yml") else "ansible-playbook gb10.cluster.setup"
