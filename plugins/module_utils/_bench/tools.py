# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The tools that the field measures with, llama-benchy and tool-eval-bench: what they run, their words, their JSON as rows, and why they fail. Pure."""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._bench.levels import AT_ONCE, CASES, RUNS, Level, level_of, seconds, suite
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import loads, misfit
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import duration
from ansible_collections.gb10.cluster.plugins.module_utils._gate import measures
from ansible_collections.gb10.cluster.plugins.module_utils._gate.cases import BenchError

SCHEMA, PLAN = "gb10.cluster/bench/2", "gb10.cluster/text/1"
BENCHY, EVAL, OWN = "llama-benchy", "tool-eval-bench", "gb10"
#: Of the role `bench`: the environment of both tools, the text of the prompts, and the prompts of IFEval that an owner has put there.
FOLDER = "/opt/gb10-bench"
PYTHON, BOOK, IFEVAL = f"{FOLDER}/venv/bin/python", f"{FOLDER}/book.txt.gz", f"{FOLDER}/ifeval.jsonl"
BOOK_URL = "file:///book.txt"  # a name alone: llama-benchy asks no network for a text that is in this place of its home
BOOK_PLACE = f".cache/llama-benchy/{hashlib.md5(BOOK_URL.encode(), usedforsecurity=False).hexdigest()}.txt"

# --- What is run.

EVAL_TOKENS = 16384  # of a reply of tool-eval-bench
#: Of tool-eval-bench, by the case: its options.
_OPTIONS = {
    "short": ["--short"], "whole": [], "hard": ["--hardmode"], "ifeval": ["--ifeval-only"], "needle": ["--needle-only"],
    "spec": ["--spec-bench", "--skip-tool-eval"],
}  # fmt: skip
SPEC = ("filler", "code", "structured")  # each is a prompt of spec-bench
SPEC_TOKENS = 8192 + 2048 + 512  # of its longest request, with the reply: it counts 10,238 of the prompt, and other tokenizers somewhat more
#: Seconds that a suite may take.
BUDGETS = {"quick": 120, "seed": 3600, "full": 7200, "tools": 3600}
_LEVEL = {"tool": str, "case?": str, "prompt?": int, "output?": int, "depth?": int, "concurrency?": int, "arrivals?": str}
#: What a playbook or a user gives: levels in place of those of a suite, and the published figures of a profile.
GIVEN = {"levels?": [_LEVEL], "profile?": str, "published?": [{"figures": dict}]}


def plan(name: str, cases: Sequence[str], given: Sequence[Mapping[str, Any]], published: Any, context: int, streams: int) -> list[Level]:
    """Return the levels to run: those that a user gave, or those of a suite. Raises BenchError."""
    asked = [Level(EVAL, case) for case in cases]
    found = [level_of(each) for each in given] or (asked if name == "tools" else suite(name, published, context, streams) + asked * (name == "full"))
    found = [Level(EVAL, "spec") if each.tool == EVAL and each.case in SPEC else each for each in found]
    strange = [each for each in found if not _known(each)] if given or name == "tools" else []
    if strange:
        use = f"{EVAL} with case ({', '.join(_OPTIONS)}), or {OWN} with case ({', '.join(CASES[OWN])}) and output"
        raise BenchError(f"The level {strange[0].name} is not known. Use {BENCHY} with prompt, output, depth and concurrency, {use}")
    if not found:
        reason = "bench_cases is empty" if name == "tools" else "no published figure of the profile that serves is known here and can be measured"
        raise BenchError(f"The suite {name} has no levels: {reason}. Use the suite quick, or playbooks/bench.yml, which knows the figures of the profile")
    return list(dict.fromkeys(found))


def _known(level: Level) -> bool:
    if level.tool == EVAL:
        return level.case in _OPTIONS
    if level.tool == OWN:
        return level.case in CASES[OWN] and min(level.output, level.concurrency) > 0 <= level.prompt and level.pause is not None
    return level.tool == BENCHY and level.arrivals == AT_ONCE and min(level.prompt, level.output, level.concurrency) > 0 <= level.depth


