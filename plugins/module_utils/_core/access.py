# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. The cause and the remedy of a module that did not run, from its output. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.finding import Finding, found

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


def text_of(result: Mapping[str, Any]) -> str:
    """Return what a failed result reports of the connection and of the interpreter; empty if the module itself reported the failure."""
    if not (result.get("unreachable") or "module_stderr" in result or "module_stdout" in result):
        return ""
    return "\n".join(str(result.get(key) or "") for key in ("msg", "module_stderr", "module_stdout"))


def file_of(text: str) -> str:
    """Return the path that a message about missing space names, or the directory for temporary files."""
    named = re.search(r"['\u2018\"](/[^'\u2019\"]+)['\u2019\"]", text)
    return named.group(1) if named else "/tmp"  # noqa: S108  the node's directory for temporary files, only named


def full_file_system(df: str) -> str:
    """Return the mount point of the fullest file system in the output of `df -P`; empty if there is none."""
    rows = [line.split(None, 5) for line in df.splitlines()[1:]]
    full = sorted((int(row[3]), row[5]) for row in rows if len(row) == 6 and row[3].lstrip("-").isdigit())
    return full[0][1] if full else ""


def finding(cause: Finding, text: str, mount: str = "") -> str:
    """Return what was found and where, with the line of `text` that shows it."""
    where = f" on {mount}, the file system of {file_of(text)}" if mount else f" for {file_of(text)}" if cause is SPACE else ""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    shown = next((line for line in lines if cause_of(line)), lines[0] if lines else "no reason given").rstrip(".")[:300]
    return f"{cause.found}{where} ({shown})"


def sentences(host: str, found: str, cause: Finding) -> str:
    """Return the message for the user: the node, what was found, what to do."""
    return f"{host}: {found}. {cause.remedy[0].upper()}{cause.remedy[1:]}."
