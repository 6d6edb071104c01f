"""Faults on the lab with the real engine, as data: what is done, and what the play must report. Used by benchmarks/fault_table.py."""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

import playbook

# What a rank's log shows once it is in a phase of its boot.
PHASES = {
    "config": "Using max model len",
    "rendezvous": "world_size=2 rank=",
    "kv": "Available KV cache memory|for KV cache on node",
}


UNWATCHED: dict[str, Any] = {"vllm_tp2_keep_serving": False}  # a rank that dies stays dead, and the pair stays as a run has left it


@dataclass(frozen=True)
class Fault:
    """One row of the fault table."""

    name: str
    classes: tuple[str, ...]  # any of these is right
    rank: int | None  # who the sentence must name; None: either
    remedy: str  # a word that the remedy must hold
    variables: dict[str, Any] = field(default_factory=dict)
    before: str = ""  # a shell line on `node`, before the play
    node: int = 2
    phase: str = ""  # when `act` is done: once this phase shows in the log of `watch`
    watch: int = 2
    act: str = ""  # a shell line on `node`
    after: str = ""  # a shell line on `node` that takes the fault away
    limit: float = 15.0  # seconds from the fault to the verdict; from the boot's begin if nothing is done during the boot
    unreachable: bool = False  # the head cannot stop the other rank, and the sentence must tell


def kill(node: int, phase: str) -> Fault:
    """The engine of one node is killed in one phase."""
    return Fault(
        f"{'head' if node == 1 else 'worker'} killed at {phase}", ("killed", "oom_killed"), node - 1, "journalctl", node=node, watch=node, phase=phase,
        act="pkill -KILL -f '[v]llm serve'; pkill -KILL -f '[V]LLM::' || true",
    )  # fmt: skip


FAULTS = [
    kill(2, "rendezvous"),
    kill(1, "kv"),
    Fault("head without its worker", ("container_missing",), 1, "site.yml", phase="config", act="docker rm -f gb10-pair1-rank1"),
    Fault("worker stopped from outside", ("stopped", "killed"), 1, "", phase="rendezvous", act="docker stop -t 1 gb10-pair1-rank1"),
    Fault(
        "other weights on the worker", ("completion_wrong",), None, "weights",
        before="cd /srv/models/lab-tiny && cp model.safetensors /root/keep && half=$(($(stat -c %s model.safetensors) / 8192)) &&"
        " dd if=/dev/zero of=model.safetensors bs=4096 seek=$half count=$half conv=notrunc status=none",
        after="cp /root/keep /srv/models/lab-tiny/model.safetensors", limit=90,
    ),
    Fault("context longer than the model", ("context_too_long", "config_error"), None, "max", variables={"vllm_tp2_context": 999999}, limit=60),
    Fault(
        "KV pool for less than one request", ("kv_too_small", "kv_no_memory"), 0, "", variables={"vllm_tp2_extra_args": {"num-gpu-blocks-override": 1}},
        limit=60,
    ),
    Fault(
        "more KV memory than there is", ("kv_no_memory", "startup_free_memory"), None, "",
        variables={"vllm_tp2_extra_env": {"VLLM_CPU_KVCACHE_SPACE": "900"}}, limit=90,
    ),
    Fault(
        "stale container of that name on the worker", ("start_failed",), 1, "docker rm",
        before="docker rm -f gb10-pair1-rank1; docker create --name gb10-pair1-rank1 gb10-lab/vllm-cpu:0.32.0 sleep 1",
        after="docker rm -f gb10-pair1-rank1",
    ),
    Fault(
        "wrong master address", ("rendezvous", "stalled", "peer_lost"), None, "", limit=90,
        variables={
            "vllm_tp2_group": "{{ lookup('gb10.cluster.serving_group') | combine({'master_addr': '192.168.200.99'}) }}",
            "vllm_tp2_phase_seconds": {"rendezvous": 40},
        },
    ),
    Fault("Docker Engine of the worker restarted", ("stopped", "killed", "exited"), 1, "", phase="rendezvous", act="systemctl restart docker", limit=30),
    Fault(
        "fabric cut", ("node_lost", "peer_lost", "rendezvous", "worker_died", "stalled", "rpc_timeout"), None, "", phase="config", unreachable=True,
        act="ip link set enp1s0f0np0 down", after="ip link set enp1s0f0np0 up", limit=120,
        variables={"vllm_tp2_phase_seconds": {"rendezvous": 40}},
    ),
    # A limit below what is in use is refused by the kernel: the first that is taken is just above it, and the boot outgrows it.
    Fault(
        "memory limit", ("oom_killed",), 1, "memory", phase="config", limit=60,
        act="for m in 200 400 600 800 1000 1200; do docker update --memory ${m}m --memory-swap ${m}m gb10-pair1-rank1 && break; done",
    ),
]  # fmt: skip


@dataclass
class Outcome:
    """What came of a fault."""

    fault: Fault
    run: playbook.Run
    seconds: float  # from the fault to the verdict
    message: str

    @property
    def found_class(self) -> str:
        """The class that the sentence names."""
        return next((word for word in self.message.replace(":", " ").split() if word in ALL_CLASSES), "?")


ALL_CLASSES = {name for fault in FAULTS for name in fault.classes} | {"node_lost", "engine_failed", "unclassified", "worker_died"}


def inject(lab: Any, fault: Fault) -> Outcome:
    """Run site.yml with the fault and return what came of it; the fault is removed again.

    A release that has passed would be tried again after some of these faults, and a pair that is watched after all: one attempt has to end with the verdict.
    """
    done: list[float] = []
    stop = threading.Event()

    def strike() -> None:
        # The engine that still runs from before shows every phase in its log: only what is printed from now on counts.
        log = f"docker logs --since {time.time():.3f} {lab.container(fault.watch)} 2>&1"
        found = f"{log} | grep -qE '{PHASES[fault.phase]}' && echo yes || true"
        while not stop.is_set():
            if lab.on(fault.watch, found, check=False).strip() == "yes":
                done.append(time.time())
                lab.on(fault.node, fault.act, check=False)
                return
            time.sleep(0.3)

    if fault.before:
        lab.on(fault.node, fault.before)
    thread = threading.Thread(target=strike, daemon=True)
    if fault.act:
        thread.start()
    try:
        settings = {"vllm_tp2_rollback": False, "vllm_tp2_restart": True, "vllm_tp2_attempts": 1, **UNWATCHED}
        run = lab.play("site.yml", "--tags", "vllm_tp2", variables={**settings, **fault.variables})
    finally:
        stop.set()
        if fault.act:
            thread.join(30)
        if fault.after:
            lab.on(fault.node, fault.after)
    ended, seconds = verdict(run)
    return Outcome(fault, run, ended - done[0] if done else seconds, run.last_message)


def verdict(run: playbook.Run) -> tuple[float, float]:
    """Return when the verdict was on the controller, in seconds since the epoch, and the boot's seconds until then."""
    for item in run.events:
        data = item["event_data"]
        if item["event"] in ("runner_on_ok", "runner_on_failed") and "Judge the boot" in data.get("task", ""):
            return datetime.fromisoformat(data["end"]).timestamp(), float((data.get("res") or {}).get("seconds") or 0.0)
    raise AssertionError(f"no boot was judged:\n{run.stdout[-3000:]}")
