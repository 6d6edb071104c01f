"""Secrets in the forms in which engines, shells, and libraries print them: all are masked, harmless texts stay, in time that grows with the text (H4, H5).

The cases are in secret_shapes.json. They are read in loops: a test for each of 1,800 texts costs more than the texts.
"""

from __future__ import annotations

import base64
import json
import shlex
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import MASK, is_secret, masked, redact, redact_each

CASES = json.loads(Path(__file__).with_name("secret_shapes.json").read_text(encoding="utf-8").replace("·", ""))
X = "s3cretKEY7aZ"
SHAPES = {name: (case[0], case[1]) if isinstance(case, list) else (case.replace("§", X), X) for name, case in CASES["shapes"].items()}


def masks(text: str, secret: str) -> bool:
    """Report whether the secret is masked, and once."""
    out = redact(text)
    return secret not in out and MASK in out and redact(out) == out


def left(texts: Iterable[str], secret: str = X) -> list[str]:
    """Return the texts whose secret is not masked."""
    return [text for text in texts if not masks(text.replace("§", secret), secret)]


@pytest.mark.parametrize("shape", SHAPES)
def test_a_secret_of_this_shape_is_masked(shape: str) -> None:
    assert masks(*SHAPES[shape])


# A value with a blank and without quotes ends where its line does, if nothing but a time and a process is before its name.
@pytest.mark.parametrize("prefix", ["", "(APIServer pid=1) ", "  ", "2026-08-15T12:00:00.123456789Z ", "- "])
def test_a_secret_is_masked_anywhere_on_a_line(prefix: str) -> None:
    assert [name for name, (text, secret) in SHAPES.items() if "\n" not in text and secret in redact(f"first\n{prefix}{text}\nlast")] == []


def test_a_secret_in_this_text_is_masked() -> None:
    assert left([*CASES["texts"], *(f"{name}=§" for name in CASES["variables"])]) == []
    assert left(CASES["texts"], "Zx81kQpLm4vT") == []


def test_a_secret_that_is_a_word_is_masked() -> None:
    assert left(CASES["words"], "horsebattery") == []


@pytest.mark.parametrize("quote", ["", "'"])
def test_a_token_is_masked_by_its_form(quote: str) -> None:
    assert [value for value in CASES["tokens"] if not masks(f"got 401 with {quote}{value}{quote} from a", value)] == []


@pytest.mark.parametrize("value", [X, "horsebattery", "pässwörd"])
def test_a_secret_in_an_access_log_is_masked(value: str) -> None:
    start = 'INFO: 127.0.0.1:4000 - "GET /v1/models?a=1&'
    shown = {name: redact(f'{start}{name}={value} HTTP/1.1" 200 OK') for name in CASES["parameters"]}
    assert {name: out for name, out in shown.items() if value in out or not out.startswith(start)} == {}


def test_a_harmless_text_stays() -> None:
    assert {text: out for text in CASES["harmless"] if (out := redact(text)) != text} == {}


@pytest.mark.parametrize(("text", "out"), CASES["exact"])
def test_masks_the_whole_value_and_nothing_else(text: str, out: str) -> None:
    assert redact(text) == out
    assert redact(out) == out


def test_one_predicate_decides_which_names_hold_a_secret() -> None:
    names = CASES["names"]
    assert [name for name in names["secret"] if not (is_secret(name) and is_secret(name, "abc"))] == []
    assert [name for name in names["open"] if is_secret(name)] == []
    assert [[name, value, is_secret(name, value)] for name, value, _secret in names["by value"]] == names["by value"]


def test_texts_are_masked_by_themselves_and_a_value_that_one_names_in_all() -> None:
    found = redact_each(["HF_TOKEN", "= 12 MB", f"API_KEY={X}", f"sent {X}"])
    assert found == ["HF_TOKEN", "= 12 MB", f"API_KEY={MASK}", f"sent {MASK}"]


def test_a_value_that_begins_with_another_one_is_masked_whole() -> None:
    values = [f"tQ9zLw83kfPa{'7XcVbNm41'[:length]}" for length in range(10)]
    named = "\n".join(f"api_key={value}" for value in values)
    assert redact_each([named, " ".join(values)])[1] == " ".join([MASK] * len(values))


