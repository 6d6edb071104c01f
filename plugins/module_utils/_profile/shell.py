# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read shell scripts, variables and .env files that are data. A script that decides or computes is refused. Pure, nothing is executed.

A variable without a value leaves a mark in the text, so that the caller decides: see `marks` and `shown`.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Callable

LONGEST = 1 << 16  # characters after variables were replaced: values that contain each other grow fast
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
KEYWORDS = {
    **dict.fromkeys(("if", "then", "elif", "else", "fi", "case", "esac", "[", "[[", "test", "!"), "a condition"),
    **dict.fromkeys(("for", "while", "until", "do", "done", "select"), "a loop"),
    **dict.fromkeys(("function", "{", "}"), "a function or a group of commands"),
    **dict.fromkeys(("eval", "read", "mapfile", "readarray", "let", "getopts", "shift"), "a command that sets variables while it runs"),
}
CONSTRUCTS = (
    (r"\$\(\(", "arithmetic"), (r"\$\(|`", "a command substitution"), (r"\$\{?[0-9#?!-]", "an argument or a state of the script"),
    (r"\$\{\w+\[", "an array"), (r"\$'", "an ANSI-C string"), (r"(?<==)\(", "an array"), (r"\(\)", "a function"), (r"\(", "a subshell"),
    (r"\)", "a condition"), (r"['\"]", "a quote that does not close"),
)  # fmt: skip
# Commands whose result decides whether what follows && is run.
TESTS = ("grep", "egrep", "command", "which", "type", "diff", "cmp", "pgrep", "mountpoint", "false")
DECLARE = ("export", "declare", "typeset", "local", "readonly")
# Options of docker run without a value, and the keys of a Compose service that have another name than the option.
RUN_BARE = ("detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "quiet", "no-healthcheck", "oom-kill-disable")
RUN_KEYS = {
    "e": "environment", "env": "environment", "env-file": "env_file", "v": "volumes", "volume": "volumes", "mount": "volumes", "name": "container_name",
    "net": "network_mode", "network": "network_mode", "p": "ports", "publish": "ports", "m": "mem_limit", "memory": "mem_limit", "w": "working_dir",
    "workdir": "working_dir", "u": "user", "h": "hostname", "l": "labels", "label": "labels", "device": "devices", "ulimit": "ulimits",
    "pull": "pull_policy", "log-driver": "logging", "log-opt": "logging", "stop-timeout": "stop_grace_period",
}  # fmt: skip
RUN_OPTIONS = {
    *RUN_KEYS,
    "shm-size", "ipc", "gpus", "entrypoint", "cap-add", "cap-drop", "security-opt", "restart", "hostname", "runtime", "tmpfs", "platform", "user", "cpus",
    "cpuset-cpus", "pid", "memory-swap", "pids-limit", "group-add", "device-cgroup-rule", "cgroupns", "userns", "dns", "sysctl", "expose", "add-host",
    "health-cmd", "health-interval", "health-retries", "health-start-period", "health-timeout",
}  # fmt: skip
MANY = ("volumes", "environment", "devices", "ports", "cap_add", "cap_drop", "security_opt", "env_file", "ulimits", "labels", "tmpfs", "logging")
_RUN = r"(?:docker|podman|nerdctl) (?:container )?(?:run|create)\b"
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)
_VARIABLE = re.compile(r"\$(?:(\$)|([A-Za-z_]\w*)|\{((?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*)\}|(?=\{))")  # up to three deep
_PARAMETER = re.compile(r"([A-Za-z_]\w*)(?:(:?[-+?])(.*))?", re.DOTALL)
_MARK = re.compile("\ue000([^\ue001\ue002]*)(?:\ue002([^\ue001]*))?\ue001")
_COMPUTED = re.compile(r"\$\(|`|\$\{?[0-9#?!]|\$-|\$\{\w+\[|\$'")
_BRACES = re.compile(r"\{[^{}]*(?:,|\.\.)[^{}]*\}")  # {a,b} and {1..3} without quotes
_TOKEN = re.compile(
    r"(?P<space>(?:[ \t\r]|\\\r?\n)+)|\\(?P<escaped>.)|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|(?P<comment>(?<![^\s;&|])#[^\n]*)"
    r"|(?P<redirect>&?[<>]+&?\|?)|(?P<operator>&&|\|\||;;|[;&|\n])|(?P<refused>[`()'\"]|\$[(']|\$\{?[0-9#?!-])"
    r"|(?P<variable>\$[@*]|\$\{(?:[^{}]|\{(?:[^{}]|\{[^{}]*\})*\})*\}|\$\w+)|(?P<open>\$\{)|(?P<text>[^\s'\"\\;&|<>`()$#]+|.)",
    re.DOTALL,
)


