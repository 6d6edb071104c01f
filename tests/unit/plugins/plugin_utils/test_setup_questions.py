"""What each answer of setup.yml may be."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import PLAYBOOK_SPEC
from ansible_collections.gb10.cluster.plugins.plugin_utils import setup_questions as questions


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "expected"),
        ("127.0.0.1", "only this computer"),
        ("localhost", "only this computer"),
        ("-x@10.0.0.1", "login name"),
        ("@10.0.0.1", "login name"),
        ("nvidia@127.0.0.1", "only this computer"),
        ("10.0.0.1:22", "ansible_port"),
        ("10.0.0.256", "IPv4"),
        ("::", "only this computer"),
        ("fe80::1", "interface"),
        ("-oProxyCommand=x", "expected"),
        ("spark 1", "expected"),
        ("$(reboot)", "expected"),
    ],
)
def test_another_address_is_refused_with_the_reason(value: str, word: str) -> None:
    assert word in questions.HEAD.check(value)


@pytest.mark.parametrize("value", ["-l", "a b", "a;b", "", "1a", "a" * 33])
def test_another_login_is_refused(value: str) -> None:
    assert "expected a login name" in questions.USER.check(value)


@pytest.mark.parametrize("value", ["models", "/", "/srv/a:b", "/srv/../etc", "/srv/$HOME", "/srv/'x'", "/etc/models"])
def test_another_model_store_is_refused(value: str) -> None:
    assert "expected an absolute path" in questions.STORE.check(value)


def test_the_command_line_knows_each_variable_of_setup() -> None:
    own = {name for name in questions.VARIABLES if name.startswith("setup_")}
    assert own == {name for name in PLAYBOOK_SPEC if name.startswith("setup_")}
