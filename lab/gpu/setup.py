# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Set up the lab on the machine: pieces of the bundle, work in the background, the namespace, and then the nodes in it."""

from __future__ import annotations

import subprocess
import time
from pathlib import Path

from lab.container.host import report, run, step
from lab.container.nodes import Lab
from lab.container.plan import LabError
from lab.gpu import nodes, pieces
from lab.gpu.machine import CHECKOUT, NO_MULTICAST, Machine, copy_checkout, gather_driver

SPACE = Path(__file__).resolve().parent / "space.sh"
TREES = ("ansible", "root", "vllm")
JOB_SECONDS = 300


def space(machine: Machine, *words: str | Path) -> list[str]:
    """The command line of space.sh."""
    settings = (f"GPU_LAB={machine.home}", f"GPU_LAB_DEVICES={machine.devices}", f"SPACE_BINDS={binds(machine)}")
    return ["env", *settings, "bash", str(SPACE), *map(str, words)]


def binds(machine: Machine) -> str:
    """What of the machine is seen in the namespace: the engine's parts, and the driver."""
    engine = {Path("/usr"): "usr", machine.torch: "torch", machine.home / "vllm": "site", Path("/opt/gcc"): "gcc"}
    pairs = [f"{source}=/opt/engine-host/{name}" for source, name in engine.items() if source.is_dir()]
    return " ".join([*pairs, f"{machine.driver}=/usr/local/nvidia"])


def compile_modules(machine: Machine, name: str, *folders: Path) -> None:
    """Compile modules in the background, unless that was done: half of a boot is import, and the nodes mount them read-only."""
    if machine.code(f"compile-{name}") is None:
        machine.start(f"compile-{name}", [machine.python, "-m", "compileall", "-q", "-j", "0", *folders])


def background(machine: Machine) -> None:
    """Start in the background what takes long: teaching the model, and compiling the modules that are there."""
    if not machine.python.exists():
        return
    if machine.code("model") != 0:
        target = machine.home / "model" / nodes.MODEL
        env = {"CUDA_VISIBLE_DEVICES": "0", "HF_HUB_OFFLINE": "1", **NO_MULTICAST}
        machine.start("model", [machine.python, "-W", "ignore", machine.checkout / "lab/container/make_model.py", target], env)
    compile_modules(machine, "torch", *machine.torch.glob(".venv/lib/python3*/site-packages"), *Path("/usr/lib").glob("python3.12"))
    if (machine.home / "vllm.unpacked").is_file():
        compile_modules(machine, "vllm", machine.home / "vllm")


def take(machine: Machine, folder: Path) -> int:
    """Keep a piece of the bundle, and unpack what is complete. The results of an earlier machine come with the checkout."""
    copy_checkout(machine)
    machine.results.mkdir(parents=True, exist_ok=True)
    earlier = CHECKOUT / ".gpu-bundle/results"
    for path in (path for pattern in ("*.json", "*.jsonl") for path in earlier.rglob(pattern)):
        target = machine.results / path.relative_to(earlier)
        if not target.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_bytes(path.read_bytes())
    background(machine)
    pieces.take(folder, machine.home)
    background(machine)
    return 0


def up(machine: Machine) -> int:
    """Bring up namespace, images and nodes. A second call repairs what is missing."""
    begin = time.monotonic()
    if problem := machine.missing():
        raise LabError(problem)
    for folder in sorted((CHECKOUT / ".gpu-bundle").glob("p[0-9]*")):
        take(machine, folder)
    if lacking := [name for name in TREES if not (machine.home / f"{name}.unpacked").is_file()]:
        raise LabError(
            f"{machine.home} lacks parts of the bundle ({', '.join(lacking)}): `make gpu-bundle` packs it, `python3 -m lab.gpu take FOLDER` unpacks a piece."
        )
    copy_checkout(machine)
    background(machine)
    gather_driver(machine)
    Path("/usr/local/nvidia").mkdir(exist_ok=True)  # where an engine's container gets the driver: its /usr is this machine's, read-only
    nodes.engine_tree(machine.home / "engine")
    if run(space(machine, "enter", "docker", "version"), check=False).returncode:
        with step("namespace with a Docker Engine of its own"):
            run(space(machine, "up"), what="starting the lab's namespace")
    modules = ("/usr/lib/python3.13", machine.home / "ansible", machine.checkout / "plugins")
    machine.start("compile-ansible", space(machine, "enter", "python3", "-m", "compileall", "-q", "-j", "0", *modules))
    for job in ("model", "compile-vllm"):
        if machine.runs(job):
            with step(f"waiting for {job}"):
                machine.wait(job, JOB_SECONDS, lines=3)
    if machine.code("model") != 0:
        raise LabError(f"The model was not made: see {machine.log('model')}.")
    code = subprocess.run(space(machine, "enter", "python3", "-m", "lab.gpu", "nodes"), check=False).returncode
    report(f"the GPU lab is {'up' if code == 0 else 'not up'}: {time.monotonic() - begin:.1f} s")
    return code


def inside(machine: Machine) -> int:
    """The part of `up` that runs in the namespace."""
    nodes.import_tree(nodes.TREE, machine.root, nodes.NODE_SETTINGS)
    nodes.import_tree(nodes.ENGINE, machine.home / "engine", nodes.ENGINE_SETTINGS)
    head, _worker = nodes.up(Lab(machine.home / "state"), machine, nodes.TREE, "/opt/engine-host", [nodes.ENGINE])
    nodes.give_model(head, machine.home / "model" / nodes.MODEL)
    return 0


def down(machine: Machine) -> int:
    """End the lab: its nodes, and its namespace with the Docker Engine. Trees, model and results stay."""
    script = "from lab.container import nodes; nodes.remove([each for each in nodes.labelled()])"
    return run(space(machine, "enter", "python3", "-c", script), check=False).returncode or run(space(machine, "down"), check=False).returncode
