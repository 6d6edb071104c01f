# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a profile that is made of a recipe, on the controller only. See the module of the same name for its options."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path
from typing import Any

import yaml
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded, env_file
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate, mounts
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import ProfileError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_fields import Imported
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_import import convert
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe_words import RecipeError
from ansible_collections.gb10.cluster.plugins.module_utils._profile.resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

LONGEST = 1 << 20  # bytes of a recipe
HEADINGS = {"mapped": "Mapped", "decided": "Set by the collection", "unmapped": "Not mapped"}


def read(path: Path, what: str) -> str:
    """Return the text of a file of the user."""
    try:
        return bounded.text(str(path), LONGEST, "strict")
    except (OSError, UnicodeDecodeError) as error:
        raise AnsibleActionFail(f"{path}: the {what} cannot be read: {error}. Give another file") from None


def load(path: Path) -> Any:
    """Return the content of a YAML file. The parser's message can quote the file, which can contain secrets: only the place is shown."""
    try:
        return yaml.load(read(path, "recipe"), Loader=SafeLoader)  # noqa: S506  either loader is a safe one
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        raise AnsibleActionFail(f"{path}{f':{mark.line + 1}' if mark else ''}: the recipe is not valid YAML") from None


def one_line(text: str) -> str:
    """Return text that cannot leave its comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def sections(found: Imported, names: tuple[str, ...]) -> list[str]:
    """Return what became of the fields, as lines."""
    lines = []
    for name in names:
        entries = getattr(found, name)
        lines += [f"{HEADINGS[name]}:" if entries else f"{HEADINGS[name]}: nothing", *(one_line(f"{field}: {text}") for field, text in entries)]
    return lines


def checked(name: str, raw: dict[str, Any]) -> list[str]:
    """Check a profile as validate.yml does, for each rank of the smallest group that it serves. Return warnings. Raise AnsibleActionFail."""
    try:
        profile = resolve(name, shipped_profiles(), {name: raw})
        size = max(2, profile["ranks"]["min"])
        for rank in range(size):
            place = {"rank": rank, "size": size, "master_addr": "192.168.200.11", "fabric_ip": f"192.168.200.{11 + rank}"}
            compose.render_rank(profile, place, {"model_store": "/srv/models", "fabric": "node"})
        faults = mounts.writable_weights(profile, "/srv/models")
        plan = kv_estimate.make_plan(profile, [{"total_kib": SPARK_GIB * kv_estimate.KIB_PER_GIB}] * size)
    except (ProfileError, compose.ServingError, kv_estimate.PlanError) as error:
        faults = [str(error)]
    if faults:
        raise AnsibleActionFail(f"The profile is not valid, and nothing was written: {'; '.join(faults)}. Correct the recipe")
    return [*plan["warnings"], *([f"The inventory check refuses it: {plan['unsafe']}"] if plan["unsafe"] else [])]


def refusals(name: str, dest: Path, text: str, force: bool) -> str:
    """Return the present text of the file. Raise AnsibleActionFail if it must not be replaced."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,59}", name):
        raise AnsibleActionFail(f"The name of the profile is {name!r}, expected lower-case letters, digits, '.', '_' and '-'. Give one with -e name=NAME")
    if name in shipped_profiles():
        raise AnsibleActionFail(f"{name} is the name of a shipped profile, which the new one would change. Give another one with -e name=NAME")
    before = read(dest, "profile") if dest.exists() else ""
    if before and before != text and not force:
        raise AnsibleActionFail(f"{dest} exists with another content. Give another name with -e name=NAME, or replace the file with -e force=true")
    return before


class ActionModule(ActionBase):
    """Converts, checks, and writes one file."""

    TRANSFERS_FILES = False
    _requires_connection = False
    _supports_check_mode = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        """Return what became of each field."""
        super().run(tmp, task_vars)
        _result, args = self.validate_argument_spec(
            argument_spec={
                "recipe": {"type": "path", "required": True},
                "directory": {"type": "path", "required": True},
                "name": {"type": "str"},
                "dest": {"type": "path"},
                "env_file": {"type": "path"},
                "service": {"type": "str", "default": ""},
                "force": {"type": "bool", "default": False},
            }
        )
        recipe = Path(args["recipe"])
        variables = Path(args["env_file"]) if args["env_file"] else recipe.parent / ".env"
        env = env_file.parse(read(variables, "environment file")) if args["env_file"] or variables.is_file() else {}
        try:
            found = convert(load(recipe), env, args["service"])
        except RecipeError as error:
            raise AnsibleActionFail(f"{recipe}: {error}") from error
        name = args["name"] or found.name
        found.profile["sources"] = [f"Imported from {one_line(recipe.name)}, a {found.kind}"]
        head = [f"Profile {name}, made by playbooks/import.yml of {one_line(recipe.name)}, a {found.kind}.", *sections(found, ("decided", "unmapped"))]
        text = "---\n" + "".join(f"# {line}\n" for line in head) + compose_yaml(found.profile)
        dest = Path(args["dest"]) if args["dest"] else Path(args["directory"]) / f"{name}.yml"
        before = refusals(name, dest, text, args["force"])
        warnings = checked(name, found.profile)
        changed = before != text
        if changed and not self._task.check_mode:
            write(dest, text)
        done = "is unchanged" if not changed else "would be written" if self._task.check_mode else "is written"
        return {
            "changed": changed,
            "name": name,
            "path": str(dest),
            "unmapped": [one_line(entry) for entry, _reason in found.unmapped],
            "msg": [f"{dest} {done}: gb10_profile: {name}", *sections(found, tuple(HEADINGS))],
            "warnings": warnings,
            "diff": {"before": before, "after": text, "before_header": str(dest), "after_header": str(dest)},
            "_ansible_verbose_always": True,
        }


def write(dest: Path, text: str) -> None:
    """Replace the file as a whole."""
    partial = dest.with_name(f".{dest.name}.{os.getpid()}")
    try:
        dest.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(dest)
    except OSError as error:
        with contextlib.suppress(OSError):
            partial.unlink()
        raise AnsibleActionFail(f"{dest} cannot be written: {error}. Give another file with -e output=FILE") from None
