"""Each check, from captured trees of a pair through the module to the finding."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Concatenate, ParamSpec
from unittest.mock import patch

import pytest
from ansible_collections.gb10.cluster.plugins.module_utils._checks import judge
from ansible_collections.gb10.cluster.plugins.module_utils._checks.check import Group, Rank, Requirements, Skipped
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import MARKER, Node
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, parse, tuning
from ansible_collections.gb10.cluster.plugins.module_utils._node import facts as node_facts
from ansible_collections.gb10.cluster.plugins.module_utils._pair import protocol, session
from ansible_collections.gb10.cluster.plugins.module_utils._pair.protocol import AgentMissing, RankError
from ansible_collections.gb10.cluster.plugins.modules import preflight_info
from module_run import run_module
from shared_samples import needs_shared, samples
from unit.fixtures.host.tree import meminfo
from unit.fixtures.roce.tree import Tree, from_pair, spark

NOW = 1795239181.0
DRIVER = "580.173.02"
KERNEL = "6.17.0-1032-nvidia"
FIRMWARE = json.dumps({"Devices": [{"Name": "MT2910 Family (ConnectX-7)", "Version": "28.46.3048"}, {"Name": "UEFI", "Version": "2.155.11"}]})
LOCKED = "Max locked memory         8388608              8388608              bytes\n"
OOPS = (
    "[ 9.1] Unable to handle kernel NULL pointer dereference at virtual address 0000000000000010\n"
    "[ 9.1] Internal error: Oops: 0000000096000006 [#1] SMP\n[ 9.2] Modules linked in: mt7925e mt7925_common mt792x_lib nvidia(O) mlx5_ib\n"
)
END = "[ 9.5] ---[ end trace 0000000000000000 ]---\n"
Change = Callable[[Tree], None]
P = ParamSpec("P")
ID = "a" * 64


def nvrm(version: str) -> str:
    """/proc/driver/nvidia/version."""
    return f"NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  {version}  Release Build  (root@host)  Thu Jul 1\nGCC version: 13\n"


def dpkg(name: str, state: str) -> str:
    """One paragraph of dpkg's status file behind a whole one."""
    return f"Package: bash\nStatus: install ok installed\nVersion: 5\n\nPackage: {name}\nStatus: {state}\nVersion: 1\n"


def change(function: Callable[Concatenate[Tree, P], None]) -> Callable[P, Change]:
    """Turn a function of a tree and its arguments into one that returns the change of a tree."""
    return lambda *arguments, **more: lambda tree: function(tree, *arguments, **more)


@change
def container(tree: Tree, /, name: str, image: str = "busybox", state: str = "running", labels: dict[str, str] | None = None, **host: Any) -> None:
    """Put one container into the recorded engine."""
    path = tree.root / "cmd/docker-containers.json"
    listed = json.loads(path.read_text())
    number = f"{len(listed):064x}" if listed else ID
    listed.append({"Id": number, "Names": [f"/{name}"], "Image": image, "Command": "x", "State": state, "Labels": labels or {}})
    path.write_text(json.dumps(listed))
    tree.file(f"cmd/docker-inspect-{number}.json", json.dumps({"HostConfig": host}))


@change
def listen(tree: Tree, port: int, comm: str = "nginx", cgroup: str = "0::/system.slice/nginx.service") -> None:
    """Let a process listen on a port of any address."""
    tree.file("cmd/listening.txt", f'LISTEN 0 128 0.0.0.0:{port} 0.0.0.0:* users:(("{comm}",pid=77,fd=5))\n')
    tree.file("proc/77/cgroup", cgroup + "\n")


@change
def put(tree: Tree, path: str, text: str) -> None:
    """Write one file."""
    tree.file(path, text)


@change
def drop(tree: Tree, path: str) -> None:
    """Remove one file."""
    (tree.root / path).unlink()


def info(**more: Any) -> Change:
    """Change the engine's /info."""
    base = {"ServerVersion": "28.3.3", "Driver": "overlay2", "DriverStatus": [["Backing Filesystem", "extfs"]], "DockerRootDir": "/var/lib/docker",
            "CgroupDriver": "systemd"}  # fmt: skip
    return put("cmd/docker-info.json", json.dumps(base | more))


@change
def point(tree: Tree, path: str, target: str) -> None:
    """Make a link."""
    tree.file(path, "").unlink()
    (tree.root / path).symlink_to(target)


@change
def forward(tree: Tree, enabled: int, rules: str) -> None:
    """Set the forwarding of the kernel, and the rules of its chain."""
    tree.file("proc/sys/net/ipv4/ip_forward", f"{enabled}\n")
    tree.file("cmd/iptables-forward.txt", rules + "\n")


def GNOME(tree: Tree) -> None:  # noqa: N802  a constant of the cases
    """A desktop that starts at boot, with its defaults."""
    point("etc/systemd/system/display-manager.service", "/usr/lib/systemd/system/gdm3.service")(tree)
    point("usr/lib/systemd/system/default.target", "graphical.target")(tree)


def disks(free: float, **more: Any) -> Change:
    """Docker and the model store on one file system."""
    row = {"device": "259:2", "free_gib": free, "total_gib": 3666.5, "read_only": False} | more
    return put("cmd/disks.json", json.dumps({"/var/lib/docker": row, "/srv/models": row}))


def neighbors(address: str, mac: str) -> Change:
    """A host that answered on the first rail."""
    return put("cmd/ip-neigh.json", json.dumps([{"dst": address, "dev": "enp1s0f0np0", "lladdr": mac, "state": ["STALE"]}]))


@change
def address(tree: Tree, interface: str) -> None:
    """Give an interface an address in the network of the first rail."""
    [link] = [each for each in tree.addr if each["ifname"] == interface]
    entry = {"family": "inet", "local": "192.168.200.77", "prefixlen": 24, "scope": "global", "valid_life_time": 1, "preferred_life_time": 1}
    link["addr_info"].append(entry)


@change
def route(tree: Tree, interface: str, gateway: str) -> None:
    """Replace the default route."""
    tree.routes.clear()
    tree.default_route(interface, gateway, 600)


def NO_RDMA(tree: Tree) -> None:  # noqa: N802  a constant of the cases
    """A node without RDMA devices."""
    shutil.rmtree(tree.root / "sys/class/infiniband")
    tree.rdma.clear()


def buddy(large: int) -> str:
    """Free blocks; `large` of 4 MiB."""
    return "Node 0, zone   Normal " + " ".join(["9000"] * 10) + f" {large}\n"


COPY_PROGRAMS = ("bin/rsync", "bin/ssh", "bin/ssh-keygen", "sbin/sshd", "bin/rrsync")


def rails(number: int) -> dict[str, list[str]]:
    return {"enp1s0f0np0": [f"192.168.200.{11 + number}/24"], "enP2p1s0f0np0": [f"192.168.201.{11 + number}/24"]}


