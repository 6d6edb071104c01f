"""Replies of a hostile or broken API and model: each ends in a value or in a sentence, and is judged in linear time."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._gate import api_probe, gate, measures, reply
from ansible_collections.gb10.cluster.plugins.module_utils._gate.judge import Judge
from ansible_collections.gb10.cluster.plugins.module_utils._node import gpu
from hostile import ANY_JSON, FEW, MANY, places, replaced
from hypothesis import given
from hypothesis import strategies as st

SIZE = 1 << 14
PATTERNS = [
    *("<", "<|", "<|aaaa", "< ", "<  /  ||||", "<tool_", "</function>", "<a:", "[", "[TOOL_", "\\", "◁", "(", '"', "'a é", "`", "``x", "` ", "```\n", "a:"),
    *("the <think> tag ", '"<think>" ', '{"name": ', "assistant", " " * 199 + "x", "-" * 199 + " ", "a" * 17 + " ", "1" * 39 + " "),
    *("analysis", "ab", "a b ", "дом ", "0 1 2 3 4 5 6 7 8 9 ", "i v x ", "一二", "Go on. ", "1. a\n", "| a ", "\n", "\u200b", "é"),
]
SPECIAL = {
    "one long tag": "<tool_" + "a" * SIZE,
    "spaces before the end": " " * SIZE + "x",
    "spaces after a bar": "<|" + " " * SIZE + "x",
    "a growing number": "".join(f"{number} " for number in range(SIZE // 6)),
    "rows of data": "".join(f"row {number} has {number * number % 97} of {number % 13} and {number % 7}. " for number in range(SIZE // 25)),
    "rows that nearly repeat": "".join(f"a b c d e {number} {number * 7919 % 101} " for number in range(SIZE // 17)),
    "words that repeat in pairs": "".join(f"one two {number % 5} one two {number % 3} " for number in range(SIZE // 18)),
    "different sentences": "".join(f"It is {number} and so it is {number * number}. " for number in range(SIZE // 25)),
    "Chinese": "".join(chr(0x4E00 + number * number % 3001) for number in range(SIZE)),
    "two Chinese signs": "".join(chr(0x4E00 + number * number % 7 % 2) for number in range(SIZE)),
    "two letters": "".join("ab"[number * number % 11 % 2] for number in range(SIZE)),
}


@pytest.mark.parametrize("prompt", ["Greet me", "Repeat it and explain the new words."])
@pytest.mark.parametrize("text", [*(pattern * (SIZE // len(pattern)) for pattern in PATTERNS), *SPECIAL.values()], ids=[*map(repr, PATTERNS), *SPECIAL])
def test_a_long_reply_is_judged_in_linear_time(text: str, prompt: str) -> None:
    start = time.process_time()
    assert isinstance(reply.faults(prompt, {"ok": True, "text": text}), list)
    assert time.process_time() - start < 1, "16 KiB take about 0.02 s; in quadratic time they take seconds"


DEEP = "[" * 100_000
HUGE = st.sampled_from(["1e400", "-1", "NaN", "inf", "9" * 400, "", "\x00", DEEP, '{"a":' * 100_000, "\ufffd", "[]", "null", "5", '"x"'])


def changed(good: Any, data: st.DataObject) -> str:
    """Return the text of a JSON document with a lie, or another text."""
    if not data.draw(st.integers(0, 4)):
        return str(data.draw(HUGE | st.text(max_size=60)))
    path = data.draw(st.sampled_from(places(good)))
    return json.dumps(replaced(good, path, data.draw(ANY_JSON), bool(path) and data.draw(st.booleans())))


MODELS = {"object": "list", "data": [{"id": "m", "max_model_len": 4096}]}
USAGE = {"completion_tokens": 3, "prompt_tokens": 9}
TEXT = {"choices": [{"text": "Paris", "message": {"content": "Paris", "reasoning": "x"}, "finish_reason": "stop"}], "usage": USAGE}
METRICS = (
    'vllm:cache_config_info{{kv_cache_size_tokens="{0}",kv_cache_max_concurrency="{0}"}} 1\nvllm:generation_tokens_total{{}} {0}\n'
    "vllm:num_requests_running {0}\nvllm:num_requests_waiting {0}\nvllm:spec_decode_num_drafts_total {0}\nvllm:spec_decode_num_draft_tokens_total {0}\n"
    'vllm:spec_decode_num_accepted_tokens_total {0}\nvllm:spec_decode_num_accepted_tokens_per_pos_total{{position="{0}"}} {0}\n'
)


@pytest.mark.slow
@MANY
@given(data=st.data())
def test_any_reply_of_the_api_is_used_or_refused_with_a_sentence(data: st.DataObject) -> None:
    paths = {"/v1/models": MODELS, "/version": {"version": "0.3"}, "/tokenize": {"tokens": [1, 2]}, "/v1/completions": TEXT, "/v1/chat/completions": TEXT}
    statuses = st.sampled_from([200, 200, 200, 200, 404, 500, 0])
    answers = {path: (data.draw(statuses), changed(good, data)) for path, good in paths.items()}
    answers["/metrics"] = (data.draw(statuses), METRICS.format(data.draw(HUGE | st.just("7"))))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(api_probe.Server, "call", lambda _self, _method, path, *_more, **_options: answers[path])
        requests = [{"prompt": "x", "prompt_tokens": data.draw(st.sampled_from([0, 300])), "chat": data.draw(st.booleans()), "cold": data.draw(st.booleans())}]
        found = api_probe.run({"url": "http://127.0.0.1:8000", "requests": requests, "concurrency": 1})
        json.dumps(found, allow_nan=False)
        for each in found["replies"]:
            assert isinstance(reply.faults("x", each, "Paris"), list)
        drafts = measures.draft_total([found])
        json.dumps([drafts, measures.acceptance_checks(drafts, {"min": 0.5, "positions_active": 2}, True)], allow_nan=False)
        json.dumps(measures.decode_checks(next((measures.speed(each) for each in found["replies"]), None), {"published_tok_s": 5.0}), allow_nan=False)
        ranks = Judge("pair1", ["one"], "", {}).states
        assert gate.checks(ranks, found, {"context": 4096, "served_names": ["m"], "effective_tokens": {"min": 5}, "concurrency": {"min": 1}})
        ask = api_probe.Ask("http://x", request={"prompt": "x"}, timeout=5.0, wedge_seconds=1.0, completion_timeout=5.0, idle_power_w=5.0)
        alive = api_probe.LivenessWatch(ask, lambda *_words, **_more: (127, "", "")).check()
    json.dumps(alive, allow_nan=False)


@pytest.mark.slow
@FEW
@given(text=st.text(max_size=200) | HUGE)
def test_any_figure_of_a_page_or_of_nvidia_smi_is_finite(text: str) -> None:
    seen = measures.sample(METRICS.format(text))
    assert seen is None or (seen.running >= 0 and measures.requests_text(seen))
    for power, _share in gpu.readings(f"{text}, {text}\n{text}"):
        assert power is None or 0 <= power < 2**63
