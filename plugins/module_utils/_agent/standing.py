# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has to do, compared with what the agent does already. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any


def converges(state: Mapping[str, Any]) -> bool:
    """Return whether the agent works on a desired state that it has not reached."""
    desired, outcome = state.get("desired") or {}, state.get("outcome") or {}
    generation = int(desired.get("generation") or 0)
    return generation > 0 and (int(outcome.get("generation") or 0) != generation or not outcome.get("final"))


def joins(found: Mapping[str, Any], state: str, release: str, reasons: Sequence[str]) -> bool:
    """Return whether a request joins the state that is desired already. `found` is the state that the actor reports."""
    desired, result = found.get("desired") or {}, (found.get("outcome") or {}).get("result")
    same = desired.get("state") == state and (state == "stopped" or desired.get("release") == release)
    return bool(same and (found.get("busy") or (not reasons and result in ("serves", "stopped"))))


def since(desired: Mapping[str, Any]) -> str:
    """Return the time of day at which a state was asked for."""
    at = str(desired.get("at") or "")
    return at[11:19] or "a time that is not known"


def decide(state: Mapping[str, Any], release: str, reasons: Sequence[str], group: str, restart: bool = False, takeover: bool = False) -> dict[str, Any]:
    """Return what a run does for `release`, which must start for `reasons` (none: it runs).

    do: nothing, start, follow (the agent works on this release, or the outcome of its boot was not read yet) or refuse. generation: which one to follow.
    reasons: why the group must start; none unless `do` is start. text: what the user reads.
    """
    desired, outcome = state.get("desired") or {}, state.get("outcome") or {}
    generation, by = int(desired.get("generation") or 0), str(desired.get("by") or "another run")
    same = desired.get("state") == "serving" and desired.get("release") == release
    followed = {"do": "follow", "generation": generation, "reasons": [], "text": f"the start that {by} began at {since(desired)}"}
    if converges(state) and same:
        return followed
    if converges(state) and not takeover and not desired.get("auto"):
        what = f"release {desired.get('release')}" if desired.get("state") == "serving" else "stop"
        text = f"{group} is being changed by a run of {by} since {since(desired)} ({what}). Wait for it, or take it over with -e takeover=true."
        return {"do": "refuse", "generation": generation, "reasons": [], "text": text}
    if converges(state):
        return {"do": "start", "generation": 0, "reasons": list(reasons) or [f"taken over from a run of {by}"], "text": ""}
    # An outcome is out of date if what runs now contradicts it, and a start that was refused before its boot is worth another try.
    booted = bool((outcome.get("verdict") or {}).get("seconds"))
    failed = outcome.get("result") == "held" or (outcome.get("result") == "failed" and booted)
    fits = outcome.get("result") == "serves" if not reasons else failed and not restart
    if generation and same and not outcome.get("delivered") and fits:
        return followed
    if generation and desired.get("state") == "stopped" and not reasons:
        reasons = [f"{group} was stopped on request by {by}, and runs"]
    # After a failed change the group has gone back to this release: it is asked for again, without a restart.
    returned = generation > 0 and desired.get("state") == "serving" and not same
    return {"do": "start" if reasons or returned else "nothing", "generation": 0, "reasons": list(reasons), "text": ""}


def watch_line(watch: Mapping[str, Any]) -> str:
    """Return what the watch of a head reports, as one sentence; empty if there is none, or nothing to report."""
    state, fault = str(watch.get("state") or ""), watch.get("fault") or {}
    restarts = {str(cause): int(count) for cause, count in (watch.get("restarts") or {}).items()}
    parts = []
    if state == "off":
        return "watch: off (vllm_tp2_keep_serving: false)."
    if state == "waiting":
        parts.append(f"waits: {'; '.join(watch.get('missing') or [])}")
    elif state in ("fault", "recovering"):
        parts.append("restores service" if state == "recovering" else "has noticed a fault")
    elif watch.get("serving_since"):
        parts.append(f"serving since {watch['serving_since']}")
    if fault:
        parts.append(f"{fault.get('cause')} at {fault.get('at')}: {fault.get('text')}")
    unserved = float(watch.get("unserved_seconds") or 0.0)
    if restarts or (fault and unserved >= 1):
        counts = ", ".join(f"{cause} {count}" for cause, count in sorted(restarts.items()))
        parts.append(f"{f'restarts: {counts}, ' if counts else ''}{unserved:.0f} s without service in all")
    last = watch.get("last") or {}
    if last and not fault:
        parts.append(f"last: {last.get('cause')} at {last.get('at')}, {float(last.get('unserved_seconds') or 0.0):.0f} s without service ({last.get('text')})")
    return f"watch: {'; '.join(parts)}." if parts else ""


def line(state: Mapping[str, Any]) -> str:
    """Return what the agent of a head is doing, as one line; empty if it has reached the desired state, nothing keeps it from acting, and no fault was."""
    desired, outcome = state.get("desired") or {}, state.get("outcome") or {}
    holds = [f"held by {each.get('name')}: {each.get('reason')}" for each in state.get("holds") or []]
    held = outcome.get("phase") == "paused" or outcome.get("result") in ("held", "failed")
    seen = watch_line(state.get("watch") or {})
    if not desired.get("state") and outcome.get("sentence"):
        return f"agent: {outcome['sentence']}"
    if not holds and not held and not converges(state):
        return f"agent: {seen}" if seen else ""
    wanted = f"{desired.get('state')} release {desired.get('release')}" if desired.get("state") == "serving" else str(desired.get("state") or "not set")
    asked = f" (since {since(desired)}, by {desired.get('by')})" if desired.get("by") else ""
    text = [f"agent: desired {wanted}{asked}", f"phase {outcome.get('phase') or 'waiting'}", *holds]
    sentence = f". {outcome['sentence']}" if held and outcome.get("sentence") else "." if seen else ""
    return ", ".join(text) + sentence + (f" {seen}" if seen else "")
