# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what a report is made of: results of this run, receipts and bench results on the controller, and what an earlier report read of a node.

Files on the controller may be damaged: what is not JSON is left out, and a sentence tells how many. Controller only.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._common import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._profile import kv_estimate
from ansible_collections.gb10.cluster.plugins.module_utils._profile.check import ProfileError
from ansible_collections.gb10.cluster.plugins.module_utils._release.brief import brief
from ansible_collections.gb10.cluster.plugins.module_utils._release.group import rank_fault, unread
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain

CACHE = "report-nodes.json"
SPEEDS, MOST_LEVELS = "speed-*.json", 16
MOST_FILES = 200
RECORDS = ("read_at", "receipts", "events", "memory", "bandwidth")
RAIL = ("netdev", "hca", "ipv4", "carrier", "speed_mbps", "mtu", "gid_index")
RECEIPT_NAME = re.compile(r"[0-9A-Za-z]{1,40}-[0-9A-Za-z]{1,40}-(passed|failed)\.json")


def _load(path: Path) -> dict[str, Any] | None:
    """Return the object of a JSON file, with printable texts and without secrets; None if it cannot be read."""
    try:
        found = redact.masked(plain(json.loads(bounded.text(str(path)))))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def receipts_in(folder: Path) -> tuple[list[dict[str, Any]], str]:
    """Return the briefs of the newest receipts in a group's folder, and a sentence about those that cannot be read."""
    paths = sorted(path for path in folder.glob("*.json") if RECEIPT_NAME.fullmatch(path.name))[-MOST_FILES:]
    good = [brief(each) for each in map(_load, paths) if each is not None]
    lost = len(paths) - len(good)
    return good, f"{lost} of {len(paths)} receipts in {folder} cannot be read and are left out." if lost else ""


def bench_in(folder: Path, group: str) -> dict[str, Any]:
    """Return the last result of bench.yml of a group, with its time; empty without one."""
    for path in sorted(folder.glob(f"{group}-????????T??????Z.json"), reverse=True):
        found = _load(path)
        if found is not None:
            stamp = path.stem[-16:]
            return {**found, "at": f"{stamp[:4]}-{stamp[4:6]}-{stamp[6:8]} {stamp[9:11]}:{stamp[11:13]}"}
    return {}


def speeds_in(folder: Path) -> dict[str, Any]:
    """Return what smoke.yml and sanity.yml have measured of a group's last measured release: `release`, `profile`, `levels`; empty without a file.

    Each file has the levels of one run. The last result of each level counts, and of the levels the newest ones.
    """
    found = (each for each in map(_load, sorted(folder.glob(SPEEDS))[:MOST_FILES]) if each and each.get("levels"))
    read = sorted(found, key=lambda each: str(each["levels"][0]["at"]))
    about = {key: read[-1][key] for key in ("release", "profile")} if read else {}
    levels = {level["concurrency"]: level for each in read if {**each, **about} == each for level in each["levels"]}
    return {**about, "levels": sorted(levels.values(), key=lambda level: str(level["at"]))[-MOST_LEVELS:]} if read else {}


def _problem(result: Mapping[str, Any]) -> str:
    """Return why a result has no data, as a phrase; empty if it has."""
    if not result or result.get("skipped"):
        return "it is not in this run"
    if result.get("unreachable"):
        return "the node is unreachable"
    if result.get("failed"):
        return str(result.get("msg") or "no reason is given").strip().splitlines()[0][:300].rstrip(".")
    return ""


def _state(info: Mapping[str, Any]) -> str:
    """Return what runs on a rank, in words."""
    if unread(info):
        return f"not known: {unread(info)}"
    available = (info.get("memory") or {}).get("available_kib")
    memory = f", {available / 2**20:.1f} GiB of memory available" if available else ""
    return (rank_fault(info) or "its container runs") + memory


def node_of(fabric: Mapping[str, Any], info: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return what this run has read of a node, as it is kept for later reports; None if it read nothing."""
    if _problem(info):
        return None
    records = info["records"]
    rails: dict[str, Any] = {}
    if "rails" in fabric:  # the task's failure is ignored
        rails["rails"] = [{key: rail.get(key) for key in RAIL} for rail in fabric["rails"]]
        rails["problems"] = [{key: str(each.get(key) or "") for key in ("message", "remedy")} for each in fabric.get("problems") or []]
    found = {**{key: records[key] for key in RECORDS}, "state": _state(info), "fabric": rails}
    return dict(redact.masked(found))


def nodes_of(hosts: Sequence[str], results: Mapping[str, Mapping[str, Any]], folder: Path) -> dict[str, dict[str, Any]]:
    """Return by host what is known of each node: read in this run, else by an earlier report, with `problem`. What this run has read is kept.

    `results` are, by host, `fabric` and `info`: the results of roce_info and vllm_rank_info. Raises OSError.
    """
    kept = _load(folder / CACHE) or {}
    kept = {host: kept[host] for host in hosts if host in kept}
    now: dict[str, dict[str, Any]] = {}
    problems: dict[str, str] = {}
    for host in hosts:
        found = results.get(host) or {}
        node = node_of(found.get("fabric") or {}, found.get("info") or {})
        if node is None:
            problems[host] = _problem(found.get("info") or {})
        else:
            now[host] = node
    if now:
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(str(folder / CACHE), json.dumps({**kept, **now}) + "\n", 0o600)
    return {host: {**kept.get(host, {}), **now.get(host, {}), "problem": problems.get(host, "")} for host in hosts}


def estimates_of(profile: Mapping[str, Any], receipts: Sequence[Mapping[str, Any]]) -> dict[str, float | None]:
    """Return the estimated KV pool of the inventory's profile for the memory of its last boot, by its name."""
    boots = [each for each in receipts if each.get("profile") == profile.get("name") and each.get("ranks")]
    last = boots[-1]["ranks"] if boots else []
    ranks = [{"rank": number, "host": each.get("host"), "engine_running": True, **(each.get("memory") or {})} for number, each in enumerate(last)]
    try:
        return {str(profile["name"]): kv_estimate.make_plan(profile, ranks)["expected_tokens"]} if ranks else {}
    except (kv_estimate.PlanError, ProfileError, KeyError, TypeError, ValueError):  # the receipt has no memory, or the profile no figures
        return {}
