# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the report of a serving group reads on the controller, and what it shows, as figures and tables. Controller only.

It reads results of this run, receipts and bench results, and what an earlier report read of a node. What is not JSON is left out.
A figure is a mapping: kind (stages, bars, lines), title, desc (in words), unit, labels, series (name and values; of `lines` pairs, `epoch`: x is a time).
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench import levels
from ansible_collections.gb10.cluster.plugins.module_utils._bench.verdict import WORDS
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded, redact
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import write_atomically
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import Thresholds
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import finite
from ansible_collections.gb10.cluster.plugins.module_utils._node.group_state import rank_fault, unread
from ansible_collections.gb10.cluster.plugins.module_utils._node.memory import Sample, parse_series
from ansible_collections.gb10.cluster.plugins.module_utils._node.releases import brief
from ansible_collections.gb10.cluster.plugins.module_utils._pair.standing import seconds_text
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_results import plain
from ansible_collections.gb10.cluster.plugins.plugin_utils.receipts import MOST_FILES, in_order

Found = Mapping[str, Any]
CACHE, RECORDS = "report-nodes.json", ("read_at", "receipts", "events", "memory", "bandwidth", "soaks")
MOST_BOOTS, MOST_RELEASES, MOST_ROWS, MOST_POINTS, GAP_SECONDS = 200, 12, 40, 300, 300.0  # seconds between two samples that interrupt a line
_WORDS = ("starting", "arguments", "configuration", "rendezvous", "weights", "KV cache", "CUDA graphs", "engine", "API", "completions")
STAGE_WORDS = dict(zip(STAGES, _WORDS))  # a stage of a later version stands for itself
PUBLISHED, MINIMUM = "published by the source", "the gate's minimum"
POOLS = (("KV pool", "tokens", "effective_tokens", "kv_pool_tokens"), ("Concurrency at the full context", "requests", "concurrency", "max_concurrency"))
#: Of the last good boot: name, place in its receipt, form.
CARDS = (
    ("KV pool", "pool", "effective_tokens", "{:,.0f} tokens"), ("context", "pool", "context", "{:,.0f} tokens"),
    ("concurrency", "pool", "concurrency", "{:,.2f}"), ("decode, one stream", "measured", "decode_tok_s", "{:,.1f} tokens/s"),
    ("prefill", "measured", "prefill_tok_s", "{:,.0f} tokens/s"),
)  # fmt: skip


def _load(path: Path) -> dict[str, Any]:
    """Return the object of a JSON file, with printable texts and without secrets; empty if it cannot be read."""
    try:
        found = redact.masked(plain(json.loads(bounded.text(str(path)))))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def receipts_in(folder: Path) -> list[dict[str, Any]]:
    """Return the briefs of the newest receipts in a group's folder that can be read."""
    return [brief(each) for each in map(_load, in_order(folder)[-MOST_FILES:]) if each]


def bench_in(folder: Path, group: str) -> dict[str, Any]:
    """Return the last result of bench.yml of a group, with its time; empty without one."""
    named = folder.glob(f"{group}-{'[0-9a-f]' * 12}-????????T??????Z.json")  # with the release
    files = ((_load(path), path.stem[-16:]) for path in sorted(named, key=lambda path: path.stem[-16:], reverse=True))
    return next(({**found, "at": f"{at[:4]}-{at[4:6]}-{at[6:8]} {at[9:11]}:{at[11:13]}"} for found, at in files if found), {})


def _read(fabric: Found, info: Found) -> dict[str, Any]:
    """Return what this run has read of a node, as it is kept for later reports; if it has not, only `problem`, why not."""
    if not info or info.get("skipped") or info.get("unreachable"):
        return {"problem": "the node is unreachable" if info and info.get("unreachable") else "it is not in this run"}
    if info.get("failed"):
        return {"problem": str(info.get("msg") or "no reason is given").strip().splitlines()[0][:300].rstrip(".")}
    available = at(info, "memory", "available_kib")
    memory = f", {available / 2**20:.1f} GiB of memory available" if available else ""
    state = f"not known: {unread(info)}" if unread(info) else (rank_fault(info) or "its container runs") + memory
    rails = {key: fabric.get(key) or [] for key in ("rails", "problems")} if "rails" in fabric else {}  # the task's failure is ignored
    return dict(redact.masked({**{key: info["records"][key] for key in RECORDS}, "state": state, "fabric": rails, "problem": ""}))


