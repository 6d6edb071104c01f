# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The subcommands of `gb10` that load the model that serves: `check` judges replies at several concurrencies, `bench` measures with `vllm bench serve`."""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact, text
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe
from ansible_collections.gb10.cluster.plugins.module_utils._gate import bench as load
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, protocol
from ansible_collections.gb10.cluster.plugins.module_utils._pair.commands import DIFFERS, CommandError, Group, answer, complain, show
from ansible_collections.gb10.cluster.plugins.module_utils._pair.verbs_read import looks, status_document


def _served(group: Group, what: str) -> dict[str, Any]:
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


def _not_serving(group: Group, problem: object) -> CommandError:
    return CommandError(f"{group.host} does not serve: {problem}. See playbooks/status.yml for the reason, and start it with site.yml.")


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
        prompts = load.prompts_of(_json_of(options.prompts, "The list of prompts") if options.prompts else [])
        levels = load.whole_numbers("The numbers of requests at once", options.concurrency, 1, 1024)
    except load.BenchError as error:
        raise CommandError(f"{error}.") from error
    release = _served(group, "check")
    found: dict[str, Any] = {"group": group.name, **{key: release.get(key) for key in ("release", "profile", "port")}, "streams": options.streams}
    rows: list[dict[str, Any]] = []
    _print(options, load.title_lines(found))
    for level, batch in load.batches(prompts, levels):
        rows.append(load.prompt_row(level, batch, _replies(group, release, options.timeout, batch, level)))
        _print(options, load.stream_lines(rows[-1]) if options.streams else load.prompt_table(rows)[0 if len(rows) == 1 else -1 :])
    document = load.judged(found, rows)
    answer(options, document, load.closing_lines(document))
    if not document["passed"]:
        complain(document["sentence"])
    return 0 if document["passed"] else DIFFERS


def _replies(group: Group, release: Mapping[str, Any], timeout: float, batch: Sequence[Mapping[str, Any]], level: int) -> list[dict[str, Any]]:
    url, requests = api_probe.api_url({"port": 8000, **release}), load.requests_of(batch)
    out = api_probe.run({"url": url, "requests": requests, "concurrency": level, "timeout": timeout, "env_file": look.key_files(group.folder)})
    problem = out.get("msg") or out.get("error") or ("" if out.get("models") else "it lists no model")
    if problem:
        raise _not_serving(group, problem)
    return list(out["replies"])


# --- `gb10 bench`: it runs `vllm bench serve` in the head's container, level by level, and reads the memory of all ranks meanwhile.

MEMORY_SECONDS = 5.0


class Memory(threading.Thread):
    """Reads the memory of all ranks, and the use of the KV cache, until `close`. A rank that does not answer has no reading."""

    def __init__(self, group: Group, server: api_probe.Server) -> None:
        super().__init__(daemon=True)
        self._group, self._server, self._ended = group, server, threading.Event()
        self.rounds: dict[str, list[dict[str, int]]] = {host: [] for host in group.hosts}
        self.usage: float | None = None

    def begin(self) -> None:
        """Begin a round: its lowest figures are its own."""
        for each in self.rounds.values():
            each.append({})
        self.take()

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
                    last, available, free = self.rounds[host][-1], memory["available_kib"], memory["free_kib"]
                    lowest = {"lowest_available_kib": min(available, last.get("lowest_available_kib", available)), "after_kib": available}
                    last.update(lowest, lowest_free_kib=min(free, last.get("lowest_free_kib", free)))
        usage = load.kv_usage(self._server.page())
        self.usage = usage if self.usage is None else max(self.usage, usage or 0.0)

    def require(self, floor: float) -> None:
        """Raise BenchError if a rank has less memory than the floor, in GiB."""
        self.take()
        for host, each in self.rounds.items():
            available = each[-1].get("after_kib", 1 << 62) / 2**20
            if available < floor:
                raise load.BenchError(f"{host}: {available:.1f} GiB of memory are available, and the floor is {floor:g} GiB (bench_memory_floor)")

    def close(self) -> dict[str, list[dict[str, int]]]:
        """End the thread, and return what was read in each round."""
        self._ended.set()
        self.join(MEMORY_SECONDS)
        return {host: [one for one in each if one] for host, each in self.rounds.items()}


