# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""This machine: running commands, talking to its Docker Engine, installing one where that is allowed, and reporting durations."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.container.plan import LabError, host_routes, parse_pip_config, pip_environment

CA_BUNDLES = ("/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/cert.pem")
HEARTBEAT = 10.0
_print_lock = threading.Lock()
_started = time.monotonic()


def report(text: str) -> None:
    """One line of progress, with the seconds since the command began."""
    with _print_lock:
        print(f"[{time.monotonic() - _started:5.0f} s] {text}", flush=True)


class Step:
    """Progress of one step: `note` is what the heartbeat shows between other messages."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.note = ""


@contextmanager
def step(name: str, done: str = "") -> Iterator[Step]:
    """Announce a step, show that it lives every HEARTBEAT seconds, and print its time."""
    state, begin, finished = Step(name), time.monotonic(), threading.Event()
    report(f"{name} ...")

    def beat() -> None:
        while not finished.wait(HEARTBEAT):
            report(f"  {name}: {time.monotonic() - begin:.0f} s{', ' + state.note if state.note else ''}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield state
    finally:
        finished.set()
        thread.join()
    report(f"{done or name}: {time.monotonic() - begin:.1f} s")


def run(
    argv: Sequence[str],
    *,
    what: str = "",
    stdin: str | bytes | None = None,
    timeout: float = 900,
    check: bool = True,
    env: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run a command; on failure raise a LabError with the command and its last output."""
    data = stdin.encode() if isinstance(stdin, str) else stdin
    try:
        raw = subprocess.run(argv, input=data, capture_output=True, timeout=timeout, check=False, env=env)
    except FileNotFoundError:
        raise LabError(f"{argv[0]} is not installed on this machine, and {what or 'the lab'} needs it.") from None
    except subprocess.TimeoutExpired:
        raise LabError(f"{what or ' '.join(argv[:3])} did not end within {timeout:.0f} s: is the Docker Engine busy or hung (docker ps)?") from None
    result = subprocess.CompletedProcess(list(argv), raw.returncode, raw.stdout.decode("utf-8", "replace"), raw.stderr.decode("utf-8", "replace"))
    if check and result.returncode != 0:
        raise LabError(f"{what or ' '.join(argv[:3])} failed (exit {result.returncode}): {last_words(result.stderr or result.stdout)}")
    return result


def last_words(text: str, lines: int = 3) -> str:
    """The last non-empty lines of a command's output, as one line."""
    kept = [line.strip() for line in text.splitlines() if line.strip() and "DEPRECATED" not in line]
    return " | ".join(kept[-lines:]) or "no output"


_one_shots: set[str] = set()


def abandon() -> None:
    """Remove the one-shot containers that are at work: called when the user interrupts."""
    for name in list(_one_shots):
        subprocess.run(["docker", "rm", "-f", name], capture_output=True, timeout=60, check=False)


