"""Boot logs to facts and verdicts: the shared real logs, own logs in every wrapper, own wordings of each version."""

# ruff: noqa: E501 (log lines are as long as vLLM prints them)

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.patterns import parse_line
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse, with_container
from shared_samples import compared

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures" / "vllm_log"
HEAD, WORKER, OOM = (FIXTURES / f"{name}.log" for name in ("head", "worker", "oom"))


WRAPPERS: dict[str, Callable[[bytes], bytes]] = {
    "compose": lambda line: b"vllm-head-1  | " + line,
    "docker timestamps": lambda line: b"2026-11-20T21:12:20.123456789Z " + line,
    "journald": lambda line: b"Nov 20 21:12:20 spark1 docker[1234]: " + line,
    "compose over timestamps": lambda line: b"vllm  | 2026-11-20T21:12:20.123456789Z " + line,
    "CRLF": lambda line: line + b"\r",
    "docker service logs": lambda line: b"vllm_head.1.k2j3h4k5j6h7@spark1    | " + line,
    "colours": lambda line: re.sub(rb"^(\([^)]*\)) (INFO|ERROR)", b"\x1b[0;36m\\1\x1b[0;0m \x1b[32m\\2\x1b[0m", line),
}


@pytest.mark.parametrize("wrapper", WRAPPERS.values(), ids=WRAPPERS.keys())
@pytest.mark.parametrize("log", [HEAD, WORKER, OOM], ids=["head", "worker", "oom"])
def test_a_wrapper_changes_no_fact(log: Path, wrapper: Callable[[bytes], bytes]) -> None:
    """A prefix changes no fact, state or line number."""
    raw = log.read_bytes()
    plain, wrapped = parse(raw), parse(b"\n".join(wrapper(line) for line in raw.rstrip(b"\n").split(b"\n")) + b"\n")
    skip = {"stages", "ready", "stopped"}
    assert {k: v for k, v in wrapped.items() if k not in skip} == {k: v for k, v in plain.items() if k not in skip}
    assert list(wrapped["stages"]) == list(plain["stages"])
    assert bool(wrapped["ready"]) == bool(plain["ready"])


def test_the_head_of_a_pair() -> None:
    """Every fact of a modern head."""
    facts = parse(HEAD.read_bytes())
    assert facts["state"] == "ready"
    assert facts["stage"] == "ready"
    assert facts["failure"] is None
    assert facts["version"] == "0.25.2.dev0+gabc123.d20260701"
    assert facts["model"] == "/models/example"
    assert facts["context"] == 131072, "the draft model's 262144 comes second and is not the context"
    kv = facts["kv_cache"]
    assert (kv["tokens"], kv["max_concurrency"], kv["context"], kv["available_gib"]) == (2493464, 19.02, 131072, 18.08)
    assert kv["effective_tokens"] == round(19.02 * 131072)
    assert (facts["weights"]["gib"], facts["weights"]["seconds"], facts["load_seconds"]) == (71.42, 120.51, 130.25)
    assert facts["graphs"] == {"seconds": 9.0, "gib": 0.71, "eager": False}
    assert (facts["init_seconds"], facts["compilation_seconds"]) == (86.27, 40.45)
    assert (facts["dtype"], facts["kv_cache_dtype"], facts["quantization"], facts["speculative_method"]) == ("bfloat16", "fp8", "modelopt_fp4", "mtp")
    assert facts["world_size"] == 2
    assert facts["attention_backend"] == "FLASHINFER"
    assert facts["nccl"]["transport"] == "rdma"
    assert facts["nccl"]["hcas"] == ["rocep1s0f0:1", "roceP2p1s0f0:1"]
    assert facts["nccl"]["version"] == "2.29.7"
    assert facts["ready"]["line_number"] == 39
    assert facts["restarts"] == 0
    assert facts["stopped"] is None
    assert "very-secret" not in json.dumps(facts)


def test_a_headless_worker_is_starting_and_has_its_own_memory() -> None:
    """It never reports that it is ready. Its available memory shows which node limits the pool."""
    facts = parse(WORKER.read_bytes())
    assert (facts["state"], facts["stage"]) == ("starting", "graphs")
    assert facts["kv_cache"]["available_gib"] == 17.49
    assert facts["kv_cache"]["tokens"] is None
    assert facts["progress"] == {"what": "weights", "percent": 25, "done": 1, "total": 4, "line_number": 8}


