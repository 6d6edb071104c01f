# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Commands of the VM lab."""

from __future__ import annotations

import argparse
import fcntl
import os
import platform
import shutil
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lab.container.plan import LabError
from lab.vm import engine, images, keys, machines
from lab.vm.engine import docker, report
from lab.vm.recipe import CABLES, CHECKOUT, NODES, Lab, guest_digest, lab_from

EPILOG = """environment:
  GB10_VMLAB_DIR         state directory (keys, known_hosts, build log); default .lab/vm in the checkout
  GB10_VMLAB_INSTANCE    0 to 9: an additional lab, on ports 222K1 and 222K2
  GB10_VMLAB_MEMORY_MIB  memory of each machine, default 1536"""


def parser() -> argparse.ArgumentParser:
    """The command line."""
    top = argparse.ArgumentParser(
        prog="vmlab.py",
        description="Two emulated machines with a Spark's names: kernels, reboots, soft-RoCE, cables that can be pulled.",
        epilog=EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = top.add_subparsers(dest="command", required=True)
    nodes = {"nargs": "*", "type": int, "choices": NODES, "metavar": "N", "help": "1 or 2; both when left out"}
    commands.add_parser("build", help="build what is not built; nothing starts")
    commands.add_parser("up", help="build what is not built, start what is not running, wait for SSH")
    down = commands.add_parser("down", help="stop the machines and drop their disks; what was built stays")
    down.add_argument("--all", action="store_true", help="drop the built images and the keys too")
    commands.add_parser("status", help="what is built and what runs; exit code 0 only when both machines answer")
    commands.add_parser("reset", help="fresh disks and a fresh boot").add_argument("nodes", **nodes)  # type: ignore[arg-type]  # a dict of mixed options
    reboot = commands.add_parser("reboot", help="reboot and wait for SSH")
    reboot.add_argument("nodes", **nodes)  # type: ignore[arg-type]  # a dict of mixed options
    reboot.add_argument("--hard", action="store_true", help="like a power failure")
    for name, what in (("cut", "pull a cable"), ("heal", "plug it in again")):
        cable = commands.add_parser(name, help=f"{what}: a rail at both ends, or a node's management cable")
        cable.add_argument("cable", choices=CABLES)
        cable.add_argument("nodes", **nodes)  # type: ignore[arg-type]  # a dict of mixed options
    ssh = commands.add_parser("ssh", help="a shell, or one command, on a node")
    ssh.add_argument("node", type=int, choices=NODES)
    ssh.add_argument("words", nargs=argparse.REMAINDER)
    commands.add_parser("console", help="what a node printed on its serial console").add_argument("node", type=int, choices=NODES)
    return top


@contextmanager
def alone(lab: Lab) -> Iterator[None]:
    """One command at a time changes a lab."""
    lab.state.mkdir(parents=True, exist_ok=True)
    with (lab.state / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            report(f"  Waiting for another vmlab.py that is at work in {lab.state}")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def need_up(lab: Lab) -> None:
    """A sentence instead of a puzzle when the lab is not running."""
    if not engine.running(lab.container):
        raise LabError("The VM lab is not running; `make vm-lab` starts it.")


def built(lab: Lab) -> tuple[str, str]:
    """Build what is not built; return the container's image, and the place of the guest in the images volume."""
    if platform.machine() != "x86_64":
        raise LabError(f"The VM lab's guests are x86-64 and this machine is {platform.machine()}; run the lab on an x86-64 machine.")
    host = images.host_image()
    return host, images.guest_image(lab, host)


def build(lab: Lab, _args: argparse.Namespace) -> int:
    """Build, and start nothing."""
    built(lab)
    return 0


def up(lab: Lab, _args: argparse.Namespace) -> int:
    """Build, start, wait."""
    host, guest = built(lab)
    keys.ensure(lab)
    machines.ensure_container(lab, host, guest)
    off = [node for node in NODES if not machines.is_on(lab, node)]
    if off:
        report(f"  Starting {', '.join(lab.hostname(n) for n in off)} ({machines.place(lab)[1]})")
        machines.start(lab, off, fresh=True)
    machines.wait(lab, NODES)
    report("The VM lab is up: ansible-playbook -i inventories/vm-lab site.yml")
    return 0


def down(lab: Lab, options: argparse.Namespace) -> int:
    """Stop the machines and remove the given volumes."""
    docker("rm", "--force", "--volumes", lab.container, check=False)
    if options.all:
        docker("volume", "rm", "--force", lab.images_volume, check=False)
        for image in docker("image", "ls", "--quiet", "gb10-lab/vm-host").stdout.decode().split():
            docker("image", "rm", "--force", image, check=False)
        shutil.rmtree(lab.state, ignore_errors=True)
    return 0


def status(lab: Lab, _args: argparse.Namespace) -> int:
    """Print what is there."""
    running = engine.running(lab.container)
    print(f"recipe     {guest_digest()}")
    print(f"container  {lab.container}: {'runs ' + ' '.join(machines.place(lab)) if running else 'not running'}")
    good = running
    for node in NODES:
        answers = running and machines.greets(lab.port(node))
        good = good and answers
        print(f"{lab.hostname(node)}       127.0.0.1:{lab.port(node)} {'answers' if answers else 'does not answer'}")
    return 0 if good else 1


def reset(lab: Lab, options: argparse.Namespace) -> int:
    """Fresh machines."""
    need_up(lab)
    chosen = options.nodes or NODES
    machines.power_off(lab, chosen)
    machines.start(lab, chosen, fresh=True)
    machines.wait(lab, chosen)
    return 0


def reboot(lab: Lab, options: argparse.Namespace) -> int:
    """Reboot and wait."""
    need_up(lab)
    machines.reboot(lab, options.nodes or NODES, hard=options.hard)
    return 0


def cut(lab: Lab, options: argparse.Namespace) -> int:
    """Pull or plug a cable."""
    need_up(lab)
    machines.plug(lab, options.cable, options.nodes or NODES, joined=options.command == "heal")
    return 0


def ssh(lab: Lab, options: argparse.Namespace) -> int:
    """Become ssh."""
    need_up(lab)
    command = [*machines.ssh_command(lab, options.node, shared=True), *options.words]
    os.execvp(command[0], command)  # nosec B606 # noqa: S606 -- no shell is wanted here


def console(lab: Lab, options: argparse.Namespace) -> int:
    """Print a console."""
    need_up(lab)
    print(machines.console(lab, options.node), end="")
    return 0


COMMANDS: dict[str, Callable[[Lab, argparse.Namespace], int]] = {
    "build": build,
    "up": up,
    "down": down,
    "status": status,
    "reset": reset,
    "reboot": reboot,
    "cut": cut,
    "heal": cut,
    "ssh": ssh,
    "console": console,
}
CHANGING = {"build", "up", "down", "reset", "reboot"}


def main(argv: Sequence[str]) -> int:
    """Run one command; errors are sentences."""
    options = parser().parse_args(argv)
    os.chdir(CHECKOUT)
    try:
        lab = lab_from()
        if options.command in CHANGING:
            with alone(lab):
                return COMMANDS[options.command](lab, options)
        return COMMANDS[options.command](lab, options)
    except LabError as error:
        print(f"vmlab: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
