# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Compare the declared dependencies with what the code uses, in both directions.

Declared are the packages of requirements.txt, requirements-dev.txt and meta/ee-requirements.txt, and the collections of galaxy.yml.
USES has the evidence for each package. A package without use, a use without declaration, and an import where it is not allowed fail.
A lock file must have each declared package, in the declared range. A collection needs a range with an upper bound.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
LOCAL = {"ansible_collections", *(path.stem for name in ("tests", "tests/lab", "benchmarks", "lab", "tools", "") for path in (ROOT / name).iterdir())}

# package -> a pattern that one of the tracked files outside of the requirements has
USES = {
    "ansible-core": r"ansible-playbook",
    "ansible-lint": r"tools/ansible_lint",
    "antsibull-changelog": r"antsibull-changelog lint",
    "antsibull-docs": r"antsibull-docs lint-collection-docs",
    "bandit": r"/bandit\b",
    "distlib": r"^manifest:",  # ansible-galaxy collection build reads the key with distlib
    "hypothesis": r"^from hypothesis import",
    "import-linter": r"lint-imports",
    "jmespath": r"^\s*import jmespath",
    "jsonschema": r"^\s*from jsonschema import",
    "molecule": r"/molecule\b",
    "mypy": r"/mypy\b",
    "myst-parser": r"myst_parser",
    "pexpect": r"^import pexpect",
    "pytest": r"/pytest\b",
    "pytest-testinfra": r"name: testinfra",
    "pytest-xdist": r"pytest .*-n 2",
    "netaddr": r"^\s*from netaddr import",
    "pygal": r"^\s*import pygal",
    "rich": r"^\s*from rich[.\w]* import",
    "ruff": r"/ruff check",
    "sphinx-ansible-theme": r"sphinx_ansible_theme",
    "types-PyYAML": r"^import yaml",
    "yamllint": r"/yamllint\b",
}
# Imports that come with a declared package.
INCLUDED = {
    "ansible": "ansible-core",
    "ansiblelint": "ansible-lint",
    "jinja2": "ansible-core",
    "packaging": "ansible-core",
    "yaml": "ansible-core",
}
# Third-party modules that plugins/ may import. A node has Ansible's own, PyYAML with netplan.io, and the jmespath that is installed with the agent.
# The package _inventory runs on the controller only.
NODE = ("plugins/modules/", "plugins/module_utils/")
NODE_IMPORTS: dict[str, str | tuple[str, ...]] = {
    "ansible": "",
    "yaml": ("plugins/module_utils/_fabric/netplan", "plugins/module_utils/_inventory/variables.py"),
    "jmespath": "plugins/module_utils/_pair/service.py",
    "netaddr": "plugins/module_utils/_inventory/groups.py",
}
CONTROLLER_IMPORTS = {"ansible", "jinja2", "jmespath", "jsonschema", "netaddr", "pygal", "yaml"}


def declared(name: str) -> set[str]:
    """Return the package names of a requirements file."""
    return set(re.findall(r"^([A-Za-z][\w.-]*)", (ROOT / name).read_text(encoding="utf-8"), re.MULTILINE))


def unlocked(name: str, text: str, lock: str) -> Iterator[str]:
    """Yield a sentence for each package of a requirements file that its lock lacks, or has in a version outside the range."""
    locked = {canonicalize_name(package): version for package, version in re.findall(r"^([\w.-]+)==([^\s;]+)", lock, re.MULTILINE)}
    for line in re.findall(r"^[A-Za-z].*", text, re.MULTILINE):
        requirement = Requirement(line)
        version = locked.get(canonicalize_name(requirement.name))
        if version is None or version not in requirement.specifier:
            found = f"{requirement.name} {version}" if version else f"no version of {requirement.name}"
            yield f"{name}.lock has {found}, and {name}.txt requires {line!r}: run make lock"


def unbounded(dependencies: dict[str, str]) -> Iterator[str]:
    """Yield a sentence for each collection without an upper bound."""
    for name, version in dependencies.items():
        if "<" not in version and not re.fullmatch(r"(==)?\d[\w.]*", version):
            yield f"galaxy.yml accepts {name} {version}: set a range with an upper bound, such as >=3.1.0,<4.0.0"


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield the top-level name of each absolute import."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def sources() -> dict[str, str]:
    """Return the text of each file of the repository, except the requirements and this file."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    paths = {name: ROOT / name for name in names if "requirements" not in name and name != "tools/dependencies.py"}
    return {name: path.read_text(encoding="utf-8", errors="replace") for name, path in paths.items() if path.is_file() and not path.is_symlink()}


def faults() -> Iterator[str]:
    """Yield a sentence for each dependency that is unused, undeclared or imported where it is not allowed."""
    run, dev, image = declared("requirements.txt"), declared("requirements-dev.txt"), declared("meta/ee-requirements.txt")
    for name in sorted((run | dev) - set(USES)):
        yield f"{name} is declared in requirements*.txt and has no entry in USES of tools/dependencies.py: name its use, or remove it"
    for name in sorted(set(USES) - run - dev):
        yield f"{name} is in USES of tools/dependencies.py and not in requirements*.txt"
    for name in sorted(image - run):
        yield f"{name} is declared in meta/ee-requirements.txt and not in requirements.txt"
    for name in ("requirements", "requirements-dev", "roles/bench/files/requirements"):
        yield from unlocked(name, (ROOT / f"{name}.txt").read_text(encoding="utf-8"), (ROOT / f"{name}.lock").read_text(encoding="utf-8"))
    texts = sources()
    for name, pattern in USES.items():
        if not any(re.search(pattern, text, re.MULTILINE) for text in texts.values()):
            yield f"{name} is declared and not used: no tracked file matches {pattern!r}"
    for name, text in texts.items():
        if name.endswith(".py") and not name.startswith(("lab/container/images/", "lab/container/make_model.py", "lab/vm/guest/", "tests/unit/fixtures/")):
            yield from misplaced(name, set(imports(ast.parse(text))) - set(sys.stdlib_module_names) - LOCAL, run | dev)
    galaxy = yaml.safe_load(texts["galaxy.yml"])
    yield from unbounded(galaxy["dependencies"])
    # Rulebooks are optional: docs/keeps-serving.md names what they need.
    tasks = "\n".join(text for name, text in texts.items() if name.endswith(".yml") and not name.startswith("extensions/"))
    used = set(re.findall(r"^\s*(?:- )?(\w+\.\w+)\.\w+:", tasks, re.MULTILINE))
    for collection in sorted((used - {"ansible.builtin", "gb10.cluster"}) ^ set(galaxy["dependencies"])):
        yield f"the collection {collection} is {'used and not declared' if collection in used else 'declared and not used'} (dependencies of galaxy.yml)"


def misplaced(path: str, found: set[str], known: set[str]) -> Iterator[str]:
    """Yield a sentence for each third-party import of a file that its folder may not have, or that is not declared."""
    for name in sorted(found):
        if path.startswith(NODE):
            if not path.startswith(NODE_IMPORTS.get(name, "-")):
                yield f"{path} imports {name}: code that runs on a node has the standard library and Ansible only"
        elif path.startswith("plugins/") and name not in CONTROLLER_IMPORTS:
            yield f"{path} imports {name}: add it to CONTROLLER_IMPORTS of tools/dependencies.py and to requirements.txt, or do without"
        if INCLUDED.get(name, name) not in known:
            yield f"{path} imports {name}, which no requirements file declares"


def main() -> int:
    """Print each fault."""
    found = list(faults())
    for sentence in found:
        print(sentence)
    return 1 if found else 0


if __name__ == "__main__":
    raise SystemExit(main())
