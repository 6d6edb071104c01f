# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The subcommand `gb10 check`: it sends prompts at several concurrencies to the model that serves, and judges every reply."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, load_test
from ansible_collections.gb10.cluster.plugins.module_utils._pair import look, status
from ansible_collections.gb10.cluster.plugins.module_utils._pair.group import DIFFERS, CommandError, Group, answer, complain, show

SCHEMA = "gb10.cluster/sanity/1"
AGENT_HINT = "If an agent still shows garbage, see docs/tuning.md#garbled-replies: its session, its fallback models, its parameters."

Prompts = Sequence[Mapping[str, Any]]
#: Sends prompts, so many at once, and returns the replies.
Ask = Callable[[Prompts, int], list[dict[str, Any]]]


def check(group: Group, options: argparse.Namespace) -> int:
    """Ask level by level, print what comes, and return 2 if a reply is bad."""
    group.need_head("check")
    prompts = prompts_in(options.prompts)
    try:
        levels = load_test.levels_of(options.concurrency)
    except load_test.SanityError as error:
        raise CommandError(str(error)) from error
    release = _release(group)
    _require_ranks(group)
    ask = _asker(group, release, options.timeout)
    found: dict[str, Any] = {"group": group.name, **{key: release.get(key) for key in ("release", "profile", "port")}, "streams": options.streams}
    rows: list[dict[str, Any]] = []
    _print(options, title_lines(found))
    for level, batch in load_test.batches(prompts, levels):
        rows.append(load_test.row_of(level, batch, ask(batch, level)))
        _print(options, load_test.stream_lines(rows[-1]) if options.streams else load_test.table(rows)[0 if len(rows) == 1 else -1 :])
    document = judged(found, rows)
    answer(options, document, closing_lines(document))
    if not document["passed"]:
        complain(document["sentence"])
    return 0 if document["passed"] else DIFFERS


def prompts_in(place: str) -> list[dict[str, Any]]:
    """Return the prompts of a file with a JSON list, of standard input if it is `-`, or those of the collection if none are given. Raises CommandError."""
    try:
        own = loads(sys.stdin.read() if place == "-" else bounded.text(place)) if place else []
        if not isinstance(own, list):
            raise ValueError("a JSON list is expected")
        return load_test.prompts_of(own)
    except load_test.SanityError as error:
        raise CommandError(str(error)) from error
    except (TypeError, ValueError) as error:
        raise CommandError(f"The prompts in {'standard input' if place == '-' else place} are not valid: {error}.") from error


def _release(group: Group) -> dict[str, Any]:
    """Return what is written about the release that serves. After a rollback the inventory differs from it."""
    path = os.path.join(group.folder, "current/release.json")
    try:
        return dict(loads(bounded.text(path)))
    except (FileNotFoundError, TypeError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise CommandError(f"{group.name}: nothing is known to serve on {group.host} ({path}: {reason}): run site.yml first.") from error


def _require_ranks(group: Group) -> None:
    """Raise CommandError if a rank is down: a request would hang for minutes."""
    found = status.document(group, argparse.Namespace(completion=False, lost=""))
    if found["faults"]:
        raise CommandError(found["sentence"])


def _asker(group: Group, release: Mapping[str, Any], timeout: float) -> Ask:
    url, keys = api_probe.api_url({"port": 8000, **release}), look.key_files(group.folder)

    def ask(batch: Prompts, level: int) -> list[dict[str, Any]]:
        out = api_probe.run({"url": url, "requests": load_test.requests_of(batch), "concurrency": level, "timeout": timeout, "env_file": keys})
        problem = out.get("msg") or out.get("error") or ("" if out.get("models") else "it lists no model")
        if problem:
            raise CommandError(f"{group.host} does not serve: {problem}. See playbooks/status.yml for the reason, and start it with site.yml.")
        return list(out["replies"])

    return ask


def _print(options: argparse.Namespace, lines: Sequence[str]) -> None:
    """Print lines, unless a document follows."""
    for line in [] if options.json else lines:
        show(line)


def judged(found: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the document. `found` has group, release, profile, port and streams (whether a line is printed for each stream)."""
    bad = load_test.complaint(found["group"], rows)
    return {
        "schema": SCHEMA, **found, "passed": not bad, "rows": list(rows),
        "sentence": bad or f"{found['group']}: {sum(row['requests'] for row in rows)} replies, none bad. {AGENT_HINT}",
        "notes": [f"{found['group']}: {load_test.cut(rows)}"] if load_test.cut(rows) else [],
    }  # fmt: skip


def title_lines(found: Mapping[str, Any]) -> list[str]:
    """Return what is printed first."""
    return ["", f"{found['group']}: release {found['release']} of profile {found['profile']}, port {found['port']}", ""]


def closing_lines(document: Mapping[str, Any]) -> list[str]:
    """Return what is printed after the last level: bad replies, notes, and the verdict if it is good. A bad one is the message of the failure."""
    bad = load_test.fault_lines(document["rows"])
    return [*(["", *bad] if bad else []), "", *document["notes"], *([document["sentence"]] if document["passed"] else [])]


def lines(document: Mapping[str, Any]) -> list[str]:
    """Return a document as text."""
    rows = document["rows"]
    levels = [line for row in rows for line in load_test.stream_lines(row)] if document["streams"] else load_test.table(rows)
    return [*title_lines(document), *levels, *closing_lines(document)]
