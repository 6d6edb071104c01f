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

import playbook
from container_lab import Lab

FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
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
        text = " ".join((run.stdout + " " + " ".join(m for _h, _t, m in run.failures)).split())
        for pattern in patterns:
            self.want(re.search(pattern, text) is not None, f"nothing printed matches {pattern!r}")

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

    def wait_for_boot(self, since: float, seconds: float = 90) -> bool:
        """Wait until the worker of a boot that began after `since` prints its configuration."""
        command = f"docker logs --since {since:.0f} {self.lab.container(2)} 2>&1 | grep -q 'Using max model len' && echo yes || true"
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
        """Send a signal to all of it; return the seconds until it was over."""
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
    def sentence(self) -> str:
        """The last sentence about the group that it printed."""
        text = " ".join(self.log.read_text(encoding="utf-8").split())
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


def _dead(case: Case, *patterns: str) -> None:
    """Status reports the dead pair in time and with exit code 2; the next run keeps evidence and serves."""
    status = case.play("playbooks/status.yml", within=20)
    case.want(status.rc == 2, f"status ends with {status.rc}, expected 2")
    case.has(status, "pair1 does not serve", *patterns)
    before = case.evidence()
    site = case.play()
    case.want(site.rc == 0 and case.serves(), "site.yml does not bring the pair back")
    case.want(case.evidence() > before, "the crash left no evidence")


@row("1", "worker container SIGKILLed")
def worker_killed(case: Case) -> None:
    case.lab.on(2, f"docker kill -s KILL {case.lab.container(2)}")
    _dead(case, r"rank 1 on lab-2")


@row("2", "engine child SIGKILLed, no request")
def child_killed(case: Case) -> None:
    case.lab.on(2, "pkill -KILL -f '[V]LLM::' || true")
    time.sleep(6)
    _dead(case, r"rank 1 on lab-2")


@row("3", "worker process SIGSTOPped (wedge)")
def wedged(case: Case) -> None:
    case.lab.on(2, "pkill -STOP -f '[V]LLM::Worker'")
    check = case.play("site.yml", "--check", within=60)
    case.has(check, "rank 1 on lab-2: the engine process is stopped", "would")
    _dead(case, r"pair1 does not serve: rank 1 on lab-2: the engine process is stopped")


@row("4", "head removed")
def head_removed(case: Case) -> None:
    case.lab.on(1, f"docker rm -f {case.lab.container(1)}")
    status = case.play("playbooks/status.yml", within=20)
    case.want(status.rc == 2, f"status ends with {status.rc}, expected 2")
    case.want(case.play().rc == 0 and case.serves(), "site.yml does not bring the pair back")


@row("5", "two controllers at once, `max_num_seqs` 5 and 2")
def two_controllers(case: Case) -> None:
    first = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=5)
    second = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=2)
    codes = [first.wait(), second.wait()]
    case.notes.append(f"exit codes {codes}")
    case.want(None not in codes, "a controller hangs")
    case.whole()
    case.want(codes.count(0) < 2, "both report success, and one release runs")
    kept = json.loads((case.lab.folder / "receipts/pair1/last-good.json").read_text(encoding="utf-8"))["release"]
    case.want(case.releases()[0] in ("", kept), "the newest receipt is not that of the release that runs")


def _interrupted(case: Case, number: int, **variables: Any) -> None:
    since = time.time()
    other = case.background("site.yml", "--tags", "vllm_tp2", **variables)
    if case.wait_for_boot(since):
        case.notes.append(f"over {other.kill(number):.1f} s after the signal")
    time.sleep(30)
    site = case.play(**{key: value for key, value in variables.items() if key != "vllm_tp2_restart"})
    case.want(site.rc == 0 and case.serves(), "site.yml does not serve afterwards")
    case.want("restart" not in sentence(site) and "not running" not in sentence(site), "the boot in progress is killed")


@row("6a", "Ctrl-C in the gate")
def interrupted(case: Case) -> None:
    _interrupted(case, signal.SIGINT, vllm_tp2_restart=True)


@row("6b", "ansible-playbook SIGKILLed in the gate of a new release")
def killed(case: Case) -> None:
    _interrupted(case, signal.SIGKILL, vllm_tp2_max_num_seqs=3)


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


