# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fail for words that the project does not use, with the file, the line and the word to write instead.

A word also counts as a part of a name: `said_limit` has `said` in it.
A sentence of a document has at most 25 words. Code in backticks is one word.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PATHS = (
    "README.md", "CONTRIBUTING.md", "SECURITY.md", "site.yml", "benchmarks", "docs", "extensions", "inventories", "lab", "molecule", "playbooks", "plugins",
    "profiles", "roles", "tests", "tools",
)  # fmt: skip
EXCEPT = ("tests/unit/fixtures/", "tools/words.py", "tools/acceptance.py")  # recorded text of other programs, the list itself, and a pattern
QUOTED = ("it still had 1 users in the graph", "We had to rate limit your IP")  # text of other programs
SENTENCE_WORDS = 25

NET, TOLD = "tests/acceptance/", "told"  # "An owner is told ..." is the form of its sentences
# pattern -> what to write
WORDS = {
    r"foretell\w*|foretold|reckon\w*": "estimate, compute",
    r"wish(?:es|ed)?|as it shall be": "requirement, desired state, configuration",
    r"peel(?:ed|s|ing)?": "parse, parsed",
    r"say|says|saying|said|told|a word of": "report, print, message",
    r"brought|had|taken away|takes? away": "imported, available, removed",
    r"(?<!there )is no(?= [a-z])|none of it|nobody|nobodys": "is not a, not supported, undefined",
    r"meets? nobody|lying|laid down|lays? down": "unmatched, administratively down",
    r"rotten": "corrupted",
    r"in the way(?! that)": "blocks the start",
    r"goes? round in a circle": "circular reference",
    r"did not end well": "failed",
    r"as they are sold": "factory default",
    r"it is the profile's word": "the profile decides",
    r"half-?way|beside|anew|without a hand": "partly, next to, again, automatically",
    r"whoever|whatever|somebody": "the user, a process, another host",
}
PATTERN = re.compile("|".join(f"(?P<w{index}>(?<![A-Za-z])(?:{words})(?![A-Za-z]))" for index, words in enumerate(WORDS)), re.IGNORECASE)


def found(text: str) -> Iterator[tuple[int, str, str]]:
    """Yield the line number, the word and what to write instead."""
    instead = list(WORDS.values())
    for number, line in enumerate(text.splitlines(), 1):
        for match in () if any(quote in line for quote in QUOTED) else PATTERN.finditer(line):
            yield number, match.group(), instead[int(str(match.lastgroup)[1:])]


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield the number of words and the start of each sentence of a Markdown text that is too long. Blocks of code, tables and link targets do not count."""
    prose = re.sub(r"```.*?```", "\n\n", text, flags=re.DOTALL)
    prose = re.sub(r"^\s*(\||#|<).*$", "\n", prose, flags=re.MULTILINE)
    prose = re.sub(r"\]\([^)]*\)", "]", prose)
    prose = re.sub(r"(`+)[^`]+?\1", "`code`", prose)
    for block in re.split(r"\n\s*\n|\n\s*(?:[-*]|\d+\.)\s", prose):
        for sentence in re.split(r"(?<=[.:;!?])\*{0,2}\s+", " ".join(block.split())):
            if len(sentence.split()) > SENTENCE_WORDS:
                yield len(sentence.split()), sentence[:80]


def main(argv: list[str]) -> int:
    """Check the given paths, or all."""
    listed = subprocess.run(["git", "ls-files", *(argv or PATHS)], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    faults = 0
    for name in listed:
        if name.startswith(EXCEPT) or not (ROOT / name).is_file():
            continue
        try:
            text = (ROOT / name).read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        for number, word, instead in found(text):
            if name.startswith(NET) and word.lower() == TOLD:
                continue
            faults += 1
            print(f'{name}:{number}: "{word}": write {instead}')
        for count, start in long_sentences(text) if name.endswith(".md") else ():
            faults += 1
            print(f"{name}: a sentence of {count} words, at most {SENTENCE_WORDS}: {start} ...")
    if faults:
        print(f"tools/words.py: {faults} places to reword", file=sys.stderr)
    return 1 if faults else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
