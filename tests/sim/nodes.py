"""Simulated nodes of a serving group in virtual time: containers with scripted boots, and the verbs of a rank with the results of the real ones."""

from __future__ import annotations

import base64
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError, RankLost

if TYPE_CHECKING:
    from sim.world import World

GROUP = "pair1"
HEAD_ID = "head-of-pair1"
EPOCH = 1_795_000_000.0
FIXTURES = Path(__file__).resolve().parents[1] / "unit" / "fixtures" / "vllm_log"
CONTEXT = 131072
CRITERIA = {"context": CONTEXT, "effective_tokens": {"min": 1000}, "completion": {"prompt": "The capital of France is", "max_tokens": 16, "expect": "Paris"}}
TOTAL_KIB = 120 << 20
RENDEZVOUS = 2.0  # seconds after its start at which a rank waits for its peer
ALIVE_SECONDS = 9.0  # how long ssh waits for a node that is frozen
LONELY_SECONDS = 60.0  # how long a rank waits for its peer
PEER_SECONDS = 6.0  # how long an engine lives after its peer has ended
MEMORY_SECONDS = 3.0  # how long the memory of an ended container takes to come back
DECISIVE = (b"rror", b"startup complete", b"killed")
WORK = ("claim", "start", "halt", "record", "phase", "reclaim")


def _lines(name: str, wanted: Mapping[float, tuple[str, ...]]) -> list[tuple[float, bytes]]:
    text = (FIXTURES / f"{name}.log").read_text(encoding="utf-8").splitlines()
    found = [(second, next(line for line in text if word in line).encode() + b"\n") for second, words in wanted.items() for word in words]
    return sorted(found, key=lambda entry: entry[0])


HEAD = _lines(
    "head",
    {
        1.0: ("Using max model len 131072",), 2.0: ("Initializing a V1 LLM engine", "world_size=2 rank=0"), 4.0: ("Starting to load model", "50% Completed"),
        7.0: ("Model loading took",), 9.0: ("Available KV cache", "GPU KV cache size", "Maximum concurrency"), 11.0: ("Graph capturing finished",),
        12.0: ("init engine",), 13.0: ("Application startup complete",),
    },
)  # fmt: skip
WORKER = _lines(
    "worker",
    {
        1.0: ("Using max model len 131072",), 2.0: ("world_size=2 rank=1",), 4.0: ("Starting to load model", "25% Completed"), 7.0: ("Model loading took",),
        9.0: ("Available KV cache",), 11.0: ("Graph capturing finished",),
    },
)  # fmt: skip

#: A boot that fails: the rank, the second, its last line, its exit code. A rank of -1 stays silent from that second on.
FAILURES: dict[str, tuple[int, float, bytes, int]] = {
    "flag": (0, 1.5, b"vllm serve: error: unrecognized arguments: --nope\n", 2),
    "oom": (1, 5.0, b"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n", 1),
    "weights": (1, 4.5, b"FileNotFoundError: [Errno 2] No such file or directory: '/models/example/config.json'\n", 1),
    "killed": (1, 6.0, b"", 137),
    "hang": (-1, 9.0, b"", 0),
}
#: Kinds of boots. A slow one takes three times as long; garbled completes with the wrong text; image does not start.
KINDS = ("good", "slow", "garbled", "image", *FAILURES)