def _construct(text: str, at: int) -> str:
    return next(what for pattern, what in CONSTRUCTS if re.compile(pattern).match(text, at))


class RecipeError(ValueError):
    """A recipe cannot be imported. The text names what was found, where, what is expected and the remedy."""


def marks(text: str) -> dict[str, str]:
    """Return the variables without a value in a text, each with the message of its ``:?``."""
    return {match[1]: match[2] or "" for match in _MARK.finditer(text)}


def shown(text: str) -> str:
    """Return the text with a variable without a value as it was written."""
    return _MARK.sub(lambda match: f"${{{match[1]}}}", text)


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
        escaped, name, inner = match.groups()
        if escaped:
            return "$$" if in_shell else "$"
        form = _PARAMETER.fullmatch(name or inner or "")
        if not form:
            raise RecipeError(f"the variable {match.string[match.start() :][:30]} is not closed or is computed, expected ${{NAME}} or ${{NAME:-default}}")
        variable, sign, word = form[1], form[2] or "", form[3] or ""
        if in_shell and len(word) > 1 and word[0] == word[-1] and word[0] in "\"'":
            word = word[1:-1]
        value = values.get(variable)
        is_set = bool(value) if sign.startswith(":") else value is not None
        if sign.endswith("+"):
            return expand(word, values, in_shell) if is_set else ""
        if is_set:
            return value or ""
        message = f"\ue002{_MARK.sub('', word)}" if word else ""
        return expand(word, values, in_shell) if sign.endswith("-") else f"\ue000{variable}{message}\ue001"

    out = _VARIABLE.sub(value_of, text) if len(text) <= LONGEST else text
    if len(out) > LONGEST:
        raise RecipeError(f"a value has more than {LONGEST} characters after its variables were replaced. Write the values themselves")
    return out


def env_values(text: str) -> tuple[dict[str, str], list[tuple[str, str]]]:
    """Return the values of a .env file, as Docker Compose reads those of one line, and (name, reason) of what else it has."""
    values: dict[str, str] = {}
    notes = []
    for number, line in enumerate(text.splitlines(), 1):
        match = re.match(r"\s*(#\s*)?(?:export\s+)?([A-Za-z_][\w.-]*)\s*(?:[=:]\s*(.*)|$)", line)
        if match and match[1]:
            notes += [(f"# {match[2]}", "is commented out: the default of the recipe counts, if it has one")] if "=" in line else []
        elif match and match[3] is None:
            notes.append((match[2], "has no value: Compose takes it from its own environment, which is not read"))
        elif match:
            quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?|\"((?:\\.|[^\"\\])*)\"\s*(?:#.*)?", match[3])
            if not quoted and match[3][:1] in ("'", '"'):
                raise RecipeError(f".env:{number}: the quotes of {match[2]} do not close at the end of its line. Write the value on one line")
            plain, *comment = re.split(r"(?:^|\s+)#", match[3], maxsplit=1)
            notes += [(f"{match[2]} # {one_line(each)[:60]}", "a comment, which is not part of the value") for each in comment if not quoted]
            if quoted and quoted[1] is not None:
                values[match[2]] = quoted[1]
                continue
            parts = re.split(r"(\\.)", quoted[2] if quoted else plain.strip())
            texts = [part[1:].replace("n", "\n") if index % 2 else expand(part, values, in_shell=True) for index, part in enumerate(parts)]
            values[match[2]] = "".join(texts)
        elif line.strip() and not line.lstrip().startswith("#"):
            raise RecipeError(f".env:{number}: the line is not NAME=value, expected one variable in each line. Correct the line")
    return values, notes


