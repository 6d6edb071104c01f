# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The watch of the head over a group that serves: it notices a fault, waits for what is missing, and lets the group converge again; what follows a failed boot.

It never stops or starts anything itself. It sets a new generation of the desired state, and the converge loop restarts and judges the release.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import TRANSIENT
from ansible_collections.gb10.cluster.plugins.module_utils._core import text
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import runs
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, rules
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import Actor, Clock, Superseded
from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import POLL_SECONDS, TICK_SECONDS, Calls
from ansible_collections.gb10.cluster.plugins.module_utils._pair.observation import Observation
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import WATCH
from ansible_collections.gb10.cluster.plugins.module_utils._pair.rules import Fault

# --- What follows a failed boot.
# | release | failure | action |
# |---|---|---|
# | new, never passed | any | stop, evidence, last good release; none: stopped, with the sentence |
# | has passed | transient (`transient` in failures.yml) | the same release again, after a pause that grows; after the last attempt as for lasting |
# | has passed | lasting | held with the sentence; never replaced by another release without being asked |
# | has passed, and the change was asked for while another release was current | lasting, or the last attempt | back to that release |

#: Seconds before the second, third, ... attempt. The last one counts for all that follow.
PAUSES = (5.0, 20.0, 60.0, 180.0)

RETRY, RETURN, HOLD, STOP = "retry", "return", "hold", "stop"


def pause_before(attempt: int) -> float:
    """Return the seconds to wait before an attempt; the first one is attempt 1."""
    return PAUSES[min(max(attempt - 2, 0), len(PAUSES) - 1)]


def after_failure(passed_before: bool, failure: str, attempt: int, attempts: int, fallback: str, switched: bool = False) -> str:
    """Return what follows the failed `attempt` (1 or more) of a release.

    `failure` is the verdict's class, `attempts` how often a release that has passed is started, `fallback` the last good release, empty without one.
    `switched` tells that another release was current when this one was asked for.
    """
    if not passed_before:
        return RETURN if fallback else STOP
    if failure in TRANSIENT and attempt < attempts:
        return RETRY
    return RETURN if switched and fallback else HOLD


# --- The watch of the head over a group that serves: it notices a fault, waits for what is missing, and lets the group converge again.


class Unserved:
    """The seconds in which a group should have served and did not. Status, metrics and events take them from here.

    They begin with the last token of the requests that are held, and without requests when the fault began. A fault that only blinds the head does not
    count while the engine serves as far as the head sees. Seconds are those of the monotonic clock, which goes on until the node is booted. Over a boot
    the wall clock decides, for no longer than the node runs.
    The entry of one episode in watch.json is passed: its counted `seconds`, and since when the count goes on, 0 while it stands still. `from` is that
    time by the monotonic clock, `since` by the wall clock.
    """

    def __init__(self, clock: Clock, episode: dict[str, Any]) -> None:
        """Continue the count of an earlier agent."""
        self._clock = clock
        self._from: float | None = None  # since when service is missing, by the monotonic clock
        self._floor = 0.0  # what was before is counted
        if episode.get("since"):
            now, begin = clock.monotonic(), float(episode["from"])
            passed = min(max(0.0, clock.wall() - float(episode["since"])), now)
            self._from = begin if begin <= now else now - passed

    @property
    def counts(self) -> bool:
        """Whether service is missing now."""
        return self._from is not None

    def seconds(self, episode: dict[str, Any]) -> float:
        """Return the seconds without service until now."""
        begin = self._from
        return float(episode.get("seconds") or 0.0) + (self._clock.monotonic() - begin if begin is not None else 0.0)

    def begin(self, episode: dict[str, Any], begin: float, whole: bool = False) -> None:
        """Count from `begin` on, by the monotonic clock. `whole`: what was counted of this episode is part of that time."""
        self._from = max(begin, self._floor)
        episode["from"], episode["since"] = self._from, self._clock.wall() - (self._clock.monotonic() - self._from)
        if whole:
            episode["seconds"] = 0.0

    def pause(self, episode: dict[str, Any]) -> None:
        """Stop the count: the group serves, or is not expected to."""
        episode["seconds"], episode["since"] = self.seconds(episode), 0.0
        self._from = None

    def end(self) -> None:
        """Forget the episode."""
        self._from, self._floor = None, self._clock.monotonic()


