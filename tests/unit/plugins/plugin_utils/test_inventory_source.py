"""File and line of definitions in an inventory."""

from __future__ import annotations

from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.plugin_utils.inventory_source import Index, scan
from unit.fixtures.host.tree import write

GROUPS = {"all": ["a", "b"], "ungrouped": [], "gb10": ["a", "b"], "pair1": ["a", "b"]}
HOSTS = """all:
  vars:
    x: 1
gb10:
  vars:
    x: 2
  children:
    pair1:
      vars:
        x: 3
      hosts:
        a:
          x: 4
        b:
"""


def place(index: Index, host: str, key: str) -> tuple[str, str, str, int] | None:
    """(kind, owner, file's name, line) of what wins for a host."""
    found = index.find(host, key, GROUPS)
    return (found[0], found[1], found[2].path.name, found[2].line) if found else None


@pytest.mark.parametrize(
    ("files", "host", "expected"),
    [
        pytest.param({}, "a", ("host", "a", "hosts.yml", 13), id="host in the file"),
        pytest.param({}, "b", ("group", "pair1", "hosts.yml", 10), id="deepest group in the file"),
        pytest.param({"group_vars__all": "y: 0\nx: 5"}, "b", ("group", "all", "all.yml", 2), id="group_vars/all over groups of the file"),
        pytest.param({"group_vars__gb10": "x: 5", "group_vars__all": "x: 5"}, "b", ("group", "gb10", "gb10.yml", 1), id="group over all"),
        pytest.param({"group_vars__gb10": "x: 5", "group_vars__pair1": "x: 5"}, "b", ("group", "pair1", "pair1.yml", 1), id="child over parent"),
        pytest.param({"group_vars__pair1": "x: 5"}, "a", ("host", "a", "hosts.yml", 13), id="host over group"),
        pytest.param({"host_vars__a": "# here\nx: 5"}, "a", ("host", "a", "a.yml", 2), id="host_vars over the file"),
        pytest.param({"group_vars__pair1__serving": "x: 5"}, "b", ("group", "pair1", "serving.yml", 1), id="directory of group_vars"),
    ],
)
def test_finds_the_definition_with_the_highest_precedence(files: dict[str, str], host: str, expected: tuple[str, str, str, int], tmp_path: Path) -> None:
    assert place(scan([str(write(tmp_path, hosts=HOSTS, **files))]), host, "x") == expected


def test_group_vars_of_the_playbook_override_those_of_the_inventory(tmp_path: Path) -> None:
    inventory = write(tmp_path / "inv", hosts=HOSTS, group_vars__gb10="x: 5")
    play = write(tmp_path / "play", group_vars__gb10="\n\nx: 6")
    assert place(scan([str(inventory)], [str(play)]), "b", "x") == ("group", "gb10", "gb10.yml", 3)
    assert len(scan([str(inventory)], [str(inventory)]).entries["group", "gb10", "x"]) == 2


def test_reads_group_vars_of_a_single_file(tmp_path: Path) -> None:
    folder = write(tmp_path, hosts=HOSTS, group_vars__pair1="\nx: 5", other="c: {hosts: {z: }}")
    index = scan([str(folder / "hosts.yml")])
    assert place(index, "b", "x") == ("group", "pair1", "pair1.yml", 2)
    assert ("host", "z", "z") not in index.entries


def test_reads_ini_files(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text('# ours\n[pair1]\na x=1 y="2 3" # why\nb\n\n[pair1:vars]\nz = 1\n[gb10:children]\npair1\n[broken\n', encoding="utf-8")
    index = scan([str(path)])
    assert place(index, "a", "y") == ("host", "a", "hosts", 3)
    assert place(index, "b", "z") == ("group", "pair1", "hosts", 7)
    assert index.depth("pair1") == index.depth("gb10") + 1
    assert index.entries["group", "pair1", "b"][0].line == 4


def test_returns_the_line_of_a_part_of_a_value(tmp_path: Path) -> None:
    index = scan([str(write(tmp_path, hosts="gb10:\n  vars:\n    x:\n      - a\n      - b:\n          c: 1\n"))])
    (entry,) = index.entries["group", "gb10", "x"]
    assert [entry.line_of(below) for below in ((), (0,), (1,), (1, "b", "c"), (1, "q"), (7,), (0, "deep"))] == [3, 4, 5, 6, 5, 3, 4]


def test_does_not_decrypt(tmp_path: Path) -> None:
    folder = write(tmp_path, hosts="gb10:\n  vars:\n    x: !vault |\n      abc\n    y: z\n", group_vars__gb10="$ANSIBLE_VAULT;1.1;AES256\n6162\n")
    index = scan([str(folder)])
    assert index.entries["group", "gb10", "y"][0].line == 5
    assert (index.unreadable, [path.name for path in index.encrypted]) == ([], ["gb10.yml"])


@pytest.mark.parametrize("content", ["", "---\n", "# nothing\n", "---\n~\n", "{}\n", "a: !unsafe b\nc: !vault |\n  d\n"])
def test_accepts_empty_files_and_tags_of_ansible(content: str, tmp_path: Path) -> None:
    assert scan([str(write(tmp_path, hosts=HOSTS, group_vars__gb10=content))]).unreadable == []


@pytest.mark.parametrize("source", ["a,b,", "/does/not/exist", ""], ids=["list of hosts", "nowhere", "empty"])
def test_accepts_sources_without_files(source: str) -> None:
    index = scan([source]) if source else scan([])
    assert index.entries == {}
    assert index.find("a", "x", GROUPS) is None


def test_does_not_read_scripts_and_backups(tmp_path: Path) -> None:
    write(tmp_path, hosts=HOSTS)
    (tmp_path / "hosts.yml~").write_text("gb10:\n  vars:\n    old: 1\n", encoding="utf-8")
    script = tmp_path / "source.sh"
    script.write_text("#!/bin/sh\n[gb10]\nzz old=1\n", encoding="utf-8")
    script.chmod(0o755)
    assert "old" not in scan([str(tmp_path)]).variables()


def test_the_depth_of_circular_groups_ends(tmp_path: Path) -> None:
    index = scan([str(write(tmp_path, hosts="a:\n  children:\n    b:\nb:\n  children:\n    a:\n"))])
    assert index.depth("a") >= 1


def test_a_key_that_stands_twice_is_found_in_any_mapping_without_its_value(tmp_path: Path) -> None:
    folder = write(tmp_path, hosts=HOSTS, group_vars__gb10="a: 1\nb:\n  - {c: 1, d: 2, c: 3}\na: 2\n<<: {e: 1}\n<<: {f: 1}\n")
    path = folder / "group_vars" / "gb10.yml"
    assert sorted(scan([str(folder)]).repeated) == [(path, 3, "c", 3), (path, 4, "a", 1)]
