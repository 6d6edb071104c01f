# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The nodes and their networks: making, waiting for, reaching and removing them. Everything made carries the lab's label."""

from __future__ import annotations

import hashlib
import os
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from lab.container import images
from lab.container.host import docker, inspect, listed, report, routes, run, step
from lab.container.plan import (
    ENGINE_TAG,
    LABEL,
    LABEL_CHECKOUT,
    LABEL_SPEC,
    MODEL_NAME,
    STUB_MODEL,
    STUB_TAG,
    LabError,
    Names,
    Network,
    Node,
    collisions,
    content_hash,
    known_hosts,
    node_run_arguments,
    prefix,
)

BOOT_SECONDS = 120


@dataclass(frozen=True)
class Lab:
    """This checkout's lab: where its key and known_hosts live, and the label that marks what belongs to it."""

    state: Path
    instance: int = 0

    @property
    def id(self) -> str:
        return hashlib.sha256(f"{self.state}:{self.instance}".encode()).hexdigest()[:12]

    @property
    def key(self) -> Path:
        return self.state / "id_ed25519"

    @property
    def known_hosts(self) -> Path:
        return self.state / "known_hosts"

    @property
    def labels(self) -> dict[str, str]:
        return {LABEL: self.id, LABEL_CHECKOUT: str(self.state)}


@dataclass(frozen=True)
class Thing:
    """A container, network or volume that carries a lab's label."""

    kind: str
    name: str
    lab: str
    checkout: str


def labelled() -> list[Thing]:
    """Everything on this engine that any lab made (caches are not a lab's)."""
    fmt = f'{{{{.Name}}}}\t{{{{.Label "{LABEL}"}}}}\t{{{{.Label "{LABEL_CHECKOUT}"}}}}'
    commands = (
        ("container", ["ps", "-a", "--filter", f"label={LABEL}", "--format", fmt.replace(".Name", ".Names")]),
        ("network", ["network", "ls", "--filter", f"label={LABEL}", "--format", fmt]),
        ("volume", ["volume", "ls", "--filter", f"label={LABEL}", "--format", fmt]),
    )
    found = []
    for kind, command in commands:
        for line in listed(*command):
            name, lab, checkout = [*line.split("\t"), "", ""][:3]
            found.append(Thing(kind, name, lab, checkout))
    return found


def remove(things: list[Thing]) -> None:
    """Containers first, then networks, then volumes; nothing that is not in the list."""
    for kind, command in (("container", ["rm", "-f", "-v"]), ("network", ["network", "rm"]), ("volume", ["volume", "rm"])):
        wanted = [thing.name for thing in things if thing.kind == kind]
        if wanted:
            docker(*command, *wanted, what=f"removing the lab's {kind}s", timeout=180)


def evict_foreign(lab: Lab) -> None:
    """Remove the nodes of another checkout, which hold the same names and addresses."""
    foreign = [thing for thing in labelled() if thing.lab != lab.id and thing.name.startswith(prefix(lab.instance))]
    if foreign:
        where = sorted({thing.checkout or "an unknown place" for thing in foreign})
        report(f"A lab made from {', '.join(where)} holds these addresses; it is a lab, so it is removed and created again for {lab.state}")
        with step("removing the other lab"):
            remove(foreign)


