# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read what recipes are written in: variables of Compose, placeholders, a shell script that starts an engine, and the arguments of vLLM. Pure.

Nothing is executed, and no variable of the controller's environment is read.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Mapping
from typing import Any

COMPOSE = "Docker Compose file"
#: Longest text after variables were replaced: values that contain each other grow fast.
LONGEST = 1 << 16
DEEPEST = 20
# What vLLM calls these in full.
SHORT_FLAGS = {
    "tp": "tensor-parallel-size",
    "pp": "pipeline-parallel-size",
    "dp": "data-parallel-size",
    "ep": "enable-expert-parallel",
    "cc": "compilation-config",
    "sc": "speculative-config",
    "q": "quantization",
    "n": "nnodes",
    "r": "node-rank",
}
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?:(:?[-+?])(.*))?", re.DOTALL)
_NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_BRACES = re.compile(r"\{\{|\}\}|\{([A-Za-z_]\w*)\}")
_PLACEHOLDER = re.compile(r"\{([A-Za-z_]\w*)\}")
_PUNCTUATION = ";&|()<>\n"


def kind_of(data: Mapping[str, Any]) -> str:
    """Return what kind of recipe a file is; empty if it is none."""
    if isinstance(data.get("services"), Mapping):
        return COMPOSE
    if "model" not in data and "command" not in data:
        return ""
    eugr = str(data.get("recipe_version")) == "1" or "build_args" in data or "mods" in data
    return "recipe of eugr/spark-vllm-docker" if eugr else "recipe of sparkrun"


class RecipeError(ValueError):
    """A recipe cannot be read. The text names the key, what was found and what is expected."""


def expand(text: str, values: Mapping[str, str], missing: set[str] | None = None, depth: int = 0) -> str:
    """Replace ``$X``, ``${X}``, ``${X:-default}``, ``${X-default}``, ``${X:+other}``, ``${X:?error}`` and ``$$``, as Compose does.

    :param missing: the names without a value and without a default are added to it; they become empty.
    """
    if depth > DEEPEST:
        raise RecipeError(f"variables are nested more than {DEEPEST} deep")
    out: list[str] = []
    at = 0
    while at < len(text):
        begin = text.find("$", at)
        out.append(text[at:] if begin < 0 else text[at:begin])
        if begin < 0:
            break
        name = _NAME.match(text, begin + 1)
        if text.startswith("$$", begin):
            out.append("$")
            at = begin + 2
        elif text.startswith("${", begin):
            end = _closing(text, begin + 2)
            out.append(_parameter(text[begin + 2 : end], values, missing, depth))
            at = end + 1
        elif name:
            out.append(_parameter(name.group(), values, missing, depth))
            at = name.end()
        else:
            out.append("$")
            at = begin + 1
    result = "".join(out)
    if len(result) > LONGEST:
        raise RecipeError(f"a value has more than {LONGEST} characters after its variables were replaced")
    return result


def _closing(text: str, at: int) -> int:
    """Return the index of the brace that closes the one before ``at``."""
    open_braces = 1
    for index in range(at, len(text)):
        open_braces += text.startswith("${", index) - (text[index] == "}")
        if not open_braces:
            return index
    raise RecipeError("a variable (${...}) is not closed")


def _parameter(inner: str, values: Mapping[str, str], missing: set[str] | None, depth: int) -> str:
    match = _PARAMETER.fullmatch(inner)
    if not match:
        raise RecipeError("a variable (${...}) has another form than those of Compose, such as ${NAME:-default}")
    name, sign, word = match.groups()
    value = values.get(name)
    is_set = bool(value) if sign and sign.startswith(":") else value is not None
    if sign and sign.endswith("+"):
        return expand(word, values, missing, depth + 1) if is_set else ""
    if is_set and value is not None:
        return value
    if sign and sign.endswith("-"):
        return expand(word, values, missing, depth + 1)
    if missing is not None:
        missing.add(name)
    return value or ""


