"""Every link of a page leads to a file of the checkout, and to a heading of it. Those of README name the page on GitHub, for readers on Galaxy."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

REPO = Path(__file__).resolve().parents[3]
HOME = re.compile(r"https://github\.com/gb10-cluster/gb10\.cluster/(?:blob|tree)/main/|https://raw\.githubusercontent\.com/gb10-cluster/gb10\.cluster/main/")
LINK = re.compile(r"\]\(([^)\s]+)\)|^\[[^\]]+\]: (\S+)$", re.MULTILINE)


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives to the headings of a page, and those that it sets itself."""
    text = re.sub(r"^ *```.*?^ *```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)
    titles = (re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ (.*)", text, re.MULTILINE))
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles} | set(re.findall(r'<a (?:id|name)="([^"]+)"', text))


def test_every_link_leads_somewhere() -> None:
    listed = subprocess.run(["git", "ls-files", "-z", "*.md"], cwd=REPO, capture_output=True, text=True, check=True).stdout
    pages = [REPO / name for name in listed.split("\0") if name and (REPO / name).exists()]
    assert len(pages) > 20
    wrong, seen = [], 0
    for page in pages:
        for found in LINK.finditer(page.read_text(encoding="utf-8")):
            url, at_home = HOME.subn("", found[1] or found[2])
            if re.match(r"[a-z]+:", url):
                continue
            seen += 1
            path, _hash, anchor = url.partition("#")
            target = Path(os.path.normpath((REPO if at_home else page.parent) / path)) if path else page
            if not target.exists() or (anchor and target.suffix == ".md" and anchor not in anchors(target)):
                wrong.append(f"{page.relative_to(REPO)}: {found[0]}")
    assert not wrong, "\n".join(wrong)
    assert seen > 100
