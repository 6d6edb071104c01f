# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write a profile that is made of a recipe, on the controller only. See the module of the same name for its options."""

from __future__ import annotations

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
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import default_of
from ansible_collections.gb10.cluster.plugins.plugin_utils.compose_yaml import compose_yaml
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_run import DEFAULT_SOURCES, own_playbooks
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_schema import ProfileError
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_profile import MOST_ENTRIES, Imported, convert
from ansible_collections.gb10.cluster.plugins.plugin_utils.recipe_source import Around, RecipeError, env_values
from ansible_collections.gb10.cluster.plugins.plugin_utils.safe_yaml import SafeLoader

LONGEST = 1 << 20  # bytes of a recipe
DEEPEST = 50  # lists and tables in each other
SOURCED = re.compile(r"(?m)(?:^|[;&])[ \t]*(?:source|\.)[ \t]+\S*\.env\b")  # a script that reads the .env next to it, as Compose does
EXPECTED = "expected a recipe of sparkrun or eugr/spark-vllm-docker, a Docker Compose file, or a script with docker run"


def read(path: Path, option: str) -> str:
    """Return the text of a file of the user."""
    try:
        return bounded.text(str(path), LONGEST, "strict")
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", "") or "it is not text in UTF-8"
        raise AnsibleActionFail(f"{path}: {why}. Give the path of a file with -e {option}=FILE.") from None


