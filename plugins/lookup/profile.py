# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Lookup: a serving profile by name, resolved and checked."""

from __future__ import annotations

DOCUMENTATION = r"""
name: profile
author:
  - The gb10.cluster authors (@gb10-cluster)
short_description: The serving profile that an inventory selects, complete and checked
extends_documentation_fragment:
  - gb10.cluster.internal
description:
  - Reads the collection's C(profiles/*.yml), the files in O(gb10_profiles_directory) and the inventory's O(gb10_profiles), follows C(extends),
    checks every key and returns the profile with all defaults filled in.
  - Without a term it returns the profile that O(gb10_profile) names.
  - A profile of your own that carries a shipped name changes the shipped one; a null value removes a key.
options:
  _terms:
    description:
      - Names of profiles. Without one, O(gb10_profile) is used.
      - The special name V(*) returns every known profile, as a mapping of names to profiles.
    type: list
    elements: str
  gb10_profile:
    description:
      - "The profile that the pair serves: a shipped one, or one of C(gb10_profiles)."
    type: str
    vars:
      - name: gb10_profile
  gb10_profiles:
    description:
      - Your profiles, a mapping of names to profiles. A profile can extend a shipped one and set only what differs.
    type: dict
    vars:
      - name: gb10_profiles
  gb10_profiles_directory:
    description:
      - >-
        Directory on the controller with profiles of your own, one C(NAME.yml) each, which C(import.yml) writes. C(gb10_profiles) wins over a file
        of the same name. A relative path starts where ansible-playbook runs.
    type: path
    vars:
      - name: gb10_profiles_directory
seealso:
  - plugin: gb10.cluster.kv_pool_plan
    plugin_type: filter
"""

EXAMPLES = r"""
- name: Show the selected profile's image
  ansible.builtin.debug:
    msg: "{{ lookup('gb10.cluster.profile').image.reference }}"

- name: Show what another profile would ask of the gate
  ansible.builtin.debug:
    msg: "{{ lookup('gb10.cluster.profile', 'piecewise-200k').gate }}"

# In the inventory: the default profile with a shorter context, selected.
# gb10_profile: mine
# gb10_profiles:
#   mine:
#     extends: dspark-nvfp4-1m
#     engine:
#       args:
#         max-model-len: 500000
"""

RETURN = r"""
_list:
  description:
    - The resolved profiles, one for each term. The keys are described in C(docs/reference/profiles.md); V(name) and V(lineage) are added.
    - V(image.build) is a path. With V(image.mods), V(image.reference) is the image with the mods, V(image.base) the one below them, and V(image.layer)
      their build context.
  type: list
  elements: dict
"""

import os
from collections.abc import Iterator, Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleError
from ansible.plugins.lookup import LookupBase
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import default_of
from ansible_collections.gb10.cluster.plugins.plugin_utils.image_folders import PROFILES_DIR, located
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader


@lru_cache(maxsize=4)  # a task reads them a dozen times, and the files do not change in a run
def shipped_profiles(directory: Path = PROFILES_DIR) -> Mapping[str, Any]:
    """Return the collection's own profiles, name to raw mapping."""
    if not directory.is_dir():
        raise AnsibleError(f"the collection's profiles are not at {directory}: the installation is incomplete, install it again")
    return Profiles(directory)


def own_profiles(directory: object, given: Any) -> Any:
    """Return the user's profiles: one a file of the directory, if it exists, and those of the inventory, which win."""
    files = Profiles(Path(os.path.expanduser(str(directory)))) if directory else {}
    return {**files, **given} if files and isinstance(given, Mapping) else given


class UnreadableProfileError(AnsibleError):
    """The file of a profile cannot be read: the line, 0 if it is not known, and the reason."""

    def __init__(self, path: Path, line: int, reason: str) -> None:
        super().__init__(f"{path}:{line}: {reason}" if line else f"{path}: {reason}")
        self.line = line
        self.reason = reason


class Profiles(Mapping[str, Any]):
    """The profiles of a directory, name to raw mapping. A file is read when its profile is needed."""

    def __init__(self, directory: Path) -> None:
        self.paths = {path.stem: path for path in sorted(directory.glob("*.yml"))}
        self.read: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self.read:
            path, text = self.paths[name], ""
            try:
                text = path.read_text(encoding="utf-8")
                self.read[name] = yaml.load(text, Loader=SafeLoader)  # noqa: S506  a safe loader
            except yaml.YAMLError as error:
                from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_files import yaml_fault  # each task reads profiles, few have a fault

                raise UnreadableProfileError(path, *yaml_fault(error)) from None  # its own sentence quotes the file
            except (OSError, ValueError, RecursionError) as error:
                raise UnreadableProfileError(path, 0, f"the file cannot be read ({getattr(error, 'strerror', None) or error})") from error
        return self.read[name]

    def each(self) -> Iterator[tuple[str, Any, UnreadableProfileError | None]]:
        """Yield the name of each profile with its mapping, or with the error of its file."""
        for name in self:
            try:
                yield name, self[name], None
            except UnreadableProfileError as error:
                yield name, None, error

    def __iter__(self) -> Iterator[str]:
        return iter(self.paths)

    def __len__(self) -> int:
        return len(self.paths)


class LookupModule(LookupBase):
    """The lookup plugin."""

    def run(self, terms: list[Any], variables: Mapping[str, Any] | None = None, **kwargs: Any) -> list[Any]:
        """Return one resolved profile for each term, or the selected one."""
        self.set_options(var_options=variables, direct=kwargs)
        # Options that come from variables arrive as written: templates in them are resolved here.
        given = {name: self._templar.template(self.get_option(name)) for name in ("gb10_profile", "gb10_profiles", "gb10_profiles_directory")}
        selected, users, directory = (default_of(name) if value is None else value for name, value in given.items())
        users, selected = own_profiles(directory, users or {}), selected or default_of("gb10_profile")
        shipped = shipped_profiles()
        names = [t for t in terms or [] if t is not None] or [selected]
        try:
            if names == ["*"]:
                known = list(shipped) + [n for n in users if n not in shipped]
                return [{name: located(resolve(str(name), shipped, users), directory) for name in known}]
            return [located(resolve(str(name), shipped, users), directory) for name in names]
        except ProfileError as exc:
            raise AnsibleError(str(exc)) from exc
