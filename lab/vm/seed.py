# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What makes a guest this node: names, keys, network files, as a cpio archive next to the initrd. Pure."""

from __future__ import annotations

import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lab.vm.recipe import NODES, Lab

ADMIN_ID = 1000
FILE, DIRECTORY, LINK = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK


@dataclass(frozen=True)
class Entry:
    """One file, directory or link of the archive; `data` is a link's target."""

    path: str
    mode: int
    data: bytes = b""
    owner: int = 0


def management_address(node: int) -> str:
    """The address of enP7s7; each machine has a management network of its own, behind the forwarded port."""
    return f"10.0.2.{10 + node}"


def netplan(node: int) -> str:
    """The node's own netplan file: NetworkManager on the first node, as DGX OS has it, networkd on the second."""
    renderer = "NetworkManager" if node == 1 else "networkd"
    return f"""network:
  version: 2
  renderer: {renderer}
  ethernets:
    enP7s7:
      dhcp4: false
      dhcp6: false
      accept-ra: false
      link-local: []
      addresses: [{management_address(node)}/24]
      routes:
        - to: default
          via: 10.0.2.2
"""


def netplan_path(node: int) -> str:
    """The file's usual name under each renderer."""
    return "etc/netplan/01-network-manager-all.yaml" if node == 1 else "etc/netplan/50-cloud-init.yaml"


def enabled_units(node: int) -> dict[str, str]:
    """Links that `systemctl enable` would make for the node's network daemon: path to target."""
    base, units = "etc/systemd/system", "/usr/lib/systemd/system"
    if node == 1:
        return {
            f"{base}/multi-user.target.wants/NetworkManager.service": f"{units}/NetworkManager.service",
            f"{base}/dbus-org.freedesktop.nm-dispatcher.service": f"{units}/NetworkManager-dispatcher.service",
        }
    return {
        f"{base}/multi-user.target.wants/systemd-networkd.service": f"{units}/systemd-networkd.service",
        f"{base}/sockets.target.wants/systemd-networkd.socket": f"{units}/systemd-networkd.socket",
        f"{base}/dbus-org.freedesktop.network1.service": f"{units}/systemd-networkd.service",
    }


def entries(node: int, *, authorized: str, host_private: str, host_public: str) -> list[Entry]:
    """Everything planted on this node's fresh disk, below `seed/`."""
    hosts = "".join(f"{management_address(n)} {Lab.hostname(n)}\n" for n in NODES if n == node)
    files = {
        "etc/hostname": (0o644, f"{Lab.hostname(node)}\n"),
        "etc/hosts": (0o644, f"127.0.0.1 localhost\n{hosts}"),
        "etc/machine-id": (0o444, f"{node:032x}\n"),
        "etc/ssh/ssh_host_ed25519_key": (0o600, host_private),
        "etc/ssh/ssh_host_ed25519_key.pub": (0o644, host_public),
        netplan_path(node): (0o600, netplan(node)),
    }
    planted = [Entry(f"seed/{path}", FILE | mode, text.encode()) for path, (mode, text) in files.items()]
    planted += [Entry(f"seed/{path}", LINK | 0o777, target.encode()) for path, target in enabled_units(node).items()]
    planted += [
        Entry("seed/home/admin", DIRECTORY | 0o700, owner=ADMIN_ID),
        Entry("seed/home/admin/.ssh", DIRECTORY | 0o700, owner=ADMIN_ID),
        Entry("seed/home/admin/.ssh/authorized_keys", FILE | 0o600, authorized.encode(), owner=ADMIN_ID),
    ]
    return with_parents(planted)


def with_parents(planted: Iterable[Entry]) -> list[Entry]:
    """Add the directories that lead to each entry (0755, root) and sort, so that parents come first."""
    known = {entry.path: entry for entry in planted}
    for path in list(known):
        parts = path.split("/")
        for depth in range(1, len(parts)):
            parent = "/".join(parts[:depth])
            known.setdefault(parent, Entry(parent, DIRECTORY | 0o755))
    return [known[path] for path in sorted(known)]


def newc(archive: Sequence[Entry]) -> bytes:
    """The kernel's initrd format (cpio `newc`), ready to stand behind another such archive."""
    out = bytearray()
    for number, entry in enumerate([*archive, Entry("TRAILER!!!", 0)], start=1):
        name = entry.path.encode() + b"\0"
        fields = (number, entry.mode, entry.owner, entry.owner, 1, 0, len(entry.data), 0, 0, 0, 0, len(name), 0)
        out += b"070701" + b"".join(b"%08X" % field for field in fields) + name
        out += b"\0" * (-len(out) % 4)
        out += entry.data
        out += b"\0" * (-len(out) % 4)
    return bytes(out)
