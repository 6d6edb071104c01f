# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that the field measures with, llama-benchy and tool-eval-bench: their levels, their words, their JSON as rows, why they fail. Pure.

A level is a mapping: `tool`; of llama-benchy `prompt`, `output`, `depth` in tokens, `concurrency`, `runs`; of tool-eval-bench `part`, a key of PARTS.
A row is its level with `quantity`, `runs` (the values), `mean` and `spread` (their standard deviation; None of one value).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench.cases import BenchError
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads, misfit
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import duration
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import table as columns
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures

SCHEMA = "gb10.cluster/bench/2"
BENCHY, EVAL = "llama-benchy", "tool-eval-bench"
#: Of the role `bench`: the environment of both tools, the text of the prompts, and the prompts of IFEval that an owner has put there.
FOLDER = "/opt/gb10-bench"
PYTHON, BOOK, IFEVAL = f"{FOLDER}/venv/bin/python", f"{FOLDER}/book.txt.gz", f"{FOLDER}/ifeval.jsonl"
BOOK_URL = "file:///book.txt"  # a name alone: llama-benchy asks no network for a text that is in this place of its home
BOOK_PLACE = f".cache/llama-benchy/{hashlib.md5(BOOK_URL.encode(), usedforsecurity=False).hexdigest()}.txt"

# --- Levels.

#: Of tool-eval-bench, by the name of the part: its options.
PARTS = {"short": ["--short"], "whole": [], "hard": ["--hardmode"], "ifeval": ["--ifeval-only"], "needle": ["--needle-only"]}
#: Seconds that a suite may take.
BUDGETS = {"quick": 120, "seed": 3600, "full": 7200, "tools": 3600}
_BENCHY_FORM = {"prompt": int, "output": int, "depth": int, "concurrency": int, "runs?": int}
_STARTS = 6.0  # seconds of llama-benchy before its first request, estimated


def _level(depth: int, concurrency: int) -> dict[str, Any]:
    return {"tool": BENCHY, "prompt": 2048, "output": 128, "depth": depth, "concurrency": concurrency, "arrivals": "at once", "runs": 3}


def suite(name: str, parts: Sequence[str] = ("short",)) -> list[dict[str, Any]]:
    """Return the levels of a suite. Raises BenchError for one that has none of its own."""
    if name == "quick":
        return [_level(0, 1), _level(4096, 1), _level(0, 4)]
    asked = [{"tool": EVAL, "part": part} for part in parts]
    if name == "full":
        return [*(_level(depth, streams) for depth in (0, 4096, 16384, 65536) for streams in (1, 2, 4)), *asked]
    if name == "tools":
        return asked
    raise BenchError(f"The suite {name} has no levels. Give them as a list (bench_levels)")


def levels_of(given: Any) -> list[dict[str, Any]]:
    """Return levels that a user gave as JSON. Raises BenchError."""
    for number, level in enumerate(given if isinstance(given, list) else [None], 1):
        tool = level.get("tool") if isinstance(level, Mapping) else None
        fault = misfit(level, _BENCHY_FORM) if tool == BENCHY else "" if tool == EVAL and level.get("part") in PARTS else "its tool or part is not known"
        if fault or (tool == BENCHY and not (min(level["prompt"], level["output"], level["concurrency"], level.get("runs", 3)) > 0 <= level["depth"])):
            raise BenchError(
                f"Level {number} is not valid ({fault or 'a number is too low'}): expected are tool {BENCHY} with prompt, output, depth and concurrency,"
                f" or tool {EVAL} with part ({', '.join(PARTS)})"
            )
    return [dict(level) for level in given]


def longest(level: Mapping[str, Any]) -> int:
    """Return the number of tokens that a request of a level has; 0 if the tool decides."""
    return int(level["prompt"] + level["depth"] + level["output"]) if level["tool"] == BENCHY else 0


