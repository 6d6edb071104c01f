"""A boot that fails: what the owner is told of it, and what serves afterwards."""

from __future__ import annotations

import json
from typing import Any

import pytest
from acceptance import golden
from acceptance.commands import SERVING, tags
from acceptance.owner import Owner, Screen

ONLY_SERVING = tags(SERVING)
#: A failed boot is the outcome: it is not tried again, and no other release takes its place.
ONE_ATTEMPT: dict[str, Any] = {"rollback": False, "attempts": 1, "restart": True}


def failed_boot(owner: Owner, *words: str, **values: Any) -> Screen:
    """Start the release again with what goes wrong, and check what is told and that no half of a pair is left."""
    run = owner.run("bring up", *ONLY_SERVING, **{**ONE_ATTEMPT, **values}).failed(*words, "Remedy: ")
    assert owner.gone(), "a half of the pair is left"
    return run


@pytest.mark.quick
def test_a_release_that_fails_its_gate_gives_way_to_the_last_good_one(served: Owner) -> None:
    good = served.releases()
    run = served.run("bring up", *ONLY_SERVING, gate={"effective_tokens": {"min": 4200000}}, requests=3)
    run.failed("pool_below_floor", "4,200,000", "4,194,304", r"last good one, serves again, after [1-9]\d* s without service")
    receipt = json.loads(max((served.folder / "receipts/pair1").glob("*-failed.json")).read_text(encoding="utf-8"))
    assert {check["class"] for check in receipt["checks"] if check["ok"] is False} == {"pool_below_floor"}
    assert served.serves()
    assert served.releases() == good
    golden.compare("site-failure", run.text)
    served.on_node("why").shows("pool_below_floor", f"back to release {good[0]}")


@pytest.mark.quick
def test_a_rank_that_dies_in_its_boot_is_named_with_its_host(served: Owner) -> None:
    served.fault("1 die load")
    failed_boot(served, "rank 1 on lab-2: killed")
    why = served.on_node("why").passed().shows("rank 1 on lab-2", "killed", "evidence")
    assert why.seconds < 30
    status = served.run("status").failed("does not serve")
    assert "pair1" in status.text
    served.fault()
    served.run("bring up", *ONLY_SERVING).passed()
    assert served.serves()


def test_an_unknown_flag_is_named(known: Owner) -> None:
    failed_boot(known, "bad_argument", "no-such-flag", extra_arguments={"no-such-flag": True})


def test_a_model_that_a_rank_cannot_load_is_named_by_rank(known: Owner) -> None:
    known.fault("1 lack")
    failed_boot(known, "rank 1 on lab-2: weights_missing")


def test_a_port_that_another_process_has_is_named(known: Owner) -> None:
    known.on_node("stop").passed()
    listen = "import socket, time; s = socket.create_server(('0.0.0.0', 8000)); time.sleep(600)"
    known.on(1, f'systemd-run --quiet --collect --unit squatter python3 -c "{listen}"')
    try:
        failed_boot(known, "rank 0 on lab-1: addr_in_use")
    finally:
        known.on(1, "systemctl stop squatter")


def test_a_boot_that_stands_still_is_ended(known: Owner) -> None:
    known.fault("1 hang rendezvous")
    failed_boot(known, "rendezvous", phase_seconds={"rendezvous": 15})


def test_evidence_of_a_failed_boot_is_kept_for_both_ranks_and_has_no_secret(known: Owner) -> None:
    key, token = known.key(), "net-secret-27d1ab"
    assert key
    known.fault("1 die load", f"0 print print-mark {key}", f"1 print print-mark HF_TOKEN={token}")  # the worker has no API key that it could print
    run = failed_boot(known, "rank 1 on lab-2")
    assert key not in run.text
    files = [path for path in (known.folder / "evidence").rglob("rank*.txt") if "rank" in path.name]
    newest = max(files, key=lambda path: path.stat().st_mtime).parent
    kept = sorted(path.name for path in newest.glob("rank*.txt"))
    assert kept == ["rank0-lab-1.txt", "rank1-lab-2.txt"]
    for name in kept:
        text = (newest / name).read_text(encoding="utf-8")
        assert "print-mark" in text, "the rank has printed it"
        assert key not in text
        assert token not in text
        assert (newest / name).stat().st_mode & 0o077 == 0


def test_nccl_over_tcp_is_refused_where_the_profile_wants_rdma(served: Owner) -> None:
    before, profiles = served.identity(), dict(served.variables()["gb10_profiles"])
    for transport in ("rdma", "any"):
        gate = {"transport": transport, "effective_tokens": {"min": 2000000}, "concurrency": {"min": 500}}
        profiles[f"cuda-{transport}"] = {"extends": "lab-stub", "summary": "A recorded pair of GPUs", "env": {"STUB_RECORDING": "cuda"}, "gate": gate}
    served.run("bring up", *ONLY_SERVING, profiles=profiles, profile="cuda-rdma").failed("lab-1", "lab-2", "NCCL would use TCP", "Nothing was stopped")
    assert served.identity() == before
    served.run("bring up", *ONLY_SERVING, profiles=profiles, profile="cuda-any").passed().shows("2,506,112 tokens")
    assert served.serves()


def test_a_wrong_answer_fails_the_gate(known: Owner) -> None:
    known.fault("0 garble")
    failed_boot(known, "completion_wrong", "Paris")


def test_too_little_memory_refuses_the_start_and_names_both_figures(known: Owner) -> None:
    run = known.run("bring up", *ONLY_SERVING, free_memory=0.999, wait_seconds=1, **ONE_ATTEMPT)
    run.failed("lab-1", "lab-2", r"\d\.\d GiB of \d+\.\d GiB of memory are (free|available)\b.* and \d+\.\d GiB are wanted before a start")
    assert known.gone()


def test_an_image_that_a_rank_lacks_stops_nothing(served: Owner) -> None:
    before, image = served.identity(), "gb10-lab/stub:1"
    served.on(2, f"docker tag {image} gb10-lab/kept:1; docker rmi -f {image}")
    try:
        served.run("bring up", *ONLY_SERVING, requests=3).failed("lab-2", "is not on this node", "--tags image")
    finally:
        served.on(2, f"docker tag gb10-lab/kept:1 {image}; docker rmi gb10-lab/kept:1")
    assert served.identity() == before
    assert served.serves()
