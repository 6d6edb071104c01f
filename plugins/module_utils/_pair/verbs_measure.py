# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10` that load the model that serves: `check` judges replies at several concurrencies, `bench` measures with the field's tools."""

from __future__ import annotations

import argparse
import contextlib
import errno
import glob
import gzip
import json
import os
import pwd
import shutil
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench import tools
from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import RUNS, Level, compare, level_of
from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import lines as table_of
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, cases, measures
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, CommandError, Group, answer, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import looks, status_document


def served(group: Group, what: str) -> dict[str, Any]:
    """Return what is written about the release that serves: after a rollback the inventory differs from it. Raises CommandError if a rank is down."""
    group.need_head(what)
    path = os.path.join(group.folder, "current/release.json")
    try:
        release = dict(loads(bounded.text(path)))
    except (FileNotFoundError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{group.name}: nothing is known to serve on {group.host} ({path}: {reason}): run site.yml first.") from error
    found = status_document(group, argparse.Namespace(completion=False, lost=""))
    if found["faults"]:  # a request would hang for minutes
        raise CommandError(found["sentence"])
    return release


def not_serving(group: Group, problem: object) -> CommandError:
    return CommandError(f"{group.host} does not serve: {problem}. See playbooks/status.yml for the reason, and start it with site.yml.")


def need_no_soak(group: Group) -> None:
    """Raise CommandError while a soak loads the group: what is measured next to it is wrong."""
    for plan in look.soaking(group.folder):
        raise CommandError(f"{group.name}: the soak {plan['name']} has not ended. End it with `gb10 soak stop`.")


def _json_of(place: str, what: str) -> Any:
    """Return the JSON of a file, or of standard input if the place is `-`. Raises CommandError."""
    try:
        return loads(sys.stdin.read() if place == "-" else bounded.text(place))
    except ValueError as error:
        raise CommandError(f"{what} in {'standard input' if place == '-' else place} is not valid JSON: {error}.") from error


def _print(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Print lines, unless a document follows."""
    for line in [] if options.json else lines:
        show(line)


# --- `gb10 check`: it sends prompts at several concurrencies, and judges every reply.


def check(group: Group, options: argparse.Namespace) -> int:
    """Ask level by level, print what comes, and return 2 if a reply is bad."""
    try:
        prompts = cases.prompts_of(_json_of(options.prompts, "The list of prompts") if options.prompts else [])
        levels = cases.whole_numbers("The numbers of requests at once", options.concurrency, 1, 1024)
        asked = cases.cases_of(options.cases.replace(",", " ").split(), prompts, levels, options.cold_tokens)
    except cases.BenchError as error:
        raise CommandError(f"{error}.") from error
    release = served(group, "check")
    found: dict[str, Any] = {"group": group.name, **{key: release.get(key) for key in ("release", "profile", "port")}, "streams": options.streams}
    rows: list[dict[str, Any]] = []
    _print(options, cases.title_lines(found))
    before, exact = "", bool((release.get("criteria") or {}).get("batch_invariant"))
    for level, batch in asked:
        replies = _replies(group, release, options.timeout, batch, level)
        rows.append(cases.prompt_row(level, batch, replies, before, exact))
        before = str(replies[0]["text"])
        _print(options, cases.stream_lines(rows[-1]) if options.streams else cases.prompt_table(rows)[0 if len(rows) == 1 else -1 :])
    document = cases.judged(found, rows)
    answer(options, document, cases.closing_lines(document))
    if not document["passed"]:
        complain(document["sentence"])
    return 0 if document["passed"] else DIFFERS


def _replies(group: Group, release: Mapping[str, Any], timeout: float, batch: Sequence[Mapping[str, Any]], level: int) -> list[dict[str, Any]]:
    url, requests = api_probe.api_url({"port": 8000, **release}), cases.requests_of(batch)
    out = api_probe.run({"url": url, "requests": requests, "concurrency": level, "timeout": timeout, "env_file": look.key_files(group.folder)})
    problem = out.get("msg") or out.get("error") or ("" if out.get("models") else "it lists no model")
    if problem:
        raise not_serving(group, problem)
    return list(out["replies"])


# --- `gb10 bench`: it runs the tools of the role `bench` on the head, level by level, and reads the memory of all ranks meanwhile.

MEMORY_SECONDS = 5.0
GRACE_SECONDS = 60.0  # that a level which has begun may take longer than the suite
SCRATCH, PREFIX = "/var/tmp", "gb10-bench-"  # noqa: S108  mkdtemp makes a folder there; /run is memory, which the engine needs


class Memory(threading.Thread):
    """Reads the memory of all ranks, and the use of the KV cache, until `close`. A rank that does not answer has no reading."""

    def __init__(self, group: Group, server: api_probe.Server) -> None:
        super().__init__(daemon=True)
        self._group, self._server, self._ended = group, server, threading.Event()
        self.ranks: dict[str, dict[str, int]] = {host: {} for host in group.hosts}
        self.usage: float | None = None

    def run(self) -> None:
        """Read until close() is called."""
        while not self._ended.wait(MEMORY_SECONDS):
            self.take()

    def take(self) -> None:
        """Read once."""
        with contextlib.suppress(*protocol.ERRORS):
            for _number, host, seen, _why in looks(self._group):
                memory = (seen or {}).get("memory") or {}
                if memory.get("total_kib"):
                    last, available, free = self.ranks[host], memory["available_kib"], memory["free_kib"]
                    lowest = {"lowest_available_kib": min(available, last.get("lowest_available_kib", available)), "after_kib": available}
                    last.update(lowest, lowest_free_kib=min(free, last.get("lowest_free_kib", free)))
        used = (measures.kv_usage(self._server.page()), self.usage)
        self.usage = max((share for share in used if share is not None), default=None)

    def require(self, floor: float) -> None:
        """Raise BenchError if a rank has less memory than the floor, in GiB."""
        self.take()
        for host, each in self.ranks.items():
            available = each.get("after_kib", 1 << 62) / 2**20
            if available < floor:
                raise cases.BenchError(f"{host}: {available:.1f} GiB of memory are available, and the floor is {floor:g} GiB (bench_memory_floor)")

    def close(self) -> dict[str, dict[str, int]]:
        """End the thread, and return what was read."""
        self._ended.set()
        self.join(MEMORY_SECONDS)
        return self.ranks


def _tokenizer_of(model: str) -> str:
    """Return the tokenizer in a model's folder, a plain one or one of the hub's cache. Raises OSError without one, also if a link leads out of the folder."""
    found = [f"{model}/tokenizer.json", *sorted(glob.glob(f"{glob.escape(model)}/snapshots/*/tokenizer.json"), key=os.path.getmtime, reverse=True)]
    for path in found:
        if os.path.isfile(path) and os.path.realpath(path).startswith(f"{os.path.realpath(model)}/"):
            return path
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), found[0])


def _clear(owners: Sequence[int]) -> None:
    """Remove the folders of measurements that were killed: a name has the number of its process. No link is followed."""
    for path in glob.glob(os.path.join(SCRATCH, f"{PREFIX}*-*")):
        with contextlib.suppress(OSError):
            if os.lstat(path).st_uid in owners and not os.path.exists(f"/proc/{path.split('-')[-2]}"):
                shutil.rmtree(path, ignore_errors=True)


class Target:
    """The model that serves, and the tools that measure it from this node."""

    def __init__(self, group: Group, release: Mapping[str, Any]) -> None:
        """Ask the API which model it serves. Raises CommandError."""
        self.url, self.keys = api_probe.api_url({"port": 8000, **release}), look.key_files(group.folder)
        self.key = api_probe.read_key(self.keys)
        self.server = api_probe.Server(self.url, self.key, 20.0)
        self.weights = str(release.get("model") or "")
        try:
            self.user = os.geteuid() or pwd.getpwnam(tools.USER).pw_uid
            os.stat(tools.PYTHON)
        except (KeyError, OSError) as error:
            raise CommandError(f"{group.host} lacks {tools.PYTHON}, or its user {tools.USER}. Run playbooks/bench.yml, which installs both.") from error
        _clear((os.geteuid(), self.user))
        status, page = self.server.call("GET", "/v1/models")
        try:
            model = api_probe.models_of(page)[0] if status == 200 else {}
            self.context, self.model = model["max_model_len"], str(model["id"])
            if not self.model.isprintable() or self.model[:1] in ("-", ""):  # it becomes an argument of a command
                raise ValueError(self.model)
        except (ValueError, LookupError) as error:
            reason = "its list of models is not valid" if status == 200 else f"HTTP {status}" if status else page[:120]
            raise not_serving(group, f"{self.url}/v1/models: {reason}") from error

    @contextlib.contextmanager
    def folder(self, level: Level) -> Iterator[str]:
        """Make the only folder that a tool writes to, with what it reads. Raises OSError."""
        given = [("data/ifeval/prompts.jsonl", tools.IFEVAL)] if level.case == "ifeval" else []
        given += [("tokenizer.json", _tokenizer_of(self.weights)), (tools.BOOK_PLACE, tools.BOOK)] if level.tool == tools.BENCHY else []
        folder = tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-", dir=SCRATCH)
        try:
            for name, source in given:
                place, content = os.path.join(folder, name), bounded.data(source)
                os.makedirs(os.path.dirname(place), exist_ok=True)
                with open(place, "wb") as copy:
                    copy.write(gzip.decompress(content) if source.endswith(".gz") else content)
            if os.geteuid() == 0:
                for path, _folders, names in os.walk(folder):
                    for each in (path, *(os.path.join(path, name) for name in names)):
                        os.lchown(each, self.user, -1)
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def send(self, level: Level, seconds: float) -> tuple[list[dict[str, Any]], Any]:
        """Send the requests of a level that no tool sends, and return its rows and what came back. Raises BenchError."""

        def ask(requests: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
            given = [dict(each) for each in requests]
            found = api_probe.ask(self.url, self.keys, given, self.model, len(given), max(1.0, end - time.monotonic()))
            if not found["models"]:
                raise cases.BenchError(found["error"] or f"{self.url}/v1/models lists no model")
            return list(found["replies"])

        runs, end = [], time.monotonic() + seconds
        for number in range(1 + RUNS):  # the first warms up
            requests, other = (tools.requests_of(level, os.urandom(4).hex()) for _each in range(2))
            first = ask([{**other[0], "max_tokens": 1, "body": {}}])[0]["seconds"] if level.concurrency == 1 else 0.0
            replies = ask(requests)
            runs += [(requests, replies, first)] if number else []
        result = [[{key: each[key] for key in ("seconds", "completion_tokens")} for each in replies] for _requests, replies, _first in runs]
        return tools.own_rows(level, runs), result

    def measure(self, level: Level, memory: Memory, seconds: float) -> tuple[list[dict[str, Any]], Any]:
        """Measure one level, and return its rows and the result of its tool. Raises BenchError."""
        before, memory.usage = self.server.page(), None
        rows, result = self.send(level, seconds) if level.tool == tools.OWN else self.run(level, seconds)
        memory.take()
        return rows + tools.share_rows(level, before, self.server.page(), memory.usage), result

    def run(self, level: Level, seconds: float) -> tuple[list[dict[str, Any]], Any]:
        """Run the tool of a level, and return its rows and its result. Raises BenchError."""
        try:
            with self.folder(level) as folder:
                argv = tools.argv(level, self.url, self.model, folder, os.geteuid() == 0, self.context)
                code, out, err = run_command(argv, seconds, folder, stdin=f"{self.key}\n")
        except OSError as error:
            raise cases.BenchError(f"{level.name} needs {error.filename or SCRATCH}: {error.strerror}. See the README of the role bench") from error
        known = [self.key] if self.key else []
        if code:
            raise cases.BenchError(f"{level.tool}: {tools.reason_of(code, redact.without(err, known), seconds)}")
        result = redact.without(out, known)
        return tools.rows_of(level, result), loads(result)


def _last_of(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return what was measured of each level of this profile before, and keep what was measured now, on this node."""
    path = os.path.join(tools.FOLDER, f"last-{found['group']}-{os.path.basename(str(found['profile']))}.json")
    try:
        last = [dict(each) for each in loads(bounded.text(path))]
    except (OSError, ValueError, TypeError):  # the first time
        last = []
    kept = {(level_of(each), str(each.get("quantity"))): each for each in [*last, *rows]}
    with contextlib.suppress(OSError):  # a disk that is full must not take what was measured
        write_atomically(path, json.dumps(list(kept.values())), 0o644)
    return last


def bench(group: Group, options: argparse.Namespace) -> int:
    """Measure the levels of a suite, print what they take and what was measured, and return 2 if that ends early."""
    release = served(group, "bench")
    need_no_soak(group)
    given = _json_of(options.given, "What is measured") if options.given else {}
    fault = bounded.misfit(given, tools.GIVEN)
    if fault:
        raise CommandError(f"What is measured is not valid: {fault}.")
    found = {"group": group.name, "suite": options.suite, **{key: release.get(key) for key in ("release", "profile")}, "time": text.stamp()}
    published = (given.get("published") or []) if given.get("profile") == found["profile"] else []
    target, streams = Target(group, release), (release.get("settings") or {}).get("max-num-seqs")
    try:
        asked = options.cases.replace(",", " ").split()
        levels = tools.plan(options.suite, asked, given.get("levels") or [], published, target.context or 1 << 62, int(streams or 1))
    except cases.BenchError as error:
        raise CommandError(f"{error}.") from error
    start, budget = time.monotonic(), options.budget or tools.BUDGETS["seed" if given.get("levels") else options.suite]
    if options.plan:
        answer(options, {"schema": tools.PLAN, "group": group.name, "lines": [f"{group.name}: {tools.estimate(levels, target.context, budget)}."]}, [])
        return 0
    memory, rows, results, notes, ended = Memory(group, target.server), list[dict[str, Any]](), list[dict[str, Any]](), list[str](), ""
    _print(options, ["", tools.title(found), ""])
    memory.start()
    try:
        for number, level in enumerate(levels, 1):
            left = start + budget - time.monotonic()
            reason = tools.unfit(level, target.context, left)
            if reason:
                notes.append(f"{group.name}: {level.name} was not measured: {reason}.")
                continue
            memory.require(options.memory_floor)
            seen = measures.sample(target.server.page())
            others = seen.running + seen.waiting if seen else 0
            notes += [f"{group.name}: {level.name} was measured next to {others} requests of other clients, which change its figures."] if others else []
            _print(options, [tools.progress(number, levels, left)])
            measured, result = target.measure(level, memory, left + GRACE_SECONDS)
            rows += measured
            results.append({"name": f"{number}.{level.tool}.json", "result": result})
    except (cases.BenchError, OSError) as error:  # OSError: the key cannot be read any more
        ended = text.printable(f"{group.name}: {error}.")  # a tool's text: an async result skips NodeResults
    document = {"schema": tools.SCHEMA, **found, "seconds": round(time.monotonic() - start, 1), "rows": rows, "memory": memory.close()}
    compared = compare(rows, published, _last_of(found, rows))
    lines = [*table_of(compared), "", *notes, *tools.memory_lines(document["memory"])]
    more = {"compared": compared, "results": results, "notes": notes, "ended": ended}
    answer(options, {**document, **more, "lines": [tools.title(found), "", *lines]}, ["", *lines])
    if ended:
        complain(ended)
    return DIFFERS if ended else 0
