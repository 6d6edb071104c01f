"""kho=off: what the role does about GRUB, when it refuses, and what the running kernel proves after the reboot."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node
from ansible_collections.gb10.cluster.plugins.module_utils._node import memory, tuning
from unit.fixtures.host.tree import meminfo
from unit.plugins.module_utils._node.test_tuning import Machine

GRUB = "/etc/default/grub"
LEAK = {"MemFree": 88.0, "MemAvailable": 87.0, "CmaFree": 940604 / 1024**2}


class Spark(Machine):
    """A node with GRUB. `reboot` does what a boot does. With `broken`, update-grub fails."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        self.broken = False
        self.put(GRUB, 'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\n# GRUB_CMDLINE_LINUX="kho=off"\n')
        self.put(tuning.GRUB_PROGRAM, "")
        self.put("/sys/kernel/kexec_crash_size", "0\n")
        self.update_grub()
        self.reboot()

    def run(self, argv: Sequence[str]) -> tuple[int, str, str]:
        answer = super().run(argv)
        if list(argv) == ["update-grub"]:
            if self.broken:
                return 1, "", "no space left"
            self.update_grub()
        return answer

    def update_grub(self) -> None:
        script = f'for each in {GRUB} {GRUB}.d/*.cfg; do test -f "$each" && . "$each"; done; echo "$GRUB_CMDLINE_LINUX $GRUB_CMDLINE_LINUX_DEFAULT"'
        done = subprocess.run(["sh", "-c", script.replace("/etc/", f"{self.root}/etc/")], check=True, capture_output=True, text=True)
        self.put(tuning.GRUB_MENU, f"menuentry {{\n\tlinux /vmlinuz root=UUID=1 {done.stdout}}}\n")

    def reboot(self) -> None:
        words = self.get(tuning.GRUB_MENU).split("linux ")[1].strip(" \n}")
        self.put("/proc/cmdline", f"{words}\n")
        off = "kho=off" in words.split()
        self.put("/proc/meminfo", meminfo() if off else meminfo(**LEAK))

    def apply(self, wanted: bool = True, state: str = "present", check: bool = False) -> tuple[list[str], str]:
        """Return what the role changes at GRUB, and what it prints of it."""
        result = self.tune(state, check, kho_off=wanted)
        return [each for each in result["changes"] if "GRUB" in each or tuning.KHO_FILE in each], " ".join(result["shown"][1:])

    def pending(self) -> str:
        node = Node(str(self.root))
        return tuning.kho_pending(tuning.read_kho(node), memory.read_kernel(node))


@pytest.fixture
def spark(tmp_path: Path) -> Spark:
    return Spark(tmp_path)


WRITTEN, REMOVED = ([f"{tuning.KHO_FILE} {how}", "menu of GRUB updated"] for how in ("written", "removed"))


def test_memory_is_back_after_the_reboot_and_stays_when_repeated(spark: Spark) -> None:
    files = spark.etc()
    assert (spark.apply(check=True)[0], spark.etc()) == (WRITTEN, files)
    changes, message = spark.apply()
    assert changes == WRITTEN
    assert "the running kernel does not have it: CmaFree 940604 of CmaTotal 0 kB, MemFree 88.0 GiB. Reboot the node" in message
    changes, message = spark.apply()
    assert changes == [], "the file is there, and the menu fits"
    assert "After a reboot without kho=off, find the boot loader" in message
    assert spark.pending() == f"{tuning.KHO_FILE} has kho=off, and the running kernel does not"
    spark.reboot()
    assert spark.apply() == ([], "kho=off is on the kernel command line, and KHO keeps no memory: CmaFree 0 of CmaTotal 0 kB, MemFree 114.0 GiB")
    assert spark.pending() == ""


@pytest.mark.parametrize(("wanted", "state"), [(False, "present"), (True, "absent")])
def test_undo_removes_the_file_and_reports_the_running_kernel_until_the_reboot(spark: Spark, wanted: bool, state: str) -> None:
    files = spark.etc()
    spark.apply()
    spark.reboot()
    with_file = spark.etc()
    assert (spark.apply(wanted, state, check=True)[0], spark.etc()) == (REMOVED, with_file)
    changes, message = spark.apply(wanted, state)
    assert changes == REMOVED
    assert "kho=off is removed from GRUB, and the running kernel still has it. Reboot the node" in message
    assert spark.apply(wanted, state) == ([], message)
    assert spark.pending() == "the running kernel has kho=off, and the menu of GRUB does not"
    spark.reboot()
    assert (spark.apply(wanted, state), spark.pending()) == (([], ""), "")
    spark.apply(state="absent")
    assert spark.etc() == files


def test_undo_before_the_reboot_needs_none(spark: Spark) -> None:
    spark.apply()
    assert spark.apply(False) == (REMOVED, "")
    assert (spark.apply(False), spark.pending()) == (([], ""), "")


def test_kho_off_of_another_file_stays_after_the_undo(spark: Spark) -> None:
    spark.put(GRUB, 'GRUB_CMDLINE_LINUX="kho=off"\n')
    spark.apply()
    spark.reboot()
    assert spark.get("/proc/cmdline").count("kho=off") == 1
    spark.apply(False)
    assert (spark.apply(False), spark.pending()) == (([], ""), "")


def test_a_menu_that_could_not_be_updated_is_updated_by_the_next_run(spark: Spark) -> None:
    for wanted, changes in ((True, ["menu of GRUB updated"]), (False, REMOVED)):
        spark.broken = True
        for _run in range(2):
            with pytest.raises(HostError, match=r"update-grub failed \(rc 1: no space left\)"):
                spark.apply(wanted)
            assert ("kho=off" in spark.get(tuning.KHO_FILE)) is wanted
        spark.broken = False
        assert spark.apply(wanted)[0] == changes
    assert not (spark.root / tuning.KHO_FILE[1:]).exists()


def test_a_menu_without_kho_off_fails_with_the_remedy(spark: Spark) -> None:
    spark.put("/etc/default/grub.d/99.cfg", 'GRUB_CMDLINE_LINUX="x"\n')
    with pytest.raises(HostError, match=r"without it\. Find the later file in /etc/default/grub\.d that sets GRUB_CMDLINE_LINUX"):
        spark.apply()


@pytest.mark.parametrize("default", ["quiet kho=off", "kho=off"])
def test_our_file_does_not_repeat_the_word(spark: Spark, default: str) -> None:
    spark.put(GRUB, f'GRUB_CMDLINE_LINUX="x"\nGRUB_CMDLINE_LINUX_DEFAULT="{default}"\n')
    spark.put(tuning.KHO_FILE, tuning.KHO_TEXT)
    spark.update_grub()
    assert spark.get(tuning.GRUB_MENU).count("kho=off") == 1


def test_memory_that_does_not_come_back_is_reported_with_the_remedy(spark: Spark) -> None:
    spark.apply()
    spark.reboot()
    spark.put("/proc/meminfo", meminfo(**LEAK))
    text = spark.apply()[1]
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
    changes, message = spark.apply()
    assert changes == []
    assert "kho=off is on the kernel command line, and KHO keeps no memory" in message