def table(name: str) -> list[list[str]]:
    """Return the rows of a table of log lines: columns, and the log with its line ends as \\n."""
    rows = [row.split("\t") for row in (FIXTURES / name).read_text(encoding="utf-8").splitlines()]
    return [[*row[:-1], json.loads('"' + row[-1].replace('"', '\\"') + '"')] for row in rows]


def fact(text: str, path: str) -> Any:
    """Parse a complete log and return one of its facts."""
    found: Any = parse(text)
    for key in path.split("."):
        found = found[key]
    return found


@pytest.mark.parametrize(("path", "value", "text"), [pytest.param(*row, id=name) for name, *row in table("facts.tsv")])
def test_a_line_gives_its_fact(path: str, value: str, text: str) -> None:
    """The format strings of the versions, one by one."""
    assert fact(text + "\n", path) == json.loads(value)


NAMED = {
    "dashes": "2026-11-20 21:12:20,123 - {name} - {level} - {text}",
    "brackets": "[2026-11-20 21:12:20,123] [{level}] [{name}] {text}",
    "loguru": "2026-11-20 21:12:20.123 | {level:<8} | {name}:report:849 - {text}",
}


@pytest.mark.parametrize("name", ["gateway", "proxy.uvicorn", "manager.backends.vllm", "myvllm", "vllm-router"])
def test_another_program_is_not_vllm_by_a_part_of_its_name(name: str) -> None:
    """Its text can quote the server that it starts."""
    for form in NAMED.values():
        assert parse(form.format(level="INFO", name=name, text="Application startup complete.") + "\n")["ready"] is None


# -- states ------------------------------------------------------------------------------------------------------------

READY = "INFO:     Application startup complete.\n"
ACCESS = 'INFO:     10.0.0.9:4 - "POST /v1/chat/completions HTTP/1.1" 200 OK\n'
ERROR = "(EngineCore pid=9) ERROR 07-02 09:10:00 [core.py:1512] "
LOADING = "(Worker pid=1) INFO 01-01 00:00:00 [g.py:1] Starting to load model x...\n"


@pytest.mark.parametrize(("state", "name", "text"), [pytest.param(*row, id=name) for name, *row in table("states.tsv")])
def test_the_state_of_a_boot(state: str, name: str, text: str) -> None:
    facts = parse(text)
    assert (facts["state"], facts["failure"]["class"] if facts["failure"] else "-") == (state, name)


@pytest.mark.parametrize(("row", "number", "phrases", "text"), [pytest.param(*row, id=name) for name, *row in table("causes.tsv")])
def test_the_row_of_the_cause_and_not_of_its_consequence(row: str, number: str, phrases: str, text: str) -> None:
    """The line of the cause is not the loudest: what else the log shows decides, and fills the remedy. `phrases` of it have | between them."""
    failure = parse(text)["failure"]
    assert (failure["anchor"], failure["line_number"]) == (f"docs/reference/failures.md#{row}", int(number))
    assert [phrase for phrase in phrases.split("|") if phrase not in failure["remedy"]] == []


BANNER = "(APIServer pid=1) INFO 11-20 21:00:00 [api_server.py:1977] vLLM API server version 0.25.1\n"
OPTIONAL = "ModuleNotFoundError: No module named 'an_optional_part'\n"


def test_a_weak_line_alone_is_a_suspicion_while_the_process_runs() -> None:
    """Loads and compiles are silent for minutes after an optional import has failed."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]) == ("starting", None)
    assert (facts["suspicion"]["class"], facts["suspicion"]["line"]) == ("toolchain", OPTIONAL.strip())
    log.feed(b"(EngineCore pid=9) INFO 11-20 21:02:00 [kv_cache_utils.py:1] GPU KV cache size: 5,000 tokens\n")
    assert log.facts()["suspicion"] is None


@pytest.mark.parametrize("line", [f"{ERROR}EngineCore failed to start.\n", "RuntimeError: Engine core initialization failed. See root cause above.\n"])
def test_a_second_sign_confirms_a_suspicion(line: str) -> None:
    """What the engine prints of its own end follows at once."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL + line).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]["class"], facts["failure"]["confirmed"]) == ("failed", "toolchain", True)


def test_the_line_of_another_process_is_not_the_name_of_a_field() -> None:
    own = "(APIServer pid=1) {}\n"
    wrong = own.format("pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig") + "(EngineCore pid=9) Loader\n"
    failure = parse(wrong + own.format("  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]"))["failure"]
    assert "Loader" not in failure["remedy"]


