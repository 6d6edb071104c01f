# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read the words of a shell script that is data: assignments and commands. A script that decides something is refused. Pure, nothing is executed.

Variables are those of Docker Compose: ``$X``, ``${X}``, ``${X:-default}``, ``${X-default}``, ``${X:+other}``, ``${X+other}``, ``${X:?error}``. One
without a value leaves a mark in the text, so that the caller decides: see `marks` and `shown_marks`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Callable, NoReturn

LONGEST = 1 << 16  # characters after variables were replaced: values that contain each other grow fast
DEEPEST = 20
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYWORDS = {
    **dict.fromkeys(("if", "then", "elif", "else", "fi", "case", "esac", "[", "[[", "test", "!"), "a condition"),
    **dict.fromkeys(("for", "while", "until", "do", "done", "select"), "a loop"),
    **dict.fromkeys(("function", "{", "}"), "a function or a group of commands"),
    **dict.fromkeys(("eval", "read", "mapfile", "readarray", "let", "getopts", "shift"), "a command that sets variables while it runs"),
}
# Commands whose result decides whether what follows && is run.
TESTS = ("grep", "egrep", "command", "which", "type", "diff", "cmp", "pgrep", "mountpoint", "false")
NAME = re.compile(r"[A-Za-z_]\w*")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?:(:?[-+?])(.*))?", re.DOTALL)
_MARK = re.compile("\ue000([^\ue001\ue002]*)(?:\ue002([^\ue001]*))?\ue001")


class RecipeError(ValueError):
    """A recipe cannot be imported. The text names what was found, where, what is expected and the remedy."""


class Text(str):
    """A string of the recipe's file, with its line and whether it was written without quotes."""

    line = 0
    plain = False


def marks(text: str) -> dict[str, str]:
    """Return the variables without a value in a text, each with the message of its ``:?``."""
    return {match[1]: match[2] or "" for match in _MARK.finditer(text)}


def without_marks(text: str) -> str:
    """Return the text with nothing in place of a variable without a value, as Compose does."""
    return _MARK.sub("", text)


def shown_marks(text: str) -> str:
    """Return the text with a variable without a value as it was written."""
    return _MARK.sub(lambda match: f"${{{match[1]}}}", text)


def expand(text: str, values: Mapping[str, str], in_shell: bool = False, depth: int = 0) -> str:
    """Replace the variables of a text as Compose does, or as a shell does, which has no ``$$``."""
    if depth > DEEPEST:
        raise RecipeError(f"variables are nested more than {DEEPEST} deep, expected fewer. Write the values themselves")
    out, at = "", 0
    while at < len(text):
        begin = text.find("$", at)
        out += text[at:] if begin < 0 else text[at:begin]
        if begin < 0:
            break
        name = NAME.match(text, begin + 1)
        at = begin + 1
        if text.startswith("$$", begin) and not in_shell:
            out, at = out + "$", begin + 2
        elif text.startswith("${", begin):
            end = closing(text, begin + 2)
            out, at = out + _parameter(text[begin + 2 : end], values, in_shell, depth), end + 1
        elif name:
            out, at = out + _parameter(name.group(), values, in_shell, depth), name.end()
        else:
            out += "$"
        if len(out) > LONGEST:
            raise RecipeError(f"a value has more than {LONGEST} characters after its variables were replaced. Write the values themselves")
    return out


def closing(text: str, at: int) -> int:
    """Return the index of the brace that closes the one before ``at``."""
    open_braces = 1
    for index in range(at, len(text)):
        open_braces += text.startswith("${", index) - (text[index] == "}")
        if not open_braces:
            return index
    raise RecipeError("a variable (${...}) is not closed, expected ${NAME}")


def _parameter(inner: str, values: Mapping[str, str], in_shell: bool, depth: int) -> str:
    match = _PARAMETER.fullmatch(inner)
    if not match:
        what = "an array" if re.match(r"[#!]?\w+\[", inner) else "another form of a variable"
        raise RecipeError(f"${{{inner[:30]}}} is {what}, expected a form that Docker Compose has too, such as ${{NAME:-default}}")
    name, sign, word = match.groups()
    if in_shell and word and len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":
        word = word[1:-1]
    value = values.get(name)
    is_set = bool(value) if sign and sign.startswith(":") else value is not None
    if sign and sign.endswith("+"):
        return expand(word, values, in_shell, depth + 1) if is_set else ""
    if is_set and value is not None:
        return value
    if sign and sign.endswith("-"):
        return expand(word, values, in_shell, depth + 1)
    return f"\ue000{name}\ue002{without_marks(word)}\ue001" if sign else f"\ue000{name}\ue001"


