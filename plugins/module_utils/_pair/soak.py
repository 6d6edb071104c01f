# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommand `gb10 soak`: hours of load on the model that serves, by a unit of the head, with a sample a minute and a verdict.

A soak is a folder: its plan, its samples, one line each, and at its end its verdict, which is the receipt. Who runs it holds the lock of its samples.
An A/B test is two of them. The plan of the first has `against`, the other release. The plan of the second has `first`, the name of the first soak, and
`back`, the release that serves again after it.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import fcntl
import io
import json
import os
import re
import shutil
import signal
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench.verdict import LONGEST_GAP, UCX_PAIR, verdict
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, cases, measures, reply
from ansible_collections.gb10.cluster.plugins.module_utils._node import node, releases
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, CommandError, Group, answer
from ansible_collections.gb10.cluster.plugins.module_utils._pair.files import Folder
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_change import rollback
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_measure import need_no_soak, not_serving, served
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import ask

UNIT = "gb10-soak"
SAMPLES, NAME = "samples.jsonl", "%Y%m%dT%H%M%SZ"
KEPT, KERNEL_LINES = 10, 3  # soaks; lines of a rank in a sample
LONGEST_HOURS, MOST_SAMPLES, LONGEST_PAUSE = 24 * 31, 50_000, 3600.0
REQUEST_SECONDS, PROBE_SECONDS = 900.0, 300.0
BEGIN_SECONDS, END_SECONDS, LOCK_SECONDS = 15.0, 60.0, 1.0
CALM_SECONDS = 5.0  # after a request that failed
LOOK_SECONDS, RANKS_SECONDS = 5.0, 120.0  # between two looks whether something has changed; for agents that come back after a power failure
BY = "gb10 soak"  # desires the releases of an A/B test
_SERVED = "vllm:request_success_total"

# --- The files of a soak, and what loads and reads.


