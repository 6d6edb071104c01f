# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read what preflight judges of one node: its facts (_node/facts.py), and its agent: whether it answers, and the head's path to the workers.

Reads only. A captured tree has recorded answers below cmd/: agent-peers.json (head) or agent-hello.json (worker), and sshd.txt.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.command import run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Node, no_commands
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import capture_of, find_ssh_connection
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import foreign_config
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts, parse
from ansible_collections.gb10.cluster.plugins.module_utils._pair import config, protocol, sshd
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import RankError

Record = dict[str, Any]
Call = Callable[..., Record]

HELLO_SECONDS = 5.0
PEERS_SECONDS = 20.0  # more than the agent gives its workers


def read(options: Mapping[str, Any], find: Callable[[str], str | None], root: str = "/") -> Record:
    """Return what the module preflight_info documents. `options` are its own, `find` returns the path of a program."""
    capture = capture_of(root, run_command, find)
    node = Node(root, facts.live_runner(find) if root == "/" else no_commands)
    found = {**facts.gather(node, capture, find_ssh_connection(capture), foreign_config(capture), options), "agent": gather(node)}
    return {**found, "reboot_reasons": parse.reboot_reasons(found)}


def recorded_call(node: Node) -> Call:
    """Return a function that reads a verb's result from a captured tree."""

    def call(verb: str, **_options: Any) -> Record:
        text = node.read(f"/cmd/agent-{verb}.json")
        if text is None:
            raise protocol.AgentMissing("no recording")
        return dict(loads(text))

    return call


def head_address(text: str) -> str:
    """Return the first address in from= of the agent's authorized_keys; empty if there is none."""
    match = re.search(r'from="([^",]+)', text)
    try:
        return str(ipaddress.ip_address(match[1])) if match else ""
    except ValueError:
        return ""


def sshd_problems(node: Node, head: str) -> list[str]:
    """Return one sentence for each setting of a worker's sshd that keeps the head's key from working."""
    address = head_address(node.read(config.AUTHORIZED) or "")
    if not address:
        return []
    recorded = node.read("/cmd/sshd.txt")
    rc, text = (0, recorded) if recorded is not None else sshd.output(node, config.USER, head, address)
    return sshd.problems_of(node, head, address, rc, text)


def gather(node: Node, call: Call | None = None) -> Record:
    """Return the facts of the agent; `call` stands in for the socket. A node without an agent has no other key than `installed`."""
    try:
        known = node.mapping(config.CONFIG)
        group, rank, head = str(known["group"]), int(known["rank"]), str(known["hosts"][0])
    except (ValueError, KeyError, IndexError, TypeError):
        return {"installed": False}
    if not node.exists(config.UNIT_FILE):
        return {"installed": False}
    found: Record = {
        "installed": True, "group": group, "rank": rank, "active": True, "error": "", "peers": [], "sshd_problems": [],
    }  # fmt: skip
    call = call or (protocol.call if node.root == "/" else recorded_call(node))
    try:
        if rank:
            call("hello", timeout=HELLO_SECONDS)
        else:
            found["peers"] = list(call("peers", timeout=PEERS_SECONDS).get("peers") or [])
    except PermissionError:
        return {**found, "active": None, "error": "only root may ask the agent"}
    except protocol.AgentMissing as error:
        found.update(active=False, error=error.cause)
    except RankError as error:
        # An agent that refuses is running.
        if error.kind == "failed":
            found.update(active=False, error=str(error).rstrip("."))
    if rank:
        found["sshd_problems"] = sshd_problems(node, head)
    return found
