# Copyright: the gb10.cluster authors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""PRIVATE. Read the facts of one node for preflight, through `Node` and the readers of RoCE and memory.

Reads only. `read()` returns what the module preflight_info documents, but for `agent` (_pair/session.py).
Sizes are GiB (`_gib`) or bytes, times seconds since the epoch.
"""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any, Callable

from ansible_collections.gb10.cluster.plugins.module_utils._boot_log import catalogue
from ansible_collections.gb10.cluster.plugins.module_utils._boot_log.catalogue import KERNEL_KINDS
from ansible_collections.gb10.cluster.plugins.module_utils._core import bounded
from ansible_collections.gb10.cluster.plugins.module_utils._core.bounded import SECONDS, run_command
from ansible_collections.gb10.cluster.plugins.module_utils._core.node_files import HostError, Node, Runner
from ansible_collections.gb10.cluster.plugins.module_utils._fabric import problems as roce_facts
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.capture import Capture, capture_of, find_ssh_connection
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.netplan import foreign_config
from ansible_collections.gb10.cluster.plugins.module_utils._fabric.rails import DesiredState
from ansible_collections.gb10.cluster.plugins.module_utils._node import docker_api, images, memory, parse, transfer, tuning

Record = dict[str, Any]

GIB = 1 << 30
COPY_PROGRAMS = tuple(dict.fromkeys((*transfer.FETCHES, *transfer.SERVES)))  # each rank can be either end
GRACE = 5.0  # seconds for a program that timeout(1) has ended
# the name by which command() runs it -> the command
COMMANDS: dict[str, list[str]] = {
    "nvidia-smi.txt": ["timeout", "20", "nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"],
    "modinfo-nvidia.txt": ["modinfo", "-F", "version", "nvidia"],
    "fwupdmgr.json": ["timeout", "30", "fwupdmgr", "get-devices", "--json"],
    "ota-check.json": ["timeout", "20", "nvidia-spark-ota-check", "torn-score"],
    "dmesg.txt": ["dmesg"],
    "uname-m.txt": ["uname", "-m"],
    "iptables-forward.txt": ["iptables", "-S", "FORWARD"],
    "nft-table.txt": ["nft", "list", "table", "inet", "gb10_cluster"],
    "ip-neigh.json": ["ip", "-j", "neigh"],
    "listening.txt": ["ss", "--no-header", "--tcp", "--listening", "--numeric", "--processes"],
    "sleep-targets.txt": ["systemctl", "is-enabled", "sleep.target", "suspend.target"],
    "sleep.conf": ["systemd-analyze", "cat-config", "systemd/sleep.conf"],
    "logind.conf": ["systemd-analyze", "cat-config", "systemd/logind.conf"],
}


def live_runner(find: Callable[[str], str | None]) -> Runner:
    """Return the Runner of the live node; `find` returns the path of a program. A program that does not end is left behind, with rc 124."""

    def run(argv: Sequence[str]) -> tuple[int, str, str]:
        wanted = argv[2] if argv[0] == "timeout" else argv[0]
        program = find(wanted)
        if not program:
            return 127, "", f"{wanted}: command not found"
        words = [program if word == wanted else word for word in argv]  # sshd requires an absolute path
        # timeout(1) waits for a program that a lost GPU keeps in the kernel.
        seconds = float(argv[1]) + GRACE if argv[0] == "timeout" else SECONDS
        return run_command(words, seconds, env={"LC_ALL": "C.UTF-8"})

    return run


def live_node(find: Callable[[str], str | None]) -> Node:
    """Return this node."""
    return Node("/", live_runner(find))


def command(node: Node, name: str) -> tuple[int, str]:
    """Return (rc, output) of a command. rc 127: not installed."""
    rc, out, err = node.run(COMMANDS[name])
    return rc, out if out.strip() else err


def machine(node: Node, smi: Sequence[str]) -> Record:
    """Return product and processor, what identifies the machine as a GB10, and a hash of its machine ID."""
    names = ("product_name", "product_version", "product_family")  # Lenovo has the model in the version and the family
    product, version, family = ((node.read(f"/sys/class/dmi/id/{name}") or "").strip("\0 \n") for name in names)
    devices = (f"/sys/bus/pci/devices/{name}" for name in node.listdir("/sys/bus/pci/devices"))
    pci = [":".join((node.read(f"{device}/{name}") or "").strip() for name in ("vendor", "device")) for device in devices]
    evidence = parse.gb10_evidence((product, version, family), pci, smi)
    rc, text = command(node, "uname-m.txt")
    arch = text.strip() if rc == 0 else ""
    # A virtual machine may carry a Spark's name; a GB10 is aarch64.
    gb10 = bool(evidence) and arch == "aarch64"
    return {"arch": arch, "product": product, "gb10": gb10, "evidence": evidence, "id": parse.hidden_id(node.read("/etc/machine-id"))}


def driver(node: Node) -> Record:
    """Return the NVIDIA driver: loaded module, module on disk, libraries on disk, GPUs that nvidia-smi lists, its error."""
    loaded = parse.loaded_driver(node.read("/proc/driver/nvidia/version"))
    libraries = parse.library_versions(node.glob("/usr/lib/*/libnvidia-ml.so.*") + node.glob("/usr/lib/*/libcuda.so.*"))
    rc, text = command(node, "nvidia-smi.txt")
    gpus, version, error = parse.read_smi(rc, text)
    on_disk = ""
    if loaded or libraries:
        rc, text = command(node, "modinfo-nvidia.txt")
        on_disk = text.strip().splitlines()[0].strip() if rc == 0 and text.strip() else ""
    return {"loaded": loaded or version, "on_disk": on_disk, "libraries": libraries, "gpus": gpus, "error": error, "present": bool(loaded or libraries or gpus)}


def fabric(capture: Capture, addresses: Sequence[str], ssh: str | None, foreign: Sequence[Record], node: Node) -> Record:
    """Return the facts of the fabric that can be checked before it is set up."""
    found = roce_facts.gather(capture, DesiredState(list(addresses)), ssh, foreign)
    interface = str(found["management"].get("interface") or "")
    base = f"/sys/class/net/{interface}"
    wireless = bool(interface) and (node.exists(f"{base}/wireless") or node.exists(f"{base}/phy80211") or interface.startswith("wl"))
    return {
        "ports": len(found["ports"]),
        "rails": [{key: rail[key] for key in ("netdev", "hca", "carrier", "speed_mbps", "state", "ipv4", "prefix")} for rail in found["rails"]],
        "management": {**{key: found["management"].get(key) for key in ("interface", "address", "prefix", "reason")}, "wireless": wireless},
        "macs": sorted({capture.text(f"sys/class/net/{port['netdev']}/address") or "" for port in (*found["ports"], *found["rails"])}),
        "foreign": [{"path": entry["path"], "writer": entry.get("writer")} for entry in foreign],
        "problems": found["problems"],
    }


def exposure(node: Node, rails: Sequence[str]) -> Record:
    """Return what a host that is not a rank can use to reach the rails, and whether the table of roce_firewall is loaded.

    `forwarding`: the setting that forwards IPv4 packets, empty if there is none; a packet follows the setting of the interface that it comes in on.
    `policy`: what the FORWARD chain does with them, empty if it is not known. `neighbors`: MAC addresses of hosts that answered on a rail.
    """
    base = "/proc/sys/net/ipv4"
    others = sorted(set(node.listdir(f"{base}/conf")) - {"all", "default", "lo", *rails})
    paths = {"ip_forward": f"{base}/ip_forward", **{f"conf.{name}.forwarding": f"{base}/conf/{name}/forwarding" for name in others}}
    setting = next((f"net.ipv4.{name}=1" for name, path in paths.items() if (node.read(path) or "").strip() == "1"), "")
    rc, text = command(node, "iptables-forward.txt") if setting else (127, "")
    match = re.search(r"^-A FORWARD -j (DROP|REJECT)\b", text, re.MULTILINE) or re.search(r"^-P FORWARD (\w+)", text, re.MULTILINE)
    rows = parse.json_rows(command(node, "ip-neigh.json")[1])
    seen = {(str(row.get("dev")), str(row["lladdr"])) for row in rows if row.get("dev") in rails and row.get("lladdr") and row.get("state") != ["FAILED"]}
    return {
        "forwarding": setting,
        "policy": match.group(1) if match and rc == 0 else "",
        "firewall": command(node, "nft-table.txt")[0] == 0,
        "neighbors": [{"netdev": netdev, "mac": mac} for netdev, mac in sorted(seen)],
    }


def firmware(node: Node, capture: Capture, vendor: bool) -> dict[str, str]:
    """Return firmware versions by device: fwupd's if `vendor` (JSON, because its text is translated), the HCAs' and the board's."""
    found: dict[str, str] = {}
    if vendor:
        rc, text = command(node, "fwupdmgr.json")
        if rc == 0:
            found.update(parse.fwupd_versions(text))
    for name, key in (("bios_version", "BIOS"), ("ec_firmware_release", "EC")):
        text = (node.read(f"/sys/class/dmi/id/{name}") or "").strip()
        if text:
            found.setdefault(key, text)
    versions = {text for hca in capture.hcas() for text in [capture.text(f"sys/class/infiniband/{hca}/fw_ver")] if text}
    if versions:
        found[parse.CX7] = ", ".join(sorted(versions))
    return found


