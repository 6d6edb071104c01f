"""Variables of Compose, placeholders of recipes, shell scripts and arguments of vLLM."""

from __future__ import annotations

import os
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import recipe_words as w


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$A ${A} $$A", "one one $A"),
        ("${B:-two}${B-three}${EMPTY:-four}${EMPTY-five}", "twothreefour"),
        ("${A:+yes}${EMPTY:+no}${EMPTY+set}", "yesset"),
        ("${B:-${C:-${A}/deep}}", "one/deep"),
        ("${B:-{}}", "{}"),
        ("100$ and $1", "100$ and $1"),
        ("${MISSING}", ""),
    ],
)
def test_expands_variables_as_compose_does(text: str, expanded: str) -> None:
    assert w.expand(text, {"A": "one", "EMPTY": ""}) == expanded


def test_names_variables_without_a_value_and_never_reads_the_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FROM_CONTROLLER", "secret")
    missing: set[str] = set()
    assert w.expand("$FROM_CONTROLLER${B:-x}", {}, missing) == "x"
    assert missing == {"FROM_CONTROLLER"}


@pytest.mark.parametrize(
    ("text", "error"),
    [("${A", "is not closed"), ("${a b}", "has another form"), ("${B:-" * 30 + "}" * 30, "more than 20 deep"), ("${A}" * 40000, "more than 65536 characters")],
)
def test_refuses_variables_that_cannot_be_read(text: str, error: str) -> None:
    with pytest.raises(w.RecipeError, match=error):
        w.expand(text, {"A": "one"})


def test_fills_placeholders_in_both_kinds_of_json() -> None:
    used: set[str] = set()
    values = {"n": "5", "port": "80", "url": "http://x:{port}"}
    assert w.fill("""--a '{{"n":{n},"m":{{"x":1}}}}' {url}""", values, used) == """--a '{"n":5,"m":{"x":1}}' http://x:80"""
    assert used == {"n", "port", "url"}
    assert w.fill("""--a '{"n":{n},"m":{"x":1}}' {unknown}""", values, set()) == """--a '{"n":5,"m":{"x":1}}' {unknown}"""


def test_a_default_that_contains_itself_ends() -> None:
    with pytest.raises(w.RecipeError, match="more than 65536 characters"):
        w.fill("{a}", {"a": "{a}" * 100}, set())


SCRIPT = r"""
# a comment with 'a quote
export PATH="/opt/env/bin:${PATH:-}"
export LIBRARY_PATH="/opt/lib:${LIBRARY_PATH:-}"
SPEC="{\"method\":\"x\",\"n\":5}"
ulimit -l unlimited
pip install a-package && echo done
MODE=fast exec /opt/env/bin/vllm serve org/m --port 8888 \
  --speculative-config "${SPEC}" --markers '{"a":"<think>","b":"</think>"}' \
  ${HEADLESS:+--headless} ${EXTRA} --seed 1 2>&1 | tee /var/log/x
"""


def test_reads_the_engine_out_of_a_script() -> None:
    missing: set[str] = set()
    words, exported, others = w.run(SCRIPT, {"EXTRA": "--enforce-eager --dtype half"}, missing)
    assert words == [
        "/opt/env/bin/vllm", "serve", "org/m", "--port", "8888", "--speculative-config", '{"method":"x","n":5}', "--markers",
        '{"a":"<think>","b":"</think>"}', "--enforce-eager", "--dtype", "half", "--seed", "1",
    ]  # fmt: skip
    assert exported["PATH"].startswith("/opt/env/bin:/usr/local/sbin:")
    assert exported["LIBRARY_PATH"] == "/opt/lib"
    assert exported["MODE"] == "fast"
    assert "SPEC" not in exported
    assert others == ["pip", "echo", "tee"]
    assert missing == set()


def test_quotes_that_do_not_close_are_an_error() -> None:
    with pytest.raises(w.RecipeError, match="not a valid shell command"):
        w.statements("vllm serve 'x")


@pytest.mark.parametrize(
    ("words", "args"),
    [
        (["--a", "1", "--b", "0.80", "--c"], {"a": 1, "b": "0.80", "c": True}),
        (["-tp", "2", "-cc.mode=X", "--max_model_len=4096"], {"tensor-parallel-size": 2, "compilation-config.mode": "X", "max-model-len": 4096}),
        (["--names", "x", "y", "--json", '{"a": 1}', "--low", "-1"], {"names": ["x", "y"], "json": {"a": 1}, "low": -1}),
        (["--sizes", "[1,2]", "--broken", "{a"], {"sizes": "[1,2]", "broken": "{a"}),
    ],
)
def test_reads_arguments(words: list[str], args: dict[str, Any]) -> None:
    before, found, repeated = w.arguments(["vllm", "serve", *words])
    assert (before, found, repeated) == (["vllm", "serve"], args, [])


def test_names_an_argument_that_is_given_twice() -> None:
    assert w.arguments(["--a", "1", "--a", "2"]) == ([], {"a": 2}, ["a"])