class RecipeLoader(SafeLoader):
    """Reads each scalar as its text, because Compose (YAML 1.2) and PyYAML (1.1) differ in numbers."""

    yaml_implicit_resolvers = {
        first: [each for each in found if each[0] in ("tag:yaml.org,2002:null", "tag:yaml.org,2002:merge")]
        for first, found in SafeLoader.yaml_implicit_resolvers.items()
    }
    # A scalar with a tag is its text too. Other types of PyYAML fail in their own ways for a text that is not theirs.
    yaml_constructors = {
        **{tag: each for tag, each in SafeLoader.yaml_constructors.items() if tag is None or tag.rpartition(":")[2] in ("null", "str", "seq", "map")},
        **dict.fromkeys((f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float")), SafeLoader.construct_yaml_str),
    }
    merged = 0

    def flatten_mapping(self, node: Any) -> None:
        """Merge the tables that `<<` names. Raise RecipeError for many entries: a few nested ones fill the memory."""
        super().flatten_mapping(node)
        self.merged += len(node.value)
        if self.merged > MOST_ENTRIES:
            raise RecipeError(f"it has more than {MOST_ENTRIES} entries")


def load(text: str) -> Any:
    """Return the content of a YAML file. The parser's message can quote the file, with its secrets: it is not shown."""
    depth = 0
    try:
        for event in yaml.parse(text, RecipeLoader):  # to load deeper ones ends the process
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > DEEPEST:
                raise RecipeError(f"it has more than {DEEPEST} lists and tables in each other")
        return yaml.load(text, Loader=RecipeLoader)  # noqa: S506  either loader is a safe one
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        raise RecipeError(f"{f'line {mark.line + 1} of ' if mark else ''}the file is not valid YAML, {EXPECTED}") from None


def imported(recipe: Path, env_file: str, service: str, secrets: set[str]) -> Imported:
    """Return the profile of a recipe, with the .env that Compose or the script reads. Add the secrets that are read, also if the recipe is refused."""
    text = read(recipe, "recipe")
    data = load(text) if recipe.suffix in (".yml", ".yaml") else None
    reads = "services" in data if isinstance(data, dict) else SOURCED.search(text)
    default = recipe.parent / ".env"
    given = Path(env_file) if env_file else default if reads and default.is_file() else None
    env = env_values(read(given, "env_file"), given.name) if given else {}
    return convert(data, Around(text, recipe.parent, env, secrets), service)


def sentence(error: Exception, secrets: set[str]) -> str:
    """Return the text of an error without secrets and with short words. A shell and `=` can split a secret into words."""
    text = redact(str(error), {part for value in secrets for part in (value, *re.split(r"[\s=]+", value))})
    return re.sub(r"(\S{60})\S{140,}", r"\1...", text)


def next_command(name: str, directory: Path) -> str:
    """Return the command that validates the profile, with the inventories of this command line."""
    playbook = str(context.CLIARGS["args"][0]) if own_playbooks() else "playbooks/import.yml"
    sources = [str(each) for each in context.CLIARGS.get("inventory") or () if str(each) not in (*DEFAULT_SOURCES, *C.DEFAULT_HOST_LIST)]
    words = ["ansible-playbook", re.sub(r"import(?=(\.yml)?$)", "validate", playbook), *(word for each in sources for word in ("-i", each))]
    words += ["-e", f"gb10_profile={name}"]
    return shlex.join(words + ([] if directory == Path(default_of("gb10_profiles_directory")) else ["-e", f"gb10_profiles_directory={directory}"]))


def present(name: str, path: Path, text: str, force: bool) -> str:
    """Return the present text of the profile's file. Raise AnsibleActionFail if it must not be replaced."""
    if not re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,59}", name):
        raise AnsibleActionFail(f"The name of the profile is {name!r}, expected lower-case letters, digits, '.', '_' and '-'. Use -e profile_name=NAME.")
    if name in shipped_profiles():
        raise AnsibleActionFail(f"{name} is the name of a shipped profile, which the new one would change. Give another one with -e profile_name=NAME.")
    before = read(path, "gb10_profiles_directory") if path.exists() else ""
    if before and before != text and not force:
        raise AnsibleActionFail(f"{path} exists with another content. Give another name with -e profile_name=NAME, or replace the file with -e force=true.")
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
                "env_file": {"type": "path"},
                "service": {"type": "str", "default": ""},
                "force": {"type": "bool", "default": False},
            }
        )
        recipe, directory = Path(args["recipe"]), Path(args["directory"])
        if "dest" in (task_vars or {}):
            raise AnsibleActionFail("dest is not an option of an import. Use -e gb10_profiles_directory=FOLDER and -e profile_name=NAME.")
        secrets: set[str] = set()
        try:
            found = imported(recipe, args["env_file"] or "", args["service"], secrets)
            name, profile = args["name"] or found.name, found.profile
            head = f"Imported from {printable(' '.join(recipe.name.split()))}, a {found.kind}"
            profile["sources"] = [head]
            profile["notes"] += [f"Not mapped: {field}: {text}" for field, text in found.unmapped]
            profile["notes"] += [f"Set by the collection, or not in a profile: {', '.join(found.left)}"] if found.left else []
            text = f"---\n# {head}, by playbooks/import.yml. The notes have what is not mapped.\n{compose_yaml(profile)}"
            path = directory / f"{name}.yml"
            before = present(name, path, text, args["force"])
            resolve(name, shipped_profiles(), {name: profile})
        except ProfileError as error:
            raise AnsibleActionFail(f"The profile is not valid, and nothing was written: {sentence(error, secrets)}. Correct the recipe.") from None
        except RecursionError:
            raise AnsibleActionFail(f"{recipe}: a value has too many lists and tables in each other. Correct the recipe.") from None
        except (RecipeError, OSError) as error:
            raise AnsibleActionFail(f"{recipe}: {sentence(error, secrets)}.") from None
        changed = before != text
        if changed and not self._task.check_mode:
            try:
                directory.mkdir(parents=True, exist_ok=True)
                write_atomically(str(path), text, 0o644)
            except OSError as error:
                raise AnsibleActionFail(f"{path} cannot be written: {error.strerror}. Give another folder with -e gb10_profiles_directory=FOLDER.") from None
        state = "unchanged" if not changed else "would be written" if self._task.check_mode else "written"
        document = {
            "schema": "gb10.cluster/import/1", "profile": name, "path": str(path), "state": state, "recipe": str(recipe), "kind": found.kind,
            "left": found.left, "unmapped": [{"field": field, "reason": reason} for field, reason in found.unmapped],
            "next": "" if state == "would be written" else next_command(name, directory),
        }  # fmt: skip
        return {
            "changed": changed,
            "document": document,
            "diff": {"before": before, "after": text, "before_header": str(path), "after_header": str(path)},
        }
