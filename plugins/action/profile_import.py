# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a profile that is made of a recipe, on the controller only. See the module of the same name for its options."""

from __future__ import annotations

import os
import re
import shlex
from pathlib import Path
from typing import Any

import yaml
from ansible import constants as C  # noqa: N812  its usual name
from ansible import context
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import default_of
from ansible_collections.gb10.cluster.plugins.module_utils._profile import compose, kv_estimate, values
from ansible_collections.gb10.cluster.plugins.module_utils._profile.containers import Around
from ansible_collections.gb10.cluster.plugins.module_utils._profile.host_memory import SPARK_GIB
from ansible_collections.gb10.cluster.plugins.module_utils._profile.recipe import convert
from ansible_collections.gb10.cluster.plugins.module_utils._profile.shell import RecipeError, env_values
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_places import neighbours, short
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_run import DEFAULT_SOURCES, MINE, inventory_writer, own_playbooks
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

LONGEST = 1 << 20  # bytes of a recipe
SOURCED = re.compile(r"(?m)(?:^|[;&])\s*(?:source|\.)\s+\S*\.env\b")  # a script that reads the .env next to it, as Compose does
EXPECTED = "expected a recipe of sparkrun or eugr/spark-vllm-docker, a Docker Compose file, or a script with docker run"


def read(path: Path, what: str, remedy: str) -> str:
    """Return the text of a file of the user."""
    try:
        return bounded.text(str(path), LONGEST, "strict")
    except FileNotFoundError:
        hint = did_you_mean(str(path), neighbours(path), 0.8) or "."
        raise AnsibleActionFail(f"{path}: the {what} was not found{hint} {remedy}.") from None
    except OSError as error:
        raise AnsibleActionFail(f"{path}: the {what} cannot be read: {error.strerror}. {remedy}.") from None
    except UnicodeDecodeError:
        raise AnsibleActionFail(f"{path}: the {what} is not text in UTF-8. {remedy}.") from None