# -- boots -------------------------------------------------------------------------------------------------------------


def test_the_verdict_on_a_restarted_container_is_that_of_its_last_boot() -> None:
    """docker's log of one container holds all its runs."""
    facts = parse(OOM.read_bytes() + HEAD.read_bytes())
    assert (facts["state"], facts["restarts"], facts["version"]) == ("ready", 1, "0.25.2.dev0+gabc123.d20260701")
    assert facts["failure"] is None
    assert facts["kv_cache"]["tokens"] == 2493464


@pytest.mark.parametrize("proc", ["(MainProcess pid=1) ", ""])
def test_a_headless_rank_that_restarts_keeps_its_context(proc: str) -> None:
    """It has no banner, and in a container the same pid: its boot begins before the line that launches it."""
    boot = (
        f"{proc}INFO 01-01 00:00:00 [model.py:1] Resolved architecture: LlamaForCausalLM\n{proc}INFO 01-01 00:00:00 [model.py:2] Using max model len {{}}\n"
        f"{proc}INFO 01-01 00:00:00 [serve.py:1] Launching vLLM (v0.32.0) headless multiproc executor, with head node address 10.0.0.1:29501 for x.\n"
        "(Worker_TP1 pid=9) INFO 01-01 00:00:05 [gpu_worker.py:1] Available KV cache memory: {}.5 GiB\n"
    )
    facts = parse(boot.format(512, 1) + boot.format(1024, 2))
    assert (facts["restarts"], facts["version"], facts["context"], facts["kv_cache"]["available_gib"]) == (1, "0.32.0", 1024, 2.5)


def test_a_boot_that_got_no_further_than_its_arguments_is_one() -> None:
    """Killed there, and started again with another image; but the servers of one boot may all print their version."""
    line = "(APIServer pid=1) INFO 01-01 00:00:00 [api_server.py:1] vLLM API server version {}\n(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:1] non-default args: {{'model': 'x'}}\n"
    again = parse(line.format("0.11.0") + line.format("0.11.2"))
    assert (again["restarts"], again["version"]) == (1, "0.11.2")
    many = line.replace("APIServer", "ApiServer_0").format("0.11.0") + line.replace("APIServer pid=1", "ApiServer_1 pid=2").format("0.11.0")
    assert parse(many)["restarts"] == 0


@pytest.mark.parametrize("end", ["", LOADING, LOADING + ERROR + "torch.OutOfMemoryError: CUDA out of memory.\n", READY])
def test_a_restart_whose_banner_is_switched_off(end: str) -> None:
    """In a container the processes of each boot have the same ids; the arguments are printed once a boot."""
    args = "(APIServer pid=1) INFO 01-01 00:00:00 [utils.py:233] non-default args: {'model': 'x'}\n"
    context = "(APIServer pid=1) INFO 01-01 00:00:01 [model.py:1] Using max model len 4096\n"
    facts = parse(args + context + end + args + context)
    assert (facts["state"], facts["restarts"], facts["stages"]["args"]["line_number"]) == ("starting", 1, 3 + end.count("\n"))


def test_all_boots_of_a_restart_loop_are_counted() -> None:
    assert parse(OOM.read_bytes() * 60)["restarts"] == 59


# -- what users can write into a log --------------------------------------------------------------------------------------

QUOTES = {
    "repr in a request record": "(APIServer pid=1) INFO 07-02 09:05:00 [logger.py:41] Received request cmpl-1: prompt: {!r}, params: x\n",
    "dumped scheduler output": "(EngineCore pid=90) ERROR 07-02 09:05:00 [dump_input.py:79] Dumping scheduler output for model execution: SchedulerOutput(prompt={!r})\n",
    "chat error": "(APIServer pid=1) ERROR 07-02 09:05:00 [serving_chat.py:254] Error in preprocessing prompt inputs {!r}\n",
    "warning with text": "(APIServer pid=1) WARNING 07-02 09:05:00 [protocol.py:54] The following fields were present: {!r}\n",
    "another logger": "2026-07-02 09:05:00 - gateway - INFO - body={!r}\n",
    "a JSON gateway": '{{"level": "info", "logger": "gateway", "msg": "prompt was: {0}"}}\n',
}
BOOT_LINES = [
    "GPU KV cache size: 5 tokens",
    "Maximum concurrency for 7 tokens per request: 1.00x",
    "Available KV cache memory: 0.01 GiB",
    "(EngineCore pid=90) INFO 07-02 09:03:41 [kv_cache_utils.py:2146] GPU KV cache size: 5 tokens",
    "(APIServer pid=1) INFO 07-02 09:00:01 [api_server.py:1] vLLM API server version 9.9.9",
    "(EngineCore pid=90) INFO 07-02 09:00:01 [core.py:1] Initializing a V1 LLM engine (v9.9.9) with config: model='x', max_seq_len=5",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1 GiB",
    "EngineCore encountered a fatal error.",
    "vllm: error: unrecognized arguments: --x",
    "Killed",
    "INFO:     Application startup complete.",
]