def env_values(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the values of a .env file as Docker Compose reads it, and (line, reason) of what else it has: names alone, and comments with a value."""
    values: dict[str, str] = {}
    notes = []
    line_of = re.compile(r"[ \t]*(?:export[ \t]+)?([\w.-]+)[ \t]*(?:[=:][ \t]*|(?=[ \t]*(?:\n|#|$)))")
    at = 0
    while at < len(text):
        rest = re.compile(r"\s*(?:#[^\n]*)?\n|\s*(?:#[^\n]*)?\Z").match(text, at)
        if rest and rest.end() > at:
            off = re.match(r"\s*#\s*(?:export\s+)?([A-Za-z_]\w*)=", rest.group())
            notes += [(f"# {off[1]}", "is commented out: the default of the recipe counts, if it has one")] if off else []
            at = rest.end()
            continue
        match = line_of.match(text, at)
        number = text.count("\n", 0, at) + 1
        if not match:
            raise RecipeError(f".env:{number}: the line is not NAME=value, expected one variable in each line. Correct the line")
        at, sign = match.end(), match[0].rstrip()[-1:]
        quote = text[at : at + 1] if sign in "=:" else ""
        if sign not in "=:":
            notes.append((match[1], "has no value: Compose takes it from its own environment, which is not read"))
        elif quote in ("'", '"') and quote:
            body = re.compile(r"'([^']*)'" if quote == "'" else r'"((?:\\.|[^"\\])*)"', re.DOTALL).match(text, at)
            if not body or not re.compile(r"[ \t\r]*(?:#[^\n]*)?(?:\n|\Z)").match(text, body.end()):
                raise RecipeError(f".env:{number}: the quotes of {match[1]} do not close at the end of the value. Correct the line")
            values[match[1]] = body[1] if quote == "'" else _unescaped(body[1], values)
            at = body.end()
        else:
            end = text.find("\n", at)
            raw = text[at:] if end < 0 else text[at:end]
            value, sign, comment = (*re.split(r"(?:^|[ \t]+)(#)", raw, maxsplit=1), "", "")[:3]
            values[match[1]] = expand(value.strip(), values, in_shell=True)
            notes += [(f"{match[1]} {sign} {one_line(comment)[:60]}", "a comment, which is not part of the value")] if sign else []
            at += len(raw)
        end = text.find("\n", at)
        at = len(text) if end < 0 else end + 1
    return values, notes


def one_line(text: str) -> str:
    """Return a text on one line."""
    return " ".join(text.split())


def _unescaped(text: str, values: Mapping[str, str]) -> str:
    names = {"n": "\n", "r": "\r", "t": "\t"}
    out = ""
    for index, part in enumerate(re.split(r"(\\.)", text, flags=re.DOTALL)):
        out += (names.get(part[1], part[1]) if index % 2 else expand(part, values, in_shell=True)) if part else ""
    return out


# A dollar sign of a script without quotes, in double quotes, and one that is only text; a space within ${...}; nothing; a backquote that is text.
SOFT, HARD, TEXT, SPACE, NOTHING, TICK = "\ue010", "\ue011", "\ue012", "\ue013", "\ue014", "\ue015"
Refuse = Callable[[str, str, int], NoReturn]
_QUOTED = re.compile(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.|(?<![^\s;&|(])#[^\n]*", re.DOTALL)
_KEYWORD = re.compile(rf"(?:^|[;&|\n(])\s*({'|'.join(map(re.escape, KEYWORDS))})(?=[\s;]|$)")
_COMPUTED = (
    (r"\$\(\(", "arithmetic", "(("), (r"\$\((?!\()", "a command substitution", "$("), (r"`", "a command substitution", "`"),
    (r"\$\{[#!]?[A-Za-z_]\w*\[", "an array", ""), (r"\$\{(?![#!]?\w+\[|[0-9#?!-]|[A-Za-z_]\w*(?:\}|:?[-+?]))", "a variable that is computed", ""),
    (r"\$\{?[0-9#?!-]", "an argument or a state of the script", ""),
)  # fmt: skip
_OPERATORS = (
    (r"[\w.-]+\+?=\(", "an array", ""), (r"<<<", "a here-string", ""), (r"<<", "a here-document", ""), (r"[<>]\(", "a process substitution", ""),
    (r"\$'", "an ANSI-C string", ""), (r"[\w-]+[ \t]*\(\)", "a function", ""), (r"\(", "a subshell", ""),
)  # fmt: skip


@dataclass
class Script:
    """What a script does: the commands that were looked for, each with its own variables, the exported variables, and the other commands."""

    found: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    others: list[list[str]] = field(default_factory=list)
    values: dict[str, str] = field(default_factory=dict)
    redirections: list[str] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)


def statements(script: str, refuse: Refuse, comments: list[str]) -> list[tuple[str, list[str], list[str]]]:
    """Return (what stands before it, words, redirections) of each command; the dollar signs of its words show how they are quoted."""

    script = script.replace("$(pwd)", "${PWD}")
    faults: list[tuple[int, str, str]] = []

    def check(text: str, begin: int, table: tuple[tuple[str, str, str], ...]) -> None:
        faults.extend((begin + found.start(), what, literal or found.group()) for pattern, what, literal in table for found in re.finditer(pattern, text))

    def mask(match: re.Match[str]) -> str:
        text = match.group()
        if text[0] == "#":
            comments.append(text)
            return " " * len(text)
        if text[0] == "\\":
            return "  " if text[1] == "\n" else NOTHING + TEXT if text[1] == "$" else text
        if text[0] == '"':
            text = text.replace("\\\n", NOTHING * 2).replace("\\$", NOTHING + TEXT).replace("\\`", NOTHING + TICK)
            check(text, match.start(), _COMPUTED)
            return text.replace("$", HARD)
        return text.replace("$", TEXT).replace("`", TICK)

    masked = _QUOTED.sub(mask, script)
    bare = re.sub(r"'[^']*'|\"(?:\\.|[^\"\\])*\"|\\.", lambda match: "_" * len(match.group()), masked)
    check(bare, 0, (*_COMPUTED, *_OPERATORS))
    faults += [(each.start(1), KEYWORDS[each[1]], each[1]) for each in _KEYWORD.finditer(bare)]
    if faults:
        at, what, literal = min(faults)
        refuse(what, literal, at)
    at = masked.find("${")
    while at >= 0:
        end = closing(masked, at + 2)
        masked = masked[:at] + SOFT + masked[at + 1 : end].replace(" ", SPACE).replace("$", SOFT) + masked[end:]
        at = masked.find("${", at)
    lexer = shlex.shlex(masked.replace("$", SOFT), posix=True, punctuation_chars=";&|<>\n")
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    out: list[tuple[str, list[str], list[str]]] = [("", [], [])]
    redirected = False
    try:
        for word in lexer:
            sign = word.strip(";&|<>\n") == "" and word != ""
            if (sign and word.strip("\n")[:1] in ("<", ">")) or word[:2] == "&>":
                redirected = True
                if out[-1][1] and out[-1][1][-1] in ("1", "2"):
                    out[-1][1].pop()
            elif sign:
                out.append((word.strip("\n") or out[-1][0] * (not out[-1][1]), [], []))
            else:
                (out[-1][2] if redirected else out[-1][1]).append(word)
                redirected = False
    except ValueError:
        refuse("a quote that does not close", "", 0)
    return [each for each in out if each[1] or each[2]]


def run(script: str, values: Mapping[str, str], wanted: Callable[[list[str]], bool], refuse: Refuse) -> Script:
    """Return what a script does.

    :param values: the variables at its begin.
    :param wanted: tells whether words are a command that is looked for.
    :param refuse: called with what a construct is, its begin in the text and its place; it raises RecipeError.
    """
    out = Script(values=dict(values))
    every = False  # set -a
    last: list[str] = []
    for before, raw, redirections in statements(script, refuse, out.comments):
        words, own, export = _command(raw, out, refuse, every)
        if words and words[0].startswith("-"):
            refuse("an argument at the begin of a command, because a comment or a missing backslash ended the line before,", words[0], 0)
        decides = own or export or wanted(words)
        if decides and (before == "||" or (before == "&&" and last and last[0] in TESTS)):
            refuse("a condition", before, 0)
        if words[:1] == ["set"]:
            every = "-a" in words or (every and "+a" not in words)
        elif words[:1] == ["unset"]:
            out.removed += [each for each in words[1:] if not each.startswith("-")]
        elif wanted(words):
            out.found.append((words, own))
            out.redirections += [each for target in redirections for each in _expanded(target, out.values)]
        elif words:
            out.others.append(words)
        last = words or last
    return out


def _command(raw: list[str], out: Script, refuse: Refuse, every: bool) -> tuple[list[str], dict[str, str], bool]:
    """Return the words of a command, its own variables, and whether it exports some. Assignments are done."""
    own: dict[str, str] = {}
    words: list[str] = []
    for word in raw:
        match = _ASSIGNMENT.fullmatch(word)
        if match and all(each in ("exec", "env", "export", "declare", "local", "readonly", "typeset", "-x") for each in words):
            value = _value(match[3], out.values)
            own[match[1]] = out.values.get(match[1], "") + value if match[2] else value
            if match[1].endswith("PATH"):
                own[match[1]] = own[match[1]].strip(":")
            out.values[match[1]] = own[match[1]]
        else:
            words += _expanded(word, out.values)
    while words[:1] in (["exec"], ["env"]) and len(words) > 1 and not words[1].startswith("-"):
        words.pop(0)
    declared = words[0] if words and words[0] in ("export", "declare", "typeset", "local", "readonly") else ""
    if declared and any(each.startswith("-") and each != "-x" for each in words[1:]):
        refuse("an array or a computed variable", declared, 0)
    export = declared == "export" or (bool(declared) and "-x" in words)
    if declared:
        out.exported.update({name: out.values[name] for name in words[1:] if export and name in out.values})
        words = []
    if export or (every and not words):
        out.exported.update(own)
    elif own and not words:
        out.exported.update({name: value for name, value in own.items() if name in out.exported})
    return words, own, export


def _value(word: str, values: Mapping[str, str]) -> str:
    text = re.sub(f"[{SOFT}{HARD}][@*]", "\ue000*\ue001", word)
    text = expand(text.replace(SOFT, "$").replace(HARD, "$"), values, in_shell=True)
    return text.replace(TEXT, "$").replace(SPACE, " ").replace(NOTHING, "").replace(TICK, "`")


def _expanded(word: str, values: Mapping[str, str]) -> list[str]:
    """Return the words that a word becomes: a variable without quotes is split into words."""
    text = _value(word, values)
    return text.split() if SOFT in word and (not text or re.match(rf"{SOFT}(?:\w+|\{{.*\}})$", word, re.DOTALL) or text.startswith("-")) else [text]


@dataclass
class Around:
    """What is around a recipe: its text, its folder's name, its .env, other files next to it, and the folders of its mods."""

    source: str = ""
    folder: str = ""
    env: Mapping[str, str] = field(default_factory=dict)
    notes: list[tuple[str, str]] = field(default_factory=list)  # of its .env
    read: Callable[[str], dict[str, str] | None] = lambda _name: None
    mod: Callable[[str], str] = lambda _name: ""

    def refusal(self, text: str) -> Callable[[str, str, int], NoReturn]:
        """Return what refuses a construct of a script, with its line in the file."""

        def refuse(what: str, literal: str, at: int) -> NoReturn:
            begin = max(0, getattr(text, "line", 0) - 1)
            pattern = rf"(?<![\w-]){re.escape(literal)}(?![\w-])" if re.fullmatch(r"\w+", literal) else re.escape(literal)
            lines = self.source.splitlines()
            places = [i for i in range(begin, len(lines)) if not lines[i].lstrip().startswith("#") and re.search(pattern, lines[i])]
            number = (places or [begin + text.count("\n", 0, at)])[0] + 1
            raise RecipeError(
                f"line {number}: the command has {what} ({literal}), and only assignments and commands without decisions are imported, because nothing is "
                "executed here. Run it once on a node with `set -x` (variables of Compose: `docker compose config`), and import the command that it prints"
            )

        return refuse
