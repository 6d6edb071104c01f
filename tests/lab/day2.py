"""Day-2 cases on the served lab, one function a row: what is done to the pair, what the runs must report, and what must be left.

Used by benchmarks/day2_table.py. The numbers are those of the table that was first measured at commit 86c1da4.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import agents
import playbook
from acceptance.owner import wait_for
from agents import FOLDER
from container_lab import NODE, Lab
from faults import UNWATCHED

PLACE = "/opt/gb10-cluster"
IMAGE = "gb10-lab/vllm-cpu:0.32.0"
RAIL, UPLINK = "enp1s0f0np0", "enP7s7"
RAW = re.compile(r"Traceback|Finalization of task args|has no attribute|is undefined|TimeoutError|Unterminated string|\bNone:|MODULE FAILURE")


@dataclass
class Case:
    """One row while it runs: the lab, what the runs printed, and what was not as expected."""

    lab: Lab
    notes: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def want(self, holds: bool, what: str) -> None:
        """Note what does not hold."""
        if not holds:
            self.wrong.append(what)

    def play(self, name: str = "site.yml", *arguments: str, within: float = 300, **variables: Any) -> playbook.Run:
        """Run a playbook, keep its sentence, and require that it ends in time and prints no raw error."""
        run = self.lab.play(name, *arguments, variables=variables)
        short = " ".join([Path(name).stem, *arguments])
        self.notes.append(f"{short} {run.seconds:.0f} s, exit {run.rc}: {sentence(run)}")
        self.want(run.seconds < within, f"{short} took {run.seconds:.0f} s, allowed are {within:.0f}")
        raw = RAW.search(sentence(run))
        self.want(raw is None, f"{short} prints a raw error: {raw and raw.group()}")
        return run

    def has(self, run: playbook.Run, *patterns: str) -> None:
        """Require each pattern in what the run printed; line breaks and YAML quoting do not count."""
        self._match(" ".join((run.stdout + " " + " ".join(m for _h, _t, m in run.failures)).split()), patterns)

    def printed(self, other: Controller, code: int | None, *patterns: str) -> None:
        """Note how a run in the background ended, and require each pattern in what it printed."""
        self.notes.append(f"exit {code}: {other.sentence}")
        self.want(code is not None, "the run in the background hangs")
        self._match(other.text, patterns)

    def _match(self, text: str, patterns: tuple[str, ...]) -> None:
        for pattern in patterns:
            self.want(re.search(pattern, text) is not None, f"nothing printed matches {pattern!r}")

    def passes(self, other: Controller, *patterns: str, within: float = 300) -> None:
        """Require that a run in the background passes, and prints that the pair serves and these patterns."""
        code = other.wait(within)
        self.printed(other, code, "pair1 serves", *patterns)
        self.want(code == 0, f"the run ends with {code}")

    def next_run(self, before: list[tuple[str, str]], **variables: Any) -> None:
        """Require that the next run passes, and that the containers of `before` serve."""
        self.want(self.play("site.yml", "--tags", "vllm_tp2", **variables).rc == 0, "the next run fails")
        self.same(before)

    def unchanged(self, run: playbook.Run, before: list[tuple[str, str]]) -> None:
        """Require that a run passed, changed nothing, and that the same containers serve."""
        self.want(run.rc == 0, f"the next run ends with {run.rc}")
        self.want(not run.changed, f"the next run changes {sorted(run.changed)}")
        self.same(before)

    def same(self, before: list[tuple[str, str]]) -> None:
        """Require that the containers of `before` serve."""
        self.want(self.lab.identity() == before, "the pair was restarted")
        self.want(self.serves(), "the pair does not serve")

    def status_here(self) -> tuple[int, str]:
        """Return exit code and text of `gb10 status` on the head."""
        text, _mark, code = self.lab.on(1, "gb10 status 2>&1; echo exit=$?").rpartition("exit=")
        return int(code), text

    def stays_stopped(self, seconds: float) -> None:
        """Require that nothing runs, now and some seconds later."""
        self.want(self.lab.gone(), "a rank runs after the stop")
        time.sleep(seconds)
        self.want(self.lab.gone(), f"a rank was started {seconds:.0f} s after the stop")

    def serves(self) -> bool:
        """Whether a completion comes back now."""
        return self.lab.complete() == (200, " Paris.")

    def releases(self) -> list[str]:
        """Return the release label of the container that runs on each node; empty where none runs."""
        out = []
        for node in (1, 2):
            state = self.lab.inspect(node)
            out.append(str(state["Config"]["Labels"].get("gb10.cluster.release", "")) if state and state["State"]["Running"] else "")
        return out

    def whole(self) -> None:
        """Require that both ranks run one release, or that neither runs."""
        found = self.releases()
        self.want(found[0] == found[1], f"half a pair is left: lab-1 runs {found[0] or 'nothing'}, lab-2 {found[1] or 'nothing'}")

    def evidence(self) -> set[str]:
        """Return the evidence files so far."""
        return {str(path) for path in (self.lab.folder / "evidence").rglob("*.txt")}

    def background(self, name: str, *arguments: str, **variables: Any) -> Controller:
        """Start a playbook as another shell does."""
        return Controller(self.lab, name, *arguments, **variables)

    def wait_for_boot(self, run: Controller, seconds: float = 90) -> bool:
        """Wait until the worker of a boot that began after this run prints its configuration."""
        command = f"docker logs --since {run.began:.0f} {self.lab.container(2)} 2>&1 | grep -q 'Using max model len' && echo yes || true"
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.lab.on(2, command, check=False).strip() == "yes":
                return True
            time.sleep(0.5)
        self.want(False, "the second controller's boot did not begin")
        return False


class Controller:
    """ansible-playbook in the background."""

    def __init__(self, lab: Lab, name: str, *arguments: str, **variables: Any) -> None:
        self.began = time.time()
        self.log = lab.folder / f"controller-{time.monotonic_ns()}.log"
        values = {"gb10_receipts": str(lab.folder / "receipts"), "gb10_evidence": str(lab.folder / "evidence"), **variables}
        command = [str(Path(sys.executable).parent / "ansible-playbook"), name, "-i", str(lab.inventory), *arguments, "-e", json.dumps(values)]
        environment = {
            **os.environ, "ANSIBLE_INJECT_FACT_VARS": "false", "ANSIBLE_ALLOW_EMBEDDED_TEMPLATES": "false", "ANSIBLE_NOCOLOR": "true",
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        }  # fmt: skip
        with self.log.open("w") as out:
            self.process = subprocess.Popen(command, cwd=playbook.REPO, stdout=out, stderr=out, start_new_session=True, env=environment)

    def kill(self, number: int = signal.SIGINT) -> float:
        """Send a signal to the process as a terminal does; return the seconds until it was over."""
        start = time.monotonic()
        os.killpg(self.process.pid, number)
        self.process.wait(120)
        return time.monotonic() - start

    def wait(self, seconds: float = 600) -> int | None:
        """Return the exit code; None (and an end by force) where the time is over."""
        try:
            return self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.kill(signal.SIGKILL)
            return None

    @property
    def text(self) -> str:
        """All that it has printed, in one line."""
        return " ".join(self.log.read_text(encoding="utf-8", errors="replace").split())

    @property
    def sentence(self) -> str:
        """The last sentence about the group that it printed."""
        text = self.text
        return next(reversed(re.findall(r"(?<!\[)(pair1[: ][^\"]{20,400}?)(?= Origin:| TASK | PLAY |\"|\' fatal:)", text)), text[-300:])


def sentence(run: playbook.Run) -> str:
    """Return the sentence that a user reads last: the messages of failures, else the line about the group."""
    if run.rc:
        messages = dict.fromkeys(" ".join(message.split()) for _host, _task, message in run.failures if message)
        if messages:
            return " / ".join(list(messages)[-2:])
    lines = [line.strip().strip("\"'") for line in run.stdout.splitlines()]
    found = [line for line in lines if re.match(r"(msg: )?['\"]?pair1:? (?!rank \d$)", line)]
    more = [" ".join(line.split()) for line in lines if line.startswith(("changed ", "would change ", "warning "))]
    return "; ".join([*found[:1], *dict.fromkeys(more)]) or "no sentence"


ROWS: dict[str, tuple[str, Callable[[Case], None]]] = {}


def row(number: str, title: str) -> Callable[[Callable[[Case], None]], Callable[[Case], None]]:
    """Register a case."""

    def register(function: Callable[[Case], None]) -> Callable[[Case], None]:
        ROWS[number] = (title, function)
        return function

    return register


@row("3", "worker process SIGSTOPped (wedge), not watched")
def wedged(case: Case) -> None:
    case.want(case.play("site.yml", "--tags", "vllm_tp2", **UNWATCHED).rc == 0, "the watch cannot be switched off")
    case.lab.on(2, "pkill -STOP -f '[V]LLM::Worker'")
    stopped = "rank 1 on lab-2: the engine process is stopped"
    check = case.play("site.yml", "--check", within=60, **UNWATCHED)
    case.has(check, stopped, "would")
    status = case.play("playbooks/status.yml", within=20)
    case.want(status.rc == 2, f"status ends with {status.rc}, expected 2")
    case.has(status, f"pair1 does not serve: {stopped}")
    before = case.evidence()
    site = case.play(**UNWATCHED)
    case.want(site.rc == 0 and case.serves(), "site.yml does not bring the pair back")
    case.want(case.evidence() > before, "the crash left no evidence")


@row("7", "compose.yaml edited on a node")
def edited(case: Case) -> None:
    before = case.lab.identity()
    case.lab.on(2, f"echo '# edited' >> {FOLDER}/current/compose.yaml")
    run = case.play("site.yml", "--diff")
    case.want(run.rc == 0 and case.lab.identity() == before, "the pair was restarted, or the run failed")
    case.has(run, "-# edited")
    case.want("# edited" not in case.lab.on(2, f"cat {FOLDER}/current/compose.yaml"), "the file was not put back")
    case.want(not re.search(r"changed +nothing", run.stdout), "the summary prints 'nothing' although the file changed")


@row("8", "release folder removed on a node")
def folder_removed(case: Case) -> None:
    before = case.lab.identity()
    case.lab.on(2, f"rm -rf $(readlink -f {FOLDER}/current)")
    site = case.play()
    case.want(site.rc == 0 and case.lab.identity() == before, "the pair was restarted, or the run failed")
    case.want(not re.search(r"changed +nothing", site.stdout), "the summary prints 'nothing' although the release was restored")
    case.want('"passed": true' in case.lab.on(2, f"cat {FOLDER}/current/receipt.json", check=False), "the receipt was not restored")
    bad = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_extra_args={"no-such-flag": True})
    case.want(bad.rc != 0 and case.serves(), "the next bad flag does not go back to the last good release")
    case.has(bad, "serves again")


def full(case: Case, free_kib: int, node: int = 2, path: str = PLACE) -> None:
    """Put a folder of a node on a file system of its own that has so much room left."""
    case.lab.on(
        node,
        f"rm -rf /root/kept; cp -a {path} /root/kept || cp -a {path}/. /root/kept/; size=$(( $(du -sk {path} | cut -f1) + 2048 ))k"
        f" && mount -t tmpfs -o size=$size tmpfs {path} && cp -a /root/kept/. {path}/ && left=$(df --output=avail -k {path} | tail -1)"
        f" && head -c $(( (left - {free_kib}) * 1024 )) /dev/zero > {path}/filler",
    )


def room_again(case: Case, node: int = 2, path: str = PLACE) -> None:
    """Put the folder back with what it holds now. The agent reads it at times, so the file system may be busy."""
    case.lab.on(
        node,
        f"rm -f {path}/filler; rm -rf /root/kept; cp -a {path} /root/kept; for _ in 1 2 3 4 5; do umount {path} && break; sleep 1; done;"
        f" mountpoint -q {path} && umount -l {path}; cp -a /root/kept/. {path}/ && rm -rf /root/kept",
    )


@row("9a", "no space on a node")
def no_space(case: Case) -> None:
    before = case.lab.identity()
    full(case, 0)
    try:
        run = case.play("site.yml", "--tags", "vllm_tp2", within=60, vllm_tp2_max_num_seqs=3)
        case.want(run.rc != 0 and case.lab.identity() == before, "something was stopped")
        case.has(run, "lab-2", r"(?i)no space left|space", "/opt/gb10-cluster")
    finally:
        room_again(case)


@row("9b", "room for compose, none for the receipt")
def no_space_for_receipt(case: Case) -> None:
    full(case, 20)
    try:
        run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
        case.whole()
        before = case.lab.identity()
        case.want(case.serves(), "the pair that passed its gate was stopped")
        case.want(run.rc == 0 or "pair1 serves" in sentence(run), "the run fails without a sentence that the pair serves")
        case.want("nothing serves" not in run.stdout, "the run prints that nothing serves")
        case.has(run, "lab-2 could not record", "pair1 serves", "No space left on device")
    finally:
        room_again(case)
    case.next_run(before, vllm_tp2_max_num_seqs=3)
    case.want('"passed": true' in case.lab.on(2, f"cat {FOLDER}/current/receipt.json", check=False), "the receipt is not recorded by the next run")


def _link_down(case: Case, node: int, seconds: float) -> None:
    case.lab.on(node, f"ip link set {UPLINK} down")
    time.sleep(seconds)
    case.lab.on(node, f"ip link set {UPLINK} up")


@row("10", "worker's management link down for 40 s in the gate")
def link_flap(case: Case) -> None:
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    if case.wait_for_boot(other):
        _link_down(case, 2, 40)
    case.passes(other, within=600)
    case.whole()
    before = case.lab.identity()
    case.want(case.play().rc == 0, "the next run fails")
    case.same(before)


@row("11", "rail down while serving")
def rail_down(case: Case) -> None:
    before, number = case.lab.identity(), agents.last_event(case.lab)
    case.lab.on(2, f"ip link set {RAIL} down")
    try:
        check = case.play("site.yml", "--tags", "vllm_tp2", "--check", within=60)
        case.want(check.rc != 0, "the check run passes")
        case.has(check, "lab-2", RAIL, r"(?i)cable|link|carrier|down")
        case.want("release " not in sentence(check) and "would be started" not in check.stdout, "a release is proposed")
        pre = case.play("site.yml", "--tags", "preflight", within=40)
        case.has(pre, "lab-2", RAIL)
        case.want(case.lab.identity() == before, "the pair was restarted")
    finally:
        case.lab.on(2, f"ip link set {RAIL} up")
    case.want(wait_for(case.serves, 60), "the pair does not serve with its rail restored")
    case.want(len(agents.starts(case.lab, number)) <= 1, f"starts: {agents.starts(case.lab, number)}, expected is at most one")


@row("13", "Docker stopped on a node")
def docker_stopped(case: Case) -> None:
    case.lab.on(2, "systemctl stop docker.socket docker")
    code, text = case.status_here()
    case.want(code in (2, 3) and "lab-2 is not known: The Docker Engine is not running" in text, f"gb10 status prints with exit code {code}: {text}")
    for name, *arguments in (("playbooks/status.yml",), ("playbooks/stop.yml",), ("site.yml", "--check")):
        run = case.play(name, *arguments, within=60)
        case.has(run, r"lab-2[^/]*Docker Engine|Docker Engine[^/]*lab-2")
        if "stop" in name:
            case.want(run.rc != 0, "stop.yml passes, and a rank may run")
            case.has(run, "nothing was removed on lab-2, and it may still have its rank of pair1")
            case.want(case.lab.inspect(1) is None, "stop.yml leaves the rank whose engine answers")
    site = case.play()
    case.want(site.rc == 0 and case.serves(), "site.yml does not start Docker and the pair")


@row("17", "image untagged on a node")
def untagged(case: Case) -> None:
    before = case.lab.identity()
    case.lab.on(2, f"docker rmi -f {IMAGE}")
    run = case.play()
    case.want(run.rc == 0 and case.lab.identity() == before, "the pair was restarted, or the run failed")
    case.want(case.lab.on(2, f"docker images -q {IMAGE}").strip() != "", "the tag was not restored")


@row("19a", "`last-good.json` truncated")
def truncated(case: Case) -> None:
    (case.lab.folder / "receipts/pair1/last-good.json").write_text('{"release": "', encoding="utf-8")
    run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    case.want(run.rc == 0 and case.serves(), "a broken file on the controller fails a good boot")
    case.has(run, r"WARNING.*last-\s?good\.json is not a readable receipt")
    case.whole()
    kept = json.loads((case.lab.folder / "receipts/pair1/last-good.json").read_text(encoding="utf-8"))["release"]
    case.want(kept == case.releases()[0], "the broken file is not replaced")


@row("19b", "receipts path not writable")
def unwritable(case: Case) -> None:
    run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True, gb10_receipts="/proc/receipts")
    case.want(run.rc == 0 and case.serves(), "a folder on the controller fails a good boot")
    case.has(run, r"WARNING.*receipt cannot be written below /proc/receipts")
    case.whole()


@row("21b", "weights changed on both, alike")
def weights_both(case: Case) -> None:
    before = case.lab.identity()
    path = "/srv/models/lab-tiny/model.safetensors"
    for node in (1, 2):
        case.lab.on(node, f"cp -a {path} /root/keep && truncate -s -4096 {path}")
    try:
        run = case.play()
        case.want(case.lab.identity() == before, "the service was touched")
        case.has(run, "model.safetensors", r"judged|proof|differ")
        again = case.play()
        case.has(again, "model.safetensors")
    finally:
        for node in (1, 2):
            case.lab.on(node, f"cp -a /root/keep {path}")


@row("22", "API key rotated")
def key_rotated(case: Case) -> None:
    case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_api_key="lab-key-one")
    run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_api_key="lab-key-two")
    case.want(run.rc == 0 and case.lab.complete(key="lab-key-two")[0] == 200, "the new key does not work")
    case.want(case.lab.complete(key="lab-key-one")[0] == 401, "the old key still works")
    case.want("lab-key" not in run.stdout, "a key is printed")


def _ssh(case: Case, node: int, runs: bool) -> None:
    """Start sshd on a node, or stop it. The connections that OpenSSH keeps open outlive the service."""
    stop = "systemctl stop ssh.socket ssh 2>/dev/null || systemctl stop ssh; pkill -f '^sshd-session:|^sshd:' || true"
    case.lab.on(node, "systemctl start ssh.socket 2>/dev/null; systemctl start ssh" if runs else stop)


@row("27", "stop.yml during another shell's gate")
def stopped_in_gate(case: Case) -> None:
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
    if case.wait_for_boot(other):
        case.want(case.play("playbooks/stop.yml", within=120).rc == 0, "stop.yml fails")
        case.want(case.lab.gone(), "a rank runs when stop.yml has ended")
    code = other.wait(120)
    case.printed(other, code, "pair1 was stopped by ")
    case.want(code != 0, "the interrupted run passes")
    case.stays_stopped(45)


@row("28", "head's management link down in upgrade.yml's gate")
def head_lost(case: Case) -> None:
    other = case.background("playbooks/upgrade.yml", vllm_tp2_max_num_seqs=3)
    if case.wait_for_boot(other):
        _link_down(case, 1, 60)
    case.passes(other, within=600)
    case.whole()
    case.next_run(case.lab.identity(), vllm_tp2_max_num_seqs=3)


@row("29", "image behind the tag replaced on both")
def moved_tag(case: Case) -> None:
    for node in (1, 2):
        case.lab.on(node, f"docker tag {IMAGE} gb10-lab/kept:1")
    commit = f"c=$(docker create {IMAGE} true) && date > /root/new && docker cp /root/new $c:/new && docker commit $c {IMAGE} && docker rm $c"
    case.lab.on(1, commit)
    copy = f"docker exec {NODE}1 docker save {IMAGE} | docker exec -i {NODE}2 docker load"
    subprocess.run(copy, shell=True, check=True, capture_output=True)
    try:
        check = case.play("site.yml", "--check", within=60)
        case.has(check, "would be started", f"image behind the tag changed: {re.escape(IMAGE)} was sha256:")
        run = case.play()
        case.want(run.rc == 0 and case.serves(), "the new image does not serve")
        new = case.lab.on(1, f"docker image inspect --format '{{{{.Id}}}}' {IMAGE}").strip()
        state = case.lab.inspect(1)
        old = case.lab.on(1, "docker image inspect --format '{{.Id}}' gb10-lab/kept:1").strip()
        case.want(new != old and state is not None and state["Image"] == new, "the containers run the old image")
        bad = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_extra_args={"no-such-flag": True})
        case.want(bad.rc != 0 and case.serves(), "the next bad flag does not go back to the last good release")
    finally:
        for node in (1, 2):
            case.lab.on(node, f"docker tag gb10-lab/kept:1 {IMAGE}; docker rmi gb10-lab/kept:1")


@row("30", "Docker Engine whose minimum API is 1.44")
def engine_29(case: Case) -> None:
    unit = "/etc/systemd/system/docker.service.d"
    lines = "[Service]\\nEnvironment=DOCKER_MIN_API_VERSION=1.44\\n"
    again = "systemctl daemon-reload && systemctl restart docker"
    case.lab.on(2, f"mkdir -p {unit} && printf '{lines}' > {unit}/min.conf && {again}")
    try:
        case.want(case.play().rc == 0 and case.serves(), "site.yml does not serve")
        for name in ("playbooks/status.yml", "playbooks/evidence.yml", "playbooks/stop.yml"):
            case.want(case.play(name).rc == 0, f"{name} fails")
    finally:
        case.lab.on(2, f"rm -f {unit}/min.conf && {again}")


CUT = (
    "nft add table ip gb10cut && nft add chain ip gb10cut out '{ type filter hook output priority 0; }'"
    " && nft add rule ip gb10cut out oifname enp1s0f0np0 tcp dport 22 drop; pkill -KILL -f '[s]sh: /run/gb10-agent/control-1'"
)
HEAL = "nft delete table ip gb10cut"


@row("33", "session over the rail cut for 15 s in the gate")
def session_cut(case: Case) -> None:
    number = agents.last_event(case.lab)
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    if case.wait_for_boot(other):
        case.lab.on(1, CUT, check=False)
        try:
            time.sleep(15)
        finally:
            case.lab.on(1, HEAL)
    before = case.lab.identity()
    case.passes(other)
    case.want(len(agents.starts(case.lab, number)) == 1, "the pair was started more than once")
    case.same(before)
    case.unchanged(case.play("site.yml", "--tags", "vllm_tp2"), before)


@row("35", "head down during stop.yml")
def stopped_without_head(case: Case) -> None:
    # The agent, the rails and sshd of the head are gone; its container stays, as that of a node that hangs.
    rails = [RAIL, "enP2p1s0f0np0"]
    case.lab.on(1, "systemctl stop gb10-agent; " + "; ".join(f"ip link set {rail} down" for rail in rails))
    _ssh(case, 1, False)
    try:
        run = case.play("playbooks/stop.yml", within=90)
        case.want(run.rc != 0, "stop.yml passes although a rank may run")
        case.has(run, "lab-1")
        case.want(case.lab.inspect(2) is None, "the worker is not stopped")
        case.want(case.lab.on(2, f"cat {FOLDER}/stopped", check=False).strip() != "", "the worker has no mark")
    finally:
        case.lab.on(1, "; ".join(f"ip link set {rail} up" for rail in rails))
        _ssh(case, 1, True)
        case.lab.on(1, "systemctl start gb10-agent")
    obeys = wait_for(lambda: agents.state(case.lab).get("outcome", {}).get("result") == "stopped", 90, 1)
    case.want(obeys, f"the head does not obey the stop: {case.status_here()[1]}")
    case.stays_stopped(15)
    case.want(case.lab.on(2, f"cat {FOLDER}/stopped", check=False).strip() != "", "the mark of the worker is gone")
    status = case.play("playbooks/status.yml", within=30)
    case.want(status.rc == 0, f"status ends with {status.rc}, expected 0: the pair is stopped on request")
    case.has(status, "pair1 is stopped on request")


@row("36", "disk full on the head for the agent's state, in the gate")
def no_space_for_state(case: Case) -> None:
    place = f"{FOLDER}/agent"
    number = agents.last_event(case.lab)
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    begun = case.wait_for_boot(other) and wait_for(lambda: agents.judging(case.lab), 60)
    case.want(begun, "the boot did not begin")
    before = case.lab.identity()
    full(case, 0, 1, place)
    try:
        case.passes(other, "state cannot be saved")
        case.same(before)
    finally:
        room_again(case, 1, place)
    # What is on the disk is older than the boot's end.
    case.lab.on(1, "systemctl restart gb10-agent")
    case.want(wait_for(lambda: agents.settled(case.lab), 60), "the restarted agent does not come to an end")
    case.next_run(before)
    case.want(len(agents.starts(case.lab, number)) <= 1, "the pair was started more than once")