def _full(case: Case, free_kib: int) -> None:
    """Put the role's folder of lab-2 on a small file system with so much room left."""
    case.lab.on(
        2,
        "cp -a /opt/gb10-cluster /root/kept && mount -t tmpfs -o size=1m tmpfs /opt/gb10-cluster && cp -a /root/kept/. /opt/gb10-cluster/ &&"
        f" left=$(df --output=avail -k /opt/gb10-cluster | tail -1) && head -c $(( (left - {free_kib}) * 1024 )) /dev/zero > /opt/gb10-cluster/filler",
    )


def _room_again(case: Case) -> None:
    case.lab.on(
        2,
        "rm -f /opt/gb10-cluster/filler; rm -rf /root/kept; cp -a /opt/gb10-cluster /root/kept; umount /opt/gb10-cluster;"
        " rm -rf /opt/gb10-cluster; mv /root/kept /opt/gb10-cluster",
    )


@row("9a", "no space on a node")
def no_space(case: Case) -> None:
    before = case.lab.identity()
    _full(case, 0)
    try:
        run = case.play("site.yml", "--tags", "vllm_tp2", within=60, vllm_tp2_max_num_seqs=3)
        case.want(run.rc != 0 and case.lab.identity() == before, "something was stopped")
        case.has(run, "lab-2", r"(?i)no space left|space", "/opt/gb10-cluster")
    finally:
        _room_again(case)


@row("9b", "room for compose, none for the receipt")
def no_space_for_receipt(case: Case) -> None:
    _full(case, 14)
    try:
        run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
        case.whole()
        case.want(case.serves(), "the pair that passed its gate was stopped")
        case.want("nothing serves" not in run.stdout, "the run prints that nothing serves")
        case.has(run, "lab-2")
    finally:
        _room_again(case)
    case.want(case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3).rc == 0, "the next run fails")


def _link_down(case: Case, node: int, seconds: float) -> None:
    case.lab.on(node, f"ip link set {UPLINK} down")
    time.sleep(seconds)
    case.lab.on(node, f"ip link set {UPLINK} up")


@row("10", "worker's management link down for 40 s in the gate")
def link_flap(case: Case) -> None:
    since = time.time()
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True)
    if case.wait_for_boot(since):
        _link_down(case, 2, 40)
    code = other.wait()
    case.notes.append(f"exit {code}: {other.sentence}")
    case.want(code is not None, "the run hangs")
    case.whole()
    before = case.releases()
    after = case.play()
    case.want(after.rc == 0 and case.serves(), "the next run does not serve")
    case.want(before == ["", ""] or case.releases() == before, "the next run restarts needlessly")


@row("11", "rail down while serving")
def rail_down(case: Case) -> None:
    before = case.lab.identity()
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


@row("12", "Docker restarted on both nodes, as after a reboot")
def restarted(case: Case) -> None:
    for node in (1, 2):
        case.lab.on(node, "systemctl restart docker")
    status = case.play("playbooks/status.yml", within=20)
    case.want(status.rc == 2, f"status ends with {status.rc}, expected 2")
    case.has(status, "pair1 does not serve")
    case.want(case.play().rc == 0 and case.serves(), "site.yml does not bring the pair back")


@row("13", "Docker stopped on a node")
def docker_stopped(case: Case) -> None:
    case.lab.on(2, "systemctl stop docker.socket docker")
    for name, *arguments in (("playbooks/status.yml",), ("playbooks/stop.yml",), ("site.yml", "--check")):
        run = case.play(name, *arguments, within=60)
        case.has(run, r"lab-2[^/]*Docker Engine|Docker Engine[^/]*lab-2")
    site = case.play()
    case.want(site.rc == 0 and case.serves(), "site.yml does not start Docker and the pair")


@row("14", "`--limit` to one node")
def limited(case: Case) -> None:
    run = case.play("site.yml", "--limit", "lab-1", within=15)
    case.want(run.rc != 0 and not run.roles, "roles ran before it was refused")
    case.has(run, "pair1", "lab-2", "limit")
    alone = case.play("site.yml", "--limit", "lab-1", "--tags", "sysctl", within=60)
    case.want(alone.rc == 0, "a tag that works on one node is refused")


@row("16", "rollback with none, after several, twice")
def rollback(case: Case) -> None:
    first = case.releases()[0]
    none = case.play("playbooks/rollback.yml", rollback_release="000000000000")
    case.want(none.rc != 0, "an unknown release is accepted")
    case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
    case.want(case.play("playbooks/rollback.yml", rollback_release=first).rc == 0 and case.releases() == [first] * 2, "it does not go back")
    before = case.lab.identity()
    case.want(case.play("playbooks/rollback.yml").rc == 0 and case.lab.identity() == before, "the second rollback goes forward again")


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
    case.has(run, "last-good.json")


