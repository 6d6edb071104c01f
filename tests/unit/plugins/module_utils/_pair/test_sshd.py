"""What the output of `sshd -T -C` means for the head's key."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._pair import session

USUAL = """port 22
addressfamily any
listenaddress [::]:22
permitrootlogin without-password
pubkeyauthentication yes
passwordauthentication no
authorizedkeysfile .ssh/authorized_keys .ssh/authorized_keys2
authenticationmethods any
chrootdirectory none
forcecommand none
pubkeyacceptedalgorithms ssh-ed25519-cert-v01@openssh.com,ssh-ed25519,rsa-sha2-512
subsystem sftp /usr/lib/openssh/sftp-server
"""
ARGUMENTS: dict[str, Any] = {"groups": ["gb10-agent"], "host": "spark-1", "address": "192.168.200.11"}


def problems(*lines: str, without: str = "") -> list[str]:
    kept = [line for line in USUAL.splitlines() if not (without and line.startswith(without))]
    return session.sshd_problems("\n".join([*kept, *lines]) + "\n", **ARGUMENTS)


ALLOWED = {
    "factory default": [],
    "the user": ["allowusers admin", "allowusers gb10-agent"],
    "several in one line": ["allowusers admin gb10-agent"],
    "a pattern": ["allowusers gb10-*"],
    "the user from the rail": ["allowusers gb10-agent@192.168.200.0/24"],
    "the user from the address": ["allowusers gb10-agent@192.168.200.*"],
    "the user from the host": ["allowusers *@Spark-?"],
    "another user from anywhere": ["denyusers gb10-agent2", "denyusers guest@*"],
    "the user from another network": ["denyusers gb10-agent@10.0.0.0/8"],
    "the group": ["allowgroups sudo", "allowgroups gb10-*"],
    "another group": ["denygroups guests"],
    "fewer sessions": ["maxsessions 4"],
}


@pytest.mark.parametrize("lines", ALLOWED.values(), ids=ALLOWED.keys())
def test_settings_that_let_the_head_in(lines: list[str]) -> None:
    assert problems(*lines) == []


REFUSED = {
    "keys are off": (["pubkeyauthentication no"], "pubkeyauthentication", "PubkeyAuthentication no", "Set PubkeyAuthentication yes in a block"),
    "other users": (["allowusers admin", "allowusers root"], "", "AllowUsers admin root", "Add gb10-agent to AllowUsers"),
    "the user from elsewhere": (["allowusers gb10-agent@10.0.0.0/8"], "", "AllowUsers gb10-agent@10.0.0.0/8", "Add gb10-agent to AllowUsers"),
    "denied": (["denyusers gb10-*"], "", "DenyUsers gb10-*", "Change DenyUsers so that it does not match gb10-agent"),
    "other groups": (["allowgroups sudo"], "", "AllowGroups sudo", "Add the group gb10-agent to AllowGroups"),
    "denied group": (["denygroups *"], "", "DenyGroups *", "Change DenyGroups so that it does not match the group gb10-agent"),
    "keys elsewhere": (["authorizedkeysfile /etc/ssh/keys/%u"], "authorizedkeysfile", "AuthorizedKeysFile /etc/ssh/keys/%u", "Add .ssh/authorized_keys"),
    "no key files": (["authorizedkeysfile none"], "authorizedkeysfile", "AuthorizedKeysFile none", "Add .ssh/authorized_keys"),
    "a command": (["forcecommand internal-sftp"], "forcecommand", "ForceCommand internal-sftp", "Set ForceCommand none in a block Match User gb10-agent"),
    "a root": (["chrootdirectory /srv/%u"], "chrootdirectory", "ChrootDirectory /srv/%u", "Set ChrootDirectory none"),
    "two factors": (["authenticationmethods publickey,password"], "authenticationm", "AuthenticationMethods publickey,", "Set AuthenticationMethods"),
    "refused": (["refuseconnection yes"], "", "RefuseConnection yes", "Set RefuseConnection no"),
    "key types": (["pubkeyacceptedalgorithms rsa-sha2-512"], "pubkeyaccepted", "PubkeyAcceptedAlgorithms rsa-sha2-512", "Add ssh-ed25519"),
}


@pytest.mark.parametrize(("lines", "without", "found", "remedy"), REFUSED.values(), ids=REFUSED.keys())
def test_settings_that_keep_the_head_out(lines: list[str], without: str, found: str, remedy: str) -> None:
    (problem,) = problems(*lines, without=without)
    assert problem.startswith(f"sshd has {found}")
    assert f" for user gb10-agent from spark-1 (192.168.200.11). {remedy}" in problem
    assert problem.endswith(" in /etc/ssh/sshd_config, and reload sshd.")


def test_every_violation_is_reported() -> None:
    assert len(problems("pubkeyauthentication no", "allowusers admin", "denygroups gb10-agent", without="pubkeyauthentication")) == 3


def test_the_output_for_a_match_block_decides() -> None:
    """`Match User gb10-agent` with its own values: sshd -T prints the effective ones only."""
    matched = USUAL.replace("forcecommand none", "forcecommand /usr/local/sbin/gb10 connect").replace("permitrootlogin without-password", "permittty no")
    assert session.sshd_problems(matched, **ARGUMENTS) == []
    overridden = USUAL.replace("forcecommand none", "forcecommand /bin/false")
    assert session.sshd_problems(overridden, **ARGUMENTS) != []


@pytest.mark.parametrize(("text", "port"), [(USUAL, 22), ("port 2222\nport 22\n", 2222), ("", 22), ("port 0\n", 22), ("Port 2022\n", 2022)])
def test_the_port(text: str, port: int) -> None:
    assert session.sshd_port(text) == port
