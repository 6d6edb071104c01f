"""Variables of Compose, .env files, and shell scripts that are data."""

from __future__ import annotations

import os

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._profile import shell as s


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


def test_a_variable_without_a_value_leaves_a_mark_and_is_never_the_controllers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "FROM_CONTROLLER", "secret")
    text = s.expand("$FROM_CONTROLLER/${B:?set B: now}", {})
    assert (s.marks(text), s.shown(text)) == ({"FROM_CONTROLLER": "", "B": "set B: now"}, "${FROM_CONTROLLER}/${B}")


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("${A", "is not closed or is computed"),
        ("${a b}", "is computed"),
        ("${a[0]}", "is computed"),
        ("${B:-" * 30 + "}" * 30, "is not closed or is computed"),
        ("${A}" * 40000, "more than 65536"),
    ],
)
def test_refuses_variables_that_cannot_be_read(text: str, error: str) -> None:
    with pytest.raises(s.RecipeError, match=error):
        s.expand(text, {"A": "one"})


def test_reads_a_env_file_as_compose_does() -> None:
    text = '# a comment\nA=1 # inline\nB="x # y" # c\nC=\'$A\'\nD=${A}x\nexport E="a\\nb$A\\$A"\nF=\nG: yaml\nH\nI=a#b\nK = v\nL=#all\n'
    values, notes = s.env_values(text + "#OFF=1\n")
    assert values == {"A": "1", "B": "x # y", "C": "$A", "D": "1x", "E": "a\nb1$A", "F": "", "G": "yaml", "I": "a#b", "K": "v", "L": ""}
    assert [name for name, _reason in notes] == ["A # inline", "H", "L # all", "# OFF"]


@pytest.mark.parametrize(("text", "error"), [("A=1\n- x\n", r"\.env:2: the line is not NAME=value"), ("A='x\n", r"\.env:1: the quotes of A")])
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


def serves(words: list[str]) -> bool:
    return "serve" in words[:3]


def test_reads_the_engine_out_of_a_script() -> None:
    done = s.Script(serves, {"EXTRA": "--enforce-eager --dtype half", "PATH": "/bin", "KV": "9"}).read(SCRIPT)
    [(words, own)] = done.found
    assert [s.shown(word) for word in words] == [
        "/opt/env/bin/vllm", "serve", "org/m", "--port", "8888", "--speculative-config", '{"method":"x","n":5}', "--markers",
        '{"a":"<think>","b":"$SPEC"}', "--kv-bytes", "9", "--enforce-eager", "--dtype", "half", "--seed", "1", "${*}",
    ]  # fmt: skip
    assert (own, done.exported) == ({"MODE": "fast"}, {"PATH": "/opt/env/bin:/bin", "LIBRARY_PATH": "/opt/lib", "AUTO": "1"})
    assert done.redirections == ["/var/log/y"]
    assert ([each[0] for each in done.others], done.removed) == (["ulimit", "pip", "echo", "tee"], ["OLD"])


@pytest.mark.parametrize(
    ("script", "named"),
    [
        ("if [ -n x ]; then vllm serve; fi", "a condition (if)"),
        ("[ -f x ] && export Y=1", "a condition ([)"),
        ("grep -q x y && export A=1", "a condition (&&)"),
        ("a || export B=1", "a condition (||)"),
        ("case x in a) b;; esac", "a condition ())"),
        ("for i in 1 2; do x; done", "a loop (for)"),
        ("while ! x; do y; done", "a loop (while)"),
        ("A+=(3)", "an array (()"),
        ('vllm serve "${A[@]}"', "an array (${A[)"),
        ("declare -a A", "an array or a computed variable (declare)"),
        ("a $((1 + 2))", "arithmetic ($()"),
        ("x=$(ls)", "a command substitution ($()"),
        ('x="a `ls`"', "a command substitution (`)"),
        ("f() { x; }", "a function (()"),
        ("function f { x; }", "a function or a group of commands (function)"),
        ("cat <<EOF\nEOF", "a here-document or a process substitution (<<)"),
        ("cat <(ls)", "a here-document or a process substitution (<)"),
        ("(cd x; y)", "a subshell (()"),
        ("a ${A%x}", "is computed"),
        ("vllm serve $1", "an argument or a state of the script ($1)"),
        ("vllm serve x\n  --port 1", "a missing backslash ended the line before (--port)"),
        ("vllm serve ${X", "a variable that does not close"),
        ("vllm serve 'x", "a quote that does not close (')"),
    ],
)
def test_names_the_construct_that_makes_a_script_a_program(script: str, named: str) -> None:
    with pytest.raises(s.RecipeError) as raised:
        s.Script(serves).read(script)
    assert named in str(raised.value)


@pytest.mark.parametrize("script", ["vllm serve '$(x) `y` if (a) A=(b)' \\$HOME", 'echo "if; for"; vllm serve # if $(x)', "rm x || true; vllm serve"])
def test_quoted_text_and_comments_are_not_constructs(script: str) -> None:
    assert len(s.Script(serves).read(script).found) == 1


def test_the_line_of_a_construct_is_that_of_the_file() -> None:
    with pytest.raises(s.RecipeError, match=r"^line 5: .* \(if\)\. .*`set -x`"):
        s.Script(serves, source="a: 1\n# if\nb: |\n  x\n  if a; then b; fi\n").read("x\nif a; then b; fi")
