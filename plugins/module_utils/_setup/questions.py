# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: what setup.yml asks: each question with its variable, its reason, and the form of its answer. Pure, standard library only."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ansible_collections.gb10.cluster.plugins.module_utils._common.words import did_you_mean
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.connection import host_fault, is_here, port_fault
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.rules import RULES

DEFAULT_STORE = "/srv/models"
POLICIES = ("adopt", "replace", "refuse")
_YES, _NO = ("y", "yes", "true", "1"), ("n", "no", "false", "0")

Check = Callable[[str], str]  # what is wrong with an answer, as a phrase; empty if nothing is


class Question(NamedTuple):
    """One question: the extra variable that answers it, its text, and the reason why it is asked."""

    variable: str
    text: str
    reason: str
    check: Check


def address_fault(value: str) -> str:
    """Return what is wrong with the address of a machine."""
    text = value.strip()
    if not text:
        return "is empty, expected an IP address or a name"
    if is_here(text.partition("%")[0]):
        return f"is {text!r}, which only this computer reaches; give the address that it has in your network"
    if re.match(r"fe[89ab][0-9a-f]:", text.lower()) and "%" not in text:
        return f"is {text!r}, a link-local address without its interface; write {text}%INTERFACE, or give the IPv4 address"
    if text.startswith("-"):
        return f"is {text!r}, expected an IP address or a name"
    return host_fault(text)


def login_of(value: str) -> tuple[str, str]:
    """Return (login, address) of USER@ADDRESS; the login is empty if the answer is an address alone."""
    user, _at, address = value.strip().rpartition("@")
    return user, address


def machine_fault(value: str) -> str:
    """Return what is wrong with an address that can have a login in front."""
    user, address = login_of(value)
    return (user_fault(user) if "@" in value else "") or address_fault(address)


def _form(pattern: str, expected: str) -> Check:
    """Return the check of an answer that has to match a pattern."""
    return lambda value: "" if re.fullmatch(pattern, value.strip()) else f"is {value.strip()!r}, expected {expected}"


key_fault = _form(r"~?/[^\x00-\x1f\"'$\\{}]+", "the path of a private key on this computer, such as ~/.ssh/id_ed25519")
user_fault = _form(r"[A-Za-z_][A-Za-z0-9._-]{0,31}", "a login name, such as nvidia")


def other_than(first: str) -> Check:
    """Return the check of the second machine's address, which is not the first one's."""
    return lambda value: machine_fault(value) or ("is the address of the first machine; give that of the second" if login_of(value)[1] == first else "")


def choice_fault(known: Sequence[str]) -> Check:
    """Return the check of a word that is one of several."""
    expected = ", ".join(known)
    return lambda value: "" if value.strip() in known else f"is {value.strip()!r}, expected one of {expected}{did_you_mean(value.strip(), known)}"


def store_fault(value: str) -> str:
    """Return what is wrong with the folder of the model weights."""
    text, rule = value.strip(), RULES["gb10_model_store"]
    if re.search(r"[\"'\\]", text):
        return f"is {text!r}, expected an absolute path such as /srv/models, without quotes and backslashes"
    return "" if rule.fits(text) else f"is {text!r}, expected {rule.expected}"


def yes_no_fault(value: str) -> str:
    """Return what is wrong with the answer to a question of yes or no."""
    return "" if value.strip().lower() in _YES + _NO else f"is {value.strip()!r}, expected yes or no"


def is_yes(value: Any) -> bool:
    """Report whether an answer is a yes."""
    return str(value).strip().lower() in _YES


HEAD = Question(
    "setup_head",
    "Name or address of the first Spark",
    "The first machine is the head: it serves the API. Its name is on the sticker of the machine (spark-ab12.local), or `hostname -I` prints its address. "
    "Use the wired port if it has one.",
    machine_fault,
)
WORKER = Question("setup_worker", "Name or address of the second Spark", "The second machine is the worker. The cable connects it to the first.", machine_fault)
USER = Question(
    "setup_user",
    "Login on both machines",
    "Ansible logs in over SSH as this user, who may use sudo. It is the name that you chose when you set the machines up.",
    user_fault,
)
# Asked only if the value that was given, or that the inventory has, is not valid.
PORT = Question("setup_port", "Port of SSH on both machines", "SSH listens on port 22, unless you changed it.", port_fault)
KEY = Question("setup_key", "Private SSH key of both machines", "SSH uses your own keys, unless you name another one.", key_fault)
HOST_KEY = Question("setup_accept_host_keys", "Is it the same fingerprint?", "", yes_no_fault)
MAKE_KEY = Question(
    "setup_make_key",
    "Make an SSH key on this computer?",
    "This computer has no SSH key. Ansible needs one: no run can ask for a password in its middle. The new key has no passphrase.",
    yes_no_fault,
)
LOCAL = Question(
    "setup_local",
    "Reach it without SSH, as this computer?",
    "This address is one of this computer. Without SSH, no key of its own is needed (`ansible_connection: local`).",
    yes_no_fault,
)
PROFILE = Question(
    "setup_profile",
    "Profile",
    "A profile is what the pair serves: a model, its image, and all settings. You can change it later.",
    lambda value: "" if value.strip() else "is empty",
)
STORE = Question(
    "setup_model_store",
    "Folder of the model weights on both machines",
    "The weights are downloaded to one machine and copied to the other over the cable. Each needs the space.",
    store_fault,
)
POLICY = Question(
    "setup_foreign_policy",
    "What to do with this network configuration",
    "adopt: it stays in charge of the addresses. replace: its netplan files move to /root/netplan-disabled, and come back with roce_state=absent. "
    "refuse: site.yml stops before it changes anything.",
    choice_fault(POLICIES),
)
WRITE = Question("setup_write", "Write it?", "Only these files change. Nothing has changed on the machines, except the SSH key.", yes_no_fault)