class Soak:
    """The files of one soak."""

    def __init__(self, group: Group, name: str) -> None:
        self.name, self.folder = name, Folder(group.folder, protocol.SOAKS, name)
        self.plan: dict[str, Any] = self.folder.load(look.PLAN) or {}
        self._handle: int | None = None

    def lock(self) -> bool:
        """Take the lock of the samples, and return whether this process has it."""
        if self._handle is None:
            handle = os.open(self.folder.path(SAMPLES), os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                self._handle = handle
            except OSError:
                os.close(handle)
        return self._handle is not None

    def runs(self) -> bool:
        """Whether another process runs this soak."""
        if not self.lock() or self._handle is None:
            return True
        os.close(self._handle)
        self._handle = None
        return False

    def append(self, sample: Mapping[str, Any]) -> None:
        """Write a sample durably. Call lock() first."""
        if self._handle is not None:
            size = os.fstat(self._handle).st_size
            cut = b"\n" if size and os.pread(self._handle, 1, size - 1) != b"\n" else b""  # the process before was killed while it wrote
            os.write(self._handle, cut + json.dumps(sample, separators=(",", ":")).encode() + b"\n")
            os.fsync(self._handle)

    def samples(self) -> list[dict[str, Any]]:
        """Return the samples. A line that is cut off is left out."""
        found = []
        for line in (self.folder.text(SAMPLES) or "").splitlines():
            with contextlib.suppress(ValueError):
                found.append(dict(loads(line)))
        return found

    def wanted(self) -> bool:
        """Whether the soak is to go on: its plan is there, and it was not stopped."""
        return bool(look.soak_that_goes_on(self.folder))

    def end(self, refused: str = "", lost: str = "") -> None:
        """Write the verdict, which ends the soak. `refused` is why the other release of an A/B test does not serve, `lost` why the first one does not."""
        found, back = verdict(self.plan, self.samples()), self.plan.get("back")
        refused, lost = text.printable(refused), text.printable(lost)  # of a container's log: an async result skips NodeResults
        if refused:
            found.update(verdict="failed", findings=[refused], sentence=f"{found['group']}: release {found['release']} was not soaked: it does not serve.")
        found["notes"] += [f"Release {back} does not serve again: {lost}" if lost else f"Release {back} serves again."] if back else []
        self.folder.save(look.SOAKED, {**found, "time": text.stamp(), **({"lost": lost} if lost else {})})

    def document(self) -> dict[str, Any]:
        """Return the receipt, or the verdict on the samples until now."""
        found = self.folder.load(look.SOAKED) or {**verdict(self.plan, self.samples()), "state": "running" if self.runs() else "interrupted"}
        return {"state": "ended", **found, **{key: self.plan[key] for key in ("label", "first") if self.plan.get(key)}}


class Load:
    """The users of a soak, each in a thread of its own that ends with the process."""

    def __init__(self, plan: Mapping[str, Any], url: str, key: str, number: int) -> None:
        """Begin. `number` is how many samples there are: a load that begins again does not repeat its requests."""
        self.plan, self.url, self.key, self.ended = plan, url, key, threading.Event()
        self.seconds = 0.0  # of soak, for the bursts
        self._seed, self._errors = f"{plan['seed']}/{number}" if number else str(plan["seed"]), collections.deque[str]()
        for user in range(plan["users"]):
            threading.Thread(target=self._user, args=(user,), daemon=True, name=f"user-{user}").start()

    def _user(self, user: int) -> None:
        for request in cases.requests(self._seed, user, self.plan["context"], self.plan["pause"]):
            if self.ended.wait(0 if cases.bursts(self._seed, self.seconds) else request.pause):
                return
            prompt = cases.text_of(request, self.plan["tokens_per_word"])
            server = api_probe.Server(self.url, self.key, request.cancel_after or REQUEST_SECONDS)  # it closes the connection, and the engine aborts
            asked = cases.asked_of(request, prompt, self.plan.get("cases") or [])
            found = server.complete(self.plan["model"], asked)
            error = "" if found["ok"] or (request.cancel_after and found["error"].startswith(api_probe.NO_REPLY)) else found["error"]
            if found["ok"] and "expect" in asked:
                error = "; ".join(f"{each} (case {request.case})" for each in reply.faults(asked["prompt"], found, asked["expect"]))
            self._errors.append(error)
            if error and self.ended.wait(CALM_SECONDS):
                return

    def taken(self) -> list[str]:
        """Return the error of each request that has ended since this was called last; empty for one that is good, or was given up."""
        return [self._errors.popleft() for _each in range(len(self._errors))]


class Sampler:
    """Reads what a sample has."""

    def __init__(self, group: Group, plan: Mapping[str, Any], server: api_probe.Server, samples: Sequence[Mapping[str, Any]]) -> None:
        self.group, self.plan, self.server, self.last = group, plan, server, dict(samples[-1]) if samples else {}
        self.release = ""  # that runs
        known = next((dict(each) for each in reversed(samples) if each.get("engine")), dict[str, Any]())
        self._engine, self._served, self._pending = str(known.get("engine") or ""), known.get("served"), 0
        self._at: float | None = None  # None: the soak was away since the last sample
        self._drafts, self._key = dict[str, Any](), ""
        self._since, self._lines = text.stamp(self.last.get("time") or plan["started"]), dict[str, list[Any]]()

    def take(self, load: Load) -> dict[str, Any]:
        """Return a sample. The decode speed is that of one short request next to the users' ones."""
        page = self.server.page()
        decode = self.server.complete(self.plan["model"], measures.SHORT_DECODE) if page else {}
        figures, drafts, seen, now = measures.sample(page), measures.draft_counters(page), list(self._ranks()), time.monotonic()
        ended = self._accepted([*load.taken(), *([decode["error"]] if decode else [])], load)
        errors = [text.printable(each)[:200] for each in ended if each]
        growth, usage = measures.draft_growth(self._drafts, drafts), measures.kv_usage(page)
        lost = next((str(each["lost"]) for each in seen if each["lost"]), "" if page else "the API did not answer")
        engine = "" if lost else ",".join(str(each["engine"]) for each in seen)
        gap, self._pending = self._gap(lost, engine), self._pending + len(ended)
        sample = {
            "time": round(time.time(), 3), "seconds": round(self.last.get("seconds", 0.0) + (0.0 if gap or self._at is None else now - self._at), 3),
            "requests": self.last.get("requests", 0) + self._grown(engine, measures.sums_of(page, [_SERVED]).get(_SERVED)), "served": self._served,
            "failed": len(errors), "errors": errors[-1:], "gap": gap, "engine": engine,
            "tok_s": measures.speed(decode) if decode else None, "running": figures.running if figures else 0,
            "acceptance": round(100 * growth["accepted_tokens"] / growth["draft_tokens"], 2) if growth.get("draft_tokens") else None,
            "kv": None if usage is None else round(100 * usage, 1), "ranks": [each["figures"] for each in seen],
            "kernel": [line for each in seen for line in each["kernel"]], "restarts": self._restarts(),
        }  # fmt: skip
        self._at, self._drafts, self.last = now, drafts, sample
        return sample

    def _accepted(self, ended: list[str], load: Load) -> list[str]:
        """Return what has ended without what the engine has refused because of a new key, which the next requests have."""
        before, self._key, refused = self._key or load.key, load.key, [each for each in ended if each.startswith("HTTP 401")]
        with contextlib.suppress(OSError):
            load.key = api_probe.read_key(look.key_files(self.group.folder)) if refused else load.key
        if load.key != self._key:
            self.server = api_probe.Server(load.url, load.key, PROBE_SECONDS)
        return [each for each in ended if each not in refused] if load.key != before else ended  # also those that were on their way

    def _restarts(self) -> dict[str, int] | None:
        """Return how often the agent has started the group again because of a fault, by cause; None if it does not answer."""
        with contextlib.suppress(*protocol.ERRORS, CommandError):
            return dict(self.group.call("state")["watch"].get("restarts") or {})
        return None

    def _gap(self, lost: str, engine: str) -> str:
        """Return why what was before this sample is not judged; empty if it is."""
        if self._at is None and self.last:
            return f"the soak did not run for {text.duration(time.time() - self.last['time'])}"
        return lost or ("the engine was started again" if self._engine and engine != self._engine else "")

    def _grown(self, engine: str, counter: float | None) -> int:
        """Return how many requests were served since the last sample of an engine: by its counter, with those of other clients, else by the load."""
        if not engine:
            return 0
        before = self._served if engine == self._engine else None
        grown = self._pending if counter is None or before is None or counter < before else int(counter - before)
        self._engine, self._served, self._pending = engine, counter, 0
        return grown

    def _ranks(self) -> Iterator[dict[str, Any]]:
        """Yield what each rank shows, as its agent has read it."""
        try:
            for number, host, found, why in ask(self.group, "watch", known=-1, wait=0.0):
                shown = (found or {}).get("sample") or {}
                running = [each for each in shown.get("containers") or [] if each["running"]]
                self.release = (releases.running_release(shown) if number == 0 else "") or self.release
                memory, gpu = shown.get("memory") or {}, [*(shown.get("gpus") or [[]])[0], *[None] * 5]
                available = round(memory.get("available_kib", 0) / 1024, 1)
                figures = {"host": host, "available_mib": available, "power_w": gpu[0], "clock_mhz": gpu[2], "temperature_c": gpu[4]}
                yield {
                    "figures": figures if available else None, "kernel": self._news(host, shown["kernel"]) if "kernel" in shown else [],
                    "engine": ",".join(f"{each['id'][:12]}@{each['started_at'][:19]}" for each in running),
                    "lost": f"{host} did not answer ({why})" if found is None else "" if running else f"rank {number} on {host} did not run",
                }  # fmt: skip
        except (*protocol.ERRORS, CommandError):
            yield {"figures": None, "kernel": [], "engine": "", "lost": f"the agent of {self.group.host} did not answer"}

    def _news(self, host: str, lines: list[Any]) -> list[str]:
        """Return the lines that the reading before did not have: a clock can be set back."""
        before, self._lines[host] = self._lines.get(host), lines
        new = [each["text"] for each in lines if (each["at"] >= self._since if before is None else each not in before)]
        return [f"{host}: {each[:200]}" for each in new[:KERNEL_LINES]]


# --- What the unit runs.


def _run(group: Group, soak: Soak) -> int:
    """Load the model and take samples until the soak's hours are over or it is stopped. SIGTERM ends the process, not the soak.

    A first soak of an A/B test is followed by the second one, if no one has stopped it or changed the release.
    """
    end = time.monotonic() + LOCK_SECONDS  # others look whether it is held
    while not soak.lock():
        if time.monotonic() > end:
            raise CommandError(f"{group.name}: the soak {soak.name} runs already.")
        time.sleep(0.05)
    if not soak.wanted():  # it was stopped before systemd started it again
        return 0
    ended, samples = threading.Event(), soak.samples()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: ended.set())
    refused = _enter(group, soak) if soak.plan.get("back") and not samples else ""
    full = not refused and _load(group, soak, samples, ended)
    if ended.is_set() or not os.path.isdir(soak.folder.path()):  # absent removes it
        return 0
    second = _second(group, soak.plan) if full and soak.plan.get("against") else None
    _finish(group, soak, refused)
    return _run(group, second) if second else 0


