# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Event source of ansible-rulebook: the events of the agents of serving groups, over SSH. ansible-rulebook runs this file alone."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from typing import Any, NamedTuple

DOCUMENTATION = r"""
---
short_description: Receive the events of serving groups
description:
  - Follows the agent on the head of each serving group with C(gb10 follow), a long poll over SSH.
  - Needs OpenSSH's client, a key without a passphrase or an SSH agent, and a user that may run C(/usr/local/sbin/gb10 follow) with sudo, without a password.
  - The host key of each head must be known. There is no option that turns off the check.
  - The key C(gb10) of an event has C(group), C(host), C(kind), C(cause), C(text), C(at), C(generation), C(n) and C(seconds). Kinds are those of the agent,
    and four of this source. The limit of a playbook that an event starts is the group.
  - C(outcome) reports in C(result) that a change is C(serves), C(stopped), C(failed) or C(held); the last outcome is also reported when the source starts.
  - C(lasts) reports once a minute that a fault was not recovered yet, C(seconds) has since when.
  - C(unreachable) reports after each failed attempt that a head does not answer, C(seconds) has since when, C(cause) is C(ssh) or C(agent).
    C(reachable) reports that it answers again. The next attempt follows after 5 to 300 seconds. No event of the agent is lost.
options:
  heads:
    description:
      - The heads to follow. C(group) and C(host) are required: the names of the group and of its head in the inventory.
      - C(address) is an IP address, a host name or an alias of the SSH configuration, by default C(host).
      - C(user), C(port) and C(identity_file) are those of the SSH connection. The defaults are those of the SSH configuration.
    type: list
    elements: dict
    required: true
  known_hosts:
    description: A file with the host keys of the heads, instead of C(~/.ssh/known_hosts).
    type: str
  become:
    description: Whether the command runs with sudo. Not necessary if O(heads[].user) is root.
    type: bool
    default: true
  wait:
    description: Seconds that a head waits for an event before it replies, at most 30.
    type: float
    default: 25
  since:
    description: The number of the last event that is not reported; V(0) for all events that a head keeps. By default those before the start are not reported.
    type: int
"""

EXAMPLES = r"""
- gb10.cluster.gb10_events:
    heads:
      - {group: pair1, host: spark-1, address: 192.168.1.11, user: admin, identity_file: ~/.ssh/eda}
      - {group: pair2, host: spark-3, address: 192.168.1.13, user: admin, identity_file: ~/.ssh/eda}
    known_hosts: /etc/eda/known_hosts
"""

COMMAND = "/usr/local/sbin/gb10"
LONGEST_WAIT = 30.0
TIMEOUT = 60.0  # seconds of a poll in addition to its wait
POLL_PAUSE = 1.0  # between two polls
RETRY_PAUSE, LONGEST_PAUSE = 5.0, 300.0  # between two attempts to reach a head: the first, doubled until the longest
LASTS_SECONDS = 60.0  # between two reports of a fault that lasts
LONGEST_TEXT = 300
LONGEST_SENTENCE = 4000
LONGEST_REPLY = 32 << 20  # bytes
# No value is parsed by SSH as an option, or by a shell.
PATTERNS = {
    "group": r"[A-Za-z0-9_][\w.-]*",
    "host": r"[A-Za-z0-9_][\w.:-]*",
    "address": r"[A-Za-z0-9_:][\w.:%-]*",
    "user": r"[A-Za-z0-9_][\w.@-]*",
    "port": r"\d{1,5}",
    "identity_file": r"[^\s\"'-][^\n\"']*",
}
SSH = (
    "ssh", "-T", "-o", "BatchMode=yes", "-o", "StrictHostKeyChecking=yes", "-o", "ClearAllForwardings=yes", "-o", "ForwardAgent=no",
    "-o", "ConnectTimeout=10", "-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=2",
)  # fmt: skip


_WORD = re.compile(r"[\w.:+-]{0,120}", re.ASCII)
#: What is taken of an event, of an outcome and of the desired state: each a number, a word, a text, or true or false.
_EVENT = {"n": int, "kind": _WORD, "at": _WORD, "cause": _WORD, "generation": int, "seconds": float, "text": str}
_OUTCOME = {"generation": int, "at": _WORD, "result": _WORD, "release": _WORD, "sentence": str, "final": bool}
_DESIRED = {"generation": int}


class Lost(Exception):  # noqa: N818  a state of the connection
    """A head does not answer. The text is a sentence, `cause` is ssh or agent."""

    def __init__(self, cause: str, text: str) -> None:
        """Keep the cause."""
        super().__init__(text)
        self.cause = cause


def _plain(text: str) -> str:
    """Return a text of a machine on one line, which no rule that passes it on can evaluate as a template."""
    text = "".join(char if char.isprintable() else " " for char in text[:LONGEST_SENTENCE])
    return re.sub(r"\{(?=[{%#])", "{ ", text)


