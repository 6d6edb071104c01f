# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Long work on a node as a transient systemd unit, and what the two units of a copy over the fabric run."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import socket
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Runner

# --- Long work on a node as a transient systemd unit, which ends by itself even if the controller is gone.
# A job `name` has the folder `/run/gb10-cluster/copy-<name>/` (0700; removed by the unit at its end), and next to it its return code and its output.

RUN = "/run/gb10-cluster"


class JobError(Exception):
    """A job cannot be started or has failed. The text is a sentence for the user."""


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "no output")


def script_of(*commands: Sequence[str]) -> str:
    """Return a script that runs commands one after the other, until one fails."""
    return " && ".join(shlex.join(argv) for argv in commands)


class Job:
    """One transient unit, `gb10-copy-<name>`."""

    def __init__(self, name: str, run: Runner, folder: str = RUN) -> None:
        """Take the name; `run` runs a command on the node."""
        self.unit = f"gb10-copy-{name}"
        self.run = run
        self.folder = os.path.join(folder, f"copy-{name}")
        self.code, self.log = f"{self.folder}.code", f"{self.folder}.log"

    def active(self) -> bool:
        """Whether the unit runs."""
        return self.run(["systemctl", "is-active", "--quiet", f"{self.unit}.service"])[0] == 0

    def rc(self) -> int | None:
        """Return the return code of the script; None if it has not ended, or was ended from outside."""
        try:
            return int(bounded.text(self.code))
        except (OSError, ValueError):
            return None

    def output(self) -> str:
        """Return the last MiB of what the script has printed so far."""
        try:
            return bounded.end(self.log, 1 << 20)
        except OSError:
            return ""

    def prepare(self) -> str:
        """End an earlier job of the same name and create the folder; return it. Raises OSError."""
        self.stop()
        os.makedirs(os.path.dirname(self.folder), mode=0o755, exist_ok=True)
        os.mkdir(self.folder, 0o700)
        return self.folder

    def start(self, script: str, seconds: int, description: str, properties: Sequence[str] = ()) -> None:
        """Start a shell script as the unit. Call prepare() first. Raises JobError, OSError."""
        program = os.path.join(self.folder, "run.sh")
        with open(program, "w", encoding="utf-8") as handle:
            handle.write(f"( {script}\n) >{shlex.quote(self.log)} 2>&1\necho $? >{shlex.quote(self.code)}\n")
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={self.unit}", f"--description=gb10.cluster: {description}"]
        argv += [f"--property={item}" for item in (f"RuntimeMaxSec={seconds}", f"ExecStopPost=/bin/rm -rf {self.folder}", *properties)]
        rc, out, err = self.run([*argv, "/bin/sh", program])
        if rc != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise JobError(f"systemd-run could not start {self.unit} ({last_line(err or out)}): run with become, on a node that runs systemd")

    def stop(self) -> bool:
        """End the unit and remove its files; return whether there were any."""
        found = self.active() or os.path.isdir(self.folder) or os.path.exists(self.code)
        self.run(["systemctl", "stop", f"{self.unit}.service"])
        self.run(["systemctl", "reset-failed", f"{self.unit}.service"])
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.code, self.log):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.folder))
        return found


def need_programs(find: Callable[[str], Any], *names: str) -> None:
    """Fail if a program of a copy is not installed; `find` returns its path. Raises JobError."""
    missing = [name for name in names if not find(name)]
    if missing:
        raise JobError(f"{', '.join(missing)} is not installed on this node: install the packages rsync and openssh (apt install rsync openssh-server)")


# --- A copy over the fabric: what the two units of it run. The fetching end runs parallel `rsync` over SSH, which checks each file as it arrives.
# The serving end is an SSH server of its own, for the keys of one copy: its only command is `rrsync -ro` on one folder. So the copy needs no account, no
# setting of the node's SSH server and no key that outlives it, and the rsync of this end is in the bounded unit too.
# Both units see the programs of the node and their own folder, and nothing else: a container can put links into the model store, and root must not follow one
# to a secret of the node.

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
#: Writes the files that it has fetched with the owner of their folder.
CLIENT_CAPABILITIES = "CAP_CHOWN CAP_FOWNER"
CIPHERS = "aes128-gcm@openssh.com,aes256-gcm@openssh.com,chacha20-poly1305@openssh.com"  # the fastest first


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


