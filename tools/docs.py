"""Write the tables of variables from argument_specs, and the tables of checks from the functions of _checks, or check them.

    tools/docs.py           writes what differs
    tools/docs.py --check   changes nothing; exit 1 with what differs
    tools/docs.py FILE...   looks at these documents only

Either way a role's defaults/main.yml must hold exactly what its argument_specs document, and an option has one name, one default and one description:
variables of the cluster and of the command line (-e) are in meta/argument_specs.yml, those of a role in its argument_specs.
"""

from __future__ import annotations

import argparse
import difflib
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

REPO = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(REPO / "collections"))

from ansible_collections.gb10.cluster.plugins.module_utils._checks.judge import CHECKS, IDS  # noqa: E402  the checkout's links are on the path now
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import CLUSTER_SPEC, PLAYBOOK_SPEC, is_computed, role_options  # noqa: E402  the checkout's links are on the path now
from ansible_collections.gb10.cluster.plugins.module_utils._profile.values import DEFAULT_PROFILE  # noqa: E402

_Loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_HEAD = "| variable | type | default | meaning |\n|---|---|---|---|\n"


def load(path: Path) -> Any:
    """Read a YAML file."""
    with path.open(encoding="utf-8") as stream:
        return yaml.load(stream, Loader=_Loader)  # noqa: S506  CSafeLoader is a safe loader


# --- Tables -----------------------------------------------------------------------------------------------------------


def plain(text: str) -> str:
    """Turn Ansible's markup into Markdown for one table cell."""
    text = re.sub(r"\b[CVO]\(((?:[^()\\]|\\.|\([^()]*\))*)\)", lambda m: f"`{m.group(1)}`", text)
    text = re.sub(r"\b[MP]\(([^()#]*)(?:#\w+)?\)", r"`\1`", text)
    text = re.sub(r"\bB\(([^()]*)\)", r"**\1**", text)
    text = re.sub(r"\bI\(([^()]*)\)", r"*\1*", text)
    text = re.sub(r"\bU\(([^()]*)\)", r"<\1>", text)
    return " ".join(text.split())


def cell(text: str) -> str:
    """Keep a text inside its cell."""
    return text.replace("|", "\\|")


def default_text(option: Mapping[str, Any]) -> str:
    """Return a default as the user would write it."""
    if option.get("required"):
        return "(required)"
    value = option.get("default")
    if value is None:
        return ""
    if value == "":
        return '`""`'
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False) if isinstance(value, (list, dict, bool)) else str(value)
    return f"`{text}`"


def type_text(option: Mapping[str, Any]) -> str:
    """Return a type with its elements and choices."""
    kind = str(option.get("type") or "raw")
    if option.get("elements"):
        kind = f"{kind} of {option['elements']}"
    if option.get("choices"):
        kind += ": " + ", ".join(f"`{choice}`" for choice in option["choices"])
    return kind


