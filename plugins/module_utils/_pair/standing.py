# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a run has to do, compared with what the agent does already; the state of a group as lines, and the text at the end of a run. Pure."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import EVIDENCE

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


# --- The text at the end of a run.


def seconds_text(seconds: float) -> str:
    """Return a duration as text: 48 s, 7 min 05 s."""
    whole = round(seconds)
    return f"{whole} s" if whole < 100 else f"{whole // 60} min {whole % 60:02d} s"


def stage_times(marks: Sequence[tuple[str, float]], end: float) -> list[tuple[str, float]]:
    """Turn marks (name, when it began) into (name, how long it took)."""
    starts = [*marks, ("", end)]
    return [(name, starts[i + 1][1] - when) for i, (name, when) in enumerate(marks)]


def boot_stages(receipt: Mapping[str, Any]) -> str:
    """Return the time of each stage of the head's boot; empty if not known."""
    ranks = receipt.get("ranks") or []
    stages = [s for s in (ranks[0].get("stages") or []) if s[0]] if ranks else []
    if not stages:
        return ""
    times = stage_times(stages, float(receipt.get("seconds") or stages[-1][1]))
    return ", ".join(f"{'starting' if name == 'none' else name} {seconds_text(spent)}" for name, spent in times if spent >= 1)


#: Prints the API key on the head.
KEY_COMMAND = "sudo gb10 key"


def curl_line(url: str, model: str, prompt: str, key: bool = False, login: Sequence[str] = ()) -> str:
    """Return a shell line that asks for a completion. With a key it runs on the head, and no argument of a program has the key.

    :param login: the words of ssh for the head, none if the controller is the head. The whole pipe runs there: the terminal of ``ssh -t`` is for
        the question of sudo, which would go into a pipe on the controller.
    """
    body = json.dumps({"model": model, "prompt": prompt, "max_tokens": 32, "temperature": 0})
    remote = bool(key and login)  # its line is within single quotes
    body = '"' + re.sub(r'(["$`\\])', r"\\\1", body) + '"' if remote else shlex.quote(body)
    source, header = (f"{KEY_COMMAND} --header | ", " -H @-") if key else ("", "")
    line = f'{source}curl -s{header} {url}/completions -H "Content-Type: application/json" -d {body}'
    return shlex.join(["ssh", "-t", *login, line]) if remote else line


def tasks_text(changed: Mapping[str, Sequence[str]]) -> str:
    """Return how many tasks changed each host, with their names if they are few."""
    parts = []
    for host, tasks in changed.items():
        names = ", ".join(name.rpartition("| ")[2] for name in tasks)
        parts.append(f"{host}: {len(tasks)} task{'' if len(tasks) == 1 else 's'}" + (f" ({names})" if len(tasks) <= 3 else ""))
    return "; ".join(parts)


