"""Six minutes of a soak, as bench.yml does it."""

import json
from typing import Any

from gpu.pair import Pair, Row

GIVEN: dict[str, Any] = {"bench_seconds": 360, "bench_depths": [64, 1024], "bench_concurrency": [4], "bench_tokens": 128}


def test_soak_of_six_minutes(served: Pair, row: Row) -> None:
    before, figures = served.identity(), served.folder / "soak"
    run = served.run("bench", **GIVEN, bench_folder=str(figures)).passed()
    found = json.loads(next(figures.glob("*.json")).read_text(encoding="utf-8"))
    row.facts |= {"seconds": round(run.seconds, 1), "requests": sum(each["completed"] for each in found["rows"]), "memory": found["memory"]}
    row.facts |= {"tok_s": [each["tok_s"] for each in found["rows"]], "preemptions": sum(each["preemptions"] for each in found["rows"])}
    assert row.facts["requests"] > 0
    assert served.identity() == before
    assert served.serves()