def name_of(level: Mapping[str, Any], what: str = "") -> str:
    """Return a level in the words of its tool: `pp2048 @ d4096 (c2)` for what is measured of the prompt, `tg128 …` of the reply, both without `what`."""
    if level["tool"] == EVAL:
        return f"{EVAL} {level['part']}"
    tokens = [f"pp{level['prompt']}"] * (what != "tg") + [f"tg{level['output']}"] * (what != "pp")
    return " ".join(tokens) + (f" @ d{level['depth']}" if level["depth"] else "") + f" (c{level['concurrency']})"


def seconds_of(level: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> float:
    """Return an estimate of the seconds of a level by the slowest speeds so far; 0 if they are not known. Deeper levels are slower."""
    speeds = [min((row["mean"] for row in rows if row["quantity"] == what and row["mean"] > 0), default=0.0) for what in ("prefill_tok_s", "decode_tok_s")]
    if level["tool"] != BENCHY or not all(speeds):
        return 0.0
    one = level["concurrency"] * (level["prompt"] + level["depth"]) / speeds[0] + level["output"] / speeds[1]
    return _STARTS + (level.get("runs", 3) + 1) * one  # its first run warms up


def left_of(levels: Sequence[Mapping[str, Any]], rows: Sequence[Mapping[str, Any]], left: float) -> str:
    """Return how long these levels take, as a phrase; at most the time that is left of the suite."""
    estimates = [seconds_of(level, rows) for level in levels]
    known = all(estimates) and sum(estimates) < left
    return f"about {duration(sum(estimates))} left" if known else f"at most {duration(left)} left"


# --- The command.

#: Runs the tools in one process that may do nothing else. The key comes on standard input, because arguments and environments of a process can be read. The
#: result is the only text on stdout. The kernel ends this process first if it lacks memory.
LAUNCH = """
import importlib, json, os, sys
with open("/proc/self/oom_score_adj", "w") as score:
    score.write("1000")
key, out, code = sys.stdin.readline().strip(), os.dup(1), 0
os.dup2(2, 1)
for module, *words in json.loads(sys.argv[1]):
    sys.argv = [module, *(["--api-key", key] if key else []), *words]
    try:
        importlib.import_module(module).main()
    except SystemExit as end:
        code = code or (end.code if isinstance(end.code, int) else int(end.code is not None))
if os.path.exists("result.json"):
    with open("result.json", "rb") as found, os.fdopen(out, "wb") as to:
        to.write(found.read())
sys.exit(code)
"""
NOBODY = 65534  # user and group
_UNPRIVILEGED = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all"]
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "PYTHONDONTWRITEBYTECODE", "NO_COLOR")


def _calls(level: Mapping[str, Any], url: str, model: str, folder: str) -> list[list[str]]:
    """Return modules and words of the calls that measure a level. They write result.json in their working folder."""
    if level["tool"] == BENCHY:
        numbers = {"pp": level["prompt"], "tg": level["output"], "depth": level["depth"], "concurrency": level["concurrency"], "runs": level.get("runs", 3)}
        given = {"base-url": f"{url}/v1", "model": model, "tokenizer": folder, "book-url": BOOK_URL, "latency-mode": "generation", **numbers}
        listed = [word for name, value in given.items() for word in (f"--{name}", str(value))]
        more = ["--skip-coherence", "--exit-on-first-fail", "--no-results-on-fail", "--format", "json", "--save-result", "result.json"]
        return [["llama_benchy.__main__", *listed, *more]]
    module, part = "tool_eval_bench.cli.bench", level["part"]
    words = [module, "--base-url", url, "--model", model, "--backend", "vllm", "--json", "--no-probe-engine", "--seed", "42", *PARTS[part]]
    if part in ("ifeval", "needle"):
        return [words, [module, "--export", "json", "--export-output", "result.json"]]
    return [[*words, "--json-file", "result.json"]]


def argv(level: Mapping[str, Any], url: str, model: str, folder: str, root: bool = True) -> list[str]:
    """Return the command that measures a level in a folder of its own, which has tokenizer.json. It reads the key as one line. `root` gives up its rights."""
    environment = [f"HOME={folder}", f"TMPDIR={folder}", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *(f"{name}=1" for name in _OFFLINE)]
    calls = json.dumps(_calls(level, url, model, folder))
    return ["env", "-i", *environment, *(_UNPRIVILEGED if root else []), PYTHON, "-I", "-c", LAUNCH, calls]


