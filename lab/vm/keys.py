# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Keys made before the machines: who may log in, and exactly which host keys answer."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from lab.container.plan import LabError
from lab.vm.recipe import NODES, Lab


def host_key(lab: Lab, node: int) -> Path:
    """The private host key of a node."""
    return lab.state / f"host_key_{node}"


def ensure(lab: Lab) -> None:
    """Make what is missing, and write known_hosts from it."""
    lab.state.mkdir(parents=True, exist_ok=True)
    lab.state.chmod(0o700)
    for path in (lab.key, *(host_key(lab, node) for node in NODES)):
        if path.exists() and path.with_suffix(".pub").exists():
            continue
        if shutil.which("ssh-keygen") is None:
            raise LabError("`ssh-keygen` is not on PATH; install the OpenSSH client (Debian and Ubuntu: `apt install openssh-client`).")
        path.unlink(missing_ok=True)
        command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "gb10-vmlab", "-f", str(path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL)
    lines = [known_host(lab.port(node), host_key(lab, node).with_suffix(".pub").read_text()) for node in NODES]
    lab.known_hosts.write_text("".join(lines))


def known_host(port: int, public: str) -> str:
    """The known_hosts line of a public key that answers on 127.0.0.1."""
    kind, key = public.split()[:2]
    return f"[127.0.0.1]:{port} {kind} {key}\n"