def _fits(value: Any, form: Any) -> bool:
    if form in (int, float):  # NaN is not in the range
        return isinstance(value, (int, form)) and not isinstance(value, bool) and 0 <= value < 1 << 53
    return isinstance(value, form) if isinstance(form, type) else isinstance(value, str) and bool(form.fullmatch(value))


def _taken(found: Any, form: dict[str, Any], *needed: str) -> dict[str, Any]:
    """Return what a mapping of a reply has of the keys of a form. Raises ValueError."""
    if not isinstance(found, dict):
        raise ValueError("a mapping is expected")
    taken = {key: found[key] for key in form if found.get(key) is not None}
    wrong = [key for key, value in taken.items() if not _fits(value, form[key])] or [key for key in needed if key not in taken]
    if wrong:
        raise ValueError(f"the value of {wrong[0]} is not valid")
    return taken


def _reply(data: bytes) -> dict[str, Any]:
    """Return the checked reply of `gb10 follow`. Raises ValueError, TypeError, RecursionError."""
    found = json.loads(data)
    if not {"events", "next", "outcome", "desired"} <= set(found):
        raise ValueError("a key is missing")
    if not isinstance(found["events"], list):
        raise ValueError("a list is expected")
    return {
        "events": [_taken(event, _EVENT, "n", "kind") for event in found["events"]],
        "outcome": _taken(found["outcome"], _OUTCOME),
        "desired": _taken(found["desired"], _DESIRED),
        **_taken(found, {"next": int}, "next"),
    }


class Head(NamedTuple):
    """A head, and the words of the command that reaches it."""

    group: str
    host: str
    words: tuple[str, ...]

    def event(self, kind: str, text: str, **more: Any) -> dict[str, Any]:
        """Return an event of this group."""
        at = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        plain = {"cause": "", "at": at, "generation": 0, "n": 0, "seconds": 0.0}
        return {"gb10": {**plain, **more, "group": self.group, "host": self.host, "kind": kind, "text": _plain(text)}, "meta": {"hosts": self.group}}


def heads_of(args: dict[str, Any]) -> list[Head]:
    """Return the heads of the arguments. Raises ValueError with a sentence."""
    unknown = sorted(set(args) - {"heads", "known_hosts", "become", "wait", "since", "eda_feedback_queue"})
    if unknown:
        raise ValueError(f"gb10_events has the argument {unknown[0]}, which is not supported. Supported are heads, known_hosts, become, wait and since.")
    given = args.get("heads")
    if not isinstance(given, list) or not given or not all(isinstance(each, dict) for each in given):
        raise ValueError("The argument heads of gb10_events is not a list of mappings. Each needs group and host.")
    if not re.fullmatch(r"[^\n\"]*", str(args.get("known_hosts") or "")):
        raise ValueError("The argument known_hosts of gb10_events is not a path: it contains a quotation mark or a line end.")
    return [_head(number, entry, args) for number, entry in enumerate(given, 1)]


def _head(number: int, entry: dict[str, Any], args: dict[str, Any]) -> Head:
    for key in (*dict.fromkeys(("group", "host", *entry)),):
        if key not in PATTERNS:
            raise ValueError(f"Entry {number} of heads has the key {key}, which is not supported. Supported are {', '.join(PATTERNS)}.")
        if not re.fullmatch(PATTERNS[key], str(entry.get(key, ""))):
            raise ValueError(f"Entry {number} of heads: {key} is {entry.get(key)!r}, which is not valid.")
    words = list(SSH)
    if args.get("known_hosts"):
        words += ["-o", f'UserKnownHostsFile="{args["known_hosts"]}"']
    if "identity_file" in entry:
        words += ["-i", str(entry["identity_file"]), "-o", "IdentitiesOnly=yes"]
    words += [part for flag, key in (("-p", "port"), ("-l", "user")) if key in entry for part in (flag, str(entry[key]))]
    sudo = ("sudo", "-n") if args.get("become", True) else ()
    return Head(str(entry["group"]), str(entry["host"]), (*words, "--", str(entry.get("address", entry["host"])), *sudo, COMMAND, "follow"))


async def _all(stream: Any) -> bytes:
    """Return what a stream sends until its end, or a bit more than LONGEST_REPLY bytes of it."""
    found = bytearray()
    while len(found) <= LONGEST_REPLY:
        piece = await stream.read(1 << 16)
        if not piece:
            break
        found += piece
    return bytes(found)


