# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: the container that a recipe starts its engine in: of sparkrun or eugr, a service of a Compose file, `docker run` of a script. Controller only.

Each kind becomes the keys of a Compose service. Nothing is executed: a script that decides or computes is refused.
A variable without a value stays as it is written, such as ``${NAME}`` or ``${NAME:?message}``: see `unset`.
"""

from __future__ import annotations

import json
import posixpath
import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.redact import holds_secret, redact

LONGEST = 1 << 16  # characters after variables were replaced: values that contain each other grow fast
_WORD = r"[^{}]|\{(?:[^{}]|\{[^{}]*\})*\}"  # braces up to three deep
_VARIABLE = re.compile(rf"\$(?:(\$)|([A-Za-z_]\w*|[@*])|\{{([A-Za-z_]\w*)(?:(:?[-+?])((?:{_WORD})*))?\}})")
_UNSET = re.compile(r"\$\{([\w@*]*)(?::?\?([^}]*))?[^}]*\}?")
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]\w*)\}")
COMPOSE = "Docker Compose file"


class RecipeError(ValueError):
    """A recipe cannot be imported. The text names what was found, where, what is expected and the remedy."""


@dataclass(frozen=True)
class Around:
    """What is around a recipe: its text, its folder, the values of its .env, and all secrets that were read, which no refusal may quote."""

    text: str = ""
    folder: Path = Path()
    env: Mapping[str, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)

    def env_file(self, name: str) -> dict[str, str] | None:
        """Return the values of an environment file below the folder of the recipe, None without it. Raise OSError, or RecipeError for a path that leaves it."""
        path = self.folder / name
        if not path.exists():
            return None
        if not path.resolve().is_relative_to(self.folder.resolve()):
            raise RecipeError(f"env_file {name} is not below the folder of the recipe. Put the file there")
        return env_values(bounded.text(str(path)), name)

    def mod(self, name: str) -> str:
        """Return the folder of a mod next to the recipe, or in a folder above it, as in its checkout; empty if there is none."""
        own, here = name.removeprefix("mods/"), self.folder.resolve()
        near = ((folder / "mods", folder / "mods" / own / "run.sh") for folder in (here, *list(here.parents)[:2]))
        return next((str(script.parent) for mods, script in near if ".." not in own and script.is_file() and script.resolve().is_relative_to(mods)), "")


# --- Values, variables and words


def secrets_of(*tables: Mapping[str, Any]) -> set[str]:
    """Return the secret values of environments."""
    return {text_of(value) for table in tables for key, value in table.items() if value and holds_secret(str(key), value)}


def kind_of(data: Mapping[str, Any]) -> str:
    """Return what kind of recipe a file is; empty if it is none."""
    if isinstance(data.get("services"), Mapping):
        return COMPOSE
    if "model" not in data and "command" not in data:
        return ""
    eugr = str(data.get("recipe_version")) == "1" or "build_args" in data or "mods" in data
    return "recipe of eugr/spark-vllm-docker" if eugr else "recipe of sparkrun"


def text_of(value: Any) -> str:
    """Return a value of YAML as an environment or a command line has it."""
    if isinstance(value, (dict, list)):
        return json.dumps(_typed(value), ensure_ascii=False)
    return str(value).lower() if isinstance(value, bool) else "" if value is None else str(value)


def _typed(value: Any) -> Any:
    """Return a structure of texts with its numbers and booleans."""
    if isinstance(value, Mapping):
        return {str(key): _typed(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_typed(each) for each in value]
    plain = isinstance(value, str) and re.fullmatch(r"true|false|-?(?:0|[1-9]\d{0,17})(?:\.\d+)?(?:[eE][-+]?\d+)?", value)
    return json.loads(value) if plain else value


def mapping(data: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return a table of a recipe, empty if it has none."""
    value = data.get(key)
    if value is not None and not isinstance(value, Mapping):
        raise RecipeError(f"{key} is not a mapping, expected names and values")
    return value or {}


