"""The situations of a day of an operator, done to a pair on the container lab with the stub of an engine, printed as a table.

The situations and what is expected of them are those of an operator's session before (issue 36). Each verdict is computed from what an owner sees:
exit codes, screens, containers, starts. bad: the owner is misled, the service is away, or something wrong is done. weak: right, but unclear or not shown.
After each situation the pair is restored. `--only 39,27a` does these in this order, with the others of their scenes. `--output FILE` merges the rows
into the table there. Usage:

    .venv/bin/python benchmarks/situations.py [--only NUMBERS] [--served] [--output docs/measured/situations.md]
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from benchmarks.scenes import authority, changes, commands, faults, held, nodes, readings, untouched  # noqa: E402  # the harness is not an installed package
from benchmarks.scenes.scene import ROWS, SCENES, Pair, Row, Scene  # noqa: E402  # as above

FILES = (untouched, changes, held, readings, commands, authority, nodes, faults)  # each registers its situations
HEAD = "| # | situation | expected | seen | verdict | when, commit |\n|---|---|---|---|---|---|"
VERDICTS = ("good", "weak", "bad", "not run")


def cells(row: Row, commit: str) -> str:
    """Return a row of the table."""
    why = [row.reason] if row.verdict == "not run" else [f"{kind}: {text[:400]}" for kind in ("bad", "weak") for text in getattr(row, kind)]
    seen = "<br>".join(" ".join(text.split())[:460] for text in row.seen) or "-"
    when = f"{time.strftime('%Y-%m-%d %H:%M', time.gmtime())}, {commit}" if row.checks else "-"
    found = (row.number, row.title, row.expected, seen, "<br>".join([row.verdict, *why]), when)
    return "| " + " | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in found) + " |"


def written(path: Path | None) -> dict[str, str]:
    """Return the rows that the file has, by number."""
    lines = path.read_text(encoding="utf-8").splitlines() if path and path.exists() else []
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ") and line.split("|")[1].strip() in ROWS}


def verdict(line: str) -> list[str]:
    """Return the verdict of a row of the table, and why."""
    return re.split(r"(?<!\\)\|", line)[5].strip().split("<br>")


def counted(rows: dict[str, str]) -> str:
    """Return how many rows have each verdict."""
    found = [verdict(line)[0] if line else "not run" for line in (rows.get(number, "") for number in ROWS)]
    return ", ".join(f"{found.count(each)} {each}" for each in VERDICTS)


def page(rows: dict[str, str], seconds: float) -> str:
    """Return the table as a page."""
    ordered = [(number, rows.get(number) or cells(ROWS[number], "-")) for number in ROWS]
    not_good = [(number, *verdict(line)) for number, line in ordered if verdict(line)[0] != "good"]
    named = [f"| {number} | {ROWS[number].title} | {'<br>'.join([kind, *why])} |" for number, kind, *why in not_good]
    return "\n".join([
        "# A day of an operator\n",
        f"{len(ROWS)} situations, done by `benchmarks/situations.py` to a pair on the container lab with the stub of an engine: {counted(rows)}.",
        "The column *expected* is that of an operator's day on this lab, written before. Other programs used the machine: times are not those of a pair.",
        "Each verdict is computed from what an owner sees: exit codes, screens, containers, starts.",
        "*Bad*: the owner is misled, the service is away, or something wrong is done. *Weak*: right, but unclear or not shown.\n",
        f"Machine: {os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}. The last run took {seconds:.0f} s, with other work on it",
        f"(load average {os.getloadavg()[1]:.1f}).\n",
        "## Not good\n\n| # | situation | verdict |\n|---|---|---|", *named, "\n## All\n", HEAD, *(line for _number, line in ordered),
    ]) + "\n"  # fmt: skip


def play(scene: Scene, function: object, verbose: bool) -> None:
    """Do the situations of one function, and restore the pair."""
    assert callable(function)
    try:
        function(scene)
    except Exception as error:  # noqa: BLE001  # a situation that breaks is a verdict too, and the next one still runs
        at = scene.at or next(iter(scene.rows.values()))
        at.must(False, f"broke: {type(error).__name__}: {' '.join(str(error).split())[:300]}")
        if verbose:
            traceback.print_exc()
    scene.leave()
    restored = scene.pair.restored()
    for number, row in scene.rows.items():
        print(f"--- {number} {row.title}: {row.verdict} in {row.seconds:.0f} s", file=sys.stderr)
        for text in [*row.seen, *(f"BAD: {text}" for text in row.bad), *(f"WEAK: {text}" for text in row.weak)]:
            print(f"    {text}", file=sys.stderr, flush=True)
    if restored:
        print(f"    the pair was restored by {restored}", file=sys.stderr, flush=True)


def main() -> int:
    """Do the situations; exit 1 where one is bad, or more than five are weak."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="numbers, with commas")
    parser.add_argument("--output", type=Path, help="the file of the table")
    parser.add_argument("--served", action="store_true", help="the pair serves what this checkout describes: do not bring it up before")
    parser.add_argument("--verbose", action="store_true", help="print the trace of a situation that breaks")
    options = parser.parse_args()
    chosen = list(filter(None, options.only.split(",")))
    unknown = set(chosen) - ROWS.keys()
    if unknown:
        parser.error(f"not a situation: {', '.join(sorted(unknown))}. There are {', '.join(ROWS)}")
    start = time.monotonic()
    subprocess.run([sys.executable, str(REPO / "lab/container/lab.py"), "up", "--engine", "stub"], check=True)
    pair = Pair(Path(tempfile.mkdtemp(prefix="gb10-situations-")))
    pair.fault()
    pair.boot_takes(2)
    if not (options.served and pair.serves() and pair.settled()) and (not pair.ids() or pair.site(takeover=True).code):
        pair.run("bring up", takeover=True).passed()
    pair.own = pair.releases()[0]
    print(f"screens are in {pair.folder}", file=sys.stderr, flush=True)
    commit = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=REPO, check=True, capture_output=True, text=True).stdout.strip()
    rows = written(options.output)
    done: list[str] = []
    for numbers, function in sorted(SCENES, key=lambda scene: min(map(chosen.index, set(scene[0]) & set(chosen)), default=0)):
        if not chosen or set(numbers) & set(chosen):
            play(Scene(pair, {number: ROWS[number] for number in numbers}), function, options.verbose)
            rows.update({number: cells(ROWS[number], commit) for number in numbers})
            done += numbers
            if options.output:  # an interrupted run keeps what it has
                options.output.write_text(page(rows, time.monotonic() - start), encoding="utf-8")
    print(f"{HEAD}\n" + "\n".join(rows[number] for number in done))
    found = [ROWS[number].verdict for number in done]
    print(f"{', '.join(f'{found.count(each)} {each}' for each in VERDICTS)} in {time.monotonic() - start:.0f} s")
    return 1 if "bad" in found or found.count("weak") > 5 else 0


if __name__ == "__main__":
    raise SystemExit(main())
