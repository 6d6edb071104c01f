# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the container lab consists of, as plain values: addresses, names, flags, needs. No I/O but reading the recipe's own files."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
RECIPES = HERE / "images"

LABEL = "gb10.cluster.lab"
LABEL_CHECKOUT = "gb10.cluster.lab.checkout"
LABEL_SPEC = "gb10.cluster.lab.spec"
LABEL_CACHE = "gb10.cluster.lab.cache"

MGMT_IFACE = "enP7s7"
RAIL_IFACES = ("enp1s0f0np0", "enP2p1s0f0np0")
FABRIC_MTU = 9000
MAX_NODES = 8
MAX_INSTANCE = 3

ENGINE_VERSION = "0.32.0"
TORCH_VERSION = "2.13.0"
ENGINE_TAG = f"gb10-lab/vllm-cpu:{ENGINE_VERSION}"
MODEL_NAME = "lab-tiny"
# The stub of a rank (lab/engine): an image of its own, and a model that only has the shape of one.
STUB = HERE.parent / "engine"
STUB_TAG = "gb10-lab/stub:1"
STUB_MODEL = "lab-stub"
ENGINES = ("vllm", "stub")

GIB = 1024**3
# What Docker's default set lacks and systemd with a Docker Engine needs. Deliberately absent: SYS_TIME, SYS_MODULE and SYS_RAWIO
# (they reach the host) and SYS_RESOURCE (missing from the bounding set of many machines: memlock's hard limit stays at 8 MiB).
CAPABILITIES = (
    *("SYS_ADMIN", "NET_ADMIN", "NET_BROADCAST", "SYS_PTRACE", "SYS_NICE", "IPC_LOCK", "IPC_OWNER", "DAC_READ_SEARCH"),
    *("LINUX_IMMUTABLE", "LEASE", "SYS_BOOT", "SYS_TTY_CONFIG", "AUDIT_CONTROL", "SYSLOG"),
)


class LabError(Exception):
    """Something a user can act on; its text is the whole message."""


@dataclass(frozen=True)
class Network:
    """A docker network of the lab."""

    name: str
    subnet: str
    mtu: int
    internal: bool


@dataclass(frozen=True)
class Node:
    """A node: number (from 1), names, and its address on each network."""

    number: int
    name: str
    pair: int
    management: str
    rails: tuple[str, str]
    networks: tuple[str, str, str]  # management, rail 0, rail 1
    container: str
    arguments: tuple[str, ...] = ()  # more arguments of `docker create`: lab/gpu gives a node its GPU

    @property
    def volume(self) -> str:
        return f"{self.container}-docker"

    @property
    def interfaces(self) -> str:
        """`name=address ...` for gb10-lab-init."""
        pairs = zip((MGMT_IFACE, *RAIL_IFACES), (self.management, *self.rails), strict=True)
        return " ".join(f"{name}={address}" for name, address in pairs)


def check_node_count(text: str) -> int:
    """The number of nodes wanted, from LAB_NODES or --nodes: even, 2 to MAX_NODES."""
    try:
        count = int(text)
    except ValueError:
        count = 0
    if count not in range(2, MAX_NODES + 1, 2):
        raise LabError(f"{text!r} nodes were asked for (LAB_NODES or --nodes); the lab makes pairs: 2, 4, 6 or 8.")
    return count


def check_instance(text: str) -> int:
    """The instance, from GB10_LAB_INSTANCE: 0 is the lab of the inventories, 1 to MAX_INSTANCE are additional ones."""
    if text and text not in map(str, range(MAX_INSTANCE + 1)):
        raise LabError(f"GB10_LAB_INSTANCE is {text!r}; it may be 0 (the lab that inventories/lab describes) to {MAX_INSTANCE}.")
    return int(text or 0)


def prefix(instance: int) -> str:
    """What the names of an instance's containers, networks and volumes start with."""
    return f"gb10-lab{instance or ''}-"


def rail_cidr(instance: int, pair: int, rail: int) -> str:
    second = (192, 168) if instance == 0 else (10, 76 + instance)
    return f"{second[0]}.{second[1]}.{200 + 10 * (pair - 1) + rail}.0/24"