def nodes_of(hosts: Sequence[str], results: Mapping[str, Found], folder: Path) -> dict[str, dict[str, Any]]:
    """Return by host what is known of each node: read in this run, else by an earlier report, with `problem`, and keep what this run has read.

    `results` are, by host, `fabric` and `info`: the results of roce_info and vllm_rank_info. Raises OSError.
    """
    kept, now = _load(folder / CACHE), {host: _read(at(results, host, "fabric") or {}, at(results, host, "info") or {}) for host in hosts}
    known = {host: {**(kept.get(host, {}) if node["problem"] else {}), **node} for host, node in now.items()}
    if not all(node["problem"] for node in now.values()):
        folder.mkdir(parents=True, exist_ok=True)
        write_atomically(str(folder / CACHE), json.dumps({host: node for host, node in known.items() if "state" in node}) + "\n", 0o600)
    return known


def at(found: Any, *path: str) -> Any:
    """Return a value inside mappings; None if one of the keys is missing."""
    for key in path:
        found = found.get(key) if isinstance(found, Mapping) else None
    return found


def _minute(stamp: object) -> str:
    return str(stamp or "not known")[:16].replace("T", " ")


def _verdict(boot: Found) -> list[str]:
    """Return how a boot ended, and how long it took, in words."""
    return ["passed" if boot.get("passed") else f"failed: {boot.get('class') or 'not known'}", seconds_text(finite(boot.get("seconds")) or 0.0)]


def _ranks(boot: Found | None) -> list[tuple[str, Found]]:
    return [(f"rank {int(each.get('rank') or 0)} on {each.get('host')}", each) for each in at(boot, "ranks") or []]


def section(figures: Sequence[Found] = (), rows: Sequence[Sequence[str]] = (), text: Sequence[str] = ()) -> dict[str, Any]:
    """Return a section: its figures, the rows of its table, and its sentences. Its title and the head of the table are in the template."""
    return {"figures": list(figures), "rows": list(rows), "text": list(text)}


def bars(title: str, unit: str, labels: Sequence[str], series: Mapping[str, Sequence[Any]]) -> Found:
    """Return a figure of bars. A series without a value is left out."""
    shown = [(name, values) for name, values in ((name, [finite(each) for each in found]) for name, found in series.items()) if any(values)]
    form = "{:,.0f}" if unit == "tokens" else "{:,.4g}"
    words = [f"{label}: " + ", ".join(f"{name} {form.format(values[place])}" for name, values in shown if values[place]) for place, label in enumerate(labels)]
    return {"kind": "bars", "title": title, "desc": f"In {unit}. {'; '.join(words)}.", "unit": unit, "labels": list(labels), "series": shown}


def stage_times(rank: Found, seconds: float) -> dict[str, float]:
    """Return the seconds of each stage of a rank's boot, in order. What comes before the first log line counts as its start."""
    stages = [(str(name or STAGES[0]), float(when)) for name, when in rank.get("stages") or []]
    if stages and stages[0][1] > 0:
        stages.insert(0, (STAGES[0], 0.0))
    out: dict[str, float] = {}
    for (name, start), end in zip(stages, [when for _name, when in [*stages[1:], ("", max([seconds, *(when for _name, when in stages[-1:])]))]]):
        word = STAGE_WORDS.get(name, name)
        out[word] = round(out.get(word, 0.0) + max(0.0, end - start), 1)
    return out


