"""kho=off on a real machine, over real reboots. QEMU starts the kernel without GRUB, so a unit of this test puts the menu's words into /proc/cmdline."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from vm.node_helpers import docker_answers, site, state, words

if TYPE_CHECKING:
    from playbook import Run
    from vm.conftest import VmLab

NODE, ONLY = 1, ("--limit", "vm-1")
FILE, MENU = "/etc/default/grub.d/60-gb10-cluster.cfg", "/boot/grub/grub.cfg"
UPDATE_GRUB = f"""#!/bin/sh
for each in /etc/default/grub /etc/default/grub.d/*.cfg; do test -f "$each" && . "$each"; done
echo "linux /vmlinuz $GRUB_CMDLINE_LINUX" >{MENU}
"""
BOOT = f"""[Unit]
DefaultDependencies=no
[Service]
Type=oneshot
ExecStart=/bin/sh -c '(cat /proc/cmdline; cut -d" " -f3- {MENU}) | tr "\\\\n" " " >/run/cmdline; mount --bind /run/cmdline /proc/cmdline'
[Install]
WantedBy=sysinit.target
"""


@pytest.fixture(scope="module")
def lab(vmlab: VmLab) -> VmLab:
    vmlab.pristine = False
    docker_answers(vmlab, NODE)
    return vmlab


@pytest.fixture(scope="module")
def was(lab: VmLab) -> dict[str, Any]:
    """The node, with a stand-in of GRUB."""
    found = state(lab, NODE)
    lab.on(
        NODE,
        "mkdir -p /etc/default/grub.d /boot/grub; echo 'GRUB_CMDLINE_LINUX=\"mine\"' >/etc/default/grub; "
        f"cat >/usr/sbin/update-grub <<'END'\n{UPDATE_GRUB}END\n"
        f"cat >/usr/lib/systemd/system/grub-of-the-test.service <<'END'\n{BOOT}END\n"
        "chmod 755 /usr/sbin/update-grub; update-grub; systemctl enable -q grub-of-the-test.service",
    )
    return found


def kho(lab: VmLab, *arguments: str, **variables: Any) -> tuple[Run, str]:
    """Run the role; return the run and what it printed."""
    run = site(lab, *ONLY, *arguments, tags="sysctl", **variables)
    return run, words(run.stdout)


def reboot(lab: VmLab) -> None:
    lab.reboot(NODE)
    docker_answers(lab, NODE)


def test_a_node_without_grub_is_refused_before_anything_is_written(lab: VmLab) -> None:
    before = state(lab, NODE)
    run, text = kho(lab, sysctl_kho_off=True)
    assert run.rc != 0
    assert "sysctl_kho_off needs GRUB, and this node has no /usr/sbin/update-grub or no /boot/grub/grub.cfg" in text
    assert state(lab, NODE) == before


def test_kho_off_is_on_the_command_line_after_the_reboot(lab: VmLab, was: dict[str, Any]) -> None:
    predicted, text = kho(lab, "--check", "--diff", sysctl_kho_off=True)
    assert (predicted.rc, "GRUB_CMDLINE_LINUX kho=off" in text) == (0, True), text[-3000:]
    assert lab.on(NODE, f"ls {FILE} 2>/dev/null || true; cat {MENU}") == "linux /vmlinuz mine"
    run, text = kho(lab, sysctl_kho_off=True)
    assert run.rc == 0, text[-4000:]
    assert f"kho=off is in {FILE}, and the running kernel does not have it" in text
    assert lab.on(NODE, f"cat {MENU} /etc/default/grub").splitlines() == ["linux /vmlinuz mine kho=off", 'GRUB_CMDLINE_LINUX="mine"']
    reboot(lab)
    again, text = kho(lab, sysctl_kho_off=True)
    assert (again.rc, again.changed) == (0, set()), text[-3000:]
    assert "kho=off is on the kernel command line, and KHO keeps no memory: CmaFree" in text


def test_absent_removes_it_and_reports_the_running_kernel(lab: VmLab, was: dict[str, Any]) -> None:
    run, text = kho(lab, sysctl_kho_off=True, sysctl_state="absent")
    assert run.rc == 0, text[-4000:]
    assert "kho=off is removed from GRUB, and the running kernel still has it" in text
    assert lab.on(NODE, f"ls {FILE} 2>/dev/null || true; cat {MENU}") == "linux /vmlinuz mine"
    reboot(lab)
    run, text = kho(lab, sysctl_state="absent")
    assert (run.rc, run.changed, "kho=off" in text) == (0, set(), False), text[-3000:]
    lab.on(NODE, "systemctl disable -q grub-of-the-test.service; rm -rf /usr/lib/systemd/system/grub-of-the-test.service")
    lab.on(NODE, "rm -rf /usr/sbin/update-grub /boot/grub /etc/default/grub /etc/default/grub.d")
    assert lab.on(NODE, "ls /var/lib/gb10-cluster/sysctl.json 2>/dev/null || true") == ""
    assert state(lab, NODE) == was
