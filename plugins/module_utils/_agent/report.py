# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. What the command `gb10` prints of a group, as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._agent.config import EVIDENCE

Look = Mapping[str, Any]
AFTER_VERDICT = ("step", "warning", "settled", "recovered")


def desired_line(desired: Mapping[str, Any]) -> str:
    """Return what the group is expected to do, and who asked for it."""
    state = desired.get("state")
    if not state:
        return "no desired state is set. Run site.yml."
    what = f"serving, release {desired.get('release')}" if state == "serving" else str(state)
    by = f", by {desired['by']}" if desired.get("by") else ""
    return f"desired {what} (since {desired.get('at')}{by})."


def outcome_line(outcome: Mapping[str, Any]) -> str:
    """Return how far the group is."""
    phase = str(outcome.get("phase") or "waiting")
    what = str(outcome.get("result") or phase) if outcome.get("final") else phase
    release = f", release {outcome['release']}" if outcome.get("release") else ""
    attempt = int(outcome.get("attempt") or 0)
    sentence = f". {outcome['sentence']}" if outcome.get("sentence") else "."
    return f"outcome: {what}{release}{f', attempt {attempt}' if attempt > 1 else ''}{sentence}"


def event_line(event: Mapping[str, Any]) -> str:
    """Return one event."""
    seconds = f" +{float(event['seconds']):.0f} s" if event.get("seconds") else ""
    return f"{event.get('at')}{seconds} {event.get('kind')}: {event.get('text')}"


def why_lines(outcome: Mapping[str, Any], events: Iterable[Mapping[str, Any]], folder: str) -> list[str]:
    """Return the last verdict: its sentence, the decisive line, where the evidence is, and what was done. `folder` is the group's folder."""
    verdict = outcome.get("verdict") or {}
    finding = verdict.get("finding") or {}
    sentence = verdict.get("msg") or outcome.get("sentence")
    if not sentence:
        return ["There is no verdict yet."]
    lines = [str(sentence)]
    if finding.get("line"):
        number = f" {finding['line_number']}" if finding.get("line_number") else ""
        lines.append(f"decisive line{number} (rank {finding.get('rank')} {finding.get('host')}): {str(finding['line']).strip()}")
    if outcome.get("evidence"):
        lines.append(f"evidence: {folder}/{EVIDENCE}/{outcome['evidence'][-1]}/ on each node")
    done: list[str] = []
    for event in events:
        if event.get("generation") == outcome.get("generation") and event.get("kind") == "verdict":
            done = []
        elif event.get("generation") == outcome.get("generation") and event.get("kind") in AFTER_VERDICT:
            done.append(str(event.get("text")))
    return [*lines, *(f"then: {text}" for text in done if text != sentence)]