@pytest.mark.parametrize("quote", QUOTES.values(), ids=QUOTES.keys())
def test_a_prompt_that_quotes_boot_lines_changes_no_compared(quote: str) -> None:
    """In a request record and in other records that repeat it, before and after the first answer."""
    log = HEAD.read_text()
    plain = compared(parse(log))
    answer = "(APIServer pid=1) INFO:     192.168.100.9:45422"
    before, after = log.split(answer, 1)
    for line in BOOT_LINES:
        for text in (log + quote.format(line), before + quote.format(line) + answer + after):
            facts = parse(text)
            assert compared(facts) == plain, line
            assert facts["restarts"] == 0, line


def test_a_prompt_printed_bare_while_serving_changes_no_fact() -> None:
    """Some middleware prints bodies as they are, one line after the other."""
    log = HEAD.read_text() + "\n".join(line for line in BOOT_LINES if line != "Killed" and "pid=" not in line) + "\n" + ACCESS
    assert compared(parse(log)) == compared(parse(HEAD.read_text()))


def test_secrets_leave_no_trace() -> None:
    """Neither the arguments nor a failure's line shows them. The shapes of secrets are in tests/security."""
    text = "{'api_key': ['S3CRET'], 'x': 1}"
    facts = parse(f"INFO 01-01 00:00:00 [u.py:1] non-default args: {text}\nRuntimeError: {text}\n")
    assert facts["state"] == "failed"
    assert "S3CRET" not in json.dumps(facts)


# -- slices, ends, bounds --------------------------------------------------------------------------------------------------


def test_an_unterminated_last_line_waits() -> None:
    """The container is still writing it."""
    log = BootLog()
    log.feed(b"GPU KV cache size: 1,990,142 tok")
    assert log.facts()["kv_cache"]["tokens"] is None
    log.feed(b"ens\nMaximum concurrency for 1,048,576 tokens per request: 1.9")
    facts = log.facts()
    assert (facts["kv_cache"]["tokens"], facts["kv_cache"]["max_concurrency"]) == (1990142, None)
    log.feed(b"5x\n")
    assert log.facts()["kv_cache"]["max_concurrency"] == 1.95


PARTIAL: dict[str, tuple[str, Any, str]] = {
    "a number that may go on": ("context", None, "INFO 01-01 00:00:00 [m.py:1] Using max model len 1310"),
    "a rate that may go on": ("kv_cache.max_concurrency", None, "Maximum concurrency for 8,192 tokens per request: 1.1"),
    "a finished rate": ("kv_cache.max_concurrency", 1.11, "Maximum concurrency for 8,192 tokens per request: 1.11x"),
    "a finished pool": ("kv_cache.tokens", 9072, "GPU KV cache size: 9,072 tokens"),
    "readiness": ("state", "ready", "INFO:     Application startup complete."),
    "a failure": ("state", "failed", "RuntimeError: No CUDA GPUs are available"),
}


@pytest.mark.parametrize(("path", "value", "text"), PARTIAL.values(), ids=PARTIAL.keys())
def test_the_last_line_of_a_finished_log(path: str, value: Any, text: str) -> None:
    """It counts, but no number at its very end does."""
    assert fact(text, path) == value


def test_a_user_class_outranks_the_catalogue() -> None:
    """Users add classes in the inventory; their groups fill the remedy."""
    mine = [
        {
            "class": "licence_expired",
            "pattern": r"licence of (?P<plugin>\w+) has expired on \d+",
            "remedy": "Renew the licence of {plugin}.",
            "anchor": "wiki/licence",
        }
    ]
    text = ERROR + "RuntimeError: CUDA out of memory: the licence of fastkv has expired on 20260701\n"
    for filler in ("", READY.replace("startup", "stuff") + "x" * 100 + "\n" * 1200000):
        failure = parse(filler + text, mine)["failure"]
        assert (failure["class"], failure["remedy"], failure["anchor"]) == ("licence_expired", "Renew the licence of fastkv.", "wiki/licence")


