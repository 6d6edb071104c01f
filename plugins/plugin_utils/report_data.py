# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what the report of a serving group shows, as figures and tables, from what was read. Pure. Controller only.

A figure is a mapping: kind (stages, bars, lines), title, desc (its content in words), unit, labels, series (a list of name and values).
Values of `lines` are pairs of x and y, and `epoch` tells that x is a time. A section without data has a sentence in place of its figures.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stages import STAGES
from ansible_collections.gb10.cluster.plugins.module_utils._docker.log import stamp_to_ns
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.bandwidth import Thresholds
from ansible_collections.gb10.cluster.plugins.module_utils._gate.bench import compared, words_of
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import finite
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory_series import Sample, parse
from ansible_collections.gb10.cluster.plugins.module_utils._release.summary import seconds_text

Boot = Mapping[str, Any]
Nodes = Mapping[str, Mapping[str, Any]]
Profiles = Mapping[str, Mapping[str, Any]]
Figure = dict[str, Any]
Section = dict[str, Any]
MOST_BOOTS = 200
MOST_RELEASES = 12  # of a figure
MOST_ROWS = 40  # of a table
MOST_POINTS = 300  # of a line
MOST_PROBLEMS = 6  # of a rank's fabric
MOST_RANKS, MOST_STAGES, MOST_UNKNOWN, LONGEST_BOOT = 32, 40, 8, 7 * 86400.0  # what a receipt may have beyond this is not of a boot
GAP_SECONDS = 300.0  # between two samples, from which on a line is interrupted
ENOUGH_OF_A_DAY = 30  # samples; a younger agent has more in its last half hour
#: The words of a stage for people; a stage of a later version stands for itself.
STAGE_WORDS = dict(zip(STAGES, (
    "starting", "arguments", "configuration", "rendezvous", "weights", "KV cache", "CUDA graphs", "engine", "API", "completions",
)))  # fmt: skip
MEMORY_HEAD = ["rank", "lowest MemAvailable, GiB", "lowest MemFree, GiB", "swap used since the first sample, GiB"]
#: A level of smoke.yml or sanity.yml as one of bench.yml: short prompts, all at once.
SHORT = {
    **dict.fromkeys(("request_rate", "output_tokens", "ttft_ms", "prefill_tok_s", "itl_ms", "acceptance_percent")),
    "depth": 0, "prefix": "cold", "varied": False,
}  # fmt: skip
PUBLISHED, LEAST, ESTIMATE = "published by the source", "the gate's minimum", "the profile's estimate"


def epoch(stamp: object) -> float:
    """Return a time stamp as seconds since the epoch; 0 if it is not one."""
    try:
        return stamp_to_ns(str(stamp or "")) / 1e9
    except ValueError:  # the 32nd of a month
        return 0.0


def minute(stamp: object) -> str:
    """Return a time stamp without its seconds, for people."""
    return str(stamp or "not known")[:16].replace("T", " ")


def section(name: str, title: str, figures: Sequence[Figure], rows: Sequence[Sequence[str]], head: Sequence[str], text: Sequence[str]) -> Section:
    """Return a section. A table without rows is left out."""
    return {"id": name, "title": title, "figures": list(figures), "table": {"head": head, "rows": rows} if rows else None, "text": list(text)}


def bars(title: str, unit: str, labels: Sequence[str], series: Sequence[tuple[str, Sequence[float | None]]]) -> Figure:
    """Return a figure of bars. A series without a value is left out."""
    shown = [(name, [finite(each) for each in values]) for name, values in series]
    shown = [(name, values) for name, values in shown if any(values)]
    form = "{:,.0f}" if unit == "tokens" else "{:,.4g}"
    words = [f"{label}: " + ", ".join(f"{name} {form.format(values[place])}" for name, values in shown if values[place]) for place, label in enumerate(labels)]
    return {"kind": "bars", "title": title, "desc": f"In {unit}. {'; '.join(words)}.", "unit": unit, "labels": list(labels), "series": shown}


def merged(*sources: Sequence[Boot]) -> list[Boot]:
    """Return the boots of all sources by time, each once: the first source that has it counts."""
    found: dict[tuple[str, str], Boot] = {}
    for boot in (each for source in sources for each in source):
        found.setdefault((str(boot.get("release") or ""), str(boot.get("time") or "")), boot)
    return sorted(found.values(), key=lambda boot: epoch(boot.get("time")))[-MOST_BOOTS:]


