"""What `gb10 bench` measures of an engine that performs as published, or is 20 % slower: every matched figure of b12x and DSpark.

The stub of the labs answers at the pace of a level: when each reply begins, and when its tokens come. The code of `gb10 bench` sends the level with the pinned
tools of the role bench, and compares. Not in it: the agent, the playbook, and the rights that a tool gives up.

A clock of its own: of a prefill, the stub waits two seconds. The rest it adds to the clock that llama-benchy reads, before the first token: one request runs
then, and nothing else happens. Two lanes run side by side in real time: llama-benchy, and the requests of our own.

Scores are not speeds: they are planted. A third lane has tool-eval-bench ask a stub whose turns are right, wrong, or as right as published
(benchmarks/tool_turns.py): the short scenarios, the whole set, and IFEval with prompts of our own.

A level with a figure that is off is measured once more: other work on the machine delays a first token. A wrong quantity is off again.
It ends with 1 if a figure is off by more than 3 %, or with `--slower` if one of a speed is not marked. Shares of drafts are one value a level, which is never
marked. It takes 9 minutes, and 11 with `--slower`, the installation of the tools included. `--tools` keeps the tools for the next run. Usage:

    .venv/bin/python benchmarks/as_published.py [--slower] [--only REGEX] [--tools FOLDER]
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import mmap
import os
import re
import struct
import subprocess
import sys
import tempfile
import threading
import time
import venv
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "collections")]

from ansible_collections.gb10.cluster.plugins.lookup.profile import shipped_profiles  # noqa: E402  the checkout is not an installed package
from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels, tools  # noqa: E402  as above
from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import Level  # noqa: E402  as above
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically  # noqa: E402  as above
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import table  # noqa: E402  as above
from ansible_collections.gb10.cluster.plugins.module_utils._pair import verbs_measure  # noqa: E402  as above
from ansible_collections.gb10.cluster.plugins.plugin_utils.profile_resolve import resolve  # noqa: E402  as above

from benchmarks import tool_turns  # noqa: E402  as above
from lab.engine import faults as control  # noqa: E402  as above
from lab.engine.api import Api  # noqa: E402  as above

PROFILES = re.compile("b12x|dspark")
SLOWER = 1 / 0.8  # seconds of an engine that is 20 % slower
LATENCY = 0.15  # seconds of a reply of one token
PATIENCE = 2.0  # seconds of a prefill that are waited for
DRAFT = 5  # tokens of a draft, where only their share is published
CONTEXT = 1 << 20
FILES = REPO / "roles/bench/files"
SHORT = Level(tools.EVAL, "short")
PLANTED = ("right calls", "wrong calls", "a third wrong")
Work = tuple[str, Level, dict[str, float]]  # profile, level, figures
#: In the environment of the tools: their clock is the machine's, and what the stub has added.
CLOCK = """
import mmap, struct, time
with open({path!r}, "rb") as file:
    ahead = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
