# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a report is made of: results of this run, receipts and bench results on the controller, and what an earlier report read of a node.

Files on the controller may be damaged: what is not JSON is left out. Controller only.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._release.group import rank_fault, unread
from ansible_collections.gb10.cluster.plugins.module_utils._release.release import brief
from ansible_collections.gb10.cluster.plugins.plugin_utils import receipts as kept_receipts
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain

CACHE = "report-nodes.json"
RECORDS = ("read_at", "receipts", "events", "memory", "bandwidth")


def _load(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, with printable texts and without secrets; empty if it cannot be read."""
    try:
        found = redact.masked(plain(json.loads(bounded.text(str(path)))))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def receipts_in(folder: Path) -> list[dict[str, Any]]:
    """Return the briefs of the newest receipts in a group's folder that can be read."""
    return [brief(each) for each in map(_load, kept_receipts.newest(folder)) if each]


def bench_in(folder: Path, group: str) -> dict[str, Any]:
    """Return the last result of bench.yml of a group, with its time; empty without one."""
    files = ((_load(path), path.stem[-16:]) for path in sorted(folder.glob(f"{group}-????????T??????Z.json"), reverse=True))
    return next(({**found, "at": f"{at[:4]}-{at[4:6]}-{at[6:8]} {at[9:11]}:{at[11:13]}"} for found, at in files if found), {})


def _problem(result: Mapping[str, Any]) -> str:
    """Return why a result has no data, as a phrase; empty if it has."""
    if not result or result.get("skipped"):
        return "it is not in this run"
    if result.get("unreachable"):
        return "the node is unreachable"
    return str(result.get("msg") or "no reason is given").strip().splitlines()[0][:300].rstrip(".") if result.get("failed") else ""


def node_of(fabric: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any]:
    """Return what this run has read of a node, as it is kept for later reports."""
    available = (info.get("memory") or {}).get("available_kib")
    memory = f", {available / 2**20:.1f} GiB of memory available" if available else ""
    state = f"not known: {unread(info)}" if unread(info) else (rank_fault(info) or "its container runs") + memory
    rails = {key: fabric.get(key) or [] for key in ("rails", "problems")} if "rails" in fabric else {}  # the task's failure is ignored
    return dict(redact.masked({**{key: info["records"][key] for key in RECORDS}, "state": state, "fabric": rails}))


def nodes_of(hosts: Sequence[str], results: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Return by host what is known of each node: read in this run, else by an earlier report, with `problem`. What this run has read is kept.

    `results` are, by host, `fabric` and `info`: the results of roce_info and vllm_rank_info. Raises OSError.
    """
    problems = {host: _problem((results.get(host) or {}).get("info") or {}) for host in hosts}
    now = {host: node_of(results[host].get("fabric") or {}, results[host]["info"]) for host in hosts if not problems[host]}
    known = {**{host: node for host, node in _load(folder / CACHE).items() if host in hosts}, **now}
    if now:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(str(folder / CACHE), json.dumps(known) + "\n", 0o600)
    return {host: {**known.get(host, {}), "problem": problems[host]} for host in hosts}
