"""A serving group of two simulated nodes, an actor that can crash, and the invariants that hold at every moment."""

from __future__ import annotations

import contextlib
import copy
import json
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._pair import converge
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Refused
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Store
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import merged_settings
from ansible_collections.gb10.cluster.plugins.module_utils._pair.watch import Watch
from sim.nodes import EPOCH, GROUP, HEAD_ID, Container, SimRank

STEP = 0.5
MIXED_SECONDS = 120.0  # how long two releases may run at the same time while nothing disturbs the group
HALF_SECONDS = 150.0  # how long one rank may run alone
SETTLE_SECONDS = 1500.0  # how long a generation may take after the last fault
RESTART_SECONDS = 5.0  # how long systemd takes to start the agent again
LATE_SECONDS = 9.0  # how old the last read before an outcome may be: it waits for all ranks, and a slow one takes 8 s
OPTIONS = {"timeout": 70, "wait_available": 0.7, "wait_seconds": 60, "completion_timeout": 10, "rollback": True, "attempts": 3}


class Crash(BaseException):
    """The agent is killed."""


class Violation(BaseException):
    """An invariant does not hold. No code of the agent may catch it."""


class VirtualClock:
    """Time that passes only while the agent waits."""

    def __init__(self, world: World) -> None:
        self.world = world

    def monotonic(self) -> float:
        return self.world.now

    def wall(self) -> float:
        return EPOCH + self.world.now + self.world.wall_offset

    def wait(self, seconds: float) -> None:
        self.world.wait(seconds)