class RecipeLoader(SafeLoader):
    """Reads each scalar as its text, because Compose (YAML 1.2) and PyYAML (1.1) differ in numbers."""

    yaml_implicit_resolvers = {
        first: [each for each in found if each[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
        for first, found in SafeLoader.yaml_implicit_resolvers.items()
    }

    def flatten_mapping(self, node: Any) -> None:
        """Refuse a key that is given twice, as Compose does."""
        before: dict[str, Any] = {}
        for key, value in node.value:
            if before.setdefault(str(key.value), value.value) != value.value and key.value != "<<":
                raise RecipeError(f"line {key.start_mark.line + 1}: the key {key.value} is given twice with different values. Remove one")
        super().flatten_mapping(node)


def load(path: Path, text: str) -> Any:
    """Return the content of a YAML file, or None if it is another text. The parser's message can quote the file, with its secrets: it is not shown."""
    try:
        found = yaml.load(text, Loader=RecipeLoader)  # noqa: S506  either loader is a safe one
    except RecipeError:
        raise
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        recipe = re.search(r"(?m)^(?:services|model|command|recipe_version) *:", text)
        if not recipe and re.search(r"(?m)^[^#\n]*(?:\b(?:docker|podman|nerdctl)\s+run\b|\bvllm serve\b|=\()", text):
            return None
        mark = getattr(error, "problem_mark", None)
        raise AnsibleActionFail(f"{path}{f':{mark.line + 1}' if mark else ''}: the file is not valid YAML, {EXPECTED}.") from None
    return found


def mod_near(recipe: Path, name: str) -> str:
    """Return the folder of a mod next to a recipe, or in a folder above it, as in its checkout; empty if there is none."""
    own = re.sub(r"^mods/", "", name)
    near = (folder / "mods" / own for folder in (recipe.resolve().parent, *list(recipe.resolve().parents)[1:3]))
    return next((str(path) for path in near if ".." not in own and (path / "run.sh").is_file()), "")


def one_line(text: str) -> str:
    """Return text that cannot leave its comment."""
    return " ".join("".join(char if char.isprintable() else " " for char in text).split())


def next_command(dest: Path) -> str:
    """Return the command that validates the profile of a file, with the inventories of this run."""
    given = [str(each) for each in context.CLIARGS.get("args") or () if own_playbooks([str(each)])]
    words = ["ansible-playbook", re.sub(r"import(?=(\.yml)?$)", "validate", (given or ["playbooks/import.yml"])[0])]
    sources = [str(each) for each in context.CLIARGS.get("inventory") or () if str(each) not in (*DEFAULT_SOURCES, *C.DEFAULT_HOST_LIST)]
    example = "inventories/spark-pair"  # validate.yml accepts its addresses
    for source in sources or [example if inventory_writer() and os.path.exists(example) else MINE]:
        words += ["-i", short(Path(source)) if os.path.isabs(source) else source]
    words += ["-e", f"gb10_profile={dest.stem}"]
    if dest.parent != Path(default_of("gb10_profiles_directory")):
        words += ["-e", f"gb10_profiles_directory={dest.parent}"]
    return shlex.join(words)


def checked(name: str, raw: dict[str, Any]) -> list[str]:
    """Check a profile as validate.yml does, for each rank of the smallest group that it serves. Return warnings. Raise AnsibleActionFail."""
    try:
        profile = resolve(name, shipped_profiles(), {name: raw})
        size = max(2, profile["ranks"]["min"])
        for rank in range(size):
            place = {"rank": rank, "size": size, "master_addr": "192.168.200.11", "fabric_ip": f"192.168.200.{11 + rank}"}
            compose.render_rank(profile, place, {"model_store": "/srv/models", "fabric": "node"})
        faults = values.writable_weights(profile, "/srv/models")
        plan = kv_estimate.make_plan(profile, [{"total_kib": SPARK_GIB * kv_estimate.KIB_PER_GIB}] * size)
    except (ProfileError, compose.ServingError, kv_estimate.PlanError) as error:
        faults = [str(error)]
    if faults:
        raise AnsibleActionFail(f"The profile is not valid, and nothing was written: {redact('; '.join(faults))}. Correct the recipe.")
    return [*plan["warnings"], *([f"The inventory check refuses it: {plan['unsafe']}"] if plan["unsafe"] else [])]


def refusals(name: str, dest: Path, text: str, force: bool) -> str:
    """Return the present text of the file. Raise AnsibleActionFail if it must not be replaced."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,59}", name):
        raise AnsibleActionFail(f"The name of the profile is {name!r}, expected lower-case letters, digits, '.', '_' and '-'. Use -e profile_name=NAME.")
    if name in shipped_profiles():
        raise AnsibleActionFail(f"{name} is the name of a shipped profile, which the new one would change. Give another one with -e profile_name=NAME.")
    if dest.name != f"{name}.yml":
        raise AnsibleActionFail(f"{dest} is not named {name}.yml, so the profile {name} would not be found. Give -e dest={dest.with_name(f'{name}.yml')}.")
    before = read(dest, "profile", "Give another file with -e dest=DIRECTORY/NAME.yml") if dest.exists() else ""
    if before and before != text and not force:
        raise AnsibleActionFail(f"{dest} exists with another content. Give another name with -e profile_name=NAME, or replace the file with -e force=true.")
    return before


class ActionModule(ActionBase):
    """Converts, checks, and writes one file."""

    _requires_connection = False

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
        if re.match(r"https?://", args["recipe"]):
            raise AnsibleActionFail("The recipe is an address, expected a file. Download it, and give its path with -e recipe=FILE.")
        recipe = Path(args["recipe"])
        variables = Path(args["env_file"]) if args["env_file"] else recipe.parent / ".env"

        def neighbour(name: str) -> dict[str, str] | None:
            path = recipe.parent / name
            return env_values(read(path, "environment file", "Put it next to the recipe")) if path.is_file() else None

        try:
            text = read(recipe, "recipe", "Give its path with -e recipe=FILE")
            data = load(recipe, text)
            reads = "services" in data if isinstance(data, dict) else SOURCED.search(text)
            given = args["env_file"] or (reads and variables.is_file())
            env = env_values(read(variables, "environment file", "Give its path with -e env_file=FILE")) if given else {}
            around = Around(text, recipe.resolve().parent.name, env, neighbour, lambda name: mod_near(recipe, name))
            found = convert(data, around, args["service"])
        except RecipeError as error:
            raise AnsibleActionFail(f"{recipe}: {redact(str(error))}.") from None
        name = args["name"] or (Path(args["dest"]).stem if args["dest"] else found.name)
        found.profile["sources"] = [f"Imported from {one_line(recipe.name)}, a {found.kind}"]
        head = [f"Profile {name}, made by playbooks/import.yml of {one_line(recipe.name)}, a {found.kind}.", "The notes have what is not mapped."]
        found.profile["notes"] += [one_line(f"Not mapped: {field}: {text}") for field, text in found.unmapped]
        found.profile["notes"] += [one_line(f"Set by the collection, or not in a profile: {', '.join(found.left)}")] if found.left else []
        text = "---\n" + "".join(f"# {one_line(line)}\n" for line in head) + compose_yaml(found.profile)
        dest = Path(args["dest"]) if args["dest"] else Path(args["directory"]) / f"{name}.yml"
        before = refusals(name, dest, text, args["force"])
        warnings = checked(name, found.profile)
        changed = before != text
        if changed and not self._task.check_mode:
            try:
                dest.parent.mkdir(parents=True, exist_ok=True)
                write_atomically(str(dest), text, 0o644)
            except OSError as error:
                raise AnsibleActionFail(f"{dest} cannot be written: {error.strerror}. Give another file with -e dest=DIRECTORY/NAME.yml.") from None
        state = "unchanged" if not changed else "would be written" if self._task.check_mode else "written"
        document = {
            "schema": "gb10.cluster/import/1", "profile": name, "path": str(dest), "state": state, "recipe": str(recipe), "kind": found.kind,
            "left": found.left, "unmapped": [{"field": field, "reason": reason} for field, reason in found.unmapped],
            "next": "" if state == "would be written" else next_command(dest),
        }  # fmt: skip
        return {
            "changed": changed,
            "document": document,
            "warnings": warnings,
            "diff": {"before": before, "after": text, "before_header": str(dest), "after_header": str(dest)},
        }