def verdict_words(boot: Boot) -> str:
    """Return how a boot ended, in words."""
    return "passed" if boot.get("passed") else f"failed: {boot.get('class') or 'not known'}"


def _place(number: int, host: object) -> str:
    return f"rank {number} on {host}"


def _rank_place(rank: Mapping[str, Any]) -> str:
    return _place(int(rank.get("rank") or 0), rank.get("host"))


# --- the boot


def stage_times(rank: Mapping[str, Any], seconds: float) -> dict[str, float]:
    """Return the seconds of each stage of a rank's boot, in order. What comes before the first log line counts as its start."""
    stages = [(str(name or STAGES[0]), float(when)) for name, when in (rank.get("stages") or [])[:MOST_STAGES] if 0 <= when <= LONGEST_BOOT]
    if not stages:
        return {}
    stages = [(STAGES[0], 0.0), *stages] if stages[0][1] > 0 else stages
    out: dict[str, float] = {}
    for (name, start), end in zip(stages, [*(when for _name, when in stages[1:]), max(seconds, stages[-1][1])]):
        word = STAGE_WORDS.get(name, name)
        out[word] = round(out.get(word, 0.0) + max(0.0, end - start), 1)
    return out


def _timeline(boot: Boot, title: str) -> tuple[Figure, list[list[str]]] | None:
    """Return a boot's timeline and its rows; None if no rank has stages."""
    seconds = min(finite(boot.get("seconds")) or 0.0, LONGEST_BOOT)
    ranks = [(_rank_place(each), stage_times(each, seconds)) for each in (boot.get("ranks") or [])[:MOST_RANKS]]
    ranks = [(place, times) for place, times in ranks if sum(times.values()) > 0]
    if not ranks:
        return None
    seen = {word for _place, times in ranks for word in times}
    words = [*(word for word in STAGE_WORDS.values() if word in seen), *sorted(seen - set(STAGE_WORDS.values()))[:MOST_UNKNOWN]]
    spent = [[place, ", ".join(f"{word} {seconds_text(each)}" for word, each in times.items() if each >= 1)] for place, times in ranks]
    desc = "; ".join(f"{place}: {text}" for place, text in spent)
    series = [(word, [times.get(word) for _place, times in ranks]) for word in words]
    figure = {"kind": "stages", "title": title, "desc": desc, "unit": "s", "labels": [place for place, _times in ranks], "series": series}
    return figure, [[str(boot.get("release")), *row] for row in spent]


def boot_section(boots: Sequence[Boot]) -> Section:
    """Return the timeline of the last boot, and that of the last good one if the last has failed."""
    good = [boot for boot in boots if boot.get("passed")]
    figures, rows, text = [], [], []
    for boot in [*boots[-1:], *(good[-1:] if boots and good and boots[-1] is not good[-1] else [])]:
        title = f"Release {boot.get('release')}, {minute(boot.get('time'))}: {verdict_words(boot)} after {seconds_text(finite(boot.get('seconds')) or 0.0)}"
        drawn = _timeline(boot, title)
        if drawn is None:
            text.append(f"{title}. It has no stages: it ended before a log line was read.")
        else:
            figures.append(drawn[0])
            rows += drawn[1]
    if not boots:
        text.append("No boot of this group has been judged yet. Run site.yml.")
    elif any(len(figure["labels"]) > 1 for figure in figures):
        text.append("A worker's log has no stage after its KV cache or its CUDA graphs: its last bar goes on until the boot ends.")
    return section("boot", "Boot timeline", figures, rows, ["release", "rank", "stages"], text)


# --- memory


