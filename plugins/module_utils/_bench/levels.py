# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Levels of a measurement in the field's words, the published figures of a profile with their levels, and what was measured next to them. Pure.

A measured row is a mapping: the keys of :class:`Level`, `quantity`, `runs` (a value each), `mean` and `spread` (standard deviation; null of one run).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import cell, did_you_mean, table
from ansible_collections.gb10.cluster.plugins.module_utils._gate.gate import finite

# --- Quantities and levels.


class Quantity(NamedTuple):
    """What a number is: its words, its unit, and whether a higher one is better."""

    words: str
    unit: str
    higher: bool = True


#: decode_tok_s is that of each request (`t/s (req)` of llama-benchy), prefill_tok_s and aggregate_tok_s are of all together (`t/s (total)`).
QUANTITIES: dict[str, Quantity] = {
    "prefill_tok_s": Quantity("prefill", "tok/s"),
    "decode_tok_s": Quantity("decode", "tok/s"),
    "aggregate_tok_s": Quantity("aggregate", "tok/s"),  # of a case of gb10: all output over the time from the first request to the last reply
    "share_tok_s": Quantity("aggregate a stream", "tok/s"),
    "peak_tok_s": Quantity("peak", "tok/s"),  # the best second
    "effective_tok_s": Quantity("decode with prefill", "tok/s"),
    "ttfr_ms": Quantity("first response", "ms", False),
    "ttft_ms": Quantity("first token", "ms", False),
    "inter_token_ms": Quantity("between tokens", "ms", False),
    "latency_ms": Quantity("whole reply", "ms", False),
    "requests_per_second": Quantity("requests", "1/s"),
    "acceptance_percent": Quantity("drafts accepted", "%"),
    "accepted_per_draft": Quantity("accepted a draft", "tokens"),
    "waste_percent": Quantity("drafts wasted", "%", False),
    "cache_hit_percent": Quantity("prefix cache hits", "%"),
    "score_percent": Quantity("score", "%"),
    "graded_percent": Quantity("scenarios graded", "%"),
    "passed_scenarios": Quantity("scenarios passed", ""),
    "tool_selection_percent": Quantity("tool selection", "%"),
    "parameter_precision_percent": Quantity("parameter precision", "%"),
    "multi_step_percent": Quantity("multi-step chains", "%"),
    "restraint_percent": Quantity("restraint and refusal", "%"),
    "error_recovery_percent": Quantity("error recovery", "%"),
    "structured_output_percent": Quantity("structured output", "%"),
    "responsiveness_percent": Quantity("responsiveness", "%"),
    "deployability_percent": Quantity("deployability", "%"),
    "ifeval_instruction_percent": Quantity("IFEval instructions", "%"),
    "ifeval_prompt_percent": Quantity("IFEval prompts", "%"),
    "kv_pool_tokens": Quantity("KV pool", "tokens"),
    "max_concurrency": Quantity("concurrency at the full context", "requests"),
    "kv_usage_percent": Quantity("KV cache used", "%", False),
    "boot_minutes": Quantity("boot", "minutes", False),
    "load_seconds": Quantity("start of the engine", "s", False),
    "free_gb": Quantity("memory left free", "GB"),
    "peak_memory_gib": Quantity("peak of the memory", "GiB", False),
    "gpu_utilization_percent": Quantity("GPU used", "%"),
}

#: What each tool can send. llama-benchy reads its text; a case of the others has its own prompts.
CASES: dict[str, dict[str, str]] = {
    "llama-benchy": {"": "a text, cut to the tokens of the level"},
    "tool-eval-bench": {
        "short": "its 15 core scenarios", "whole": "its 69 scenarios", "hard": "whole, and its hard mode", "ifeval": "IFEval", "needle": "a needle in a text",
        "spec": "the three prompts of spec-bench at 0, 4096 and 8192 tokens",
        "filler": "spec-bench, prose", "code": "spec-bench, code", "structured": "spec-bench, JSON",
    },
    "gb10": {
        "code": "a Python module to complete, temperature 0, exactly the output of the level",
        "chat": "a note in English after 420 salted words, temperature 0",
        "topics": "four sentences about a topic, no two topics alike, temperature 0.7",
    },
}  # fmt: skip
AT_ONCE = "at once"
_EVERY = re.compile(r"every (\d{1,4}(?:\.\d{1,3})?) s")


