"""A fake ssh that replays replies of `gb10 follow`, for the tests of the event source."""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

SSH = """#!{python}
import json, pathlib, sys, time
folder = pathlib.Path({folder!r})
with (folder / "calls").open("a+") as calls:
    print(json.dumps(sys.argv[1:]), file=calls, flush=True)
    calls.seek(0)
    number = len(calls.readlines())
replies = json.loads((folder / "replies.json").read_text())
if number > len(replies):
    time.sleep(60)
reply = replies[number - 1]
sys.stdout.write(reply["out"])
sys.stderr.write(reply["err"])
sys.exit(reply["rc"])
"""


def event(number: int, kind: str, text: str = "", **more: object) -> dict[str, Any]:
    """An event of an agent."""
    return {"n": number, "at": "2026-11-23T10:00:00Z", "generation": 7, "kind": kind, "text": text, **more}


def reply(*events: Mapping[str, Any], generation: int = 7, **outcome: Any) -> dict[str, Any]:
    """A reply of `gb10 follow`."""
    state = {"generation": generation, "phase": "judging", "result": "", "release": "4f0c", "final": False, "sentence": "", "at": ""}
    last = max((each["n"] for each in events), default=0)
    return {"events": list(events), "next": last, "outcome": {**state, **outcome}, "desired": {"generation": generation}}


def failed(rc: int, text: str, out: str = "") -> dict[str, Any]:
    """An end of ssh without a reply."""
    return {"rc": rc, "out": out, "err": text}


def write_ssh(folder: Path, replies: Sequence[Mapping[str, Any]]) -> Path:
    """Write an ssh that gives one reply for each call, and then does not answer. Return its folder."""
    (folder / "bin").mkdir(parents=True)
    given = [each if "rc" in each else {"rc": 0, "out": json.dumps(each) + "\n", "err": ""} for each in replies]
    (folder / "replies.json").write_text(json.dumps(given), encoding="utf-8")
    (folder / "bin/ssh").write_text(SSH.format(python=sys.executable, folder=str(folder)), encoding="utf-8")
    (folder / "bin/ssh").chmod(0o755)
    return folder / "bin"


def calls(folder: Path) -> list[list[str]]:
    """The arguments of each call of ssh."""
    return [json.loads(line) for line in (folder / "calls").read_text(encoding="utf-8").splitlines()]