def ensure_key(lab: Lab, names: Names) -> str:
    """The lab's public key; made in a container, so that the host needs no ssh-keygen."""
    public = lab.key.with_suffix(".pub")
    if not (lab.key.is_file() and public.is_file()):
        script = "ssh-keygen -q -t ed25519 -N '' -C gb10-lab -f /tmp/k && cat /tmp/k.pub /tmp/k"
        command = ["docker", "run", "--rm", "--network", "none", "--entrypoint", "sh", names.node, "-c", script]
        text = run(command, what="making the lab's SSH key").stdout
        first, _sep, rest = text.partition("\n")
        lab.key.unlink(missing_ok=True)
        with open(os.open(lab.key, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="ascii") as out:
            out.write(rest)
        public.write_text(first + "\n", encoding="ascii")
        report(f"made the lab's SSH key {lab.key}")
    return public.read_text(encoding="ascii").strip()


def ensure_networks(lab: Lab, wanted: list[Network]) -> bool:
    """Create what is missing; True if anything was."""
    have: dict[str, tuple[str, str, str]] = {}
    ids = listed("network", "ls", "--quiet")
    fmt = f'{{{{.Name}}}}\t{{{{.Id}}}}\t{{{{index .Labels "{LABEL}"}}}}\t{{{{range .IPAM.Config}}}}{{{{.Subnet}}}} {{{{end}}}}'
    for line in listed("network", "inspect", "--format", fmt, *ids):
        name, ident, owner, subnets = [*line.split("\t"), "", "", ""][:4]
        have[name] = (ident, owner, subnets.strip())
    missing = []
    for net in wanted:
        _rest, owner, subnets = have.get(net.name, ("", "", ""))
        if net.name in have and owner != lab.id:
            raise LabError(f"There is a Docker network {net.name} that no lab made: remove or rename it (docker network rm {net.name}).")
        if net.name in have and subnets != net.subnet:
            raise LabError(f"The lab's network {net.name} has {subnets}, not {net.subnet}: run `make lab-down`, then `make lab`.")
        if net.name not in have:
            missing.append(net)
    if not missing:
        return False
    mine = {f"br-{ident[:12]}" for ident, owner, _rest in have.values() if owner == lab.id}
    taken = [(f"the Docker network {name}", cidr) for name, (_rest, owner, subnets) in have.items() if owner != lab.id for cidr in subnets.split()]
    bridges = {f"br-{ident[:12]}" for ident, _rest, _rest in have.values()} | {"docker0"}
    taken += [(f"this host's route on {iface}", cidr) for iface, cidr in routes() if iface not in mine | bridges]
    if problems := collisions(missing, taken):
        raise LabError("\n".join(problems))
    with step(f"networks {', '.join(net.name for net in missing)}"):
        for net in missing:
            args = ["network", "create", "--driver", "bridge", "--subnet", net.subnet, "--opt", f"com.docker.network.driver.mtu={net.mtu}"]
            for key, value in lab.labels.items():
                args += ["--label", f"{key}={value}"]
            docker(*args, *(["--internal"] if net.internal else []), net.name, what=f"creating the network {net.name}")
    return True


def ensure_containers(lab: Lab, wanted: list[Node], names: Names, public_key: str, *, real: bool) -> list[Node]:
    """Create or start what is missing or outdated; the nodes that were touched."""
    cgroups = docker("info", "--format", "{{.CgroupVersion}}") or "1"
    image_id = str((inspect("image", names.node) or {}).get("Id", ""))
    touched = []
    tree = names.tree if real else ""
    for node in wanted:
        draft = node_run_arguments(node, names.node, tree, {}, cgroup_version=cgroups)
        spec = content_hash({"arguments": "\0".join(draft).encode(), "image": image_id.encode(), "key": public_key.encode()})
        have = inspect("container", node.container)
        labels = ((have or {}).get("Config") or {}).get("Labels") or {}
        if have and LABEL not in labels:
            raise LabError(f"There is a container {node.container} that no lab made: remove or rename it (docker rename {node.container} other).")
        if have and labels.get(LABEL_SPEC) == spec and have["State"]["Running"]:
            continue
        touched.append(node)
        if have and labels.get(LABEL_SPEC) == spec:
            with step(f"{node.name}: starting it again"):
                docker("start", node.container)
            continue
        if have:
            report(f"{node.name} was made from another recipe or key: it is created again")
            docker("rm", "-f", "-v", node.container)
        if inspect("volume", node.volume):
            docker("volume", "rm", node.volume)
        with step(f"{node.name}: creating it"):
            mine = [item for key, value in lab.labels.items() for item in ("--label", f"{key}={value}")]
            docker("volume", "create", *mine, node.volume)
            arguments = node_run_arguments(node, names.node, tree, {**lab.labels, LABEL_SPEC: spec}, cgroup_version=cgroups)
            docker("create", *arguments, what=f"creating {node.name}")
            for rail in (0, 1):
                docker("network", "connect", "--ip", node.rails[rail], node.networks[1 + rail], node.container)
            docker("start", node.container, what=f"starting {node.name}")
    return touched


def wait_ready(wanted: list[Node]) -> None:
    """Until systemd is up and Docker answers in every node."""
    deadline = time.monotonic() + BOOT_SECONDS

    def ready(node: Node) -> str:
        script = "systemctl is-system-running; docker version --format '{{.Server.Version}}' 2>&1"
        while True:
            lines = run(["docker", "exec", node.container, "sh", "-c", script], check=False, timeout=60).stdout.split("\n")
            state, engine = [*lines, "", ""][:2]
            if state in ("running", "degraded") and engine[:1].isdigit():
                return state
            if time.monotonic() > deadline:
                failed = run(["docker", "exec", node.container, "systemctl", "--failed", "--plain", "--no-legend"], check=False).stdout
                log = run(["docker", "logs", "--tail", "5", node.container], check=False)
                raise LabError(
                    f"{node.name} was not up after {BOOT_SECONDS} s (systemd: {state or 'no answer'}, Docker: {engine or 'no answer'}; "
                    f"failed units: {' '.join(failed.split()) or 'none'}; log: {(log.stdout + log.stderr).strip()[-300:]!r}): "
                    f"look with `docker exec {node.container} journalctl -b`, then `make lab-down` and `make lab`."
                )
            time.sleep(0.4)

    with ThreadPoolExecutor(len(wanted)) as pool:
        for node, state in zip(wanted, pool.map(ready, wanted), strict=True):
            if state == "degraded":
                failed = run(["docker", "exec", node.container, "systemctl", "--failed", "--plain", "--no-legend"], check=False).stdout
                report(f"  {node.name} is up, but these units failed: {', '.join(line.split()[0] for line in failed.splitlines() if line.split())}")


def equip(node: Node, public_key: str, models: Mapping[str, bytes], tags: Sequence[str]) -> tuple[str, list[str]]:
    """Key, images and models for a node: (its SSH host key, what was changed)."""
    changed = []
    script = (
        "for u in admin owner; do f=/home/$u/.ssh/authorized_keys; "
        '[ "$(cat $f 2>/dev/null)" = "$KEY" ] || { printf "%s\\n" "$KEY" >$f; chown $u:$u $f; chmod 600 $f; echo changed; }; done'
    )
    if docker("exec", "-e", f"KEY={public_key}", node.container, "sh", "-c", script, what=f"giving {node.name} the lab's key"):
        changed.append("key")
    changed += [f"image {tag}" for tag in tags if images.load_into(node.container, tag)]
    changed += [f"model {name}" for name, archive in models.items() if images.copy_model(node.container, name, archive)]
    return docker("exec", node.container, "cat", "/etc/ssh/ssh_host_ed25519_key.pub"), changed


def contents(lab: Lab, names: Names, *, real: bool) -> tuple[dict[str, bytes], list[str]]:
    """Return the models of each node, as tar archives by name, and the tags of its images."""
    models = {STUB_MODEL: images.stub_model()}
    if real:
        models[MODEL_NAME] = images.model_archive(lab.state, names)
    return models, [STUB_TAG, *([ENGINE_TAG] if real else [])]


def equip_all(lab: Lab, wanted: list[Node], public_key: str, models: Mapping[str, bytes], tags: Sequence[str]) -> None:
    """Equip all nodes, and keep their SSH host keys."""

    def one(node: Node) -> tuple[str, list[str]]:
        return equip(node, public_key, models, tags)

    with ThreadPoolExecutor(len(wanted)) as pool:
        results = list(pool.map(one, wanted))
    for node, (_rest, changed) in zip(wanted, results, strict=True):
        if changed:
            report(f"  {node.name}: {', '.join(changed)}")
    text = known_hosts((node.management, key) for node, (key, _rest) in zip(wanted, results, strict=True))
    if not lab.known_hosts.is_file() or lab.known_hosts.read_text(encoding="ascii") != text:
        lab.known_hosts.write_text(text, encoding="ascii")


def check_reach(wanted: list[Node]) -> None:
    """SSH must be reachable from here: Ansible will come this way."""
    for node in wanted:
        deadline = time.monotonic() + 15
        while True:
            try:
                with socket.create_connection((node.management, 22), timeout=3) as connection:
                    if connection.recv(4) == b"SSH-":
                        break
                    problem = "something else than SSH answers"
            except OSError as error:
                problem = str(error)
            if time.monotonic() > deadline:
                raise LabError(
                    f"{node.name} is up, but {node.management} port 22 cannot be reached from here ({problem}): the lab needs the Docker Engine "
                    f"of this very machine (not Docker Desktop or a remote one), and a firewall that lets the host into {node.networks[0]}."
                )
            time.sleep(0.3)