@dataclass
class Script:
    """What a script does: the commands that are looked for, each with its own variables, the exported variables, and the other commands."""

    wanted: Callable[[list[str]], bool] = lambda _words: False
    values: dict[str, str] = field(default_factory=dict)
    source: str = ""  # the file, to name the line of what is refused
    found: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    removed: list[str] = field(default_factory=list)
    others: list[list[str]] = field(default_factory=list)
    comments: list[str] = field(default_factory=list)
    redirections: list[str] = field(default_factory=list)  # the files
    text: str = ""
    _words: list[str] = field(default_factory=list)
    _word: str | None = None
    _before: str = ""  # the operator before the command
    _begin: int = 0  # of the command
    _last: str = ""  # the command before it
    _all: bool = False  # set -a
    _drops: bool = False  # the next word is the target of a redirection

    def refuse(self, what: str, at: int) -> None:
        """Raise RecipeError for a construct, with its line in the file."""
        begin = max(self.text.rfind(char, 0, at) for char in " \t\n;") + 1
        pattern = r"\s+".join(re.escape(word).replace(r"\$", r"\$+") for word in self.text[begin:].split("\n", 1)[0].split()[:2])
        lines = enumerate(self.source.splitlines(), 1)
        number = next((number for number, line in lines if not line.lstrip().startswith("#") and re.search(pattern, line)), 0)
        raise RecipeError(
            f"{f'line {number}: ' if number else ''}the command has {what}. Only assignments and commands without decisions are imported, because nothing "
            "is executed here. Run it once on a node with `set -x` (variables of Compose: `docker compose config`), and import the command that it prints"
        )

    def read(self, script: str) -> Script:
        """Read a script: quotes, variables, comments, operators and redirections."""
        if len(script) > LONGEST:
            raise RecipeError(f"the script has more than {LONGEST} characters. Import the command that starts the engine")
        self.text = script.replace("$(pwd)", "${PWD}")
        for token in _TOKEN.finditer(self.text):
            kind, text, at = str(token.lastgroup), str(token[token.lastgroup or 0]), token.start()
            if not self._words and self._word is None and kind not in ("space", "operator", "comment"):
                self._begin = at
            if kind == "space":
                self._end_word()
            elif kind == "operator":
                self._end_command(text)
            elif kind == "redirect":
                if "<<" in text or self.text[token.end() : token.end() + 1] == "(":
                    self.refuse(f"a here-document or a process substitution ({text})", at)
                self._word = None if self._word in ("1", "2") else self._word
                self._end_word()
                self._drops = True
            elif kind == "comment":
                self.comments.append(text)
            elif kind == "refused":
                self.refuse(f"{_construct(self.text, at)} ({text})", at)
            elif kind == "open":
                self.refuse("a variable that does not close, or more than three in each other (${)", at)
            elif kind == "text" and _BRACES.search(text):
                self.refuse(f"a brace expansion ({text})", at)
            elif kind == "variable":
                self._unquoted(self._value(text, at))
            else:
                home = kind == "text" and self._word is None and re.match(r"~(?=[/:]|$)", text)
                text = self._value("$HOME", at) + text[1:] if home else text
                self._word = (self._word or "") + (self._double(text, at) if kind == "double" else text)
        self._end_command("")
        return self

    def _double(self, text: str, at: int) -> str:
        """Return the text of double quotes."""
        parts = re.split(r"\\([\"\\$`\n])", text)
        return "".join(part.replace("\n", "") if index % 2 else self._value(part, at) for index, part in enumerate(parts))

    def _value(self, text: str, at: int) -> str:
        computed = _COMPUTED.search(text)
        if computed:
            self.refuse(f"{_construct(text, computed.start())} ({computed.group()})", at)
        return expand(re.sub(r"\$[@*]", "\ue000*\ue001", text), self.values, in_shell=True)

    def _unquoted(self, value: str) -> None:
        """Add a variable without quotes: its value is split into words, but for an assignment."""
        assigns = _ASSIGNMENT.match(self._word or "") and all(word in DECLARE for word in self._words)
        for number, part in enumerate([value] if assigns else re.split(r"\s+", value)):
            if number:
                self._end_word()
            if part:
                self._word = (self._word or "") + part

    def _end_word(self) -> None:
        if self._word is not None and self._word not in ("1", "2") * self._drops:
            (self.redirections if self._drops else self._words).append(self._word)
        self._drops = self._drops and self._word is None
        self._word = None

    def _end_command(self, operator: str) -> None:
        self._end_word()
        words, self._words, self._drops = self._words, [], False
        if words:
            self._command(words)
            self._before = operator.strip()
        elif operator != "\n":
            self._before = operator

    def _command(self, words: list[str]) -> None:
        """Do the assignments of a command, and keep its words."""
        own: dict[str, str] = {}
        rest: list[str] = []
        for word in words:
            match = _ASSIGNMENT.fullmatch(word)
            if match and all(each in ("exec", "env", *DECLARE, "-x") for each in rest):
                value = self.values.get(match[1], "") + match[3] if match[2] else match[3]
                own[match[1]] = self.values[match[1]] = value.strip(":") if match[1].endswith("PATH") else value
            else:
                rest.append(word)
        while rest[:1] in (["exec"], ["env"]) and len(rest) > 1 and not rest[1].startswith("-"):
            rest.pop(0)
        first = rest[0] if rest else ""
        computes = first in DECLARE and any(each.startswith("-") and each != "-x" for each in rest[1:])
        if first in KEYWORDS or computes:
            self.refuse(f"{'an array or a computed variable' if computes else KEYWORDS[first]} ({first})", self._begin)
        if first.startswith("-"):
            self.refuse(f"an argument at the begin of a command: a comment or a missing backslash ended the line before ({first})", self._begin)
        exports = first == "export" or (first in DECLARE and "-x" in rest) or (self._all and not rest)
        wanted = self.wanted(rest)
        if (own or exports or wanted) and (self._before == "||" or (self._before == "&&" and self._last in TESTS)):
            self.refuse(f"a condition ({self._before})", self._begin)
        if first in DECLARE or not rest:
            own = {**own, **{name: self.values[name] for name in rest[1:] if name in self.values}}
            self.exported.update({name: value for name, value in own.items() if exports or name in self.exported})
        elif first == "set":
            self._all = "-a" in rest or (self._all and "+a" not in rest)
        elif first == "unset":
            self.removed += [each for each in rest[1:] if not each.startswith("-")]
        elif wanted:
            self.found.append((rest, own))
        else:
            self.others.append(rest)
        self._last = first or self._last