def stream(command: Sequence[str], on_line: Callable[[str], None], *, container: str, what: str, timeout: float = 1800) -> None:
    """Run `docker run ...` under a container name and hand over each line as it comes; on failure raise a LabError with its last words."""
    argv = [*command[:2], "--name", container, *command[2:]]
    seen: list[str] = []
    _one_shots.add(container)
    try:
        with subprocess.Popen(argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace") as process:
            killer = threading.Timer(timeout, abandon)
            killer.start()
            for line in process.stdout or ():
                seen.append(line)
                on_line(line.rstrip("\n"))
            killer.cancel()
            code = process.wait()
    finally:
        _one_shots.discard(container)
    if code != 0:
        raise LabError(f"{what} failed (exit {code}): {last_words(''.join(seen), 6)}")


def docker(*args: str, what: str = "", stdin: str | bytes | None = None, timeout: float = 900, check: bool = True) -> str:
    """Standard output of a docker command, stripped."""
    return run(["docker", *args], what=what or f"docker {args[0]}", stdin=stdin, timeout=timeout, check=check).stdout.strip()


def docker_ok(*args: str) -> bool:
    """Whether a docker command succeeds."""
    return run(["docker", *args], check=False, timeout=120).returncode == 0


def inspect(kind: str, name: str) -> dict[str, Any] | None:
    """`docker KIND inspect NAME`, or None if there is no such thing."""
    result = run(["docker", kind, "inspect", name], check=False, timeout=60)
    if result.returncode != 0:
        return None
    found = json.loads(result.stdout)
    return dict(found[0]) if found else None


def listed(*args: str) -> list[str]:
    """Lines of a docker listing command."""
    return docker(*args).splitlines()


def on_debian() -> bool:
    try:
        text = Path("/etc/os-release").read_text(encoding="utf-8")
    except OSError:
        return False
    return bool(re.search(r"^ID(_LIKE)?=.*\b(debian|ubuntu)\b", text, re.M)) and shutil.which("apt-get") is not None


def is_root() -> bool:
    return os.geteuid() == 0


def apt_install(packages: Sequence[str], why: str) -> None:
    """Install Debian packages, named before they are installed; refuse in one sentence where that is not possible."""
    names = " ".join(packages)
    if not on_debian():
        raise LabError(f"{why}: install it with this system's package manager ({names} on Debian), then run this again.")
    if not is_root():
        raise LabError(f"{why}, and only root may install it: run `sudo apt-get install {names}`, then run this again.")
    report(f"{why}. Installing from apt: {names}")
    env = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    with step(f"apt-get install {names}"):
        run(["apt-get", "update", "-qq"], what="apt-get update", check=False, env=env, timeout=300)
        run(
            ["apt-get", "-o", "DPkg::Lock::Timeout=300", "install", "-y", "-qq", "--no-install-recommends", *packages], what=f"apt-get install {names}", env=env
        )


def docker_answers() -> str:
    """Empty if the engine answers, else the client's last words."""
    if shutil.which("docker") is None:
        return "there is no docker command"
    result = run(["docker", "version", "--format", "{{.Server.Version}}"], check=False, timeout=60)
    return "" if result.returncode == 0 and result.stdout.strip() else last_words(result.stderr)


def ensure_docker(state: Path) -> str:
    """Version of the Docker Engine that answers; install and start one first where that is allowed."""
    problem = docker_answers()
    if problem and "permission denied" in problem.lower():
        raise LabError("The Docker Engine is there but this user may not use it: run as root, or `sudo usermod -aG docker $USER` and log in again.")
    if problem and os.environ.get("DOCKER_HOST"):
        raise LabError(f"DOCKER_HOST is {os.environ['DOCKER_HOST']} and nothing answers there: {problem}")
    if problem and shutil.which("dockerd") is None:
        packages = ["docker.io"]
        if run(["apt-cache", "show", "docker-cli"], check=False).returncode == 0 if on_debian() else False:
            packages.append("docker-cli")
        apt_install(packages, "The lab needs a Docker Engine (20.10 or later) and this machine has none")
        problem = docker_answers()
    if problem:
        start_dockerd(state, problem)
    version = docker("version", "--format", "{{.Server.Version}}")
    match = re.match(r"(\d+)\.(\d+)", version)
    if match and (int(match[1]), int(match[2])) < (20, 10):
        raise LabError(f"The Docker Engine here is {version}; the lab needs 20.10 or later (cgroup namespaces).")
    if docker("info", "--format", "{{.OSType}}") != "linux":
        raise LabError("The Docker Engine here runs Windows containers; the lab needs Linux ones.")
    return version


def start_dockerd(state: Path, problem: str) -> None:
    """Start the engine: with systemd where it runs, else by hand."""
    if not is_root():
        raise LabError(f"No Docker Engine answers ({problem}), and only root may start one: run `sudo systemctl start docker`, then run this again.")
    if Path("/run/systemd/system").is_dir():
        report("The Docker Engine is not running. Starting docker.service")
        run(["systemctl", "start", "docker"], what="systemctl start docker", check=False)
    else:
        log = state / "dockerd.log"
        report(f"The Docker Engine is not running and there is no systemd. Starting dockerd by hand; its log is {log}")
        state.mkdir(parents=True, exist_ok=True)
        with log.open("ab") as out:
            process = subprocess.Popen(["dockerd"], stdin=subprocess.DEVNULL, stdout=out, stderr=out, start_new_session=True)
        (state / "dockerd.pid").write_text(f"{process.pid}\n", encoding="ascii")
    deadline = time.monotonic() + 60
    with step("waiting for the Docker Engine"):
        while problem := docker_answers():
            if time.monotonic() > deadline:
                raise LabError(f"The Docker Engine did not come up within 60 s ({problem}): see its log (journalctl -u docker, or {state}/dockerd.log).")
            time.sleep(0.5)


def stop_own_dockerd(state: Path) -> None:
    """Stop the engine that the lab started by hand, unless other containers run on it."""
    mark = state / "dockerd.pid"
    try:
        pid = int(mark.read_text(encoding="ascii"))
        is_dockerd = Path(f"/proc/{pid}/comm").read_text(encoding="ascii").strip() == "dockerd"
    except (OSError, ValueError):
        is_dockerd = False
    if not is_dockerd:
        mark.unlink(missing_ok=True)
        return
    if listed("ps", "-q"):
        report("the dockerd that the lab started is left running: other containers run on it")
        return
    os.kill(pid, signal.SIGTERM)
    mark.unlink(missing_ok=True)
    report(f"stopped the dockerd that the lab started (process {pid}); installed packages stay")


def routes() -> list[tuple[str, str]]:
    """(interface, CIDR) of this host's IPv4 routes; empty where /proc has none."""
    try:
        return host_routes(Path("/proc/net/route").read_text(encoding="ascii"))
    except OSError:
        return []


def ca_bundle() -> str:
    """This host's certificate bundle, pip's configured one first; empty without one."""
    named = [os.environ.get(name, "") for name in ("PIP_CERT", "SSL_CERT_FILE", "REQUESTS_CA_BUNDLE")]
    for path in [*named, *CA_BUNDLES]:
        if path and Path(path).is_file():
            return str(Path(path).resolve())
    return ""


def pip_arguments() -> list[str]:
    """`docker run` arguments that give a one-shot container this host's pip settings, and leave nothing of them in an image."""
    result = run([sys.executable, "-m", "pip", "config", "list"], check=False, timeout=60)
    config = parse_pip_config(result.stdout) if result.returncode == 0 else {}
    args: list[str] = []
    for key, value in pip_environment(os.environ, config).items():
        args += ["--env", f"{key}={value}"]
    if bundle := ca_bundle():
        args += ["--volume", f"{bundle}:/run/host-ca.crt:ro"]
        for name in ("SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"):
            args += ["--env", f"{name}=/run/host-ca.crt"]
    links = os.environ.get("PIP_FIND_LINKS") or config.get("global.find-links", "")
    if links and Path(links).is_dir():
        args += ["--volume", f"{Path(links).resolve()}:/run/host-wheels:ro"]
        args += ["--env", "PIP_FIND_LINKS=/run/host-wheels", "--env", "UV_FIND_LINKS=/run/host-wheels"]
    return args


def debian_mirror() -> str:
    """The Debian mirror of this host's apt configuration; Debian's own where the host is not Debian."""
    default = "http://deb.debian.org/debian"
    try:
        if not re.search(r"^ID=debian$", Path("/etc/os-release").read_text(encoding="utf-8"), re.M):
            return default
    except OSError:
        return default
    sources = [
        Path("/etc/apt/sources.list"),
        *sorted(Path("/etc/apt/sources.list.d").glob("*.list")),
        *sorted(Path("/etc/apt/sources.list.d").glob("*.sources")),
    ]
    for source in sources:
        try:
            text = source.read_text(encoding="utf-8")
        except OSError:
            continue
        match = re.search(r"^(?:URIs:\s*|deb\s+(?:\[[^\]]*\]\s+)?)(https?://\S+/debian)/?(?:\s|$)", text, re.M)
        if match:
            return match[1]
    return default