def fill(text: str, values: Mapping[str, str], used: set[str]) -> str:
    """Replace the placeholders ``{name}`` of a recipe. JSON in plain braces stays, and in doubled braces loses one of each pair."""
    doubled = "{{" in text
    for _round in range(5):  # a default can contain a placeholder
        before = text

        def replace(match: re.Match[str]) -> str:
            name = match.group(1)
            if name is None:
                return match.group()[0]
            if name in values:
                used.add(name)
            return values.get(name, match.group())

        text = (_BRACES if doubled else _PLACEHOLDER).sub(replace, text)
        doubled = False
        if len(text) > LONGEST:
            raise RecipeError(f"the command has more than {LONGEST} characters after its placeholders were replaced")
        if text == before:
            break
    return text


def statements(script: str) -> list[list[str]]:
    """Return the commands of a shell script as words, without redirections. Quotes are removed, and variables stay."""
    lines = [line for line in script.splitlines() if not line.lstrip().startswith("#")]
    lexer = shlex.shlex(re.sub(r"\\[ \t]*\n", " ", "\n".join(lines)), posix=True, punctuation_chars=_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    out: list[list[str]] = [[]]
    redirected = False
    try:
        for word in lexer:
            if word and not word.strip(_PUNCTUATION):
                redirected = word[0] in "<>"
                if redirected and out[-1] and out[-1][-1].isdigit():
                    out[-1].pop()  # 2> file
                if not redirected:
                    out.append([])
            elif redirected:
                redirected = False
            else:
                out[-1].append(word)
    except ValueError as error:
        raise RecipeError(f"the command is not a valid shell command: {error}") from error
    return [words for words in out if words]


def run(script: str, environment: Mapping[str, str], missing: set[str]) -> tuple[list[str], dict[str, str], list[str]]:
    """Return (words of the engine's command, exported variables, first words of the other commands) of a shell script.

    The engine's command is the first that contains the word ``serve`` or vLLM's API server.
    """
    values = {"PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", **environment}
    exported: dict[str, str] = {}
    engine: list[str] = []
    others = []
    for words in statements(script):
        rest = words
        is_export = rest[0] == "export"
        while rest and (rest[0] in ("exec", "env", "export") or _ASSIGNMENT.fullmatch(rest[0])):
            match = _ASSIGNMENT.fullmatch(rest[0])
            if match:
                values[match[1]] = expand(match[2], values, missing)
                if match[1].endswith("PATH"):
                    values[match[1]] = values[match[1]].strip(":")
                if is_export or len(rest) > 1:
                    exported[match[1]] = values[match[1]]
            rest = rest[1:]
        if rest and not engine and is_engine(rest):
            engine = _expanded(rest, values, missing)
        elif rest and rest[0] not in ("set", "ulimit", "cd", "trap", "wait"):
            others.append(rest[0])
    return engine, exported, others


def _expanded(words: Iterable[str], values: Mapping[str, str], missing: set[str]) -> list[str]:
    out = []
    for word in words:
        text = expand(word, values, missing)
        if "$" in word and (not text or (text.startswith("-") and " " in text)):
            out += text.split()  # without quotes around it, as ${HEADLESS:+--headless}
        else:
            out.append(text)
    return out


def is_engine(words: list[str]) -> bool:
    """Tell whether words start vLLM's server."""
    return ("serve" in words[1:4] and "sglang" not in words[0]) or any(word.startswith("vllm.entrypoints") for word in words[:4])


def arguments(words: list[str]) -> tuple[list[str], dict[str, Any], list[str]]:
    """Return (words before the first flag, arguments by flag without its dashes, repeated flags). A flag without a value is true."""
    begin = next((i for i, word in enumerate(words) if _is_flag(word)), len(words))
    args: dict[str, Any] = {}
    repeated = []
    index = begin
    while index < len(words):
        name, sign, value = words[index].lstrip("-").partition("=")
        index += 1
        values = [value] if sign else []
        while not sign and index < len(words) and not _is_flag(words[index]):
            values.append(words[index])
            index += 1
        head, dot, tail = name.partition(".")
        flag = SHORT_FLAGS.get(head, head).replace("_", "-") + dot + tail
        if flag in args:
            repeated.append(flag)
        args[flag] = True if not values else _typed(values[0]) if len(values) == 1 else values
    return words[:begin], args, repeated


def _is_flag(word: str) -> bool:
    return bool(re.match(r"--[A-Za-z]|-[A-Za-z]", word))


def _typed(text: str) -> Any:
    """Return a JSON object as a mapping, and digits as a number."""
    if text.startswith("{"):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) else text
