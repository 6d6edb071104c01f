# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the lab is made of: nodes, cables, places, and the hash that decides when to build again. Pure except for reading files."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from lab.container.plan import LabError

HERE = Path(__file__).resolve().parent
CHECKOUT = HERE.parents[1]
GUEST_RECIPE = HERE / "guest"

SUITE = "trixie"
ADMIN = "admin"
NODES = (1, 2)
RAILS = ("rail0", "rail1")
CABLES = ("mgmt", *RAILS)
MEMORY_MIB = 1536
HOST_PACKAGES = (
    "qemu-system-x86",
    "qemu-utils",
    "mmdebstrap",
    "busybox-static",
    "cpio",
    "zstd",
    "xz-utils",
    "kmod",
    "e2fsprogs",
    "python3-minimal",
    "libpython3-stdlib",
    "socat",
    "tini",
)


@dataclass(frozen=True)
class Lab:
    """One lab: where it keeps its things and what its parts are called."""

    state: Path
    instance: int
    memory_mib: int = MEMORY_MIB

    @property
    def container(self) -> str:
        """The container that holds both machines."""
        return "gb10-vmlab" if self.instance == 0 else f"gb10-vmlab-{self.instance}"

    @property
    def images_volume(self) -> str:
        """The volume with the built guests, shared by all labs of this engine."""
        return "gb10-vmlab-images"

    @property
    def key(self) -> Path:
        """The private key that the admin user's authorized_keys answers to."""
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        """The exact host keys of both machines."""
        return self.state / "known_hosts"

    def port(self, node: int) -> int:
        """The port on 127.0.0.1 where this node's sshd answers."""
        return 22200 + 10 * self.instance + node

    @staticmethod
    def hostname(node: int) -> str:
        """vm-1 or vm-2."""
        return f"vm-{node}"


def lab_from(environ: Mapping[str, str] | None = None) -> Lab:
    """Read GB10_VMLAB_DIR, GB10_VMLAB_INSTANCE (0 to 9) and GB10_VMLAB_MEMORY_MIB."""
    environ = os.environ if environ is None else environ
    numbers = {}
    for name, default, low, high in (("INSTANCE", 0, 0, 9), ("MEMORY_MIB", MEMORY_MIB, 1024, 16384)):
        text = environ.get(f"GB10_VMLAB_{name}") or str(default)
        if not text.isdecimal() or not low <= int(text) <= high:
            raise LabError(f"GB10_VMLAB_{name} is '{text}'; give a whole number from {low} to {high}, or leave it unset for {default}.")
        numbers[name] = int(text)
    instance = numbers["INSTANCE"]
    default_dir = CHECKOUT / ".lab" / ("vm" if instance == 0 else f"vm{instance}")
    state = Path(environ.get("GB10_VMLAB_DIR") or default_dir).absolute()
    return Lab(state=state, instance=instance, memory_mib=numbers["MEMORY_MIB"])


def digest_of(parts: Mapping[str, bytes]) -> str:
    """Twelve hex digits over names and contents, in name order."""
    total = hashlib.sha256()
    for name in sorted(parts):
        total.update(f"{name}\0{len(parts[name])}\0".encode())
        total.update(parts[name])
    return total.hexdigest()[:12]


def host_image_digest() -> str:
    """Changes when the container around the machines must be built again."""
    return digest_of({"suite": SUITE.encode(), "packages": " ".join(HOST_PACKAGES).encode()})


def guest_digest(recipe: Path = GUEST_RECIPE) -> str:
    """Changes when the guest must be built again: any file of the recipe, its mode, or the container that builds it."""
    parts = {"host": host_image_digest().encode()}
    for file in sorted(recipe.rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            executable = b"x" if os.access(file, os.X_OK) else b"-"
            parts[str(file.relative_to(recipe))] = executable + file.read_bytes()
    return digest_of(parts)
