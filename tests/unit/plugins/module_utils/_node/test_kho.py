"""kho=off: what the role does about GRUB, when it refuses, and what the running kernel proves after the reboot."""

from __future__ import annotations

import os
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import tuning
from playbook import REPO
from unit.fixtures.host.tree import meminfo
from unit.plugins.module_utils._node.test_tuning import Machine

GRUB = "/etc/default/grub"
TEXT = (REPO / "roles/sysctl/files/60-gb10-cluster.cfg").read_text(encoding="utf-8")
LEAK = {"MemFree": 88.0, "MemAvailable": 87.0, "CmaFree": 940604 / 1024**2}


class Spark(Machine):
    """A node with GRUB. `update_grub` and `reboot` do what the role's handler and a boot do."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.put(GRUB, 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n# GRUB_CMDLINE_LINUX="kho=off"\n')
        self.put(tuning.GRUB_PROGRAM, "")
        self.put("/sys/kernel/kexec_crash_size", "0\n")
        self.put("/proc/meminfo", meminfo(**LEAK))
        self.update_grub()
        self.reboot()

    def update_grub(self) -> None:
        script = f'for each in {GRUB} {GRUB}.d/*.cfg; do test -f "$each" && . "$each"; done; echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
        done = subprocess.run(["sh", "-c", script.replace("/etc/", f"{self.root}/etc/")], check=True, capture_output=True, text=True)
        self.put(tuning.GRUB_MENU, f"menuentry {{\n\tlinux /vmlinuz root=UUID=1 {done.stdout}}}\n")

    def reboot(self) -> None:
        words = self.get(tuning.GRUB_MENU).split("linux ")[1].strip(" \n}")
        self.put("/proc/cmdline", f"{words}\n")
        self.put("/proc/stat", f"cpu 1\nbtime {int(time.time())}\n")
        off = "kho=off" in words.split()
        self.put("/proc/meminfo", meminfo() if off else meminfo(**LEAK))

    def apply(self, wanted: bool = True, state: str = "present", menu: bool = True) -> dict[str, Any]:
        """Run the module, and do what the role does with its result."""
        done: dict[str, Any] = self.tune(state, kho_off=wanted)["kho"]
        if done["write"]:
            self.put(tuning.KHO_FILE, TEXT)
        elif done["remove"]:
            (self.root / tuning.KHO_FILE[1:]).unlink()
        if menu:
            self.update_grub()
        return done

    def pending(self) -> str:
        return tuning.kho_pending(tuning.read_kho(Node(str(self.root))))


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


def todo(done: dict[str, Any]) -> list[str]:
    return [key for key in ("write", "remove", "stale", "reboot_required") if done[key]]


def test_memory_is_back_after_the_reboot_and_stays_when_repeated(spark: Spark) -> None:
    assert spark.tune(check=True, kho_off=True)["kho"]["write"]
    first = spark.apply()
    assert todo(first) == ["write", "reboot_required"]
    assert "the running kernel does not have it: CmaFree 940604 of CmaTotal 0 kB, MemFree 88.0 GiB. Reboot the node" in first["message"]
    assert todo(spark.apply()) == ["write", "reboot_required"], "the file is there, and the menu fits"
    assert spark.pending() == f"{tuning.KHO_FILE} has kho=off, and the running kernel does not"
    spark.reboot()
    after = spark.apply()
    assert todo(after) == ["write"]
    assert after["message"] == "kho=off is on the kernel command line, and KHO keeps no memory: CmaFree 0 of CmaTotal 0 kB, MemFree 114.0 GiB"
    assert spark.pending() == ""


@pytest.mark.parametrize(("wanted", "state"), [(False, "present"), (True, "absent")])
def test_undo_removes_the_file_and_reports_the_running_kernel_until_the_reboot(spark: Spark, wanted: bool, state: str) -> None:
    files = spark.etc()
    spark.apply()
    spark.reboot()
    removed = spark.apply(wanted, state)
    assert todo(removed) == ["remove", "reboot_required"]
    assert "kho=off is removed from GRUB, and the running kernel still has it. Reboot the node" in removed["message"]
    again = spark.apply(wanted, state)
    assert (todo(again), again["message"]) == (["reboot_required"], removed["message"])
    assert spark.pending() == "the running kernel has kho=off, and the menu of GRUB does not"
    spark.reboot()
    assert (todo(spark.apply(wanted, state)), spark.pending()) == ([], "")
    spark.apply(state="absent")
    assert spark.etc() == files


def test_undo_before_the_reboot_needs_none(spark: Spark) -> None:
    spark.apply()
    assert todo(spark.apply(False)) == ["remove"]
    assert (todo(spark.apply(False)), spark.pending()) == ([], "")


def test_kho_off_of_another_file_stays_after_the_undo(spark: Spark) -> None:
    spark.put(GRUB, 'GRUB_CMDLINE_LINUX="kho=off"\n')
    spark.apply()
    spark.reboot()
    assert spark.get("/proc/cmdline").count("kho=off") == 1
    spark.apply(False)
    done = spark.apply(False)
    assert (todo(done), done["message"], spark.pending()) == ([], "", "")


@pytest.mark.parametrize("default", ["quiet kho=off", "kho=off"])
def test_our_file_does_not_repeat_the_word(spark: Spark, default: str) -> None:
    spark.put(GRUB, f'GRUB_CMDLINE_LINUX="x"\nGRUB_CMDLINE_LINUX_DEFAULT="{default}"\n')
    spark.put(tuning.KHO_FILE, TEXT)
    spark.update_grub()
    assert spark.get(tuning.GRUB_MENU).count("kho=off") == 1


def test_a_menu_that_an_earlier_run_has_not_updated_is_stale(spark: Spark) -> None:
    spark.apply(menu=False)
    assert todo(spark.apply()) == ["write", "stale", "reboot_required"]


def test_memory_that_does_not_come_back_is_reported_with_the_remedy(spark: Spark) -> None:
    spark.apply()
    spark.reboot()
    spark.put("/proc/meminfo", meminfo(**LEAK))
    text = spark.apply()["message"]
    assert text.startswith("CmaFree is 940604 kB with CmaTotal 0 kB")
    assert "kho=off is on the kernel command line already, so reboot into kernel 6.17.0-1032" in text


@pytest.mark.parametrize(
    ("path", "text", "sentence"),
    [
        (tuning.GRUB_PROGRAM, None, "sysctl_kho_off needs GRUB, and this node has no /usr/sbin/update-grub or no /boot/grub/grub.cfg"),
        (tuning.GRUB_MENU, None, "sysctl_kho_off needs GRUB"),
        ("/sys/kernel/kexec_crash_size", "536870912\n", "kho=off is not safe here: /sys/kernel/kexec_crash_size is 536870912"),
        (tuning.KHO_FILE, "GRUB_TIMEOUT=1\n", "exists and is not managed by gb10.cluster"),
    ],
)
def test_refuses_before_anything_is_written(spark: Spark, path: str, text: str | None, sentence: str) -> None:
    if text is None:
        (spark.root / path[1:]).unlink()
    else:
        spark.put(path, text)
    files, floor = spark.etc(), spark.get("/proc/sys/vm/min_free_kbytes")
    with pytest.raises(HostError, match=sentence):
        spark.tune(kho_off=True)
    assert (spark.etc(), spark.get("/proc/sys/vm/min_free_kbytes")) == (files, floor)


def test_a_boot_loader_without_grub_that_has_it_is_enough(spark: Spark) -> None:
    (spark.root / tuning.GRUB_PROGRAM[1:]).unlink()
    spark.put("/proc/cmdline", "quiet kho=off\n")
    spark.put("/proc/meminfo", meminfo())
    done = spark.tune(kho_off=True)["kho"]
    assert todo(done) == []
    assert "kho=off is on the kernel command line, and KHO keeps no memory" in done["message"]


def test_a_kernel_that_was_not_started_from_the_menu_is_refused(spark: Spark) -> None:
    spark.apply()
    spark.reboot()
    spark.put("/proc/cmdline", "quiet\n")
    os.utime(spark.root / tuning.GRUB_MENU[1:], (1, 1))
    with pytest.raises(HostError, match="have kho=off, and the kernel that was started since then does not"):
        spark.tune(kho_off=True)
