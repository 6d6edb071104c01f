# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a run was started with: the tags of its playbook, and the inventories that were given. Controller only."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from ansible import context
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.command_line import MINE
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

DEFAULT_SOURCES = ("/etc/ansible/hosts", "localhost,")  # without -i
PLAYBOOKS = Path(__file__).resolve().parents[2] / "playbooks"


def _plays(path: Path) -> Iterator[dict[str, Any]]:
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=SafeLoader)  # noqa: S506  a safe loader
    except (OSError, ValueError, yaml.YAMLError):
        return
    for play in content if isinstance(content, list) else ():
        if isinstance(play, dict):
            yield play
            name = play.get("ansible.builtin.import_playbook")
            if isinstance(name, str):
                yield from _plays(path.parent / name)


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


def missing_sources(sources: Sequence[str]) -> list[str]:
    """Return the sources that are paths and do not exist, as the user wrote them."""
    return [
        os.path.relpath(each) if os.path.isabs(each) else each
        for each in sources
        if "," not in each and each not in DEFAULT_SOURCES and not os.path.exists(each)
    ]


def inventory_writer() -> str:
    """Return the command that writes inventories/mine in the working directory; empty if it exists."""
    if os.path.exists(MINE):
        return ""
    return "make pair" if os.path.exists("Makefile") and os.path.exists("playbooks/setup.yml") else "ansible-playbook gb10.cluster.setup"


def siblings(missing: Sequence[str]) -> list[str]:
    """Return what lies next to the sources that do not exist."""
    found = []
    for each in missing:
        folder = Path(each).parent
        for each_folder in (folder, folder / "inventories"):
            found += [str(each_folder / entry.name) for entry in sorted(each_folder.iterdir())] if each_folder.is_dir() else []
    return found