def unfit(level: Level, context: int | None, left: float) -> str:
    """Return why a level is left out; empty if it is measured."""
    if not _known(level):
        return "no tool sends it"
    tokens = SPEC_TOKENS if level.case == "spec" else level.prompt + level.depth + level.output
    if context and tokens > context:
        return f"it needs {tokens:,} tokens, and the context is {context:,}"
    return "" if seconds(level) <= left else "it does not fit into the time of the suite (bench_budget)"


def estimate(levels: Sequence[Level], context: int | None, budget: float) -> str:
    """Return the phrase about what is measured, and for how long."""
    fits = [level for level in levels if not unfit(level, context, budget)]
    return f"about {duration(min(budget, sum(map(seconds, fits))))} for {', '.join(level.name for level in fits) or 'no level'}"


def progress(number: int, levels: Sequence[Level], left: float) -> str:
    """Return the line before a level, of which this is the number, with the time that is left."""
    return f"{number} of {len(levels)}: {levels[number - 1].name}, about {duration(min(left, sum(map(seconds, levels[number - 1 :]))))} left"


# --- Levels that no tool sends, as the scripts of the seeds did: requests of one kind, all at once or one after another.

_MODULE = (
    '\n\ndef put(boxes: dict[int, float], number: int, weight: float, places: int) -> bool:\n    """Put a box on the shelf, if there is a place."""'
    "\n    if len(boxes) >= places:\n        return False\n    boxes[number] = weight\n    return True\n"
)
_TOPICS = ("tides", "bridges", "bread", "glass", "maps", "clocks", "wool", "salt", "kites", "wells", "ferries", "paper")


