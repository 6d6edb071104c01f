# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/seeds.md from tools/seeds.yml; with --check only report what is out of date.

A place is `path`, `path#key` (the key exists in this YAML file, or in a profile that it extends), `path#key=value`, or `path~text` (the file contains
the text, in one line or over several). A test is `path::function`, or a name from `tests`. Each one must exist, or the page is not written.
"""

from __future__ import annotations

import argparse
import functools
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
DATA = ROOT / "tools" / "seeds.yml"
PAGE = ROOT / "docs" / "seeds.md"
HEAD = """\
<!-- Written by tools/seeds_doc.py from tools/seeds.yml: change that, then run it. -->
# The seeds, line by line

Five public reports describe how owners of two GB10 serve a large model. This page has each of their instructions, figures and warnings: where it is in
the collection and which test covers it, or why it is not. {done} of {all} rows are done. Nothing here was run on a GB10 by us.

A place with `#` is a key of that file. A figure in `published` is the seed's own.
"""
PAINS = """
## What hurts owners most

{done} of {all} are prevented or detected. The others need hardware that we do not have, and an owner gets the sentence in the last column.

| | what | answer | test, or the sentence |
|---|---|---|---|
"""


@functools.cache  # hundreds of rows name the same few files
def load(path: Path) -> Any:
    """Return the content of a YAML file, None if there is none."""
    return yaml.safe_load(path.read_text(encoding="utf-8")) if path.is_file() else None


def value_of(path: Path, key: str) -> Any:
    """Return the value of a dotted key, also from the profiles that this one extends. Raises KeyError."""
    content = load(path)
    while isinstance(content, dict):
        found: Any = content
        for part in key.split("."):
            found = found.get(part) if isinstance(found, dict) else None
        if found is not None:
            return found
        content = load(path.parent / f"{content['extends']}.yml") if content.get("extends") else None
    raise KeyError(key)


def fault_of_place(place: str, root: Path) -> str:
    """Return what is wrong with a place, empty if it exists."""
    path, mark, text = [*re.split(r"([#~])", place, maxsplit=1), "", ""][:3]
    if not (root / path).exists():
        return f"{path} does not exist"
    if mark == "~" and " ".join(text.split()) not in " ".join((root / path).read_text(encoding="utf-8").split()):
        return f"{path} does not contain {text!r}"
    if mark == "#":
        key, equals, value = text.partition("=")
        try:
            found = value_of(root / path, key)
        except KeyError:
            return f"{path} has no {key}"
        if equals and (found if isinstance(found, str) else json.dumps(found)) != value:
            return f"{path} has {key} {json.dumps(found)}, not {value}"
    return ""


def fault_of_test(test: str, root: Path) -> str:
    """Return what is wrong with a test, empty if it exists."""
    path, _colons, name = test.partition("::")
    if not (root / path).is_file() or not re.search(rf"^\s*def {name}\(", (root / path).read_text(encoding="utf-8"), re.MULTILINE):
        return f"the test {test} does not exist"
    return ""


def entries(data: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield the name and content of all rows."""
    for seed, part in data["seeds"].items():
        for number, row in part["rows"].items():
            yield f"{seed}-{number}", row
    for number, row in data["pains"].items():
        yield f"pain {number}", row


def faults(data: Mapping[str, Any], root: Path = ROOT) -> list[str]:
    """Return what is wrong with the rows, with their names."""
    out = []
    for name, row in entries(data):
        if set(row) not in ({"what", "where", "test"}, {"what", "open"}):
            out.append(f"{name}: expected are what, where and test, or what and open")
            continue
        wrong = [fault_of_place(each, root) for each in row.get("where", [])] + [fault_of_test(data["tests"].get(t, t), root) for t in row.get("test", [])]
        out += [f"{name}: {each}" for each in wrong if each]
        if "where" in row and not (row["where"] and row["test"]):
            out.append(f"{name}: a row that is done has a place and a test")
    return out


def shown(row: Mapping[str, Any], tests: Mapping[str, str]) -> tuple[str, str]:
    """Return the last two cells of a row."""
    if "open" in row:
        return "*not done*", row["open"]
    places = [re.split("[#~]", each)[0] for each in row["where"]]
    keys = [each.partition("#")[2] for each in row["where"]]
    where = ", ".join(f"[{path}](../{path})" + (f" `{key}`" if key else "") for path, key in zip(places, keys, strict=True))
    covered = [tests.get(name, name).partition("::") for name in row["test"]]
    return where, ", ".join(f"[`{name}`](../{path})" for path, _colons, name in covered)


def page(data: Mapping[str, Any]) -> str:
    """Return the page."""
    rows = [row for part in data["seeds"].values() for row in part["rows"].values()]
    out = HEAD.format(done=sum("where" in row for row in rows), all=len(rows))
    for seed, part in data["seeds"].items():
        out += f"\n## Seed {seed}: {part['title']}\n\n| id | line | what | where | test, or why not |\n|---|---|---|---|---|\n"
        for number, row in part["rows"].items():
            where, test = shown(row, data["tests"])
            line, _colon, what = row["what"].partition(": ")
            out += f"| {seed}-{number} | {line} | {what} | {where} | {test} |\n"
    out += PAINS.format(done=sum("where" in row for row in data["pains"].values()), all=len(data["pains"]))
    for number, row in data["pains"].items():
        where, test = shown(row, data["tests"])
        out += f"| {number} | {row['what']} | {where} | {test} |\n"
    return out


def main() -> int:
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if the page is out of date")
    options = parser.parse_args()
    data = load(DATA)
    wrong = faults(data)
    text = page(data) if not wrong else ""
    if options.check and not wrong and PAGE.read_text(encoding="utf-8") != text:
        wrong = ["docs/seeds.md is out of date: run tools/seeds_doc.py"]
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if not options.check:
        PAGE.write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