STABLE_SECONDS = 30.0
SETTLE_SECONDS = 2.0  # within which the rank that is the cause is read too
MISSING_SECONDS = 5.0  # between two readings of ranks that lack something
#: What survives a restart of the agent. Times are seconds since the epoch.
EMPTY: dict[str, Any] = {
    "crashes": [], "restarts": {}, "unserved_seconds": 0.0, "started": {}, "episode": {}, "last": {}, "serving_since": 0.0, "idle_power_w": None,
    "release": "", "boot_seconds": 0.0, "generation": None, "versions": {},
    "canary": {},
}  # fmt: skip


class Watch:
    """The watch over one group. tick() belongs to the actor's thread; `shown` may be read by any."""

    def __init__(self, actor: Actor, settings: Mapping[str, Any]) -> None:
        self.actor, self.clock, self.settings = actor, actor.clock, settings
        found, is_now = actor.store.known(WATCH)
        if is_now == "damaged":
            actor.lost.append(f"{WATCH} was damaged; its counts begin at 0")
        self.record: dict[str, Any] = {**EMPTY, **found}
        self.unserved = Unserved(self.clock, self.record["episode"])
        self._shown: dict[str, Any] = {}
        self._generation, self._desired = -1, dict[str, Any]()
        self._open: dict[tuple[str, int], Fault] = {}
        self._missing: list[str] = []
        self._look_at = 0.0  # when the ranks may be read again
        self._noticed_at = 0.0
        self._paused_until: float | None = None
        self._began = self.clock.monotonic()  # when the fault of the episode began
        self._refusals = 0  # starts in a row that were refused before their boot
        self._kernel: dict[int, list[dict[str, Any]]] = {}  # by rank, the last lines that were read
        self._lines: dict[tuple[int, str, str], int] = {}  # by rank, boot and kind
        self._since = actor.stamp()  # what the kernels reported before was reported by an earlier agent
        self._learned = True  # whether an idle power of the present release is known
        self.observed = Observation(actor, settings)
        self._show("stopped" if settings["enabled"] else "off")

    # --- one turn

    def tick(self) -> bool:
        """Observe, and act if that is due. Return whether the group is watched; if not, nothing was done."""
        release = self.actor.unattended() if self.settings["enabled"] else ""
        if not release:
            self._generation = -1
            if self.record["episode"]:
                self._count_unwatched()
            self._show("off" if not self.settings["enabled"] else "recovering" if self.record["episode"] and not self.actor.settled() else "stopped")
            return False
        with contextlib.suppress(Superseded):
            self._turn(release)
            self.clock.wait(TICK_SECONDS)
        return True

    def _turn(self, release: str) -> None:
        if self.actor.generation != self._generation:
            self._begin(self.actor.desired(), release)
        desired, seen = self._desired, self.observed
        seen.read(release, bool(self.record["episode"]))
        calls = Calls(self.actor, desired)
        calls.note(seen.hellos)
        if calls.obey_stop(list(seen.hellos.values())):
            return
        holds = [hold for hello in seen.hellos.values() for hold in hello.get("holds") or []]
        if holds:
            self._show("waiting", missing=[str(holds[0]["reason"])])
            return
        self._report_versions()
        self._report_kernel()
        found = rules.faults(seen.views(self.record["started"]), release, float(self.settings["stopped_seconds"]))
        found += seen.engine_faults(self.record["idle_power_w"])
        self._note(found)
        if found:
            self._handle(found, release, desired)
        elif seen.complete():
            self._healthy(release)

    def _begin(self, desired: Mapping[str, Any], release: str) -> None:
        """Begin with a generation that has settled: what was read before it counts no longer."""
        self._generation, self._desired = int(desired["generation"]), dict(desired)
        self._open, self._missing, self._paused_until, self._look_at = {}, [], None, 0.0
        self.observed.clear()
        self._refusals = self._refusals + 1 if self._refused() else 0
        if not desired.get("auto") and self.record["generation"] not in (None, self._generation):  # else another agent has begun with it
            self.record.update(crashes=[], serving_since=0.0)
        self.record["generation"] = self._generation
        if self.record["release"] != release:  # the idle power is one of the GPU: that of the release before counts until it is read again
            self._learned = False
            self.record.update(release=release, boot_seconds=0.0)
        self.record["boot_seconds"] = float((self.actor.outcome()["verdict"] or {}).get("seconds") or self.record["boot_seconds"])
        self._save()

    # --- faults

    def _note(self, found: Sequence[Fault]) -> None:
        """Record each fault once for as long as it lasts."""
        now = {(fault.cause, fault.rank): fault for fault in found}
        if not self._open:
            self._noticed_at = self.clock.monotonic()
        for key, fault in now.items():
            if key in self._open:
                continue
            self.actor.event("fault", f"{self.actor.group}: {fault.text}", cause=fault.cause)
            if not self.record["episode"]:
                self.record["episode"] = {"cause": fault.cause, "text": fault.text, "at": self.actor.stamp(), "blind": True}
                self.record["episode"]["generation"] = self._generation
                self._began = self.observed.began(fault)
                served = self.clock.wall() - self.record["serving_since"] if self.record["serving_since"] else 0.0
                if served >= self._stable():
                    self.record["crashes"] = []
                self.record["serving_since"] = 0.0
                self._save()
        self._open = now
        if found:
            self._count(found)

    def _count(self, found: Sequence[Fault]) -> None:
        """Count the time without service. While all faults only blind the head, it counts if the head itself sees no service."""
        episode, ended = self.record["episode"], [self.observed.began(fault) for fault in found if not fault.waits]
        if not episode.get("blind"):
            return
        away = self.observed.away_since()
        if ended:
            episode["blind"] = False
            self.unserved.begin(episode, min([self._began, *ended]), whole=True)
        elif away is not None and not self.unserved.counts:
            self.unserved.begin(episode, away)
        elif away is None and self.unserved.counts:
            self.unserved.pause(episode)
        else:
            return
        self._save()

    def _count_unwatched(self) -> None:
        """Count the time of a restart, and of a group that is held. A group that was stopped on request is not expected to serve."""
        episode, expected = self.record["episode"], self.settings["enabled"] and self.actor.desired()["state"] == "serving"
        if expected != self.unserved.counts:
            episode["blind"] = False
            if expected:
                self.unserved.begin(episode, self.clock.monotonic())
            else:
                self.unserved.pause(episode)
            self._save()
        if not expected and self.actor.settled() and self.actor.desired()["state"] == "stopped":
            self._close(f"{self.actor.group} was stopped on request before service was restored")

    def _handle(self, found: Sequence[Fault], release: str, desired: Mapping[str, Any]) -> None:
        """Wait for what has to pass, then restart."""
        waits = [fault.text for fault in found if fault.waits]
        if waits:
            self.observed.restart_window()
            self._wait_for(waits)
            return
        fault, now = found[0], self.clock.monotonic()
        self._show("waiting" if self._missing else "fault", fault, self._missing)
        if self.observed.useful() and fault.cause in ("rank_stopped", "wedge", "idle_wedge"):
            return
        if now < self._noticed_at + SETTLE_SECONDS or not self.observed.complete():
            return
        self._name(fault)
        if self._paused_until is None:
            crashes = len(self.record["crashes"]) if self._counts(fault) else 0
            pause = pause_before(self._refusals + 1) if self._refusals else pause_before(crashes) if crashes > 1 else 0.0
            self._paused_until = now + pause
            if pause:
                why = "its last start was refused" if self._refusals else f"it has failed {crashes + 1} times in a row"
                self.actor.event("step", f"{self.actor.group} waits {pause:.0f} s before a restart of release {release}: {why}")
        if now >= max(self._paused_until, self._look_at):
            self._look_at = now + POLL_SECONDS
            self._act(fault, release, desired)

    def _name(self, fault: Fault) -> None:
        """Take the cause that has ended the other ranks too, if one of these was read first."""
        episode = self.record["episode"]
        if fault.cause in rules.ROOTS and episode.get("cause") == "rank_dead":
            self.record["episode"] = {**episode, "cause": fault.cause, "text": fault.text}
            self._save()

    def _wait_for(self, missing: list[str]) -> None:
        if missing != self._missing:
            self._missing = missing
            self.actor.event("waits", f"{self.actor.group} waits: {'; '.join(missing)}", cause=str(self.record["episode"].get("cause") or ""))
        self._show("waiting", missing=missing)

    def _stable(self) -> float:
        """Return the seconds of service after which earlier crashes count no longer."""
        return float(self.settings["stable_seconds"]) or max(STABLE_SECONDS, float(self.record["boot_seconds"]))

    def _refused(self) -> bool:
        """Whether the last start was refused before its boot, as with a full disk or short memory."""
        outcome = self.actor.outcome()
        return bool(outcome["result"] == "failed" and outcome["resumes"] and not (outcome["verdict"] or {}).get("seconds"))

    def _counts(self, fault: Fault) -> bool:
        """Whether a restart for this fault counts as a crash of the release."""
        if self._refusals:
            return False
        outcome = self.actor.outcome()
        failed = outcome["result"] == "failed" and (outcome["verdict"] or {}).get("class") != "node_lost" and bool(outcome["resumes"])
        cause = str(self.record["episode"].get("cause") or fault.cause)
        return failed or not (fault.cause in rules.OUTSIDE or cause in rules.OUTSIDE)

    def _act(self, fault: Fault, release: str, desired: Mapping[str, Any]) -> None:
        """Read all ranks again, and set a new generation if the fault is still there and nothing is missing."""
        calls = Calls(self.actor, dict(desired))
        looks = calls.look(release, share=float(calls.options.get("wait_available") or 0.0))
        missing = calls.phrases(looks)
        idle = not any(runs(each) for each in looks if isinstance(each, dict))
        for index, each in enumerate(looks):
            if isinstance(each, dict):
                short = each["blocked"] if idle else ""  # a rank that runs still has its memory
                missing += [f"{calls.name(index)}: {phrase}" for phrase in filter(None, [each["engine_error"], *calls.lacks(each), short])]
        if missing:
            self._look_at = self.clock.monotonic() + MISSING_SECONDS
            self._wait_for(missing)
            return
        self._missing = []
        good = all(isinstance(each, dict) and runs(each, release) for each in looks)
        if good and fault.cause not in ("wedge", "idle_wedge", "engine_failed"):
            self.observed.clear()
            return
        counts = self._counts(fault)
        crashes = [*self.record["crashes"], {"at": self.actor.stamp(), "text": fault.text}] if counts else self.record["crashes"]
        hold = ""
        if len(crashes) > int(self.settings["restarts"]):
            hold = (
                f"{self.actor.group}: crash_loop: release {release} has failed {len(crashes)} times since {crashes[0]['at']} without serving for"
                f" {self._stable():.0f} s. The first time: {crashes[0]['text']}. The last time: {fault.text}."
            )
        cause = "crash_loop" if hold else str(self.record["episode"].get("cause") or fault.cause)
        text = hold or fault.text
        by = f"the agent on {self.actor.ranks[0].host}"
        self.actor.recover(self._generation, release, text, by, cause, hold)
        self.record["crashes"] = crashes
        if not hold and not self._refusals:
            self.record["restarts"] = {**self.record["restarts"], cause: int(self.record["restarts"].get(cause) or 0) + 1}
        self._show("recovering", fault)
        self._save()

    # --- no fault

    def _healthy(self, release: str) -> None:
        """Close the episode if service is proven, and request a completion from time to time."""
        self._missing, self._paused_until = [], None
        seen, episode = self.observed, self.record["episode"]
        if episode:
            restarted = episode.get("generation") != self._generation and self.actor.outcome()["result"] == "serves"
            if not restarted and not seen.proven():
                self._show("fault")
                return
            how = "after a restart" if restarted else "without a restart"
            self._close(f"{self.actor.group} serves release {release} again {how}")
        record, changed = self.record, False
        started = seen.started()
        if started != record["started"]:
            if any(view.restarted for view in seen.views(record["started"])):  # the peer's end can be seen first: it was not a crash
                record["crashes"] = record["crashes"][:-1]
            record["started"], changed = started, True
        if not record["serving_since"]:
            record["serving_since"], changed = self.clock.wall(), True
        idle = seen.idle_power()
        if idle is not None and (record["idle_power_w"] is None or not self._learned or idle < record["idle_power_w"] - 1.0):
            record["idle_power_w"], self._learned, changed = idle, True, True
        if changed:
            self._save()
        self._report_speed(release)
        self._show("serving")

    def _close(self, how: str) -> None:
        """End the episode, and count its seconds without service."""
        episode = self.record["episode"]
        seconds = self.unserved.seconds(episode)
        kind = "recovered" if self._generation >= 0 else "step"
        self.actor.event(kind, f"{how}. The cause: {episode['text']}", seconds, cause=episode["cause"])
        last = {key: episode.get(key, "") for key in ("cause", "text", "at")}
        total = round(self.record["unserved_seconds"] + seconds, 1)
        self.record = {**self.record, "episode": {}, "last": {**last, "unserved_seconds": round(seconds, 1)}, "unserved_seconds": total}
        self.unserved.end()
        self._save()

    def _report_speed(self, release: str) -> None:
        """Record that a short decode gets far slower than it was, and that it is as fast again: a state of the GPU that no tool shows."""
        new, known = self.observed.speeds, self.record["canary"]
        self.observed.speeds = []
        if new:
            known = known if known.get("release") == release else {}
            was = bool(known.get("slow"))
            speeds, slow, usual = rules.canary(known.get("speeds") or [], new, was)
            self.record["canary"] = {"release": release, "speeds": speeds, "slow": slow}
            self._save()
            if slow != was:
                is_now = "is slow: look at clocks and power of all ranks with `gb10 doctor`" if slow else "is as fast as before"
                figures = f"{speeds[-1]:.1f} tokens/s while nothing else ran, and usually {usual:.1f}."
                self.actor.event("warning", f"{self.actor.group}: decoding {is_now}. It made {figures}", cause="slow")

    def _report_kernel(self) -> None:
        """Record what the kernels of the ranks have reported since the last turn: lines are compared by their order, since a clock can be set back."""
        for number, sample in self.observed.samples.items():
            known, self._kernel[number] = self._kernel.get(number), list(sample.get("kernel") or [])
            boot = str(self.observed.hellos[number].get("boot_id") or "")
            for entry in catalogue.kernel_news(known or [], self._kernel[number]):
                if known is None and entry["at"] < self._since:
                    continue
                key = (number, boot, str(entry["kind"]))
                self._lines[key] = self._lines.get(key, 0) + 1
                if catalogue.kernel_due(key[2], self._lines[key]):
                    self.actor.event("kernel", f"{self.actor.ranks[number].host}: {entry['text']}", cause=key[2])

    def _report_versions(self) -> None:
        """Record each rank whose agent runs another program than the one before."""
        for number, hello in self.observed.hellos.items():
            old, new = self.record["versions"].get(str(number)), look.version_of(hello.get("running") or {})
            if new and new != old:
                self.record["versions"] = {**self.record["versions"], str(number): new}
                self._save()
                if old:
                    self.actor.event("agent", f"{self.actor.ranks[number].host}: the agent was updated, version {old} -> {new}")

    # --- what others read

    def _save(self) -> None:
        with contextlib.suppress(OSError):  # a full disk must not end the watch
            self.actor.store.save(WATCH, self.record)

    @property
    def shown(self) -> dict[str, Any]:
        """What the watch does, and the seconds without service until now."""
        record = self.record  # one that is closed meanwhile is another object
        counted = self.unserved.seconds(record["episode"]) if record["episode"] else 0.0
        return {**self._shown, "unserved_seconds": round(record["unserved_seconds"] + counted, 1)}

    def _show(self, state: str, fault: Fault | None = None, missing: Sequence[str] = ()) -> None:
        record = self.record
        episode = {key: value for key, value in record["episode"].items() if key in ("cause", "text", "at")}
        since = float(record["serving_since"] or 0.0)
        self._shown = {
            "state": state, "fault": {**episode, "rank": fault.rank if fault else None} if episode else {}, "missing": list(missing),
            "restarts": dict(record["restarts"]), "last": dict(record["last"]),
            "serving_since": text.stamp(since) if since and state == "serving" else "", "canary_tok_s": (record["canary"].get("speeds") or [None])[-1],
        }  # fmt: skip