class Target:
    """The model that serves, and the benchmark in its container."""

    def __init__(self, group: Group, release: Mapping[str, Any], timeout: int) -> None:
        """Ask the API which model it serves. Raises CommandError."""
        self.url, self.timeout, self.key = api_probe.api_url({"port": 8000, **release}), timeout, api_probe.read_key(look.key_files(group.folder))
        self.server = api_probe.Server(self.url, self.key, 20.0)
        self._exec, self._env = ["docker", "exec", f"gb10-{group.name}-rank0"], {"DOCKER_HOST": f"unix://{group.docker_socket}"}
        status, page = self.server.call("GET", "/v1/models")
        try:
            self.context = api_probe.models_of(page)[0]["max_model_len"] if status == 200 else None
            model = loads(page)["data"][0]
            self.model = str(model["id"])
        except (ValueError, LookupError, TypeError) as error:
            raise _not_serving(group, f"{self.url}/v1/models: {f'HTTP {status}' if status else page[:120]}") from error
        args = release.get("settings") or {}
        mode = args.get("tokenizer-mode")
        self.tokenizer = ["--tokenizer", str(model.get("root") or self.model), *(["--tokenizer-mode", str(mode)] if mode else [])]
        self.tokenizer += ["--trust-remote-code"] if args.get("trust-remote-code") else []

    def measure(self, level: Mapping[str, Any], memory: Memory) -> dict[str, Any]:
        """Measure one level and return its row. Raises BenchError."""
        wanted = load.longest(level)
        if self.context and wanted > self.context:
            raise load.BenchError(f"a request of the level has up to {wanted:,} tokens, and the context is {self.context:,}: use a lower depth")
        words = load.words(level, self.url, self.model, self.tokenizer, int.from_bytes(os.urandom(4), "big") >> 1, self.timeout)
        before, memory.usage = load.counters(self.server.page()), None
        code, out, err = run_command([*self._exec, *words], self.timeout + 60.0, None, self._env)
        if code:
            reason = redact.without(load.reason_of(code, err, self.timeout), [self.key] if self.key else [])
            raise load.BenchError(f"vllm bench serve in {self._exec[-1]}: {reason}")
        return load.row_of(level, out, before, load.counters(self.server.page()), memory.usage)


def bench(group: Group, options: argparse.Namespace) -> int:
    """Measure each level, once or again and again for some time, print its row, and return 2 if that ends early."""
    release = _served(group, "bench")
    given = _json_of(options.published, "The published figures") if options.published else {}
    found: dict[str, Any] = {"group": group.name, "release": release.get("release"), "profile": release.get("profile"), "time": text.stamp()}
    published = (given.get("figures") or []) if given.get("profile") == found["profile"] else []
    rate, varied = options.request_rate, options.seconds > 0
    try:
        levels = load.levels_of(options.depths, options.concurrency, options.output_tokens, options.prefix, rate, options.requests, varied)
    except load.BenchError as error:
        raise CommandError(f"{error}.") from error
    target = Target(group, release, options.timeout)
    memory, rows, ended, requests, end = Memory(group, target.server), list[dict[str, Any]](), "", list[int](), time.monotonic() + options.seconds
    _print(options, ["", load.bench_title(found), ""])
    memory.begin()
    memory.start()
    try:
        while not requests or time.monotonic() < end:
            if requests:
                memory.begin()
            requests.append(0)
            for level in levels:
                memory.require(options.memory_floor)
                rows.append(target.measure(level, memory))
                memory.take()
                requests[-1] += rows[-1]["completed"]
                _print(options, load.table(rows)[0 if len(rows) == 1 else -1 :])
    except load.BenchError as error:
        ended = text.printable(f"{group.name}: {error}.")  # the container's text: an async result skips NodeResults
    document = {"schema": load.BENCH_SCHEMA, **found, "rows": rows, "published": published, "memory": memory.close(), "ended": ended}
    more = load.figures_lines(document["memory"], requests)
    answer(options, {**document, "lines": [load.bench_title(found), "", *load.last_levels(rows), *more]}, more)
    if ended:
        complain(ended)
    return DIFFERS if ended else 0
