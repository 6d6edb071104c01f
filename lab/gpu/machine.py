# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The machine with the GPUs: where things are on it, what it lacks, and programs that run on after a command has ended."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from lab.container.host import run
from lab.container.plan import LabError

CHECKOUT = Path(__file__).resolve().parents[2]
# A program that uses NVLink multicast can put the GPUs of a host that others share out of service for a day: off in all that starts here.
NO_MULTICAST = {"NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1"}
LEFT_OUT = (".git", ".gpu-bundle", ".venv", ".lab", "shared", "__pycache__")  # of a checkout, in the copy that serves the lab


@dataclass(frozen=True)
class Machine:
    """Places on the machine. `devices` and `driver` differ from the defaults where a test has neither."""

    home: Path
    devices: Path = Path("/dev")
    torch: Path = Path("/opt/torch")
    driver: Path = Path("/usr/local/nvidia")

    @property
    def checkout(self) -> Path:
        return self.home / "checkout"

    @property
    def results(self) -> Path:
        return self.home / "results"

    @property
    def root(self) -> Path:
        """The tree of a node, which is the root of the lab's mount namespace."""
        return self.home / "root"

    @property
    def python(self) -> Path:
        """The Python that has torch for CUDA."""
        return self.torch / ".venv/bin/python3"

    @property
    def gpus(self) -> list[str]:
        """The device nodes of the GPUs, by number."""
        found = [path.name for path in self.devices.glob("nvidia*") if re.fullmatch(r"nvidia\d+", path.name)]
        return sorted(found, key=lambda name: int(name.removeprefix("nvidia")))

    def gpu_arguments(self, number: int) -> tuple[str, ...]:
        """Arguments of `docker create` that give node `number` its GPU: the device nodes under their own names, and the driver."""
        names = [self.gpus[number - 1], *(name for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools") if (self.devices / name).exists())]
        devices = [item for name in names for item in ("--device", f"{self.devices / name}:/dev/{name}")]
        return (*devices, "--volume", f"{self.driver}:/usr/local/nvidia:ro")

    def missing(self) -> str:
        """Return one sentence on the first thing that the lab lacks here, or nothing."""
        if os.geteuid() != 0:
            return "The GPU lab makes mount namespaces and uses device nodes: run it as root."
        if not (self.devices / "nvidiactl").exists():
            return f"There is no {self.devices / 'nvidiactl'}: the GPU lab needs an NVIDIA driver that is loaded."
        if len(self.gpus) < 2:
            return f"One GPU only ({', '.join(self.gpus) or 'no device node'} in {self.devices}): the GPU lab gives each of its two nodes one."
        if not self.python.exists():
            return f"There is no {self.python}: the GPU lab needs torch 2.11 for CUDA 13 with transformers there (GPU_LAB_TORCH names another folder)."
        return ""

    def log(self, name: str) -> Path:
        return self.results / f"{name}.log"

    def code(self, name: str) -> int | None:
        """Exit code of a job that has ended."""
        try:
            return int((self.results / f"{name}.rc").read_text(encoding="ascii"))
        except (OSError, ValueError):
            return None

    def runs(self, name: str) -> bool:
        """Whether a job runs, by the session that it leads: a search for its name would find the searching shell too."""
        try:
            pid = int((self.results / f"{name}.pid").read_text(encoding="ascii"))
            return self.code(name) is None and f"{self.results}/{name}.rc" in Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8")
        except (OSError, ValueError):
            return False

    def start(self, name: str, argv: Sequence[str | Path], env: Mapping[str, str] | None = None) -> bool:
        """Start a job in a session of its own, which goes on when the command ends; False if it runs already."""
        if self.runs(name):
            return False
        self.results.mkdir(parents=True, exist_ok=True)
        (self.results / f"{name}.rc").unlink(missing_ok=True)
        script = 'log=$1 rc=$2; shift 2; "$@" >>"$log" 2>&1 </dev/null; echo $? >"$rc"'
        words = ["sh", "-c", script, "sh", self.log(name), f"{self.results}/{name}.rc", *argv]
        quiet = subprocess.DEVNULL
        started = subprocess.Popen(words, cwd=CHECKOUT, env={**os.environ, **(env or {})}, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)
        (self.results / f"{name}.pid").write_text(f"{started.pid}\n", encoding="ascii")
        return True

    def wait(self, name: str, seconds: float, lines: int = 40) -> int:
        """Wait for a job, print the end of its log, and return its exit code; 3 if it still runs, 4 if it was lost or never started."""
        end = time.monotonic() + seconds
        while self.code(name) is None and self.runs(name) and time.monotonic() < end:
            time.sleep(0.2)
        log = self.log(name)
        text = log.read_text(encoding="utf-8", errors="replace") if log.is_file() else ""
        print("\n".join(text.splitlines()[-lines:]), flush=True)
        code = self.code(name)
        if code is None:
            code = 3 if self.runs(name) else 4
        print(f"{name}: {'still at work' if code == 3 else 'not there' if code == 4 else f'exit code {code}'}", flush=True)
        return code


def this() -> Machine:
    """Return this machine, as the environment describes it."""
    machine = Machine(*(Path(os.environ.get(name) or default) for name, default in (("GPU_LAB", "/gpu-lab"), ("GPU_LAB_DEVICES", "/dev"))))
    torch = Path(os.environ.get("GPU_LAB_TORCH") or machine.torch)
    driver = Path(os.environ.get("GPU_LAB_DRIVER") or machine.driver)
    return Machine(machine.home, machine.devices, torch, driver if (driver / "bin/nvidia-smi").exists() else machine.home / "driver")


def gather_driver(machine: Machine) -> None:
    """Copy the driver's programs and libraries into one folder, unless the machine has them in one."""
    if (machine.driver / "bin/nvidia-smi").exists():
        return
    smi = shutil.which("nvidia-smi")
    listed = run(["ldconfig", "-p"], what="listing the libraries of the driver").stdout
    libraries = re.findall(r"^\s*lib(?:cuda|nvidia-[\w-]+)\.so\S* .*x86-64.*=> (\S+)", listed, re.MULTILINE)
    if not smi or not libraries:
        raise LabError("There is no nvidia-smi or no libcuda.so.1 on this machine: install the driver's user space (GPU_LAB_DRIVER names its folder).")
    for folder, paths in (("bin", [smi]), ("lib64", libraries)):
        (machine.driver / folder).mkdir(parents=True, exist_ok=True)
        for path in paths:
            shutil.copy2(path, machine.driver / folder)


def copy_checkout(machine: Machine) -> None:
    """Bring the checkout that this program is part of to where the lab's Ansible and tests run: what was corrected travels with the next command."""
    if machine.checkout.resolve() == CHECKOUT:
        return
    machine.checkout.mkdir(parents=True, exist_ok=True)
    script = 'set -e; from=$1 to=$2; shift 2; tar -C "$from" -c "$@" . | tar -C "$to" --no-same-owner -x'
    run(["sh", "-c", script, "sh", str(CHECKOUT), str(machine.checkout), *(f"--exclude={name}" for name in LEFT_OUT)], what="copying the checkout")
    machine.checkout.chmod(0o755)  # Ansible ignores the ansible.cfg of a folder that all may write to
