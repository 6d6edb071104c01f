# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two machines: start, wait, reboot, cut a cable, stop."""

from __future__ import annotations

import json
import socket
import subprocess
import time
from collections.abc import Iterable, Sequence
from pathlib import Path

from lab.container.plan import LabError
from lab.vm import engine, keys, qemu, seed
from lab.vm.engine import docker, report
from lab.vm.recipe import ADMIN, NODES, RAILS, Lab

BOOT_SECONDS = 240


def inside(lab: Lab, *command: str, stdin: bytes | None = None, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a command in the lab's container."""
    return docker("exec", *(["-i"] if stdin is not None else []), lab.container, *command, stdin=stdin, check=check)


def place(lab: Lab) -> tuple[str, str]:
    """The built guest and the accelerator that the running container was made for."""
    words = inside(lab, "cat", f"{qemu.RUN}/place").stdout.decode().split()
    return words[0], words[1]


def ensure_container(lab: Lab, host: str, image: str) -> None:
    """The container of the image `host`, with the built guest `image`; one made for an older recipe is replaced, and its machines with it."""
    if engine.running(lab.container):
        try:
            if place(lab)[0] == image:
                return
        except (LabError, IndexError):
            pass
        report("  The recipe has changed: the running machines are replaced")
    docker("rm", "--force", "--volumes", lab.container, check=False)
    kvm = ["--device", "/dev/kvm"] if Path("/dev/kvm").exists() else []
    ports = [part for node in NODES for part in ("--publish", f"127.0.0.1:{lab.port(node)}:{lab.port(node)}")]
    docker(
        *("run", "--detach", "--name", lab.container, "--hostname", lab.container, "--label", "gb10-lab=vm"),
        *(*kvm, *ports, "--volume", f"{lab.images_volume}:/images", "--volume", qemu.DISKS),
        *("--tmpfs", f"{qemu.RUN}:rw,size=128m", host, "tini", "-s", "--", "sh", "-c", qemu.forwarders(lab)),
    )
    accel = "kvm" if kvm and kvm_runs(lab, image) else "tcg"
    inside(lab, "sh", "-c", f"cat > {qemu.RUN}/place", stdin=f"{image} {accel}\n".encode())


def kvm_runs(lab: Lab, image: str) -> bool:
    """Whether a guest really runs under KVM here: a device node alone proves nothing."""
    return inside(lab, "timeout", "5", *qemu.probe(image), check=False).returncode == 0


def qmp(lab: Lab, node: int, execute: str, **arguments: str | bool) -> bool:
    """Send one monitor command; False when the machine is not running."""
    command = json.dumps({"execute": execute, "arguments": arguments})
    done = inside(lab, "python3", "-", f"{qemu.RUN}/vm{node}.qmp", command, stdin=qemu.QMP_CLIENT.encode(), check=False)
    if done.returncode == 3:
        return False
    answer = json.loads(done.stdout or b"{}")
    if done.returncode != 0 or "error" in answer:
        reason = answer.get("error", {}).get("desc") or done.stderr.decode(errors="replace").strip() or "no answer"
        raise LabError(f"QEMU's monitor of {lab.hostname(node)} refused {execute}: {reason}")
    return True


def is_on(lab: Lab, node: int) -> bool:
    """Whether the node's QEMU runs."""
    return engine.running(lab.container) and qmp(lab, node, "query-status")


def start(lab: Lab, nodes: Sequence[int], *, fresh: bool) -> None:
    """Switch nodes on, those of `fresh` with fresh disks."""
    image, accel = place(lab)
    for node in nodes:
        if fresh:
            for command in qemu.overlays(image, node):
                inside(lab, *command)
        authorized = lab.key.with_suffix(".pub").read_text()
        private = keys.host_key(lab, node)
        own = seed.entries(node, authorized=authorized, host_private=private.read_text(), host_public=private.with_suffix(".pub").read_text())
        script = f"umask 077; cat {image}/initrd - > {qemu.RUN}/vm{node}.initrd"
        inside(lab, "sh", "-c", script, stdin=seed.newc(own))
        inside(lab, *qemu.machine(lab, node, image, accel))


def power_off(lab: Lab, nodes: Iterable[int]) -> None:
    """Pull the plug."""
    for node in nodes:
        if qmp(lab, node, "quit"):
            end = time.monotonic() + 10
            while qmp(lab, node, "query-status"):
                if time.monotonic() > end:
                    raise LabError(f"{lab.hostname(node)} did not go off within 10 s; `vmlab.py down` removes the whole lab.")
                time.sleep(0.1)


def ssh_command(lab: Lab, node: int, *, shared: bool = False) -> list[str]:
    """The ssh command line to a node, with its exact host key; `shared` keeps the connection for the next command."""
    options = [f"UserKnownHostsFile={lab.known_hosts}", "IdentitiesOnly=yes", "BatchMode=yes", "ConnectTimeout=60", "LogLevel=ERROR"]
    socket_path = f"{lab.state}/mux-{node}"
    if shared and len(socket_path) < 80:  # a unix socket's name is short, and ssh adds 17 characters while it makes one
        options += ["ControlMaster=auto", "ControlPersist=10m", f"ControlPath={socket_path}"]
    flags = [part for option in options for part in ("-o", option)]
    return ["ssh", "-F", "none", "-i", str(lab.key), "-p", str(lab.port(node)), *flags, f"{ADMIN}@127.0.0.1"]


def run_in(lab: Lab, node: int, command: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
    """Run a shell command on a node over SSH."""
    return subprocess.run([*ssh_command(lab, node), command], capture_output=True, text=True, timeout=timeout, check=False)


def boot_id(lab: Lab, node: int) -> str:
    """The kernel's name for this boot; empty while the node does not answer."""
    try:
        done = run_in(lab, node, "cat /proc/sys/kernel/random/boot_id", timeout=60)
    except subprocess.TimeoutExpired:
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def greets(port: int) -> bool:
    """Whether an SSH server answers on this port of 127.0.0.1."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.settimeout(2)
            return connection.recv(4) == b"SSH-"
    except OSError:
        return False


def wait(lab: Lab, nodes: Iterable[int], *, other_than: dict[int, str] | None = None) -> None:
    """Wait until each node answers over SSH, in another boot than the one given; report the duration."""
    started = time.monotonic()
    for node in nodes:
        while True:
            if greets(lab.port(node)):
                found = boot_id(lab, node)
                if found and found != (other_than or {}).get(node):
                    break
            if time.monotonic() - started > BOOT_SECONDS:
                tail = console(lab, node).strip().splitlines()[-3:]
                raise LabError(f"{lab.hostname(node)} did not answer over SSH within {BOOT_SECONDS} s; its console ends: {' | '.join(tail)}")
            time.sleep(0.3)
        report(f"  {lab.hostname(node)} answers after {time.monotonic() - started:.0f} s")


def console(lab: Lab, node: int) -> str:
    """What the node printed on its serial console since it was switched on."""
    return inside(lab, "cat", f"{qemu.RUN}/vm{node}.console", check=False).stdout.decode(errors="replace")


def reboot(lab: Lab, nodes: Sequence[int], *, hard: bool) -> None:
    """Restart nodes: in order by systemd, or like a power failure."""
    before = {node: boot_id(lab, node) for node in nodes}
    if hard:
        power_off(lab, nodes)
        start(lab, nodes, fresh=False)
    else:
        for node in nodes:
            done = run_in(lab, node, "sudo systemctl --no-block reboot")
            if done.returncode != 0:
                reason = done.stderr.strip() or "no answer"
                raise LabError(f"{lab.hostname(node)} did not take the reboot: {reason} (`vmlab.py reboot --hard {node}` pulls the plug)")
    wait(lab, nodes, other_than=before)


def ends_of(cable: str, nodes: Sequence[int]) -> list[int]:
    """A rail's cable has both nodes at its ends; the management cable is each node's own."""
    return list(NODES) if cable in RAILS else list(nodes)


def plug(lab: Lab, cable: str, nodes: Sequence[int], *, joined: bool) -> None:
    """Pull or plug a cable: the carrier goes or comes at its ends."""
    for node in ends_of(cable, nodes):
        if not qmp(lab, node, "set_link", name=cable, up=joined):
            raise LabError(f"{lab.hostname(node)} is off; `vmlab.py up` starts it.")
