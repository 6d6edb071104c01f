"""Failures that a user can meet, done to the real engine: the sentence, who it names, how long it takes, and what is left behind.

The whole table of faults, with "the next run converges" after each, is benchmarks/fault_table.py; here are those of every kind.
"""

from __future__ import annotations

import pytest
from container_lab import Lab
from faults import BY_NAME, Fault, inject

CHOSEN = ("worker killed at rendezvous", "unknown flag")


@pytest.mark.long  # of make test, test_a_site.py has a boot that fails, and test_h_restarts.py a worker that is killed
@pytest.mark.parametrize("fault", [BY_NAME[name] for name in CHOSEN], ids=CHOSEN)
def test_a_fault(lab: Lab, fault: Fault) -> None:
    outcome = inject(lab, fault)
    message = outcome.message
    assert outcome.run.rc != 0
    assert outcome.found_class in fault.classes, message
    if fault.rank is not None:
        assert f"rank {fault.rank} on lab-{fault.rank + 1}" in message
    assert "Remedy: " in message
    assert fault.remedy in message.split("Remedy: ", 1)[1]
    assert {host for host, _task, text in outcome.run.failures if text == message} == {"lab-1", "lab-2"}, "every rank ends with the verdict"
    # Loose on purpose: a busy machine is not the gate's fault. benchmarks/fault_table.py holds each row to its limit.
    assert outcome.seconds < 4 * fault.limit, "the head alone would have waited 600 s and more"
    assert lab.gone(), "both ranks are stopped"


def test_after_all_of_them_the_next_run_converges(lab: Lab) -> None:
    run = lab.play("site.yml", "--tags", "vllm_tp2")
    assert run.rc == 0, run.stdout[-4000:]
    assert lab.complete() == (200, " Paris.")


@pytest.mark.parametrize(
    ("act", "words"),
    [
        ("docker rmi -f gb10-lab/vllm-cpu:0.32.0", "is not on this node"),
        ("tar -c -C / etc/hostname | docker import - gb10-lab/vllm-cpu:0.32.0", "has other layers here than on lab-1"),
    ],
    ids=["image missing", "another image"],
)
def test_a_rank_without_the_group_s_image_stops_nothing(served: Lab, act: str, words: str) -> None:
    before = served.identity()
    served.on(2, f"docker tag gb10-lab/vllm-cpu:0.32.0 gb10-lab/kept:1; {act}")
    try:
        run = served.play("site.yml", "--tags", "vllm_tp2")
    finally:
        served.on(2, "docker tag gb10-lab/kept:1 gb10-lab/vllm-cpu:0.32.0; docker rmi gb10-lab/kept:1")
    assert run.rc != 0
    (message,) = [text for host, _task, text in run.failures if host == "lab-2"]
    assert words in message
    assert "--tags image" in message
    assert served.identity() == before
