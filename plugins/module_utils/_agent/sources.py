# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The agent's own source files, read from where Ansible imported them: a checkout, an installed collection, or a module's zip."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import re
from collections.abc import Iterable, Iterator, Mapping

ROOT = "ansible_collections.gb10.cluster.plugins.module_utils"
LIBRARY = re.compile(r"(?:[A-Za-z_]\w*/)*[A-Za-z_]\w*\.py", re.ASCII)


class SourceError(ValueError):
    """The agent's files are not complete; the message is one sentence for the user."""


def find(name: str) -> tuple[str, bool] | None:
    """Return the source of a module and whether it is a package; None if there is no such module."""
    try:
        spec = importlib.util.find_spec(name)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    package = spec.submodule_search_locations is not None
    read = getattr(spec.loader, "get_source", None)
    try:
        return str((read(name) if read is not None else "") or ""), package
    except ImportError:
        return None


def imports(name: str, package: bool, text: str) -> Iterator[str]:
    """Return every name that a module may import, also inside functions; some of them are not modules."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = name.split(".")
                kept = parts[: len(parts) - node.level + (1 if package else 0)]
                base = ".".join([*kept, base] if base else kept)
            yield base
            yield from (f"{base}.{alias.name}" for alias in node.names)


def parents(name: str) -> list[str]:
    """Return the packages above a module."""
    parts = name.split(".")
    return [".".join(parts[:count]) for count in range(1, len(parts))]


def collect(entries: Iterable[str]) -> dict[str, str]:
    """Return path -> text of these modules and of all modules of the collection that they import. Raises SourceError."""
    entries = list(entries)
    files = {f"{name.replace('.', '/')}/__init__.py": "" for name in [*parents(ROOT), ROOT]}
    seen, todo = {ROOT}, list(entries)
    while todo:
        name = todo.pop()
        if name in seen or not name.startswith(f"{ROOT}."):
            continue
        seen.add(name)
        found = find(name)
        if found is None:
            if name in entries:
                raise SourceError(f"The source of {name} was not sent to the node. Report this as a bug of gb10.cluster.")
            continue
        text, package = found
        files[name.replace(".", "/") + ("/__init__.py" if package else ".py")] = text
        todo += [*parents(name), *imports(name, package, text)]
    return files


def with_libraries(files: Mapping[str, str], libraries: Mapping[str, str]) -> dict[str, str]:
    """Add pure-Python libraries next to the collection's files. Raises SourceError."""
    for path in libraries:
        if not LIBRARY.fullmatch(path) or path.split("/")[0] == "ansible_collections":
            raise SourceError(f"{path!r} in libraries is not the relative path of a Python file. Use the result of lookup('gb10.cluster.python_sources').")
    return {**files, **{path: str(text) for path, text in libraries.items()}}


def version_of(files: Mapping[str, str]) -> str:
    """Return the version of these files: the first 12 hexadecimal digits of a SHA-256 over paths and contents."""
    digest = hashlib.sha256()
    for path in sorted(files):
        data = files[path].encode("utf-8", "surrogateescape")
        digest.update(f"{path}\0{len(data)}\0".encode())
        digest.update(data)
    return digest.hexdigest()[:12]