def _load(group: Group, soak: Soak, samples: list[dict[str, Any]], ended: threading.Event) -> bool:
    """Load the model and take samples. Return whether the hours are over, on the same release, and no one has stopped it."""
    plan, serves = soak.plan, time.monotonic()
    if samples and samples[-1]["seconds"] >= 3600 * plan["hours"]:  # it was killed on its way back
        return True
    url, key = api_probe.api_url({"port": 8000, **plan["api"]}), api_probe.read_key(look.key_files(group.folder))
    sampler, load = Sampler(group, plan, api_probe.Server(url, key, PROBE_SECONDS), samples), Load(plan, url, key, len(samples))
    full = other = False
    while not (full or other) and soak.wanted() and not ended.is_set() and time.monotonic() - serves <= LONGEST_GAP:
        begun = time.monotonic()
        sample = sampler.take(load)
        soak.append(sample)
        load.seconds, serves = sample["seconds"], serves if sample["gap"] else time.monotonic()
        full, other = sample["seconds"] >= 3600 * plan["hours"], sampler.release not in ("", plan["release"])
        while not (full or other) and soak.wanted() and not ended.is_set() and (left := begun + plan["interval"] - time.monotonic()) > 0:
            ended.wait(min(left, 1.0))
    load.ended.set()
    return full and not other and soak.wanted()