class Container:
    """A container of a rank, and the engine in it."""

    def __init__(self, world: World, rank: int, release: str, kind: str, number: int) -> None:
        self.rank, self.release, self.kind = rank, release, kind
        self.id = f"{number:04d}{rank}"
        self.started, self.ended = world.now, 0.0
        self.running, self.exit_code, self.oom = True, 0, False
        self.progress, self.lonely, self.orphaned = 0.0, 0.0, 0.0
        self.joined: Container | None = None
        self.log: list[bytes] = []
        self.script = HEAD if rank == 0 else WORKER
        self.next = 0
        self.pace = 3.0 if kind == "slow" else 1.0

    @property
    def ready(self) -> bool:
        return self.running and self.next == len(self.script) and self.joined is not None

    def end(self, now: float, code: int, line: bytes = b"", oom: bool = False) -> None:
        if self.running:
            self.running, self.ended, self.exit_code, self.oom = False, now, code, oom
            if line:
                self.log.append(line)

    def live(self, now: float, seconds: float, peer: Container | None, peer_moves: bool) -> None:
        """Pass time: wait for the peer, boot, serve, or end because the peer has."""
        if not self.running:
            return
        failure = FAILURES.get(self.kind)
        if failure and failure[0] == self.rank and self.progress >= failure[1]:
            self.end(now, failure[3], failure[2])
            return
        mate = peer if peer is not None and peer.running and peer.release == self.release else None
        if self.joined is not None and (mate is not self.joined):
            self.orphaned += seconds
            if self.orphaned >= PEER_SECONDS:
                address = b"192.168.100.2" if self.rank == 0 else b"192.168.100.1"
                self.end(now, 1, b"RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [" + address + b"]:1234\n")
            return
        if self.joined is None and self.progress >= RENDEZVOUS:
            if mate is None or mate.progress < RENDEZVOUS or mate.joined not in (None, self) or not peer_moves:
                self.lonely += seconds
                if self.lonely >= LONELY_SECONDS:
                    self.end(now, 1, b"torch.distributed.DistStoreError: Timed out after 601 seconds waiting for clients. 1/2 clients joined.\n")
                return
            self.joined = mate
        if self.joined is not None and not peer_moves:
            return
        stop = failure[1] if failure and failure[0] == -1 else 1e9
        self.progress = min(self.progress + seconds / self.pace, stop)
        while self.next < len(self.script) and self.script[self.next][0] <= self.progress:
            self.log.append(self.script[self.next][1])
            self.next += 1

    def state(self) -> dict[str, Any]:
        """Return what _node.docker_api.state_of returns."""
        return {
            "id": self.id, "name": f"gb10-{GROUP}-rank{self.rank}", "status": "running" if self.running else "exited", "running": self.running, "pid": 1,
            "exit_code": self.exit_code, "oom_killed": self.oom, "error": "", "started_at": stamp(self.started), "finished_at": stamp(self.ended),
            "restart_count": 0, "image": "vllm", "image_id": "sha256:1", "image_fingerprint": "f1",
            "labels": {"gb10.cluster.release": self.release, "gb10.cluster.group": GROUP, "gb10.cluster.rank": str(self.rank), "gb10.cluster.image": "f1"},
        }  # fmt: skip


def stamp(seconds: float) -> str:
    """Return a virtual time as Docker prints it."""
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(EPOCH + seconds)) + f".{int(seconds % 1 * 1000):03d}000000Z"


class SimJob:
    """A verb under way on a simulated rank."""

    def __init__(self, verb: str, arguments: Mapping[str, Any], caller: tuple[str, str, int], now: float, limit: float) -> None:
        self.verb, self.arguments, self.caller = verb, dict(arguments), caller
        self.begun, self.limit = now, now + limit
        self.sent = True
        self.effect_at: float | None = None
        self.effect: dict[str, Any] | RankError | None = None
        self.reply_at = 0.0
        self.outcome: dict[str, Any] | RankError | RankLost | None = None

    def done(self) -> bool:
        return self.outcome is not None

    def result(self) -> dict[str, Any]:
        assert self.outcome is not None, "a result is read before its job has ended"
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome


class SimRank:
    """One node: what survives the agent of the head, and the Rank protocol."""

    def __init__(self, world: World, number: int, host: str) -> None:
        self.world, self.number, self.host = world, number, host
        self.generation = 0  # set by the actor
        self.head_id = HEAD_ID
        self.container: Container | None = None
        self.releases: dict[str, dict[str, Any]] = {}  # id: kind of boots, receipt, time
        self.current, self.mark = "", ""
        self.owner: dict[str, str] = {}
        self.seen_generation, self.stop_generation = 0, 0
        self.holds: list[dict[str, Any]] = []
        self.kernel: list[dict[str, str]] = []  # lines of the kernel log that are faults
        self.boot_id = 1
        self.version = "a" * 64  # SHA-256 of the agent's program
        # faults: the virtual time until which each lasts
        self.cut_until = self.frozen_until = self.down_until = self.docker_until = self.full_until = self.slow_until = self.hung_until = self.frozen_since = 0.0
        self.jobs: list[SimJob] = []
        self.evidence: list[str] = []
        self.rolled_back: Any = None
        self.history: list[str] = []
        self.phases: list[str] = []
        self.process_fault = ""  # of the engine; a start ends it
        self.engine_id = 1
        self.hog_until = 0.0  # another program uses the memory
        self.cache_gib = 0  # page cache, which MemAvailable counts and MemFree does not
        self.no_reclaim = ""  # why the page cache cannot be dropped
        self.reclaimed = 0
        self.memory_stop = ""  # why the rank has stopped itself; a start ends it
        self._fault_seen, self._fault_since, self._key, self._number = "", 0.0, "", 0

    # --- state of the node

    def up(self) -> bool:
        return self.world.now >= self.down_until

    def moves(self) -> bool:
        return self.up() and self.world.now >= self.frozen_until

    def reachable(self) -> bool:
        return self.moves() and self.world.now >= self.cut_until

    def docker(self) -> bool:
        return self.world.now >= self.docker_until

    def full(self) -> bool:
        return self.world.now < self.full_until

    def hung(self) -> bool:
        """Tell whether the agent of this node is stopped; its engine goes on."""
        return self.world.now < self.hung_until

    def impaired(self) -> bool:
        return self.hung() or not self.reachable() or not self.docker() or self.world.now < self.slow_until or bool(self.active_holds())

    def active_holds(self) -> list[dict[str, Any]]:
        return [hold for hold in self.holds if hold["until"] > self.world.now]

    def runs(self) -> str:
        """Return the release whose container runs here; empty without one."""
        return self.container.release if self.container is not None and self.container.running else ""

    def latency(self) -> float:
        return 8.0 if self.world.now < self.slow_until else 0.3

    # --- the Rank protocol

    def begin(self, verb: str, limit: float, /, **arguments: Any) -> SimJob:
        job = SimJob(verb, arguments, (GROUP, self.head_id, self.generation), self.world.now, limit)
        if self.world.crashed:  # code that runs while a crash unwinds: a real one has no such code
            job.sent, job.outcome = False, RankLost("the agent has crashed")
            return job
        job.sent = self.reachable() or (self.world.now < self.frozen_until and self.up() and self.world.now >= self.cut_until)
        self.jobs.append(job)
        return job

    def abandon(self) -> None:
        """Forget the jobs of an agent that has crashed. A worker still carries out what it has received; the head's verbs end with its agent."""
        for job in self.jobs:
            if job.outcome is None:
                job.outcome = RankLost("the agent has crashed")
            if self.number == 0:
                job.sent = False

    def process(self) -> bool:
        """Carry out what is due; return whether a job has ended."""
        now, ended = self.world.now, False
        working = False
        for job in list(self.jobs):
            if not job.sent:
                if job.outcome is None and now >= job.begun + min(2.0, job.limit - job.begun):
                    job.outcome, ended = RankLost("ssh: connect to host: No route to host"), True
            elif job.effect is None and self.moves() and not self.hung() and not (job.verb in WORK and working):
                self._advance(job)
            working = working or (job.verb in WORK and job.sent and job.effect is None)
            if job.outcome is None and job.sent:
                if job.effect is not None and now >= job.reply_at and self.reachable() and not self.hung():
                    job.outcome, ended = job.effect, True
                elif now < self.cut_until or not self.up():
                    job.outcome, ended = RankLost("client_loop: send disconnect: Broken pipe"), True
                elif not self.moves() and now - max(job.begun, self.frozen_since) >= ALIVE_SECONDS:
                    job.outcome, ended = RankLost("Timeout, server one not responding"), True
                elif now >= job.limit:
                    job.outcome, ended = RankLost(f"no reply within {job.limit - job.begun:.0f} s"), True
            if job.outcome is not None and (job.effect is not None or not job.sent):
                self.jobs.remove(job)
        return ended

    def _advance(self, job: SimJob) -> None:
        now = self.world.now
        if job.effect_at is None:
            extra = {"start": 1.5, "halt": self.world.stop_seconds}.get(job.verb, 0.0)
            job.effect_at = now + self.latency() / 2 + extra
            try:
                if job.verb in WORK:
                    self._authorize(job.verb, job.caller)
            except RankError as error:
                job.effect, job.reply_at = error, job.effect_at
                return
        if now < job.effect_at or (job.verb == "slice" and not self._slice_due(job)) or (job.verb == "watch" and not self._watch_due(job)):
            return
        try:
            job.effect = self.carry_out(job.verb, job.caller, job.arguments)
        except RankError as error:
            job.effect = error
        job.reply_at = now + self.latency() / 2
        if job.verb == "probe" and isinstance(job.effect, dict) and job.effect.pop("hangs", False):
            job.reply_at = now + float(job.arguments["timeout"])

    # --- verbs

    def carry_out(self, verb: str, caller: tuple[str, str, int], arguments: Mapping[str, Any]) -> dict[str, Any]:
        """Return a verb's result. Raises RankError."""
        found: dict[str, Any] = getattr(self, f"_{verb}")(caller, **arguments)
        return found

    def _authorize(self, verb: str, caller: tuple[str, str, int]) -> None:
        group, head, generation = caller
        if verb != "claim" and not self.owner:
            raise RankError(f"{self.host} has no owner yet. The head of the group {GROUP} has to claim it first.", "refused")
        if self.owner and self.owner != {"group": group, "head": head}:
            raise RankError(f"{self.host} has another owner: the head {self.owner['head']}.", "refused")
        if generation < self.seen_generation:
            raise RankError(f"{self.host} has seen generation {self.seen_generation}. Generation {generation} is not valid any more.", "refused")
        self.seen_generation = generation  # counts also if it cannot be written

    def _hello(self, caller: tuple[str, str, int]) -> dict[str, Any]:
        return {
            "protocol": 1, "host": self.host, "rank": self.number, "group": GROUP, "owner": dict(self.owner), "generation": self.seen_generation,
            "stopped": self.mark, "stop_generation": self.stop_generation, "boot_id": str(self.boot_id), "holds": self.active_holds(),
            "running": {"/usr/local/sbin/gb10": f"0755 {self.version}"},
        }  # fmt: skip

    def _claim(self, caller: tuple[str, str, int]) -> dict[str, Any]:
        owner = {"group": caller[0], "head": caller[1]}
        if self.full() and self.owner != owner:
            raise RankError("owner.json: No space left on device")
        self.owner = owner
        return self._hello(caller)

    def _memory(self) -> dict[str, int]:
        used = self.container is not None and (self.container.running or self.world.now - self.container.ended < MEMORY_SECONDS)
        used = used or self.world.now - self.world.removed_at.get(self.number, -1e9) < MEMORY_SECONDS
        free = 20 << 20 if used or self.world.now < self.hog_until else 110 << 20
        return {
            "total_kib": TOTAL_KIB, "free_kib": max(0, free - (self.cache_gib << 20)), "available_kib": free, "swap_total_kib": 0, "swap_free_kib": 0,
            "oom_kills": self.world.oom_kills[self.number],
        }  # fmt: skip

    def _look(self, caller: tuple[str, str, int], release: str, free_share: float | None = None, free_only: bool = False) -> dict[str, Any]:
        docker = self.docker()
        containers = [self.container.state()] if docker and self.container is not None else []
        blocked, memory = "", self._memory()
        kind = "free" if free_only and not self.no_reclaim else "available"
        if free_share is not None:
            if self.runs() and docker:
                blocked = f"gb10-{GROUP}-rank{self.number} still runs"
            elif memory[f"{kind}_kib"] < free_share * TOTAL_KIB:
                blocked = f"20.0 GiB of 120.0 GiB of memory are {kind} and 84.0 GiB are wanted before a start"
        known = self.releases.get(release)
        receipt = (known or {}).get("receipt") or {}
        entries = sorted(self.releases.items(), key=lambda each: -each[1]["time"])
        return {
            "containers": containers, "engine_error": "" if docker else "Cannot connect to the Docker daemon at unix:///var/run/docker.sock", "memory": memory,
            "current": self.current,
            "releases": [
                {"id": name, "good": bool(each["receipt"].get("passed")), "time": each["time"], "files": {}, "image": {"reference": "vllm", "id": "sha256:1",
                 "fingerprint": "f1", "gone": False}} for name, each in entries
            ],
            "receipt": receipt, "stopped": self.mark, "processes": {"count": 2, "fault": self.process_fault},
            "missing": [f"releases/{release} is missing"] if release and not known else [],
            "blocked": blocked, "manifest": {"release": release, "criteria": CRITERIA, "profile": "sim", "port": 8000, "lead": 2} if known else {},
        }  # fmt: skip

    def _sample(self) -> dict[str, Any]:
        """What the sampler of the rank reads."""
        docker = self.docker()
        if self.process_fault != self._fault_seen:
            self._fault_seen, self._fault_since = self.process_fault, self.world.now
        sample = {
            "containers": [self.container.state()] if docker and self.container is not None else [],
            "engine_error": "" if docker else "the Docker Engine does not answer", "engine_id": str(self.engine_id), "fault": self.process_fault,
            "fault_seconds": self.world.now - self._fault_since if self.process_fault else 0.0, "cpu_seconds": 0.0, "memory": self._memory(),
            "memory_stop": self.memory_stop if not self.runs() else "", "gpus": [[*self.world.load(), None, None, 71.0]], "rails": [],
            "kernel": self.kernel[-20:], "url": "http://127.0.0.1:8000",
        }  # fmt: skip
        late = bool(self.process_fault) and self.world.now - self._fault_since >= self.world.settings["stopped_seconds"]
        states = self.container.state()["status"] + self.container.id if docker and self.container is not None else ""
        key = repr((states, docker, self.process_fault, late, len(self.kernel)))
        if key != self._key:
            self._key, self._number = key, self._number + 1
        return {**sample, "n": self._number}

    def _watch_due(self, job: SimJob) -> bool:
        return self._sample()["n"] != job.arguments["known"] or self.world.now - job.begun >= float(job.arguments["wait"])

    def _watch(self, caller: tuple[str, str, int], release: str, known: int, wait: float) -> dict[str, Any]:
        return {"hello": self._hello(caller), "sample": self._sample()}

    def _engine(self, caller: tuple[str, str, int], release: str) -> dict[str, Any]:
        if not self.world.health():
            return {"status": 0, "running": 0, "waiting": 0, "tokens": None}
        return {"status": 200, "running": self.world.requests, "waiting": 0, "tokens": self.world.tokens}

    def _slice_due(self, job: SimJob) -> bool:
        asked = job.arguments
        status = self.container.state()["status"] if self.container is not None else "absent"
        if not self.docker() or status != asked["known_state"] or (asked["url"] and self.world.health() == 200):
            return True
        news = self._news(str(asked["cursor"]))[0]
        spent = self.world.now - job.begun
        return spent >= float(asked["wait"]) or bool(news and (spent >= float(asked["gather"]) or any(word in news for word in DECISIVE)))

    def _news(self, cursor: str) -> tuple[bytes, str]:
        if self.container is None:
            return b"", cursor
        owner, _colon, count = cursor.partition(":")
        begin = int(count) if owner == self.container.id else 0
        return b"".join(self.container.log[begin:]), f"{self.container.id}:{len(self.container.log)}"

    def _slice(self, caller: tuple[str, str, int], container: str, cursor: str, known_state: str, wait: float, gather: float, url: str) -> dict[str, Any]:
        if not self.docker():
            return {"failed": True, "msg": f"Cannot follow the container {container}: the Docker Engine does not answer"}
        data, after = self._news(cursor)
        state = self.container.state() if self.container is not None else None
        status = self.world.health() if url else 0
        return {"log": base64.b64encode(data).decode(), "cursor": after, "container": state, "memory": self._memory(), "http_status": status}

    def _probe(
        self, caller: tuple[str, str, int], release: str, url: str, timeout: float, requests: list[dict[str, Any]], concurrency: int = 1
    ) -> dict[str, Any]:
        out: dict[str, Any] = {"models": [], "error": "", "http_status": 0, "version": "", "metrics": [], "replies": []}
        status = self.world.health()
        if not status:
            return {**out, "error": f"{url}/v1/models does not answer (ConnectionRefusedError: [Errno 111] Connection refused)"}
        good = self.world.answers()
        text = "" if not good else " of the of the" if self.container is not None and self.container.kind == "garbled" else " Paris."
        reply = {
            "ok": good, "status": 200 if good else 0, "text": text, "reasoning": "", "finish_reason": "stop", "completion_tokens": 3, "prompt_tokens": 5,
            "seconds": 0.2, "error": "" if good else f"no reply within {timeout:g} s",
        }  # fmt: skip
        if requests[0].get("max_tokens") == 64:  # the canary
            self.world.requests += self.world.meets_canary
            reply = {**reply, "completion_tokens": 64, "seconds": 64 / self.world.speed}
        return {**out, "models": [{"id": "m", "max_model_len": CONTEXT}], "http_status": 200, "replies": [reply] * len(requests), "hangs": not good}

    def _phase(self, caller: tuple[str, str, int], phase: str, seconds: float) -> dict[str, Any]:
        self.phases.append(phase)
        return {"note": ""}

    def _reclaim(self, caller: tuple[str, str, int]) -> dict[str, Any]:
        self.reclaimed += 1
        self.cache_gib = self.cache_gib if self.no_reclaim else 0
        return {"note": self.no_reclaim}

    def _start(self, caller: tuple[str, str, int], release: str) -> dict[str, Any]:
        if caller[2] <= self.stop_generation:
            raise RankError(f"{self.host} was stopped with generation {self.stop_generation}. Generation {caller[2]} cannot start it.", "refused")
        self.mark = ""
        if release not in self.releases:
            return {"error": f"releases/{release}/compose.yaml is missing on {self.host}."}
        if not self.docker():
            return {"error": "Cannot connect to the Docker daemon at unix:///var/run/docker.sock. Is the docker daemon running?"}
        kind = self.world.kind_of(release, self.number)
        if kind == "image":
            return {"error": "No such image: vllm/vllm-openai:v0.25.2"}
        if self.runs() == release:
            return {"error": ""}
        self.world.watch_start(release)
        self.process_fault = self.memory_stop = ""
        self.world.wedged = False
        self.history.append(f"start {release}")
        self.world.note(f"{self.host} starts {release} ({kind})")
        self.container = self.world.new_container(self.number, release, kind)
        return {"error": ""}

    def _halt(self, caller: tuple[str, str, int], label: str = "", mark: str = "", kill: bool = False) -> dict[str, Any]:
        problems = []
        if mark:
            self.stop_generation = max(self.stop_generation, caller[2])
            if self.full():
                problems.append(f"The stop is not marked on {self.host}: No space left on device.")
            else:
                self.mark = self.mark or mark
        return self.stop(label, problems, caller[2])

    def stop(self, label: str, problems: list[str], generation: int) -> dict[str, Any]:
        """Stop this rank. Raises RankError."""
        if not self.docker():
            raise RankError("Cannot connect to the Docker daemon at unix:///var/run/docker.sock")
        if self.runs():
            self.world.watch_halt(self, generation)
        if self.container is not None:
            self.history.append(f"halt {self.container.release}")
            self.world.note(f"{self.host} halts {self.container.release}{' (ran)' if self.container.running else ''}")
            self.container.end(self.world.now, 143)
            self.world.removed_at[self.number] = self.world.now
        path = ""
        if label and self.full():
            problems = [*problems, f"The evidence of {self.host} is not kept: No space left on device."]
        elif label:
            path = f"/evidence/{label}"
            self.evidence.append(label)
        self.container = None
        return {"left": [], "evidence": path, "note": " ".join(problems)}

    def _record(self, caller: tuple[str, str, int], release: str, receipt: dict[str, Any], rolled_back: Any = None) -> dict[str, Any]:
        if self.full():
            raise RankError(f"The receipt of release {release} is not kept on {self.host}: No space left on device.")
        self.rolled_back = rolled_back
        if release in self.releases:
            self.releases[release]["receipt"] = dict(receipt)
            self.current = release
        self.mark = ""
        return {}

    def stop_here(self) -> None:
        """Stop this rank by its local root, as the agent's admin socket does."""
        generation = self.seen_generation = self.stop_generation = self.seen_generation + 1
        self.mark = self.mark or "by root"
        self.world.locally_stopped = True
        if self.docker():
            self.stop("", [], generation)
