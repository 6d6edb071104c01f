"""Whose nodes they are: a renamed group, swapped ranks, a head that was wiped, a key that is gone."""

from __future__ import annotations

import re

from benchmarks.scenes.scene import ONLY_SERVING, Pair, Scene, situations, text_of

ALSO_TESTED = ("-e", "vllm_tp2_collective_test=auto")  # the stub has no collectives: a run that is refused in time does not get there


def hashes(pair: Pair) -> list[dict[str, str]]:
    """Return what a refused run may not touch on both nodes."""
    return [pair.kept(node) for node in pair.nodes]


@situations("""
11a  | group renamed, `--check`                                       | reports that pair1 serves there
11b  | group renamed, real                                            | one sentence: pair1 serves on these nodes, and the way
11c  | after the refused runs                                         | pair1 is watched as before
11e  | the advice followed: `-e takeover=true`                        | the old group is stopped first, one start
11f  | back to the old name (11f and 11g)                             | one start at most, the sentence names the way
""")
def renamed(scene: Scene) -> None:
    """pair1 is called duo in the inventory."""
    pair, before, files = scene.pair, scene.pair.ids(), hashes(scene.pair)
    with text_of(pair.inventory / "hosts.yml"):
        pair.inventory_file("hosts.yml", lambda text: text.replace("pair1:", "duo:"))
        begun = [pair.begin("bring up", *ONLY_SERVING, *words, *ALSO_TESTED) for words in (("--check",), ())]
        for number, screen in zip(("11a", "11b"), pair.at_once(*begun)):
            row = scene.row(number)
            run = row.ran(screen, None)
            row.shows(run, "belongs to the group pair1", "runs there|serves", "Nothing was changed", "takeover=true")
            row.hides(run, "(?i)EADDRINUSE", "collective_test=never")
            row.must(hashes(pair) == files, "the refused run has changed files")
            row.untouched(pair, before)
        row = scene.row("11c")
        row.shows(row.ran(pair.on_node("status")), "pair1", "serving since")
        since = pair.now()
        pair.die()
        row.must(pair.noticed(since, "rank 1 on lab-2", 15), "the agent does not notice a rank that dies")
        row.must(pair.comes_back(), "the pair does not come back")
        row = scene.row("11e")
        row.must(not _both_ran(pair), "two groups ran before")
        run = row.ran(pair.site(takeover=True))
        row.shows(run, "duo serves")
        names = [pair.on(node, "docker ps -a --format '{{.Names}}'").split() for node in pair.nodes]
        row.saw(f"containers: {names}")
        row.must(names == [["gb10-duo-rank0"], ["gb10-duo-rank1"]], f"containers: {names}")
        row.must(_starts_of(pair, "duo") == 1, f"{_starts_of(pair, 'duo')} starts")
    row = scene.row("11f")
    refused = row.ran(pair.site(), None)
    row.shows(refused, "duo", "Nothing was changed", "takeover=true")
    row.ran(pair.site(takeover=True))
    row.must(pair.serves(), "the pair does not serve")
    names = [pair.on(node, "docker ps -a --format '{{.Names}}'").split() for node in pair.nodes]
    row.must(names == [["gb10-pair1-rank0"], ["gb10-pair1-rank1"]], f"containers: {names}")
    left = [pair.on(node, "ls /opt/gb10-cluster/vllm_tp2").split() for node in pair.nodes]
    row.saw(f"folders: {left}")


def _both_ran(pair: Pair) -> bool:
    """Return whether containers of two groups are on a node."""
    names = " ".join(pair.on(node, "docker ps -a --format '{{.Names}}'") for node in pair.nodes)
    return "gb10-duo" in names and "gb10-pair1" in names


def _starts_of(pair: Pair, group: str) -> int:
    """Return how many starts of a group the agent of the head remembers."""
    return len(re.findall(rf"step: {group} starts release", pair.on_node("events", "-n", "300").text))


@situations("""
12   | head and worker swapped, `--check` and real                    | refused, names takeover; nothing changed
12d  | swapped back                                                   | no restart
""")
def swapped(scene: Scene) -> None:
    """The other host is the first of the group."""
    pair, before, files = scene.pair, scene.pair.ids(), hashes(scene.pair)
    row = scene.row("12")
    with text_of(pair.inventory / "hosts.yml") as hosts:
        head, worker = re.findall(r"        lab-\d:\n          ansible_host: .*\n", hosts)
        pair.inventory_file("hosts.yml", lambda text: text.replace(head + worker, worker + head))
        for screen in pair.at_once(*(pair.begin("bring up", *ONLY_SERVING, *words) for words in (("--check",), ()))):
            run = row.ran(screen, None)
            row.shows(run, "lab-2 is rank 1 of pair1", "lab-2 as head", "Nothing was changed", "takeover=true")
        row.must(hashes(pair) == files, "the refused run has changed files")
        row.shows(row.ran(pair.on_node("status")), "serving since")
        row.untouched(pair, before)
    row = scene.row("12d")
    run = row.ran(pair.site())
    row.must(run.changes == set(), f"it changed {sorted(run.changes)}")
    row.untouched(pair, before)


@situations("""
36   | the file of the API key removed on the head                    | repaired from the container, or reports that the file is missing
""")
def a_lost_key(scene: Scene) -> None:
    """The clients have the key, the container has it, the file is gone."""
    pair, row, key, before = scene.pair, scene.row("36"), scene.pair.key(), scene.pair.ids()
    pair.on(1, f"rm -f {pair.places.api_key}")
    status = pair.on_node("status")
    row.ran(status, status.code)
    row.hides(status, "DOES NOT SERVE", "another API key than the files")
    row.shows(status, "the file of the API key is missing")
    run = row.ran(pair.site())
    row.shows(run, "(?i)new key|api key")
    row.must(pair.serves(), "the file has another key than the container")
    row.should(pair.complete(key=key)[0] == 200, "the clients need a new key: who removes the file asks for one (roles/vllm_tp2/README.md)")
    row.should(pair.ids() == before, "the pair was restarted")


@situations("""
14   | head wiped and re-imaged (another machine-id) while it serves  | one sentence; with takeover no restart
""")
def a_new_head(scene: Scene) -> None:
    """All of the collection is gone from the head, and its container serves on."""
    pair, row, key, before = scene.pair, scene.row("14"), scene.pair.key(), scene.pair.ids()
    wipe = f"systemctl stop gb10-agent; rm -rf {pair.places.all}; userdel --force gb10-agent; systemctl daemon-reload"
    pair.on(1, f"{wipe}; rm -f /etc/machine-id /var/lib/dbus/machine-id; systemd-machine-id-setup", check=False)
    doctor, run = pair.at_once(pair.begin("doctor"), pair.begin("bring up", *ONLY_SERVING))
    row.ran(doctor, doctor.code)
    row.hides(doctor, "clients get no reply", "ModuleNotFoundError")
    row.ran(run, None)
    row.shows(run, "takeover=true", "Nothing was changed|nothing was changed")
    row.untouched_by(pair, before, key)
    run = row.ran(pair.site(takeover=True))
    row.must(pair.serves(), "the pair does not serve")
    row.must(pair.complete(key=key)[0] == 200, "the key of the clients is not valid any more")
    row.should(pair.ids() == before, "the pair was restarted")