def items(value: Any) -> list[Any]:
    """Return a list of a recipe; a single value is a list of one."""
    return list(value) if isinstance(value, list) else [] if value is None else [value]


def pairs(value: Any) -> dict[str, Any]:
    """Return names and values of a mapping or of a list of NAME=value."""
    if isinstance(value, Mapping):
        return {str(key): each for key, each in value.items()}
    return {text.partition("=")[0]: text.partition("=")[2] if "=" in text else None for text in map(str, items(value))}


def unset(text: str) -> dict[str, str]:
    """Return the variables without a value in a text, each with the message of its ``:?``."""
    return {match[1]: match[2] or "" for match in _UNSET.finditer(text)}


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


def expanded(value: Any, values: Mapping[str, str]) -> Any:
    """Return a tree of a Compose file with its variables replaced."""
    if isinstance(value, Mapping):
        return {str(key): expanded(each, values) for key, each in value.items()}
    return [expanded(each, values) for each in value] if isinstance(value, list) else expand(value, values) if isinstance(value, str) else value


def env_values(text: str, name: str = ".env") -> dict[str, str]:
    """Return the values of a .env file, as Docker Compose reads those of one line."""
    values: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = re.fullmatch(r"\s*(?:export\s+)?([A-Za-z_][\w.-]*)\s*(?:[=:]\s*(.*))?", line)
        rest = (match[2] or "") if match else ""
        quoted = re.fullmatch(r"'([^']*)'\s*(?:#.*)?|\"((?:\\.|[^\"\\])*)\"\s*(?:#.*)?", rest)
        if not match or (rest[:1] in ("'", '"') and not quoted):
            raise RecipeError(f"{name}:{number}: the line is not NAME=value, with quotes that close on it. Correct the line")
        if quoted and quoted[1] is not None:
            values[match[1]] = quoted[1]
        elif match[2] is not None:
            parts = re.split(r"(\\.)", quoted[2] if quoted else re.split(r"(?<!\S)#", rest, maxsplit=1)[0].strip())
            values[match[1]] = "".join(part[1:].replace("n", "\n") if at % 2 else expand(part, values, in_shell=True) for at, part in enumerate(parts))
    return values


# --- Shell scripts that are data

SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# Commands that make a script a program.
KEYWORDS = (
    "if", "then", "elif", "else", "fi", "case", "esac", "[", "[[", "test", "!", "for", "while", "until", "do", "done", "select", "function", "{", "}", "eval",
    "read", "mapfile", "readarray", "let", "getopts", "shift", "declare", "typeset", "local", "readonly",
)  # fmt: skip
_COMPUTED = re.compile(r"`|\$[({0-9#?!-]")  # what is not a variable
_TOKEN = re.compile(
    r"(?P<joined>\\\r?\n)|\\(?P<escaped>.)|'(?P<single>[^']*)'|\"(?P<double>(?:\\.|[^\"\\])*)\"|(?P<comment>(?<![^\s;&|])#[^\n]*)"
    rf"|(?P<variable>\$(?:[A-Za-z_]\w*|[@*]|\{{[A-Za-z_]\w*(?::?[-+?](?:{_WORD})*)?\}}))|(?P<home>(?<![^\s=:])~(?=[/:\s]))"
    rf"|(?P<refused>[()'\"]|<<|[<>]\(|\{{(?:[^{{}}\s,.]|\.(?!\.))*(?:,|\.\.)[^{{}}\s]*\}}|{_COMPUTED.pattern})"
    r"|(?P<redirect>(?:(?<![^\s;&|])[12])?&?[<>]+&?\|?[ \t]*[^\s;&|<>]*)|(?P<end>&&|\|\||;;|[;&|\n])|(?P<space>[ \t\r]+)|(?P<plain>.)",
    re.DOTALL,
)
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)(\+?)=(.*)", re.DOTALL)


