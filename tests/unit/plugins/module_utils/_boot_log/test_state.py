"""The state of a boot: weak suspicion, logs that are cut, other programs in the same log; and what a remedy names. More rows: states.tsv, causes.tsv."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.stream import BootLog, parse

API = "(APIServer pid=1) "
BANNER = API + "INFO 11-20 21:00:00 [api_server.py:1977] vLLM API server version 0.25.1\n"
LOADING = "(EngineCore pid=9) INFO 11-20 21:01:00 [gpu_model_runner.py:1] Starting to load model /models/m...\n"
KV = "(EngineCore pid=9) INFO 11-20 21:02:00 [kv_cache_utils.py:1] GPU KV cache size: 5,000 tokens\n"
READY = API + "INFO:     Application startup complete.\n"
CORE = "(EngineCore pid=9) ERROR 11-20 21:10:00 [core.py:1512] "
FATAL = CORE + "EngineCore encountered a fatal error.\n"
IN_WORKER = "(VllmWorkerProcess pid=149) ERROR 04-28 18:00:58 [m.py:238] Exception in worker VllmWorkerProcess while processing method load_model.\n"
OPTIONAL = "ModuleNotFoundError: No module named 'an_optional_part'\n"
DRAFTER = "(EngineCore pid=9) INFO 11-20 21:01:30 [eagle.py:1] Loading drafter model...\n"
FAILED = CORE + "EngineCore failed to start.\n"
VALIDATION = API + "pydantic_core._pydantic_core.ValidationError: 1 validation error for SpeculativeConfig\n"
GREATER = API + "  Input should be greater than 0 [type=greater_than, input_value=0, input_type=int]\n"


def verdict(text: str) -> tuple[str, str | None]:
    """Parse a complete log and return state and class."""
    facts = parse(text)
    return facts["state"], facts["failure"] and facts["failure"]["class"]


def failure(log: str) -> dict[str, Any]:
    """Return the failure of a complete log."""
    found = parse(log)["failure"]
    assert found is not None
    return dict(found)


def test_a_weak_line_alone_is_a_suspicion_while_the_process_runs() -> None:
    """Loads and compiles are silent for minutes after an optional import has failed."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]) == ("starting", None)
    assert (facts["suspicion"]["class"], facts["suspicion"]["line"]) == ("toolchain", OPTIONAL.strip())
    log.feed(KV.encode())
    assert log.facts()["suspicion"] is None


@pytest.mark.parametrize("line", [FAILED, "RuntimeError: Engine core initialization failed. See root cause above.\n"])
def test_a_second_sign_confirms_a_suspicion(line: str) -> None:
    """What the engine prints of its own end follows at once."""
    log = BootLog()
    log.feed((BANNER + LOADING + OPTIONAL + line).encode())
    facts = log.facts()
    assert (facts["state"], facts["failure"]["class"], facts["failure"]["confirmed"]) == ("failed", "toolchain", True)


@pytest.mark.parametrize("first", [CORE + "Traceback (most recent call last):\n", IN_WORKER])
def test_a_log_cut_in_the_traceback_of_an_engine_process_has_failed(first: str) -> None:
    """The name of the exception is in the last line, which is missing."""
    assert verdict(BANNER + LOADING + first + CORE + '  File "/x.py", line 1, in f\n') == ("failed", "unclassified")
    assert verdict(BANNER + LOADING + first + KV) == ("starting", None)


def test_another_programs_port_is_not_vllms() -> None:
    """vLLM reports the port on which it listens; another program in the log fails on its own."""
    listen = "INFO 09-04 12:12:15 [api_server.py:1349] Starting vLLM API server 0 on http://0.0.0.0:8000\n"
    taken = "ERROR:    [Errno 98] error while attempting to bind on address ('0.0.0.0', {}): address already in use\n"
    other = "INFO:     Application startup complete.\nINFO:     Uvicorn running on http://0.0.0.0:8080 (Press CTRL+C to quit)\n"
    assert parse(BANNER + other + KV + listen)["state"] == "starting"
    assert verdict(BANNER + other + KV + listen + READY + taken.format(8080)) == ("ready", None)
    assert verdict(BANNER + KV + listen + taken.format(8000)) == ("failed", "addr_in_use")


def test_a_record_before_the_banner_is_not_a_boot_of_its_own() -> None:
    """vLLM 0.11 prints the scheduler's default before its version."""
    facts = parse("INFO 11-20 20:59:59 [scheduler.py:216] Chunked prefill is enabled with max_num_batched_tokens=2048.\n" + BANNER + KV)
    assert (facts["restarts"], facts["version"]) == (0, "0.25.1")


@pytest.mark.parametrize("key", ["textPayload", "message", "log"])
def test_a_json_record_over_several_lines(key: str) -> None:
    """A collector's export is printed with indentation."""
    record = '  {\n    "severity": "INFO",\n    "%s": "(EngineCore pid=9) INFO 11-20 21:02:00 [k.py:1] GPU KV cache size: 5,000 tokens",\n    "x": 1\n  },\n'
    assert parse(record % key)["kv_cache"]["tokens"] == 5000


def test_the_more_specific_row_of_a_class_gives_the_remedy() -> None:
    """The general line of a class comes first in many logs."""
    rows = [{"class": "x", "pattern": "narrow (?P<what>cause)", "remedy": "Mend the {what}."}, {"class": "x", "pattern": "trouble", "remedy": "Read the log."}]
    failure = parse(BANNER + LOADING + CORE + "trouble\n" + CORE + "narrow cause\n" + CORE + "trouble\n", rows)["failure"]
    assert (failure["remedy"], failure["line"], failure["count"]) == ("Mend the cause.", "narrow cause", 3)


def test_the_line_of_another_process_is_not_the_name_of_a_field() -> None:
    assert "Loader" not in failure(VALIDATION + "(EngineCore pid=9) Loader\n" + GREATER)["remedy"]


def test_a_crashed_kernel_names_the_drafter_that_the_boot_uses() -> None:
    crash = CORE + "torch.AcceleratorError: CUDA error: device-side assert triggered\n" + FATAL
    args = API + "INFO 11-20 21:00:01 [utils.py:1] non-default args: {'model': '/m', 'speculative_config': {'method': 'dflash', 'num_speculative_tokens': 7}}\n"
    assert "drafter (speculative-config, dflash)" in failure(BANNER + args + LOADING + READY + crash)["remedy"]
    dump = "(EngineCore pid=9) ERROR 11-20 21:10:00 [dump_input.py:72] Dumping input data for V1 LLM engine (v0.30.0) with config: model='/m', "
    dump += "speculative_config=SpeculativeConfig(method='mtp', model='/d', num_spec_tokens=5), max_seq_len=8192\n"
    assert "drafter (speculative-config, mtp)" in failure(BANNER + LOADING + READY + crash.replace(FATAL, dump + FATAL))["remedy"]
    assert "drafter (speculative-config)" in failure(BANNER + LOADING + DRAFTER + READY + crash)["remedy"]
    assert "If the profile has a drafter" in failure(BANNER + LOADING + READY + crash)["remedy"]