def test_the_more_specific_row_of_a_class_gives_the_remedy() -> None:
    """The general line of a class comes first in many logs."""
    rows = [{"class": "x", "pattern": "narrow (?P<what>cause)", "remedy": "Mend the {what}."}, {"class": "x", "pattern": "trouble", "remedy": "Read the log."}]
    failure = parse(f"{BANNER}{LOADING}{ERROR}trouble\n{ERROR}narrow cause\n{ERROR}trouble\n", rows)["failure"]
    assert (failure["remedy"], failure["line"], failure["count"]) == ("Mend the cause.", "narrow cause", 3)


BAD_CLASSES = {
    "no mapping": ("x", "expected a mapping"),
    "a pattern that can hang": ({"class": "a", "pattern": "(a+)+b", "remedy": "c"}, "repeats a group that repeats"),
}


@pytest.mark.parametrize(("entry", "message"), BAD_CLASSES.values(), ids=BAD_CLASSES.keys())
def test_a_bad_user_class_is_refused_in_a_sentence(entry: Any, message: str) -> None:
    """Before anything is read."""
    with pytest.raises(ValueError, match=message):
        BootLog([entry])


CONTAINERS = {
    "killed by the kernel": ({"running": False, "exit_code": 137, "oom_killed": True}, OOM, "failed", "cuda_oom"),
    "killed after it served": ({"running": False, "exit_code": 137, "oom_killed": False}, HEAD, "served_then_failed", "oom_killed"),
    "ended by itself": ({"running": False, "exit_code": 1, "oom_killed": False}, WORKER, "starting", None),
    "running": ({"running": True, "exit_code": 0, "oom_killed": False}, HEAD, "ready", None),
}


@pytest.mark.parametrize(("container", "log", "state", "failure"), CONTAINERS.values(), ids=CONTAINERS.keys())
def test_the_containers_state_counts(container: dict[str, Any], log: Path, state: str, failure: str | None) -> None:
    """A kill leaves no line."""
    facts = with_container(parse(log.read_bytes()), {"name": "c", **container})
    assert (facts["state"], facts["failure"] and facts["failure"]["class"]) == (state, failure)


def test_a_kill_leaves_no_suspicion() -> None:
    """A failure replaces the suspicion."""
    facts = with_container(
        dict(parse(WORKER.read_bytes()), suspicion={"class": "toolchain"}), {"name": "c", "running": True, "exit_code": 0, "oom_killed": True}
    )
    assert (facts["failure"]["class"], facts["suspicion"]) == ("oom_killed", None)


def test_a_stop_that_needed_a_kill_is_no_failure() -> None:
    """docker stop kills after ten seconds; the log shows the request to stop."""
    facts = parse(HEAD.read_text() + "(APIServer pid=1) INFO 07-02 09:10:00 [launcher.py:254] [shutdown] API server: shutdown triggered\n")
    assert with_container(facts, {"name": "c", "running": False, "exit_code": 137, "oom_killed": False})["state"] == "ready"


def test_a_record_has_level_file_time_processes_and_message() -> None:
    """The grammar of one line."""
    line = parse_line(
        "\x1b[0;36m(EngineCore_DP0 pid=1)\x1b[0;0m (RayWorkerWrapper pid=2, ip=10.0.0.2) \x1b[32mINFO\x1b[0m 01-31 14:21:03 [parallel_state.py:1234] hello"
    )
    assert (line.level, line.file, line.time, line.message) == ("INFO", "parallel_state.py", "01-31 14:21:03", "hello")
    assert line.procs == (("EngineCore_DP0", "1", ""), ("RayWorkerWrapper", "2", "10.0.0.2"))


def test_names_at_most_32_variables_that_this_vllm_does_not_know() -> None:
    line = "(EngineCore pid=9) WARNING 08-18 02:57:50 [envs.py:1712] Unknown vLLM environment variable detected: VLLM_{}\n"
    assert len(parse(READY + "".join(map(line.format, range(40))))["unknown_variables"]) == 32