def requests_of(level: Level, salt: str) -> list[dict[str, Any]]:
    """Return the requests of a run, as api_probe takes them. No two prompts begin alike."""
    out = []
    for place in range(level.concurrency):
        mark = f"{salt}{place}"
        if level.case == "code":
            source = _MODULE * max(1, 4 * level.prompt // len(_MODULE))  # a token has about four characters
            asked: dict[str, Any] = {"prompt": f"# {mark}{source}", "body": {"min_tokens": level.output, "ignore_eos": True}}
        elif level.case == "chat":
            asked = {"chat": True, "prompt": f"{' '.join(f'{mark}{word}' for word in range(420))}\nWrite a note in English on how two machines share work."}
        else:
            asked = {"chat": True, "prompt": f"{mark}: write four sentences about {_TOPICS[place % len(_TOPICS)]}.", "body": {"temperature": 0.7}}
        out.append({**asked, "max_tokens": level.output, "after": place * (level.pause or 0.0)})
    return out


def own_rows(level: Level, runs: Sequence[tuple[Sequence[Mapping[str, Any]], Sequence[Mapping[str, Any]], float]]) -> list[dict[str, Any]]:
    """Return the rows of runs: requests, their replies, and the seconds of a reply of one token, which one stream's decode does without."""
    together, decode = list[float](), list[float]()
    for requests, replies, first in runs:
        lost = next((str(each["error"] or "a reply counts no tokens") for each in replies if not each["ok"] or not each["completion_tokens"]), "")
        if lost:
            raise BenchError(f"{level.name}: {lost[:300]}")
        tokens, end = sum(each["completion_tokens"] for each in replies), max(asked["after"] + each["seconds"] for asked, each in zip(requests, replies))
        together.append(tokens / max(end, 0.001))
        decode += [(tokens - 1) / (end - first)] if end > first else []
    one = ("decode_tok_s", decode) if level.concurrency == 1 else ("share_tok_s", [each / level.concurrency for each in together])
    return [_row(level, *each) for each in (("aggregate_tok_s", together), one) if each[1]]


# --- The command.

#: Runs the tools in one process that may do nothing else. The key comes on standard input, because arguments and environments of a process can be read. The
#: result is the only text on stdout. The kernel ends this process first if it lacks memory.
LAUNCH = """
import importlib, json, os, sqlite3, sys
with open("/proc/self/oom_score_adj", "w") as score:
    score.write("1000")
key, out, kept, (module, *words) = sys.stdin.readline().strip(), os.dup(1), "data/benchmarks.sqlite", sys.argv[1:]
os.dup2(2, 1)
sys.argv = [module, *(["--api-key", key] if key else []), *words]
try:
    importlib.import_module(module).main()
finally:
    text = ""
    if os.path.exists("result.json"):
        text = open("result.json").read()
    elif os.path.exists(kept):
        run = sqlite3.connect(kept).execute("SELECT config_json, scores_json FROM scenario_runs ORDER BY created_at DESC").fetchone()
        text = json.dumps(dict(zip(("config", "scores"), map(json.loads, run)))) if run else ""
    with os.fdopen(out, "w") as to:
        to.write(text)
"""
USER = "gb10-bench"  # of the role `bench`, and its group: a process of the same user can read the key in the memory of a tool
FILE_BYTES = 256 << 20  # of one file that a tool writes
#: A tool ends with the program that has started it, also if a connection is lost: it would load the server for an hour. So its unit is a scope.
_UNPRIVILEGED = [
    "systemd-run", "--scope", "--quiet", "--collect", "--property=MemoryMax=4G", "--property=TasksMax=1024",
    "setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--no-new-privs", "--bounding-set=-all", "--inh-caps=-all", "--pdeathsig=KILL",
]  # fmt: skip
_OFFLINE = ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE", "HF_DATASETS_OFFLINE", "HF_HUB_DISABLE_TELEMETRY", "PYTHONDONTWRITEBYTECODE", "NO_COLOR")


def argv(level: Level, url: str, model: str, folder: str, root: bool = True, context: int | None = None) -> list[str]:
    """Return the command that measures a level in a folder of its own, which has tokenizer.json. It reads the key as one line. `root` gives up its rights.

    `context` is that of the server, None if it is not known: a reply of tool-eval-bench may otherwise have EVAL_TOKENS, which a small one refuses.
    """
    environment = [f"HOME={folder}", f"TMPDIR={folder}", "PATH=/usr/bin:/bin", "LC_ALL=C.UTF-8", *(f"{name}=1" for name in _OFFLINE)]
    if level.tool == BENCHY:
        module, given = "llama_benchy.__main__", {
            "base-url": f"{url}/v1", "model": model, "tokenizer": folder, "book-url": BOOK_URL, "latency-mode": "generation", "pp": level.prompt,
            "tg": level.output, "depth": level.depth, "concurrency": level.concurrency, "runs": RUNS, "format": "json", "save-result": "result.json",
        }  # fmt: skip
        more = ["--skip-coherence", "--exit-on-first-fail", "--no-results-on-fail"]
    else:
        module, given = "tool_eval_bench.cli.bench", {"base-url": url, "model": model, "backend": "vllm", "seed": 42}
        limit = ["--backend-kwargs", json.dumps({"max_tokens": context // 4})] if context and context < 2 * EVAL_TOKENS else []
        # Some cases leave their figures in a database alone.
        result = ["--json"] if level.case in ("ifeval", "needle", "spec") else ["--json-file", "result.json"]
        more = [*limit, *_OPTIONS[level.case], "--no-probe-engine", *result]
    words = [*(word for name, value in given.items() for word in (f"--{name}", str(value))), *more]
    return ["env", "-i", *environment, *(_UNPRIVILEGED if root else []), "prlimit", f"--fsize={FILE_BYTES}", PYTHON, "-I", "-c", LAUNCH, module, *words]


def reason_of(code: int, err: str, seconds: float) -> str:
    """Return why a tool has failed, with the remedy."""
    lines = [line.strip() for line in err.splitlines() if line.strip()]
    events = re.findall(r'^{"event": "error", .*?"message": "((?:[^"\\]|\\.)*)', err, re.MULTILINE)
    reports = [line for line in lines if re.search(r"HTTP \d{3}|[Ee]rror|FAILED|[Ff]ailed", line)]
    last = str((events or reports or lines or ["no message"])[-1])[:300].rstrip(".")
    if code == 124:
        return f"it did not end within {seconds:.0f} s. Use a smaller suite, or a larger bench_budget"
    if code < 0:
        return f"signal {-code} has ended it; the kernel does so if memory is short (`journalctl -k`). Use fewer or shorter prompts"
    if "No module named" in err or code == 127:
        return f"its environment is not complete ({last}). Run playbooks/bench.yml, which installs it"
    if "Falling back to 'gpt2'" in err:
        return "it cannot read tokenizer.json of the model's folder. Use a model with a tokenizer of the library tokenizers"
    return f"{last} (exit code {code})"


# --- What was measured, as rows.

_NO_PARSER = re.compile(r"tool.call.parser|enable.auto.tool.choice")
_METRIC = {"mean": float, "std": float, "values": [float]}
#: Quantities, and where they are in a result of llama-benchy.
_PLACES = {
    "prefill_tok_s": "pp_throughput", "ttfr_ms": "ttfr", "ttft_ms": "e2e_ttft", "decode_tok_s": "tg_req_throughput", "aggregate_tok_s": "tg_throughput",
    "peak_tok_s": "peak_throughput",
}  # fmt: skip
_RUN = {
    "concurrency": int, "context_size": int, "prompt_size": int, "response_size": int, "is_context_prefill_phase": bool,
    **{f"{place}?": _METRIC for place in _PLACES.values()},
}  # fmt: skip
BENCHY_RESULT = {"version": str, "latency_mode": str, "latency_ms": float, "benchmarks": [_RUN]}
#: Of a result of tool-eval-bench, and of a prompt of spec-bench: quantities, places, and factors.
_SCORES = {
    "score_percent": "final_score", "graded_percent": "completion_rate", "responsiveness_percent": "responsiveness", "deployability_percent": "deployability",
    "ifeval_prompt_percent": "prompt_accuracy", "ifeval_instruction_percent": "instruction_accuracy",
}  # fmt: skip
_CATEGORIES = {
    "Tool Selection": "tool_selection_percent", "Parameter Precision": "parameter_precision_percent", "Multi-Step Chains": "multi_step_percent",
    "Restraint & Refusal": "restraint_percent", "Error Recovery": "error_recovery_percent", "Structured Output": "structured_output_percent",
}  # fmt: skip
_SPEC = (("effective_tok_s", "effective_tg_tps", 1), ("acceptance_percent", "acceptance_rate", 100))
EVAL_RESULT = {
    "error?": str, "config?": {"tg?": int},
    "scores?": {
        **{f"{place}?": float for place in _SCORES.values()}, "scenario_results?": [{"status": str, "summary": str}],
        "category_scores?": [{"label": str, "percent": float}],
        "results?": [{"prompt_type": str, "depth": int, "waste_ratio?": float, **{f"{place}?": float for _quantity, place, _factor in _SPEC}}],
    },
}  # fmt: skip
_HITS, _QUERIES = "vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"
#: Counters of which a level has its share: quantity, part, whole, factor.
_SHARES = (
    ("acceptance_percent", "accepted_tokens", "draft_tokens", 100), ("accepted_per_draft", "accepted_tokens", "drafts", 1),
    ("cache_hit_percent", _HITS, _QUERIES, 100),
)  # fmt: skip


def _row(level: Level, quantity: str, values: Sequence[float]) -> dict[str, Any]:
    return {
        **level._asdict(), "quantity": quantity, "runs": [round(value, 3) for value in values], "mean": round(statistics.fmean(values), 3),
        "spread": round(statistics.pstdev(values), 3) if len(values) > 1 else None,
    }  # fmt: skip


def rows_of(level: Level, text: str) -> list[dict[str, Any]]:
    """Return what a tool's result, a JSON text, has measured. Raises BenchError if it is not one, or has measured nothing."""
    try:
        found = loads(text)
        problem = misfit(found, BENCHY_RESULT if level.tool == BENCHY else EVAL_RESULT)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise BenchError(f"the result of {level.tool} is not valid: {problem}")
    rows = _benchy_rows(level, found) if level.tool == BENCHY else _eval_rows(level, found)
    if not rows:
        raise BenchError(f"{level.tool} has measured nothing: {str(found.get('error') or 'its result has no figure')[:300]}")
    return rows


def _benchy_rows(level: Level, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    out = []
    for run in found["benchmarks"]:
        if run["is_context_prefill_phase"]:
            continue
        for quantity, place in _PLACES.items():
            values, streams = (run.get(place) or {}).get("values"), run["concurrency"]
            if values and not (quantity == "aggregate_tok_s" and streams == 1):
                size = streams if len(values) == RUNS * streams else 1  # one for each stream of each run: how streams differ is not how runs differ
                out.append(_row(level, quantity, [statistics.fmean(values[begin : begin + size]) for begin in range(0, len(values), size)]))
    return out


def _eval_rows(level: Level, found: Mapping[str, Any]) -> list[dict[str, Any]]:
    scores = {"completion_rate": 100.0, **(found.get("scores") or {})}
    outcomes = scores.get("scenario_results") or []
    if outcomes and not scores["completion_rate"]:  # it counts as a score of 0
        if _NO_PARSER.search(outcomes[0]["summary"]):
            arguments = "Set enable-auto-tool-choice to true and tool-call-parser to the model's in engine.args of the profile (vllm_tp2_extra_args)"
            raise BenchError(f"the engine refuses tool calls. {arguments}")
        raise BenchError(f"{level.tool}: {outcomes[0]['summary'][:300]}")
    values = {quantity: scores.get(place) for quantity, place in _SCORES.items() if scores.get("final_score") is not None}
    values |= {_CATEGORIES[each["label"]]: each["percent"] for each in scores.get("category_scores") or [] if each["label"] in _CATEGORIES}
    values |= {"passed_scenarios": sum(each["status"] == "pass" for each in outcomes)} if outcomes else {}
    rows = [_row(level, quantity, [value]) for quantity, value in values.items() if value is not None]
    samples, output = scores.get("results") or [], int((found.get("config") or {}).get("tg") or 0)
    for each in samples:
        prompt = level._replace(case=each["prompt_type"], depth=each["depth"], output=output)
        rows += [_row(prompt, quantity, [factor * each[place]]) for quantity, place, factor in _SPEC if each.get(place) is not None]
    wasted = [100 * each["waste_ratio"] for each in samples if each.get("waste_ratio") is not None]
    return rows + ([_row(level, "waste_percent", [sum(wasted) / len(wasted)])] if wasted else [])


def share_rows(level: Level, before: str, after: str, usage: float | None) -> list[dict[str, Any]]:
    """Return the shares of a level by the /metrics pages before and after it, and by the highest use of the KV cache. They are those of the whole server.

    A counter that is not on both pages, or was reset between them, has no share.
    """
    first, last = (measures.sums_of(page, (_HITS, _QUERIES)) for page in (before, after))
    grown = measures.draft_growth(measures.draft_counters(before), measures.draft_counters(after))
    grown |= {name: last[name] - first[name] for name in last if name in first}
    shares = [(quantity, factor * grown[part] / grown[whole]) for quantity, part, whole, factor in _SHARES if grown.get(whole, 0) > 0 <= grown.get(part, -1)]
    return [_row(level, quantity, [share]) for quantity, share in shares] + ([] if usage is None else [_row(level, "kv_usage_percent", [100 * usage])])


def memory_lines(memory: Mapping[str, Mapping[str, int]]) -> list[str]:
    """Return one line for each rank that was read: its lowest memory."""
    return [
        f"{host}: lowest MemAvailable {each['lowest_available_kib'] / 2**20:.1f} GiB, lowest MemFree {each['lowest_free_kib'] / 2**20:.1f} GiB"
        for host, each in memory.items() if each
    ]  # fmt: skip


def title(found: Mapping[str, Any]) -> str:
    """Return the first line of a measurement."""
    return f"{found['group']}, suite {found['suite']}, release {found['release']}, profile {found['profile'] or 'not known'}, {found['time']}"
