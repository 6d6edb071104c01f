"""Read-ahead: devices by class and by mount through dm and md, the udev rule, the restore command."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._host import readahead
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import HostError, Node, later_lines
from ansible_collections.gb10.cluster.plugins.module_utils._host.readahead import Block

BLOCKS = {
    block.name: block
    for block in (
        Block("nvme0n1", "nvme0n1", (), 128),
        Block("nvme0n1p2", "nvme0n1", (), None),
        Block("nvme1n1", "nvme1n1", (), 256),
        Block("sda", "sda", (), 128),
        Block("sda1", "sda", (), None),
        Block("md0", "md0", ("nvme1n1", "sda1"), 512),
        Block("dm-0", "dm-0", ("md0",), 512, "vg-models"),
        Block("dm-1", "dm-1", ("nvme0n1p2",), 128, "crypt"),
        Block("loop0", "loop0", (), 128),
    )
}

CHAINS: dict[str, tuple[str, list[str]]] = {
    "a disk": ("nvme0n1", ["nvme0n1"]),
    "a partition is its disk": ("nvme0n1p2", ["nvme0n1"]),
    "dm on md on disk and partition": ("dm-0", ["dm-0", "md0", "nvme1n1", "sda"]),
    "dm on a partition": ("dm-1", ["dm-1", "nvme0n1"]),
    "nothing of that name": ("sdz", []),
}


@pytest.mark.parametrize(("start", "expected"), CHAINS.values(), ids=CHAINS.keys())
def test_chains(start: str, expected: list[str]) -> None:
    assert readahead.chain(start, BLOCKS) == expected


SELECTIONS: dict[str, tuple[dict[str, Any], list[str], int]] = {
    "by class": ({"classes": ["nvme"]}, ["nvme0n1", "nvme1n1"], 0),
    "by mount": ({"mounts": {"/srv/models": ("dm-0", "xfs")}}, ["dm-0", "md0", "nvme1n1", "sda"], 0),
    "by name": ({"names": ["sda1"]}, ["sda"], 0),
    "all three": ({"classes": ["nvme"], "mounts": {"/m": ("nvme0n1p2", "xfs")}, "names": ["sda"]}, ["nvme0n1", "nvme1n1", "sda"], 0),
    "a mount without a device": ({"classes": ["nvme"], "mounts": {"/m": (None, "nfs4 (nas:/m)")}}, ["nvme0n1", "nvme1n1"], 1),
}


def choose(classes: Any = (), mounts: Any = None, names: Any = ()) -> tuple[list[str], list[str]]:
    """Select with defaults."""
    return readahead.select(BLOCKS, classes, mounts or {}, names)


@pytest.mark.parametrize(("case", "devices", "notes"), SELECTIONS.values(), ids=SELECTIONS.keys())
def test_selections(case: dict[str, Any], devices: list[str], notes: int) -> None:
    found = choose(**case)
    assert (found[0], len(found[1])) == (devices, notes)


@pytest.mark.parametrize(("case", "message"), [({"classes": ["ssd"]}, "readahead_classes has ssd"), ({"classes": ["virtio"]}, "matches virtio")])
def test_refusals(case: dict[str, Any], message: str) -> None:
    with pytest.raises(HostError, match=message):
        choose(**case)


@pytest.mark.parametrize(("kb", "page"), [(-4, 4), (70000, 4), (6, 4), (8, 64)])
def test_a_read_ahead_that_the_kernel_would_change_is_refused(kb: int, page: int) -> None:
    with pytest.raises(HostError, match="readahead_load_kb"):
        readahead.check_kb(kb, "readahead_load_kb", page)
    assert readahead.check_kb(128, "readahead_steady_kb", page) == 128


def test_the_rule_names_classes_mappers_and_kernel_names() -> None:
    rule = readahead.render_rule(["dm-0", "md0", "nvme0n1", "sda"], ["nvme"], BLOCKS, 128)
    assert rule.startswith(readahead.MARKER)
    assert [line.split(", ")[3] for line in rule.splitlines()[1:]] == [
        'KERNEL=="nvme[0-9]*n[0-9]*"',
        'ATTR{dm/name}=="vg-models"',
        'KERNEL=="md0"',
        'KERNEL=="sda"',
    ]
    assert rule.count('ATTR{queue/read_ahead_kb}="128"') == 4


def test_rules_that_are_read_later_are_named() -> None:
    text = (
        '# /usr/lib/udev/rules.d/60-block.rules\nATTR{queue/read_ahead_kb}="5"\n\n'
        '# /usr/lib/udev/rules.d/70-look.rules\nATTR{queue/read_ahead_kb}=="5", RUN+="x"\n\n'
        '# /etc/udev/rules.d/99-tune.rules\n# ATTR{queue/read_ahead_kb}="1"\nKERNEL=="sda", ATTR{queue/read_ahead_kb}="4096"\n'
    )
    lines = later_lines(Node("/", lambda _argv: (0, text, "")), "udev/rules.d", readahead.RULE)
    assert readahead.later_rules(lines) == ["/etc/udev/rules.d/99-tune.rules line 2"]


def test_the_restore_command_works_without_a_device_that_was_removed(tmp_path: Path) -> None:
    line = readahead.restore_command({"nvme0n1": 128, "gone": 128}, 60)[-1].replace("/sys/block", str(tmp_path))
    (tmp_path / "nvme0n1/queue").mkdir(parents=True)
    subprocess.run(["/bin/sh", "-c", line], check=True, stderr=subprocess.DEVNULL)
    assert (tmp_path / "nvme0n1/queue/read_ahead_kb").read_text() == "128\n"


def test_a_value_that_was_not_kept_names_the_later_rule() -> None:
    later = ["/etc/udev/rules.d/99-x.rules line 2"]
    assert readahead.mismatch_message({"a": 8}, {"a": 8}, later) == ""
    assert later[0] in readahead.mismatch_message({"a": 8}, {"a": 4096}, later)
