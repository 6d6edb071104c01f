# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read shell scripts, variables and .env files that are data. A script that decides or computes is refused. Pure, nothing is executed.

A variable without a value stays as it is written, such as ``${NAME}`` or ``${NAME:?message}``: see `unset`.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

LONGEST = 1 << 16  # characters after variables were replaced: values that contain each other grow fast
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Commands that make a script a program.
KEYWORDS = (
    "if", "then", "elif", "else", "fi", "case", "esac", "[", "[[", "test", "!", "for", "while", "until", "do", "done", "select", "function", "{", "}", "eval",
    "read", "mapfile", "readarray", "let", "getopts", "shift",
)  # fmt: skip
DECLARE = ("export", "declare", "typeset", "local", "readonly")
RUN = r"(?:docker|podman|nerdctl) (?:container )?(?:run|create)\b"
_BRACES = r"\$\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}"  # up to three deep
_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*|[@*])|\{([A-Za-z_]\w*)(?:(:?[-+?])((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*))?\})")
_UNSET = re.compile(r"\$\{([\w@*]*)(?::?\?([^}]*))?[^}]*\}?")
_COMPUTED = re.compile(r"(?<!\\)(?:`|\$\(|\$\{?[0-9#?!]|\$-|\$\{\w+[^\w:}?+-])")
_PART = re.compile(
    r"(?P<joined>\\\r?\n)|\\.|'[^']*'|(?P<double>\"(?:\\.|[^\"\\])*\")|(?P<comment>(?<![^\s;&|])#[^\n]*)"
    r"|(?P<refused>[`()'\"]|\$['(0-9#?!-]|\$\{[^A-Za-z_@*]|\$\{\w+[^\w:}?+-]|<<|[<>]\(|(?<!\$)\{[^{}\s]*(?:,|\.\.)[^{}\s]*\})"
    rf"|(?P<variable>{_BRACES})|(?P<open>\$\{{)|(?P<redirect>(?:(?<![^\s;&|])[12])?&?[<>]+&?\|?[ \t]*[^\s;&|<>]*)|(?P<end>&&|\|\||;;|[;&|\n])|.",
    re.DOTALL,
)
_WORD = re.compile(
    rf"'[^']*'|\"(?P<double>(?:\\.|[^\"\\])*)\"|\\.|(?P<variable>{_BRACES}|\$\w+|\$[@*])|(?P<home>(?<![^\s=:])~(?=[/:\s]|$))|(?P<space>\s+)|.",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


class RecipeError(ValueError):
    """A recipe cannot be imported. The text names what was found, where, what is expected and the remedy."""


def unset(text: str) -> dict[str, str]:
    """Return the variables without a value in a text, each with the message of its ``:?``."""
    return {match[1]: match[2] or "" for match in _UNSET.finditer(text)}


def one_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def split(text: str) -> list[str]:
    """Return the words of a command."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise RecipeError(f"the command cannot be split into words: {error}. Close its quotes") from error


def expand(text: str, values: Mapping[str, str], in_shell: bool = False) -> str:
    """Replace the variables of a text as Compose does, or as a shell does, which has no ``$$``."""

    def value_of(match: re.Match[str]) -> str:
        escaped, bare, name, sign, word = (each or "" for each in match.groups())
        if escaped:
            return "$$" if in_shell else "$"
        if in_shell and len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":
            word = word[1:-1]
        value = values.get(bare or name)
        is_set = bool(value) if sign.startswith(":") else value is not None
        if sign.endswith("+"):
            return expand(word, values, in_shell) if is_set else ""
        if is_set:
            return value or ""
        return expand(word, values, in_shell) if sign.endswith("-") else f"${{{bare or name}{sign}{word}}}"

    out = _VARIABLE.sub(value_of, text) if len(text) <= LONGEST else text
    if len(out) > LONGEST:
        raise RecipeError(f"a value has more than {LONGEST} characters after its variables were replaced. Write the values themselves")
    return out


def env_values(text: str) -> dict[str, str]:
    """Return the values of a .env file, as Docker Compose reads those of one line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*(?:[=:]\s*(.*)|$)", line)
        if match and match[2] is not None:
            quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?|\"((?:\\.|[^\"\\])*)\"\s*(?:#.*)?", match[2])
            if not quoted and match[2][:1] in ("'", '"'):
                raise RecipeError(f".env:{number}: the quotes of {match[1]} do not close at the end of its line. Write the value on one line")
            if quoted and quoted[1] is not None:
                values[match[1]] = quoted[1]
                continue
            parts = re.split(r"(\\.)", quoted[2] if quoted else re.split(r"(?:^|\s+)#", match[2], maxsplit=1)[0].strip())
            texts = [part[1:].replace("n", "\n") if index % 2 else expand(part, values, in_shell=True) for index, part in enumerate(parts)]
            values[match[1]] = "".join(texts)
        elif not match and line.strip() and not line.lstrip().startswith("#"):
            raise RecipeError(f".env:{number}: the line is not NAME=value, expected one variable in each line. Correct the line")
    return values


