# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The lab's commands: up, status, down."""

from __future__ import annotations

import argparse
import fcntl
import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from pathlib import Path
from types import FrameType

from lab.container import images, nodes, plan
from lab.container.host import abandon, apt_install, docker, docker_answers, ensure_docker, inspect, listed, report, run, step, stop_own_dockerd
from lab.container.nodes import Lab
from lab.container.plan import LabError

CHECKOUT = Path(__file__).resolve().parents[2]


@contextmanager
def locked(lab: Lab) -> Iterator[None]:
    """One `up` or `down` at a time."""
    lab.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    with (lab.state / "lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            report("another lab command is at work here; waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield


def check_room(names: plan.Names, wanted: list[plan.Node], *, real: bool) -> None:
    """Check disk and memory, and stop before anything is created."""
    running = set(listed("ps", "--filter", f"label={plan.LABEL}", "--format", "{{.Names}}"))
    missing = [node for node in wanted if node.container not in running]
    tree, made = not real or images.volume_ready(names.tree), images.image_ready(names.node)
    if not missing and tree and made:
        return
    need = plan.needs(len(missing), tree_ready=tree, images_ready=made, real=real)
    root = docker("info", "--format", "{{.DockerRootDir}}")
    free = shutil.disk_usage(root).free if Path(root).is_dir() else need.disk
    available = plan.meminfo_available(Path("/proc/meminfo").read_text(encoding="ascii"))
    gib = plan.GIB
    report(
        f"needs {need.disk / gib:.1f} GiB of disk ({free / gib:.1f} free under {root}) and, once the engines run, "
        f"{need.memory / gib:.1f} GiB of memory ({available / gib:.1f} available)"
    )
    if problems := plan.shortage(need, disk_free=free, disk_where=root, memory_available=available):
        raise LabError("\n".join(problems))


def up(lab: Lab, count: int, engine: str) -> int:
    begin = time.monotonic()
    if shutil.which("ssh") is None:
        apt_install(["openssh-client"], "Ansible reaches the nodes with the OpenSSH client, and this machine has none")
    report(f"Docker Engine {ensure_docker(lab.state)} answers; the lab's state is in {lab.state}")
    names = plan.names(machine=docker("info", "--format", "{{.Architecture}}"))
    nodes.evict_foreign(lab)
    present = {thing.name for thing in nodes.labelled() if thing.kind == "container"}
    there = max((node.number for node in plan.nodes(plan.MAX_NODES, lab.instance) if node.container in present), default=0)
    if there > count:
        count = there + there % 2
        report(f"{count} nodes are there from before and all are kept (`make lab-down` removes them)")
    wanted = plan.nodes(count, lab.instance)
    real = engine == "vllm" or images.volume_ready(names.tree)  # a lab that has the real engine keeps it
    check_room(names, wanted, real=real)
    nodes.ensure_networks(lab, plan.networks(count, lab.instance))
    images.ensure_base(names)
    images.ensure_engine_image(names)
    images.ensure_stub_image(names)

    with ThreadPoolExecutor(1) as pool:  # fetching the engine while the node image is built, teaching the model while the nodes boot
        tree = pool.submit(images.ensure_tree if real else _nothing, names)
        images.ensure_node_image(names)
        public_key = nodes.ensure_key(lab, names)
        tree.result()
        model = pool.submit(images.ensure_model if real else _nothing, names)
        touched = nodes.ensure_containers(lab, wanted, names, public_key, real=real)
        if touched:
            with step(f"{', '.join(node.name for node in touched)}: systemd and Docker"):
                nodes.wait_ready(wanted)
        else:
            nodes.wait_ready(wanted)
        model.result()
    with step("key, images and models into the nodes") if touched else nullcontext():
        nodes.equip_all(lab, wanted, public_key, *nodes.contents(lab, names, real=real))
    nodes.check_reach(wanted)
    if touched:
        with step("looking for what older recipes left"):
            gone = images.prune_superseded(names)
        if gone:
            report(f"  removed: {', '.join(gone)}")
    report(f"the lab is up: {len(wanted)} nodes in {time.monotonic() - begin:.1f} s{'' if touched else ', nothing was changed'}")
    for node in wanted:
        print(
            f"  {node.name}  {node.management}  fabric {' '.join(node.rails)}  ssh -i {lab.key} -o UserKnownHostsFile={lab.known_hosts} admin@{node.management}"
        )
    return 0


def _nothing(_names: plan.Names) -> None:
    """Take the place of a step that the stub does not need."""


def down(lab: Lab, *, everything: bool) -> int:
    if problem := docker_answers():
        report(f"No Docker Engine answers ({problem}): nothing of the lab runs here.")
        return 0
    things = nodes.labelled()
    mine = [thing for thing in things if thing.lab == lab.id]
    if mine:
        with step(f"removing {', '.join(thing.name for thing in mine)}"):
            nodes.remove(mine)
    else:
        report("there is no lab of this checkout to remove")
    if foreign := sorted({thing.checkout for thing in things if thing.lab != lab.id and thing.name.startswith(plan.prefix(lab.instance))}):
        report(f"left alone: a lab made from {', '.join(foreign)}; `make lab-down` there removes it (`make lab` here does, too)")
    lab.known_hosts.unlink(missing_ok=True)
    if everything:
        with step("removing the caches (images, engine tree, model)"):
            images.remove_caches()
        for path in [lab.key, lab.key.with_suffix(".pub"), *lab.state.glob("model-*.tar")]:
            path.unlink(missing_ok=True)
        stop_own_dockerd(lab.state)
    return 0


def status(lab: Lab) -> int:
    if problem := docker_answers():
        raise LabError(f"No Docker Engine answers here ({problem}).")
    mine = {thing.name for thing in nodes.labelled() if thing.lab == lab.id and thing.kind == "container"}
    if not mine:
        print(f"no lab of {lab.state} is there: `make lab` starts one")
        return 1
    healthy = True
    for node in plan.nodes(plan.MAX_NODES, lab.instance):
        if node.container not in mine:
            continue
        have = inspect("container", node.container) or {}
        line = f"{node.name}  {have.get('State', {}).get('Status', 'gone'):8} {node.management}  fabric {' '.join(node.rails)}"
        if have.get("State", {}).get("Running"):
            script = "systemctl is-system-running; docker ps -a --format '{{.Names}} ({{.Status}})' | paste -sd ';'; ls /srv/models | paste -sd ' '"
            out = run(["docker", "exec", node.container, "sh", "-c", script], check=False, timeout=60).stdout.split("\n")
            system, containers, models = [*out, "", "", ""][:3]
            healthy = healthy and system in ("running", "degraded")
            line += f"  systemd {system}  models {models or 'none'}  containers {containers or 'none'}"
        else:
            healthy = False
        print(line)
    return 0 if healthy else 1


def parser() -> argparse.ArgumentParser:
    result = argparse.ArgumentParser(prog="lab.py", description="The container lab: systemd containers with their own Docker Engine as nodes.")
    commands = result.add_subparsers(dest="command", required=True)
    starting = commands.add_parser("up", help="make or complete the lab; a second call changes nothing")
    starting.add_argument("--nodes", default=os.environ.get("LAB_NODES") or "2", help="2, 4, 6 or 8 (default: LAB_NODES, or 2); each two are a pair")
    engines = os.environ.get("LAB_ENGINE") or "vllm"
    starting.add_argument("--engine", choices=plan.ENGINES, default=engines, help="vllm (default: LAB_ENGINE), or the stub alone, without 5 GiB of packages")
    stopping = commands.add_parser("down", help="remove what up made: nodes, networks, their volumes")
    stopping.add_argument("--all", action="store_true", help="the caches too: images, the engine's tree, the model, the SSH key")
    commands.add_parser("status", help="what is there; exit 0 if all nodes are up")
    return result


def interrupted(number: int, _frame: FrameType | None) -> None:
    """Leave nothing at work behind: one-shot containers go, then the command ends."""
    abandon()
    raise KeyboardInterrupt(signal.Signals(number).name)


def main(argv: list[str] | None = None) -> int:
    options = parser().parse_args(argv)
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupted)
    try:
        instance = plan.check_instance(os.environ.get("GB10_LAB_INSTANCE", ""))
        state = Path(os.environ.get("GB10_LAB_DIR") or CHECKOUT / ".lab").expanduser().resolve()
        lab = Lab(state / f"instance-{instance}" if instance else state, instance)
        if options.command == "status":
            return status(lab)
        with locked(lab):
            if options.command == "up":
                return up(lab, plan.check_node_count(options.nodes), options.engine)
            return down(lab, everything=options.all)
    except LabError as error:
        print(f"lab: {error}", file=sys.stderr)
    except KeyboardInterrupt:
        print("lab: interrupted; `make lab` goes on from here, `make lab-down` removes what is there", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader of our output went away
        sys.stderr.close()
    except (OSError, ValueError, KeyError) as error:
        print(f"lab: {type(error).__name__}: {error} (unexpected; `make lab-down` and `make lab` start afresh)", file=sys.stderr)
    return 1
