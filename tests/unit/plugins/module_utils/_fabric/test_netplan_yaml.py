"""The YAML of netplan files: plain text stays text, and what hides the configuration of an interface is refused with its line."""

from __future__ import annotations

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_yaml import YamlError, parse_yaml

P0 = "enp1s0f0np0"


def test_reads_files_as_tools_write_them() -> None:
    assert parse_yaml(
        f"# x\nnetwork:\n  ethernets:\n    {P0}:\n      mtu: 9000 # y\n      addresses: [192.168.200.12/24,\n        '1.2.3.4/24']\n    b:\n"
    ) == {"network": {"ethernets": {P0: {"mtu": "9000", "addresses": ["192.168.200.12/24", "1.2.3.4/24"]}, "b": ""}}}
    assert parse_yaml("---\na:\n  addresses:\n    - 1.2.3.4/24:\n        lifetime: 0\n    - 1.2.3.5/24\n") == {
        "a": {"addresses": [{"1.2.3.4/24": {"lifetime": "0"}}, "1.2.3.5/24"]}
    }
    assert (parse_yaml(""), parse_yaml("# nothing\n"), parse_yaml("a: {}\n")) == (None, None, {"a": {}})


@pytest.mark.parametrize("text", ["11:22:33:44:55:66", "12:34", "010", "0x1F", "1_000", "2026-01-01", "y", "no", "=", "<<", "9" * 500, "~"])
def test_plain_text_stays_text(text: str) -> None:
    assert parse_yaml(f"a: {text}\nb: [{text}]\n{text}: 1\n") == {"a": text, "b": [text], text: "1"}


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
    "deep nesting": "a: " + "[" * 100_000,
    "bomb of aliases": "a: &a [x, x]\n" + "".join(f"{b}: &{b} [{', '.join(['*' + a] * 9)}]\n" for a, b in zip("abcdefgh", "bcdefghi", strict=True)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_reports_the_line_of_unsupported_text(case: str) -> None:
    with pytest.raises(YamlError, match=r"^line \d+: \w"):
        parse_yaml(BROKEN[case])
