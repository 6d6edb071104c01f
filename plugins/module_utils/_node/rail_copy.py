# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. A copy over the fabric: what the two units of it run. The fetching end runs parallel `rsync` over SSH, and checks each file once.

The serving end is an SSH server of its own, for the keys of one copy: its only command is `rrsync -ro` on one folder. So the copy needs no account, no
setting of the node's SSH server and no key that outlives it, and the rsync of this end is in the bounded unit too.

Both units see the programs of the node and their own folder, and nothing else: a container can put links into the model store, and root must not
follow one to a secret of the node.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

#: Page cache of a copy counts against the GPU's memory. These limit it on both ends, with what rsync and SSH need.
BOUNDS = ["MemoryHigh=512M", "MemoryMax=1G", "IOWeight=50"]
ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/:/bin/sh\nsshd:x:65534:65534::/run/sshd:/usr/sbin/nologin\n", "etc/group": "root:x:0:\nnogroup:x:65534:\n",
}  # fmt: skip
SERVER_CAPABILITIES = "CAP_SYS_CHROOT CAP_SETUID CAP_SETGID CAP_KILL"  # of sshd, which gives its process without a login to the user sshd
#: Programs of the ends of a copy, in the packages rsync and openssh-server.
SERVES, FETCHES = ("rrsync", "sshd", "ssh-keygen"), ("rsync", "ssh", "ssh-keygen")
NAME = "gb10-copy"  # of the serving end in known_hosts
KEY, HOST_KEY = "key", "host_key"  # in the folder of the job
IDLE_ROUNDS = 60  # of ten seconds without a connection, after which the serving end stops. A slow disk takes some of them to check a file.
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com"  # the fastest first
REMEDIES = (
    ("no space left|disk quota", "free space there"),
    ("host key verification", "another host answers at this address: look for a second machine with it on the rail"),
    ("connection refused|timed out|no route|unreachable|connection reset|closed by", "check the cable, and that no firewall closes the port"),
    ("out of memory|cannot allocate", "free memory on the node"),
)


def _quoted(paths: Sequence[str]) -> str:
    """Return paths as systemd reads them in a property."""
    return " ".join('"{}"'.format(re.sub(r'([\\":])', r"\\\1", path).replace("%", "%%")) for path in paths)


def sandbox(folder: str, reads: Sequence[str] = (), writes: Sequence[str] = (), capabilities: str = "") -> list[str]:
    """Return the properties of a unit that sees the node's programs, `folder` (of its job) and these folders. See prepare() for its /etc."""
    return [
        "TemporaryFileSystem=/ /run/sshd", "BindReadOnlyPaths=/usr -/bin -/sbin -/lib -/lib64 /proc",
        f"BindReadOnlyPaths={_quoted([os.path.join(folder, 'etc')])}:/etc", f"BindPaths={_quoted([os.path.dirname(folder), *writes])}",
        *([f"BindReadOnlyPaths={_quoted(reads)}"] if reads else []), "PrivateDevices=yes", "NoNewPrivileges=yes", "ProtectControlGroups=yes",
        "RestrictAddressFamilies=AF_UNIX AF_INET AF_INET6", f"CapabilityBoundingSet=CAP_DAC_OVERRIDE CAP_DAC_READ_SEARCH {capabilities}".strip(), *BOUNDS,
    ]  # fmt: skip


def prepare(folder: str, texts: Mapping[str, str]) -> None:
    """Write the files of a job into its folder, and the accounts that its unit sees. Raises OSError."""
    os.makedirs(os.path.join(folder, "etc"), mode=0o755, exist_ok=True)
    for name, text in {**ACCOUNTS, **texts}.items():
        with open(os.path.join(folder, name), "w", encoding="utf-8") as handle:
            handle.write(text)


# --- the serving end ------------------------------------------------------------------------------------------------------------


