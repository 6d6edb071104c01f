# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The verdict of a soak from its samples: leaks and slowdowns as slopes with an interval, steps apart from slopes, errors, kernel messages. Pure.

A slope is fitted with the steps, by weighted least squares on differences: noise that depends on the noise before it widens the interval, and bursts count
little. Each stretch between two gaps has a level of its own, so what happens in a gap is not judged. Of the speed, each engine has one level.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from itertools import chain, groupby
from statistics import median
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._core.text import stamp

SCHEMA = "gb10.cluster/soak/1"
LEAST_SAMPLES, MOST_POINTS = 20, 600  # to judge; longer series are fitted as medians of neighbours
Z = 2.6  # half an interval of 99 %, in standard errors
LEAK_MIB, LEAST_LEAK_MIB, LEAST_FALL_MIB = 1.0, 0.1, 400.0  # a request: what a pass excludes; what fails, by itself and over the whole soak
SLOW_PERCENT, LEAST_SLOW_PERCENT = 7.0, 3.0  # the same of the speed over the first hours: a change of temperature by day moves it by 3 %
STEP_MIB, STEP_PERCENT, STEP_POINTS = 1024.0, 10.0, 15.0  # of acceptance, points
WARM_UP, LONGEST_WARM_UP, WARM_UP_SECONDS = 0.1, 0.25, (900.0, 3600.0)  # shares of what an engine was sampled; at least and at most so long
LONGEST_GAP = 24 * 3600.0  # seconds without service that end a soak
KERNEL_LINES = 10  # that are named: a fault can repeat itself with other figures for days
#: Without both, each request leaks about 14 MB (GanyX19).
UCX_PAIR = ("UCX_MEM_MMAP_HOOK_MODE", "UCX_RCACHE_MAX_UNRELEASED")

WORDS = {"passed": "passed", "failed": "failed", "unclear": "too short to tell"}

Sample = Mapping[str, Any]


class Point(NamedTuple):
    """One figure: its stretch, what it is fitted against, the figure, another cause of its changes, and its time."""

    part: int
    x: float
    y: float
    other: float
    time: float


class Trend(NamedTuple):
    """Fall of a figure for each unit of x with its interval, how much x was seen, and steps: time, size, and whether too few figures follow to judge it."""

    fall: float
    low: float
    high: float
    span: float
    steps: list[tuple[float, float, bool]]


# --- The fit.


def _solved(rows: Sequence[Sequence[float]], values: Sequence[float], weights: Sequence[float]) -> tuple[list[float], list[float]]:
    """Return the coefficients of weighted least squares, and the diagonal of the inverse of its matrix."""
    size = len(rows[0])
    matrix = [[0.0] * size + [float(row == column) for column in range(size)] + [0.0] for row in range(size)]
    for row, value, weight in zip(rows, values, weights):
        used = [place for place in range(size) if row[place]]  # most columns belong to another stretch
        for a in used:
            matrix[a][-1] += weight * row[a] * value
            for b in used:
                matrix[a][b] += weight * row[a] * row[b]
    for a in range(size):
        matrix[a][a] += 1e-9 * (matrix[a][a] or 1.0)
        matrix[a] = [each / matrix[a][a] for each in matrix[a]]
        for b in range(size):
            factor = matrix[b][a]
            if b != a and factor:
                matrix[b] = [own - factor * other for own, other in zip(matrix[b], matrix[a])]
    return [line[-1] for line in matrix], [max(0.0, line[size + place]) for place, line in enumerate(matrix)]


def _spread(values: Sequence[float]) -> float:
    """Return the standard deviation of values of which some are bursts."""
    return 1.4826 * median(map(abs, values)) or 1e-9


