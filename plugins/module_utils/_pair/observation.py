# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the watch reads of a group: the samples of all ranks, the engine's figures, and completions of one token."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Job
from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import READ_LIMIT, result_of
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import Fault, View, Wedge

WAIT_SECONDS = 25.0  # of a long poll of a worker; a change ends it
CLOSE_SECONDS = 2.0  # while requests are held and no token comes
AGAIN_SECONDS = 1.0  # after a rank did not answer
USEFUL_SECONDS = 10.0
FRESH_SECONDS = 5.0  # a reading of a GPU counts for so long
REST_PERCENT = 30.0  # utilization: two real GPUs show 0 to 28 at rest, and 92 and more at work
REQUEST = {"prompt": "1", "max_tokens": 1}
CANARY_TIMEOUT = 120.0  # its speed is compared with its own history, and nothing else follows from it


class Observation:
    """The readings of one generation."""

    def __init__(self, actor: Actor, settings: Mapping[str, Any]) -> None:
        self.actor, self.ranks, self.clock, self.settings = actor, actor.ranks, actor.clock, settings
        self.clear()

    def clear(self) -> None:
        """Forget everything."""
        self.samples: dict[int, dict[str, Any]] = {}
        self.hellos: dict[int, dict[str, Any]] = {}
        self._at: dict[int, float] = {}
        self._jobs: dict[int, Job | None] = {}
        self._lost: dict[int, tuple[float, str]] = {}
        self._again: dict[int, float] = {}
        self._engine: Job | None = None
        self._engine_again = 0.0
        self._figures: dict[str, Any] = {}
        self._frozen = False  # whether requests run and no token has come since the last reading
        self._silent_since: float | None = None  # when the API answered last
        self._moved: float | None = None  # when tokens were generated last
        self._starved: float | None = None  # since when the requests that are held have got no token
        self.restart_window()
        self._probe: Job | None = None
        self._probe_at = 0.0
        self._probe_moved: float | None = None
        self._probe_again = self.clock.monotonic() + float(self.settings["completion_seconds"])
        self._probe_fault: Fault | None = None
        self._proven = False
        self._idle_since: float | None = None
        self._canary: Job | None = None
        self._canary_tokens, self._canary_reply = 0.0, dict[str, Any]()  # of the engine before it; until the next reading
        self._canary_again = self.clock.monotonic() + float(self.settings["canary_seconds"])
        self.speeds: list[float] = []  # of canaries, for the watch to take

    # --- reading

    def read(self, release: str, prove: bool) -> None:
        """Take what has come, and ask for more. `prove` asks for a completion as soon as the engine is idle."""
        now = self.clock.monotonic()
        for rank in self.ranks:
            number = rank.number
            job = self._jobs.get(number)
            if job is not None and job.done():
                self._take(number, job, now)
                job = self._jobs[number] = None
            if job is None and now >= self._again.get(number, 0.0):
                known = int(self.samples.get(number, {}).get("n") or 0)
                wait = CLOSE_SECONDS if self._frozen or number == 0 else WAIT_SECONDS  # that of the head is in this process
                wait = 0.0 if number in self._lost else wait  # an answer is enough
                self._jobs[number] = rank.begin("watch", wait + READ_LIMIT, release=release, known=known, wait=wait)
        self._read_engine(release, now)
        self._read_probe(release, now, prove)
        self._read_canary(release, now)

    def _take(self, number: int, job: Job, now: float) -> None:
        result = result_of(job)
        if isinstance(result, Exception):
            self._again[number] = now + AGAIN_SECONDS
            self._lost.setdefault(number, (now, str(result)))
            return
        self._lost.pop(number, None)
        self.samples[number], self.hellos[number], self._at[number] = result["sample"], result["hello"], now

    def _read_engine(self, release: str, now: float) -> None:
        if self._engine is not None and self._engine.done():
            result = result_of(self._engine)
            self._engine = None
            self._engine_again = now + (CLOSE_SECONDS if self._frozen else float(self.settings["metrics_seconds"]))
            figures = {} if isinstance(result, Exception) else dict(result)
            if figures.get("tokens") is not None:
                self._take_figures(figures, now)
            self._silent_since = now if figures.get("status") or self._silent_since is None else self._silent_since
        if self._engine is None and now >= self._engine_again:
            self._engine = self.ranks[0].begin("engine", READ_LIMIT, release=release)

    def _take_figures(self, figures: dict[str, Any], now: float) -> None:
        moves = bool(self._figures) and figures["tokens"] != self._figures["tokens"]
        if moves:
            self._moved = now
            self._probe_fault = None
        self._frozen = figures["running"] > 0 and bool(self._figures) and not moves
        busy = figures["running"] + figures["waiting"] > 0
        if moves or not busy or self._starved is None:
            self._starved = now if busy else None
        self._idle_since = None if busy else self._idle_since if self._idle_since is not None else now
        self._figures = figures
        self._take_canary(busy)
        head = self.samples.get(0) or {}
        gpus = [(each[0], each[1]) for number, sample in self.samples.items() for each in sample.get("gpus") or [] if now - self._at[number] <= FRESH_SECONDS]
        cpu = None if gpus else head.get("cpu_seconds")
        self._wedge.add(now, int(figures["running"]), float(figures["tokens"]), gpus, cpu)

    def _read_probe(self, release: str, now: float, prove: bool) -> None:
        if self._probe is not None and self._probe.done():
            self._take_probe(result_of(self._probe), now)
            self._probe = None
        idle = self._idle_since is not None
        due = now >= self._probe_again or (prove and not self._proven)
        if self._probe is None and due and (idle or (prove and not self._figures)) and self._probe_fault is None and self.complete():
            self._probe_again = now + float(self.settings["completion_seconds"])
            self._probe_at, self._probe_moved = now, self._moved
            timeout = float(self.settings["completion_timeout"])
            self._probe = self.ranks[0].begin("probe", timeout + READ_LIMIT, release=release, timeout=timeout, requests=[REQUEST], **self._url())

    def _url(self) -> dict[str, str]:
        url = str((self.samples.get(0) or {}).get("url") or "")
        return {"url": url} if url else {}

    def _take_probe(self, result: Any, now: float) -> None:
        if isinstance(result, Exception) or result.get("failed"):
            return
        reply = (result.get("replies") or [{}])[0]
        status = int(reply.get("status") or result.get("http_status") or 0)
        if reply.get("ok"):
            self._proven, self._probe_fault = True, None
        elif self._moved != self._probe_moved or 400 <= status < 500:
            return  # it works for others, or refuses this request
        elif status >= 500:
            self._probe_fault = Fault("engine_failed", f"the engine answers a completion with HTTP {status}")
        elif now - self._probe_at >= (seconds := float(self.settings["completion_timeout"])):  # a refused connection ends at once
            self._probe_fault = Fault("idle_wedge", f"a completion of one token did not come back within {seconds:.0f} s while nothing else ran")
        self._probe_again = now + float(self.settings["completion_seconds"])

    def _read_canary(self, release: str, now: float) -> None:
        """Ask for a short decode from time to time, while nothing else runs."""
        if self._canary is not None and self._canary.done():
            result, self._canary = result_of(self._canary), None
            self._canary_reply = {} if isinstance(result, Exception) else (result.get("replies") or [{}])[0]
        every, rests = float(self.settings["canary_seconds"]), self._idle_since is not None and now - self._idle_since >= USEFUL_SECONDS
        if every and rests and now >= self._canary_again and self._canary is None and self._probe is None and self._proven and self.complete():
            self._canary_again, self._canary_tokens, self._canary_reply = now + every, float(self._figures["tokens"]), {}
            limits = {"timeout": CANARY_TIMEOUT, "requests": [measures.SHORT_DECODE], **self._url()}
            self._canary = self.ranks[0].begin("probe", CANARY_TIMEOUT + READ_LIMIT, release=release, **limits)

    def _take_canary(self, busy: bool) -> None:
        """Keep the speed of a canary if no other request ran in the engine meanwhile."""
        reply, self._canary_reply = self._canary_reply, {}
        speed, grown = measures.speed(reply), float(self._figures["tokens"]) - self._canary_tokens
        if speed and not busy and grown <= reply["prompt_tokens"] + reply["completion_tokens"] + measures.SLACK_TOKENS:
            self.speeds.append(speed)

    def restart_window(self) -> None:
        """Let the window of a wedge begin again: the fabric was cut, and the transport needs time."""
        self._wedge = Wedge(float(self.settings["wedge_seconds"]))

    # --- what was read

    def started(self) -> dict[str, list[str]]:
        """Return by rank what changes when its node starts, and when its Docker Engine does."""
        engines = {number: str(sample.get("engine_id") or "") for number, sample in self.samples.items()}
        return {str(number): [str(hello.get("boot_id") or ""), engines.get(number, "")] for number, hello in self.hellos.items()}

    def views(self, started: Mapping[str, Sequence[str]]) -> list[View]:
        """Return what is known of each rank. `started` is what started() returned when the group served last."""
        now, out, present = self.clock.monotonic(), [], self.started()
        for rank in self.ranks:
            number = rank.number
            since, why = self._lost.get(number, (now, ""))
            lost = why if why and now - since >= float(self.settings["lost_seconds"]) else ""
            pairs = zip(present.get(str(number), ()), started.get(str(number), ()), ("reboot", "docker_restart"))
            restarted = next((cause for new, old, cause in pairs if new and old and new != old), "")
            out.append(View(number, rank.host, self.samples.get(number, {}), lost, restarted))
        return out

    def engine_faults(self, idle_power_w: float | None) -> list[Fault]:
        """Return what is wrong with the engine although all its containers run."""
        name = f"rank 0 on {self.ranks[0].host}"
        if self._probe_fault is not None:
            return [self._probe_fault._replace(text=f"{name}: {self._probe_fault.text}")]
        limit = float(self.settings["completion_seconds"]) + float(self.settings["completion_timeout"])
        if self._silent_since is not None and self.clock.monotonic() - self._silent_since >= limit:
            return [Fault("engine_failed", f"{name}: the API has not answered for {limit:.0f} s")]
        if self._wedge.wedged(idle_power_w):
            held, seconds = int(self._figures.get("running") or 0), self.clock.monotonic() - (self._starved or 0.0)
            what = f"{held} request{'s' if held != 1 else ''} held, no token for {seconds:.0f} s, and the engine does not work"
            return [Fault("wedge", f"{name}: {what} ({self._wedge.figures(idle_power_w)})")]
        return []

    def began(self, fault: Fault) -> float:
        """Return when service ended for a fault of this moment, by the monotonic clock: with the last token of the requests that are held."""
        now = self.clock.monotonic()
        stopped = float((self.samples.get(fault.rank) or {}).get("fault_seconds") or 0.0)
        silent = self._probe_at if self._probe_fault is not None else now if self._silent_since is None else self._silent_since
        causes = {
            "rank_stopped": now - stopped, "node_lost": self._lost.get(fault.rank, (now, ""))[0], "idle_wedge": self._probe_at, "engine_failed": silent,
        }  # fmt: skip
        return min(causes.get(fault.cause, now), self._starved if self._frozen and self._starved is not None else now)

    def away_since(self) -> float | None:
        """Return since when the head itself sees no service: requests get no token, or the API does not answer; None while it serves."""
        limit = self.clock.monotonic() - float(self.settings["wedge_seconds"])
        return min((each for each in (self._starved, self._silent_since) if each is not None and each <= limit), default=None)

    def complete(self) -> bool:
        """Whether all ranks have been read, and none is lost."""
        return not self._lost and all(rank.number in self.samples for rank in self.ranks)

    def useful(self) -> bool:
        """Whether tokens were generated a moment ago."""
        return self._moved is not None and self.clock.monotonic() - self._moved < USEFUL_SECONDS

    def proven(self) -> bool:
        """Whether the engine has answered a completion, or generates tokens."""
        return self._proven or self.useful()

    def idle_power(self) -> float | None:
        """Return the highest power of a GPU of the group while no request runs; None if it is not known or a GPU worked when it was read.

        Utilization shows at once that a GPU rests: a group that is busy from its gate on may rest for no longer than that.
        """
        if self._idle_since is None:
            return None
        unknown = 0.0 if self.clock.monotonic() - self._idle_since >= USEFUL_SECONDS else 100.0
        gpus = [(each[0], each[1]) for sample in self.samples.values() for each in sample.get("gpus") or [] if each[0] is not None]
        if any((unknown if percent is None else percent) > REST_PERCENT for _power, percent in gpus):
            return None
        return max((power for power, _percent in gpus), default=None)
