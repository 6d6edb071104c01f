"""A situation and its verdict, which is computed from observations, and the pair that it is done to."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import Any

from acceptance import commands
from acceptance.owner import RAW, REPO, Owner, Running, Screen, wait_for
from container_lab import NODE

ONLY_SERVING = commands.tags(commands.SERVING)
POOL = 4194304  # tokens of the stub
AGENT = "/usr/local/sbin/gb10 /etc/gb10-cluster/agent.json /etc/systemd/system/gb10-agent.service"
SEEN = 330  # characters of a sentence in the table


@dataclass
class Row:
    """One situation: what is expected of it, what was seen, and what did not hold."""

    number: str
    title: str
    expected: str
    seen: list[str] = field(default_factory=list)
    bad: list[str] = field(default_factory=list)
    weak: list[str] = field(default_factory=list)
    checks: int = 0
    reason: str = "not reached"  # why it was not run
    seconds: float = 0.0

    @property
    def verdict(self) -> str:
        """good, weak, bad, or not run."""
        if self.bad:
            return "bad"
        if not self.checks:
            return "not run"
        return "weak" if self.weak else "good"

    def must(self, holds: bool, otherwise: str) -> bool:
        """Check what misleads the owner, or is an outage or a wrong action, if it does not hold."""
        return self._check(holds, otherwise, self.bad)

    def should(self, holds: bool, otherwise: str) -> bool:
        """Check what is right but unclear, or not shown, if it does not hold."""
        return self._check(holds, otherwise, self.weak)

    def _check(self, holds: bool, otherwise: str, into: list[str]) -> bool:
        self.checks += 1
        if not holds:
            into.append(otherwise)
        return holds

    def saw(self, text: str) -> None:
        """Note what was seen."""
        self.seen.append(text)

    def ran(self, screen: Screen, code: int | None = 0) -> Screen:
        """Note what a command printed, and check its exit code (None: any but 0) and that nothing raw is on the screen."""
        short = name(screen)
        self.seen.append(f"`{short}` exit {screen.code}, {screen.seconds:.0f} s: {sentence(screen)}")
        self.must(screen.code == code if code is not None else screen.code != 0, f"`{short}` ends with {screen.code}")
        raw = RAW.search(screen.text)
        self.must(raw is None, f"`{short}` prints a raw error: {raw and raw.group()}")
        return screen

    def shows(self, screen: Screen, *patterns: str) -> None:
        """Check that each pattern is on a screen: without it the owner is misled."""
        for pattern in patterns:
            self.must(bool(re.search(pattern, screen.flat)), f"`{name(screen)}` does not show {pattern!r}")

    def tells(self, screen: Screen, *patterns: str) -> None:
        """Check that each pattern is on a screen: without it the answer is right, but unclear."""
        for pattern in patterns:
            self.should(bool(re.search(pattern, screen.flat)), f"`{name(screen)}` does not show {pattern!r}")

    def hides(self, screen: Screen, *patterns: str) -> None:
        """Check that no pattern is on a screen: it would be wrong."""
        for pattern in patterns:
            self.must(not re.search(pattern, screen.flat), f"`{name(screen)}` shows {pattern!r}")

    def untouched(self, pair: Pair, before: Sequence[tuple[str, str]]) -> None:
        """Check that the containers are those of before and serve."""
        self.must(pair.ids() == list(before), "the pair was restarted")
        self.must(pair.serves(), "the pair does not serve")

    def untouched_by(self, pair: Pair, before: Sequence[tuple[str, str]], key: str) -> None:
        """Check the same where the head does not have the key of the API."""
        self.must(pair.ids() == list(before), "the pair was restarted")
        self.must(pair.complete(key=key)[0] == 200, "the pair does not serve")


def name(screen: Screen) -> str:
    """Return a command line without what all of them have in common."""
    text = re.sub(r"^env -C \S+ |ansible-playbook |playbooks/| -i \S+| -e @\S+| --tags vllm_tp2\b", "", screen.command)
    return text.replace(str(REPO), ".")


def sentence(screen: Screen) -> str:
    """Return what a person reads first on a screen: the error, else the state of the group, and what changed."""
    lines = [line.strip() for line in screen.text.splitlines() if line.strip()]
    begins = [n for n, line in enumerate(lines) if line.startswith("ERROR")][-1:] if screen.code else []
    begins = begins or [n for n, line in enumerate(lines) if re.match(r"(SERVES|DOES NOT SERVE|STOPPED|STARTING|NOT KNOWN|pair1|duo)\b", line)]
    text = " ".join(lines[begins[0] : begins[0] + (6 if screen.code else 1)]) if begins else " ".join(lines[-2:])
    changed = "; ".join(sorted(screen.changes))
    return text[:SEEN] + (f" [changed: {changed}]" if changed and not screen.code else "")


class Pair(Owner):
    """The owner's pair, with what the situations of this benchmark do to it."""

    def __init__(self, folder: Path, checkout: Path = REPO) -> None:
        super().__init__(folder, "lab-stub")
        self.checkout = checkout

    def shell(self, words: list[str], env: dict[str, str] | None = None) -> Running:
        """Type a command line in the checkout of this owner."""
        return super().shell(["env", "-C", str(self.checkout), *words], env)

    def site(self, *arguments: str, **values: Any) -> Screen:
        """Run site.yml for the role that serves."""
        return self.run("bring up", *ONLY_SERVING, *arguments, **values)

    def at_once(self, *runs: Running) -> list[Screen]:
        """Wait for runs that were begun at the same time: all of them only read, or are refused."""
        return [run.screen() for run in runs]

    def typed(self, line: str, node: int = 1) -> Screen:
        """Type a line on a node as root."""
        start = time.monotonic()
        text, _mark, code = self.on(node, f"{line} 2>&1; echo exit=$?", timeout=120).rpartition("exit=")
        return Screen(line, int(code), text, time.monotonic() - start)

    def settled(self) -> bool:
        """Return whether the watch of the head reports that the pair serves: a desired state is not enough."""
        return "serving since" in self.on_node("status").text

    def ids(self) -> list[tuple[str, str]]:
        """Return id and start of each rank's container that exists."""
        found = [self.container(node) for node in self.nodes]
        return [(state["Id"], state["State"]["StartedAt"]) for state in found if state]

    def kept(self, node: int = 1) -> dict[str, str]:
        """Return the hashes of what a refused run may not touch on a node."""
        place = self.places
        files = f"{place.release} {place.compose} {place.api_key} {place.folder}/agent/desired.json {AGENT}"
        lines = self.on(node, f"sha256sum {files} 2>/dev/null || true").splitlines()
        return {path: digest for digest, path in (line.split() for line in lines)}

    def starts(self, since: str) -> int:
        """Return how many times a release was started since a time of the head."""
        return len(self.events(since, "step: .* starts release"))

    def die(self, node: int = 2) -> None:
        """Remove the container of a rank."""
        self.on(node, f"docker rm -f {self.places.container(node - 1)}")

    def kept_releases(self, node: int = 1) -> set[str]:
        """Return the names of the releases on a node."""
        return set(self.on(node, f"ls {self.places.releases}").split())

    def current(self) -> str:
        """Return the release that the link `current` of the head leads to."""
        return Path(self.on(1, f"readlink -f {self.places.current}").strip()).name

    def restored(self) -> str:
        """Serve the release of the inventory again; return what was necessary, empty if nothing was."""
        for node in self.nodes:
            subprocess.run(["docker", "start", f"{NODE}{node}"], check=True, capture_output=True)
        self.fault()
        self.boot_takes(2)
        wait_for(lambda: self.settled() and self.serves(), 30, 1)
        if self.own and self.serves() and self.settled() and set(self.releases()) == {self.own}:
            return ""
        if self.own and self.site(takeover=True).code == 0 and self.serves():
            self.own = self.releases()[0]
            return "site.yml"
        self.fresh()
        self.run("bring up").passed()
        self.own = self.releases()[0]
        return "a fresh pair"