def node(root: Path, number: int) -> Tree:
    """A healthy Spark's tree."""
    root.mkdir()
    tree = spark(root, rails(number))
    for path, text in {
        "proc/meminfo": meminfo(),
        "run/cdi/nvidia.yaml": "cdiVersion: 0.5.0\n",
        "proc/buddyinfo": buddy(3909),
        "proc/swaps": "Filename Type Size Used Priority\n",
        "proc/cmdline": "quiet\n",
        "proc/sys/kernel/osrelease": KERNEL + "\n",
        "proc/driver/nvidia/version": nvrm(DRIVER),
        f"usr/lib/aarch64-linux-gnu/libnvidia-ml.so.{DRIVER}": "",
        f"usr/lib/aarch64-linux-gnu/libcuda.so.{DRIVER}": "",
        "usr/lib/aarch64-linux-gnu/libcuda.so.1": "",
        "sys/class/dmi/id/product_name": "NVIDIA_DGX_Spark\n",
        "var/lib/dpkg/status": dpkg("nvidia-driver-580-open", "install ok installed"),
        "etc/dgx-release": 'DGX_NAME="DGX Spark"\nDGX_SWBUILD_VERSION="7.2.3"\nDGX_OTA_VERSION="7.3.1"\nDGX_OTA_VERSION="7.6.0"\n',
        "run/docker.pid": "900",
        "proc/900/limits": "Max locked memory         unlimited            unlimited            bytes\n",
        "proc/900/status": "CapBnd:\t000001ffffffffff\n",
        "cmd/nvidia-smi.txt": f"NVIDIA GB10, {DRIVER}\n",
        "cmd/modinfo-nvidia.txt": DRIVER + "\n",
        "cmd/fwupdmgr.json": FIRMWARE,
        "cmd/uname-m.txt": "aarch64\n",
        "cmd/time.txt": f"{NOW}\n",
        "cmd/docker-containers.json": "[]",
        "cmd/docker-image.json": "{}",
        **{f"usr/{name}": "" for name in COPY_PROGRAMS},
    }.items():
        tree.file(path, text)
    info()(tree)
    disks(2500.0)(tree)
    return tree


@contextmanager
def replayed(root: Path) -> Iterator[None]:
    """Let preflight_info read a tree, which has recorded answers of commands, of the engine and of the agent below cmd/."""
    names = {tuple(argv): name for name, argv in node_facts.COMMANDS.items()}

    def text(name: str) -> str | None:
        path = root / "cmd" / name
        return path.read_text() if path.exists() else None

    def run(argv: Sequence[str], *_more: Any, **_options: Any) -> tuple[int, str, str]:
        found = text("sshd.txt" if "-T" in argv else names.get(tuple(argv), "none"))
        return (127, "", f"{argv[0]}: no recording") if found is None else (0, found, "")

    def get(path: str, *_more: Any) -> bytes:
        parts = path.strip("/").split("/")
        found = text(f"docker-{ {'info': 'info', 'images': 'image'}.get(parts[0]) or ('containers' if len(parts) == 2 else f'inspect-{parts[1]}') }.json")
        if found is None:
            raise docker_api.DockerError("no recording", 404)
        return found.encode()

    def call(verb: str, **_options: Any) -> Any:
        found = text(f"agent-{verb}.json")
        if found is None:
            raise AgentMissing("no recording")
        return json.loads(found)

    def disk(path: str) -> Any:
        row = json.loads(text("disks.json") or "{}").get(path)
        return row and {**row, "path": path}

    if text("docker-info.json"):
        put("var/run/docker.sock", "")(Tree(root))
    clock = SimpleNamespace(time=lambda: float(text("time.txt") or 0))
    fakes: dict[str, Any] = {
        "live_node": lambda _find: Node(str(root), run), "capture_of": lambda *_: Capture(str(root)), "disk": disk, "time": clock,
        "find_ssh_connection": lambda: text("ssh-connection.txt"),
    }  # fmt: skip
    with patch.multiple(node_facts, **fakes), patch.object(docker_api, "get", get), patch.object(protocol, "call", call):
        yield


def read(tree: Tree, capsys: pytest.CaptureFixture[str], number: int) -> dict[str, Any]:
    """What preflight_info returns, with the clock that its action plugin adds."""
    addresses = [address for [address] in rails(number).values()]
    with replayed(tree.write()):
        facts = run_module(capsys, preflight_info, image="vllm:1", ports=[8888, 25000], fabric_addresses=addresses)
    assert "failed" not in facts, facts
    return facts | {"clock": {"before": NOW - 1, "after": NOW + 1}}


NEEDS = Requirements(head_ports={8888: "the API", 25000: "where the ranks meet"}, model_gib=148, image_gib=30, image="vllm:1")


def verdict_on(ranks: list[Rank], needs: Requirements = NEEDS, **more: Any) -> judge.Verdict:
    return judge.judge(Group("pair1", ranks, needs), **more)


