"""Golden screens: what an owner reads, compared without times, addresses and ids. `UPDATE_GOLDEN=1` writes them."""

from __future__ import annotations

import difflib
import os
import re
from pathlib import Path

SCREENS = Path(__file__).parent / "screens"
#: What differs between runs, machines and checkouts, and what stands for it. The order matters.
REPLACED = (
    (r"^\[pair1 \+ +\d+ s\].*\n", ""),  # the progress of a boot follows the speed of the machine
    # Faults of earlier rows.
    (r"; restarts: .*$", "."),
    (r"^info restarts .*\n    why: .*\n    run: .*\n", ""),
    (r"(\d+ warnings?), \d+ for information\.", r"\1."),
    (r"(?:/[\w.+-]+)+/(?=id_ed25519|known_hosts)", "…/"),
    (r"(?:/[\w.+-]+)+/(?=(?:receipts|evidence|mine)/)", "…/"),
    (r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ|\d{8}T\d{6}Z", "TIME"),
    (r"\b(?:172\.30|10\.\d+|192\.168)\.\d+\.\d+\b", "ADDRESS"),
    (r"\broot@\S+?(?=[:.,; ]|$)", "root@CONTROLLER"),
    (r"\b[0-9a-f]{12,64}\b", "ID"),
    (r"\b\d+(?:\.\d+)? (?:s|min)\b", "N s"),
    (r"^\w+ +lab-\d(?:, lab-\d)?: .*N s(?:;.*)?\n", ""),  # a task that takes long on a slow machine
    (r"\b\d+(?:\.\d+)? (?:of \d+(?:\.\d+)? )?GiB", "N GiB"),
    (r" \(head: [^)]*\)", " (head: …)"),
    (r"(?<=N s) +(?=\S)|(?<=ok) +(?=lab)|(?<=changed) +(?=lab)", "  "),
    (r"[ \t]+$", ""),
)


def normal(text: str) -> str:
    """Return a screen without times, addresses and ids."""
    for pattern, replacement in REPLACED:
        text = re.sub(pattern, replacement, text, flags=re.MULTILINE)
    return text.strip() + "\n"


def compare(name: str, text: str) -> None:
    """Compare a screen with its golden one."""
    path, found = SCREENS / f"{name}.txt", normal(text)
    if os.environ.get("UPDATE_GOLDEN"):
        SCREENS.mkdir(exist_ok=True)
        path.write_text(found, encoding="utf-8")
    wanted = path.read_text(encoding="utf-8")
    difference = "\n".join(difflib.unified_diff(wanted.splitlines(), found.splitlines(), f"screens/{name}.txt", "this run", lineterm=""))
    assert not difference, f"the screen differs. UPDATE_GOLDEN=1 writes it; Give the reason in the commit.\n{difference}"