def _second(group: Group, plan: Mapping[str, Any]) -> Soak:
    """Write the plan of the second soak of an A/B test: the same load, on the other release."""
    now = max(time.time(), plan["started"] + 1)  # the names of both are times
    soak = Soak(group, time.strftime(NAME, time.gmtime(now)))
    soak.plan = {**plan, "name": soak.name, "release": plan["against"], "first": plan["name"], "back": plan["release"], "against": "", "started": now}
    soak.folder.save(look.PLAN, soak.plan)
    return soak


def _enter(group: Group, soak: Soak) -> str:
    """Serve the other release of an A/B test, and write what its plan has of it. Return why it does not serve."""
    plan, first = soak.plan, Soak(group, soak.plan["first"])
    if not first.folder.exists(look.SOAKED):  # it was killed in between
        first.end()
    refused = _serve(group, plan["release"], plan["back"])
    if refused:
        return refused
    try:
        release = served(group, "soak run")
        found = _described(group, release)[0]
    except CommandError as error:
        return str(error)
    known = cases.cases_known(release, found["context"])
    soak.plan = {**plan, **found, "context": min(plan["context"], found["context"]), "cases": [each for each in plan["cases"] if each in known]}
    soak.folder.save(look.PLAN, {**soak.plan, "wanted": soak.wanted()})
    return ""


def _serve(group: Group, release: str, other: str) -> str:
    """Go to a release of an A/B test from the other one, and return why it does not serve. A stop or another release is that of a person, and stays."""
    end, printed = time.monotonic() + RANKS_SECONDS, io.StringIO()
    while not _answers(group) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    current = node.current_of(group.folder)
    if current not in (release, other) or node.stopped_of(group.folder):
        return "The group was stopped meanwhile." if current in (release, other) else f"The release {current} was started meanwhile."
    given = argparse.Namespace(release=release, by=BY, list=False, check=False, again=True, wait=True, json=True)
    try:
        given.takeover = group.call("state")["desired"].get("by") == BY  # it was stopped while the other one boots
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(printed):
            code = rollback(group, given)
    except (*protocol.ERRORS, CommandError) as error:
        return str(error)
    return " ".join(printed.getvalue().split()) if code else ""


def _answers(group: Group) -> bool:
    """Whether the agents of all ranks answer."""
    with contextlib.suppress(*protocol.ERRORS, CommandError):
        return all(found is not None for _number, _host, found, _why in ask(group, "hello"))
    return False


def _finish(group: Group, soak: Soak, refused: str = "") -> None:
    """End a soak. After the second one of an A/B test the first release serves again."""
    back = soak.plan.get("back")
    soak.end(refused, _serve(group, back, soak.plan["release"]) if back else "")


# --- The actions of a person.


