"""Read-ahead: values that the kernel keeps, the udev rule, the restore command."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node, later_lines
from ansible_collections.gb10.cluster.plugins.module_utils._node import readahead


@pytest.mark.parametrize(("kb", "page"), [(-4, 4), (70000, 4), (6, 4), (8, 64)])
def test_a_read_ahead_that_the_kernel_would_change_is_refused(kb: int, page: int) -> None:
    with pytest.raises(HostError, match="readahead_load_kb"):
        readahead.check_kb(kb, "readahead_load_kb", page)
    assert readahead.check_kb(128, "readahead_steady_kb", page) == 128


def test_the_rule_names_classes_mappers_and_kernel_names() -> None:
    rule = readahead.render_rule(["dm-0", "md0", "nvme0n1", "sda"], ["nvme"], {"dm-0": "vg-models", "sda": ""}, 128)
    assert rule.startswith("# Managed by gb10.cluster")
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
