# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the result of a failed task as a few lines for people. Controller only, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import printable
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh

_LONGEST, _LONGEST_LIST, _EXCERPT = 8, 160, 4
_CORE = re.compile(
    r"\A(?:(?:Task failed|Action failed|Module failed|Unexpected AnsibleActionFail error|Failed to connect to the host via ssh): ?)*"
    # The sentence of a lookup of this collection is complete.
    r"(?:(?:(?:Finalization of task args for '[^']*' failed|Error while resolving value for '[^']*'): )*The lookup plugin 'gb10\.cluster\.\w+' failed: )?"
)
# A message of the agent has the remedy before the state that the group is left in, and the role adds the evidence.
_PARTS = re.compile(r"(?<=[.!?]) (?=Remedy: |Evidence: |Release [0-9a-f]+, |The last good release |All ranks of |It is not known )")
_COMMAND = re.compile(r"`([^`\n]{3,300})`")
_NUMBERED = re.compile(r"\A(?:\d+\. |error \w+ \()")  # of the inventory check, of preflight
_RAISED = "Task failed: Module failed: "  # of a module that raised an error instead of reporting a failure
_CRASH = ("MODULE FAILURE", "Module result deserialization failed", "A worker was found in a dead state")


def _lines(value: Any) -> list[str]:
    """Return the lines of a message, which can be a list."""
    values = value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
    return [line.rstrip() for each in values for line in printable(str(each)).splitlines() if line.strip()]


def sentences(text: Any) -> list[str]:
    """Return a message as lines: the verdict, what follows from it, the evidence, the remedy, and the commands of the remedy to copy."""
    found: list[str] = []
    for line in _lines(text):
        for part in sorted(_PARTS.split(line), key=lambda part: (part.startswith("Remedy: "), part.startswith("Evidence: "))):
            commands = dict.fromkeys(_COMMAND.findall(part)) if part.startswith("Remedy: ") else ()
            found += [part, *(f"    {command}" for command in commands if " " in command)]
    return [_CORE.sub("", found[0]) or found[0], *found[1:]] if found else []


def shortened(lines: Sequence[str]) -> list[str]:
    """Return at most 8 lines, or 160 of a list of several faults."""
    limit = _LONGEST if sum(bool(_NUMBERED.match(line)) for line in lines) < 2 else _LONGEST_LIST
    return list(lines) if len(lines) <= limit else [*lines[: limit - 1], f"... {len(lines) - limit + 1} more lines; -v prints them"]


def unreachable(result: Mapping[str, Any], host: str, values: Mapping[str, Any]) -> list[str]:
    """Return why a host is unreachable with the remedy, or the reason that ssh prints, without Ansible's words around it.

    :param values: variables of the host; those that are templates are left out of the remedy.
    """
    result = next((each for each in result.get("results") or [] if isinstance(each, Mapping) and each.get("unreachable")), result)  # of a loop
    text = printable(str(result.get("msg") or "no reason given"))
    address, user, port = ("" if "{" in value else value for value in (str(values.get(f"ansible_{name}") or "") for name in ("host", "user", "port")))
    found = str(result.get("found") or ssh.found(text))
    remedy = str(result.get("remedy") or ssh.remedy(text, host, address, user, int(port) if port.isdecimal() else 22))
    if found and remedy:
        return sentences(f"{found}. Remedy: {remedy}.")
    lines = [_CORE.sub("", line) for line in _lines(text)]
    reason = next((line for line in reversed(lines) if re.search(r"(?i)denied|refused|timed out|no route|verification failed|resolve|closed", line)), lines[-1])
    return [re.sub(r"\A(?:.*? over ssh: )?(?:ssh: )?", "", reason)]


def failure(task: str, result: Mapping[str, Any]) -> list[str]:
    """Return what a failed task reports. The task's name is added where the message alone does not describe the failure."""
    if result.get("_ansible_no_log"):
        return [f"{task}: failed; its output is hidden (no_log)."]
    items = [each for each in result.get("results") or [] if isinstance(each, Mapping) and (each.get("failed") or "exception" in each)]
    if items:
        return list(dict.fromkeys(line for each in items for line in failure(task, each)))
    message = sentences(result.get("msg") or "")
    if message and (message[0].startswith(_CRASH) or str(result.get("msg")).startswith(_RAISED)):
        output = _lines(result.get("module_stderr") or result.get("module_stdout") or "")
        return [f"{task}: {message[0].rstrip('.')}.", *output[-_EXCERPT:], "Run again with -vvv for the traceback."]
    if "cmd" in result and result.get("rc") not in (0, None):
        output = _lines(result.get("stderr") or result.get("stdout") or "")
        command = _lines(result["cmd"] if isinstance(result["cmd"], str) else " ".join(map(str, result["cmd"])))
        return [f"{task}: exit code {result['rc']}", f"    {''.join(command[:1])[:200]}", *output[-_EXCERPT:]]
    if len(message) == 1 and not message[0].rstrip().endswith("."):
        return [f"{task}: {message[0]}"]
    return message or [f"{task}: failed without a message; -v prints the result."]