def measured_rows(receipt: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return rows about speed, speculation and the engine's own settings, as far as they are known."""
    measured, rows = receipt.get("measured") or {}, []
    drafts = measured.get("speculation") or {}
    speeds = [f"{measured['decode_tok_s']:g} tokens/s in one stream" if measured.get("decode_tok_s") is not None else ""]
    speeds += [f"{measured['prefill_tok_s']:g} tokens/s prefill at {measured.get('prefill_tokens', 0):,} tokens" if measured.get("prefill_tok_s") else ""]
    rows.append(("speed", ", ".join(filter(None, speeds))))
    if drafts.get("acceptance") is not None:
        places = ", ".join(str(count) for count in drafts.get("accepted_per_position") or [])
        others = "" if drafts.get("alone", True) else ", other clients' requests included"
        rows.append(("speculation", f"{drafts['acceptance']:.1%} of {drafts.get('draft_tokens', 0):,} draft tokens accepted (by position: {places}){others}"))
    flags = {"eager": ("eager mode", "CUDA graphs"), "autotune": ("FlashInfer autotune", "no FlashInfer autotune")}
    parts = [f"MoE backend {receipt['moe_backend']}" if receipt.get("moe_backend") else ""]
    parts += [f"custom_ops {receipt['custom_ops']}" if receipt.get("custom_ops") else ""]
    parts += [flags[key][0 if receipt[key] else 1] for key in flags if receipt.get(key) is not None]
    rows.append(("engine", ", ".join(filter(None, parts))))
    return [(name, text) for name, text in rows if text]


def _use_rows(result: Mapping[str, Any], url: str, model: str, login: Sequence[str]) -> list[tuple[str, str]]:
    """Return where the API key is, and the line to try."""
    path, key = str(result.get("key_path") or ""), bool(result.get("key"))
    own = f"{result['url']}/v1" if key and result.get("url") else url
    line = curl_line(own, model, str(result.get("prompt") or "Hello"), key, login)
    return [*([("api key", f"on {result['head']} in {path}; the next line reads it there")] if path else []), ("try it", line)]


# Rows that a run has shown line by line, or that the receipt has.
SHOWN = frozenset(("tasks", "time", "engine", "collective"))


def group_text(
    result: Mapping[str, Any],
    address: str,
    times: Sequence[tuple[str, float]],
    check_mode: bool = False,
    changed: Mapping[str, Sequence[str]] | None = None,
    lost: Sequence[str] = (),
    brief: bool = False,
    login: Sequence[str] = (),
) -> list[str]:
    """Return the lines about one serving group; `brief` leaves out the rows of SHOWN.

    `result` is the role's exported vllm_tp2_result of the head. `changed` has the names of the tasks that changed a host of the group (None:
    not counted), `lost` the hosts of the group that failed or were unreachable, `login` the words of ssh for the head.
    """
    followed = check_mode and bool(result.get("followed"))
    pending = check_mode and bool(result.get("changes") or followed)
    receipt = {} if pending else result.get("receipt") or {}
    pool = receipt.get("pool") or {}
    url = f"http://{address}:{result['port']}/v1"
    model = str((result.get("models") or [""])[0])
    rows = [("endpoint", url), ("model", f"{model} (profile {result['profile']}, release {result['release']})")]
    if pool.get("tokens") is not None:
        concurrency = pool.get("concurrency")
        rows.append(("KV pool", f"{pool['tokens']:,} tokens"))
        if concurrency is not None and pool.get("context"):
            rows.append(("concurrency", f"{concurrency:,.2f} requests of {pool['context']:,} tokens at once"))
    rows += measured_rows(receipt)
    phrases = [*(result.get("changes") or []), *(result.get("repaired") or [])]
    unchanged = "nothing" if changed is not None and not changed and not lost else "no restart"
    rows += [("followed", str(result["followed"]))] if result.get("followed") else []
    rows.append(("would change" if pending else "changed", "; ".join(phrases) or unchanged))
    if changed:
        rows.append(("tasks", tasks_text(changed)))
    spent = ", ".join(f"{name} {seconds_text(s)}" for name, s in times if s >= 0.5)
    if spent:
        rows.append(("time", spent))
    if (result.get("changes") or result.get("followed")) and receipt.get("seconds"):
        detail = boot_stages(receipt)
        rows.append(("boot", f"{seconds_text(float(receipt['seconds']))} to the verdict" + (f" (head: {detail})" if detail else "")))
    if result.get("unserved_seconds") and not pending:
        rows.append(("downtime", f"{seconds_text(float(result['unserved_seconds']))} without service"))
    if result.get("collective"):
        rows.append(("collective", str(result["collective"])))
    for phrase in result.get("warnings") or []:
        rows.append(("warning", phrase))
    strange = sorted({name for rank in receipt.get("ranks") or [] for name in (rank.get("facts") or {}).get("unknown_variables") or []})
    if strange:
        rows.append(("warning", f"the image's vLLM does not know {', '.join(strange)}, so what they select is off: use an image that has it, or remove them"))
    for phrase in receipt.get("drift") or []:
        rows.append(("drift", phrase))
    unknown = [c["name"] for c in receipt.get("checks") or [] if c.get("ok") is None]
    if unknown:
        rows.append(("not known", ", ".join(unknown) + " (nothing in the logs tells)"))
    if receipt.get("path"):
        rows.append(("receipt", str(receipt["path"])))
    if not pending and not lost:
        rows += _use_rows(result, url, model, login)
    title = _title(result, pending, followed, lost)
    return [title, *(f"  {name:<12} {text}" for name, text in rows if not brief or name not in SHOWN)]


def _title(result: Mapping[str, Any], pending: bool, followed: bool, lost: Sequence[str]) -> str:
    """Return the first line about a serving group."""
    if lost:
        hosts = f"{', '.join(lost)} failed or {'was' if len(lost) == 1 else 'were'} unreachable in this run"
        return f"{hosts}, so it is not known whether {result['group']} serves. Correct that and run again"
    if followed:
        return f"{result['group']}: a run would follow {result['followed']}, and report its verdict"
    if not result.get("changes") and result.get("sentence"):
        return str(result["sentence"])
    return f"{result['group']} {'would be started to serve' if pending else 'serves'}"
