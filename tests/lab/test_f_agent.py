"""The agent on the lab: a boot goes on without its controller and through a killed agent, and `gb10` on the head needs no controller at all."""

from __future__ import annotations

import hashlib
import time

import agents
import pytest
from acceptance.owner import wait_for
from agents import FOLDER
from container_lab import Lab
from day2 import Controller

SERVES = (200, " Paris.")
KEEP = {"vllm_tp2_keep_releases": 9}  # a run that follows removes no earlier release


def gb10(lab: Lab, words: str, node: int = 1, timeout: float = 120) -> tuple[int, str]:
    """Return exit code and text of the command on a node."""
    text, _mark, code = lab.on(node, f"gb10 {words} 2>&1; echo exit=$?", timeout=timeout).rpartition("exit=")
    return int(code), text


@pytest.mark.long
def test_a_failing_release_leaves_the_last_good_one_and_gb10_tells_why(served: Lab) -> None:
    good = served.on(1, f"basename $(readlink {FOLDER}/current)").strip()
    run = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_extra_args": {"no-such-flag": True}})
    assert run.rc != 0
    assert f"Release {good}, the last good one, serves again, after " in run.last_message
    assert served.complete() == SERVES
    found = agents.state(served)
    label, failed = found["outcome"]["evidence"][-1], found["desired"]["release"]
    assert failed != good
    for node in (1, 2):
        state = served.inspect(node)
        assert state is not None
        assert state["Config"]["Labels"]["gb10.cluster.release"] == good
        name = f"rank{node - 1}-lab-{node}.txt"
        path = f"{FOLDER}/evidence/{label}/{name}"
        assert served.on(node, f"stat -c '%a %U' {path}").strip() == "600 root"
        copy = served.folder / f"evidence/pair1-{label}" / name
        assert copy.stat().st_mode & 0o077 == 0
        assert served.on(node, f"sha256sum {path}").split()[0] == hashlib.sha256(copy.read_bytes()).hexdigest()
    code, text = gb10(served, "events -n 60")
    assert code == 0, text
    for part in (f"starts release {failed}", " verdict: pair1: rank ", "bad_argument", f"goes back to release {good}, the last good one", " settled: pair1: "):
        assert part in text
    code, text = gb10(served, "why")
    assert code == 0, text
    for part in ("bad_argument", "decisive line", f"evidence: {FOLDER}/evidence/{label}/ on each node", f"then: pair1 goes back to release {good}"):
        assert part in text
    code, text = gb10(served, "status")
    assert code == 0, "another release than the desired one serves"
    assert f"outcome: failed, release {good}." in text
    code, text = gb10(served, "logs --since 20m --grep 'Using max model len'")
    assert code == 0, text
    assert {line.split(" ", 2)[1] for line in text.splitlines()} == {"lab-1", "lab-2"}, text
    assert all("Using max model len" in line for line in text.splitlines())
    for words in ("why", "events", "start"):
        code, text = gb10(served, words, node=2)
        assert code == 1
        assert f"Run `gb10 {words}` on the head lab-1." in text


def test_the_agents_use_at_most_40_mib(served: Lab) -> None:
    peaks = {f"lab-{node}": agents.peak_kib(served, node) for node in (1, 2)}
    assert max(peaks.values()) <= agents.MEMORY_KIB, peaks


@pytest.mark.long
def test_a_passed_release_is_tried_again_after_a_transient_failure(served: Lab) -> None:
    before, number = served.identity(), agents.last_event(served)
    controller = Controller(served, "site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    assert wait_for(lambda: agents.judging(served), 300), controller.text[-3000:]
    served.on(2, f"docker kill -s KILL {served.container(2)}")
    assert controller.wait(900) == 0, controller.text[-3000:]
    assert "Attempt 1 of 3 failed, and the same release starts again in 5 s." in controller.text
    assert len(agents.starts(served, number)) == 2
    assert {entry[0] for entry in before}.isdisjoint(entry[0] for entry in served.identity())
    assert served.complete() == SERVES


@pytest.mark.long
def test_a_passed_release_that_fails_for_a_lasting_reason_is_held(served: Lab) -> None:
    small = {"vllm_tp2_gate": {"effective_tokens": {"min": 4200000}}, "vllm_tp2_restart": True}
    first = served.play("site.yml", "--tags", "vllm_tp2")  # the release of the inventory is current: no other one is left by this restart
    assert first.rc == 0, first.stdout[-4000:]
    run = served.play("site.yml", "--tags", "vllm_tp2", variables=small)
    assert run.rc != 0
    assert "passed its gate before; this start of it failed. All ranks of pair1 are stopped. Run site.yml to start it again." in run.last_message
    assert served.gone()
    code, text = gb10(served, "status")
    assert code == 2, text
    assert "outcome: held" in text
    again = served.play("site.yml", "--tags", "vllm_tp2")
    assert again.rc == 0, again.stdout[-4000:]
    assert served.complete() == SERVES


@pytest.mark.long
def test_a_takeover_ends_the_run_that_began_first(served: Lab) -> None:
    first = Controller(served, "site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
    assert wait_for(lambda: agents.judging(served), 300), first.text[-3000:]
    refused = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_max_num_seqs": 2})
    assert refused.rc != 0
    assert "pair1 is being changed by a run of " in refused.last_message
    second = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_max_num_seqs": 2, "takeover": True})
    assert second.rc == 0, second.stdout[-4000:]
    assert first.wait(120) not in (0, None)
    assert "pair1 was taken over by " in first.text
    assert served.complete() == SERVES
    state = served.inspect(1)
    assert state is not None
    assert "--max-num-seqs 2 " in " ".join(state["Config"]["Cmd"])


@pytest.mark.long
def test_a_dead_pair_stays_dead_if_it_is_not_watched(served: Lab) -> None:
    off = served.play("site.yml", "--tags", "vllm_tp2", variables={"vllm_tp2_keep_serving": False})
    assert off.rc == 0, off.stdout[-4000:]
    number = agents.last_event(served)
    served.on(2, f"docker kill -s KILL {served.container(2)}")
    time.sleep(20)
    assert not agents.events(served, number)
    assert gb10(served, "status")[0] == 2
    assert served.play("site.yml", "--tags", "vllm_tp2").rc == 0
    assert served.complete() == SERVES
