"""What the tests of the serving role on VMs share: the stub pair, the agent's state and events, and what `absent` must not leave behind."""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
import time
from typing import TYPE_CHECKING, Any

import yaml
from playbook import REPO
from vm.node_helpers import NODES, converged, docker_answers, probe, rail_facts, until, wanted_rails

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

STUB = REPO / "lab/engine"
VARIABLES = REPO / "tests/vm/stub.yml"
#: The command of the stub, next to its program.
LAUNCHER = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nfrom engine.__main__ import main\nmain()\n"
MODEL = "/srv/models/vm-stub"
HEAD_RAIL, WORKER_RAIL = "192.168.200.11", "192.168.200.12"
# The ranks have met: the boot is under way. `ss` is light, where each `docker` or `gb10` takes seconds of an emulated CPU.
MET = "ss -Htn state established '( sport = :29501 or dport = :29501 )' | grep -q ."
COMPLETION = '{"model": "stub", "prompt": "The capital of France is", "max_tokens": 8}'
ACCOUNTS = "/etc/passwd /etc/group /etc/shadow /etc/gshadow /etc/subuid /etc/subgid"
# Two things are left out, because they change without this role: the receipt of the page cache guard, and units that are inactive (systemd forgets them).
TRACES = {
    "files": "find /etc /opt /usr/local /root /run/gb10* /var/lib/gb10* /var/spool/mail -xdev -not -name '*-' -not -path '/root/.ansible*'"
    " -not -name page-cache-guard.json -printf '%p %y %m %u:%g %l\\n' 2>/dev/null | sort",
    "accounts": f"sha256sum {ACCOUNTS}",
    "units": "systemctl list-unit-files --no-legend 'gb10*' | cat; systemctl list-units --plain --no-legend 'gb10*' | cat",
    "processes": "pgrep -u gb10-agent -a 2>/dev/null; pgrep -f '[g]b10 (agent|connect)' -a; pgrep -f 'gb10-agent[/@]' -a",
    "sockets": "ss -xlH | grep gb10 | awk '{print $5}'; ss -HtlnA tcp | awk '{print $4}' | grep -v ^127 | sort",
    "containers": "docker ps --all --format '{{.Names}}'",
}


def traces(lab: VmLab) -> dict[int, dict[str, list[str]]]:
    """Return what `absent` must not leave behind, of both nodes."""
    return {node: {name: text.splitlines() for name, text in probe(lab, node, TRACES).items()} for node in NODES}


def before(lab: VmLab) -> dict[int, dict[str, list[str]]]:
    """Return what was on the nodes before the first run of the serving role, read once in a session."""
    known = lab.folder / "before-serving.json"
    if not known.exists():
        known.write_text(json.dumps(traces(lab)), encoding="utf-8")
    return {int(node): value for node, value in json.loads(known.read_text(encoding="utf-8")).items()}


def prepared(lab: VmLab, boot_seconds: int = 20) -> VmLab:
    """Return both machines with rails and Docker, the stub in their model store. Its next boots take `boot_seconds`."""
    if any(rail_facts(lab, node) != wanted_rails(node) for node in NODES):
        converged(lab)
    docker_answers(lab)
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:xz") as archive:
        archive.add(STUB, "engine", filter=lambda info: None if "__pycache__" in info.name else info)
    program = base64.b64encode(packed.getvalue()).decode()
    for node in NODES:
        # A busy machine finds the disk after the boot has given it up, and what is written until then is hidden in the next boot.
        lab.on(node, "mountpoint -q /srv/models || mount /srv/models")
        lab.on(node, f"mkdir -p {MODEL}/control; echo {boot_seconds} >{MODEL}/control/seconds; echo '{{}}' >{MODEL}/config.json")
        lab.on(node, f"cd {MODEL}; printf %b {shlex.quote(LAUNCHER)} >vllm; base64 -d <<'END' | tar -xJ --no-same-owner\n{program}\nEND")
    before(lab)
    return lab


def serve(lab: VmLab, **more: Any) -> Run:
    """Run site.yml for the serving role with the stub's profile."""
    variables = yaml.safe_load(VARIABLES.read_text(encoding="utf-8"))
    return lab.play("playbooks/site.yml", "--tags", "vllm_tp2", variables={**variables, **more.pop("variables", {})}, **more)


def served(lab: VmLab) -> VmLab:
    """Return both machines with the stub pair serving, as an earlier module left it if there was one."""
    prepared(lab, boot_seconds=5)
    if lab.try_on(1, f"curl -sf -m 20 http://{HEAD_RAIL}:8000/v1/models").returncode != 0:
        run = serve(lab)
        assert run.rc == 0, run.stdout[-4000:]
    until(lab, 1, 'gb10 call state | grep -q \'"state": "serving", "fault": {}\'')
    return lab


def state(lab: VmLab) -> dict[str, Any]:
    """Return what the head's agent reports."""
    return dict(json.loads(lab.on(1, "gb10 call state")))


def boot_again(lab: VmLab) -> int:
    """Ask the agent on the head for a restart, without a controller. Return its generation when both ranks of the new boot have met."""
    release = state(lab)["desired"]["release"]
    wanted = {"state": "serving", "release": release, "by": "test", "reasons": ["restart"], "options": {"wait_seconds": 600}}
    generation = int(json.loads(lab.on(1, f"gb10 call desire {shlex.quote(json.dumps(wanted))}"))["generation"])
    until(lab, 1, f"! {MET}")
    until(lab, 1, MET)
    return generation


def settled(lab: VmLab, generation: int, seconds: float = 400) -> dict[str, Any]:
    """Wait for the final outcome, and return it. The agent is asked rarely: it has to work on one emulated CPU."""
    end = time.monotonic() + seconds
    while True:
        done = lab.try_on(1, f"gb10 follow --generation {generation} --since 100000 --wait 20", timeout=60)
        if done.returncode == 0:
            outcome = dict(json.loads(done.stdout)["outcome"])
            if outcome["final"]:
                return outcome
        assert time.monotonic() < end, f"not settled after {seconds:.0f} s: {done.stdout[-2000:]} {done.stderr[-500:]}"


def answer(lab: VmLab) -> str:
    """Ask the head for a completion over the rail, from the worker."""
    url = f"http://{HEAD_RAIL}:8000/v1/completions"
    return str(json.loads(until(lab, 2, f"curl -sf -m 20 -H 'Content-Type: application/json' -d '{COMPLETION}' {url}"))["choices"][0]["text"])
