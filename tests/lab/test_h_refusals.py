"""What a run does, shown before it does it: changed criteria and options, a renamed group, swapped ranks, a boot that failed."""

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
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Owner]:
    """The pair, serving."""
    subprocess.run([sys.executable, str(REPO / "lab/container/lab.py"), "up", "--engine", "stub"], check=True)
    owner = Owner(tmp_path_factory.mktemp("pair"))
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


def test_a_criterion_that_the_next_boot_would_fail_is_refused_and_one_that_it_meets_is_in_force(pair: Owner) -> None:
    before, files = pair.identity(), kept(pair)
    for arguments in (("--check",), ()):
        run = pair.run("bring up", *ONLY_SERVING, *arguments, gate={"effective_tokens": {"min": POOL + 1}})
        run.failed("4,194,305", "4,194,304", "its next boot would fail", "Nothing was changed")
        assert (pair.identity(), kept(pair)) == (before, files)
    pair.run("bring up", *ONLY_SERVING, gate={"effective_tokens": {"min": POOL - 1}}).passed()
    criteria = json.loads(pair.on(1, f"cat {pair.places.release}"))["criteria"]
    assert (criteria["effective_tokens"]["min"], pair.identity()) == (POOL - 1, before)
    pair.run("bring up", *ONLY_SERVING).passed()


def test_changed_options_are_in_force_for_the_agent_without_a_restart(pair: Owner) -> None:
    before = pair.identity()
    check = pair.run("bring up", *ONLY_SERVING, "--check", attempts=2).passed()
    run = pair.run("bring up", *ONLY_SERVING, attempts=2).passed()
    assert check.changes == run.changes == {"lab-1: State the desired release"}
    run.shows("attempts 3 -> 2, in force from the next start on")
    assert json.loads(pair.on(1, f"cat {pair.places.folder}/agent/desired.json"))["options"]["attempts"] == 2
    pair.run("bring up", *ONLY_SERVING).passed().shows("attempts 2 -> 3")
    assert pair.run("bring up", *ONLY_SERVING).passed().changes == set()
    assert pair.identity() == before


def test_swapped_ranks_are_refused_before_anything_changes(pair: Owner) -> None:
    before, files = pair.identity(), [kept(pair, node) for node in pair.nodes]
    hosts = (pair.inventory / "hosts.yml").read_text(encoding="utf-8")
    head, worker = re.findall(r"        lab-\d:\n          ansible_host: .*\n", hosts)
    swapped = hosts.replace(head + worker, worker + head)
    pair.inventory_file("hosts.yml", lambda _text: swapped)
    try:
        for arguments in (("--check",), ()):
            words = "lab-2 is rank 1 of pair1; lab-1 is rank 0 of pair1, and the inventory has lab-2 as head. Nothing was changed"
            pair.run("bring up", *ONLY_SERVING, *arguments).failed(words)
    finally:
        pair.inventory_file("hosts.yml", lambda _text: hosts)
    assert (pair.identity(), [kept(pair, node) for node in pair.nodes]) == (before, files)
    assert pair.on_node("status").passed().shows("serving since")


def test_a_boot_that_failed_is_not_repeated_until_something_changes_or_it_is_asked_for(pair: Owner) -> None:
    good = pair.releases()
    changed: dict[str, Any] = {"requests": 3, "gate": {"effective_tokens": {"min": POOL + 1}}}
    pair.run("bring up", *ONLY_SERVING, **changed).failed("pool_below_floor", "serves again")
    before = pair.identity()
    for arguments in (("--check",), ()):
        pair.run("bring up", *ONLY_SERVING, *arguments, **changed).failed(r"release \w+ failed at 20\d\d-", "4,194,305", "To boot it again: -e again=true")
    assert (pair.identity(), pair.releases()) == (before, good)
    pair.run("bring up", *ONLY_SERVING, "-e", "again=true", **changed).failed("pool_below_floor", "serves again")
    assert pair.identity() != before, "it was booted again"
    pair.run("bring up", *ONLY_SERVING, requests=3).passed()
    assert pair.releases() != good, "the criterion was corrected"


def test_a_run_prints_the_progress_of_its_own_generation_alone(pair: Owner) -> None:
    pair.run("bring up", *ONLY_SERVING, restart=True).passed()
    run = pair.run("bring up", *ONLY_SERVING, restart=True).passed()
    assert len(re.findall(r"^\[pair1 .*is to serve release", run.text, re.M)) == 1
    stop = pair.run("stop").passed()
    assert "is to serve release" not in stop.text
    pair.run("bring up", *ONLY_SERVING).passed()


def test_a_renamed_group_is_refused_and_taken_over_with_one_restart(pair: Owner) -> None:
    before, files, hosts = pair.identity(), [kept(pair, node) for node in pair.nodes], (pair.inventory / "hosts.yml").read_text(encoding="utf-8")
    pair.inventory_file("hosts.yml", lambda text: text.replace("pair1:", "duo:"))
    try:
        for arguments in (("--check",), ()):
            pair.run("bring up", *ONLY_SERVING, *arguments).failed("lab-1 belongs to the group pair1, which runs there", "Nothing was changed", "takeover=true")
        assert (pair.identity(), [kept(pair, node) for node in pair.nodes]) == (before, files)
        pair.on_node("status").passed().shows("pair1", "serving since")
        pair.run("bring up", *ONLY_SERVING, takeover=True).passed().shows("duo serves")
        names = [pair.on(node, "docker ps --format '{{.Names}}'").split() for node in pair.nodes]
        assert names == [["gb10-duo-rank0"], ["gb10-duo-rank1"]]
    finally:
        pair.inventory_file("hosts.yml", lambda _text: hosts)
        pair.run("bring up", *ONLY_SERVING, takeover=True)
    assert pair.serves()