@dataclass
class Script:
    """What a script does: its secrets, its commands, each with the variables before it, and the variables that it exports."""

    values: dict[str, str] = field(default_factory=dict)
    secrets: set[str] = field(default_factory=set)
    commands: list[tuple[list[str], dict[str, str]]] = field(default_factory=list)
    exported: dict[str, str] = field(default_factory=dict)
    _words: list[str] = field(default_factory=list)
    _word: str | None = None
    _all: bool = False  # set -a
    _expanded: int = 0  # characters of the values of all variables

    def read(self, text: str) -> Script:
        """Read a script: quotes, variables, comments and operators. Redirections are left out. Raise RecipeError for what decides or computes."""
        if len(text) > LONGEST:
            raise RecipeError(f"the script has more than {LONGEST} characters. Import the command that starts the engine")
        text = text.replace("$(pwd)", "${PWD}") + "\n"
        before, begin = "", 0
        for part in _TOKEN.finditer(text):
            kind = str(part.lastgroup)
            piece = part[kind]
            if kind == "refused":
                refuse(text, part.start(), f"{piece}, which is computed or not closed")
            elif kind in ("single", "escaped", "plain"):
                self._word = (self._word or "") + piece
            elif kind == "double":
                self._word = (self._word or "") + self._in_quotes(piece, text, part.start())
            elif kind in ("variable", "home"):
                self._add(self._expand("$HOME" if kind == "home" else piece), kind == "home")
            elif kind in ("space", "redirect", "end"):  # the container's log has what the engine prints
                self._add(" ")
            if kind == "end":
                if self._words:
                    self._command(self._words, before == "||", text, begin)
                if self._words or piece != "\n":
                    before = piece
                self._words, begin = [], part.end()
        return self

    def _expand(self, text: str) -> str:
        """Replace the variables of a text. Raise RecipeError if the values together are long: words that are joined grow in quadratic time."""
        value = expand(text, self.values, in_shell=True)
        self._expanded += len(value)
        if self._expanded > LONGEST:
            raise RecipeError(f"the script has more than {LONGEST} characters after its variables were replaced. Write the values themselves")
        return value

    def _in_quotes(self, piece: str, text: str, at: int) -> str:
        """Return the value of a text in double quotes."""
        parts = re.split(r"\\([\"\\$`\n])", piece)
        computed = next((found for each in parts[::2] if (found := _COMPUTED.search(_VARIABLE.sub("", each)))), None)
        if computed:
            refuse(text, at, f"{computed[0]} in quotes, which is computed")
        return "".join(each.strip("\n") if odd % 2 else self._expand(each) for odd, each in enumerate(parts))

    def _add(self, value: str, whole: bool = False) -> None:
        """Add a value without quotes, which blanks split into words, but for an assignment."""
        if self._word and _ASSIGNMENT.match(self._word) and self._words in ([], ["export"]) and value != " ":
            whole = True
        for at, piece in enumerate([value] if whole else re.split(r"\s+", value)):
            if at and self._word is not None:
                self._words.append(self._word)
                self._word = None
            if piece:
                self._word = (self._word or "") + piece

    def _command(self, words: list[str], conditional: bool, text: str, begin: int) -> None:
        """Do the assignments of a command, and keep its words."""
        own: dict[str, str] = {}
        rest: list[str] = []
        for word in words:
            match = _ASSIGNMENT.fullmatch(word)
            if match and all(each in ("exec", "env", "export") for each in rest):
                value = self.values.get(match[1], "") + match[3] if match[2] else match[3]
                own[match[1]] = self.values[match[1]] = value.strip(":") if match[1].endswith("PATH") else value
            else:
                rest.append(word)
        self.secrets.update(secrets_of(own))
        while rest[:1] in (["exec"], ["env"]) and len(rest) > 1 and not rest[1].startswith("-"):
            rest.pop(0)
        first = rest[0] if rest else ""
        if first in KEYWORDS:
            refuse(text, begin, f"the command {first}")
        if first.startswith("-"):
            refuse(text, begin, f"an argument at the begin of a command ({first}): a comment or a missing backslash ended the line before")
        if conditional and (own or first == "export" or program_of(rest) or image_at(rest)):
            refuse(text, begin, "a variable or an engine under a condition (||)")
        if first in ("", "export"):
            own.update({name: self.values[name] for name in rest[1:] if name in self.values})
            self.exported.update({name: value for name, value in own.items() if first or self._all or name in self.exported})
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