def words_of(raw: str, values: Mapping[str, str]) -> list[str]:
    """Return the words of one command: a variable without quotes is split into words, but for an assignment."""
    out, begin = "", 0
    for part in _WORD.finditer(raw):
        kind, text = part.lastgroup, part[0]
        if kind == "space":
            begin = len(out) + 1
        if kind == "double":
            pieces = re.split(r"\\([\"\\$`\n])", part["double"])
            text = shlex.quote("".join(piece.replace("\n", "") if at % 2 else expand(piece, values, True) for at, piece in enumerate(pieces)))
        elif kind == "home":
            text = shlex.quote(expand("$HOME", values, True))
        elif kind == "variable":
            value = expand(text, values, True)
            whole = _ASSIGNMENT.match(out[begin:]) and all(word in DECLARE for word in out[:begin].split())
            text = shlex.quote(value) if whole else re.sub(r"\S+", lambda match: shlex.quote(match[0]), value)
        out += text
    return split(out)


@dataclass
class Script:
    """What a script does: its commands, each with the variables before it, and the variables that it exports."""

    values: dict[str, str] = field(default_factory=dict)
    commands: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    _all: bool = False  # set -a

    def read(self, text: str) -> Script:
        """Read a script: quotes, variables, comments and operators. Redirections are left out. Raise RecipeError for what decides or computes."""
        if len(text) > LONGEST:
            raise RecipeError(f"the script has more than {LONGEST} characters. Import the command that starts the engine")
        text = text.replace("$(pwd)", "${PWD}") + "\n"
        raw, before, begin = "", "", 0
        for part in _PART.finditer(text):
            kind, piece = part.lastgroup, part[0]
            computed = _COMPUTED.search(piece) if kind == "double" else part if kind in ("refused", "open") else None
            if computed:
                refuse(text, part.start(), f"{one_line(computed[0])}, which is computed or not closed")
            if kind == "end":
                if raw.strip():
                    self._command(raw, before == "||", text, begin)
                    before = piece
                elif piece != "\n":
                    before = piece
                raw, begin = "", part.end()
            elif kind == "redirect":
                raw += " "  # the container's log has what the engine prints
            elif kind != "comment":
                raw += " " if kind == "joined" else piece
        return self

    def _command(self, raw: str, conditional: bool, text: str, begin: int) -> None:
        """Do the assignments of a command, and keep its words."""
        own: dict[str, str] = {}
        rest: list[str] = []
        for word in words_of(raw, self.values):
            match = _ASSIGNMENT.fullmatch(word)
            if match and all(each in ("exec", "env", *DECLARE, "-x") for each in rest):
                value = self.values.get(match[1], "") + match[3] if match[2] else match[3]
                own[match[1]] = self.values[match[1]] = value.strip(":") if match[1].endswith("PATH") else value
            else:
                rest.append(word)
        while rest[:1] in (["exec"], ["env"]) and len(rest) > 1 and not rest[1].startswith("-"):
            rest.pop(0)
        first = rest[0] if rest else ""
        if first in KEYWORDS or (first in DECLARE and any(each.startswith("-") and each != "-x" for each in rest[1:])):
            refuse(text, begin, f"the command {first}")
        if first.startswith("-"):
            refuse(text, begin, f"an argument at the begin of a command ({first}): a comment or a missing backslash ended the line before")
        if conditional and (own or first == "export" or program_of(rest) or re.search(RUN, " ".join(rest[:4]))):
            refuse(text, begin, "a variable or an engine under a condition (||)")
        if first in DECLARE or not rest:
            own = {**own, **{name: self.values[name] for name in rest[1:] if name in self.values}}
            exports = first == "export" or "-x" in rest or (self._all and not rest)
            self.exported.update({name: value for name, value in own.items() if exports or name in self.exported})
        elif first == "set":
            self._all = "-a" in rest or (self._all and "+a" not in rest)
        else:
            self.commands.append((rest, own))


def refuse(text: str, at: int, what: str) -> None:
    """Raise RecipeError for a construct at a place of a script."""
    at += len(text[at:]) - len(text[at:].lstrip())
    raise RecipeError(
        f"line {text.count(chr(10), 0, at) + 1} of the script has {what}. Only assignments and commands without decisions are imported, because nothing "
        "is executed here. Run it once on a node with `set -x` (variables of Compose: `docker compose config`), and import the command that it prints"
    )