def boot_section(boots: Sequence[Found]) -> dict[str, Any]:
    """Return the timeline of the last boot, and that of the last good one if the last has failed."""
    good = [boot for boot in boots if boot.get("passed")]
    figures, rows, text = [], [], []
    for boot in [*boots[-1:], *(good[-1:] if good and boots[-1] is not good[-1] else [])]:
        title = f"Release {boot.get('release')}, {_minute(boot.get('time'))}: {' after '.join(_verdict(boot))}"
        ranks = [(place, stage_times(each, finite(boot.get("seconds")) or 0.0)) for place, each in _ranks(boot)]
        ranks = [(place, times) for place, times in ranks if sum(times.values()) > 0]
        if not ranks:
            text.append(f"{title}. It has no stages: it ended before a log line was read.")
            continue
        seen = {word for _place, times in ranks for word in times}
        words = [*(word for word in _WORDS if word in seen), *sorted(seen.difference(_WORDS))]
        spent = [[place, ", ".join(f"{word} {seconds_text(each)}" for word, each in times.items() if each >= 1)] for place, times in ranks]
        series = [(word, [times.get(word) for _place, times in ranks]) for word in words]
        desc, labels = "; ".join(map(": ".join, spent)), [place for place, _times in ranks]
        figures.append({"kind": "stages", "title": title, "desc": desc, "unit": "s", "labels": labels, "series": series})
        rows += [[str(boot.get("release")), *row] for row in spent]
    text += ["A worker's log has no stage after its KV cache or its CUDA graphs: its last bar goes on until the boot ends."] if rows else []
    return section(figures, rows, text)


