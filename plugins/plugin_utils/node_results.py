# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what modules return from the nodes, checked once where it enters the controller. Controller only.

A node can be compromised. Its result has the form that filters, roles and action plugins expect, or the task fails with a sentence. All text in it is
printable, because Ansible and the roles show it as it is.
"""

from __future__ import annotations

import contextlib
import dataclasses
import re
from collections.abc import Callable, Collection, Mapping
from typing import Any

from ansible.errors import AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible_collections.gb10.cluster.plugins.module_utils._agent.replies import CONTAINER, RECEIPT, WEIGHTS, base64_text
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.kernel import KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._common.forms import misfit, scalar
from ansible_collections.gb10.cluster.plugins.module_utils._common.terminal import printable
from ansible_collections.gb10.cluster.plugins.module_utils._preflight.parse import LOG_SIGNS
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import manifest

DEEPEST = 40
TEXT = (str, None)


def name(value: Any) -> str:
    """Return what is expected in place of this value: a name that can be a part of a path."""
    return "" if isinstance(value, str) and re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}", value) else "letters, digits, dots, dashes and underscores"


def name_or_empty(value: Any) -> str:
    """Return what is expected in place of this value: a name, or an empty text."""
    return "" if value == "" else name(value)


def count(value: Any) -> str:
    """Return what is expected in place of this value: a number that is not negative."""
    return scalar(value, float) or ("a number that is not negative" if value < 0 else "")


def whole(value: Any) -> str:
    """Return what is expected in place of this value: a whole number that is not negative."""
    return scalar(value, int) or count(value)


def line(value: Any) -> str:
    """Return what is expected in place of this value: a short text in one line."""
    return "" if isinstance(value, str) and len(value) < 10_000 and value.isprintable() else "one line of text"


def stage(value: Any) -> str:
    """Return what is expected in place of this value: a stage of a boot, and when it began."""
    good = isinstance(value, list) and len(value) == 2 and isinstance(value[0], (str, type(None))) and not scalar(value[1], float)
    return "" if good else "a stage and its time"


def one_of(known: Collection[str]) -> Callable[[Any], str]:
    """Return what checks that a value is one of these texts."""
    return lambda value: "" if isinstance(value, str) and value in known else f"one of {', '.join(known)}"


def absent(value: Any) -> str:
    """Return what is expected in place of this value: false."""
    return "" if value is False else "false"


def scalar_value(value: Any) -> str:
    """Return what is expected in place of this value: a text, a number, true, false or null."""
    return "" if value is None or isinstance(value, (str, bool)) or not scalar(value, float) else "a text or a number"


FILE = {"path": manifest.below, "size": whole, "sha256": manifest.digest_form, "mtime_ns": whole}
CHECK = {"name": str, "ok?": bool}
SPECULATION = {
    "drafts?": whole, "draft_tokens?": whole, "accepted_tokens?": whole, "generated_tokens?": whole, "accepted_per_position?": [whole], "acceptance?": count,
    "alone?": bool,
}  # fmt: skip
POOL = {"tokens?": whole, "effective_tokens?": count, "concurrency?": count, "context?": whole}
KEPT = {
    **RECEIPT, "group?": str, "release?": name_or_empty, "profile?": TEXT, "class?": TEXT, "msg?": str, "seconds?": count, "pool?": POOL, "drift?": [str],
    "path?": str, "checks?": [CHECK], "ranks?": [{"stages?": [stage]}], "image?": TEXT, "attention_backend?": TEXT, "kv_cache_dtype?": TEXT,
    "moe_backend?": TEXT, "custom_ops?": TEXT, "eager?": bool, "autotune?": bool,
    "measured?": {"decode_tok_s?": count, "prefill_tok_s?": count, "prefill_tokens?": whole, "speculation?": SPECULATION},
}  # fmt: skip
DESIRED = {
    "generation?": whole, "state?": str, "release?": name_or_empty, "by?": str, "at?": str, "auto?": scalar_value, "replaces?": [whole], "reasons?": [str],
    "options?": dict,
}  # fmt: skip
VERDICT = {"passed?": bool, "class?": str, "msg?": str, "seconds?": count, "receipt?": KEPT, "pool?": POOL, "finding?": dict, "checks?": [CHECK]}
OUTCOME = {
    "generation?": whole, "final?": bool, "delivered?": bool, "result?": str, "phase?": str, "sentence?": str, "verdict?": VERDICT, "evidence?": [name],
    "warnings?": [str], "unserved_seconds?": count, "release?": name_or_empty,
}  # fmt: skip
FAULT = {"cause?": str, "at?": str, "text?": str, "unserved_seconds?": count}
WATCH = {
    "state?": str, "missing?": [str], "fault?": FAULT, "last?": FAULT, "restarts?": {str: whole}, "unserved_seconds?": count, "serving_since?": str,
}  # fmt: skip
HOLD = {"name": str, "reason": str, "by?": str, "until?": count}
STATE = {
    "desired?": DESIRED, "outcome?": OUTCOME, "busy?": bool, "holds?": [HOLD], "watch?": WATCH, "owner?": {"group?": TEXT, "head?": TEXT},
}  # fmt: skip
AGENT = {
    "version": str, "state": STATE, "converges": bool, "public_key": line, "head_id": line, "host_keys": [line], "ssh_port": whole, "files": {str: str},
    "enabled": bool, "user": bool, "sshd_problems": [str], "owners": {str: str},
}  # fmt: skip
MEMORY = {f"{key}_kib{own}": whole for keys, own in (("total free available", ""), ("gpu_total gpu_free gpu_engine", "?")) for key in keys.split()}
IMAGE = {"exists": bool, "id": str, "name": str, "fingerprint": str, "repo_digests": [str]}
RELEASE = {"id": name, "good": bool, "time": count, "files": {str: str}, "image?": {str: (str, bool)}, "profile?": line, "pool_tokens?": whole}
PROBLEM = {"id": str, "message": str, "remedy": str}
REPLY = {
    "ok": bool, "status?": int, "text?": TEXT, "reasoning?": TEXT, "finish_reason?": TEXT, "completion_tokens?": whole, "prompt_tokens?": whole,
    "seconds?": count, "error?": TEXT,
}  # fmt: skip
PREFLIGHT = {
    "time": count, "python": str, "container": TEXT, "machine": {"arch": str, "product": str, "gb10": bool, "evidence": [str], "id?": str},
    "kernel": {"release": str, "cmdline": str, "reboot_required": bool, "reboot_packages": [str], "reboot_kho?": TEXT},
    "dgx": ({"present": absent}, {"present": bool, "base": str, "ota": str}),
    "driver": {"loaded": str, "on_disk": str, "libraries": [str], "gpus": [str], "error": str, "present": bool}, "broken_packages": [str],
    "ota_check": {str: scalar_value}, "firmware": {str: str}, "memory": {"total_kb?": count, "problems?": [PROBLEM]},
    "fabric": {
        "management": {"interface": TEXT, "reason": TEXT, "wireless": bool, "address?": TEXT, "prefix?": (whole, None)}, "problems": [PROBLEM],
        "rails": [{"netdev": str, "ipv4?": TEXT, "prefix?": (whole, None)}], "macs": [str],
    },
    "exposure": {"forwarding": str, "policy": str, "firewall": bool, "neighbors": [{"netdev": str, "mac": str}]},
    "docker": {
        "error": str, "installed": bool, "root": str, "image_present": (bool, None), "image_store": str, "driver": str, "cgroup_driver": str, "cdi": bool,
    },
    "containers": [{"name": str, "image": str, "state": str, "labels": {str: str}, "vllm": bool, "gpu": bool, "restart": str}],
    "disks": [{"path": str, "device?": TEXT, "free_gib": count, "read_only?": bool}], "model": {"present_gib": count},
    "listening": [{"port": whole, "address": str, "process?": TEXT, "container?": TEXT, "pid?": whole}],
    "memlock": {"known": bool, "bytes": (whole, None), "may_raise": bool}, "kernel_log": [{"id": one_of(LOG_SIGNS), "count": whole, "line": str}],
    "suspends?": [str],
    "agent": ({"installed": absent}, {
        "installed": bool, "group": str, "rank": whole, "active": (bool, None), "error": str, "sshd_problems": [str],
        "peers": [{"host": str, "address": str, "ok": bool, "error": str}],
    }),
}  # fmt: skip
DOCTOR = {
    "kernel": {
        "events": [{"id": one_of(KINDS), "boot": int, "count": whole, "first": line, "last": line, "line": str}], "skipped": {str: str}, "unclean": line,
    },
    "gpus": [{**dict.fromkeys(("temperature_c", "power_w", "utilization", "sm_mhz", "max_mhz"), (float, None)), "reasons": whole}],
    "gpu_error": str, "zones": [{"name": str, "temperature_c": float, "critical_c": (float, None)}],
    "boot": {"label": name_or_empty, "file": str, "state": str, "stage": TEXT, "failure": ({"class": str, "line": str, "remedy?": TEXT}, None)},
}  # fmt: skip
COLLECTIVE = {
    "backend": str, "transport": str, "stage": str, "problem": str, "text": str, "hcas": [str], "rows": [{"op": str, "mib": whole, "gb_s": count}],
}  # fmt: skip
BENCH_ROW = {
    **dict.fromkeys(("depth", "concurrency", "requests", "output_tokens", "completed", "preemptions"), whole), "prefix": str, "varied": bool,
    **{f"{key}?": count for key in (
        "request_rate", "seconds", "tok_s", "stream_tok_s", "ttft_ms", "ttft_p99_ms", "prefill_tok_s", "itl_ms", "acceptance_percent",
        "cache_hit_percent", "kv_usage_percent",
    )},
}  # fmt: skip
MOMENT = {
    "release?": name_or_empty, "profile?": TEXT, "time?": str, "passed?": bool, "class?": TEXT, "msg?": str, "seconds?": count, "pool?": POOL,
    "measured?": {"decode_tok_s?": count, "prefill_tok_s?": count, "prefill_tokens?": whole}, "version?": TEXT, "models?": [str], "drift?": [str],
    "attention_backend?": TEXT, "kv_cache_dtype?": TEXT,
    "ranks?": [{
        "rank?": whole, "host?": str, "stages?": [stage], "memory?": {str: count}, "memory_series?": str, "lost?": TEXT, "start_error?": TEXT,
    }],
}  # fmt: skip
BANDWIDTH = {"class?": str, "message?": str, "when?": str, "rails?": [{"hca": str, "server?": str, "gbps?": count}]}
RECORDS = {
    "read_at": str, "receipts": [MOMENT], "events": [{"n": whole, "at?": TEXT, "kind?": TEXT, "text?": TEXT, "seconds?": count}],
    "memory": {"recent": str, "day": str, "source": str}, "bandwidth": BANDWIDTH,
}  # fmt: skip
#: By module. What is missing here has no value that code of the controller reads.
FORMS: dict[str, Any] = {
    "api_key": {"new?": bool, "path?": str},
    "collective_test": {"result?": COLLECTIVE},
    "compile_cache": {"files": [FILE], "removed": [str]},
    "desired_state": {"generation": whole, "joined": bool, "desired": DESIRED},
    "docker_engine": {"changes?": [str], "msg?": str},
    "doctor_info": DOCTOR,
    "gpu_clocks": {"changes?": [str], "skipped_reason?": str, "notes?": [str]},
    "image_info": {"info": {
        "reference": str, "exists": bool, "id": str, "repo_digests": [str], "layers": [str], "fingerprint": str, "store": str, "architecture": str,
        "build?": TEXT, "chains": [str], "served?": TEXT, "surplus?": whole, "free_bytes": count, "size": count,
    }},
    "image_layers": {"files": [FILE]},
    "image_record": {"removed": [str], "left": [str]},
    "kv_pool_plan": {"verdict?": str, "msg?": str, "unsafe?": TEXT},
    "preflight_info": PREFLIGHT,
    "readahead": {"changes?": [str]},
    "roce_bandwidth": {"bandwidth_class?": str, "message?": str, "remedy?": str},
    "report_info": RECORDS,
    "roce_info": {"rails": [dict], "ports": [dict], "env": {str: str}, "problems": [PROBLEM]},
    "roce_verify": {"env?": {str: str}},
    "rank_evidence": {"text?": str},
    "slurp": {"content": base64_text},
    "uma_tuning": {"changes?": [str], "kho?": {
        "file": line, "menu": line, "message": line, "write": bool, "remove": bool, "stale": bool, "reboot_required": bool,
    }},
    "vllm_bench": {"rows?": [BENCH_ROW], "low?": str, "memory?": {f"{key}_kib": whole for key in ("lowest_available", "lowest_free", "after")}},
    "vllm_boot_log_info": {"state?": str, "stage?": TEXT, "failure?": {"class": str, "line": str}, "kv_cache?": {
        "tokens?": whole, "max_concurrency?": count, "available_gib?": count}},
    "vllm_liveness": {"outcome": str, "text": str, "http_status": int, "starting": bool, "seconds": count},
    "vllm_probe": {"models?": [dict], "replies?": [REPLY], "error?": TEXT, "metrics?": [{str: str}], "speculation?": SPECULATION},
    "vllm_rank_info": {
        "current": name_or_empty, "releases": [RELEASE], "containers": [CONTAINER], "weights": WEIGHTS, "weights_differ": [str],
        "processes": {"count": whole, "fault": str, "cpu_seconds?": count}, "stopped": str, "receipt": KEPT, "image": IMAGE, "model_config": dict,
        "devices": [line], "memory": MEMORY, "engine_error": str, "others": [str], "inputs": str, "agent": AGENT, "collective?": str,
    },
    "vllm_release": {"cache_files": int},
    "weights_copy": {"copied?": [str], "removed?": [str], "left?": [str]},  # nothing, after the step `start`
    "weights_manifest": {"manifest": dict, "complaints": [str]},  # the filter weights_plan checks the manifest
    "weights_serve": {"listen": [{"address": line, "port": whole}], "unit": str},
}  # fmt: skip
FOLLOWED = ("image_get", "weights_copy", "weights_download")
#: The report of a followed module, which the action plugin reads.
REPORT = {
    "state": str, "total?": count, "done?": count, "moved?": count, "hashed?": count, "files?": whole, "files_done?": whole, "copy_seconds?": count,
    "text?": str, "percent?": count,
}  # fmt: skip
#: What the agent answers to `gb10 follow`.
FOLLOW = {"events?": [{"n": whole, "text?": TEXT, "kind?": TEXT, "seconds?": count}], "next?": whole, "desired?": DESIRED, "outcome?": OUTCOME}


def plain(value: Any, depth: int = 0) -> Any:
    """Return a result with printable texts. Raises ValueError if it is nested deeper than any module's."""
    if depth > DEEPEST:
        raise ValueError(f"it is nested more than {DEEPEST} levels deep")
    if isinstance(value, str):
        shown = printable(value)
        return value if shown == value else shown
    if isinstance(value, Mapping):
        return {plain(str(key)): plain(each, depth + 1) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(each, depth + 1) for each in value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):  # warnings and errors of ansible-core
        texts = {field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.init}
        return dataclasses.replace(value, **{key: plain(each, depth + 1) for key, each in texts.items()})
    return value