async def poll(head: Head, since: int, wait: float) -> dict[str, Any]:
    """Return the reply of one long poll. Raises Lost."""
    try:
        process = await asyncio.create_subprocess_exec(
            *head.words, "--since", str(since), "--wait", f"{wait:g}",
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
    except OSError as error:
        raise Lost("ssh", f"The command ssh cannot be run: {error}.") from error
    try:
        out, err = await asyncio.wait_for(asyncio.gather(_all(process.stdout), _all(process.stderr)), wait + TIMEOUT)
        if len(out) > LONGEST_REPLY:
            raise Lost("agent", f"{head.host} sent a reply of more than {LONGEST_REPLY} bytes.")
        await asyncio.wait_for(process.wait(), TIMEOUT)
    except asyncio.TimeoutError as error:  # not a TimeoutError before Python 3.11
        raise Lost("ssh", f"{head.host} has not replied after {wait + TIMEOUT:g} s.") from error
    finally:
        if process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await process.wait()
    if process.returncode:
        lines = err.decode("utf-8", "replace").strip().splitlines() or [f"exit code {process.returncode}"]
        cause, what = (
            ("ssh", "does not answer") if process.returncode == 255 or process.returncode < 0 else ("agent", "is reached, but its agent does not answer")
        )
        raise Lost(cause, f"{head.host} {what}: {lines[-1][:LONGEST_TEXT]}")
    try:
        return _reply(out)
    except (ValueError, TypeError, RecursionError) as error:
        raise Lost("agent", f"{head.host} sent a reply that is not one of `gb10 follow` ({error}).") from error


class _Fault:
    """A fault that is not recovered, and when it was received and reported last."""

    def __init__(self, event: dict[str, Any], now: float) -> None:
        self.text, self.known = event["text"], {key: event[key] for key in ("cause", "generation", "n")}
        self.since = self.reported = now


class Follower:
    """What was reported of one group."""

    def __init__(self, head: Head, since: int | None) -> None:
        """Begin after event `since`; None: with the next event."""
        self.head, self.since = head, since
        self._generation = 0
        self._outcome: tuple[Any, ...] = ()
        self._faults: dict[str, _Fault] = {}  # by cause; those that are not recovered

    def events(self, reply: dict[str, Any]) -> list[dict[str, Any]]:
        """Return what is new in a reply."""
        outcome, generation = reply["outcome"], reply["desired"].get("generation", 0)
        read = [self._event(event) for event in reply["events"] if event["n"] > (self.since or 0)]
        found = [] if self.since is None else list(read)
        self.since = reply["next"]
        if generation < self._generation:  # the agent was installed again and counts from 1
            self.since = 0
        self._generation = generation
        settled = (outcome.get("generation"), outcome.get("result"), outcome.get("at"))
        if outcome.get("final") and outcome.get("result") and settled != self._outcome:
            self._outcome = settled
            known = {key: outcome[key] for key in ("generation", "at", "result", "release") if outcome.get(key)}
            found.append(self.head.event("outcome", outcome.get("sentence", ""), n=reply["next"], **known))
        return found + self._lasting([event["gb10"] for event in read])

    def _lasting(self, read: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Return an event for each fault that is not recovered and was not reported for a minute."""
        now = time.monotonic()
        for event in read:
            if event["kind"] == "fault":
                self._faults.setdefault(event["cause"], _Fault(event, now))
            elif event["kind"] in ("recovered", "desired", "settled"):
                self._faults = {}
        due = [fault for fault in self._faults.values() if now >= fault.reported + LASTS_SECONDS]
        for fault in due:
            fault.reported = now
        return [self.head.event("lasts", fault.text, seconds=round(now - fault.since, 1), **fault.known) for fault in due]

    def _event(self, event: dict[str, Any]) -> dict[str, Any]:
        known = {key: event[key] for key in ("n", "at", "generation", "cause", "seconds") if event.get(key)}
        return self.head.event(event["kind"], event.get("text", ""), **known)


async def follow(queue: Any, head: Head, since: int | None, wait: float) -> None:
    """Put the events of one group on the queue, until this task is cancelled."""
    follower, pause, lost = Follower(head, since), RETRY_PAUSE, 0.0
    while True:
        try:
            reply = await poll(head, follower.since or 0, 0.0 if follower.since is None else wait)
        except Lost as error:
            lost = lost or time.monotonic()
            await queue.put(head.event("unreachable", str(error), cause=error.cause, seconds=round(time.monotonic() - lost, 1)))
            await asyncio.sleep(pause)
            pause = min(2 * pause, LONGEST_PAUSE)
            continue
        if lost:
            seconds = round(time.monotonic() - lost, 1)
            await queue.put(head.event("reachable", f"{head.host} answers again after {seconds:.0f} s.", seconds=seconds))
        pause, lost = RETRY_PAUSE, 0.0
        for event in follower.events(reply):
            await queue.put(event)
        await asyncio.sleep(POLL_PAUSE)


async def main(queue: asyncio.Queue[Any], args: dict[str, Any]) -> None:
    """Follow all heads."""
    heads = heads_of(args)
    wait = min(max(float(args.get("wait", 25)), 0.0), LONGEST_WAIT)
    since = None if args.get("since") is None else int(args["since"])
    await asyncio.gather(*(follow(queue, head, since, wait) for head in heads))
