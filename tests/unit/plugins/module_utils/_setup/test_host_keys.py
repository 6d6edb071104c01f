"""Host keys of ssh-keyscan: fingerprints as OpenSSH prints them, the preferred type, the name in known_hosts."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._setup import host_keys

ED25519 = "AAAAC3NzaC1lZDI1NTE5AAAAIGgmRR5MiL/AJCvq7x6Ey4NRMteqTHWwWpzl4V7a7CNa"
ECDSA = "AAAAE2VjZHNhLXNoYTItbmlzdHAyNTYAAAAIbmlzdHAyNTYAAABBBL0/253p3DUwpjob6OujgOHLfnC0dYVqQZpGKZugu9qurZsqn8H20W6wZVmMV9FjHPNTu2iQvkWgNPB2vhQx+kU="
FINGERPRINT = "SHA256:plhvoUvCXMV09zskKPOzZ4KTAE0rcWMnby3GXAMQATA"  # ssh-keygen -lf of ED25519
SCAN = f"# 10.0.0.1:22 SSH-2.0-OpenSSH_9.6\n10.0.0.1 ecdsa-sha2-nistp256 {ECDSA}\n10.0.0.1 ssh-ed25519 {ED25519}\n"


def test_the_preferred_key_comes_first_with_the_fingerprint_of_openssh() -> None:
    keys = host_keys.scanned(SCAN)
    assert [key.kind for key in keys] == ["ssh-ed25519", "ecdsa-sha2-nistp256"]
    assert keys[0].fingerprint == FINGERPRINT
    assert keys[0].compare == "ssh-keygen -lf /etc/ssh/ssh_host_ed25519_key.pub"
    assert keys[0].line("10.0.0.1") == f"10.0.0.1 ssh-ed25519 {ED25519}\n"


@pytest.mark.parametrize(
    "line",
    [
        f"10.0.0.1 ssh-dss {ED25519}",
        f"10.0.0.1 ssh-rsa {ED25519}",
        f"10.0.0.1 ssh-ed25519 {ED25519} * ssh-ed25519 {ED25519}",
        f"@cert-authority * ssh-ed25519 {ED25519}",
        "10.0.0.1 ssh-ed25519 AAAA",
        f"10.0.0.1 ssh-ed25519 {'A' * 41}",
        f"10.0.0.1 ssh-ed25519 {'A' * 5000}",
    ],
)
def test_a_line_of_another_form_is_not_a_key(line: str) -> None:
    assert host_keys.scanned(line) == []


@pytest.mark.parametrize("given", [f"{FINGERPRINT},SHA256:{'b' * 43}", [FINGERPRINT], f" {FINGERPRINT} "])
def test_a_given_fingerprint_selects_its_key(given: object) -> None:
    accepted = host_keys.fingerprints(given)
    assert host_keys.fingerprint_fault(accepted) == ""
    key = host_keys.matching(host_keys.scanned(SCAN), accepted)
    assert key is not None
    assert key.fingerprint == FINGERPRINT


@pytest.mark.parametrize("given", ["yes", "true", "*", "SHA256:", "MD5:aa:bb", f"{FINGERPRINT},all"])
def test_a_general_yes_is_not_a_fingerprint(given: str) -> None:
    assert "expected fingerprints of the form" in host_keys.fingerprint_fault(host_keys.fingerprints(given))


def test_no_fingerprint_accepts_no_key() -> None:
    assert host_keys.matching(host_keys.scanned(SCAN), host_keys.fingerprints(None)) is None


@pytest.mark.parametrize(
    ("settings", "name"),
    [
        ("hostname 10.0.0.1\nport 22\n", "10.0.0.1"),
        ("hostname 10.0.0.1\nport 2222\n", "[10.0.0.1]:2222"),
        ("hostname 10.0.0.1\nport 2222\nhostkeyalias spark\n", "spark"),
        ("port 22\nhostkeyalias none\n", "spark-1"),
    ],
)
def test_known_hosts_has_the_name_that_openssh_looks_up(settings: str, name: str) -> None:
    assert host_keys.lookup_name(host_keys.parse_settings(settings), "spark-1") == name
