"""Headless Chromium for tests: installed from Debian if it is missing, without a network, and what it prints, asks for and draws."""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

PACKAGE = "chromium-headless-shell"
#: Any of these will do. GitHub's runners have google-chrome.
COMMANDS = (PACKAGE, "google-chrome", "chromium")
LOCK = Path(tempfile.gettempdir()) / f"gb10-chromium-{os.geteuid()}.lock"
FLAGS: tuple[str, ...] = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking")
FLAGS += ("--disable-component-update", "--enable-logging=stderr")
#: Measures each figure in the page that it is appended to, and prints that as the text of an element.
PROBE = """<script>
const overlap = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 1 < b.bottom && b.top + 1 < a.bottom;
const paint = each => { const s = getComputedStyle(each); return s.fill === 'none' ? `${s.stroke} ${s.strokeOpacity}` : `${s.fill} ${s.fillOpacity}`; };
const legend = svg => [...svg.querySelectorAll('.legend')].filter((each, i) => {
  const shape = svg.querySelector(`.series.serie-${i} path.line, .series.serie-${i} rect.rect`);
  return !shape || paint(shape) !== paint(each.querySelector('rect'));
}).map(each => each.textContent);
const found = [...document.querySelectorAll('svg')].map(svg => {
  const frame = svg.getBoundingClientRect();
  const shapes = [...svg.querySelectorAll('.series path.line, .series rect.rect')].map(each => each.getBoundingClientRect());
  const texts = [...svg.querySelectorAll('text')].filter(each => each.textContent.trim());
  const boxes = texts.map(each => each.getBoundingClientRect());
  const outside = texts.filter((each, i) => boxes[i].bottom > frame.bottom + 1 || boxes[i].right > frame.right + 1 || boxes[i].left < frame.left - 1);
  const covered = texts.filter((each, i) => boxes.some((other, j) => j < i && overlap(other, boxes[i])));
  return {
    id: svg.id, width: frame.width, height: frame.height, shapes: shapes.filter(box => box.width + box.height > 1).length, texts: texts.length,
    outside: outside.map(each => each.textContent), covered: covered.map(each => each.textContent),
    unlike: legend(svg), legends: svg.querySelectorAll('.legend').length,
    title: svg.querySelector('title').textContent, desc: svg.querySelector('desc').textContent,
  };
});
const print = document.createElement('pre');
print.id = 'probe';
print.textContent = JSON.stringify({figures: found, wide: document.documentElement.scrollWidth > window.innerWidth});
document.body.append(print);
</script>"""


def install() -> None:
    """Install Chromium from Debian. Fails with a sentence where that is not possible."""
    possible = os.geteuid() == 0 and shutil.which("apt-get") is not None
    assert possible, f"The tests of report.yml need {PACKAGE}: install Debian's package as root, then run them again."
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    subprocess.run(["apt-get", "update", "-qq"], check=False, env=env, timeout=300)
    command = ["apt-get", "install", "-y", "-qq", "--no-install-recommends", "-o", "DPkg::Lock::Timeout=120", PACKAGE]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=env, timeout=600)
    assert done.returncode == 0, f"{' '.join(command)} failed: {done.stderr[-1000:]}"


class Browser:
    """Chromium with a folder for its files."""

    def __init__(self, folder: Path) -> None:
        """Install Chromium if it is missing."""
        self.folder = folder
        with LOCK.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # two processes of pytest-xdist
            if not any(map(shutil.which, COMMANDS)):
                install()
        self.command = next(filter(shutil.which, COMMANDS), PACKAGE)

    def _run(self, page: Path, *flags: str, width: int = 1000, height: int = 1200) -> subprocess.CompletedProcess[str]:
        offline = ["unshare", "--net"] if os.geteuid() == 0 else []
        size = (f"--window-size={width},{height}", f"--user-data-dir={self.folder / 'profile'}")
        command = [*offline, self.command, *FLAGS, *size, *flags, page.as_uri()]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
        return done

    def open(self, html: str) -> tuple[list[str], list[str]]:
        """Open a page; return the messages of its console, and the URLs that it asked for besides its own."""
        page, log = self.folder / "page.html", self.folder / "net.json"
        page.write_text(html, encoding="utf-8")
        done = self._run(page, "--dump-dom", f"--log-net-log={log}")
        text = log.read_text(encoding="utf-8")
        own = "".join(line for line in text.splitlines() if '"initiator":"not an origin"' in line)  # what the browser asks for by itself
        urls = set(re.findall(r'"url":"([^"]+)"', text)) - set(re.findall(r'"url":"([^"]+)"', own))
        console = [line for line in done.stderr.splitlines() if ":CONSOLE" in line]
        return console, sorted({url for url in urls if url != page.as_uri() and not url.startswith(("chrome:", "data:"))})

    def measure(self, html: str, **size: int) -> dict[str, Any]:
        """Return what the page draws; scripts are allowed for this."""
        page = self.folder / "probe.html"
        page.write_text(re.sub(r'<meta http-equiv="Content-Security-Policy"[^>]*>', "", html).replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
        done = self._run(page, "--dump-dom", **size)
        found = re.search(r'<pre id="probe">(.*?)</pre>', done.stdout, re.DOTALL)
        assert found is not None, done.stderr[-2000:]
        return dict(json.loads(found[1].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")))

    def screenshot(self, html: str, path: Path, height: int, dark: bool = False) -> None:
        """Write a picture of the page."""
        page = self.folder / "picture.html"
        page.write_text(html, encoding="utf-8")
        self._run(page, f"--screenshot={path}", *(["--blink-settings=preferredColorScheme=0"] if dark else []), height=height)
