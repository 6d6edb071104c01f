"""The YAML of netplan files: as PyYAML's safe loader reads it, but for plain text that YAML 1.1 takes for numbers and dates."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_yaml import YamlError, parse_yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

P0 = "enp1s0f0np0"


@pytest.fixture(params=["libyaml", "pure Python"], autouse=True)
def parser(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run each test with both parsers of PyYAML."""
    if request.param == "pure Python":
        monkeypatch.delattr(yaml, "CBaseLoader")


TEXTS = {
    "unsloth": f"network:\n  version: 2\n  renderer: NetworkManager\n  ethernets:\n    {P0}:\n      dhcp4: no\n      mtu: 9000\n"
    "      addresses: [192.168.200.12/24]\n",
    "eugr": f"network:\n    version: 2\n    ethernets:\n        {P0}:\n            dhcp4: false\n            dhcp6: false\n            link-local: []\n"
    "            mtu: 9000\n            addresses:\n            - 10.20.0.11/24\n",
    "indented list": "network:\n  ethernets:\n    a:\n      addresses:\n        - 1.2.3.4/24\n        - 1.2.3.5/24\n",
    "address options": "network:\n  ethernets:\n    a:\n      addresses:\n"
    "        - 1.2.3.4/24:\n            lifetime: 0\n            label: x\n        - 1.2.3.5/24\n",
    "flow over lines": "network:\n  ethernets:\n    a:\n      addresses: [1.2.3.4/24,\n        1.2.3.5/24]\n      mtu: 9000\n",
    "flow map": "network: {version: 2, ethernets: {a: {dhcp4: no, addresses: [1.2.3.4/24, '1.2.3.5/24']}}}\n",
    "routes": "network:\n  ethernets:\n    a:\n      routes:\n"
    "        - to: default\n          via: 10.0.0.1\n        - to: 10.1.0.0/16\n          via: 10.0.0.2\n",
    "quotes": "network:\n  wifis:\n    w:\n      access-points:\n        \"my: net # 1\": {password: 'a b # c'}\n",
    "comments": "# top\nnetwork: # the network\n  # inside\n  version: 2 # two\n\n  ethernets:\n    a: {}\n",
    "document marks": "---\nnetwork:\n  version: 2\n",
    "mac": "network:\n  ethernets:\n    x:\n      match: {macaddress: '4c:bb:47:2c:00:01'}\n      set-name: rail0\n",
    "nulls": "network:\n  ethernets:\n    a:\n    b: ~\n    c: null\n",
    "empty": "",
    "only comments": "# nothing\n",
    "empty ethernets": "network:\n  version: 2\n  ethernets: {}\n",
    "ipv6": "network:\n  ethernets:\n    a:\n      addresses: ['2001:db8::1/64']\n      gateway6: fe80::1\n",
    "block text": "network:\n  a: |\n    text\n",
    "list of lists": "a:\n- - 1\n  - 2\n- 3\n",
}


@pytest.mark.parametrize("case", TEXTS)
def test_reads_what_the_safe_loader_reads(case: str) -> None:
    assert parse_yaml(TEXTS[case]) == yaml.safe_load(TEXTS[case])


@pytest.mark.parametrize(
    "text", ["11:22:33:44:55:66", "12:34", "010", "0x1F", "1_000", "1.5", "1e3", "2026-01-01", "y", "=", "<<", ".inf", "9" * 5000, "0o7", "192.168.1.1/24"]
)
def test_plain_text_stays_text(text: str) -> None:
    assert parse_yaml(f"a: {text}\nb: [{text}]\n") == {"a": text, "b": [text]}


@pytest.mark.parametrize("key", ["on", "no", "010", "1", "12:34", "null", "~"])
def test_keys_stay_text(key: str) -> None:
    assert parse_yaml(f"{key}: 1\n") == parse_yaml(f"{{{key}: 1}}\n") == {key: 1}


@pytest.mark.parametrize(
    ("text", "value"), [("9000", 9000), ("-1", -1), ("+5", 5), ("'9000'", "9000"), ("Yes", True), ("OFF", False), ("'no'", "no"), ("~", None)]
)
def test_resolves_null_booleans_and_decimal_integers(text: str, value: Any) -> None:
    assert parse_yaml(f"a: {text}\n") == {"a": value}


NAMES = st.text(alphabet="abcdefghijklmnopqrstuvwxyzABCP0123456789-", min_size=1, max_size=9)
SCALARS = st.one_of(
    st.integers(min_value=0, max_value=65535),
    st.booleans(),
    NAMES,
    st.builds("{}.{}.{}.{}/{}".format, *[st.integers(0, 255)] * 4, st.integers(0, 32)),
    st.text(alphabet="abc :#{}[],'\"-/.", max_size=8),
    st.none(),
)
VALUES = st.recursive(SCALARS, lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)), max_leaves=12)


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow])
@given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=3), st.sampled_from([None, True, False]), st.booleans())
def test_reads_what_pyyaml_writes(data: dict[str, Any], flow: bool | None, wide: bool) -> None:
    assert parse_yaml(yaml.safe_dump(data, default_flow_style=flow, width=1000 if wide else 40)) == data


BROKEN = {
    "tab": "network:\n\tversion: 2\n",
    "anchor": "network:\n  a: &x {b: 1}\n",
    "alias": "network:\n  a: *x\n",
    "open list": "network:\n  a: [1, 2\n",
    "open quote": "network:\n  a: 'x\n",
    "bad indentation": "network:\n  a: 1\n    b: 2\n",
    "no map": "network:\n  just words\n  more: 1\n",
    "twice": "network:\n  a: 1\n  a: 2\n",
    "dedent": "    a: 1\n  b: 2\n",
    "twice in a flow map": "network: {a: 1, a: 2}\n",
    "tag": "network:\n  a: !!python/name:os.system x\n",
    "second document": "network:\n  a: 1\n---\nnetwork:\n  a: 2\n",
    "key that is a list": "network:\n  ? [a]\n  : 1\n",
    "control character": "network:\n  a: \x07\n",
    "not UTF-8": "network:\n  a: \udcff\n",
    "deep nesting": "a: " + "[" * 100_000,
    "bomb of aliases": "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
    "huge": "a: 1\n#" + "x" * 2_000_000,
}


@pytest.mark.parametrize("case", BROKEN)
def test_reports_the_line_of_unsupported_text(case: str) -> None:
    with pytest.raises(YamlError, match=r"^line \d+: \w"):
        parse_yaml(BROKEN[case])