def memory_figure(title: str, samples: Sequence[Sample], is_epoch: bool) -> dict[str, Any]:
    """Return the lines of a rank's memory, with an interruption where samples are missing. Of each stretch the sample with the least memory counts."""
    size, gap = -(-len(samples) // MOST_POINTS), max(GAP_SECONDS, 4 * (samples[-1].seconds - samples[0].seconds) / MOST_POINTS)
    kept = [min(samples[start : start + size], key=lambda each: each.available) for start in range(0, len(samples), size)]
    series: dict[str, list[tuple[float, float | None]]] = {"MemAvailable": [], "MemFree": [], "SwapFree": []}
    for number, each in enumerate(kept):
        for name, value in zip(series, (each.available, each.free, each.swap_free)):
            series[name] += [(each.seconds, None)] if number and each.seconds - kept[number - 1].seconds > gap else []
            series[name].append((each.seconds, round(value / 1024, 2)))
    low, shown = min(samples, key=lambda each: each.available), [each for each in series.items() if each[0] != "SwapFree" or any(s.swap_free for s in kept)]
    when = time.strftime("at %Y-%m-%d %H:%M", time.gmtime(low.seconds)) if is_epoch else f"{seconds_text(low.seconds)} after the start"
    desc = f"In GiB. The lowest MemAvailable of {title} is {low.available / 1024:.1f} GiB, {when}."
    return {"kind": "lines", "title": title, "desc": desc, "unit": "GiB", "epoch": is_epoch, "labels": [], "series": shown}


def memory_section(series: Mapping[str, Sequence[Sample]], is_epoch: bool, text: Sequence[str] = ()) -> dict[str, Any]:
    """Return the section of the memory of the ranks that have samples."""
    ranks, rows = [(place, samples) for place, samples in series.items() if len(samples) > 1], []
    for place, samples in ranks:
        swap = max(0, samples[0].swap_free - min(each.swap_free for each in samples))
        rows.append([place, *(f"{each / 1024:.1f}" for each in (min(s.available for s in samples), min(s.free for s in samples), swap))])
    return section([memory_figure(place, samples, is_epoch) for place, samples in ranks], rows, text)


def memory_sections(boots: Sequence[Found], nodes: Mapping[str, Found]) -> dict[str, Any]:
    """Return the memory of all ranks during the last boot that has samples, and during the last day, or the last half hour of a new agent."""
    boot = next((each for each in reversed(boots) if any(rank.get("memory_series") for _place, rank in _ranks(each))), None)
    text = [f"The boot of {_minute(boot.get('time'))}, which {_verdict(boot)[0]}."] if boot else []
    series = {place: [parse_series(at(node, "memory", key)) for key in ("day", "recent")] for place, node in nodes.items()}
    latest = {place: day if len(day) >= min(30, len(recent)) else recent for place, (day, recent) in series.items()}  # a young agent has few of a day
    of_boot = memory_section({place: parse_series(rank.get("memory_series")) for place, rank in _ranks(boot)}, False, text)
    return {"boot-memory": of_boot, "memory": memory_section(latest, True)}


def over_releases(boots: Sequence[Found], profiles: Found, title: str, unit: str, measured: tuple[str, str], compare: Found) -> list[Found]:
    """Return bars of the figure at a place of the receipts, of the last good boot of each release, next to what is read of its profile."""
    last = {str(boot.get("release")): boot for boot in boots if boot.get("passed") and finite(at(boot, *measured))}
    shown = list(last.values())[-MOST_RELEASES:]
    labels = [f"{str(boot.get('release'))[:8]} {boot.get('profile') or ''}".strip() for boot in shown]
    series = {name: [read(at(profiles, str(boot.get("profile"))) or {}) for boot in shown] for name, read in compare.items()}
    return [bars(title, unit, labels, {"measured": [at(boot, *measured) for boot in shown], **series})] if shown else []


def speed_section(boots: Sequence[Found], profiles: Found, bench: Found) -> dict[str, Any]:
    """Return the gate's decode speed, which no published level has, and the last bench.yml next to the published figures of its levels."""
    figures = over_releases(boots, profiles, "Decode speed of one stream, measured by the gate", "tokens/s", ("measured", "decode_tok_s"), {})
    profile = next((boot.get("profile") for boot in reversed(boots) if boot.get("release") == bench.get("release")), None)
    title, found = f"bench.yml of {bench.get('at')}, release {bench.get('release')}", levels.compare(bench.get("rows"), at(profiles, str(profile), "published"))
    known = [(levels.row_title(each), each) for each in found if each["published_percent"] is not None][:MOST_ROWS]
    rows = [[words, *levels.row_texts(each)] for words, each in known]
    speeds = [each for each in found if each["quantity"] == "decode_tok_s"][:MOST_RELEASES]
    if known:
        series = {"measured": [100 + each["published_percent"] for _words, each in known], PUBLISHED: [100.0] * len(known)}
        figures.append(bars(f"{title}: per cent of the published figure", "%", [words for words, _each in known], series))
    elif speeds:
        figures.append(bars(f"{title}: decode", "tokens/s", [each["test"] for each in speeds], {"measured": [each["measured"] for each in speeds]}))
    return section(figures, rows)


def rails_section(nodes: Mapping[str, Found]) -> dict[str, Any]:
    """Return the rails of all ranks, what is wrong with them, and their bandwidth."""
    rows, text, measured = [], [], []
    for place, node in nodes.items():
        fabric, tested, host = node.get("fabric") or {}, node.get("bandwidth") or {}, place.partition(" on ")[2]
        for rail in fabric.get("rails") or []:
            speed, link = finite(rail.get("speed_mbps")), "up" if rail.get("carrier") else "down"
            cells = [*(rail.get(key) for key in ("netdev", "hca", "ipv4")), link, f"{speed / 1000:g} Gb/s" if speed else None]
            rows.append([place, *("-" if each is None else str(each) for each in [*cells, rail.get("mtu"), rail.get("gid_index")])])
        text += [f"{place}: {each.get('message')} {each.get('remedy') or ''}".strip() for each in fabric.get("problems") or []]
        measured += [(f"{host} {each['hca']}", each.get("gbps")) for each in (tested.get("rails") or [])[:MOST_RELEASES] if finite(each.get("gbps"))]
        text += [f"Measured on {host} at {_minute(tested.get('when'))}: {tested['message']}"] if tested.get("message") else []
    series = {"measured": [gbps for _name, gbps in measured], "wanted of a rail of a GB10": [Thresholds().rail_gbps] * len(measured)}
    figures = [bars("RDMA write, all rails at once", "Gb/s", [name for name, _gbps in measured], series)] if measured else []
    return section(figures, rows, text)


def _verdict_row(boot: Found) -> list[str]:
    drift = f" Changed since the last good boot: {'; '.join(map(str, boot['drift']))}." if boot.get("drift") else ""
    return [_minute(boot.get("time")), *(str(boot.get(key) or "") for key in ("release", "profile")), *_verdict(boot), f"{boot.get('msg') or ''}{drift}"]


def cards(boots: Sequence[Found], soaks: Sequence[Found] = ()) -> list[tuple[str, str]]:
    """Return the first figures of the page, of the last boot that passed and the last soak of its release."""
    boot: Found = next((each for each in reversed(boots) if each.get("passed")), {})
    out = [("profile", boot.get("profile")), ("model", ", ".join(boot.get("models") or [])), ("release", boot.get("release"))]
    out += [(name, form.format(finite(at(boot, part, key)))) for name, part, key, form in CARDS if finite(at(boot, part, key))]
    soaked = [each for each in soaks if each.get("release") == boot.get("release")][:1]
    out += [("soaked", f"{finite(each.get('hours')) or 0:.1f} h, {WORDS.get(str(each.get('verdict')))}") for each in soaked]
    return [(name, str(text)) for name, text in [*out, ("last good boot", boot and _verdict(boot)[1]), ("vLLM", boot.get("version"))] if text]


def plan(
    group: str, hosts: Sequence[str], status: Found, nodes: Mapping[str, Found], receipts: Sequence[Found], profiles: Found, bench: Found, made: str
) -> dict[str, Any]:  # fmt: skip
    """Return the page of a group. `status` is what `gb10 status` prints, `profiles` are by name. Of all sources, the first that has a boot counts."""
    ranks = {f"rank {number} on {host}": nodes.get(host) or {} for number, host in enumerate(hosts)}
    by_time: dict[tuple[str, str], Found] = {}
    for boot in [*receipts, *(boot for node in ranks.values() for boot in node.get("receipts") or [])]:
        by_time.setdefault((str(boot.get("time") or ""), str(boot.get("release") or "")), boot)
    boots = [by_time[key] for key in sorted(by_time, key=lambda key: key[0])][-MOST_BOOTS:]
    # The timeline shows the progress of boots.
    events = [each for each in next((node["events"] for node in ranks.values() if node.get("events")), []) if each.get("kind") != "progress"]
    state, rows, notes, pools = str(status.get("state") or "unknown"), [], [], list[Found]()
    for number, (host, node) in enumerate(zip(hosts, ranks.values())):
        read = f"read at {_minute(node['read_at'])}" if node.get("read_at") else "never read"
        rows.append([str(number), host, str(node.get("state") or "-"), f"{read}; not now: {node['problem']}" if node.get("problem") else read])
        shown = f"What is shown of it was read at {node['read_at']}." if node.get("read_at") else "Nothing is known of it."
        notes += [f"{host} was not read: {node['problem']}. {shown}"] if node.get("problem") else []
    for title, unit, key, name in POOLS:
        reads = {PUBLISHED: lambda of, name=name: levels.boot_fact(of.get("published"), name), MINIMUM: lambda of, key=key: at(of, "gate", key, "min")}
        pools += over_releases(boots, profiles, title, unit, ("pool", key), reads)
    happened = [[str(each.get("at") or "")[:19].replace("T", " "), *(str(each.get(key) or "") for key in ("kind", "text"))] for each in events]
    return {
        "group": group, "made": made, "sentence": str(status.get("sentence") or f"The state of {group} was not read."), "notes": notes,
        "tone": "good" if state in ("serves", "busy") else "neutral" if status.get("ok") or state == "unknown" else "bad",
        "cards": cards(boots, [each for node in ranks.values() for each in node.get("soaks") or []]), "ranks": rows,
        "sections": {
            "boot": boot_section(boots), **memory_sections(boots, ranks), "pool": section(pools), "speed": speed_section(boots, profiles, bench),
            "rails": rails_section(ranks), "verdicts": section(rows=[*map(_verdict_row, boots[: -MOST_ROWS - 1 : -1])]),
            "events": section(rows=happened[: -MOST_ROWS - 1 : -1]),
        },
    }  # fmt: skip