def received(host: str, module: str, result: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return a module's result with printable texts, or a failure that names the node and what is not valid."""
    short = module.rpartition(".")[2]
    out: dict[str, Any] = {}
    try:
        problem = "it is nested too deep" if result is None else _misfit(short, result)
        out = plain(dict(result or {}))
    except (ValueError, RecursionError) as error:
        problem = str(error)
    if not problem:
        return out
    text = f"{host}: the result of {short} is not valid: {printable(problem)}. Run again. If it happens again, find out what answers on that node."
    return {"changed": False, "failed": True, "msg": text}


def _misfit(module: str, result: Mapping[str, Any]) -> str:
    """Return what does not fit in the result of a module that has not failed; empty if it fits."""
    if any(result.get(key) for key in ("failed", "unreachable", "skipped", "ansible_job_id")):
        return ""
    report = result.get("report") if module in FOLLOWED else None
    problem = misfit(report, REPORT, "report") if report is not None else ""
    if problem or (report is not None and report["state"] == "running"):
        return problem
    return misfit(dict(result), FORMS.get(module, {}))


class NodeResults(ActionBase):
    """The base of all actions that run modules on nodes."""

    def _execute_module(self, *args: Any, **options: Any) -> dict[str, Any]:
        """Run a module and return its result as `received` does."""
        module = str(options.get("module_name") or (args[0] if args else "") or self._task.action)
        host = str((options.get("task_vars") or {}).get("inventory_hostname"))
        result: Mapping[str, Any] | None = None
        try:
            with contextlib.suppress(RecursionError):
                result = super()._execute_module(*args, **options)
        except AnsibleConnectionFailure as error:  # its text has what the SSH server has sent
            if printable(str(error)) == str(error):
                raise
            raise type(error)(printable(str(error))) from None
        return received(host, module, result)
