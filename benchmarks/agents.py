"""The agents of the lab's nodes as tests see and disturb them: state, phases, processes, memory."""

from __future__ import annotations

import json
from typing import Any

from acceptance.owner import wait_for
from container_lab import Lab

FOLDER = "/opt/gb10-cluster/vllm_tp2/pair1"
_PID = "$(systemctl show --property MainPID --value gb10-agent)"


def state(lab: Lab, head: int = 1) -> dict[str, Any]:
    """Return desired state and outcome as the head's agent reports them; empty without an answer."""
    reply = lab.on(head, "gb10 call state 2>/dev/null || true", check=False)
    return dict(json.loads(reply)) if reply.strip() else {}


def settled(lab: Lab) -> bool:
    """Whether the agent answers and has nothing to do."""
    found = state(lab)
    return bool(found) and bool(found["outcome"].get("final"))


def pid(lab: Lab, node: int) -> int:
    """Return the process id of a node's agent; 0 if it does not run."""
    return int(lab.on(node, f"echo {_PID}").strip() or 0)


def kill(lab: Lab, node: int) -> bool:
    """Kill the agent of a node with SIGKILL; return whether systemd has started it again."""
    old = pid(lab, node)
    lab.on(node, f"kill -KILL {old}")
    return wait_for(lambda: pid(lab, node) not in (0, old), 30)


def last_event(lab: Lab) -> int:
    """Return the number of the last event."""
    return int(json.loads(lab.on(1, "gb10 follow"))["next"])


def events(lab: Lab, since: int) -> list[dict[str, Any]]:
    """Return the events after number `since`."""
    return list(json.loads(lab.on(1, f"gb10 follow --since {since}"))["events"])


def starts(lab: Lab, since: int) -> list[str]:
    """Return the text of each start of a release after event number `since`."""
    return [event["text"] for event in events(lab, since) if event["kind"] == "step" and " starts release " in event["text"]]
