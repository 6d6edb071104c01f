"""The lines of a tunnel: what the key may do, and that the user's own keys stay."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._transfer import ssh_tunnel
from ansible_collections.gb10.cluster.plugins.module_utils._transfer.ssh_tunnel import TunnelError

KEY = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIKM9Z+WSGxabucjA93wQitw0LER6XqZSsEYnnCHxdIWL"


def test_the_key_may_reach_one_port_from_named_addresses_for_a_while() -> None:
    line = ssh_tunnel.authorized_line(f"{KEY} some comment", "gb10-copy-x", 40000, ["10.0.0.2", "10.1.0.2"], "202611210800")
    assert line == (
        f'restrict,port-forwarding,permitopen="127.0.0.1:40000",from="10.0.0.2,10.1.0.2",expiry-time="202611210800" {KEY} gb10-copy-x'
    )


@pytest.mark.parametrize("key", ["", "ssh-dss AAAA", 'command="sh" ' + KEY, KEY + "\nssh-ed25519 AAAA", "ssh-ed25519 AA\"AA"])
def test_only_a_bare_key_is_taken(key: str) -> None:
    with pytest.raises(TunnelError, match="no SSH public key"):
        ssh_tunnel.authorized_line(key, "c", 1, ["10.0.0.2"], "202611210800")


@pytest.mark.parametrize("peer", ["", "*", '10.0.0.2",x', "host"])
def test_only_addresses_may_ask(peer: str) -> None:
    with pytest.raises(TunnelError, match="is no address"):
        ssh_tunnel.authorized_line(KEY, "c", 1, [peer], "202611210800")


@pytest.mark.parametrize("before", ["", f"{KEY} me@laptop\n", f"{KEY} me@laptop", f"# gb10-copy-x is mentioned here.\n{KEY} not-gb10-copy-x\n"])
def test_own_keys_stay_and_ours_go(before: str) -> None:
    during = ssh_tunnel.added(before, "gb10-copy-x", [f"restrict {KEY} gb10-copy-x"])
    assert during.splitlines()[:-1] == before.splitlines()
    assert during.splitlines()[-1].endswith(" gb10-copy-x")
    assert ssh_tunnel.added(during, "gb10-copy-x", [f"restrict {KEY} gb10-copy-x"]) == during
    assert ssh_tunnel.without(during, "gb10-copy-x").splitlines() == before.splitlines()


def test_the_host_is_known_and_no_agent_or_config_is_used() -> None:
    assert ssh_tunnel.known_hosts("10.0.0.1", [f"{KEY} root@spark-1"]) == f"10.0.0.1 {KEY}\n"
    argv = ssh_tunnel.command("/run/x", "nvidia", "10.0.0.1", "10.0.0.2", 5000, 40000)
    assert argv[:3] == ["ssh", "-F", "/dev/null"]
    for word in ("StrictHostKeyChecking=yes", "IdentitiesOnly=yes", "BatchMode=yes", "ExitOnForwardFailure=yes", "127.0.0.1:5000:127.0.0.1:40000"):
        assert word in argv
    assert argv[argv.index("-b") + 1] == "10.0.0.2"
    assert argv[-1] == "nvidia@10.0.0.1"