def make_key(job: Job, name: str) -> str:
    """Make a key in the folder of the job and return its public half. Raises JobError, OSError."""
    path = os.path.join(job.folder, name)
    rc, out, err = job.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", NAME, "-f", path])
    if rc != 0:
        raise JobError(f"ssh-keygen could not make a key for this copy ({last_line(err or out)}): correct that and run again")
    with open(f"{path}.pub", encoding="ascii") as handle:
        return " ".join(handle.read().split()[:2])


def free_port(listen: list[str], port: int) -> int:
    """Return the port on which this node can listen at each address: `port`, or any if it is 0. Raises JobError."""
    for address in listen:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        with socket.socket(family, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((address, port))
            except OSError as error:
                raise JobError(
                    f"cannot listen on the fabric address {address} ({error.strerror}): is it set on this node (ip -br address), and is the port free?"
                ) from error
            port = port or int(probe.getsockname()[1])
    return port


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
    """Return the script of the serving unit."""
    return f"/usr/sbin/sshd -D -e -f {folder}/sshd_config"


# --- the fetching end -----------------------------------------------------------------------------------------------------------


def shares(sizes: Mapping[str, int], streams: int) -> list[list[str]]:
    """Return the paths of each rsync process, of about the same size."""
    out: list[list[str]] = [[] for _stream in range(max(1, streams))]
    filled = [0] * len(out)
    for path in sorted(sizes, key=lambda path: -sizes[path]):
        least = filled.index(min(filled))
        out[least].append(path)
        filled[least] += sizes[path] + 1
    return [each for each in out if each]


def client_files(folder: str, parts: Sequence[Sequence[str]], provider: Mapping[str, Any], fabric: Sequence[str]) -> dict[str, str]:
    """Return the files of the fetching end: its SSH configuration, pinned host keys, and the names of each share.

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
    out.update({f"{number}.names": "".join(f"{path}\0" for path in part) for number, part in enumerate(parts)})
    return out


def client_script(folder: str, staging: str, target: str, owner: str, parts: int, rails: int) -> str:
    """Return the script of the fetching unit. Each share begins on another rail, and goes on where an earlier run stopped.

    When all shares are there and on the disk, the files are moved to the folder `target`, in this unit: a link that a container has put there leads to
    nothing outside of the store. New ones belong to `owner`.
    """
    user, _colon, group = owner.partition(":")
    there, own = shlex.quote(f"{target}/{{}}"), f"install -d -m 755 -o {user} -g {group}"
    lines = [
        f"cd {shlex.quote(staging)} || exit 1", "export LC_ALL=C", "date '+began %s.%N'",
        "copy() {", "  share=$1; shift", '  for way in "$@" "$@"; do',
        "    rsync --links --perms --times --omit-dir-times --chmod=D755,F644 --inplace --timeout=60 --no-human-readable --stats"
        f" -e 'ssh -F {folder}/ssh_config' --from0 --files-from={folder}/$share.names $way:. . && return 0",
        "    sleep 1", "  done", "  return 1", "}",
    ]  # fmt: skip
    for number in range(parts):
        ways = [f"rail{(number + turn) % rails}" for turn in range(rails)]
        lines.append(f"copy {number} {' '.join(ways)} & p{number}=$!")
    lines += [
        "failed=0", *(f"wait $p{number} || failed=1" for number in range(parts)), "[ $failed = 0 ] || exit 1",
        "find . -type f -exec sync -d {} + && date '+ended %s.%N' || exit 1",
        f"find . -type d ! -exec test -d {there} \\; ! -exec {own} {there} \\; -print -quit | grep . && exit 1",
        f"chown -hR {owner} . || exit 1",
        f"find . ! -type d ! -exec mv -fT {{}} {there} \\; -print -quit | grep . && exit 1",
        f"cd / && rm -rf {shlex.quote(staging)}",
    ]  # fmt: skip
    return "\n".join(lines)


def figures(log: str) -> dict[str, int]:
    """Return the bytes that a copy has moved over the fabric, and its speed in 10^6 bytes a second, from the log of its unit."""
    times = [float(value) for value in re.findall(r"^(?:began|ended) ([\d.]+)$", log, re.MULTILINE)]
    moved = sum(int(count) for count in re.findall(r"^Literal data: (\d+) bytes$", log, re.MULTILINE))
    return {"moved_bytes": moved, "mb_per_second": int(moved / max(times[-1] - times[0], 1e-3) / 1e6) if times else 0}
