"""The login of a node in a command to copy."""

from __future__ import annotations

from typing import Any

import pytest
from ansible import context
from ansible_collections.gb10.cluster.plugins.plugin_utils.node_login import ssh_words


@pytest.mark.parametrize(
    ("values", "given", "words"),
    [
        pytest.param({}, {}, ["spark-1"], id="a name of ssh"),
        pytest.param({"ansible_host": "10.0.0.11", "ansible_user": "nvidia"}, {}, ["nvidia@10.0.0.11"], id="login and address"),
        pytest.param(
            {"ansible_host": "10.0.0.11", "ansible_user": "nvidia", "ansible_port": 2222, "ansible_ssh_private_key_file": "~/.ssh/gb10"},
            {},
            ["-p", "2222", "-i", "~/.ssh/gb10", "nvidia@10.0.0.11"],
            id="port and key, as make pair writes them",
        ),
        pytest.param({"ansible_port": 22}, {}, ["spark-1"], id="the usual port"),
        pytest.param(
            {"ansible_ssh_user": "a", "ansible_user": "b", "ansible_ssh_host": "h", "ansible_ssh_port": "23", "ansible_private_key_file": "k"},
            {},
            ["-p", "23", "-i", "k", "a@h"],
            id="other names",
        ),
        pytest.param(
            {"ansible_ssh_common_args": "-o ProxyJump=gate -o UserKnownHostsFile='/my dir/known'"},
            {},
            ["-o", "ProxyJump=gate", "-o", "UserKnownHostsFile=/my dir/known", "spark-1"],
            id="options of ssh",
        ),
        pytest.param({}, {"remote_user": "me", "private_key_file": "/k", "connection": "ssh"}, ["-i", "/k", "me@spark-1"], id="command line"),
        pytest.param({"ansible_connection": "local", "ansible_host": "10.0.0.11"}, {}, [], id="the controller"),
        pytest.param({"ansible_connection": "ansible.builtin.local"}, {}, [], id="the controller by its full name"),
        pytest.param({"ansible_connection": "ssh"}, {"connection": "local"}, ["spark-1"], id="the inventory wins"),
    ],
)
def test_the_words_of_ssh_are_those_of_the_inventory(values: dict[str, Any], given: dict[str, Any], words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(context, "CLIARGS", given)
    assert ssh_words(values, "spark-1") == words
