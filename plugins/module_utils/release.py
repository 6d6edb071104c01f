# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Releases: what names one, and what makes a rank need a (re)start. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any


def release_id(contents: Iterable[Any]) -> str:
    """Name a release by what all its ranks are rendered from: 12 hex digits, the same on every rank, another one for any change."""
    text = json.dumps(list(contents), sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def fingerprint(secrets: Mapping[str, Any], salt: str) -> str:
    """Stand for secrets in a release's name: another value makes another release, and nothing of the value can be read back."""
    if not any(secrets.values()):
        return ""
    text = json.dumps(dict(secrets), sort_keys=True, default=str)
    return hashlib.pbkdf2_hmac("sha256", text.encode(), salt.encode(), 100_000).hex()[:12]


def start_reasons(info: Mapping[str, Any], release: str, rank: int, probe: Mapping[str, Any] | None = None, forced: bool = False) -> list[str]:
    """Return why this rank's group must be (re)started for `release`, one phrase each; none where all is as it should be.

    `info` is what vllm_rank_info returned, `probe` what vllm_probe returned on the head (None elsewhere, and where it was not asked).
    """
    out: list[str] = []
    current = str(info.get("current") or "")
    containers = list(info.get("containers") or [])
    if current != release:
        out.append(f"release {current} -> {release}" if current else f"release {release} is the first one")
    running = [c for c in containers if c["running"]]
    mine = [c for c in running if c["labels"].get("gb10.cluster.release") == release]
    if current == release and not mine:
        old = next((c for c in containers if not c["running"]), None)
        out.append(f"rank {rank} is not running" + (f" (exit code {old['exit_code']})" if old else ""))
    elif len(running) > 1:
        out.append(f"{len(running)} containers of the group run on this node, and one belongs here")
    if probe and not out:
        if probe.get("error") and probe.get("http_status", 0) in (0, *range(500, 600)):
            out.append(f"the head does not serve: {probe['error']}")
        dead = [r for r in probe.get("replies") or [] if not r["ok"] and r["status"] >= 500]
        if dead:
            out.append(f"the head answers no completion ({dead[0]['error'][:160]})")
    if forced and not out:
        out.append("a restart was asked for")
    return out


def release_on_disk(info: Mapping[str, Any], fallback: str) -> str:
    """Return the release whose Compose file can take the running containers down: theirs, else the current one, else `fallback`."""
    kept = {r["id"] for r in info.get("releases") or []}
    labels = [c["labels"].get("gb10.cluster.release", "") for c in info.get("containers") or []]
    return next((r for r in [*labels, str(info.get("current") or "")] if r in kept), fallback)


def last_good(infos: Iterable[Mapping[str, Any]], but_not: str) -> str:
    """Return the newest release whose gate has passed and that every rank still keeps; empty where there is none."""
    ranks = list(infos)
    if not ranks:
        return ""
    common = set.intersection(*({r["id"] for r in info.get("releases") or [] if r.get("good") and r["id"] != but_not} for info in ranks))
    first = ranks[0]
    current = str(first.get("current") or "")
    if current in common:
        return current
    return next((r["id"] for r in first.get("releases") or [] if r["id"] in common), "")


def stale_releases(info: Mapping[str, Any], keep: int, protected: Iterable[str]) -> list[str]:
    """Return the releases to remove: all but the `keep` newest ones and the protected."""
    safe = set(protected) | {str(info.get("current") or "")}
    rest = [r["id"] for r in info.get("releases") or [] if r["id"] not in safe]
    room = max(0, keep - len(safe - {""}))
    return rest[room:]
