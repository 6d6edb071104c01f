"""Faults of a boot: the sentence, who it names, how long it takes, and what is left behind. The whole table is benchmarks/fault_table.py."""

from __future__ import annotations

import pytest
from container_lab import Lab
from faults import BY_NAME, Fault, inject

CHOSEN = ("worker killed at rendezvous", "unknown flag")


@pytest.mark.long  # tests/acceptance/test_b_failed_boot.py has one of each kind
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