# --- The containers of each kind of recipe


def recipe_box(data: Mapping[str, Any], around: Around) -> tuple[dict[str, Any], set[str]]:
    """Return the container of a recipe of sparkrun or eugr/spark-vllm-docker, and the defaults that its command uses."""
    defaults, settings, used = mapping(data, "defaults"), mapping(data, "executor_config"), set[str]()
    env = {str(key): None if value is None else expand(text_of(value), around.env, in_shell=True) for key, value in mapping(data, "env").items()}
    box: dict[str, Any] = {
        "image": text_of(data.get("container")), "environment": env, "shm_size": settings.get("shm_size"), "mem_limit": settings.get("memory_limit"),
    }  # fmt: skip
    box.update({"entrypoint": []} if "entrypoint" in settings and not settings["entrypoint"] else {})
    model = text_of(data.get("model"))
    if not data.get("command"):
        words = ["vllm", "serve", model]
        for key, value in defaults.items():
            short = re.fullmatch(r"(tensor|pipeline|data)_parallel", str(key))
            flag = f"--{short[1]}-parallel-size" if short else f"--{str(key).replace('_', '-')}"
            if text_of(value).lower() not in ("false", ""):
                words += [flag, *([] if text_of(value).lower() == "true" else map(text_of, items(value)))]
        return {**box, "command": words}, {str(key) for key in defaults}
    values = {"model": model, "container": box["image"], **{str(key): text_of(value) for key, value in defaults.items()}}
    text = _fill(text_of(data["command"]), values, used)
    left = _PLACEHOLDER.search(re.sub(r"'[^']*'", "''", text))
    if left:
        raise RecipeError(f"the command has the placeholder {left[0]}, and defaults has no value for it. Add it to defaults")
    return {**box, "command": ["bash", "-c", re.sub(r"\\[ \t]+\n", "\\\n", text)]}, used


def _fill(text: str, values: Mapping[str, str], used: set[str]) -> str:
    """Replace the placeholders ``{name}`` of a recipe. JSON in plain braces stays, and in doubled braces loses one of each pair."""
    pattern = re.compile(r"\{\{|\}\}|" + _PLACEHOLDER.pattern) if "{{" in text else _PLACEHOLDER

    def value_of(match: re.Match[str]) -> str:
        used.update([match[1]] if match[1] in values else [])
        return values.get(match[1], match.group()) if match[1] else match.group()[0]

    for _round in range(5):  # a default can contain a placeholder
        text, pattern = pattern.sub(value_of, text[:LONGEST]), _PLACEHOLDER
    return text


# Options of docker run without a value (all others have one), and the keys of a Compose service that have another name than the option.
RUN_BARE = (
    "detach", "interactive", "tty", "rm", "init", "privileged", "read-only", "publish-all", "quiet", "no-healthcheck", "oom-kill-disable",
    "disable-content-trust", "sig-proxy", "use-api-socket",
)  # fmt: skip
RUN_KEYS = {
    "e": "environment", "env": "environment", "env-file": "env_file", "v": "volumes", "volume": "volumes", "mount": "volumes", "name": "container_name",
    "net": "network_mode", "network": "network_mode", "p": "ports", "publish": "ports", "m": "mem_limit", "memory": "mem_limit", "w": "working_dir",
    "workdir": "working_dir", "u": "user", "h": "hostname", "l": "labels", "label": "labels", "device": "devices", "ulimit": "ulimits",
}  # fmt: skip
MANY = ("volumes", "environment", "devices", "ports", "cap_add", "cap_drop", "security_opt", "env_file", "ulimits", "labels", "tmpfs")