@row("19b", "receipts path not writable")
def unwritable(case: Case) -> None:
    run = case.play("site.yml", "--tags", "vllm_tp2", vllm_tp2_restart=True, gb10_receipts="/proc/receipts")
    case.want(case.serves(), "the pair does not serve")
    case.has(run, "/proc/receipts")
    case.whole()


@row("21a", "weights truncated on one node")
def weights_one(case: Case) -> None:
    before = case.lab.identity()
    case.lab.on(2, "cp -a --reflink=auto /srv/models/lab-tiny/model.safetensors /root/keep && truncate -s -4096 /srv/models/lab-tiny/model.safetensors")
    run = case.play()
    case.want(run.rc == 0 and case.lab.identity() == before, "the pair was restarted, or the run failed")
    case.want(case.lab.on(2, "cmp /root/keep /srv/models/lab-tiny/model.safetensors && echo same", check=False).strip() == "same", "not repaired")


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


@row("23", "port by extra_args")
def port(case: Case) -> None:
    run = case.play("site.yml", "--tags", "vllm_tp2", within=40, vllm_tp2_extra_args={"port": 8001})
    case.want(run.rc != 0, "it is accepted")
    case.has(run, r"engine\.api\.port")


@row("24", "sshd stopped on a node")
def no_ssh(case: Case) -> None:
    # The connections that OpenSSH keeps open outlive the service.
    case.lab.on(2, "systemctl stop ssh.socket ssh 2>/dev/null || systemctl stop ssh; pkill -f '^sshd-session:|^sshd:' || true")
    try:
        status = case.play("playbooks/status.yml", within=60)
        case.want(status.rc == 0, f"status ends with {status.rc}, expected 0: the pair serves")
        case.has(status, "pair1 serves", "Rank 1 on lab-2 is not known: the node is unreachable")
        site = case.play(within=60)
        case.want(site.rc != 0, "site.yml passes")
        case.has(site, "lab-2")
    finally:
        case.lab.on(2, "systemctl start ssh.socket 2>/dev/null; systemctl start ssh")


@row("26", "sudo asks; Python missing")
def sudo_and_python(case: Case) -> None:
    sudo = case.play(within=40, ansible_user="owner")
    case.want(sudo.rc != 0, "a run without a password passes")
    case.has(sudo, r"-K\b|--ask-become-pass")
    python = case.play(within=40, ansible_python_interpreter="/usr/bin/python9")
    case.want(python.rc != 0, "a run without Python passes")
    case.has(python, "lab-1|lab-2", "python3", "ansible_python_interpreter")


@row("27", "stop.yml during another shell's gate")
def stopped_in_gate(case: Case) -> None:
    since = time.time()
    other = case.background("site.yml", "--tags", "vllm_tp2", vllm_tp2_max_num_seqs=3)
    if case.wait_for_boot(since):
        case.want(case.play("playbooks/stop.yml").rc == 0, "stop.yml fails")
    code = other.wait(300)
    case.notes.append(f"the other run: exit {code}: {other.sentence}")
    case.want(code is not None, "the other run hangs")
    case.want(case.lab.gone(), "the other run started a release after stop.yml")


@row("28", "head's management link down in upgrade.yml's gate")
def head_lost(case: Case) -> None:
    since = time.time()
    other = case.background("playbooks/upgrade.yml", vllm_tp2_max_num_seqs=3)
    if case.wait_for_boot(since):
        _link_down(case, 1, 60)
    code = other.wait()
    case.notes.append(f"exit {code}: {other.sentence}")
    case.want(code is not None, "the run hangs")
    found = case.releases()
    case.want(not (found[1] and found[0] != found[1]), f"a lone worker is started: {found}")


@row("29", "image behind the tag replaced on both")
def moved_tag(case: Case) -> None:
    for node in (1, 2):
        case.lab.on(node, f"docker tag {IMAGE} gb10-lab/kept:1")
    commit = f"c=$(docker create {IMAGE} true) && date > /root/new && docker cp /root/new $c:/new && docker commit $c {IMAGE} && docker rm $c"
    case.lab.on(1, commit)
    copy = f"docker exec gb10-lab-1 docker save {IMAGE} | docker exec -i gb10-lab-2 docker load"
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
