# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: faults of files and of extra variables that end Ansible itself, before a play can check anything. Controller only.

Ansible reports such a fault once for each of its inventory plugins, and with the lines around it, which can have a secret.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import yaml
from ansible import constants, context
from ansible.errors import AnsibleError
from ansible.inventory.manager import split_host_pattern
from ansible.parsing.splitter import parse_kv, split_args
from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.command_line import limit_faults, source_fault
from ansible_collections.gb10.cluster.plugins.plugin_utils import inventory_run
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import Located, neighbours, short
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Entry, Index, pairs, scan, yaml_fault
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

NOT_DECRYPTED = "is encrypted, and the vault password is missing or wrong; run with --ask-vault-pass or --vault-password-file"
EXTRA = "the extra variables (-e)"


def extra_files(options: Iterable[str]) -> list[Path]:
    """Return the files of extra variables."""
    return [Path(os.path.expanduser(each[1:])) for each in options if each.startswith("@")]


def extra_places(options: Iterable[str], index: Index) -> dict[str, Entry]:
    """Return the places of the extra variables that come from a file: of each name the last one, which wins."""
    found: dict[str, Entry] = {}
    for option in options:
        if option.startswith("@"):
            (path,) = extra_files([option])
            found.update({key: entries[-1] for (kind, owner, key), entries in index.entries.items() if (kind, owner) == ("extra", str(path))})
            continue
        try:
            names = [key for key, _line, _value in pairs(yaml.compose(option, Loader=SafeLoader))] if option.startswith("{") else parse_kv(option)
        except (ValueError, yaml.YAMLError, AnsibleError):
            continue
        found = {key: entry for key, entry in found.items() if key not in names}
    return found


def faults(
    sources: Sequence[str], play_directories: Iterable[str], options: Sequence[str], own: bool = False, limit: str = "", start_at: str = ""
) -> list[Located]:
    """Return what Ansible cannot read, and what ends it without a play.

    :param sources: the absolute paths of the inventory.
    :param options: the values of ``-e``, as they were given.
    :param own: whether all playbooks are of this collection; ``limit`` is then the value of ``--limit``, ``start_at`` that of ``--start-at-task``.
    """
    index = scan(sources, play_directories, extra_files(options))
    found = unreadable(index)
    missing = inventory_run.missing_sources(sources) if own else []
    if missing:  # Ansible warns of it, and goes on
        found.append(Located("the command line", 0, "-i", source_fault(sources, missing, inventory_run.siblings(missing), inventory_run.inventory_writer())))
    for option in options:
        found += _missing(option[1:]) if option.startswith("@") else _text_faults(option)
    if start_at:
        text = "it leaves out the check of the inventory, and tasks on which later ones depend; select a role with --tags, such as --tags sysctl"
        found.append(Located("the command line", 0, "--start-at-task", text))
    if own:
        found += _setting_faults() + _not_decrypted(index)
    if limit and not found:
        found += [Located("the command line", 0, "--limit", text) for text in limit_faults(split_host_pattern(limit), _names(index, sources))]
    return found


def _setting_faults() -> list[Located]:
    """What of Ansible's settings leaves out the check of the inventory, or plays that have to run in step."""
    found = []
    skipped = next((tag for tag in context.CLIARGS.get("skip_tags") or () for tag in str(tag).split(",") if tag in ("all", "always", "tagged")), "")
    if skipped:
        text = f"{skipped} leaves out the check of the inventory; name the roles that are not to run, such as --skip-tags weights"
        found.append(Located("the command line", 0, "--skip-tags", text))
    if not str(constants.DEFAULT_STRATEGY).endswith(("linear", "debug")):
        text = f"is {constants.DEFAULT_STRATEGY!r}, expected linear: the ranks of a group wait for each other; remove it from ansible.cfg or the environment"
        found.append(Located("the settings of Ansible", 0, "strategy", text))
    return found


def _not_decrypted(index: Index) -> list[Located]:
    """Encrypted files that Ansible reads for each play, in a run without a vault password."""
    given = [context.CLIARGS.get(name) for name in ("ask_vault_pass", "ask_vault_passwords", "vault_password_files", "vault_ids")]
    if any(given) or constants.DEFAULT_VAULT_PASSWORD_FILE or constants.DEFAULT_VAULT_IDENTITY_LIST:
        return []
    of_all = [path for path, _kind, owner in index.owners if owner == "all"]
    return [Located(short(path), 0, "vault", f"the file {NOT_DECRYPTED}") for path in index.encrypted if path in of_all]


def _names(index: Index, sources: Iterable[str]) -> list[str]:
    """Return the names of the hosts and groups; none if there can be others."""
    names = [owner for _kind, owner, key in index.entries if owner == key]
    listed = [each for source in sources if "," in source for each in source.split(",") if each]
    other = index.partial or index.encrypted or any(not os.path.exists(each) and "," not in each for each in sources)
    return [] if other or any(re.search(r"[\[:]", each) for each in [*names, *listed]) else [*names, *listed]


def unreadable(index: Index) -> list[Located]:
    """Return the faults of the files of an inventory."""
    first = {(path, text): line for path, line, text in reversed(index.unreadable)}  # of one mistake in several lines, the first
    return [Located(short(path), line, _kind(path), text) for path, line, text in index.unreadable if first[path, text] == line]


def _kind(path: Path) -> str:
    return "folder" if path.is_dir() else "INI" if path.suffix == ".ini" else "YAML"


def _missing(name: str) -> Iterator[Located]:
    path = Path(os.path.expanduser(name))
    if not path.exists():
        yield Located(EXTRA, 0, f"@{name}", f"{name} was not found{did_you_mean(str(path), neighbours(path))}")


def _text_faults(option: str) -> Iterator[Located]:
    """What is wrong with variables on the command line. No sentence contains a part of the text, which can be a secret."""
    if option[:1] in ("/", "."):
        name = os.path.relpath(option) if os.path.isabs(option) and not os.path.relpath(option).startswith("..") else option
        yield Located(EXTRA, 0, "-e", f"{name} looks like a file; write -e @{name}")
    elif option[:1] in ("{", "["):
        try:
            node = yaml.compose(option, Loader=SafeLoader)
        except yaml.YAMLError as error:
            problem = yaml_fault(error)[1].partition("(")[2].rstrip(")")
            yield Located(EXTRA, 0, "-e", f'the text after -e is not valid JSON or YAML ({problem}); write -e \'{{"name": "value"}}\'')
            return
        if not isinstance(node, yaml.MappingNode):
            yield Located(EXTRA, 0, "-e", "the text after -e is a list, expected NAME=VALUE or a mapping")
    else:
        try:
            split_args(option)
        except AnsibleError:
            yield Located(EXTRA, 0, "-e", "a quotation mark or a bracket of a template is not closed")
