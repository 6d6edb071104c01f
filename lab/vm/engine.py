# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The few Docker commands that the lab needs, with errors a reader can act on."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from lab.container.plan import LabError

CA_BUNDLE = "/etc/ssl/certs/ca-certificates.crt"
# The build makes device nodes and mounts; `--privileged` is not needed, and not always available. Running needs nothing of this.
BUILD_CAPABILITIES = (
    *("--cap-add", "SYS_ADMIN", "--cap-add", "MKNOD"),
    *("--security-opt", "seccomp=unconfined", "--security-opt", "apparmor=unconfined"),
)


def report(text: str) -> None:
    """A line of progress."""
    print(text, file=sys.stderr, flush=True)


def docker(*args: str, stdin: bytes | None = None, timeout: float = 120, check: bool = True) -> subprocess.CompletedProcess[bytes]:
    """Run a docker command and return it; with `check` a failure becomes one sentence."""
    if shutil.which("docker") is None:
        raise LabError("The `docker` command is not on PATH; install a Docker Engine (Debian and Ubuntu: `apt install docker.io`).")
    try:
        done = subprocess.run(["docker", *args], input=stdin, capture_output=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired as error:
        raise LabError(f"`docker {args[0]}` did not answer within {timeout:.0f} s; look at the Docker daemon's log.") from error
    if check and done.returncode != 0:
        message = done.stderr.decode(errors="replace").strip() or done.stdout.decode(errors="replace").strip()
        if "Cannot connect to the Docker daemon" in message or "permission denied" in message:
            raise LabError(f"The Docker daemon does not answer ({message.splitlines()[0]}); start it, or join the group `docker`.")
        raise LabError(f"`docker {' '.join(args[:3])} ...` failed: {message.splitlines()[-1] if message else 'no message'}")
    return done


def stream(*args: str, log: Path, timeout: float) -> None:
    """Run a long docker command; show its steps as they come and keep everything in the log."""
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w") as sink, subprocess.Popen(["docker", *args], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        last = ""
        for line in process.stdout:
            sink.write(line)
            last = line.strip() or last
            if " s  " in line[:12]:
                report(f"    {line.rstrip()}")
        code = process.wait(timeout=timeout)
    if code != 0:
        raise LabError(f"The build stopped with code {code}: {last} (all of it: {log})")


def exists(kind: str, name: str) -> bool:
    """Whether an image, container or volume of this name exists."""
    return docker(kind, "inspect", name, check=False).returncode == 0


def running(container: str) -> bool:
    """Whether the container runs."""
    done = docker("container", "inspect", "--format", "{{.State.Running}}", container, check=False)
    return done.stdout.strip() == b"true"


def trust() -> list[str]:
    """Mounts that let a build behind a TLS-inspecting proxy trust what this machine trusts; nothing of it stays in an image."""
    return ["--volume", f"{CA_BUNDLE}:{CA_BUNDLE}:ro"] if Path(CA_BUNDLE).is_file() else []


def proxies(environ: Mapping[str, str] | None = None) -> list[str]:
    """This machine's proxy variables, passed on by name."""
    names = ("http_proxy", "https_proxy", "no_proxy")
    found: Sequence[str] = [name for name in (*names, *(n.upper() for n in names)) if (os.environ if environ is None else environ).get(name)]
    return [part for name in found for part in ("--env", name)]