def docker(node: Node, socket_path: str, image: str) -> tuple[Record, list[Record]]:
    """Return the engine and its containers."""
    engine: Record = {"version": "", "driver": "", "image_store": "", "root": "/var/lib/docker", "error": "", "installed": True, "image_present": None}
    engine.update(cgroup_driver="", cdi=bool(node.glob("/etc/cdi/*") or node.glob("/run/cdi/*")))
    containers: list[Record] = []
    if not node.exists(socket_path):
        installed = any(node.exists(path) for path in ("/usr/bin/dockerd", "/usr/sbin/dockerd", "/usr/local/bin/dockerd"))
        engine.update(installed=installed, error=f"the socket {socket_path} of the Docker Engine does not exist")
        return engine, containers
    try:
        engine.update(parse.engine_facts(docker_api.parsed(docker_api.get("/info", None, socket_path), socket_path)))
        for entry in docker_api.list_containers([], socket_path):
            details: Record | None = None
            if entry.get("State") in ("running", "restarting", "paused") or parse.is_vllm(entry):
                with contextlib.suppress(docker_api.DockerError):  # that of a dead container can fail (github.com/stepchowfun/docuum/pull/407)
                    details = docker_api.inspect(entry["Id"], socket_path)  # None too if it was removed after the list
            containers.append(parse.container_facts(entry, details or {}))
        if image:
            engine["image_present"] = images.inspect_image(image, socket_path) is not None
    except (docker_api.DockerError, KeyError, TypeError, AttributeError) as error:
        engine["error"] = str(error)
    return engine, containers


