# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Copies over the fabric: files that are opened without following links, long work as a transient systemd unit, and what the two units of a copy run."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import shutil
import stat
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.forms import loads
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import Runner

# --- Files and folders that are opened without following links. A container of an engine can replace what is below the model store.

PLAIN = os.O_NOFOLLOW | os.O_CLOEXEC
NO_PLAIN = (errno.ELOOP, errno.ENOTDIR, errno.ENXIO, errno.EISDIR)  # a link, a file, a socket, or a folder in place of what is opened


STRETCH = 64 << 20  # bytes of a file between two calls of forget()
WINDOW = 8 * STRETCH  # pages that were dirty, or on their way to the peer, are clean by then


class CopyError(Exception):
    """A copy cannot continue. The text is a sentence for the user."""


def forget(descriptor: int, position: int = 0) -> None:
    """Take the WINDOW before a position out of the page cache, or the whole file without one. Dirty pages stay, and the kernel begins to write them.

    The GPU of a GB10 uses the same memory, and its driver does not wait for page cache. A file system that cannot do this is left as it is.
    """
    start = max(0, position - WINDOW)
    with contextlib.suppress(OSError):
        os.posix_fadvise(descriptor, start, position - start, os.POSIX_FADV_DONTNEED)


def passed(descriptor: int, position: int, count: int) -> None:
    """Forget what is behind a reader or writer that has moved by `count` bytes to `position`, at each STRETCH."""
    if position // STRETCH > (position - count) // STRETCH:
        forget(descriptor, position)


def forget_written(descriptor: int) -> None:
    """Write a file to the disk and take it out of the page cache. Raises OSError if the disk fails."""
    os.fdatasync(descriptor)
    forget(descriptor)


def open_folder(path: str, make: Callable[[int, str], None] | None = None) -> int:
    """Open a folder by an absolute path of which no part may be a link: a container can replace what is below the model store.

    `make` creates a part that is missing, in the folder with this descriptor. The result is for `dir_fd` only. Raises CopyError, OSError.
    """
    here = os.open("/", os.O_PATH | os.O_DIRECTORY | PLAIN)
    for part in filter(None, path.split("/")):
        above = here
        try:
            with contextlib.suppress(FileExistsError):
                if make and not _exists(part, above):
                    make(above, part)
            here = os.open(part, os.O_PATH | os.O_DIRECTORY | PLAIN, dir_fd=above)
        except OSError as error:
            if error.errno not in NO_PLAIN:
                raise OSError(error.errno, error.strerror, path) from error
            raise CopyError(f"{path} is or leads through a link or a file ({part}), and a folder is expected: look at what it is, and remove it") from error
        finally:
            os.close(above)
    return here


def _exists(name: str, folder: int) -> bool:
    try:
        os.stat(name, dir_fd=folder, follow_symlinks=False)
    except FileNotFoundError:
        return False
    return True


def open_in(folder: int, name: str, where: str, flags: int = os.O_RDONLY) -> int:
    """Open a regular file in a folder, which messages name `where`. Raises CopyError, OSError."""
    try:
        descriptor = os.open(name, flags | os.O_NONBLOCK | PLAIN, 0o600, dir_fd=folder)
    except OSError as error:
        if error.errno not in NO_PLAIN:
            raise OSError(error.errno, error.strerror, f"{where}/{name}") from error
        raise CopyError(f"{where}/{name} is not a regular file: look at what it is, and remove it") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise CopyError(f"{where}/{name} is not a regular file: look at what it is, and remove it")
    return descriptor


def open_file(path: str) -> int:
    """Open a regular file for reading by an absolute path of which no part may be a link. Raises CopyError, OSError."""
    where, name = os.path.split(path)
    folder = open_folder(where)
    try:
        return open_in(folder, name, where)
    finally:
        os.close(folder)


class Staging:
    """The folder for fetched files, mode 0700. A container of an engine can write next to it and into it: no link to it or in it is followed."""

    def __init__(self, path: str, create: bool = False) -> None:
        """Open the folder by an absolute path without links, made if `create`. Raises CopyError, OSError."""
        self.path = path
        self.name = os.path.basename(path)
        self.parent = open_folder(os.path.dirname(path), (lambda above, part: os.mkdir(part, 0o755, dir_fd=above)) if create else None)
        try:
            if create:
                with contextlib.suppress(FileExistsError):
                    os.mkdir(self.name, 0o700, dir_fd=self.parent)
            self.descriptor = os.open(self.name, os.O_RDONLY | os.O_DIRECTORY | PLAIN, dir_fd=self.parent)
        except OSError as error:
            os.close(self.parent)
            if error.errno not in NO_PLAIN:
                raise OSError(error.errno, error.strerror, path) from error
            raise CopyError(f"{path} is a link or a file, and a folder of this copy is expected: look at what it is, and remove it") from error
        info = os.fstat(self.descriptor)
        if info.st_uid != os.geteuid() or info.st_mode & 0o077:
            self.close()
            raise CopyError(f"{path} belongs to user {info.st_uid} with mode {info.st_mode & 0o777:04o}, expected {os.geteuid()} with 0700: remove it")

    def close(self) -> None:
        """Close the folder."""
        os.close(self.descriptor)
        os.close(self.parent)

    def clear(self) -> None:
        """Remove the folder and all that is in it."""
        shutil.rmtree(f"/proc/self/fd/{self.parent}/{self.name}", ignore_errors=True)

    @contextlib.contextmanager
    def file(self, path: str) -> Iterator[tuple[int, int, str]]:
        """Open a regular file with one name by its path in the folder, as (descriptor, descriptor of its folder, name). Raises CopyError, OSError."""
        with contextlib.ExitStack() as opened:
            where, name = os.path.split(os.path.join(self.path, path))
            folder = open_folder(where)
            opened.callback(os.close, folder)
            descriptor = open_in(folder, name, where)
            opened.callback(os.close, descriptor)
            if os.fstat(descriptor).st_nlink > 1:
                raise CopyError(f"{where}/{name} is not a regular file with one name: look at what it is, and remove it")
            yield descriptor, folder, name


