"""A pair that is held, the runs after the cause is repaired, and the progress that runs print."""

from __future__ import annotations

import re
import time

from acceptance.owner import wait_for

from benchmarks.scenes.scene import Probe, Scene, situations


@situations("""
39f  | the downtime that a held pair reports                          | counts
27a  | `--check --diff` on a held pair, cause repaired                | would be started
39d  | the first `site.yml` after the cause is repaired               | starts
39e  | the run after that                                             | serves, changed nothing
""")
def a_held_pair(scene: Scene) -> None:
    """A model that is corrupt when the agent restarts the pair: a lasting failure of a release that has passed."""
    pair, row = scene.pair, scene.row("39f")
    pair.fault("1 corrupt")
    pair.die()
    if not row.must(wait_for(lambda: "held" in pair.on_node("status").text, 120, 1), "the pair is not held"):
        row.saw(pair.on_node("events").flat[-600:])
        return
    time.sleep(10)
    status = row.ran(pair.on_node("status"), 2)
    found = [int(value) for value in re.findall(r"(\d+) s without service", status.flat)]
    row.shows(status, "does not serve|DOES NOT SERVE", "held", "corrupt")
    row.must(bool(found) and max(found) >= 10, f"seconds without service: {found}")
    pair.fault()
    row = scene.row("27a")
    check = row.ran(pair.site("--check", "--diff"))
    row.shows(check, "would be started|would start")
    row.hides(check, r"pair1 serves\b")
    row.must(pair.ids() == [], "the check run started something")
    row = scene.row("39d")
    since = pair.now()
    run = row.ran(pair.site())
    row.must(pair.serves(), "the pair does not serve")
    row.must(pair.starts(since) == 1, f"{pair.starts(since)} starts")
    row.shows(run, "pair1 serves")
    row = scene.row("39e")
    before = pair.ids()
    run = row.ran(pair.site())
    row.must(run.changes == set(), f"it changed {sorted(run.changes)}")
    row.untouched(pair, before)


@situations("""
99   | progress of a start, `stop.yml`, `rollback.yml`, absent        | progress of this generation only
19   | `gb10 stop`, `gb10 start`                                      | stops, starts
37   | `docker compose up` by hand after a stop                       | the agent leaves it; status reports that it should not serve
37d  | `site.yml` then                                                | adopts it: no restart, unless the reason is given
""")
def progress(scene: Scene) -> None:
    """Several starts, and what each command prints of them; then a start by hand."""
    pair, row = scene.pair, scene.row("99")
    run = row.ran(pair.site(restart=True))
    asked = len(re.findall(r"^\[pair1 .*is to serve release", run.text, re.M))
    row.must(asked == 1, f"the run prints {asked} requests for a release")
    row.must(len(re.findall(r"^\[pair1 .*every criterion holds", run.text, re.M)) <= 1, "an earlier verdict is printed")
    stop = row.ran(pair.run("stop"))
    row.hides(stop, "is to serve release", "starts release", "every criterion holds")
    row.must(len(stop.text.splitlines()) < 20, f"stop.yml prints {len(stop.text.splitlines())} lines")
    row.must(pair.gone(), "stop.yml leaves a rank")
    row = scene.row("37")
    for node in (2, 1):
        line = f"cd {pair.places.current} && docker compose -f compose.yaml up -d 2>&1"
        row.saw(f"lab-{node}: {' '.join(pair.on(node, line, check=False, timeout=120).split())[-120:]}")
    row.must(wait_for(pair.serves, 60), "the containers that were started by hand do not serve")
    before = pair.ids()
    time.sleep(8)
    row.must(pair.ids() == before, "the agent has touched what was started by hand")
    status = pair.on_node("status")
    row.ran(status, status.code)
    row.shows(status, "It should not", "stopped on request")
    row = scene.row("37d")
    run = row.ran(pair.site())
    restarted = pair.ids() != before
    row.saw("restarted" if restarted else "adopted")
    row.must(pair.serves(), "the pair does not serve")
    row.must(not restarted or bool(re.search(r"stopped on request", run.flat)), "it was restarted without a reason")
    row.should(not restarted, "the pair that serves was restarted")
    row = scene.row("19")
    with Probe(pair) as probe:
        stop = row.ran(pair.on_node("stop"))
        row.must(pair.gone(), "a rank is left")
        start = row.ran(pair.on_node("start", "--wait"))
    row.shows(stop, "stopped")
    row.shows(start, "serves release")
    row.saw(f"away {probe.away:.0f} s")
    row.must(pair.serves(), "the pair does not serve")