def _fit(rows: Sequence[Sequence[float]], points: Sequence[Point]) -> list[tuple[float, float]]:
    """Return each coefficient and its standard error, for noise of which each value depends on the one before."""
    values, rho, weights, out = [point.y for point in points], 0.0, [1.0] * len(points), list[tuple[float, float]]()
    follows = [0, *(int(new.part == old.part) for old, new in zip(points, points[1:]))]
    for _round in range(5):
        scales = [1.0 if each else math.sqrt(1 - rho * rho) for each in follows]
        lags = [rho * each for each in follows]
        moves = [[scale * (own - lag * old) for own, old in zip(row, rows[place - 1])] for place, (row, scale, lag) in enumerate(zip(rows, scales, lags))]
        targets = [scale * (value - lag * values[place - 1]) for place, (value, scale, lag) in enumerate(zip(values, scales, lags))]
        found, inverse = _solved(moves, targets, weights)
        errors = [value - sum(map(float.__mul__, row, found)) for row, value in zip(moves, targets)]
        spread = _spread(errors)
        weights = [min(1.0, 1.5 * spread / (abs(each) or 1e-9)) for each in errors]
        noise = 1.1 * math.sqrt(sum(min(abs(each), 2.5 * spread) ** 2 for each in errors) / max(1, len(rows) - len(found)))
        out = [(each, noise * math.sqrt(place)) for each, place in zip(found, inverse)]
        left = [value - sum(map(float.__mul__, row, found)) for row, value in zip(rows, values)]
        limit = 3 * _spread(left)  # a pair of bursts must not look like noise that lasts
        cut = [max(-limit, min(limit, each)) for each in left]
        lasts = sum(one * two for one, two, same in zip(cut, cut[1:], follows[1:]) if same) / (sum(each * each for each in cut) or 1.0)
        rho = max(0.0, min(0.97, lasts + (1 + 4 * lasts) / len(rows)))  # a short series shows less of it than there is
    return out