def server_files(folder: str, root: str, port: int, listen: Sequence[str], allow: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
    """Return the files of the SSH server that lets the hosts with these keys and addresses read the folder `root`."""
    config = [
        f"Port {port}", *(f"ListenAddress {address}" for address in listen), f"HostKey {folder}/{HOST_KEY}", f"AuthorizedKeysFile {folder}/authorized_keys",
        "PermitRootLogin prohibit-password", "AuthenticationMethods publickey", f"Ciphers {CIPHERS}", "PidFile none", "LogLevel ERROR",
        "UseDNS no", "LoginGraceTime 10", "ClientAliveInterval 15", f"ForceCommand rrsync -ro {shlex.quote(root)}",
    ]  # fmt: skip
    allowed = "".join(f'restrict,from="{",".join(allow)}" {key}\n' for key in keys)
    return {"sshd_config": "\n".join(config) + "\n", "authorized_keys": allowed}


def server_script(folder: str) -> str:
    """Return the script of the serving unit: it ends some time after the last connection, also if the controller is gone."""
    return f"""/usr/sbin/sshd -D -e -f {folder}/sshd_config & server=$!
idle=0
while kill -0 $server 2>/dev/null && [ $idle -lt {IDLE_ROUNDS} ]; do
  sleep 10
  children=$(cat /proc/$server/task/$server/children 2>/dev/null)
  if [ -n "$children" ]; then idle=0; else idle=$((idle + 1)); fi
done
kill $server 2>/dev/null
wait $server"""


# --- the fetching end -----------------------------------------------------------------------------------------------------------


def shares(files: Sequence[Mapping[str, Any]], streams: int) -> list[list[Mapping[str, Any]]]:
    """Return the files of each rsync process, of about the same size."""
    out: list[list[Mapping[str, Any]]] = [[] for _stream in range(max(1, streams))]
    sizes = [0] * len(out)
    for item in sorted(files, key=lambda item: -int(item["size"])):
        least = sizes.index(min(sizes))
        out[least].append(item)
        sizes[least] += int(item["size"]) + 1
    return [each for each in out if each]


def client_files(folder: str, parts: Sequence[Sequence[Mapping[str, Any]]], provider: Mapping[str, Any], fabric: Sequence[str]) -> dict[str, str]:
    """Return the files of the fetching end: its SSH configuration, pinned host keys, and the names and hashes of each share.

    :param provider: what the module of the serving end returned: `listen` (addresses and ports by rail) and `host_key`.
    :param fabric: this node's address on each rail.
    """
    config = []
    for rail, place in enumerate(provider["listen"]):
        config += [f"Host rail{rail}", f"HostName {place['address']}", f"Port {place['port']}", f"HostKeyAlias {NAME}"]
        config += [f"BindAddress {fabric[rail]}"] if rail < len(fabric) else []
    config += [
        "Host *", "User root", f"IdentityFile {folder}/{KEY}", "IdentitiesOnly yes", "IdentityAgent none", "BatchMode yes", "StrictHostKeyChecking yes",
        f"UserKnownHostsFile {folder}/known_hosts", "GlobalKnownHostsFile none", "UpdateHostKeys no", f"Ciphers {CIPHERS}", "Compression no",
        "ConnectTimeout 5", "ServerAliveInterval 5", "ServerAliveCountMax 4", "LogLevel ERROR",
    ]  # fmt: skip
    out = {"ssh_config": "\n".join(config) + "\n", "known_hosts": f"{NAME} {provider['host_key']}\n"}
    for number, part in enumerate(parts):
        out[f"{number}.names"] = "".join(f"{item['path']}\0" for item in part)
        out[f"{number}.sums"] = "".join(f"{item['sha256']}  {item['path']}\n" for item in part)
    return out


def client_script(folder: str, staging: str, parts: int, rails: int) -> str:
    """Return the script of the fetching unit. Each share begins on another rail, goes on where an earlier run stopped, and is checked at its end.

    A share with another content, such as a file that a loss of power damaged, is compared with the source block by block, and checked once more.
    """
    lines = [
        f"cd {shlex.quote(staging)} || exit 1", "export LC_ALL=C", "date '+began %s.%N'",
        "copy() {", "  share=$1; how=$2; shift 2",
        '  for way in "$@" "$@"; do',
        f"    rsync --inplace --timeout=60 --no-human-readable --stats $how -e 'ssh -F {folder}/ssh_config' --from0"
        f" --files-from={folder}/$share.names $way:. . && {{ date '+copied %s.%N'; return 0; }}",
        "    sleep 1", "  done", "  return 1", "}",
        "share() {", f"  sums={folder}/$1.sums; share=$1; shift", '  copy $share --append "$@" || return 1', "  sha256sum --check --status $sums && return 0",
        '  copy $share "--ignore-times --no-whole-file" "$@" && sha256sum --check --quiet $sums', "}",
    ]  # fmt: skip
    for number in range(parts):
        ways = [f"rail{(number + turn) % rails}" for turn in range(rails)]
        lines.append(f"share {number} {' '.join(ways)} & p{number}=$!")
    lines += ["failed=0", *(f"wait $p{number} || failed=1" for number in range(parts)), "date '+ended %s.%N'", "exit $failed"]
    return "\n".join(lines)


def figures(log: str) -> dict[str, Any]:
    """Return the bytes and seconds of a copy that succeeded, from the log of its unit."""
    times = {name: [float(value) for value in re.findall(rf"^{name} ([\d.]+)$", log, re.MULTILINE)] for name in ("began", "copied", "ended")}
    moved = sum(int(count) for count in re.findall(r"^Literal data: (\d+) bytes$", log, re.MULTILINE))
    began = min(times["began"], default=0.0)
    transfer = max(max(times["copied"], default=began) - began, 1e-3)
    return {
        "moved_bytes": moved, "mb_per_second": int(moved / transfer / 1e6),
        "seconds": {"transfer": round(transfer, 2), "total": round(max(times["ended"], default=began) - began, 2)},
    }  # fmt: skip


def failure(log: str, arrived: str) -> str:
    """Return why a copy failed, as a sentence with its remedy; `arrived` tells how far it came."""
    wrong = re.findall(r"^(.+): FAILED(?: open or read)?$", log, re.MULTILINE)
    if wrong:
        return (
            f"{', '.join(wrong[:6])} arrived with another content than in the manifest, twice: the source has changed since it was read, "
            "or its memory or disk is faulty; run again with weights_verify=full"
        )
    lines = [line.strip() for line in log.splitlines() if re.search(r"ssh|rsync|sshd|cannot|failed|No space", line) and not line.startswith("rsync error")]
    last = lines[-1][:300] if lines else "rsync has left no message"
    remedy = next((remedy for pattern, remedy in REMEDIES if re.search(pattern, " ".join(lines[-3:]), re.IGNORECASE)), "correct that")
    return f"the copy stopped after {arrived} ({last}): {remedy} and run again, it goes on from there"
