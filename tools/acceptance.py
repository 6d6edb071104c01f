"""Check that each sentence of the acceptance net has its test, and that no test of the net knows the code's insides."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

NET = Path(__file__).resolve().parents[1] / "tests" / "acceptance"
ROW = re.compile(r"^\| (An owner (?:can|has|is told) .+\.) \| `(test_\w+)` \| (test|more|long) \|$", re.MULTILINE)
#: The suite of a row by its mark; without one it runs with make more.
RUNS = {"quick": "test", "long": "long"}
#: What a test of the net must not import.
INSIDES = ("ansible_collections", "plugins", "playbook", "container_lab", "vm", "lab")


def tests() -> dict[str, str]:
    """Return each test of the net, and when it runs."""
    found = {}
    for path in sorted(NET.glob("test_*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                marks = {ast.unparse(decorator) for decorator in node.decorator_list}
                found[node.name] = next((run for mark, run in RUNS.items() if f"pytest.mark.{mark}" in marks), "more")
    return found


def insides() -> list[str]:
    """Return a sentence for each import that knows more than an owner."""
    found = []
    for path in sorted(NET.glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
                found += [f"{path.name}:{node.lineno} imports {name}, which an owner does not see." for name in names if name.split(".")[0] in INSIDES]
    return found


def faults() -> list[str]:
    """Return a sentence for each difference between the table and the tests."""
    text, have = (NET / "README.md").read_text(encoding="utf-8"), tests()
    rows = {test: run for _sentence, test, run in ROW.findall(text)}
    found = insides()
    lines = [line for line in text.splitlines() if line.startswith("| ") and "`test_" in line]
    found += [f"README.md: this row is not `| An owner can|has|is told … . | `test_…` | test|more|long |`: {line}" for line in lines if not ROW.match(line)]
    found += [f"README.md: {test} has a row and no test." for test in rows.keys() - have.keys()]
    found += [f"{test} has no row in README.md." for test in have.keys() - rows.keys()]
    found += [f"{test}: README.md has `{rows[test]}`, and its mark `{run}`." for test, run in have.items() if rows.get(test, run) != run]
    return found


if __name__ == "__main__":
    sys.exit("\n".join(f"acceptance net: {fault}" for fault in faults()) or None)