def disk(path: str) -> Record | None:
    """Return size and free space of the file system of `path`, or of its first existing parent."""
    here = path
    while here not in ("/", "") and not os.path.exists(here):
        here = os.path.dirname(here)
    try:
        stat, device = os.statvfs(here or "/"), os.stat(here or "/").st_dev
    except OSError:
        return None
    return {
        "path": path,
        "device": f"{os.major(device)}:{os.minor(device)}",
        "free_gib": round(stat.f_bavail * stat.f_frsize / GIB, 2),
        "total_gib": round(stat.f_blocks * stat.f_frsize / GIB, 2),
        "read_only": bool(stat.f_flag & os.ST_RDONLY),
    }


def present_gib(node: Node, path: str) -> float:
    """Return the size of the files below the directory of a model. Links (of a Hugging Face cache) count with their target."""
    total = 0
    with contextlib.suppress(OSError):  # more files than a model has: what was counted so far
        for _name, entry in bounded.below(node.at(path)) if path else ():
            with contextlib.suppress(OSError):
                total += os.stat(entry.path).st_size
    return round(total / GIB, 2)


def listening(node: Node, ports: Sequence[int], containers: Sequence[Record]) -> list[Record]:
    """Return the listeners on `ports`: address, process and its container."""
    ids = {str(entry["id"]): str(entry["name"]) for entry in containers if entry["id"]}
    found = []
    for address, port, process, pid in re.findall(
        r'(?m)^LISTEN +\d+ +\d+ +(\S+):(\d+) +\S+ *(?:users:\(\("(.*?)",pid=(\d+))?', command(node, "listening.txt")[1]
    ):
        entry: Record = {"port": int(port), "address": address if set(address) - set("[0.:]") else "*"}
        if pid:
            entry.update(pid=int(pid), process=process, container=parse.container_of(node.read(f"/proc/{pid}/cgroup") or "", ids))
        found.append(entry)
    return sorted((entry for entry in found if entry["port"] in ports), key=lambda entry: int(entry["port"]))


