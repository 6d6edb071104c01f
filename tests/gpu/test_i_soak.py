"""Six minutes of a soak, by the unit of the head."""

import json

from acceptance.owner import wait_for
from gpu.pair import Pair, Row


def test_soak_of_six_minutes(served: Pair, row: Row) -> None:
    before = served.identity()
    served.on(1, "gb10 soak start --hours 0.1 --interval 5 --pause 1 --seed six-minutes")
    assert wait_for(lambda: "state=inactive" in served.on(1, "systemctl show gb10-soak --property ActiveState | sed s/ActiveS/s/"), 450)
    found = json.loads(served.on(1, "gb10 soak status --json", check=False))
    row.facts |= {key: found[key] for key in ("requests", "verdict", "sentence", "findings", "figures")}
    assert (found["state"], found["requests"] > 0, found["gaps"]) == ("ended", True, 0)
    assert served.identity() == before
    assert served.serves()