def docker_runs(around: Around) -> tuple[dict[str, dict[str, Any]], Script]:
    """Return the containers that a script starts, and the script without these commands."""
    script = Script(dict(around.env), around.secrets).read(around.text)
    boxes: dict[str, dict[str, Any]] = {}
    for box in (_run_options(words) for words, _own in script.commands if image_at(words)):
        name, number = text_of(box.get("container_name")), len(boxes) + 1
        while not name or name in boxes:
            name, number = f"container{number}", number + 1
        boxes[name] = box
    script.commands = [each for each in script.commands if not image_at(each[0])]
    if not boxes:
        raise RecipeError("it is neither a YAML mapping nor a script with docker run IMAGE and its command")
    return boxes, script


def image_at(words: list[str]) -> int:
    """Return the index after `docker run`, 0 if the words are another command."""
    match = re.match(r"(sudo )?(?:\S*/)?(?:docker|podman|nerdctl) (?:container )?(?:run|create)\b", " ".join(words[:4]))
    return len(match[0].split()) if match else 0


def _run_options(words: list[str]) -> dict[str, Any]:
    """Return the options of docker run as the keys of a Compose service."""
    box: dict[str, Any] = {}
    index = image_at(words)
    while index < len(words) and words[index].startswith("-"):
        name, sign, value = words[index].lstrip("-").partition("=")
        short = not words[index].startswith("--")
        index += 1
        if not sign and (name in RUN_BARE or (short and set(name) <= set("ditPq"))):
            box["detach" if short else name.replace("-", "_")] = "true"
            continue
        if short and len(name) > 1 and name[0] in "evpmwuhl":
            name, value, sign = name[0], words[index - 1][2:], "="
        if not sign:
            value, index = (words[index] if index < len(words) else ""), index + 1
        key = RUN_KEYS.get(name, name.replace("-", "_"))
        if key in MANY:
            box.setdefault(key, []).append(value)
        else:
            box[key] = value
    box.update(image=words[index] if index < len(words) else "", command=words[index + 1 :])
    box.update({"entrypoint": [box["entrypoint"]] if box["entrypoint"] else []} if "entrypoint" in box else {})
    return box


# --- The container that runs vLLM, and how


@dataclass
class Engine:
    """A container, and how it starts its engine."""

    name: str
    box: Mapping[str, Any]
    environment: dict[str, Any]
    script: Script = field(default_factory=Script)
    shell: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)  # the engine's command
    others: list[list[str]] = field(default_factory=list)  # commands next to it


def chosen(boxes: Mapping[str, Mapping[str, Any]], wanted: str, around: Around) -> Engine:
    """Return the engine of the one container that runs vLLM, or of the wanted one. Raise RecipeError if there is none, or several."""
    names = [wanted] if wanted in boxes else [] if wanted else list(boxes)
    found: list[Engine] = []
    absent = f"there is no service {wanted}, expected one of: {', '.join(boxes)}" if boxes else "it has no service, expected one that runs vLLM"
    faults = [] if names else [absent]
    for name in names:
        if "extends" in boxes[name]:
            raise RecipeError(f"the service {name} extends another one, expected all its keys. Import what `docker compose config` prints")
        try:
            found.append(engine_of(name, boxes[name], around, {}))
        except RecipeError as error:
            faults.append(str(error))
    if len(found) > 1:
        faults = [f"several services run vLLM: {', '.join(each.name for each in found)}. Choose one, or that of the head of a pair, with -e service=NAME"]
    if len(found) != 1:
        raise RecipeError("; ".join(faults))
    return found[0]


