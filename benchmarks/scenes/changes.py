"""Changes of what is served: a new release, one that fails, one from before, options and criteria."""

from __future__ import annotations

import json
import re
import threading
from typing import Any

from acceptance.owner import wait_for

from benchmarks.scenes.scene import ONLY_SERVING, POOL, Pair, Probe, Scene, situations

LONG = '{"model": "lab-stub", "prompt": "The", "max_tokens": 4000, "ignore_eos": true, "temperature": 0, "stream": true}'
HALF: dict[str, Any] = {"context": 2048, "gate": {"context": 2048}}


def request(pair: Pair) -> threading.Thread:
    """Send a streaming request that takes minutes, and wait until it runs."""
    pair.fault("* slow 0.05")
    headers = f"-H 'Authorization: Bearer {pair.key()}' -H 'Content-Type: application/json'"
    line = f"curl -s -N -m 240 {headers} -d '{LONG}' http://127.0.0.1:8000/v1/completions"
    thread = threading.Thread(target=lambda: pair.on(1, line, check=False, timeout=300), daemon=True)
    thread.start()
    running = "curl -s http://127.0.0.1:8000/metrics | grep 'num_requests_running.* [1-9]'"
    assert wait_for(lambda: bool(pair.on(1, running, check=False)), 30), "the request does not run"
    return thread


@situations("""
27b  | `--check --diff` of a one-value change (context 4096 → 2048)   | the changed line
06   | the change, while one streaming request runs (06 and 20)       | drained, or the number of cut requests named; summary names context 4096 → 2048
08   | `rollback_release=list`, then `rollback.yml`                   | table; one start; what the next `site.yml` does
""")
def a_change(scene: Scene) -> None:
    """Another context, and back."""
    pair, before = scene.pair, scene.pair.ids()
    row = scene.row("27b")
    check = row.ran(pair.site("--check", "--diff", **HALF))
    lines = [line.removeprefix("    ") for line in check.text.splitlines()]  # the difference is indented, and a list of YAML has a hyphen too
    shown = [line for line in lines if line[:1] in ("+", "-") and not line.startswith(("+++", "---"))]
    row.saw(f"{len(shown)} changed lines in the diff")
    row.must(any("2048" in line for line in shown) and any("4096" in line for line in shown), "the changed value is not in the diff")
    row.should(len(shown) <= 30, f"the diff has {len(shown)} changed lines")
    row.tells(check, r"4,?096 (?:->|→) 2,?048|context[^|]{0,40}2,?048")
    row.untouched(pair, before)
    row = scene.row("06")
    stream, since = request(pair), pair.now()
    with Probe(pair) as probe:
        run = row.ran(pair.site(**HALF))
    row.must(pair.starts(since) == 1, f"{pair.starts(since)} starts")
    row.must(pair.serves(), "the pair does not serve")
    row.must(bool(re.search(r"\d+ requests? (?:is|are) cut|drained", run.flat)), "the run does not report that a request was cut")
    row.tells(run, r"4,?096 (?:->|→) 2,?048")
    row.saw(f"the endpoint was away {probe.away:.0f} s")
    row.tells(run, r"\d+ s without service")
    stream.join(30)
    _back(scene, before)


def _back(scene: Scene, before: list[tuple[str, str]]) -> None:
    """Go back to the release before."""
    pair, row, old = scene.pair, scene.row("08"), scene.pair.own
    pair.fault()
    listed = row.ran(pair.typed("gb10 rollback --list"))
    row.shows(listed, rf"{old} +lab-stub \S+ passed")
    since = pair.now()
    run = row.ran(pair.run("roll back", release=old))
    row.must(pair.starts(since) == 1, f"{pair.starts(since)} starts")
    row.must(set(pair.releases()) == {old} and pair.ids() != before and pair.serves(), "the release before does not serve")
    row.shows(run, r"\d+ s without service")
    row.tells(run, r"(?i)inventory|site\.yml|To stay")


