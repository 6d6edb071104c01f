#!/usr/bin/python
# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Give the rails their addresses, with a way back that needs no controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: roce_netplan
short_description: Addresses, MTU and ARP settings of the RoCE rails, by commit-confirm
version_added: 0.1.0
author:
  - The gb10.cluster authors (@gb10-cluster)
description:
  - Finds the rails, plans one netplan file (C(/etc/netplan/60-gb10-cluster.yaml), mode 0600) and one sysctl drop-in
    (C(/etc/sysctl.d/60-gb10-roce.conf)), validates the result offline, and applies it.
  - Before anything changes, a timer on the node is armed that puts everything back. It is cancelled by O(state=confirmed),
    which is to be called over a new connection. A node that restarts in between puts everything back as well.
  - Refuses, with nothing changed, what would touch an interface with the default route or the SSH session, networks that overlap
    others of this node, a changed rail that a running process uses for RDMA, and configuration files of others (see O(foreign)).
  - What only drifted (an MTU or an address that is gone, a kernel setting) is put right on the rail itself, without netplan.
  - In a container nothing is changed; RV(managed) says so.
requirements:
  - PyYAML on a node with netplan files (package python3-yaml, which netplan.io depends on)
extends_documentation_fragment:
  - gb10.cluster.attributes
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
options:
  state:
    description:
      - V(present) plans and applies, V(confirmed) keeps what was applied, V(absent) gives back what stood before the first change.
      - V(confirmed) fails when nothing waits for it, be it that the node put its network back or that the change never began.
      - After V(present) and V(absent), RV(pending) says whether V(confirmed) is due.
    type: str
    choices: [present, confirmed, absent]
    default: present
  addresses:
    description:
      - This node's fabric addresses with prefix, one per rail. Required for O(state=present).
    type: list
    elements: str
    default: []
  interfaces:
    description:
      - The network devices that are the rails, in order. Empty finds them.
    type: list
    elements: str
    default: []
  mtu:
    description:
      - MTU of the rails in bytes.
    type: int
    default: 9000
  renderer:
    description:
      - Who configures the rails. V(auto) takes what the node's netplan files choose, else NetworkManager where it runs, else networkd.
    type: str
    choices: [auto, NetworkManager, networkd]
    default: auto
  foreign:
    description:
      - What to do with configuration files of others on the rails.
        V(refuse) stops, V(adopt) leaves them in charge if they give the wanted addresses, V(replace) moves them to C(/root/netplan-disabled).
    type: str
    choices: [refuse, adopt, replace]
    default: refuse
  ipv6:
    description:
      - Whether the rails keep IPv6. Without it, GIDs stay at their index.
    type: bool
    default: false
  confirm_seconds:
    description:
      - Seconds after which an unconfirmed change is taken back.
    type: int
    default: 120
  ssh_connection:
    description:
      - The value of E(SSH_CONNECTION) of the session that must not be cut. Without it, it is found.
    type: str
  min_speed_mbps:
    description:
      - The link speed in Mb/s below which RV(gb10.cluster.roce_info#module:problems) names a rail.
    type: int
    default: 200000
seealso:
  - module: gb10.cluster.roce_info
"""

EXAMPLES = r"""
- name: Give the rails their addresses
  gb10.cluster.roce_netplan:
    addresses: [192.168.100.10/24, 192.168.101.10/24]
  become: true
  register: applied

- name: Come back over a new connection
  ansible.builtin.wait_for_connection:
  when: applied.pending

- name: Keep the change
  gb10.cluster.roce_netplan:
    state: confirmed
  become: true
  when: applied.pending

- name: Take everything back
  gb10.cluster.roce_netplan:
    state: absent
  become: true
"""

RETURN = r"""
managed:
  description: False in a container, where the rails belong to the host.
  returned: always
  type: bool
  sample: true
pending:
  description: Whether a change waits for O(state=confirmed).
  returned: always
  type: bool
  sample: false
confirmed:
  description: Whether a pending change was confirmed by this call.
  returned: O(state=confirmed)
  type: bool
  sample: true
restored:
  description: When and why this node put its network back by itself since the last run; null if it did not.
  returned: always
  type: dict
  sample: null
actions:
  description: What was done (in check mode what would be), one sentence each.
  returned: always
  type: list
  elements: str
  sample: ["write /etc/netplan/60-gb10-cluster.yaml"]
notes:
  description: What the user should know, for instance what differs in an adopted file.
  returned: always
  type: list
  elements: str
  sample: []
rails:
  description: The rails as M(gb10.cluster.roce_info) returns them, read before the change.
  returned: O(state=present)
  type: list
  elements: dict
"""

import grp
import hashlib
import json
import os
import shutil
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import commit_confirm, netplan
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, TreeReader, find_ssh_connection, rdma_users, read_tree, run_commands
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.facts import DesiredState, gather
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.foreign import CONFIG_PREFIXES, config_texts
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan_yaml import NoYamlError
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.node import Node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import desired_rails, management
from ansible_collections.gb10.cluster.plugins.module_utils._host.changes import Changes
from ansible_collections.gb10.cluster.plugins.module_utils._host.node_files import FileChange, replace

SETTLE_SECONDS = 45
APPLY_SECONDS = 90  # what applying itself may take on top of confirm_seconds; the timer starts anew when it is done
GENERATORS = ("/usr/libexec/netplan/generate", "/usr/lib/netplan/generate")
RUN_FOLDERS = ("/run/systemd/network", "/run/NetworkManager/system-connections")


class RefusedError(Exception):
    """The sentences of a refusal."""


def run_file_of(name: str, interface: str) -> bool:
    """Return whether a file that netplan generated (10-netplan-X.network, netplan-X.nmconnection) belongs to an interface."""
    return name in (f"10-netplan-{interface}.network", f"10-netplan-{interface}.link", f"netplan-{interface}.nmconnection")


def group_id(name: str) -> int:
    """Return the number of a group, root's if there is none."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return 0


def in_container() -> str | None:
    """Return what says that this is a container, None on a real or virtual machine."""
    for path in ("/.dockerenv", "/run/.containerenv"):
        if Path(path).exists():
            return path
    try:
        text = Path("/run/systemd/container").read_text().strip()
    except OSError:
        text = ""
    if text:
        return f"/run/systemd/container says {text}"
    try:
        for item in Path("/proc/1/environ").read_bytes().split(b"\0"):
            if item.startswith(b"container="):
                return f"PID 1 has {item.decode('utf-8', 'replace')}"
    except OSError:
        pass
    return None


class Change:
    """The run of one module call."""

    def __init__(self, module: AnsibleModule) -> None:
        self.module = module
        self.params = module.params
        self.changes = Changes()
        self.notes: list[str] = []
        self.capture = Capture()
        self.node: Node
        self.mgmt: dict[str, Any] = {}

    # reading

    def read(self) -> None:
        """Read the node."""
        self.capture = read_tree("/")
        run_commands(self.capture, lambda argv: self.module.run_command(argv, errors="surrogate_then_replace"), self.module.get_bin_path)
        self.node = Node(self.capture)
        self.mgmt = management(self.node, self.ssh_connection())

    def ssh_connection(self) -> str | None:
        """Return the SSH session that must not be cut."""
        return self.params["ssh_connection"] or find_ssh_connection(os.getpid(), TreeReader("/"))

    def run(self, argv: list[str], check: bool = True) -> tuple[int, str, str]:
        """Run a command; a failure is a refusal with its own words."""
        rc, out, err = self.module.run_command(argv, errors="surrogate_then_replace")
        if rc != 0 and check:
            raise RefusedError(
                f"`{' '.join(argv)}` failed (rc {rc}): {(err or out).strip()[-400:] or 'no output'}. Correct that on the node and run the roce role again."
            )
        return rc, out, err

    def interface(self, name: str, routes: bool = False) -> commit_confirm.Interface:
        """Return the live state of an interface."""
        record = self.node.links.get(name, {})
        own = []
        if routes:
            for route in self.node.routes:
                if route.get("dev") != name or "linkdown" in (route.get("flags") or []) or route.get("protocol") == "kernel":
                    continue
                words = [str(route["dst"])]
                for key, word in (("gateway", "via"), ("dev", "dev"), ("metric", "metric"), ("prefsrc", "src"), ("protocol", "proto")):
                    if route.get(key) is not None:
                        words += [word, str(route[key])]
                own.append(" ".join(words))
        return commit_confirm.Interface(
            name,
            "UP" in (record.get("flags") or []),
            record.get("mtu"),
            tuple(a.cidr for a in self.node.addresses(name) if a.family == "inet"),
            tuple(own),
        )

    def read_json(self, path: str) -> dict[str, Any] | None:
        """Return a record of ours; an unreadable one is said, not guessed."""
        try:
            data = json.loads(Path(path).read_text())
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as exc:
            raise RefusedError(f"{path} cannot be read ({exc}), and it says what stood before: repair it or move it away.") from exc
        return data if isinstance(data, dict) else None

    def pending(self) -> bool:
        """Return whether an unconfirmed change stands."""
        return Path(commit_confirm.PENDING).is_dir()

    def restored(self) -> dict[str, Any] | None:
        """Return the record of a restore that was not reported yet, and keep it as reported (not in check mode)."""
        try:
            record = self.read_json(commit_confirm.RESTORED)
        except RefusedError:
            record = {"when": "an unknown time", "why": "a reason that could not be read"}
        if record is not None:
            record["message"] = commit_confirm.restored_sentence(record)
            if not self.module.check_mode:
                os.replace(commit_confirm.RESTORED, commit_confirm.RESTORED.replace(".json", ".reported.json"))
        return record

    # writing

    def write(self, path: str, text: str, mode: int) -> None:
        """Write a file at once or not at all."""
        target = Path(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=str(target.parent), prefix=".gb10-")
        replace(handle, temporary, path, text, mode)

    def current(self, path: str) -> str | None:
        """Return a file's text, None if it is not there."""
        try:
            return Path(path).read_text(errors="surrogateescape")
        except FileNotFoundError:
            return None

    # commit-confirm

    def arm(self, files: list[str], rails: list[str], summary: str) -> None:
        """Keep what stands now and start the timer that brings it back. An unconfirmed change before it is brought back as well."""
        again = self.pending()
        earlier = self.earlier() if again else None
        try:
            self.keep(files, rails, summary, earlier)
        except (OSError, RefusedError):
            if again:
                self.start_timer(1)  # the change before has no timer otherwise
            raise
        rc, out, err = self.start_timer(self.params["confirm_seconds"] + APPLY_SECONDS)
        if rc != 0:
            if not again:
                self.clear_pending()
            raise RefusedError(
                f"The timer that would bring the network back could not be armed ({(err or out).strip()[-300:]}); nothing was changed."
                " See that systemd runs there."
            )

    def keep(self, files: list[str], rails: list[str], summary: str, earlier: commit_confirm.Snapshot | None) -> None:
        """Keep what stands now, and what stood before an earlier change that is not confirmed."""
        folder = Path(f"{commit_confirm.STATE_DIR}/staging" if earlier is None else commit_confirm.PENDING)
        if earlier is None:
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "files").mkdir(parents=True, mode=0o700)
            os.chmod(commit_confirm.STATE_DIR, 0o700)
        kept: dict[str, str | None] = {}
        for path in files:
            if earlier is not None and path in earlier.files:
                continue
            if Path(path).exists():
                copy = hashlib.sha256(path.encode()).hexdigest()[:16]
                shutil.copy2(path, folder / "files" / copy)
                kept[path] = copy
            else:
                kept[path] = None
        snapshot = commit_confirm.Snapshot(
            files=kept,
            sysctls=self.all_sysctls(rails),
            rails=[self.interface(name) for name in rails],
            protected=[self.interface(name, routes=True) for name in self.mgmt["protected"]],
            seconds=self.params["confirm_seconds"],
            summary=summary,
        )
        if earlier is not None:
            snapshot = commit_confirm.merge_snapshots(earlier, snapshot)
        self.write(str(folder / Path(commit_confirm.SNAPSHOT).name), commit_confirm.snapshot_text(snapshot), 0o600)
        self.write(str(folder / "restore.sh"), commit_confirm.restore_script(snapshot), 0o700)
        if earlier is None:
            os.replace(folder, commit_confirm.PENDING)
            self.write(commit_confirm.BOOT_UNIT, commit_confirm.boot_unit(), 0o644)
            wants = Path(commit_confirm.BOOT_WANTS)
            wants.parent.mkdir(parents=True, exist_ok=True)
            if not wants.is_symlink():
                wants.symlink_to(commit_confirm.BOOT_UNIT)
        self.write(commit_confirm.BOOT_ID, self.boot_id(), 0o600)

    def earlier(self) -> commit_confirm.Snapshot:
        """Return what stood before the change that is not confirmed yet, with its timer stopped."""
        self.disarm_timer()
        if not self.pending():
            raise RefusedError("The node is putting back the network change that was not confirmed; nothing was changed. Run the roce role again.")
        try:
            return commit_confirm.snapshot_of(self.read_json(commit_confirm.SNAPSHOT) or {})
        except (RefusedError, KeyError, TypeError) as exc:
            self.start_timer(1)
            raise RefusedError(
                f"{commit_confirm.SNAPSHOT} does not hold what stood before the change that is not confirmed yet, so the node puts that change back now;"
                " nothing else was changed. Run the roce role again."
            ) from exc

    @staticmethod
    def boot_id() -> str:
        """Return the kernel's name for this boot."""
        return Path("/proc/sys/kernel/random/boot_id").read_text()

    def start_timer(self, seconds: int) -> tuple[int, str, str]:
        """Start the timer, or start it anew."""
        self.disarm_timer()
        return self.run(
            [
                "systemd-run",
                f"--unit={commit_confirm.TIMER}",
                f"--on-active={seconds}s",
                "--timer-property=AccuracySec=1s",
                "--collect",
                "/bin/sh",
                f"{commit_confirm.PENDING}/restore.sh",
                "timer",
            ],
            check=False,
        )

    def disarm_timer(self) -> None:
        """Stop the timer; a restore that is already running is left to end."""
        self.run(["systemctl", "stop", f"{commit_confirm.TIMER}.timer"], check=False)
        self.run(["systemctl", "reset-failed", f"{commit_confirm.TIMER}.timer", f"{commit_confirm.TIMER}.service"], check=False)

    def clear_pending(self) -> bool:
        """Take the pending state away; False if a restore took it first."""
        done = Path(commit_confirm.STATE_DIR) / "confirmed"
        shutil.rmtree(done, ignore_errors=True)
        try:
            os.replace(commit_confirm.PENDING, done)
        except FileNotFoundError:
            return False
        for path in (commit_confirm.BOOT_WANTS, commit_confirm.BOOT_UNIT):
            Path(path).unlink(missing_ok=True)
        shutil.rmtree(done, ignore_errors=True)
        return True

    # netplan

    def renderer(self, read: list[netplan.ConfigFile]) -> str:
        """Return who is to configure the rails."""
        if self.params["renderer"] != "auto":
            return str(self.params["renderer"])
        chosen = netplan.default_renderer(read)
        if chosen in netplan.RENDERERS:
            return str(chosen)
        rc, _out, _err = self.run(["systemctl", "is-active", "--quiet", "NetworkManager.service"], check=False)
        return "NetworkManager" if rc == 0 else "networkd"

    def generate(self, text: str | None, moves: list[str], back: dict[str, str], rails: list[str]) -> dict[str, str]:
        """Let netplan generate the future set of files in a folder of its own; its complaint is a refusal.

        Return {path below /run: text} of the files that belong to the rails. Only these are put in place later: the files of every
        other interface, above all of the one this session runs over, are not even written again.
        """
        if self.module.get_bin_path("netplan") is None:
            raise RefusedError("The command `netplan` is missing: install netplan.io (`apt install netplan.io`), which DGX OS has.")
        found: dict[str, str] = {}
        with tempfile.TemporaryDirectory(prefix="gb10-netplan-") as root:
            for folder in ("lib/netplan", "etc/netplan"):
                for path, content in self.capture.files.items():
                    if path.startswith(folder + "/") and path not in moves and path != netplan.OWN_PATH:
                        self.write(f"{root}/{path}", content, 0o600)
            for path, backup in back.items():
                content_back = self.current(backup)
                if content_back is not None and path.startswith("/etc/netplan/"):
                    self.write(root + path, content_back, 0o600)
            if text is not None:
                self.write(f"{root}/{netplan.OWN_PATH}", text, 0o600)
            # `netplan generate` asks systemd for a daemon-reload even with --root-dir, which costs running containers their GPU;
            # the generator behind it does not
            tool = next(([path] for path in GENERATORS if os.access(path, os.X_OK)), ["netplan", "generate"])
            rc, out, err = self.run([*tool, "--root-dir", root], check=False)
            if rc != 0:
                message = (err or out).strip().replace(root, "")[-500:]
                raise RefusedError(f"netplan refuses the configuration as it would be, so nothing was changed: {message}")
            for folder in RUN_FOLDERS:
                for entry in sorted(Path(root + folder).glob("*")) if Path(root + folder).is_dir() else []:
                    if entry.is_file() and any(run_file_of(entry.name, name) for name in rails):
                        found[f"{folder}/{entry.name}"] = entry.read_text()
        return found

    def run_files(self, rails: list[str]) -> list[str]:
        """Return the generated files of the rails that stand below /run now."""
        return [
            str(entry)
            for folder in RUN_FOLDERS
            for entry in (sorted(Path(folder).glob("*")) if Path(folder).is_dir() else [])
            if any(run_file_of(entry.name, name) for name in rails)
        ]

    def put_in_place(self, generated: dict[str, str], rails: list[str]) -> None:
        """Put the generated files of the rails below /run, and let NetworkManager or networkd take them up; nothing else is touched."""
        for path in self.run_files(rails):
            if path not in generated:
                Path(path).unlink(missing_ok=True)
        for path, text in generated.items():
            self.write(path, text, 0o600 if path.endswith(".nmconnection") else 0o644)
        if any(path.endswith(".network") for path in generated):
            network = group_id("systemd-network")
            for path in generated:
                if path.startswith("/run/systemd/network/"):
                    os.chown(path, 0, network)
                    os.chmod(path, 0o640)
        if self.active("systemd-networkd"):
            self.run(["networkctl", "reload"], check=False)
            mine = [name for name in rails if any(path.endswith(f"-{name}.network") for path in generated)]
            if mine:
                self.run(["networkctl", "reconfigure", *mine], check=False)
        if self.active("NetworkManager"):
            self.run(["nmcli", "connection", "reload"], check=False)
            for name in rails:
                if any(path.endswith(f"/netplan-{name}.nmconnection") for path in generated):
                    rc, out, err = self.run(["nmcli", "--wait", "30", "connection", "up", f"netplan-{name}"], check=False)
                    if rc != 0:
                        self.notes.append(f"NetworkManager did not bring up {name}: {(err or out).strip()[-200:]}")

    def active(self, unit: str) -> bool:
        """Return whether a service runs."""
        return self.run(["systemctl", "is-active", "--quiet", f"{unit}.service"], check=False)[0] == 0

    # live

    def set_sysctls(self, values: dict[str, str]) -> None:
        """Set kernel values of the rails, live."""
        for path, value in values.items():
            try:
                Path(path).write_text(value + "\n")
            except FileNotFoundError:
                continue
            except OSError as exc:
                raise RefusedError(f"{path} could not be set to {value} ({exc.strerror}): see whether /proc/sys is read-only on this node.") from exc

    def all_sysctls(self, rails: list[str]) -> dict[str, str]:
        """Return every readable kernel value of the rails (net.ipv4.conf, net.ipv6.conf): whoever configures them changes more than we do."""
        found = {}
        for name in rails:
            for family in ("ipv4", "ipv6"):
                folder = Path("/proc/sys/net") / family / "conf" / name
                for path in sorted(folder.iterdir()) if folder.is_dir() else []:
                    try:
                        found[str(path)] = path.read_text().strip()
                    except OSError:
                        continue
        return found

    def put_back_sysctls(self, values: dict[str, str]) -> None:
        """Write back the recorded values that differ; one that the kernel no longer takes is a note."""
        for path, value in values.items():
            try:
                if Path(path).exists() and Path(path).read_text().strip() != value:
                    Path(path).write_text(value + "\n")
            except OSError as exc:
                self.notes.append(f"{path} could not be set back to {value} ({exc.strerror}).")

    def set_live(self, wish: netplan.RailWish) -> None:
        """Set MTU and address of one rail, live."""
        ip = self.module.get_bin_path("ip", required=True)
        live = self.interface(wish.interface)
        if not live.up:
            self.run([ip, "link", "set", "dev", wish.interface, "up"])
        if live.mtu != wish.mtu:
            self.run([ip, "link", "set", "dev", wish.interface, "mtu", str(wish.mtu)])
        if wish.address not in live.addresses:
            self.run([ip, "addr", "add", wish.address, "brd", "+", "dev", wish.interface])

    def settle(self, wishes: list[netplan.RailWish], linked: set[str]) -> list[str]:
        """Wait until the rails with a link have address and MTU; then set what is still missing. Return what had to be set."""
        end = time.monotonic() + SETTLE_SECONDS
        waiting = [w for w in wishes if w.interface in linked]
        while True:
            self.read()
            waiting = [w for w in waiting if not self.fits(w)]
            if not waiting or time.monotonic() > end:
                break
            time.sleep(1)
        for wish in waiting:
            self.set_live(wish)
        return [w.interface for w in waiting]

    def fits(self, wish: netplan.RailWish) -> bool:
        """Return whether a rail has its address and MTU."""
        live = self.interface(wish.interface)
        return wish.address in live.addresses and live.mtu == wish.mtu

    def given_by(self, texts: Mapping[str, str | None]) -> set[tuple[str, str]]:
        """Return the (interface, address) pairs that configuration files give: our own, or what netplan generated."""
        there = {path: text for path, text in texts.items() if text is not None}
        read = netplan.read_files(there, [netplan.Device(name) for name in self.node.netdevs])
        return {(claim.interface, address) for item in read for claim in item.claims for address in claim.addresses}

    def drop_old(self, given: set[tuple[str, str]], keep: set[tuple[str, str]]) -> None:
        """Take away the addresses that were given before, but for those in `keep`."""
        ip = self.module.get_bin_path("ip", required=True)
        for name, address in sorted(given - keep):
            if name not in self.mgmt["protected"] and address in self.interface(name).addresses:
                self.run([ip, "addr", "del", address, "dev", name], check=False)

    def refuse_in_use(self, rails: list[str]) -> None:
        """Refuse while a process does RDMA."""
        users = rdma_users()
        if users:
            raise RefusedError(
                f"{', '.join(users[:4])} use(s) RDMA on this node, and changing {', '.join(rails)} would break that; nothing was changed. "
                "Stop the serving group first (playbooks/stop.yml)."
            )

    # states

    def present(self) -> dict[str, Any]:
        """Plan and apply."""
        self.read()
        params = self.params
        desired = DesiredState(params["addresses"], (), params["interfaces"], params["mtu"], params["min_speed_mbps"], follow_link=True)
        wanted, bad = desired_rails(desired)
        if bad:
            raise RefusedError(" ".join(f"{p.message} {p.remedy}" for p in bad))
        if not params["addresses"]:
            raise RefusedError("No fabric address is wanted for this node; set gb10_fabric_cidrs (one network per rail) in the inventory.")
        if params["interfaces"] and len(params["interfaces"]) != len(params["addresses"]):
            raise RefusedError(
                f"{len(params['interfaces'])} interface(s) for {len(params['addresses'])} address(es): give roce_interfaces one name per rail, or none."
            )
        facts = gather(self.capture, desired, self.ssh_connection())
        netdevs = {rail["index"]: rail["netdev"] for rail in facts["rails"]}
        wishes = []
        for wish in wanted:
            if wish.index not in netdevs:
                why = next((p for p in facts["problems"] if p["id"] in ("no_cable", "rail_unplaced", "no_rdma", "rdma_unreadable", "unreadable")), None)
                hint = f" {why['message']} {why['remedy']}" if why else ""
                raise RefusedError(f"No port was found for rail {wish.index} ({wish.address}/{wish.prefix}).{hint}")
            if wish.prefix is None:
                raise RefusedError(f"The address {wish.address} of rail {wish.index} has no prefix length; write it like {wish.address}/24.")
            wishes.append(netplan.RailWish(netdevs[wish.index], f"{wish.address}/{wish.prefix}", params["mtu"]))
        no_link = [p for p in facts["problems"] if p["id"] == "no_cable"]
        if no_link:
            raise RefusedError(f"{no_link[0]['message']} {no_link[0]['remedy']}")
        self.apply(wishes)
        return {"rails": facts["rails"]}

    def apply(self, wishes: list[netplan.RailWish]) -> None:
        """Compare, refuse or act."""
        params, node = self.params, self.node
        rails = [wish.interface for wish in wishes]
        others = {name: [a.cidr for a in node.addresses(name) if a.family == "inet"] for name in node.netdevs if name not in rails and name != "lo"}
        refusals = netplan.validate_wishes(wishes, self.mgmt["protected"], node.netdevs, others)
        if refusals:
            raise RefusedError(" ".join(refusals))
        ports = [node.port(name) for name in rails]
        files = config_texts(self.capture)
        hidden = [f"/{path} ({why})" for path, why in self.capture.unreadable.items() if path.startswith(CONFIG_PREFIXES)]
        if hidden:
            raise RefusedError(f"Could not read {', '.join(hidden)}; run as root (become: true).")
        read = netplan.read_files(files, [netplan.Device(p.netdev, p.mac, p.driver) for p in ports])
        plan = netplan.plan(wishes, read, params["foreign"], self.renderer(read))
        if plan.refusals:
            raise RefusedError(" ".join(plan.refusals))
        self.notes += [f"Adopted: {line}." for line in plan.differences]
        own, drop_in = "/" + netplan.OWN_PATH, "/" + netplan.SYSCTL_PATH
        before, before_sysctl = self.current(own), self.current(drop_in)
        after_sysctl = netplan.render_sysctl(rails, params["ipv6"])
        values = {f"/proc/sys/{key}": value for key, value in netplan.sysctl_values(rails, params["ipv6"]).items()}
        live_values = {path: (self.current(path) or "").strip() for path in values}
        wrong_values = {path: values[path] for path, value in live_values.items() if value and value != values[path]}
        mode_wrong = before is not None and plan.text is not None and os.stat(own).st_mode & 0o777 != 0o600
        file_change = before != plan.text or bool(plan.moves)
        adopted = {w.interface for w in wishes} - {w.interface for w in plan.ours}
        drift = [w for w in plan.ours if not self.fits(w)]
        for wish in wishes:
            if wish.interface in adopted and not self.fits(wish):
                self.notes.append(f"{wish.interface} has not what its adopted file should give it ({wish.address}, MTU {wish.mtu}).")
        if before != plan.text:
            self.changes.file(FileChange(own, before, plan.text), f"{'write' if plan.text is not None else 'remove'} {own}")
        elif mode_wrong:
            self.changes.step(f"set {own} to mode 0600")
        for path in plan.moves:
            self.changes.file(FileChange("/" + path, self.current("/" + path), None), f"move /{path} to {commit_confirm.BACKUP_DIR}")
        if before_sysctl != after_sysctl:
            self.changes.file(FileChange(drop_in, before_sysctl, after_sysctl), f"write {drop_in}")
        for path, value in wrong_values.items():
            self.changes.step(f"set {path} from {live_values[path]} to {value}")
        for wish in drift:
            live = self.interface(wish.interface)
            self.changes.step(f"give {wish.interface} {wish.address} and MTU {wish.mtu} (now: {', '.join(live.addresses) or 'no address'}, MTU {live.mtu})")
        if not self.changes.messages:
            return
        generated = self.generate(plan.text, list(plan.moves), {}, rails) if file_change else {}
        if file_change or drift:
            self.refuse_in_use(rails)
        if self.module.check_mode:
            return
        self.act(wishes, plan, generated, file_change, mode_wrong, drift, after_sysctl if before_sysctl != after_sysctl else None, values, before)

    def act(
        self,
        wishes: list[netplan.RailWish],
        plan: netplan.Plan,
        generated: dict[str, str],
        file_change: bool,
        mode_wrong: bool,
        drift: list[netplan.RailWish],
        sysctl_text: str | None,
        values: dict[str, str],
        before: str | None,
    ) -> None:
        """Do what was planned, with the way back armed if netplan is to be applied."""
        own, drop_in = "/" + netplan.OWN_PATH, "/" + netplan.SYSCTL_PATH
        rails = [wish.interface for wish in wishes]
        linked = {name for name in rails if self.node.port(name).linked}
        given = self.given_by({netplan.OWN_PATH: before})
        backups = {f"/{path}": f"{commit_confirm.BACKUP_DIR}/{path.replace('/', '_')}" for path in plan.moves}
        if file_change:
            touched = sorted(set(rails) | {name for name, _address in given})
            run_files = sorted(set(self.run_files(touched)) | set(generated))
            self.arm([own, drop_in, commit_confirm.BASELINE, *backups, *run_files], touched, f"write {own} for {', '.join(rails)}")
        baseline = commit_confirm.merge_baseline(
            self.read_json(commit_confirm.BASELINE),
            self.all_sysctls(rails),
            [self.interface(name) for name in rails],
            backups,
        )
        Path(commit_confirm.STATE_DIR).mkdir(parents=True, exist_ok=True, mode=0o700)
        self.write(commit_confirm.BASELINE, json.dumps(baseline, indent=1, sort_keys=True) + "\n", 0o600)
        for path, backup in backups.items():
            Path(commit_confirm.BACKUP_DIR).mkdir(parents=True, exist_ok=True, mode=0o700)
            shutil.copy2(path, backup)
            Path(path).unlink()
        if sysctl_text is not None:
            self.write(drop_in, sysctl_text, 0o644)
        if plan.text is None:
            Path(own).unlink(missing_ok=True)
        elif file_change or mode_wrong:
            self.write(own, plan.text, 0o600)
        self.set_sysctls(values)
        if file_change:
            self.put_in_place(generated, touched)
            slow = self.settle(list(plan.ours), linked)
            self.drop_old(given, {(w.interface, w.address) for w in wishes})
            self.set_sysctls(values)
            if slow:
                self.notes.append(f"{', '.join(slow)} stayed incomplete for {SETTLE_SECONDS} s; address and MTU were set directly.")
            self.start_timer(self.params["confirm_seconds"])
        else:
            for wish in drift:
                self.set_live(wish)

    def absent(self) -> None:
        """Give back what stood before the first change."""
        self.read()
        own, drop_in = "/" + netplan.OWN_PATH, "/" + netplan.SYSCTL_PATH
        before, before_sysctl = self.current(own), self.current(drop_in)
        baseline = self.read_json(commit_confirm.BASELINE)
        if before is None and before_sysctl is None and baseline is None:
            return
        record = baseline or {"sysctls": {}, "rails": {}, "moves": {}}
        back = {path: backup for path, backup in record["moves"].items() if Path(backup).exists()}
        for path in [p for p in back if Path(p).exists()]:
            self.notes.append(f"{path} is there again, so the one that was moved to {back.pop(path)} stays there.")
        if before is not None:
            self.changes.file(FileChange(own, before, None), f"remove {own}")
        if before_sysctl is not None:
            self.changes.file(FileChange(drop_in, before_sysctl, None), f"remove {drop_in}")
        for path, backup in back.items():
            self.changes.file(FileChange(path, None, self.current(backup)), f"move {backup} back to {path}")
        if baseline is not None:
            self.changes.step(f"forget {commit_confirm.BASELINE}")
        rails = sorted(record["rails"])
        touched = sorted(set(rails) & set(self.mgmt["protected"]))
        if touched:
            raise RefusedError(
                f"{', '.join(touched)} carries the default route or this SSH session now, so it is not touched; nothing was changed."
                " Move that to another interface first."
            )
        netplan_change = before is not None or bool(back)
        running = {path: self.current(path) for path in self.run_files(rails)}
        generated: dict[str, str] = {}
        if netplan_change or running:
            generated = self.generate(None, [], back, rails)
            netplan_change = netplan_change or generated != running  # somebody removed our file; what netplan made of it is still in force
        if netplan_change:
            self.refuse_in_use(rails)
        given = self.given_by(running if before is None else {netplan.OWN_PATH: before})
        if self.module.check_mode:
            return
        files = [own, drop_in, commit_confirm.BASELINE, *back, *back.values(), *running]
        if netplan_change:
            self.arm(sorted(set(files) | set(generated)), rails, f"remove {own}")
        for path in (own, drop_in):
            Path(path).unlink(missing_ok=True)
        for path, backup in back.items():
            shutil.copy2(backup, path)
            Path(backup).unlink()
        if netplan_change:
            self.put_in_place(generated, rails)
            time.sleep(2)
            self.read()
        before_us = {(name, address) for name in rails for address in record["rails"][name]["addresses"]}
        self.drop_old(given, before_us | self.given_by(generated))
        ip = self.module.get_bin_path("ip", required=True)
        for name in rails:
            old = record["rails"][name]
            if name not in self.node.netdevs:
                continue
            live = self.interface(name)
            if old["mtu"] and live.mtu != old["mtu"]:
                self.run([ip, "link", "set", "dev", name, "mtu", str(old["mtu"])], check=False)
            for address in old["addresses"]:
                if address not in live.addresses:
                    self.run([ip, "addr", "add", address, "brd", "+", "dev", name], check=False)
            if not old["up"]:
                self.run([ip, "link", "set", "dev", name, "down"], check=False)
        self.put_back_sysctls(record["sysctls"])
        Path(commit_confirm.BASELINE).unlink(missing_ok=True)
        if netplan_change:
            self.start_timer(self.params["confirm_seconds"])

    def confirmed(self) -> bool:
        """Cancel the way back. True if there was a pending change."""
        if self.module.check_mode:
            return self.pending()
        if self.current(commit_confirm.BOOT_ID) not in (None, self.boot_id()):
            # The node restarted with the change half-way: nobody may keep it. The boot's own unit does the same, whichever comes first.
            self.run(["/bin/sh", f"{commit_confirm.PENDING}/restore.sh", "boot"], check=False)
        self.disarm_timer()
        done = self.clear_pending()
        if not done and Path(commit_confirm.RESTORING).exists():
            end = time.monotonic() + 180
            while Path(commit_confirm.RESTORING).exists() and time.monotonic() < end:
                time.sleep(1)
        return done


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "state": {"type": "str", "choices": ["present", "confirmed", "absent"], "default": "present"},
            "addresses": {"type": "list", "elements": "str", "default": []},
            "interfaces": {"type": "list", "elements": "str", "default": []},
            "mtu": {"type": "int", "default": 9000},
            "renderer": {"type": "str", "choices": ["auto", "NetworkManager", "networkd"], "default": "auto"},
            "foreign": {"type": "str", "choices": ["refuse", "adopt", "replace"], "default": "refuse"},
            "ipv6": {"type": "bool", "default": False},
            "confirm_seconds": {"type": "int", "default": 120},
            "ssh_connection": {"type": "str"},
            "min_speed_mbps": {"type": "int", "default": 200000},
        },
        supports_check_mode=True,
    )
    change = Change(module)
    state = module.params["state"]
    extra: dict[str, Any] = {}
    container = in_container()
    if container is not None:
        module.exit_json(
            changed=False,
            managed=False,
            pending=False,
            restored=None,
            actions=[],
            notes=[f"This is a container ({container}): its rails belong to the host, so nothing is written here."],
            **({"rails": []} if state == "present" else {}),
            **({"confirmed": False} if state == "confirmed" else {}),
        )
    if os.geteuid() != 0:
        module.fail_json(msg="roce_netplan reads and writes files of root; set become: true.")
    restored = change.restored()
    if state == "confirmed":
        done = change.confirmed()
        restored = restored or change.restored()
        if restored is not None:
            module.fail_json(
                msg=f"{restored['message']} The fabric is not as wanted: look at {commit_confirm.STATE_DIR}/restore.log on the node.",
                restored=restored,
                pending=False,
                managed=True,
            )
        if not done and not module.check_mode:
            module.fail_json(
                msg="No change waits for its confirmation on this node: the connection was lost before the change began, so the network is as it was. "
                "Run the roce role again.",
                restored=None,
                pending=False,
                confirmed=False,
                managed=True,
            )
        extra["confirmed"] = done
        if not done:
            extra["msg"] = "No change waits for a confirmation: the connection was lost before one was made, or it was confirmed already. Run the role again."
    else:
        if restored is not None:
            module.warn(restored["message"])
        try:
            if state == "present":
                extra = change.present()
            else:
                change.absent()
        except (RefusedError, NoYamlError) as exc:
            module.fail_json(msg=str(exc), restored=restored, pending=change.pending(), managed=True, notes=change.notes)
    module.exit_json(
        changed=bool(change.changes.messages),
        diff=change.changes.diff,
        managed=True,
        pending=change.pending(),
        restored=restored,
        actions=change.changes.messages,
        notes=change.notes,
        **extra,
    )


if __name__ == "__main__":
    main()
