"""The fault table: every fault of benchmarks/faults.py done to the real engine on the container lab, printed as a table, one row each.

A row has: seconds from the fault to the verdict, the class, whether class, rank and remedy are right, what was left behind, and whether the
next run converges. `--write` keeps it in docs/measured/fault-table.md with its date; `--only REGEX` runs the rows whose name matches. Usage:

    .venv/bin/python benchmarks/fault_table.py [--write] [--only REGEX] [--converge each|end]
"""

from __future__ import annotations

import argparse
import re
import sys
import tempfile
import time
from pathlib import Path

REPO = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(REPO), str(REPO / "tests"), str(REPO / "tests/lab"), str(REPO / "collections")]

from container_lab import Lab, bring_up  # noqa: E402  # the harness is next to the tests, which are not an installed package

from benchmarks.faults import FAULTS, UNWATCHED, Fault, inject  # noqa: E402  # as above

HEAD = "| fault | seconds to verdict | class | right | left behind | next run |\n|---|---|---|---|---|---|"


def row(lab: Lab, fault: Fault, converge: bool) -> tuple[str, bool]:
    """Do one fault and return its row, and whether all of it is as it should be."""
    outcome = inject(lab, fault)
    message = outcome.message
    right = {"rank": fault.rank is None or f"rank {fault.rank} on lab-{fault.rank + 1}" in message}
    right["class"] = outcome.found_class in fault.classes
    right["remedy"] = "Remedy: " in message and fault.remedy in message.split("Remedy: ", 1)[1]
    left = "stopped" if lab.gone() else "NOT STOPPED"
    if fault.unreachable and left == "NOT STOPPED":
        right["sentence"] = "It is not known whether a container of pair1 runs there" in message
        left = "head stopped, worker not reached" if lab.inspect(1) is None else left
    after = "-"
    if converge:
        run = lab.play("site.yml", "--tags", "vllm_tp2", variables=UNWATCHED)
        after = "serves" if run.rc == 0 and lab.complete() == (200, " Paris.") else "DOES NOT SERVE"
    verdict = ", ".join(name if good else f"{name.upper()} WRONG" for name, good in right.items())
    text = f"| {fault.name} | {outcome.seconds:.1f} | {outcome.found_class} | {verdict} | {left} | {after} |"
    good = all(right.values()) and not left.startswith("NOT") and after in ("-", "serves") and outcome.seconds < fault.limit
    if not good:
        print(f"   {message}", file=sys.stderr)
    return text, good


def main() -> int:
    """Print the table; exit 1 where a row is not as it should be."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true")
    parser.add_argument("--only", default="")
    parser.add_argument("--converge", choices=["each", "end"], default="end")
    options = parser.parse_args()
    bring_up(2)
    lab = Lab(REPO / "inventories/lab", Path(tempfile.mkdtemp(prefix="gb10-faults-")))
    chosen = [fault for fault in FAULTS if re.search(options.only, fault.name)]
    lines, all_good = [], True
    print(HEAD, flush=True)
    for number, fault in enumerate(chosen):
        try:
            text, good = row(lab, fault, options.converge == "each" or number == len(chosen) - 1)
        except AssertionError as error:
            text, good = f"| {fault.name} | - | - | NO VERDICT | - | - |", False
            print(f"   {error}", file=sys.stderr)
        print(text, flush=True)
        lines.append(text)
        all_good = all_good and good
        if options.write:  # after each row: an interrupted run keeps what it has
            write(lines)
    return 0 if all_good else 1


def write(lines: list[str]) -> None:
    """Keep the table."""
    intro = (
        "# Faults done to the real engine\n\nEvery row was done to the real vLLM engine over the two nodes of the container lab, two cores, and is"
        f" printed by\n`benchmarks/fault_table.py`. Run on {time.strftime('%Y-%m-%d')}. Seconds count from the fault (or from the start of the boot, where"
        " the fault was\nthere before) to the verdict on the controller. Each start has one attempt (`vllm_tp2_attempts: 1`): a release that has passed"
        " is otherwise\nstarted again after a transient failure. *Next run* is `site.yml` again, with the fault removed.\n\n"
    )
    rest = (
        "\nTwo faults have no row here, because they are over before a gate begins. A disk too full for the weights is refused before the copy starts"
        "\n(`tests/acceptance/test_f_nodes.py`). A play that is interrupted converges when it is run again (`tests/acceptance/test_d_operate.py`).\n"
    )
    (REPO / "docs/measured/fault-table.md").write_text(intro + HEAD + "\n" + "\n".join(lines) + "\n" + rest, encoding="utf-8")


if __name__ == "__main__":
    raise SystemExit(main())
