# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write docs/failures.md from the failure classes and the ladder; with --check only report whether it is up to date."""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "failures.md"
KINDS = {
    "strong": "the engine cannot live after it",
    "weak": "a request can cause it too: after readiness it counts only with proof that the engine died",
    "tail": "a symptom: named only if no other class is found",
}


def text() -> str:
    """Return the page."""
    sys.path.insert(0, str(ROOT / "collections"))
    from ansible_collections.gb10.cluster.plugins.module_utils._agent.ladder import TRANSIENT
    from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import BENIGN, CATALOGUE, name_of
    from ansible_collections.gb10.cluster.plugins.module_utils._gate.classes import CLASSES, START_REMEDIES

    def again(name: str) -> str:
        return "no, the containers are left as they are" if name == "gate_error" else "yes" if name in TRANSIENT else "no"

    out = [
        "# Failures in vLLM's log",
        "",
        "Generated from `_boot_log/catalogue.py`, `_gate/classes.py` and `_agent/ladder.py` in `plugins/module_utils` by `tools/failures_doc.py`; do not edit.",
        "",
        "`vllm_boot_log_info` and the gate name one of these classes as the root cause of a boot that failed. The order is their rank:",
        "of several classes in one boot the first in this table is the cause, and the others are in `failure.also`. A class can have",
        "several cases, which differ in cause and remedy; `failure.anchor` names the case.",
        "",
        "*Again* is about a release that has passed its gate before. *yes*: the cause may pass by itself, and the agent starts the release again, with at most",
        "`vllm_tp2_attempts` starts in all. *no*: the agent does not start it again. A release that has never passed is not started again for any class.",
        "See the [failure ladder](architecture.md#failure-ladder) for what follows.",
        "",
        "| case | class | again | it means |",
        "|---|---|---|---|",
    ]
    out += [f"| [`{name_of(e)}`](#{name_of(e)}) | `{e['class']}` | {again(e['class'])} | {plain(e['means'])} |" for e in CATALOGUE]
    for entry in CATALOGUE:
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
    for name, (means, remedy) in CLASSES.items():
        out += ["", f'### <a id="{name}"></a>`{name}`', "", f"**It means:** {means}", "", f"**What to do:** {remedy}.", "", f"**Again:** {again(name)}."]
        if name == "start_failed":
            out += ["", "Known messages of the Docker Engine:", "", "| message | what to do |", "|---|---|"]
            out += [f"| `{pattern.replace('|', '` or `')}` | {text} |" for pattern, text in START_REMEDIES]
    out += [
        "",
        '## <a id="benign"></a>Look-alikes that are not failures',
        "",
        "These lines are counted in `benign` and change no verdict.",
        "",
        "| name | the line contains | meaning |",
        "|---|---|---|",
    ]
    out += [f"| `{b['name']}` | `{b['needle']}` | {b['means']} |" for b in BENIGN]
    out += [
        "",
        '## <a id="your-own"></a>Your own classes',
        "",
        "Add them in the inventory, as `extra_classes` of `vllm_boot_log_info` or of the gate; they outrank the classes above:",
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
    """Write or check the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if the page is out of date")
    options = parser.parse_args()
    page = text()
    if options.check:
        if not PAGE.exists() or PAGE.read_text(encoding="utf-8") != page:
            print("docs/failures.md is out of date: run tools/failures_doc.py", file=sys.stderr)
            return 1
        return 0
    PAGE.parent.mkdir(exist_ok=True)
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