class Pair:
    """Two healthy nodes, and a verdict on them."""

    def __init__(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.trees = [node(folder / "spark-1", 0), node(folder / "spark-2", 1)]
        self.capsys = capsys

    def facts(self, number: int) -> dict[str, Any]:
        return read(self.trees[number], self.capsys, number)

    def judge(self, needs: Requirements = NEEDS, **more: Any) -> judge.Verdict:
        return verdict_on([Rank(f"spark-{number + 1}", number, self.facts(number)) for number in (0, 1)], needs, **more)


@pytest.fixture
def pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Pair:
    return Pair(tmp_path, capsys)


def test_a_healthy_pair_has_no_finding(pair: Pair) -> None:
    verdict = pair.judge()
    assert verdict.findings == []
    assert verdict.skipped == []
    facts = pair.facts(0)
    assert facts["machine"]["evidence"] == ["product name NVIDIA_DGX_Spark", "nvidia-smi"]
    assert facts["dgx"]["ota"] == "7.6.0"
    assert facts["fabric"]["management"] == {"interface": "enP7s7", "address": "10.0.1.60", "prefix": 24, "reason": "default route", "wireless": False}
    assert facts["reboot_reasons"] == []


# id, check, nodes that are changed, changes, severity, what the finding names
CASES: list[tuple[str, str, str, list[Change], str, str]] = [
    ("no gb10", "gb10", "1", [put("sys/class/dmi/id/product_name", "Standard PC\n"), put("cmd/nvidia-smi.txt", f"NVIDIA A100, {DRIVER}\n")],
     "warning", "Standard PC, aarch64"),
    ("gb10 by name only", "arch", "0", [put("cmd/uname-m.txt", "x86_64\n")], "warning", "x86_64"),
    ("other memory", "memory_parity", "1", [put("proc/meminfo", meminfo(MemTotal=119.6, MemFree=112, MemAvailable=111))], "warning",
     "122 GiB on spark-1, 120 GiB on spark-2"),
    ("other OTA", "ota_parity", "1", [put("etc/dgx-release", 'DGX_SWBUILD_VERSION="7.2.3"\n')], "warning", "7.6.0 on spark-1, 7.2.3 (no OTA yet) on spark-2"),
    ("other libraries", "ota_torn", "1", [put("proc/driver/nvidia/version", nvrm("580.159.03"))], "error", "libraries on disk are 580.173.02"),
    ("other module on disk", "ota_torn", "1", [put("cmd/modinfo-nvidia.txt", "580.178.04\n")], "error", "580.173.02, but the module on disk is 580.178.04"),
    ("NVML mismatch", "ota_torn", "0",
     [put("cmd/nvidia-smi.txt", "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: 580.173\n")], "error",
     "Driver/library version mismatch NVML library version: 580.173"),
    ("incomplete package", "ota_torn", "0", [put("var/lib/dpkg/status", dpkg("linux-modules-nvidia-580", "install ok half-configured"))], "error",
     "linux-modules-nvidia-580 (half-configured)"),
    ("interrupted reinstallation", "ota_torn", "0", [put("var/lib/dpkg/status", dpkg("nvidia-driver-580", "install reinstreq installed"))], "error",
     "nvidia-driver-580 (installed)"),
    ("vendor's check", "ota_torn", "0", [put("cmd/ota-check.json", '{"torn_score": 2}')], "warning", "torn_score 2"),
    ("reboot required", "reboot_pending", "0", [put("run/reboot-required", ""), put("run/reboot-required.pkgs", "linux-image-nvidia\n")], "warning",
     "linux-image-nvidia"),
    ("other kernel", "kernel_parity", "1", [put("proc/sys/kernel/osrelease", "6.17.0-1033-nvidia\n")], "warning",
     "6.17.0-1032-nvidia on spark-1, 6.17.0-1033-nvidia on spark-2"),
    ("other firmware", "firmware_parity", "1", [put("cmd/fwupdmgr.json", '{"Devices": [{"Name": "UEFI", "Version": "2.150.1"}]}')], "warning",
     "UEFI differs: 2.155.11 on spark-1, 2.150.1 on spark-2"),
    ("kho=off waits", "reboot_pending", "0", [put(tuning.KHO_FILE[1:], MARKER)], "warning", "has kho=off, and the running kernel does not"),
    ("KHO kernel", "known_bad_kernel", "0", [put("proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n")], "warning", "7.0.0-1019-nvidia"),
    ("stale GID kernel", "known_bad_kernel", "0", [put("proc/sys/kernel/osrelease", "6.17.0-1008-nvidia\n")], "warning", "6.17.0-1017 or later"),
    ("kernel with less memory", "known_bad_kernel", "0", [put("proc/sys/kernel/osrelease", "6.17.0-1031-nvidia\n")], "info", "101 to 104 GiB free"),
    ("old ConnectX", "known_bad_firmware", "0",
     [put("cmd/fwupdmgr.json", '{"Devices": [{"Name": "MT2910 Family (ConnectX-7)", "Version": "28.40.1000"}]}')], "info", "28.40.1000"),
    ("ConnectX firmware with reports", "known_bad_firmware", "0",
     [put("cmd/fwupdmgr.json", '{"Devices": [{"Name": "MT2910 Family (ConnectX-7)", "Version": "28.45.4028"}]}')], "warning", "not proven"),
    ("driver that leaks", "known_bad_driver", "0", [put("proc/driver/nvidia/version", nvrm("580.159.03"))], "warning", "leaks memory"),
    ("older driver that leaks", "known_bad_driver", "1", [put("proc/driver/nvidia/version", nvrm("580.95.05"))], "warning", "leaks memory"),
    ("driver that freezes", "known_bad_driver", "1", [put("proc/driver/nvidia/version", nvrm("595.84"))], "warning", "burst of long prompts"),
    ("no GPU", "gpu_lost", "1", [put("cmd/nvidia-smi.txt", "No devices were found\n")], "error", "No devices were found"),
    ("lost GPU", "gpu_lost", "1", [put("cmd/nvidia-smi.txt", f"[GPU is lost], {DRIVER}\n")], "error", "[GPU is lost]"),
    ("fatal PCIe error", "kernel_log", "0",
     [put("cmd/dmesg.txt", "[ 9.1] mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Uncorrectable (Fatal), type=Inaccessible, (Unregistered Agent ID)\n")],
     "warning", "1 such line(s)"),
    ("Wi-Fi oops", "kernel_log", "1", [put("cmd/dmesg.txt", OOPS + "[ 9.3] pc : mt7925_vif_connect_iter+0x40/0x150 [mt7925_common]\n" + END)], "warning",
     "1 such line(s) since the boot: pc : mt7925_vif_connect_iter"),
    ("Wi-Fi oops further down", "kernel_log", "1",
     [put("cmd/dmesg.txt", OOPS + "[ 9.3] pc : dma_free+0x1/0x2\n[ 9.4]  mt792x_dma_cleanup+0x40/0x60 [mt792x_lib]\n" + END)], "warning", "mt792x_dma_cleanup"),
    ("AER", "kernel_log", "0", [put("cmd/dmesg.txt", "[ 9.1] mlx5_core 0000:01:00.0: mlx5_pci_slot_reset Device state = 2 slot reset\n" * 2)], "warning",
     "2 such line(s) since the boot: mlx5_core 0000:01:00.0"),
    ("suspends of this boot", "may_suspend", "0", [put("cmd/dmesg.txt", "[ 9.1] PM: suspend entry (s2idle)\n[ 9.2] PM: suspend exit\n")], "warning",
     "has suspended 1 time(s) since the boot"),
    ("idle action of logind", "may_suspend", "1", [put("cmd/logind.conf", "[Login]\n#IdleAction=ignore\n\nIdleAction=suspend\n")], "warning",
     "IdleAction=suspend"),
    ("lid", "may_suspend", "0", [put("proc/acpi/button/lid/LID0/state", "state:      open\n")], "warning", "HandleLidSwitch=suspend"),
    ("GNOME", "may_suspend", "1", [GNOME], "warning", "login screen of GNOME suspends the node after 900 s"),
    ("a session of GNOME", "may_suspend", "1", [GNOME, put("etc/gdm3/greeter.dconf-defaults", "sleep-inactive-ac-timeout=0\n"),
     put("etc/dconf/db/local.d/10-power", "[org/gnome/settings-daemon/plugins/power]\nsleep-inactive-ac-timeout=uint32 1200\n")], "warning",
     "GNOME suspends the node after 1200 s"),
    ("memory of no process", "memory_stuck", "0", [put("proc/meminfo", meminfo(MemFree=80.0, MemAvailable=79.0))], "error", "36.69 GiB of 121.69 GiB"),
    ("fragmented", "memory_fragmented", "0", [put("proc/buddyinfo", buddy(0))], "warning", "0 free blocks of 4 MiB or more"),
    ("boost", "watermark_boost", "0", [put("proc/sys/vm/min_free_kbytes", "3145728\n"), put("proc/sys/vm/watermark_boost_factor", "15000\n")], "info",
     "vm.watermark_boost_factor=0"),
    ("forwarding to the rails", "fabric_forwarding", "0", [forward(1, "-P FORWARD ACCEPT\n-A FORWARD -j DOCKER-USER")], "warning", "net.ipv4.ip_forward=1"),
    ("forwarding of one interface", "fabric_forwarding", "0",
     [forward(0, "-P FORWARD ACCEPT"), put("proc/sys/net/ipv4/conf/enP7s7/forwarding", "1\n")], "warning", "net.ipv4.conf.enP7s7.forwarding=1"),
    ("a host on the rail", "fabric_neighbor", "1", [neighbors("192.168.200.50", "3c:00:00:00:00:01")], "warning", "3c:00:00:00:00:01 on enp1s0f0np0"),
    ("no RDMA devices", "rdma", "1", [NO_RDMA], "warning", "modprobe mlx5_ib"),
    ("other netplan file", "foreign_network_config", "0",
     [put("etc/netplan/98-spark-vllm-docker.yaml", "network:\n  ethernets:\n    enp1s0f0np0:\n      addresses: [10.20.0.11/24]\n")], "info",
     "/etc/netplan/98-spark-vllm-docker.yaml"),
    ("engine is down", "docker", "0", [put("cmd/docker-info.json", "cannot connect")], "warning", "the docker role starts it"),
    ("other image store", "image_store_parity", "1", [info(DriverStatus=[["driver-type", "io.containerd.snapshotter.v1"]], Driver="overlayfs")], "warning",
     "graphdriver (overlay2) on spark-1, containerd (overlayfs) on spark-2"),
    ("memlock", "memlock", "1", [put("proc/900/limits", LOCKED), put("proc/900/status", "CapBnd:\t00000000a80425fb\n")], "warning", "8192 KiB"),
    ("no CDI specification", "gpu_reload", "1", [drop("run/cdi/nvidia.yaml")], "warning", "nvidia-ctk cdi generate"),
    ("another vLLM", "stale_containers", "1", [container("glm", "vllm/vllm-openai:nightly")], "error", "docker rm -f glm"),
    ("another vLLM next to one that cannot be inspected", "stale_containers", "1",
     [container("dead", "vllm/vllm-openai:v0.20", "dead"), put(f"cmd/docker-inspect-{ID}.json", ""), container("glm", "vllm/vllm-openai:nightly")],
     "error", "docker rm -f glm"),
    ("another group", "stale_containers", "1", [container("pair9-rank0", labels={"gb10.cluster.group": "pair9"})], "error", "docker rm -f pair9-rank0"),
    ("GPU in use", "stale_containers", "0", [container("comfy", DeviceRequests=[{"Driver": "nvidia", "Count": -1, "Capabilities": [["gpu"]]}])], "warning",
     "docker stop comfy"),
    ("vLLM with a restart policy", "stale_containers", "0",
     [container("old", "vllm/vllm-openai:v0.20", "exited", RestartPolicy={"Name": "unless-stopped"})], "warning", "docker update --restart=no old"),
    ("one rank of the group runs", "stale_containers", "1", [container("gb10-pair1-rank1", labels={"gb10.cluster.group": "pair1"})], "warning",
     "runs on spark-2 and not on spark-1"),
    ("API port", "ports_free", "0", [listen(8888)], "error", "Port 8888 (the API) is used by nginx (pid 77), which listens on *"),
    ("master port", "ports_free", "0", [container("db"), listen(25000, "postgres", f"0::/system.slice/docker-{ID}.scope")], "error", "the container db"),
    ("no space for the weights", "disk_space", "1", [disks(120.0)], "error", "120.0 GiB are free at /var/lib/docker. Required: 148 GiB for the weights"),
    ("no space for the image", "disk_space", "1", [disks(160.0), drop("cmd/docker-image.json")], "warning",
     "30 GiB for the image vllm:1 at /var/lib/docker and 148 GiB for the weights"),
    ("nearly full", "disk_space", "1", [disks(2.0), put("srv/models/here", "")], "error", "2.0 GiB are free"),
    ("read-only", "disk_space", "0", [disks(2500.0, read_only=True)], "error", "/var/lib/docker"),
    ("KHO leak", "kho_leak", "1", [put("proc/meminfo", meminfo(CmaFree=0.897))], "error", "CmaFree is 940572 kB with CmaTotal 0 kB"),
    ("incomplete copy programs", "copy_missing", "0", [drop(f"usr/{COPY_PROGRAMS[-1]}")], "error",
     "Rrsync is not installed"),
    ("remedy of the copy programs", "copy_missing", "0", [drop(f"usr/{COPY_PROGRAMS[-1]}")], "error",
     "packages rsync and openssh-server"),
    ("address in the subnet of a rail", "fabric_subnet", "1", [address("enP7s7")], "warning",
     "enp1s0f0np0 (192.168.200.12/24) is in the subnet of enP7s7 (192.168.200.77/24)"),
    ("Wi-Fi address in the subnet of a rail", "fabric_subnet", "1", [address("wlP9s9")], "warning", "is in the subnet of wlP9s9 (192.168.200.77/24)"),
    ("connection over Wi-Fi", "wifi_control_path", "0", [route("wlP9s9", "10.0.1.1")], "warning", "wlP9s9"),
    ("connection over a rail", "fabric_is_management", "0", [route("enp1s0f0np0", "192.168.200.1")], "error", "enp1s0f0np0"),
    ("driver of another branch", "driver_parity", "1", [put("proc/driver/nvidia/version", nvrm("590.44.01"))], "error", "590.44.01"),
    ("another driver of the branch", "driver_parity", "1", [put("proc/driver/nvidia/version", nvrm("580.178.04"))], "warning", "580.178.04"),
    ("driver branch with reports", "known_bad_driver", "1", [put("proc/driver/nvidia/version", nvrm("590.44.01"))], "error", "590.44.01"),
    ("clock behind", "clock_skew", "1", [put("cmd/time.txt", f"{NOW - 120}\n")], "warning", "119 s behind"),
    ("clock ahead", "clock_skew", "0", [put("cmd/time.txt", f"{NOW + 40}\n")], "warning", "39 s ahead"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "nodes", "changes", "severity", "part"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_reports_each_fault_with_host_and_remedy(pair: Pair, name: str, nodes: str, changes: list[Change], severity: str, part: str) -> None:
    for change in changes:
        change(pair.trees[int(nodes)])
    found = [entry for entry in pair.judge().findings if entry.id == name]
    hosts = ["spark-1", "spark-2"] if name.endswith("_parity") else [f"spark-{int(nodes) + 1}"]
    assert any((entry.severity, list(entry.hosts)) == (severity, hosts) and part in entry.line() for entry in found), found
    assert all(entry.why and entry.remedy for entry in found)


# name: (nodes that are changed, changes)
HEALTHY: dict[str, tuple[str, list[Change]]] = {
    "desktop with sleep.target masked": ("0", [GNOME, put("cmd/sleep-targets.txt", "masked\nstatic\n")]),
    "desktop with AllowSuspend=no": ("0", [GNOME, put("cmd/sleep.conf", "[Sleep]\nAllowSuspend=no\n")]),
    "desktop that does not start": ("0", [GNOME, point("etc/systemd/system/default.target", "/usr/lib/systemd/system/multi-user.target")]),
    "desktop whose vendor has no timeout": (
        "0",
        [GNOME, put("usr/share/glib-2.0/schemas/10_ubuntu.gschema.override", "[org.gnome.settings-daemon.plugins.power]\nsleep-inactive-ac-timeout = 0\n")],
    ),
    "desktop that does nothing": (
        "0", [GNOME, put("etc/gdm3/greeter.dconf-defaults", "sleep-inactive-ac-type='nothing'\n"),
              put("etc/dconf/db/local.d/00", "sleep-inactive-ac-type='nothing'\n")],
    ),
    "idle action that locks": ("0", [put("cmd/logind.conf", "[Login]\n#IdleAction=suspend\nIdleAction=lock\n")]),
    "empty idle action": ("0", [put("cmd/logind.conf", "[Login]\nIdleAction=\n")]),
    "empty machine IDs are not copies": ("01", [put("etc/machine-id", "")]),
    "uninitialized machine IDs are not copies": ("01", [put("etc/machine-id", "uninitialized\n")]),
    "oops of another module before a Wi-Fi call": (
        "0", [put("cmd/dmesg.txt", OOPS + "[ 9.3] pc : nvidia_ioctl+0x40/0x150 [nvidia]\n" + END + "[ 12.0]  mt792x_dma_cleanup+0x40/0x60 [mt792x_lib]\n")],
    ),
    "warning with a Wi-Fi call": (
        "0", [put("cmd/dmesg.txt", "[ 9.1] WARNING: CPU: 1 PID: 5 at drivers/net/wireless/x.c:1\n[ 9.3] pc : mt7925_x+0x40/0x150 [mt7925_common]\n" + END)],
    ),
    "corrected PCIe error": (
        "0", [put("cmd/dmesg.txt", "[ 9.1] mlx5_core 0000:01:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer, (Receiver ID)\n")],
    ),
    "another storage driver of the same image store": ("0", [info(Driver="btrfs", DriverStatus=[["Btrfs", ""]])]),
    "no forwarding": ("0", [forward(0, "-P FORWARD ACCEPT")]),
    "forwarding with the policy of the Docker Engine": ("0", [forward(1, "-P FORWARD DROP")]),
    "forwarding that a rule ends": (
        "0", [forward(1, "-P FORWARD ACCEPT\n-A FORWARD -i docker0 -j ACCEPT\n-A FORWARD -j REJECT --reject-with icmp-host-prohibited")],
    ),
    "the other rank on the rail": ("1", [neighbors("192.168.200.11", "02:00:00:00:00:07")]),
    "a host that does not answer on the rail, and one elsewhere": ("1", [put("cmd/ip-neigh.json", json.dumps(
        [{"dst": "192.168.200.50", "dev": "enp1s0f0np0", "state": ["FAILED"]}, {"dst": "10.0.1.1", "dev": "enP7s7", "lladdr": "3c:00:00:00:00:01"}, 5],
    ))]),
    "KHO kernel with kho=off": ("01", [put("proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n"), put("proc/cmdline", "quiet kho=off\n")]),
}  # fmt: skip


@pytest.mark.parametrize(("nodes", "changes"), HEALTHY.values(), ids=HEALTHY.keys())
def test_what_is_not_a_fault_has_no_finding(pair: Pair, nodes: str, changes: list[Change]) -> None:
    for number in map(int, nodes):
        for change in changes:
            change(pair.trees[number])
    assert pair.judge().findings == []


def test_two_nodes_of_one_disk_image_are_named_once(pair: Pair) -> None:
    for tree in pair.trees:
        tree.file("etc/machine-id", "0123456789abcdef0123456789abcdef\n")
    [entry] = pair.judge().findings
    assert (entry.id, entry.severity, list(entry.hosts)) == ("machine_id", "warning", ["spark-1", "spark-2"])
    assert "sudo rm -f /etc/machine-id /var/lib/dbus/machine-id && sudo systemd-machine-id-setup" in entry.remedy
    assert "0123456789abcdef" not in json.dumps(pair.facts(0))
    pair.trees[1].file("etc/machine-id", "f" * 32 + "\n")
    assert pair.judge().findings == []


@pytest.mark.parametrize(
    ("product", "more"),
    [
        ("Dell Pro Max with GB10 FCM1253", ""), ("HP ZGX Nano G1n AI Station", ""), ("30KL0005GF", "product_version"), ("30KL0005GF", "product_family"),
        ("EdgeXpert", ""), ("AI TOP ATOM", ""), ("Veriton GN100", ""), ("GX10", ""),
    ],
)  # fmt: skip
def test_an_oem_model_without_a_driver_is_a_gb10(pair: Pair, product: str, more: str) -> None:
    tree = pair.trees[0]
    tree.file("sys/class/dmi/id/product_name", product + "\n")
    tree.file("cmd/nvidia-smi.txt", "No devices were found\n")
    if more:
        tree.file(f"sys/class/dmi/id/{more}", "ThinkStation PGX\n")
    assert [entry.id for entry in pair.judge().findings] == ["gpu_lost"]
    assert pair.facts(0)["machine"]["evidence"] == [f"product name {'ThinkStation PGX' if more else product}"]


def test_an_unknown_model_is_a_gb10_by_its_host_bridge() -> None:
    assert parse.gb10_evidence(["Box"], ["0x10de:0x1234", "0x10de:0x22d0"], []) == ["GB10 PCIe host bridge"]


def test_a_program_that_does_not_end_is_left_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(node_facts, "GRACE", 0.2)
    program = tmp_path / "nvidia-smi"
    program.write_text("#!/bin/sh\ntrap '' TERM\nwhile :; do sleep 1; done\n")
    program.chmod(0o755)
    run = node_facts.live_runner(lambda name: str(program) if name == "nvidia-smi" else None)
    assert run(["timeout", "0.2", "nvidia-smi", "-L"])[0] == 124
    assert run(["modinfo", "nvidia"]) == (127, "", "modinfo: command not found")


@pytest.mark.parametrize(
    ("how", "name", "severity", "part"),
    [
        pytest.param({"up": ()}, "cable", "error", "no cable is plugged", id="no cable"),
        pytest.param({"speed": 25000}, "link_speed", "warning", "25000", id="25G"),
    ],
)
def test_reports_the_links_before_the_fabric_is_set_up(pair: Pair, how: dict[str, Any], name: str, severity: str, part: str) -> None:
    for path in pair.trees[1].root.glob("sys/class/net/*/carrier"):
        path.unlink()
    pair.trees[1] = spark(pair.trees[1].root, rails(1), **how)
    found = [entry for entry in pair.judge().findings if entry.id == name]
    assert [entry.severity for entry in found][:1] == [severity], found
    assert part in found[0].line()
    assert list(found[0].hosts) == ["spark-2"]


def test_reports_a_management_network_around_a_rail(pair: Pair) -> None:
    """The kernel answers ARP for the address of any interface, so the hosts of the wide network need no route."""
    [link] = [each for each in pair.trees[1].addr if each["ifname"] == "enP7s7"]
    link["addr_info"][0] |= {"local": "192.168.1.60", "prefixlen": 16}
    found = [entry for entry in pair.judge().findings if entry.id == "fabric_subnet"]
    assert [(entry.severity, list(entry.hosts)) for entry in found] == [("warning", ["spark-2"])] * 2
    assert ["192.168.200.0/24" in found[0].found, "192.168.201.0/24" in found[1].found] == [True, True]
    assert all("192.168.0.0/16 of enP7s7" in entry.found and "gb10_fabric_cidrs" in entry.remedy for entry in found)


def test_rules_of_forwarding_that_cannot_be_read_are_skipped(pair: Pair) -> None:
    put("proc/sys/net/ipv4/ip_forward", "1\n")(pair.trees[0])
    verdict = pair.judge()
    assert (verdict.findings, [entry.id for entry in verdict.skipped]) == ([], ["fabric_forwarding"])


@pytest.mark.parametrize("guarded", [0, 1])
def test_the_firewall_of_the_node_that_is_reached_closes_the_way(pair: Pair, guarded: int) -> None:
    """spark-1 forwards to the rails of spark-2, and another host answers on the rail of spark-2."""
    forward(1, "-P FORWARD ACCEPT")(pair.trees[0])
    neighbors("192.168.200.50", "3c:00:00:00:00:01")(pair.trees[1])
    put("cmd/nft-table.txt", "table inet gb10_cluster {}\n")(pair.trees[guarded])
    assert [entry.id for entry in pair.judge().findings] == ([] if guarded else ["fabric_forwarding", "fabric_neighbor"])


def test_reports_an_open_api_on_all_addresses_of_the_head(pair: Pair) -> None:
    [entry] = pair.judge(NEEDS._replace(open_port=8888)).findings
    assert (entry.id, entry.severity, list(entry.hosts)) == ("api_open", "warning", ["spark-1"])
    assert "vllm_tp2_api_open" in entry.remedy


def test_a_serving_pair_has_no_finding(pair: Pair) -> None:
    ours = {"gb10.cluster.group": "pair1", "gb10.cluster.release": "4f0c"}
    for number in (0, 1):
        container(f"gb10-pair1-rank{number}", "vllm:1", labels=ours, DeviceRequests=[{"Capabilities": [["gpu"]]}])(pair.trees[number])
        pair.trees[number].file("proc/77/comm", "VLLM::Worker\n")
    listen(8888, "vllm", f"0::/system.slice/docker-{ID}.scope")(pair.trees[0])
    pair.trees[0].file("proc/meminfo", meminfo(MemFree=9.0, MemAvailable=9.0))
    assert pair.judge().findings == []
    # the same port, used by another process
    listen(8888, "nginx", "0::/user.slice")(pair.trees[0])
    pair.trees[0].file("proc/meminfo", meminfo())
    assert [entry.id for entry in pair.judge().findings if entry.severity == "error"] == ["ports_free"]


def test_weights_on_disk_need_no_space(pair: Pair, capsys: pytest.CaptureFixture[str]) -> None:
    disks(20.0)(pair.trees[0])
    facts = pair.facts(0)
    facts["model"]["present_gib"] = 148.0
    verdict = verdict_on([Rank("spark-1", 0, facts)])
    assert [entry.id for entry in verdict.findings] == []


def test_skips_what_a_container_does_not_show(pair: Pair) -> None:
    for tree in pair.trees:
        tree.file("run/systemd/container", "docker\n")
        tree.file("proc/meminfo", meminfo(CmaFree=0.9))
        tree.file("proc/sys/kernel/osrelease", "7.0.0-1019-nvidia\n")
        tree.file("sys/class/dmi/id/product_name", "PC\n")
        (tree.root / "cmd/nvidia-smi.txt").unlink()
        (tree.root / "proc/driver/nvidia/version").unlink()
        for library in tree.root.glob("usr/lib/*/*"):
            library.unlink()
    verdict = pair.judge()
    assert verdict.findings == []
    skipped = {entry.id: entry.reason for entry in verdict.skipped}
    assert {"gb10", "arch", "memory_parity", "ota_parity", "reboot_pending", "kernel_parity", "firmware_parity", "known_bad_kernel", "known_bad_firmware",
            "kernel_log", "kho_leak", "memory_stuck", "memory_fragmented", "memory_cache", "watermark_boost", "link_speed", "twins", "rdma", "memlock",
            "gpu_reload", "may_suspend", "machine_id", "driver_parity", "known_bad_driver", "gpu_lost", "ota_torn"} == set(skipped)  # fmt: skip
    assert "container (docker)" in skipped["kho_leak"]
    (error,) = [entry for entry in pair.judge(NEEDS._replace(require_gb10=True)).findings if entry.id == "gb10"]
    assert error.severity == "error"


@pytest.mark.parametrize(
    ("rank", "name", "part"),
    [
        pytest.param({"failure": "Missing sudo password"}, "sudo", "add -K (--ask-become-pass)", id="sudo"),
        pytest.param({"failure": "The module interpreter '/usr/bin/python3' was not found."}, "python", "install python3 (3.9 or later)", id="python"),
        pytest.param({"failure": "Failed to connect to the host via ssh: timed out\nmore", "unreachable": True}, "reachable",
                     "ssh: timed out.", id="unreachable"),
        pytest.param({"failure": "strange"}, "reachable", "strange", id="anything"),
    ],
)  # fmt: skip
def test_reports_a_rank_that_does_not_answer_with_the_others(pair: Pair, rank: dict[str, Any], name: str, part: str) -> None:
    disks(1.0)(pair.trees[0])
    verdict = verdict_on([Rank("spark-1", 0, pair.facts(0)), Rank("spark-2", 1, {}, **rank)], NEEDS)
    assert [(entry.id, list(entry.hosts)) for entry in verdict.findings] == [(name, ["spark-2"]), ("disk_space", ["spark-1"])]
    assert part in verdict.findings[0].line()
    assert {(each.hosts, each.reason) for each in verdict.skipped} == {(("spark-2",), "the node was not read")}
    lost = verdict_on([Rank(host, number, {}, **rank) for number, host in enumerate(("spark-1", "spark-2"))], NEEDS)
    assert {entry.id for entry in lost.skipped} == set(judge.IDS) - {"reachable", "sudo", "python"}
    assert {(entry.hosts, entry.reason) for entry in lost.skipped} == {(("spark-1", "spark-2"), "the node was not read")}


@pytest.mark.parametrize(("without", "expected"), [("spark-1", False), ("spark-2", True)])
def test_a_check_of_the_head_has_run_where_the_head_was_read(without: str, expected: bool) -> None:
    assert judge.has_run(judge.CHECKS["ports_free"], ["spark-1", "spark-2"], [Skipped("ports_free", "nodes", (without,), "x")]) is expected


def test_a_value_that_no_node_reports_is_not_compared(pair: Pair) -> None:
    for tree in pair.trees:
        drop("etc/dgx-release")(tree)
    verdict = pair.judge()
    assert [(entry.id, list(entry.hosts)) for entry in verdict.skipped] == [("ota_parity", ["spark-1", "spark-2"])]
    assert not judge.has_run(judge.CHECKS["ota_parity"], ["spark-1", "spark-2"], verdict.skipped)


# --- the agent -----------------------------------------------------------------------------------------------------------------------

PEER = {"rank": 1, "host": "spark-2", "address": "192.168.200.12", "ok": True, "error": "", "protocol": 1}
SSHD = "port 22\npubkeyauthentication yes\nauthorizedkeysfile .ssh/authorized_keys\n"


def serve(pair: Pair, number: int, group: str = "pair1", **more: Any) -> Tree:
    """Install an agent that answers."""
    tree = pair.trees[number]
    tree.file("etc/gb10-cluster/agent.json", json.dumps({"group": group, "rank": number, "hosts": ["spark-1", "spark-2"], "peers": []}))
    tree.file("etc/systemd/system/gb10-agent.service", "[Unit]\n")
    if number:
        tree.file("cmd/agent-hello.json", "{}")
        tree.file("cmd/sshd.txt", SSHD)
        tree.file("var/lib/gb10-agent/.ssh/authorized_keys", 'restrict,command="x",from="192.168.200.11,10.0.0.11" ssh-ed25519 AAAA\n')
    else:
        tree.file("cmd/agent-peers.json", json.dumps({"peers": [PEER | more]}))
    return tree


def agents(pair: Pair) -> list[tuple[str, list[str], str]]:
    """Return id, hosts and block of the findings, of which none concerns something else."""
    found = pair.judge().findings
    assert {entry.id for entry in found} <= {"agent_down", "agent_path", "agent_sshd"}
    assert all(entry.severity == ("error" if entry.id == "agent_sshd" else "warning") for entry in found)
    return [(entry.id, list(entry.hosts), entry.line()) for entry in found]


def test_nodes_without_an_agent_have_no_finding_of_it(pair: Pair) -> None:
    assert pair.facts(0)["agent"] == {"installed": False}
    pair.trees[0].file("etc/gb10-cluster/agent.json", "{")
    pair.trees[1].file("etc/systemd/system/gb10-agent.service", "[Unit]\n")
    assert [pair.facts(number)["agent"] for number in (0, 1)] == [{"installed": False}] * 2


def test_a_pair_with_working_agents_has_no_finding(pair: Pair) -> None:
    for number in (0, 1):
        serve(pair, number)
    verdict = pair.judge()
    assert (verdict.findings, verdict.skipped) == ([], [])
    agent = {"installed": True, "group": "pair1", "rank": 0, "active": True, "error": "", "peers": [PEER], "sshd_problems": []}
    assert pair.facts(0)["agent"] == agent


@pytest.mark.parametrize(("number", "verb"), [(0, "peers"), (1, "hello")])
def test_an_agent_that_does_not_run_is_a_warning(pair: Pair, number: int, verb: str) -> None:
    for each in (0, 1):
        serve(pair, each, ok=False, error="connect failed: /run/gb10-agent/session.sock: No such file or directory")
    drop(f"cmd/agent-{verb}.json")(pair.trees[number])
    ((name, hosts, text),) = agents(pair)
    assert (name, hosts) == ("agent_down", [f"spark-{number + 1}"])
    assert "`systemctl start gb10-agent` on the node" in text


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        ("Host key verification failed", "run site.yml with --tags vllm_tp2, which pins its present host key"),
        ("Permission denied (publickey)", "change the setting of sshd on spark-2 that agent_sshd reports"),
        ("No route to host", "`ping 192.168.200.12` on the head, and run site.yml with --tags roce"),
        ("Connection timed out", "run site.yml with --tags roce"),
        ("ssh: connect to host 192.168.200.12 port 22: failure", "run site.yml with --tags roce"),
        ("no reply within 15 s (Timeout, server 192.168.200.12 not responding)", "run site.yml with --tags roce"),
        ("connect failed: /run/gb10-agent/session.sock: Connection refused", "`systemctl start gb10-agent` on spark-2"),
        ("Connection refused", "`systemctl start ssh` on spark-2"),
        ("Connection reset by peer", "`journalctl -u ssh` on spark-2"),
        ("The request has protocol version 1. The agent on spark-2 supports 2 and 3. Run site.yml for all nodes of the group.",
         "run site.yml with --tags vllm_tp2; `gb10 call peers`"),
    ],
)  # fmt: skip
def test_a_worker_that_the_head_cannot_reach_is_a_warning_with_its_remedy(pair: Pair, error: str, remedy: str) -> None:
    serve(pair, 0, ok=False, error=error)
    serve(pair, 1)
    ((name, hosts, text),) = agents(pair)
    assert (name, hosts) == ("agent_path", ["spark-1", "spark-2"])
    assert f"192.168.200.12) over the rail: {error.rstrip('.')}. Why" in text
    assert remedy in text.partition("Remedy: ")[2]


def test_the_path_to_a_worker_that_was_installed_again_has_no_finding(pair: Pair) -> None:
    serve(pair, 0, ok=False, error="Host key verification failed")
    assert agents(pair) == []


def test_the_path_to_a_worker_that_does_not_answer_ansible_is_reported(pair: Pair) -> None:
    serve(pair, 0, ok=False, error="No route to host")
    ranks = [Rank("spark-1", 0, pair.facts(0)), Rank("spark-2", 1, {}, "timed out", True)]
    found = verdict_on(ranks, NEEDS).findings
    assert [entry.id for entry in found] == ["reachable", "agent_path"]
    assert "site.yml" not in found[1].remedy, "it is refused without this node"


def test_settings_of_sshd_that_exclude_the_head_are_errors(pair: Pair) -> None:
    serve(pair, 0)
    serve(pair, 1).file("cmd/sshd.txt", SSHD + "allowusers admin\nforcecommand /bin/menu\n")
    found = agents(pair)
    assert [(name, hosts) for name, hosts, _text in found] == [("agent_sshd", ["spark-2"])] * 2
    assert "AllowUsers admin for user gb10-agent from spark-1 (192.168.200.11). Why" in found[0][2]
    assert "Remedy: Add gb10-agent to AllowUsers" in found[0][2]


def test_an_agent_of_another_group_has_no_finding(pair: Pair) -> None:
    serve(pair, 0, "pair9", ok=False, error="No route to host")
    serve(pair, 1, "pair9").file("cmd/sshd.txt", "pubkeyauthentication no\n")
    drop("cmd/agent-hello.json")(pair.trees[1])
    assert agents(pair) == []


def failing(error: Exception) -> session.Call:
    """Return a socket on which every call fails."""

    def call(_verb: str, **_options: Any) -> dict[str, Any]:
        raise error

    return call


@pytest.mark.parametrize(
    ("error", "active", "text"),
    [
        (AgentMissing("/run/gb10-agent/admin.sock: Connection refused"), False, "/run/gb10-agent/admin.sock: Connection refused"),
        (RankError("The agent did not answer peers within 20 s."), False, "The agent did not answer peers within 20 s"),
        (RankError("The verb 'peers' is not supported.", "unknown"), True, ""),
        (PermissionError(13, "Permission denied"), None, "only root may ask the agent"),
    ],
)
def test_what_a_failed_call_to_the_agent_means(pair: Pair, error: Exception, active: bool | None, text: str) -> None:
    found = session.read_for_preflight(Node(str(serve(pair, 0).write())), failing(error))
    assert (found["active"], found["error"], found["peers"]) == (active, text, [])


def test_an_agent_that_may_not_be_asked_is_skipped(pair: Pair) -> None:
    facts = pair.facts(0) | {"agent": session.read_for_preflight(Node(str(serve(pair, 0).write())), failing(PermissionError()))}
    verdict = verdict_on([Rank("spark-1", 0, facts), Rank("spark-2", 1, pair.facts(1))])
    assert verdict.findings == []
    assert {entry.id: entry.reason for entry in verdict.skipped} == dict.fromkeys(("agent_down", "agent_path", "agent_sshd"), "only root may ask the agent")


@pytest.mark.parametrize(
    ("rc", "out", "err", "problems"),
    [
        (0, SSHD + "allowgroups gb10-agent\n", "", []),
        (255, "", "Missing privilege separation directory: /run/sshd", []),
        (255, "", "/etc/ssh/sshd_config: line 3: Bad configuration option: Prot", ["sshd -T failed on this node: /etc/ssh/sshd_config: line 3: Bad conf"]),
        (127, "", "sshd: command not found", ["sshd is not installed on this node."]),
    ],
)
def test_reads_sshd_for_the_connection_of_the_head(pair: Pair, rc: int, out: str, err: str, problems: list[str]) -> None:
    tree = serve(pair, 1)
    (tree.root / "cmd/sshd.txt").unlink()
    commands: list[str] = []

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        commands.append(" ".join(argv))
        return (rc, out, err) if argv[0] == "sshd" else (0, "gb10-agent\n", "")

    found = session.read_for_preflight(Node(str(tree.write()), run))["sshd_problems"]
    assert len(found) == len(problems)
    assert all(sentence.startswith(start) for sentence, start in zip(found, problems, strict=True))
    assert commands[0] == "sshd -T -C user=gb10-agent,host=spark-1,addr=192.168.200.11"


def test_ignore_and_strict(pair: Pair) -> None:
    pair.trees[0].file("run/reboot-required", "")
    pair.trees[0].file("cmd/time.txt", f"{NOW + 40}\n")
    verdict = pair.judge(ignore=["clock_skew"], strict=True)
    assert [(entry.id, entry.severity) for entry in verdict.findings] == [("reboot_pending", "error")]
    assert [entry.id for entry in verdict.ignored] == ["clock_skew"]


@pytest.mark.parametrize(
    ("path", "text", "reason"),
    [
        ("run/reboot-required", "", "/run/reboot-required"),
        ("cmd/modinfo-nvidia.txt", "580.178.04\n", "580.178.04"),
        (tuning.KHO_FILE[1:], MARKER, "has kho=off, and the running kernel does not"),
        ("proc/meminfo", meminfo(MemFree=80.0, MemAvailable=79.0), "memory of no process"),
        ("proc/buddyinfo", buddy(0), "fragmented"),
    ],
)
def test_why_a_node_needs_a_reboot(pair: Pair, path: str, text: str, reason: str) -> None:
    pair.trees[0].file(path, text)
    (text,) = pair.facts(0)["reboot_reasons"]
    assert reason in text


@pytest.mark.parametrize(
    ("image", "part"),
    [
        ("vllm/vllm-openai:v0.24.0", "Unknown recipe"), ("ghcr.io/timothystewart6/vllm-gb10:0.24.1-cu130", "Unknown recipe"),
        ("vllm/vllm-openai:v0.27.1-aarch64@sha256:" + "a" * 64, "Gemma 4"), ("registry:5000/spark-vllm:cu130-v0.27.0", "Gemma 4"),
        ("vllm/vllm-openai:v0.23.0", ""), ("vllm/vllm-openai:v0.27.2", ""), ("vllm/vllm-openai:v0.240.0", ""), ("vllm/vllm-openai:nightly-0a24b27", ""),
        ("nvcr.io/nvidia/vllm:0.24-py3", ""), ("registry:5000/vllm", ""), ("app:0.24.0", ""), ("vllm@sha256:" + "0" * 64, ""),
    ],
)  # fmt: skip
def test_a_version_of_vllm_that_fails_on_this_gpu_is_a_warning_and_no_other_image_is(pair: Pair, image: str, part: str) -> None:
    found = pair.judge(NEEDS._replace(image=image)).findings
    assert [(entry.id, entry.severity, list(entry.hosts)) for entry in found] == [("known_bad_vllm", "warning", ["spark-1", "spark-2"])] * bool(part)
    assert all(part in entry.why for entry in found)


@pytest.mark.parametrize("version", ["580.173.02", "580.178.04", "610.43.02"])
def test_a_driver_without_reports_has_no_finding(pair: Pair, version: str) -> None:
    for tree in pair.trees:
        tree.file("proc/driver/nvidia/version", nvrm(version))
    assert "known_bad_driver" not in {entry.id for entry in pair.judge().findings}


# --- captures of field machines --------------------------------------------------------------------------------------------------------


@needs_shared
def test_versions_of_a_capture(pair: Pair) -> None:
    """The DGX release file as it is in the field."""
    pair.trees[0].file("etc/dgx-release", (samples() / "dgx-release.txt").read_text())
    facts = pair.facts(0)
    assert facts["dgx"] == {"present": True, "name": "DGX Spark", "base": "7.2.3", "ota": "7.3.1"}
    assert parse.fwupd_versions((samples() / "fwupdmgr-cx7.txt").read_text()) == {}


@needs_shared
def test_a_real_pair_has_no_error_of_the_fabric(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tree = from_pair(samples() / "pairA-f0f0" / "head", tmp_path)
    for name in COPY_PROGRAMS:
        tree.file(f"usr/{name}", "")
    with replayed(tree.write()):
        facts = run_module(capsys, preflight_info)
    assert facts["fabric"]["ports"] == 4
    verdict = verdict_on([Rank("spark-1", 0, facts)], NEEDS._replace(model_gib=0))
    assert [entry.id for entry in verdict.findings if entry.severity == "error"] == []
