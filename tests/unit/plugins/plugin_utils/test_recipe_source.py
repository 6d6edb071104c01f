"""Variables of Compose, .env files, and shell scripts that are data."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils import recipe_source as s


@pytest.mark.parametrize(
    ("text", "expanded"),
    [
        ("$A ${A} $$A", "one one $A"),
        ("${B:-two}${B-three}${EMPTY:-four}${EMPTY-five}", "twothreefour"),
        ("${A:+yes}${EMPTY:+no}${EMPTY+set}", "yesset"),
        ("${B:-${C:-${A}/deep}}", "one/deep"),
        ("${B:-{}}", "{}"),
        ("100$ and $1", "100$ and $1"),
        ("${A:?is needed}", "one"),
    ],
)
def test_expands_variables_as_compose_does(text: str, expanded: str) -> None:
    assert s.expand(text, {"A": "one", "EMPTY": ""}) == expanded


def test_a_variable_without_a_value_stays_and_is_never_the_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FROM_CONTROLLER", "secret")
    text = s.expand("$FROM_CONTROLLER/${B:?set B: now}", {})
    assert (text, s.unset(text)) == ("${FROM_CONTROLLER}/${B:?set B: now}", {"FROM_CONTROLLER": "", "B": "set B: now"})


@pytest.mark.parametrize("text", ["${A", "${a b}", "${a[0]}", "${B:-" * 30 + "}" * 30])
def test_a_variable_that_cannot_be_read_counts_as_one_without_a_value(text: str) -> None:
    assert s.unset(s.expand(text, {"A": "one"}))


def test_refuses_values_that_grow() -> None:
    with pytest.raises(s.RecipeError, match="more than 65536"):
        s.expand("${A}" * 40000, {"A": "one"})


def test_reads_a_env_file_as_compose_does() -> None:
    text = '# a comment\nA=1 # inline\nB="x # y" # c\nC=\'$A\'\nD=${A}x\nexport E="a\\nb$A\\$A"\nF=\nG: yaml\nH\nI=a#b\nK = v\nL=#all\n'
    assert s.env_values(text) == {"A": "1", "B": "x # y", "C": "$A", "D": "1x", "E": "a\nb1$A", "F": "", "G": "yaml", "I": "a#b", "K": "v", "L": ""}


@pytest.mark.parametrize(
    ("text", "error"), [("A=1\n- x\n", r"\.env:2: the line is not NAME=value"), ("A='x\n", r"\.env:1: the line is not NAME=value, with quotes that close")]
)
def test_refuses_a_env_file_that_compose_refuses(text: str, error: str) -> None:
    with pytest.raises(s.RecipeError, match=error):
        s.env_values(text)


SCRIPT = r"""
# a comment with 'a quote
export PATH="/opt/env/bin:${PATH:-}"
export LIBRARY_PATH="/opt/lib:${LIBRARY_PATH:-}"
SPEC="{\"method\":\"x\",\"n\":5}"
set -a; AUTO=1; set +a
ulimit -l unlimited
pip install a-package && echo done
unset OLD
MODE=fast exec /opt/env/bin/vllm serve org/m --port 8888 \
  --speculative-config "${SPEC}" --markers '{"a":"<think>","b":"$SPEC"}' \
  ${HEADLESS:+--headless} ${KV:+--kv-bytes ${KV}} ${EXTRA} --seed 1 "$@" 2>&1 >/var/log/y | tee /var/log/x
"""


def test_reads_the_engine_out_of_a_script() -> None:
    done = s.Script({"EXTRA": "--enforce-eager --dtype half", "PATH": "/bin", "KV": "9"}).read(SCRIPT)
    [(words, own)] = [(words, own) for words, own in done.commands if s.program_of(words)]
    assert words == [
        "/opt/env/bin/vllm", "serve", "org/m", "--port", "8888", "--speculative-config", '{"method":"x","n":5}', "--markers",
        '{"a":"<think>","b":"$SPEC"}', "--kv-bytes", "9", "--enforce-eager", "--dtype", "half", "--seed", "1", "${@}",
    ]  # fmt: skip
    assert (own, done.exported) == ({"MODE": "fast"}, {"PATH": "/opt/env/bin:/bin", "LIBRARY_PATH": "/opt/lib", "AUTO": "1"})
    assert [each[0] for each, _own in done.commands] == ["ulimit", "pip", "echo", "unset", "/opt/env/bin/vllm", "tee"]


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("if [ -n x ]; then vllm serve; fi", "the command if"),
        ("[ -f x ] && export Y=1", "the command ["),
        ("a || export B=1", "a variable or an engine under a condition"),
        ("a || vllm serve x", "a variable or an engine under a condition"),
        ("a || docker run x", "a variable or an engine under a condition"),
        ("case x in a) b;; esac", "), which is computed"),
        ("while ! x; do y; done", "the command while"),
        ("A+=(3)", "(, which is computed"),
        ('vllm serve "${A[@]}"', "${ in quotes, which is computed"),
        ("declare -a A", "the command declare"),
        ("a $((1 + 2))", "$(, which is computed"),
        ('x="a `ls`"', "` in quotes, which is computed"),
        ("function f { x; }", "the command function"),
        ("cat <<EOF\nEOF", "<<, which is computed"),
        ("cat <(ls)", "<(, which is computed"),
        ("a ${A%x}", "${, which is computed"),
        ("vllm serve $1", "$1, which is computed"),
        ("vllm serve x\n  --port 1", "line 2 of the script has an argument at the begin of a command (--port)"),
        ("vllm serve ${X", "${, which is computed or not closed"),
        ("x\nvllm serve 'x", "line 2 of the script has ', which is computed or not closed"),
    ],
)
def test_names_the_construct_that_makes_a_script_a_program_with_its_line(script: str, named: str) -> None:
    with pytest.raises(s.RecipeError, match="`set -x`") as raised:
        s.Script().read(f"{script}\n# hf_abcdefghijklmnopqrstuvwx")
    assert named in str(raised.value)
    assert "hf_" not in str(raised.value)


@pytest.mark.parametrize("script", ["vllm serve '$(x) `y` if (a) A=(b)' \\$HOME", 'echo "if; for"; vllm serve # if $(x)', "rm x || true; vllm serve"])
def test_quoted_text_and_comments_are_not_constructs(script: str) -> None:
    assert [words[:2] for words, _own in s.Script().read(script).commands][-1] == ["vllm", "serve"]
