# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pack what a machine without a network needs: the tree of the container lab's node, vLLM, and Ansible with pytest for the Python of that tree.

Runs on a computer with Docker and a network. The torch that vLLM wants is on the machine already, so its 3 GB do not travel.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

from lab.container import images, plan
from lab.container.host import docker, ensure_docker, report, run, step
from lab.container.plan import LabError
from lab.gpu import pieces
from lab.gpu.machine import CHECKOUT

HERE = Path(__file__).resolve().parent
OUT = CHECKOUT / ".gpu-bundle"
# Python 3.13 of the node's tree runs Ansible; the engine runs with the Python 3.12 that has torch.
GLIBC = ("_2_34", "_2_31", "_2_28", "_2_27", "_2_26", "_2_24", "_2_17", "2014", "_2_12", "2010", "1")
# Not needed to run a pair as a node or as the controller does: 602 MB become 419.
NODE_WITHOUT = (
    *("usr/local/lib/docker-buildx", "usr/share/doc/*", "usr/share/man/*", "usr/share/locale/*", "usr/share/perl", "usr/share/zoneinfo/*", "var/cache/*"),
    *("usr/lib/x86_64-linux-gnu/perl*", "usr/lib/x86_64-linux-gnu/libperl*", "usr/lib/x86_64-linux-gnu/gconv", "usr/bin/perl*", "usr/lib/git-core"),
    *("usr/bin/git*", "usr/lib/udev/hwdb*", "usr/bin/ctr", "usr/bin/containerd-shim", "usr/bin/containerd-shim-runc-v1", "usr/share/python-wheels"),
    *("usr/bin/scalar", "usr/bin/sqv", "usr/lib/python3.13/test", "usr/lib/python3.13/pydoc_data", "var/lib/apt/*", "var/lib/dpkg/info/*", "*__pycache__"),
)
# Kernels of other attentions and of mixtures of experts, the front end in Rust, tokenizers of Mistral: the profile lab-gpu uses none of them.
# One of flash-attn 2 and 3 must be there: vLLM imports them with any attention.
VLLM_WITHOUT = (
    *("vllm/vllm_flash_attn/_vllm_fa2", "vllm/vllm-rs", "vllm/third_party/fmha", "vllm/third_party/deep_gemm/", "vllm/_flashmla", "vllm/_moe_C"),
    "mistral_common/data/",
)


def node_tree(folder: Path) -> None:
    """The root of the container lab's node image."""
    names = plan.names(machine=docker("info", "--format", "{{.Architecture}}"))
    images.ensure_base(names)
    images.ensure_engine_image(names)
    images.ensure_node_image(names)
    container = docker("create", names.node, "true")
    try:
        with subprocess.Popen(["docker", "export", container], stdout=subprocess.PIPE) as exported:
            words = ["tar", "-x", "-C", str(folder), *(f"--exclude={pattern}" for pattern in NODE_WITHOUT)]
            code = subprocess.run(words, stdin=exported.stdout, check=False).returncode
    finally:
        docker("rm", container)
    if code or exported.returncode:
        raise LabError("Exporting the node image failed.")


def pip(python: str, *words: str) -> None:
    """Run pip for another Python than this one, of wheels alone."""
    target = ["--only-binary=:all:", "--implementation", "cp", "--python-version", python, *(f"--platform=manylinux{each}_x86_64" for each in GLIBC)]
    run([sys.executable, "-m", "pip", words[0], "-q", "--disable-pip-version-check", *target, *words[1:]], what=f"pip {words[0]}")


def ansible_tree(folder: Path) -> None:
    """Ansible and pytest, in the versions of the locks. One call of pip: a second one into the same folder keeps or replaces all programs."""
    lock = (CHECKOUT / "requirements-dev.lock").read_text(encoding="utf-8")
    pytest = re.findall(r"^(?:pytest|pluggy|iniconfig|pygments)==.*(?:\n    .*)*", lock, re.MULTILINE)
    wanted = OUT / "ansible.txt"
    wanted.write_text("\n".join(["-r ../requirements.lock", *pytest, ""]), encoding="utf-8")
    pip("3.13", "install", "--no-compile", "--no-deps", "--target", str(folder), "-r", str(wanted))
    for script in (folder / "bin").iterdir():
        first, _sep, rest = script.read_bytes().partition(b"\n")
        if first.startswith(b"#!"):
            script.write_bytes(b"#!/usr/bin/python3\n" + rest)


def vllm_tree(folder: Path) -> None:
    """vLLM and what it imports, without what the machine's torch has and without what one small Llama does not use."""
    wheels = OUT / "wheels"
    shutil.rmtree(wheels, ignore_errors=True)
    pip("3.12", "download", "--no-deps", "-d", str(wheels), "-r", str(HERE / "vllm.txt"))
    for wheel in sorted(wheels.glob("*.whl")):
        with zipfile.ZipFile(wheel) as archive:
            wanted = [name for name in archive.namelist() if not name.startswith(VLLM_WITHOUT) and not name.endswith("/RECORD")]
            archive.extractall(folder, wanted)  # zipfile keeps members inside the folder
    command = folder / "bin/vllm"
    command.parent.mkdir(exist_ok=True)
    # CUDA's workers are spawned and import this file again: without the condition each boot ends as `worker_died`.
    guard = 'if __name__ == "__main__":\n    sys.exit(main())\n'
    command.write_text(f"#!/opt/torch/.venv/bin/python3\nimport sys\n\nfrom vllm.entrypoints.cli.main import main\n\n{guard}", encoding="ascii")
    command.chmod(0o755)


def pack(folder: Path, archive: Path) -> None:
    """A tree as a tar archive under zstd. xz takes ten times as long."""
    script = 'set -o pipefail; tar -c --numeric-owner "${@:3}" -C "$1" . | zstd -q -14 -T0 --long=27 -f -o "$2"'
    owner = [] if folder.name == "root" else ["--owner=0", "--group=0"]
    run(["bash", "-c", script, "bash", str(folder), str(archive), *owner], what=f"packing {folder.name}", timeout=3000)


def make(names: Sequence[str] = ()) -> int:
    """Make the archives that are missing or named, and cut them into pieces."""
    OUT.mkdir(exist_ok=True)
    ensure_docker(OUT)
    zstd = shutil.which("zstd")
    if zstd is None:
        raise LabError("zstd is not installed on this machine, and packing the bundle needs it.")
    archives = []
    for name, fill in (("ansible", ansible_tree), ("root", node_tree), ("vllm", vllm_tree)):
        archive = OUT / f"{name}.tar.zst"
        if not archive.is_file() or name in names:
            with step(f"bundle: {name}"):
                folder = OUT / name
                shutil.rmtree(folder, ignore_errors=True)
                folder.mkdir()
                fill(folder)
                pack(folder, archive.with_suffix(".part"))
                archive.with_suffix(".part").replace(archive)
                shutil.rmtree(folder)
        archives.append((name, archive))
    for folder in pieces.cut(archives, Path(zstd), OUT):
        report(f"{folder.relative_to(CHECKOUT)}: {sum(path.stat().st_size for path in folder.iterdir()) / 2**20:.1f} MiB")
    return 0
