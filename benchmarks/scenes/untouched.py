"""Runs that change nothing of what serves: the same again, from another controller, with another version of the agent."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from acceptance import commands, test_f_nodes
from acceptance.owner import REPO, Screen
from container_lab import NETWORK

from benchmarks.scenes.scene import ONLY_SERVING, Pair, Scene, situations, text_of

MARK = "plugins/module_utils/_pair/cli.py"  # a file of the program that the nodes have


@situations("""
01   | `site.yml` again                                               | changed nothing, no restart
03   | the same with another callback                                 | all text there
38   | `upgrade.yml` and `reboot.yml --check` with nothing to do      | no-op
26g  | `bench/` and `own-profiles/` in the checkout                   | ignored by git
02c  | receipts and evidence of 300 boots on the controller            | bounded
""")
def again(scene: Scene) -> None:
    """The same again."""
    pair, before = scene.pair, scene.pair.ids()
    row = scene.row("01")
    run = row.ran(pair.run("bring up"))
    row.must(run.changes == set(), f"it changed {sorted(run.changes)}")
    row.shows(run, "pair1 serves", "endpoint +http", "changed +nothing")
    row.untouched(pair, before)
    row = scene.row("03")
    words = commands.play("bring up", pair.inventory, *ONLY_SERVING)
    run = row.ran(pair.shell(words, {"ANSIBLE_STDOUT_CALLBACK": "default"}).screen())
    row.shows(run, "pair1 serves", f"http://{NETWORK}11:8000/v1", "changed=0")
    row.untouched(pair, before)
    row = scene.row("38")
    for screen in (pair.run("upgrade"), pair.run("reboot", "--check")):
        row.must(row.ran(screen).changes == set(), f"it changes {sorted(screen.changes)}")
    row.untouched(pair, before)
    row = scene.row("26g")
    for path in ("bench/2026/x.json", "own-profiles/x.yml", "receipts/x", "evidence/x"):
        ignored = subprocess.run(["git", "check-ignore", "-q", path], cwd=REPO, check=False).returncode == 0
        row.saw(f"{path} {'is' if ignored else 'is not'} ignored")
        row.should(ignored, f"git does not ignore {path}")
    _bounded(scene)


def _bounded(scene: Scene) -> None:
    """Put old records on the controller, and look what a start leaves of them."""
    pair, row = scene.pair, scene.row("02c")
    receipts, evidence = pair.folder / "receipts/pair1", pair.folder / "evidence"
    model = sorted(receipts.glob("*-passed.json"))[-1]
    for number in range(300):
        shutil.copy(model, receipts / f"202601{number % 28 + 1:02d}T{number // 28:02d}0000Z-{number:012x}-passed.json")
        folder = evidence / f"pair1-{number:012x}"
        folder.mkdir(parents=True)
        (folder / "pair1-rank0.txt").write_text("old\n", encoding="utf-8")
        os.utime(folder, (1767225600 + number, 1767225600 + number))
    row.ran(pair.site(restart=True))
    left = len(list(receipts.glob("*-passed.json"))), len(list(evidence.glob("pair1-*")))
    row.saw(f"of 301 receipts and 300 folders of evidence, {left[0]} and {left[1]} are left after a start")
    row.should(left[0] <= 200, f"receipts are not pruned: {left[0]}")
    row.should(left[1] <= 200, f"evidence is not pruned: {left[1]}")


def _clone(scene: Scene, name: str) -> Pair:
    """Return an owner with a clone of this checkout as another laptop has it: with other receipts, and another lock file."""
    folder = scene.pair.folder / name
    folder.mkdir()
    subprocess.run(["git", "clone", "-q", str(REPO), str(folder / "clone")], check=True)
    return Pair(folder, folder / "clone")


@situations("""
02   | a fresh clone, another lock file, no receipts                  | no-op, nothing needed from the old controller
04a  | newer code of the agent from a second clone, `--check --diff`  | reports the agent's change, and no restart
04b  | the same, real                                                 | agent replaced, engine untouched
05   | `status.yml` from the older checkout                           | works
04c  | back by the older checkout                                     | works, but reports that it is another version
""")
def other_controllers(scene: Scene) -> None:
    """Another laptop, and another version of the agent."""
    pair, before, other = scene.pair, scene.pair.ids(), _clone(scene, "laptop")
    row = scene.row("02")
    run = row.ran(other.site())
    row.must(all("Compare with the lock file" in change for change in run.changes), f"it changed {sorted(run.changes)}")
    row.untouched(pair, before)
    path = other.checkout / MARK
    path.write_text(path.read_text(encoding="utf-8") + "\n# newer\n", encoding="utf-8")
    row = scene.row("04a")
    files = [pair.kept(node) for node in pair.nodes]
    check = row.ran(other.site("--check", "--diff"))
    row.must(any("Copy the program" in change for change in check.changes), f"the check run does not report the agent: {sorted(check.changes)}")
    row.must(not any("desired release" in change for change in check.changes), "the check run reports a start")
    row.must([pair.kept(node) for node in pair.nodes] == files, "the check run changed files on a node")
    _named(scene, check)
    row = scene.row("04b")
    since, serving = pair.now(), _serving_since(pair)
    run = row.ran(other.site())
    row.must(run.changes == check.changes, f"the run changed {sorted(run.changes)}, the check run {sorted(check.changes)}")
    row.must([pair.kept(node) for node in pair.nodes] != files, "the agent was not replaced")
    row.untouched(pair, before)
    row.must(pair.settled(), "the new agent does not report that the pair serves")
    _named(scene, run)
    row.should(_serving_since(pair) == serving, f"serving since was {serving}, and is {_serving_since(pair)}")
    row.should(bool(pair.events(since, r"(?i)agent|version|program")), "gb10 events have nothing of the new agent")
    row = scene.row("05")
    row.shows(row.ran(pair.run("status")), "SERVES", "lab-1", "lab-2")
    row = scene.row("04c")
    run = row.ran(pair.site())
    row.must([pair.kept(node) for node in pair.nodes] == files, "the older agent is not there")
    row.untouched(pair, before)
    _named(scene, run)


def _named(scene: Scene, run: Screen) -> None:
    """Check that a run names the agent of both versions."""
    assert scene.at
    scene.at.tells(run, r"(?i)agent[^|]{0,60}[0-9a-f]{7,}[^|]{0,20}(?:->|→|to|instead of) *[0-9a-f]{7,}")


def _serving_since(pair: Pair) -> str:
    """Return since when the pair serves, as the head reports it."""
    return pair.on_node("status").flat.partition("serving since ")[2][:20]


@situations("""
10   | hosts renamed and the worker at another address, in one        | no restart
""")
def renamed_hosts(scene: Scene) -> None:
    """Other names and another address: the row of the acceptance net."""
    row, pair = scene.row("10"), scene.pair
    before = pair.ids()
    with text_of(Path(pair.inventory / "hosts.yml")):
        try:
            test_f_nodes.test_other_names_and_another_address_need_no_restart(pair)
            row.saw("the row of the acceptance net passes: no restart, and the agents know the new names")
        except AssertionError as error:
            row.must(False, str(error)[:400])
    row.untouched(pair, before)
