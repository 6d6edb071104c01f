"""What Ansible sends with each module: the files of module_utils that it imports, and their bytes before they are compressed.

AnsiballZ follows every import, also one in a function or under TYPE_CHECKING. Usage:

    .venv/bin/python benchmarks/sent.py [MODULE ...]   # with names, also the files of these modules
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

PLUGINS = Path(__file__).resolve().parents[1] / "plugins"
PREFIX = "ansible_collections.gb10.cluster.plugins.module_utils"


def imported(path: Path) -> Iterator[Path]:
    """Yield the files of module_utils that a file imports."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(PREFIX):
            place = PLUGINS / "module_utils" / str(node.module)[len(PREFIX) :].strip(".").replace(".", "/")
            for name in node.names:
                found = place / f"{name.name}.py"
                yield found if found.exists() else place.with_suffix(".py")


def sent(module: Path) -> set[Path]:
    """Return all files that go with a module."""
    found, left = set[Path](), [module]
    while left:
        new = set(imported(left.pop())) - found
        found |= new
        left += new
    return found


def main() -> None:
    """Print a line for each module."""
    for module in sorted((PLUGINS / "modules").glob("*.py")):
        files = sent(module)
        print(f"{module.stem:20} {len(files):3} files {sum(path.stat().st_size for path in files) / 1000:8.1f} kB")
        for path in sorted(files) if module.stem in sys.argv[1:] else ():
            print(f"    {path.relative_to(PLUGINS)}")


if __name__ == "__main__":
    main()
