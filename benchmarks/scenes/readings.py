"""What status, doctor and exit codes report in a start, in a recovery, and without agents."""

from __future__ import annotations

import re
import time
from typing import Any

from acceptance.owner import Screen, wait_for

from benchmarks.scenes.scene import Pair, Row, Scene, situations

LONG_BOOT = 120  # seconds: two playbooks at once have read the pair by then on a busy machine
PYTHON = (r"ConnectionRefusedError", r"\[Errno", r"ModuleNotFoundError", r"Error:")


def _both(pair: Pair, whats: tuple[str, ...]) -> dict[str, Screen]:
    """Run playbooks at the same time."""
    return dict(zip(whats, pair.at_once(*(pair.begin(what) for what in whats))))


@situations("""
25a  | status while the agent recovers                                | not serving, and the agent restores it
25b  | doctor while the agent recovers                                | wait
""")
def in_a_recovery(scene: Scene) -> None:
    """A boot that takes longer than the playbooks on a busy machine, of a rank that died."""
    pair, row = scene.pair, scene.row("25a")
    pair.boot_takes(LONG_BOOT)
    since = pair.now()
    pair.die()
    assert pair.noticed(since, "rank 1", 30), "the fault is not noticed"
    assert wait_for(lambda: len(pair.ids()) == 2, 60), "the agent does not start the pair"
    screens = _both(pair, ("status", "doctor"))
    _restored_by_the_agent(row, screens["status"])
    _advice(scene.row("25b"), screens["doctor"])
    pair.boot_takes(2)
    row.must(pair.comes_back(LONG_BOOT + 120), "the pair does not come back")


def _restored_by_the_agent(row: Row, status: Screen) -> None:
    """Check that status reports what the agent does."""
    row.ran(status, 2)
    row.hides(status, r"^SERVES|pair1 serves:")
    row.shows(status, "DOES NOT SERVE", r"(?i)agent (restores|has)|restores service|starts it|recovering")
    row.hides(status, "Run site.yml", *PYTHON)
    table = [line for line in status.text.splitlines() if line.startswith("pair1  ")]
    row.should("passed" not in " ".join(table), "the column gate has passed for a boot not judged")


def _advice(row: Row, doctor: Screen) -> None:
    """Check that doctor advises to wait."""
    row.ran(doctor, None)
    row.shows(doctor, r"(?i)agent restores|is starting|wait (?:until|for)")
    row.hides(doctor, "It is not known whether")
    row.hides(doctor, r"run: ansible-playbook \S*site\.yml", r"(?i)do: run site\.yml", "until it is started again", *PYTHON[:3])


@situations("""
25e  | status in the first stage of a start by a person               | starting, exit code 0
""")
def in_a_start(scene: Scene) -> None:
    """`gb10 status` all the time, and status.yml, from the first moment of `gb10 start` on."""
    pair, row = scene.pair, scene.row("25e")
    for way in ("gb10 start", "site.yml"):
        pair.on_node("stop")
        pair.boot_takes(LONG_BOOT)
        seen: list[Screen] = []
        run: Any = pair.begin("bring up", "--tags", "vllm_tp2") if way == "site.yml" else pair.on_node("start", "--no-wait")
        if way == "site.yml":
            assert wait_for(lambda: "converg" in pair.on_node("status").text or "STARTING" in pair.on_node("status").text, 120, 0.3), "no start"
        playbook = pair.begin("status")
        end = time.monotonic() + 20
        while time.monotonic() < end:
            seen.append(pair.on_node("status"))
            time.sleep(0.3)
        wrong = [screen for screen in seen if screen.code or not screen.flat.startswith("STARTING")]
        last = seen[-1].flat[:120]
        row.saw(f"{way}: {len(seen)} readings by `gb10 status` in 20 s, {len(wrong)} not STARTING with exit code 0; last: {last}")
        row.must(not wrong, f"{way}: {wrong[0].code if wrong else ''} {wrong[0].flat[:200] if wrong else ''}")
        status = row.ran(playbook.screen())
        row.shows(status, "STARTING|is starting")
        pair.boot_takes(2)
        if way == "site.yml":
            row.ran(run.screen())
        row.must(pair.comes_back(LONG_BOOT + 60), f"{way}: the pair does not serve")


@situations("""
21   | both agents stopped, `agent.json` of one damaged               | named, with what it means; `site.yml` repairs without a restart
""")
def without_agents(scene: Scene) -> None:
    """The pair serves, and no agent watches it."""
    pair, before = scene.pair, scene.pair.ids()
    row = scene.row("21")
    for node in pair.nodes:
        pair.on(node, "systemctl stop gb10-agent")
    pair.on(2, "echo '{' > /etc/gb10-cluster/agent.json")
    screens = _both(pair, ("status", "doctor"))
    status, doctor = row.ran(screens["status"], screens["status"].code), row.ran(screens["doctor"], screens["doctor"].code)
    row.shows(doctor, "lab-1", "lab-2", r"(?i)agent")
    row.hides(status, *PYTHON)
    row.hides(doctor, *PYTHON[:3])
    row.tells(doctor, r"(?i)nothing restarts|not restarted|not watched|does not restart|no longer restarted|nothing watches")
    row.should(doctor.code != 0 or status.code != 0, "status and doctor both end with exit code 0")
    row.ran(pair.site())
    row.untouched(pair, before)
    row.must(pair.settled(), "the agents do not watch again")


@situations("""
13b  | worker wiped while serving: status and doctor before the repair | not watched: the agent of lab-2 is gone
13   | `site.yml` then                                                | rebuilt, no restart
13d  | the downtime that is counted for it                            | 0
""")
def a_wiped_worker(scene: Scene) -> None:
    """All of the collection is gone from the worker, and its container serves on."""
    pair, before, away = scene.pair, scene.pair.ids(), _away(scene.pair.on_node("status"))
    row = scene.row("13b")
    pair.on(2, f"systemctl stop gb10-agent; rm -rf {pair.places.all}; userdel --force gb10-agent; systemctl daemon-reload", check=False)
    time.sleep(8)
    screens = _both(pair, ("status", "doctor"))
    status, doctor = screens["status"], screens["doctor"]
    row.ran(status, status.code)
    row.ran(doctor, doctor.code)
    row.shows(doctor, r"(?i)agent[^.]{0,80}(lab-2|missing|not installed|not there)|lab-2[^.]{0,80}agent")
    row.hides(doctor, *PYTHON[:3])
    row.hides(status, *PYTHON)
    row.should(status.code != 0 or doctor.code != 0, "status and doctor both end with exit code 0")
    row = scene.row("13")
    run = row.ran(pair.site())
    row.tells(run, "lab-2[^|]{0,200}missing|missing")
    row.untouched(pair, before)
    row = scene.row("13d")
    time.sleep(3)
    head = row.ran(pair.on_node("status"))
    row.must(_away(head) == away, f"{away} s without service before, and {_away(head)} after")


def _away(status: Screen) -> int:
    """Return the seconds without service that the head has counted in all."""
    found = re.search(r"(\d+) s without service in all", status.flat)
    return int(found[1]) if found else 0
