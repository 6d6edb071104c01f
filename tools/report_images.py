# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Write the pictures of docs/day-to-day.md: the page of tests/report_pages.py in headless Chromium, light and dark."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "collections"), str(ROOT / "tests")]

import report_pages  # noqa: E402  the paths are set above
from browser import Browser  # noqa: E402

HEIGHT = 1480


def main() -> None:
    """Write both pictures."""
    folder = ROOT / "docs" / "images"
    folder.mkdir(exist_ok=True)
    html = report_pages.html(report_pages.pair())
    with tempfile.TemporaryDirectory() as work:
        browser = Browser(Path(work))
        for name, dark in (("light", False), ("dark", True)):
            browser.screenshot(html, folder / f"report-{name}.png", HEIGHT, dark)


if __name__ == "__main__":
    main()
