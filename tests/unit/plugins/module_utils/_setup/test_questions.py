"""What each answer of setup.yml may be."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._inventory.variables import SETUP_ANSWERS
from ansible_collections.gb10.cluster.plugins.module_utils._setup import questions


@pytest.mark.parametrize("value", ["192.168.1.11", "nvidia@10.0.0.5", "spark-ab12.local", "fe80::1%eth0", "spark_1"])
def test_an_address_or_a_name_is_valid(value: str) -> None:
    assert questions.HEAD.check(value) == ""


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("", "empty"),
        ("127.0.0.1", "only this computer"),
        ("localhost", "only this computer"),
        ("::1", "only this computer"),
        ("-x@10.0.0.1", "login name"),
        ("@10.0.0.1", "login name"),
        ("nvidia@127.0.0.1", "only this computer"),
        ("10.0.0.1:22", "ansible_port"),
        ("10.0.0.256", "IPv4"),
        ("0.0.0.0", "only this computer"),
        ("::", "only this computer"),
        ("fe80::1", "interface"),
        ("-oProxyCommand=x", "expected"),
        ("spark 1", "expected"),
        ("$(reboot)", "expected"),
    ],
)
def test_another_address_is_refused_with_the_reason(value: str, word: str) -> None:
    assert word in questions.HEAD.check(value)


def test_the_second_machine_is_not_the_first() -> None:
    check = questions.other_than("10.0.0.1")
    assert (check("10.0.0.2"), "first machine" in check("10.0.0.1")) == ("", True)


@pytest.mark.parametrize("value", ["-l", "a b", "a;b", "", "1a", "a" * 33])
def test_another_login_is_refused(value: str) -> None:
    assert "expected a login name" in questions.user_fault(value)


@pytest.mark.parametrize("value", ["models", "/", "/srv/a:b", "/srv/../etc", "/srv/$HOME", "/srv/'x'", "/etc/models"])
def test_another_model_store_is_refused(value: str) -> None:
    assert "expected an absolute path" in questions.store_fault(value)


def test_a_misspelt_policy_has_the_nearest_word() -> None:
    assert questions.POLICY.check("replcae").endswith("did you mean replace?")
    assert questions.POLICY.check("adopt") == ""


def test_every_question_has_a_variable_of_setup_and_a_reason() -> None:
    asked = [each for each in vars(questions).values() if isinstance(each, questions.Question)]
    assert {each.variable for each in asked} == {f"setup_{name}" for name in SETUP_ANSWERS if name != "inventory"}
    assert all(each.reason or each is questions.HOST_KEY for each in asked), "the reason of a host key has its fingerprint"