machine = time.perf_counter
time.perf_counter = lambda: machine() + struct.unpack("<d", ahead[:8])[0]
"""
TOKENIZER = "import sys; sys.path.insert(0, sys.argv[1]); from make_model import make_tokenizer; make_tokenizer({context}).save_pretrained(sys.argv[2])"


class Pace(NamedTuple):
    """Seconds from a request to the first and to the last token of its reply, for each of the requests at once; and what drafts are accepted."""

    first: list[float]
    last: list[float]
    accepted: float = 1.0  # share of the tokens
    draft: float = DRAFT  # accepted tokens of one


def pace_of(level: Level, wanted: Mapping[str, float], stretch: float) -> Pace:
    """Return the pace of an engine with these figures. The prefill of several streams ends with the last of them, and the others begin together before it."""
    streams, output = level.concurrency, level.output
    if level.tool == tools.EVAL:
        return Pace([LATENCY], [2 * LATENCY])
    if level.tool == tools.BENCHY:
        prefill = streams * (level.prompt + level.depth) / wanted["prefill_tok_s"]
        first = [LATENCY + prefill]
        if streams > 1:
            first = [(streams * wanted["ttft_ms"] / 1000 - prefill) / (streams - 1)] * (streams - 1) + [prefill]
        end = min(first) + streams * (output - 1) / wanted["aggregate_tok_s" if streams > 1 else "decode_tok_s"]
    else:
        first, alone = [LATENCY] * streams, "aggregate_tok_s" not in wanted
        end = LATENCY + (output - 1) / wanted["decode_tok_s"] if alone else streams * output / wanted["aggregate_tok_s"] - (streams - 1) * (level.pause or 0.0)
    share = wanted.get("acceptance_percent", 100.0) / 100
    return Pace([stretch * each for each in first], [stretch * end] * streams, share, wanted.get("accepted_per_draft", share * DRAFT))


class Engine(Api):
    """The stub of the labs, at a pace. A lane has a class of its own."""

    disable_nagle_algorithm = True
    pace, order = Pace([LATENCY], [LATENCY]), itertools.count()
    stretch = 1.0
    ahead: mmap.mmap  # the clock of the tools
    grown: dict[str, float]  # counters of drafts
    lock = threading.Lock()
    times = (0.0, 0.0)

    def handle(self) -> None:
        """Serve a connection until the tool ends it."""
        with contextlib.suppress(ConnectionError):
            super().handle()

    def do_GET(self) -> None:  # noqa: N802  the name that the base class of Api asks for
        """Answer /metrics with the counters of drafts alone."""
        if self.path != "/metrics":
            super().do_GET()
            return
        with self.lock:
            self._send(200, "".join(f"vllm:spec_decode_num_{name}_total {value}\n" for name, value in self.grown.items()))

    def _prefill(self, _count: int, output: int) -> None:
        begin, place = time.monotonic(), next(self.order) % len(self.pace.first) if output > 1 else 0
        first = self.pace.first[place] if output > 1 else LATENCY * self.stretch
        skipped = max(0.0, first - PATIENCE) if len(self.pace.first) == 1 else 0.0
        self.times = (begin + first - skipped, begin + (self.pace.last[place] if output > 1 else first) - skipped)
        time.sleep(max(0.0, self.times[0] - time.monotonic()))
        if skipped:
            self.ahead[:8] = struct.pack("<d", struct.unpack("<d", self.ahead[:8])[0] + skipped)

    def _tokens(self, text: str) -> Iterator[str]:
        first, last = self.times
        for place, character in enumerate(text):
            time.sleep(max(0.0, first + (last - first) * place / max(1, len(text) - 1) - time.monotonic()))
            yield character
        drafts = len(text) / (1 + self.pace.draft)
        with self.lock:
            for name, value in (("drafts", 1.0), ("accepted_tokens", self.pace.draft), ("draft_tokens", self.pace.draft / self.pace.accepted)):
                self.grown[name] += drafts * value

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002  as above
        """Print nothing."""


class Lane:
    """An engine, and what `gb10 bench` needs to measure it."""

    def __init__(self, folder: Path, ahead: mmap.mmap, slower: bool) -> None:
        self.slower, stretch = slower, SLOWER if slower else 1.0
        words = SimpleNamespace(served_model_name="stub", model=str(folder), max_model_len=CONTEXT, api_key="")
        rank = SimpleNamespace(words=words, recording="cuda", faults=dict, together=lambda: None)
        given = {"rank": rank, "slots": threading.Semaphore(64), "ahead": ahead, "stretch": stretch, "grown": {}}
        self.engine: type[Engine] = type("LaneEngine", (Engine,), given)
        server = type("Server", (ThreadingHTTPServer,), {"daemon_threads": True, "request_queue_size": 64})(("127.0.0.1", 0), self.engine)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        group: Any = SimpleNamespace(name="stub", host="stub", folder=str(folder / "group"))
        self.target = verbs_measure.Target(group, {"port": server.server_address[1], "model": str(folder)})
        self.memory: Any = SimpleNamespace(usage=None, take=lambda: None)

    def once(self, work: Work) -> list[dict[str, Any]]:
        """Measure a level, and return the rows of the figures that are published."""
        profile, level, wanted = work
        shipped = shipped_profiles()
        published = resolve(profile, shipped)["published"] if profile in shipped else [{**level._asdict(), "figures": wanted}]
        rows, _result = self.target.measure(level, self.memory, 1800)
        found = [{**each, "profile": profile} for each in levels.compare(rows, published) if each["published"] is not None]
        return found + [{"profile": profile, "test": level.name, "quantity": key} for key in wanted if key not in {each["quantity"] for each in found}]

    def measure(self, work: Sequence[Work]) -> list[dict[str, Any]]:
        """Measure levels, each with the figures that its profile publishes, and return a row for each figure. A line comes as soon as a level is over."""
        out = []
        for each in work:
            profile, level, wanted = each
            if level.tool == tools.EVAL:
                plant(profile, level)
            self.engine.pace, self.engine.order = pace_of(level, wanted, self.engine.stretch), itertools.count()
            self.engine.grown = dict.fromkeys(("drafts", "accepted_tokens", "draft_tokens"), 0.0)
            begin, found = time.monotonic(), self.once(each)
            again = any(fault(row, self.slower) for row in found)
            found = self.once(each) if again else found
            print(f"{profile}: {level.name}: {len(wanted)} figures in {time.monotonic() - begin:.0f} s{', measured twice' * again}", flush=True)
            out += found
        return out


def plant(name: str, level: Level) -> None:
    """Write the turns of the stub for what tool-eval-bench asks next, and the prompts of IFEval."""
    if level.case == "ifeval":
        prompts, turns = tool_turns.ifeval()
        Path(tools.IFEVAL).write_text("".join(f"{json.dumps(each)}\n" for each in prompts), encoding="utf-8")
    else:
        asked = json.loads(subprocess.run([tools.PYTHON, "-c", tool_turns.ASKED], check=True, capture_output=True, text=True).stdout)
        turns = tool_turns.planted(asked, name)
    write_atomically(os.path.join(control.FOLDER, "turns"), json.dumps(turns), 0o644)  # the other lanes read it


def work_of(only: str, slower: bool) -> list[Work]:
    """Return profile, level and figures of what is published and can be run, and of what is planted. A slower engine has no other scores."""
    shipped, out = shipped_profiles(), list[Work]()
    for name in filter(PROFILES.search, sorted(shipped)):
        wanted: dict[Level, dict[str, float]] = {}
        for each in levels.figures(resolve(name, shipped)["published"]):
            speeds = each.level.tool != tools.EVAL
            if each.can_be_run and not each.remark and (speeds or not slower) and re.search(only, f"{name}: {each.level.name}"):
                wanted.setdefault(each.level, {})[each.quantity] = each.value
        out += [(name, level, found) for level, found in wanted.items()]
    planted = [(name, SHORT, tool_turns.scores(name)) for name in PLANTED if not slower and re.search(only, f"{name}: {SHORT.name}")]
    return out + planted


def install(folder: Path, clock: Path) -> None:
    """Make the environment of the tools, unless it is there, with the clock of this run; and the tokenizer."""
    python = folder / "venv/bin/python"
    if not (folder / "tokenizer.json").exists():
        venv.create(folder / "venv", with_pip=True, symlinks=True)
        options = ["--quiet", "--require-hashes", "--no-deps", "--only-binary=:all:", "--disable-pip-version-check"]
        subprocess.run([python, "-m", "pip", "install", *options, "--requirement", FILES / "requirements.lock"], check=True)
        subprocess.run([python, "-c", TOKENIZER.format(context=CONTEXT), REPO / "lab/container", folder], check=True)
    (packages,) = (folder / "venv/lib").glob("python*/site-packages")
    (packages / "sitecustomize.py").write_text(CLOCK.format(path=str(clock)), encoding="utf-8")
    tools.PYTHON, tools.BOOK = str(python), str(FILES / "book.txt.gz")


def fault(row: Mapping[str, Any], slower: bool) -> str:
    """Return what is wrong with a row; empty if it is as expected."""
    if "measured" not in row:
        return "not measured"
    if not slower:
        off = abs(row["measured"] - row["published"])
        return "" if off <= levels.TOLERANCE * abs(row["published"]) and not row["mark"] else "off"
    return "" if row["mark"] == "worse" or not is_speed(row["quantity"]) else "not marked"


def is_speed(quantity: str) -> bool:
    """Return whether an engine that is slower has another figure."""
    return levels.QUANTITIES[quantity].unit in ("tok/s", "ms")


def run(folder: Path, options: argparse.Namespace) -> int:
    """Measure, print the table, and return 1 if a figure is not as expected."""
    work, clock = work_of(options.only, options.slower), folder / "clock"
    if not work:
        print(f"No level matches {options.only!r}.")
        return 2
    clock.write_bytes(struct.pack("<d", 0.0))
    install(folder, clock)
    control.FOLDER, tools.IFEVAL = str(folder), str(folder / "ifeval.jsonl")
    os.geteuid = lambda: 1000  # a tool gives up the rights of root, and then cannot read an interpreter in root's home
    with clock.open("r+b") as file, mmap.mmap(file.fileno(), 8) as ahead, ThreadPoolExecutor() as pool:
        lanes = [[each for each in work if each[1].tool == tool] for tool in (tools.BENCHY, tools.OWN, tools.EVAL)]
        found = [row for rows in pool.map(lambda lane: Lane(folder, ahead, options.slower).measure(lane), lanes) for row in rows]
    faults = [fault(row, options.slower) for row in found]
    cells = [(row["profile"], levels.row_title({"remark": "", **row}), *texts(row), each) for row, each in zip(found, faults)]
    print("\n".join(["", *table(["profile", "figure", "measured", "published", "difference", "fault"], cells)]))
    planted = sum(row["profile"] in PLANTED for row in found)
    print(f"{len(found) - planted} published figures and {planted} planted ones, {len(found) - faults.count('')} not as expected.")
    return 1 if any(faults) else 0


def texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return measured, published and difference of a row as bench.yml prints them."""
    return levels.row_texts(row) if "measured" in row else ("-", "-", "-")


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--slower", action="store_true", help="the engine is 20 %% slower")
    parser.add_argument("--only", default="", metavar="REGEX", help="the levels whose `PROFILE: LEVEL` matches")
    parser.add_argument("--tools", type=Path, metavar="FOLDER", help="where the tools are, or are kept")
    options = parser.parse_args()
    if options.tools:
        options.tools.mkdir(parents=True, exist_ok=True)
        return run(options.tools.resolve(), options)
    with tempfile.TemporaryDirectory(prefix="gb10-published-") as folder:
        return run(Path(folder), options)


if __name__ == "__main__":
    raise SystemExit(main())
