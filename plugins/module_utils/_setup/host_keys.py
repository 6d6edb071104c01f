# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: SSH host keys that ssh-keyscan prints: their fingerprints, which one is shown, and the line of known_hosts. Pure, standard library only."""

from __future__ import annotations

import base64
import binascii
import hashlib
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

# The types by preference, and where a machine keeps its own.
_FILES = {
    "ssh-ed25519": "ed25519",
    "ecdsa-sha2-nistp256": "ecdsa",
    "ecdsa-sha2-nistp384": "ecdsa",
    "ecdsa-sha2-nistp521": "ecdsa",
    "ssh-rsa": "rsa",
}


class HostKey(NamedTuple):
    """One host key: its type, and its base64 text."""

    kind: str
    text: str

    @property
    def fingerprint(self) -> str:
        """The fingerprint as OpenSSH prints it."""
        digest = hashlib.sha256(base64.b64decode(self.text)).digest()
        return "SHA256:" + base64.b64encode(digest).decode("ascii").rstrip("=")

    @property
    def compare(self) -> str:
        """The command that prints the same fingerprint on the machine itself."""
        return f"ssh-keygen -lf /etc/ssh/ssh_host_{_FILES[self.kind]}_key.pub"

    def line(self, name: str) -> str:
        """Return the line of known_hosts; ``name`` is what OpenSSH looks up."""
        return f"{name} {self.kind} {self.text}\n"


def scanned(text: str) -> list[HostKey]:
    """Return the host keys in the output of ssh-keyscan, the preferred type first. Lines of another form are left out."""
    found = []
    for line in text.splitlines():
        match = re.fullmatch(r"[^#\s]\S* (\S+) ([A-Za-z0-9+/]{40,4000}={0,2})\s*", line)
        if match and match.group(1) in _FILES:
            try:
                blob = base64.b64decode(match.group(2), validate=True)
            except binascii.Error:
                continue
            if blob[4 : 4 + len(match.group(1))] == match.group(1).encode("ascii"):
                found.append(HostKey(match.group(1), match.group(2)))
    return sorted(dict.fromkeys(found), key=lambda key: list(_FILES).index(key.kind))


def lookup_name(settings: dict[str, list[str]], address: str) -> str:
    """Return the name under which OpenSSH looks a host key up, by the output of `ssh -G`."""
    name = (settings.get("hostkeyalias") or settings.get("hostname") or [address])[0]
    port = (settings.get("port") or ["22"])[0]
    alias = bool(settings.get("hostkeyalias"))
    return name if port == "22" or alias else f"[{name}]:{port}"


def parse_settings(text: str) -> dict[str, list[str]]:
    """Return the output of `ssh -G`: {key: values}."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, _space, value = line.partition(" ")
        if value and value != "none":
            found.setdefault(key.lower(), []).append(value)
    return found


def fingerprints(given: Any) -> list[str]:
    """Return the fingerprints that the user gave, as a list or separated by commas or blanks."""
    parts = given if isinstance(given, Sequence) and not isinstance(given, str) else re.split(r"[,\s]+", str(given or ""))
    return [str(part).strip().rstrip("=") for part in parts if str(part).strip()]


def fingerprint_fault(given: Sequence[str]) -> str:
    """Return what is wrong with the first fingerprint that is not one; empty if all are."""
    wrong = [each for each in given if not re.fullmatch(r"SHA256:[A-Za-z0-9+/]{43}", each)]
    return f"has {wrong[0]!r}, expected fingerprints of the form SHA256:<43 characters>, as `ssh-keygen -lf FILE` prints them" if wrong else ""


def matching(keys: Sequence[HostKey], given: Sequence[str]) -> HostKey | None:
    """Return the key whose fingerprint is one of the given ones."""
    return next((key for key in keys if key.fingerprint in given), None)
