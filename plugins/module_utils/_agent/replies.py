# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The form of what the verbs return: a reply comes from another node, and is checked once, where it enters. Pure."""

from __future__ import annotations

import base64
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._agent.protocol import MAX_TEXT, MAX_TEXTS, RankError
from ansible_collections.gb10.cluster.plugins.module_utils._agent.verbs import CURSOR, GENERATION, MOST, Argument, text, whole
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import cut, misfit, scalar

REMEDY = "Run site.yml for all nodes of the group with one version of gb10.cluster, and check that node if that does not help"


def fits(argument: Argument) -> Callable[[Any], str]:
    """Return the form of what the head sends back as an argument of a verb: what a rank refuses must not come from another one."""
    return lambda value: "" if argument.fits(value) else argument.expected


def base64_text(value: Any) -> str:
    """Return what is expected in place of this value: base64."""
    try:
        base64.b64decode(value, validate=True)
    except (ValueError, TypeError):
        return "base64"
    return ""


def _gpu(value: Any) -> str:
    """Return what is expected in place of this value: power and utilization of a GPU, or null."""
    good = isinstance(value, list) and len(value) == 2 and all(each is None or not scalar(each, float) for each in value)
    return "" if good else "two numbers"


def _weight(value: Any) -> str:
    """Return what is expected in place of this value: bytes and SHA-256 of a file."""
    good = isinstance(value, list) and len(value) == 2 and not scalar(value[0], int) and isinstance(value[1], str)
    return "" if good else "a size and a SHA-256"


generation = fits(GENERATION)
OWNER = {"group?": str, "head?": str}
HELLO = {
    "host": str, "owner": OWNER, "generation": generation, "stopped": str, "stop_generation": generation, "boot_id?": str, "protocol?": int,
    "holds?": [{"name": str, "reason": str, "until": float, "by?": str}], "running?": {str: str},
}  # fmt: skip
CONTAINER = {
    "id": str, "name": str, "status": fits(text(100)), "running": bool, "pid": int, "exit_code": int, "oom_killed": bool, "error": str,
    "started_at": str, "finished_at": str, "restart_count": int, "image": str, "image_id": str, "image_fingerprint?": str, "labels": {str: str},
}  # fmt: skip
MEMORY = {str: int}
WEIGHTS = {"proof?": str, "files?": {str: _weight}, "folders?": [str]}
RECEIPT = {"passed?": bool, "time?": str, "image_id?": str, "version?": str, "weights?": WEIGHTS}
LOOK = {
    "containers": [CONTAINER], "engine_error": str, "memory": MEMORY, "current": str,
    "releases": [{"id": str, "good?": bool, "time": float, "files?": {str: str}, "image?": {str: (str, bool)}}],
    "receipt?": RECEIPT, "manifest?": dict, "weights?": WEIGHTS, "stopped": str, "processes": {"count": int, "fault": str, "cpu_seconds?": float},
    "missing": [str], "blocked": str,
}  # fmt: skip
FAILED = {"failed": bool, "msg": str}
SLICE = {"log": base64_text, "cursor": fits(CURSOR), "container": (CONTAINER, None), "memory": MEMORY, "http_status": int}
SAMPLE = {
    "n?": fits(whole(0, MOST)), "containers?": [CONTAINER], "engine_error?": str, "engine_id?": str, "fault?": str, "fault_seconds?": float,
    "cpu_seconds?": float, "memory?": MEMORY, "memory_stop?": str, "gpus?": [_gpu], "rails?": [{"address": str, "interface": str, "up": bool, "mtu": int}],
    "kernel?": [{"at": str, "kind": str, "text": str}], "url?": str,
}  # fmt: skip
#: By verb. A verb that is missing here is asked of rank 0 only, which is the agent itself.
FORMS: dict[str, Any] = {
    "hello": HELLO, "claim": HELLO, "look": LOOK, "slice": (FAILED, SLICE), "watch": {"hello": HELLO, "sample": SAMPLE}, "phase": {"note?": str},
    "reclaim": {"note": str}, "start": {"error?": str}, "halt": {"left": [str], "evidence?": str, "note?": str},
}  # fmt: skip
#: Of a reply itself: what may be longer than a text.
LONG = ("log", "manifest", "receipt")


def checked(verb: str, result: dict[str, Any]) -> dict[str, Any]:
    """Return the result of a verb, with bounded texts and numbers. Raises RankError if it does not have the verb's form."""
    if verb not in FORMS:
        return result
    try:
        problem = misfit(result, FORMS[verb])
        bounded: dict[str, Any] = {} if problem else cut(result, MAX_TEXT, MAX_TEXTS, LONG)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise RankError(f"its reply to {verb} is not valid: {problem}. {REMEDY}.")
    return bounded
