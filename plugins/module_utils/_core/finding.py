# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Something that is wrong: what, where, why it matters and what to do; among it why a module did not run. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

ERROR, WARNING, INFO = SEVERITIES = ("error", "warning", "info")
CLIP = 400  # characters of a text in block()


class Finding(NamedTuple):
    """A finding on one host or several. The texts have no full stop at the end. `command` is to be copied."""

    id: str
    area: str
    severity: str
    hosts: tuple[str, ...]
    found: str
    why: str = ""
    remedy: str = ""
    command: str = ""

    def data(self) -> dict[str, Any]:
        """Return the finding for JSON."""
        return {**self._asdict(), "hosts": list(self.hosts)}

    @property
    def where(self) -> str:
        """Severity, ID and hosts, with which each text begins."""
        return f"{self.severity} {self.id} ({', '.join(self.hosts)}): "

    def line(self) -> str:
        """Return the finding as one paragraph."""
        return f"{self.where}{_capital(self.found)}. Why it matters: {self.why}. Remedy: {self.remedy}."

    def title(self) -> str:
        """Return the finding in one line."""
        return self.where + clipped(self.found)

    def block(self) -> list[str]:
        """Return the finding with each text in a line of its own."""
        rows = (("why", clipped(self.why)), ("do", clipped(self.remedy)), ("run", self.command))
        return [self.title(), *(f"    {name + ':':<5}{text}" for name, text in rows if text)]


def found(text: str, remedy: str = "", why: str = "", severity: str = "", name: str = "", hosts: Sequence[str] = (), command: str = "") -> Finding:
    """Return what a reader or a check found; its check in _checks has the texts that are empty, and where it was found has the hosts."""
    return Finding(name, "", severity, tuple(hosts), text, why, remedy, command)


Entry = TypeVar("Entry", bound=Any)  # a NamedTuple with `hosts`


def merged(entries: Iterable[Entry]) -> list[Entry]:
    """Return the entries in their order; those that differ in their hosts only become one."""
    hosts_of: dict[Entry, dict[str, None]] = {}
    for entry in entries:
        hosts_of.setdefault(entry._replace(hosts=()), {}).update(dict.fromkeys(entry.hosts))
    return [entry._replace(hosts=tuple(hosts)) for entry, hosts in hosts_of.items()]


def counts(findings: Iterable[Finding]) -> dict[str, int]:
    """Return the number of findings of each severity."""
    shown = [finding.severity for finding in findings]
    return {severity: shown.count(severity) for severity in SEVERITIES}


def clipped(text: str) -> str:
    """Return a text as one line of bounded length."""
    text = " ".join(text.split())
    return text if len(text) <= CLIP else f"{text[: CLIP - 4]} ..."


def _capital(text: str) -> str:
    """Capitalize the first word, unless it is the name of a device or a host."""
    return text[:1].upper() + text[1:] if re.match(r"[a-z]+\b(?!-\w*\d)", text) else text


# --- The cause and the remedy of a module that did not run, from its output.

_ROOT = "nearly everything that the roles do needs root"
SUDO = found("sudo asks for a password", "add -K (--ask-become-pass) to the command, or let the user sudo without a password", _ROOT, name="sudo")
WRONG = SUDO._replace(found="sudo does not accept the password", remedy="run the command again with -K (--ask-become-pass) and the right password")
SUDOERS = SUDO._replace(found="the user is not allowed to use sudo", remedy="add the user to the group sudo, or set ansible_user to a user who may use sudo")
PROMPT = SUDO._replace(
    found="sudo does not answer in time",
    remedy="run the command again when the connection to the node is stable; if sudo asks for a password there, add -K (--ask-become-pass)",
)
PYTHON = found(
    "the Python interpreter is missing",
    "install python3 (3.9 or later) there (apt install python3), or set ansible_python_interpreter",
    "no module runs without it",
    name="python",
)
OLD = PYTHON._replace(found="the Python interpreter is too old")
_FULL = "no module runs without a temporary directory"
SPACE = found("no space is left", "remove files there (df -h, docker system df) and run again", _FULL, name="reachable")

_CAUSES = (
    (WRONG, r"incorrect \w+ password|incorrect password attempt"),
    (
        SUDOERS,
        r"not in the sudoers file|ist nicht in der sudoers-Datei|n'apparaît pas dans le fichier sudoers|is not allowed to (?:run|execute)|may not run sudo",
    ),
    (SUDO, r"missing \w+ password|password is required|a terminal is required|interactive authentication is required"),
    # sudo prints its messages in the language of the node.
    (SUDO, r"^sudo: [^/\n]*(?:passwor[dt]|mot de passe|contraseña|senha|wachtwoord|hasł|парол|パスワード|密码|密碼|암호)"),
    (PROMPT, r"waiting for privilege escalation prompt"),
    (SPACE, r"no space left on device|no usable temporary directory|disk quota exceeded"),
    (OLD, r"requires (?:a minimum of )?Python (?:version )?[\d.]+(?: or newer|\. Current version)"),
    (PYTHON, r"module interpreter .* was not found|python[\d.]*: (?:(?:command )?not found|no such file)|discover .*python|no python interpreters? found"),
)


def cause_of(text: str) -> Finding | None:
    """Return the cause that a failure's text names; None if it names another one."""
    return next((cause for cause, pattern in _CAUSES if re.search(pattern, text, re.IGNORECASE | re.MULTILINE)), None)


def output_of(result: Mapping[str, Any]) -> str:
    """Return what a failed result reports of the connection and of the interpreter; empty if the module itself reported the failure."""
    if not (result.get("unreachable") or "module_stderr" in result or "module_stdout" in result):
        return ""
    return "\n".join(str(result.get(key) or "") for key in ("msg", "module_stderr", "module_stdout"))


def access_finding(cause: Finding, text: str) -> str:
    """Return what was found, with the line of `text` that shows it."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = next((line for line in lines if cause_of(line)), lines[0] if lines else "no reason given").rstrip(".")[:300]
    return f"{cause.found} ({shown})"


def access_sentences(host: str, found: str, cause: Finding) -> str:
    """Return the message for the user: the node, what was found, what to do."""
    return f"{host}: {found}. {cause.remedy[0].upper()}{cause.remedy[1:]}."