class Probe:
    """Asks for a completion four times a second, and measures how long the endpoint was away."""

    def __init__(self, pair: Pair) -> None:
        self.pair, self.key, self.away, self.over = pair, pair.key(), 0.0, threading.Event()
        self.thread = threading.Thread(target=self._loop, daemon=True)

    def _loop(self) -> None:
        last = time.monotonic()
        while not self.over.is_set():
            good = self.pair.complete(key=self.key, seconds=5)[0] == 200
            now = time.monotonic()
            self.away += 0.0 if good else now - last
            last = now
            self.over.wait(0.25)

    def __enter__(self) -> Probe:
        """Begin to ask."""
        self.thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        """Stop asking."""
        self.over.set()
        self.thread.join(20)


@dataclass
class Scene:
    """Situations that are done one after the other: the pair, and the rows by number."""

    pair: Pair
    rows: dict[str, Row]
    at: Row | None = None
    since: float = field(default_factory=time.monotonic)

    def row(self, number: str) -> Row:
        """Go on with a situation."""
        self.leave()
        self.at = self.rows[number]
        return self.at

    def leave(self) -> None:
        """End the situation that is done now."""
        now = time.monotonic()
        if self.at:
            self.at.seconds += now - self.since
        self.since = now


ROWS: dict[str, Row] = {}
SCENES: list[tuple[tuple[str, ...], Callable[[Scene], None]]] = []


def situations(table: str) -> Callable[[Callable[[Scene], None]], Callable[[Scene], None]]:
    """Register the situations that a function does. `table` has a line for each: number | what is done | what is expected."""
    cells = ([cell.strip() for cell in line.split("|")] for line in table.strip().splitlines())
    rows = [Row(number, title, expected) for number, title, expected in cells]

    def register(function: Callable[[Scene], None]) -> Callable[[Scene], None]:
        SCENES.append((tuple(row.number for row in rows), function))
        ROWS.update({row.number: row for row in rows})
        return function

    return register


@contextmanager
def text_of(path: Path) -> Iterator[str]:
    """Give the text of a file, and write it back at the end."""
    text = path.read_text(encoding="utf-8")
    try:
        yield text
    finally:
        path.write_text(text, encoding="utf-8")
