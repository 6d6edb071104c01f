# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Print the size of the collection, and fail above its budget, and for files and functions of plugins/ that are too long.

A file has at most 500 lines without its DOCUMENTATION, EXAMPLES and RETURN, a function at most 60 without its docstring. ALLOWED has
today's exceptions. It can only shrink: an entry that is not needed fails too.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FILE_LINES = 500
FUNCTION_LINES = 60
BLOCKS = ("DOCUMENTATION", "EXAMPLES", "RETURN")

# path, or path:function, as printed -> lines
ALLOWED: dict[str, int] = {}

# Generated data, and files of documentation alone: not counted.
DATA = frozenset(("plugins/module_utils/_boot_log/failures_data.py",))
DOCUMENTATION_ONLY = "plugins/doc_fragments/"

# What the collection may have today, and what it is to come down to. A step that makes something smaller lowers its first figure.
BUDGET: dict[str, tuple[int, int]] = {
    "Python lines of plugins/ without documentation blocks": (33240, 22500),
    "Python lines of tests/": (35308, 24500),
    "modules": (16, 16),
    "files of module_utils": (95, 95),
    "action plugins": (7, 10),
    "task files of the role vllm_tp2": (8, 8),
    "lines of its vars": (71, 71),
}


def _span(node: ast.stmt) -> int:
    return (node.end_lineno or node.lineno) - node.lineno + 1


def file_lines(text: str, tree: ast.Module) -> int:
    """Return the lines of a file without its documentation blocks."""
    blocks = (n for n in tree.body if isinstance(n, ast.Assign) and any(isinstance(t, ast.Name) and t.id in BLOCKS for t in n.targets))
    return len(text.splitlines()) - sum(_span(node) for node in blocks)


def functions(node: ast.AST, prefix: str = "") -> Iterator[tuple[str, int]]:
    """Yield the dotted name of each function and its lines, from `def` to its end, without its docstring."""
    for child in ast.iter_child_nodes(node):
        name = prefix
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            name = f"{prefix}{child.name}."
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield name[:-1], _span(child) - (_span(child.body[0]) if ast.get_docstring(child) is not None else 0)
        yield from functions(child, name)


def measure(root: Path, folder: str) -> tuple[int, dict[str, int]]:
    """Return the total lines of a folder, and {path or path:function: lines} of what is longer than its limit."""
    total, long = 0, {}
    for path in sorted((root / folder).rglob("*.py")):
        shown = path.relative_to(root).as_posix()
        if shown in DATA or shown.startswith(DOCUMENTATION_ONLY):
            continue
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text)
        lines = file_lines(text, tree)
        total += lines
        if lines > FILE_LINES:
            long[shown] = lines
        long.update({f"{shown}:{name}": size for name, size in functions(tree) if size > FUNCTION_LINES})
    return total, long


def faults(long: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return what is longer than allowed, and the entries of `allowed` that are not needed."""
    out = []
    for key, lines in sorted(long.items()):
        limit = allowed.get(key, FUNCTION_LINES if ":" in key else FILE_LINES)
        if lines > limit:
            out.append(f"{key} has {lines} lines, expected at most {limit}. Split it.")
    out += [f"{key} is within the limit. Remove it from ALLOWED." for key in sorted(allowed) if key not in long]
    return out


def sizes(root: Path, plugins: int, tests: int) -> dict[str, int]:
    """Return what BUDGET counts."""
    role = root / "roles/vllm_tp2"
    folders = ((root / "plugins/modules", "*.py"), (root / "plugins/module_utils", "**/*.py"), (root / "plugins/action", "*.py"), (role / "tasks", "*.yml"))
    counted = [len(list(path.glob(pattern))) for path, pattern in folders]
    lines = [len(path.read_text(encoding="utf-8").splitlines()) for path in (role / "vars").glob("*.yml")]
    return dict(zip(BUDGET, [plugins, tests, *counted, sum(lines)]))


def main(root: Path = ROOT, allowed: Mapping[str, int] | None = None) -> int:
    """Print the sizes and the faults; return 1 if there are faults."""
    allowed = ALLOWED if allowed is None else allowed
    plugins, long = measure(root, "plugins")
    tests, _long = measure(root, "tests")
    found = faults(long, allowed)
    size = sizes(root, plugins, tests)
    found += [f"{name}: {size[name]}, and the budget is {most}. Make something smaller." for name, (most, _goal) in BUDGET.items() if size[name] > most]
    if list(allowed) != sorted(allowed):
        found.append("ALLOWED is not sorted. Sort it.")
    for line in found:
        print(f"tools/limits.py: {line}")
    print(f"{len(long)} exceptions; " + ", ".join(f"{name} {size[name]} (budget {most}, goal {goal})" for name, (most, goal) in BUDGET.items()))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