def engine_of(name: str, box: Mapping[str, Any], around: Around, values: Mapping[str, str]) -> Engine:
    """Return how a container starts its engine. The variables of `values` are set in its shell."""
    environment: dict[str, Any] = {}
    for each in items(box.get("env_file")):
        path = text_of(each.get("path") if isinstance(each, Mapping) else each)
        found = around.env_file(path)
        if found is None and not (isinstance(each, Mapping) and text_of(each.get("required")) == "false"):
            raise RecipeError(f"the service {name} has env_file {path}, which is not next to the recipe. Put the file there")
        environment.update(found or {})
    environment.update({key: around.env.get(key) if value is None else value for key, value in pairs(box.get("environment")).items()})
    around.secrets.update(secrets_of(environment))
    engine = Engine(name, box, environment)
    words: list[str] = []
    for value in (box.get("entrypoint"), box.get("command")):
        try:
            words += map(text_of, value) if isinstance(value, list) else shlex.split(text_of(value))
        except ValueError as error:
            raise RecipeError(f"the command cannot be split into words: {error}. Close its quotes") from error
    is_shell = bool(words) and posixpath.basename(words[0]) in ("sh", "bash", "dash", "zsh", "ash")
    at = next((i for i, word in enumerate(words[:4], 1) if re.fullmatch(r"-[a-z]*c", word)), 0) if is_shell else 0
    if at:
        if len(words) > at + 1:
            raise RecipeError(f"the service {name} gives {' '.join(words[:at])} several words, and a shell runs the first. Write the command as one text")
        set_there = {key: text_of(value) for key, value in environment.items() if value is not None}
        engine.script = Script({"PATH": SYSTEM_PATH, "LD_LIBRARY_PATH": "", **values, **set_there}, around.secrets).read("".join(words[at:]))
        engine.shell = words[:at]
        _choose(engine, around.secrets)
        return engine
    by_image = "vllm" in text_of(box.get("image")) and box.get("entrypoint") is None and bool(words)
    by_image = by_image and bool(re.fullmatch(r"serve|-.*|[\w.-]+/[\w.-]+|/[\w./-]+(?<!\.sh|\.py)", words[0]))
    begin = next((i for i, word in enumerate(words) if posixpath.basename(word) in ("vllm", "python", "python3")), 0)
    if any(re.search(r"\.sh$|\.py$|entrypoint|^(?:.*/)?(?:ba)?sh$", word) for word in words[:begin]):  # bash /entrypoint.sh vllm serve
        engine.others, words = [words[:begin]], words[begin:]
    if not by_image and not program_of(words):
        what = f"runs {' '.join(words[: 1 + is_shell])}" if words else "has no command"
        raise RecipeError(f"the service {name} {what}, expected 'vllm serve MODEL' with arguments. `ps -ef` in the running container shows its command")
    operator = next((word for word in words if word in ("&&", "||", ";", "|", ">", "&")), "")
    if operator:
        raise RecipeError(f"the command has {operator} without a shell, which would be an argument of vLLM. Write it as a list: [bash, -c, COMMAND]")
    engine.words = words
    return engine


def _choose(engine: Engine, secrets: set[str]) -> None:
    """Choose the one command of a script that starts vLLM, with its own variables exported. Raise RecipeError if there is none or more."""
    found = [(words, own) for words, own in engine.script.commands if program_of(words)]
    engine.others = [words for words, _own in engine.script.commands if not program_of(words)]
    if len(found) != 1:
        what = ", ".join(" ".join(words[:3]) for words, _own in found) or ", ".join(posixpath.basename(redact(words[0], secrets)) for words in engine.others)
        raise RecipeError(f"the command starts {what or 'nothing'}, expected 'vllm serve MODEL' once. Write the command of the engine there")
    engine.words = found[0][0]
    engine.script.exported.update(found[0][1])