def rows(options: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """Yield one table row for each option and for what lies below it."""
    for name, option in options.items():
        described = option.get("description") or []
        sentences = [described] if isinstance(described, str) else described
        meaning = " ".join(plain(str(sentence)) for sentence in sentences)
        full = f"{above}{name}"
        yield f"| `{full}` | {cell(type_text(option))} | {cell(default_text(option))} | {cell(meaning)} |\n"
        if option.get("options"):
            yield from rows(option["options"], f"{full}[]." if option.get("type") == "list" else f"{full}.")


def variable_table(options: Mapping[str, Any]) -> str:
    """Return the table of a set of options."""
    return _HEAD + "".join(rows(options))


def check_table(preflight: bool) -> str:
    """Return the table of the checks of preflight, or of those that only doctor makes. Checks with the same texts share a row."""
    shared: dict[tuple[str, str], list[str]] = {}
    for check in CHECKS.values():
        if (check.id in IDS) == preflight:
            shared.setdefault((check.severity, check.looks), []).append(f"`{check.id}`")
    return "| ID | at worst | what it looks for |\n|---|---|---|\n" + "".join(
        f"| {', '.join(names)} | {severity} | {looks} |\n" for (severity, looks), names in shared.items()
    )


def with_table(text: str, marker: str, table: str) -> str | None:
    """Return a document with the table between its markers, or None where it has none."""
    start, end = f"<!-- {marker} -->", f"<!-- /{marker} -->"
    before, found, rest = text.partition(start)
    _sep, closed, after = rest.partition(end)
    if not found or not closed:
        return None
    return f"{before}{start}\n\n{table}\n{end}{after}"


def documents(repo: Path) -> Iterator[tuple[Path, str, str]]:
    """Yield (document, marker, table) for everything that is generated."""
    for specs in sorted((repo / "roles").glob("*/meta/argument_specs.yml")):
        defaults = specs.parents[1] / "defaults" / "main.yml"
        options = role_options(load(specs) or {}, (load(defaults) or {}) if defaults.exists() else {})
        yield specs.parents[1] / "README.md", "variables", variable_table(options)
    yield repo / "docs" / "inventory.md", "variables", variable_table(CLUSTER_SPEC)
    yield repo / "roles" / "vllm_tp2" / "README.md", "command-line", variable_table(PLAYBOOK_SPEC)
    yield repo / "roles" / "preflight" / "README.md", "checks", check_table(preflight=True)
    yield repo / "docs" / "day-to-day.md", "checks", check_table(preflight=False)


# --- Specs and defaults -------------------------------------------------------------------------------------------------


def role_faults(role: Path) -> Iterator[str]:
    """Yield the differences between a role's argument_specs and its defaults/main.yml."""
    specs_file, defaults_file = role / "meta" / "argument_specs.yml", role / "defaults" / "main.yml"
    name = f"roles/{role.name}"
    if not specs_file.exists():
        yield f"{name}/meta/argument_specs.yml is missing: every role documents its variables"
        return
    defaults = (load(defaults_file) or {}) if defaults_file.exists() else {}
    specs = role_options(load(specs_file) or {}, defaults)
    for variable, option in role_options(load(specs_file) or {}).items():
        if is_computed(option.get("default")) and option.get("type") not in ("str", "path", "raw"):
            yield f"{name}/meta/argument_specs.yml: {variable} is not a string, so its computed default belongs in defaults/main.yml only"
    for variable, value in defaults.items():
        if not variable.startswith((f"{role.name}_", f"__{role.name}_")):
            yield f"{name}/defaults/main.yml: {variable} does not begin with the role's name"
        if variable not in specs:
            yield f"{name}/defaults/main.yml: {variable} is not in meta/argument_specs.yml"
        elif specs[variable].get("required"):
            yield f"{name}/defaults/main.yml: {variable} has a default, but meta/argument_specs.yml has required: true"
        elif value != specs[variable].get("default") or type(value) is not type(specs[variable].get("default")):
            yield f"{name}/defaults/main.yml: {variable} is {value!r}, but meta/argument_specs.yml has {specs[variable].get('default')!r}"
    for variable, option in specs.items():
        if variable not in defaults and not option.get("required"):
            yield f"{name}/meta/argument_specs.yml: {variable} is not in defaults/main.yml"
        yield from option_faults(f"{name}/meta/argument_specs.yml: {variable}", option)


def option_faults(where: str, option: Mapping[str, Any]) -> Iterator[str]:
    """Yield what an option lacks: a type, elements of a list, a description."""
    if not option.get("type"):
        yield f"{where} has no type"
    if option.get("type") == "list" and not option.get("elements"):
        yield f"{where} is a list without elements"
    if not option.get("description"):
        yield f"{where} has no description"
    default, choices = option.get("default"), option.get("choices")
    if choices and default is not None and option.get("type") != "list" and default not in choices:
        yield f"{where} has the default {default!r}, which is none of its choices"
    for key, below in (option.get("options") or {}).items():
        yield from option_faults(f"{where}.{key}", below or {})


def exported(tasks: Any) -> Iterator[str]:
    """Yield the variables that a task file sets as facts, in blocks too."""
    for task in tasks if isinstance(tasks, list) else []:
        yield from (name for key in ("ansible.builtin.set_fact", "set_fact") for name in task.get(key) or {} if name != "cacheable")
        for part in ("block", "rescue", "always"):
            yield from exported(task.get(part))


def variables_used(role: Path) -> Iterator[str]:
    """Yield variables with the role's name that tasks, templates, handlers and vars use and that are not defined."""
    specs_file = role / "meta" / "argument_specs.yml"
    if not specs_file.exists():
        return
    known = set(role_options(load(specs_file) or {}))
    for tasks in (role / "tasks").glob("*.yml"):
        known |= set(exported(load(tasks)))
    pattern = re.compile(rf"(?<![\w./-])({role.name}_\w+)\b(?![\w/]*\.(?:yml|j2|py|conf|json|sh|service))")
    for folder in ("tasks", "templates", "handlers", "vars", "defaults"):
        for path in sorted((role / folder).rglob("*")):
            if not path.is_file():
                continue
            for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
                code = " ".join(re.findall(r"\{\{.*?\}\}|\{%.*?%\}|(?:when|that|until|failed_when|changed_when|loop):.*", line))
                for variable in pattern.findall(code):
                    if variable not in known:
                        yield f"roles/{role.name}/{path.relative_to(role)}:{number}: {variable} is not in meta/argument_specs.yml"


# --- One name, one default, one description ---------------------------------------------------------------------------

_SHARED = ("_group", "_profile")  # ends of options that mean the same in each role


def one_home(repo: Path) -> Iterator[str]:
    """Yield second names, defaults and descriptions of options."""
    shared = {**CLUSTER_SPEC, **PLAYBOOK_SPEC}
    roles = {path.parts[-3]: role_options(load(path) or {}) for path in sorted(repo.glob("roles/*/meta/argument_specs.yml"))}
    options = {**shared, **{name: option for each in roles.values() for name, option in each.items()}}
    for name, option in shared.items():
        yield from option_faults(f"meta/argument_specs.yml: {name}", option)
        if name in {key for each in roles.values() for key in each}:
            yield f"meta/argument_specs.yml: {name} is an option of a role as well. Remove one of them"
    if CLUSTER_SPEC["gb10_profile"]["default"] != DEFAULT_PROFILE:
        yield "meta/argument_specs.yml: gb10_profile has another default than DEFAULT_PROFILE of _profile/values.py"
    yield from second_defaults(repo, options)
    yield from module_defaults(repo, options)
    yield from second_descriptions(repo, shared, roles)


def second_defaults(repo: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield defaults of options in tasks, templates, variables and playbooks, and options that only repeat another one."""
    default = re.compile(rf"(?<![\w.'\"])({'|'.join(sorted(options))})\s*\|\s*(?:default|d)\((?!omit)")
    alias = re.compile(rf"(?m)^(\w+): \"?{{{{ *(?:lookup\('gb10\.cluster\.setting', ')?({'|'.join(sorted(options))})(?:'\))? *}}}}\"?$")
    for path in sorted(each for pattern in ("roles/*/*/**/*", "playbooks/*.yml") for each in repo.glob(pattern) if each.suffix in (".yml", ".j2")):
        text, shown = path.read_text(encoding="utf-8"), path.relative_to(repo)
        for name in dict.fromkeys(default.findall(text)):
            yield f"{shown}: {name} has a second default. Read it by lookup('gb10.cluster.setting', '{name}')"
        for name, of in alias.findall(text) if path.parent.name == "defaults" else ():
            yield f"{shown}: {name} is a second name of {of}. Remove it"


def second_descriptions(repo: Path, shared: Mapping[str, Any], roles: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Yield what plugins and other roles describe in other words: an option with the name of a shared one, an option with the same computed default."""
    for path in sorted((repo / "plugins" / "lookup").glob("*.py")):
        for name, option in _documented(path).items():
            if name in shared and ("default" in option or option["description"] != shared[name]["description"]):
                yield f"plugins/lookup/{path.name}: {name} needs the description of meta/argument_specs.yml, and no default"
    for end in _SHARED:
        same = {f"{role}{end}": options[f"{role}{end}"].get("description") for role, options in roles.items() if f"{role}{end}" in options}
        first = next(iter(same.values()), None)
        for name, words in same.items():
            if words != first:
                yield f"roles/{name.removesuffix(end)}/meta/argument_specs.yml: {name} has another description than {next(iter(same))}, which is the same"


def _documented(plugin: Path) -> Mapping[str, Any]:
    """Return the options of a plugin, with those of the collection's fragments."""
    own = _block(plugin, "DOCUMENTATION")
    options: dict[str, Any] = {}
    for name in own.get("extends_documentation_fragment") or ():
        _namespace, _collection, fragment, *part = name.split(".")
        options |= _block(plugin.parents[1] / "doc_fragments" / f"{fragment}.py", part[0].upper() if part else "DOCUMENTATION").get("options") or {}
    return options | (own.get("options") or {})


def _block(file: Path, name: str) -> Mapping[str, Any]:
    """Return a block of documentation; empty if the file has none of this name."""
    text = file.read_text(encoding="utf-8") if file.exists() else ""
    found = re.search(rf'^ *{name} = r"""(.*?)"""', text, re.DOTALL | re.MULTILINE)
    return (yaml.load(found[1], Loader=_Loader) if found else None) or {}  # noqa: S506  CSafeLoader is a safe loader


def module_defaults(repo: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Yield options of modules whose default differs from that of the role's option that a task gives them."""
    for path in sorted(repo.glob("roles/*/tasks/*.yml")):
        for module, key, name in _given(load(path)):
            file = repo / "plugins" / "modules" / f"{module}.py"
            own = _documented(file).get(key, {}) if file.exists() else {}
            wanted = options.get(name, {}).get("default")
            if name in options and "default" in own and not is_computed(wanted) and str(own["default"]) != str(wanted):
                where = path.relative_to(repo)
                yield f"plugins/modules/{module}.py: {key} has the default {own['default']!r}, and {where} gives it {name} with {wanted!r}"


def _given(tasks: Any) -> Iterator[tuple[str, str, str]]:
    """Yield (module, option, variable) of tasks that give a module of this collection a variable as it is."""
    for task in tasks if isinstance(tasks, list) else []:
        for part in ("block", "rescue", "always"):
            yield from _given(task.get(part))
        for action, given in task.items():
            if action.startswith("gb10.cluster.") and isinstance(given, dict):
                for key, value in given.items():
                    whole = re.fullmatch(r"\{\{ (\w+) \}\}", str(value))
                    if whole:
                        yield action.rpartition(".")[2], key, whole[1]


# --- Command ------------------------------------------------------------------------------------------------------------


def run(repo: Path, check: bool) -> list[str]:
    """Write or check every table; returns what is wrong, one entry each."""
    wrong: list[str] = []
    for role in sorted(path for path in (repo / "roles").iterdir() if (path / "tasks").is_dir()):
        wrong += role_faults(role)
        wrong += dict.fromkeys(variables_used(role))
    wrong += one_home(repo)
    for path, marker, table in documents(repo):
        shown = path.relative_to(repo)
        if not path.exists():
            wrong.append(f"{shown} is missing")
            continue
        text = path.read_text(encoding="utf-8")
        wanted = with_table(text, marker, table)
        if wanted is None:
            wrong.append(f"{shown} has no <!-- {marker} --> and <!-- /{marker} --> to put the table between")
        elif wanted != text and check:
            lines = difflib.unified_diff(text.splitlines(), wanted.splitlines(), str(shown), f"{shown} (generated)", n=0, lineterm="")
            wrong.append("\n".join([f"{shown} is out of date, run tools/docs.py:", *lines]))
        elif wanted != text:
            path.write_text(wanted, encoding="utf-8")
            print(f"wrote {shown}")
    return wrong


def main(arguments: list[str] | None = None) -> int:
    """Command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing, exit 1 with what differs")
    parser.add_argument("--repo", type=Path, default=REPO, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    wrong = run(options.repo, options.check)
    for each in wrong:
        print(each, file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
