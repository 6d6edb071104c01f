# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE: commit-confirm for a network change. Pure: from what stood before to the shell script that brings it back.

The script runs on the node without a controller: from a transient systemd timer, or at boot when the node restarted in between.
The first process that renames `pending/` first wins, so a confirmation and a restore never both happen.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

STATE_DIR = "/var/lib/gb10-cluster/roce"
PENDING = STATE_DIR + "/pending"
BOOT_ID = PENDING + "/boot_id"  # of the kernel that the change was made under
SNAPSHOT = PENDING + "/snapshot.json"
RESTORING = STATE_DIR + "/restoring"
RESTORED_FOLDER = STATE_DIR + "/restored"
RESTORED = STATE_DIR + "/restored.json"
BASELINE = STATE_DIR + "/baseline.json"
BACKUP_DIR = "/root/netplan-disabled"
TIMER = "gb10-roce-restore"
BOOT_UNIT = "/etc/systemd/system/gb10-roce-restore-boot.service"
BOOT_WANTS = "/etc/systemd/system/multi-user.target.wants/gb10-roce-restore-boot.service"


@dataclass(frozen=True)
class Interface:
    """Live state of an interface: up or not, MTU in bytes, IPv4 addresses with prefix, routes as `ip route replace` takes them."""

    name: str
    up: bool
    mtu: int | None
    addresses: tuple[str, ...] = ()
    routes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Snapshot:
    """What stood before a change.

    `files`: {absolute path: name of the copy in pending/files, None if there was no such file}; `sysctls`: {/proc/sys path: value};
    `rails`: interfaces that the change touches; `protected`: those it must not (put back only if they lost something).
    """

    files: Mapping[str, str | None]
    sysctls: Mapping[str, str] = field(default_factory=dict)
    rails: Sequence[Interface] = ()
    protected: Sequence[Interface] = ()
    seconds: int = 120
    summary: str = ""


def snapshot_text(snapshot: Snapshot) -> str:
    """Return a snapshot as JSON."""
    return json.dumps(asdict(snapshot), indent=1, sort_keys=True) + "\n"


def snapshot_of(record: Mapping[str, Any]) -> Snapshot:
    """Return the snapshot of a JSON record. Raises KeyError or TypeError if a field is missing or of a wrong type."""
    rails, protected = (
        [Interface(i["name"], i["up"], i["mtu"], tuple(i["addresses"]), tuple(i["routes"])) for i in record[key]] for key in ("rails", "protected")
    )
    return Snapshot(dict(record["files"]), dict(record["sysctls"]), rails, protected, record["seconds"], record["summary"])


def merge_snapshots(first: Snapshot, second: Snapshot) -> Snapshot:
    """Return what stood before two unconfirmed changes: the first snapshot, and from the second what the first does not have."""

    def both(one: Sequence[Interface], two: Sequence[Interface]) -> list[Interface]:
        return [*one, *(item for item in two if item.name not in {known.name for known in one})]

    return replace(
        second,
        files={**second.files, **first.files},
        sysctls={**second.sysctls, **first.sysctls},
        rails=both(first.rails, second.rails),
        protected=both(first.protected, second.protected),
        summary="; ".join(dict.fromkeys((first.summary, second.summary))),
    )


def _addresses_back(item: Interface) -> list[str]:
    """Return the lines that add the addresses that an interface has lost."""
    dev = shlex.quote(item.name)
    return [f"ip addr show dev {dev} | grep -qF 'inet {a} ' || ip addr add {shlex.quote(a)} brd + dev {dev}" for a in item.addresses]


