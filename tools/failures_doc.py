# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check failures.yml, and write what is made of it: docs/reference/failures.md and failures_data.py. With --check only report what is not up to date."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT)]

from tools.literals import literals_of  # noqa: E402  the checkout is on the path now

SOURCE = ROOT / "plugins/module_utils/_boot_log/failures.yml"
DATA = SOURCE.with_name("failures_data.py")
PAGE = ROOT / "docs/reference/failures.md"
KINDS = {
    "strong": "the engine cannot live after it",
    "weak": "a request can cause it too: after readiness it counts only with proof that the engine died",
    "tail": "a symptom: named only if no other class is found",
}
#: The keys of a row of each section and their types: first those that each row has, then the others.
KEYS: dict[str, tuple[dict[str, type], dict[str, type]]] = {
    "failures": (
        {"class": str, "means": str, "why": str, "example": str, "kind": str, "remedy": str},
        {
            "case": str, "patterns": list, "any_level": bool, "last_words": bool, "pick": str, "within": str, "names": str, "details": list, "unless": list,
            "aftermath": list, "remedy_plain": str, "needs_peer": str,
        },
    ),
    "benign": ({"name": str, "needle": str, "means": str, "example": str}, {}),
    "kernel": (
        {"kind": str, "severity": str, "found": str, "matters": str, "patterns": list},
        {"boot_log": str, "watch": str, "preflight": str, "show": str, "command": str, "least": int, "block": list},
    ),
    "versions": (
        {"component": str, "severity": str, "matters": str, "remedy": str, "source": str},
        {"match": str, "below": str, "line": str, "also": dict, "unless": list},
    ),
    "gate": ({"class": str, "remedy": str}, {"means": str, "messages": list}),
}  # fmt: skip
#: What is read by people only, and not by the nodes.
PROSE = frozenset(("means", "why", "example"))
#: The keys with a list of expressions, and with one expression, which can be a list of its parts.
LISTS = ("patterns", "details", "aftermath")
SINGLES = ("within", "names", "block")
#: How the sentences about a type call it.
TYPES = {str: "text", list: "a list", bool: "true or false", int: "a number", dict: "a mapping"}
#: Groups that do not come from the line: the name of the boot's drafter.
FILLED = frozenset(("drafter",))
_PART = re.compile(r"\{([A-Z][A-Z_]+)\}")
_REPEATED = re.compile(r"\([^()]*[+*][^()]*\)\s*[+*{]")


def name_of(row: Mapping[str, Any]) -> str:
    """Return the unique name of a row: its case, its class, the kind of a kernel message, the name of a look-alike, or a version."""
    if "component" in row:
        return f"{row['component']} {row['match']}" if "match" in row else f"{row['component']} below {row.get('below')}"
    return str(next((row[key] for key in ("case", "class", "name", "kind") if key in row), "?"))


# --- The source -------------------------------------------------------------------------------------------------------


