"""A node that is off, and one that has other SSH keys."""

from __future__ import annotations

import subprocess
import time

from acceptance.owner import STATE, wait_for
from container_lab import NETWORK, NODE

from benchmarks.scenes.scene import Pair, Scene, situations


def off(pair: Pair) -> None:
    """Cut the power of the worker."""
    subprocess.run(["docker", "kill", f"{NODE}2"], check=True, capture_output=True)
    wait_for(lambda: "lab-2" in pair.on_node("status").text, 30, 1)


def on(pair: Pair) -> None:
    """Give the worker its power again."""
    subprocess.run(["docker", "start", f"{NODE}2"], check=True, capture_output=True)
    wait_for(lambda: bool(pair.on(2, "docker version >/dev/null 2>&1 && echo up", check=False)), 120)


@situations("""
24   | one node off: status, doctor, `site.yml`                       | true sentences in less than 60 s
24d  | `stop.yml` with one node off                                   | the head is stopped, reports which rank is not known
""")
def one_node_off(scene: Scene) -> None:
    """The worker has no power."""
    pair, row, since = scene.pair, scene.row("24"), scene.pair.now()
    off(pair)
    try:
        row.must(pair.noticed(since, "lab-2", 60), "the agent does not notice it")
        for what in ("status", "doctor", "bring up"):
            screen = row.ran(pair.run(what), None)
            row.shows(screen, "lab-2", r"(?i)ssh|unreachable|no reply|does not answer|no route|timed out")
            row.must(screen.seconds < 60, f"{what} took {screen.seconds:.0f} s")
            row.hides(screen, "preflight .*lab-2 ok", "without a message")
            if what == "doctor":
                row.should("run: ansible-playbook" not in screen.text or "site.yml" not in screen.text, "doctor advises site.yml, which is refused")
        row = scene.row("24d")
        stop = row.ran(pair.run("stop"), None)
        row.shows(stop, "lab-2", "not known|not reached|no reply|may still")
        row.must(pair.container(1) is None, "the head is not stopped")
    finally:
        on(pair)
    cleared = wait_for(lambda: "not known" not in pair.on_node("status").text, 60, 2)
    row.ran(pair.on_node("status"), pair.on_node("status").code)
    row.should(cleared, "with the node back, `gb10 status` still reports that the rank is not known")
    time.sleep(5)
    row.must(not pair.serves() and pair.container(1) is None, "the stopped pair was started")


@situations("""
32   | SSH host keys of the worker regenerated                        | named and repaired, no restart
""")
def other_host_keys(scene: Scene) -> None:
    """The worker has other host keys, and the owner accepts them in known_hosts."""
    pair, row, before = scene.pair, scene.row("32"), scene.pair.ids()
    known = STATE / "known_hosts"
    text = known.read_text(encoding="utf-8")
    pair.on(2, "rm -f /etc/ssh/ssh_host_*_key*; ssh-keygen -A; systemctl restart ssh; pkill -f '^sshd-session:|^sshd:.*@' || true", check=False)
    time.sleep(15)
    head = pair.on_node("status")
    row.ran(head, head.code)
    row.tells(head, r"(?i)host key")
    run = row.ran(pair.site(), None)
    row.shows(run, "lab-2", "(?i)host key")
    lines = [line for line in text.splitlines() if not line.startswith(f"{NETWORK}12 ")]
    keys = [f"{NETWORK}12 {' '.join(line.split()[:2])}" for line in pair.on(2, "cat /etc/ssh/ssh_host_*_key.pub").splitlines()]
    known.write_text("\n".join([*lines, *keys]) + "\n", encoding="utf-8")
    row.ran(pair.site())
    row.untouched(pair, before)
    row.must(wait_for(pair.settled, 30), "the agent still waits")
