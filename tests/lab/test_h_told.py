"""What a run does is told before it does it: changed criteria and options, a group that was renamed, ranks that were swapped, a boot that failed."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from acceptance.commands import SERVING, tags
from acceptance.owner import REPO, Owner

ONLY_SERVING = tags(SERVING)
POOL = 4194304  # of the stub


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """The pair, serving."""
    subprocess.run([sys.executable, str(REPO / "lab/container/lab.py"), "up", "--engine", "stub"], check=True)
    owner = Owner(tmp_path_factory.mktemp("told"))
    owner.fault()
    owner.boot_takes(2)
    owner.run("bring up", takeover=True).passed()
    yield owner
    owner.run("bring up", *ONLY_SERVING, takeover=True)


def kept(owner: Owner, node: int = 1) -> dict[str, str]:
    """What a refused run may not touch on a node: the release, the agent's files and keys, what is desired."""
    place = owner.places
    files = f"{place.release} {place.compose} {place.api_key} /etc/gb10-cluster/agent.json /usr/local/sbin/gb10 {place.folder}/agent/desired.json"
    lines = owner.on(node, f"sha256sum {files} 2>/dev/null || true").splitlines()
    return {path: digest for digest, path in (line.split() for line in lines)}


def test_a_criterion_that_the_next_boot_would_fail_is_refused_and_one_that_it_meets_is_in_force(told: Owner) -> None:
    before, files = told.identity(), kept(told)
    for arguments in (("--check",), ()):
        run = told.run("bring up", *ONLY_SERVING, *arguments, gate={"effective_tokens": {"min": POOL + 1}})
        run.failed("4,194,305", "4,194,304", "its next boot would fail", "Nothing was changed")
        assert (told.identity(), kept(told)) == (before, files)
    told.run("bring up", *ONLY_SERVING, gate={"effective_tokens": {"min": POOL - 1}}).passed()
    criteria = json.loads(told.on(1, f"cat {told.places.release}"))["criteria"]
    assert (criteria["effective_tokens"]["min"], told.identity()) == (POOL - 1, before)
    told.run("bring up", *ONLY_SERVING).passed()


def test_changed_options_are_in_force_for_the_agent_without_a_restart(told: Owner) -> None:
    before = told.identity()
    check = told.run("bring up", *ONLY_SERVING, "--check", attempts=2).passed()
    run = told.run("bring up", *ONLY_SERVING, attempts=2).passed()
    assert check.changes == run.changes == {"lab-1: Put changed options into force"}
    run.shows("attempts 3 -> 2, in force from the next start on")
    assert json.loads(told.on(1, f"cat {told.places.folder}/agent/desired.json"))["options"]["attempts"] == 2
    told.run("bring up", *ONLY_SERVING).passed().shows("attempts 2 -> 3")
    assert told.run("bring up", *ONLY_SERVING).passed().changes == set()
    assert told.identity() == before


def test_swapped_ranks_are_refused_before_anything_changes(told: Owner) -> None:
    before, files = told.identity(), [kept(told, node) for node in told.nodes]
    hosts = (told.inventory / "hosts.yml").read_text(encoding="utf-8")
    head, worker = re.findall(r"        lab-\d:\n          ansible_host: .*\n", hosts)
    swapped = hosts.replace(head + worker, worker + head)
    told.inventory_file("hosts.yml", lambda _text: swapped)
    try:
        for arguments in (("--check",), ()):
            words = "lab-2 is rank 1 of pair1; lab-1 is rank 0 of pair1, and the inventory has lab-2 as head. Nothing was changed"
            told.run("bring up", *ONLY_SERVING, *arguments).failed(words)
    finally:
        told.inventory_file("hosts.yml", lambda _text: hosts)
    assert (told.identity(), [kept(told, node) for node in told.nodes]) == (before, files)
    assert told.on_node("status").passed().shows("serving since")


def test_a_boot_that_failed_is_not_repeated_until_something_changes_or_it_is_asked_for(told: Owner) -> None:
    good = told.releases()
    changed: dict[str, Any] = {"requests": 3, "gate": {"effective_tokens": {"min": POOL + 1}}}
    told.run("bring up", *ONLY_SERVING, **changed).failed("pool_below_floor", "serves again")
    before = told.identity()
    for arguments in (("--check",), ()):
        told.run("bring up", *ONLY_SERVING, *arguments, **changed).failed(r"release \w+ failed at 20\d\d-", "4,194,305", "To boot it again: -e again=true")
    assert (told.identity(), told.releases()) == (before, good)
    told.run("bring up", *ONLY_SERVING, "-e", "again=true", **changed).failed("pool_below_floor", "serves again")
    assert told.identity() != before, "it was booted again"
    told.run("bring up", *ONLY_SERVING, requests=3).passed()
    assert told.releases() != good, "the criterion was corrected"


def test_a_run_prints_the_progress_of_its_own_generation_alone(told: Owner) -> None:
    told.run("bring up", *ONLY_SERVING, restart=True).passed()
    run = told.run("bring up", *ONLY_SERVING, restart=True).passed()
    assert len(re.findall(r"^\[pair1 .*is to serve release", run.text, re.M)) == 1
    stop = told.run("stop").passed()
    assert "is to serve release" not in stop.text
    told.run("bring up", *ONLY_SERVING).passed()


def test_a_renamed_group_is_refused_and_taken_over_with_one_restart(told: Owner) -> None:
    before, files, hosts = told.identity(), [kept(told, node) for node in told.nodes], (told.inventory / "hosts.yml").read_text(encoding="utf-8")
    told.inventory_file("hosts.yml", lambda text: text.replace("pair1:", "duo:"))
    try:
        for arguments in (("--check",), ()):
            told.run("bring up", *ONLY_SERVING, *arguments).failed("lab-1 belongs to the group pair1, which runs there", "Nothing was changed", "takeover=true")
        assert (told.identity(), [kept(told, node) for node in told.nodes]) == (before, files)
        told.on_node("status").passed().shows("pair1", "serving since")
        told.run("bring up", *ONLY_SERVING, takeover=True).passed().shows("duo serves")
        names = [told.on(node, "docker ps --format '{{.Names}}'").split() for node in told.nodes]
        assert names == [["gb10-duo-rank0"], ["gb10-duo-rank1"]]
    finally:
        told.inventory_file("hosts.yml", lambda _text: hosts)
        told.run("bring up", *ONLY_SERVING, takeover=True)
    assert told.serves()