def expand(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return the document with its parts in place, and with what each row has by default."""
    parts = document["parts"]

    def expression(source: str | list[str]) -> str:
        return _PART.sub(lambda match: "".join(parts[match.group(1)]), "".join(source))

    def texts(items: list[str]) -> list[str]:
        return [text for item in items for text in (parts[item[1:-1]] if _PART.fullmatch(item) else [item])]

    def full(row: Mapping[str, Any]) -> dict[str, Any]:
        lists = {key: [expression(each) for each in row[key]] for key in LISTS if key in row}
        singles = {key: expression(row[key]) for key in SINGLES if key in row}
        return {**row, **lists, **singles, **({"unless": texts(row["unless"])} if "unless" in row else {})}

    kernel = [full(row) for row in document["kernel"]]
    of_class = {row["boot_log"]: row["patterns"] for row in kernel if "boot_log" in row}
    rows = []
    for row in map(full, document["failures"]):
        kernels = of_class.get(row["class"], []) if "case" not in row else []
        default = {"pick": "first", "needs_peer": "", "anchor": f"docs/reference/failures.md#{name_of(row)}"}
        rows.append({**default, **row, "patterns": [*kernels, *row.get("patterns", [])]})
    return {**document, "failures": rows, "kernel": kernel}


def faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the form of the document and with its names, each as one sentence."""
    for section, (needed, optional) in KEYS.items():
        for row in document[section]:
            who = f"The row {name_of(row)!r} of {section}"
            yield from (f"{who} has no {key}. Add it." for key in needed if not row.get(key))
            known = {**needed, **optional}
            for key, value in row.items():
                if key not in known:
                    yield f"{who} has the unknown key {key!r}. Use {', '.join(known)}."
                elif not isinstance(value, known[key]) or (key in (*LISTS, *SINGLES, "unless") and not _texts(value)):
                    yield f"{who} has in {key} a value that is not {TYPES[known[key]]}. Correct it, for instance with quotes around it."
        names = [name_of(row) for row in document[section]]
        yield from (f"{section} has two rows with the name {name!r}. Give one of them another case." for name in sorted(set(names)) if names.count(name) > 1)
    classes = {row.get("class") for section in ("failures", "gate") for row in document[section]}
    whole = {row.get("class") for section in ("failures", "gate") for row in document[section] if "case" not in row}
    yield from (f"The class {name!r} has no row without a case. Remove the case of its most general row." for name in sorted(classes - whole))
    yield from (f"transient has the unknown class {name!r}. Correct it." for name in document["transient"] if name not in classes)
    named = {row["boot_log"] for row in document["kernel"] if "boot_log" in row}
    yield from (f"kernel has the unknown class {name!r} in boot_log. Correct it." for name in sorted(named - classes))
    rows = [*document["failures"], *document["kernel"]]
    used = set(_PART.findall(json.dumps([{key: row[key] for key in row if key not in PROSE} for row in rows])))
    yield from (f"The part {{{name}}} is not defined. Add it to parts, or correct the name." for name in sorted(used - set(document["parts"])))
    yield from (f"The part {name} is not used. Remove it." for name in document["parts"] if name not in used)


def _texts(value: Any) -> bool:
    """Return whether a value is text, or a list of texts and of lists of texts."""
    return isinstance(value, str) or all(isinstance(part, str) for each in value for part in (each if isinstance(each, list) else [each]))


def _expression_faults(who: str, row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the expressions of an expanded row."""
    sources = [(key, source) for key in LISTS for source in row.get(key, [])] + [(key, row[key]) for key in SINGLES if key in row]
    for key, source in sources:
        try:
            re.compile(source)
        except re.error as exc:
            yield f"{who} has an expression in {key} that is not valid ({exc}): {source!r}."
            continue
        if key != "block" and _REPEATED.search(source):
            yield f"{who} has an expression in {key} that repeats a group that repeats, which can hang on a long line: {source!r}. Use one repeat."


def failure_faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with an expanded row of failures."""
    who = f"The row {name_of(row)!r} of failures"
    for key, values in (("kind", tuple(KINDS)), ("pick", ("first", "last"))):
        if row[key] not in values:
            yield f"{who} has the {key} {row[key]!r}. Use {', '.join(values)}."
    found = list(_expression_faults(who, row))
    yield from found
    if found:
        return
    if not row["patterns"]:
        yield f"{who} has no patterns. Add one."
    for source in row["patterns"]:
        if min(map(len, literals_of(source)), default=0) < 3:
            yield f"{who} has a pattern without a literal of three letters, and no line is tested with it: {source!r}. Add text of the line."
    groups = {name for key in ("patterns", "details") for source in row.get(key, []) for name in re.compile(source).groupindex} | FILLED
    for name in re.findall(r"\{(\w+)\}", row["remedy"]):
        if name not in groups:
            yield f"{who} has {{{name}}} in its remedy, and no expression with a group of this name. Correct it."


def kernel_faults(row: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with an expanded row of kernel."""
    who = f"The row {name_of(row)!r} of kernel"
    yield from _expression_faults(who, row)
    if row["severity"] not in ("error", "warning"):
        yield f"{who} has the severity {row['severity']!r}. Use error or warning."
    if ("show" in row) == ("command" in row):
        yield f"{who} needs one of show and command. Add or remove one."


def expanded_faults(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is wrong with the expanded document: values, expressions and remedies."""
    for row in document["failures"]:
        yield from failure_faults(row)
    for row in document["kernel"]:
        yield from kernel_faults(row)
    ranks = [row["class"] for row in document["failures"] if row["kind"] != "tail"]
    firsts = [rank for before, rank in zip([None, *ranks], ranks) if before != rank]
    yield from (f"The rows of the class {name!r} in failures do not stand together. Move them." for name in sorted(set(firsts)) if firsts.count(name) > 1)


def load(path: Path = SOURCE) -> dict[str, Any]:
    """Return the expanded document; exit with one sentence for each fault."""
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506  a safe loader
    except yaml.YAMLError as exc:
        raise SystemExit(f"{path.name} is not valid YAML: {' '.join(str(exc).split())}.") from exc
    found = list(faults(document))
    if not found:
        document = expand(document)
        found = list(expanded_faults(document))
    if found:
        raise SystemExit("\n".join(f"{path.name}: {each}" for each in found))
    return dict(document)


# --- What is made of it -----------------------------------------------------------------------------------------------


def module(document: Mapping[str, Any]) -> str:
    """Return the module of the nodes, which have no YAML: what they need of the document as JSON, one row after the other."""
    rows = []
    for full in document["failures"]:
        row = {key: value for key, value in full.items() if key not in PROSE}
        row["literals"] = [literals_of(pattern) for pattern in row["patterns"]]
        if "within" in row:
            row["within_literals"] = literals_of(row["within"])
        rows.append(row)
    sections = {
        "failures": rows,
        "benign": [[row["name"], row["needle"]] for row in document["benign"]],
        "kernel": document["kernel"],
        "versions": document["versions"],
        "gate": [[row["class"], row["remedy"]] for row in document["gate"]],
        "messages": [[each["pattern"], each["remedy"]] for row in document["gate"] for each in row.get("messages", [])],
        "transient": document["transient"],
    }
    lines: list[str] = []
    for section, entries in sections.items():
        lines.append(f'{"," if lines else "{"}"{section}":[')
        for number, entry in enumerate(entries):
            text = ("," if number else "") + json.dumps(entry, separators=(",", ":")).replace("'", "\\u0027")
            while text:
                end = min(len(text), 150)
                end -= len(text[:end]) - len(text[:end].rstrip("\\"))  # a raw string does not end with a backslash
                lines.append(text[:end])
                text = text[end:]
        lines.append("]")
    lines.append("}")
    head = SOURCE.read_text(encoding="utf-8").split("\n#\n")[0] + '\n"""PRIVATE: generated by tools/failures_doc.py from failures.yml."""'
    body = "\n".join(f"    r'{line}'" for line in lines)
    return f"{head}\n\nfrom __future__ import annotations\n\n# fmt: off\nTEXT = (\n{body}\n)\n"


def page(document: Mapping[str, Any]) -> str:
    """Return docs/reference/failures.md."""

    def again(name: str) -> str:
        return "no, the containers are left as they are" if name == "gate_error" else "yes" if name in document["transient"] else "no"

    rows = document["failures"]
    out = [
        "# Failures in vLLM's log",
        "",
        "Generated from `plugins/module_utils/_boot_log/failures.yml` by `tools/failures_doc.py`; do not edit.",
        "",
        "The filter `vllm_boot_log` and the gate name one of these classes as the root cause of a boot that failed. The order is their rank:",
        "of several classes in one boot the first in this table is the cause, and the others are in `failure.also`. A class can have",
        "several cases, which differ in cause and remedy; `failure.anchor` names the case.",
        "",
        "*Again* is about a release that has passed its gate before. *yes*: the cause may pass by itself, and the agent starts the release again, with at most",
        "`vllm_tp2_attempts` starts in all. *no*: the agent does not start it again. A release that has never passed is not started again for any class.",
        "See the [failure ladder](../architecture.md#failure-ladder) for what follows.",
        "",
        "| case | class | again | it means |",
        "|---|---|---|---|",
    ]
    out += [f"| [`{name_of(e)}`](#{name_of(e)}) | `{e['class']}` | {again(e['class'])} | {plain(e['means'])} |" for e in rows]
    for entry in rows:
        out += [
            "",
            f'## <a id="{name_of(entry)}"></a>`{name_of(entry)}`',
            "",
            *([f"**Class:** `{entry['class']}`", ""] if entry.get("case") else []),
            f"**It means:** {plain(entry['means'])}",
            "",
            f"**Example:** `{entry['example']}`",
            "",
            f"**Why:** {entry['why']}",
            "",
            f"**What to do:** {plain(entry['remedy'])}",
        ]
        if entry.get("remedy_plain"):
            out += ["", f"If the line has no figures: {plain(entry['remedy_plain'])}"]
        if entry["needs_peer"]:
            out += ["", f"**From the other rank:** {entry['needs_peer']}."]
        out += ["", f"Weight: {entry['kind']}, {KINDS[entry['kind']]}."]
    out += ["", "## What the gate reports without a log line", "", "Sources: the states of the containers, the nodes, and the criteria for a boot."]
    for row in document["gate"]:
        if "means" not in row:
            continue
        name = row["class"]
        out += ["", f'### <a id="{name}"></a>`{name}`', "", f"**It means:** {row['means']}"]
        out += ["", f"**What to do:** {row['remedy']}.", "", f"**Again:** {again(name)}."]
        if "messages" in row:
            out += ["", "Known messages of the Docker Engine:", "", "| message | what to do |", "|---|---|"]
            out += [f"| `{each['pattern'].replace('|', '` or `')}` | {each['remedy']} |" for each in row["messages"]]
    out += [
        "",
        '## <a id="benign"></a>Look-alikes that are not failures',
        "",
        "These lines are counted in `benign` and change no verdict.",
        "",
        "| name | the line contains | meaning |",
        "|---|---|---|",
    ]
    out += [f"| `{b['name']}` | `{b['needle']}` | {b['means']} |" for b in document["benign"]]
    out += [
        "",
        '## <a id="your-own"></a>Your own classes',
        "",
        "Add them in the inventory, as `extra_classes` of the filter `vllm_boot_log` or of the gate; they outrank the classes above:",
        "",
        "```yaml",
        "extra_classes:",
        "  - class: licence_expired",
        "    pattern: 'licence of plugin (?P<plugin>\\w+) has expired'",
        "    remedy: Renew the licence of {plugin}.",
        "    anchor: https://wiki.example/licence",
        "```",
        "",
    ]
    return "\n".join(out)


def plain(sentence: str) -> str:
    """Show the placeholders of a sentence in italics."""
    return re.sub(r"\{(\w+)\}", lambda m: f"*{m.group(1)}*", sentence)


def main() -> int:
    """Write or check what is made of the source."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if a file is out of date")
    options = parser.parse_args()
    document = load()
    code = 0
    for path, text in ((DATA, module(document)), (PAGE, page(document))):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        if options.check:
            print(f"{path.relative_to(ROOT)} is out of date: run tools/failures_doc.py", file=sys.stderr)
            code = 1
        else:
            path.write_text(text, encoding="utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