def _systemd_run(group: Group) -> str:
    """Start the unit of the soak that goes on, and return why it does not. It comes back after a failure; after a reboot the agent starts it.

    Its command has no name: the second soak of an A/B test comes back in the unit of the first.
    """
    words = ["systemd-run", "--quiet", "--collect", f"--unit={UNIT}", f"--description=gb10.cluster: soak of {group.name}"]
    starts = ("Restart=on-failure", "RestartSec=10", "StartLimitIntervalSec=600", "StartLimitBurst=5")  # not for ever, as while the disk is full
    words += [f"--property={each}" for each in (*starts, "MemoryMax=1G", "OOMScoreAdjust=500", "TimeoutStopSec=20")]
    code, out, err = run_command([*words, protocol.PROGRAM, "soak", "run"], 30.0)
    return f"systemd-run could not start {UNIT} ({(err or out).strip() or code})" if code else ""


def _described(group: Group, release: Mapping[str, Any]) -> tuple[dict[str, Any], api_probe.Server]:
    """Return what the plan of a soak has of the release that serves, and its server. Raises CommandError."""
    api: dict[str, Any] = {key: release[key] for key in ("host", "port") if key in release}
    url, files = api_probe.api_url({"port": 8000, **api}), look.key_files(group.folder)
    asked = api_probe.run({"url": url, "requests": [], "timeout": PROBE_SECONDS, "env_file": files})
    if not asked.get("models"):
        raise not_serving(group, asked.get("msg") or asked.get("error") or "it lists no model")
    server = api_probe.Server(url, api_probe.read_key(files), 20.0)
    if not server.page():  # each sample would be a gap
        raise not_serving(group, "/metrics does not answer")
    model, compose = asked["models"][0], bounded.text(os.path.join(group.folder, "current", releases.COMPOSE))
    missing = [each for each in UCX_PAIR if not re.search(rf"^ *{each}:", compose, re.MULTILINE)]
    names = {key: release.get(key) for key in ("release", "profile")}
    return {**names, "api": api, "model": model["id"], "context": model["max_model_len"] or 4096, "missing_env": missing}, server


def _start(group: Group, options: argparse.Namespace) -> dict[str, Any]:
    release = served(group, "soak start")
    least = 3600 * options.hours / MOST_SAMPLES
    if not (0 < options.hours <= LONGEST_HOURS and least <= options.interval <= LONGEST_PAUSE and 0 <= options.pause <= LONGEST_PAUSE):  # also not NaN
        found = f"{options.hours:g} hours, an interval of {options.interval:g} s and a pause of {options.pause:g} s"
        limits = f"up to {LONGEST_HOURS} hours, at most {MOST_SAMPLES} samples, an interval and a pause of up to {LONGEST_PAUSE:g} s"
        raise CommandError(f"A soak of {found} is not possible. Use {limits}.")
    if options.against and (options.against == release.get("release") or not os.path.isdir(os.path.join(group.folder, "releases", options.against))):
        raise CommandError(f"{group.host} keeps no release {options.against} besides the one that serves. See `gb10 rollback --list`.")
    served_now, server = _described(group, release)
    tokens_per_word = _tokens_per_word(server, served_now["model"])
    need_no_soak(group)  # last: another person may start one as well
    soak = Soak(group, time.strftime(NAME, time.gmtime()))
    name = soak.name
    soak.folder.save(look.PLAN, {
        "group": group.name, "name": name, **served_now, "hours": options.hours, "seed": options.seed or name, "interval": options.interval,
        "pause": options.pause, "users": cases.users_of(release.get("settings") or {}), "tokens_per_word": tokens_per_word,
        "cases": cases.cases_known(release, served_now["context"]), "against": options.against, "label": options.label, "restarts": options.restarts,
        "started": time.time(), "wanted": True,
    })  # fmt: skip
    Folder(group.folder, protocol.SOAKS).prune(KEPT, name)
    problem, end = _systemd_run(group), time.monotonic() + BEGIN_SECONDS
    while not (problem or soak.runs()):
        time.sleep(0.1)
        if time.monotonic() > end:
            problem = f"{UNIT} does not run: see `journalctl -u {UNIT}`"
            run_command(["systemctl", "stop", f"{UNIT}.service"], END_SECONDS)
    if problem:  # a unit that systemd-run has refused to start may be that of another person
        shutil.rmtree(soak.folder.path(), ignore_errors=True)
        raise CommandError(f"{group.name}: {problem}.")
    return Soak(group, name).document()


