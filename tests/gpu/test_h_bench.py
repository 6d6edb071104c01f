"""A drafter. `bench.yml` needs PyPI, which the machine with GPUs does not reach: tests/acceptance/test_h_engine.py runs it."""

from gpu.pair import ONLY_SERVING, Logs, Pair, Row


def test_a_drafter_that_fits(served: Pair, row: Row) -> None:
    """The model drafts for itself: what it proposes is accepted at both positions, and the answer stays."""
    inside, none = f"/models/drafts/{served.model}", {"min": None, "max": None}
    for node in served.nodes:
        served.on(node, f"mkdir -p /srv/models/drafts && cp -r /srv/models/{served.model} /srv/models/drafts/")
    given = served.changed(
        drafter={"id": "gb10-lab/draft", "path": inside, "revision": "ab" * 20, "size_gib": 2},
        engine={"args": {"speculative-config": {"model": inside, "num_speculative_tokens": 2, "method": "draft_model"}}},
        gate={"effective_tokens": none, "concurrency": none, "acceptance": {"positions_active": 2}},
    )
    logs = Logs(served)
    run = served.run("bring up", *ONLY_SERVING, **{**given, "rollback": False, "attempts": 1})
    logs.keep(row)
    receipt = served.read(served.places.receipt)
    row.facts |= {"seconds": round(run.seconds, 1), "boot": receipt["seconds"], "speculation": receipt["measured"].get("speculation")}
    run.passed()
    assert served.serves()