def memlock(node: Node) -> Record:
    """Return the limit of locked memory of the Docker daemon."""
    pid = (node.read("/run/docker.pid") or node.read("/var/run/docker.pid") or "").strip()
    return parse.memlock(node.read(f"/proc/{pid}/limits"), node.read(f"/proc/{pid}/status")) if pid.isdigit() else parse.memlock(None, None)


def read(node: Node, find: Callable[[str], str | None], options: Mapping[str, Any]) -> Record:
    """Return the facts of one node. `options` as the module takes them, `find` returns the path of a program."""
    capture = capture_of("/", run_command, find)
    found = gather(node, capture, find_ssh_connection(), foreign_config(capture), options)
    return {**found, "reboot_reasons": parse.reboot_reasons(found)}


def gather(node: Node, capture: Capture, ssh: str | None, foreign: Sequence[Record], options: Mapping[str, Any]) -> Record:
    """Return the facts of one node, but for the reasons of a reboot."""
    now, gpu = time.time(), driver(node)
    what = machine(node, gpu["gpus"])
    container, kernel = memory.container_reason(node), memory.read_kernel(node)
    try:
        figures = memory.report(memory.gather(node))
    except HostError as error:
        figures = {"error": str(error), "problems": []}
    rails = fabric(capture, options["fabric_addresses"], ssh, foreign, node)
    engine, containers = docker(node, options["docker_socket"], options["image"])
    paths = list(dict.fromkeys(path for path in (engine["root"], options["model_store"]) if path))
    vendor = what["gb10"]  # commands that only a GB10 needs
    log_rc, log = command(node, "dmesg.txt") if vendor and not container else (127, "")
    ota_rc, ota = command(node, "ota-check.json") if vendor else (127, "")
    return {
        "time": now,
        "python": ".".join(str(part) for part in sys.version_info[:3]),
        "container": container,
        "machine": what,
        "kernel": {
            "release": kernel.release,
            "cmdline": kernel.cmdline,
            "reboot_required": node.exists("/run/reboot-required") or node.exists("/var/run/reboot-required"),
            "reboot_packages": sorted(set((node.read("/run/reboot-required.pkgs") or "").split())),
            "reboot_kho": "" if container else tuning.kho_pending(tuning.read_kho(node), kernel),
        },
        "dgx": parse.dgx_release(node.read("/etc/dgx-release")),
        "driver": gpu,
        "copy_missing": [name for name in COPY_PROGRAMS if not any(node.exists(f"/usr/{at}/{name}") for at in ("bin", "sbin"))],
        "broken_packages": parse.broken_packages(node.read("/var/lib/dpkg/status")),
        "ota_check": parse.json_object(ota) if ota_rc == 0 else {},
        "firmware": firmware(node, capture, vendor),
        "memory": figures,
        "fabric": rails,
        "exposure": exposure(node, [str(rail["netdev"]) for rail in rails["rails"]]),
        "docker": engine,
        "containers": containers,
        "disks": [entry for entry in map(disk, paths) if entry],
        "model": {"path": options["model_path"], "present_gib": round(sum(present_gib(node, options[key]) for key in ("model_path", "drafter_path")), 2)},
        "listening": listening(node, options["ports"], containers),
        "memlock": memlock(node),
        "kernel_log": [each for each in catalogue.summarize_kernel(log) if catalogue.KERNEL_KINDS[each["id"]].preflight] if log_rc == 0 else [],
        "suspends": [] if container else reasons(node, log if log_rc == 0 else ""),
    }