def reason_of(code: int, err: str, seconds: float) -> str:
    """Return why a tool has failed, with the remedy."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    events = [found.get("message") for found in map(_event, lines) if found.get("event") == "error"]
    told = [line for line in lines if re.search(r"HTTP \d{3}|[Ee]rror|FAILED|[Ff]ailed", line)]
    last = str((events or told or lines or ["no message"])[-1])[:300].rstrip(".")
    if code == 124:
        return f"it did not end within {seconds:.0f} s. Use a smaller suite, or a larger bench_budget"
    if "No module named" in err or code == 127:
        return f"its environment is not complete ({last}). Run playbooks/bench.yml, which installs it"
    if "Falling back to 'gpt2'" in err:
        return "it cannot read tokenizer.json of the model's folder. Use a model with a tokenizer of the library tokenizers"
    return f"{last} (exit code {code})"


def _event(line: str) -> Mapping[str, Any]:
    try:
        found = loads(line) if line.startswith("{") else {}
    except ValueError:
        found = {}
    return found if isinstance(found, dict) else {}


# --- What was measured, as rows.

_NO_PARSER = re.compile(r"tool.call.parser|enable.auto.tool.choice")

_METRIC = {"mean": float, "std": float, "values": [float]}
#: By quantity: what it is of (prompt or reply), its words, its unit, and its place in a result of llama-benchy.
FIGURES = {
    "prefill_tok_s": ("pp", "prefill", "tok/s", "pp_throughput"), "ttfr_ms": ("pp", "first response", "ms", "ttfr"),
    "ttft_ms": ("pp", "first token", "ms", "e2e_ttft"), "decode_tok_s": ("tg", "decode, each stream", "tok/s", "tg_req_throughput"),
    "aggregate_tok_s": ("tg", "decode, all streams", "tok/s", "tg_throughput"), "peak_tok_s": ("tg", "highest second", "tok/s", "peak_throughput"),
    "acceptance_percent": ("tg", "drafts accepted", "%", ""), "cache_hit_percent": ("pp", "prefix cache hits", "%", ""),
    "kv_usage_percent": ("pp", "KV cache used", "%", ""), "score_percent": ("", "score", "%", ""), "graded_percent": ("", "scenarios graded", "%", ""),
}  # fmt: skip
_PLACES = {quantity: place for quantity, (_what, _words, _unit, place) in FIGURES.items() if place}
_RUN = {
    "concurrency": int, "context_size": int, "prompt_size": int, "response_size": int, "is_context_prefill_phase": bool,
    **{f"{place}?": _METRIC for place in _PLACES.values()},
}  # fmt: skip
BENCHY_RESULT = {"version": str, "latency_mode": str, "latency_ms": float, "benchmarks": [_RUN]}
_CATEGORY = {"label": str, "percent": float}
EVAL_RESULT = {"final_score?": float, "error?": str, "scores?": {"scenario_results?": [dict], "category_scores?": [_CATEGORY], "completion_rate?": float}}
#: Counters of /metrics of which a level is told the share: quantity, part, whole.
_SHARES = (
    ("acceptance_percent", "vllm:spec_decode_num_accepted_tokens_total", "vllm:spec_decode_num_draft_tokens_total"),
    ("cache_hit_percent", "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
)  # fmt: skip
_USAGE = ("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")


def _row(level: Mapping[str, Any], quantity: str, values: Sequence[float], mean: float | None = None, spread: float | None = None) -> dict[str, Any]:
    average = sum(values) / len(values) if mean is None else mean
    return {
        **level, "quantity": quantity, "runs": [round(value, 3) for value in values], "mean": round(average, 3),
        "spread": None if len(values) < 2 or spread is None else round(spread, 3),
    }  # fmt: skip


def rows_of(level: Mapping[str, Any], text: str) -> list[dict[str, Any]]:
    """Return what a tool's result, a JSON text, has measured. Raises BenchError if it is not one, or has measured nothing."""
    try:
        found = loads(text)
        problem = misfit(found, BENCHY_RESULT if level["tool"] == BENCHY else EVAL_RESULT)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise BenchError(f"the result of {level['tool']} is not valid: {problem}")
    rows = _benchy_rows(level, found) if level["tool"] == BENCHY else _eval_rows(level, found)
    if not rows:
        raise BenchError(f"{level['tool']} has measured nothing: the replies have no token, or came in one piece")
    return rows


