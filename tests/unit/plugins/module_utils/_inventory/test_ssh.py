"""The form of the address and the port by which a host is reached."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory import ssh


@pytest.mark.parametrize("value", ["10.77.0.12", "spark-1", "spark-ab12.local", "fe80::1%enp1s0", "2001:db8::5", "host_1.example.org.", "my-alias"])
def test_an_address_or_a_name_is_accepted(value: str) -> None:
    assert ssh.host_fault(value) == ""


@pytest.mark.parametrize(
    ("value", "part"),
    [
        ("10.77.0.256", "'10.77.0.256', which is not a valid IPv4 address"),
        ("10.77.0.12/24", "not a valid IPv4 address"),
        (12, "'12', which is not"),
        ("0.0.0.0", "which is not the address of one host"),
        ("255.255.255.255", "which is not the address of one host"),
        ("nvidia@10.77.0.12", "set the user in ansible_user"),
        ("10.77.0.12:22", "set the port in ansible_port"),
        ("[2001:db8::5]:22", "set the port in ansible_port"),
        ("spark 1", "expected an IP address or a name"),
        ("https://spark-1", "expected an IP address or a name"),
    ],
)
def test_what_leads_to_no_host_is_named_with_the_variable_to_use(value: Any, part: str) -> None:
    assert part in ssh.host_fault(value)


@pytest.mark.parametrize(("value", "good"), [(22, True), ("2222", True), (None, True), (0, False), (70000, False), ("ssh", False), (True, False)])
def test_a_port_is_from_1_to_65535(value: Any, good: bool) -> None:
    found = ssh.port_fault(value)
    assert (found == "") is good
    assert good or "expected a port from 1 to 65535" in found


def test_an_address_with_a_password_is_not_shown() -> None:
    assert "hunter2" not in ssh.host_fault("admin:hunter2@10.0.0.11")


# --- Each SSH failure has one cause and one remedy. The texts are those of OpenSSH on Linux and macOS, and of ansible-core.

ANSIBLE = "Task failed: Failed to connect to the host via ssh: "
CHANGED = """@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
@    WARNING: REMOTE HOST IDENTIFICATION HAS CHANGED!     @
@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@@
IT IS POSSIBLE THAT SOMEONE IS DOING SOMETHING NASTY!
Add correct host key in /home/me/.ssh/known_hosts to get rid of this message.
Offending ED25519 key in /home/me/.ssh/known_hosts:3
Host key for 192.168.1.11 has changed and you have requested strict checking.
Host key verification failed."""
NEEDS_PASSWORD = (
    "Using a SSH password instead of a key is not possible because Host Key checking is enabled. "
    "Please add this host's fingerprint to your known_hosts file to manage this host."
)
OPEN_KEY = """@         WARNING: UNPROTECTED PRIVATE KEY FILE!          @
Permissions 0644 for '/home/me/.ssh/id_ed25519' are too open.
Load key "/home/me/.ssh/id_ed25519": bad permissions
me@192.168.1.11: Permission denied (publickey,password)."""
CLOSED = "kex_exchange_identification: Connection closed by remote host\nConnection closed by 192.168.1.11 port 22"
NO_FILE = "no such identity: /k: No such file or directory\nme@192.168.1.11: Permission denied (publickey,password)."
UNKNOWN = "No ED25519 host key is known for 192.168.1.11 and you have requested strict checking.\nHost key verification failed."


@pytest.mark.parametrize(
    ("text", "name", "command"),
    [
        (CHANGED, "host_key_changed", "`ssh-keygen -R 192.168.1.11`"),
        (UNKNOWN, "host_key_unknown", "`ssh me@192.168.1.11 true`"),
        (ANSIBLE + "Host key verification failed.", "host_key_unknown", "`ssh me@192.168.1.11 true`"),
        (NEEDS_PASSWORD, "host_key_unknown", "`ssh me@192.168.1.11 true`"),
        ("me@192.168.1.11: Permission denied (publickey,password).", "key_refused", "`ssh-copy-id me@192.168.1.11`"),
        ("me@192.168.1.11: Permission denied (publickey,gssapi-keyex,gssapi-with-mic,password).", "key_refused", "`ssh-copy-id me@192.168.1.11`"),
        ("me@192.168.1.11: Permission denied (publickey).", "key_required", "`cat ~/.ssh/id_*.pub`"),
        ("Invalid/incorrect password: me@192.168.1.11: Permission denied (password).", "password_wrong", "`ssh me@192.168.1.11 true`"),
        ("Received disconnect from 192.168.1.11 port 22:2: Too many authentication failures", "too_many_keys", "`ssh-add -l`"),
        (NO_FILE, "key_missing", "`ssh-copy-id me@192.168.1.11`"),
        (OPEN_KEY, "key_file", "`chmod 600 /home/me/.ssh/id_ed25519`"),
        ("ssh: Could not resolve hostname spark-ab12.local: Name or service not known", "name_not_found", "`hostname -I`"),
        ("ssh: Could not resolve hostname spark-1: Temporary failure in name resolution", "name_not_found", "`hostname -I`"),
        ("ssh: Could not resolve hostname spark-1: nodename nor servname provided, or not known", "name_not_found", "`hostname -I`"),
        ("ssh: Could not resolve hostname spark-1: Name does not resolve", "name_not_found", "`hostname -I`"),
        ("ssh: connect to host 192.168.1.11 port 22: Connection timed out", "off", "`ping -c 3 192.168.1.11`"),
        ("ssh: connect to host 192.168.1.11 port 22: Operation timed out", "off", "`ping -c 3 192.168.1.11`"),
        ("ssh: connect to host 192.168.1.11 port 22: No route to host", "off", "`ping -c 3 192.168.1.11`"),
        ("ssh: connect to host 192.168.1.11 port 22: Host is down", "off", "Wi-Fi"),
        ("ssh: connect to host 192.168.1.11 port 22: Network is unreachable", "off", "`ping -c 3 192.168.1.11`"),
        ("ssh: connect to host 192.168.1.11 port 22: Connection refused", "port_refused", "`sudo systemctl enable --now ssh`"),
        ("Connection timed out during banner exchange\nConnection to 192.168.1.11 port 22 timed out", "slow", "Wi-Fi"),
        ("Timeout, server 192.168.1.11 not responding.", "slow", "`ip -br address show`"),
        (CLOSED, "closed", "`sudo journalctl -u ssh -n 20`"),
        ("kex_exchange_identification: read: Connection reset by peer", "closed", "`sudo journalctl -u ssh -n 20`"),
        ("/home/me/.ssh/config: line 3: Bad configuration option: foo", "client", "~/.ssh/config"),
        ('unix_listener: path "/Users/me/a-long-path" too long for Unix domain socket', "client", "ANSIBLE_SSH_CONTROL_PATH_DIR"),
        ("Unable to negotiate with 192.168.1.11 port 22: no matching host key type found. Their offer: ssh-rsa", "negotiation", "`ssh -V`"),
    ],
)
def test_names_the_cause_and_one_command(text: str, name: str, command: str) -> None:
    assert ssh.cause(text) == name
    assert command in ssh.remedy(text, "spark-1", "192.168.1.11", "me")
    assert ssh.sentences(text, "spark-1", "192.168.1.11", "me").startswith("spark-1 (192.168.1.11): ")


def test_a_text_without_a_cause_has_no_remedy() -> None:
    text = "MODULE FAILURE: see stdout"
    assert (ssh.cause(text), ssh.found(text), ssh.remedy(text, "a", "b"), ssh.sentences(text, "a", "b")) == ("", "", "", "")


def test_shows_the_line_without_the_words_of_ansible() -> None:
    found = ssh.found(f"{ANSIBLE}ssh: connect to host spark-1 port 22: No route to host\r\n")
    assert found == "it does not answer (ssh: connect to host spark-1 port 22: No route to host)"


def test_commands_have_the_port_and_quote_what_the_inventory_has() -> None:
    assert "`ssh-copy-id -p 2222 me@spark-1`" in ssh.remedy("Permission denied (password).", "spark-1", "spark-1", "me", 2222)
    assert "`ssh-keygen -R '[spark-1]:2222'`" in ssh.remedy(CHANGED, "spark-1", "spark-1", "me", 2222)
    assert "'me@a; reboot'" in ssh.remedy("Permission denied (password).", "spark-1", "a; reboot", "me")


def test_a_remedy_never_turns_the_check_of_host_keys_off() -> None:
    remedies = [ssh.remedy(text, "spark-1", "a", "me") for text in (CHANGED, UNKNOWN, NEEDS_PASSWORD)]
    assert all(ssh.COMPARE in each and "StrictHostKeyChecking" not in each for each in remedies)


def test_a_warning_about_a_key_is_not_the_cause_of_a_timeout() -> None:
    text = "Warning: Identity file /k not accessible: No such file or directory.\nssh: connect to host 10.0.0.1 port 22: Connection timed out"
    assert ssh.cause(text) == "off"
    assert ssh.cause('Load key "/k": error in libcrypto\nme@10.0.0.1: Permission denied (publickey,password).') != "key_file"