@situations("""
07   | a new release fails its gate                                   | the last good one serves again, in one sentence with evidence and remedy
07c  | status and doctor after that                                   | both causes: the boot failed, and the inventory has another release
07d  | the inventory that has just failed, `--check` and real         | reports that this release failed its gate, and when
27c  | which release is removed then                                  | the one that never passed goes first
""")
def a_failed_change(scene: Scene) -> None:
    """A release that cannot pass its gate."""
    pair, good = scene.pair, scene.pair.own
    failing: dict[str, Any] = {"requests": 3, "gate": {"effective_tokens": {"min": POOL + 1}}}
    row = scene.row("07")
    kept, since = pair.kept_releases(), pair.now()
    run = row.ran(pair.site(**failing), None)
    row.shows(run, "pool_below_floor", r"4,194,305", "serves again", "Evidence: ", "Remedy: ")
    row.tells(run, r"\d+ s without service")
    row.must(pair.serves() and set(pair.releases()) == {good}, "the last good release does not serve")
    row.must(pair.starts(since) == 2, f"{pair.starts(since)} starts, expected are 2")
    before = pair.ids()
    row = scene.row("07c")
    words = [("status",), ("doctor",), ("bring up", *ONLY_SERVING, "--check"), ("bring up", *ONLY_SERVING)]
    status, doctor, *refused = pair.at_once(*(pair.begin(*each, **failing) for each in words))
    row.ran(status)
    row.ran(doctor, doctor.code)
    row.shows(status, "SERVES")
    row.shows(doctor, "boot_failed|failed its gate", "release_differs|inventory")
    row = scene.row("07d")
    for screen in refused:
        run = row.ran(screen, None)
        row.shows(run, r"release \w+ failed at 20\d\d-", "again=true")
    row.untouched(pair, before)
    row = scene.row("27c")
    never = pair.kept_releases() - kept
    values = {**failing, "requests": 5, "gate": {}}
    row.ran(pair.site("-e", "vllm_tp2_keep_releases=3", **values))
    left = pair.kept_releases()
    row.saw(f"before {sorted(kept)} passed and {sorted(never)} not; left {sorted(left)}")
    row.must(bool(never) and not never & left, "the release that never passed is kept")
    row.must(good in left, "the last good release is removed")
    pair.site()


@situations("""
29a  | options changed while the pair serves                          | used from now on, or reports from when
39   | a criterion raised above what the pair showed                  | refused, or reports that today's boot would fail this
39c  | then a rank dies                                               | restart, and it serves
""")
def settings(scene: Scene) -> None:
    """Options and criteria that are changed under a pair that serves."""
    pair, before = scene.pair, scene.pair.ids()
    row, folder = scene.row("29a"), scene.pair.places.folder
    arguments = ("-e", json.dumps({"vllm_tp2_timeout": 2000, "vllm_tp2_wait_seconds": 300, "vllm_tp2_keep_releases": 4, "vllm_tp2_rollback": False}))
    run = row.ran(pair.site(*arguments, attempts=2))
    row.shows(run, "attempts 3 -> 2", "in force")
    options = json.loads(pair.on(1, f"cat {folder}/agent/desired.json"))["options"]
    row.saw(f"desired.json: attempts {options.get('attempts')}, timeout {options.get('timeout')}, rollback {options.get('rollback')}")
    row.must((options.get("attempts"), options.get("rollback")) == (2, False), "the agent has not taken the options over")
    row.must("2000" in json.dumps(options), "the agent has not taken the timeout over")
    row.must(row.ran(pair.site()).flat.find("attempts 2 -> 3") > 0, "the way back is not shown")
    row.untouched(pair, before)
    row = scene.row("39")
    kept = pair.kept()
    higher = {"effective_tokens": {"min": POOL + 1}}
    for screen in pair.at_once(*(pair.begin("bring up", *ONLY_SERVING, *words, gate=higher) for words in (("--check",), ()))):
        run = row.ran(screen, None)
        row.shows(run, "4,194,305", "4,194,304", "its next boot would fail", "Nothing was changed")
    row.must(pair.kept() == kept, "the refused run has changed files")
    row.untouched(pair, before)
    row = scene.row("39c")
    since = pair.now()
    with Probe(pair) as probe:
        pair.die()
        row.must(pair.noticed(since, "rank 1 on lab-2", 30), "the agent does not notice it")
        row.must(pair.comes_back(), "the pair does not come back")
    row.saw(f"noticed, {pair.starts(since)} start, away {probe.away:.0f} s")
    row.must(pair.starts(since) == 1, f"{pair.starts(since)} starts")
