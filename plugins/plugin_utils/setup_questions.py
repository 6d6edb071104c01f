# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what setup.yml asks, and the terminal that it asks on, with any stdout callback. Controller only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ansible.errors import AnsibleActionFail, AnsiblePromptInterrupt, AnsiblePromptNoninteractive
from ansible.utils.display import Display
from ansible_collections.gb10.cluster.plugins.module_utils._core.text import did_you_mean, printable
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.rules import RULES
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.ssh import host_fault, is_here

_YES, _NO = ("y", "yes", "true", "1"), ("n", "no", "false", "0")


class Question(NamedTuple):
    """One question: the extra variable that answers it, its text, why it is asked, and what is wrong with an answer (empty if nothing is)."""

    variable: str
    text: str
    reason: str
    check: Callable[[str], str]


class NoTerminalError(AnsibleActionFail):
    """No terminal is there to ask on."""


def login_of(value: str) -> tuple[str, str]:
    """Return (login, address) of USER@ADDRESS; the login is empty if the answer is an address alone."""
    user, _at, address = value.strip().rpartition("@")
    return user, address


def machine_fault(value: str) -> str:
    """Return what is wrong with an address that can have a login in front."""
    user, text = login_of(value)
    if "@" in value and user_fault(user):
        return user_fault(user)
    if not text or text.startswith("-"):
        return f"is {text!r}, expected an IP address or a name"
    if is_here(text.partition("%")[0]):
        return f"is {text!r}, which only this computer reaches; give the address that it has in your network"
    if re.match(r"fe[89ab][0-9a-f]:", text.lower()) and "%" not in text:
        return f"is {text!r}, a link-local address without its interface; write {text}%INTERFACE, or give the IPv4 address"
    return host_fault(text)


def user_fault(value: str) -> str:
    """Return what is wrong with a login."""
    return "" if re.fullmatch(r"[A-Za-z_][A-Za-z0-9._-]{0,31}", value.strip()) else f"is {value.strip()!r}, expected a login name, such as nvidia"


def choice(known: Sequence[str]) -> Callable[[str], str]:
    """Return the check of a word that is one of several."""
    return lambda value: "" if value in known else f"is {value!r}, expected one of {', '.join(known)}{did_you_mean(value, known)}"


def _store_fault(value: str) -> str:
    rule = RULES["gb10_model_store"]
    if re.search(r"[\"'\\]", value):
        return f"is {value!r}, expected an absolute path such as /srv/models, without quotes and backslashes"
    return "" if rule.fits(value) else f"is {value!r}, expected {rule.expected}"


def _yes_no_fault(value: str) -> str:
    return "" if value.lower() in _YES + _NO else f"is {value!r}, expected yes or no"


HEAD = Question(
    "setup_head",
    "Name or address of the first Spark",
    "The first machine is the head: it serves the API. Its name is on the sticker of the machine (spark-ab12.local), or `hostname -I` prints its address. "
    "Use the wired port if it has one.",
    machine_fault,
)
WORKER = Question("setup_worker", "Name or address of the second Spark", "The second machine is the worker. The cable connects it to the first.", machine_fault)
USER = Question("setup_user", "Login on both machines", "Ansible logs in over SSH as this user, who may use sudo.", user_fault)
MAKE_KEY = Question(
    "The answer",
    "Make an SSH key on this computer?",
    "This computer has no SSH key. Ansible needs one: no run can ask for a password in its middle. The new key has no passphrase.",
    _yes_no_fault,
)
PROFILE = Question("gb10_profile", "Profile, its number or name", "A profile is what the pair serves: a model, its image, and all settings.", str)
STORE = Question(
    "gb10_model_store",
    "Folder of the model weights on both machines",
    "The weights are downloaded to one machine and copied to the other over the cable. Each needs the space.",
    _store_fault,
)
POLICY = Question(
    "roce_foreign_policy",
    "What to do with this network configuration",
    "adopt: it stays in charge of the addresses. replace: its netplan files move to /root/netplan-disabled, and come back with roce_state=absent. "
    "refuse: site.yml stops before it changes anything.",
    choice(("adopt", "replace", "refuse")),
)
WRITE = Question("setup_write", "Write it?", "Only these files change.", _yes_no_fault)
# The answers that -e can give, and the folder.
VARIABLES = ("setup_inventory", *(each.variable for each in (HEAD, WORKER, USER, PROFILE, STORE, POLICY, WRITE)))


class Terminal:
    """Asks and prints. Display passes both to the main process, because the worker of a task has no terminal."""

    def show(self, *lines: str, color: str | None = None) -> None:
        """Print lines."""
        for line in lines:
            Display().display(printable(line), color=color)

    def typed(self, prompt: str, missing: str, private: bool = False) -> str:
        """Return what the user types; a private answer is not shown. `missing` is the sentence for a run without a terminal. Raises AnsibleActionFail."""
        try:
            answer: Any = Display().prompt_until(printable(prompt), private=private)
        except AnsiblePromptNoninteractive:
            raise NoTerminalError(f"setup.yml has no terminal to ask on. {missing}") from None
        except AnsiblePromptInterrupt:
            raise AnsibleActionFail("setup.yml was stopped by the user. No inventory was written. Run it again to continue.") from None
        return bytes(answer).decode("utf-8", "replace").strip("\r\n")

    def ask(self, question: Question, default: str = "", given: Any = None, needed: bool = False) -> str:
        """Return a valid answer: the given one, else that of the user, else the default, which is not taken without a terminal if the answer is needed."""
        text = str(given if given is not None else "").strip()
        if text and question.check(text):
            raise AnsibleActionFail(f"{question.variable} {question.check(text)}.")
        fault = ""
        while not text:
            shown = f"{question.variable} {fault}.\n" if fault else ""
            prompt = f"\n{shown}{question.reason}\n{question.text}{f' [{default}]' if default else ''}:"
            try:
                typed = self.typed(prompt, f"Add -e {question.variable}=VALUE ({question.text}).").strip() or default
            except NoTerminalError:
                if needed or not default:
                    raise
                return default
            fault = question.check(typed) if printable(typed) == typed else f"is {printable(typed)!r}, which has characters that cannot be printed"
            text = "" if fault else typed
        return text

    def confirm(self, question: Question, default: str = "yes", given: Any = None, needed: bool = False) -> bool:
        """Return whether the answer is yes."""
        return self.ask(question, default, given, needed).lower() in _YES