# --- Long work on a node as a transient systemd unit, which ends by itself even if the controller is gone.
# A job `name` has the folder `/run/gb10-cluster/copy-<name>/` (0700; removed by the unit at its end) and a report in a file next to that folder. The action
# plugin of a followed module (`plugin_utils/followed.py`) runs it with the steps `start` and `status`. Without a step it waits.

RUN = "/run/gb10-cluster"
SLICE_SECONDS = 2.0
STEP: dict[str, Any] = {"type": "str", "choices": ["start", "status", "plain"], "default": "plain"}


class JobError(Exception):
    """A job cannot be started or has failed. The text is a sentence for the user."""


def last_line(text: str) -> str:
    """Return the last line that is not empty."""
    return next((line.strip()[:300] for line in reversed(text.splitlines()) if line.strip()), "no output")


def remedy_of(text: str, remedies: Sequence[tuple[str, str]], default: str) -> str:
    """Return the remedy of the first pattern that is in the text."""
    return next((remedy for pattern, remedy in remedies if re.search(pattern, text, re.IGNORECASE)), default)


class Job:
    """One transient unit, `gb10-copy-<name>`."""

    def __init__(self, name: str, run: Runner, folder: str = RUN) -> None:
        """Take the name; `run` runs a command on the node."""
        self.unit = f"gb10-copy-{name}"
        self.run = run
        self.folder = os.path.join(folder, f"copy-{name}")
        self.report = os.path.join(folder, f"copy-{name}.json")
        self.log = f"{self.report}.log"

    def active(self) -> bool:
        """Whether the unit runs."""
        return self.run(["systemctl", "is-active", "--quiet", f"{self.unit}.service"])[0] == 0

    def read(self) -> dict[str, Any]:
        """Return the last report of the job, empty if there is none."""
        try:
            return dict(loads(bounded.text(self.report, errors="strict")))
        except (OSError, ValueError, TypeError):
            return {}

    def output(self) -> str:
        """Return the last MiB of what the commands of the job have printed so far."""
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

    def start_commands(self, commands: Sequence[Sequence[str]], seconds: int, description: str, properties: Sequence[str] = ()) -> None:
        """Start commands one after the other, until one fails. See start_script()."""
        self.start_script(" && ".join(shlex.join(argv) for argv in commands), seconds, description, properties)

    def start_script(self, text: str, seconds: int, description: str, properties: Sequence[str] = ()) -> None:
        """Start a shell script. The report has the return code. Call prepare() first. Raises JobError, OSError."""
        program = os.path.join(self.folder, "run.sh")
        with open(program, "w", encoding="utf-8") as handle:
            handle.write(f"( {text}\n) >{shlex.quote(self.log)} 2>&1\necho '{{\"rc\": '$?'}}' >{shlex.quote(self.report)}\n")
        self.launch(["/bin/sh", program], seconds, description, properties)

    def launch(self, command: Sequence[str], seconds: int, description: str, properties: Sequence[str]) -> None:
        """Start a command as the unit. Raises JobError."""
        argv = ["systemd-run", "--quiet", "--collect", f"--unit={self.unit}", f"--description=gb10.cluster: {description}"]
        argv += [f"--property={item}" for item in (f"RuntimeMaxSec={seconds}", f"ExecStopPost=/bin/rm -rf {self.folder}", *properties)]
        rc, out, err = self.run([*argv, *command])
        if rc != 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            raise JobError(f"systemd-run could not start {self.unit} ({last_line(err or out)}): run with become, on a node that runs systemd")

    def stop(self) -> bool:
        """End the unit and remove its files; return whether there were any."""
        found = self.active()
        if found:
            self.run(["systemctl", "stop", f"{self.unit}.service"])
        self.run(["systemctl", "reset-failed", f"{self.unit}.service"])
        found = found or os.path.isdir(self.folder) or os.path.exists(self.report)
        shutil.rmtree(self.folder, ignore_errors=True)
        for path in (self.report, self.log):
            with contextlib.suppress(OSError):
                os.unlink(path)
        with contextlib.suppress(OSError):
            os.rmdir(os.path.dirname(self.folder))
        return found


def follow(module: Any, job: Job, start: Callable[[], None], progress: Callable[[], Mapping[str, Any]]) -> None:
    """Start the unit and wait for its end, as the option `step` of the module requires; return when the unit has ended.

    The step `start` ends the module after the start. The step `status` ends it after SLICE_SECONDS with a `report` if the unit still runs.
    """
    step = module.params["step"]
    if step != "status":
        start()
    if step == "start":
        module.exit_json(changed=False)
    end = time.monotonic() + SLICE_SECONDS
    while job.active():
        if step == "status" and time.monotonic() >= end:
            module.exit_json(changed=False, report={**progress(), "state": "running"})
        time.sleep(0.1)


# --- A copy over the fabric: what the two units of it run. The fetching end runs parallel `rsync` over SSH, and checks each file once.
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
