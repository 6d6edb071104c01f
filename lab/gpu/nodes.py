# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The two nodes, made by the container lab's own code, each with one GPU. Runs where the Docker Engine of the lab answers."""

from __future__ import annotations

import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

from lab.container import images, nodes, plan
from lab.container.host import docker, inspect, report, run, step
from lab.gpu.machine import NO_MULTICAST, Machine

HERE = Path(__file__).resolve().parent
STAND_INS = HERE / "node"
ENGINE = "gb10-lab/vllm-cuda:0.25.1"
TREE = "gb10-lab/node:tree"
MODEL = "lab-1b"
PATHS = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# The settings that an import of a tree leaves out, of the container lab's recipe of a node.
NODE_SETTINGS = ('ENTRYPOINT ["/usr/local/sbin/gb10-lab-init"]', f"ENV PATH={PATHS}", "STOPSIGNAL SIGRTMIN+3")
ENGINE_SETTINGS = (
    *(f"ENV PATH=/opt/torch/.venv/bin:/opt/vllm/bin:/usr/local/cuda/bin:{PATHS}", "ENV PYTHONPATH=/opt/vllm", "ENV HOME=/root"),
    *("ENV CUDA_HOME=/usr/local/cuda", "ENV LIBRARY_PATH=/usr/local/cuda/lib64/stubs", "ENV PYTHONDONTWRITEBYTECODE=1", 'CMD ["python3"]'),
    *(f"ENV {name}={value}" for name, value in NO_MULTICAST.items()),
)
# What the image of the engine has of the machine. Programs and libraries are mounted: /usr, torch, vLLM, and the driver by CDI.
MACHINE_ETC = ("passwd", "group", "nsswitch.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "alternatives")
# Gives a node its GPU: a CDI file; a driver that makes no device node of the other GPU; links without which systemd takes the GPU from all
# containers at a `daemon-reload`; the driver's libraries.
GPU_SCRIPT = """set -e
mkdir -p /etc/cdi /dev/char; cat >/etc/cdi/nvidia.json
if [ -e /proc/driver/nvidia/params ]; then
  sed 's/^ModifyDeviceFiles: 1/ModifyDeviceFiles: 0/' /proc/driver/nvidia/params >/run/nvidia-params
  cmp -s /run/nvidia-params /proc/driver/nvidia/params || mount --bind /run/nvidia-params /proc/driver/nvidia/params
fi
for each in /dev/nvidia*; do [ -c "$each" ] && ln -sf "$each" "/dev/char/$(stat -c %Hr:%Lr "$each")"; done
ldconfig
nvidia-smi -L"""


def import_tree(tag: str, root: Path, settings: Sequence[str]) -> None:
    """Make an image of a tree, unless it is there. One `tar` makes the archive: `docker import` refuses a path that comes twice."""
    if images.image_ready(tag):
        return
    with step(f"image {tag}"):
        changes = [item for each in settings for item in ("--change", each)]
        script = 'tag=$1 root=$2; shift 2; tar -c --numeric-owner -C "$root" . | docker import "$@" - "$tag"'
        run(["sh", "-c", script, "sh", tag, str(root), *changes], what=f"docker import of {tag}")


def node_image(base: str) -> str:
    """A node's image with the stand-ins for NVIDIA's toolkit, unless the base has the real one; its tag."""
    paths = sorted(path for path in STAND_INS.rglob("*") if path.is_file())
    files = {str(path.relative_to(STAND_INS)): path.read_bytes() for path in paths}
    tag = f"gb10-lab/node-gpu:{plan.content_hash({**files, 'base': str((inspect('image', base) or {}).get('Id')).encode()})}"
    if not images.image_ready(tag):
        real = run(["docker", "run", "--rm", "--network", "none", "--entrypoint", "which", base, "nvidia-ctk"], check=False).returncode == 0
        lines = [f"FROM {base}", *(["COPY etc/ld.so.conf.d /etc/ld.so.conf.d"] if real else ["COPY etc /etc", "COPY usr /usr"])]
        with step(f"image {tag}{'' if real else ', with stand-ins for the NVIDIA Container Toolkit'}"):
            images.build(tag, [], {}, {**files, "Dockerfile": "\n".join(lines).encode()})
    return tag


def engine_tree(folder: Path) -> None:
    """The names and links of the engine's image."""
    for name in ("etc", "usr", "opt/torch", "opt/vllm", "opt/gcc", "models", "cache", "root", "proc", "sys", "dev", "run", "var/tmp", "home", "tmp"):
        (folder / name).mkdir(parents=True, exist_ok=True)
    (folder / "tmp").chmod(0o1777)
    for name in ("bin", "lib", "lib64", "sbin"):
        if not (folder / name).is_symlink():
            (folder / name).symlink_to(f"usr/{name}")
    there = [f"etc/{name}" for name in MACHINE_ETC if (Path("/etc") / name).exists()]
    run(["sh", "-c", 'to=$1; shift; tar -C / -c "$@" | tar -C "$to" -x', "sh", str(folder), *there], what="copying names of this machine")


def cdi(machine: Machine, number: int) -> str:
    """What a node's /etc/cdi/nvidia.json names: its GPU under the driver's names, and the driver."""
    given = machine.gpu_arguments(number)
    paths = [each.partition(":")[2] for option, each in zip(given[::2], given[1::2]) if option == "--device"]
    mount = {"hostPath": "/usr/local/nvidia", "containerPath": "/usr/local/nvidia", "options": ["ro", "nosuid", "nodev", "rbind"]}
    device = {"name": "all", "containerEdits": {"deviceNodes": [{"path": path} for path in paths]}}
    return json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "containerEdits": {"mounts": [mount]}, "devices": [device]})


def up(lab: nodes.Lab, machine: Machine, base: str, tree: str, tags: Sequence[str]) -> list[plan.Node]:
    """The networks and both nodes, up and equipped with key, GPU and images. A second call changes nothing."""
    lab.state.mkdir(mode=0o700, parents=True, exist_ok=True)
    wanted = [replace(node, arguments=machine.gpu_arguments(node.number)) for node in plan.nodes(2, lab.instance)]
    image = node_image(base)
    names = plan.Names(base=base, engine=ENGINE, stub=base, node=image, tree=tree, model="")
    nodes.ensure_networks(lab, plan.networks(2, lab.instance))
    key = nodes.ensure_key(lab, names)
    nodes.ensure_containers(lab, wanted, names, key, real=bool(tree))
    with step("systemd and Docker in the nodes"):
        nodes.wait_ready(wanted)

    def gpu(node: plan.Node) -> str:
        return docker("exec", "-i", node.container, "sh", "-c", GPU_SCRIPT, stdin=cdi(machine, node.number), what=f"giving {node.name} its GPU")

    with step("keys, GPUs and images into the nodes"), ThreadPoolExecutor(2) as pool:
        for node, text in zip(wanted, pool.map(gpu, wanted)):
            report(f"  {node.name}: {text}")
        nodes.equip_all(lab, wanted, key, {}, tags)
    nodes.check_reach(wanted)
    return wanted


def give_model(node: plan.Node, folder: Path) -> None:
    """A copy of the model for the head. The other node gets its copy from the head, over the rail, by the role weights."""
    place = f"/srv/models/{folder.name}"
    if run(["docker", "exec", node.container, "test", "-e", place], check=False).returncode == 0:
        return
    with step(f"{node.name}: model {folder.name}"):
        docker("cp", str(folder), f"{node.container}:{place}.new")
        docker("exec", node.container, "sh", "-c", f"chown -R root:root {place}.new && mv {place}.new {place}")
