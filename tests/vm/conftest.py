"""The VM lab as fixtures."""

from __future__ import annotations

import os
import shlex
import subprocess
from collections.abc import Iterator
from typing import Any

import playbook
import pytest
from acceptance.machines import VMLAB, Machines


class VmLab(Machines):
    """Both machines, reached over SSH and through their cables; node 1 is the head."""

    @staticmethod
    def try_on(node: int, shell: str, timeout: float = 120) -> subprocess.CompletedProcess[str]:
        """Run a shell line as root on a node and return the whole outcome."""
        words = [*VMLAB, "ssh", str(node), "sudo", "sh", "-c", shlex.quote(shell)]
        return subprocess.run(words, capture_output=True, text=True, timeout=timeout, check=False)

    def play(self, name: str = "site.yml", *arguments: str, variables: dict[str, Any] | None = None) -> playbook.Run:
        """Run a playbook on the machines; receipts and evidence land in the session's folder."""
        given = {"gb10_receipts": str(self.folder / "receipts"), "gb10_evidence": str(self.folder / "evidence"), **(variables or {})}
        return playbook.run(self.folder, name, self.inventory, *arguments, variables=given)


@pytest.fixture(scope="session")
def vmlab_up(tmp_path_factory: pytest.TempPathFactory) -> Iterator[VmLab]:
    """The machines, started if they were not; stopped again by the session that started them, unless GB10_VMLAB_KEEP is set."""
    was_up = subprocess.run([*VMLAB, "status"], capture_output=True, check=False).returncode == 0
    done = subprocess.run([*VMLAB, "up"], stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode != 0:
        output = (done.stderr.strip() or "no message").splitlines()[-1]
        # Without the machines nothing is proven: never a skip where CI counts on it.
        (pytest.fail if os.environ.get("GB10_COMPLETE") else pytest.skip)(f"The VM lab did not come up: {output}")
    lab = VmLab(tmp_path_factory.mktemp("vm"))
    lab.pristine = not was_up
    yield lab
    if not was_up and not os.environ.get("GB10_VMLAB_KEEP"):
        VmLab.lab("down")


@pytest.fixture(scope="module")
def vmlab(vmlab_up: VmLab) -> VmLab:
    """The machines as an earlier module left them, with every cable in."""
    for cable in ("mgmt", "rail0", "rail1"):
        vmlab_up.lab("heal", cable)
    return vmlab_up
