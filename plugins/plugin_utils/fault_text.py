# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the result of a failed task as a few lines for people. Controller only, pure."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh_failure

LONGEST = 8
_ITEMS = 40
_EXCERPT = 4
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
            found.append(part)
            if part.startswith("Remedy: "):
                found += [f"    {command}" for command in dict.fromkeys(_COMMAND.findall(part)) if " " in command]
    if found:
        found[0] = _CORE.sub("", found[0]) or found[0]
    return found


def _cut(lines: Sequence[str], limit: int) -> list[str]:
    return list(lines) if len(lines) <= limit else [*lines[: limit - 1], f"... {len(lines) - limit + 1} more lines; -v prints them"]


def shortened(lines: Sequence[str], limit: int = LONGEST) -> list[str]:
    """Return at most `limit` lines. In a list of several faults, the limit is for each of them, and 40 are shown."""
    starts = [number for number, line in enumerate(lines) if _NUMBERED.match(line)]
    if len(starts) < 2:
        return _cut(lines, limit)
    found = list(lines[: starts[0]])
    for start, end in list(zip(starts, [*starts[1:], len(lines)]))[:_ITEMS]:
        found += _cut(lines[start:end], limit)
    return [*found, f"... and {len(starts) - _ITEMS} more"] if len(starts) > _ITEMS else found


def unreachable(result: Mapping[str, Any], host: str, values: Mapping[str, Any]) -> list[str]:
    """Return why a host is unreachable with the remedy, or the reason that ssh prints, without Ansible's words around it.

    :param values: variables of the host; those that are templates are left out of the remedy.
    """
    result = next((each for each in result.get("results") or [] if isinstance(each, Mapping) and each.get("unreachable")), result)  # of a loop
    text = printable(str(result.get("msg") or ""))
    way = {name: str(values.get(f"ansible_{name}") or "") for name in ("host", "user", "port")}
    address, user = ("" if "{" in way[name] else way[name] for name in ("host", "user"))
    found = str(result.get("found") or ssh_failure.found(text))
    remedy = str(result.get("remedy") or ssh_failure.remedy(text, host, address, user, int(way["port"]) if way["port"].isdecimal() else 22))
    if found and remedy:
        return sentences(f"{found}. Remedy: {remedy}.")
    lines = [_CORE.sub("", line) for line in _lines(result.get("msg") or "no reason given")]
    reason = next((line for line in reversed(lines) if re.search(r"(?i)denied|refused|timed out|no route|verification failed|resolve|closed", line)), lines[-1])
    return [re.sub(r"\A(?:.*? over ssh: )?(?:ssh: )?", "", reason)]


def failure(task: str, result: Mapping[str, Any]) -> list[str]:
    """Return what a failed task reports. The task's name is added where the message alone does not describe the failure."""
    if result.get("_ansible_no_log"):
        return [f"{task}: failed; its output is hidden (no_log)."]
    items = [each for each in result.get("results") or [] if isinstance(each, Mapping) and (each.get("failed") or "exception" in each)]
    if items:
        found: list[str] = []
        for each in items:
            found += [line for line in failure(task, each) if line not in found]
        return found
    message = sentences(result.get("msg") or "")
    if message and (message[0].startswith(_CRASH) or str(result.get("msg")).startswith(_RAISED)):
        output = _lines(result.get("module_stderr") or result.get("module_stdout") or "")
        return [f"{task}: {message[0].rstrip('.')}.", *output[-_EXCERPT:], "Run again with -vvv for the traceback."]
    if "cmd" in result and result.get("rc") not in (0, None):
        output = _lines(result.get("stderr") or result.get("stdout") or "")
        command = result["cmd"] if isinstance(result["cmd"], str) else " ".join(str(each) for each in result["cmd"])
        first = printable(command).splitlines()[0][:200] if command else ""
        return [f"{task}: exit code {result['rc']}", f"    {first}", *output[-_EXCERPT:]]
    if len(message) == 1 and not message[0].rstrip().endswith("."):
        return [f"{task}: {message[0]}"]
    return message or [f"{task}: failed without a message; -v prints the result."]
