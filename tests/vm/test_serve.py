"""The agent on real kernels: a rank that stops itself before the memory of its node is exhausted.

The stub of both labs (lab/engine) takes the engine's part, which the guests cannot carry.
"""

from __future__ import annotations

import base64
import io
import json
import shlex
import tarfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from playbook import REPO
from vm.node_helpers import converged

if TYPE_CHECKING:
    from vm.conftest import VmLab

STUB = REPO / "lab/engine"
VARIABLES = REPO / "tests/vm/stub.yml"
#: The command of the stub, next to its program.
LAUNCHER = "import os, sys\nsys.path.insert(0, os.path.dirname(__file__))\nfrom engine.__main__ import main\nmain()\n"
MODEL = "/srv/models/vm-stub"
HEAD_RAIL = "192.168.200.11"
COMPLETION = '{"model": "stub", "prompt": "The capital of France is", "max_tokens": 8}'
RUNNING = "docker ps --quiet --filter label=gb10.cluster.group=pair1 | wc -l"
HOG_MIB = 200  # below memory_floor_gib
# 32 MiB a second until less than HOG_MIB is available, and whenever more is.
HOG = f"""
import re, time
held = []
while True:
    if int(re.search(r"MemAvailable: +([0-9]+)", open("/proc/meminfo").read())[1]) > {HOG_MIB} << 10:
        held.append(b"x" * (8 << 20))
    time.sleep(0.25)
"""


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    """Both machines with the stub pair serving. Its boots take 20 s."""
    if any(vmlab.rails(node) != vmlab.wanted_rails(node) for node in vmlab.nodes):
        converged(vmlab)
    vmlab.docker_answers()
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        archive.add(STUB, "engine", filter=lambda info: None if "__pycache__" in info.name else info)
    program = base64.b64encode(packed.getvalue()).decode()
    for node in vmlab.nodes:
        # A busy machine finds the disk after the boot has given it up, and what is written until then is hidden in the next boot.
        vmlab.on(node, "mountpoint -q /srv/models || mount /srv/models")
        vmlab.on(node, f"mkdir -p {MODEL}/control; echo 20 >{MODEL}/control/seconds; echo '{{}}' >{MODEL}/config.json")
        vmlab.on(node, f"cd {MODEL}; printf %b {shlex.quote(LAUNCHER)} >vllm; base64 -d <<'END' | tar -xz --no-same-owner\n{program}\nEND")
    run = vmlab.play("playbooks/site.yml", "--tags", "vllm_tp2", variables=yaml.safe_load(VARIABLES.read_text(encoding="utf-8")))
    assert run.rc == 0, run.stdout[-4000:]
    return vmlab


def state(lab: VmLab) -> dict[str, Any]:
    """Return what the head's agent reports."""
    return dict(json.loads(lab.on(1, "gb10 call state")))


def answer(lab: VmLab) -> str:
    """Ask the head for a completion over the rail, from the worker."""
    url = f"http://{HEAD_RAIL}:8000/v1/completions"
    return str(json.loads(lab.until(2, f"curl -sf -m 20 -H 'Content-Type: application/json' -d '{COMPLETION}' {url}"))["choices"][0]["text"])


def news(lab: VmLab, since: int, wait: int = 0) -> dict[str, Any]:
    """Return the head's reply with the events after number `since`; without any while it does not answer."""
    done = lab.try_on(1, f"gb10 follow --since {since} --wait {wait}", timeout=wait + 60)
    return dict(json.loads(done.stdout)) if done.returncode == 0 else {"events": [], "next": since}


def event(lab: VmLab, since: int, kind: str, seconds: float = 300) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Wait for an event of a kind after number `since`; return it, and all events until then."""
    end, found = time.monotonic() + seconds, list[dict[str, Any]]()
    while not any(each["kind"] == kind for each in found):
        assert time.monotonic() < end, f"no event `{kind}` after {seconds:.0f} s: {found}"
        found = news(lab, since, wait=0 if found else 20)["events"]
        time.sleep(1)
    number = next(index for index, each in enumerate(found) if each["kind"] == kind)
    return found[number], found[: number + 1]


def test_rank_stops_itself_before_the_memory_is_exhausted(lab: VmLab) -> None:
    lab.until(1, 'gb10 call state | grep -q \'"state": "serving", "fault": {}\'')
    since, restarts = int(news(lab, 0)["next"]), dict(state(lab)["watch"]["restarts"])
    replies, ended = list[float](), threading.Event()

    def ask() -> None:
        while not ended.wait(2):
            begun = time.monotonic()
            lab.on(2, "true")
            replies.append(time.monotonic() - begun)

    pool = ThreadPoolExecutor(1)
    asking = pool.submit(ask)
    try:
        lab.on(2, f"systemd-run --quiet --collect --unit hog python3 -c '{HOG}'")
        event(lab, since, "fault")
        lab.until(2, f"test $({RUNNING}) = 0")
        time.sleep(10)
        during = lab.on(2, "systemctl is-active hog; journalctl -k -b -g 'oom-kill|Out of memory' | grep -c kernel; awk '/MemAvail/ {print $2}' /proc/meminfo")
        assert not any("pair1 starts" in each["text"] for each in news(lab, since)["events"]), "no start while the memory is short"
    finally:
        lab.on(2, "systemctl stop hog")
        ended.set()
    asking.result()  # SSH has answered each time
    stopped = time.time()
    assert during.split()[:2] == ["active", "0"], "the hog runs on, and the kernel has killed nothing"
    [fault] = [each for each in news(lab, since)["events"] if each["kind"] == "fault" and each["cause"] == "memory"]  # the peer's end may be read before it
    assert "rank 1 on vm-2" in fault["text"]
    assert "so the rank has stopped itself" in fault["text"]  # below the floor, or soon below it as fast as the memory falls
    done, _all = event(lab, since, "recovered")
    print(f"\navailable while the hog ran: {int(during.split()[2]) >> 10} MiB; SSH {max(replies):.1f} s at most, {len(replies)} calls; {done['seconds']} s"
          f" without service, served {time.time() - stopped:.0f} s after the hog")  # fmt: skip
    assert done["cause"] == "memory"
    assert state(lab)["watch"]["restarts"] == {**restarts, "memory": restarts.get("memory", 0) + 1}
    assert answer(lab) == " Paris."