def networks(count: int, instance: int = 0) -> list[Network]:
    """The management network and two rails per pair."""
    start = prefix(instance)
    result = [Network(f"{start}mgmt", f"172.30.{70 + instance}.0/24", 1500, internal=False)]
    for pair in range(1, count // 2 + 1):
        for rail in (0, 1):
            result.append(Network(f"{start}p{pair}-rail{rail}", rail_cidr(instance, pair, rail), FABRIC_MTU, internal=True))
    return result


def nodes(count: int, instance: int = 0) -> list[Node]:
    """All nodes of a lab of `count`: lab-1 and lab-2 are pair 1 (head first), lab-3 and lab-4 pair 2."""
    nets = networks(MAX_NODES, instance)
    result = []
    for number in range(1, count + 1):
        pair, host = (number + 1) // 2, 11 + (number - 1) % 2
        mine = (nets[0], nets[2 * pair - 1], nets[2 * pair])
        management, *rails = (net.subnet.removesuffix("0/24") + str(last) for net, last in zip(mine, (10 + number, host, host), strict=True))
        names = (mine[0].name, mine[1].name, mine[2].name)
        result.append(Node(number, f"lab-{number}", pair, management, (rails[0], rails[1]), names, f"{prefix(instance)}{number}"))
    return result


def host_routes(proc_net_route: str) -> list[tuple[str, str]]:
    """(interface, CIDR) of every IPv4 route in the text of /proc/net/route, the default route left out."""
    result = []
    for line in proc_net_route.splitlines()[1:]:
        fields = line.split()
        if len(fields) < 8:
            continue
        address, mask = (ipaddress.IPv4Address(int(fields[i], 16).to_bytes(4, "little")) for i in (1, 7))
        if int(mask):
            result.append((fields[0], str(ipaddress.ip_network(f"{address}/{mask}", strict=False))))
    return result


def collisions(wanted: Iterable[Network], taken: Iterable[tuple[str, str]]) -> list[str]:
    """Sentences for each wanted subnet that overlaps one of `taken`, (who has it, CIDR)."""
    found = []
    others = [(who, ipaddress.ip_network(cidr, strict=False)) for who, cidr in taken]
    for net in wanted:
        mine = ipaddress.ip_network(net.subnet)
        for who, theirs in others:
            if theirs.version == mine.version and mine.overlaps(theirs):
                found.append(
                    f"The lab's network {net.name} needs {net.subnet}, but {who} already uses {theirs}: "
                    "remove that network or route while the lab runs (the lab's addresses are fixed, its inventory names them)."
                )
    return found


@dataclass(frozen=True)
class Needs:
    """Bytes of disk (at Docker's root) and of available memory."""

    disk: int
    memory: int


def needs(count: int, *, tree_ready: bool, images_ready: bool, real: bool = True) -> Needs:
    """What `up` needs now. Measured: tree 5.2 GiB plus 2.6 GiB while it is installed, images 0.8 GiB, a node 0.5 GiB, a rank 3.3 GiB of memory."""
    disk = int((0.0 if tree_ready else 8.0) * GIB + (0.0 if images_ready else 2.0) * GIB + count * 0.7 * GIB)
    return Needs(disk=disk, memory=int(count * (3.5 if real else 0.5) * GIB))


def shortage(need: Needs, *, disk_free: int, disk_where: str, memory_available: int) -> list[str]:
    """A sentence per resource that is short; empty if the lab fits."""
    found = []
    if disk_free < need.disk:
        found.append(
            f"The lab needs {need.disk / GIB:.1f} GiB of disk under {disk_where} and {disk_free / GIB:.1f} GiB are free: "
            "make room there (docker system df shows what Docker keeps) or move Docker's data-root."
        )
    if memory_available < need.memory:
        found.append(
            f"The lab's engines need {need.memory / GIB:.1f} GiB of memory and {memory_available / GIB:.1f} GiB are available: "
            "stop other programs, or ask for fewer nodes (LAB_NODES=2)."
        )
    return found


def meminfo_available(text: str) -> int:
    """MemAvailable of the text of /proc/meminfo, in bytes (0 if absent)."""
    for line in text.splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def content_hash(parts: Mapping[str, bytes]) -> str:
    """Twelve hex digits for named contents; independent of the order, sensitive to a name, a byte or a boundary."""
    digest = hashlib.sha256()
    for name in sorted(parts):
        for piece in (name.encode(), parts[name]):
            digest.update(len(piece).to_bytes(8, "big") + piece)
    return digest.hexdigest()[:12]


def recipe_hash(files: Sequence[str], extra: Mapping[str, str], root: Path = RECIPES) -> str:
    """The hash that tags what is made from these recipe files and values."""
    parts = {f"file:{name}": (root / name).read_bytes() for name in files}
    parts.update({f"value:{name}": value.encode() for name, value in extra.items()})
    return content_hash(parts)


def stub_files(root: Path = STUB) -> dict[str, bytes]:
    """Return the program of the stub with its recordings, by the path in its image."""
    return {f"engine/{path.relative_to(root)}": path.read_bytes() for path in sorted(root.rglob("*")) if path.suffix in (".py", ".log")}


@dataclass(frozen=True)
class Names:
    """Tags and volumes, named by the content of their recipes: a changed recipe makes new ones."""

    base: str
    engine: str
    stub: str
    node: str
    tree: str
    model: str


def names(root: Path = HERE, machine: str = "x86_64") -> Names:
    images = root / "images"
    base = recipe_hash([], {"suite": "trixie", "variant": "minbase-1", "machine": machine}, images)
    engine = recipe_hash(["Dockerfile.engine"], {"base": base}, images)
    stub = recipe_hash(["Dockerfile.stub"], {"engine": engine, "program": content_hash(stub_files())}, images)
    node = recipe_hash(["Dockerfile.node", "setup-node.sh", "gb10-lab-init"], {"engine": engine}, images)
    tree = recipe_hash(["install_engine.sh"], {"vllm": ENGINE_VERSION, "torch": TORCH_VERSION, "machine": machine, "python": "3.13"}, images)
    model = recipe_hash(["make_model.py"], {"tree": tree}, root)
    return Names(
        base=f"gb10-lab/trixie:{base}",
        engine=f"gb10-lab/vllm-cpu:{ENGINE_VERSION}-{engine}",
        stub=f"gb10-lab/stub:1-{stub}",
        node=f"gb10-lab/node:{node}",
        tree=f"gb10-lab-engine-{tree}",
        model=f"gb10-lab-model-{model}",
    )


def node_run_arguments(node: Node, node_image: str, tree: str, labels: Mapping[str, str], *, cgroup_version: str) -> list[str]:
    """Arguments of `docker create` for a node; `tree` is empty without the real engine. Never --privileged: it does not start where a capability is missing."""
    args = ["--name", node.container, "--hostname", node.name]
    for key, value in labels.items():
        args += ["--label", f"{key}={value}"]
    for capability in CAPABILITIES:
        args += ["--cap-add", capability]
    for option in ("seccomp=unconfined", "apparmor=unconfined", "systempaths=unconfined", "label=disable"):
        args += ["--security-opt", option]
    args += ["--device-cgroup-rule", "a *:* rwm", "--cgroupns", "private"]
    for path in ("/run:exec,mode=755", "/run/lock", "/tmp:exec,mode=1777"):  # noqa: S108  paths of the node, not of this host
        args += ["--tmpfs", path]
    args += ["--shm-size", "2g", "--env", "container=docker", "--env", f"GB10_LAB_IFACES={node.interfaces}"]
    args += ["--volume", f"{node.volume}:/var/lib/docker", *(["--volume", f"{tree}:/opt/engine:ro"] if tree else []), *node.arguments]
    args += ["--network", node.networks[0], "--network-alias", node.name, "--ip", node.management, "--stop-timeout", "20", node_image]
    if cgroup_version == "1":
        args.append("SYSTEMD_CGROUP_ENABLE_LEGACY_FORCE=1")  # systemd 257 refuses cgroup v1 otherwise
    return args


def known_hosts(entries: Iterable[tuple[str, str]]) -> str:
    """The known_hosts text for (address, public key line) pairs."""
    lines = []
    for address, key in entries:
        fields = key.split()
        if len(fields) < 2 or not fields[0].startswith("ssh-"):
            raise LabError(f"The node at {address} gave no SSH host key (got {key!r}): remove the lab with `make lab-down` and start it again.")
        lines.append(f"{address} {fields[0]} {fields[1]}\n")
    return "".join(lines)


def pip_environment(environ: Mapping[str, str], config: Mapping[str, str]) -> dict[str, str]:
    """Environment for uv and pip in the one-shot container, from this host's environment and `pip config list` (keys like global.index-url)."""
    found: dict[str, str] = {}

    def setting(name: str) -> str:
        value = environ.get("PIP_" + name.upper().replace("-", "_"), "")
        for section in ("install", "global"):
            value = value or config.get(f"{section}.{name}", "")
        return value.strip()

    index, extra, trusted = setting("index-url"), setting("extra-index-url"), setting("trusted-host")
    if index:
        found["PIP_INDEX_URL"] = found["UV_DEFAULT_INDEX"] = index
    if extra:
        found["PIP_EXTRA_INDEX_URL"] = found["UV_INDEX"] = " ".join(extra.split())
    if trusted:
        found["PIP_TRUSTED_HOST"] = found["UV_INSECURE_HOST"] = " ".join(trusted.split())
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "ALL_PROXY"):
        for spelling in (name, name.lower()):
            if environ.get(spelling):
                found[spelling] = environ[spelling]
    return found


def parse_pip_config(text: str) -> dict[str, str]:
    """`pip config list` lines (key='value') as a mapping."""
    found = {}
    for line in text.splitlines():
        key, sep, value = line.partition("=")
        if sep:
            found[key.strip()] = value.strip().strip("'\"")
    return found