def _step(points: Sequence[Point], width: int, least: float) -> tuple[int, float, bool] | None:
    """Return place and size of the largest step of at least this size, and whether it is too late to be judged; None without one."""
    pairs = [(new.y - old.y, new.x - old.x) for old, new in zip(points, points[width:]) if old.part == new.part and new.x > old.x]
    slope = median(moved / passed for moved, passed in pairs) if pairs else 0.0
    level = [point.y - slope * point.x for point in points]
    ends, found = {point.part: index for index, point in enumerate(points, 1)}, list[tuple[int, float, bool]]()
    for place in range(width, len(points) - max(5, width // 2)):
        end = ends[points[place].part]
        if points[place - width].part == points[place].part and (end - place >= 2 * width or end == len(points)):
            before = median(level[place - width : place])
            soon, later = (median(level[place : min(end, place + count * width)]) - before for count in (1, 3))
            found.append((place, min(soon, later, key=abs) if soon * later > 0 else 0.0, end - place < 2 * width))  # a burst does not last
    noise = _spread([size for _place, size, _late in found]) if found else 0.0
    large = [each for each in found if abs(each[1]) >= max(least, 5 * noise) * (1.3 if each[2] else 1.0)]
    if not large:
        return None
    place, size, late = max(large, key=lambda each: (not each[2], abs(each[1])))
    near = [each for each in range(place - width // 2, min(len(points), place + width // 2 + 1)) if points[each].part == points[each - 1].part]
    return max(near, key=lambda each: size * (level[each] - level[each - 1])), size, late


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Return medians of neighbours, at most about MOST_POINTS. Stretches of some medians tell nothing, and the fit takes the cube of their number."""
    size = -(-len(points) // MOST_POINTS)
    parts = {part: [each for each in points if each.part == part] for part in dict.fromkeys(point.part for point in points)}
    groups = [each[start : start + size] for each in parts.values() if len(each) >= 5 * size for start in range(0, len(each), size)]
    return [Point(*(median(column) for column in zip(*each))) for each in groups]


def _columns(points: Sequence[Point], steps: Sequence[int], span: float) -> list[list[float]]:
    """Return the rows of the fit: what x was, each step, the other cause, and the level of each stretch."""
    names, several = sorted({point.part for point in points}), len({point.other for point in points}) > 1
    first = {name: next(point.x for point in points if point.part == name) for name in names}
    return [
        [(point.x - first[point.part]) / span, *(float(index >= place and point.part == points[place].part) for place in steps),
         *([point.other] if several else []), *(float(point.part == name) for name in names)]
        for index, point in enumerate(points)
    ]  # fmt: skip


def trend(points: Sequence[Point], least_step: float) -> Trend | None:
    """Return the trend of a figure; None if its figures are too few, or x does not move."""
    points = level = _thinned(points)
    span = sum(new.x - old.x for old, new in zip(points, points[1:]) if new.part == old.part)
    if len(points) < LEAST_SAMPLES or span <= 0:
        return None
    width, places, late = max(4, min(15, len(points) // 9)), list[int](), list[bool]()
    fit = _fit(_columns(points, [], span), points)
    while len(places) < 4 and (found := _step(level, width, least_step)):
        more = _fit(_columns(points, [*places, found[0]], span), points)
        size, error = more[len(places) + 1]
        if abs(size) < max(0.8 * least_step, 4 * error):
            break
        part = points[found[0]].part
        level = [each._replace(y=each.y - found[1]) if index >= found[0] and each.part == part else each for index, each in enumerate(level)]
        fit, places, late = more, [*places, found[0]], [*late, found[2]]
    made = sorted((points[place].time, size, is_late) for place, is_late, (size, _error) in zip(places, late, fit[1:]))
    lasting = [each for index, each in enumerate(made) if sum(size for _time, size, _late in made[index:]) / each[1] > 0.5]  # a later one has not undone it
    fall, error = -fit[0][0], Z * fit[0][1]
    return Trend(fall / span, (fall - error) / span, (fall + error) / span, span, lasting)


# --- What is judged of the samples.


def stretches(samples: Sequence[Sample]) -> tuple[list[list[list[Sample]]], float]:
    """Return for each engine its samples between gaps without its warm-up, and the seconds of warm-up that are left out.

    The warm-up of an engine is the first tenth of its samples and 15 minutes, at most a quarter and an hour.
    """
    engines, engine = list[list[Sample]](), ""
    for sample in samples:
        if not engines or sample.get("engine") not in ("", engine):  # in a gap it may not be known
            engines.append([])
            engine = sample.get("engine") or ""
        engines[-1].append(sample)
    out, warm = list[list[list[Sample]]](), 0.0
    for each in engines:
        ages, count = [sample["seconds"] - each[0]["seconds"] for sample in each], len(each)
        least, longest = (sum(age < seconds for age in ages) for seconds in WARM_UP_SECONDS)
        start = min(max(least, math.ceil(WARM_UP * count)), longest, int(LONGEST_WARM_UP * count))
        warm += ages[start]
        out.append([[*stretch] for gap, stretch in groupby(each[start:], lambda sample: bool(sample.get("gap"))) if not gap])
    return out, warm


def _points(parts: Sequence[Sequence[Sample]], x: str, figure: Any, other: Any = lambda _sample: 0.0) -> list[Point]:
    found = ((part, sample, figure(sample)) for part, each in enumerate(parts) for sample in each)
    scale = 3600.0 if x == "seconds" else 1.0
    return [Point(part, sample[x] / scale, value, other(sample), sample["time"]) for part, sample, value in found if value is not None]


def _rank_figure(number: int, key: str) -> Any:
    return lambda sample: (sample["ranks"][number] or {}).get(key) if number < len(sample["ranks"]) else None


class _Judge:
    """Collects the sentences of what fails, of what is not clear, and of what was measured."""

    def __init__(self, plan: Mapping[str, Any], samples: Sequence[Sample]) -> None:
        self.plan, self.samples = plan, samples
        engines, self.warm = stretches(samples)
        self.engines = [[*chain(*parts)] for parts in engines]
        self.parts = [*chain(*engines)]
        self.judged = [*chain(*self.engines)]
        self.hours = sum(part[-1]["seconds"] - part[0]["seconds"] for part in self.parts) / 3600
        self.bad: list[str] = []
        self.unclear: list[str] = []
        self.notes: list[str] = []
        self.figures: list[tuple[str, str]] = []

    def _judge(
        self, what: str, unit: str, found: Trend | None, step: Callable[[float], str], least: Callable[[float], float], excluded: Callable[[float], float],
        why: Callable[[], str] = str,
    ) -> None:  # fmt: skip
        """Judge the trend of a figure: what fails, and what a pass excludes, by the span of x. `why` returns a known cause, as the end of the sentence."""
        lower = f"{what[0].lower()}{what[1:]}"
        if found is None:
            self.unclear.append(f"Too short to tell: {lower} has too few samples.")
            return
        for when, size, late in found.steps:
            if size < 0 and late:
                self.unclear.append(f"Too short to tell: {lower} fell by {step(-size)} in the last samples.")
            elif size < 0:
                self.bad.append(f"{what} fell by {step(-size)} in one step at {stamp(when)} and has not come back.")
        fall, low, high = found.fall, found.low, found.high
        self.figures.append((f"{lower}, {unit}", f"{-fall:+.2f} ({-high:+.2f} to {-low:+.2f})"))
        if low > least(found.span):
            form = ".0f" if high - low >= 2 else ".1f"
            self.bad.append(f"{what} falls {fall:{form}} {unit} ({low:{form}} to {high:{form}}){why()}.")
        elif high > (limit := excluded(found.span)):
            # An interval gets narrow faster than a soak gets long.
            hours = max(2, math.ceil(1.2 * self.hours * ((high - low) / 2 / max(limit - max(0.0, fall), 0.05 * (high - low))) ** (2 / 3)))
            self.unclear.append(f"Too short to tell: {lower} may fall by up to {high:.1f} {unit}. About {hours} h would tell.")

    def memory(self, number: int) -> None:
        """Judge the memory of a rank."""
        host = next((rank["host"] for sample in self.judged for rank in sample["ranks"][number : number + 1] if rank), "?")
        missing = [name for name in self.plan.get("missing_env") or [] if name in UCX_PAIR]
        found = trend(_points(self.parts, "requests", _rank_figure(number, "available_mib")), STEP_MIB)
        self._judge(
            f"Available memory of rank {number} on {host}", "MiB a request", found, lambda size: f"{size / 1024:.1f} GiB",
            lambda span: max(LEAST_LEAK_MIB, LEAST_FALL_MIB / span), lambda _span: LEAK_MIB,
            lambda: f": the UCX pair is not set ({', '.join(missing)})" if missing else "",
        )  # fmt: skip

    def speed(self) -> None:
        """Judge the decode speed, and the share of accepted drafts, which a server without a drafter does not have.

        A gap does not change the speed of an engine that goes on, as other programs may change the memory of its node.
        """
        found = trend(_points(
            self.engines, "seconds", lambda sample: 100 * math.log(sample["tok_s"]) if sample.get("tok_s") else None,
            lambda sample: math.log1p(sample.get("running") or 0),
        ), STEP_PERCENT)  # fmt: skip
        self._judge(
            "Decode speed", "% an hour", found, lambda size: f"{100 - 100 * math.exp(-size / 100):.0f} %",
            lambda span: LEAST_SLOW_PERCENT / min(4.0, span), lambda span: SLOW_PERCENT / min(5.0, span), self._clock,
        )  # fmt: skip
        found = trend(_points(self.parts, "seconds", lambda sample: sample.get("acceptance")), STEP_POINTS)
        if found is not None:
            limits = (lambda span: STEP_POINTS / 3 / span, lambda _span: math.inf)
            self._judge("Share of accepted drafts", "points an hour", found, "{:.0f} points".format, *limits)

    def _clock(self) -> str:
        """Return which rank's clock falls with the speed; empty if none does."""
        for number in range(len(self.judged[-1]["ranks"])):
            clocks = _points(self.parts, "seconds", _rank_figure(number, "clock_mhz"))
            found = trend([each._replace(y=100 * math.log(each.y)) for each in clocks if each.y > 0], math.inf)
            if found and found.low * found.span > LEAST_SLOW_PERCENT:
                return f", and the SM clock of rank {number} falls with it, at up to {_highest(self._of(number, 'temperature_c'))} °C"
        return ""

    def _of(self, number: int, key: str) -> list[Any]:
        return [_rank_figure(number, key)(sample) for sample in self.judged]

    def events(self) -> None:
        """Judge errors and kernel messages. Requests that a gap has ended, also just before it is noticed, are not errors."""
        counted = [now for now, after in zip(self.samples, [*self.samples[1:], {}]) if not now.get("gap") and not after.get("gap")]
        failed = sum(sample.get("failed") or 0 for sample in counted)
        if failed:
            last = next((text for sample in reversed(counted) for text in sample.get("errors") or []), "")
            self.bad.append(f"{failed} of {self.samples[-1]['requests'] + failed:,} requests failed{f'. The last error: {last}' if last else ''}.")
        for text in list(dict.fromkeys(text for sample in self.samples for text in sample.get("kernel") or []))[:KERNEL_LINES]:
            host, _colon, line = text.partition(": ")
            self.bad.append(f"The kernel of {host} reported: {line}.")

    def service(self) -> None:
        """Judge restarts by the agent, which counts none that a person asks for, and a soak that ends without service."""
        counts = [Counter[str](sample["restarts"]) for sample in self.samples if sample.get("restarts") is not None]
        again = sum((new - old for old, new in zip(counts, counts[1:])), Counter[str]())  # a count that begins again at 0 is less
        number, permitted = sum(again.values()), self.plan.get("restarts") or 0
        causes = ", ".join(f"{cause} {count}" for cause, count in sorted(again.items()))
        text = f"The agent has started the engine again {number} time{'s' if number > 1 else ''} ({causes}; permitted: {permitted})"
        if number > permitted:
            self.bad.append(f"{text}. See `gb10 events`.")
        elif number:
            self.notes.append(f"{text}.")
        silent = self.samples[-1]["time"] - max((sample["time"] for sample in self.samples if not sample.get("gap")), default=self.samples[0]["time"])
        if silent >= 0.95 * LONGEST_GAP:  # the last sample may be an hour before its end
            self.bad.append(f"No service was seen in the last {silent / 3600:.0f} h: {self.samples[-1]['gap']}.")

    def rest(self, ranks: int) -> None:
        """Add the figures that are only shown."""
        for key, name in (("tok_s", "decode speed, tokens/s"), ("acceptance", "accepted drafts, %"), ("kv", "KV cache used, %")):
            known = [sample[key] for sample in self.judged if sample.get(key) is not None]
            self.figures.append((name, f"{median(known):.1f} (highest {max(known):.1f})" if known else "-"))
        for key, name in (("power_w", "power, W"), ("temperature_c", "temperature, °C")):
            self.figures += [(f"{name}, highest of rank {number}", _highest(self._of(number, key))) for number in range(ranks)]


def _highest(values: Sequence[Any]) -> str:
    known = [each for each in values if each is not None]
    return f"{max(known):.0f}" if known else "-"


def verdict(plan: Mapping[str, Any], samples: Sequence[Sample]) -> dict[str, Any]:
    """Return the verdict of a soak.

    `plan` has group, name, release, profile, hours, `restarts`, how many by the agent are permitted, and `missing_env`, what of UCX_PAIR the release does
    not set. A sample has `time`, `seconds` of soak until then, `requests` until then, `failed` and `errors` since the last one, `gap` (why what is before it
    is not judged), `engine` (which one), `restarts` of the agent until then by cause (None if not read), `tok_s`, `running`, `acceptance`, `kv`, `kernel`,
    and by rank `host`, `available_mib`, `power_w`, `clock_mhz`, `temperature_c` (None if not read).
    """
    judge, hours = _Judge(plan, samples), samples[-1]["seconds"] / 3600 if samples else 0.0
    if samples:
        judge.events()
        judge.service()
    if len(judge.judged) < LEAST_SAMPLES:
        judge.unclear.append(f"Too short to tell: {len(judge.judged)} samples are judged, and {LEAST_SAMPLES} are needed.")
    else:
        ranks = max(len(sample["ranks"]) for sample in judge.judged)
        for number in range(ranks):
            judge.memory(number)
        judge.speed()
        judge.rest(ranks)
    result = "failed" if judge.bad else "unclear" if judge.unclear else "passed"
    gaps = [str(now["gap"]) for before, now in zip([{}, *samples], samples) if now.get("gap") and not before.get("gap")]
    requests = samples[-1]["requests"] if samples else 0
    length = f"{hours:.1f} h" + (f" of {plan['hours']:g} h" if hours < 0.99 * plan["hours"] else "")
    count = f"{len(gaps)} gap{'s' if len(gaps) > 1 else ''}"
    head = f"{plan['group']}: soaked {length} on release {plan['release']}, {requests:,} requests{f', {count}' if gaps else ''}: {WORDS[result]}."
    notes = [*judge.notes, *([f"{judge.warm / 60:.0f} min of warm-up are not judged."] if judge.warm >= 60 else [])]
    notes += [f"{count} not judged: {'; '.join(dict.fromkeys(gaps))}."] if gaps else []
    return {
        "schema": SCHEMA, **{key: plan.get(key) for key in ("group", "name", "release", "profile", "seed")}, "hours": round(hours, 3), "requests": requests,
        "verdict": result, "sentence": head, "findings": [*judge.bad, *judge.unclear], "notes": notes, "figures": judge.figures, "gaps": len(gaps),
    }  # fmt: skip