def _tokens_per_word(server: api_probe.Server, model: str) -> float:
    """Return how many tokens the server counts for each word of the users' texts; 1.5 if it does not count."""
    words = cases.text_of(cases.Request(0.0, "count", 256, 1, None)).split()
    status, reply = server.call("POST", "/tokenize", {"model": model, "prompt": " ".join(words)})
    with contextlib.suppress(ValueError, LookupError, TypeError):
        if status == 200:
            return max(1.0, len(loads(reply)["tokens"]) / len(words))
    return 1.5


def _stop(group: Group, soak: Soak) -> dict[str, Any]:
    soak.folder.save(look.PLAN, {**soak.plan, "wanted": False})
    end = time.monotonic() + END_SECONDS
    while soak.runs() and time.monotonic() < end:
        time.sleep(0.1)
    if soak.runs():
        run_command(["systemctl", "stop", f"{UNIT}.service"], END_SECONDS)
    if not soak.folder.exists(look.SOAKED):
        _finish(group, soak)
    return soak.document()


def _soaks(group: Group, *names: str) -> list[Soak]:
    """Return these soaks, or all that are kept: one that goes on, then the newest first. Raises CommandError."""
    kept = look.soak_names(group.folder)
    for name in names:
        if name not in kept:
            raise CommandError(f"{group.host} keeps no soak {name}. Kept: {', '.join(kept) or 'none'}.")
    found = [soak for soak in (Soak(group, name) for name in names or kept) if soak.plan]
    return found if names else sorted(found, key=Soak.wanted, reverse=True)  # its name is a time, and a clock can be set back


def _lines(document: Mapping[str, Any]) -> list[str]:
    down = f"It does not run now. If that lasts, see `journalctl -u {UNIT}`, such as for a full disk, then run `gb10 soak resume`."
    more = {"running": ["It runs."], "interrupted": [down]}.get(document["state"], [])
    figures = text.table(("figure", document["name"]), document["figures"]) if document["figures"] else []
    return [document["sentence"], *more, *document["findings"], *document["notes"], *(["", *figures] if figures else [])]


def _compared(documents: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return two soaks next to each other."""
    both = [dict(each["figures"]) for each in documents]
    head = [[key, *(each[key] for each in documents)] for key in ("release", "profile", "seed", "verdict", "hours", "requests")]
    head += [["with", None, documents[-1]["label"]]] if documents[-1].get("label") else []
    rows = [[name, *(each.get(name) for each in both)] for name in dict.fromkeys(name for each in both for name in each)]
    more = [each for one in documents for each in (one["sentence"], *one["findings"], *one["notes"])]
    return ["", *text.table(("", *(each["name"] for each in documents)), [*head, *rows]), "", *more]


def _resume(group: Group) -> str:
    """Start the unit of the soak that goes on, if it does not run. Return why that fails."""
    found = _soaks(group)[:1]
    return _systemd_run(group) if found and found[0].wanted() and not found[0].runs() else ""


def soak(group: Group, options: argparse.Namespace) -> int:
    """Start, stop, show or compare soaks. Return 2 for a verdict that has failed, and if the first release of an A/B test does not serve again."""
    group.need_head("soak")
    changed, names = options.action == "start", list(options.names)
    if options.action == "resume":
        if problem := _resume(group):
            raise CommandError(f"{group.name}: {problem}.")
        return 0
    if changed:
        found = [_start(group, options)]
    else:
        if options.action == "verdict" and options.wait:
            _resume(group)  # its unit may have been ended
            while look.soaking(group.folder):
                time.sleep(LOOK_SECONDS)
        soaks = _soaks(group, *names)
        if not soaks:
            raise CommandError(f"{group.name}: there was no soak yet. Start one with `gb10 soak start`.")
        if options.action == "run":
            return _run(group, soaks[0])
        if options.action == "verdict" and not names and soaks[0].plan.get("first"):
            names = [soaks[0].plan["first"], soaks[0].name]
            soaks = _soaks(group, *names)
        changed = options.action == "stop" and soaks[0].wanted()
        found = [_stop(group, soaks[0])] if options.action == "stop" else [each.document() for each in soaks[: len(names) or 1]]
    lines = _lines(found[0]) if len(found) == 1 else _compared(found)
    answer(options, {**found[0], "changed": changed, "lines": lines, "compared": found[1:] and found}, lines)
    failed = found[0]["verdict"] == "failed" if len(found) == 1 else found[-1].get("lost")
    return DIFFERS if options.action == "verdict" and failed else 0
