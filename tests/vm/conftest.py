"""The VM lab as fixtures."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import playbook
import pytest

VMLAB = (sys.executable, str(playbook.REPO / "lab/vm/vmlab.py"))
INVENTORY = playbook.REPO / "inventories/vm-lab"


class VmLab:
    """Both machines, reached over SSH and through their cables; node 1 is the head."""

    nodes = (1, 2)
    hosts = ("vm-1", "vm-2")
    inventory = INVENTORY

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.pristine = False

    @staticmethod
    def command(*words: str, timeout: float = 900) -> str:
        """Run vmlab.py; a failure is the test's failure, with the command's own sentence."""
        done = subprocess.run([*VMLAB, *words], capture_output=True, text=True, timeout=timeout, check=False)
        assert done.returncode == 0, f"vmlab.py {' '.join(words)}: {done.stderr.strip() or done.stdout.strip()}"
        return done.stdout

    @staticmethod
    def try_on(node: int, shell: str, *, root: bool = True, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell line on a node and return the whole outcome."""
        words = ["sudo", "sh", "-c", _quoted(shell)] if root else ["sh", "-c", _quoted(shell)]
        return subprocess.run([*VMLAB, "ssh", str(node), *words], capture_output=True, text=True, timeout=timeout, check=False)

    def on(self, node: int, shell: str, *, root: bool = True, timeout: float = 120) -> str:
        """Run a shell line on a node; return what it printed, stripped."""
        done = self.try_on(node, shell, root=root, timeout=timeout)
        assert done.returncode == 0, f"{self.hosts[node - 1]}: {shell}: {done.stderr.strip()}"
        return done.stdout.strip()

    def reset(self, *nodes: int) -> None:
        """Fresh disks, fresh boot."""
        self.command("reset", *map(str, nodes))

    def reboot(self, *nodes: int, hard: bool = False, off: int = 0) -> float:
        """Reboot, in order or like a power failure of `off` seconds; return the seconds until SSH answered again."""
        started = time.monotonic()
        self.command("reboot", *(["--hard", f"--off={off}"] if hard else []), *map(str, nodes))
        return time.monotonic() - started

    def play(self, name: str = "site.yml", *arguments: str, **more: Any) -> playbook.Run:
        """Run a playbook on the machines; receipts and evidence land in the session's folder."""
        variables = {"gb10_receipts": str(self.folder / "receipts"), "gb10_evidence": str(self.folder / "evidence"), **(more.pop("variables", None) or {})}
        env = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}", **(more.pop("env", None) or {})}
        return playbook.run(self.folder, name, more.pop("inventory", INVENTORY), *arguments, variables=variables, env=env, **more)


def _quoted(shell: str) -> str:
    """One word for the remote shell."""
    return "'" + shell.replace("'", "'\\''") + "'"


@pytest.fixture(scope="session")
def vmlab_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VmLab]:
    """The machines, started if they were not; stopped again by the session that started them, unless GB10_VMLAB_KEEP is set."""
    was_up = subprocess.run([*VMLAB, "status"], capture_output=True, check=False).returncode == 0
    done = subprocess.run([*VMLAB, "up"], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        output = (done.stderr.strip() or "no message").splitlines()[-1]
        # Without the machines nothing is proven: never a skip where CI counts on it.
        (pytest.fail if playbook.complete() else pytest.skip)(f"The VM lab did not come up: {output}")
    lab = VmLab(tmp_path_factory.mktemp("vm"))
    lab.pristine = not was_up
    yield lab
    if not was_up and not os.environ.get("GB10_VMLAB_KEEP"):
        VmLab.command("down")


@pytest.fixture(scope="module")
def vmlab(vmlab_up: VmLab) -> VmLab:
    """The machines as an earlier module left them, with every cable in."""
    for cable in ("mgmt", "rail0", "rail1"):
        vmlab_up.command("heal", cable)
    return vmlab_up
