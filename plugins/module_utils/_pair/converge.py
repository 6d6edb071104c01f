# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""One converge of a serving group to one generation of what is desired.

Every step reads the ranks before it changes them, and leaves a state that the next converge, also one of a restarted agent, continues from.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import gate
from ansible_collections.gb10.cluster.plugins.module_utils._gate.api_probe import api_url
from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge, Verdict
from ansible_collections.gb10.cluster.plugins.module_utils._node import releases
from ansible_collections.gb10.cluster.plugins.module_utils._pair import calls, watch
from ansible_collections.gb10.cluster.plugins.module_utils._pair.actor import ATTEMPTS, Actor, Rank, Superseded
from ansible_collections.gb10.cluster.plugins.module_utils._pair.calls import Boot, Calls, Failed, problem, take_looks, take_misses
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import EVIDENCE, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._pair.watch import Watch

START_LIMIT = 240.0
RECLAIM_LIMIT = 180.0  # writing dirty pages, and compacting
RECLAIM_SECONDS = 60.0  # after which the page cache is dropped again while memory is short
AUTHORITY_SECONDS = 30.0  # how often a settled group is asked whether a rank was stopped by its local root
FREE_REMEDY = (
    "See what holds it (`ps aux --sort=-rss | head`, `nvidia-smi`, playbooks/status.yml) and stop that; memory that no process holds any more (a driver's"
    " leak) comes back with playbooks/reboot.yml. vllm_tp2_wait_available and vllm_tp2_wait_seconds set how much is waited for, and how long."
)


def step(actor: Actor, watch: Watch | None = None) -> bool:
    """Converge to what is desired, or watch a group that serves; return whether there was something to do."""
    actor.report_lost()
    if watch is not None and watch.tick():
        return True
    due = actor.settled() and actor.clock.monotonic() - actor.looked_at >= AUTHORITY_SECONDS
    if not actor.looked or due:
        actor.looked_at = actor.clock.monotonic()
        way = Converge(actor, actor.desired())
        try:
            actor.looked = way.read_authority(adopts=not actor.looked)
            if way.answered and actor.settled() and way.desired["state"] == "stopped" and actor.outcome()["result"] == "failed":
                way.run()  # a rank that could not be stopped answers again
        except Superseded:
            return True
    desired = actor.desired()
    if not desired["state"] or actor.settled():
        return False
    with contextlib.suppress(Superseded):  # the next step converges to what is desired now
        Converge(actor, desired).run()
    return True