class Level(NamedTuple):
    """What is sent. Tokens are 0 where the case decides them.

    What no tool here can send again has no tool, and 0 streams if their number is not known.
    """

    tool: str
    case: str = ""
    prompt: int = 0
    output: int = 0
    depth: int = 0
    concurrency: int = 1
    arrivals: str = AT_ONCE

    @property
    def pause(self) -> float | None:
        """Seconds between two requests; None if the arrivals are not known."""
        every = _EVERY.fullmatch(self.arrivals)
        return float(every[1]) if every else 0.0 if self.arrivals == AT_ONCE else None

    @property
    def name(self) -> str:
        """The level in the field's words: `pp2048 tg128 @ d4096 c1`, `tool-eval-bench short`, `code tg256 c16 every 0.4 s`."""
        if self.case in _DURATIONS:
            return f"{self.tool} {self.case}"
        tokens = [f"{word}{count}" for word, count in (("pp", self.prompt), ("tg", self.output)) if count]
        depth = [f"@ d{self.depth}"] if self.depth else []
        arrivals = [self.arrivals] if self.arrivals != AT_ONCE else []
        streams = [f"c{self.concurrency}"] if self.tool or self.concurrency > 1 else []
        return " ".join([*filter(None, [self.case]), *tokens, *depth, *streams, *arrivals])


def level_of(row: Mapping[str, Any]) -> Level:
    """Return the level of a measured row. A key that is not there, or null, has its default."""
    return Level(*(default if row.get(key) is None else row[key] for key, default in zip(Level._fields, ("", *Level._field_defaults.values()))))


# --- The published figures of a profile: groups of figures that share most of their level.


class Figure(NamedTuple):
    """A published figure. It is compared with a level that was run, with what `measured_by` measures, or with nothing, for the reason `not_compared`."""

    quantity: str
    value: float
    level: Level
    measured_by: str = ""
    not_compared: str = ""
    remark: str = ""  # what differs from the profile in the system that was measured

    @property
    def can_be_run(self) -> bool:
        """Whether a tool can measure it here."""
        return bool(self.level.tool and not self.not_compared)

    @property
    def text(self) -> str:
        """The figure with its words and unit: `decode 45.7 tok/s`."""
        words, unit, _higher = QUANTITIES[self.quantity]
        return f"{words} {cell(self.value)} {unit}".rstrip()


