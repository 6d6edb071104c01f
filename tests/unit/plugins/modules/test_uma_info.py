"""The module uma_info on captured trees."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.gb10.cluster.plugins.module_utils._host.memory import GIB_KB
from ansible_collections.gb10.cluster.plugins.modules import uma_info
from module_run import run_module

ZONEINFO = """Node 0, zone      DMA
  pages free     1000
        boost    0
        min      100
        low      125
        high     150
        managed  1048576
        protection: (0, 0, 480)
Node 0, zone   Normal
  pages free     3000
        min      200
        low      250
        high     300
        managed  30851792
        protection: (0, 0, 0)
"""


def put(root: Path, path: str, text: str) -> None:
    """Write one file of a tree."""
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Return a stock Spark's tree."""
    rows = {"MemTotal": 121.69, "MemFree": 114.0, "MemAvailable": 113.0, "AnonPages": 2.0, "Cached": 3.0}
    put(tmp_path, "proc/meminfo", "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items()))
    put(tmp_path, "proc/zoneinfo", ZONEINFO)
    put(tmp_path, "proc/buddyinfo", "Node 0, zone      DMA      1      1\nNode 0, zone   Normal  9  9  9  9  9  9  9  9  9  9  3909\n")
    put(tmp_path, "proc/swaps", "Filename Type Size Used Priority\n/swap.img file 16777212 3670016 -2\n")
    put(tmp_path, "proc/cmdline", "quiet\n")
    put(tmp_path, "proc/sys/kernel/osrelease", "6.17.0-1032-nvidia\n")
    put(tmp_path, "proc/sys/vm/min_free_kbytes", "45167\n")
    put(tmp_path, "proc/sys/vm/swappiness", "60\n")
    put(tmp_path, "etc/fstab", "/swap.img none swap sw 0 0\n")
    return tmp_path


def ask(root: Path, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
    """Run the module on a tree; its result."""
    return run_module(capsys, uma_info, root=str(root))


def test_a_stock_spark(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ask(tree, capsys)
    assert (result["changed"], result["size_class"], result["page_size_kb"], result["problems"]) == (False, "121", 4, [])
    assert result["swap"]["comes_back_by"] == ["/etc/fstab line 1: /swap.img"]
    assert result["swap"]["used_kb"] == 3670016
    assert result["vm"]["vm.min_free_kbytes"] == {"live": "45167", "set_by": [], "wins": None}
    assert result["watermarks"]["high_kb"] == 1800
    assert result["vllm_start"]["memavailable"] == {"free_gib": 113.0, "highest_utilization": 0.92}
    assert result["vllm_start"]["memfree"]["highest_utilization"] == 0.93
    assert result["fragmentation"]["blocks_4mib"] == 3909
    assert result["container"] is None


def test_who_sets_what(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tree, "usr/lib/sysctl.d/50-default.conf", "vm.swappiness = 10\n")
    put(tree, "etc/sysctl.d/99-mine.conf", "# mine\nvm/swappiness=1\n")
    put(tree, "usr/lib/sysctl.d/99-mine.conf", "vm.swappiness = 99\n")
    swappiness = ask(tree, capsys)["vm"]["vm.swappiness"]
    assert swappiness["wins"] == "/etc/sysctl.d/99-mine.conf"
    assert [(entry["path"], entry["line"], entry["value"]) for entry in swappiness["set_by"]] == [
        ("/usr/lib/sysctl.d/50-default.conf", 1, "10"),
        ("/etc/sysctl.d/99-mine.conf", 2, "1"),
    ]


def test_links_are_followed_within_the_tree_and_read_in_their_order(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tree, "etc/sysctl.conf", "vm.swappiness = 10\n")
    put(tree, "opt/mine.conf", "vm.swappiness = 7\n")
    put(tree, "etc/sysctl.d/README", "")
    (tree / "etc/sysctl.d/99-sysctl.conf").symlink_to("../sysctl.conf")
    (tree / "etc/sysctl.d/99-zz.conf").symlink_to("/opt/mine.conf")
    swappiness = ask(tree, capsys)["vm"]["vm.swappiness"]
    assert [(entry["path"], entry["value"]) for entry in swappiness["set_by"]] == [("/etc/sysctl.d/99-sysctl.conf", "10"), ("/etc/sysctl.d/99-zz.conf", "7")]
    (tree / "etc/sysctl.d/99-zz.conf").unlink()
    (tree / "etc/sysctl.d/99-zz.conf").symlink_to("/etc/sysctl.d/99-zz.conf")
    assert ask(tree, capsys)["vm"]["vm.swappiness"]["wins"] == "/etc/sysctl.d/99-sysctl.conf"


def test_an_engine_is_found_by_name_and_by_device(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    put(tree, "proc/7/comm", "VLLM::EngineCore\n")
    put(tree, "proc/8/comm", "python3\n")
    (tree / "proc/8/fd").mkdir()
    (tree / "proc/8/fd/5").symlink_to("/dev/nvidia-uvm")
    put(tree, "proc/9/comm", "bash\n")
    assert ask(tree, capsys)["gpu_users"] == ["VLLM::EngineCore (7)", "python3 (8)"]


CONTAINERS = {
    "systemd": ("run/systemd/container", "docker\n", "docker"),
    "docker": (".dockerenv", "", "docker"),
    "podman": ("run/.containerenv", "", "podman"),
    "the environment of pid 1": ("proc/1/environ", "PATH=/x\0container=lxc\0", "lxc"),
}


@pytest.mark.parametrize(("path", "text", "expected"), CONTAINERS.values(), ids=CONTAINERS.keys())
def test_containers_are_recognized(tree: Path, capsys: pytest.CaptureFixture[str], path: str, text: str, expected: str) -> None:
    put(tree, path, text)
    assert ask(tree, capsys)["container"] == expected


def test_a_kernel_without_memavailable_and_without_the_sum_of_huge_pages(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"MemTotal": 121.69, "MemFree": 82.0, "AnonPages": 2.0, "Cached": 3.0, "Active(file)": 0.5, "Inactive(file)": 1.5}
    text = "".join(f"{key}: {int(value * GIB_KB)} kB\n" for key, value in rows.items())
    put(tree, "proc/meminfo", text + "HugePages_Total:   16384\nHugePages_Free:    16384\nHugepagesize:       2048 kB\n")
    result = ask(tree, capsys)
    assert result["problems"] == []
    assert result["available_kb"] == 84 * GIB_KB - 1800 - 1920 - 1500  # without the high watermarks, DMA's reserve and the low watermarks' share of the cache
    assert result["vllm_start"]["memavailable"]["highest_utilization"] == 0.69


def test_an_empty_tree_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    result = ask(tmp_path, capsys)
    assert (result["failed"], f"(read below {tmp_path})" in result["msg"]) == (True, True)


@pytest.mark.parametrize("text", ["", "Node x, zone\nNode 0, zone Normal\n  managed many\n  protection: (a, b)\n/swap.img file 1 2 x\n", "\x00\x01Node"])
def test_files_other_than_meminfo_may_be_missing_or_not_valid(tree: Path, capsys: pytest.CaptureFixture[str], text: str) -> None:
    for path in [path for path in tree.rglob("*") if path.is_file() and path.name != "meminfo"]:
        path.write_text(text) if text else path.unlink()
    assert ask(tree, capsys).get("failed") is not True


def test_returns_the_documented_keys(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documented = set(yaml.safe_load(uma_info.RETURN))
    assert documented == set(ask(tree, capsys)) - {"changed", "invocation"}