class Converge(Calls):
    """The way to one generation."""

    unserved_since: float | None = None

    # --- the way

    def run(self) -> None:
        """Converge. Raises Superseded if another state is desired meanwhile."""
        try:
            if self.desired["state"] == "stopped":
                self._stop()
            else:
                self._serve()
        except Failed as failure:
            self._settle_failed(self._plain(failure), str(failure), resumes=self._resumes(failure.kind))
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001  an error of the agent is an outcome of its own and takes no pair down
            traceback.print_exc()
            text = (
                f"{self.group}: gate_error: the agent failed ({type(error).__name__}: {error}). The containers are left as they are."
                " Remedy: see `journalctl -u gb10-agent` on the head, and run site.yml again."
            )
            self._settle_failed(self._plain(Failed(text, "gate_error")), text)

    def _settle_failed(self, verdict: Verdict, sentence: str, **more: Any) -> None:
        if not self.actor.outcome()["verdict"]:
            self._report(verdict)
        self.actor.settle(self.generation, more.pop("result", "failed"), sentence, **more)

    def _resumes(self, kind: str) -> str:
        """Return the release that the watch starts when all ranks can be used again; empty if a request of a person has failed."""
        continued = self.actor.continued == self.generation and kind == "node_lost"
        return self.release if self.desired["auto"] or continued else ""

    def _plain(self, failure: Failed) -> Verdict:
        """Return the verdict of a start without a boot."""
        receipt = {
            "schema": 1, "group": self.group, "release": self.release, "profile": "", "time": self.actor.stamp(), "passed": False, "class": failure.kind,
            "msg": str(failure), "seconds": 0.0, "pool": {}, "checks": [], "ranks": [], "models": [], "completion": [],
        }  # fmt: skip
        return {
            "passed": False, "class": failure.kind, "msg": str(failure), "finding": None, "seconds": 0.0, "checks": [], "pool": {}, "receipt": receipt,
        }  # fmt: skip

    # --- stopped

    def _stop(self) -> None:
        for _again in range(2):  # a rank that its local root stops at this moment refuses the first time
            self.authority()
            self.each("claim", calls.READ_LIMIT)  # a rank without an owner accepts nothing else; what it refuses, it refuses below
            looks = [each for each in self.look(self.release) if isinstance(each, dict)]
            self.drain(looks)
            label = crash_label(looks)
            self.actor.update(phase="halting")
            results = self.halt(label, f"{self.actor.stamp()} by {self.desired['by']}")
            wrong = self.halted(label, results)
            if not any(isinstance(each, RankError) and each.kind == "refused" for each in results):
                break
        if wrong:
            text = self._unknown(wrong, "Correct that and run stop.yml again.")
            self.actor.settle(self.generation, "failed", f"{self.group} is not stopped on all ranks: {text}")
            return
        self.actor.settle(self.generation, "stopped", f"{self.group} is stopped.", release="")

    def _unknown(self, wrong: Sequence[str], remedy: str = "Correct that, run playbooks/stop.yml, then site.yml.") -> str:
        return f"{'. '.join(wrong)}. It is not known whether a container of {self.group} runs there. {remedy}"

    # --- serving

    def _serve(self) -> None:
        self.hold_off()
        self.claim()
        if self.desired["hold"]:
            self._hold(str(self.desired["hold"]))
            return
        looks = self.looks()
        self.passed_before = releases.passed_before(looks, self.release)
        self.switched = looks[0]["current"] not in ("", self.release)
        self.fallback = releases.last_good(looks, self.release) if self.options.get("rollback", True) else ""
        before = self.actor.outcome()
        launched = {str(key): str(value) for key, value in before["containers"].items()}
        manifest = dict(looks[0].get("manifest") or {})
        continued = launched and launched == ids(looks)
        running = self._started(looks) if not continued and self.actor.continued == self.generation else ""
        if running and running != self.release and releases.passed_before(looks, running):
            self._returned(running, looks, before["verdict"])
            return
        if before["verdict"] and (continued or not before["verdict"]["passed"]):
            verdict = before["verdict"]
        elif not continued and self._serves(looks, running):
            receipts = [each["receipt"] for each in looks if (each.get("receipt") or {}).get("passed")]
            if receipts and any(each["stopped"] for each in looks):  # started by hand after a stop: from now on it is expected to serve
                self._record(self.release, {"receipt": receipts[0]})
            self.actor.settle(self.generation, "serves", f"{self.group} serves release {self.release}.", release=self.release)
            return
        elif continued or running == self.release:
            verdict = self._judge(self.release, manifest, {})
        else:
            self._preconditions(looks)
            if not self.desired["auto"]:
                self.drain(looks, float(self.options.get("drain_seconds") or 0.0))
            self._halt_before(looks)
            verdict = self._attempt(self.release, manifest)
        self._conclude(verdict, manifest)

    def _started(self, looks: Sequence[dict[str, Any]]) -> str:
        """Return the release that all ranks have run since after the request; empty if there is none. Only the head's clock counts.

        An earlier agent has started it for this request, and the outcome was lost or could not be written: it is not started once more.
        """
        release = releases.running_release(looks[0])
        began = min((str(state["started_at"])[:19] for state in looks[0]["containers"] if state["running"]), default="")
        asked = str(self.desired["at"])[:19]
        return release if asked and began > asked and all(releases.runs(each, release) for each in looks) else ""

    def _serves(self, looks: Sequence[dict[str, Any]], started: str) -> bool:
        """Whether the desired release serves, and there is no reason to start it, or it was started for that."""
        if not self.passed_before or not all(releases.runs(each, self.release) for each in looks):
            return False
        if self.desired["reasons"] and started != self.release:
            return False
        return not (self.desired["reasons"] or any(each["stopped"] for each in looks)) or self._answers(self.release)

    def _answers(self, release: str) -> bool:
        """Whether the API of the head answers."""
        found = self.each("engine", calls.READ_LIMIT, self.ranks[:1], release=release)[0]
        return isinstance(found, dict) and found.get("status") == 200

    def _returned(self, release: str, looks: Sequence[dict[str, Any]], verdict: Verdict) -> None:
        """Conclude a change whose end was lost: the group has gone back to a release that has passed."""
        lost = f"{self.group}: release {self.release} was replaced by release {release}. The agent's files do not have the cause."
        verdict = verdict if verdict and not verdict["passed"] else self._plain(Failed(lost))
        self.fallback = release
        if self._answers(release):
            self._settle_failed(verdict, f"{verdict['msg']} Release {release} serves.", release=release)
            return
        self.actor.update(containers=ids(looks))
        self._return(verdict)

    def _hold(self, sentence: str) -> None:
        """Stop a group whose release crashes again and again, and leave it stopped."""
        looks = self.look(self.release)
        label = crash_label([each for each in looks if isinstance(each, dict)]) or f"{self.release}-held"
        self.actor.update(phase="halting")
        wrong = self.halted(label, self.halt(label, kill=True))
        kept = f"The evidence is in {EVIDENCE}/ of the group's folder on each node." if not wrong else self._unknown(wrong)
        text = f"{sentence} All ranks of {self.group} are stopped. {kept} Correct the cause, then run site.yml or `gb10 start`."
        self._settle_failed(self._plain(Failed(text, "crash_loop")), text, release="", result="held")

    def _preconditions(self, looks: Sequence[dict[str, Any]]) -> None:
        missing = [f"{self.name(index)}: {phrase}" for index, each in enumerate(looks) for phrase in self.lacks(each)]
        if missing:
            raise Failed(f"{self.group}: {'; '.join(missing)}. Nothing was changed. Remedy: run site.yml, which restores image, weights and files.")

    def _halt_before(self, looks: Sequence[dict[str, Any]]) -> None:
        """Stop what runs of the group, and prove it. What died, or is restarted although it was current, leaves its evidence. Raises Failed."""
        present = [state for each in looks for state in each["containers"]]
        if not present:
            return
        if any(state["running"] for state in present):
            self.unserved_since = self.clock.monotonic()
        label = crash_label(looks)
        if not label and looks[0]["current"] == self.release:
            label = f"restart-{self.actor.stamp().replace('-', '').replace(':', '').rstrip('Z')}"
        self.actor.update(phase="halting")
        wrong = self.halted(label, self.halt(label, kill=bool(self.desired["auto"])))
        if wrong:
            raise Failed(f"{self.group}: {'. '.join(wrong)}. No release is started. Correct that, run stop.yml, then site.yml.")

    def _reclaim(self) -> float:
        """Drop the page cache of all ranks and compact their memory, and return when. A rank that cannot is a warning, and its MemAvailable counts."""
        notes: dict[str, list[str]] = {}
        for index, found in enumerate(self.each("reclaim", RECLAIM_LIMIT, patience=calls.LOST_SECONDS)):
            note = problem(found) if isinstance(found, RankError) else str(found.get("note") or "") if isinstance(found, dict) else ""
            notes.setdefault(note, []).append(self.name(index))
        for note in filter(None, notes):
            self.actor.warn(f"{', '.join(notes[note])}: {note}")
        return self.clock.monotonic()

    def _free(self) -> None:
        """Drop the page cache, then wait until no rank runs and the memory is free. Raises Failed."""
        self.actor.update(phase="memory")
        limit = float(self.options["wait_seconds"] or 0.0)
        start = self.clock.monotonic()
        reclaimed = self._reclaim()
        while True:
            if self.clock.monotonic() - reclaimed >= RECLAIM_SECONDS:
                reclaimed = self._reclaim()
            found = self.look(self.release, calls.LOST_SECONDS, float(self.options.get("wait_available") or 0.0), free_only=True)
            wrong = self.phrases(found) or [
                f"{self.name(index)}: {each['blocked'] or each['engine_error']}" for index, each in enumerate(found)
                if isinstance(each, dict) and (each["blocked"] or each["engine_error"])
            ]  # fmt: skip
            if not wrong:
                return
            if self.lost(found) or self.clock.monotonic() - start >= limit:
                text = f"{self.group}: {'. '.join(wrong)}, {limit:.0f} s after the group was stopped. {FREE_REMEDY}"
                raise Failed(text, "node_lost" if self.lost(found) else "start_failed")
            self.pause(calls.POLL_SECONDS)

    def _attempt(self, release: str, manifest: dict[str, Any]) -> Verdict:
        """Start a release, the workers before the head, and judge its boot. Raises Failed before anything runs."""
        self._free()
        self.actor.update(phase="starting", containers={})
        seconds = float(self.options.get("timeout") or 2700.0)
        self.each("phase", calls.READ_LIMIT, phase="load", seconds=int(seconds))
        self.actor.event("step", f"{self.group} starts release {release}")
        errors: dict[int, str] = {}
        try:
            self._start(self.ranks[1:], release, errors)
            if not errors:
                self._lead(float(manifest.get("lead") or 0.0))
                self._start(self.ranks[:1], release, errors)
            return self._judge(release, manifest, errors)
        finally:
            for rank in self.ranks:  # the node ends this phase by itself if the verb is lost
                rank.begin("phase", calls.READ_LIMIT, phase="steady", seconds=0)

    def _start(self, ranks: Sequence[Rank], release: str, errors: dict[int, str]) -> None:
        results = self.each("start", START_LIMIT, ranks, patience=calls.LOST_SECONDS, release=release)
        for rank, found in zip(ranks, results):
            error = problem(found) if isinstance(found, Exception) else str(found.get("error") or "")
            if error:
                errors[rank.number] = error

    def _lead(self, seconds: float) -> None:
        now = self.clock.monotonic()
        end, ask_at = now + seconds, now + AUTHORITY_SECONDS
        while self.clock.monotonic() < end:
            if self.clock.monotonic() >= ask_at:  # a worker that is not asked reports that its head is gone
                self._known()
                ask_at = self.clock.monotonic() + AUTHORITY_SECONDS
            self.pause(max(0.0, min(calls.TICK_SECONDS, end - self.clock.monotonic())))

    # --- the judgement

    def _judge(self, release: str, manifest: dict[str, Any], errors: dict[int, str]) -> Verdict:
        """Follow the boot of all ranks and return its verdict. Raises Superseded."""
        options = self.options
        try:
            judge = Judge(
                self.group, [rank.host for rank in self.ranks], release, manifest.get("criteria") or {}, profile=str(manifest.get("profile") or ""),
                url=api_url({"host": manifest.get("host"), "port": manifest.get("port") or 8000}), timeout=float(options.get("timeout") or 2700.0),
                limits=options.get("limits"), classes=options.get("classes") or (), strict=bool(options.get("strict")), weights=options.get("weights"),
                search=self.actor.search,
            )  # fmt: skip
        except ValueError as error:
            raise Failed(f"{self.group}: {error} Correct vllm_tp2_failure_classes.") from error
        self.actor.update(phase="judging")
        for number, text in errors.items():
            judge.start_failed(number, text)
        boot = Boot(self, judge, release)
        try:
            return boot.follow()
        except Superseded:
            raise
        except Exception as error:  # noqa: BLE001  an error of the judgement is a verdict of its own kind
            traceback.print_exc()
            return judge.broken(f"{type(error).__name__}: {error}", boot.seconds)

    def _report(self, verdict: Verdict) -> None:
        """Publish the verdict on the desired release: those who wait for it return now."""
        receipt = verdict.get("receipt") or {}
        if self.options.get("collective") and receipt.get("release") == self.release:
            receipt["collective"] = self.options["collective"]
        self.actor.update(verdict=verdict)
        self.actor.event("verdict", verdict["msg"], verdict["seconds"])

    # --- after the verdict

    def _conclude(self, verdict: Verdict, manifest: dict[str, Any]) -> None:
        """Carry out what follows the verdict, until there is a final outcome."""
        attempt, attempts = int(self.actor.outcome()["attempt"]), int(self.options.get("attempts") or ATTEMPTS)
        while True:
            if verdict["passed"]:
                verdict = self._keep(self.release, verdict)
                if verdict["passed"]:
                    break
                self.passed_before = True
                self.actor.update(verdict={})
            if verdict["class"] == "gate_error":
                self._settle_failed(verdict, f"{verdict['msg']} The containers are left as they are.")
                return
            follows = watch.after_failure(self.passed_before, verdict["class"], attempt, attempts, self.fallback, self.switched)
            if follows != watch.RETRY and not self.actor.outcome()["verdict"]:
                self._report(verdict)
            self.hold_off()
            if follows == watch.RETURN and self.actor.outcome().get("returning"):  # continued after a restart of the agent
                self._return(verdict)
                return
            label = self.release if attempt == 1 else f"{self.release}-attempt{attempt}"
            wrong = self._halt_failed(label, wait=follows == watch.RETRY)
            if wrong:
                self._settle_failed(verdict, f"{verdict['msg']} No release is started: {self._unknown(wrong)}", release="", resumes=self._resumes("node_lost"))
                return
            if follows != watch.RETRY:
                self._give_up(verdict, follows, attempt)
                return
            pause = watch.pause_before(attempt + 1)
            self.actor.warn(f"Attempt {attempt} of {attempts} failed, and the same release starts again in {pause:.0f} s. {verdict['msg']}")
            attempt += 1
            self.actor.update(attempt=attempt, phase="paused")
            self._lead(pause)
            verdict = self._try_again(manifest)
        self.actor.settle(self.generation, "serves", f"{self.group} serves release {self.release}.", release=self.release, unserved_seconds=self._unserved())

    def _try_again(self, manifest: dict[str, Any]) -> Verdict:
        self.hold_off()
        try:
            return self._attempt(self.release, manifest)
        except Failed as failure:
            return self._plain(failure)

    def _give_up(self, verdict: Verdict, follows: str, attempt: int) -> None:
        """End with the verdict: go back to the last good release, hold the group, or leave it stopped."""
        stopped = f"All ranks of {self.group} are stopped"
        if follows == watch.HOLD:
            text = f"Release {self.release} passed its gate before; {'this start' if attempt == 1 else f'attempt {attempt}'} of it failed. {stopped}."
            self._settle_failed(verdict, f"{verdict['msg']} {text} Run site.yml to start it again.", release="", result="held")
        elif follows == watch.STOP:
            none = "" if not self.options.get("rollback", True) else ", and no earlier release passed its gate on all of them"
            self._settle_failed(verdict, f"{verdict['msg']} {stopped}{none}.", release="")
        else:
            self._return(verdict)

    def _return(self, verdict: Verdict) -> None:
        """Start the last good release again, after a new one has failed."""
        old = self.fallback
        self.actor.event("step", f"{self.group} goes back to release {old}, the last good one")
        found = self.look(old, calls.LOST_SECONDS)
        looks = [each for each in found if isinstance(each, dict)]
        manifest = dict(looks[0].get("manifest") or {}) if looks and looks[0] is found[0] else {}
        launched = self.actor.outcome()["containers"]
        self.actor.update(returning=True)
        try:
            if launched and launched == ids(looks):
                second = self._judge(old, manifest, {})
            else:
                self._halt_before(looks)
                self.hold_off()
                second = self._attempt(old, manifest)
        except Failed as failure:
            second = self._plain(failure)
        if second["passed"]:
            second = self._keep(old, second)
        if second["passed"]:
            text = f"Release {old}, the last good one, serves again, after {self._unserved():.0f} s without service."
            self._settle_failed(verdict, f"{verdict['msg']} {text}", release=old, unserved_seconds=self._unserved())
            return
        wrong = self._halt_failed(f"{old}-rollback")
        why = second["msg"].rstrip(".")
        state = self._unknown(wrong) if wrong else f"All ranks of {self.group} are stopped: nothing serves now."
        self._settle_failed(verdict, f"{verdict['msg']} The last good release {old} did not start again either ({why}). {state}", release="")

    def _halt_failed(self, label: str, wait: bool = False) -> list[str]:
        """Stop all ranks with their evidence; return those that are not proven to be stopped. Raises Superseded.

        `wait` tells that a rank which does not answer may take as long as memory may: its node reboots, in most cases.
        """
        self.authority()
        if self.unserved_since is None:
            self.unserved_since = self.clock.monotonic()
        self.actor.update(phase="halting", containers={})
        results = self.halt(label, kill=True)  # what has failed is not to serve
        longer = float(self.options["wait_seconds"] or 0.0)
        if wait and self.lost(results) and longer > calls.LOST_SECONDS:
            self.actor.event("step", f"{self.group} waits up to {longer:.0f} s: {'. '.join(self.phrases(results))}")
            results = self.halt(label, patience=longer, kill=True)
        return self.halted(label, results)

    def _keep(self, release: str, verdict: Verdict) -> Verdict:
        """Publish and record that a release has passed. Return the verdict; that of a rank that has ended meanwhile if there is one."""
        if release == self.release and not self.actor.outcome()["verdict"]:
            self._report(verdict)
            for text in verdict.get("warnings") or []:
                self.actor.warn(text)
        self._record(release, verdict)
        judge = Judge(self.group, [rank.host for rank in self.ranks], release, {})
        looks, whole = self.readable()
        take_looks(judge, looks, 0.0)
        if not whole and not self._answers(release):
            take_misses(judge, looks)
        ended = gate.findings(judge.states)
        return judge.failed(ended[0], verdict["seconds"]) if ended else verdict

    def _record(self, release: str, verdict: Verdict) -> None:
        """Keep the receipt on all ranks. A rank that cannot is a warning: the group serves."""
        self.actor.update(phase="recording")
        rolled = self.options.get("rolled_back")
        results = self.each("record", calls.READ_LIMIT, patience=calls.LOST_SECONDS, release=release, receipt=verdict["receipt"], rolled_back=rolled)
        for index, found in enumerate(results):
            if isinstance(found, dict) and found.get("note"):
                self.actor.warn(f"{self.ranks[index].host} {found['note']}")
            if isinstance(found, Exception):
                self.actor.warn(
                    f"{self.ranks[index].host} could not record the release: {problem(found)}. Correct that and run site.yml again:"
                    " it records the release without a restart."
                )

    def _unserved(self) -> float:
        return 0.0 if self.unserved_since is None else round(self.clock.monotonic() - self.unserved_since, 1)


def ids(looks: Sequence[dict[str, Any]]) -> dict[str, str]:
    """Return the container of each rank that has just one, by the rank's number as text."""
    return {str(index): str(each["containers"][0]["id"]) for index, each in enumerate(looks) if len(each["containers"]) == 1}


def crash_label(looks: Sequence[dict[str, Any]]) -> str:
    """Return the label of the evidence of containers that ended by themselves: the same for the same crash; empty without any."""
    ended = [state for each in looks for state in each["containers"] if state["status"] in ("exited", "dead")]
    time = min((str(state.get("finished_at") or "")[:19] for state in ended), default="")
    return "crash-" + "".join(c for c in time if c.isdigit() or c == "T") if ended else ""
