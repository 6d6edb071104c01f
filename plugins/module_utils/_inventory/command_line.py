# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a user types: tags, extra variables, paths of an inventory. Pure, standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import PurePath

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean

# What setup.yml writes.
MINE = "inventories/mine"
# Words of Ansible itself.
SPECIAL_TAGS = ("all", "always", "never", "tagged", "untagged")


def tag_faults(given: Mapping[str, Sequence[str]], known: Sequence[str]) -> list[tuple[str, str]]:
    """Return (option, sentence) of each tag that the playbook does not have; `given` has the tags of each option. Without known tags nothing is a fault."""
    found = []
    for option, tags in given.items():
        for tag in tags if known else ():
            if tag not in (*SPECIAL_TAGS, *known):
                hint = "; separate tags with a comma" if " " in tag else did_you_mean(tag, known)
                found.append((option, f"{tag} is not a tag of this playbook{hint}; known are {', '.join(known)}"))
    return found


def extra_fault(name: str, specs: Iterable[str], short: Iterable[str], prefixes: Iterable[str]) -> str:
    """Return what is wrong with an extra variable that nothing reads; empty if something does, or if it is not near a name.

    :param short: names for the command line. A prefix is that of a role's variables.
    """
    brief = list(short)
    known = [*specs, *brief]
    if name in known:
        return ""
    ends = [prefix + name for prefix in prefixes if prefix + name in known]
    hint = f"; did you mean {'one of ' if len(ends) > 1 else ''}{', '.join(ends)}?" if ends else did_you_mean(name, known, 0.85)
    if not hint and len(name) > 4:  # one wrong letter of five
        hint = did_you_mean(name, brief, 0.8)
    return f"is not a variable of this collection{hint}" if hint else ""


def raw_fault(text: str, known: Iterable[str]) -> str:
    """Return the sentence about words after ``-e`` that set nothing. Only the name of a variable is shown: another word can be a part of a secret."""
    words = [each.rstrip(":") for each in text.split()]  # of YAML
    word = next((each for each in words if each in known or did_you_mean(each, known, 0.85)), "")
    if word:
        return f"{word} has no value, expected {word}=VALUE"
    return "a word has no name and '='; expected NAME=VALUE, and a value with spaces in quotes: -e \"NAME='two words'\""


def forks_fault(forks: int, groups: Mapping[str, Sequence[str]]) -> str:
    """Return why fewer hosts at once than a serving group has cannot work; empty if they are enough."""
    largest = max(groups, key=lambda name: len(groups[name]), default="")
    if not largest or forks >= len(groups[largest]):
        return ""
    return f"is {forks}, and the {len(groups[largest])} ranks of {largest} wait for each other; use {len(groups[largest])} or more"


def source_fault(sources: Iterable[str], missing: Iterable[str], siblings: Iterable[str], writer: str = "") -> str:
    """Return the sentence about an inventory that was not given or does not exist; empty if there is one.

    :param missing: the sources that do not exist; ``siblings`` are the inventories near them.
    :param writer: the command that writes inventories/mine; empty if it exists.
    """
    absent, given = list(missing), list(sources)
    if absent:
        known = list(siblings)
        same = next((each for each in known if PurePath(each).name == PurePath(absent[0]).name), "")
        hint = f"; did you mean {same}?" if same else did_you_mean(absent[0], known, 0.75)
        if not hint and writer and PurePath(absent[0]) == PurePath(MINE):
            hint = f". Run `{writer}`, which writes it"
        return f"{absent[0]} does not exist{hint}"
    if not given:
        return f"no inventory was given. {f'Run `{writer}`, which writes {MINE}, and add' if writer else 'Add'} -i {MINE}"
    if all("," in each for each in given):
        return f"is a list of hosts, which has no groups; give an inventory such as {MINE}{f', which `{writer}` writes' if writer else ''}"
    return ""
