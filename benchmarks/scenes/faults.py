"""A disk that is full when a rank dies."""

from __future__ import annotations

import day2
from acceptance.owner import wait_for
from container_lab import STUB, Lab

from benchmarks.scenes.scene import Scene, situations


@situations("""
35   | file system of the group full on the head, then a rank dies    | restarts
""")
def a_full_disk(scene: Scene) -> None:
    """The folder of the group is a file system of its own without a free byte."""
    pair, row = scene.pair, scene.row("35")
    case = day2.Case(Lab(STUB, pair.folder))
    since = pair.now()
    day2.full(case, 0, 1, pair.places.folder)
    try:
        pair.die()
        row.must(pair.noticed(since, "rank 1 on lab-2", 30), "the fault is not noticed")
        back = wait_for(pair.serves, 120, 1)
        row.must(back, "the pair does not come back while the disk is full")
        row.must(pair.starts(since) <= 1, f"{pair.starts(since)} starts")
        status = pair.on_node("status")
        row.ran(status, status.code)
        row.tells(status, "(?i)no space")
        row.saw("; ".join(pair.events(since, "(?i)space"))[:300])
    finally:
        day2.room_again(case, 1, pair.places.folder)
    row.must(pair.comes_back(), "the pair does not serve with room again")