# docker run


def docker_runs(text: str, values: dict[str, str]) -> tuple[Script, int]:
    """Return a script, or the commands of a text, with the containers that it starts as `found`, and how many other lines the text has."""
    lines = 0
    first = next((line for line in text.splitlines() if line.strip() and not line.startswith("#")), "")
    script = text
    if not text.startswith("#!") and not re.match(r"\s*(?:\w+=|export |set -|docker |podman |sudo |cd |ssh )", first):
        script, lines = _commands(text)
    return Script(lambda words: bool(_image_at(_remote(words))), values, text).read(script), lines


def _commands(text: str) -> tuple[str, int]:
    """Return the docker run commands and assignments of a text, and how many other lines it has."""
    out, keep, dropped, quotes = [], False, 0, 0
    for line in text.splitlines() if re.search(_RUN, text) else []:
        start = re.match(rf"\s*(?:\$ )?((?:sudo )?{_RUN}.*|(?:export )?[A-Za-z_]\w*=\S.*)", line)
        if keep or start:
            out.append(start[1] if start and not keep else line)
            quotes += out[-1].count("'")
            keep = out[-1].rstrip().endswith("\\") or ((keep or "docker" in line) and quotes % 2 == 1)
        else:
            dropped += bool(line.strip())
    return "\n".join(out), dropped


def _image_at(words: list[str]) -> int:
    """Return the index after `docker run`, 0 if the words are another command."""
    match = re.match(rf"(sudo )?(?:\S*/)?{_RUN}", " ".join(words[:4]))
    return len(match[0].split()) if match else 0


def _remote(words: list[str]) -> list[str]:
    """Return the command that ssh runs on another node, or the words."""
    at = next((i for i, word in enumerate(words) if re.match(r"(?:sudo )?(?:docker|podman|nerdctl)\b", word)), 0) if words[:1] == ["ssh"] else 0
    return (split(" ".join(words[at:])) if " " in words[at] else words[at:]) if at else words


def run_options(words: list[str]) -> dict[str, Any]:
    """Return the options of docker run as the keys of a Compose service."""
    box: dict[str, Any] = {}
    words = _remote(words)
    index = _image_at(words)
    while index < len(words) and words[index].startswith("-"):
        name, sign, value = words[index].lstrip("-").partition("=")
        short = not words[index].startswith("--")
        index += 1
        if not sign and (name in RUN_BARE or (short and set(name) <= set("ditPq"))):
            box["detach" if short else name.replace("-", "_")] = "true"
            continue
        if short and len(name) > 1 and name[0] in "evpmwuhl":
            name, value, sign = name[0], words[index - 1][2:], "="
        if name not in RUN_OPTIONS:
            raise RecipeError(f"docker run has the option --{name}, which is not known here, so where its image begins is not. Remove the option")
        if not sign:
            value, index = (words[index] if index < len(words) else ""), index + 1
        key = RUN_KEYS.get(name, "healthcheck" if name.startswith("health-") else name.replace("-", "_"))
        if key in MANY:
            box.setdefault(key, []).append(value)
        else:
            box[key] = value
    if index >= len(words):
        raise RecipeError("docker run names no image, expected docker run OPTIONS IMAGE COMMAND")
    box.update(image=words[index], command=words[index + 1 :])
    box.update({"entrypoint": [box["entrypoint"]] if box["entrypoint"] else []} if "entrypoint" in box else {})
    return box
