"""Results of tests/gpu as Markdown: `GPU_LAB=. PYTHONPATH=tests python -m gpu.tables RESULTS... >docs/measured/gpu.md`. Each folder is one machine's."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from gpu.pair import row_of

TEXT = """# The pair on real GPUs

Printed by `tests/gpu/tables.py` from the results of `python -m lab.gpu part NAME` ([lab/gpu](../../lab/gpu/README.md)). Two containers of one machine are
the nodes, each with one GPU, or both with the same one, and NCCL uses TCP. Several figures in a cell are those of several machines. Both ranks' logs are
in `tests/unit/fixtures/vllm_log/gpu`, and the parser is tested with them.

**Not shown here:** RoCE, unified memory, aarch64, two hosts. With one GPU for both nodes, they also compute in turns, so speeds are no measure.

"""
#: Title, the parts, and the columns: their title and the fact.
TABLES: list[tuple[str, str, dict[str, str]]] = [
    ("A first run, and a second one", "a", {"seconds": "seconds", "boot": "boot", "KV pool": "pool", "transport": "transport", "GB/s": "gb_s"}),
    ("Faults of a boot", "bcd", {"seconds to the verdict": "seconds", "from the": "from", "class": "class", "rank": "rank", "sentence": "sentence"}),
    ("Recovery", "e", {"noticed": "noticed", "serves again": "back", "class": "class", "starts": "starts", "W, % of both GPUs": "gpu"}),
    ("The estimate of the KV pool", "f", {"estimate, tokens": "plan", "engine, tokens": "engine", "error in %": "error", "GiB": "available"}),
    ("Compile caches", "g", {"boots": "boots"}),
    ("Speed", "h", {"vllm bench serve by bench.yml of that day, tok/s": "bench", "by hand": "by hand", "TTFT ms": "ttft", "drafts": "speculation"}),
    ("Soak", "i", {"requests": "requests", "verdict": "sentence", "findings": "findings"}),
]  # fmt: skip


def cell(value: Any) -> str:
    """Return a fact as text."""
    if isinstance(value, dict):
        return ", ".join(f"{key} {cell(each)}" for key, each in value.items())
    return "; ".join(map(cell, value)) if isinstance(value, list) else str(value).partition(" Remedy: ")[0].replace("|", r"\|").replace("\n", " ")


def page(results: Sequence[dict[str, Any]], rows: Sequence[tuple[str, str]]) -> str:
    """Return the page of some results. `rows` are those that a part has today, as (part, name): an earlier one stays as it was measured."""
    rows = [*rows, *dict.fromkeys((each["part"], each["row"]) for each in results if (each["part"], each["row"]) not in rows)]
    out = TEXT + "".join(sorted({f"- {each['at'][:10]}: {', '.join(dict.fromkeys(each['machine']))}\n" for each in results}))
    for title, parts, columns in TABLES:
        out += f"\n## {title}\n\n| row | {' | '.join(columns)} | holds |\n|{'---|' * (len(columns) + 2)}\n"
        for name in (name for part, name in rows if part[0] in parts):
            found = [each for each in results if each["row"] == name]
            cells = [" / ".join(dict.fromkeys(cell(each[fact]) for each in found if each.get(fact) is not None)) or "-" for fact in columns.values()]
            out += f"| {' | '.join([name, *cells, ' / '.join('yes' if each['ok'] else 'no' for each in found) or 'not run'])} |\n"
    return out


class Collected:
    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self.rows = [(item.path.stem.removeprefix("test_"), row_of(item)) for item in session.items]


if __name__ == "__main__":
    collected = Collected()
    with Path("/dev/null").open("w", encoding="utf-8") as sys.stdout:
        pytest.main(["--collect-only", "-q", str(Path(__file__).parent)], plugins=[collected])
    files = [path for folder in sys.argv[1:] for path in sorted(Path(folder).glob("*.json"))]
    print(page([json.loads(path.read_text(encoding="utf-8")) for path in files], collected.rows), file=sys.__stdout__, end="")
