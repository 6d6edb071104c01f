# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has to do, compared with what the agent does already, and the state of a group as lines. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._pair.config import EVIDENCE

AFTER_VERDICT = ("step", "warning", "settled", "recovered")


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


#: Of the options of a desired state: what is of one start, and not a setting of the inventory.
OF_A_START = ("weights", "collective", "rolled_back")


def differences(now: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Return how the options of a desired state change, one phrase each, such as `attempts 3 -> 2`."""
    changed = [(name, now.get(name), value) for name, value in wanted.items() if name not in OF_A_START and now.get(name) != value]
    return [f"{name} {_shown(old)} -> {_shown(new)}" for name, old, new in changed]


def _shown(value: Any) -> str:
    """Return a value as YAML has it."""
    return "not set" if value is None else str(value).lower() if isinstance(value, bool) else str(value)


def _failed_before(
    desired: Mapping[str, Any], outcome: Mapping[str, Any], release: str, group: str, options: Mapping[str, Any], criteria: Mapping[str, Any]
) -> str:
    """Return why the same boot is not worth another try: it has failed, for a person, and nothing that decides on it has changed since. Else empty."""
    verdict = outcome.get("verdict") or {}
    if desired.get("auto") or outcome.get("result") != "failed" or not verdict.get("seconds"):
        return ""
    if desired.get("options") and differences(desired["options"], options):
        return ""
    failed_a_check = any(check.get("ok") is False for check in verdict.get("checks") or [])
    if failed_a_check and criteria and not measures.receipt_fault(group, verdict.get("receipt") or {}, criteria):
        return ""
    at = str(outcome.get("at") or (verdict.get("receipt") or {}).get("time") or desired.get("at") or "a time that is not known")
    why = str(verdict.get("msg") or outcome.get("sentence") or "").rstrip(".")
    return f"{group}: release {release} failed at {at}, and nothing of it has changed: {why}. To boot it again: -e again=true."


def decide(
    state: Mapping[str, Any], release: str, reasons: Sequence[str], group: str, restart: bool = False, takeover: bool = False, again: bool = False,
    options: Mapping[str, Any] | None = None, criteria: Mapping[str, Any] | None = None, receipt: Mapping[str, Any] | None = None,
) -> dict[str, Any]:  # fmt: skip
    """Return what a run does for `release`, which must start for `reasons` (none: it runs).

    `options` and `criteria` are those of today, `receipt` is that of the release if it has passed its gate. do: nothing, start, follow (the agent
    works on this release, or the outcome of its boot was not read yet) or refuse. generation: which one to follow. reasons: why the group must start;
    none unless `do` is start. adjust: the options that change without a start, one phrase each. text: what the user reads.
    """
    desired, outcome = state.get("desired") or {}, state.get("outcome") or {}
    generation, by = int(desired.get("generation") or 0), str(desired.get("by") or "another run")
    same = desired.get("state") == "serving" and desired.get("release") == release

    def answer(do: str, text: str = "", reasons: Sequence[str] = (), number: int = 0, adjust: Sequence[str] = ()) -> dict[str, Any]:
        return {"do": do, "generation": number, "reasons": list(reasons), "text": text, "adjust": list(adjust)}

    followed = answer("follow", f"the start that {by} began at {since(desired)}", number=generation)
    if converges(state) and same:
        return followed
    if converges(state) and not takeover and not desired.get("auto"):
        what = f"release {desired.get('release')}" if desired.get("state") == "serving" else "stop"
        text = f"{group} is being changed by a run of {by} since {since(desired)} ({what}). Wait for it, or take it over with -e takeover=true."
        return answer("refuse", text, number=generation)
    if converges(state):
        return answer("start", reasons=list(reasons) or [f"taken over from a run of {by}"])
    read = outcome.get("delivered")
    if generation and same and not read and not reasons and outcome.get("result") == "serves":
        return followed
    # An outcome is out of date if what runs now contradicts it, and a start that was refused before its boot is worth another try.
    failed = _failed_before(desired, outcome, release, group, options or {}, criteria or {}) if generation and same and reasons else ""
    held = outcome.get("result") == "held" and same and reasons and not desired.get("auto")
    if not restart and not again and (failed or held) and not read:
        return followed
    if not restart and not again and failed:
        return answer("refuse", failed, number=generation)
    # It is asked for again, without a restart: the group has gone back to this release after a failed change, or was started by hand after a stop.
    returned = generation > 0 and bool(desired.get("state")) and not same
    if reasons or returned:
        return answer("start", reasons=reasons)
    would_fail = measures.receipt_fault(group, receipt or {}, criteria or {})
    if would_fail:
        text = f"{group} serves release {release}, and its next boot would fail what the inventory asks for now. {would_fail} Nothing was changed."
        return answer("refuse", text)
    return answer("nothing", adjust=differences(desired.get("options") or {}, options or {}) if generation else ())


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
    notices = watch.get("notices") or {}
    if notices:
        count = int(notices.get("count") or 0)
        what = f"{count} notice{'s' if count != 1 else ''} failed since the agent's start"
        parts.append(f"{what}, the last at {notices.get('at')}: {str(notices.get('text')).rstrip('.')}")
    return f"watch: {'; '.join(parts)}." if parts else ""


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
