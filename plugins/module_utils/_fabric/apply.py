# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: apply a network change to the live node, and undo it.

`present()`: plan (netplan.py), let netplan generate its files in a folder, save the state and start the timer (restore.py), write, and wait
until the rails have their addresses. Only the generated files of the rails are installed: those of every other interface, above all the
one that carries this SSH session, are not written.
"""

from __future__ import annotations

import contextlib
import ipaddress
import os
import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Changes, FileChange
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import netplan, restore
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import rdma_users
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import ConfigFile, Device, Plan, RailConfig
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.problems import gather
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import DesiredState, repairs_of
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.restore import Live, PendingChange, RefusedError

SETTLE_SECONDS = 45
GENERATORS = ("/usr/libexec/netplan/generate", "/usr/lib/netplan/generate")
RUN_FOLDERS = ("/run/systemd/network", "/run/NetworkManager/system-connections")
REFUSING = ("bad_input", "no_cable", "rail_unplaced", "interface_missing", "rail_is_management")  # problems of a node that gets no rails


@dataclass(frozen=True)
class Work:
    """What `present()` has to do: the plan, the files that change, the kernel values, and the rails that drifted."""

    rails: Sequence[RailConfig]
    plan: Plan
    files: Sequence[FileChange]
    sysctls: Mapping[str, str]
    drift: Sequence[RailConfig]

    @property
    def names(self) -> list[str]:
        """Return the interfaces of the rails."""
        return [rail.interface for rail in self.rails]

    @property
    def netplan_changes(self) -> bool:
        """Return whether netplan files change; a drift is corrected on the rail, without netplan."""
        return bool(self.plan.moves) or any(change.path == f"/{netplan.OWN_PATH}" for change in self.files)


class Change:
    """The change of one module run."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.live = Live(module)
        self.pending = PendingChange(self.live)
        self.changes = Changes()
        self.notes = self.live.notes
        self.own, self.drop_in = "/" + netplan.OWN_PATH, "/" + netplan.SYSCTL_PATH

    # present

    def present(self) -> list[dict[str, Any]]:
        """Configure the rails; return the rails as roce_info returns them, read before the change."""
        self.live.read()
        found, rails = self._desired()
        work = self._work(rails)
        self._report(work)
        if self.changes.messages:
            generated = self._generate(work.names, work.plan.text, work.plan.moves) if work.netplan_changes else {}
            if work.netplan_changes or work.drift:
                self.live.refuse_in_use(work.names)
            if not self.module.check_mode:
                self._apply(work, generated)
        if self.module.params["gid_repair"] and not (self.module.check_mode and self.changes.messages):
            self._repair_gids()
        return found

    def _facts(self) -> dict[str, Any]:
        """Return the facts of the node with the rails of the module's arguments."""
        params = self.module.params
        desired = DesiredState(params["addresses"], (), params["interfaces"], params["mtu"], params["min_speed_mbps"], follow_link=True)
        return gather(self.live.capture, desired, self.live.ssh_connection)

    def _desired(self) -> tuple[list[dict[str, Any]], list[RailConfig]]:
        """Return the rails of the facts and the configuration of each, or refuse."""
        addresses, facts = self.module.params["addresses"], self._facts()
        if not addresses:
            raise RefusedError("This node has no fabric address; set gb10_fabric_cidrs (one network per rail) in the inventory.")
        bad = [f"{problem['message']} {problem['remedy']}" for problem in facts["problems"] if problem["id"] in REFUSING]
        bare = [text for text in addresses if "/" not in text]
        if bad or bare or len(facts["rails"]) != len(addresses):
            why = f"The address {bare[0]} has no prefix length; write it like {bare[0]}/24." if bare else "The node has no port for each rail."
            raise RefusedError(" ".join(bad) or why)
        faces = [ipaddress.ip_interface(text).with_prefixlen for text in addresses]
        return facts["rails"], [RailConfig(rail["netdev"], faces[rail["index"]], self.module.params["mtu"]) for rail in facts["rails"]]

    def _work(self, rails: list[RailConfig]) -> Work:
        """Compare the node with the configuration; refuse what must not be changed."""
        live, node, names = self.live, self.live.node, [rail.interface for rail in rails]
        others = {name: [a.cidr for a in node.addresses(name) if a.family == "inet"] for name in node.netdevs if name not in names and name != "lo"}
        hidden = [f"Could not read /{path} ({why}); run as root (become: true)." for path, why in live.capture.unreadable.items()]
        devices = [Device(name, port.mac, port.driver) for name in (*names, *others) for port in [node.port(name)]]
        read = netplan.read_files(live.capture.config, devices[: len(names)], devices[len(names) :])
        plan = netplan.plan(rails, read, self.module.params["foreign"], self._renderer(read))
        refusals = netplan.overlaps(rails, others) or hidden or plan.refusals
        if refusals:
            raise RefusedError(" ".join(refusals))
        values = netplan.sysctl_values(names, self.module.params["ipv6"])
        own = FileChange(self.own, live.text(self.own), plan.text, 0o600)
        drop_in = FileChange(self.drop_in, live.text(self.drop_in), netplan.render_sysctl(values))
        drift = [rail for rail in plan.ours if not live.fits(rail)]
        return Work(rails, plan, [change for change in (own, drop_in) if change.changed], {f"/proc/sys/{key}": value for key, value in values.items()}, drift)

    def _renderer(self, read: list[ConfigFile]) -> str:
        """Return the renderer of the rails."""
        if self.module.params["renderer"] != "auto":
            return str(self.module.params["renderer"])
        chosen = netplan.default_renderer(read)
        if chosen in netplan.RENDERERS:
            return str(chosen)
        return "NetworkManager" if self.live.active("NetworkManager") else "networkd"

    def _report(self, work: Work) -> None:
        """Add each change to the actions and the diff."""
        live, plan = self.live, work.plan
        for rail in work.rails:
            if rail not in plan.ours and not live.fits(rail):
                self.notes.append(f"{rail.interface} does not have what its adopted file configures ({rail.address}, MTU {rail.mtu}).")
        for change in work.files:
            self.changes.file(change, f"{'write' if change.after is not None else 'remove'} {change.path}")
        for path in plan.moves:
            self.changes.file(FileChange(f"/{path}", live.text(f"/{path}"), None), f"move /{path} to {restore.BACKUP_DIR}")
        for path, value in work.sysctls.items():
            now = (live.text(path) or "").strip()
            if now and now != value:
                self.changes.step(f"set {path} from {now} to {value}")
        for rail in work.drift:
            state = live.interface(rail.interface)
            now = f"{', '.join(state.addresses) or 'no address'}, MTU {state.mtu}"
            self.changes.step(f"give {rail.interface} {rail.address} and MTU {rail.mtu} (now: {now})")

    def _apply(self, work: Work, generated: dict[str, str]) -> None:
        """Write the files and set the rails. If netplan files change, the timer that restores the state runs before."""
        live, names, ours = self.live, work.names, list(work.plan.ours)
        linked = {name for name in names if live.node.port(name).linked}
        given = self._addresses_of(live.text(self.own))
        backups = {f"/{path}": f"{restore.BACKUP_DIR}/{path.replace('/', '_')}" for path in work.plan.moves}
        touched = sorted({*names, *(name for name, _address in given)})
        if work.netplan_changes:
            files = [self.own, self.drop_in, *backups, *backups.values(), *sorted({*_run_files(touched), *generated})]
            self.pending.arm(files, touched, f"write {self.own} for {', '.join(names)}")
        self.pending.keep_first([rail.interface for rail in ours], names, backups)
        self._move(backups)
        for change in work.files:
            live.files.apply(change, keep_mode=False)
        live.load_sysctls(self.drop_in)
        if not work.netplan_changes:
            for rail in work.drift:
                live.set_rail(rail)
            return
        self._install(generated, touched)
        self._settle(ours, linked)
        for name, address in sorted(given - {(rail.interface, rail.address) for rail in work.rails}):
            if name not in live.protected and address in live.interface(name).addresses:
                live.ip("addr", "del", address, "dev", name)
        live.load_sysctls(self.drop_in)  # the renderer may have changed them
        self.pending.extend()

    @staticmethod
    def _move(files: Mapping[str, str]) -> None:
        """Move files, {from: to}."""
        for path, target in files.items():
            Path(target).parent.mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.move(path, target)

    def _addresses_of(self, text: str | None) -> set[tuple[str, str]]:
        """Return the (interface, address) pairs that an earlier text of our file gives to interfaces of this node."""
        read = netplan.read_files({netplan.OWN_PATH: text or ""}, [Device(name) for name in self.live.node.netdevs])
        return {(claim.interface, address) for item in read for claim in item.claims for address in claim.addresses}

    def _settle(self, rails: list[RailConfig], linked: set[str]) -> None:
        """Wait until the rails with a link have address and MTU; then set what is missing."""
        end = time.monotonic() + SETTLE_SECONDS
        while True:
            self.live.read()
            waiting = [rail for rail in rails if rail.interface in linked and not self.live.fits(rail)]
            if not waiting or time.monotonic() > end:
                break
            time.sleep(1)
        for rail in waiting:
            self.live.set_rail(rail)
        if waiting:
            names = ", ".join(rail.interface for rail in waiting)
            self.notes.append(f"{names} stayed incomplete for {SETTLE_SECONDS} s; address and MTU were set directly.")

    def _repair_gids(self) -> None:
        """Remove and add the address of each rail whose GID has drifted. The GIDs of a rail in use stay as they are."""
        live = self.live
        if self.changes.messages:
            time.sleep(1)  # the kernel fills the GID table of a new address in the background
            live.read()
        wanted = repairs_of(self._facts())
        users = rdma_users() if wanted else []
        if users:
            names = ", ".join(rail["netdev"] for rail in wanted)
            self.notes.append(f"The GIDs of {names} were left as they are, because {', '.join(users[:4])} use(s) RDMA.")
            return
        for rail in wanted:
            cidr, name, index = f"{rail['ipv4']}/{rail['prefix']}", rail["netdev"], rail["gid_index"]
            self.changes.step(f"remove and add {cidr} on {name} for its GID (now: {'none or several' if index is None else f'index {index}'})")
            if not self.module.check_mode:
                live.ip("addr", "del", cidr, "dev", name)
                live.ip("addr", "replace", cidr, "brd", "+", "dev", name)

    # absent

    def absent(self) -> None:
        """Restore the state before the first change."""
        live, first = self.live, Path(restore.BEFORE)
        live.read()
        before = live.text(self.own)
        if before is None and live.text(self.drop_in) is None and not first.is_dir():
            return
        rails = sorted(path.name[: -len(".sysctl")] for path in first.glob("*.sysctl"))
        back = self._report_absent(before, rails)
        touched = sorted(set(rails) & set(live.protected))
        if touched:
            raise RefusedError(
                f"{', '.join(touched)} carries the default route or this SSH session now, so it is not changed; nothing was changed."
                " Move that to another interface first."
            )
        running = {path: live.text(path) for path in _run_files(rails)}
        generated = self._generate(rails, back=back) if before is not None or back or running else {}
        netplan_change = before is not None or bool(back) or generated != running  # what netplan made of a file that was removed is still active
        if netplan_change or list(first.glob("*.link")):
            live.refuse_in_use(rails)
        if self.module.check_mode:
            return
        if netplan_change:
            self.pending.arm(sorted({self.own, self.drop_in, *back, *back.values(), *running, *generated}), rails, f"remove {self.own}")
        for path in (self.own, self.drop_in):
            Path(path).unlink(missing_ok=True)
        self._move({backup: path for path, backup in back.items()})
        if netplan_change:
            self._install(generated, rails)
            time.sleep(2)
        if first.is_dir():
            self.pending.undo()
        if netplan_change:
            self.pending.extend()

    def _report_absent(self, before: str | None, rails: Sequence[str]) -> dict[str, str]:
        """Add each change to the actions and the diff; return the backups to move back, {path: backup}."""
        live = self.live
        moves = live.files.mapping(f"{restore.BEFORE}/moves.json")
        back = {path: backup for path, backup in moves.items() if Path(backup).exists()}
        for path in [path for path in back if Path(path).exists()]:
            self.notes.append(f"{path} exists again, so its backup {back.pop(path)} is kept.")
        for path, text in ((self.own, before), (self.drop_in, live.text(self.drop_in))):
            if text is not None:
                self.changes.file(FileChange(path, text, None), f"remove {path}")
        for path, backup in back.items():
            self.changes.file(FileChange(path, None, live.text(backup)), f"move {backup} back to {path}")
        if rails:
            self.changes.step(f"give {', '.join(rails)} back what they were before the first run, of {restore.BEFORE}")
        return back

    # generated files

    def _generate(
        self, rails: Sequence[str], text: str | None = None, moves: Sequence[str] = (), back: Mapping[str, str] = MappingProxyType({})
    ) -> dict[str, str]:
        """Let netplan generate its files in a temporary folder; return {path: text} of those of the rails. Its error is a refusal.

        `text`: our file; `moves`: files that it does not see; `back`: {path: backup} of files that it sees again.
        """
        live = self.live
        if self.module.get_bin_path("netplan") is None:
            raise RefusedError("The command `netplan` is missing: install netplan.io (`apt install netplan.io`), which DGX OS has.")
        files = {
            path: content
            for path, content in live.capture.config.items()
            if path.startswith(("lib/netplan/", "etc/netplan/")) and path not in moves and path != netplan.OWN_PATH
        }
        files.update({path.lstrip("/"): live.text(backup) or "" for path, backup in back.items() if path.startswith("/etc/netplan/")})
        if text is not None:
            files[netplan.OWN_PATH] = text
        with tempfile.TemporaryDirectory(prefix="gb10-netplan-") as root:
            for path, content in files.items():
                live.write(f"{root}/{path}", content, 0o600)
            # `netplan generate` reloads systemd even with --root-dir, and running containers lose their GPU; its generator does not
            tool = next(([path] for path in GENERATORS if os.access(path, os.X_OK)), ["netplan", "generate"])
            rc, message = live.run(*tool, "--root-dir", root)
            if rc != 0:
                raise RefusedError(f"netplan refuses the new configuration, so nothing was changed: {message.replace(root, '')}")
            return {path: Path(root + path).read_text(errors="surrogateescape") for path in _run_files(rails, root)}

    def _install(self, generated: Mapping[str, str], rails: list[str]) -> None:
        """Install the generated files of the rails below /run, and let networkd and NetworkManager load them."""
        live = self.live
        for path in _run_files(rails):
            if path not in generated:
                Path(path).unlink(missing_ok=True)
        for path, text in generated.items():
            live.write(path, text, 0o600 if path.endswith(".nmconnection") else 0o640)
            if path.startswith("/run/systemd/network/"):
                with contextlib.suppress(LookupError):
                    shutil.chown(path, group="systemd-network")
        names = {Path(path).name for path in generated}
        if live.active("systemd-networkd"):
            live.run("networkctl", "reload")
            of_networkd = [rail for rail in rails if f"10-netplan-{rail}.network" in names]
            if of_networkd:
                live.run("networkctl", "reconfigure", *of_networkd)
        if live.active("NetworkManager"):
            live.run("nmcli", "connection", "reload")
            for rail in rails:
                if f"netplan-{rail}.nmconnection" in names:
                    rc, message = live.run("nmcli", "--wait", "30", "connection", "up", f"netplan-{rail}")
                    if rc != 0:
                        self.notes.append(f"NetworkManager did not bring up {rail}: {message[-200:]}")


def _run_files(rails: Sequence[str], root: str = "") -> list[str]:
    """Return the files that netplan has generated for the rails, as paths below /run."""
    names = [name.format(rail) for rail in rails for name in ("10-netplan-{}.network", "10-netplan-{}.link", "netplan-{}.nmconnection")]
    return [f"{folder}/{name}" for folder in RUN_FOLDERS for name in names if Path(f"{root}{folder}/{name}").is_file()]
