"""Commands on the node and on the controller, hooks, import, undo."""

from __future__ import annotations

import time

from acceptance import commands
from acceptance.owner import Screen, wait_for

from benchmarks.scenes.scene import Pair, Scene, situations

COMPOSE = """\
services:
  vllm:
    image: vllm/vllm-openai:v0.11.0
    command: --model Qwen/Qwen3-8B --max-model-len 8192 --port 8000
    environment:
      HF_TOKEN: hf_situationsituationsituation01
    ipc: host
"""


def as_admin(pair: Pair, line: str) -> Screen:
    """Type a line on the head as a user without rights."""
    start = time.monotonic()
    text, _mark, code = pair.on(1, f"runuser -l admin -c '{line}' 2>&1; echo exit=$?").rpartition("exit=")
    return Screen(line, int(code), text, time.monotonic() - start)


@situations("""
22   | a hook that hangs and a webhook that is down, then a fault     | events go on, the failure is visible
""")
def a_hook(scene: Scene) -> None:
    """Alerts that do not arrive."""
    pair, row = scene.pair, scene.row("22")
    row.ran(pair.site(watch={"hook": ["/bin/sleep", "600"], "webhook": "http://127.0.0.1:9/alerts"}))
    since = pair.now()
    pair.die()
    row.must(pair.noticed(since, "rank 1 on lab-2", 30), "the fault is not noticed")
    row.must(pair.comes_back(), "the pair does not come back")
    row.must(wait_for(lambda: "notice" in pair.on_node("status").text, 40, 2), "`gb10 status` does not show that notices fail")
    row.shows(row.ran(pair.on_node("status")), r"\d+ notices? failed")
    row.should(bool(pair.events(since, r"(?i)hook|notice")), "gb10 events have nothing of it")
    ended = wait_for(lambda: not pair.on(1, "pgrep -f '[s]leep 600' || true").strip(), 60, 1)  # 10 s for each event
    row.must(ended, "the hook still hangs")
    pair.site()


@situations("""
23   | `gb10` by another user, wrong verbs and options                | a sentence
23b  | `gb10 start` while it serves                                   | serves already
""")
def on_the_head(scene: Scene) -> None:
    """Slips of a person on the head."""
    pair, before = scene.pair, scene.pair.ids()
    row = scene.row("23")
    screen = row.ran(as_admin(pair, "gb10 status"), None)
    if "not found" in screen.text:
        row.should(False, "gb10 is not in the PATH of a user on Debian")
        screen = row.ran(as_admin(pair, "/usr/local/sbin/gb10 status"), None)
    row.shows(screen, "Run with sudo")
    row.shows(row.ran(as_admin(pair, "sudo gb10 status")), "serves")
    slips = {"gb10 statsu": "gb10 --help", "gb10 logs --since 5x": "5x", "gb10 logs --grep '('": r"(?i)regular expression|not a valid|missing \)"}
    for line, words in slips.items():
        row.shows(row.ran(pair.typed(line), None), words)
    text = pair.typed("gb10 --help").text
    inner = [verb for verb in ("follow", "call", "agent", "connect") if f"\n    {verb} " in text]
    row.saw(f"gb10 --help lists the internal verbs {inner}" if inner else "gb10 --help lists no internal verb")
    row.should(not inner, f"gb10 --help lists {inner}")
    row = scene.row("23b")
    screen = row.ran(pair.typed("gb10 start"))
    row.hides(screen, "under way")
    row.tells(screen, "serves already|already serves|serves release")
    row.untouched(pair, before)


@situations("""
26   | import of a Compose file with HF_TOKEN, validate, report, smoke | works, and the token is not written
""")
def reports(scene: Scene) -> None:
    """What an owner does next to serving. bench.yml needs a tokenizer, and the model of the stub has none."""
    pair, row, before = scene.pair, scene.row("26"), scene.pair.ids()
    path, folder = pair.folder / "docker-compose.yml", pair.folder / "own-profiles"
    path.write_text(COMPOSE, encoding="utf-8")
    run = row.ran(pair.run("import a recipe", recipe=str(path), profiles_folder=str(folder)))
    row.shows(run, "HF_TOKEN")
    written = "".join(each.read_text(encoding="utf-8") for each in folder.glob("*.yml"))
    row.must(bool(written) and "hf_situation" not in written + run.text, "the token is written, or the profile is not")
    for screen in pair.at_once(*(pair.begin(what) for what in ("validate", "report", "smoke"))):
        row.ran(screen)
    row.untouched(pair, before)
    row.saw("bench.yml was not run: the model of the stub has no tokenizer")


@situations("""
34   | `docker_state=absent --check` while the pair serves            | refused or warned
28   | `vllm_tp2_state=absent`, then `site.yml`                       | clean, and back; what is lost is named
""")
def absent(scene: Scene) -> None:
    """Undo of roles under a pair that serves."""
    pair, before = scene.pair, scene.pair.ids()
    row = scene.row("34")
    check = pair.run("bring up", "--check", *commands.tags("docker"), "-e", "docker_state=absent")
    row.ran(check, check.code)
    row.tells(check, r"(?i)pair1[^|]{0,80}(serves|uses|runs)|container[^|]{0,60}(runs|go on|keep)|serves")
    row.untouched(pair, before)
    row = scene.row("28")
    run = row.ran(pair.undo(commands.SERVING))
    row.must(pair.gone(), "a rank is left")
    left = [pair.on(node, f"ls -d {pair.places.folder} {pair.places.agent} 2>/dev/null || true").split() for node in pair.nodes]
    row.must(left == [[], []], f"left: {left}")
    row.tells(run, r"(?i)api key", r"(?i)evidence")
    run = row.ran(pair.site())
    row.must(pair.serves(), "the pair does not serve")