# The words of an engine

OTHER_ENGINES = re.compile(
    r"(?i)trtllm|tensorrt[-_]?llm|sglang|llama[-_.]?cpp|llama-server|\.gguf\b|\bollama\b|text-generation-(?:inference|launcher)|text-embeddings-(?:inference|"
    r"router)|nvcr\.io/nim/|lmdeploy|tritonserver|\batlas\b|modular-?max|max-pipelines|\bmlc[-_]llm|infinity_emb|comfyui|tabbyapi|ktransformers"
)
SHORT_FLAGS = {
    "tp": "tensor-parallel-size", "pp": "pipeline-parallel-size", "dp": "data-parallel-size", "ep": "enable-expert-parallel", "cc": "compilation-config",
    "sc": "speculative-config", "q": "quantization", "n": "nnodes", "r": "node-rank", "dcp": "decode-context-parallel-size", "ac": "attention-config",
    "pcp": "prefill-context-parallel-size", "asc": "api-server-count", "dpl": "data-parallel-size-local", "dpr": "data-parallel-start-rank",
}  # fmt: skip
# Flags that never take a value, so what follows is not one.
BARE = re.compile(r"(?:no-)?(?:enable|disable|async|trust|enforce|headless|language-model-only|skip-mm|calculate-kv)(?!.*-(?:size|config|backend))[\w-]*")
# Variables without a value that stand for arguments, not for one value.
EXTRA = re.compile(r"(?i)[@*]|.*(?:extra|args|flags|opts|options)\w*")


def program_of(words: list[str]) -> int:
    """Return how many words start vLLM's server; 0 if they do not."""
    if words and posixpath.basename(words[0]) in ("echo", "printf", "pkill", "pgrep", "which", "docker", "ssh"):
        return 0
    for index, word in enumerate(words):
        following = words[index + 1 : index + 2] == ["serve"]
        if posixpath.basename(word) == "vllm" and following:
            return index + 2
        if word.startswith("vllm.entrypoints."):
            return index + 1 + following
    return 0


def other_engine(*texts: str) -> str:
    """Return what texts name of another engine; empty if there is none."""
    return next((match[0] for match in map(OTHER_ENGINES.search, texts) if match), "")


def is_flag(word: str) -> bool:
    """Tell whether a word is the name of an argument and not a negative number."""
    return bool(re.match(r"--[A-Za-z]|-[A-Za-z]", word))


def arguments(words: list[str]) -> tuple[dict[str, Any], list[str], list[tuple[str, str]]]:
    """Return the arguments by flag without dashes (one without a value is true), stray words, and (field, reason) of what is not an argument."""
    args: dict[str, Any] = {}
    stray: list[str] = []
    left: list[tuple[str, str]] = []
    index = 0
    if "--" in words:
        raise RecipeError("the command has the word --, after which nothing is an argument. Remove it")
    while index < len(words):
        word, index = words[index], index + 1
        if not is_flag(word):
            names = _only_unset(word)
            left += [(f"command: ${{{name}}}", "more arguments, which have no value here") for name in names]
            stray += [] if names else [word]
            continue
        name, sign, value = word.lstrip("-").partition("=")
        head, dot, tail = name.partition(".")
        if not word.startswith("--") and head not in SHORT_FLAGS:
            raise RecipeError(f"the argument -{name} is short, and its long form is not known here. Write it as --NAME")
        head = (head if word.startswith("--") else SHORT_FLAGS[head]).replace("_", "-")
        flag, values = head + dot + tail, [value] if sign else []
        while not sign and index < len(words) and not is_flag(words[index]) and (not BARE.fullmatch(flag) or words[index].lower() in ("true", "false")):
            names = _only_unset(words[index])
            if names and (values or all(map(EXTRA.fullmatch, names))):
                break
            values.append(words[index])
            index += 1
        result = True if not values else _value(values[0]) if len(values) == 1 else values
        if flag in args:
            left.append((f"--{flag} {args[flag]}", "is given twice: the last value counts"))
        args[flag] = result
    return args, stray, left


def _only_unset(word: str) -> list[str]:
    """Return the names of the variables without a value that a word consists of; empty if it has anything else."""
    return [] if _UNSET.sub("", word) else list(unset(word))


def _value(text: str) -> Any:
    """Return a JSON object as a mapping, and digits as a number. One with null stays a text: null in a profile removes a key."""
    if text.startswith("{") and not re.search(r"[:,\[]\s*null\b", text):
        try:
            return json.loads(text)
        except ValueError:
            return text
    return int(text) if re.fullmatch(r"-?(?:0|[1-9]\d{0,17})", text) else text