def test_a_known_value_of_several_lines_leaves_as_many_lines() -> None:
    assert redact("one first-line\nsecond-line two", ["first-line\nsecond-line"]) == f"one {MASK}\n{MASK} two"
    assert masked("pull https://u:pw1x2@h/x failed") == f"pull https://{MASK}@h/x failed"


VALUES = ['päs"s\\w0rd,tail', "a&b=c d'e/f+g", "plain-s3cret", "12345678", "x'y\"z\\"]
WRITTEN: dict[str, Callable[[str], str]] = {
    "plain": str, "JSON": json.dumps, "JSON in JSON": lambda value: json.dumps(json.dumps(value)), "repr": repr, "URL": quote_plus, "path": quote,
    "shell": shlex.quote, "whole URL": lambda value: quote(value, safe=""), "base64": lambda value: base64.b64encode(value.encode()).decode(),
    "JSON without escapes": lambda value: json.dumps(value, ensure_ascii=False), "hex": lambda value: value.encode().hex(),
}  # fmt: skip


@pytest.mark.parametrize("form", WRITTEN)
@pytest.mark.parametrize("value", VALUES)
def test_a_known_value_is_masked_in_every_form(value: str, form: str) -> None:
    written = WRITTEN[form](value)
    assert written.strip("\"'") not in redact(f"it holds {written} there", [value])


@pytest.mark.parametrize("before", ["", "u", "us", "use", "user:"])
def test_a_known_value_within_base64_is_masked(before: str) -> None:
    written = base64.b64encode(f"{before}plain-s3cret-value".encode()).decode()
    out = redact(f"it holds {written} there", ["plain-s3cret-value"])
    kept = out.removeprefix("it holds ").removesuffix(" there").replace(MASK, "")
    assert len(kept) <= 12


def test_a_known_value_is_masked_across_the_end_of_a_line_and_as_html() -> None:
    text = "a line of a log that is as long as the terminal is wide, with a kn0wn-\n  value-of-24-letters in it"
    assert "letters" not in redact(text, ["kn0wn-value-of-24-letters"])
    assert redact("it holds p&amp;q&quot;r-12 there", ['p&q"r-12']) == f"it holds {MASK} there"
    assert redact("the key is horse-battery", ["horse-battery"]) == f"the key is {MASK}"


def test_a_container_is_masked_as_a_structure() -> None:
    config = {
        "Env": [f"VLLM_API_KEY={X} a", "NCCL_DEBUG=INFO", f"REDIS_URL=redis://:{X}@h", "KNOWN=kn0wn-value", "MAX_TOKENS=5"],
        "Cmd": ["vllm", "serve", "--api-key", X, f"{X}2", "--port", "8000", f"--hf-token={X}"],
        "Labels": {"gb10.cluster.group": "pair1", "api_key": X},
        "Nested": [{"authorization": f"Bearer {X}"}],
    }
    out = masked(config, ["kn0wn-value"])
    assert X not in json.dumps(out)
    assert out["Env"] == [f"VLLM_API_KEY={MASK}", "NCCL_DEBUG=INFO", f"REDIS_URL=redis://{MASK}@h", f"KNOWN={MASK}", "MAX_TOKENS=5"]
    assert out["Cmd"] == ["vllm", "serve", "--api-key", MASK, MASK, "--port", "8000", f"--hf-token={MASK}"]
    assert out["Labels"] == {"gb10.cluster.group": "pair1", "api_key": MASK}


@pytest.mark.parametrize("config", CASES["structures"], ids=str)
def test_a_structure_is_masked(config: Any) -> None:
    assert X not in json.dumps(masked(json.loads(json.dumps(config, ensure_ascii=False).replace("§", X))))


def seconds(pattern: str, size: int) -> float:
    """Return the CPU time of masking one pattern."""
    text = pattern * (size // len(pattern))
    start = time.process_time()
    redact(text, ["known-value", 'other"value'])
    return time.process_time() - start


@pytest.mark.slow
@pytest.mark.parametrize("pattern", CASES["slow"])
def test_the_time_grows_with_the_length_of_the_text(pattern: str) -> None:
    """Compare two sizes side by side, up to eight times: a machine that is busy in one turn is not the pattern's fault."""
    ratios = (seconds(pattern, 1 << 14) / max(seconds(pattern, 1 << 11), 0.0005) for _turn in range(8))
    assert any(ratio < 20 for ratio in ratios), "eight times the text; a quadratic one takes 64 times as long"