_ACTIONS = ("suspend", "hibernate", "hybrid-sleep", "suspend-then-hibernate", "sleep")
_DCONF = "/etc/dconf/db"
_GREETER = ("/etc/gdm3/greeter.dconf-defaults", "/etc/gdm/greeter.dconf-defaults")
_OVERRIDES = "/usr/share/glib-2.0/schemas/*.gschema.override"
#: What GNOME does on mains power without input if no file sets it: suspend after 15 minutes.
_GNOME = {"sleep-inactive-ac-type": "suspend", "sleep-inactive-ac-timeout": "900"}


def reasons(node: Node, log: str) -> list[str]:
    """Return why a node may suspend by itself, each as a phrase; empty if it does not, or cannot. `log` is the kernel log of this boot."""
    masked = "masked" in command(node, "sleep-targets.txt")[1].split()
    if masked or parse.keys(command(node, "sleep.conf")[1]).get("AllowSuspend", "yes").lower() in ("no", "false", "off", "0"):
        return []
    entries, logind = sum(map(KERNEL_KINDS["suspend"].matches, log.splitlines())), parse.keys(command(node, "logind.conf")[1])
    found = [f"it has suspended {entries} time(s) since the boot"] if entries else []
    if logind.get("IdleAction") in _ACTIONS:
        found.append(f"logind has IdleAction={logind['IdleAction']}")
    lid = logind.get("HandleLidSwitchExternalPower", logind.get("HandleLidSwitch", "suspend"))
    if node.listdir("/proc/acpi/button/lid") and lid in _ACTIONS:
        found.append(f"the machine has a lid switch, and logind has HandleLidSwitch={lid}")
    return found + _gnome(node)


def _gnome(node: Node) -> list[str]:
    """Return what suspends in GNOME, if the node starts it: the login screen, and a session whose user has not changed it."""
    manager = node.link("/etc/systemd/system/display-manager.service") or ""
    target = node.link("/etc/systemd/system/default.target") or node.link("/usr/lib/systemd/system/default.target") or ""
    if "gdm" not in manager or "graphical" not in target:
        return []
    system, greeter = node.glob(_OVERRIDES), [*node.glob(f"{_DCONF}/gdm.d/*"), *_GREETER]
    session = [path for path in node.glob(f"{_DCONF}/*.d/*") if "/gdm.d/" not in path]
    found = []
    for what, paths in (("the login screen of GNOME", [*system, *greeter]), ("GNOME", [*system, *session])):
        keys = {**_GNOME, **parse.keys("\n".join(node.read(path) or "" for path in paths))}
        if keys["sleep-inactive-ac-type"] in _ACTIONS and keys["sleep-inactive-ac-timeout"] != "0":
            kind, seconds = keys["sleep-inactive-ac-type"], keys["sleep-inactive-ac-timeout"]
            found.append(f"{what} suspends the node after {seconds} s without input (sleep-inactive-ac-type is {kind})")
    return found
