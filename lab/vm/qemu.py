# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""QEMU's command line for one node, and the program that talks to its monitor. Pure."""

from __future__ import annotations

from lab.vm.recipe import NODES, RAILS, Lab
from lab.vm.seed import management_address

RUN = "/run/vmlab"
DISKS = "/disks"
INNER_PORT = 2200
MACHINE = "q35,sata=off,smbus=off,i8042=off,vmport=off,usb=off"
KERNEL_ARGUMENTS = (
    "root=/dev/vda rw console=ttyS0 quiet loglevel=4 systemd.show_status=0 mitigations=off nokaslr lsm= audit=0 init_on_alloc=0 "
    "cryptomgr.notests random.trust_cpu=on nowatchdog rcupdate.rcu_expedited=1 8250.nr_uarts=1"
)
# On a busy host an emulated machine measures its TSC wrongly, and time in it runs several times too fast: the HPET needs no measuring.
EMULATED_CLOCK = " tsc=unstable clocksource=hpet"


def forwarders(lab: Lab) -> str:
    """The container's own program: hand SSH connections to QEMU from 127.0.0.1.

    QEMU's user network keeps any other source address, and Docker's bridge has the same one (172.17.0.1) outside and in
    the guest: the guest would answer itself.
    """
    listen = "TCP-LISTEN:{},fork,reuseaddr,nodelay"
    parts = [f"socat {listen.format(lab.port(node))} TCP:127.0.0.1:{INNER_PORT + node},nodelay &" for node in NODES]
    return " ".join([*parts, "wait"])


def accelerator(accel: str) -> list[str]:
    """The options for `kvm` or `tcg`."""
    if accel == "kvm":
        return ["-accel", "kvm", "-cpu", "host"]
    return ["-accel", "tcg,thread=multi,tb-size=256", "-cpu", "max,la57=off"]


def probe(image: str) -> list[str]:
    """A guest that leaves at once: it proves that KVM runs one, or that it does not."""
    return [
        *("qemu-system-x86_64", "-M", MACHINE, *accelerator("kvm"), "-m", "256", "-nodefaults", "-no-user-config", "-display", "none"),
        *("-no-reboot", "-kernel", f"{image}/vmlinux", "-initrd", f"{image}/initrd", "-append", "quiet vmlab.probe"),
    ]


def overlays(image: str, node: int) -> list[list[str]]:
    """Commands that give a node fresh disks above the built ones."""
    return [
        ["qemu-img", "create", "-q", "-f", "qcow2", "-b", f"{image}/{base}.img", "-F", "raw", f"{DISKS}/vm{node}-{base}.qcow2"] for base in ("base", "models")
    ]


def machine(lab: Lab, node: int, image: str, accel: str) -> list[str]:
    """Start one node in the background: the command returns when its devices are set up."""
    disk = "if=none,format=qcow2,cache=unsafe,discard=unmap"
    forward = f"hostfwd=tcp:127.0.0.1:{INNER_PORT + node}-{management_address(node)}:22"
    arguments = KERNEL_ARGUMENTS + (EMULATED_CLOCK if accel == "tcg" else "")
    command = [
        *("nice", "-n", "5", "qemu-system-x86_64", "-name", lab.hostname(node), "-daemonize", "-pidfile", f"{RUN}/vm{node}.pid"),
        *("-M", MACHINE, *accelerator(accel), "-m", str(lab.memory_mib), "-smp", "1", "-rtc", "base=utc,clock=host"),
        *("-nodefaults", "-no-user-config", "-display", "none", "-serial", f"file:{RUN}/vm{node}.console"),
        *("-qmp", f"unix:{RUN}/vm{node}.qmp,server=on,wait=off"),
        *("-smbios", "type=1,manufacturer=NVIDIA,product=NVIDIA_DGX_Spark,version=vmlab"),
        *("-kernel", f"{image}/vmlinux", "-initrd", f"{RUN}/vm{node}.initrd", "-append", arguments),
        *("-drive", f"{disk},id=root,file={DISKS}/vm{node}-base.qcow2", "-device", "virtio-blk-pci,drive=root,addr=0x9"),
        *("-drive", f"{disk},id=models,file={DISKS}/vm{node}-models.qcow2"),
        *("-device", f"nvme,drive=models,serial=VMLAB{node},addr=0xb"),
        *("-device", "virtio-rng-pci", "-device", "i6300esb", "-action", "watchdog=reset"),
        *("-netdev", f"user,id=mgmt-net,ipv6=off,restrict=on,net=10.0.2.0/24,host=10.0.2.2,{forward}"),
        *("-device", f"virtio-net-pci,id=mgmt,netdev=mgmt-net,addr=0xa,romfile=,mac=52:54:00:00:0{node}:00"),
    ]
    # The first node listens, the second connects: one stream a cable, connected again when either machine restarts.
    end = "server=on" if node == 1 else "server=off,reconnect-ms=500"
    for number, rail in enumerate(RAILS):
        command += [
            *("-device", f"pcie-root-port,id=port{number},chassis={number + 1},slot={number + 1},addr=0x{3 + number}"),
            *("-netdev", f"stream,id={rail}-net,addr.type=unix,addr.path={RUN}/{rail}.sock,{end}"),
            *("-device", f"virtio-net-pci,id={rail},netdev={rail}-net,bus=port{number},romfile=,mac=52:54:00:00:0{node}:1{number}"),
        ]
    return command


# Runs in the container: connect, negotiate, send one command, print its answer.
QMP_CLIENT = """
import json, socket, sys
path, command = sys.argv[1:3]
s = socket.socket(socket.AF_UNIX)
s.settimeout(10)
try:
    s.connect(path)
except OSError:
    sys.exit(3)
f = s.makefile("rw")
f.readline()
for line in ('{"execute": "qmp_capabilities"}', command):
    f.write(line + "\\n")
    f.flush()
    while True:
        answer = json.loads(f.readline() or '{"error": {"desc": "the monitor hung up"}}')
        if "return" in answer or "error" in answer:
            break
print(json.dumps(answer))
"""