def thinned(samples: Sequence[Sample], most: int = MOST_POINTS) -> list[Sample]:
    """Return at most `most` samples: of each stretch the one with the least memory available."""
    size = -(-len(samples) // most) or 1
    return [min(samples[start : start + size], key=lambda each: each.available) for start in range(0, len(samples), size)]


def _lines(samples: Sequence[Sample], place: int, gap: float) -> list[tuple[float, float | None]]:
    """Return the points of one figure in GiB, with an interruption where samples are missing."""
    points: list[tuple[float, float | None]] = []
    for number, each in enumerate(samples):
        if number and each.seconds - samples[number - 1].seconds > gap:
            points.append((each.seconds, None))
        points.append((each.seconds, round(each[place] / 1024, 2)))
    return points


def memory_figure(title: str, samples: Sequence[Sample], is_epoch: bool) -> Figure:
    """Return the lines of a rank's memory."""
    kept, span = thinned(samples), samples[-1].seconds - samples[0].seconds
    names = [("MemAvailable", 2), ("MemFree", 1), *([("SwapFree", 3)] if any(each.swap_free for each in kept) else [])]
    gap = max(GAP_SECONDS, 4 * span / MOST_POINTS)
    low = min(samples, key=lambda each: each.available)
    when = time.strftime("at %Y-%m-%d %H:%M", time.gmtime(low.seconds)) if is_epoch else f"{seconds_text(low.seconds)} after the start"
    return {
        "kind": "lines", "title": title, "desc": f"In GiB. The lowest MemAvailable of {title} is {low.available / 1024:.1f} GiB, {when}.", "unit": "GiB",
        "epoch": is_epoch, "labels": [], "series": [(name, _lines(kept, place, gap)) for name, place in names],
    }  # fmt: skip


def memory_row(place: str, samples: Sequence[Sample]) -> list[str]:
    """Return the row of a rank for MEMORY_HEAD."""
    swap = samples[0].swap_free - min(each.swap_free for each in samples)
    return [place, *(f"{each / 1024:.1f}" for each in (min(s.available for s in samples), min(s.free for s in samples), max(0, swap)))]


def boot_memory_section(boots: Sequence[Boot]) -> Section:
    """Return the memory of all ranks during the last boot that has samples."""
    boot = next((each for each in reversed(boots) if any(rank.get("memory_series") for rank in each.get("ranks") or [])), None)
    ranks = [(_rank_place(rank), parse(rank.get("memory_series"))) for rank in ((boot or {}).get("ranks") or [])[:MOST_RANKS]]
    ranks = [(place, samples) for place, samples in ranks if len(samples) > 1]
    text = []
    if not boots:
        text.append("No boot of this group has been judged yet.")
    elif boot is None:
        text.append("No receipt has memory samples: their boots failed before a log line was read.")
    elif boot is not boots[-1]:
        text.append(f"The last boot has no samples. These are of the boot of {minute(boot.get('time'))}, which {verdict_words(boot)}.")
    if boot is not None and not ranks:
        text.append("This boot ended before a second sample.")
    figures = [memory_figure(place, samples, False) for place, samples in ranks]
    return section("boot-memory", "Memory during the boot", figures, [memory_row(*each) for each in ranks], MEMORY_HEAD, text)


def memory_section(hosts: Sequence[str], nodes: Nodes) -> Section:
    """Return the memory of all ranks during the last day, as their agents keep it."""
    figures, rows, text = [], [], []
    for number, host in enumerate(hosts):
        node, place = nodes.get(host) or {}, _place(number, host)
        memory = node.get("memory") or {}
        day, recent = parse(memory.get("day")), parse(memory.get("recent"))
        samples = day if len(day) >= max(ENOUGH_OF_A_DAY, 2) or len(day) > len(recent) else recent
        if len(samples) > 1:
            figures.append(memory_figure(place, samples, True))
            rows.append(memory_row(place, samples))
        elif node.get("read_at"):
            text.append(f"{place} has no memory samples: its agent does not run, or does not watch (vllm_tp2_keep_serving).")
        else:
            text.append(f"{place} has no memory samples: it was never read.")
    return section("memory", "Memory of the last day", figures, rows, MEMORY_HEAD, text)


# --- figures over releases


def over_releases(
    boots: Sequence[Boot], title: str, unit: str, measured: Callable[[Boot], Any], compare: Mapping[str, Callable[[Boot], Any]]
) -> list[Figure]:  # fmt: skip
    """Return bars of one figure of the last good boot of each release, next to what it is compared with; nothing if nothing was measured."""
    last = {str(boot.get("release")): boot for boot in boots if boot.get("passed") and finite(measured(boot))}
    shown = list(last.values())[-MOST_RELEASES:]
    labels = [f"{str(boot.get('release'))[:8]} {boot.get('profile') or ''}".strip() for boot in shown]
    series = [(name, [find(boot) for boot in shown]) for name, find in {"measured": measured, **compare}.items()]
    return [bars(title, unit, labels, series)] if shown else []


class Known:
    """What is known of the profile of a boot."""

    def __init__(self, profiles: Profiles, estimates: Mapping[str, float | None]) -> None:
        """`estimates` has the estimated KV pool of a profile by its name."""
        self.profiles, self.estimates = profiles, estimates

    def of(self, name: object) -> Mapping[str, Any]:
        """Return the profile of this name; empty if it is not known any more."""
        return self.profiles.get(str(name)) or {}

    def published(self, key: str) -> Callable[[Boot], Any]:
        """Return what finds a published figure of a boot's profile."""
        return lambda boot: (self.of(boot.get("profile")).get("published") or {}).get(key)

    def least(self, key: str) -> Callable[[Boot], Any]:
        """Return what finds the lower bound of a gate's criterion."""
        return lambda boot: ((self.of(boot.get("profile")).get("gate") or {}).get(key) or {}).get("min")


def pool_section(boots: Sequence[Boot], known: Known) -> Section:
    """Return KV pool and concurrency over the releases."""

    def pool(key: str) -> Callable[[Boot], Any]:
        return lambda boot: (boot.get("pool") or {}).get(key)

    def estimate(boot: Boot) -> float | None:
        return known.estimates.get(str(boot.get("profile")))

    tokens = {PUBLISHED: known.published("kv_pool_tokens"), LEAST: known.least("effective_tokens"), ESTIMATE: estimate}
    requests = {PUBLISHED: known.published("max_concurrency"), LEAST: known.least("concurrency")}
    figures = over_releases(boots, "KV pool", "tokens", pool("effective_tokens"), tokens)
    figures += over_releases(boots, "Concurrency at the full context", "requests", pool("concurrency"), requests)
    text = [] if figures else ["No boot of this group has passed yet, so no KV pool is known."]
    return section("pool", "KV pool and concurrency over releases", figures, [], [], text)


def _against_published(playbook: str, when: str, levels: Sequence[Mapping[str, Any]], published: Mapping[str, Any], profile: object) -> Section:
    """Return what a playbook has measured at some levels: per cent of the published figures, or tokens/s if nothing fits."""
    found, source = compared(levels, published)[:MOST_ROWS], f"{playbook} {when}"
    if found:
        shares, named = [100 * value / known for _key, value, known in found], [words_of(key) for key, _value, _known in found]
        rows = [
            [name, playbook, f"{value:,.1f} {unit}", f"{known:,} {unit}", f"{share - 100:+.0f} %"]
            for (name, unit), (_key, value, known), share in zip(named, found, shares)
        ]
        series = [("measured", shares), (PUBLISHED, [100.0] * len(found))]
        return section("", "", [bars(f"{source}: per cent of the published figure", "%", [name for name, _unit in named], series)], rows, [], [])
    if not any(finite(each.get("tok_s")) for each in levels):
        return section("", "", [], [], [], [f"{source}: no level completed a request."])
    labels = [f"{each['concurrency']} at once, depth {each['depth']}" for each in levels]
    figure = bars(f"{source}: all streams", "tokens/s", labels, [("measured", [each.get("tok_s") for each in levels])])
    return section("", "", [figure], [], [], [f"Nothing is published for the levels of {source}, and the profile {profile or 'of this release'}."])


def speed_section(boots: Sequence[Boot], known: Known, bench: Mapping[str, Any], speeds: Mapping[str, Any]) -> Section:
    """Return what was measured next to what is published: the gate's decode speed, the last bench.yml, and smoke.yml or sanity.yml."""
    decode = {PUBLISHED: known.published("single_stream_tok_s")}
    figures = over_releases(
        boots, "Decode speed of one stream, measured by the gate", "tokens/s", lambda boot: (boot.get("measured") or {}).get("decode_tok_s"), decode
    )  # fmt: skip
    profile = next((boot.get("profile") for boot in reversed(boots) if boot.get("release") == bench.get("release")), None)
    sources = [("bench.yml", f"of {bench.get('at')}, release {bench.get('release')}", list(bench.get("rows") or [])[-MOST_RELEASES:], profile)]
    levels = sorted(speeds.get("levels") or [], key=lambda each: int(each["concurrency"]))
    last = minute(max((str(each["at"]) for each in levels), default=None))
    short = [{**SHORT, **each, "stream_tok_s": each["tok_s"] / max(1, each["concurrency"])} for each in levels]
    sources.append(("smoke.yml and sanity.yml", f"until {last}, release {speeds.get('release')}", short, speeds.get("profile")))
    parts = [_against_published(by, when, rows, known.of(name).get("published") or {}, name) for by, when, rows, name in sources if rows]
    text = [each for part in parts for each in part["text"]] or ([] if parts else ["bench.yml, smoke.yml and sanity.yml have not measured this group yet."])
    rows = [row for part in parts if part["table"] for row in part["table"]["rows"]]
    figures += [figure for part in parts for figure in part["figures"]]
    return section("speed", "Measured and published speed", figures, rows, ["figure", "source", "measured", "published", "difference"], text)


# --- the fabric


def _rail_row(rail: Mapping[str, Any]) -> list[str]:
    speed = finite(rail.get("speed_mbps"))
    link = "up" if rail.get("carrier") else "down"
    cells = (*(rail.get(key) for key in ("netdev", "hca", "ipv4")), link, f"{speed / 1000:g} Gb/s" if speed else None, rail.get("mtu"), rail.get("gid_index"))
    return ["-" if each is None else str(each) for each in cells]


def rails_section(hosts: Sequence[str], nodes: Nodes) -> Section:
    """Return the rails of all ranks, what is wrong with them, and their bandwidth."""
    rows, text, measured = [], [], []
    for number, host in enumerate(hosts):
        node, place = nodes.get(host) or {}, _place(number, host)
        fabric, tested = node.get("fabric") or {}, node.get("bandwidth") or {}
        rows += [[place, *_rail_row(rail)] for rail in fabric.get("rails") or []]
        text += [f"{place}: {each.get('message')} {each.get('remedy')}".strip() for each in (fabric.get("problems") or [])[:MOST_PROBLEMS]]
        if not fabric:
            text.append(f"{place}: its rails were not read.")
        elif not fabric.get("rails") and not fabric.get("problems"):
            text.append(f"{place} has no rail.")
        measured += [(f"{host} {each['hca']}", gbps) for each in (tested.get("rails") or [])[:MOST_RELEASES] for gbps in [finite(each.get("gbps"))] if gbps]
        if tested.get("message"):
            text.append(f"Measured on {host} at {minute(tested.get('when'))}: {tested['message']}")
    if not measured:
        text.append("No bandwidth test has passed on these rails yet. The role roce makes it (roce_bandwidth_test).")
    series = [("measured", [gbps for _name, gbps in measured]), ("wanted of a rail of a GB10", [Thresholds().rail_gbps] * len(measured))]
    figures = [bars("RDMA write, all rails at once", "Gb/s", [name for name, _gbps in measured], series)] if measured else []
    head = ["rank", "interface", "RDMA device", "address", "link", "speed", "MTU", "GID index"]
    return section("rails", "Rails and their bandwidth", figures, rows, head, text)


# --- history


def verdict_section(boots: Sequence[Boot], events: Sequence[Mapping[str, Any]]) -> Section:
    """Return all verdicts, the newest first. Those that no receipt has are taken from the events."""
    rows = []
    for boot in boots:
        drift = f" Changed since the last good boot: {'; '.join(map(str, boot['drift']))}." if boot.get("drift") else ""
        cells = [str(boot.get("release") or ""), str(boot.get("profile") or ""), verdict_words(boot), seconds_text(finite(boot.get("seconds")) or 0.0)]
        rows.append((epoch(boot.get("time")), [minute(boot.get("time")), *cells, f"{boot.get('msg') or ''}{drift}"]))
    known = {str(boot.get("msg")) for boot in boots}
    for each in events:
        if each.get("kind") == "verdict" and each.get("text") and str(each["text"]) not in known:
            seconds = seconds_text(finite(each.get("seconds")) or 0.0)
            rows.append((epoch(each.get("at")), [minute(each.get("at")), "", "", "reported by the agent", seconds, str(each["text"])]))
    shown = [row for _time, row in sorted(rows, key=lambda each: -each[0])][:MOST_ROWS]
    head = ["time", "release", "profile", "verdict", "duration", "sentence"]
    return section("verdicts", "Verdicts", [], shown, head, [] if shown else ["No boot of this group has been judged yet."])


def events_section(events: Sequence[Mapping[str, Any]]) -> Section:
    """Return the last events of the agent, the newest first. The progress of boots is left out: the timeline shows it."""
    shown = [each for each in events if each.get("kind") != "progress"][: -MOST_ROWS - 1 : -1]
    rows = [[str(each.get("at") or "")[:19].replace("T", " "), str(each.get("kind") or ""), str(each.get("text") or "")] for each in shown]
    text = [] if rows else ["The agent on the head has no events, or could not be read."]
    return section("events", "Last events of the agent", [], rows, ["time", "kind", "event"], text)


# --- the page


def rank_rows(hosts: Sequence[str], nodes: Nodes) -> list[list[str]]:
    """Return what was read of each rank, and when."""
    rows = []
    for number, host in enumerate(hosts):
        node = nodes.get(host) or {}
        read = f"read at {minute(node['read_at'])}" if node.get("read_at") else "never read"
        rows.append([str(number), host, str(node.get("state") or "-"), f"{read}; not now: {node['problem']}" if node.get("problem") else read])
    return rows


def cards(boots: Sequence[Boot]) -> list[tuple[str, str]]:
    """Return the first figures of the page, of the last boot that passed."""
    boot = next((each for each in reversed(boots) if each.get("passed")), None)
    if boot is None:
        return []
    pool, measured = boot.get("pool") or {}, boot.get("measured") or {}
    numbers = (
        ("KV pool", pool.get("effective_tokens"), "{:,.0f} tokens"), ("context", pool.get("context"), "{:,.0f} tokens"),
        ("concurrency", pool.get("concurrency"), "{:,.2f}"), ("decode, one stream", measured.get("decode_tok_s"), "{:,.1f} tokens/s"),
        ("prefill", measured.get("prefill_tok_s"), "{:,.0f} tokens/s"),
    )  # fmt: skip
    out = [("profile", str(boot.get("profile") or "")), ("model", ", ".join(boot.get("models") or [])), ("release", str(boot.get("release") or ""))]
    out += [(name, form.format(finite(value))) for name, value, form in numbers if finite(value)]
    out += [("last good boot", seconds_text(finite(boot.get("seconds")) or 0.0)), ("vLLM", str(boot.get("version") or ""))]
    return [(name, text) for name, text in out if text]


def plan(
    group: str, hosts: Sequence[str], status: Mapping[str, Any], nodes: Nodes, receipts: Sequence[Boot], known: Known, bench: Mapping[str, Any],
    speeds: Mapping[str, Any], made: str, notes: Sequence[str] = (),
) -> dict[str, Any]:  # fmt: skip
    """Return the page of a group.

    `status` is what the filter group_status returns, `nodes` what report_sources.nodes_of() returns, `receipts` the briefs of the controller's receipts,
    `bench` the last bench.yml, `speeds` what report_sources.speeds_in() returns.
    """
    read = [nodes.get(host) or {} for host in hosts]
    boots = merged(receipts, *(node.get("receipts") or [] for node in read))
    events: Sequence[Mapping[str, Any]] = next((node["events"] for node in read if node.get("events")), [])
    state = str(status.get("state") or "unknown")
    tone = "good" if state in ("serves", "busy") else "neutral" if status.get("ok") or state == "unknown" else "bad"
    return {
        "group": group, "made": made, "tone": tone, "sentence": str(status.get("sentence") or f"The state of {group} was not read."), "notes": list(notes),
        "cards": cards(boots), "ranks": {"head": ["rank", "node", "state", "source"], "rows": rank_rows(hosts, nodes)},
        "sections": [
            boot_section(boots), boot_memory_section(boots), memory_section(hosts, nodes), pool_section(boots, known),
            speed_section(boots, known, bench, speeds), rails_section(hosts, nodes), verdict_section(boots, events), events_section(events),
        ],
    }  # fmt: skip