def _columns(group: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return the lists of a group by name: those of its level, and those of its figures."""
    found = {**group, **(group.get("figures") or {})}
    return {key: value for key, value in found.items() if isinstance(value, (list, tuple))}


def faults(published: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield (path, what is wrong with it) of what the schema cannot express."""
    for place, group in enumerate(published):
        where, tool = f"published[{place}]", group.get("tool")
        known, asked = CASES.get(str(tool), {}), group.get("case") or ""
        kinds = [key for key in ("tool", "measured_by", "not_compared") if group.get(key)]
        sizes = {key: len(values) for key, values in _columns(group).items()}
        for key in group["figures"]:
            if key not in QUANTITIES:
                yield f"{where}.figures.{key}", f"is not a quantity{did_you_mean(key, QUANTITIES)} (known: {', '.join(QUANTITIES)})"
        streams = group.get("concurrency", 1)
        if tool and level_of({"tool": tool, "arrivals": group.get("arrivals")}).pause is None:
            yield f"{where}.arrivals", f"is {group['arrivals']!r}, expected every N s, such as every 0.4 s"
        if tool and 0 in (streams if isinstance(streams, (list, tuple)) else [streams]):
            yield f"{where}.concurrency", "is 0, expected the number of requests at once"
        if len(kinds) != 1:
            yield where, f"has {' and '.join(kinds) or 'no tool'}, expected one of tool, measured_by (what measures it) and not_compared (the reason)"
        if len(set(sizes.values())) > 1:
            yield where, f"has lists of {', '.join(f'{size} ({key})' for key, size in sizes.items())} values, expected lists of one length"
        for case in asked if isinstance(asked, (list, tuple)) else [asked]:
            if tool and case not in known:
                yield f"{where}.case", f"is {case!r}, expected one of {', '.join(filter(None, known)) or 'none'} for the tool {tool}"


def figures(published: Sequence[Mapping[str, Any]] | None) -> list[Figure]:
    """Return each published figure with its level, in the order of the profile. An empty cell of a list is not a figure."""
    out = []
    for group in published or ():
        lists = _columns(group)
        for place in range(max(map(len, lists.values()), default=1)):
            row = {key: lists[key][place] if key in lists else value for key, value in {**group, **group["figures"]}.items()}
            level, more = level_of(row), [str(group.get(key) or "") for key in ("measured_by", "not_compared", "remark")]
            out += [Figure(key, row[key], level, *more) for key in group["figures"] if row[key] is not None]
    return out


def boot_fact(published: Sequence[Mapping[str, Any]] | None, quantity: str) -> float | None:
    """Return a published figure that the gate measures at each boot; None if it is not published."""
    return next((each.value for each in figures(published) if each.quantity == quantity and each.measured_by == "gate"), None)


def _speed(published: Sequence[Mapping[str, Any]] | None, streams: int) -> float | None:
    known = ("aggregate_tok_s",) if streams > 1 else ("decode_tok_s", "aggregate_tok_s")
    found = (each for each in figures(published) if each.quantity in known and each.level.arrivals == AT_ONCE)
    fits = [each for each in found if each.level.concurrency == streams and not each.measured_by]
    return min(fits, key=lambda each: bool(each.remark)).value if fits else None  # that of another system only without one of the profile's


def single_stream(published: Sequence[Mapping[str, Any]] | None) -> float | None:
    """Return the published speed of one stream, the first in the profile. The gate warns far below it, whichever level it has."""
    return _speed(published, 1)


def headline(published: Sequence[Mapping[str, Any]] | None) -> str:
    """Return the speed by which a profile is chosen: that of 16 streams, or else of one."""
    many, one = _speed(published, 16), single_stream(published)
    return f"{many} tok/s at 16" if many else f"{one} tok/s single" if one else "-"


def published_lines(published: Sequence[Mapping[str, Any]] | None) -> list[str]:
    """Return the published figures for people: a line for each level that can be run, and one for each reason why others are not compared."""
    out: dict[str, dict[str, list[str]]] = {}
    for each in figures(published):
        level, remark = each.level, f" ({each.remark})" if each.remark else ""
        reason = f"not compared ({each.not_compared})" if each.not_compared else f"measured by the {each.measured_by}{remark}"
        where = f"{level.name}{'' if level.tool in level.name else f', {level.tool}'}{remark}" if each.can_be_run else reason
        out.setdefault(where, {}).setdefault("" if each.can_be_run else level.name, []).append(each.text)
    joined = {where: [f"{name}: {', '.join(texts)}" if name else ", ".join(texts) for name, texts in found.items()] for where, found in out.items()}
    return [f"{where}: {'; '.join(texts)}" for where, texts in joined.items()]


# --- Suites: which levels are run.

QUICK_SECONDS = 110.0  # leaves ten seconds of two minutes for the start of the tool
RUNS = 3
_PREFILL, _DECODE = 1000.0, 30.0  # tokens/s of a pair, for the estimate of a duration
_DURATIONS = {"short": 160.0, "whole": 900.0, "hard": 1200.0, "ifeval": 1800.0, "needle": 600.0, "spec": 60.0}
_COMMON = [Level("llama-benchy", "", 2048, 128, depth) for depth in (0, 4096, 8192, 16384, 32768, 65536)]


def seconds(level: Level, runs: int = RUNS) -> float:
    """Return an estimate of the duration of a level, its warm-up included."""
    once = _DURATIONS.get(level.case)
    # Streams share the prefill. Their decode overlaps: four take about twice as long as one.
    work: float = (level.prompt + level.depth) * level.concurrency / _PREFILL + level.output / _DECODE * level.concurrency**0.5
    # The warm-up is a whole run, also of llama-benchy.
    return once if once else (runs + 1) * (work + (level.pause or 0.0) * (level.concurrency - 1)) + 2.0


def suite(name: str, published: Sequence[Mapping[str, Any]] | None, context: int, streams: int) -> list[Level]:
    """Return the levels of a suite, without those beyond the context.

    `seed` has the levels of the published figures. `quick` has pp2048 tg128, then the cheapest of those within two minutes, without tool-eval-bench.
    `full` is `seed`, then depths to 64K, and 1, 2, 4, ... streams up to `streams`, what the engine serves at once.
    """
    seed = list(dict.fromkeys(each.level for each in figures(published) if each.can_be_run))
    if name == "quick":
        rest, left, found = sorted((each for each in seed if each.tool != "tool-eval-bench"), key=seconds), QUICK_SECONDS, list[Level]()
        for each in dict.fromkeys([_COMMON[0], *rest]):
            left -= seconds(each)
            found += [each] if left >= 0 else []
    else:
        powers = [2**power for power in range(1, 8) if 2**power <= streams]
        found = [*seed, *([*_COMMON, *(_COMMON[0]._replace(concurrency=each) for each in powers)] if name == "full" else [])]
    return [each for each in dict.fromkeys(found) if each.depth + each.prompt + each.output <= context]


# --- What was measured, next to what is published and to an earlier run.

LEAST_RUNS = 3
TOLERANCE = 0.03
Key = tuple[Level, str]


def usable(rows: Any) -> list[Mapping[str, Any]]:
    """Return the measured rows among what a file has."""
    out: list[Mapping[str, Any]] = []
    for each in rows if isinstance(rows, (list, tuple)) else ():
        if isinstance(each, Mapping) and finite(each.get("mean")) is not None and isinstance(each.get("runs"), (list, tuple)):
            level = level_of(each)
            fits = all(isinstance(value, type(default)) for value, default in zip(level, Level("")))
            out += [{**each, **level._asdict()}] if fits and str(each.get("quantity")) in QUANTITIES else []
    return out


def _by_key(rows: Any) -> dict[Key, Mapping[str, Any]]:
    return {(level_of(each), each["quantity"]): each for each in usable(rows)}


def _percent(found: float, other: float | None) -> float | None:
    return round(100 * (found / other - 1), 1) if other else None


def mark(row: Mapping[str, Any], other: float | None, other_row: Mapping[str, Any] | None = None) -> str:
    """Return `better` or `worse` for a mean that differs from another value; empty for a difference that a repetition could make.

    Differences count from three runs on (of both, if the other value was measured too), beyond the spread of the runs (the larger of both), and beyond 3 %.
    """
    rows = [row, *([other_row] if other_row else [])]
    if not other or any(len(each["runs"]) < LEAST_RUNS for each in rows):
        return ""
    off = row["mean"] - other
    if abs(off) <= max(TOLERANCE * abs(other), *(finite(each.get("spread")) or 0.0 for each in rows)):
        return ""
    return "better" if (off > 0) == QUANTITIES[row["quantity"]].higher else "worse"


def compare(rows: Any, published: Sequence[Mapping[str, Any]] | None = None, last: Any = ()) -> list[dict[str, Any]]:
    """Return a row for each usable measured one, and one more for each further published figure of its level and quantity.

    A figure is compared if its level and its quantity are those of the row, exactly. A figure with a remark is of another system than the profile's: its
    difference is shown and not marked.
    """
    known: dict[Key, list[Figure | None]] = {}
    for each in figures(published):
        if each.can_be_run:
            known.setdefault((each.level, each.quantity), []).append(each)
    before, out = _by_key(last), list[dict[str, Any]]()
    for key, row in _by_key(rows).items():
        earlier = before.get(key)
        then = earlier["mean"] if earlier else None
        for figure in known.get(key) or [None]:
            value = figure.value if figure else None
            out.append(
                {
                    **key[0]._asdict(), "test": key[0].name, "quantity": key[1], "unit": QUANTITIES[key[1]].unit, "runs": len(row["runs"]),
                    "measured": row["mean"], "spread": finite(row.get("spread")) or 0.0, "published": value, "published_percent": _percent(row["mean"], value),
                    "mark": mark(row, value) if figure and not figure.remark else "", "remark": figure.remark if figure else "",
                    "last": then, "last_percent": _percent(row["mean"], then), "last_mark": mark(row, then, earlier),
                }
            )  # fmt: skip
    return out


def number(value: float | None) -> str | None:
    """Return a figure with three or more digits."""
    return None if value is None else f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}"


