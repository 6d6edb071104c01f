"""The way of an owner on two GPUs: a first run that serves, a second one that changes nothing, the state, and the transport."""

import json

from gpu.pair import GPU, Logs, Pair, Row


def test_first_run_serves(row: Row, pair: Pair) -> None:
    row.facts["first"] = not pair.read(pair.places.receipt)
    logs = Logs(pair, now=pair.container(1) is not None)
    run = pair.run("bring up").passed().shows("pair1 serves")
    logs.keep(row)
    receipt = pair.read(pair.places.receipt)
    row.facts |= {"seconds": round(run.seconds, 1), "boot": receipt["seconds"], "pool": receipt["pool"]["tokens"]}
    assert pair.serves()


def test_second_run_changes_nothing(row: Row, pair: Pair) -> None:
    before, run = pair.identity(), pair.run("bring up").passed()
    row.facts["seconds"] = round(run.seconds, 1)
    assert (run.changes, pair.identity()) == (set(), before)


def test_the_collective_test_names_the_transport(row: Row, pair: Pair) -> None:
    found = [json.loads(pair.on(node, f"cat {pair.places.collective}"))["result"] for node in pair.nodes]
    row.facts |= {"transport": [each["transport"] for each in found], "gb_s": [max(line["gb_s"] for line in each["rows"]) for each in found]}
    assert {(each["backend"], each["transport"]) for each in found} == {("nccl" if GPU else "gloo", "tcp")}


def test_status_smoke_and_doctor(row: Row, pair: Pair) -> None:
    for what in ("status", "smoke", "doctor"):
        run = pair.run(what).readable()
        row.facts |= {what: round(run.seconds, 1), f"{what} code": run.code, f"{what} text": run.text[-1500:]}
    assert [row.facts[f"{what} code"] for what in ("status", "smoke", "doctor")] == [0, 0, 0]