def _benchy_rows(level: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = []
    for run in found["benchmarks"]:
        if run["is_context_prefill_phase"]:
            continue
        for quantity, place in _PLACES.items():
            metric = run.get(place)
            if metric and metric["values"] and not (quantity == "aggregate_tok_s" and run["concurrency"] == 1):
                out.append(_row(level, quantity, metric["values"], metric["mean"], metric["std"]))
    return out


def _eval_rows(level: Mapping[str, Any], found: Mapping[str, Any]) -> list[dict[str, Any]]:
    scores = found.get("scores") or {}
    if _NO_PARSER.search(json.dumps(scores.get("scenario_results"))):
        raise BenchError(
            "the engine refuses tool calls. Set enable-auto-tool-choice to true and tool-call-parser to the model's in engine.args of the profile"
            " (vllm_tp2_extra_args)"
        )
    if found.get("error") or scores.get("final_score") is None:
        raise BenchError(f"{level['tool']} has measured nothing: {str(found.get('error') or 'it has no score')[:300]}")
    rows = [_row(level, "score_percent", [scores["final_score"]]), _row(level, "graded_percent", [scores.get("completion_rate", 100.0)])]
    return [*rows, *({**_row(level, "score_percent", [each["percent"]]), "of": each["label"]} for each in scores.get("category_scores") or [])]


def share_rows(level: Mapping[str, Any], before: str, after: str, usage: float | None) -> list[dict[str, Any]]:
    """Return the shares of a level by the /metrics pages before and after it, and by the highest use of the KV cache. They are those of the whole server."""
    names = [name for _quantity, *pair in _SHARES for name in pair]
    first, last = measures.sums_of(before, names), measures.sums_of(after, names)
    grown = {name: last.get(name, 0.0) - first.get(name, 0.0) for name in names}
    shares = [(quantity, grown[part] / grown[whole]) for quantity, part, whole in _SHARES if grown[whole] > 0]
    shares += [] if usage is None else [("kv_usage_percent", usage)]
    return [_row(level, quantity, [100 * share]) for quantity, share in shares]


def kv_usage(page: str) -> float | None:
    """Return the used share of the KV cache on a /metrics page, the highest of all engines; None if it has none."""
    return max((share for _name, _labels, share in measures.metric_figures(page, _USAGE) if 0 <= share <= 1), default=None)


# --- for people


def figure_of(row: Mapping[str, Any]) -> tuple[str, str]:
    """Return what a row is of, and its figure, as texts."""
    what, words, unit, _place = FIGURES[row["quantity"]]
    return f"{name_of(row, what)}: {row.get('of') or words}", f"{row['mean']:,.1f} {unit}"


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the table of what was measured, one line each."""
    cells = []
    for row in rows:
        what, words, unit, _place = FIGURES[row["quantity"]]
        spread = None if row["spread"] is None else f"{row['spread']:,.2f}"
        cells.append((name_of(row, what), row.get("of") or words, f"{row['mean']:,.2f}", spread, unit, len(row["runs"])))
    return columns(("test", "figure", "measured", "±", "unit", "values"), cells)


def memory_lines(memory: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return one line for each rank that was read: its lowest memory."""
    return [
        f"{host}: lowest MemAvailable {each['lowest_available_kib'] / 2**20:.1f} GiB, lowest MemFree {each['lowest_free_kib'] / 2**20:.1f} GiB"
        for host, each in memory.items() if each
    ]  # fmt: skip


def title(found: Mapping[str, Any]) -> str:
    """Return the first line of a measurement."""
    return f"{found['group']}, suite {found['suite']}, release {found['release']}, profile {found['profile'] or 'not known'}, {found['time']}"
