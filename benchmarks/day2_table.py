"""The day-2 table: every case of tests/lab/day2.py done to the served pair of the container lab, printed as a table, one row each.

A row is good where every expectation held: exit codes, sentences, times, what runs afterwards, and the next site.yml serves. `--write` merges
the rows into docs/measured/day2-table.md, with the date; `--only 3,8,21b` runs these alone. Usage:

    .venv/bin/python benchmarks/day2_table.py [--write] [--only NUMBERS]
"""

from __future__ import annotations

import argparse
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from acceptance.owner import Owner  # noqa: E402  # the harness is next to the tests, which are not an installed package
from container_lab import Lab, bring_up  # noqa: E402  # as above
from day2 import ROWS, Case  # noqa: E402  # as above

TABLE = REPO / "docs/measured/day2-table.md"
HEAD = "| # | done to the served pair | reported | verdict | date |\n|---|---|---|---|---|"
TEXT = """# What happens to a served pair

Each row was done to a pair that serves the real vLLM engine on the container lab, by `benchmarks/day2_table.py`. A row is *good* if every
expectation in `tests/lab/day2.py` held: exit codes, sentences, times, what runs afterwards, and the next `site.yml` serves.
What the [acceptance net](../../tests/acceptance/README.md) shows, such as a killed rank, is not repeated here. Machine: {machine}.

"""


def done(lab: Lab, number: str) -> tuple[str, bool]:
    """Do one case and return its row, and whether every expectation held."""
    title, function = ROWS[number]
    case = Case(lab)
    start = time.monotonic()
    try:
        function(case)
    except Exception as error:  # noqa: BLE001  # a case that breaks is a row too, and the next one still runs
        case.wrong.append(f"the case broke: {type(error).__name__}: {error}")
    after = lab.play()
    case.want(after.rc == 0 and case.serves(), f"the next site.yml does not serve: {after.failures[-1][2] if after.failures else after.rc}")
    seconds = time.monotonic() - start
    print(f"--- {number} {title}: {'good' if not case.wrong else 'WRONG'} in {seconds:.0f} s", file=sys.stderr)
    for line in [*case.notes, *(f"WRONG: {wrong}" for wrong in case.wrong)]:
        print(f"    {line}", file=sys.stderr, flush=True)
    reported = "<br>".join(note.replace("|", "\\|")[:420] for note in case.notes)
    verdict = "good" if not case.wrong else "not good: " + "; ".join(case.wrong).replace("|", "\\|").replace("\n", " ")[:400]
    return f"| {number} | {title} | {reported} | {verdict} | {time.strftime('%Y-%m-%d', time.gmtime())} |", not case.wrong


def written() -> dict[str, str]:
    """Return the rows that docs/measured/day2-table.md has, by number."""
    lines = TABLE.read_text(encoding="utf-8").splitlines() if TABLE.exists() else []
    return {line.split("|")[1].strip(): line for line in lines if line.startswith("| ") and line.split("|")[1].strip() in ROWS}


def main() -> int:
    """Print the table; exit 1 where a row is not good."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    chosen = options.only.split(",") if options.only else list(ROWS)
    bring_up(2)
    folder = Path(tempfile.mkdtemp(prefix="gb10-day2-"))
    lab = Lab(Owner(folder, "lab-tiny").inventory, folder)
    first = lab.play()
    if first.rc:
        print(first.stdout[-3000:], file=sys.stderr)
        return 1
    rows, all_good = written() if options.write else {}, True
    for number in chosen:
        rows[number], good = done(lab, number)
        all_good = all_good and good
        print(rows[number], flush=True)
        if options.write:
            ordered = [rows[key] for key in ROWS if key in rows]
            machine = f"{os.cpu_count()} cores of {platform.machine()}, Linux {platform.release()}"
            TABLE.write_text(TEXT.format(machine=machine) + "\n".join([HEAD, *ordered]) + "\n", encoding="utf-8")
    return 0 if all_good else 1


if __name__ == "__main__":
    raise SystemExit(main())