def row_title(row: Mapping[str, Any]) -> str:
    """Return what a row of :func:`compare` is about, in one phrase."""
    return f"{row['test']}: {QUANTITIES[row['quantity']].words}{', ' + row['remark'] if row['remark'] else ''}"


def row_texts(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Return the measured and the published value of a row with their unit, and the difference with its mark."""
    values = [f"{number(row[key])} {row['unit']}".rstrip() if row[key] is not None else "-" for key in ("measured", "published")]
    return values[0], values[1], _difference(row["published_percent"], row["mark"]) or "-"


def _difference(percent: float | None, word: str) -> str | None:
    return None if percent is None else f"{percent:+.1f} % {word}".rstrip()


def lines(found: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of :func:`compare`, a line for each row. A column without a value is left out."""
    head = ("test", "quantity", "unit", "measured", "±", "published", "difference", "last", "difference", "remark")
    cells = [
        (
            each["test"], QUANTITIES[each["quantity"]].words, each["unit"], number(each["measured"]), number(each["spread"]) if each["runs"] > 1 else None,
            number(each["published"]), _difference(each["published_percent"], each["mark"]),
            number(each["last"]), _difference(each["last_percent"], each["last_mark"]), each["remark"],
        )
        for each in found
    ]  # fmt: skip
    kept = [place for place in range(len(head)) if any(row[place] for row in cells)]
    return table([head[place] for place in kept], [[row[place] for place in kept] for row in cells]) if cells else []