def restore_script(snapshot: Snapshot) -> str:
    """Return the POSIX shell script that puts the snapshot back. Its first argument is the reason (`timer`, `boot`)."""
    why = {
        "timer": f"the change was not confirmed within {snapshot.seconds} s, so the controller did not come back",
        "boot": "the node restarted before the change was confirmed",
    }
    out = [
        "#!/bin/sh",
        "# Written by gb10.cluster (role roce): brings back what stood before an unconfirmed network change.",
        f"[ -d {RESTORING} ] || mv -T {PENDING} {RESTORING} 2>/dev/null || exit 0  # a restore that was cut is completed",
        f"exec >{STATE_DIR}/restore.log 2>&1",
        "set -x",
        "PATH=/usr/sbin:/usr/bin:/sbin:/bin",
        f"rm -rf {RESTORED_FOLDER}",
        "case $1 in",
    ]
    out += [f"  {name}) why={shlex.quote(text)} ;;" for name, text in why.items()]
    out += ["  *) why=$1 ;;", "esac"]
    for path, copy in sorted(snapshot.files.items()):
        if copy is None:
            out.append(f"rm -f {shlex.quote(path)}")
        else:
            new = shlex.quote(path + ".gb10-restore")
            out.append(f"cp -p {shlex.quote(f'{RESTORING}/files/{copy}')} {new} && mv -T {new} {shlex.quote(path)}")
    out += [
        "systemctl is-active --quiet systemd-networkd.service && timeout 60 networkctl reload",
        "systemctl is-active --quiet NetworkManager.service && timeout 60 nmcli connection reload",
        "sleep 2",
    ]
    for item in snapshot.rails:
        dev = shlex.quote(item.name)
        if item.mtu is not None:
            out.append(f"ip link set dev {dev} mtu {item.mtu}")
        out += [
            f"for a in $(ip -o -4 addr show dev {dev} 2>/dev/null | awk '{{print $4}}'); do",
            f'  case " {" ".join(item.addresses)} " in *" $a "*) ;; *) ip addr del "$a" dev {dev} ;; esac',
            "done",
            *_addresses_back(item),
            f"ip link set dev {dev} {'up' if item.up else 'down'}",
        ]
    out.append("set +x")
    for path, value in sorted(snapshot.sysctls.items()):
        where = shlex.quote(path)
        out.append(f'v= ; [ -e {where} ] && {{ IFS= read -r v < {where}; [ "$v" = {shlex.quote(value)} ] || echo {shlex.quote(value)} > {where}; }}')
    for item in snapshot.protected:
        dev = shlex.quote(item.name)
        if item.up:
            out.append(f"ip link set dev {dev} up")
        out += _addresses_back(item)
        out += [f"ip route replace {shlex.join(route.split())}" for route in item.routes]
    data = json.dumps({"summary": snapshot.summary, "seconds": snapshot.seconds})
    out += [
        f'printf \'{{"when": "%s", "why": "%s", "change": %s}}\\n\' "$(date -u +%Y-%m-%dT%H:%M:%SZ)" "$why" {shlex.quote(data)} > {RESTORED}.tmp',
        f"mv {RESTORED}.tmp {RESTORED}",
        "sync",
        f"mv -T {RESTORING} {RESTORED_FOLDER} && rm -rf {RESTORED_FOLDER}",
        f"rm -f {BOOT_WANTS} {BOOT_UNIT}",
    ]
    return "\n".join(out) + "\n"


def boot_command() -> str:
    """Return the shell command that completes a restore that was cut, or begins that of a pending change."""
    return f"if [ -e {RESTORING}/restore.sh ]; then exec /bin/sh {RESTORING}/restore.sh boot; else exec /bin/sh {PENDING}/restore.sh boot; fi"


def boot_unit() -> str:
    """Return the unit that restores at boot while a change is pending; it is removed by the confirmation and by the restore."""
    return "\n".join(
        [
            "# Written by gb10.cluster (role roce); removed when the network change is confirmed.",
            "[Unit]",
            "Description=Bring back the network as it was before an unconfirmed change (gb10.cluster)",
            f"ConditionPathExists=|{PENDING}/restore.sh",
            f"ConditionPathExists=|{RESTORING}/restore.sh",
            "After=network.target systemd-networkd.service NetworkManager.service",
            "[Service]",
            "Type=oneshot",
            f"ExecStart=/bin/sh -c '{boot_command()}'",
            "[Install]",
            "WantedBy=multi-user.target",
            "",
        ]
    )


def restored_sentence(record: Mapping[str, Any]) -> str:
    """Return one sentence about a restore that happened."""
    change = record.get("change") or {}
    what = change.get("summary") or "the network change"
    return f"At {record.get('when', '?')} this node put its network back as it was before ({what}), because {record.get('why', '?')}."


def merge_baseline(old: Mapping[str, Any] | None, sysctls: Mapping[str, str], rails: Sequence[Interface], moves: Mapping[str, str]) -> dict[str, Any]:
    """Return the record of what stood before the first change; what is already recorded is never overwritten.

    `moves` is {original path: backup path}.
    """
    known: Mapping[str, Any] = old or {}
    now = {item.name: {"up": item.up, "mtu": item.mtu, "addresses": list(item.addresses)} for item in rails}
    return {
        "sysctls": {**sysctls, **known.get("sysctls", {})},
        "rails": {**now, **known.get("rails", {})},
        "moves": {**known.get("moves", {}), **moves},
    }