class SimStore(Store):
    """The head's files: they survive the agent."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.files: dict[str, str] = {}
        self.kept: list[dict[str, Any]] = []
        self.damaged: set[str] = set()
        self.fail_saves = 0

    def _write(self) -> None:
        self.world.may_crash("save")
        if self.fail_saves > 0 or self.world.ranks[0].full():
            self.fail_saves -= 1
            self.world.failed_saves += 1
            raise OSError(28, "No space left on device")

    def load(self, name: str) -> dict[str, Any]:
        found = None
        with contextlib.suppress(ValueError):
            found = json.loads(self.files.get(name, "{}"))
        if isinstance(found, dict):
            return found
        self.damaged.add(name)
        return {}

    def save(self, name: str, data: Mapping[str, Any]) -> None:
        self._write()
        self.files[name] = json.dumps(data)

    def append(self, event: Mapping[str, Any]) -> None:
        self._write()
        self.kept.append(dict(event))

    def last_number(self) -> int:
        return max((int(event["n"]) for event in self.kept), default=0)

    def events(self) -> list[dict[str, Any]]:
        return copy.deepcopy(self.kept)


class World:
    """The group, and what is done to it."""

    def __init__(self) -> None:
        self.now, self.wall_offset = 0.0, 0.0
        self.settings = merged_settings({"enabled": False})  # of the watch
        self.watch: Watch | None = None
        self.speed = 25.0  # tokens/s of one stream
        self.meets_canary = 0  # requests that come while the canary runs
        self.requests, self.wedged = 0, False  # held by the engine; a wedge generates no token
        self.stop_seconds = 2.0  # how long an engine takes to stop
        self.boots: dict[str, list[str]] = {}  # by release, the kinds of its next boots; the last one repeats
        self.pairs: dict[str, tuple[str, set[int]]] = {}
        self.ranks = [SimRank(self, number, host) for number, host in enumerate(("one", "two"))]
        self.oom_kills = [0, 0]
        self.removed_at: dict[int, float] = {}
        self.clock, self.store = VirtualClock(self), SimStore(self)
        self.actor: Actor | None = None
        self.crashed = False
        self.crash_after: tuple[str, int] | None = None
        self.restart_at = 0.0
        self.agenda: list[tuple[float, int, Callable[[], object]]] = []
        self.triggers: list[tuple[Callable[[], bool], Callable[[], object], float]] = []
        self.log: list[str] = []
        self.containers = 0
        self.failed_saves = 0
        self.locally_stopped = self.allow_errors = self.by_hand = False
        self.last_fault = -1e9
        self.mixed = self.half = 0.0
        self.generation = 0
        self.seen = [0, 0]
        self.judged: tuple[int, bool] = (0, False)  # generation, final
        self.refusals: list[str] = []
        self.ended_at: dict[int, float] = {}
        self._tokens = 0.0

    # --- material

    def note(self, text: str) -> None:
        self.log.append(f"{self.now:7.1f}  {text}")

    def add_release(self, name: str, kinds: list[str], good: bool = False, age: float = 0.0) -> None:
        """Write a release on all ranks. `kinds` are those of its boots."""
        self.boots[name] = list(kinds)
        for rank in self.ranks:
            rank.releases[name] = {"receipt": {"passed": True, "release": name} if good else {}, "time": self.now - age}

    def kind_of(self, release: str, rank: int) -> str:
        """Return how the present boot of a release goes: the same on all ranks."""
        kind, started = self.pairs.get(release, ("", set()))
        if not kind or rank in started:
            kinds = self.boots.get(release) or ["good"]
            kind, started = kinds.pop(0) if len(kinds) > 1 else kinds[0], set()
        self.pairs[release] = (kind, started | {rank})
        return kind

    def new_container(self, rank: int, release: str, kind: str) -> Container:
        self.containers += 1
        return Container(self, rank, release, kind, self.containers)

    def place(self, release: str) -> None:
        """Let a pair serve this release from the beginning."""
        for rank in self.ranks:
            rank.container = self.new_container(rank.number, release, "good")
            rank.container.progress, rank.container.next = 99.0, len(rank.container.script)
            rank.container.log = [line for _second, line in rank.container.script]
            rank.current = release
        first, second = self.ranks[0].container, self.ranks[1].container
        assert first is not None
        assert second is not None
        first.joined, second.joined = second, first

    def settled_as_serving(self, release: str, generation: int = 1) -> None:
        """Let the agent's files tell that the pair was judged."""
        self.place(release)
        asked = {"state": "serving", "release": release, "by": "admin@first", "at": "2026-11-23T00:00:00Z", "reasons": [], "options": OPTIONS}
        settled = {"phase": "settled", "result": "serves", "release": release, "final": True, "sentence": f"{GROUP} serves release {release}."}
        self.store.files["desired.json"] = json.dumps({"generation": generation, **asked})
        self.store.files["outcome.json"] = json.dumps({"generation": generation, **settled})
        for rank in self.ranks:
            rank.owner, rank.seen_generation = {"group": GROUP, "head": HEAD_ID}, generation

    # --- engine

    def health(self) -> int:
        """Return the HTTP status of the head's API; 0 if nothing answers."""
        head = self.ranks[0].container
        return 200 if head is not None and head.ready and self.ranks[0].moves() else 0

    def answers(self) -> bool:
        """Tell whether completions come back."""
        head = self.ranks[0].container
        joined = head is not None and head.joined is not None and head.joined.running
        return bool(self.health()) and not self.wedged and joined and all(rank.moves() for rank in self.ranks)

    @property
    def tokens(self) -> float:
        """How many tokens the engine has generated, if it holds requests."""
        if self.answers() and self.requests:
            self._tokens = self.now
        return self._tokens

    def load(self) -> tuple[float, float]:
        """Return power in W and utilization in percent of a GPU."""
        return (45.0, 95.0) if self.requests and self.answers() else (12.0, 100.0 if self.requests else 0.0)

    def serves(self, release: str = "") -> bool:
        """Tell whether all ranks run one release that answers."""
        names = {rank.runs() for rank in self.ranks}
        return len(names) == 1 and "" not in names and (not release or names == {release}) and self.answers()

    # --- time

    def at(self, seconds: float, what: Callable[[], object]) -> None:
        """Do something at a virtual time."""
        self.agenda.append((max(seconds, self.now), len(self.agenda), what))
        self.agenda.sort(key=lambda entry: entry[:2])

    def when(self, condition: Callable[[], bool], what: Callable[[], object], delay: float = 0.0) -> None:
        """Do something once, `delay` seconds after a condition holds."""
        self.triggers.append((condition, what, delay))

    def may_crash(self, where: str) -> None:
        if self.crash_after is not None and self.crash_after[0] == where:
            count = self.crash_after[1] - 1
            self.crash_after = (where, count)
            if count <= 0:
                self.crash_after, self.crashed = None, True
                raise Crash

    def pass_time(self, seconds: float) -> bool:
        """Let time pass, at most to the next entry of the agenda; return whether a job has ended."""
        self.now += seconds
        self._tokens = self.tokens
        while self.agenda and self.agenda[0][0] <= self.now + 1e-9:
            self.agenda.pop(0)[2]()
        boxes = [rank.container for rank in self.ranks]
        for rank, box in zip(self.ranks, boxes):
            if box is not None and rank.moves():
                other = self.ranks[1 - rank.number]
                running = box.running
                box.live(self.now, seconds, boxes[1 - rank.number], other.moves())
                if running and not box.running:
                    self.note(f"{rank.host}: the engine of {box.release} ends with {box.exit_code}")
        ended = [rank.process() for rank in self.ranks]
        for trigger in [each for each in self.triggers if each[0]()]:
            self.triggers.remove(trigger)
            self.at(self.now + trigger[2], trigger[1])
        self.check(seconds)
        return any(ended)

    def wait(self, seconds: float) -> None:
        """What clock.wait does."""
        self.may_crash("wait")
        end = self.now + max(seconds, 0.01)
        before = self.actor._desired["generation"] if self.actor is not None else 0
        while self.now < end - 1e-9:
            step = min(STEP, end - self.now)
            if self.agenda:
                step = min(step, max(self.agenda[0][0] - self.now, 1e-6))
            news = self.pass_time(step)
            if self.crashed:
                raise Crash
            if news or (self.actor is not None and self.actor._desired["generation"] != before):
                return

    def run(self, seconds: float = 0.0, until: Callable[[], bool] | None = None) -> None:
        """Let the agent work for so long, or until a condition holds; a converge that is under way ends first.

        A violation is an AssertionError with the log of what was done.
        """
        end = self.now + seconds
        try:
            while self.now < end and not (until is not None and until()):
                self._one_step(end)
        except Violation as violation:
            raise AssertionError("\n".join([str(violation), *self.log[-60:]])) from violation

    def _one_step(self, end: float) -> None:
        if self.actor is None:
            while self.now < self.restart_at or not self.ranks[0].up():
                self.pass_time(STEP)
                self.crashed = False
            self.crashed = False
            self.actor = Actor(GROUP, self.ranks, self.store, self.clock)
            self.watch = Watch(self.actor, self.settings)
            self.generation = int(self.store.known("desired.json")[0].get("generation") or 0)  # one that could not be saved is forgotten
            known = self.actor.outcome()
            self.judged = (known["generation"], known["final"])
            self.note("the agent starts")
        try:
            if not converge.step(self.actor, self.watch):
                self.wait(min(5.0, max(end - self.now, 0.01)))
        except Crash:
            self.note("the agent is killed")
            self.actor = None
            self.crashed = False
            self.restart_at = self.now + RESTART_SECONDS
            for rank in self.ranks:
                rank.abandon()
        except Violation:
            raise
        except Exception as error:
            raise Violation(f"converge.step raised {type(error).__name__}: {error}") from error

    def settle(self, seconds: float = SETTLE_SECONDS) -> dict[str, Any]:
        """Let the agent work until the outcome is final, and return it."""
        self.run(seconds, until=lambda: self.actor is not None and self.actor.looked and bool(self.actor._outcome["final"]))
        found = self.outcome()
        assert found.get("final"), "\n".join([f"generation {self.desired().get('generation')} is not settled after {seconds:.0f} s", *self.log[-60:]])
        return found

    # --- what is read

    def desired(self) -> dict[str, Any]:
        return self.actor.desired() if self.actor is not None else self.store.load("desired.json")

    def outcome(self) -> dict[str, Any]:
        return self.actor.outcome() if self.actor is not None else self.store.load("outcome.json")

    @property
    def agent(self) -> Actor:
        """The actor, where it runs."""
        assert self.actor is not None
        return self.actor

    @property
    def shown(self) -> dict[str, Any]:
        """What the watch exports."""
        assert self.watch is not None
        return self.watch.shown

    def is_in(self, phase: str) -> bool:
        """Tell whether the agent is in a phase."""
        return self.actor is not None and bool(self.actor._outcome["phase"] == phase)

    def containers_started(self) -> list[str]:
        """Return the starts on all ranks."""
        return [entry for rank in self.ranks for entry in rank.history if entry.startswith("start")]

    # --- what is done to it

    def desire(self, release: str, by: str = "admin@first", takeover: bool = False, reasons: list[str] | None = None, **options: Any) -> dict[str, Any] | None:
        """Desire a release as Ansible does: with the reasons that the nodes give. None if it was refused or the agent does not run."""
        if self.actor is None or self.crashed:
            return None
        if reasons is None:
            reasons = [f"rank {rank.number} on {rank.host} is not running" for rank in self.ranks if rank.runs() != release]
        return self._ask("serving", release, by, reasons, takeover, {**OPTIONS, **options})

    def change(self, release: str, **options: Any) -> dict[str, Any]:
        """Desire a release, let the agent work until the outcome is final, and return it."""
        self.desire(release, **options)
        return self.settle()

    def stop(self, by: str = "admin@first") -> dict[str, Any] | None:
        """Desire a stop."""
        if self.actor is None or self.crashed:
            return None
        return self._ask("stopped", "", by, [], False, {})

    def _ask(self, state: str, release: str, by: str, reasons: list[str], takeover: bool, options: dict[str, Any]) -> dict[str, Any] | None:
        assert self.actor is not None
        now, busy = self.actor.desired(), self.actor.state()["busy"]
        alone = busy and not takeover and not now["auto"]  # a restart by the agent gives way to a person
        must_refuse = alone and state == "serving" and (now["state"], now["release"]) != (state, release)
        try:
            answer = self.actor.desire(state, release, by, reasons, options, takeover)
        except Refused as refused:
            self.refusals.append(str(refused))
            self.note(f"{by} is refused: {refused}")
            return None
        except Crash:
            return None
        self.note(f"{by} desires {state} {release} {reasons}: {answer}")
        if must_refuse:
            self.violate(f"{by} changes what {now['by']} has desired")
        return answer

    def fault(self, text: str) -> None:
        self.note(text)
        self.last_fault = self.now

    def kill(self, number: int, how: str = "killed") -> None:
        box = self.ranks[number].container
        if box is None or not box.running:
            return
        self.fault(f"{self.ranks[number].host}: {how}")
        if how == "oom":
            self.oom_kills[number] += 1
        code, line = {"killed": (137, b""), "oom": (137, b""), "exit": (1, b"RuntimeError: CUDA error: an illegal memory access was encountered\n")}[how]
        box.end(self.now, code, line, oom=how == "oom")

    def crash(self, where: str = "wait", count: int = 1) -> None:
        self.fault(f"the agent is to be killed at {where} {count}")
        self.crash_after = (where, count)

    def cut(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: the session is cut for {seconds:.0f} s")
        self.ranks[number].cut_until = self._until(seconds)

    def freeze(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: frozen for {seconds:.0f} s")
        self.ranks[number].frozen_until, self.ranks[number].frozen_since = self._until(seconds), self.now

    def hang(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: its agent hangs for {seconds:.0f} s")
        self.ranks[number].hung_until = self._until(seconds)

    def slow(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: slow for {seconds:.0f} s")
        self.ranks[number].slow_until = self._until(seconds)

    def fill_disk(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: no space for {seconds:.0f} s")
        self.ranks[number].full_until = self._until(seconds)

    def stop_docker(self, number: int, seconds: float) -> None:
        self.fault(f"{self.ranks[number].host}: Docker is stopped for {seconds:.0f} s")
        box = self.ranks[number].container
        if box is not None:
            box.end(self.now, 143)
        self.ranks[number].docker_until = self._until(seconds)
        self.ranks[number].engine_id += 1

    def reboot(self, number: int, seconds: float = 30.0) -> None:
        rank = self.ranks[number]
        self.fault(f"{rank.host}: reboots for {seconds:.0f} s")
        if rank.container is not None:
            rank.container.end(self.now, 137)
        rank.boot_id += 1
        rank.down_until = self._until(seconds)
        for job in rank.jobs:
            job.sent = False  # what the node received is lost
        if number == 0 and self.actor is not None:
            self.crashed = True

    def hold(self, number: int, seconds: float, reason: str = "playbooks/reboot.yml restarts the nodes") -> None:
        self.fault(f"{self.ranks[number].host}: held for {seconds:.0f} s")
        self.ranks[number].holds.append({"name": "h", "reason": reason, "until": self._until(seconds), "by": "root"})

    def stop_here(self, number: int) -> None:
        self.fault(f"{self.ranks[number].host}: stopped by local root")
        self.ranks[number].stop_here()

    def lose_state(self) -> None:
        self.fault("the head's state is lost")
        self.store.files.clear()
        self.store.kept.clear()
        self.judged = (0, False)
        if self.actor is not None:
            self.crashed = True

    def step_wall(self, seconds: float) -> None:
        self.note(f"the wall clock steps by {seconds:.0f} s")
        self.wall_offset += seconds

    def fail_saves(self, count: int) -> None:
        self.fault(f"the next {count} writes of the agent fail")
        self.store.fail_saves = count

    def heal(self) -> None:
        """End all faults."""
        self.note("all faults end")
        self.triggers.clear()
        self.agenda.clear()
        for rank in self.ranks:
            rank.cut_until = rank.frozen_until = rank.docker_until = rank.full_until = rank.slow_until = rank.hung_until = 0.0
            rank.down_until = min(rank.down_until, self.now)
            rank.holds = []
        self.store.fail_saves = 0
        self.crash_after = None

    def _until(self, seconds: float) -> float:
        self.last_fault = max(self.last_fault, self.now + seconds)
        return self.now + seconds

    # --- invariants

    def violate(self, text: str) -> None:
        raise Violation(f"t={self.now:.1f}: {text}")

    def watch_halt(self, rank: SimRank, generation: int) -> None:
        """A pair that serves is stopped for a reason only."""
        if self.locally_stopped or not self.serves() or self.actor is None:
            return
        desired, outcome = self.actor.desired(), self.actor.outcome()
        if generation < desired["generation"] and not (outcome["final"] and outcome["result"] == "serves"):
            return  # an earlier generation has asked for it
        release = rank.runs()
        box = rank.container
        if not any((each.releases.get(release) or {}).get("receipt", {}).get("passed") for each in self.ranks):
            return  # it answers, and its gate has not passed
        asked = desired["state"] == "stopped" or desired["release"] != release or bool(desired.get("reasons"))
        failed = bool(outcome["verdict"]) and not outcome["verdict"]["passed"]
        disturbed = box is not None and (box.kind != "good" or self.last_fault >= box.started - 1.0)
        if not asked and not failed and not disturbed:
            self.violate(f"{rank.host} is stopped while {GROUP} serves release {release}, without a request")

    def watch_start(self, release: str) -> None:
        """A release starts only when no rank runs another one."""
        others = [f"{each.host} runs {each.runs()}" for each in self.ranks if each.runs() not in ("", release)]
        if others:
            self.violate(f"release {release} is started while {', '.join(others)}")

    def check(self, seconds: float) -> None:
        """Hold the invariants of every moment."""
        runs = [rank.runs() for rank in self.ranks]
        quiet = self.actor is not None and not any(rank.impaired() for rank in self.ranks)
        names = {name for name in runs if name}
        self.mixed = self.mixed + (seconds if quiet else 0.0) if len(names) > 1 else 0.0
        self.half = self.half + (seconds if quiet else 0.0) if names and "" in runs else 0.0
        if self.mixed > MIXED_SECONDS:
            self.violate(f"two releases run: {runs}")
        if self.half > HALF_SECONDS:
            self.violate(f"half a pair runs: {runs}")
        for rank in self.ranks:
            if not rank.runs():
                self.ended_at.setdefault(rank.number, self.now)
            else:
                self.ended_at.pop(rank.number, None)
        for rank in self.ranks:
            if rank.seen_generation < self.seen[rank.number]:
                self.violate(f"{rank.host}: the generation falls from {self.seen[rank.number]} to {rank.seen_generation}")
            self.seen[rank.number] = rank.seen_generation
        if self.actor is None or self.crashed:
            return
        desired, outcome = self.actor._desired, self.actor._outcome
        if desired["generation"] < self.generation:
            self.violate(f"the generation falls from {self.generation} to {desired['generation']}")
        self.generation = desired["generation"]
        if (outcome["generation"], outcome["final"]) != self.judged:
            self.judged = (outcome["generation"], outcome["final"])
            if outcome["final"]:
                self.check_outcome(outcome)
        if outcome["final"] and outcome["result"] == "stopped" and desired["state"] == "stopped":
            left = [rank.host for rank in self.ranks if rank.runs() and rank.reachable()]
            if left and not self.by_hand:
                self.violate(f"{GROUP} is stopped, and {left} runs")

    def check_outcome(self, outcome: Mapping[str, Any]) -> None:
        """What holds of an outcome at the moment at which it becomes final."""
        self.note(f"settled: {outcome['result']}: {outcome['sentence']} warnings: {outcome.get('warnings')}")
        sentence = str(outcome["sentence"])
        if not sentence.endswith(".") or GROUP not in sentence:
            self.violate(f"the sentence is not complete: {sentence!r}")
        if (outcome.get("verdict") or {}).get("class") == "gate_error" and not self.allow_errors:
            self.violate(f"the agent failed: {sentence}")
        if outcome["result"] == "serves":
            known = [rank for rank in self.ranks if rank.reachable() and rank.docker() and not rank.hung()]
            dead = [rank.host for rank in known if not rank.runs() and self.now - self.ended_at.get(rank.number, self.now) > LATE_SECONDS]
            if dead:
                self.violate(f"the outcome is that {GROUP} serves, and {dead} does not run")
            other = [rank.runs() for rank in self.ranks if rank.runs() not in ("", outcome["release"])]
            if other:
                self.violate(f"the outcome is that {outcome['release']} serves, and {other} runs")
