# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The text at the end of a run."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any


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
